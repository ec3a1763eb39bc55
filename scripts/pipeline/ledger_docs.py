"""The ledger in the documents: docs/ledger.md, and the table of counts in README.md.

    python -m scripts.pipeline.ledger_docs --scale laptop

Both are computed from the verdicts of the last run; nobody writes a verdict by hand.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from scripts.pipeline import program
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.files import ROOT, write_atomic
from scripts.pipeline.ledger import VERDICTS, decisive, read
from scripts.pipeline.params import SCALES

BEGIN, END = "<!-- ledger: written by make ledger -->", "<!-- end of ledger -->"
COUNTED = [verdict for verdict in VERDICTS if verdict != "wiring only"]
Verdicts = dict[str, Any]


def counts_table(verdicts: list[Verdicts]) -> str:
    """A row per paper: how many of its claims got which verdict."""
    head = ["paper", "claims", *COUNTED]
    lines = [_row(head), _row(["---"] * len(head))]
    for paper in verdicts:
        found = Counter(claim["verdict"] for claim in paper["claims"])
        link = f"[{_text(paper['title'])}](scripts/papers/{paper['paper']}/README.md)"
        numbers = [len(paper["claims"]), *(found[verdict] for verdict in COUNTED)]
        lines.append(_row([link, *(str(number) for number in numbers)]))
    return "\n".join(lines)


def full_ledger(verdicts: list[Verdicts], scale: str) -> str:
    """A section per paper: each claim with its verdict and the check that decides."""
    parts = [
        f"# The claim ledger at {scale} scale",
        "Written by `make ledger` from the verdicts of the last full run. Each row shows\n"
        "the check that decides; the report page shows all checks with their intervals and units.",
    ]
    for paper in verdicts:
        head = ["claim", "verdict", "the check that decides"]
        rows = [_row(head), _row(["---"] * len(head))]
        for claim in paper["claims"]:
            atom = decisive(claim)
            told = claim["reason"] if atom is None else atom["statement"]
            name = f"{claim['id']}: {_text(claim['claim'].rstrip('.'))}"
            rows.append(_row([name, f"**{claim['verdict']}**", _text(told)]))
        parts += [f"## {_text(paper['title'])} (`{paper['paper']}`)", "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


def fill(readme: str, table: str, place: str) -> str:
    """README's text with the table between its two marks.

    Raises:
        PipelineError: the marks are missing or in the wrong order.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise PipelineError(
            f"{place}: the table goes between the lines {BEGIN} and {END}; add these lines"
        )
    return f"{before}{begin}\n{table}\n{end}{after}"


def write(root: Path, scale: str) -> None:
    """Rewrite docs/ledger.md and the table of README.md from the verdicts at a scale."""
    verdicts = read(root, scale)
    readme = root / "README.md"
    text = fill(readme.read_text(encoding="utf-8"), counts_table(verdicts), str(readme))
    write_atomic(root / "docs" / "ledger.md", full_ledger(verdicts, scale).encode())
    write_atomic(readme, text.encode())


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(text: str) -> str:
    """Text that stays in its cell and is no markup."""
    for char in "\\|<>*`[]":
        text = text.replace(char, f"\\{char}")
    return " ".join(text.split())


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", required=True, choices=SCALES)
    parser.add_argument("--root", type=Path, default=ROOT, help="the project")
    args = parser.parse_args(argv)
    return program.run(lambda _: write(args.root, args.scale), "ledger documents", None)


if __name__ == "__main__":
    sys.exit(main())
