# judge: metrics and claims in, verdicts out. Nobody writes a verdict by hand.
rule judge:
    input:
        made_from("results/{scale}/{paper}/verdicts.json"),
    output:
        "results/{scale}/{paper}/verdicts.json",
        "results/{scale}/{paper}/verdicts.parquet",
        "results/{scale}/metrics/{paper}.json",
    log:
        "logs/{scale}/{paper}/judge.log",
    benchmark:
        "logs/{scale}/{paper}/judge.benchmark.tsv"
    resources:
        mem_mb=lambda wildcards, attempt: 2048 * attempt,
        runtime=10,
    shell:
        "python -m scripts.pipeline.ledger judge"
        " --scale {wildcards.scale} --paper {wildcards.paper} --log {log}"
