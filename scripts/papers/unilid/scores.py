"""Accuracy, F1 and false positive rates from predictions."""

from typing import Any

import numpy as np

ACCURACY, F1, FPR = "fraction of texts", "F1", "false positives per negative text"


def credit(truth: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """1 for a right answer, 1 / k where k labels share the best score and the truth is one."""
    best = scores.max(1)
    ties = (scores == best[:, None]).sum(1)
    return np.where(scores[np.arange(len(scores)), truth] == best, 1 / ties, 0.0)


def per_label(truth: np.ndarray, found: np.ndarray, labels: int) -> dict[str, np.ndarray]:
    """f1, fpr and support of each label, [labels]; truth and found are indices, -1 for others."""
    right = np.bincount(truth[truth == found], minlength=labels)
    support = np.bincount(truth, minlength=labels)
    given = np.bincount(found[found >= 0], minlength=labels)
    f1 = 2 * right / np.maximum(support + given, 1)
    fpr = (given - right) / np.maximum(len(truth) - support, 1)
    return {"f1": f1, "fpr": fpr, "support": support}


def rows(
    truth: np.ndarray,
    found: np.ndarray,
    names: tuple[str, ...],
    group: np.ndarray,
    credits: np.ndarray | None = None,
    **where: Any,
) -> list[dict[str, Any]]:
    """Metric rows: accuracy by group, F1 by label of the truth, macro F1 and macro FPR.

    Args:
        truth, found: int [n], indices into names.
        group: [n] article or message of each text; with fewer than 50 groups each has its row.
        credits: float [n], see `credit` (default 1 where found is right).
    """
    if credits is None:
        credits = (truth == found).astype(float)
    scores = per_label(truth, found, len(names))
    present = np.flatnonzero(scores["support"])
    kinds = np.unique(group)
    out = []
    for kind in kinds if len(kinds) < 50 else ():
        mask = group == kind
        accuracy, n = float(credits[mask].mean()), int(mask.sum())
        out.append({"metric": "accuracy", "value": accuracy, "n": n, "article": int(kind)})
    overall = {"metric": "accuracy_all", "value": float(credits.mean()), "n": len(truth)}
    out = [{**row, "unit": ACCURACY} for row in (*out, overall)]
    out += [
        {
            "metric": "f1",
            "value": float(scores["f1"][i]),
            "unit": F1,
            "n": int(scores["support"][i]),
            "label": names[i],
        }
        for i in present
    ]
    macro = {"value": float(scores["f1"][present].mean()), "unit": F1, "n": len(present)}
    out.append({"metric": "macro_f1", **macro})
    out.append(
        {"metric": "macro_fpr", "value": float(scores["fpr"].mean()), "unit": FPR, "n": len(names)}
    )
    return [{**row, **where} for row in out]
