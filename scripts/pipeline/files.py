"""Reading and writing files so that nothing is half-written and damage has a name."""

import glob
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pandas as pd
    import torch

ROOT = Path(__file__).absolute().parents[2]
"""The project folder: params.yaml, the Snakefile, data/ and results/ lie in it."""


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical_json(value: Any) -> str:
    """JSON text that is equal exactly when the values are (sorted keys, no NaN)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """Hex SHA-256 of the canonical JSON of a value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` so that a reader sees the old file or the whole new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f".partial-{glob.escape(path.name)}-*"):
        leftover.unlink(missing_ok=True)  # of a process that was killed while it wrote
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".partial-{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """Wait for another process that runs the same block; a dead one's lock is free."""
    from filelock import FileLock

    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock):
        yield


@contextmanager
def whole_or_nothing(outdir: Path) -> Iterator[Path]:
    """A new folder that takes the name `outdir` when the block ends well, and else goes away."""
    outdir.parent.mkdir(parents=True, exist_ok=True)
    for leftover in outdir.parent.glob(f".partial-{glob.escape(outdir.name)}-*"):
        if leftover.name.removeprefix(f".partial-{outdir.name}-").isdigit():  # a process id
            shutil.rmtree(leftover)
    folder = outdir.parent / f".partial-{outdir.name}-{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
        if outdir.exists():
            shutil.rmtree(outdir)
        folder.rename(outdir)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically. NaN is refused."""
    text = json.dumps(value, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False)
    write_atomic(path, f"{text}\n".encode())


def read_json(path: Path, made_by: str) -> Any:
    """Read a JSON file; `made_by` names the command or rule to run when it is not there."""
    return _read(path, made_by, lambda: json.loads(path.read_text(encoding="utf-8")))


def read_table(path: Path, made_by: str, columns: list[str] | None = None) -> "pd.DataFrame":
    """Read a parquet file into a frame (see `read_json` for `made_by`)."""
    import pandas as pd

    return _read(path, made_by, lambda: pd.read_parquet(path, columns=columns))


def read_tensors(path: Path, made_by: str, device: str = "cpu") -> "dict[str, torch.Tensor]":
    """Read a safetensors file (see `read_json` for `made_by`)."""
    from safetensors.torch import load_file

    return _read(path, made_by, lambda: load_file(path, device=device))


def _read(path: Path, made_by: str, load: Callable[[], Any]) -> Any:
    if not path.is_file():
        raise PipelineError(f"{path}: missing. It is made by: {made_by}")
    try:
        return load()
    except MemoryError:
        raise
    except Exception as error:  # each format has its own family of errors for a damaged file
        raise PipelineError(
            f"{path}: damaged or not of its kind ({type(error).__name__}: {error}). "
            f"Delete it and make it again: {made_by}"
        ) from error
