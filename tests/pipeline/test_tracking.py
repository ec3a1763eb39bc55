"""Tracking: names, the mirror of the parquet in MLflow, and what happens when things go wrong."""

import json
import math
import os
import posixpath
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.pipeline import tracking
from scripts.pipeline.dag import Cell
from scripts.pipeline.tracked_runs import (
    MAX_NAMES,
    curve_points,
    flattened,
    metric_name,
    stage_values,
)
from tests.pipeline.tracked_project import (
    TRACK,
    complete_keys_of,
    dump,
    expected_keys,
    fill,
    keys_of,
    make_project,
    set_parameters,
    start_track,
)

TEXT = st.text(max_size=40)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's tables, migrated once for all tests."""
    root = tmp_path_factory.mktemp("store")
    tracking._import_mlflow()
    tracking._create_database(tracking.Store("sqlite:///results/mlflow.db", root))
    return root / "results" / "mlflow.db"


@pytest.fixture
def project(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with results and an empty store."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    root = make_project(tmp_path / "project")
    shutil.copy(empty_store, root / "results" / "mlflow.db")
    return root


def track(root: Path, *arguments: str) -> int:
    return tracking.main(["--scale", "smoke", *(arguments or ("--paper", "toy"))], root)


def store_of(root: Path) -> Path:
    return root / "results" / "mlflow.db"


def marker_of(root: Path, paper: str = "toy") -> dict:
    return json.loads((root / "results" / "smoke" / paper / "tracked.json").read_text())


def client_of(root: Path):
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{store_of(root)}")


def run_ids(root: Path) -> dict[str, str]:
    """Key -> run id of the runs that are not deleted."""
    client = client_of(root)
    experiment = client.get_experiment_by_name("toy").experiment_id
    return {
        run.data.tags["key"]: run.info.run_id
        for run in client.search_runs([experiment], max_results=1000)
    }


# Names and what is logged


def test_importing_tracking_is_cheap():
    heavy = "{'mlflow', 'pandas', 'torch', 'requests', 'pyarrow'}"
    code = f"import sys, scripts.pipeline.tracking; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names_read_well():
    assert metric_name("kl") == "kl"
    assert metric_name("kl", "pydoc", {"bits": 1.0}) == "kl/pydoc/bits:1"
    assert metric_name("kl", "", {"bits": 0.5, "layer": 3}) == "kl/bits:0.5/layer:3"
    assert re.fullmatch(r"kl/a-b-[0-9a-f]{6}", metric_name("kl", "a/b"))


@settings(max_examples=150, deadline=None)
@given(TEXT, TEXT, st.dictionaries(TEXT, st.one_of(TEXT, st.floats(), st.integers()), max_size=3))
def test_names_are_valid_in_mlflow(metric, dataset, factors):
    name = metric_name(metric, dataset, factors)
    assert re.match(r"^[/\w.\- :]+$", name)
    assert posixpath.normpath(name) == name
    assert not name.startswith(("/", ".."))
    assert len(name) <= 250


@settings(max_examples=150, deadline=None)
@given(*[st.text("ab/:. -é", max_size=4) for _ in range(4)])
def test_different_rows_have_different_names(metric, dataset, other_metric, other_dataset):
    same = (metric, dataset) == (other_metric, other_dataset)
    assert (metric_name(metric, dataset) == metric_name(other_metric, other_dataset)) == same


def test_a_metric_cannot_be_taken_for_a_curve():
    assert not metric_name("curves", "loss").startswith("curves/")


def test_parameters_are_flat():
    nested = {"bits": [0.5, 1], "a": {"b": {"c": None}, "d": "text"}, "empty": {}, "on": True}
    expected = {"bits": "[0.5, 1]", "a.b.c": "null", "a.d": "text", "on": "true"}
    assert flattened(nested) == expected
    long = flattened({"a": "x" * 10_000, "b": "x" * 10_001})
    assert long["a"] != long["b"]
    assert max(map(len, long.values())) <= 6000


def frame(rows: list[dict]) -> pd.DataFrame:
    base = {"arm": "gsrq", "seed": 0, "dataset": "", "unit": "nat", "metric": "kl"}
    columns = {"bits": None, "layer": None, "segment": None}
    return pd.DataFrame([columns | base | row for row in rows])


def test_only_what_tells_rows_apart_is_in_a_name_and_names_agree_between_cells():
    table = frame(
        [
            {"arm": "fp", "dataset": "pydoc", "value": 1.0},
            {"arm": "gsrq", "dataset": "pydoc", "bits": 1.0, "value": 2.0},
            {"arm": "gsrq", "dataset": "pydoc", "bits": 2.0, "value": 3.0},
        ]
    )
    points, note = stage_values(table, ["bits", "layer"])
    assert points[Cell("fp", 0)] == [("kl", 0, 1.0)]
    assert points[Cell("gsrq", 0)] == [("kl/bits:1", 0, 2.0), ("kl/bits:2", 0, 3.0)]
    assert note == "- `kl`: nat"


def test_a_metric_with_too_many_rows_is_averaged_over_its_widest_factor():
    table = frame(
        [
            {"bits": float(bits), "layer": layer, "segment": f"s{segment}",
             "value": bits + layer * 0.25 + segment**2}
            for bits in (1, 2) for layer in range(20) for segment in range(50)
        ]
    )  # fmt: skip
    points, note = stage_values(table, ["bits", "layer", "segment"])
    mean_of_the_rest = sum(range(20)) * 0.25 / 20 + sum(s**2 for s in range(50)) / 50
    assert [(name, step) for name, step, _ in points[Cell("gsrq", 0)]] == [
        ("kl/bits:1", 0),
        ("kl/bits:2", 0),
    ]
    assert [value for _, _, value in points[Cell("gsrq", 0)]] == pytest.approx(
        [1 + mean_of_the_rest, 2 + mean_of_the_rest]
    )
    assert note == "- `kl`: nat; mean over segment, layer (1000 rows each)"
    few = frame([{"layer": layer, "value": 1.0} for layer in range(MAX_NAMES)])
    assert len(stage_values(few, ["layer"])[0][Cell("gsrq", 0)]) == MAX_NAMES


def test_datasets_are_never_averaged():
    table = frame([{"dataset": f"d{i}", "value": float(i)} for i in range(MAX_NAMES + 5)])
    assert len(stage_values(table, ["bits"])[0][Cell("gsrq", 0)]) == MAX_NAMES + 5


def test_curves_keep_their_steps_and_drop_what_no_chart_can_show():
    rows = [(2, 0.5), (0, 2.0), (1, math.inf), (3, math.nan), (0, 2.0)]
    table = pd.DataFrame(
        [
            {"arm": "a", "seed": 1, "metric": "loss", "step": step, "value": value}
            for step, value in rows
        ]
    )
    assert curve_points(table) == {Cell("a", 1): [("curves/loss", 0, 2.0), ("curves/loss", 2, 0.5)]}


# The store


def test_the_store_holds_what_the_parquet_holds(project: Path):
    assert track(project) == 0
    assert keys_of(store_of(project)) == complete_keys_of(store_of(project)) == expected_keys()
    client, ids = client_of(project), run_ids(project)
    assert sorted(marker_of(project)["runs"]) == expected_keys()

    run = client.get_run(ids["toy/smoke/evaluate/gsrq/s1"])
    assert run.info.run_name == "smoke/evaluate/gsrq/s1"
    assert run.info.status == "FINISHED"
    table = pd.read_parquet(project / "results/smoke/toy/stages/evaluate/all/metrics.parquet")
    table = table[(table.arm == "gsrq") & (table.seed == 1)]
    expected = {
        f"kl/{row.dataset}/bits:{row.bits:g}": row.value
        for row in table[table.metric == "kl"].itertuples()
    }
    for bits, rows in table[table.metric == "cosine"].groupby("bits"):
        expected[f"cosine/bits:{bits:g}"] = pytest.approx(rows.value.mean())
    assert run.data.metrics == expected
    assert run.data.params["codebook.size"] == "256"
    assert (run.data.params["arm"], run.data.params["seed"]) == ("gsrq", "1")
    manifest = json.loads((project / "data/smoke/toy/manifest.json").read_text())
    assert run.data.tags["data_hash"] == manifest["recipe"]

    curve = client.get_metric_history(ids["toy/smoke/compress/kmeans/s0"], "curves/objective")
    assert [point.step for point in curve] == list(range(40))
    stored = pd.read_parquet(project / "results/smoke/toy/stages/compress/all/curves.parquet")
    stored = stored[(stored.arm == "kmeans") & (stored.seed == 0)]
    assert [point.value for point in curve] == stored.value.tolist()


def test_the_verdicts_run_has_verdicts_effects_and_files(project: Path):
    track(project)
    run = client_of(project).get_run(run_ids(project)["toy/smoke/verdicts"])
    assert run.data.params == {
        "scale": "smoke",
        "C1": "reproduced",
        "C2": "not testable here",
    }
    assert run.data.metrics == {"effects/C1.1 bits 0.5": -0.05, "effects/C1.2 bits 1.0": -0.1}
    folder = project / run.info.artifact_uri
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.*")) == [
        "figures/rate.svg",
        "metrics/compress.parquet",
        "metrics/evaluate.parquet",
        "verdicts.json",
    ]
    original = project / "results/smoke/toy/stages/evaluate/all/metrics.parquet"
    assert (folder / "metrics/evaluate.parquet").read_bytes() == original.read_bytes()


