"""What has to run again, and what does not: recipes, not file times."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.pipeline import freshness, params
from scripts.pipeline.assets import sources
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.freshness import Freshness, Product, carried_recipe, write_manifest
from tests.workflow.project import Project

DAY = 86400 * 10**9
ALPHA = ("prepare", "train/all", "compress/all", "evaluate/all", "figures", "verdicts", "tracked")
BETA = ("prepare", "evaluate/base", "evaluate/ours", "figures", "verdicts", "tracked")
JUDGED = {"alpha/verdicts", "beta/verdicts", "alpha/tracked", "beta/tracked", "report"}


def alpha(*names: str) -> set[str]:
    return {f"alpha/{name}" for name in names or ALPHA}


def beta(*names: str) -> set[str]:
    return {f"beta/{name}" for name in names or BETA}


EVERYTHING = alpha() | beta() | {"report"}
ASSET = "assets/python-topics"


def fresh(root: Path, scale: str = "laptop") -> Freshness:
    """As a new process would see the project."""
    for cached in (freshness._hash, freshness._imported_names, sources):
        cached.cache_clear()
    return Freshness(params.load(root / "params.yaml"), scale)


def fill(root: Path, scale: str = "laptop") -> None:
    """Every product, as if all jobs had run."""
    for product in fresh(root, scale).products.values():
        first, *others = (root / output for output in product.outputs)
        first.parent.mkdir(parents=True, exist_ok=True)
        first.unlink(missing_ok=True)
        for output in others:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text("x")
        if first.name == "manifest.json":
            (first.parent / "table.parquet").write_text("some bytes")
            write_manifest(first.parent, product.recipe)
        elif first.suffix == ".html":
            first.write_text(f'<html><meta name="recipe" content="{product.recipe}"></html>')
        else:
            first.write_text(json.dumps({"recipe": product.recipe}))


def name_of(product: Product) -> str:
    parts = [part for part in product.outputs[0].parts if part not in ("results", "stages")]
    if parts[0] == "data":
        return f"assets/{parts[2]}" if parts[1] == "assets" else f"{parts[2]}/prepare"
    return "/".join(parts[1:]).removesuffix("/manifest.json").split(".")[0]


def would_run(root: Path, scale: str = "laptop") -> set[str]:
    """What a scheduler runs that goes by file times only, once times are settled."""
    state = fresh(root, scale)
    state.settle_times()
    run: dict[Path, str] = {}
    for product in state.products.values():
        outputs = [root / path for path in product.outputs]
        inputs = [root / path for path in product.inputs]
        missing = not all(path.is_file() for path in outputs)
        awaited = any(path in run for path in product.inputs)
        if missing or awaited or _newest(inputs) > min(path.stat().st_mtime_ns for path in outputs):
            run |= {path: name_of(product) for path in product.outputs}
    return set(run.values())


def _newest(paths: list[Path]) -> int:
    return max((path.stat().st_mtime_ns for path in paths if path.is_file()), default=0)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The made-up project with every product, an asset, a kernel and a lazy import."""
    project = Project(tmp_path_factory.mktemp("full") / "project")
    project.edit("params.yaml", "{numbers: 16}", "{numbers: 16, assets: {topics: python-topics}}")
    project.edit(
        "scripts/papers/alpha/evaluate.py",
        "    for run in job.runs():\n",
        "    from scripts.papers.alpha import late\n\n    for run in job.runs():\n",
    )
    (project.root / "scripts/papers/alpha/late.py").write_text("import kernels.fast as fast\n")
    (project.root / "kernels/fast.py").write_text("from kernels.inner import x\n")
    (project.root / "kernels/inner.py").write_text("x = 1\n")
    (project.root / "kernels/unused.py").write_text("x = 1\n")
    fill(project.root)
    return project.root


@pytest.fixture
def root(full: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(full, tmp_path / "project"))


def edit(root: Path, file: str, old: str = "", new: str = "\n# a remark\n") -> None:
    """Replace a text of a file, or add to its end."""
    text = (root / file).read_text()
    assert old in text
    (root / file).write_text(text.replace(old, new) if old else text + new)


def test_nothing_runs_when_nothing_changed(root):
    assert would_run(root) == set()
    assert would_run(root) == set()


def test_everything_runs_in_a_new_project(tmp_path: Path):
    project = Project(tmp_path)
    assert would_run(project.root) == EVERYTHING


