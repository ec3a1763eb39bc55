"""Tracking with a real MLflow server on this machine: live curves, then the rule `track`."""

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pandas as pd
import pytest
import requests
import yaml

from scripts.pipeline import live, tracking
from tests.pipeline.tracked_project import (
    complete_keys_of,
    dump,
    expected_keys,
    fill,
    keys_of,
    make_project,
)

GRACE_S = 60
"""How long a server may take to start or to show what it was sent."""

STAGE = """
import sys
from pathlib import Path
from scripts.pipeline.stage import main

def compress(job):
    for run in job.runs():
        run.metric("error", 0.5, unit="squared error", n=10)
        for step in range(50):
            run.log(step, objective=1 / (1 + step + run.seed))
        if run.cell.name == "fp-s0":
            Path("reached").touch()
            while not Path("go on").exists():
                pass

if __name__ == "__main__":
    main(compress)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(happened: Callable[[], object]) -> None:
    until = time.monotonic() + GRACE_S
    while not happened():
        assert time.monotonic() < until, "gave up waiting"
        time.sleep(0.1)


def answers(uri: str) -> bool:
    try:
        return requests.get(f"{uri}/health", timeout=5).ok
    except requests.RequestException:
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """URI and SQLite file of a running MLflow server."""
    root = tmp_path_factory.mktemp("server")
    uri = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{root / 'server.db'}"]
    command += ["--artifacts-destination", str(root / "artifacts")]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (root / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=root, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        wait_for(lambda: answers(uri))
        yield uri, root / "server.db"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


def marker_of(root: Path) -> dict:
    return json.loads((root / "results" / "smoke" / "toy" / "tracked.json").read_text())


def clear(database: Path) -> None:
    """Delete every run, so that tests that share the server do not see each other's."""
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE runs SET lifecycle_stage = 'deleted'")
    connection.close()


def points_of(database: Path, key: str) -> list[tuple[int, float]]:
    """The points of `curves/objective` of the active runs with a key."""
    with sqlite3.connect(database) as connection:
        found = connection.execute(
            "SELECT m.step, m.value FROM metrics m JOIN runs USING (run_uuid) JOIN tags t "
            "USING (run_uuid) WHERE lifecycle_stage = 'active' AND m.key = 'curves/objective' "
            "AND t.key = 'key' AND t.value = ? ORDER BY m.step",
            (key,),
        ).fetchall()
    connection.close()
    return found


