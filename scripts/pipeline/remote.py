"""Check a DVC remote: read every object that dvc.lock names and compare it with its hash.

    python -m scripts.pipeline.remote                  # the default remote; or --remote NAME
    python -m scripts.pipeline.remote --mend           # put back what this clone's cache has whole

DVC asks a remote whether objects exist, and of a folder only whether its listing does: it takes
a damaged object for a good one, and `dvc push` leaves both damaged and lost ones as they are.
(With `dvc remote modify NAME verify true`, `dvc pull` at least refuses the damaged ones.)
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from scripts.pipeline import files, program
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.schema import listed

if TYPE_CHECKING:
    from dvc.repo import Repo
    from dvc_data.hashfile.db import HashFileDB

_READERS = 8
_BLOCK = 2**22
"""Bytes that a reader asks for at a time."""

WHOLE, DAMAGED, MISSING = "whole", "damaged", "missing"


def main(argv: list[str] | None = None, root: Path = files.ROOT) -> int:
    """The program; see the module's docstring. Status 1 when the remote is not whole."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.pipeline.remote",
        description="Compare each object of a DVC remote with its hash.",
    )
    parser.add_argument("--remote", help="name of the remote; default: DVC's default remote")
    parser.add_argument("--mend", action="store_true", help="put back what the cache has whole")
    args = parser.parse_args(argv)
    return program.run(lambda _: check(root, args.remote, args.mend), "remote")


def check(root: Path, name: str | None, mend: bool = False, screen: TextIO = sys.stdout) -> None:
    """Read all objects of a remote and, with `mend`, write those that are not whole anew.

    Raises:
        PipelineError: no such remote, it cannot be read, or it is not whole (afterwards).
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo(str(root)) as repo:
            remote, cache = repo.cloud.get_remote_odb(name, "check"), repo.cache.local
            where = remote.fs.unstrip_protocol(remote.path)
            _require_reachable(remote, where)
            objects = _objects(repo, remote, cache)
    except DvcException as error:
        raise PipelineError(f"{error}") from error
    found = _states(remote, objects)
    faults = {oid: state for oid, state in found.items() if state != WHOLE}
    for oid, state in faults.items():
        path = remote.fs.unstrip_protocol(remote.oid_to_path(oid))
        print(f"{state}: {path}: {listed(sorted(objects[oid]))}", file=screen)
    if mend:
        mended = [oid for oid in faults if _put_back(cache, remote, oid)]
        faults = {oid: state for oid, state in faults.items() if oid not in mended}
        print(f"put back: {len(mended)}", file=screen)
    if faults:
        raise PipelineError(
            f"{len(faults)} of {len(found)} objects in {where} are damaged or missing. "
            + (
                "This clone's cache does not have them whole; try one that does"
                if mend
                else "From a clone that has them: python -m scripts.pipeline.remote --mend"
                + (f" --remote {name}" if name else "")
            )
        )
    print(f"{where}: {len(found)} objects, all whole", file=screen)


def _require_reachable(remote: "HashFileDB", where: str) -> None:
    """Ask once: each kind of remote has its own family of errors for a wrong key or a wrong name.

    Raises:
        PipelineError: the remote cannot be read.
    """
    try:
        remote.fs.exists(remote.path)
    except Exception as error:
        raise PipelineError(f"{where}: cannot be read ({error})") from error


def _objects(repo: "Repo", remote: "HashFileDB", cache: "HashFileDB") -> dict[str, set[str]]:
    """Object id -> the files (for a listing, the folder) that it holds."""
    objects: dict[str, set[str]] = {}
    for out in repo.index.outs:
        if not (out.use_cache and out.hash_info):
            continue
        oid, path = out.hash_info.value, str(out)
        objects.setdefault(oid, set()).add(path)
        if out.hash_info.isdir:
            for entry in _listing(oid, remote, cache):
                objects.setdefault(entry["md5"], set()).add(f"{path}/{entry['relpath']}")
    return objects


def _listing(oid: str, *stores: "HashFileDB") -> list[dict[str, str]]:
    """The files of a folder, by the first store that has its listing whole; else none."""
    for store in stores:
        if _state(store, oid) == WHOLE:
            with store.fs.open(store.oid_to_path(oid), "rb") as file:
                return json.load(file)
    return []


def _states(store: "HashFileDB", oids: Iterable[str]) -> dict[str, str]:
    ordered = sorted(oids)
    with ThreadPoolExecutor(_READERS) as readers:
        return dict(zip(ordered, readers.map(lambda oid: _state(store, oid), ordered), strict=True))


def _state(store: "HashFileDB", oid: str) -> str:
    """Whether an object is whole, by its bytes."""
    found = hashlib.md5(usedforsecurity=False)
    try:
        with store.fs.open(store.oid_to_path(oid), "rb") as file:
            while block := file.read(_BLOCK):
                found.update(block)
    except FileNotFoundError:
        return MISSING
    return WHOLE if found.hexdigest() == oid.removesuffix(".dir") else DAMAGED


def _put_back(cache: "HashFileDB", remote: "HashFileDB", oid: str) -> bool:
    """Write a remote's object from the cache; whether the cache has it and the remote took it."""
    if _state(cache, oid) != WHOLE:
        return False
    path = remote.oid_to_path(oid)
    with suppress(FileExistsError):
        remote.fs.makedirs(remote.fs.parent(path), exist_ok=True)
    remote.fs.put_file(cache.oid_to_path(oid), path)
    return _state(remote, oid) == WHOLE


if __name__ == "__main__":
    sys.exit(main())
