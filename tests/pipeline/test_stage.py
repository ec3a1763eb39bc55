"""The contract of a stage: what it is given, what it may write, and that all of it repeats."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from scripts.pipeline import metrics, running
from scripts.pipeline.dag import Cell
from scripts.pipeline.stage import Job, Run, main, seed_of
from tests.workflow.project import Project

BLOCK = "results/laptop/alpha/stages"


@pytest.fixture(scope="module")
def made_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The made-up project, prepared and trained."""
    project = Project(tmp_path_factory.mktemp("made") / "project")
    for stage in (fill_prepare, fill_train):
        name = stage.__name__.removeprefix("fill_")
        assert running.run_program(stage, f"scripts.papers.alpha.{name}", [], project.root) == 0
    return project.root


@pytest.fixture
def root(made_project: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made_project, tmp_path / "project", copy_function=shutil.copy2))


@pytest.fixture
def run(root: Path, capfd) -> Callable[..., SimpleNamespace]:
    """Run a function as a stage of alpha: its status and what it printed."""

    def ran(stage: Callable[[Job], None], name: str, *argv: str) -> SimpleNamespace:
        status = running.run_program(stage, f"scripts.papers.alpha.{name}", [*argv], root)
        return SimpleNamespace(status=status, **capfd.readouterr()._asdict())

    return ran


def fill_prepare(job: Job) -> None:
    job.save_table("numbers", pd.DataFrame({"x": [1.0, 2.0, 3.0]}))
    job.save_tensors("weights", {"w": torch.arange(6.0).reshape(2, 3).T})
    job.save_json("facts", {"seeds": job.seeds})


def fill_train(job: Job) -> None:
    for run in job.runs():
        run.log(0, loss=1.0)
        run.save_table("shifted", pd.DataFrame({"arm": [run.arm], "seed": [run.seed]}))
        run.save_tensors("fit", {"seed": torch.tensor([run.seed])})


def measure(job: Job) -> None:
    for run in job.runs():
        run.metric("level", run.seed, unit="points", n=3, size=8)


def nothing(job: Job) -> None:
    pass


# --- randomness -------------------------------------------------------------------------------


def bare(paper: str = "alpha", arm: str = "ours", seed: int = 0) -> Run:
    return Run(SimpleNamespace(paper=paper), Cell(arm, seed))


def test_seeds_are_the_same_for_ever():
    """Fixed numbers: whoever changes the seeding changes every result, and learns it here."""
    assert seed_of("alpha", 0, "init") == 2420738389229128811
    assert torch.randint(0, 1000, (5,), generator=bare().generator("init")).tolist() == [
        934,
        902,
        841,
        673,
        94,
    ]
    assert bare().rng("init").integers(0, 1000, 5).tolist() == [804, 517, 601, 940, 989]
    assert 0 <= seed_of() < 2**63


def test_arms_of_a_seed_draw_alike():
    ours, base = bare(arm="ours", seed=1), bare(arm="base", seed=1)
    assert torch.equal(
        torch.rand(8, generator=ours.generator("x")), torch.rand(8, generator=base.generator("x"))
    )
    assert (ours.rng("x").random(8) == base.rng("x").random(8)).all()


def test_seeds_names_and_papers_draw_apart_and_order_does_not_matter():
    runs = [bare(), bare(seed=1), bare(seed=10), bare(paper="beta")]
    draws = {tuple(run.rng(name).random(4)) for run in runs for name in ("", "x", "y")}
    draws |= {tuple(torch.rand(4, generator=run.generator("x")).tolist()) for run in runs}
    assert len(draws) == 4 * 3 + 4
    run = bare()
    first = run.rng("x").random()
    run.rng("y").random(100)
    assert run.rng("x").random() == first


