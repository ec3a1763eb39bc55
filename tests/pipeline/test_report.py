"""The report page: what it shows, what it escapes, and what it says when a file is missing."""

import base64
import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scripts.pipeline import ledger, params, report
from scripts.pipeline.errors import PipelineError
from scripts.pipeline.freshness import Freshness, carried_recipe
from scripts.pipeline.page import Check, Page, gather
from tests.pipeline import made_up_results as made_up

VOID = {"meta", "link", "input", "img", "br", "hr", "col"}


class Document(HTMLParser):
    """The elements of a page in order, as (tag, attributes, text), and whether each is closed."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute stands twice in <{tag}>"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        words = (data for tag, data in self.texts if tag not in ("script", "style"))
        return " ".join(" ".join(words).split())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, not to be changed."""
    root = tmp_path_factory.mktemp("whole")
    made_up.write(root)
    return root


@pytest.fixture(scope="module")
def page(whole: Path) -> Page:
    return gather(whole, "laptop")


@pytest.fixture(scope="module")
def html(page: Page) -> str:
    return report.render(page)


@pytest.fixture(scope="module")
def document(html: str) -> Document:
    return Document(html)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A finished run of one's own, to break."""
    made_up.write(tmp_path)
    return tmp_path


def with_claims(page: Page, *records: dict) -> Page:
    """The page with one paper that has these claims."""
    found = [
        dataclasses.replace(
            page.papers[0].claims[0],
            **record | {"checks": [Check(**check) for check in record["checks"]]},
        )
        for record in records
    ]
    return dataclasses.replace(page, papers=[dataclasses.replace(page.papers[0], claims=found)])


# What is gathered -----------------------------------------------------------------------------


def test_gather_reads_every_piece(page: Page) -> None:
    alpha, omega = page.papers
    assert [claim.id for claim in alpha.claims[:5]] == ["C1", "C2", "C3", "C4", "C5"]
    assert len(alpha.claims[0].checks) == 3
    assert [figure.svg for figure in alpha.figures] == [made_up.SVG, made_up.SVG]
    assert omega.figures == []
    assert alpha.recipe == made_up.RECIPE
    assert [(f.asset, f.file, f.size) for f in page.assets] == [
        (made_up.ASSET, "model.safetensors", 538_000_000)
    ]
    assert page.environment.commit is None
    assert page.environment.cores >= 1


def test_cost_adds_up_the_jobs_of_a_stage(page: Page) -> None:
    cost = {cost.stage: cost for cost in page.papers[1].costs}["compress"]
    assert cost.blocks == 4
    assert cost.seconds == pytest.approx(sum(3.25 + i for i in range(1, 5)))
    assert cost.longest_seconds == 3.25 + 4
    assert cost.overruns == []


def test_cost_names_the_job_that_took_more_than_declared(page: Page, document: Document) -> None:
    cost = {cost.stage: cost for cost in page.papers[0].costs}["evaluate"]
    assert cost.overruns == [
        "evaluate (all) took 5,120 MB of memory; 4,000 MB are declared.",
        "evaluate (all) took 3 min 5 s; 2 min are declared.",
    ]
    assert all(line in document.text for line in cost.overruns)
    assert "5,120 MB over" in document.text


def test_limitations_end_at_the_next_heading_and_code_is_no_heading(page: Page) -> None:
    text = page.papers[0].limitations
    assert text.startswith("- Everything is **scaled down**")
    assert "### What cannot be judged" in text
    assert "another section" not in text


def test_the_page_carries_the_recipe_of_what_it_was_made_from(project: Path) -> None:
    assert report.main(["--scale", "laptop"], root=project) == 0
    products = Freshness(params.load(project / "params.yaml"), "laptop")
    assert carried_recipe(project / "results/laptop/report.html") == products.report().recipe
    assert products.is_fresh(products.report())


def test_the_scale_defaults_to_that_of_params(project: Path) -> None:
    assert report.main([], root=project) == 0
    assert (project / "results/laptop/report.html").is_file()


def test_the_same_files_make_the_same_page(whole: Path, html: str) -> None:
    assert report.render(gather(whole, "laptop")) == html


# Missing and damaged files --------------------------------------------------------------------

