"""Tracking on a server of PostgreSQL that is killed while eight jobs and two streams use it."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest
import yaml

from scripts.pipeline import tracking
from tests.pipeline.tracked_project import SVG, expected_keys, fill, make_project, start_track
from tests.workflow.servers import MlflowServer, Postgres, wait_for

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

TRACKED = tuple(f"paper{number}" for number in range(8))
STREAMED = ("live0", "live1")
STEPS = 60
STAGE = f"""
import time
from pathlib import Path
from scripts.pipeline.stage import main

def compress(job):
    for run in job.runs():
        for step in range({STEPS}):
            run.log(step, objective=1 / (1 + step + run.seed))
            if step == {STEPS // 2}:
                wait_for(f"{{run.cell.name}} goes on")
    wait_for("stages end")

def wait_for(file):
    while not Path(file).exists():
        time.sleep(0.02)

if __name__ == "__main__":
    main(compress)
"""
"""Each cell streams half its curve, then waits to be told to go on."""


@dataclass(frozen=True)
class Service:
    """A tracking server and its database."""

    mlflow: MlflowServer
    database: Postgres

    @property
    def client(self) -> "MlflowClient":
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self.mlflow.uri)

    def count(self, rows: str) -> int:
        ((found,),) = self.database.query(f"SELECT count(*) FROM {rows}")
        return found

    def runs(self, paper: str) -> "list[Run]":
        """The runs of a paper that are not deleted."""
        experiment = self.client.get_experiment_by_name(paper).experiment_id
        return self.client.search_runs([experiment], max_results=1000)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    if not (programs := Postgres.programs()):
        pytest.skip("PostgreSQL is not installed here: apt-get install postgresql")
    database = Postgres(programs)
    server = MlflowServer(tmp_path_factory.mktemp("mlflow"), database.uri)
    try:
        server.start()
        yield Service(server, database)
    finally:
        server.kill()
        database.remove()


def marker_of(root: Path, paper: str) -> dict:
    return json.loads((root / f"results/smoke/{paper}/tracked.json").read_text())


def start_stage(root: Path, paper: str, uri: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", f"scripts.papers.{paper}.compress", "--scale", "smoke"],
        cwd=root,
        env={**os.environ, "MLFLOW_TRACKING_URI": uri},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_nothing_is_lost_or_doubled_when_the_server_is_killed(
    service: Service,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    root = make_project(tmp_path / "project", TRACKED + STREAMED)
    settings = yaml.safe_load((root / "params.yaml").read_text()) | {"tracking": {"live": True}}
    (root / "params.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    for paper in STREAMED:
        (root / f"scripts/papers/{paper}/compress.py").write_text(STAGE)
        fill(root, paper)
        shutil.rmtree(root / f"results/smoke/{paper}/stages/compress")

    uri = service.mlflow.uri
    stages = [start_stage(root, paper, uri) for paper in STREAMED]
    streamed = "metrics WHERE key = 'curves/objective'"
    wait_for(lambda: service.count(streamed) == 2 * (STEPS // 2 + 1), "the streams to begin")
    jobs = [start_track(root, "--paper", paper, uri=uri) for paper in TRACKED]
    complete = "tags WHERE key = 'complete' AND value = 'true'"
    wait_for(lambda: service.count(complete) >= 12, "the jobs to begin")
    service.mlflow.kill()
    for cell in ("fp-s0", "kmeans-s0", "kmeans-s1"):
        (root / f"{cell} goes on").touch()
    warnings = [job.communicate()[1] for job in jobs]
    assert [job.returncode for job in jobs] == [0] * 8, warnings
    interrupted = [paper for paper in TRACKED if not marker_of(root, paper)["tracked"]]
    assert interrupted
    assert [text.count("warning: track:") for text in warnings] == [
        int(paper in interrupted) for paper in TRACKED
    ]
    assert all(stage.poll() is None for stage in stages)

    service.mlflow.start()
    for cell in ("gsrq-s0", "gsrq-s1"):
        (root / f"{cell} goes on").touch()
    ends = f"{streamed} AND step = {STEPS - 1}"
    wait_for(lambda: service.count(ends) == 2 * 5, "the ends of the ten curves")
    (root / "stages end").touch()
    assert [stage.wait() for stage in stages] == [0, 0]

    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert tracking.main(["--scale", "smoke", "--all"], root) == 0
    assert "warning" not in capfd.readouterr().err
    mirrored(service, root, TRACKED + STREAMED)

    tables = ("metrics", "latest_metrics", "params", "tags", "runs")
    before = [service.count(table) for table in tables]
    assert tracking.main(["--scale", "smoke", "--all"], root) == 0
    assert capfd.readouterr().out.count(": 11 unchanged (of 11 runs)") == 10
    assert [service.count(table) for table in tables] == before


def test_a_database_that_crashes_costs_a_warning_and_is_made_up_for(
    service: Service,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The server goes on and finds the database again by itself."""
    root = make_project(tmp_path / "project", ("crash",))
    job = start_track(root, "--paper", "crash", uri=service.mlflow.uri)
    of_crash = "runs JOIN experiments USING (experiment_id) WHERE experiments.name = 'crash'"
    wait_for(lambda: service.count(of_crash) >= 2, "the job to begin")
    service.database.crash()
    _, warning = job.communicate()
    assert job.returncode == 0
    assert warning.count("warning: track:") == 1
    assert marker_of(root, "crash")["tracked"] is False
    service.database.start()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", service.mlflow.uri)
    assert tracking.main(["--scale", "smoke", "--all"], root) == 0
    assert "warning" not in capfd.readouterr().err
    mirrored(service, root, ("crash",))


def mirrored(service: Service, root: Path, papers: tuple[str, ...]) -> None:
    """What PostgreSQL holds is what the parquet of the papers holds, each row once."""
    for paper in papers:
        assert marker_of(root, paper)["tracked"] is True
        runs = {run.data.tags["key"]: run for run in service.runs(paper)}
        assert sorted(run.data.tags["key"] for run in service.runs(paper)) == expected_keys(paper)
        assert {run.data.tags["complete"] for run in runs.values()} == {"true"}
        assert {run.info.status for run in runs.values()} == {"FINISHED"}
        stages = root / f"results/smoke/{paper}/stages"
        curves = pd.read_parquet(stages / "compress/all/curves.parquet")
        for (arm, seed), rows in curves.groupby(["arm", "seed"]):
            run_id = runs[f"{paper}/smoke/compress/{arm}/s{seed}"].info.run_id
            history = service.client.get_metric_history(run_id, "curves/objective")
            assert sorted((point.step, point.value) for point in history) == sorted(
                zip(rows["step"], rows["value"], strict=True)
            )
        table = pd.read_parquet(stages / "evaluate/all/metrics.parquet")
        for (arm, seed), rows in table[table["metric"] == "kl"].groupby(["arm", "seed"]):
            held = runs[f"{paper}/smoke/evaluate/{arm}/s{seed}"].data.metrics
            held = [value for name, value in held.items() if name.startswith("kl/")]
            assert Counter(held) == Counter(rows["value"])
        verdicts = runs[f"{paper}/smoke/verdicts"].info.run_id
        assert figure_of(service, verdicts) == SVG
    twice = "SELECT run_uuid, key, step FROM metrics JOIN runs USING (run_uuid) WHERE "
    twice += "lifecycle_stage = 'active' GROUP BY run_uuid, key, step HAVING count(*) > 1"
    assert service.database.query(twice) == []


def figure_of(service: Service, run_id: str) -> str:
    """A figure as the server's proxy hands it out."""
    from mlflow.artifacts import load_text

    uri = service.client.get_run(run_id).info.artifact_uri
    assert uri.startswith("mlflow-artifacts:/")
    return load_text(f"{uri}/figures/rate.svg")
