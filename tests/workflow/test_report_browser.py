"""The report page in a real browser: it asks for nothing, fits a phone, filters, and is legible."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scripts.pipeline.page import gather
from scripts.pipeline.report import render
from tests.pipeline import made_up_results as made_up

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

CHROMIUM = Path("/usr/bin/chromium")
DRIVER = Path("/usr/bin/chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Chrome]":
    if not (CHROMIUM.exists() and DRIVER.exists()):
        pytest.skip(
            f"needs {CHROMIUM} and {DRIVER}: on Debian `apt-get install chromium chromium-driver`"
        )
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs the package selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("run")
    made_up.write(root)
    file = root / "report.html"
    file.write_text(render(gather(root, "laptop")), encoding="utf-8")
    return file.as_uri()


@pytest.fixture
def page(browser: "Chrome", address: str) -> "Iterator[Chrome]":
    """The page, freshly loaded at the width of a desktop, in light mode."""
    emulate(browser)
    browser.get(address)
    browser.get_log("browser")
    yield browser
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def emulate(browser: "Chrome", width: int = 1200, scheme: str = "light", media: str = "") -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 1000}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [feature]})


def ask(browser: "Chrome", script: str, *arguments: Any) -> Any:
    return browser.execute_script(script, *arguments)


def shown(browser: "Chrome") -> list[str]:
    """Ids of the claims one can see."""
    return ask(
        browser,
        "return [...document.querySelectorAll('details.claim')]"
        ".filter(c => c.checkVisibility()).map(c => c.id)",
    )


def click(browser: "Chrome", selector: str) -> None:
    browser.find_element("css selector", selector).click()


def open_all(browser: "Chrome") -> None:
    click(browser, "button[data-open=true]")


def test_the_page_asks_for_nothing_and_no_string_runs(browser: "Chrome", address: str) -> None:
    emulate(browser)
    browser.get(address)
    open_all(browser)
    images = "return [...document.images].map(i => (i.loading = 'eager', i.decode(), i.src))"
    assert all(source.startswith("data:") for source in ask(browser, images))
    assert ask(browser, "return document.title") == "Claim ledger at laptop scale"
    loaded = "return performance.getEntriesByType('resource').map(e => e.name)"
    assert [name for name in ask(browser, loaded) if not name.startswith("data:")] == []
    assert browser.get_log("browser") == []


def test_the_policy_stops_what_is_not_the_pages_own(page: "Chrome") -> None:
    """A script or an image that slipped through the escaping still would not run or load."""
    ask(
        page,
        "const s = document.createElement('script'); s.textContent = 'document.title = 1';"
        "document.body.append(s); const i = new Image(); i.src = 'https://example.org/x.png';"
        "document.body.append(i);",
    )
    assert ask(page, "return document.title") == "Claim ledger at laptop scale"
    refused = [entry["message"] for entry in page.get_log("browser")]
    assert len(refused) == 2
    assert all("Content Security Policy" in message for message in refused)


def test_figures_are_drawn(page: "Chrome") -> None:
    sizes = page.execute_async_script(
        "const done = arguments[0]; const all = [...document.images];"
        "for (const i of all) i.loading = 'eager';"
        "Promise.all(all.map(i => i.decode())).then("
        "() => done(all.map(i => [i.naturalWidth, i.naturalHeight])), e => done(String(e)))"
    )
    assert sizes == [[640, 300], [640, 300]]


@pytest.mark.parametrize("width", [360, 390, 768, 1200])
def test_no_sideways_scroll_even_with_all_claims_open(page: "Chrome", width: int) -> None:
    emulate(page, width)
    open_all(page)
    assert ask(page, "return document.documentElement.scrollWidth") <= width
    tables = (
        "return [...document.querySelectorAll('.scroll')].map(b => b.scrollWidth > b.clientWidth)"
    )
    assert any(ask(page, tables)) or width > 1000  # a wide table scrolls in its own box


def test_verdict_and_paper_filters(page: "Chrome") -> None:
    everything = shown(page)
    assert len(everything) == 9
    output = page.find_element("css selector", "output")
    assert output.text == "Showing 9 of 9 claims."
    for verdict in ("reproduced", "partly", "not testable here", "wiring only"):
        click(page, f"input[value='{verdict}']")
    assert shown(page) == ["claim-alpha-C3", "claim-omega-C2"]
    assert output.text == "Showing 2 of 9 claims."
    click(page, "option[value=omega]")
    assert shown(page) == ["claim-omega-C2"]
    assert not page.find_element("id", "paper-alpha").is_displayed()
    assert page.find_element("id", "paper-omega").is_displayed()
    click(page, "input[value='not reproduced']")
    assert shown(page) == []
    assert output.text == "No claim has this paper and verdict."


def test_a_link_to_a_claim_opens_it_whatever_the_filters_hide(page: "Chrome") -> None:
    click(page, "input[value='partly']")
    assert "claim-alpha-C2" not in shown(page)
    click(page, ".chip[href='#claim-alpha-C2']")
    assert len(shown(page)) == 9
    assert ask(page, "return document.getElementById('claim-alpha-C2').open")
    assert ask(page, "return document.querySelectorAll('details.claim[open]').length") == 1


def test_open_all_leaves_hidden_claims_closed(page: "Chrome") -> None:
    click(page, "input[value='partly']")
    open_all(page)
    opened = ask(page, "return [...document.querySelectorAll('.claim[open]')].map(c => c.id)")
    assert opened == shown(page)
    click(page, "button[data-open=false]")
    assert ask(page, "return document.querySelectorAll('.claim[open]').length") == 0


def test_without_scripts_all_is_readable_and_the_filters_are_gone(
    page: "Chrome", address: str
) -> None:
    page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    page.get(address)
    assert len(shown(page)) == 9
    assert not page.find_element("id", "filters").is_displayed()
    click(page, "#claim-alpha-C3 summary")
    assert page.find_element("css selector", "#claim-alpha-C3 .plot").is_displayed()


def test_the_keyboard_opens_a_claim_and_shows_where_it_is(page: "Chrome") -> None:
    ask(page, "document.querySelector('#claim-alpha-C3 summary').focus({focusVisible: true})")
    style = "return getComputedStyle(document.activeElement).outline"
    assert "solid 3px" in ask(page, style)
    page.switch_to.active_element.send_keys("\n")
    assert ask(page, "return document.getElementById('claim-alpha-C3').open")


def test_the_first_tab_leads_past_the_header(page: "Chrome") -> None:
    page.find_element("tag name", "body").send_keys("\t")
    assert page.switch_to.active_element.text == "Skip to the ledger"


CONTRAST = """
const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const parse = (colour) => {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
  .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const colour = parse(getComputedStyle(e).backgroundColor);
    if (colour[3] === 255) return colour;
  }
  return [255, 255, 255, 255];
};
const found = [];
for (const element of document.querySelectorAll('body *')) {
  const own = [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
  if (!own || !element.checkVisibility() || element.closest('option, script')) continue;
  const style = getComputedStyle(element);
  const ink = light(parse(element.closest('svg') ? style.fill : style.color));
  const ground = light(behind(element));
  const ratio = (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
  found.push([ratio, element.outerHTML.slice(0, 90)]);
}
return found;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out_from_its_ground(page: "Chrome", scheme: str) -> None:
    emulate(page, scheme=scheme)
    open_all(page)
    found = ask(page, CONTRAST)
    assert len(found) > 300
    assert [item for item in found if item[0] < 4.5] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_judged_verdict_is_as_loud_as_the_others(page: "Chrome", scheme: str) -> None:
    """Filled alike, as large and as bold, and told apart by word and shape, not colour alone."""
    emulate(page, scheme=scheme)
    badges = ask(
        page,
        "return ['C1', 'C2', 'C3'].map(id => {"
        "const b = document.querySelector(`#claim-alpha-${id} > summary .badge`);"
        "const s = getComputedStyle(b); const icon = b.querySelector('use').getAttribute('href');"
        "return [[s.fontSize, s.fontWeight, s.borderStyle, b.offsetHeight, s.color], b.textContent,"
        "document.querySelector(icon).innerHTML, s.backgroundColor]})",
    )
    looks, words, shapes, grounds = zip(*badges, strict=True)
    assert looks[0] == looks[1] == looks[2]
    assert words == ("reproduced", "partly", "not reproduced")
    assert len(set(shapes)) == 3
    assert len(set(grounds)) == 3


def test_a_dark_screen_prints_dark_on_white(page: "Chrome") -> None:
    emulate(page, scheme="dark", media="print")
    colours = "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]"
    assert ask(page, colours) == ["rgb(27, 26, 23)", "rgb(255, 255, 255)"]
    assert not page.find_element("id", "filters").is_displayed()
    badge = "return getComputedStyle(document.querySelector('.badge')).backgroundColor"
    assert ask(page, badge) == "rgba(0, 0, 0, 0)"


def test_plots_keep_their_lettering_on_a_phone(page: "Chrome") -> None:
    emulate(page, 360)
    open_all(page)
    boxes = ask(
        page,
        "return [...document.querySelectorAll('.plot')].map(p => ["
        "getComputedStyle(p.querySelector('text')).fontSize, p.getBoundingClientRect().left,"
        "p.getBoundingClientRect().right, ...[...p.querySelectorAll('text')].flatMap(t => "
        "[t.getBoundingClientRect().left, t.getBoundingClientRect().right])])",
    )
    assert len(boxes) > 5
    for size, left, right, *letters in boxes:
        assert size == "12px"
        assert left - 12 <= min(letters) <= max(letters) <= right + 12
