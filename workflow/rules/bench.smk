# bench: our cores beside the library a user would pick instead, one thread, in one run.
rule bench:
    input:
        [f"results/bench/{name}.parquet" for name in BENCHES],


rule bench_kernels:
    output:
        "results/bench/kernels.parquet",
    log:
        "logs/bench/kernels.log",
    benchmark:
        "logs/bench/kernels.benchmark.tsv"
    resources:
        runtime=10,
    shell:
        "python -m kernels.bench --output {output} 2>&1 | tee {log}"


rule bench_paper:
    output:
        "results/bench/{paper}.parquet",
    log:
        "logs/bench/{paper}.log",
    benchmark:
        "logs/bench/{paper}.benchmark.tsv"
    resources:
        runtime=10,
    shell:
        "python -m scripts.papers.{wildcards.paper}.bench --output {output} 2>&1 | tee {log}"


ruleorder: bench_kernels > bench_paper
