"""DVC around Snakemake: the same bytes by both ways, and nothing to run after a pull."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.workflow.project import ROOT, Project


class Tracked(Project):
    """A made-up project under git and DVC, with a plain folder as the remote."""

    def __init__(self, folder: Path, remote: Path) -> None:
        super().__init__(folder)
        for name in ("dvc.yaml", ".dvcignore", ".gitignore", ".dvc/config", ".dvc/.gitignore"):
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        self.git("init", "--quiet", "--initial-branch", "main")
        self.ok("dvc", "remote", "add", "--default", "folder", str(remote))
        self.commit("Begin")

    def git(self, *arguments: str) -> None:
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        subprocess.run(["git", *identity, *arguments], cwd=self.root, check=True)

    def commit(self, message: str) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)

    def ok(self, *command: str) -> str:
        done = self.command(*command)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout


class Clone(Project):
    """A fresh clone of a project: no data, no results, no records of Snakemake's."""

    def __init__(self, origin: Project, folder: Path) -> None:
        subprocess.run(["git", "clone", "--quiet", origin.root, folder], check=True)
        self.root = folder


@pytest.fixture(scope="module")
def by_dvc(tmp_path_factory: pytest.TempPathFactory) -> Tracked:
    """A project reproduced by `dvc repro`, committed and pushed."""
    folder = tmp_path_factory.mktemp("by_dvc")
    project = Tracked(folder / "project", folder / "remote")
    project.ok("dvc", "repro")
    project.commit("Reproduce")
    project.ok("dvc", "push")
    return project


@pytest.fixture(scope="module")
def by_snakemake(tmp_path_factory: pytest.TempPathFactory) -> Tracked:
    """The same project reproduced by Snakemake alone."""
    folder = tmp_path_factory.mktemp("by_snakemake")
    project = Tracked(folder / "project", folder / "remote")
    project.run()
    return project


def test_both_ways_give_the_same_bytes(by_dvc: Tracked, by_snakemake: Tracked) -> None:
    one, other = by_dvc.products(), by_snakemake.products()
    assert one.keys() == other.keys()
    assert [name for name in one if one[name] != other[name]] == []
    assert "results/laptop/alpha/verdicts.json" in one


def test_after_snakemake_dvc_computes_nothing(by_snakemake: Tracked) -> None:
    before = {
        path: path.stat().st_ino for path in by_snakemake.root.glob("results/*/*/stages/**/*")
    }
    by_snakemake.ok("dvc", "repro")
    assert before == {path: path.stat().st_ino for path in before}
    assert by_snakemake.ok("dvc", "status").strip().endswith("Data and pipelines are up to date.")


def test_after_a_pull_nothing_runs(by_dvc: Tracked, tmp_path: Path) -> None:
    clone = Clone(by_dvc, tmp_path / "clone")
    assert clone.command("dvc", "pull").returncode == 0
    assert clone.planned() == set()
    assert "up to date" in clone.command("dvc", "status").stdout
    clone.run()
    assert clone.products() == by_dvc.products()
    assert "up to date" in clone.command("dvc", "status").stdout


def test_a_pull_after_an_edit_reruns_only_what_the_edit_touches(
    by_dvc: Tracked, tmp_path: Path
) -> None:
    clone = Clone(by_dvc, tmp_path / "clone")
    clone.edit("params.yaml", "numbers: 16", "numbers: 17")
    assert clone.command("dvc", "pull").returncode == 0
    planned = clone.planned()
    assert "beta/prepare" in planned
    assert not any(job.startswith("alpha/") for job in planned)


def test_metrics_plots_and_experiments(by_dvc: Tracked, tmp_path: Path) -> None:
    clone = Clone(by_dvc, tmp_path / "clone")
    assert clone.command("dvc", "pull").returncode == 0
    shown = json.loads(clone.command("dvc", "metrics", "show", "--json").stdout)
    assert any("metrics/alpha.json" in name for name in shown[""]["data"])
    done = clone.command("dvc", "exp", "run", "-S", "beta.laptop.seeds=4", "report")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seeds: 4" in (clone.root / "params.yaml").read_text()
    difference = json.loads(clone.command("dvc", "metrics", "diff", "--json").stdout)
    assert any("beta" in name for name in difference)
    assert not any("alpha" in name for name in difference)
    plots = clone.command("dvc", "plots", "show", "--out", "plots")
    assert plots.returncode == 0, plots.stdout + plots.stderr
    assert "means.svg" in (clone.root / "plots" / "index.html").read_text()
