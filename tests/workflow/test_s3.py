"""DVC remotes, a folder and an S3 API: pushes that are killed, objects that are damaged."""

import hashlib
import logging
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.workflow.conftest import Copy
from tests.workflow.project import BIN, Clone, Tracked

if TYPE_CHECKING:
    from botocore.client import BaseClient

BUCKET = "claims"
CHECK = ("python", "-m", "scripts.pipeline.remote")


class TrackedCopy(Copy, Tracked):
    """A copy of a project under git and DVC, to change."""


class Remote(ABC):
    """Where objects are pushed to, seen without DVC; names as `files/md5/ab/cdef...`."""

    url: str
    checkpoints: int
    """So many more that a push is still at work when it is killed."""

    def settings(self) -> dict[str, str]:
        """What `dvc remote modify` has to be told."""
        return {}

    @abstractmethod
    def names(self) -> set[str]:
        """Names of the objects that are there."""

    @abstractmethod
    def read(self, name: str) -> bytes: ...

    @abstractmethod
    def write(self, name: str, data: bytes) -> None: ...

    @abstractmethod
    def remove(self, name: str) -> None: ...


class Folder(Remote):
    checkpoints = 300

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = str(folder)

    def names(self) -> set[str]:
        found = self.folder.glob("files/md5/*/*")
        return {str(path.relative_to(self.folder)) for path in found if path.suffix != ".tmp"}

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        self.remove(name)  # it is read-only
        (self.folder / name).write_bytes(data)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()


class S3(Remote):
    """A bucket of moto's server."""

    checkpoints = 60

    def __init__(self, client: "BaseClient", endpoint: str, prefix: str) -> None:
        self.client = client
        self.endpoint = endpoint
        self.prefix = prefix
        self.url = f"s3://{BUCKET}/{prefix}"

    def settings(self) -> dict[str, str]:
        return {"endpointurl": self.endpoint}

    def names(self) -> set[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=BUCKET, Prefix=self.prefix
        )
        keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
        return {key.removeprefix(f"{self.prefix}/") for key in keys}

    def read(self, name: str) -> bytes:
        return self.client.get_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}")["Body"].read()

    def write(self, name: str, data: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}", Body=data)

    def remove(self, name: str) -> None:
        self.client.delete_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}")


@pytest.fixture(scope="module")
def s3() -> Iterator[tuple["BaseClient", str]]:
    """A client of an S3 server with an empty bucket, and the server's address."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
            patch.setenv(f"AWS_{name}", "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        client = boto3.client("s3", endpoint_url=endpoint)
        client.create_bucket(Bucket=BUCKET)
        yield client, endpoint
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Remote:
    if request.param == "folder":
        return Folder(tmp_path / "remote")
    return S3(*request.getfixturevalue("s3"), prefix=request.node.name)


@pytest.fixture
def project(by_dvc: Tracked, tmp_path: Path, remote: Remote) -> TrackedCopy:
    """A reproduced project whose default remote is new and empty."""
    project = TrackedCopy(by_dvc, tmp_path / "project")
    project.ok("dvc", "remote", "add", "--default", "theirs", remote.url)
    for name, value in {**remote.settings(), "verify": "true"}.items():
        project.ok("dvc", "remote", "modify", "theirs", name, value)
    project.commit("Name a remote")
    return project


def held(project: Tracked) -> set[str]:
    """Names of the objects in a project's cache."""
    cache = project.root / ".dvc/cache"
    return {str(path.relative_to(cache)) for path in cache.glob("files/md5/*/*")}


def is_whole(remote: Remote, name: str) -> bool:
    oid = "".join(Path(name).parts[-2:]).removesuffix(".dir")
    return hashlib.md5(remote.read(name)).hexdigest() == oid


def object_of(project: Tracked, file: str) -> str:
    """Name of the object that holds a file."""
    oid = hashlib.md5((project.root / file).read_bytes()).hexdigest()
    return f"files/md5/{oid[:2]}/{oid[2:]}"


def listing_of(project: Tracked, folder: str) -> str:
    """Name of the object that lists a folder's files."""
    stages = yaml.safe_load((project.root / "dvc.lock").read_text())["stages"].values()
    (oid,) = [out["md5"] for stage in stages for out in stage["outs"] if out["path"] == folder]
    return f"files/md5/{oid[:2]}/{oid[2:]}"