INPUTS = {
    "results/laptop/alpha/verdicts.json": "snakemake --cores all --force results/laptop/alpha/",
    "results/laptop/alpha/figures/figures.json": "results/laptop/alpha/figures/manifest.json",
    "results/laptop/alpha/figures/figure0.svg": "results/laptop/alpha/figures/manifest.json",
    "results/laptop/alpha/figures/cost.json": "results/laptop/alpha/figures/manifest.json",
    "results/laptop/omega/stages/compress/gsrq-s1/cost.json": "compress/gsrq-s1/manifest.json",
    "data/laptop/alpha/cost.json": "--force data/laptop/alpha/manifest.json",
    "data/laptop/alpha/manifest.json": "--force data/laptop/alpha/manifest.json",
    f"data/assets/{made_up.ASSET}/manifest.json": f"data/assets/{made_up.ASSET}/manifest.json",
    "scripts/papers/alpha/README.md": "write there what is scaled down",
}


@pytest.mark.parametrize(("path", "remedy"), INPUTS.items(), ids=list(INPUTS))
def test_a_missing_file_is_named_with_its_remedy(project: Path, path: str, remedy: str) -> None:
    (project / path).unlink()
    with pytest.raises(PipelineError, match="missing") as error:
        gather(project, "laptop")
    assert path in str(error.value)
    assert remedy in str(error.value)


@pytest.mark.parametrize(("path", "remedy"), INPUTS.items(), ids=list(INPUTS))
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2] if b"Limitations" not in data else b"# A paper\n",
        lambda data: b"",
        lambda data: b"[1, 2]" if b"Limitations" not in data else b"## Limitations\n\n## Next\n",
        lambda data: b"\xff\xfe" + data,
    ],
    ids=["cut", "empty", "other", "bytes"],
)
def test_a_damaged_file_is_named_with_its_remedy(
    project: Path, path: str, remedy: str, damage: Callable[[bytes], bytes]
) -> None:
    (project / path).write_bytes(damage((project / path).read_bytes()))
    with pytest.raises(PipelineError) as error:
        gather(project, "laptop")
    assert path in str(error.value)
    assert remedy in str(error.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"effect": float("nan")}, "finite number"),
        ({"high": float("inf")}, "finite number"),
        ({"where": {"bits": float("nan")}}, "finite number"),
        ({"effect": "0.1"}, r"claims\.0\.checks\.0\.effect: found '0.1'"),
        ({"verdict": "surely"}, r"checks\.0\.verdict: found 'surely'.*reproduced"),
        ({"n": 1.5}, r"checks\.0\.n: found 1.5"),
    ],
)
def test_a_verdict_that_is_none_is_refused(project: Path, change: dict, named: str) -> None:
    record = made_up.claim("C1", checks=[made_up.check(**change)])
    made_up.put_json(project, "results/laptop/alpha/verdicts.json", {"claims": [record]})
    with pytest.raises(PipelineError, match=named):
        gather(project, "laptop")


def test_a_missing_key_is_named(project: Path) -> None:
    record = made_up.claim("C1")
    del record["hash"]
    made_up.put_json(project, "results/laptop/alpha/verdicts.json", {"claims": [record]})
    with pytest.raises(PipelineError, match=r"claims\.0\.hash: missing"):
        gather(project, "laptop")


def test_a_figure_outside_its_folder_is_refused(project: Path) -> None:
    index = project / "results/laptop/alpha/figures/figures.json"
    records = json.loads(index.read_text())
    records[0]["file"] = "../../../../params.yaml"
    index.write_text(json.dumps(records))
    with pytest.raises(PipelineError, match="a file of that folder"):
        gather(project, "laptop")