def test_job_draws_apart_from_its_runs(run):
    seen = {}

    def draw(job: Job) -> None:
        seen["job"] = job.rng("x").random()
        seen.update({cell.cell.name: cell.rng("x").random() for cell in job.runs()})

    assert run(draw, "train", "--force").status == 0
    assert seen["teacher-s0"] == seen["ours-s0"] != seen["ours-s1"]
    assert len(set(seen.values())) == 3


# --- what a block holds -----------------------------------------------------------------------


def test_a_block_has_its_tables_cost_and_manifest(run, root):
    assert run(measure, "train", "--force").status == 0
    folder = root / BLOCK / "train/all"
    table = pd.read_parquet(folder / "metrics.parquet")
    assert list(table.columns) == [*metrics.METRIC_COLUMNS, "size"]
    assert list(zip(table["arm"], table["seed"], table["value"], strict=True)) == [
        ("teacher", 0, 0.0),
        ("teacher", 1, 1.0),
        ("ours", 0, 0.0),
        ("ours", 1, 1.0),
    ]
    assert set(table["paper"] + table["scale"] + table["stage"]) == {"alphalaptoptrain"}
    assert len(pd.read_parquet(folder / "curves.parquet")) == 0
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest["files"]) == {"metrics.parquet", "curves.parquet"}
    cost = json.loads((folder / "cost.json").read_text())
    assert cost["threads"] == 1 and cost["device"] == "cpu"
    assert cost["declared_mem_mb"] == 4096 and cost["declared_minutes"] == 60
    assert cost["seconds"] >= 0 and cost["peak_mb"] > 1


def test_rows_may_come_as_a_frame_or_a_list(run, root):
    def many(job: Job) -> None:
        rows = [{"metric": "level", "value": 1.0, "unit": "points", "n": 2, "size": size}
                for size in (8, None)]  # fmt: skip
        for cell in job.runs():
            cell.metrics(pd.DataFrame(rows) if cell.arm == "ours" else rows)

    assert run(many, "train", "--force").status == 0
    table = pd.read_parquet(root / BLOCK / "train/all/metrics.parquet", dtype_backend="pyarrow")
    assert str(table["size"].dtype) == "int64[pyarrow]"
    assert table["size"].dropna().to_list() == [8] * 4
    assert table["size"].isna().to_list() == [False, True] * 4


def test_curves(run, root):
    def log(job: Job) -> None:
        for cell in job.runs():
            for step in range(2):
                cell.log(step=step, loss=torch.tensor(0.5), usage=step)

    assert run(log, "train", "--force").status == 0
    table = pd.read_parquet(root / BLOCK / "train/all/curves.parquet")
    assert list(table.columns) == list(metrics.CURVE_COLUMNS)
    assert len(table) == 4 * 2 * 2
    assert set(table["metric"]) == {"loss", "usage"}


def test_files_of_cells_and_of_the_stage(made_project):
    folder = made_project / BLOCK / "train/all"
    assert (folder / "ours-s1/shifted.parquet").is_file()
    assert (folder / "teacher-s0/fit.safetensors").is_file()
    assert (made_project / "data/laptop/alpha/weights.safetensors").is_file()
    assert json.loads((made_project / "data/laptop/alpha/facts.json").read_text()) == {
        "seeds": [0, 1]
    }


def test_figures_have_an_index(run, root):
    def draw(job: Job) -> None:
        import matplotlib.pyplot as plt

        from scripts.pipeline.plotting import style

        with style():
            figure, axes = plt.subplots()
            axes.plot([1, 2, 3])
            job.save_figure("line", figure, caption="A line (points).", source="evaluate: level")
        assert not plt.get_fignums()

    fill_rest(run)
    assert run(draw, "plot").status == 0
    folder = root / "results/laptop/alpha/figures"
    first = (folder / "line.svg").read_bytes()
    assert first.startswith(b"<?xml") and b"<dc:date>" not in first
    assert json.loads((folder / "figures.json").read_text()) == [
        {
            "name": "line",
            "file": "line.svg",
            "caption": "A line (points).",
            "script": "scripts/papers/alpha/plot.py",
            "data": "evaluate: level",
        }
    ]
    assert run(draw, "plot", "--force").status == 0
    assert (folder / "line.svg").read_bytes() == first


