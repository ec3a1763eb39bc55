# plot: the paper's figures, from the tables of all its stages.
rule plot:
    input:
        made_from("results/{scale}/{paper}/figures/manifest.json"),
    output:
        "results/{scale}/{paper}/figures/manifest.json",
    log:
        "logs/{scale}/{paper}/plot.log",
    benchmark:
        "logs/{scale}/{paper}/plot.benchmark.tsv"
    threads: machine("threads", "plot")
    resources:
        mem_mb=machine("mem_mb", "plot"),
        runtime=machine("runtime", "plot"),
        gpu=machine("gpu", "plot"),
    shell:
        "python -m scripts.papers.{wildcards.paper}.plot"
        " --scale {wildcards.scale} --threads {threads}"
        " --mem-mb {resources.mem_mb} --log {log}"
