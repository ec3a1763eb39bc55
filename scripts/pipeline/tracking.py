"""Log a paper's results to MLflow (rule `track`): idempotently, from parquet.

    python -m scripts.pipeline.tracking --scale laptop --paper gsrq
    python -m scripts.pipeline.tracking --all            # fill in whatever is missing

An experiment per paper, a run per cell (`laptop/evaluate/gsrq/s0`) and a run `laptop/verdicts`.
A run is known by its tag `key` and, once whole, by its tags `content` (hash of what it shows) and
`complete`, which is set last. Same content: left alone. Other content: deleted, then logged anew.
Not complete (a killed track, a run streamed by `tracking.live`): what is missing is added.

The store is sqlite:///results/mlflow.db, or that of MLFLOW_TRACKING_URI. Whatever goes wrong with
it is a warning, never a failed job: the marker then says `"tracked": false`, and `--all` makes up
for it later.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import urlsplit

from scripts.pipeline import files, params, program
from scripts.pipeline.dag import Dag
from scripts.pipeline.freshness import Freshness

if TYPE_CHECKING:
    from mlflow.entities import Run

    from scripts.pipeline.live import Live
    from scripts.pipeline.tracked_runs import TrackedRun

PATIENCE_S = 120
"""Seconds that one paper may keep its job waiting for MLflow; `--all` goes on from there."""
LOCK_S = 600
"""Seconds to wait for other track jobs that use the same store."""

_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
_METRICS_A_BATCH = 800
_PARAMS_A_BATCH = 100
"""MLflow takes 100 parameters and 1000 metrics, parameters and tags in all."""


class Unavailable(Exception):
    """MLflow cannot take the results now; the message is one of a few fixed sentences."""


@dataclass(frozen=True)
class Store:
    """Where MLflow keeps runs."""

    uri: str
    root: Path

    @classmethod
    def chosen(cls, root: Path) -> "Store":
        """The store of MLFLOW_TRACKING_URI, or the project's own."""
        return cls(os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///results/mlflow.db", root)

    @property
    def is_server(self) -> bool:
        return urlsplit(self.uri).scheme in ("http", "https")

    @property
    def database(self) -> Path | None:
        """The SQLite file, when it is one."""
        if not self.uri.startswith("sqlite:///"):
            return None
        return self.root / self.uri.removeprefix("sqlite:///").split("?")[0]

    @property
    def client_uri(self) -> str:
        """The URI for MLflow, which takes relative ones from wherever the process stands."""
        return f"sqlite:///{self.database}" if self.database else self.uri

    def lock(self, paper: str, scale: str) -> Path:
        """One writer at a time in a database, one job a paper and scale on a server."""
        if self.database:
            return self.database.with_name(f".{self.database.name}.lock")
        name = f"track-{scale}-{paper}" if self.is_server else "track"
        return self.root / "scratch" / "locks" / f"{name}.lock"

    def artifacts(self, paper: str) -> str | None:
        """Artifact location of an experiment; None: a server knows its own.

        Beside the database and, inside the project, relative: `mlflow ui` started in the project
        folder finds the figures wherever the folder was cloned, copied or pulled to.
        """
        if not self.database:
            return None
        folder = self.database.parent / "mlartifacts" / paper
        inside = folder.is_relative_to(self.root)
        return folder.relative_to(self.root).as_posix() if inside else str(folder.absolute())

    def check_reachable(self) -> None:
        """One quick request, so that a server that is down costs seconds.

        Raises:
            Unavailable: nothing answered in time.
        """
        if not self.is_server:
            return
        import requests

        try:
            requests.get(f"{self.uri.rstrip('/')}/health", timeout=(2, 4)).close()
        except requests.RequestException as error:
            raise Unavailable("the server of MLFLOW_TRACKING_URI does not answer") from error


@dataclass
class Tally:
    """What a sync did, by run."""

    new: int = 0
    completed: int = 0
    replaced: int = 0
    unchanged: int = 0
    removed: int = 0
    content: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = {
            "new": self.new,
            "completed": self.completed,
            "replaced": self.replaced,
            "unchanged": self.unchanged,
            "removed": self.removed,
        }
        return ", ".join(f"{count} {name}" for name, count in parts.items() if count) or "no runs"


def live(paper: str, scale: str, stage: str) -> "Live | None":
    """A stream for a job's curves, when MLFLOW_TRACKING_URI is a server; else None and a warning.

    `stream.log(arm, seed, step, {name: value})` never waits; `stream.close()` waits seconds.
    """
    store = Store.chosen(files.ROOT)
    if not store.is_server:
        _warn("tracking.live needs a server: set MLFLOW_TRACKING_URI=http://...; not streamed")
        return None
    from scripts.pipeline.live import Live

    return Live(store.uri, paper, scale, stage)


def track(
    settings: params.Params, scale: str, slug: str, store: Store, screen: TextIO = sys.stderr
) -> bool:
    """Bring MLflow in line with a paper's results and write the marker; whether MLflow took them.

    Raises:
        PipelineError: the results are missing or damaged.
    """
    from scripts.pipeline.tracked_runs import paper_runs

    root = settings.root
    dag = Dag(settings.paper(slug), scale)
    freshness = Freshness(settings, scale)
    product = freshness.track(slug)
    freshness.require_inputs(product)
    runs = paper_runs(root, dag)
    marker = {"paper": slug, "scale": scale, "recipe": product.recipe}
    path = root / "results" / scale / slug / "tracked.json"
    try:
        tally = _logged(store, dag, runs)
    except Exception as error:  # MLflow brings many kinds, and none may cost a result
        reason = str(error) if isinstance(error, Unavailable) else type(error).__name__
        files.write_json(path, {**marker, "tracked": False, "reason": reason})
        detail = f": {error}" if reason != str(error) else ""
        _warn(
            f"{slug} at scale {scale} is not, or not wholly, in MLflow ({reason}{detail}). The "
            f"results are whole; later run: python -m scripts.pipeline.tracking --scale {scale} "
            "--all",
            screen,
        )
        return False
    files.write_json(path, {**marker, "tracked": True, "runs": tally.content})
    print(f"track: {slug} at scale {scale}: {tally} (of {len(runs)} runs)", flush=True)
    return True


def main(argv: list[str] | None = None, root: Path = files.ROOT) -> int:
    """The program; see the module's docstring. Status 1 only for results that are not there."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.pipeline.tracking",
        description="Log results to MLflow from parquet; what is there already stays.",
    )
    parser.add_argument("--scale", help="smoke, laptop or paper; default: params.yaml")
    parser.add_argument("--log", type=Path, help="write output here; warnings also to the screen")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--paper", help="one paper")
    which.add_argument("--all", action="store_true", help="every paper whose results are there")
    args = parser.parse_args(argv)

    def action(screen: TextIO) -> None:
        settings = params.load(root / "params.yaml")
        scale = params.check_scale(args.scale or settings.scale, "--scale")
        for slug in _with_results(settings, scale) if args.all else [args.paper]:
            track(settings, scale, slug, Store.chosen(root), screen)

    return program.run(action, "track", args.log)


def _with_results(settings: params.Params, scale: str) -> Iterator[str]:
    """The papers whose verdicts are those of the present parameters, claims and code."""
    freshness = Freshness(settings, scale)
    for slug in settings.papers:
        if freshness.is_fresh(freshness.judge(slug)):
            yield slug
        else:
            print(f"track: {slug} at scale {scale}: no results yet, or not up to date; left out")


def _logged(store: Store, dag: Dag, runs: "list[TrackedRun]") -> Tally:
    """Log the runs, as the store's only writer and from the project folder.

    Raises:
        Unavailable: the server does not answer, other jobs hold the store, or it is too slow.
        mlflow.exceptions.MlflowException: and whatever else MLflow and its store may raise.
    """
    from filelock import FileLock, Timeout

    store.check_reachable()
    _import_mlflow()
    lock = store.lock(dag.paper.slug, dag.scale)
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(lock, timeout=LOCK_S), chdir(store.root):
            if store.database and not _has_content(store.database):
                _create_database(store)
            return _Sync(store, dag).run(runs)
    except Timeout:
        raise Unavailable("other track jobs hold the store") from None


def _import_mlflow() -> None:
    """Import MLflow, silenced: it takes over a second, so not while holding the lock."""
    import logging

    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import mlflow  # noqa: F401

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _create_database(store: Store) -> None:
    """Make MLflow's tables under another name, so that a killed migration leaves none half made."""
    import uuid

    from mlflow import MlflowClient

    database = store.database
    database.parent.mkdir(parents=True, exist_ok=True)
    for leftover in database.parent.glob(f".partial-{database.name}-*"):
        leftover.unlink()
    partial = database.with_name(f".partial-{database.name}-{uuid.uuid4().hex}")
    MlflowClient(tracking_uri=f"sqlite:///{partial}").search_experiments()
    _place_artifacts(partial, "0", store.artifacts("Default"))
    partial.replace(database)


def _has_content(file: Path) -> bool:
    """DVC's stage `report` leaves an empty file where a server keeps the runs."""
    return file.is_file() and file.stat().st_size > 0


def _place_artifacts(database: Path, experiment_id: str, location: str) -> None:
    """Set an experiment's artifact location as it stands.

    MLflow's own call turns a relative one into this machine's absolute path, which breaks the
    figures of a store that is cloned, copied or pulled elsewhere; runs inherit what is set here.
    """
    import sqlite3

    with sqlite3.connect(database, timeout=20) as connection:
        connection.execute(
            "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?",
            (location, int(experiment_id)),
        )
    connection.close()


class _Sync:
    """Brings an experiment in line with the runs that ought to be in it."""

    def __init__(self, store: Store, dag: Dag) -> None:
        from mlflow import MlflowClient

        self.client = MlflowClient(tracking_uri=store.client_uri)
        self.store = store
        self.dag = dag
        self.until = time.monotonic() + PATIENCE_S
        self.tally = Tally()
        self.kept: dict[str, str] = {}
        self.commit = _git_commit(store.root)
        self.experiment = self._experiment()

    def run(self, runs: "list[TrackedRun]") -> Tally:
        prefix = f"{self.dag.paper.slug}/{self.dag.scale}/"
        present = self._present(prefix)
        for run in runs:
            self.kept[run.key] = self._settle(run, present.get(run.key, []))
            self.tally.content[run.key] = run.content
        for key, found in self._present(prefix).items():
            # Cells that are gone; and a run made twice, when the answer to its making was lost.
            self._delete([one for one in found if one.info.run_id != self.kept.get(key)])
            self.tally.removed += key not in self.kept
        return self.tally

    def _check_patience(self) -> None:
        if time.monotonic() > self.until:
            raise Unavailable(f"the store is slow: stopped after {PATIENCE_S} s")

    def _experiment(self) -> str:
        """Id of the paper's experiment, made or restored where needed."""
        from mlflow.exceptions import MlflowException

        paper = self.dag.paper
        location = self.store.artifacts(paper.slug)
        found = self.client.get_experiment_by_name(paper.slug)
        if found is None:
            try:
                self.client.create_experiment(paper.slug, artifact_location=location)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":  # by a job of another scale
                    raise
            found = self.client.get_experiment_by_name(paper.slug)
        if found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        if location and found.artifact_location != location:
            _place_artifacts(self.store.database, found.experiment_id, location)
        about = {
            "title": paper.title,
            "source": paper.source,
            "mlflow.note.content": _about(paper.title, paper.source),
            "mlflow.experimentKind": "custom_model_development",  # what the dashboard opens with
        }
        for key, value in about.items():
            if value and found.tags.get(key) != value:
                self.client.set_experiment_tag(found.experiment_id, key, value)
        return found.experiment_id

    def _present(self, prefix: str) -> "dict[str, list[Run]]":
        """The live runs of this paper and scale by key, the oldest first."""
        found: dict[str, list[Run]] = {}
        token = None
        while True:
            page = self.client.search_runs(
                [self.experiment],
                filter_string=f"tags.`key` LIKE '{prefix}%'",
                max_results=1000,
                order_by=["attributes.start_time ASC"],
                page_token=token,
            )
            for run in page:
                if run.data.tags["key"].startswith(prefix):
                    found.setdefault(run.data.tags["key"], []).append(run)
            token = page.token
            if not token:
                return found

    def _settle(self, run: "TrackedRun", found: "list[Run]") -> str:
        """Leave exactly one run with this key, whole and with this content; returns its id."""
        self._check_patience()
        kept = next((one for one in found if _is_whole(one, run)), None)
        if kept:
            self._delete([one for one in found if one is not kept])
            self._refresh(run, kept)
            self.tally.unchanged += 1
            return kept.info.run_id
        begun, missing = self._begun(run, found)
        self._delete([one for one in found if one is not begun])
        if begun:
            self.tally.completed += 1
            self._fill(run, begun, missing)
            return begun.info.run_id
        self.tally.replaced += bool(found)
        self.tally.new += not found
        tags = {"key": run.key, "complete": "false"}
        created = self.client.create_run(self.experiment, tags=tags, run_name=run.name)
        self._fill(run, created, run.points)
        return created.info.run_id

    def _begun(self, run: "TrackedRun", found: "list[Run]") -> "tuple[Run | None, list]":
        """An unfinished run that holds nothing wrong or twice, and the points it lacks."""
        for one in found:
            if one.data.tags.get("complete") == "true":
                continue
            points = [
                (name, point.step, point.value)
                for name in one.data.metrics
                for point in self.client.get_metric_history(one.info.run_id, name)
            ]
            held = set(points)
            params_fit = one.data.params.items() <= run.params.items()
            if params_fit and held <= set(run.points) and len(held) == len(points):
                return one, [point for point in run.points if point not in held]
        return None, []

    def _fill(self, run: "TrackedRun", begun: "Run", points: list) -> None:
        """Log what is missing of a run; `complete` comes last."""
        from mlflow.entities import Metric, Param, RunTag

        run_id, when = begun.info.run_id, begun.info.start_time
        tags = [RunTag(key, value) for key, value in self._tags(run).items()]
        params_ = [Param(key, value) for key, value in run.params.items()]
        metrics = [Metric(name, value, when, step) for name, step, value in points]
        while tags or params_ or metrics:
            self._check_patience()
            self.client.log_batch(
                run_id,
                metrics=metrics[:_METRICS_A_BATCH],
                params=params_[:_PARAMS_A_BATCH],
                tags=tags,
            )
            tags, params_ = [], params_[_PARAMS_A_BATCH:]
            metrics = metrics[_METRICS_A_BATCH:]
        for path, file in run.artifacts.items():
            self._check_patience()
            self._log_artifact(run_id, path, file)
        self._attach_report(run, begun)
        self.client.set_terminated(run_id)
        self.client.set_tag(run_id, "complete", "true")

    def _refresh(self, run: "TrackedRun", kept: "Run") -> None:
        """Provenance and report page of a run whose content stands."""
        from mlflow.entities import RunTag

        if any(kept.data.tags.get(key) != value for key, value in run.provenance.items()):
            fresh = {**run.provenance, **self._commit_tags()}
            tags = [RunTag(key, value) for key, value in fresh.items()]
            self.client.log_batch(kept.info.run_id, tags=tags)
        self._attach_report(run, kept)

    def _attach_report(self, run: "TrackedRun", kept: "Run") -> None:
        """The report page, in the run of the verdicts, unless it is older than these verdicts."""
        verdicts = run.artifacts.get("verdicts.json")
        page = self.store.root / "results" / self.dag.scale / "report.html"
        if not verdicts or not page.is_file() or page.stat().st_mtime < verdicts.stat().st_mtime:
            return
        page_hash = files.sha256(page)
        if kept.data.tags.get("report_hash") != page_hash:
            self._log_artifact(kept.info.run_id, "report.html", page)
            self.client.set_tag(kept.info.run_id, "report_hash", page_hash)

    def _log_artifact(self, run_id: str, path: str, file: Path) -> None:
        """Log a file under a name of its own."""
        import shutil
        import tempfile

        folder, _, name = path.rpartition("/")
        if file.name == name:
            self.client.log_artifact(run_id, str(file), folder or None)
            return
        with tempfile.TemporaryDirectory() as scratch:
            named = Path(shutil.copy(file, Path(scratch, name)))
            self.client.log_artifact(run_id, str(named), folder or None)

    def _tags(self, run: "TrackedRun") -> dict[str, str]:
        fixed = {"key": run.key, "content": run.content, "mlflow.source.type": "LOCAL"}
        return {**run.tags, **run.provenance, **fixed, **self._commit_tags()}

    def _commit_tags(self) -> dict[str, str]:
        return {"git_commit": self.commit, "mlflow.source.git.commit": self.commit}

    def _delete(self, runs: "list[Run]") -> None:
        for run in runs:
            self.client.delete_run(run.info.run_id)


def _is_whole(found: "Run", run: "TrackedRun") -> bool:
    tags: Mapping[str, Any] = found.data.tags
    return tags.get("complete") == "true" and tags.get("content") == run.content


def _about(title: str, source: str) -> str:
    """The experiment's description, as Markdown."""
    return (
        f"{title}{f' ({source})' if source else ''}\n\n"
        "Runs are named scale/stage/arm/seed. Verdicts, effects, figures and the full tables are "
        "in the run scale/verdicts. Metrics are named metric/dataset/factor:value, curves "
        "curves/name."
    )


def _git_commit(root: Path) -> str:
    """The commit of the code, `-dirty` when files differ from it; `unknown` without git."""
    import subprocess

    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


def _warn(message: str, screen: TextIO = sys.stderr) -> None:
    for stream in {sys.stderr, screen}:
        print(f"warning: track: {message}", file=stream, flush=True)


if __name__ == "__main__":
    sys.exit(main())
