"""Name the language of each line of text.

    python -m scripts.papers.unilid.identify [FILE ...] < lines > labels.tsv

Prints for every line, in order: label, score (log-probability of the line under that label, nats)
and margin (nats to the second label), as tab-separated values or JSON lines. Lines end with LF;
a CR before it is dropped. Special lines:
  - empty or only white space: label `und`, score and margin 0;
  - invalid UTF-8: each invalid part, and each U+FFFD, counts as a space;
  - text that no label explains, such as a script without a label: `und`, where the best label
    needs more than --unknown nats per byte (text of a known language needs 1 to 4);
  - two labels equally likely: the first, with margin 0;
  - any length: memory grows with the longest line only.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

import numpy as np

from scripts.papers.unilid.model import Model, Scorer
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.files import ROOT, only_one, write_atomic

DEFAULT = Path("results", "laptop", "unilid", "stages", "train", "all", "models-s0")
NAME = "udhr_all.safetensors"
MADE_BY = "snakemake --cores all unilid"
UNKNOWN = "und"
CHUNK = 1 << 20  # bytes read at once
EVERY = 5.0  # seconds between signs of progress
ROUNDS = 20


def load_model(path: Path) -> Model:
    """A model from its safetensors file.

    Raises:
        PipelineError: the file is missing, damaged, or no UniLID model.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not path.is_file():
        raise PipelineError(f"{path}: no such model. The default one is made by: {MADE_BY}")
    try:
        return Model.of_arrays(load_file(path))
    except (SafetensorError, ValueError) as error:
        raise PipelineError(
            f"{path}: damaged or no UniLID model ({error}). The default one is made by: {MADE_BY}"
        ) from error


def batches(file: BinaryIO) -> Iterator[list[bytes]]:
    """Whole lines, without their ends, as soon as they can be read."""
    rest: list[bytes] = []
    while chunk := file.read1(CHUNK):
        whole, found, last = chunk.rpartition(b"\n")
        if not found:
            rest.append(chunk)
            continue
        lines = (b"".join(rest) + whole).split(b"\n")
        rest = [last] if last else []
        yield lines
    if rest:
        yield [b"".join(rest)]


def identify(
    model: Model, scorer: Scorer, lines: list[bytes], unknown: float
) -> Iterator[tuple[str, float, float]]:
    """(label, score, margin) of each line; see the module for special lines.

    Args:
        unknown: nats per byte beyond which the label is `und`.
    """
    texts = [line.removesuffix(b"\r").decode("utf-8", "replace") for line in lines]
    texts = [text.replace("\ufffd", " ") for text in texts]
    texts = ["" if text.isspace() else text for text in texts]
    found = scorer.predict(texts)
    sizes = np.array([max(1, len(text.encode())) for text in texts])
    known = (-found.score <= unknown * sizes) & np.array([bool(text) for text in texts], bool)
    for i in range(len(texts)):
        label = model.labels[found.label[i]] if known[i] else UNKNOWN
        margin = float(found.margin[i]) if texts[i] else 0.0
        yield label, float(found.score[i]), margin


def add_label(path: Path, name: str, source: Path) -> int:
    """Add a label to a model file, fitted on the lines of a text file; returns its labels.

    The file is replaced in one step, and the columns of its other labels keep every bit. Two
    processes that add to one file take turns.

    Raises:
        PipelineError: the file of lines or the model cannot be used, or the label exists.
    """
    from safetensors.numpy import save

    try:
        lines = source.read_bytes().decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise PipelineError(f"{source}: {error.strerror}; a file of text lines is needed") from None
    texts = [line for line in lines if line.strip()]
    with only_one(path.with_name(f".{path.name}.lock")):
        model = load_model(path)
        try:
            model = model.with_label(name, texts, ROUNDS)
        except ValueError as error:
            raise PipelineError(f"--add-label {name} {source}: {error}") from error
        write_atomic(path, save(model.arrays()))
    return len(model.labels)


class Progress:
    """Signs of progress on long input: a line on stderr every few seconds."""

    def __init__(self, screen: TextIO | None):
        self._screen, self._start, self._last, self.lines = screen, time.monotonic(), 0.0, 0

    def add(self, lines: int) -> None:
        self.lines += lines
        spent = time.monotonic() - self._start
        if self._screen and spent - self._last >= EVERY:
            self._last = spent
            rate = self.lines / spent
            print(f"identify: {self.lines:,} lines, {rate:,.0f} a second", file=self._screen)


def write(out: TextIO, found: Iterator[tuple[str, float, float]], as_json: bool) -> int:
    """Write a batch; the number of lines."""
    if as_json:
        rows = [
            json.dumps({"label": label, "score": round(score, 4), "margin": round(margin, 4)})
            if margin != float("inf")
            else json.dumps({"label": label, "score": round(score, 4), "margin": None})
            for label, score, margin in found
        ]
    else:
        rows = [f"{label}\t{score:.4f}\t{margin:.4f}" for label, score, margin in found]
    out.write("".join(f"{row}\n" for row in rows))
    out.flush()
    return len(rows)


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="identify", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="default: stdin")
    parser.add_argument("--model", type=Path, help="default: the model of the laptop run")
    parser.add_argument("--json", action="store_true", help="JSON lines instead of TSV")
    parser.add_argument(
        "--unknown", type=float, default=10.0, metavar="NATS", help="per byte (default 10)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.add_argument(
        "--add-label",
        nargs=2,
        metavar=("NAME", "FILE"),
        help="fit a new label on the lines of FILE and add it to --model",
    )
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> None:
    default = ROOT / DEFAULT / NAME
    if args.add_label:
        name, source = args.add_label
        if args.model is None:
            raise PipelineError(
                "--add-label changes a model file and needs --model: the default one is a product "
                f"of the pipeline; copy it first: cp {DEFAULT / NAME} my.safetensors"
            )
        if args.files:
            raise PipelineError("--add-label reads no other FILE; identify in a second call")
        total = add_label(args.model, name, Path(source))
        print(f"identify: added {name!r} to {args.model}: {total} labels", file=sys.stderr)
        return
    if not args.unknown > 0:
        raise PipelineError(f"--unknown {args.unknown}: nats per byte above 0 are allowed")
    model = load_model(args.model or default)
    scorer = model.scorer()
    progress = Progress(None if args.quiet else sys.stderr)
    for path in args.files or [None]:
        try:
            file = sys.stdin.buffer if path is None else path.open("rb")
        except OSError as error:
            raise PipelineError(f"{path}: {error.strerror}; a file of text is needed") from None
        with file:
            for lines in batches(file):
                found = identify(model, scorer, lines, args.unknown)
                progress.add(write(sys.stdout, found, args.json))


def main(argv: list[str] | None = None) -> int:
    """The exit status: 0, or 1 with one line that says what is wrong."""
    args = arguments(argv)
    try:
        run(args)
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader has seen enough
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
