"""Snakemake on made-up papers: the right jobs, again only where something changed."""

import json
import os
import random
import re
from pathlib import Path

import pandas as pd
import pytest

from tests.workflow.conftest import NO_STORE
from tests.workflow.project import Project

AFTER_PREPARE = {"train/all", "compress/all", "evaluate/all"}
ENDS = {"figures", "verdicts.json", "tracked.json"}
FIGURES = [f"results/laptop/{paper}/figures/manifest.json" for paper in ("alpha", "beta")]
VERDICTS = [f"results/laptop/{paper}/verdicts.json" for paper in ("alpha", "beta")]


def jobs(paper: str, *names: str) -> set[str]:
    return {f"{paper}/{name}" for name in names}


ALPHA = jobs("alpha", "prepare", *AFTER_PREPARE, *ENDS)
BETA = jobs("beta", "prepare", "evaluate/base", "evaluate/ours", *ENDS)
PAGE = {"report.html"}


# --- which jobs there are ---------------------------------------------------------------------


def test_papers_with_and_without_train_and_compress(new_project):
    """One job a stage (alpha), one an arm (beta), which has neither train nor compress."""
    assert new_project.planned() == ALPHA | BETA | PAGE
    assert new_project.planned("beta") == BETA
    assert new_project.planned("beta", "--config", "scale=smoke") == (
        jobs("beta", "prepare", "evaluate/all", *ENDS)
    )


def inputs_of(output: str, product: str) -> set[str]:
    """The inputs of a job in a dry run, products only."""
    found = re.search(rf"input: ([^\n]*)\n\s*output: {re.escape(product)}\n", output)
    assert found, f"{product} is not planned"
    return {path for path in found[1].split(", ") if path.endswith("manifest.json")}


def test_fan_out_by_arm_and_seed_and_what_each_job_reads(new_project):
    """At paper scale. `plain` has one seed; the arms of train are not those of compress."""
    new_project.edit("params.yaml", "threads: {train: 2}", "threads: {train: 2}, mem_mb: 77")
    output = new_project.run("--dry-run", "--workflow-profile", "none", "--config", "scale=paper")
    stages = "results/paper/alpha/stages"
    assert set(re.findall(rf"output: {stages}/(\S+)/manifest\.json", output)) == {
        *(f"train/{arm}-s{seed}" for arm in ("teacher", "ours") for seed in (0, 1)),
        *(f"{of}/{name}" for of in ("compress", "evaluate")
          for name in ("plain-s0", "ours-s0", "ours-s1")),
    }  # fmt: skip
    prepared = "data/paper/alpha/manifest.json"
    teacher, ours = (f"{stages}/train/{arm}-s1/manifest.json" for arm in ("teacher", "ours"))
    compressed = f"{stages}/compress/ours-s1/manifest.json"
    assert inputs_of(output, compressed) == {prepared, teacher, ours}
    assert inputs_of(output, f"{stages}/compress/plain-s0/manifest.json") == {
        prepared,
        teacher.replace("-s1", "-s0"),
    }
    evaluated = f"{stages}/evaluate/ours-s1/manifest.json"
    assert inputs_of(output, evaluated) == {prepared, teacher, ours, compressed}
    train = re.search(rf"output: {re.escape(ours)}\n(?:.*\n)*?\s*threads: (\d)\n(.*)\n", output)
    assert train[1] == "2" and "mem_mb=77" in train[2] and "runtime=60" in train[2]
    beta = "results/paper/beta/stages/evaluate"
    assert set(re.findall(rf"output: {beta}/(\w+)/", output)) == {"s0", "s1", "s2"}


# --- what runs again --------------------------------------------------------------------------


def test_a_finished_project(finished):
    assert "Claim ledger" in finished.output
    assert not list(finished.root.rglob(".partial-*"))
    root = finished.root
    for log in ("alpha/prepare", "alpha/train-all", "beta/evaluate-base", "beta/judge"):
        assert (root / f"logs/laptop/{log}.log").is_file()
        assert (root / f"logs/laptop/{log}.benchmark.tsv").is_file()
    assert (root / "data/assets/python-topics/topics.json").is_file()
    page = (root / "results/laptop/report.html").read_text()
    assert "Alpha" in page and "Beta" in page
    verdicts = json.loads((root / "results/laptop/alpha/verdicts.json").read_text())
    assert [claim["verdict"] for claim in verdicts["claims"]] == ["partly"]
    written = {path.relative_to(root).parts[0] for path in root.rglob("*") if path.is_file()}
    assert written <= {"Snakefile", "params.yaml", "data", "kernels", "logs", "profiles", "results",
                       "scratch", "scripts", "workflow", ".snakemake"}  # fmt: skip


def test_nothing_runs_twice_whatever_the_file_times(copy):
    assert copy.planned() == set()
    drawn = random.Random(0)
    for path in copy.root.rglob("*"):
        if path.is_file() and ".snakemake" not in path.parts:
            os.utime(path, (when := drawn.randrange(2_500_000_000), when))
    assert copy.planned() == set()


EDITS = {
    "parameter": (["params.yaml", "numbers: 64", "numbers: 65"], ALPHA | PAGE),
    "stage": (["scripts/papers/beta/evaluate.py", "else 0.0", "else 0.5"],
              BETA - {"beta/prepare"} | PAGE),
    "method": (["scripts/papers/alpha/shift.py", "0.01", "0.02"],
               ALPHA - {"alpha/prepare"} | PAGE),
    "kernel": (["kernels/halve.py", "x / 2", "x * 0.5"],
               jobs("alpha", "evaluate/all", *ENDS) | PAGE),
    "claims": (["scripts/papers/alpha/claims.yaml", "margin: 0.0", "margin: 0.1"],
               jobs("alpha", "verdicts.json", "tracked.json") | PAGE),
    "threads": (["params.yaml", "laptop: {seeds: 2}", "laptop: {seeds: 2, threads: {train: 2}}"],
                ALPHA - {"alpha/prepare"} | PAGE),
    "memory": (["params.yaml", "laptop: {seeds: 2}", "laptop: {seeds: 2, mem_mb: 99}"], set()),
}  # fmt: skip


