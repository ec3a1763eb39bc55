"""results/<scale>/report.html: the claim ledger, each paper's figures, cost and limitations, and
what the run was made with, in one self-contained HTML document that asks nothing of any server.

    python -m scripts.pipeline.report --scale laptop
"""

import argparse
import base64
import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import quote

from scripts.pipeline import ledger, params, program
from scripts.pipeline.files import ROOT, write_atomic
from scripts.pipeline.freshness import Freshness
from scripts.pipeline.page import Check, Claim, Page, gather, markdown_parser
from scripts.pipeline.whiskers import (
    Axis,
    Claimed,
    Whisker,
    axis,
    duration,
    number,
    p_value,
    whisker,
)

if TYPE_CHECKING:
    from markdown_it.token import Token
    from markupsafe import Markup

TEMPLATES = ROOT / "workflow" / "report"

MEANING = {
    ledger.REPRODUCED: "The interval clears the margin in the claimed direction.",
    ledger.PARTLY: "The direction is the claimed one but the interval includes the margin, "
    "or only some of the stated settings hold.",
    ledger.NOT_REPRODUCED: "The measurements do not bear the claim out. Beside it stands the "
    "smallest effect this run could have seen.",
    ledger.NOT_TESTABLE: "This scale or machine cannot judge the claim; the reason is given.",
    ledger.WIRING_ONLY: "Smoke scale: the claim's checks ran from end to end; nothing is judged.",
}
"""Verdict -> what it says, in the order of the page."""

_NUMBER = r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?"


def render(page: Page) -> str:
    """The page as one HTML document."""
    from jinja2 import Environment as Templates
    from jinja2 import FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    templates = Templates(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals |= {
        "anchor": anchor,
        "draw": draw,
        "icons": {verdict: f"v{i}" for i, verdict in enumerate(MEANING)},
        "tally": tally,
    }
    templates.filters |= {
        "arxiv": arxiv,
        "data_uri": data_uri,
        "duration": duration,
        "markdown": _prose,
        "number": number,
        "p_value": p_value,
        "plain": plain,
        "svg_size": svg_size,
    }
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return templates.get_template("report.html.jinja").render(
        page=page,
        verdicts=MEANING,
        css=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
    )


def tally(verdicts: Iterable[str]) -> dict[str, int]:
    """Verdict -> count, every verdict in the order of the page."""
    counts = Counter(verdicts)
    return {verdict: counts[verdict] for verdict in MEANING}


def draw(claim: Claim) -> list[tuple[Check, Whisker | None]]:
    """A claim's checks with their plots; checks of one kind, metric and unit share an axis."""
    shown: dict[tuple, list[float | None]] = {}
    for check in claim.checks:
        bounds = () if (stretch := claimed(check)) is None else stretch.bounds
        shown.setdefault(_comparable(check), []).extend(
            (check.effect, check.low, check.high, *bounds)
        )
    axes = {key: axis(values) for key, values in shown.items()}
    return [(check, _plot(check, axes[_comparable(check)])) for check in claim.checks]


def _comparable(check: Check) -> tuple:
    return check.kind, check.metric, check.effect_unit


def _plot(check: Check, shared: Axis) -> Whisker | None:
    if check.effect is None:
        return None
    return whisker(shared, check.effect, check.low, check.high, claimed(check))


def claimed(check: Check) -> Claimed | None:
    """Where on the effect's axis the claim holds; None when the check states no bound.

    The judge's `margin` is a distance for `not_worse` and `correlates`, the largest difference
    for `exact`, the paper's value for `same_value`, and else the bound itself; the bounds of a
    `rate` stand in `direction`.
    """
    margin, direction = check.margin, check.direction or ""
    if check.kind == "rate":
        found = re.fullmatch(rf"within \[(open|{_NUMBER}), (open|{_NUMBER})\]", direction)
        ends = [None if end == "open" else float(end) for end in found.groups()] if found else []
        return Claimed(*ends) if any(end is not None for end in ends) else None
    if margin is None:
        return None
    if check.kind == "same_value":
        return Claimed(margin, margin)
    if check.kind == "greater":
        return Claimed(margin, None, strict=True)
    if check.kind == "not_worse":
        return Claimed(-margin, None)
    if check.kind == "correlates" and direction == "negative":
        return Claimed(None, -margin, strict=True)
    if check.kind == "correlates":
        return Claimed(margin, None, strict=True)
    if check.kind in ("exact", "at_most") or direction == "at most":
        return Claimed(None, margin)
    return Claimed(margin, None)


def plain(value: Any) -> str:
    """A value out of a claim as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, list):
        return ", ".join(plain(item) for item in value)
    return "—" if value is None else str(value)


def anchor(*parts: str) -> str:
    """An HTML id made of `parts`."""
    return "-".join(re.sub(r"[^A-Za-z0-9_]+", "_", part) for part in parts)


def arxiv(source: str) -> str | None:
    """The arXiv number in a paper's source, if it names one."""
    found = re.search(r"\barXiv[: ]\s*(\d{4}\.\d{4,5})\b", source, re.IGNORECASE)
    return found[1] if found else None


def data_uri(svg: str) -> str:
    """An SVG document as an image address, in which it can neither script nor load anything."""
    return "data:image/svg+xml," + quote(svg, safe=" !$()*+,-./:;=?@_~")


def svg_size(svg: str) -> tuple[int, int]:
    """Width and height of an SVG's view box, so that the page keeps the figure's place."""
    box = re.search(rf"""viewBox=["']\s*\S+\s+\S+\s+({_NUMBER})\s+({_NUMBER})""", svg)
    return (round(float(box[1])), round(float(box[2]))) if box else (640, 400)


def _prose(text: str) -> "Markup":
    """Markdown as HTML, its headings below the page's own."""
    from markupsafe import Markup

    parser = markdown_parser()
    tokens: list[Token] = parser.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 2)}"
    return Markup(parser.renderer.render(tokens, parser.options, {}))


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    """The program; see the module's docstring. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.pipeline.report",
        description="Write results/<scale>/report.html from the results of a run.",
    )
    parser.add_argument("--scale", help="smoke, laptop or paper; default: params.yaml")
    parser.add_argument("--log", type=Path, help="write output here; errors also to the screen")
    args = parser.parse_args(argv)

    def action(_: TextIO) -> None:
        settings = params.load(root / "params.yaml")
        scale = params.check_scale(args.scale or settings.scale, "--scale")
        freshness = Freshness(settings, scale)
        freshness.require_inputs(freshness.report())
        text = render(gather(root, scale))
        write_atomic(root / "results" / scale / "report.html", text.encode())

    return program.run(action, "report", args.log)


if __name__ == "__main__":
    sys.exit(main())
