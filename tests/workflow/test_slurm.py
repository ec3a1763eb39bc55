"""The same command on a real Slurm: the same bytes, through cancelled jobs and a crashed node."""

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workflow.conftest import NO_STORE, Copy
from tests.workflow.project import BIN, Project
from tests.workflow.slurm import PATIENCE_S, Slurm, missing, wait_until

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no Slurm here: {missing()}")

PROFILE = ["--workflow-profile", "profiles/slurm"]
SMOKE = ["--config", "scale=smoke"]
CELLS = {
    "alpha/train": ("teacher", "ours"),
    "alpha/compress": ("plain", "ours"),
    "alpha/evaluate": ("plain", "ours"),
    "beta/evaluate": ("base", "ours"),
}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    cluster = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Both papers cut by arm and seed; each cell reports beside the project, and may pause."""
    project = Project(tmp_path_factory.mktemp("fresh") / "project")
    project.edit("params.yaml", "smoke: {seeds: 1}", "smoke: {seeds: 2, fan_out: [arm, seed]}")
    project.edit(
        "scripts/pipeline/stage.py",
        "            yield Run(self, cell)\n",
        '            where = f"{self.paper}/{self.stage}/{cell.name}\\n"\n'
        '            with (self.root.parent / "begun").open("a") as file:\n'
        "                file.write(where)\n"
        '            time.sleep(float(os.environ.get("PAUSE", 0)))\n'
        "            yield Run(self, cell)\n"
        '            with (self.root.parent / "done").open("a") as file:\n'
        "                file.write(where)\n",
    )
    return project


def on(
    slurm: Slurm, project: Project, *arguments: str, **environment: str
) -> subprocess.Popen[bytes]:
    """The README's command, in the background; its output goes to a file beside the project."""
    with (project.root.parent / "output").open("ab") as output:
        slurm.commands.append(
            subprocess.Popen(
                [
                    BIN / "snakemake",
                    *(PROFILE if "--profile" not in arguments else ()),
                    "--slurm-init-seconds-before-status-checks",
                    "1",
                    *arguments,
                    *SMOKE,
                ],
                cwd=project.root,
                env={
                    **project.environment(MLFLOW_TRACKING_URI=NO_STORE, **environment),
                    **slurm.environment,
                },
                stdout=output,
                stderr=output,
            )
        )
    return slurm.commands[-1]


def said(project: Project) -> str:
    """All output so far, on one line."""
    return " ".join((project.root.parent / "output").read_text().split())


def reported(project: Project, file: str) -> list[str]:
    path = project.root.parent / file
    return path.read_text().splitlines() if path.exists() else []


def job_of(slurm: Slurm, cell: str) -> dict[str, str]:
    """The last job of 'alpha/train/ours-s0'."""
    return [job for job in slurm.jobs() if job["comment"].endswith(cell.replace("/", "_"))][-1]


# --- the same results -------------------------------------------------------------------------


def test_cancelled_and_crashed_the_same_command_ends_with_the_same_bytes(
    slurm: Slurm, fresh: Project, tmp_path: Path
) -> None:
    """Nothing is lost, and no cell that ended well is computed again."""
    (tmp_path / "local").mkdir()
    (tmp_path / "slurm").mkdir()
    local = Copy(fresh, tmp_path / "local" / "project")
    done = local.snakemake(*SMOKE, MLFLOW_TRACKING_URI=NO_STORE)
    assert done.returncode == 0, done.stdout + done.stderr
    project = Copy(fresh, tmp_path / "slurm" / "project")
    project.edit("params.yaml", "seeds: 2, f", "mem_mb: {evaluate: 700}, runtime: 2, seeds: 2, f")
    first = on(slurm, project, "--retries", "0", PAUSE="1.5")
    victim = "alpha/train/ours-s1"
    wait_until(lambda: victim in reported(project, "begun"), victim)
    slurm.client("scancel", job_of(slurm, victim)["id"])
    wait_until(lambda: "alpha/compress/ours-s0" in reported(project, "begun"), "compress")
    slurm.crash()
    assert first.wait(timeout=PATIENCE_S) != 0, said(project)
    assert victim not in reported(project, "done")
    whole = reported(project, "done")
    assert len(whole) >= 4
    states = Counter(job["state"] for job in slurm.jobs())
    assert states["CANCELLED"] == 1 and states["NODE_FAIL"] >= 1, slurm.jobs()

    assert on(slurm, project).wait(timeout=PATIENCE_S) == 0, said(project)
    assert "Claim ledger" in said(project)
    assert project.products() == local.products()
    assert Counter(reported(project, "done")) == Counter(reported(local, "done"))
    assert not list(project.root.rglob(".partial-*"))
    expected = {f"{stage}/{arm}-s{seed}" for stage, arms in CELLS.items() for arm in arms
                for seed in ((0,) if arm == "plain" else (0, 1))}  # fmt: skip
    assert set(reported(project, "done")) == expected
    assert project.planned(*SMOKE) == set()
    for cell, cpus, memory in (("alpha/train/ours-s1", "1", "4G"),
                               ("beta/evaluate/base-s0", "1", "700M")):  # fmt: skip
        job = job_of(slurm, cell)
        assert (job["cpus"], job["memory"], job["minutes"]) == (cpus, memory, "2:00")


