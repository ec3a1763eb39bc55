"""The texts: Universal Declaration of Human Rights and message catalogues of Django."""

import gettext
import html
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

SHORTEST = 20  # characters
_BLOCK = re.compile(
    r"<(?P<open>header|article)(?P<attributes>[^>]*)>|</(?:header|article)>"
    r"|<(?P<kind>p|li)\b[^>]*>(?P<text>.*?)</(?P=kind)>",
    re.DOTALL,
)
_NUMBER = re.compile(r'data-number="(\d+)"')
_ISO = re.compile(r'data-iso6393="([a-z]{3})"')
_PLACEHOLDER = re.compile(r"%\([A-Za-z_]+\)[#0\- +]?[\d.]*[a-z]|%[a-z]|\{[^{}]*\}|<[^<>]*>|&\w+;")


def declaration(page: str) -> tuple[str, list[tuple[int, str]]]:
    """(ISO 639-3 code, [(article, paragraph)]) of one declaration; the preamble is article 0.

    Paragraphs are `p` and `li` elements, unescaped, with white space collapsed, of at least 20
    characters.
    """
    iso = _ISO.search(page)
    article, found = None, []
    for match in _BLOCK.finditer(page):
        if match["open"] == "header":
            article = 0
        elif match["open"]:
            number = _NUMBER.search(match["attributes"])
            article = int(number[1]) if number else None
        elif match["kind"] is None:
            article = None
        elif article is not None:
            text = " ".join(html.unescape(re.sub("<[^>]*>", " ", match["text"])).split())
            if len(text) >= SHORTEST:
                found.append((article, text))
    return (iso[1] if iso else ""), found


def read_udhr(folder: Path, fewest: int) -> "pd.DataFrame":
    """Paragraphs of all declarations with at least `fewest` of them: label, iso, article, text.

    A label is a file's name; numbered files, which have no language code of their own, are left
    out. Of declarations that share more than 30% of their paragraphs the first is kept.

    Raises:
        ValueError: the folder holds no declaration.
    """
    import pandas as pd

    rows = []
    kept: dict[str, set[str]] = {}
    for path in sorted(folder.glob("*.html")):
        label = path.stem
        iso, found = declaration(path.read_text(encoding="utf-8"))
        texts = {text for _, text in found}
        if label.isdigit() or len(found) < fewest or not iso:
            continue
        if any(len(texts & other) > 0.3 * min(len(texts), len(other)) for other in kept.values()):
            continue
        kept[label] = texts
        rows += [(label, iso, article, text) for article, text in found]
    if not rows:
        raise ValueError(f"{folder}: no declaration of {fewest} paragraphs; fewer, or other files")
    return pd.DataFrame(rows, columns=["label", "iso", "article", "text"])


def read_catalogues(folder: Path) -> "pd.DataFrame":
    """Translated messages of all .mo catalogues: locale, message (the source text) and text.

    Kept are messages of at least 20 characters after format placeholders and markup are removed,
    without a line break and other than the source text.

    Raises:
        ValueError: the folder holds no catalogue.
    """
    import pandas as pd

    rows = {}
    for path in sorted(folder.rglob("*.mo")):
        locale = path.parent.parent.name
        with path.open("rb") as file:
            catalogue = gettext.GNUTranslations(file)._catalog
        for key, text in catalogue.items():
            message = key[0] if isinstance(key, tuple) else key
            clean = " ".join(_PLACEHOLDER.sub(" ", text).split())
            if text != message and "\n" not in text and len(clean) >= SHORTEST:
                rows.setdefault((locale, message), clean)
    if not rows:
        raise ValueError(f"{folder}: no .mo catalogue with messages; Django's are expected")
    return pd.DataFrame(
        [(locale, message, text) for (locale, message), text in sorted(rows.items())],
        columns=["locale", "message", "text"],
    )
