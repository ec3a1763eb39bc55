# prepare: the paper's data, read by all its later stages.
rule prepare:
    input:
        made_from("data/{scale}/{paper}/manifest.json"),
    output:
        "data/{scale}/{paper}/manifest.json",
    log:
        "logs/{scale}/{paper}/prepare.log",
    benchmark:
        "logs/{scale}/{paper}/prepare.benchmark.tsv"
    threads: machine("threads", "prepare")
    resources:
        mem_mb=machine("mem_mb", "prepare"),
        runtime=machine("runtime", "prepare"),
        gpu=machine("gpu", "prepare"),
    shell:
        "python -m scripts.papers.{wildcards.paper}.prepare"
        " --scale {wildcards.scale} --threads {threads}"
        " --mem-mb {resources.mem_mb} --log {log}"
