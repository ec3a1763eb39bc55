from scripts.pipeline.stage import Job, main


def evaluate(job: Job) -> None:
    numbers = job.load_table("prepare", "numbers")["x"]
    for run in job.runs():
        gain = 1.0 if run.arm == "ours" else 0.0
        noise = 0.1 * run.rng("noise").normal()
        value = float(numbers.mean() + gain * (1 + noise))
        run.metric("score", value, unit="points", n=len(numbers), dataset="normal")


if __name__ == "__main__":
    main(evaluate)
