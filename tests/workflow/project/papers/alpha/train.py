import time

import pandas as pd

from scripts.papers.alpha.shift import shifted
from scripts.pipeline.stage import Job, main


def train(job: Job) -> None:
    numbers = job.load_table("prepare", "numbers")["x"].to_numpy()
    for run in job.runs():
        time.sleep(job.params["pause"])
        by = shifted(numbers, run.rng("shift"), 1.0 if run.arm == "ours" else 0.5)
        for step in range(3):
            run.log(step, loss=float(by.std()) / (step + 1))
        run.save_table("shifted", pd.DataFrame({"x": by}))


if __name__ == "__main__":
    main(train)
