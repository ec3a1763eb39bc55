"""What each product was made from, and whether it still is: recipes instead of file times.

A recipe is a hash of everything that decides a product's content: parameters, cells, the code it
imports, its assets and the recipes of its inputs. Every product carries the recipe it was made by
(a manifest, or a field of its own). Snakemake judges by file times, which neither git nor DVC
keep, so before its DAG is built `settle_times` sets the times of products from their recipes:
a product that is what it would become is made newer than its inputs, any other is made old.
Thus a fresh clone after `dvc pull` runs nothing, and an edit reruns exactly what depends on it.
"""

import ast
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path

from scripts.pipeline.assets import at_scale, sources
from scripts.pipeline.dag import Block, Dag
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.files import digest, sha256, write_json
from scripts.pipeline.params import Params
from scripts.pipeline.schema import listed

OBSERVERS = frozenset({"scripts.pipeline.tracking", "scripts.pipeline.live"})
"""Modules that watch a stage and cannot change what it computes."""

_PACKAGES = ("scripts", "kernels")
_LONG_AGO = 10**18
"""A file time in nanoseconds (September 2001) that is older than any input."""
_RECIPE_IN_PAGE = re.compile(rb'<meta name="recipe" content="([0-9a-f]{64})">')


@dataclass(frozen=True)
class Product:
    """One job's outputs: what they are made from and the recipe they should carry."""

    outputs: tuple[Path, ...]
    """Relative to the project; the first one carries the recipe."""
    inputs: tuple[Path, ...]
    recipe: str


class Freshness:
    """The products of a project at one scale."""

    def __init__(self, params: Params, scale: str) -> None:
        self.root = params.root
        self.scale = scale
        self.dags = {slug: Dag(paper, scale) for slug, paper in params.papers.items()}
        self._blocks: dict[Path, Product] = {}
        self._imports: dict[str, list[Path]] = {}

    @cached_property
    def products(self) -> dict[Path, Product]:
        """First output -> product, inputs before what is made from them."""
        return {path: find() for path, find in self.finders.items()}

    @cached_property
    def finders(self) -> dict[Path, Callable[[], Product]]:
        """First output -> function that works its product out, and those it is made from only.

        The jobs of a cluster each ask for one.
        """
        found = {_asset_manifest(name): partial(self.asset, name) for name in self.asset_names}
        for slug, dag in self.dags.items():
            for block in dag.blocks.values():
                found[block.manifest] = partial(self.block, dag, block)
            found[self._results(slug, "verdicts.json")] = partial(self.judge, slug)
            found[self._results(slug, "tracked.json")] = partial(self.track, slug)
        found[Path("results", self.scale, "report.html")] = self.report
        return found

    def _results(self, slug: str, file: str) -> Path:
        return Path("results", self.scale, slug, file)

    @cached_property
    def asset_names(self) -> list[str]:
        """Assets that some paper uses at this scale."""
        return sorted({name for dag in self.dags.values() for name in self._assets(dag).values()})

    def asset(self, name: str) -> Product:
        row = sources(self.root)[name]
        return Product((_asset_manifest(name),), (Path("data/sources.csv"),), row.recipe)

    def _assets(self, dag: Dag) -> dict[str, str]:
        """Role -> asset, as the paper's names resolve at this scale."""
        return {
            role: at_scale(self.root, name, self.scale)
            for role, name in dag.settings.assets.items()
        }

    def block(self, dag: Dag, block: Block) -> Product:
        """One job of a stage. Kept: everything made later asks for it again."""
        if block.manifest not in self._blocks:
            self._blocks[block.manifest] = self._block(dag, block)
        return self._blocks[block.manifest]

    def _block(self, dag: Dag, block: Block) -> Product:
        code = self._code(f"scripts.papers.{block.paper}.{block.stage}")
        assets = self._assets(dag)
        before = dag.inputs(block)
        recipe = digest(
            {
                "stage": block.stage,
                "cells": [cell.name for cell in block.cells],
                "parameters": dag.settings.parameters,
                "seeds": dag.settings.seeds,
                "factors": dag.paper.factors,
                "threads": dag.settings.machine("threads", block.stage),
                "gpu": dag.settings.machine("gpu", block.stage),
                "assets": {role: self.asset(name).recipe for role, name in assets.items()},
                "code": {str(path): _hash(self.root / path) for path in code},
                "inputs": {str(other.manifest): self.block(dag, other).recipe for other in before},
            }
        )  # fmt: skip
        manifests = [self.asset(name).outputs[0] for name in sorted(set(assets.values()))]
        manifests += [other.manifest for other in before]
        return Product((block.manifest,), (Path("params.yaml"), *manifests, *code), recipe)

    def judge(self, slug: str) -> Product:
        """The verdicts of a paper: its metrics, its claims and the engine."""
        dag = self.dags[slug]
        claims = Path("scripts/papers", slug, "claims.yaml")
        fixed = [claims, Path("workflow/schemas/claims.schema.yaml")]
        code = self._code("scripts.pipeline.ledger")
        parts = {block.manifest: self.block(dag, block).recipe for block in dag.judged()}
        return Product(
            (
                self._results(slug, "verdicts.json"),
                self._results(slug, "verdicts.parquet"),
                Path("results", self.scale, "metrics", f"{slug}.json"),
            ),
            (*parts, *fixed, *code),
            self._digest_of(parts, [*fixed, *code], title=dag.paper.title),
        )

    def track(self, slug: str) -> Product:
        """The marker that says a paper's results were logged to MLflow."""
        dag = self.dags[slug]
        code = self._code("scripts.pipeline.tracking")
        figures = self.block(dag, dag.block("plot", "all"))
        verdicts = self.judge(slug)
        parts = {product.outputs[0]: product.recipe for product in (figures, verdicts)}
        marker = self._results(slug, "tracked.json")
        return Product((marker,), (*parts, *code), self._digest_of(parts, code))

    def report(self) -> Product:
        """The page of all papers."""
        code = self._code("scripts.pipeline.report")
        folder = self.root / "workflow" / "report"
        template = [path.relative_to(self.root) for path in sorted(folder.glob("*"))]
        readmes = [Path("scripts/papers", slug, "README.md") for slug in self.dags]
        present = [path for path in [*template, *readmes] if (self.root / path).is_file()]
        parts = {}
        for slug, dag in self.dags.items():
            for product in (self.judge(slug), self.block(dag, dag.block("plot", "all"))):
                parts[product.outputs[0]] = product.recipe
        page = Path("results", self.scale, "report.html")
        return Product(
            (page,),
            (*parts, *present, *code),
            self._digest_of(parts, [*present, *code], papers=list(self.dags)),
        )

    def require_inputs(self, product: Product) -> None:
        """Refuse to make a product, and to give it its recipe, from inputs that are not theirs.

        Raises:
            PipelineError: naming the inputs that are missing, damaged or out of date.
        """
        read = [self.finders[path]() for path in product.inputs if path in self.finders]
        stale = [other.outputs[0] for other in read if not self.is_fresh(other)]
        if stale:
            raise PipelineError(
                f"{listed(stale)}: missing, damaged or out of date, and read by this stage. "
                f"Make it again: snakemake --cores all {' '.join(map(str, stale))}"
            )

    def is_fresh(self, product: Product) -> bool:
        """Whether the product is there, whole, and carries the recipe it should."""
        return all((self.root / path).is_file() for path in product.outputs) and (
            carried_recipe(self.root / product.outputs[0]) == product.recipe
        )

    def settle_times(self) -> None:
        """Set the times of all products from their recipes (see the module's docstring).

        Raises:
            PipelineError: a time has to change and cannot (a folder that is read-only).
        """

        @cache
        def given(path: Path) -> int:  # code and settings, which the loop leaves alone
            return _time(self.root / path)

        latest = _LONG_AGO
        for product in self.products.values():
            present = [self.root / path for path in product.outputs]
            present = [path for path in present if path.is_file()]
            inputs = [
                _time(self.root / path) if path in self.products else given(path)
                for path in product.inputs
            ]
            if self.is_fresh(product):
                for path in present:
                    _make_newer(path, max(inputs, default=_LONG_AGO))
                latest = max(latest, *(_time(path) for path in present))
            else:
                for path in present:
                    _set_time(path, min([_LONG_AGO, *(time - 10**9 for time in inputs)]))
        for path in sorted((self.root / "logs").rglob("*.benchmark.tsv")):
            _make_newer(path, latest)  # Snakemake counts them among a job's outputs

    def _code(self, module: str) -> list[Path]:
        if module not in self._imports:
            found = _imports(self.root, module)
            self._imports[module] = [path.relative_to(self.root) for path in found]
        return self._imports[module]

    def _digest_of(self, parts: dict[Path, str], files: list[Path], **rest: object) -> str:
        hashes = {str(path): _hash(self.root / path) for path in files}
        return digest({"parts": {str(k): v for k, v in parts.items()}, "files": hashes, **rest})


