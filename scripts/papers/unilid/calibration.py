"""The calibrated mode: one shared value for unseen tokens, and a second look at small labels."""

from dataclasses import dataclass

import numpy as np

from scripts.papers.unilid.model import FLOOR, Model, Prediction, decide

SHARED_FLOOR = -21.0  # nats; the value of the released code
RUNNERS_UP = 5


def with_floor(model: Model, floor: float) -> Model:
    """Unseen tokens of all labels at one log-probability; nothing is renormalised.

    Args:
        floor: nats; seen tokens below it are lifted to it.
    """
    unseen = model.log_p <= np.log(FLOOR) + 1e-3
    log_p = np.where(unseen, np.float32(floor), np.maximum(model.log_p, np.float32(floor)))
    return Model(model.vocabulary, model.labels, log_p)


@dataclass(frozen=True)
class SecondLook:
    """When a narrow win of a small label goes to a large label behind it (UniLID, calibrated).

    sizes: int [L], training texts of each label; small: a winner below it is looked at again;
    large: only labels of at least so many texts may take over, within `within` nats and among
    the first five; thresholds: float64 [L], the margins below which a win is narrow.
    """

    sizes: np.ndarray
    small: int
    large: int
    within: float
    thresholds: np.ndarray

    @staticmethod
    def fit(
        scores: list[np.ndarray], sizes: np.ndarray, small: int, large: int, within: float
    ) -> "SecondLook":
        """Thresholds: the percentile 5 (1 - N / small) of a label's own training margins.

        Args:
            scores: for each label, float64 [texts, L] scores of its training texts.
        """
        thresholds = np.zeros(len(sizes))
        for label, own in enumerate(scores):
            if sizes[label] < small:
                margins = own[:, label] - np.delete(own, label, axis=1).max(1)
                q = 5 * (1 - sizes[label] / small)
                thresholds[label] = np.percentile(margins, q)
        return SecondLook(sizes, small, large, within, thresholds)

    def decide(self, scores: np.ndarray) -> Prediction:
        """Labels of texts with scores [n, L]; score and margin are those before the second look."""
        first = decide(scores)
        label = first.label.copy()
        narrow = (self.sizes[label] < self.small) & (first.margin < self.thresholds[label])
        for text in np.flatnonzero(narrow):
            ranked = np.argsort(-scores[text], kind="stable")[1:RUNNERS_UP]
            near = scores[text, ranked] >= first.score[text] - self.within
            able = ranked[near & (self.sizes[ranked] >= self.large)]
            if len(able):
                label[text] = able[0]
        return Prediction(label, first.score, first.margin, first.ties)
