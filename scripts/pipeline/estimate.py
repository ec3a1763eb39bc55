"""What the paper scale asks of a cluster, from params.yaml: a table for the README.

    python -m scripts.pipeline.estimate            # prints the table
    python -m scripts.pipeline.estimate --write    # puts it into README.md

The hours are limits, declared time of every job: what a scheduler may be asked for, not what a run
takes. Downloads are the hub's files at their pinned revisions; the sizes are data/downloads.csv.
"""

import argparse
import csv
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from scripts.pipeline import program
from scripts.pipeline.assets import HUB_SUFFIX, at_scale, sources
from scripts.pipeline.dag import Dag
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.files import ROOT, write_atomic
from scripts.pipeline.params import Params, load

SCALE = "paper"
_BEGIN, _END = "<!-- estimate: make estimate -->", "<!-- end of estimate -->"


@dataclass(frozen=True)
class Estimate:
    """One paper at paper scale."""

    paper: str
    jobs: int
    gpu_hours: float
    """Declared minutes times GPUs, over all jobs."""
    core_hours: float
    """Declared minutes times threads, over all jobs."""
    largest_mb: float
    """Declared memory of the job that needs most."""
    gpus: int
    """GPUs of the job that needs most."""
    download_mb: float
    unsized: tuple[str, ...]
    """Hub ids that data/downloads.csv does not know."""


def estimate(params: Params, slug: str, sizes: dict[str, float]) -> Estimate:
    """Sums and maxima over the stage jobs of a paper; judge and track are not counted."""
    dag = Dag(params.paper(slug), SCALE)
    asked = [
        {key: dag.settings.machine(key, block.stage) for key in ("threads", "gpu", "mem_mb",
                                                                 "runtime")}
        for block in dag.blocks.values()
    ]  # fmt: skip
    names = {at_scale(params.root, name, SCALE) for name in dag.settings.assets.values()}
    hub_ids = {sources(params.root)[name].hub_id for name in names if name.endswith(HUB_SUFFIX)}
    return Estimate(
        paper=slug,
        jobs=len(asked),
        gpu_hours=sum(job["gpu"] * job["runtime"] for job in asked) / 60,
        core_hours=sum(job["threads"] * job["runtime"] for job in asked) / 60,
        largest_mb=max(job["mem_mb"] for job in asked),
        gpus=int(max(job["gpu"] for job in asked)),
        download_mb=sum(sizes.get(hub_id, 0) for hub_id in hub_ids),
        unsized=tuple(sorted(hub_ids - sizes.keys())),
    )


def download_sizes(root: Path) -> dict[str, float]:
    """Hub id -> megabytes, of data/downloads.csv."""
    with (root / "data" / "downloads.csv").open(encoding="utf-8", newline="") as file:
        return {row["hub_id"]: float(row["megabytes"]) for row in csv.DictReader(file)}


def table(params: Params) -> str:
    """The estimates of all papers as a Markdown table."""
    sizes = download_sizes(params.root)
    rows = [estimate(params, slug, sizes) for slug in params.papers]
    lines = [
        "| paper | jobs | GPU hours, at most | core hours, at most | largest job | download |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| `{row.paper}` | {row.jobs} | {row.gpu_hours:,.0f} | {row.core_hours:,.0f} | "
        f"{row.largest_mb / 1000:.3g} GB{f', {row.gpus} GPU' if row.gpus else ''} | "
        f"{_size(row)} |"
        for row in rows
    ]
    return "\n".join(lines)


def _size(row: Estimate) -> str:
    known = f"{row.download_mb / 1000:.3g} GB" if row.download_mb else ""
    unknown = " + ".join(f"{hub_id} (size not known)" for hub_id in row.unsized)
    return " + ".join(filter(None, (known, unknown))) or "none"


def with_table(readme: str, lines: str) -> str:
    """A README with the table between its two marks.

    Raises:
        PipelineError: the marks are not there.
    """
    pattern = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", re.DOTALL)
    if not pattern.search(readme):
        raise PipelineError(f"README.md: no place for the table: {_BEGIN} ... {_END}")
    return pattern.sub(lambda _: f"{_BEGIN}\n{lines}\n{_END}", readme)


def main(argv: list[str] | None = None) -> int:
    """Print the table, or put it into the README; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    args = parser.parse_args(argv)

    def run(_: object) -> None:
        lines = table(load())
        if args.write:
            path = ROOT / "README.md"
            write_atomic(path, with_table(path.read_text(encoding="utf-8"), lines).encode())
        else:
            print(lines)

    return program.run(run, "estimate")


if __name__ == "__main__":
    sys.exit(main())
