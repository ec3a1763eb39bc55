"""Pools of real rows, the regularisation of every design, and true effects where they are known."""

import numpy as np

from scripts.papers.sinkhorn_te import designs, gaussian_truth
from scripts.papers.sinkhorn_te.sinkhorn import Gibbs, sinkhorn_divergence
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.stage import Job, main

REFERENCE_ROWS = 20_000  # of a sample apart, whose median cost fixes eps once for all replicates


def prepare(job: Job) -> None:
    import torch

    pools = {
        "cps": designs.cps_pool(job.asset("cps")),
        "nuclei": designs.nuclei_pool(job.asset("nuclei"), job.params["components"]),
        **designs.observed_pools(job.asset("nsw"), job.asset("nhefs")),
    }
    job.save_tensors(
        "pools",
        {
            f"{design}.{name}": torch.tensor(values)
            for design, pool in pools.items()
            for name, values in pool.items()
        },
    )
    eps = _regularisations(job, pools)
    job.save_json("eps", eps)
    job.save_json("truth", _truths(eps, pools["nuclei"]))


def _regularisations(job: Job, pools: dict[str, designs.Pool]) -> dict[str, float]:
    """eps of each design: as given, else the median cost of a sample under its null."""
    rng = job.rng("eps")
    given = job.params["eps"]
    found = {}
    for name in designs.DESIGNS:
        if name in given:
            found[name] = given[name]
        elif "y" in pools.get(name, {}):
            found[name] = designs.median_cost(pools[name]["y"], rng)
        else:
            _, _, y = designs.DESIGNS[name]({}, 0.0, 1, REFERENCE_ROWS, rng)
            found[name] = designs.median_cost(y[0], rng)
        if not found[name] > 0:
            raise PipelineError(
                f"sinkhorn_te.{job.scale}.eps: {found[name]} for {name}; a number > 0 is allowed"
            )
    return found


def _truths(eps: dict[str, float], nuclei: designs.Pool) -> list[dict[str, object]]:
    """Rows (design, theta, ste, mte): closed forms, and exact values of the pool's mixture."""
    rows: list[dict[str, object]] = []
    zero = np.zeros(2)
    for theta in (0.2, 0.4, 0.8):
        shifted = gaussian_truth.shifted_covariance(designs.SIGMA, theta)
        laws = (zero, shifted, zero, designs.SIGMA, eps["gauss_cov"])
        rows.append(
            {
                "design": "gauss_cov",
                "theta": theta,
                "ste": gaussian_truth.gaussian_sinkhorn(*laws),
                "mte": gaussian_truth.gaussian_half_mmd(*laws),
            }
        )
    for theta in designs.NUCLEI_THETAS:
        points, p1, p0 = designs.nuclei_laws(nuclei, designs.cure_probability(theta))
        gram = Gibbs(points[None], points[None], eps["nuclei"]).kernel[0]
        value = sinkhorn_divergence(points[None], p1[None], points[None], p0[None], eps["nuclei"])
        mmd = float(0.5 * (p1 - p0) @ gram @ (p1 - p0))
        rows.append({"design": "nuclei", "theta": theta, "ste": float(value[0][0]), "mte": mmd})
    return rows


if __name__ == "__main__":
    main(prepare)
