"""params.yaml: every mistake stops before a job, with a message that a person can act on."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from scripts.pipeline import params
from scripts.pipeline.errors import PipelineError
from tests.workflow.project import ROOT, Project

MADE_UP = (ROOT / "tests/workflow/project/params.yaml").read_text()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Project(tmp_path_factory.mktemp("params")).root


@pytest.fixture
def load(project: Path) -> Callable[[str], params.Params]:
    """Load a text as the project's params.yaml."""

    def loaded(text: str) -> params.Params:
        path = project / "params.yaml"
        path.write_text(text)
        return params.load(path)

    return loaded


def edited(old: str, new: str, paper: str = "alpha") -> str:
    """The made-up params.yaml with a text in one paper's section (or above: '') replaced."""
    head, rest = MADE_UP.split("alpha:\n")
    alpha, beta = rest.split("beta:\n")
    parts = {"": head, "alpha": f"alpha:\n{alpha}", "beta": f"beta:\n{beta}"}
    assert parts[paper].count(old) == 1, f"{old!r} stands {parts[paper].count(old)} times"
    parts[paper] = parts[paper].replace(old, new)
    return "".join(parts.values())


WRONG = {
    # the file itself
    "not YAML": ("scale: [laptop\nalpha:", ["params.yaml: not valid YAML", "line"]),
    "empty": ("", ["params.yaml: found NoneType", "allowed: a mapping"]),
    "a list": ("- scale\n- papers\n", ["params.yaml: found list", "allowed: a mapping"]),
    "text": ("laptop", ["params.yaml: found str", "allowed: a mapping"]),
    "top key twice": (MADE_UP + "scale: smoke\n", ["params.yaml: line", "'scale' stands twice"]),
    "nested key twice": (
        edited("laptop: {seeds: 2}", "laptop: {seeds: 2, seeds: 3}"),
        ["params.yaml: line", "'seeds' stands twice"],
    ),
    "unhashable key": (MADE_UP + "? [a, b]\n: 1\n", ["params.yaml: not valid YAML"]),
    "a Python object": (
        edited("title: Alpha", "title: !!python/object/apply:os.getcwd []"),
        ["params.yaml: not valid YAML", "python/object"],
    ),
    # names of settings, papers and sections
    "unknown key": (MADE_UP + "colour: red\n", ["colour: unknown key", "scale, papers, tracking"]),
    "misspelt key": (
        edited("scale: laptop", "scael: laptop", ""),
        ["scael: unknown key", "did you mean 'scale'?", "allowed: scale, papers, tracking"],
    ),
    "misspelt scale": (
        edited("scale: laptop", "scale: labtop", ""),
        ["scale: found 'labtop'", "allowed: smoke, laptop, paper", "did you mean 'laptop'?"],
    ),
    "misspelt paper": (
        edited("[alpha, beta]", "[alhpa, beta]", ""),
        ["papers: unknown paper 'alhpa'", "did you mean 'alpha'?", "allowed: alpha, beta"],
    ),
    "section without a code folder": (
        MADE_UP.replace("beta:\n", "betta:\n"),
        ["betta: unknown key or paper", "did you mean 'beta'?", "alpha, beta"],
    ),
    "paper without a section": (
        MADE_UP.split("beta:\n")[0],
        ["papers: unknown paper 'beta'", "no section", "allowed: alpha"],
    ),
    "no papers": (edited("[alpha, beta]", "[]", ""), ["papers: found []", "at least 1"]),
    "paper twice": (
        edited("[alpha, beta]", "[alpha, alpha]", ""),
        ["papers: found ['alpha', 'alpha']", "each item once"],
    ),
    "papers not a list": (
        edited("[alpha, beta]", "alpha", ""),
        ["papers: found 'alpha'", "allowed: a value of type array"],
    ),
    "papers of lists": (edited("[alpha, beta]", "[[alpha]]", ""), ["papers.0: found ['alpha']"]),
    "section not a mapping": (
        MADE_UP.split("beta:\n")[0] + "beta: 3\n",
        ["beta: found 3", "allowed: a value of type object"],
    ),
    "live not a boolean": (
        MADE_UP + "tracking: {live: maybe}\n",
        ["tracking.live: found 'maybe'", "boolean"],
    ),
    "misspelt tracking key": (
        MADE_UP + "tracking: {lvie: true}\n",
        ["tracking.lvie: unknown key", "did you mean 'live'?", "allowed: live"],
    ),
    "empty tracking": (MADE_UP + "tracking:\n", ["tracking: found None", "type object"]),
    "no title": (edited("  title: Alpha\n", ""), ["alpha.title: missing"]),
    "title not text": (edited("Alpha", "3"), ["alpha.title: found 3", "type string"]),
    "scale section missing": (
        edited("  smoke: {seeds: 1}\n", ""),
        ["alpha.smoke: missing; it is required"],
    ),
    "scale section misspelt": (
        edited("  smoke:", "  smokey:"),
        ["alpha.smokey: unknown key", "did you mean 'smoke'?", "alpha.smoke: missing"],
    ),
    "empty common": (
        edited("{numbers: 16}", "", "beta"),
        ["beta.common: found None", "type object"],
    ),
    "unknown factor type": (
        edited("size: integer", "size: int"),
        ["alpha.factors.size: found 'int'", "number, integer, string", "did you mean 'integer'?"],
    ),
    # stages and arms
    "misspelt stage": (
        edited("    evaluate:", "    evalaute:", "beta"),
        ["beta.stages.evalaute: unknown stage", "did you mean 'evaluate'?", "prepare, train"],
    ),
    "stages out of order": (
        edited(
            "    train: {arms: [teacher, ours]}\n    compress: {arms: [plain, ours]}\n",
            "    compress: {arms: [plain, ours]}\n    train: {arms: [teacher, ours]}\n",
        ),
        ["alpha.stages: found the order prepare, compress, train", "allowed: prepare, train"],
    ),
    "plot not last": (
        edited("    evaluate: {arms: [base, ours]}\n    plot:\n",
               "    plot:\n    evaluate: {arms: [base, ours]}\n", "beta"),
        ["beta.stages: found the order prepare, plot, evaluate", "plot last"],
    ),
    "no plot": (edited("    plot:\n", "", "beta"), ["beta.stages.plot: missing"]),
    "arms of prepare": (
        edited("    prepare:\n", "    prepare: {arms: [base]}\n", "beta"),
        ["beta.stages.prepare: found {'arms': ['base']}", "type null"],
    ),
    "stage without arms": (
        edited("    evaluate: {arms: [base, ours]}\n", "    evaluate:\n", "beta"),
        ["beta.stages.evaluate: found None", "type object"],
    ),
    "no arms": (
        edited("{arms: [base, ours]}", "{arms: []}", "beta"),
        ["beta.stages.evaluate.arms: found []", "at least 1"],
    ),
    "arm twice": (
        edited("{arms: [base, ours]}", "{arms: [ours, ours]}", "beta"),
        ["beta.stages.evaluate.arms: found ['ours', 'ours']", "each item once"],
    ),
    "arm with a bad name": (
        edited("{arms: [base, ours]}", "{arms: [base, our-s]}", "beta"),
        ["beta.stages.evaluate.arms.1: found 'our-s'", "^[a-z][a-z0-9_]*$"],
    ),
    "misspelt arms": (
        edited("{arms: [base, ours]}", "{amrs: [base, ours]}", "beta"),
        ["beta.stages.evaluate.amrs: unknown key", "did you mean 'arms'?"],
    ),
    # machine settings
    "no seeds": (edited("laptop: {seeds: 2}", "laptop: {seeds: 0}"),
                 ["alpha.laptop.seeds: found 0", "at least 1"]),
    "too many seeds": (edited("laptop: {seeds: 2}", "laptop: {seeds: 5000}"),
                       ["alpha.laptop.seeds: found 5000", "at most 1000"]),
    "seeds in words": (edited("laptop: {seeds: 2}", "laptop: {seeds: two}"),
                       ["alpha.laptop.seeds: found 'two'", "type integer"]),
    "half a seed": (edited("laptop: {seeds: 2}", "laptop: {seeds: 2.5}"),
                    ["alpha.laptop.seeds: found 2.5", "type integer"]),
    "seeds yes": (edited("laptop: {seeds: 2}", "laptop: {seeds: yes}"),
                  ["alpha.laptop.seeds: found True", "type integer"]),
    "misspelt machine key": (
        edited("laptop: {seeds: 2}", "laptop: {seed: 2}"),
        ["alpha.laptop: seed: unknown key", "did you mean 'seeds'?", "numbers", "threads"],
    ),
    "single_seed of no arm": (
        edited("single_seed: [plain]", "single_seed: [plane]"),
        ["alpha.smoke.single_seed: unknown arm 'plane'", "did you mean 'plain'?",
         "allowed: ours, plain, teacher"],
    ),
    "fan_out in another order": (
        edited("fan_out: [arm, seed]", "fan_out: [seed, arm]"),
        ["alpha.paper.fan_out: found ['seed', 'arm']", "['arm', 'seed']"],
    ),
    "fan_out of something else": (
        edited("fan_out: [arm, seed]", "fan_out: [layer]"),
        ["alpha.paper.fan_out: found ['layer']", "allowed: [], ['arm'], ['seed']"],
    ),
    "fan_out not a list": (
        edited("fan_out: [arm, seed]", "fan_out: arm"),
        ["alpha.paper.fan_out: found 'arm'", "['arm']"],
    ),
    "threads of a misspelt stage": (
        edited("threads: {train: 2}", "threads: {trian: 2}"),
        ["alpha.paper.threads.trian: unknown stage", "did you mean 'train'?", "prepare, train"],
    ),
    "no threads": (
        edited("threads: {train: 2}", "threads: {train: 0}"),
        ["alpha.paper.threads.train: found 0", "at least 1"],
    ),
    "threads in words": (
        edited("threads: {train: 2}", "threads: many"),
        ["alpha.paper.threads: found 'many'", "integer or object"],
    ),
    "negative memory": (
        edited("laptop: {seeds: 2}", "laptop: {mem_mb: -5}"),
        ["alpha.laptop.mem_mb: found -5", "more than 0"],
    ),
    "no time": (
        edited("laptop: {seeds: 2}", "laptop: {runtime: {train: 0}}"),
        ["alpha.laptop.runtime.train: found 0", "more than 0"],
    ),
    "half a GPU": (
        edited("laptop: {seeds: 2}", "laptop: {gpu: 0.5}"),
        ["alpha.laptop.gpu: found 0.5", "integer or object"],
    ),
    # assets
    "unknown asset": (
        edited("numbers: 64", "assets: {model: smollm2-135m-instrct}"),
        ["alpha.smoke.assets.model: unknown asset 'smollm2-135m-instrct'",
         "did you mean 'smollm2-135m-instruct'?", "allowed (data/sources.csv):", "python-topics"],
    ),
    "asset of the hub at laptop": (
        edited("laptop: {seeds: 2}", "laptop: {assets: {model: meta-llama-3-8b}}"),
        ["alpha.laptop.assets.model", "'meta-llama-3-8b' is only on the hub",
         "allowed: smollm2-135m-instruct"],
    ),
    "assets not a mapping": (
        edited("numbers: 64", "assets: [python-topics]"),
        ["alpha.common.assets: found ['python-topics']", "type object"],
    ),
    "asset not a name": (
        edited("numbers: 64", "assets: {model: 3}"),
        ["alpha.common.assets.model: found 3", "type string"],
    ),
    # the paper's own parameters
    "misspelt parameter": (
        edited("numbers: 64", "nubmers: 64"),
        ["alpha.smoke: nubmers: unknown key", "did you mean 'numbers'?", "allowed:", "pause"],
    ),
    "parameter of another type": (
        edited("numbers: 64", "numbers: many"),
        ["alpha.smoke: numbers: found 'many'", "type integer"],
    ),
    "parameter out of range at one scale": (
        edited("laptop: {seeds: 2}", "laptop: {numbers: 0}"),
        ["alpha.laptop: numbers: found 0", "at least 1"],
    ),
    "parameter that is not a number": (
        edited("pause: 0", "pause: .nan"),
        ["alpha.smoke: pause: found nan", "finite"],
    ),
    "parameter without end": (
        edited("pause: 0", "pause: .inf"),
        ["alpha.smoke: pause: found inf", "finite"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_named_with_what_is_allowed(case, load):
    text, parts = WRONG[case]
    with pytest.raises(PipelineError) as error:
        load(text)
    message = str(error.value)
    assert message.startswith(("params.yaml", "/")), message
    for part in parts:
        assert part in message, f"{part!r} is not in: {message}"


def test_all_faults_of_the_sections_are_told_at_once(load):
    text = edited("seeds: 1}", "seeds: 0}").replace("title: Beta", "title: 7")
    with pytest.raises(PipelineError) as error:
        load(text)
    lines = str(error.value).splitlines()
    assert len(lines) == 2
    assert all(line.startswith("params.yaml: ") for line in lines)


def test_file_that_is_missing_or_not_text(project: Path):
    with pytest.raises(PipelineError, match=r"nowhere\.yaml: missing"):
        params.load(project / "nowhere.yaml")
    (project / "binary.yaml").write_bytes(b"scale: \xff\xfe")
    with pytest.raises(PipelineError, match=r"binary\.yaml: not valid YAML"):
        params.load(project / "binary.yaml")


def test_own_parameters_need_a_schema(tmp_path: Path):
    project = Project(tmp_path)
    schema = project.root / "scripts/papers/beta/params.schema.yaml"
    schema.unlink()
    with pytest.raises(PipelineError, match=r"beta\.smoke: unknown keys numbers; allowed: seeds"):
        params.load(project.root / "params.yaml")
    project.edit("params.yaml", "  common: {numbers: 16}\n", "")
    assert params.load(project.root / "params.yaml").paper("beta").at("smoke").parameters == {}
    project.edit("params.yaml", "laptop: {seeds: 3, ", "laptop: {seeds: 3, threds: 2, ")
    with pytest.raises(PipelineError, match=r"beta\.laptop: unknown keys threds"):
        params.load(project.root / "params.yaml")


def test_schema_of_a_paper_that_is_no_schema(tmp_path: Path):
    project = Project(tmp_path)
    (project.root / "scripts/papers/beta/params.schema.yaml").write_text("type: numbr\n")
    with pytest.raises(PipelineError, match=r"beta/params\.schema\.yaml: not a JSON schema"):
        params.load(project.root / "params.yaml")


def test_stage_of_one_paper_only(tmp_path: Path):
    project = Project(tmp_path)
    project.edit("params.yaml", "    evaluate: {arms: [base", "    judge_all: {arms: [base")
    with pytest.raises(
        PipelineError, match=r"stages\.judge_all: unknown stage.*beta/judge_all\.py"
    ):
        params.load(project.root / "params.yaml")
    folder = project.root / "scripts/papers/beta"
    shutil.move(folder / "evaluate.py", folder / "judge_all.py")
    paper = params.load(project.root / "params.yaml").paper("beta")
    assert list(paper.stages) == ["prepare", "judge_all", "plot"]


def test_stage_of_its_own_may_stand_anywhere_between(tmp_path: Path):
    project = Project(tmp_path)
    (project.root / "scripts/papers/alpha/merge.py").touch()
    project.edit(
        "params.yaml",
        "    compress: {arms: [plain",
        "    merge: {arms: [x]}\n    compress: {arms: [plain",
    )
    paper = params.load(project.root / "params.yaml").paper("alpha")
    assert list(paper.stages) == ["prepare", "train", "merge", "compress", "evaluate", "plot"]


# --- what a right file means ------------------------------------------------------------------


def test_right_file(load):
    loaded = load(MADE_UP)
    assert (loaded.scale, list(loaded.papers), loaded.live) == ("laptop", ["alpha", "beta"], False)
    alpha = loaded.paper("alpha")
    assert (alpha.title, alpha.source, alpha.factors) == ("Alpha", "", {"size": "integer"})
    assert alpha.stages["train"] == ("teacher", "ours")
    assert alpha.stages["prepare"] == alpha.stages["plot"] == ()
    assert load(MADE_UP + "tracking: {live: true}\n").live is True
    assert list(load(edited("[alpha, beta]", "[beta]", "")).papers) == ["beta"]


def test_unknown_paper_asked_for(load):
    with pytest.raises(PipelineError, match=r"unknown paper 'bata' \(did you mean 'beta'\?\)"):
        load(MADE_UP).paper("bata")


def test_a_scale_overrides_common_key_by_key(load):
    text = edited("common: {numbers: 64,", "common: {seeds: 7, numbers: 64,")
    text = text.replace("laptop: {seeds: 2}", "laptop: {seeds: 2, pause: 1.5, single_seed: []}")
    alpha = load(text).paper("alpha")
    smoke, laptop, paper = (alpha.at(scale) for scale in params.SCALES)
    assert (smoke.seeds, smoke.single_seed, smoke.fan_out) == (1, ("plain",), ())
    assert (laptop.seeds, laptop.single_seed, paper.fan_out) == (2, (), ("arm", "seed"))
    assert smoke.parameters == paper.parameters == {"numbers": 64, "pause": 0}
    assert laptop.parameters == {"numbers": 64, "pause": 1.5}
    without = load(
        text.replace("smoke: {seeds: 1}\n  laptop: {seeds: 2,", "smoke: {}\n  laptop: {seeds: 2,")
    )
    assert without.paper("alpha").at("smoke").seeds == 7


def test_nested_mappings_are_replaced_not_merged(load):
    text = edited(
        "common: {numbers", "common: {assets: {a: python-topics, b: all-minilm-l6-v2}, numbers"
    )
    text = text.replace("laptop: {seeds: 2}", "laptop: {seeds: 2, assets: {b: python-topics}}")
    alpha = load(text).paper("alpha")
    assert alpha.at("smoke").assets == {"a": "python-topics", "b": "all-minilm-l6-v2"}
    assert alpha.at("laptop").assets == {"b": "python-topics"}
    assert "assets" not in alpha.at("smoke").parameters


def test_machine_settings_by_stage(load):
    text = edited(
        "laptop: {seeds: 2}",
        "laptop: {seeds: 2, threads: 3, mem_mb: {train: 100, plot: 50}, runtime: {train: 0.5}}",
    )
    alpha = load(text).paper("alpha")
    laptop, paper = alpha.at("laptop"), alpha.at("paper")
    assert {laptop.machine("threads", stage) for stage in alpha.stages} == {3}
    assert [laptop.machine("mem_mb", s) for s in ("train", "plot", "evaluate")] == [100, 50, 4096]
    assert [laptop.machine("runtime", s) for s in ("train", "evaluate")] == [0.5, 60]
    assert [paper.machine("threads", s) for s in ("train", "evaluate")] == [2, 1]
    assert paper.machine("gpu", "train") == 0
    assert not set(params.MACHINE_KEYS) & laptop.parameters.keys()


def test_scale_on_the_command_line(project: Path):
    path = project / "params.yaml"
    path.write_text(MADE_UP)
    config = yaml.safe_load(MADE_UP)
    assert params.checked_overrides(config, path) == "laptop"
    assert params.checked_overrides({**config, "scale": "smoke"}, path) == "smoke"
    with pytest.raises(PipelineError, match=r"--config scale: found 'smok' \(did you mean 'smoke'"):
        params.checked_overrides({**config, "scale": "smok"}, path)
    with pytest.raises(PipelineError, match=r"papers cannot be set on the command line"):
        params.checked_overrides({**config, "papers": ["beta"]}, path)
    with pytest.raises(PipelineError, match=r"sale cannot be set"):
        params.checked_overrides({**config, "sale": "smoke"}, path)


@pytest.mark.skipif(not (ROOT / "params.yaml").exists(), reason="params.yaml is not written yet")
def test_params_of_this_repository():
    loaded = params.load(ROOT / "params.yaml")
    assert loaded.scale == "laptop"
    for paper in loaded.papers.values():
        for scale in params.SCALES:
            assert paper.at(scale).seeds >= 1
