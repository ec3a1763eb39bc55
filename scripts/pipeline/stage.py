"""The contract of a stage: a plain program that turns inputs into a folder, whole or not at all.

    def train(job: Job) -> None:
        for run in job.runs():
            ...
            run.metric("distortion", value, unit="squared error", n=tokens)
            run.save_tensors("codebook", tensors)

    if __name__ == "__main__":
        main(train)

The same module runs by hand, under pytest, in Snakemake and in DVC:
`python -m scripts.papers.gsrq.train --scale smoke --arm gskm --seed 0`.
"""

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.pipeline import files, metrics
from scripts.pipeline.dag import WHOLE, Block, Cell, Dag
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.schema import listed

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import torch
    from matplotlib.figure import Figure


def seed_of(*parts: object) -> int:
    """A 63-bit seed from names and numbers, the same on every machine."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class _Randomness:
    """Named generators. Names, not order of use, decide what is drawn."""

    _seed_parts: tuple[object, ...]

    def generator(self, name: str = "") -> "torch.Generator":
        """A torch generator (on the CPU, whatever the device, so that devices draw alike)."""
        import torch

        return torch.Generator().manual_seed(seed_of(*self._seed_parts, name))

    def rng(self, name: str = "") -> "np.random.Generator":
        """A numpy generator."""
        import numpy as np

        return np.random.default_rng(seed_of(*self._seed_parts, name))


@dataclass
class Job(_Randomness):
    """What a stage is given: its parameters, its inputs and a folder to fill."""

    dag: Dag
    block: Block
    root: Path
    outdir: Path
    """The folder being filled; it takes its final name once the stage has ended well."""
    device: str
    threads: int
    by_hand: bool = False
    live: Any = None
    screen: Any = None
    cell: Cell | None = None
    """The cell that is running, for messages."""
    _metrics: list[dict] = field(default_factory=list)
    _curves: list[dict] = field(default_factory=list)
    _figures: list[dict] = field(default_factory=list)

    @property
    def paper(self) -> str:
        return self.block.paper

    @property
    def stage(self) -> str:
        return self.block.stage

    @property
    def scale(self) -> str:
        return self.block.scale

    @property
    def params(self) -> dict[str, Any]:
        """The paper's own parameters at this scale."""
        return self.dag.settings.parameters

    @property
    def seeds(self) -> list[int]:
        """The seeds of this scale, for stages without arms."""
        return list(range(self.dag.settings.seeds))

    @property
    def _seed_parts(self) -> tuple[object, ...]:
        return (self.paper,)

    def runs(self) -> "Iterator[Run]":
        """The block's cells in order, with a progress bar and a line in the log for each."""
        import time

        from tqdm import tqdm

        bar = tqdm(
            self.block.cells,
            desc=f"{self.paper} {self.stage}",
            unit="cell",
            file=self.screen or sys.stderr,
            disable=not (self.screen and self.screen.isatty()),
        )
        for done, cell in enumerate(bar, start=1):
            bar.set_postfix_str(cell.name)
            self.cell = cell
            start = time.perf_counter()
            yield Run(self, cell)
            seconds = time.perf_counter() - start
            print(
                f"{self.paper} {self.stage}: {cell.name} took {seconds:.2f} s "
                f"({done} of {len(self.block.cells)} cells)",
                flush=True,
            )

    def asset(self, role: str) -> Path:
        """Folder of the asset that plays a role (params.yaml: assets).

        Raises:
            PipelineError: unknown role, or an asset that is missing or damaged.
        """
        from scripts.pipeline.assets import at_scale, verified

        names = self.dag.settings.assets
        if role not in names:
            raise PipelineError(
                f"params.yaml: {self.paper}.{self.scale}.assets has no {role!r}; "
                f"it has: {listed(names)}"
            )
        return verified(self.root, at_scale(self.root, names[role], self.scale))

    def load_tensors(
        self, stage: str, name: str, arm: str | None = None, seed: int | None = None
    ) -> "dict[str, torch.Tensor]":
        """Tensors that an earlier stage saved, on the job's device."""
        path, made_by = self._input(stage, f"{name}.safetensors", arm, seed)
        return files.read_tensors(path, made_by, self.device)

    def load_table(
        self, stage: str, name: str, arm: str | None = None, seed: int | None = None
    ) -> "pd.DataFrame":
        """A table that an earlier stage saved."""
        return files.read_table(*self._input(stage, f"{name}.parquet", arm, seed))

    def load_json(
        self, stage: str, name: str, arm: str | None = None, seed: int | None = None
    ) -> Any:
        """A JSON value that an earlier stage saved."""
        return files.read_json(*self._input(stage, f"{name}.json", arm, seed))

    def load_metrics(self) -> "pd.DataFrame":
        """All metrics of the paper's stages at this scale (for plot)."""
        return metrics.load_paper(self.root, self.paper, self.scale)

    def load_curves(self) -> "pd.DataFrame":
        """All curves of the paper's stages at this scale (for plot)."""
        return metrics.load_curves(self.root, self.paper, self.scale)

    def save_tensors(self, name: str, tensors: "Mapping[str, torch.Tensor]") -> None:
        """Save tensors as `<name>.safetensors`, shared by all cells."""
        _save_tensors(self.outdir / f"{name}.safetensors", tensors)

    def save_table(self, name: str, frame: "pd.DataFrame") -> None:
        """Save a frame as `<name>.parquet`, shared by all cells."""
        _save_table(self.outdir / f"{name}.parquet", frame)

    def save_json(self, name: str, value: Any) -> None:
        """Save a value as `<name>.json`, shared by all cells."""
        files.write_json(self.outdir / f"{name}.json", value)

    def save_figure(self, name: str, figure: "Figure", caption: str, source: str) -> None:
        """Save a figure as `<name>.svg` and close it.

        Args:
            name: file name without ending.
            figure: drawn with `plotting.style()`.
            caption: what the reader sees, units included; shown in the report.
            source: the data it shows, for the report (such as "evaluate: kl").
        """
        from scripts.pipeline.plotting import write_svg

        write_svg(self.outdir / f"{name}.svg", figure)
        self._figures.append(
            {
                "name": name,
                "file": f"{name}.svg",
                "caption": caption,
                "script": f"scripts/papers/{self.paper}/{self.stage}.py",
                "data": source,
            }
        )

    def _input(self, stage: str, file: str, arm: str | None, seed: int | None) -> tuple[Path, str]:
        """Path of an earlier stage's file and the command that makes it."""
        cell = None
        if arm is not None:
            single = arm in self.dag.settings.single_seed
            cell = Cell(arm, 0 if single or seed is None else seed)
        holder = self.dag.holder(stage, cell)
        allowed = self.dag.inputs(self.block)
        if holder not in allowed:
            raise PipelineError(
                f"{self.paper} {self.stage}: reads {holder.manifest}, which is not one of its "
                f"inputs: {listed(block.manifest for block in allowed)}"
            )
        inner = Path(cell.name, file) if cell else Path(file)
        path = self.root / holder.folder / inner
        if self.by_hand and not path.exists():
            names = (cell.name, cell.arm, f"s{cell.seed}") if cell else (WHOLE,)
            for name in names:  # run as one cell, as an arm or as a seed
                made = self.root / scratch_folder(self.paper, self.scale, stage, name) / inner
                if made.exists():
                    return made, holder.command
        return path, holder.command

    def finish(self) -> None:
        """Write the tables that every block has, even when it has no rows."""
        factors = self.dag.paper.factors
        metrics.one_unit_each(
            ((row["metric"], row["unit"]) for row in self._metrics), f"{self.paper} {self.stage}"
        )
        if self.stage == "plot":
            self.save_json("figures", self._figures)
            return
        metrics.write_rows(
            self.outdir / "metrics.parquet", self._metrics, metrics.metric_schema(factors)
        )
        metrics.write_rows(self.outdir / "curves.parquet", self._curves, metrics.curve_schema())


