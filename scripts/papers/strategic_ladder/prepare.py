"""Credit scores, and what real ladders say about retention and rewards."""

from scripts.papers.strategic_ladder import calibration
from scripts.pipeline.stage import Job, main


def prepare(job: Job) -> None:
    scores = job.asset("credit")
    league, seasons = calibration.league_retention(job.asset("league"))
    wages, years = calibration.wage_retention(job.asset("wages"))
    job.save_table("scores", calibration.score_table(scores))
    job.save_json(
        "calibration",
        {
            "retention": {"bundesliga": league, "wage-panel": wages},
            "pairs": {"bundesliga": seasons, "wage-panel": years},
            "profile": calibration.reward_profile(scores).tolist(),
        },
    )


if __name__ == "__main__":
    main(prepare)