@pytest.mark.parametrize("case", EDITS)
def test_an_edit_reruns_what_depends_on_it_and_nothing_else(case, copy):
    change, expected = EDITS[case]
    copy.edit(*change)
    assert copy.planned() == expected


def test_after_an_edit_a_run_ends_with_nothing_to_do(copy):
    """Judge, track and page only; the stages' products keep their bytes."""
    before = copy.products()
    copy.edit("scripts/papers/beta/claims.yaml", "Ours scores more", "Ours has a higher score")
    done = copy.snakemake(MLFLOW_TRACKING_URI=NO_STORE)
    assert done.returncode == 0, done.stderr
    assert "Claim ledger" in done.stdout
    after = copy.products()
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert {name.split("/", 2)[2] for name in changed} == {
        "beta/verdicts.json",
        "beta/verdicts.parquet",
        "beta/tracked.json",
    }
    assert "Ours has a higher score" in (copy.root / "results/laptop/report.html").read_text()
    assert copy.planned() == set()


# --- settings that are refused before any job -------------------------------------------------

REFUSED = {
    "unknown scale": (["--config", "scale=labtop"], None,
                      "--config scale: found 'labtop' (did you mean 'laptop'?)"),
    "override of something else": (["--config", "papers=[beta]"], None,
                                   "--config: papers cannot be set on the command line; allowed: "
                                   "scale"),
    "unknown key": ([], ["numbers: 64", "nubmers: 64"],
                    "alpha.smoke: nubmers: unknown key (did you mean 'numbers'?)"),
    "not YAML": ([], ["scale: laptop", "scale: [laptop"], "params.yaml: not valid YAML"),
    "a block that is none": (["results/laptop/alpha/stages/train/ours/manifest.json"], None,
                             "is not a product of params.yaml at scale laptop"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_any_job(case, new_project):
    arguments, change, message = REFUSED[case]
    if change:
        new_project.edit("params.yaml", *change)
    done = new_project.snakemake(*arguments)
    assert done.returncode == 1
    assert message in done.stdout + done.stderr
    assert "Traceback (most recent call last)" not in done.stderr
    assert not (new_project.root / "results").exists()
    assert not (new_project.root / "logs").exists()


# --- results do not depend on how they are run ------------------------------------------------


def metrics_of(project: Project, paper: str) -> pd.DataFrame:
    folder = project.root / f"results/laptop/{paper}/stages/evaluate"
    frames = [pd.read_parquet(path) for path in folder.glob("*/metrics.parquet")]
    keys = ["arm", "seed", "metric", "n"]
    return pd.concat(frames).sort_values(keys).reset_index(drop=True)


def cells_of(project: Project, file: str) -> dict[str, bytes]:
    """Cell -> bytes of a file it saved, whatever block it was in."""
    folder = project.root / "results/laptop/alpha/stages"
    return {path.parent.name: path.read_bytes() for path in folder.glob(f"*/*/*/{file}")}


def verdicts_of(project: Project, paper: str) -> list[dict]:
    path = project.root / f"results/laptop/{paper}/verdicts.json"
    return json.loads(path.read_text())["claims"]


def test_cut_and_cores_do_not_matter(finished, new_project):
    """Alpha cut by arm and seed on one core, against one job a stage on two cores."""
    project = new_project
    for file in ("kernels/halve.py", "scripts/papers/alpha/evaluate.py", "params.yaml"):
        (project.root / file).write_text((finished.root / file).read_text())
    project.edit("params.yaml", "laptop: {seeds: 2}", "laptop: {seeds: 2, fan_out: [arm, seed]}")
    project.run("--cores", "1", *FIGURES, *VERDICTS)
    for paper in ("alpha", "beta"):
        pd.testing.assert_frame_equal(
            metrics_of(project, paper), metrics_of(finished, paper), check_exact=True
        )
        assert verdicts_of(project, paper) == verdicts_of(finished, paper)
    for file, number in (("shifted.parquet", 4), ("rounded.parquet", 3)):
        assert cells_of(project, file) == cells_of(finished, file)
        assert len(cells_of(project, file)) == number
    beta = [{name: data for name, data in each.products().items() if _of_beta(name)}
            for each in (project, finished)]  # fmt: skip
    assert beta[0] == beta[1]
    assert len(beta[0]) > 10


def _of_beta(name: str) -> bool:
    return "beta" in Path(name).parts and not name.endswith("tracked.json")


# --- a job that fails -------------------------------------------------------------------------


def test_a_failing_stage_stops_its_own_paper_only(new_project):
    new_project.edit("scripts/papers/alpha/shift.py", "return numbers", "return 1 / 0 + numbers")
    done = new_project.snakemake(*FIGURES)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stdout + done.stderr
    assert "logs/laptop/alpha/train-all.log" in done.stdout + done.stderr
    assert "ZeroDivisionError" in (new_project.root / "logs/laptop/alpha/train-all.log").read_text()
    assert not (new_project.root / "results/laptop/alpha").exists() or not list(
        (new_project.root / "results/laptop/alpha").rglob("*.*")
    )
    assert (new_project.root / "results/laptop/beta/figures/means.svg").is_file()
