"""Models and corpora, each filled once from the package or hub that ships it.

`data/sources.csv` says where each asset comes from, its licence and its SHA-256. At smoke and
laptop scale an asset comes from a package in the lock, or from Python itself; at paper scale the
same name resolves to the hub id and revision of its row, where it has one.

    python -m scripts.pipeline.assets smollm2-135m-instruct
"""

import argparse
import csv
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from scripts.pipeline import program
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.files import (
    ROOT,
    only_one,
    read_json,
    sha256,
    whole_or_nothing,
    write_json,
)
from scripts.pipeline.packages import Source, data_files, opened
from scripts.pipeline.schema import listed, nearest

HUB_SUFFIX = ".hub"
_WANTED_FROM_HUB = ("*.json", "*.safetensors", "*.txt", "*.model")


@cache
def sources(root: Path = ROOT) -> dict[str, Source]:
    """Asset name -> its row; `<name>.hub` stands for the same asset taken from the hub."""
    path = root / "data" / "sources.csv"
    if not path.is_file():
        raise PipelineError(f"{path}: missing; it is part of the repository: git checkout it")
    fields = list(Source.__dataclass_fields__)
    found = {}
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != fields:
            raise PipelineError(
                f"{path}: found the columns {listed(reader.fieldnames or [])}; "
                f"allowed: {listed(fields)}"
            )
        for row in reader:
            if None in row or None in row.values():
                raise PipelineError(
                    f"{path}: line {reader.line_num}: not {len(fields)} fields; "
                    "quote fields that hold a comma"
                )
            source = Source(**row)
            if {source.asset, source.asset + HUB_SUFFIX} & found.keys():
                raise PipelineError(f"{path}: the asset {source.asset!r} stands twice")
            if source.package and source.converter not in _CONVERTERS:
                raise PipelineError(
                    f"{path}: asset {source.asset!r}: unknown converter {source.converter!r}"
                    f"{nearest(source.converter, _CONVERTERS)}; allowed: {listed(_CONVERTERS)}"
                )
            if source.package:
                found[source.asset] = source
            if source.hub_id:
                found[source.asset + HUB_SUFFIX] = source
    return found


def at_scale(root: Path, name: str, scale: str) -> str:
    """The asset that a name in params.yaml means at a scale: from the hub at paper scale.

    Raises:
        PipelineError: an unknown name, or one that cannot be had at this scale.
    """
    known = sources(root)
    hub = name + HUB_SUFFIX
    names = sorted({source.asset for source in known.values()})
    if name not in names:
        raise PipelineError(
            f"unknown asset {name!r}{nearest(name, names)}; "
            f"allowed (data/sources.csv): {listed(names)}"
        )
    if scale == "paper" and hub in known:
        return hub
    if name not in known:
        raise PipelineError(
            f"asset {name!r} is only on the hub, which scale {scale!r} does not use; "
            f"allowed: {listed(key for key in known if not key.endswith(HUB_SUFFIX))}"
        )
    return name


def folder_of(root: Path, name: str) -> Path:
    return root / "data" / "assets" / name


def verified(root: Path, name: str) -> Path:
    """Folder of an asset, after checking every file against its manifest.

    Raises:
        PipelineError: the asset is missing, or a file is missing, truncated or changed.
    """
    folder = folder_of(root, name)
    again = f"snakemake --cores 1 data/assets/{name}/manifest.json"
    manifest = read_json(folder / "manifest.json", again)
    try:
        wanted = {file: entry["sha256"] for file, entry in manifest["files"].items()}
    except (AttributeError, KeyError, TypeError):
        raise PipelineError(
            f"{folder / 'manifest.json'}: asset {name!r} is damaged: its manifest names no files. "
            f"Delete {folder} and run: {again}"
        ) from None
    for file, was in wanted.items():
        path = folder / file
        found = sha256(path) if path.is_file() else "no file"
        if found != was:
            raise PipelineError(
                f"{path}: asset {name!r} is damaged: SHA-256 is {found}, it was {was}. "
                f"Delete {folder} and run: {again}"
            )
    return folder