def _asset_manifest(name: str) -> Path:
    return Path("data/assets", name, "manifest.json")


def carried_recipe(path: Path) -> str | None:
    """The recipe a product says it was made by; None when it is damaged or not whole."""
    try:
        if path.suffix == ".html":
            with path.open("rb") as file:
                found = _RECIPE_IN_PAGE.search(file.read(8192))
            return found[1].decode() if found else None
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("files", {}), dict):
        return None
    for name, entry in value.get("files", {}).items():
        file = path.parent / name
        size = entry.get("size") if isinstance(entry, dict) else None
        if not file.is_file() or file.stat().st_size != size:
            return None
    return value.get("recipe")


def write_manifest(folder: Path, recipe: str) -> None:
    """Write a folder's manifest: its recipe, and size and SHA-256 of each file."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": sha256(path)}
        for path in paths
    }
    write_json(folder / "manifest.json", {"recipe": recipe, "files": entries})


def _imports(root: Path, module: str) -> list[Path]:
    """The project's files that a module imports, itself included, by their import statements."""
    seen: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _file_of(root, name)
        if path is None or name in seen or (name in OBSERVERS and name != module):
            continue
        seen[name] = path
        waiting += _imported_names(path)
    return sorted(set(seen.values()))


@cache
def _imported_names(path: Path) -> tuple[str, ...]:
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise PipelineError(f"{path}: line {error.lineno}: not valid Python: {error.msg}") from None
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(name for name in names if name.split(".")[0] in _PACKAGES)


def _file_of(root: Path, module: str) -> Path | None:
    path = root.joinpath(*module.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


@cache
def _hash(path: Path) -> str:
    return sha256(path) if path.is_file() else "missing"


def _time(path: Path) -> int:
    """A file's time; one that is not there (or is just being replaced) counts as old."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return _LONG_AGO


def _make_newer(path: Path, time: int) -> None:
    if _time(path) < time:
        _set_time(path, time)


def _set_time(path: Path, time: int) -> None:
    if _time(path) == time:
        return
    try:
        os.utime(path, ns=(time, time))
    except FileNotFoundError:
        return  # another process is just replacing it
    except OSError as error:
        raise PipelineError(
            f"{path}: cannot set its time ({error.strerror}). The project's data and results must "
            "be writable: check the owner and the mount, or work in a copy"
        ) from error
