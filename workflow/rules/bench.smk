# bench: our cores beside the library a user would pick instead, one thread, in one run. It has no
# output, so that asking for it always measures anew; the rows go to results/bench/.
rule bench:
    log:
        "logs/bench.log",
    benchmark:
        "logs/bench.benchmark.tsv"
    resources:
        mem_mb=4096,
        runtime=10,
    params:
        modules=BENCHES,
    shell:
        "for module in {params.modules}; do"
        " python -m $module --output results/bench/$module.parquet;"
        " done 2>&1 | tee {log}"