def test_a_push_that_is_killed_is_resumed_and_a_clone_of_it_runs_nothing(
    project: TrackedCopy, remote: Remote, tmp_path: Path
) -> None:
    checkpoints = project.root / "checkpoints"
    checkpoints.mkdir()
    for number in range(remote.checkpoints):
        (checkpoints / f"{number}.safetensors").write_bytes(number.to_bytes(4) * 5000)
    project.ok("dvc", "add", "checkpoints")
    project.commit("Checkpoints")

    push = [BIN / "dvc", "push", "--jobs", "1"]
    running = subprocess.Popen(push, cwd=project.root, env=project.environment())
    end = time.monotonic() + 60
    while len(remote.names()) < 5:
        assert time.monotonic() < end, "waited in vain for the first objects"
    running.send_signal(signal.SIGKILL)
    running.wait()
    begun = remote.names()
    assert 5 <= len(begun) < len(held(project))
    assert all(is_whole(remote, name) for name in begun)
    broken_off = project.command(*CHECK)
    assert broken_off.returncode == 1
    assert "missing: " in broken_off.stdout

    project.ok("dvc", "push")
    assert remote.names() == held(project)
    assert all(is_whole(remote, name) for name in remote.names())
    assert f"{len(held(project))} objects, all whole" in project.ok(*CHECK)

    clone = Clone(project, tmp_path / "clone")
    done = clone.command("dvc", "pull")
    assert done.returncode == 0, done.stdout + done.stderr
    assert clone.products() == project.products()
    assert clone.planned() == set()
    assert "Nothing to be done" in clone.run("--workflow-profile", "none")


def test_damage_is_found_and_named_and_mended(
    project: TrackedCopy, remote: Remote, tmp_path: Path
) -> None:
    project.ok("dvc", "push")
    table = "results/laptop/alpha/stages/train/all/ours-s0/shifted.parquet"
    damaged = object_of(project, table)
    content = bytearray(remote.read(damaged))
    content[len(content) // 2] ^= 1  # the size stays
    remote.write(damaged, bytes(content))

    clone = Clone(project, tmp_path / "clone")
    done = clone.command("dvc", "pull")
    assert done.returncode != 0
    assert "results/laptop/alpha/stages" in done.stderr
    assert not (clone.root / table).exists()
    assert not (clone.root / ".dvc/cache" / damaged).exists()

    lost = object_of(project, "results/laptop/beta/tracked.json")
    remote.remove(lost)
    cut = listing_of(project, "data/laptop/beta")
    remote.write(cut, remote.read(cut)[:40])
    done = project.command(*CHECK)
    assert done.returncode == 1
    assert sorted(done.stdout.splitlines()) == sorted(
        [
            f"damaged: {remote.url}/{damaged}: {table}",
            f"missing: {remote.url}/{lost}: results/laptop/beta/tracked.json",
            f"damaged: {remote.url}/{cut}: data/laptop/beta",
        ]
    )
    assert "error: remote: 3 of " in done.stderr

    partly = clone.command(*CHECK, "--mend")  # it pulled all but the damaged one
    assert partly.returncode == 1
    assert "put back: 2" in partly.stdout
    assert "error: remote: 1 of " in partly.stderr
    assert "does not have them whole" in partly.stderr
    mended = project.ok(*CHECK, "--mend")
    assert "put back: 1" in mended
    assert "all whole" in mended
    assert clone.command("dvc", "pull").returncode == 0
    assert clone.products() == project.products()
    assert clone.planned() == set()


def test_a_remote_that_cannot_be_read_is_one_message(project: TrackedCopy, remote: Remote) -> None:
    unknown = project.command(*CHECK, "--remote", "hers")
    assert unknown.returncode == 1
    assert unknown.stderr.startswith("error: remote: ")
    assert "hers" in unknown.stderr
    if isinstance(remote, S3):
        project.ok("dvc", "remote", "modify", "theirs", "endpointurl", "http://127.0.0.1:9")
        down = project.command(*CHECK)
        assert down.returncode == 1
        assert f"error: remote: {remote.url}/files/md5: cannot be read" in down.stderr
        assert "Traceback" not in down.stderr