def test_curves_stream_while_a_stage_runs_and_track_completes_the_same_runs(
    server: tuple[str, Path], project: Path, monkeypatch: pytest.MonkeyPatch
):
    uri, database = server
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    (project / "scripts/papers/toy/compress.py").write_text(STAGE)
    settings = yaml.safe_load((project / "params.yaml").read_text())
    settings["tracking"] = {"live": True}
    (project / "params.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    fill(project)
    shutil.rmtree(project / "results/smoke/toy/stages/compress")

    stage = subprocess.Popen(
        [sys.executable, "-m", "scripts.papers.toy.compress", "--scale", "smoke"], cwd=project
    )
    key = "toy/smoke/compress/fp/s0"
    wait_for(lambda: len(points_of(database, key)) == 50)
    assert stage.poll() is None
    assert complete_keys_of(database) == []
    (project / "go on").touch()
    assert stage.wait() == 0
    with sqlite3.connect(database) as connection:
        streamed = connection.execute(
            "SELECT run_uuid FROM tags WHERE key = 'key' AND value = ?", (key,)
        ).fetchall()
        connection.execute(  # as if the queue had been full
            "DELETE FROM metrics WHERE run_uuid = ? AND step % 7 = 3", streamed[0]
        )
    connection.close()

    assert tracking.main(["--scale", "smoke", "--paper", "toy"], project) == 0
    assert marker_of(project)["tracked"] is True
    assert keys_of(database) == complete_keys_of(database) == expected_keys()
    table = pd.read_parquet(project / "results/smoke/toy/stages/compress/all/curves.parquet")
    for arm, seed in (("fp", 0), ("gsrq", 0), ("gsrq", 1)):
        rows = table[(table.arm == arm) & (table.seed == seed)]
        expected = list(zip(rows.step.tolist(), rows.value.tolist(), strict=True))
        assert points_of(database, f"toy/smoke/compress/{arm}/s{seed}") == expected
    with sqlite3.connect(database) as connection:
        kept = connection.execute(
            "SELECT run_uuid FROM runs JOIN tags USING (run_uuid) "
            "WHERE lifecycle_stage = 'active' AND key = 'key' AND value = ?", (key,)
        ).fetchall()  # fmt: skip
        status = "SELECT DISTINCT status FROM runs WHERE lifecycle_stage = 'active'"
        assert connection.execute(status).fetchall() == [("FINISHED",)]
    connection.close()
    assert kept == streamed

    before = dump(database), marker_of(project)
    assert tracking.main(["--scale", "smoke", "--paper", "toy"], project) == 0
    assert (dump(database), marker_of(project)) == before


def test_a_streamed_run_that_differs_from_the_parquet_is_replaced(
    server: tuple[str, Path], project: Path, monkeypatch: pytest.MonkeyPatch
):
    uri, database = server
    clear(database)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    key = "toy/smoke/compress/fp/s0"
    stream = live.Live(uri, "toy", "smoke", "compress")
    stream.log("fp", 0, 0, {"objective": 123.0})
    stream.close()
    wait_for(lambda: points_of(database, key) == [(0, 123.0)])
    tracking.main(["--scale", "smoke", "--paper", "toy"], project)
    assert points_of(database, key) == [(step, 1 / (1 + step)) for step in range(40)]
    assert keys_of(database) == complete_keys_of(database) == expected_keys()


def test_figures_are_served(server: tuple[str, Path], project: Path, monkeypatch):
    uri, database = server
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    tracking.main(["--scale", "smoke", "--paper", "toy"], project)
    with sqlite3.connect(database) as connection:
        (run_id,) = connection.execute(
            "SELECT run_uuid FROM runs JOIN tags USING (run_uuid) WHERE value LIKE '%/verdicts' "
            "AND key = 'key' AND lifecycle_stage = 'active'"
        ).fetchone()
    connection.close()
    figure = requests.get(
        f"{uri}/get-artifact", params={"run_id": run_id, "path": "figures/rate.svg"}, timeout=10
    )
    assert figure.content == (project / "results/smoke/toy/figures/rate.svg").read_bytes()


def test_a_stream_without_a_server_gives_up_and_the_stage_goes_on(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    monkeypatch.setattr(live, "PERIOD_S", 0.01)
    stream = live.Live(f"http://127.0.0.1:{free_port()}", "toy", "smoke", "compress")
    wait_for(lambda: stream.log("fp", 0, 0, {"objective": 1.0}) or not stream._thread.is_alive())
    for step in range(50_000):
        stream.log("fp", 0, step, {"objective": 1.0})
    stream.close()
    assert stream._queue.qsize() < live.QUEUE_POINTS
    assert capfd.readouterr().err.count("given up") == 1


def test_a_full_queue_drops_points_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    """The server takes the connection and never answers."""
    monkeypatch.setattr(live, "QUEUE_POINTS", 10)
    monkeypatch.setattr(live, "CLOSE_S", 0.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        stream = live.Live(f"http://127.0.0.1:{silent.getsockname()[1]}", "toy", "smoke", "train")
        for step in range(100):
            stream.log("fp", 0, step, {"objective": 1.0, "never": float("nan")})
        stream.close()
    assert stream._lost >= 100 - 10 - 10
    assert capfd.readouterr().err.count("given up") == 1


class _Broken(BaseHTTPRequestHandler):
    """Healthy, as it says, and useless."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 501)
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *args: object) -> None:
        pass


def test_a_server_that_only_looks_healthy_is_a_warning(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    broken = HTTPServer(("127.0.0.1", 0), _Broken)
    threading.Thread(target=broken.serve_forever, daemon=True).start()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{broken.server_port}")
    try:
        assert tracking.main(["--scale", "smoke", "--paper", "toy"], project) == 0
    finally:
        broken.shutdown()
        broken.server_close()
    assert marker_of(project)["tracked"] is False
    assert capfd.readouterr().err.count("warning") == 1


def test_live_needs_a_server(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking.live("toy", "smoke", "compress") is None
    assert "MLFLOW_TRACKING_URI" in capfd.readouterr().err
