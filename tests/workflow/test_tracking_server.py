"""Tracking with a real MLflow server on this machine: live curves, then the rule `track`."""

import json
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

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
from tests.workflow.servers import MlflowServer, free_port, wait_for

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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """URI and SQLite file of a running MLflow server."""
    root = tmp_path_factory.mktemp("server")
    server = MlflowServer(root, f"sqlite:///{root / 'server.db'}")
    try:
        server.start()
        yield server.uri, root / "server.db"
    finally:
        server.kill()


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


def test_a_stream_without_a_server_never_holds_up_its_stage(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    monkeypatch.setattr(live, "PERIOD_S", 0.01)
    stream = live.Live(f"http://127.0.0.1:{free_port()}", "toy", "smoke", "compress")
    for step in range(50_000):
        stream.log("fp", 0, step, {"objective": 1.0})
    stream.close()
    assert not stream._thread.is_alive()
    assert stream._lost >= 50_000 - live.QUEUE_POINTS - live.BATCH_POINTS
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


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URI of a made-up server that is at work."""
    server = HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class _Forgetful(BaseHTTPRequestHandler):
    """Takes what it is sent, but the answer to the first attempt at each call never arrives."""

    calls: ClassVar[list[tuple[str, dict]]] = []

    def do_GET(self) -> None:
        self.answer({"experiment": {"experiment_id": "1"}})

    def do_POST(self) -> None:
        endpoint = self.path.rsplit("/", 1)[1]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = [name for name, _ in self.calls]
        self.calls.append((endpoint, body))
        if endpoint not in known:
            self.close_connection = True
        else:
            self.answer({"runs": [{"info": {"run_id": "first"}}]})

    def answer(self, value: dict) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def log_message(self, *args: object) -> None:
        pass


def test_answers_that_are_lost_double_neither_runs_nor_points(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    monkeypatch.setattr(live, "PERIOD_S", 0.01)
    _Forgetful.calls.clear()
    with serving(_Forgetful) as uri:
        stream = live.Live(uri, "toy", "smoke", "compress")
        stream.log("fp", 0, 7, {"objective": 0.5})
        wait_for(lambda: len(_Forgetful.calls) >= 5)
        stream.close()
    assert [endpoint for endpoint, _ in _Forgetful.calls] == [
        *("create", "search", "search", "log-batch", "log-batch")
    ]
    (_, made), (_, looked_for), *_, (_, sent), (_, again) = _Forgetful.calls
    tags = {tag["key"]: tag["value"] for tag in made["tags"]}
    assert tags["live"] in looked_for["filter"] and tags["key"] in looked_for["filter"]
    assert sent == again  # the same times too, so that a server knows the points
    assert sent["run_id"] == "first"
    assert capfd.readouterr().err == ""


class _Refusing(_Forgetful):
    """Knows no experiment and lets nobody make one."""

    def do_GET(self) -> None:
        self.send_error(403)

    do_POST = do_GET


def test_a_server_that_refuses_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    monkeypatch.setattr(live, "PERIOD_S", 0.01)
    with serving(_Refusing) as uri:
        stream = live.Live(uri, "toy", "smoke", "compress")
        wait_for(lambda: stream.log("fp", 0, 0, {"a": 1.0}) or not stream._thread.is_alive())
        stream.log("fp", 0, 1, {"a": 1.0})
        assert stream._queue.qsize() < live.QUEUE_POINTS
        stream.close()
    error = capfd.readouterr().err
    assert error.count("given up") == 1
    assert "403" in error


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
    with serving(_Broken) as uri:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        assert tracking.main(["--scale", "smoke", "--paper", "toy"], project) == 0
    assert marker_of(project)["tracked"] is False
    assert capfd.readouterr().err.count("warning") == 1


def test_live_needs_a_server(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking.live("toy", "smoke", "compress") is None
    assert "MLFLOW_TRACKING_URI" in capfd.readouterr().err
