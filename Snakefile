# One rule per stage, one folder per paper, one ledger of claims. See README.md.
from snakemake.utils import min_version

min_version("9.27")


include: "workflow/rules/common.smk"


# After common.smk, whose errors on a wrong params.yaml say more than Snakemake's own.
configfile: "params.yaml"


include: "workflow/rules/assets.smk"
include: "workflow/rules/prepare.smk"
include: "workflow/rules/stages.smk"
include: "workflow/rules/plot.smk"
include: "workflow/rules/judge.smk"
include: "workflow/rules/track.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/bench.smk"


rule all:
    default_target: True
    input:
        [results(paper, "tracked.json") for paper in PAPERS],
        REPORT,


for paper in PAPERS:

    rule:
        name:
            paper
        input:
            results(paper, "tracked.json"),


onsuccess:
    if any(Path(results(paper, "verdicts.json")).is_file() for paper in PAPERS):
        shell("python -m scripts.pipeline.ledger show --scale {SCALE}")
