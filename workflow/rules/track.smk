# track: results to MLflow, filled from the tables. MLflow that is slow or down costs nothing. On the
# machine that runs Snakemake, since SQLite wants its writers on one.
rule track:
    input:
        made_from("results/{scale}/{paper}/tracked.json"),
    output:
        "results/{scale}/{paper}/tracked.json",
    log:
        "logs/{scale}/{paper}/track.log",
    benchmark:
        "logs/{scale}/{paper}/track.benchmark.tsv"
    localrule: True
    resources:
        mem_mb=2048,
        runtime=10,
    shell:
        "python -m scripts.pipeline.tracking"
        " --scale {wildcards.scale} --paper {wildcards.paper} --log {log}"
