# report: the ledger of all papers on one page.
rule page:
    input:
        made_from("results/{scale}/report.html"),
    output:
        "results/{scale}/report.html",
    log:
        "logs/{scale}/report.log",
    benchmark:
        "logs/{scale}/report.benchmark.tsv"
    localrule: True
    resources:
        mem_mb=2048,
        runtime=10,
    shell:
        "python -m scripts.pipeline.report --scale {wildcards.scale} --log {log}"


rule report:
    input:
        REPORT,