def build(root: Path, name: str) -> None:
    """Fill `data/assets/<name>` from its source, whole or not at all.

    Raises:
        PipelineError: unknown name, or its package is missing, of another version or damaged.
    """
    from scripts.pipeline.freshness import write_manifest

    known = sources(root)
    if name not in known:
        raise PipelineError(
            f"unknown asset {name!r}{nearest(name, known)}; "
            f"allowed (data/sources.csv): {listed(known)}"
        )
    source = known[name]
    with (
        only_one(root / "scratch" / "locks" / f"asset-{name}.lock"),
        whole_or_nothing(folder_of(root, name)) as folder,
    ):
        if name.endswith(HUB_SUFFIX):
            _from_hub(source, folder)
        else:
            with opened(source, root) as path:
                _CONVERTERS[source.converter](path, folder)
        write_manifest(folder, source.recipe)


def _copy(path: Path, folder: Path) -> None:
    for file in data_files(path):
        target = folder / (file.relative_to(path) if path.is_dir() else file.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def _message_catalogues(path: Path, folder: Path) -> None:
    """Copy the compiled translation catalogues (.mo) alone."""
    for file in sorted(path.rglob("*.mo")):
        target = folder / file.relative_to(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def _gguf_to_safetensors(path: Path, folder: Path) -> None:
    """Dequantise a GGUF Llama once, to float32 safetensors with its tokenizer.

    The weights are saved here, since a model loaded from GGUF does not save itself.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, local_files_only=True
    )
    tokenizer = AutoTokenizer.from_pretrained(
        path.parent, gguf_file=path.name, local_files_only=True
    )
    weights = {name: tensor.contiguous() for name, tensor in loaded.state_dict().items()}
    if loaded.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    target = folder / "model.safetensors"
    save_file(weights, target, metadata={"format": "pt"})
    target.chmod(0o644)
    loaded.config.save_pretrained(folder)
    loaded.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _python_topics(_: None, folder: Path) -> None:
    """The reference manual's topics as CPython ships them: topics.json, name -> text."""
    from pydoc_data.topics import topics

    write_json(folder / "topics.json", dict(sorted(topics.items())))
    write_json(folder / "version.json", {"python": sys.version.split()[0]})


def _program(module: Path, folder: Path) -> None:
    """Run a seeded program of this project that fills a folder.

    In a process of its own: the pipeline imports no paper, and a paper's stages none of another's.
    """
    done = subprocess.run([sys.executable, "-m", str(module), str(folder)], cwd=ROOT)
    if done.returncode != 0:
        raise PipelineError(f"python -m {module} ended with status {done.returncode}: see above")


_CONVERTERS: dict[str, Callable[..., None]] = {
    "copy": _copy,
    "gguf": _gguf_to_safetensors,
    "message_catalogues": _message_catalogues,
    "python_topics": _python_topics,
    "program": _program,
}


def _from_hub(source: Source, folder: Path) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    wants_file = source.file and not source.package
    where = f"asset {source.asset!r}: {source.hub_id} at revision {source.revision}"
    try:
        snapshot_download(
            source.hub_id.removeprefix("datasets/"),
            repo_type="dataset" if source.hub_id.startswith("datasets/") else "model",
            revision=source.revision,
            local_dir=folder,
            allow_patterns=[source.file] if wants_file else list(_WANTED_FROM_HUB),
        )
    except GatedRepoError as error:
        raise PipelineError(
            f"{where} is gated: accept its licence on its hub page, then `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise PipelineError(f"{where} is not on the hub (or private): {error}") from error
    except Exception as error:  # the hub's client passes on errors of several libraries
        raise PipelineError(f"{where} cannot be fetched ({error}); check the network") from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)


def main(argv: list[str] | None = None) -> int:
    """Build the named assets; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", metavar="asset")
    parser.add_argument("--log", type=Path, help="write output here; errors also to the screen")
    args = parser.parse_args(argv)

    def build_all(_: object) -> None:
        for name in args.names:
            build(ROOT, name)

    return program.run(build_all, "assets", args.log)


if __name__ == "__main__":
    sys.exit(main())
