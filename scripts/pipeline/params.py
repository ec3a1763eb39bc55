"""params.yaml: the only place for settings, read and checked before anything runs."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from scripts.pipeline.errors import PipelineError
from scripts.pipeline.files import ROOT
from scripts.pipeline.schema import check, listed, load_schema, nearest, read_yaml

SCALES = ("smoke", "laptop", "paper")
CANONICAL_STAGES = ("prepare", "train", "compress", "steer", "evaluate", "plot")
MACHINE_KEYS = (
    "seeds",
    "single_seed",
    "fan_out",
    "threads",
    "mem_mb",
    "runtime",
    "gpu",
    "assets",
)
RESERVED = (
    "all",
    "asset",
    "assets",
    "report",
    "page",
    "bench",
    "judge",
    "track",
    *CANONICAL_STAGES,
)
"""Names of rules, which a paper's target of its own name would clash with."""
_PER_STAGE_DEFAULTS = {"threads": 1, "mem_mb": 4096, "runtime": 60, "gpu": 0}


@dataclass(frozen=True)
class Settings:
    """One paper at one scale: its `common` section overridden by the scale's, key by key."""

    seeds: int
    single_seed: tuple[str, ...]
    fan_out: tuple[str, ...]
    assets: dict[str, str]
    parameters: dict[str, Any]
    """The paper's own parameters, machine settings left out."""
    _machine: dict[str, Any]

    def machine(self, key: str, stage: str) -> float:
        """`threads`, `mem_mb`, `runtime` (minutes) or `gpu` of a stage."""
        value = self._machine.get(key, _PER_STAGE_DEFAULTS[key])
        if isinstance(value, Mapping):
            value = value.get(stage, _PER_STAGE_DEFAULTS[key])
        return value


@dataclass(frozen=True)
class Paper:
    """A paper's section of params.yaml."""

    slug: str
    section: dict[str, Any]

    @property
    def title(self) -> str:
        return self.section["title"]

    @property
    def source(self) -> str:
        return self.section.get("source", "")

    @property
    def factors(self) -> dict[str, str]:
        """Extra metric columns: name -> number, integer or string."""
        return self.section.get("factors", {})

    @cached_property
    def stages(self) -> dict[str, tuple[str, ...]]:
        """Stage -> arms, in the order they run; () for the stages without arms."""
        return {
            stage: tuple(value["arms"]) if value else ()
            for stage, value in self.section["stages"].items()
        }

    def at(self, scale: str) -> Settings:
        """The paper's settings at one scale."""
        merged = {**self.section.get("common", {}), **self.section[scale]}
        return Settings(
            seeds=merged.get("seeds", 1),
            single_seed=tuple(merged.get("single_seed", ())),
            fan_out=tuple(merged.get("fan_out", ())),
            assets=merged.get("assets", {}),
            parameters={key: value for key, value in merged.items() if key not in MACHINE_KEYS},
            _machine=merged,
        )


@dataclass(frozen=True)
class Params:
    """The whole of params.yaml, valid by construction (see `load`)."""

    scale: str
    papers: dict[str, Paper]
    live: bool
    root: Path

    def paper(self, slug: str) -> Paper:
        if slug not in self.papers:
            raise PipelineError(
                f"params.yaml: unknown paper {slug!r}{nearest(slug, self.papers)}; "
                f"allowed: {listed(self.papers)}"
            )
        return self.papers[slug]


def check_scale(scale: object, where: str = "params.yaml: scale") -> str:
    """The scale itself, or an error that names the allowed ones."""
    if scale not in SCALES:
        raise PipelineError(
            f"{where}: found {scale!r}{nearest(scale, SCALES)}; allowed: {listed(SCALES)}"
        )
    return str(scale)


def checked_overrides(config: Mapping[str, Any], path: Path) -> str:
    """The scale of a Snakemake config, which may differ from params.yaml in the scale only.

    Stages read params.yaml themselves, so that any other override would be lost on them.
    """
    written = read_yaml(path)
    changed = [key for key in config if key != "scale" and config[key] != written.get(key)]
    if changed:
        raise PipelineError(
            f"--config: {listed(changed)} cannot be set on the command line; allowed: scale. "
            f"Edit {path}, or use `dvc exp run -S {changed[0]}...=value`"
        )
    return check_scale(config.get("scale", written.get("scale")), "--config scale")


def load(path: Path | None = None) -> Params:
    """Read and check params.yaml and every paper's own schema.

    Args:
        path: the file; its folder is the project. Default: the project this code lies in.

    Raises:
        PipelineError: naming the key, the value found, what is allowed and the nearest spelling.
    """
    path = path or ROOT / "params.yaml"
    root = path.parent
    value = read_yaml(path)
    if not isinstance(value, dict):
        raise PipelineError(f"{path.name}: found {type(value).__name__}, allowed: a mapping")
    _check_names(value, root, path.name)
    check(value, load_schema(root / "workflow" / "schemas" / "params.schema.yaml"), path.name)
    papers = {slug: Paper(slug, value[slug]) for slug in value["papers"]}
    for paper in papers.values():
        _check_paper(paper, root, path.name)
    live = value.get("tracking", {}).get("live", False)
    return Params(value["scale"], papers, live, root)