def fill_rest(run) -> None:
    assert run(nothing, "compress").status == 0
    assert run(measure, "evaluate").status == 0


# --- what a stage reads -----------------------------------------------------------------------


def test_a_stage_reads_its_inputs(run):
    seen = {}

    def read(job: Job) -> None:
        seen["params"] = job.params
        seen["shared"] = job.load_table("prepare", "numbers")["x"].to_list()
        seen["json"] = job.load_json("prepare", "facts")
        seen["tensor"] = job.load_tensors("prepare", "weights")["w"]
        for cell in job.runs():
            teacher = cell.load_table("train", "shifted", arm="teacher").iloc[0].to_list()
            own = cell.load_tensors("train", "fit")["seed"].item() if cell.arm == "ours" else None
            seen[cell.cell.name] = (teacher, own)

    assert run(read, "compress").status == 0
    assert seen["params"] == {"numbers": 64, "pause": 0}
    assert seen["shared"] == [1.0, 2.0, 3.0] and seen["json"] == {"seeds": [0, 1]}
    assert torch.equal(seen["tensor"], torch.arange(6.0).reshape(2, 3).T)
    assert seen["plain-s0"] == (["teacher", 0], None)
    assert seen["ours-s0"] == (["teacher", 0], 0) and seen["ours-s1"] == (["teacher", 1], 1)


def test_plot_reads_all_metrics_and_curves(run):
    seen = {}

    def look(job: Job) -> None:
        seen["metrics"] = job.load_metrics()
        seen["curves"] = job.load_curves()

    fill_rest(run)
    assert run(look, "plot").status == 0
    assert list(seen["metrics"]["arm"]) == ["plain", "ours", "ours"]
    assert len(seen["curves"]) == 4


READS = {
    "own output": (lambda job: job.load_table("train", "x", arm="ours"), "train", "not one of its"),
    "a later stage": (lambda job: job.load_table("evaluate", "x", arm="ours"), "train",
                      "alpha train: reads results/laptop/alpha/stages/evaluate/all/manifest.json, "
                      "which is not one of its inputs: data/laptop/alpha/manifest.json"),
    "unknown stage": (lambda job: job.load_table("trian", "x"), "train",
                      "alpha: no stage 'trian' (did you mean 'train'?); allowed: prepare, train"),
    "unknown arm": (lambda job: job.load_table("train", "x", arm="tutor"), "compress",
                    "stage 'train' has no cell tutor-s0; allowed: teacher-s0"),
    "no arm": (lambda job: job.load_table("train", "x"), "compress", "has no cell (none)"),
    "unknown file": (lambda job: job.load_table("prepare", "words"), "train",
                     "data/laptop/alpha/words.parquet: missing. It is made by: snakemake --cores "
                     "all data/laptop/alpha/manifest.json"),
    "unknown asset": (lambda job: job.asset("model"), "train",
                      "params.yaml: alpha.laptop.assets has no 'model'; it has: nothing"),
}  # fmt: skip


@pytest.mark.parametrize("case", READS)
def test_reading_what_is_no_input_is_refused(case, run):
    read, stage, message = READS[case]
    done = run(read, stage, "--force")
    assert done.status == 1
    assert done.err.startswith(f"error: alpha {stage}: ")
    assert message in done.err
    assert "Traceback" not in done.err


def test_damaged_input_is_named_with_what_makes_it(run, root):
    path = root / "data/laptop/alpha/numbers.parquet"
    path.write_bytes(b"\0" * path.stat().st_size)  # the size stays, so that only reading tells
    done = run(lambda job: job.load_table("prepare", "numbers"), "train", "--force")
    assert done.status == 1
    assert f"{path}: damaged" in done.err
    assert "make it again: snakemake --cores all data/laptop/alpha/manifest.json" in done.err


