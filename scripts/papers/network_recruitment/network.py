"""Networks to recruit on: time-stamped contacts become covariates, degrees and a graph.

The first part of the time stamps is the past: it gives covariates and, for planning without
knowing the future, degrees of its own. The rest is the present, on whose graph people recruit.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from scripts.papers.network_recruitment.pmf import checked_budget

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Network:
    """An undirected graph without loops, whose every node has a neighbour."""

    edges: Ints  # [E, 2], each once, node numbers 0..nodes-1
    nodes: int

    def __post_init__(self) -> None:
        """Refuse what nobody can recruit on.

        Raises:
            ValueError: no edges, a loop, an edge twice, or isolated nodes.
        """
        edges = np.asarray(self.edges)
        if edges.ndim != 2 or edges.shape[1] != 2 or not len(edges):
            raise ValueError(f"edges has the shape {edges.shape}; allowed: at least one pair")
        unknown = edges[(edges < 0) | (edges >= self.nodes)]
        if len(unknown):
            raise ValueError(f"edges names node {unknown[0]}; allowed: 0 to {self.nodes - 1}")
        if (edges[:, 0] == edges[:, 1]).any():
            raise ValueError("edges joins a node to itself; allowed: two different nodes")
        if len(np.unique(np.sort(edges, axis=1), axis=0)) < len(edges):
            raise ValueError("edges holds an edge twice; allowed: each once")
        alone = int((self.degree == 0).sum())
        if alone:
            raise ValueError(
                f"edges leaves {alone} of {self.nodes} nodes isolated; allowed: none, since they "
                "can neither recruit nor be recruited (drop them)"
            )

    @cached_property
    def degree(self) -> Ints:
        return np.bincount(np.asarray(self.edges).ravel(), minlength=self.nodes)

    @cached_property
    def neighbours(self) -> Ints:
        """Neighbours of each node, [nodes, largest degree], padded with -1."""
        both = np.concatenate([self.edges, self.edges[:, ::-1]])
        both = both[np.lexsort((both[:, 1], both[:, 0]))]
        place = np.arange(len(both)) - np.searchsorted(both[:, 0], both[:, 0])
        out = np.full((self.nodes, int(self.degree.max())), -1, dtype=np.int64)
        out[both[:, 0], place] = both[:, 1]
        return out

    @cached_property
    def components(self) -> Ints:
        """Sizes of the connected components, largest first."""
        from scipy.sparse import coo_matrix
        from scipy.sparse.csgraph import connected_components

        ones = np.ones(len(self.edges))
        graph = coo_matrix((ones, (self.edges[:, 0], self.edges[:, 1])), shape=(self.nodes,) * 2)
        labels = connected_components(graph, directed=False)[1]
        return np.sort(np.bincount(labels))[::-1]

    def check_budget(self, budget: int) -> None:
        """Refuse a budget that the network cannot take.

        A network may have several components, as contact networks do; recruiting then stays in
        those of the seeds. The largest must be able to use the whole budget.

        Raises:
            ValueError: a negative budget, or one above half of the nodes or the largest component.
        """
        budget = checked_budget(budget)
        if budget > self.nodes // 2:
            raise ValueError(
                f"budget is {budget} for {self.nodes} people; allowed: at most half of them "
                f"({self.nodes // 2}), so that the network is not exhausted"
            )
        if budget > self.components[0]:
            raise ValueError(
                f"edges is disconnected into {len(self.components)} components of at most "
                f"{self.components[0]} people, fewer than the budget {budget}; allowed: a "
                "component that can use the budget"
            )


@dataclass(frozen=True)
class Contacts:
    """A network with what is known of its people."""

    network: Network
    now: pd.DataFrame
    """Covariates of each node, known before recruiting starts."""
    past: pd.DataFrame | None = None
    """Covariates of earlier people, measured in the same way; None where there is no past."""
    past_degree: Ints | None = None
    """Their degrees in the time after those covariates, still before recruiting starts."""


def read_contacts(path: Path) -> pd.DataFrame:
    """Face-to-face contacts of 20 s as SocioPatterns gives them: t, i, j, classes of i and j.

    Raises:
        ValueError: not five columns, or no rows.
    """
    names = ["t", "i", "j", "class_i", "class_j"]
    frame = pd.read_csv(path, sep=r"\s+", header=None)
    if frame.shape[1] != len(names) or frame.empty:
        raise ValueError(f"{path.name} has the shape {frame.shape}; allowed: rows of {names}")
    return frame.set_axis(names, axis=1)


def contact_network(events: pd.DataFrame, least: int, past_share: float) -> Contacts:
    """The graph of people with at least `least` contacts in the present, and their past.

    Degrees of the past need as many contacts in proportion to the events there.

    Args:
        events: columns t, i, j, class_i, class_j.
        least: contacts that make an edge.
        past_share: share of the distinct time stamps that are past.

    Raises:
        ValueError: `least` below 1, `past_share` outside (0, 1), or no edge in a window.
    """
    if least < 1:
        raise ValueError(f"least is {least}; allowed: at least 1 contact")
    if not 0 < past_share < 1:
        raise ValueError(f"past_share is {past_share}; allowed: between 0 and 1")
    stamps = np.sort(events["t"].unique())
    middle, end = (stamps[int(share * len(stamps))] for share in (past_share / 2, past_share))
    before, then, present = (
        events[(events["t"] >= low) & (events["t"] < high)]
        for low, high in ((stamps[0], middle), (middle, end), (end, np.inf))
    )
    classes = _classes(events)
    edges = _edges(present, least)
    people, numbers = np.unique(edges, return_inverse=True)
    in_proportion = max(1, round(least * len(then) / len(present)))
    past_people, past_degree = np.unique(_edges(then, in_proportion), return_counts=True)
    return Contacts(
        network=Network(numbers.reshape(-1, 2), len(people)),
        now=_covariates(then, people, classes),
        past=_covariates(before, past_people, classes),
        past_degree=past_degree,
    )


def _edges(events: pd.DataFrame, least: int) -> Ints:
    pairs = np.sort(events[["i", "j"]].to_numpy(), axis=1)
    edges, counts = np.unique(pairs, axis=0, return_counts=True)
    edges = edges[counts >= least]
    if not len(edges):
        raise ValueError(f"least is {least}: no pair has that many contacts; allowed: a lower one")
    return edges


def _classes(events: pd.DataFrame) -> pd.Series:
    ends = [
        events[[person, group]].set_axis(["person", "class"], axis=1)
        for person, group in (("i", "class_i"), ("j", "class_j"))
    ]
    return pd.concat(ends).drop_duplicates("person").set_index("person")["class"].sort_index()


def _covariates(events: pd.DataFrame, people: NDArray, classes: pd.Series) -> pd.DataFrame:
    """Class (one-hot), number of distinct partners, log1p of contacts; zeros for the absent."""
    ends = np.concatenate([events[["i", "j"]].to_numpy(), events[["j", "i"]].to_numpy()])
    contacts = pd.Series(ends[:, 0]).value_counts().reindex(people, fill_value=0)
    partners = pd.Series(np.unique(ends, axis=0)[:, 0]).value_counts()
    one_hot = pd.get_dummies(classes, prefix="class").astype(float).reindex(people)
    frame = one_hot.assign(
        partners=partners.reindex(people, fill_value=0).to_numpy(dtype=float),
        log_contacts=np.log1p(contacts.to_numpy(dtype=float)),
    )
    return frame.reset_index(drop=True)
