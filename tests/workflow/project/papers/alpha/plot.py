import matplotlib.pyplot as plt

from scripts.pipeline.plotting import style
from scripts.pipeline.stage import Job, main


def plot(job: Job) -> None:
    metrics = job.load_metrics()
    with style():
        figure, axes = plt.subplots()
        means = metrics.groupby("arm")["value"].mean()
        axes.bar(means.index, means.to_numpy())
        axes.set_ylabel(metrics["unit"].iloc[0])
        job.save_figure("means", figure, caption="Mean of each arm.", source="evaluate")


if __name__ == "__main__":
    main(plot)