def test_another_scale_has_products_of_its_own(root):
    one_job = (EVERYTHING - beta("evaluate/base", "evaluate/ours")) | beta("evaluate/all")
    assert would_run(root, "smoke") == one_job
    fill(root, "smoke")
    assert would_run(root, "smoke") == set()
    assert would_run(root) == set()


EDITS = {
    # parameters
    "parameter of alpha": (
        ["params.yaml", "numbers: 64", "numbers: 65"], alpha() | {"report"}),
    "parameter of beta": (
        ["params.yaml", "numbers: 16", "numbers: 17"], beta() | {"report"}),
    "parameter at another scale": (
        ["params.yaml", "smoke: {seeds: 1}", "smoke: {seeds: 2}"], set()),
    "seeds": (["params.yaml", "laptop: {seeds: 2}", "laptop: {seeds: 3}"], alpha() | {"report"}),
    "threads of a stage": (
        ["params.yaml", "laptop: {seeds: 2}", "laptop: {seeds: 2, threads: {compress: 2}}"],
        alpha("compress/all", "evaluate/all", "figures", "verdicts", "tracked") | {"report"}),
    "memory, time": (
        ["params.yaml", "laptop: {seeds: 2}", "laptop: {seeds: 2, mem_mb: 1, runtime: 2}"], set()),
    "arms of a late stage": (
        ["params.yaml", "evaluate: {arms: [base, ours]}", "evaluate: {arms: [ours, base]}"], set()),
    "factors": (
        ["params.yaml", "{size: integer}", "{size: number}"], alpha() | {"report"}),
    "title": (
        ["params.yaml", "title: Beta", "title: Beta 2"],
        beta("verdicts", "tracked") | {"report"}),
    "order of the papers": (["params.yaml", "[alpha, beta]", "[beta, alpha]"], {"report"}),
    "remark in params.yaml": (["params.yaml"], set()),
    "scale that is the default": (["params.yaml", "scale: laptop", "scale: smoke"], set()),
    # code
    "a stage": (["scripts/papers/beta/evaluate.py"],
                beta("evaluate/base", "evaluate/ours", "figures", "verdicts", "tracked")
                | {"report"}),
    "a module that a stage imports": (
        ["scripts/papers/alpha/shift.py"], (alpha() - alpha("prepare")) | {"report"}),
    "a module imported inside a function": (
        ["scripts/papers/alpha/late.py"],
        alpha("evaluate/all", "figures", "verdicts", "tracked") | {"report"}),
    "a kernel that a kernel imports": (
        ["kernels/inner.py"],
        alpha("evaluate/all", "figures", "verdicts", "tracked") | {"report"}),
    "a kernel that nobody imports": (["kernels/unused.py"], set()),
    "the figures": (["scripts/papers/alpha/plot.py"],
                    alpha("figures", "tracked") | {"report"}),
    "the stages' own library": (["scripts/pipeline/stage.py"], EVERYTHING),
    "the judge": (["scripts/pipeline/ledger.py"], JUDGED),
    "statistics": (["scripts/pipeline/stats.py"], JUDGED),
    "tracking": (["scripts/pipeline/tracking.py"], alpha("tracked") | beta("tracked")),
    "curves as they grow": (["scripts/pipeline/live.py"], set()),
    # claims and the page
    "claims": (["scripts/papers/alpha/claims.yaml"],
               alpha("verdicts", "tracked") | {"report"}),
    "schema of claims": (["workflow/schemas/claims.schema.yaml"], JUDGED),
    "README of a paper": (["scripts/papers/alpha/README.md"], {"report"}),
    "a rule": (["workflow/rules/track.smk"], set()),
    # assets
    "the asset that beta uses": (
        ["data/sources.csv", "Topics of the", "The topics of the"],
        beta("evaluate/base", "evaluate/ours", "prepare", "figures", "verdicts", "tracked")
        | {"report", ASSET}),
    "an asset that nobody uses": (["data/sources.csv", "MiniLM-L6", "The MiniLM-L6"], set()),
}  # fmt: skip


@pytest.mark.parametrize("case", EDITS)
def test_an_edit_runs_what_depends_on_it_and_nothing_else(case, root):
    change, expected = EDITS[case]
    edit(root, *change)
    assert would_run(root) == expected