def test_a_stage_does_not_start_from_old_or_broken_inputs(run, root):
    """Else its result would pass for one that was made from the inputs as they should be."""
    (root / "data/laptop/alpha/numbers.parquet").write_bytes(b"cut")
    done = run(nothing, "train", "--force")
    assert done.status == 1
    assert "data/laptop/alpha/manifest.json: missing, damaged or out of date" in done.err
    assert "snakemake --cores all data/laptop/alpha/manifest.json" in done.err
    shutil.rmtree(root / "data/laptop")
    assert "data/laptop/alpha/manifest.json: missing" in run(nothing, "train", "--force").err


# --- metrics that are refused -----------------------------------------------------------------

ROWS = {
    "undeclared factor": ({"sise": 8}, "undeclared factor 'sise' (did you mean 'size'?)"),
    "no unit": ({"unit": ""}, "has no unit"),
    "no denominator": ({"n": 0}, "n=0"),
    "NaN": ({"value": float("nan")}, "is nan"),
    "text for a number": ({"size": "big"}, "factor 'size' is 'big'"),
}


@pytest.mark.parametrize("case", ROWS)
def test_a_wrong_metric_fails_the_job_and_keeps_the_old_block(case, run, root):
    changes, message = ROWS[case]

    def wrong(job: Job) -> None:
        for cell in job.runs():
            row = {"metric": "level", "value": 1.0, "unit": "points", "n": 3, **changes}
            cell.metrics([row])

    before = listing(root)
    done = run(wrong, "train", "--force")
    assert done.status == 1
    assert "error: alpha train: alpha train teacher-s0: metric 'level'" in done.err
    assert message in done.err
    assert listing(root) == before


def test_two_units_in_a_job_are_refused(run):
    def wrong(job: Job) -> None:
        for cell in job.runs():
            cell.metric("level", 1.0, unit=cell.arm, n=3)

    done = run(wrong, "train", "--force")
    assert done.status == 1
    assert "alpha train: metric 'level' comes in the units 'teacher' and 'ours'" in done.err


# --- whole or not at all ----------------------------------------------------------------------


