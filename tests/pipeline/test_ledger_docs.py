"""The ledger in the documents: counted from the verdicts, and no text breaks out of its cell."""

from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from scripts.pipeline import ledger_docs
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.files import ROOT, write_json
from scripts.pipeline.ledger import VERDICTS

HOSTILE = "a | b <script>x</script> [c](d) `e` *f*\n| g |"


def paper(slug: str, *verdicts: str, text: str = "It holds.") -> dict[str, Any]:
    """A paper's verdicts; every second claim has no check."""
    claims = [
        {
            "id": f"C{i}",
            "claim": text,
            "verdict": verdict,
            "reason": f"reason {i} {text}",
            "checks": [{"verdict": verdict, "statement": f"statement {i} {text}"}] * (i % 2),
        }
        for i, verdict in enumerate(verdicts, 1)
    ]
    return {"paper": slug, "title": f"Title of {slug} {text}", "scale": "laptop", "claims": claims}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_text(
        f"before\n{ledger_docs.BEGIN}\nstale\n{ledger_docs.END}\nafter\n"
    )
    for each in (paper("one", *VERDICTS[:4], VERDICTS[0]), paper("two", "reproduced")):
        write_json(tmp_path / f"results/laptop/{each['paper']}/verdicts.json", each)
    return tmp_path


def test_both_documents_are_written_and_again_the_same(root):
    assert ledger_docs.main(["--scale", "laptop", "--root", str(root)]) == 0
    readme, ledger = (root / "README.md").read_text(), (root / "docs/ledger.md").read_text()
    assert readme.startswith("before\n") and readme.endswith("\nafter\n") and "stale" not in readme
    assert "| 5 | 2 | 1 | 1 | 1 |" in readme and "| 1 | 1 | 0 | 0 | 0 |" in readme
    assert "| C1: It holds | **reproduced** | statement 1 It holds. |" in ledger
    assert "| C2: It holds | **partly** | reason 2 It holds. |" in ledger
    ledger_docs.main(["--scale", "laptop", "--root", str(root)])
    assert (root / "README.md").read_text() == readme


def test_text_stays_in_its_cell():
    page = ledger_docs.full_ledger([paper("one", "reproduced", "partly", text=HOSTILE)], "laptop")
    html = MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(page)
    assert html.count("<tr>") == 3 and html.count("<td>") == 6
    assert "<script>" not in html and "<a " not in html and "<em>" not in html
    html = MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(
        ledger_docs.counts_table([paper("one", "partly", text=HOSTILE)])
    )
    assert html.count("<td>") == 6 and html.count("<a ") == 1 and "<script>" not in html


def test_readme_without_the_marks(root):
    (root / "README.md").write_text("nothing\n")
    with pytest.raises(PipelineError, match="add these lines"):
        ledger_docs.write(root, "laptop")
    assert not (root / "docs/ledger.md").exists()


def test_the_committed_readme_has_the_marks():
    ledger_docs.fill((ROOT / "README.md").read_text(), "", "README.md")
