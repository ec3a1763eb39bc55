"""Curves streamed to an MLflow server while a stage runs: best effort, never in the way.

The stage only puts points into a bounded queue; a thread sends them in batches over MLflow's REST
API (its Python client would cost the stage seconds and memory to import). While the server is down
the points wait, and go on where they stopped when it is back; a full queue drops points, and a
server that refuses them is given up: `track` completes the same runs from parquet later.
"""

import contextlib
import math
import os
import queue
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any

from scripts.pipeline.tracked_runs import cell_key, curve_name

QUEUE_POINTS = 20_000
BATCH_POINTS = 1000
PERIOD_S = 1.0
LONGEST_PAUSE_S = 10.0
"""Between attempts while the server is down; the pause doubles up to it."""
TIMEOUT_S = (2.0, 5.0)
"""Seconds to connect, seconds to wait for an answer."""
CLOSE_S = 5.0
FAILURES = 3
"""Refusals in a row, after which the server is given up."""

_Point = tuple[str, int, str, int, float, int]
"""Arm, seed, name, step, value, time in ms."""


class Live:
    """Streams one job's curves, a run per cell."""

    def __init__(self, uri: str, paper: str, scale: str, stage: str) -> None:
        import requests

        self._api = f"{uri.rstrip('/')}/api/2.0/mlflow"
        self._job = (paper, scale, stage)
        self._session = requests.Session()
        self._errors = (requests.RequestException, LookupError, TypeError, ValueError)
        self._stream = uuid.uuid4().hex
        self._authorise()
        self._queue: queue.Queue[_Point] = queue.Queue(QUEUE_POINTS)
        self._closing = threading.Event()
        self._given_up = threading.Event()
        self._runs: dict[tuple[str, int], str] = {}
        self._asked: set[tuple[str, int]] = set()
        self._experiment = ""
        self._lost = 0
        self._thread = threading.Thread(target=self._send_all, name="mlflow-live", daemon=True)
        self._thread.start()

    def log(self, arm: str, seed: int, step: int, values: Mapping[str, float]) -> None:
        """Queue points of a cell's curves; returns at once, whatever the server does."""
        if self._given_up.is_set():
            return
        now = time.time_ns() // 1_000_000
        for name, value in values.items():
            if not math.isfinite(value):
                continue
            try:
                self._queue.put_nowait((arm, seed, name, step, float(value), now))
            except queue.Full:
                self._lost += 1

    def close(self) -> None:
        """Send what is queued, for CLOSE_S seconds at most."""
        self._closing.set()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._give_up(f"the server takes more than {CLOSE_S} s")
        elif self._lost and not self._given_up.is_set():
            _warn(f"{self._lost} points were not streamed; the rule `track` adds them")

    def _send_all(self) -> None:
        points: list[_Point] = []
        failures = 0
        while True:
            closing = self._closing.wait(self._pause(failures))
            points = points or self._drained()
            try:
                if points:
                    self._send(points)
                    points, failures = [], 0
            except self._errors as error:
                failures += 1
                refused = _is_refusal(error)
                if closing or (refused and failures >= FAILURES):
                    self._lost += len(points)
                    self._give_up(f"{type(error).__name__}: {error}")
                    return
                if refused:  # by another attempt they would be refused again
                    self._lost += len(points)
                    points = []
            if closing and not points and self._queue.empty():
                return

    def _give_up(self, reason: str) -> None:
        """Say so, once."""
        if not self._given_up.is_set():
            self._given_up.set()
            _warn(f"given up ({reason}); the rule `track` logs the curves later")

    def _pause(self, failures: int) -> float:
        if failures:
            return min(PERIOD_S * 2 ** min(failures, 10), LONGEST_PAUSE_S)
        return 0.0 if self._queue.qsize() >= BATCH_POINTS else PERIOD_S

    def _drained(self) -> list[_Point]:
        points: list[_Point] = []
        with contextlib.suppress(queue.Empty):
            while len(points) < BATCH_POINTS:
                points.append(self._queue.get_nowait())
        return points

    def _send(self, points: list[_Point]) -> None:
        """Send points; sent again they are still one point, as they keep their times."""
        by_cell: dict[tuple[str, int], list[dict]] = {}
        for arm, seed, name, step, value, now in points:
            by_cell.setdefault((arm, seed), []).append(
                {"key": curve_name(name), "value": value, "timestamp": now, "step": step}
            )
        for cell, metrics in by_cell.items():
            self._call("runs/log-batch", run_id=self._run(*cell), metrics=metrics)

    def _run(self, arm: str, seed: int) -> str:
        """Id of the cell's run, made when its first point is sent."""
        cell = (arm, seed)
        if cell not in self._runs:
            key = cell_key(*self._job, arm, seed)
            made = self._made(key) if cell in self._asked else None
            self._asked.add(cell)
            self._runs[cell] = made or self._create(key, arm, seed)
        return self._runs[cell]

    def _create(self, key: str, arm: str, seed: int) -> str:
        paper, scale, stage = self._job
        tags = {"key": key, "paper": paper, "scale": scale, "stage": stage, "arm": arm,
                "seed": str(seed), "complete": "false", "live": self._stream}  # fmt: skip
        answer = self._call(
            "runs/create",
            experiment_id=self._experiment_id(paper),
            run_name=key.split("/", 1)[1],
            start_time=time.time_ns() // 1_000_000,
            tags=[{"key": name, "value": value} for name, value in tags.items()],
        )
        return answer["run"]["info"]["run_id"]

    def _made(self, key: str) -> str | None:
        """Id of a run that was made although the answer that says so was lost."""
        answer = self._call(
            "runs/search",
            experiment_ids=[self._experiment_id(self._job[0])],
            filter=f"tags.live = '{self._stream}' AND tags.`key` = '{key}'",
            max_results=1,
        )
        runs = answer.get("runs", [])
        return runs[0]["info"]["run_id"] if runs else None

    def _experiment_id(self, name: str) -> str:
        if not self._experiment:
            url, wanted = f"{self._api}/experiments/get-by-name", {"experiment_name": name}
            found = self._session.get(url, params=wanted, timeout=TIMEOUT_S)
            if found.status_code == 404:  # create may fail: another job can be the first to do so
                create = f"{self._api}/experiments/create"
                self._session.post(create, json={"name": name}, timeout=TIMEOUT_S)
                found = self._session.get(url, params=wanted, timeout=TIMEOUT_S)
            found.raise_for_status()
            self._experiment = found.json()["experiment"]["experiment_id"]
        return self._experiment

    def _call(self, endpoint: str, **body: Any) -> dict[str, Any]:
        answer = self._session.post(f"{self._api}/{endpoint}", json=body, timeout=TIMEOUT_S)
        answer.raise_for_status()
        return answer.json()

    def _authorise(self) -> None:
        """Credentials as MLflow's own client takes them from the environment."""
        user = os.environ.get("MLFLOW_TRACKING_USERNAME")
        token = os.environ.get("MLFLOW_TRACKING_TOKEN")
        if user:
            self._session.auth = (user, os.environ.get("MLFLOW_TRACKING_PASSWORD", ""))
        elif token:
            self._session.headers["Authorization"] = f"Bearer {token}"


def _is_refusal(error: Exception) -> bool:
    """Whether the server answered and will answer the same again; else it is down or busy."""
    import requests

    if isinstance(error, requests.HTTPError):
        return error.response.status_code < 500 and error.response.status_code != 429
    return not isinstance(error, requests.RequestException)


def _warn(message: str) -> None:
    print(f"warning: tracking.live: {message}", file=sys.stderr, flush=True)