# --- memory and GPUs --------------------------------------------------------------------------


def test_above_its_memory_a_job_says_so_and_is_tried_with_more(
    slurm: Slurm, fresh: Project, tmp_path: Path
) -> None:
    project = Copy(fresh, tmp_path / "project")
    project.edit("params.yaml", "smoke: {seeds: 2,", "smoke: {mem_mb: {evaluate: 500}, seeds: 2,")
    project.edit(
        "scripts/papers/beta/evaluate.py",
        "    for run in job.runs():\n",
        "    for run in job.runs():\n"
        "        held = []\n"
        "        for _ in range(24):\n"
        "            held.append(bytearray(b'1') * (25 << 20))\n"
        "            time.sleep(0.2)\n",
    )
    project.edit("scripts/papers/beta/evaluate.py", "from scripts", "import time\n\nfrom scripts")
    target = "results/smoke/beta/stages/evaluate/ours-s1/manifest.json"
    asked = ["--profile", "workflow/profiles/slurm", target]
    assert on(slurm, project, *asked).wait(timeout=PATIENCE_S) == 0, said(project)
    message = "error: beta evaluate: ours-s1: holds "
    assert said(project).count(message) == 1, said(project)
    assert "above its limit of 500 MB. Raise mem_mb in params.yaml" in said(project)
    tried = [job for job in slurm.jobs() if job["comment"].endswith("beta_evaluate_ours-s1")]
    assert [(job["memory"], job["state"]) for job in tried[-2:]] == [
        ("500M", "FAILED"),
        ("1000M", "COMPLETED"),
    ]
    log = project.root / "logs/smoke/beta/evaluate-ours-s1.log"
    assert "beta evaluate: ours-s1: this job may hold 1000 MB" in log.read_text()


def test_gpus_are_asked_for(slurm: Slurm, fresh: Project, tmp_path: Path) -> None:
    """This node only says that it has some."""
    project = Copy(fresh, tmp_path / "project")
    project.edit("params.yaml", "smoke: {seeds: 2,", "smoke: {gpu: {prepare: 2}, seeds: 2,")
    target = "data/smoke/beta/manifest.json"
    assert on(slurm, project, "--retries", "0", target).wait(timeout=PATIENCE_S) == 1
    assert "beta.smoke.gpu asks for a GPU for prepare and none is visible" in said(project)
    job = job_of(slurm, "rule_prepare_wildcards_smoke_beta")
    assert job["state"] == "FAILED"
    assert "TresPerJob=gres:gpu:2" in slurm.client("scontrol", "show", "job", job["id"])


def test_a_wrong_partition_is_refused_with_slurms_own_words(
    slurm: Slurm, fresh: Project, tmp_path: Path
) -> None:
    project = Copy(fresh, tmp_path / "project")
    target = "data/smoke/beta/manifest.json"
    wrong = ["--default-resources", "slurm_partition=nowhere", "--retries", "0"]
    assert on(slurm, project, target, *wrong).wait(timeout=PATIENCE_S) == 1
    assert "Invalid partition name specified" in said(project)
    assert not (project.root / "data/smoke/beta").exists()


def test_killed_by_slurm_itself_the_log_names_the_limit(
    slurm: Slurm, fresh: Project, tmp_path: Path
) -> None:
    """Pages of a mapped file count for Slurm and not for us; a cluster's kill is not answered."""
    project = Copy(fresh, tmp_path / "project")
    project.edit("params.yaml", "smoke: {seeds: 2,", "smoke: {mem_mb: {prepare: 500}, seeds: 2,")
    project.edit(
        "scripts/papers/beta/prepare.py",
        "    numbers = ",
        "    import mmap, time\n"
        "    with open(job.outdir / 'large', 'wb+') as file:\n"
        "        file.truncate(700 << 20)\n"
        "        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:\n"
        "            sum(pages[:: mmap.PAGESIZE])\n"
        "            time.sleep(10)\n"
        "    numbers = ",
    )
    target = "data/smoke/beta/manifest.json"
    slurm.look_at_memory_every(1)
    assert on(slurm, project, "--retries", "0", target).wait(timeout=PATIENCE_S) == 1
    assert "beta prepare: all: this job may hold 500 MB" in said(project)
    assert "exceeded memory limit" in said(project)
    assert "beta/prepare.log" in said(project)
    assert not (project.root / "data/smoke/beta").exists()
