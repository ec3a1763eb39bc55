# The stages that run cells (arm, seed). They differ by name only, so one rule holds the recipe and
# the others inherit it: {stage,train} is the wildcard `stage` that matches "train" alone.
rule train:
    input:
        made_from("results/{scale}/{paper}/stages/{stage}/{block}/manifest.json"),
    output:
        "results/{scale}/{paper}/stages/{stage,train}/{block}/manifest.json",
    log:
        "logs/{scale}/{paper}/{stage}-{block}.log",
    benchmark:
        "logs/{scale}/{paper}/{stage}-{block}.benchmark.tsv"
    threads: machine("threads")
    resources:
        mem_mb=machine("mem_mb"),
        runtime=machine("runtime"),
        gpu=machine("gpu"),
    shell:
        "python -m scripts.papers.{wildcards.paper}.{wildcards.stage} --scale {wildcards.scale}"
        " --block {wildcards.block} --threads {threads}"
        " --mem-mb {resources.mem_mb} --log {log}"


use rule train as compress with:
    output:
        "results/{scale}/{paper}/stages/{stage,compress}/{block}/manifest.json",


use rule train as steer with:
    output:
        "results/{scale}/{paper}/stages/{stage,steer}/{block}/manifest.json",


use rule train as evaluate with:
    output:
        "results/{scale}/{paper}/stages/{stage,evaluate}/{block}/manifest.json",


# A stage that one paper has and no other; its module carries the name.
use rule train as other_stage with:
    output:
        "results/{scale}/{paper}/stages/"
        "{stage,(?!(train|compress|steer|evaluate)/)[a-z][a-z0-9_]*}/{block}/manifest.json",
