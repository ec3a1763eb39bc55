"""A made-up project that has run once, for the tests that only need its results."""

import shutil
from pathlib import Path

import pytest

from tests.workflow.project import Project, Tracked

NO_STORE = "http://127.0.0.1:9"
"""A store that refuses connections: MLflow has tests of its own, and costs ten seconds a paper."""


class Copy(Project):
    """A copy of a project, file times included."""

    def __init__(self, of: Project, folder: Path) -> None:
        shutil.copytree(of.root, folder, symlinks=True, dirs_exist_ok=True)
        self.root = folder


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The made-up papers run at laptop scale on two cores; never changed: see `copy`.

    Alpha's evaluate also uses a shared kernel, and beta an asset.
    """
    project = Project(tmp_path_factory.mktemp("finished") / "project")
    project.edit("params.yaml", "{numbers: 16}", "{numbers: 16, assets: {topics: python-topics}}")
    (project.root / "kernels/halve.py").write_text("def halve(x):\n    return x / 2\n")
    evaluate = "scripts/papers/alpha/evaluate.py"
    project.edit(evaluate, "import time\n", "import time\n\nfrom kernels.halve import halve\n")
    project.edit(evaluate, 'float(table["x"][:size].mean())', '2 * halve(table["x"][:size].mean())')
    done = project.snakemake(MLFLOW_TRACKING_URI=NO_STORE)
    assert done.returncode == 0, done.stdout + done.stderr
    project.output = done.stdout + done.stderr
    return project


@pytest.fixture(scope="session")
def by_dvc(tmp_path_factory: pytest.TempPathFactory) -> Tracked:
    """A project reproduced by `dvc repro`, committed and pushed; never changed."""
    folder = tmp_path_factory.mktemp("by_dvc")
    project = Tracked(folder / "project", folder / "remote")
    project.ok("dvc", "repro")
    project.commit("Reproduce")
    project.ok("dvc", "push")
    return project


@pytest.fixture
def copy(finished: Project, tmp_path: Path) -> Project:
    """The finished project, to change."""
    return Copy(finished, tmp_path / "project")


@pytest.fixture
def new_project(tmp_path: Path) -> Project:
    """The made-up project before anything ran."""
    return Project(tmp_path / "project")
