"""Kills, damage and failing disks: the same command afterwards ends with the same results."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.workflow.conftest import Copy
from tests.workflow.project import BIN, Project

ENDS = [f"results/laptop/alpha/{name}" for name in ("figures/manifest.json", "verdicts.json")]
STAGES = "results/laptop/alpha/stages"
STEPS = ["train", "compress", "evaluate"]
PATIENCE_S = 120


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Alpha, with a pause in each cell, run to its verdicts and figures without a disturbance."""
    project = Project(tmp_path_factory.mktemp("undisturbed") / "project")
    project.edit("params.yaml", "pause: 0", "pause: 0.3")
    project.edit("params.yaml", "papers: [alpha, beta]", "papers: [alpha]")
    project.run(*ENDS)
    return project


@pytest.fixture
def project(undisturbed: Project, tmp_path: Path) -> Project:
    return Copy(undisturbed, tmp_path / "project")


def forget(project: Project, first: str) -> None:
    """Take away the products of a stage and of all that come after."""
    for stage in STEPS[STEPS.index(first) :]:
        shutil.rmtree(project.root / STAGES / stage)
    shutil.rmtree(project.root / "results/laptop/alpha/figures")
    for name in ("verdicts.json", "verdicts.parquet"):
        (project.root / "results/laptop/alpha" / name).unlink()


def start(project: Project, *arguments: str) -> subprocess.Popen[bytes]:
    """Snakemake in the background, in a process group of its own."""
    return subprocess.Popen(
        [BIN / "snakemake", "--cores", "2", *arguments],
        cwd=project.root,
        env=project.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def wait_until(found, what: str):
    """What `found` returns, once it is true."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited in vain for {what}")


def stage_processes(project: Project, stage: str) -> list[psutil.Process]:
    """The processes that run a stage of this project."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        line = process.info["cmdline"] or []
        if f"scripts.papers.alpha.{stage}" in line and process.info["cwd"] == str(project.root):
            found.append(process)
    return found


def half_done(project: Project, stage: str) -> bool:
    """Whether the stage has begun to fill its folder."""
    return any((project.root / STAGES / stage).glob(".partial-all-*"))


def whole(project: Project, undisturbed: Project) -> None:
    """The products are those of the run that was not disturbed, to the byte, and nothing else."""
    found, expected = project.products(), undisturbed.products()
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name] != expected[name]] == []
    for folder in ("data", "results", "scratch"):
        assert not list((project.root / folder).rglob(".partial-*"))


# --- kill -9 ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "victim"),
    [
        ("train", "the stage"),
        ("train", "Snakemake alone"),
        ("evaluate", "both"),
    ],
)
def test_kill_in_the_middle(stage, victim, project, undisturbed):
    forget(project, stage)
    running = start(project, *ENDS)
    wait_until(lambda: half_done(project, stage), f"{stage} to begin")
    stages = stage_processes(project, stage)
    if victim == "the stage":
        for process in stages:
            process.kill()
        assert running.wait(PATIENCE_S) == 1
    elif victim == "both":
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    else:
        running.kill()  # its stage goes on, orphaned, while the same command starts again
        running.wait()
    project.run(*ENDS)
    psutil.wait_procs(stages, timeout=PATIENCE_S)
    whole(project, undisturbed)