def listing(root: Path) -> dict[str, bytes]:
    """Every file of data and results, with its bytes."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for folder in ("data", "results", "scratch")
        for path in sorted((root / folder).rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


def test_a_stage_that_fails_leaves_nothing_and_keeps_the_old_block(run, root):
    def fails(job: Job) -> None:
        for cell in job.runs():
            cell.save_table("half", pd.DataFrame({"x": [1]}))
            if cell.seed == 1:
                raise ZeroDivisionError("a fault in the code")

    before = listing(root)
    for stage in ("train", "compress"):
        with pytest.raises(ZeroDivisionError):
            run(fails, stage, "--force")
    assert listing(root) == before
    assert not list(root.rglob(".partial-*"))


def test_a_full_disk_is_one_message(run, root):
    def fails(job: Job) -> None:
        raise OSError(28, "No space left on device", str(job.outdir / "x"))

    done = run(fails, "train", "--force")
    assert done.status == 1
    assert "No space left on device; the disk is full: free some space" in done.err
    assert "Traceback" not in done.err


def test_up_to_date_blocks_are_left_alone_unless_forced(run, root):
    manifest = root / BLOCK / "train/all/manifest.json"
    before = listing(root)
    started = []
    done = run(started.append, "train")
    assert (done.status, started, listing(root)) == (0, [], before)
    assert f"{BLOCK}/train/all is up to date (--force runs it)" in done.out
    assert run(lambda job: started.append(job), "train", "--force").status == 0
    assert len(started) == 1
    manifest.write_text("{}")
    assert run(lambda job: started.append(job), "train").status == 0
    assert len(started) == 2


def test_a_truncated_file_of_the_block_is_noticed(run, root):
    (root / BLOCK / "train/all/ours-s0/shifted.parquet").write_bytes(b"PAR1")
    assert "up to date" not in run(fill_train, "train").out
    assert len(pd.read_parquet(root / BLOCK / "train/all/ours-s0/shifted.parquet")) == 1


# --- the command line -------------------------------------------------------------------------

ARGUMENTS = {
    "scale": (["--scale", "labtop"], "--scale: found 'labtop' (did you mean 'laptop'?)"),
    "block": (["--block", "our"], "stage 'train' has no block 'our'; allowed: all"),
    "arm": (["--arm", "our"], "--arm: found 'our' (did you mean 'ours'?); allowed: ours, teacher"),
    "seed": (["--seed", "7"], "--seed: found 7; allowed: 0, 1"),
    "several blocks": (["--scale", "paper"], "--block is needed; the blocks of train are: "
                       "teacher-s0, teacher-s1, ours-s0, ours-s1"),
}  # fmt: skip


@pytest.mark.parametrize("case", ARGUMENTS)
def test_wrong_arguments(case, run):
    argv, message = ARGUMENTS[case]
    done = run(nothing, "train", *argv)
    assert done.status == 1
    assert "error: alpha train: " in done.err and message in done.err


def test_arm_with_one_seed_has_no_other(run):
    done = run(nothing, "evaluate", "--arm", "plain", "--seed", "1")
    assert done.status == 1
    assert "--arm plain --seed 1: no such cell (an arm in single_seed has seed 0" in done.err


def test_gpu_that_is_not_there(run, root, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    text = (root / "params.yaml").read_text()
    (root / "params.yaml").write_text(
        text.replace("laptop: {seeds: 2}", "laptop: {seeds: 2, gpu: 1}")
    )
    done = run(nothing, "prepare")
    assert done.status == 1
    assert "alpha.laptop.gpu asks for a GPU for prepare and none is visible" in done.err


@pytest.mark.parametrize(
    ("argv", "folder", "downstream"),
    [
        (["--arm", "ours", "--seed", "1"], "ours-s1", ["--arm", "ours", "--seed", "1"]),
        (["--arm", "ours"], "ours", ["--arm", "ours", "--seed", "1"]),
        (["--seed", "1"], "s1", ["--arm", "ours", "--seed", "1"]),
    ],
)
def test_parts_by_hand_go_to_scratch_where_the_next_stage_finds_them(
    argv, folder, downstream, run, root
):
    shutil.rmtree(root / BLOCK / "train")
    before = {name for name in listing(root) if not name.startswith("scratch")}
    assert run(fill_train, "train", *argv).status == 0
    assert (root / "scratch/laptop/alpha/train" / folder / "manifest.json").is_file()
    seen = []

    def read(job: Job) -> None:
        seen.extend(cell.load_table("train", "shifted").iloc[0].to_list() for cell in job.runs())

    assert run(read, "compress", *downstream).status == 0
    assert seen == [["ours", 1]]
    after = {name for name in listing(root) if not name.startswith("scratch")}
    assert after == before


def test_parts_by_hand_read_the_products_first(run):
    seen = []

    def read(job: Job) -> None:
        seen.extend(cell.load_table("train", "shifted").iloc[0].to_list() for cell in job.runs())

    assert run(read, "compress", "--seed", "0", "--arm", "ours").status == 0
    assert seen == [["ours", 0]]
    assert run(read, "compress", "--seed", "0", "--arm", "ours").status == 0
    assert len(seen) == 2  # never "up to date": it is not a product


def test_a_product_never_reads_scratch(run, root):
    assert run(fill_train, "train", "--arm", "ours").status == 0
    shutil.rmtree(root / BLOCK / "train")
    done = run(lambda job: job.load_table("train", "shifted", arm="ours"), "compress")
    assert done.status == 1
    assert f"{BLOCK}/train/all/manifest.json: missing" in done.err


# --- logs -------------------------------------------------------------------------------------


TALKING_STAGE = """
import os

