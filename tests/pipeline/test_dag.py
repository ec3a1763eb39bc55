"""Cells, blocks and what each block reads."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.pipeline.dag import Block, Cell, Dag
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.params import CANONICAL_STAGES, Paper

FAN_OUTS = ([], ["arm"], ["seed"], ["arm", "seed"])
ARMS = ("base", "ours", "plain", "teacher")


def dag(stages: dict[str, tuple[str, ...]], **settings) -> Dag:
    """A DAG of the given stages; prepare and plot are added."""
    middle = {stage: {"arms": list(arms)} for stage, arms in stages.items()}
    section = {
        "title": "Made up",
        "stages": {"prepare": None, **middle, "plot": None},
        "laptop": {"seeds": 2, **settings},
    }
    return Dag(Paper("made_up", section), "laptop")


def names(blocks: list[Block]) -> list[str]:
    return [f"{block.stage}/{block.name}" for block in blocks]


SHARED_TEACHER = {
    "train": ("teacher", "ours"),
    "compress": ("plain", "ours"),
    "evaluate": ("plain", "ours"),
}


def test_cells_are_arms_by_seeds_and_single_seed_arms_have_seed_0():
    made = dag({"evaluate": ("base", "ours")}, seeds=3, single_seed=["base"])
    assert [cell.name for cell in made.cells("evaluate")] == [
        "base-s0",
        "ours-s0",
        "ours-s1",
        "ours-s2",
    ]
    assert made.cells("prepare") == made.cells("plot") == []


@pytest.mark.parametrize(
    ("fan_out", "expected"),
    [
        ([], {"all": "base-s0 ours-s0 ours-s1"}),
        (["arm"], {"base": "base-s0", "ours": "ours-s0 ours-s1"}),
        (["seed"], {"s0": "base-s0 ours-s0", "s1": "ours-s1"}),
        (["arm", "seed"], {name: name for name in ("base-s0", "ours-s0", "ours-s1")}),
    ],
)
def test_blocks_of_each_fan_out(fan_out, expected):
    made = dag({"evaluate": ("base", "ours")}, single_seed=["base"], fan_out=fan_out)
    found = {
        name: " ".join(cell.name for cell in block.cells)
        for (stage, name), block in made.blocks.items()
        if stage == "evaluate"
    }
    assert found == expected
    assert names(list(made.blocks.values()))[:1] == ["prepare/all"]
    assert names(list(made.blocks.values()))[-1:] == ["plot/all"]


def test_folders_manifests_and_commands():
    made = dag({"train": ("ours",)}, fan_out=["arm", "seed"])
    assert made.block("prepare", "all").folder == Path("data/laptop/made_up")
    assert made.block("plot", "all").folder == Path("results/laptop/made_up/figures")
    block = made.block("train", "ours-s1")
    assert block.manifest == Path("results/laptop/made_up/stages/train/ours-s1/manifest.json")
    assert block.command == f"snakemake --cores all {block.manifest}"


def test_inputs_with_one_job_a_stage():
    made = dag(SHARED_TEACHER)
    assert names(made.inputs(made.block("prepare", "all"))) == []
    assert names(made.inputs(made.block("train", "all"))) == ["prepare/all"]
    assert names(made.inputs(made.block("evaluate", "all"))) == [
        "prepare/all",
        "train/all",
        "compress/all",
    ]
    everything = ["prepare/all", "train/all", "compress/all", "evaluate/all"]
    assert names(made.inputs(made.block("plot", "all"))) == everything
    assert names(made.judged()) == everything


def test_inputs_by_arm_take_own_arms_and_those_of_others_only():
    made = dag(SHARED_TEACHER, fan_out=["arm"])
    assert names(made.inputs(made.block("compress", "plain"))) == ["prepare/all", "train/teacher"]
    assert names(made.inputs(made.block("compress", "ours"))) == [
        "prepare/all",
        "train/teacher",
        "train/ours",
    ]
    assert names(made.inputs(made.block("evaluate", "plain"))) == [
        "prepare/all",
        "train/teacher",
        "compress/plain",
    ]


def test_inputs_by_seed_take_own_seeds():
    made = dag(SHARED_TEACHER, fan_out=["seed"], single_seed=["plain"])
    assert names(made.inputs(made.block("compress", "s1"))) == ["prepare/all", "train/s1"]
    assert names(made.inputs(made.block("evaluate", "s0"))) == [
        "prepare/all",
        "train/s0",
        "compress/s0",
    ]


def test_inputs_by_arm_and_seed():
    made = dag(SHARED_TEACHER, fan_out=["arm", "seed"], single_seed=["plain"])
    assert names(made.inputs(made.block("compress", "ours-s1"))) == [
        "prepare/all",
        "train/teacher-s1",
        "train/ours-s1",
    ]
    assert names(made.inputs(made.block("compress", "plain-s0"))) == [
        "prepare/all",
        "train/teacher-s0",
    ]


@pytest.mark.parametrize("fan_out", FAN_OUTS)
def test_a_shared_teacher_with_one_seed_feeds_every_seed(fan_out):
    made = dag(SHARED_TEACHER, fan_out=fan_out, single_seed=["teacher"])
    for (stage, _), block in made.blocks.items():
        if stage == "compress":
            read = [cell for other in made.inputs(block) for cell in other.cells]
            assert Cell("teacher", 0) in read


def test_paper_with_neither_train_nor_compress():
    made = dag({"evaluate": ("base", "ours")}, fan_out=["arm"])
    assert names(list(made.blocks.values())) == [
        "prepare/all",
        "evaluate/base",
        "evaluate/ours",
        "plot/all",
    ]
    assert names(made.inputs(made.block("evaluate", "ours"))) == ["prepare/all"]


def test_unknown_blocks_stages_and_cells_are_errors():
    made = dag(SHARED_TEACHER, fan_out=["arm"])
    with pytest.raises(PipelineError, match=r"no block 'our' \(did you mean 'ours'\?\); allowed: "):
        made.block("train", "our")
    with pytest.raises(
        PipelineError, match=r"made_up: no stage 'trian' \(did you mean 'train'\?\)"
    ):
        made.holder("trian", None)
    with pytest.raises(PipelineError, match=r"no cell plain-s0; allowed: teacher-s0, teacher-s1"):
        made.holder("train", Cell("plain", 0))
    with pytest.raises(PipelineError, match=r"no cell ours-s2; allowed: "):
        made.holder("train", Cell("ours", 2))
    with pytest.raises(PipelineError, match=r"no cell \(none\); allowed: a cell's arm and seed"):
        made.holder("train", None)
    with pytest.raises(PipelineError, match=r"stage 'prepare' has no cell ours-s0"):
        made.holder("prepare", Cell("ours", 0))


# --- properties -------------------------------------------------------------------------------

some_arms = st.lists(st.sampled_from(ARMS), min_size=1, unique=True).map(tuple)
some_stages = st.dictionaries(st.sampled_from(CANONICAL_STAGES[1:-1]), some_arms, min_size=1).map(
    lambda found: {stage: found[stage] for stage in CANONICAL_STAGES if stage in found}
)
some_settings = st.fixed_dictionaries(
    {
        "seeds": st.integers(1, 4),
        "single_seed": st.lists(st.sampled_from(ARMS), unique=True),
        "fan_out": st.sampled_from(FAN_OUTS),
    }
)


@settings(deadline=None)
@given(some_stages, some_settings)
def test_every_cell_is_in_exactly_one_block(stages, settings):
    made = dag(stages, **settings)
    for stage in stages:
        members = [
            cell for (of, _), block in made.blocks.items() if of == stage for cell in block.cells
        ]
        assert sorted(members) == sorted(made.cells(stage))
        assert len(set(members)) == len(members)
        for cell in members:
            assert cell in made.holder(stage, cell).cells
    folders = [block.folder for block in made.blocks.values()]
    assert len(set(folders)) == len(folders)


@settings(deadline=None)
@given(some_stages, some_settings)
def test_inputs_are_of_earlier_stages_and_listed_before(stages, settings):
    made = dag(stages, **settings)
    order = list(made.paper.stages)
    listed = list(made.blocks.values())
    for block in listed:
        read = made.inputs(block)
        assert len(set(read)) == len(read)
        for other in read:
            assert order.index(other.stage) < order.index(block.stage)
            assert listed.index(other) < listed.index(block)
        if block.stage != "prepare":
            assert made.block("prepare", "all") in read
        if block.stage == "plot":
            assert read == made.judged()


@settings(deadline=None)
@given(some_stages, some_settings)
def test_the_cells_do_not_depend_on_how_they_are_cut(stages, settings):
    cut = dag(stages, **settings)
    whole = dag(stages, **{**settings, "fan_out": []})
    for stage in stages:
        union = {c for (of, _), block in cut.blocks.items() if of == stage for c in block.cells}
        assert union == set(whole.block(stage, "all").cells)


@settings(deadline=None)
@given(some_stages, some_settings)
def test_a_cell_always_finds_its_own_cell_and_other_arms_of_earlier_stages(stages, settings):
    """Whatever the cut, a block reads the same cells that each of its cells may ask for."""
    made = dag(stages, **settings)
    order = list(stages)
    for (stage, _), block in made.blocks.items():
        for earlier in order[: order.index(stage)] if stage in order else []:
            for cell in block.cells:
                for arm in stages[earlier]:
                    if arm != cell.arm and arm in stages[stage]:
                        continue
                    seed = 0 if arm in settings["single_seed"] else cell.seed
                    assert made.holder(earlier, Cell(arm, seed)) in made.inputs(block)
