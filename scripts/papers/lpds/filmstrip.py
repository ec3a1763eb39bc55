"""Pictures of an episode on any machine: rays cast through MuJoCo's geometry, with no display, no
OpenGL and no graphics driver. The same poses give the same pixels.

Shading is Lambert's law under a sky and one lamp, with shadows. Normals come from the differences
of neighbouring hits, so that meshes need no data of their own.
"""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from scripts.papers.lpds.draws import Draws
from scripts.papers.lpds.interaction import Norm, Policy
from scripts.papers.lpds.tasks import Simulator, make, score

SAMPLES = 2
"""Rays along each side of a pixel."""
FIELD_OF_VIEW = 30.0
"""Vertical, degrees."""
VISIBLE = np.array([1, 1, 1, 0, 0, 0], dtype=np.uint8)
"""MuJoCo's groups of geometry that are meant to be seen; the others are for contacts."""
SKY, HORIZON = np.array([0.80, 0.87, 0.94]), np.array([0.95, 0.96, 0.97])
FLOOR, GOAL = np.array([0.90, 0.91, 0.90]), np.array([0.0, 0.45, 0.85])
GOAL_RADIUS = 0.02
UNSET = np.array([0.5, 0.5, 0.5, 1.0])
"""MuJoCo's colour of geometry that takes its material's."""


@dataclass(frozen=True)
class Camera:
    """Looks at a point, in metres, from a distance and two angles in degrees.

    `follows` names a body along whose x the point moves; the floor has tiles of `tile` metres; the
    lamp stands at `lamp` from the point; `goal` names a site that is drawn as a ball.
    """

    at: tuple[float, float, float]
    distance: float
    azimuth: float
    elevation: float
    tile: float
    lamp: tuple[float, float, float]
    follows: str | None = None
    goal: str | None = None


CAMERAS = {
    "halfcheetah": Camera((0.0, 0.0, 0.5), 3.6, -80, 12, 1.0, (-2, -3, 6), follows="torso"),
    "pen": Camera((0.1, -0.17, 0.21), 0.8, -65, 42, 0.5, (-0.5, -1.5, 3)),
    "pick_place": Camera((0.0, 0.62, 0.17), 1.3, 30, 25, 0.5, (1, 1, 4), goal="goal"),
}


@dataclass(frozen=True)
class Film:
    """An episode in pictures: frames uint8 [F, height, width, 3], the step that each shows, what it
    has come to by then, and the episode's score."""

    frames: np.ndarray
    steps: np.ndarray
    captions: list[str]
    score: float


def film(
    task: str,
    horizon: int,
    norm: Norm,
    policy: Policy,
    seed: int,
    draws: Draws,
    frames: int = 6,
    width: int = 240,
    height: int = 180,
) -> Film:
    """Play an episode of a policy and take pictures of it, evenly from its first to its last step.

    Args:
        task, horizon: what is simulated, and steps an episode.
        norm: of the task.
        policy: for one column.
        seed: of the environment.
        draws: one generator.
        frames: pictures.
        width, height: of a picture, in pixels.

    Raises:
        ValueError: more columns than one, or no picture.
        SimulatorFault: the simulator or the policy gave something that is not finite.
    """
    if len(draws.generators) != 1:
        raise ValueError(f"draws has {len(draws.generators)} columns; a film shows one")
    if frames < 1:
        raise ValueError(f"frames is {frames}; it must be at least 1")
    simulator = make(task, horizon)
    observation = simulator.reset(seed)
    seen = [(snapshot(simulator), progress(task, simulator, observation))]
    rewards, successes, ended = [], [], False
    while not ended:
        scaled = norm.observation(torch.from_numpy(observation)[None, None].to(draws.device))
        for action in norm.steps_of(policy.act(scaled, draws))[0, 0]:
            step = simulator.step(action)
            observation, ended = step.observation, step.terminated or step.truncated
            rewards.append(step.reward)
            successes.append(step.success)
            seen.append((snapshot(simulator), progress(task, simulator, observation)))
            if ended:
                break
    shown = np.linspace(0, len(seen) - 1, frames).round().astype(np.int64)
    return Film(
        pictures(simulator, np.stack([seen[step][0] for step in shown]), width, height),
        shown,
        [f"step {step}, {seen[step][1]}" for step in shown],
        score(task, rewards, successes),
    )


def progress(task: str, simulator: Simulator, observation: np.ndarray) -> str:
    """How far an episode has come, in words: metres run, degrees between the pen and its target,
    centimetres between the puck and its goal."""
    if task == "halfcheetah":
        return f"{simulator.world.data.qpos[0]:.1f} m"
    if task == "pen":
        alike = float(observation[33:36] @ observation[36:39])
        return f"{np.degrees(np.arccos(np.clip(alike, -1, 1))):.0f}° off"
    return f"{100 * np.linalg.norm(observation[4:7] - observation[36:39]):.0f} cm off"