def test_two_of_the_same_stage_at_once_do_the_work_once(project, undisturbed):
    """As when a stage outlived its Snakemake: the second waits and finds the block whole."""
    forget(project, "compress")
    shutil.rmtree(project.root / STAGES / "train/all")
    command = [BIN / "python", "-m", "scripts.papers.alpha.train"]
    both = [
        subprocess.Popen(
            command, cwd=project.root, env=project.environment(), stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted("is up to date" in output for output in outputs) == [False, True]
    folder, same = (each.root / STAGES / "train" for each in (project, undisturbed))
    assert [path.name for path in folder.iterdir()] == ["all"]
    assert (folder / "all/manifest.json").read_bytes() == (same / "all/manifest.json").read_bytes()


def test_kill_of_a_stage_at_any_moment_leaves_it_whole_or_absent(project, undisturbed):
    """Without Snakemake; from before the first import to after the last file."""
    block = project.root / STAGES / "train/all"
    expected = {path.relative_to(block) for path in block.rglob("*") if path.is_file()}
    shutil.rmtree(block)
    command = [BIN / "python", "-m", "scripts.papers.alpha.train"]
    for delay in (0.1, 0.5, 1.0, 1.5, 2.0):
        process = subprocess.Popen(command, cwd=project.root, env=project.environment())
        time.sleep(delay)
        process.kill()
        process.wait()
        if (block / "manifest.json").exists():
            found = {path.relative_to(block) for path in block.rglob("*") if path.is_file()}
            assert found == expected
    assert subprocess.run(command, cwd=project.root, env=project.environment()).returncode == 0
    whole(project, undisturbed)


# --- damaged inputs ---------------------------------------------------------------------------


def test_truncated_files_of_earlier_stages_are_made_again(project, undisturbed):
    """Their sizes are in the manifest, so that the next run sees it and heals."""
    table = project.root / STAGES / "train/all/ours-s0/shifted.parquet"
    table.write_bytes(table.read_bytes()[:-50])
    manifest = project.root / "data/laptop/alpha/manifest.json"
    manifest.write_text(manifest.read_text()[:40])
    assert project.planned(*ENDS) == {
        "alpha/prepare",
        *(f"alpha/{stage}/all" for stage in STEPS),
        "alpha/figures",
        "alpha/verdicts.json",
    }
    project.run(*ENDS)
    whole(project, undisturbed)


def test_damage_that_keeps_the_size_is_an_error_that_says_what_to_do(project):
    table = project.root / STAGES / "train/all/ours-s0/shifted.parquet"
    table.write_bytes(b"\0" * table.stat().st_size)
    project.edit("scripts/papers/alpha/compress.py", ".round(1)", ".round(2)")
    done = project.snakemake(*ENDS)
    output = done.stdout + done.stderr
    assert done.returncode == 1
    assert f"error: alpha compress: {table}: damaged" in output
    advice = f"Delete it and make it again: snakemake --cores all {STAGES}/train/all/manifest.json"
    assert advice in output
    assert "Traceback (most recent call last)" not in output
    table.unlink()
    project.run(*ENDS)


# --- disks ------------------------------------------------------------------------------------


@pytest.fixture
def mount() -> Iterator:
    """Mount something over a folder for the length of a test."""
    mounted: list[Path] = []

    def mounts(folder: Path, *options: str) -> None:
        done = subprocess.run(["mount", *options, folder], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
        if "remount" not in " ".join(options):
            mounted.append(folder)

    if os.geteuid():
        pytest.skip("mounting needs root")
    yield mounts
    for folder in mounted:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_full_disk(project, undisturbed, mount):
    """The disk of the results fills up in the middle of train; then there is room again."""
    results = project.root / "results"
    shutil.rmtree(results)
    results.mkdir()
    mount(results, "-t", "tmpfs", "-o", "size=2m", "tmpfs")
    ballast = results / "ballast"
    with ballast.open("wb") as file:
        file.write(b"\0" * (2 * 2**20 - 3 * os.sysconf("SC_PAGESIZE")))
    done = project.snakemake(*ENDS)
    output = done.stdout + done.stderr
    assert done.returncode == 1
    assert "error: alpha train: " in output
    assert "No space left on device; the disk is full: free some space" in output
    assert "Traceback (most recent call last)" not in output
    assert [path for path in results.rglob("*") if path.is_file()] == [ballast]
    assert not list(results.rglob(".partial-*"))
    ballast.unlink()
    project.run(*ENDS)
    whole(project, undisturbed)


def test_read_only_results(project, mount):
    """Nothing to do is fine; something to do is one message that says why not."""
    results = project.root / "results"
    assert project.planned(*ENDS) == set()
    before = project.products()
    mount(results, "--bind", str(results))
    mount(results, "-o", "remount,ro,bind")
    assert "Nothing to be done" in project.run("--workflow-profile", "none", *ENDS)
    project.edit("scripts/papers/alpha/shift.py", "0.01", "0.02")
    done = project.snakemake(*ENDS)
    output = done.stdout + done.stderr
    assert done.returncode == 1
    assert "cannot set its time (Read-only file system)" in output
    assert "data and results must be writable" in output.replace("\n", " ")
    assert "Traceback (most recent call last)" not in output
    by_hand = project.stage("alpha.train")
    assert by_hand.returncode == 1
    assert by_hand.stderr.startswith("error: alpha train: ")
    assert "the file system is read-only: make it writable or work in a copy" in by_hand.stderr
    assert project.products() == before
