"""Meta-World's scripted expert for pick-and-place, with noise and a chosen side of approach."""

import warnings
from collections.abc import Callable

import numpy as np

ABOVE = 0.1
ARRIVED = 0.02


def approaching(
    offset: float, noise: float, rng: np.random.Generator
) -> Callable[[np.ndarray], np.ndarray]:
    """An actor that first goes above a point beside the puck, then does as the package's expert.

    Args:
        offset: of that point from the puck along x, in metres.
        noise: standard deviation added to each action.
        rng: of the noise.
    """
    from metaworld.policies import SawyerPickPlaceV3Policy

    expert, approaching = SawyerPickPlaceV3Policy(), True

    def act(observation: np.ndarray) -> np.ndarray:
        nonlocal approaching
        hand, puck = observation[:3].astype(float), observation[4:7].astype(float)
        beside = puck + np.array([offset, 0.0, ABOVE])
        if np.linalg.norm(hand[:2] - beside[:2]) < ARRIVED:
            approaching = False
        if approaching:
            action = np.append(10 * (beside - hand), 0.0)
        else:
            with warnings.catch_warnings():  # it asks for more than the simulator's range
                warnings.simplefilter("ignore")
                action = expert.get_action(observation.astype(float))
        return action.clip(-1, 1) + noise * rng.standard_normal(4)

    return act
