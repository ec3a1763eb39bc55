"""Paper scale without a GPU: the whole plan, models from a hub, profiles of clusters."""

import importlib.util
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from scripts.pipeline.dag import Dag
from scripts.pipeline.params import load
from tests.hub import serving
from tests.workflow.project import ROOT, Project
from tests.workflow.test_papers import Checkout

PARAMS = load()
PAPER_SCALE = ["--config", "scale=paper"]
CORES = ["--cores", "1024"]
LATEST = "a" * 40
OTHER = "b" * 40


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The repository without any result."""
    return Checkout(tmp_path_factory.mktemp("paper") / "checkout")


@pytest.fixture(scope="module")
def plan(checkout: Checkout) -> dict[str, dict[str, str]]:
    """First output of every job of all papers -> its resources and threads."""
    return resources_of(
        checkout.run("--dry-run", "--workflow-profile", "none", *CORES, *PAPER_SCALE)
    )


def resources_of(output: str) -> dict[str, dict[str, str]]:
    found = {}
    for job in re.split(r"\n(?=(?:local)?rule )", output):
        if target := re.search(r"^ +output: ([^,\n]+)", job, re.MULTILINE):
            listed = re.search(r"^ +resources: (.*)$", job, re.MULTILINE)
            threads = re.search(r"^ +threads: (\d+)$", job, re.MULTILINE)
            found[target[1]] = {
                **dict(pair.split("=", 1) for pair in (listed[1].split(", ") if listed else ())),
                "threads": threads[1] if threads else "1",
            }
    return found


@pytest.mark.parametrize("slug", PARAMS.papers)
def test_every_job_of_a_paper_is_planned_with_what_it_needs(plan, slug: str) -> None:
    dag = Dag(PARAMS.papers[slug], "paper")
    assert dag.settings.fan_out, "at paper scale the cells are jobs of their own"
    for block in dag.blocks.values():
        job = plan[str(block.manifest)]
        for key in ("mem_mb", "runtime", "gpu", "threads"):
            assert float(job[key]) == dag.settings.machine(key, block.stage), (block, key)
    for end in ("verdicts.json", "tracked.json"):
        assert f"results/paper/{slug}/{end}" in plan


def test_kubernetes_plans_the_same_jobs(checkout: Checkout, plan) -> None:
    """A plan is all that is claimed of this profile."""
    for plugin in ("snakemake_executor_plugin_kubernetes", "snakemake_storage_plugin_fs"):
        if importlib.util.find_spec(plugin) is None:
            pytest.skip(f"{plugin} is not installed")
    profile = ["--workflow-profile", "profiles/kubernetes"]
    checkout_on_volume = ["--default-storage-prefix", str(checkout.root)]
    output = checkout.run("--dry-run", *profile, *checkout_on_volume, *CORES, *PAPER_SCALE)
    planned = resources_of(output)
    for target, job in plan.items():
        there = planned[f"{checkout.root}/{target} (send to storage)"]
        assert {key: there.get(key) for key in ("mem_mb", "runtime", "gpu", "threads")} == {
            key: job.get(key) for key in ("mem_mb", "runtime", "gpu", "threads")
        }
        assert there["gpu_manufacturer"] == "nvidia"


# --- many jobs --------------------------------------------------------------------------------


def many(folder: Path, arms: int, seeds: int) -> Project:
    """Beta alone, with a train before its evaluate, in arms x seeds cells each."""
    project = Project(folder)
    papers = folder / "scripts/papers"
    text = (papers / "beta/evaluate.py").read_text()
    (papers / "beta/train.py").write_text(text.replace("evaluate", "train"))
    names = ", ".join(["base", "ours", *(f"arm{number}" for number in range(arms - 2))])
    project.edit("params.yaml", "papers: [alpha, beta]", "papers: [beta]")
    project.edit(
        "params.yaml",
        "evaluate: {arms: [base, ours]}",
        f"train: {{arms: [{names}]}}\n    evaluate: {{arms: [{names}]}}",
    )
    project.edit(
        "params.yaml",
        "paper: {seeds: 3, fan_out: [seed]}",
        f"paper: {{seeds: {seeds}, fan_out: [arm, seed], gpu: {{train: 1}}}}",
    )
    return project


def test_a_job_among_many_is_planned_alone(tmp_path: Path) -> None:
    """A cluster job asks for its own product; the work must not grow with the number of jobs."""
    from scripts.pipeline.freshness import Freshness

    project = many(tmp_path / "project", arms=20, seeds=30)
    freshness = Freshness(load(project.root / "params.yaml"), "paper")
    target = Path("results/paper/beta/stages/evaluate/arm7-s29/manifest.json")
    product = freshness.finders[target]()
    assert sorted(str(path) for path in freshness._blocks) == [
        "data/paper/beta/manifest.json",
        str(target),
        "results/paper/beta/stages/train/arm7-s29/manifest.json",
    ]
    assert product == freshness.products[target]
    assert len(freshness.products) == 2 * 20 * 30 + 5


def test_a_thousand_jobs_are_planned_with_resources(tmp_path: Path) -> None:
    project = many(tmp_path / "project", arms=25, seeds=20)
    planned = resources_of(project.run("--dry-run", "--workflow-profile", "none", *PAPER_SCALE))
    trained = [job for target, job in planned.items() if "/train/" in target]
    assert len(planned) == 1005
    assert len(trained) == 500 and {job["gpu"] for job in trained} == {"1"}


# --- models from the hub ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A hub of one tiny model, safetensors and pickles, and of a gated one; its address."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("hub")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    with serving("some/tiny", LATEST, folder, gated="some/shut") as address:
        yield address


def with_model(folder: Path, hub_id: str, revision: str) -> Project:
    """Beta, whose prepare reads a language model that is on the hub only."""
    project = Project(folder)
    with (folder / "data/sources.csv").open("a") as file:
        file.write(f"a-model,,,,,,MIT,{hub_id},{revision},a tiny model\n")
    project.edit(
        "params.yaml",
        "paper: {seeds: 3, fan_out: [seed]}",
        "paper: {seeds: 1, fan_out: [arm, seed], assets: {model: a-model}}",
    )
    project.edit(
        "scripts/papers/beta/prepare.py",
        "    numbers = ",
        "    model = load_causal_lm(job.asset('model'))\n"
        "    assert load_tokenizer(job.asset('model'))('a')['input_ids'] == [1]\n"
        "    job.save_tensors('norm', {'norm': model.model.norm.weight})\n"
        "    numbers = ",
    )
    project.edit(
        "scripts/papers/beta/prepare.py",
        "from scripts",
        "from scripts.pipeline.models import load_causal_lm, load_tokenizer\nfrom scripts",
    )
    return project


def test_a_paper_reads_its_model_from_the_hub_at_its_revision(hub: str, tmp_path: Path) -> None:
    project = with_model(tmp_path / "project", "some/tiny", LATEST)
    prepared = "data/paper/beta/manifest.json"
    online = {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "home")}
    done = project.snakemake(prepared, *PAPER_SCALE, **online)
    assert done.returncode == 0, done.stdout + done.stderr
    names = {path.name for path in (project.root / "data/assets/a-model.hub").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "manifest.json"} <= names
    assert "pytorch_model.bin" not in names
    assert (project.root / "data/paper/beta/norm.safetensors").is_file()
    shutil.rmtree(project.root / "data/paper")
    offline = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    again = project.snakemake(prepared, *PAPER_SCALE, **offline)  # as a node without network
    assert again.returncode == 0, again.stdout + again.stderr


REFUSED = {
    "gated": ("some/shut", LATEST, "is gated: accept its licence on its hub page, then `hf auth"),
    "unknown": ("some/none", LATEST, "is not on the hub (or private)"),
    "another revision": ("some/tiny", OTHER, "Revision Not Found"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_cannot_be_had_is_one_message(case: str, hub: str, tmp_path: Path) -> None:
    hub_id, revision, message = REFUSED[case]
    project = with_model(tmp_path / "project", hub_id, revision)
    online = {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "home")}
    done = project.command("python", "-m", "scripts.pipeline.assets", "a-model.hub", **online)
    assert done.returncode == 1
    start = f"error: assets: asset 'a-model': {hub_id} at revision {revision}"
    assert start in done.stderr and message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (project.root / "data/assets/a-model.hub").exists()


def test_the_readme_has_the_estimate_of_params_yaml() -> None:
    from scripts.pipeline.estimate import table, with_table

    readme = (ROOT / "README.md").read_text()
    assert readme == with_table(readme, table(PARAMS)), "run: make estimate"
