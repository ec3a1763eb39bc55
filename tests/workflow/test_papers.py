"""Every paper of params.yaml at smoke scale, through Snakemake, on the real assets."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.pipeline.params import load
from tests.workflow.project import ROOT, Project

PAPERS = load().papers


class Checkout(Project):
    """The repository's own files in another folder, beside its assets."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        for name in listed.stdout.splitlines():
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)
        (folder / "data" / "assets").symlink_to(ROOT / "data" / "assets")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout in which all papers have run at smoke scale."""
    assets = subprocess.run(
        ["snakemake", "--cores", "2", "assets", "--config", "scale=smoke"],
        cwd=ROOT,
        env=Project.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert assets.returncode == 0, assets.stdout + assets.stderr
    project = Checkout(tmp_path_factory.mktemp("papers") / "checkout")
    project.run("--config", "scale=smoke")
    return project


@pytest.mark.parametrize("paper", PAPERS)
def test_smoke_judges_the_wiring_of_every_claim(checkout: Checkout, paper: str) -> None:
    verdicts = json.loads((checkout.root / f"results/smoke/{paper}/verdicts.json").read_text())
    assert verdicts["claims"]
    assert {claim["verdict"] for claim in verdicts["claims"]} <= {
        "wiring only",
        "not testable here",
    }
    figures = json.loads(
        (checkout.root / f"results/smoke/{paper}/figures/figures.json").read_text()
    )
    assert figures
    assert all(
        (checkout.root / f"results/smoke/{paper}/figures" / f["file"]).stat().st_size
        for f in figures
    )
    assert (checkout.root / "results/smoke/report.html").stat().st_size > 10_000


@pytest.mark.parametrize("paper", PAPERS)
def test_smoke_stays_within_its_declared_memory(checkout: Checkout, paper: str) -> None:
    costs = [*checkout.root.glob(f"results/smoke/{paper}/**/cost.json")]
    costs.append(checkout.root / f"data/smoke/{paper}/cost.json")
    assert len(costs) >= 3
    for path in costs:
        cost = json.loads(path.read_text())
        assert cost["peak_mb"] <= cost["declared_mem_mb"], path


def test_a_second_run_has_nothing_to_do(checkout: Checkout) -> None:
    assert checkout.planned("--config", "scale=smoke") == set()


@pytest.mark.parametrize("paper", PAPERS)
def test_the_same_stage_again_gives_the_same_bytes(checkout: Checkout, paper: str) -> None:
    before = checkout.products()
    for stage in PAPERS[paper].stages:
        done = checkout.stage(f"{paper}.{stage}", "--scale", "smoke", "--force")
        assert done.returncode == 0, done.stdout + done.stderr
    after = checkout.products()
    assert [name for name in before if before[name] != after.get(name)] == []
