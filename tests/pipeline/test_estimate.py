"""The estimate of the paper scale: sums and maxima of what params.yaml declares."""

import pytest

from scripts.pipeline.errors import PipelineError
from scripts.pipeline.estimate import Estimate, estimate, table, with_table
from scripts.pipeline.params import load
from tests.workflow.project import Project


@pytest.fixture
def params(tmp_path):
    project = Project(tmp_path / "project")
    with (project.root / "data/sources.csv").open("a") as file:
        file.write(f"a,,,,,,MIT,some/large,{'a' * 40},x\nb,,,,,,MIT,some/new,{'b' * 40},x\n")
    project.edit(
        "params.yaml",
        "paper: {seeds: 2, fan_out: [arm, seed], threads: {train: 2}}",
        "paper: {seeds: 2, fan_out: [arm, seed], threads: {train: 2}, mem_mb: {evaluate: 9000},\n"
        "          gpu: {train: 2}, runtime: {train: 90, plot: 6}, assets: {m: a, again: a, t: b}}",
    )
    (project.root / "data/downloads.csv").write_text("hub_id,megabytes,from\nsome/large,1500,x\n")
    return load(project.root / "params.yaml")


def test_sums_and_maxima(params):
    """Alpha: 4 train, 3 compress, 3 evaluate (`plain` has one seed), prepare and plot."""
    assert estimate(params, "alpha", {"some/large": 1500}) == Estimate(
        paper="alpha",
        jobs=12,
        gpu_hours=4 * 2 * 1.5,
        core_hours=4 * 2 * 1.5 + 7 * 1 + 0.1,
        largest_mb=9000,
        gpus=2,
        download_mb=1500,
        unsized=("some/new",),
    )


def test_table(params):
    lines = table(params).splitlines()
    assert lines[2] == (
        "| `alpha` | 12 | 12 | 19 | 9 GB, 2 GPU | 1.5 GB + some/new (size not known) |"
    )
    assert lines[3] == "| `beta` | 5 | 0 | 5 | 4.1 GB | none |"


def test_the_readme_takes_the_table_between_its_marks():
    marked = "a\n<!-- estimate: make estimate -->\nold\n<!-- end of estimate -->\nb"
    written = with_table(marked, r"new \1")
    assert written.splitlines()[2] == r"new \1" and written.endswith("\nb")
    with pytest.raises(PipelineError, match="no place for the table"):
        with_table("a", "new")
