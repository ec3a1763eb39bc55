# What all rules share. The logic is in scripts/pipeline/{params,dag,freshness}.py, tested there.
import sys
from math import ceil
from pathlib import Path

sys.path.insert(0, workflow.basedir)
# Jobs run with the Python that runs Snakemake, also when its environment is not activated. A job of
# a cluster runs in a Snakemake of its own; there its memory is a limit, here it is a plan.
shell.prefix(
    f"export PATH='{Path(sys.executable).parent}':\"$PATH\""
    f" MEMORY_IS_LIMITED={int(not workflow.is_main_process)}; "
)

from scripts.pipeline.errors import PipelineError
from scripts.pipeline.freshness import Freshness
from scripts.pipeline.params import checked_overrides, load

try:
    PARAMS = load(Path("params.yaml"))
    SCALE = checked_overrides(config, Path("params.yaml"))
    FRESHNESS = Freshness(PARAMS, SCALE)
    if workflow.is_main_process:
        FRESHNESS.settle_times()
except PipelineError as error:
    raise WorkflowError(str(error)) from None

PAPERS = list(PARAMS.papers)
BENCHES = [
    "kernels.bench",
    *(
        f"scripts.papers.{paper}.bench"
        for paper in PAPERS
        if Path(f"scripts/papers/{paper}/bench.py").is_file()
    ),
]
REPORT = f"results/{SCALE}/report.html"


wildcard_constraints:
    scale="smoke|laptop|paper",
    paper="[a-z][a-z0-9_]*",
    stage="[a-z][a-z0-9_]*",
    block="[a-z][a-z0-9_-]*",


def results(paper, file):
    return f"results/{SCALE}/{paper}/{file}"


def made_from(output):
    """Input function: what the product whose first output this is was made from."""

    def inputs(wildcards):
        path = Path(output.format(**wildcards))
        if path not in FRESHNESS.finders:
            raise WorkflowError(
                f"{path} is not a product of params.yaml at scale {SCALE}"
            )
        return [str(source) for source in FRESHNESS.finders[path]().inputs]

    return inputs


def machine(key, stage=None):
    """Resource function: a machine setting of params.yaml for the job's stage.

    A job that is tried again (profiles/slurm: retries) gets more memory each time, but no more
    time: above what a partition allows it would wait for ever.
    """

    def amount(wildcards, attempt):
        settings = PARAMS.paper(wildcards.paper).at(wildcards.scale)
        value = settings.machine(key, stage or wildcards.stage)
        return ceil(value * (attempt if key == "mem_mb" else 1))

    return amount
