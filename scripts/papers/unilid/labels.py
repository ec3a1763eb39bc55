"""Labels: dialect groups, scripts, and the codes by which other systems know their languages."""

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence

DIALECTS = {
    "Romansh": (
        "roh_puter", "roh_rumgr", "roh_surmiran", "roh_sursilv", "roh_sutsilv", "roh_vallader",
    ),
    "Quechua": (
        "qud", "qug", "qul", "quy", "quz", "qva", "qvc", "qvh", "qvm", "qvn", "qwh", "qxa", "qxn",
        "qxu",
    ),
    "BCMS": ("bos_latn", "hrv", "cnr", "srp_latn"),
    "Portuguese": ("por_BR", "por_PT"),
    "Occitan": ("oci_1", "oci_2", "oci_3", "oci_4", "prv", "lnc", "auv"),
    "Akan": ("aka_akuapem", "aka_asante", "aka_fante"),
    "Hausa": ("hau_3", "hau_NE", "hau_NG"),
    "Mandarin": (
        "cmn_hans", "cmn_hans_beijing", "cmn_hans_guiyang", "cmn_hans_harbin", "cmn_hans_nanjing",
        "cmn_hans_tianjin",
    ),
}  # fmt: skip
"""Groups of closely related labels of the declaration (spec: 45; near copies leave the corpus)."""

LOCALE_GROUPS = {
    "pt_BR": "Portuguese", "pt": "Portuguese", "es": "Spanish", "es_MX": "Spanish",
    "ca": "Catalan", "nb": "Norwegian", "nn": "Norwegian", "zh_Hans": "Chinese",
    "zh_Hant": "Chinese", "hr": "BCMS", "bs": "BCMS",
}  # fmt: skip

CODES = {
    "afr": "af", "arb": "ar", "ast": "ast", "azj": "az", "bel": "be", "bul": "bg", "ben": "bn",
    "bre": "br", "bos": "bs", "cat": "ca", "ckb": "ckb", "ces": "cs", "cym": "cy", "dan": "da",
    "deu": "de", "ell": "el", "epo": "eo", "spa": "es", "ekk": "et", "eus": "eu", "pes": "fa",
    "fin": "fi", "fra": "fr", "fry": "fy", "gle": "ga", "gla": "gd", "glg": "gl", "heb": "he",
    "hin": "hi", "hrv": "hr", "hsb": "hsb", "hun": "hu", "hye": "hy", "ina": "ia", "ind": "id",
    "ibo": "ig", "ido": "io", "isl": "is", "ita": "it", "jpn": "ja", "kat": "ka", "kaz": "kk",
    "khm": "km", "kan": "kn", "kor": "ko", "kir": "ky", "ltz": "lb", "lit": "lt", "lvs": "lv",
    "mkd": "mk", "mal": "ml", "khk": "mn", "mar": "mr", "zlm": "ms", "mya": "my", "nob": "nb",
    "npi": "ne", "nld": "nl", "nno": "nn", "oss": "os", "pan": "pa", "pol": "pl", "por": "pt",
    "ron": "ro", "rus": "ru", "slk": "sk", "slv": "sl", "als": "sq", "srp": "sr", "swe": "sv",
    "swh": "sw", "tam": "ta", "tel": "te", "tgk": "tg", "tha": "th", "tuk": "tk", "tur": "tr",
    "tat": "tt", "uig": "ug", "ukr": "uk", "urd": "ur", "uzn": "uz", "vie": "vi", "cmn": "zh",
}  # fmt: skip
"""Languages of both corpora: ISO 639-3 code in the declaration -> code in Django's locales."""

RENAMED = {"iw": "he", "no": "nb", "in": "id", "fil": "tl", "sh": "sr", "ji": "yi"}
"""Codes of pretrained systems that Django writes otherwise; Norwegian without a form is Bokmål."""


def language_of_locale(locale: str) -> str:
    """The language's code of a locale (`es_MX` -> `es`)."""
    return locale.split("_")[0]


def language_of_system(code: str) -> str:
    """A system's language code in our spelling (`zh-Latn` -> `zh`, `iw` -> `he`)."""
    base = code.split("-")[0].lower()
    return RENAMED.get(base, base)


def script_of(texts: Sequence[str]) -> str:
    """The most frequent script of the letters, by their Unicode names ("LATIN", "CJK", ...)."""
    letters = Counter(c for text in texts for c in text if c.isalpha())
    scripts: Counter[str] = Counter()
    for letter, count in letters.items():
        scripts[unicodedata.name(letter, "UNKNOWN").split()[0]] += count
    return max(sorted(scripts), key=scripts.__getitem__) if scripts else "UNKNOWN"


def stratified(scripts: Mapping[str, str], first: Sequence[str], size: int) -> list[str]:
    """`size` labels: `first`, then all scripts in proportion, alphabetical within a script.

    Args:
        scripts: label -> script.
    """
    chosen = [label for label in first if label in scripts]
    by_script: dict[str, list[str]] = {}
    for label in sorted(set(scripts) - set(chosen)):
        by_script.setdefault(scripts[label], []).append(label)
    ranked = sorted(
        (place / len(labels), label)
        for labels in by_script.values()
        for place, label in enumerate(labels)
    )
    return sorted(chosen + [label for _, label in ranked][: max(0, size - len(chosen))])
