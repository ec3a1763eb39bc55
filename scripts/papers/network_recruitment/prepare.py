"""Networks with their types of people: edges, nodes and types, a table each per network."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pandas as pd

from scripts.papers.network_recruitment import icpsr, network, people
from scripts.papers.network_recruitment.network import Contacts, Network
from scripts.papers.network_recruitment.people import Types
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.stage import Job, main


def prepare(job: Job) -> None:
    for name, source in job.params["networks"].items():
        with named(f"{job.paper}.{job.scale}.networks.{name}"):
            contacts = read_network(job, name, source)
            contacts.network.check_budget(job.params["budget"])
            fitted = {
                model: people.types_of(
                    contacts, model, job.params["least_leaf"], job.rng(f"{name}.{model}")
                )
                for model in job.params["type_models"]
            }
        edges = contacts.network.edges
        job.save_table(f"edges_{name}", pd.DataFrame(edges, columns=["a", "b"]))
        kinds = {model: types.kinds for model, types in fitted.items()}
        job.save_table(f"nodes_{name}", pd.DataFrame({"degree": contacts.network.degree, **kinds}))
        rows = [
            {"model": model, "kind": kind, "share": types.weights[kind], "pmf": list(pmf)}
            for model, types in fitted.items()
            for kind, pmf in enumerate(types.pmfs)
        ]
        job.save_table(f"types_{name}", pd.DataFrame(rows))


def read_network(job: Job, name: str, source: dict) -> Contacts:
    """The network of an asset: contacts of its own asset, ICPSR's all from one."""
    if source["kind"] == "icpsr":
        return icpsr.read(job.asset("icpsr"), source["disease"])
    files = sorted(job.asset(name).glob("*.csv"))
    if len(files) != 1:
        raise ValueError(f"asset {name!r} holds {len(files)} csv files; allowed: one")
    events = network.read_contacts(files[0])
    return network.contact_network(events, source["least"], job.params["past_share"])


def load_network(job: Job, name: str) -> Network:
    """A prepared network."""
    edges = job.load_table("prepare", f"edges_{name}").to_numpy()
    return Network(edges, int(edges.max()) + 1)


def load_types(job: Job, name: str) -> dict[str, Types]:
    """The prepared types of a network, by model."""
    nodes = job.load_table("prepare", f"nodes_{name}")
    table = job.load_table("prepare", f"types_{name}")
    return {
        model: Types(
            nodes[model].to_numpy(),
            np.stack(part["pmf"].to_list()),
            part["share"].to_numpy(),
        )
        for model, part in table.groupby("model", sort=False)
    }


@contextmanager
def named(where: str) -> Iterator[None]:
    """Turn an argument that a method refuses into an error that says where it was set."""
    try:
        yield
    except ValueError as error:
        raise PipelineError(f"{where}: {error}") from error


if __name__ == "__main__":
    main(prepare)