def test_tracking_twice_changes_nothing(project: Path):
    track(project)
    before = dump(store_of(project)), marker_of(project)
    assert track(project) == 0
    assert (dump(store_of(project)), marker_of(project)) == before


def test_artifacts_are_found_after_the_project_moved(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    track(project)
    moved = tmp_path / "elsewhere"
    shutil.move(project, moved)
    client, ids = client_of(moved), run_ids(moved)
    monkeypatch.chdir(moved)
    found = client.list_artifacts(ids["toy/smoke/verdicts"], "figures")
    assert [file.path for file in found] == ["figures/rate.svg"]
    assert not any(str(tmp_path) in line for line in dump(store_of(moved)))


def test_changed_content_replaces_its_run_and_no_other(project: Path):
    track(project)
    before = run_ids(project)
    fill(project, shift=1.0)
    track(project)
    after = run_ids(project)
    assert keys_of(store_of(project)) == complete_keys_of(store_of(project)) == expected_keys()
    changed = {key for key in after if after[key] != before[key]}
    assert changed == {"toy/smoke/evaluate/gsrq/s1", "toy/smoke/verdicts"}


def test_a_new_recipe_with_the_same_content_updates_the_tags(project: Path):
    track(project)
    before = run_ids(project)
    manifest = project / "results/smoke/toy/stages/compress/all/manifest.json"
    manifest.write_text(json.dumps({"recipe": "f" * 64, "files": {}}))
    track(project)
    assert run_ids(project) == before
    tags = client_of(project).get_run(before["toy/smoke/compress/fp/s0"]).data.tags
    assert tags["recipe_hash"] == "f" * 64


def test_runs_of_cells_that_are_gone_are_removed_and_other_runs_are_not(project: Path):
    track(project)
    client = client_of(project)
    experiment = client.get_experiment_by_name("toy").experiment_id
    own = client.create_run(experiment, run_name="my own").info.run_id
    text = (project / "params.yaml").read_text().replace("seeds: 2", "seeds: 1")
    (project / "params.yaml").write_text(text)
    fill(project)
    track(project)
    assert keys_of(store_of(project)) == [key for key in expected_keys() if "/s1" not in key]
    assert client.get_run(own).info.lifecycle_stage == "active"


def test_changed_parameters_show(project: Path):
    track(project)
    set_parameters(project, codebook={"size": 512})
    fill(project)
    track(project)
    run = client_of(project).get_run(run_ids(project)["toy/smoke/evaluate/fp/s0"])
    assert run.data.params["codebook.size"] == "512"
    assert keys_of(store_of(project)) == expected_keys()


def test_the_report_is_attached_unless_it_is_older_than_the_verdicts(project: Path):
    page = project / "results/smoke/report.html"
    page.write_text("old")
    os.utime(page, (1, 1))
    track(project)
    run = client_of(project).get_run(run_ids(project)["toy/smoke/verdicts"])
    attached = project / run.info.artifact_uri / "report.html"
    assert not attached.exists()
    page.write_text("new")
    os.utime(page)
    track(project)
    assert attached.read_text() == "new"
    before = dump(store_of(project))
    track(project)
    assert dump(store_of(project)) == before


def test_a_deleted_experiment_comes_back(project: Path):
    track(project)
    client = client_of(project)
    client.delete_experiment(client.get_experiment_by_name("toy").experiment_id)
    assert track(project) == 0
    assert marker_of(project)["tracked"]
    assert client.get_experiment_by_name("toy").lifecycle_stage == "active"
    assert complete_keys_of(store_of(project)) == expected_keys()


def test_odd_names_reach_the_store(project: Path):
    stage = project / "results/smoke/toy/stages/evaluate/all/metrics.parquet"
    table = pd.read_parquet(stage)
    odd = ["a=1", "a|1", "../x", "", "x" * 400, "größe 5%", "a/b"]
    extra = table[table.metric == "kl"].head(1).copy()
    rows = [extra.assign(dataset=name, value=float(i)) for i, name in enumerate(odd)]
    pd.concat([table, *rows]).to_parquet(stage, index=False)
    assert track(project) == 0
    assert marker_of(project)["tracked"]
    run = client_of(project).get_run(run_ids(project)["toy/smoke/evaluate/fp/s0"])
    odd_values = sorted(value for value in run.data.metrics.values() if value == int(value))
    assert odd_values[-6:] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


# When things go wrong


def test_four_jobs_at_once_on_a_new_store(tmp_path: Path):
    root = make_project(tmp_path / "project", ("first", "second"))
    jobs = [start_track(root, "--paper", slug) for slug in ("first", "second") * 2]
    answers = [job.communicate() for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0, 0, 0], answers
    assert not any("warning" in error for _, error in answers), answers
    expected = sorted(expected_keys("first") + expected_keys("second"))
    assert keys_of(store_of(root)) == complete_keys_of(store_of(root)) == expected
    with sqlite3.connect(store_of(root)) as connection:
        deleted = "SELECT count(*) FROM runs WHERE lifecycle_stage <> 'active'"
        assert connection.execute(deleted).fetchone() == (0,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


DIE_AT = """
import os, signal
import mlflow
left = {count}
def dying(*args, _call=mlflow.MlflowClient.{method}, **kwargs):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return _call(*args, **kwargs)
mlflow.MlflowClient.{method} = dying
"""


@pytest.mark.parametrize(
    ("method", "count"), [("log_batch", 2), ("set_tag", 3), ("log_artifact", 2)]
)
def test_a_killed_track_leaves_nothing_complete_and_the_next_mends_it(
    project: Path, method: str, count: int
):
    """The process kills itself at the given call of MLflow's client."""
    program = DIE_AT.format(method=method, count=count) + TRACK
    job = start_track(project, "--paper", "toy", program=program)
    job.communicate()
    assert job.returncode == -signal.SIGKILL
    assert not (project / "results/smoke/toy/tracked.json").exists()
    half, whole = keys_of(store_of(project)), complete_keys_of(store_of(project))
    assert set(whole) < set(expected_keys())
    assert len(half) - len(whole) == 1
    assert track(project) == 0
    assert keys_of(store_of(project)) == complete_keys_of(store_of(project)) == expected_keys()
    history = client_of(project).get_metric_history(
        run_ids(project)["toy/smoke/compress/fp/s0"], "curves/objective"
    )
    assert [point.step for point in history] == list(range(40))


def test_a_track_killed_while_replacing_never_shows_doubles(project: Path):
    track(project)
    fill(project, shift=1.0)
    program = DIE_AT.format(method="create_run", count=1) + TRACK
    start_track(project, "--paper", "toy", program=program).communicate()
    found = keys_of(store_of(project))
    assert len(found) == len(set(found)) == len(expected_keys()) - 1
    track(project)
    assert keys_of(store_of(project)) == complete_keys_of(store_of(project)) == expected_keys()


def test_a_run_that_was_made_twice_is_there_once(project: Path, monkeypatch: pytest.MonkeyPatch):
    """As when a server makes a run, its answer is lost and MLflow's client asks again."""
    from mlflow import MlflowClient

    create = MlflowClient.create_run

    def twice(client: MlflowClient, *args, **kwargs):
        create(client, *args, **kwargs)
        return create(client, *args, **kwargs)

    monkeypatch.setattr(MlflowClient, "create_run", twice)
    track(project)
    assert keys_of(store_of(project)) == complete_keys_of(store_of(project)) == expected_keys()


def test_an_unfinished_run_with_doubled_points_is_replaced(project: Path):
    client = client_of(project)
    tags = {"key": "toy/smoke/compress/fp/s0", "complete": "false"}
    begun = client.create_run(client.create_experiment("toy"), tags=tags).info.run_id
    for time in (1, 2):
        client.log_metric(begun, "curves/objective", 1.0, timestamp=time, step=0)
    track(project)
    kept = run_ids(project)["toy/smoke/compress/fp/s0"]
    history = client.get_metric_history(kept, "curves/objective")
    assert [point.step for point in history] == list(range(40))


def test_an_empty_file_is_no_store_yet(project: Path):
    """DVC's stage `report` leaves one where a server keeps the runs."""
    store_of(project).write_bytes(b"")
    track(project)
    assert complete_keys_of(store_of(project)) == expected_keys()


def test_a_migration_that_was_killed_leaves_no_store(project: Path):
    store_of(project).unlink()
    program = DIE_AT.format(method="search_experiments", count=1) + TRACK
    start_track(project, "--paper", "toy", program=program).communicate()
    assert not store_of(project).exists()
    assert list(project.glob("results/.partial-*"))
    assert track(project) == 0
    assert complete_keys_of(store_of(project)) == expected_keys()
    assert not list(project.glob("results/.partial-*"))


def test_a_server_that_is_down_costs_a_warning_and_is_made_up_for(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    assert track(project) == 0
    error = capfd.readouterr().err
    assert error.count("warning") == 1
    assert "--scale smoke --all" in error
    first = marker_of(project)
    assert first["tracked"] is False
    assert first["reason"] == "the server of MLFLOW_TRACKING_URI does not answer"
    assert track(project) == 0
    assert marker_of(project) == first

    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert track(project, "--all") == 0
    assert complete_keys_of(store_of(project)) == expected_keys()
    assert marker_of(project)["tracked"] is True
    assert marker_of(project)["recipe"] == first["recipe"]


def test_a_store_that_is_slow_is_left_and_continued_later(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tracking, "PATIENCE_S", -1)
    assert track(project) == 0
    assert marker_of(project)["reason"].startswith("the store is slow")
    monkeypatch.undo()
    track(project)
    assert complete_keys_of(store_of(project)) == expected_keys()


def test_a_store_that_others_hold_is_a_warning(project: Path, monkeypatch: pytest.MonkeyPatch):
    from filelock import FileLock

    monkeypatch.setattr(tracking, "LOCK_S", 0.1)
    with FileLock(project / "results" / ".mlflow.db.lock"):
        assert track(project) == 0
    assert marker_of(project)["reason"] == "other track jobs hold the store"


def test_a_damaged_store_is_a_warning(project: Path, capfd: pytest.CaptureFixture):
    store_of(project).write_bytes(b"not a database" * 1000)
    assert track(project) == 0
    assert marker_of(project)["tracked"] is False
    assert "file is not a database" in capfd.readouterr().err


def test_missing_results_are_an_error_that_names_the_file(
    project: Path, capfd: pytest.CaptureFixture
):
    (project / "results/smoke/toy/verdicts.json").unlink()
    assert track(project) == 1
    assert "results/smoke/toy/verdicts.json" in capfd.readouterr().err
    assert track(project, "--paper", "tyo") == 1
    assert "toy" in capfd.readouterr().err


def test_all_leaves_out_papers_whose_results_are_not_those_of_the_parameters(
    project: Path, capfd: pytest.CaptureFixture
):
    set_parameters(project, codebook={"size": 512})
    assert track(project, "--all") == 0
    assert "left out" in capfd.readouterr().out
    assert keys_of(store_of(project)) == []