def test_the_program_says_what_is_wrong_and_leaves_the_old_page(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main(["--scale", "laptop"], root=project) == 0
    old = (project / "results/laptop/report.html").read_bytes()
    (project / "results/laptop/alpha/verdicts.json").unlink()
    assert report.main(["--scale", "laptop"], root=project) == 1
    assert "verdicts.json" in capsys.readouterr().err
    assert (project / "results/laptop/report.html").read_bytes() == old


def test_results_of_other_parameters_get_no_page(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page of them would carry the recipe of results that are not there."""
    settings = yaml.safe_load((project / "params.yaml").read_text())
    settings["alpha"]["laptop"]["seeds"] = 3
    (project / "params.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    assert report.main(["--scale", "laptop"], root=project) == 1
    error = capsys.readouterr().err
    assert "error: report: results/laptop/alpha/verdicts.json" in error
    assert "out of date" in error
    assert "omega" not in error
    assert not (project / "results/laptop/report.html").exists()


def test_an_unknown_scale_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["--scale", "lapdog"], root=project) == 1
    assert "did you mean 'laptop'" in capsys.readouterr().err


# The document ---------------------------------------------------------------------------------


def test_every_element_is_closed_and_every_id_is_one(document: Document) -> None:
    assert document.open == []
    ids = [attributes["id"] for _, attributes in document.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_every_link_within_the_page_leads_somewhere(document: Document) -> None:
    ids = {attributes.get("id") for _, attributes in document.elements}
    targets = [a["href"] for _, a in document.elements if (a.get("href") or "").startswith("#")]
    assert targets
    assert all(target[1:] in ids for target in targets)
    labelled = [a["aria-labelledby"] for _, a in document.elements if "aria-labelledby" in a]
    assert all(label in ids for label in labelled)


def test_headings_make_an_outline(document: Document) -> None:
    levels = [int(tag[1]) for tag, _ in document.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(deeper - level <= 1 for level, deeper in itertools.pairwise(levels))


def test_nothing_is_loaded_from_elsewhere(document: Document) -> None:
    for tag, attributes in document.elements:
        assert not {"srcset", "action", "formaction", "poster", "data", "style"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
        if "src" in attributes:
            assert tag == "img"
            assert attributes["src"].startswith("data:image/svg+xml,")
        if "href" in attributes and tag != "a":
            assert attributes["href"].startswith(("#", "data:,"))
    assert "url(" not in "".join(data for tag, data in document.texts if tag == "style")
    assert {"iframe", "object", "embed", "base", "form"} & {
        tag for tag, _ in document.elements
    } == {"form"}


def test_the_policy_lets_only_the_pages_own_script_run(document: Document) -> None:
    scripts = [data for tag, data in document.texts if tag == "script"]
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    (policy,) = [a["content"] for a in document.all("meta") if "http-equiv" in a]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules == {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": "'unsafe-inline'",
        "script-src": f"'sha256-{digest}'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_html_in_strings_stays_text(document: Document, html: str) -> None:
    assert document.text.count(" ".join(made_up.HOSTILE.split())) > 20
    assert "49" not in re.findall(r"onerror=alert\(1\)&gt;.{0,40}", html)[0]
    assert [a.get("src") for a in document.all("img") if a.get("src") == "x"] == []
    links = [a["href"] for a in document.all("a")]
    assert not [
        link
        for link in links
        if not link.startswith(("#", "https://arxiv.org/", "https://example.org/"))
    ]


def test_markdown_images_and_script_links_stay_harmless(document: Document) -> None:
    links = [a["href"] for a in document.all("a")]
    assert "https://example.org/beacon.png" in links  # a link, which waits for a click
    assert len(document.all("img")) == 2
    assert "[click](javascript:alert(1))" in document.text


def test_figures_are_the_files_bytes_with_caption_and_origin(document: Document) -> None:
    first, second = document.all("img")
    assert unquote(first["src"].removeprefix("data:image/svg+xml,")) == made_up.SVG
    assert first["alt"] == "Cosine between a vector and its code (held-out text)."
    assert second["alt"] == made_up.HOSTILE
    assert (first["width"], first["height"]) == ("640", "300")
    assert "Drawn by scripts/papers/alpha/plot.py from evaluate: cosine" in document.text


@given(st.text())
def test_any_svg_survives_as_an_image_address(svg: str) -> None:
    address = report.data_uri(svg)
    assert unquote(address.removeprefix("data:image/svg+xml,")) == svg
    assert not set(address) & set("\"'<>#&\n\r\t")


def test_filters_are_hidden_until_the_script_shows_them(document: Document) -> None:
    (form,) = document.all("form")
    assert "hidden" in form
    assert not [a for a in document.all("details") if "hidden" in a]


def test_every_verdict_is_counted_and_shown_with_word_and_shape(page: Page, html: str) -> None:
    counts = report.tally(claim.verdict for claim in page.claims)
    assert list(counts) == list(ledger.VERDICTS)
    assert counts == {
        "reproduced": 2,
        "partly": 3,
        "not reproduced": 2,
        "not testable here": 1,
        "wiring only": 1,
    }
    for i, (verdict, count) in enumerate(counts.items()):
        badge = f'<span class="badge" data-v="v{i}"><svg class="icon" aria-hidden="true">'
        badge += f'<use href="#v{i}"/></svg>{verdict}</span>'
        assert f"<b>{count}</b> {badge}" in html
        assert html.count(f'data-verdict="{verdict}"') == count


def test_a_claim_opens_to_everything_about_it(page: Page) -> None:
    record = made_up.claim(
        "C9",
        "not reproduced",
        reported={"gsrq": 33.54, "unit": "LongBench average", "where": "LLaMA-3-8B", "fp": True},
        checks=[made_up.check("not reproduced", mde=0.0214, horizon=4096.0)],
        reason="0 of 1 parts reproduced",
    )
    text = Document(report.render(with_claims(page, record))).text
    for piece in (
        record["claim"],
        "improves directional fidelity",
        "Paper reports, gsrq 33.54 LongBench average",
        "Paper reports, fp yes",
        "Reported on LLaMA-3-8B",
        "0 of 1 parts reproduced",
        "Effect 0.0123 cosine",
        "Interval 0.0091 to 0.0158 95% BCa bootstrap over 36 units",
        "Margin 0",
        "claimed > 0",
        "Smallest detectable effect 0.0214",
        "n 360",
        "Seeds 3",
        "p < 0.0001",
        "p, Holm 0.0008",
        "Seen up to 4,096",
        "Check greater",
        "Test paired t",
        "Metric cosine, cosine",
        "Arms gsrq against kmeans",
        "Where dataset = pydoc; stages = 4",
        "Judged at laptop scale",
        record["hash"],
    ):
        assert piece in text


def test_not_reproduced_without_a_detectable_effect_says_so(page: Page) -> None:
    record = made_up.claim("C1", "not reproduced")
    text = Document(report.render(with_claims(page, record))).text
    assert "Smallest detectable effect not computed" in text
    record = made_up.claim("C1", "reproduced")
    assert "Smallest detectable" not in Document(report.render(with_claims(page, record))).text


def test_missing_numbers_are_dashes_and_nothing_is_drawn(page: Page) -> None:
    numbers = (
        "effect", "low", "high", "level", "margin", "p", "p_holm", "n", "seeds", "interval",
    )  # fmt: skip
    record = made_up.claim("C1", checks=[made_up.check(**dict.fromkeys(numbers))])
    document = Document(report.render(with_claims(page, record)))
    for piece in ("Effect — cosine", "Interval none", "Margin —", "n —", "Seeds —", "p, Holm —"):
        assert piece in document.text
    assert not [a for a in document.all("svg") if a.get("class") == "plot"]
    assert "nan" not in document.text.lower().split()
    assert "None" not in document.text


def test_half_an_interval_is_drawn_open(page: Page) -> None:
    record = made_up.claim("C1", checks=[made_up.check(high=None)])
    text = report.render(with_claims(page, record))
    assert "Interval from 0.0091" in Document(text).text
    assert 'd="M-6-5 0 0l-6 5"' in text


def test_a_paper_without_claims_figures_or_assets_says_so(page: Page) -> None:
    bare = dataclasses.replace(page.papers[0], claims=[], figures=[])
    text = Document(report.render(dataclasses.replace(page, papers=[bare], assets=[]))).text
    assert "0 claims of 1 paper," in text
    assert "no claims for this paper" in text
    assert "drew no figure" in text
    assert "No paper uses a shared model or data set" in text


def test_smoke_says_that_it_judges_nothing(page: Page) -> None:
    note = "judges no claim"
    assert note in Document(report.render(dataclasses.replace(page, scale="smoke"))).text
    assert note not in Document(report.render(page)).text


def test_the_commit_is_shown_with_its_dirt(page: Page) -> None:
    def shown(commit: str | None, dirty: bool) -> str:
        machine = dataclasses.replace(page.environment, commit=commit, dirty=dirty)
        return Document(report.render(dataclasses.replace(page, environment=machine))).text

    assert "Git commit abc123 (clean)" in shown("abc123", False)
    assert "Git commit abc123 with uncommitted changes" in shown("abc123", True)
    assert "Git commit not a git checkout" in shown(None, False)


def test_a_full_page_stays_small(page: Page) -> None:
    checks = [made_up.check("partly", mde=0.02) for _ in range(10)]
    records = [made_up.claim(f"C{i}", "partly", checks=checks) for i in range(10)]
    paper = with_claims(page, *records).papers[0]
    papers = [dataclasses.replace(paper, slug=f"paper{i}") for i in range(28)]
    assert len(report.render(dataclasses.replace(page, papers=papers)).encode()) < 10_000_000


def test_why_there_is_no_interval_is_said_once(page: Page) -> None:
    lone = made_up.check("partly", low=None, high=None, n=1, interval="none: one unit")
    text = Document(report.render(with_claims(page, made_up.claim("C1", checks=[lone])))).text
    assert "Interval none: one unit Margin" in text
