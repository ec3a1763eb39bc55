"""Which jobs there are and what each reads: cells, blocks, their folders and inputs.

A cell is one (arm, seed) of a stage; a block is the cells that one job runs. This module is pure:
it looks at params.yaml, never at results.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scripts.pipeline.errors import PipelineError
from scripts.pipeline.params import Paper, Settings
from scripts.pipeline.schema import listed, nearest

WHOLE = "all"
"""Name of the block that holds every cell of a stage, and of the stages without arms."""


@dataclass(frozen=True, order=True)
class Cell:
    """One arm with one seed."""

    arm: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.arm}-s{self.seed}"


@dataclass(frozen=True)
class Block:
    """The cells of one stage that one job runs; no cells for prepare and plot."""

    paper: str
    scale: str
    stage: str
    name: str
    cells: tuple[Cell, ...]

    @property
    def folder(self) -> Path:
        """Where the job writes, relative to the project."""
        if self.stage == "prepare":
            return Path("data", self.scale, self.paper)
        if self.stage == "plot":
            return Path("results", self.scale, self.paper, "figures")
        return Path("results", self.scale, self.paper, "stages", self.stage, self.name)

    @property
    def manifest(self) -> Path:
        """The file whose presence says that the block is whole."""
        return self.folder / "manifest.json"

    @property
    def command(self) -> str:
        """The command that makes it, for error messages."""
        return f"snakemake --cores all {self.manifest}"


@dataclass(frozen=True)
class Dag:
    """All blocks of one paper at one scale."""

    paper: Paper
    scale: str

    @cached_property
    def settings(self) -> Settings:
        return self.paper.at(self.scale)

    def cells(self, stage: str) -> list[Cell]:
        """The cells of a stage, arm by arm; arms in `single_seed` have seed 0 only."""
        return [
            Cell(arm, seed)
            for arm in self._arms(stage)
            for seed in range(1 if arm in self.settings.single_seed else self.settings.seeds)
        ]

    @cached_property
    def blocks(self) -> dict[tuple[str, str], Block]:
        """(stage, block name) -> block, in an order in which they can run."""
        found = {}
        for stage in self.paper.stages:
            cells: dict[str, list[Cell]] = {} if self._arms(stage) else {WHOLE: []}
            for cell in self.cells(stage):
                cells.setdefault(self._block_name(cell), []).append(cell)
            for name, members in cells.items():
                found[stage, name] = Block(self.paper.slug, self.scale, stage, name, tuple(members))
        return found

    def block(self, stage: str, name: str) -> Block:
        if (stage, name) not in self.blocks:
            names = [block for of, block in self.blocks if of == stage]
            raise PipelineError(
                f"{self.paper.slug} at scale {self.scale}: stage {stage!r} has no block {name!r}"
                f"{nearest(name, names)}; allowed: {listed(names)}"
            )
        return self.blocks[stage, name]

    def inputs(self, block: Block) -> list[Block]:
        """The blocks that a block reads.

        plot reads all. Any other reads the prepared data and, of each earlier stage, the cells
        with its own arms and seeds, and the arms that its own stage does not run (a shared
        teacher, a base model), with its seeds.
        """
        earlier = list(self.paper.stages)[: list(self.paper.stages).index(block.stage)]
        if block.stage == "plot":
            return [other for other in self.blocks.values() if other.stage != "plot"]
        read = {
            self._holders[stage, cell].manifest
            for stage in earlier
            for cell in self._read(stage, block)
        }
        return [self._by_manifest[path] for path in sorted(read, key=self._order.__getitem__)]

    def judged(self) -> list[Block]:
        """The blocks whose metrics the judge reads: all but the figures."""
        return [block for block in self.blocks.values() if block.stage != "plot"]

    def holder(self, stage: str, cell: Cell | None) -> Block:
        """The block that holds a cell of a stage (None: the block of a stage without arms)."""
        if stage not in self.paper.stages:
            raise PipelineError(
                f"{self.paper.slug}: no stage {stage!r}{nearest(stage, self.paper.stages)}; "
                f"allowed: {listed(self.paper.stages)}"
            )
        if (stage, cell) in self._holders:
            return self._holders[stage, cell]
        cells = listed(cell.name for cell in self.cells(stage)) if cell else "a cell's arm and seed"
        raise PipelineError(
            f"{self.paper.slug}: stage {stage!r} has no cell {cell.name if cell else '(none)'}; "
            f"allowed: {cells}"
        )

    def _arms(self, stage: str) -> tuple[str, ...]:
        return self.paper.stages[stage]

    def _block_name(self, cell: Cell) -> str:
        parts = {"arm": cell.arm, "seed": f"s{cell.seed}"}
        return "-".join(parts[key] for key in self.settings.fan_out) or WHOLE

    @cached_property
    def _holders(self) -> dict[tuple[str, Cell | None], Block]:
        """Stage and cell -> the block that holds it; None stands for a stage without arms."""
        return {
            (block.stage, cell): block
            for block in self.blocks.values()
            for cell in block.cells or (None,)
        }

    @cached_property
    def _by_manifest(self) -> dict[Path, Block]:
        return {block.manifest: block for block in self.blocks.values()}

    @cached_property
    def _order(self) -> dict[Path, int]:
        return {path: place for place, path in enumerate(self._by_manifest)}

    def _read(self, stage: str, block: Block) -> list[Cell | None]:
        """The cells of an earlier stage that a block reads."""
        arms, own_arms = self._arms(stage), self._arms(block.stage)
        if not arms:
            return [None]
        single = self.settings.single_seed
        seeds = sorted({cell.seed for cell in block.cells})
        shared = [
            Cell(arm, seed)
            for arm in arms
            if arm not in own_arms
            for seed in ((0,) if arm in single else seeds)
        ]
        same = [cell for cell in block.cells if cell.arm in arms]
        return [cell for cell in (*same, *shared) if (stage, cell) in self._holders]
