"""Figures."""

from scripts.pipeline.stage import Job, main


def plot(job: Job) -> None:
    pass


if __name__ == "__main__":
    main(plot)
