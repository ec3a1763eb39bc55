"""DVC around Snakemake: the same bytes by both ways, and nothing to run after a pull."""

import json
import shutil
from pathlib import Path

import pytest

from tests.workflow.conftest import NO_STORE
from tests.workflow.project import Clone, Tracked


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


def test_a_server_in_place_of_the_store(by_dvc: Tracked, tmp_path: Path) -> None:
    """Then there is neither database nor artifacts for DVC to keep."""
    clone = Clone(by_dvc, tmp_path / "clone")
    assert clone.command("dvc", "pull").returncode == 0
    (clone.root / "results/mlflow.db").unlink()
    shutil.rmtree(clone.root / "results/mlartifacts")
    clone.edit("scripts/papers/alpha/README.md", "## Limitations", "## Limitations\n\nMore.")
    done = clone.command("dvc", "repro", MLFLOW_TRACKING_URI=NO_STORE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "up to date" in clone.command("dvc", "status").stdout


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
