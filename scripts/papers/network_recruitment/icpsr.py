"""The paper's networks: HIV Transmission Network Metastudy Project (ICPSR 22140), placed by hand.

Its files may not be passed on, so that this reader has not been run on them by us. It states what
it expects; other names of columns are a clear error.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from scripts.papers.network_recruitment.network import Contacts, Network

PEOPLE, TIES = "22140-0001-Data.tsv", "22140-0002-Data.tsv"
# fmt: off
COVARIATES = [
    "LOCAL", "RACE", "ETHN", "SEX", "ORIENT", "BEHAV", "PRO", "PIMP", "JOHN", "DEALER", "DRUGMAN",
    "THIEF", "RETIRED", "HWIFE", "DISABLE", "UNEMP", "STREETS",
]
# fmt: on


def read(folder: Path, disease: str) -> Contacts:
    """The network of ties between people whose status of a disease is known.

    Studies are merged as separate parts; covariates are one-hot, with the status of the person, the
    largest over the person's ties. Nothing of an earlier time is known.

    Raises:
        ValueError: a file or a column is missing, or no tie has both statuses.
    """
    people, ties = (_table(folder / name) for name in (PEOPLE, TIES))
    status = [f"{disease}1", f"{disease}2"]
    _need(people, ["STUDYNUM", "RID", *COVARIATES], PEOPLE)
    _need(ties, ["STUDYNUM", "ID1", "ID2", *status], TIES)
    known = ties[ties[status].isin([0, 1]).all(axis=1) & (ties["ID1"] != ties["ID2"])]
    if known.empty:
        raise ValueError(f"disease is {disease!r}: no tie with both statuses in {TIES}")
    study = known["STUDYNUM"].astype(str)
    ends = [study + "/" + known[name].astype(str) for name in ("ID1", "ID2")]
    names, numbers = np.unique(pd.concat(ends), return_inverse=True)
    pairs = np.unique(np.sort(numbers.reshape(2, -1).T, axis=1), axis=0)
    infected = np.zeros(len(names))
    np.maximum.at(infected, numbers, known[status].to_numpy(dtype=float).T.ravel())
    keys = people["STUDYNUM"].astype(str) + "/" + people["RID"].astype(str)
    table = people.set_index(keys)[COVARIATES].astype(str)
    table = table[~table.index.duplicated()].reindex(names, fill_value="unknown")
    covariates = pd.get_dummies(table).astype(float).reset_index(drop=True)
    return Contacts(Network(pairs, len(names)), covariates.assign(status=infected))


def _table(path: Path) -> pd.DataFrame:
    found = sorted(path.parent.rglob(path.name))
    if not found:
        raise ValueError(f"{path} is missing; place the tab-separated files of ICPSR 22140 there")
    return pd.read_csv(found[0], sep="\t", low_memory=False)


def _need(frame: pd.DataFrame, columns: list[str], name: str) -> None:
    lacking = [column for column in columns if column not in frame]
    if lacking:
        raise ValueError(f"{name} lacks the columns {lacking}; it has {list(frame)[:20]}")