def test_template_of_the_page(root):
    template = next((root / "workflow/report").glob("*"))
    edit(root, str(template.relative_to(root)))
    assert would_run(root) == {"report"}


def test_an_edit_that_is_undone_runs_nothing(root):
    text = (root / "params.yaml").read_text()
    edit(root, "params.yaml", "numbers: 64", "numbers: 65")
    assert would_run(root)
    (root / "params.yaml").write_text(text)
    assert would_run(root) == set()


def test_fan_out_makes_other_blocks_of_the_same_stages(root):
    edit(root, "params.yaml", "fan_out: [arm]}", "fan_out: [arm, seed]}")
    blocks = [f"evaluate/{arm}-s{seed}" for arm in ("base", "ours") for seed in range(3)]
    assert would_run(root) == beta(*blocks, "figures", "verdicts", "tracked") | {"report"}
    edit(
        root,
        "params.yaml",
        "fan_out: [arm, seed]}\n  paper: {seeds: 3",
        "fan_out: [arm]}\n  paper: {seeds: 3",
    )
    assert would_run(root) == set()


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_no_paper_depends_on_the_code_of_another(scale: str):
    """Of this project itself: neither directly nor through what all papers share."""
    project = Freshness(params.load(), scale)
    for slug, dag in project.dags.items():
        for block in dag.blocks.values():
            for path in project.block(dag, block).inputs:
                if path.parts[:2] == ("scripts", "papers") and len(path.parts) > 3:
                    assert path.parts[2] == slug, f"{slug} {block.stage} depends on {path}"


def test_code_that_is_not_python(root):
    edit(root, "scripts/papers/beta/evaluate.py", new="def broken(:\n")
    with pytest.raises(PipelineError, match=r"beta/evaluate\.py: line \d+: not valid Python"):
        would_run(root)


# --- products that are not whole --------------------------------------------------------------

TRAIN = "results/laptop/alpha/stages/train/all"
AFTER_TRAIN = (alpha() - alpha("prepare")) | {"report"}


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


