import pandas as pd

from scripts.pipeline.stage import Job, main


def prepare(job: Job) -> None:
    numbers = job.rng("numbers").normal(size=job.params["numbers"])
    job.save_table("numbers", pd.DataFrame({"x": numbers}))


if __name__ == "__main__":
    main(prepare)