def _check_names(value: dict, root: Path, file: str) -> None:
    """Every key is a setting or a paper with code; every listed paper has a section."""
    folder = root / "scripts" / "papers"
    coded = sorted(path.parent.name for path in folder.glob("*/claims.yaml"))
    settings = ["scale", "papers", "tracking"]
    for key in value:
        if key not in settings and key not in coded:
            known = [*settings, *coded]
            raise PipelineError(
                f"{file}: {key}: unknown key or paper{nearest(key, known)}; allowed: "
                f"{listed(settings)}, and the papers with a folder in scripts/papers: "
                f"{listed(coded)}"
            )
    listed_papers = value.get("papers")
    for slug in listed_papers if isinstance(listed_papers, list) else []:
        if slug in RESERVED:
            raise PipelineError(
                f"{file}: papers: {slug!r} is the name of a rule; allowed: any but "
                f"{listed(RESERVED)}; rename the paper's folder and section"
            )
        if isinstance(slug, str) and slug not in value:
            sections = [key for key in value if key not in settings]
            raise PipelineError(
                f"{file}: papers: unknown paper {slug!r}{nearest(slug, sections)}; it has no "
                f"section in this file; allowed: {listed(sections)}"
            )


def _check_paper(paper: Paper, root: Path, file: str) -> None:
    where = f"{file}: {paper.slug}"
    folder = root / "scripts" / "papers" / paper.slug
    _check_stages(paper, folder, where)
    schema_path = folder / "params.schema.yaml"
    schema = load_schema(schema_path) if schema_path.exists() else None
    arms = sorted({arm for arms in paper.stages.values() for arm in arms})
    for scale in SCALES:
        settings = paper.at(scale)
        for arm in settings.single_seed:
            if arm not in arms:
                raise PipelineError(
                    f"{where}.{scale}.single_seed: unknown arm {arm!r}{nearest(arm, arms)}; "
                    f"allowed: {listed(arms)}"
                )
        for key in _PER_STAGE_DEFAULTS:
            by_stage = settings._machine.get(key)
            for stage in by_stage if isinstance(by_stage, Mapping) else ():
                if stage not in paper.stages:
                    raise PipelineError(
                        f"{where}.{scale}.{key}.{stage}: unknown stage"
                        f"{nearest(stage, paper.stages)}; allowed: {listed(paper.stages)}"
                    )
        _check_assets(settings.assets, root, scale, f"{where}.{scale}")
        if schema is None and settings.parameters:
            raise PipelineError(
                f"{where}.{scale}: unknown keys {listed(settings.parameters)}; allowed: "
                f"{listed(MACHINE_KEYS)} (a paper's own parameters need {schema_path})"
            )
        if schema is not None:
            machine = dict.fromkeys(MACHINE_KEYS, True)
            described = {**schema, "properties": {**machine, **schema.get("properties", {})}}
            check(settings._machine, described, f"{where}.{scale}")


def _check_stages(paper: Paper, folder: Path, where: str) -> None:
    stages = list(paper.stages)
    if stages[0] != "prepare" or stages[-1] != "plot":
        raise PipelineError(
            f"{where}.stages: found the order {listed(stages)}; allowed: prepare first, plot last"
        )
    canonical = [stage for stage in stages if stage in CANONICAL_STAGES]
    right = [stage for stage in CANONICAL_STAGES if stage in canonical]
    if canonical != right:
        raise PipelineError(
            f"{where}.stages: found the order {listed(canonical)}; allowed: {listed(right)}"
        )
    for stage in stages:
        if not (folder / f"{stage}.py").is_file():
            near = nearest(stage, CANONICAL_STAGES)
            raise PipelineError(
                f"{where}.stages.{stage}: unknown stage{near}; allowed: "
                f"{listed(CANONICAL_STAGES)}, or a stage with a module {folder / stage}.py"
            )


def _check_assets(assets: Mapping[str, str], root: Path, scale: str, where: str) -> None:
    from scripts.pipeline.assets import at_scale

    for role, name in assets.items():
        try:
            at_scale(root, name, scale)
        except PipelineError as error:
            raise PipelineError(f"{where}.assets.{role}: {error}") from None


def main() -> int:
    """Check params.yaml and the claims of its papers; returns the exit status."""
    from scripts.pipeline import claims, program

    def check_all(_: object) -> None:
        for slug in load().papers:
            claims.load(ROOT / "scripts" / "papers" / slug / "claims.yaml", slug)

    return program.run(check_all, "params")


if __name__ == "__main__":
    sys.exit(main())
