"""Files that are whole or not there, and damage that has a name."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from scripts.pipeline import files
from scripts.pipeline.errors import PipelineError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(deadline=None)
@given(values)
def test_canonical_json_is_json(value):
    assert json.loads(files.canonical_json(value)) == value


@settings(deadline=None)
@given(st.dictionaries(st.text(), values, max_size=4))
def test_digest_does_not_depend_on_the_order_of_keys(value):
    turned = dict(reversed(value.items()))
    assert files.digest(turned) == files.digest(value)


def test_known_hashes(tmp_path: Path):
    path = tmp_path / "abc"
    path.write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2
    assert files.sha256(path) == known
    assert files.digest({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.digest({"x": float("nan")})


def test_write_atomic_replaces_the_whole_file(tmp_path: Path):
    path = tmp_path / "deep" / "file"
    files.write_atomic(path, b"one")
    files.write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_write_atomic_that_fails_keeps_the_old_file(tmp_path: Path, monkeypatch):
    path = tmp_path / "file"
    files.write_atomic(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_write_atomic_killed_in_the_middle_leaves_nothing_after_the_next(tmp_path: Path):
    path = tmp_path / "file"
    code = (
        "import os, sys; from pathlib import Path; from scripts.pipeline import files\n"
        "os.fsync = lambda _: os.kill(os.getpid(), 9)\n"
        "files.write_atomic(Path(sys.argv[1]), b'half')"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path)], cwd=files.ROOT, check=False)
    assert killed.returncode == -9
    assert not path.exists()
    assert len(list(tmp_path.glob(".partial-*"))) == 1
    files.write_atomic(path, b"whole")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_folder_takes_its_name_at_the_end(tmp_path: Path):
    outdir = tmp_path / "deep" / "block"
    with files.whole_or_nothing(outdir) as folder:
        (folder / "a").write_text("1")
        assert not outdir.exists()
    with files.whole_or_nothing(outdir) as folder:
        (folder / "b").write_text("2")
        assert (outdir / "a").exists()
    assert [entry.name for entry in outdir.iterdir()] == ["b"]
    assert [entry.name for entry in outdir.parent.iterdir()] == ["block"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_folder_that_fails_leaves_nothing_and_keeps_the_old_one(tmp_path: Path, error):
    outdir = tmp_path / "block"
    with files.whole_or_nothing(outdir) as folder:
        (folder / "a").write_text("1")
    with pytest.raises(error), files.whole_or_nothing(outdir) as folder:
        (folder / "b").write_text("2")
        raise error
    assert [entry.name for entry in tmp_path.iterdir()] == ["block"]
    assert [entry.name for entry in outdir.iterdir()] == ["a"]


def test_leftovers_of_a_killed_process_go_and_those_of_other_blocks_stay(tmp_path: Path):
    mine, other = tmp_path / ".partial-a-123", tmp_path / ".partial-a-b-456"
    for folder in (mine, other):
        folder.mkdir()
        (folder / "half").touch()
    with files.whole_or_nothing(tmp_path / "a"):
        pass
    assert not mine.exists()
    assert other.exists()


def test_json_is_read_back_and_has_no_nan(tmp_path: Path):
    path = tmp_path / "x.json"
    files.write_json(path, {"b": 1, "a": "ü"})
    assert path.read_text(encoding="utf-8") == '{\n "a": "ü",\n "b": 1\n}\n'
    assert files.read_json(path, "prepare") == {"a": "ü", "b": 1}
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(path, {"a": float("nan")})
    assert files.read_json(path, "prepare") == {"a": "ü", "b": 1}


def _json(path: Path) -> None:
    path.write_text('{"a": [1, 2, 3]}')


def _table(path: Path) -> None:
    pd.DataFrame({"x": range(100)}).to_parquet(path)


def _tensors(path: Path) -> None:
    save_file({"x": torch.arange(100)}, path)


READERS = {
    "json": (files.read_json, _json),
    "parquet": (files.read_table, _table),
    "safetensors": (files.read_tensors, _tensors),
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "overwritten", "folder"])
def test_damage_names_the_file_and_what_makes_it(kind, damage, tmp_path: Path):
    read, write = READERS[kind]
    path = tmp_path / f"file.{kind}"
    write(path)
    read(path, "the maker")
    whole = path.read_bytes()
    if damage in ("missing", "folder"):
        path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "missing":
        changed = {"empty": b"", "truncated": whole[:-7], "overwritten": b"\0" * len(whole)}
        path.write_bytes(changed[damage])
    with pytest.raises(PipelineError) as error:
        read(path, "the maker")
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert "the maker" in message
    assert ("missing" if damage in ("missing", "folder") else "damaged") in message


def test_columns_of_a_table(tmp_path: Path):
    path = tmp_path / "t.parquet"
    pd.DataFrame({"x": [1], "y": [2]}).to_parquet(path)
    assert list(files.read_table(path, "x", ["y"]).columns) == ["y"]
