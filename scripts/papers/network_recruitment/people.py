"""Types of people: leaves of a decision tree on covariates, with their degrees' distribution."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from scripts.papers.network_recruitment.network import Contacts
from scripts.papers.network_recruitment.pmf import Array

Ints = NDArray[np.int64]
MODELS = ("earlier", "heldout", "insample")


@dataclass(frozen=True)
class Types:
    """What a planner knows: each node's type, each type's distribution and share."""

    kinds: Ints  # [nodes]
    pmfs: Array  # [T, K], of the degree
    weights: Array  # [T]


def fit_types(
    covariates: pd.DataFrame, degree: Ints, everyone: pd.DataFrame, least_share: float
) -> Types:
    """Types by a tree that predicts the degree, as the released code makes them.

    Args:
        covariates, degree: the people that the tree and its leaves' histograms are fitted on.
        everyone: covariates of the people to type; the types' shares are theirs.
        least_share: smallest leaf, as a share of the people fitted on.

    Raises:
        ValueError: `least_share` outside (0, 1), or columns that differ.
    """
    from sklearn.tree import DecisionTreeClassifier

    if not 0 < least_share < 1:
        raise ValueError(f"least_share is {least_share}; allowed: between 0 and 1")
    if list(covariates) != list(everyone):
        raise ValueError(f"everyone has the columns {list(everyone)}; allowed: {list(covariates)}")
    tree = DecisionTreeClassifier(min_samples_leaf=least_share, random_state=0)
    tree.fit(covariates.to_numpy(), degree)
    leaves, fitted = np.unique(tree.apply(covariates.to_numpy()), return_inverse=True)
    table = np.zeros((len(leaves), int(degree.max()) + 1))
    np.add.at(table, (fitted, degree), 1.0)
    kinds = np.searchsorted(leaves, tree.apply(everyone.to_numpy()))
    shares = np.bincount(kinds, minlength=len(leaves)) / len(kinds)
    return Types(kinds, table / table.sum(axis=1, keepdims=True), shares)


def types_of(contacts: Contacts, model: str, least_share: float, rng: np.random.Generator) -> Types:
    """Types under one of the three models of what is known.

    earlier: covariates and degrees of the past only (no look at the graph that is recruited on);
    insample: degrees of the very graph, as in the released code; heldout: those of a random half.

    Raises:
        ValueError: an unknown model, or "earlier" where nothing of the past is known.
    """
    degree = contacts.network.degree
    if model == "earlier" and contacts.past is None:
        raise ValueError(
            "model is 'earlier', but the data have no past; allowed: heldout, insample"
        )
    if model == "earlier":
        return fit_types(contacts.past, contacts.past_degree, contacts.now, least_share)
    if model == "insample":
        return fit_types(contacts.now, degree, contacts.now, least_share)
    if model == "heldout":
        half = rng.permutation(len(degree))[: len(degree) // 2]
        return fit_types(contacts.now.iloc[half], degree[half], contacts.now, least_share)
    raise ValueError(f"model is {model!r}; allowed: {', '.join(MODELS)}")