from scripts.pipeline.stage import Job, main


def prepare(job: Job) -> None:
    print("spoken")
    os.system("echo spoken by another program")
    if job.params["numbers"] == 1:
        job.load_table("perpare", "x")
    assert job.params["numbers"] != 2


if __name__ == "__main__":
    main(prepare)
"""


@pytest.mark.parametrize("end", ["well", "mistake", "fault"])
def test_the_log_takes_the_output_and_errors_go_to_both(end, tmp_path: Path):
    project = Project(tmp_path)
    (project.root / "scripts/papers/beta/prepare.py").write_text(TALKING_STAGE)
    number = {"well": 3, "mistake": 1, "fault": 2}[end]
    project.edit("params.yaml", "numbers: 16", f"numbers: {number}")
    done = project.stage("beta.prepare", "--log", "logs/beta/prepare.log")
    log = (project.root / "logs/beta/prepare.log").read_text()
    assert "spoken\n" in log and "spoken by another program" in log
    assert done.stdout == ""
    assert done.returncode == (0 if end == "well" else 1)
    if end == "well":
        assert done.stderr == ""
    elif end == "mistake":
        message = "error: beta prepare: beta: no stage 'perpare' (did you mean 'prepare'?)"
        assert done.stderr.startswith(message) and message in log
        assert "Traceback" not in done.stderr + log
    else:
        for text in (done.stderr, log):
            assert text.count("Traceback") == 1
            assert text.rstrip().endswith("AssertionError")


def test_each_cell_has_a_line(run):
    lines = run(fill_train, "train", "--force").out.splitlines()
    assert len(lines) == 4
    assert re.match(r"alpha train: teacher-s0 took [\d.]+ s \(1 of 4 cells\)", lines[0])


# --- as a program -----------------------------------------------------------------------------

TORCH_STAGE = """
from scripts.pipeline.stage import Job, main


def evaluate(job: Job) -> None:
    import os

    import torch

    for run in job.runs():
        weights = torch.randn(300, 300, generator=run.generator("weights"))
        value = torch.linalg.svdvals(weights @ weights.T).log().sum().item()
        run.metric("volume", value, unit="nat", n=300)
        run.metric("threads", torch.get_num_threads(), unit="threads", n=1)
        run.save_tensors("weights", {"w": weights})


if __name__ == "__main__":
    main(evaluate)
"""


def test_the_same_seed_and_threads_give_the_same_bytes(tmp_path: Path):
    project = Project(tmp_path)
    (project.root / "scripts/papers/beta/evaluate.py").write_text(TORCH_STAGE)
    assert project.stage("beta.prepare").returncode == 0
    found = []
    for threads in ("1", "1", "3"):
        if threads == "3":  # with torch imported before the threads are set, too
            project.edit("scripts/papers/beta/evaluate.py", "    import torch\n\n", "")
            project.edit("scripts/papers/beta/evaluate.py", "\n\ndef", "\nimport torch\n\n\ndef")
        done = project.stage("beta.evaluate", "--block", "ours", "--force", "--threads", threads)
        assert done.returncode == 0, done.stderr
        found.append(project.products())
        table = pd.read_parquet(
            project.root / "results/laptop/beta/stages/evaluate/ours/metrics.parquet"
        )
        assert set(table[table["metric"] == "threads"]["value"]) == {float(threads)}
    assert found[0] == found[1]
    cost = project.root / "results/laptop/beta/stages/evaluate/ours/cost.json"
    assert json.loads(cost.read_text())["threads"] == 3


def test_main_ends_with_the_status(monkeypatch, root):
    """`main` takes paper and stage from the module that the function was defined in."""
    seen = []
    monkeypatch.setattr(running, "run_program", lambda *given: seen.append(given) or 3)
    with pytest.raises(SystemExit) as end:
        main(nothing)
    assert end.value.code == 3
    assert seen[0][0] is nothing
