"""The command-line program: every kind of line, faults, and adding a label."""

import io
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from scripts.papers.unilid import identify as program
from scripts.papers.unilid.model import Model

BYTES = [bytes([byte]) for byte in range(256)]
WORDS = sorted([*BYTES, *(w.encode() for w in (" the", " and", "ing", " der", " und", "ung"))])
TEXTS = {
    "eng": ["the king and the thing", "the singing and the ring are the thing"],
    "deu": ["der Hund und die Zeitung", "und der Mann und die Wohnung der Stadt"],
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file(Model.fit(WORDS, TEXTS, 10).arrays(), path)
    return path


def told(model: Path, raw: bytes, tmp_path: Path, *options: str) -> list[str]:
    """Labels, scores and margins for the lines of a file."""
    source = tmp_path / "lines.txt"
    source.write_bytes(raw)
    out = io.StringIO()
    stdout, sys.stdout = sys.stdout, out
    try:
        assert program.main(["--model", str(model), str(source), "--quiet", *options]) == 0
    finally:
        sys.stdout = stdout
    return out.getvalue().splitlines()


def test_a_line_in_is_a_line_out(model: Path, tmp_path: Path) -> None:
    raw = b"the thing and the ring\nund der Hund\r\n\n \t\nthe thing"
    found = [line.split("\t") for line in told(model, raw, tmp_path)]
    assert [label for label, _, _ in found] == ["eng", "deu", "und", "und", "eng"]
    assert found[2] == ["und", "0.0000", "0.0000"]
    assert all(float(score) <= 0 <= float(margin) for _, score, margin in found)


def test_json_lines(model: Path, tmp_path: Path) -> None:
    (row,) = told(model, b"the thing\n", tmp_path, "--json")
    assert json.loads(row)["label"] == "eng"
    assert set(json.loads(row)) == {"label", "score", "margin"}


def test_nothing_in_nothing_out(model: Path, tmp_path: Path) -> None:
    assert told(model, b"", tmp_path) == []


def test_invalid_utf8_counts_as_a_space(model: Path, tmp_path: Path) -> None:
    broken, clean = told(model, b"the \xff\xc3 thing\nthe    thing\n", tmp_path)
    assert broken == clean
    assert broken.startswith("eng")


def test_an_unknown_script_has_no_label(model: Path, tmp_path: Path) -> None:
    thai = "สวัสดีชาวโลก\n".encode()
    assert told(model, thai, tmp_path)[0].startswith("und\t-")
    assert not told(model, thai, tmp_path, "--unknown", "100")[0].startswith("und")


def test_lines_of_a_megabyte(model: Path, tmp_path: Path) -> None:
    raw = b"the thing and " * 75_000 + b"\n" + b"ing" * 350_000 + b"\nund der\n"
    assert [line.split("\t")[0] for line in told(model, raw, tmp_path)] == ["eng", "eng", "deu"]


@pytest.mark.parametrize("size", [1, 3, 1 << 20])
def test_lines_do_not_depend_on_how_they_are_read(size: int, monkeypatch) -> None:
    monkeypatch.setattr(program, "CHUNK", size)
    raw = b"a\nbb\n\nccc\n\nd"
    for end in (b"", b"\n"):
        found = program.batches(io.BufferedReader(io.BytesIO(raw + end)))
        assert list(itertools.chain.from_iterable(found)) == raw.split(b"\n")


def test_a_label_is_added_in_place_and_the_others_keep_their_bits(
    model: Path, tmp_path: Path, capsys
) -> None:
    before = program.load_model(model)
    (tmp_path / "nld.txt").write_text("het huis en de boom\n\nhet is een mooie dag in het huis\n")
    args = ["--model", str(model), "--add-label", "nld", str(tmp_path / "nld.txt")]
    assert program.main(args) == 0
    assert "3 labels" in capsys.readouterr().err
    after = program.load_model(model)
    assert after.labels == ("eng", "deu", "nld")
    assert after.log_p[:, :2].tobytes() == before.log_p.tobytes()
    assert told(model, b"het huis\n", tmp_path)[0].startswith("nld")
    assert not list(tmp_path.glob(".partial-*"))
    whole = model.read_bytes()
    assert program.main(args) == 1
    assert "'nld' is in the model already" in capsys.readouterr().err
    assert model.read_bytes() == whole


def test_a_failed_write_leaves_the_old_model(model: Path, tmp_path: Path, monkeypatch) -> None:
    whole = model.read_bytes()
    (tmp_path / "nld.txt").write_text("het huis\n")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        program.add_label(model, "nld", tmp_path / "nld.txt")
    assert model.read_bytes() == whole
    assert not list(tmp_path.glob(".partial-*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "nowhere"], "no such model. The default one is made by: snakemake"),
        (["--model", "{broken}"], "damaged or no UniLID model"),
        (["--model", "{model}", "no/such/file"], "No such file"),
        (["--model", "{model}", "--unknown", "0"], "nats per byte above 0"),
        (["--add-label", "x", "{lines}"], "needs --model"),
        (["--model", "{model}", "--add-label", "x", "no/such"], "a file of text lines is needed"),
        (["--model", "{model}", "--add-label", "x", "{empty}"], "none with a character"),
        (["--model", "{model}", "--add-label", "x\ty", "{lines}"], "without control characters"),
        (["--model", "{model}", "--add-label", "x", "{lines}", "{lines}"], "reads no other FILE"),
    ],
)
def test_mistakes_end_with_one_line(
    options: list[str], message: str, model: Path, tmp_path: Path, capsys
) -> None:
    paths = {name: tmp_path / name for name in ("broken", "lines", "empty")}
    paths["broken"].write_bytes(model.read_bytes()[:1000])
    paths["lines"].write_text("a b\n")
    paths["empty"].write_text("\n \n")
    filled = [option.format(model=model, **paths) for option in options]
    assert program.main(filled) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message in error


def test_progress_is_told_on_stderr_only(monkeypatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(program, "EVERY", 0.0)
    progress = program.Progress(screen)
    progress.add(1000)
    assert "1,000 lines" in screen.getvalue()


def test_a_reader_that_leaves_is_no_error(model: Path) -> None:
    command = (
        f'yes "the thing" | "{sys.executable}" -m scripts.papers.unilid.identify '
        f'--quiet --model "{model}" | head -1'
    )
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.startswith("eng\t")
    assert "Traceback" not in done.stderr


def test_scores_of_batches_equal_scores_one_by_one(model: Path) -> None:
    loaded = program.load_model(model)
    texts = ["the thing", "und der", "", "the und"]
    together = loaded.scorer().scores(texts)
    alone = np.concatenate([loaded.scorer().scores([text]) for text in texts])
    assert np.array_equal(together, alone)
