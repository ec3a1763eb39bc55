# track: results to MLflow, filled from the tables. MLflow that is slow or down costs nothing.
rule track:
    input:
        made_from("results/{scale}/{paper}/tracked.json"),
    output:
        "results/{scale}/{paper}/tracked.json",
    log:
        "logs/{scale}/{paper}/track.log",
    benchmark:
        "logs/{scale}/{paper}/track.benchmark.tsv"
    resources:
        mem_mb=2048,
        runtime=10,
    shell:
        "python -m scripts.pipeline.tracking"
        " --scale {wildcards.scale} --paper {wildcards.paper} --log {log}"