def snapshot(simulator: Simulator) -> np.ndarray:
    """What a picture needs of a simulator now: place and rotation of every geom, and the place of
    the body that the camera follows and of the goal, [geoms + 2, 12]."""
    model, data = simulator.world.model, simulator.world.data
    camera = CAMERAS[simulator.spec.name]
    state = np.zeros((model.ngeom + 2, 12))
    state[:-2, :3], state[:-2, 3:] = data.geom_xpos, data.geom_xmat
    if camera.follows is not None:
        state[-2, 0] = data.body(camera.follows).xpos[0]
    if camera.goal is not None:
        state[-1, :3] = data.site(camera.goal).xpos
    return state


def pictures(
    simulator: Simulator, states: np.ndarray, width: int = 240, height: int = 180
) -> np.ndarray:
    """Pictures uint8 [F, height, width, 3] of a simulator's snapshots [F, geoms + 2, 12].

    Raises:
        ValueError: snapshots of another simulator.
    """
    if states.shape[1:] != (simulator.world.model.ngeom + 2, 12):
        raise ValueError(
            f"states are {list(states.shape)}; {simulator.spec.name} has "
            f"[pictures, {simulator.world.model.ngeom + 2}, 12]"
        )
    scene = Scene(simulator)
    return np.stack([scene.picture(state, width, height) for state in states])