@dataclass
class Run(_Randomness):
    """One cell of a job: an arm with a seed."""

    job: Job
    cell: Cell

    @property
    def arm(self) -> str:
        return self.cell.arm

    @property
    def seed(self) -> int:
        return self.cell.seed

    @property
    def _seed_parts(self) -> tuple[object, ...]:
        """Without the arm: arms of one seed draw alike, so that they can be compared in pairs."""
        return (self.job.paper, self.seed)

    @cached_property
    def outdir(self) -> Path:
        folder = self.job.outdir / self.cell.name
        folder.mkdir(exist_ok=True)
        return folder

    @cached_property
    def _keys(self) -> dict[str, Any]:
        block = self.job.block
        values = (block.paper, block.scale, block.stage, self.arm, self.seed)
        return dict(zip(metrics.METRIC_KEYS, values, strict=True))

    def metric(self, name: str, value: float, *, unit: str, n: int, **columns: Any) -> None:
        """Record a metric.

        Args:
            name: the metric's name; one unit a name in a paper.
            value: a finite number.
            unit: what the value counts, such as "nat/token".
            n: the denominator: how many tokens, items or episodes it was measured on.
            columns: `dataset`, and factors declared in params.yaml.
        """
        self.metrics([{"metric": name, "value": value, "unit": unit, "n": n, **columns}])

    def metrics(self, rows: "Iterable[Mapping[str, Any]] | pd.DataFrame") -> None:
        """Record many metrics: rows with the columns of `metric`."""
        if not isinstance(rows, list) and hasattr(rows, "to_dict"):
            rows = rows.to_dict("records")
        where = f"{self.job.paper} {self.job.stage} {self.cell.name}"
        checked = metrics.checked_rows(rows, self.job.dag.paper.factors, where)
        self.job._metrics.extend({**self._keys, **row} for row in checked)

    def log(self, step: int, **values: float) -> None:
        """Record points of curves: a value a name at an integer step."""
        values = {name: float(value) for name, value in values.items()}
        self.job._curves.extend(
            {**self._keys, "step": int(step), "metric": name, "value": value}
            for name, value in values.items()
        )
        if self.job.live is not None:
            self.job.live.log(self.arm, self.seed, int(step), values)

    def load_tensors(
        self, stage: str, name: str, arm: str | None = None, seed: int | None = None
    ) -> "dict[str, torch.Tensor]":
        """Tensors of the same arm and seed of an earlier stage (or of those named)."""
        return self.job.load_tensors(stage, name, arm or self.arm, self._or_own(seed))

    def load_table(
        self, stage: str, name: str, arm: str | None = None, seed: int | None = None
    ) -> "pd.DataFrame":
        """A table of the same arm and seed of an earlier stage (or of those named)."""
        return self.job.load_table(stage, name, arm or self.arm, self._or_own(seed))

    def save_tensors(self, name: str, tensors: "Mapping[str, torch.Tensor]") -> None:
        """Save this cell's tensors as `<name>.safetensors`."""
        _save_tensors(self.outdir / f"{name}.safetensors", tensors)

    def save_table(self, name: str, frame: "pd.DataFrame") -> None:
        """Save this cell's frame as `<name>.parquet`."""
        _save_table(self.outdir / f"{name}.parquet", frame)

    def _or_own(self, seed: int | None) -> int:
        return self.seed if seed is None else seed


def _save_tensors(path: Path, tensors: "Mapping[str, torch.Tensor]") -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    plain = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    try:
        save_file(plain, path)
    except SafetensorError as error:  # the disk's own error is only in its text
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def _save_table(path: Path, frame: "pd.DataFrame") -> None:
    frame.to_parquet(path, index=False, compression="zstd")


def scratch_folder(paper: str, scale: str, stage: str, name: str) -> Path:
    """Where a part of a block goes that was run by hand: not a product, never tracked."""
    return Path("scratch", scale, paper, stage, name)


def main(stage: Callable[[Job], None]) -> None:
    """Run a stage function as a program; see `--help`.

    A mistake of the user's or a failing disk ends with one message and status 1; a fault in the
    code ends with its traceback.
    """
    from scripts.pipeline.running import run_program

    module = sys.modules[stage.__module__].__spec__.name
    sys.exit(run_program(stage, module, sys.argv[1:]))
