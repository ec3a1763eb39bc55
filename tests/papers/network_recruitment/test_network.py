"""Networks and types of people from contacts: known results and refused input."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scripts.papers.network_recruitment import icpsr, network, people
from scripts.papers.network_recruitment.network import Contacts, Network, contact_network


def events() -> pd.DataFrame:
    """Ten time stamps: past 0 to 2 (before: 0; then: 1 and 2), present 3 to 9; two classes."""
    rows = [
        (0, 1, 2), (1, 2, 3), (1, 1, 2), (2, 2, 3), (2, 1, 3),
        *((t, 1, 2) for t in range(3, 10)), *((t, 3, 2) for t in range(3, 6)), (9, 4, 1),
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["t", "i", "j"])
    group = {1: "a", 2: "a", 3: "b", 4: "b"}
    return frame.assign(class_i=frame["i"].map(group), class_j=frame["j"].map(group))


def test_contacts_become_a_graph_of_the_present_and_a_past() -> None:
    found = contact_network(events(), least=3, past_share=0.3)
    assert found.network.nodes == 3  # person 4 has one contact only
    assert found.network.edges.tolist() == [[0, 1], [1, 2]]
    assert found.network.degree.tolist() == [1, 2, 1]
    now = found.now
    assert now["class_a"].tolist() == [1, 1, 0] and now["class_b"].tolist() == [0, 0, 1]
    assert now["partners"].tolist() == [2, 2, 2]
    assert now["log_contacts"].to_numpy() == pytest.approx(np.log1p([2, 3, 3]))
    # the past has 4 events for 11 of the present: 3 contacts there are 1 here
    assert found.past_degree.tolist() == [2, 2, 2]
    assert found.past["partners"].tolist() == [1, 1, 0]
    assert list(found.past) == list(now)


def test_covariates_do_not_look_at_the_present() -> None:
    before, changed = events(), events()
    changed = pd.concat([changed, changed[changed["t"] >= 3]], ignore_index=True)
    one, two = (contact_network(frame, 3, 0.3) for frame in (before, changed))
    assert one.now.loc[:1].equals(two.now.loc[:1])


def test_neighbours_and_components() -> None:
    found = Network(np.array([(0, 1), (2, 1), (3, 4)]), 5)
    near = [sorted(x for x in row if x >= 0) for row in found.neighbours.tolist()]
    assert near == [[1], [0, 2], [1], [4], [3]]
    assert found.components.tolist() == [3, 2]


@pytest.mark.parametrize(
    ("edges", "nodes", "words"),
    [
        (np.zeros((0, 2), dtype=int), 3, "edges has the shape"),
        (np.zeros((2, 3), dtype=int), 3, "edges has the shape"),
        ([(0, 0), (0, 1)], 2, "edges joins a node to itself"),
        ([(0, 1), (1, 0)], 2, "edges holds an edge twice"),
        ([(0, 1), (1, 5)], 3, "edges names node 5"),
        ([(0, 1), (-1, 1)], 3, "edges names node -1"),
        ([(0, 1)], 4, "edges leaves 2 of 4 nodes isolated"),
    ],
)
def test_degenerate_networks_are_refused(edges, nodes, words) -> None:
    with pytest.raises(ValueError, match=words):
        Network(np.array(edges), nodes)


def test_budgets_that_a_network_cannot_take_are_refused() -> None:
    pairs = Network(np.arange(20).reshape(-1, 2), 20)
    path = Network(np.stack([np.arange(19), np.arange(1, 20)], axis=1), 20)
    path.check_budget(10)
    pairs.check_budget(2)
    with pytest.raises(ValueError, match="budget is 11 for 20 people"):
        path.check_budget(11)
    with pytest.raises(ValueError, match="edges is disconnected into 10 components"):
        pairs.check_budget(5)
    with pytest.raises(ValueError, match="budget is -1"):
        path.check_budget(-1)


@pytest.mark.parametrize(
    ("least", "share", "words"),
    [(0, 0.3, "least is 0"), (3, 0.0, "past_share is 0"), (3, 1.0, "past_share is 1"),
     (50, 0.3, "least is 50")],
)  # fmt: skip
def test_bad_settings_of_a_network_are_refused(least, share, words) -> None:
    with pytest.raises(ValueError, match=words):
        contact_network(events(), least, share)


def test_contacts_are_read_and_other_files_refused(tmp_path) -> None:
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text("20\t1 2\ta b\n40\t1 3\ta b\n")
    bad.write_text("20 1 2\n40 1 3\n")
    found = network.read_contacts(good)
    assert list(found) == ["t", "i", "j", "class_i", "class_j"]
    assert found["j"].tolist() == [2, 3]
    with pytest.raises(ValueError, match=r"bad.csv has the shape \(2, 3\)"):
        network.read_contacts(bad)


@pytest.mark.parametrize(
    ("name", "least", "nodes", "mean", "most"),
    [("contacts-thiers-2012", 10, 161, 5.1, 22), ("contacts-primary-school", 30, 233, 6.2, 20)],
)
def test_real_networks(asset, name, least, nodes, mean, most) -> None:
    """Sizes and degrees as measured by others on the same files."""
    table = network.read_contacts(next(asset(name).glob("*.csv")))
    found = contact_network(table, least, 0.3)
    degree = found.network.degree
    assert (found.network.nodes, degree.max()) == (nodes, most)
    assert degree.mean() == pytest.approx(mean, abs=0.06)
    found.network.check_budget(60)
    for model in people.MODELS:
        types = people.types_of(found, model, 0.08, np.random.default_rng(0))
        assert 2 <= len(types.weights) <= 12
        assert types.pmfs.sum(axis=1) == pytest.approx(1)


def covariates(size: int = 60) -> tuple[pd.DataFrame, np.ndarray]:
    group = np.arange(size) % 2
    return pd.DataFrame({"group": group.astype(float)}), np.where(group, 5, 1 + np.arange(size) % 4)


def test_types_are_leaves_with_their_degrees() -> None:
    table, degree = covariates()
    found = people.fit_types(table, degree, table, 0.1)
    assert len(found.weights) == 2 and found.weights.tolist() == [0.5, 0.5]
    for group in (0, 1):
        kind = np.unique(found.kinds[table["group"] == group])
        assert len(kind) == 1
        histogram = np.bincount(degree[table["group"] == group], minlength=6) / 30
        assert found.pmfs[kind[0]] == pytest.approx(histogram)


def test_shares_are_those_of_the_people_typed() -> None:
    table, degree = covariates()
    everyone = pd.DataFrame({"group": [0.0, 0.0, 0.0, 1.0]})
    found = people.fit_types(table, degree, everyone, 0.1)
    assert found.weights[found.kinds].tolist() == [0.75, 0.75, 0.75, 0.25]


def test_models_of_what_is_known() -> None:
    table, degree = covariates()
    edges = np.stack([np.arange(60), (np.arange(60) + 1) % 60], axis=1)
    here = Network(np.sort(edges, axis=1), 60)
    contacts = Contacts(here, table, table, degree)
    rng = np.random.default_rng(0)
    earlier = people.types_of(contacts, "earlier", 0.1, rng)
    insample = people.types_of(contacts, "insample", 0.1, rng)
    heldout = people.types_of(contacts, "heldout", 0.1, rng)
    assert earlier.pmfs.shape[1] == 6  # degrees of the past, up to 5
    assert insample.pmfs.tolist() == heldout.pmfs.tolist() == [[0, 0, 1]]
    assert len(heldout.kinds) == 60
    with pytest.raises(ValueError, match="model is 'earlier', but the data have no past"):
        people.types_of(Contacts(here, table), "earlier", 0.1, rng)
    with pytest.raises(ValueError, match="model is 'later'"):
        people.types_of(contacts, "later", 0.1, rng)


def test_bad_types_are_refused() -> None:
    table, degree = covariates()
    for share in (0.0, 1.0, -1.0):
        with pytest.raises(ValueError, match="least_share is"):
            people.fit_types(table, degree, table, share)
    with pytest.raises(ValueError, match="everyone has the columns"):
        people.fit_types(table, degree, table.assign(more=0.0), 0.1)


def icpsr_files(folder: Path) -> None:
    ties = pd.DataFrame(
        [(1, 1, 2, 0, 1), (1, 2, 1, 0, 1), (1, 2, 3, 0, 9), (2, 1, 2, 0, 0), (2, 2, 2, 1, 1)],
        columns=["STUDYNUM", "ID1", "ID2", "HIV1", "HIV2"],
    )
    persons = pd.DataFrame([(1, 1), (1, 2), (2, 1)], columns=["STUDYNUM", "RID"])
    persons[icpsr.COVARIATES] = 1
    persons.to_csv(folder / icpsr.PEOPLE, sep="\t", index=False)
    ties.to_csv(folder / icpsr.TIES, sep="\t", index=False)


def test_metastudy_merges_studies_as_separate_parts(tmp_path) -> None:
    icpsr_files(tmp_path)
    found = icpsr.read(tmp_path, "HIV")
    assert found.network.nodes == 4 and len(found.network.edges) == 2
    assert found.network.components.tolist() == [2, 2]
    assert found.now["status"].tolist() == [1, 1, 0, 0]  # 1/1 and 1/2 are infected in one of two
    assert found.now["SEX_unknown"].tolist() == [0, 0, 0, 1]
    assert found.past is None


def test_metastudy_that_is_not_as_expected_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"22140-0001-Data.tsv is missing"):
        icpsr.read(tmp_path, "HIV")
    icpsr_files(tmp_path)
    with pytest.raises(ValueError, match="lacks the columns"):
        icpsr.read(tmp_path, "GONO")
    ties = pd.read_csv(tmp_path / icpsr.TIES, sep="\t").assign(HIV1=9)
    ties.to_csv(tmp_path / icpsr.TIES, sep="\t", index=False)
    with pytest.raises(ValueError, match="disease is 'HIV': no tie"):
        icpsr.read(tmp_path, "HIV")