class Scene:
    """A task's geometry, to be looked at.

    Args:
        simulator: of the task; it is not changed.
    """

    def __init__(self, simulator: Simulator) -> None:
        import mujoco

        self._camera = CAMERAS[simulator.spec.name]
        model = copy.copy(simulator.world.model)
        # With a hierarchy of bounds, MuJoCo 3.3.0 loses rays at the near edges of wide boxes.
        model.body_bvhadr[:] = -1
        self._floor = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
        model.geom_size[self._floor] = 0  # endless
        self._model, self._data = model, mujoco.MjData(model)
        self._colours = np.stack([_colour(model, geom) for geom in range(model.ngeom)])
        self._colours[self._floor] = FLOOR
        self._multi_ray = mujoco.mj_multiRay

    def cast(self, origin: np.ndarray, rays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first geom hit (-1: none) and its distance [...], of unit rays [..., 3]."""
        shape, count = rays.shape[:-1], rays[..., 0].size
        geom, distance = np.zeros(count, dtype=np.int32), np.zeros(count)
        self._multi_ray(
            self._model, self._data, origin, rays.reshape(-1), VISIBLE, 1, -1,
            geom, distance, count, 1e6,
        )  # fmt: skip
        return geom.reshape(shape), distance.reshape(shape)

    def place(self, state: np.ndarray) -> None:
        """Put every geom where a snapshot [geoms + 2, 12] has it."""
        self._data.geom_xpos[:], self._data.geom_xmat[:] = state[:-2, :3], state[:-2, 3:]

    def picture(self, state: np.ndarray, width: int, height: int) -> np.ndarray:
        """uint8 [height, width, 3] of a snapshot."""
        self.place(state)
        camera, at = self._camera, np.array(self._camera.at) + state[-2, :3]
        eye, rays = view(camera, at, width * SAMPLES, height * SAMPLES)
        geom, distance = self.cast(eye, rays)
        points, hit = eye + distance[..., None] * rays, geom >= 0
        normals = surface_normals(points, geom, rays)
        seen = self._colours[geom]
        floor = hit & self._floor[geom]
        odd = np.floor(points[floor][:, :2] / camera.tile).astype(int).sum(axis=1) % 2
        seen[floor] *= np.where(odd, 1.0, 0.87)[:, None]
        lit = self._lit(at + np.array(camera.lamp), points, normals, geom)
        seen *= (0.45 + 0.2 * normals[..., 2] + 0.5 * lit)[..., None]
        haze = np.clip(distance / camera.distance / 4 - 0.5, 0, 1)[..., None]
        sky = HORIZON + (SKY - HORIZON) * np.clip(4 * rays[..., 2:], 0, 1)
        seen = np.where(hit[..., None], seen + haze * (HORIZON - seen), sky)
        if camera.goal is not None:
            front = _ball(eye, rays, state[-1, :3], GOAL_RADIUS)
            ahead = front < np.where(hit, distance, np.inf)
            seen[ahead] = 0.4 * seen[ahead] + 0.6 * GOAL
        pixels = seen.clip(0, 1).reshape(height, SAMPLES, width, SAMPLES, 3).mean(axis=(1, 3))
        return np.round(255 * pixels).astype(np.uint8)

    def _lit(
        self, lamp: np.ndarray, points: np.ndarray, normals: np.ndarray, geom: np.ndarray
    ) -> np.ndarray:
        """The cosine between normal and lamp, 0 in shadow, [h, w].

        A ray for each pixel, and one more for each sample on another geom than the pixel's first.
        """
        first = np.zeros(geom.shape, dtype=bool)
        first[::SAMPLES, ::SAMPLES] = True
        spread = (SAMPLES, SAMPLES)
        shared = geom == np.kron(geom[::SAMPLES, ::SAMPLES], np.ones(spread, dtype=geom.dtype))
        way = points - lamp
        length = np.linalg.norm(way, axis=-1)
        way /= length[..., None]
        asked = (geom >= 0) & (first | ~shared)
        bright = np.zeros(geom.shape)
        bright[asked] = self.cast(lamp, way[asked])[1] > 0.998 * length[asked]
        bright = np.where(shared, np.kron(bright[::SAMPLES, ::SAMPLES], np.ones(spread)), bright)
        return bright * np.clip(-(way * normals).sum(axis=-1), 0, 1)


def view(camera: Camera, at: np.ndarray, width: int, height: int) -> tuple[np.ndarray, np.ndarray]:
    """The eye [3] and unit rays [height, width, 3], the top row first."""
    azimuth, elevation = np.radians([camera.azimuth, camera.elevation])
    level = np.array([np.cos(azimuth), np.sin(azimuth), 0.0])
    back = np.cos(elevation) * level + np.sin(elevation) * np.array([0.0, 0.0, 1.0])
    right = np.array([-level[1], level[0], 0.0])
    up = np.cross(back, right)
    half = np.tan(np.radians(FIELD_OF_VIEW / 2))
    x = half * width / height * ((np.arange(width) + 0.5) / width * 2 - 1)
    y = half * (1 - (np.arange(height) + 0.5) / height * 2)
    rays = x[None, :, None] * right + y[:, None, None] * up - back
    return at + camera.distance * back, rays / np.linalg.norm(rays, axis=-1, keepdims=True)


def surface_normals(points: np.ndarray, geom: np.ndarray, rays: np.ndarray) -> np.ndarray:
    """Unit normals [h, w, 3] towards the eye, of hits [h, w, 3] on geoms [h, w].

    They are cross products of the differences to a neighbour in the row and one in the column: to
    the nearer of two that lie on the same geom. A hit without such neighbours faces the eye.
    """
    normals = np.cross(_difference(points, geom, 0), _difference(points, geom, 1))
    length = np.linalg.norm(normals, axis=-1, keepdims=True)
    normals = np.where(length > 0, normals / np.where(length > 0, length, 1), -rays)
    return np.where((normals * rays).sum(axis=-1, keepdims=True) > 0, -normals, normals)


def _difference(points: np.ndarray, geom: np.ndarray, axis: int) -> np.ndarray:
    """To the nearer neighbour along an axis on the same geom, in the axis' direction, else 0."""
    step = np.diff(points, axis=axis)
    size = np.linalg.norm(step, axis=-1)
    size[np.diff(geom, axis=axis) != 0] = np.inf
    step[np.isinf(size)] = 0
    before, after = [(0, 0), (0, 0)], [(0, 0), (0, 0)]
    before[axis], after[axis] = (1, 0), (0, 1)
    nearer = np.pad(size, before, constant_values=np.inf) < np.pad(
        size, after, constant_values=np.inf
    )
    return np.where(
        nearer[..., None], np.pad(step, [*before, (0, 0)]), np.pad(step, [*after, (0, 0)])
    )


def _ball(eye: np.ndarray, rays: np.ndarray, centre: np.ndarray, radius: float) -> np.ndarray:
    """Distance [...] at which unit rays [..., 3] enter a ball, infinite where they miss it."""
    along = rays @ (centre - eye)
    depth = along**2 - ((centre - eye) ** 2).sum() + radius**2
    return np.where(depth >= 0, along - np.sqrt(np.maximum(depth, 0)), np.inf)


def _colour(model: Any, geom: int) -> np.ndarray:
    """Red, green and blue [3] of a geom: its own or its material's, times its texture's mean; the
    paler the more transparent."""
    rgba, material = model.geom_rgba[geom].astype(float), model.geom_matid[geom]
    if material >= 0 and np.array_equal(rgba, UNSET):
        rgba = model.mat_rgba[material].astype(float)
        for texture in model.mat_texid[material]:
            if texture >= 0:
                channels, start = model.tex_nchannel[texture], model.tex_adr[texture]
                size = model.tex_width[texture] * model.tex_height[texture] * channels
                texels = model.tex_data[start : start + size].reshape(-1, channels)
                rgba[:3] *= texels[:, :3].mean(axis=0) / 255
    return 1 - rgba[3] * (1 - rgba[:3])