DAMAGE = {
    "file missing": (f"{TRAIN}/table.parquet", Path.unlink, AFTER_TRAIN),
    "file truncated": (f"{TRAIN}/table.parquet", _truncate, AFTER_TRAIN),
    "file grown": (f"{TRAIN}/table.parquet", lambda p: p.write_text("more than it was"),
                   AFTER_TRAIN),
    "manifest missing": (f"{TRAIN}/manifest.json", Path.unlink, AFTER_TRAIN),
    "manifest truncated": (f"{TRAIN}/manifest.json", _truncate, AFTER_TRAIN),
    "manifest empty": (f"{TRAIN}/manifest.json", lambda p: p.write_bytes(b""), AFTER_TRAIN),
    "manifest not text": (f"{TRAIN}/manifest.json", lambda p: p.write_bytes(b"\xff"), AFTER_TRAIN),
    "manifest a list": (f"{TRAIN}/manifest.json", lambda p: p.write_text("[1]"), AFTER_TRAIN),
    "manifest of lists": (
        f"{TRAIN}/manifest.json", lambda p: p.write_text('{"files": [1]}'), AFTER_TRAIN),
    "manifest without sizes": (
        f"{TRAIN}/manifest.json",
        lambda p: p.write_text(p.read_text().replace('"size"', '"length"')), AFTER_TRAIN),
    "manifest of odd entries": (
        f"{TRAIN}/manifest.json",
        lambda p: p.write_text(json.dumps({**json.loads(p.read_text()), "files": {"x": 3}})),
        AFTER_TRAIN),
    "asset truncated": (
        "data/assets/python-topics/table.parquet", _truncate, beta() | {"report", ASSET}),
    "verdicts empty": ("results/laptop/alpha/verdicts.json", lambda p: p.write_text(""),
                       alpha("verdicts", "tracked") | {"report"}),
    "a table of verdicts missing": ("results/laptop/alpha/verdicts.parquet", Path.unlink,
                                    alpha("verdicts", "tracked") | {"report"}),
    "numbers for dvc missing": ("results/laptop/metrics/beta.json", Path.unlink,
                                beta("verdicts", "tracked") | {"report"}),
    "page cut": ("results/laptop/report.html", lambda p: p.write_text("<html>"), {"report"}),
    "marker of tracking": ("results/laptop/beta/tracked.json", Path.unlink, beta("tracked")),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_runs_what_makes_it_and_what_depends_on_it(case, root):
    file, damage, expected = DAMAGE[case]
    damage(root / file)
    assert would_run(root) == expected


@pytest.mark.parametrize("case", ["file truncated", "verdicts empty"])
def test_damage_is_seen_where_all_files_are_from_1970(case, root):
    """As in some archives and container images, which know no times."""
    file, damage, expected = DAMAGE[case]
    damage(root / file)
    set_times(root, lambda: 0)
    assert would_run(root) == expected


def test_files_that_no_manifest_names_do_not_matter(root):
    (root / TRAIN / "cost.json").write_text("{}")
    (root / TRAIN / "notes.txt").write_text("mine")
    assert would_run(root) == set()


def test_manifest_names_every_file_by_hash_but_not_itself(tmp_path: Path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/a").write_bytes(b"abc")
    write_manifest(tmp_path, "0" * 64)
    value = json.loads((tmp_path / "manifest.json").read_text())
    assert value["files"] == {
        "deep/a": {
            "size": 3,
            "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        }
    }
    assert carried_recipe(tmp_path / "manifest.json") == value["recipe"] == "0" * 64
    assert carried_recipe(tmp_path / "none.json") is None


# --- file times -------------------------------------------------------------------------------


def set_times(root: Path, draw: Callable[[], int]) -> None:
    for path in root.rglob("*"):
        if path.is_file():
            time = draw()
            os.utime(path, ns=(time, time))


@pytest.mark.parametrize("seed", range(3))
def test_times_of_a_clone_and_a_pull_mean_nothing(seed, root):
    """Neither git nor DVC keeps file times: any order of them, from 1970 to the future."""
    drawn = random.Random(seed)
    set_times(root, lambda: drawn.randrange(30_000) * DAY)
    assert would_run(root) == set()
    drawn = random.Random(seed + 100)
    set_times(root, lambda: drawn.randrange(30_000) * DAY)
    edit(root, "scripts/papers/alpha/shift.py")
    assert would_run(root) == AFTER_TRAIN


def test_all_files_at_one_time(root):
    set_times(root, lambda: 20_000 * DAY)
    assert would_run(root) == set()


def test_a_product_that_is_fresh_is_only_made_newer(root):
    before = {path: path.stat().st_mtime_ns for path in root.rglob("manifest.json")}
    fresh(root).settle_times()
    assert all(path.stat().st_mtime_ns >= time for path, time in before.items())


def test_a_time_that_cannot_be_set_is_one_clear_error(root, monkeypatch):
    def refuse(path: Path, **_: object) -> None:
        raise OSError(30, "Read-only file system", str(path))

    edit(root, "scripts/papers/alpha/shift.py")
    monkeypatch.setattr(os, "utime", refuse)
    with pytest.raises(PipelineError) as error:
        fresh(root).settle_times()
    message = str(error.value)
    assert "cannot set its time (Read-only file system)" in message
    assert "must be writable" in message


def test_a_read_only_project_that_is_up_to_date_is_left_alone(root, monkeypatch):
    fresh(root).settle_times()

    def refuse(path: Path, **_: object) -> None:
        raise AssertionError(f"{path}: its time was set")

    monkeypatch.setattr(os, "utime", refuse)
    fresh(root).settle_times()


def test_a_product_that_goes_while_times_are_set(root, monkeypatch):
    """A stage that outlived its Snakemake may be replacing its folder at this moment."""
    edit(root, "scripts/papers/alpha/shift.py")
    real, gone = os.utime, []

    def replaced(path: Path, **times: object) -> None:
        if not gone:
            gone.append(path)
            Path(path).unlink()
        real(path, **times)

    monkeypatch.setattr(os, "utime", replaced)
    fresh(root).settle_times()
    assert len(gone) == 1


def test_records_of_cost_are_never_older_than_a_product(root):
    """Snakemake takes a job's benchmark file for one of its outputs when it compares times."""
    records = [root / f"logs/{name}.benchmark.tsv" for name in ("laptop/alpha/train-all", "x")]
    for path in records:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    drawn = random.Random(7)
    set_times(root, lambda: drawn.randrange(30_000) * DAY)
    state = fresh(root)
    state.settle_times()
    newest = max(
        (root / output).stat().st_mtime_ns
        for product in state.products.values()
        for output in product.outputs
    )
    assert all(path.stat().st_mtime_ns >= newest for path in records)
