"""The page in a real browser: headless Chromium, driven by Playwright's library. Skipped, with the reason, where either is absent."""

import re
import shutil
from functools import cache
from pathlib import Path

import pytest

from nccl_forensics.reporters import html
from tests.corpus import ROOT
from tests.reporters.samples import SAMPLES, hostile, large, measured

pytestmark = pytest.mark.browser
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
SIMPLE = ("hang", "healthy", "unexplained", "insufficient", "measured", "hostile")


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright's library is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        yield started
        started.close()


@cache
def text_of(name):
    sample = SAMPLES[name]()
    return html.render(sample.report, sample.extras)


class Visit:
    """One page with what it said and asked for."""

    def __init__(self, browser, file, **context):
        self.context = browser.new_context(**{"viewport": WIDE, "accept_downloads": True, **context})
        self.page = self.context.new_page()
        self.said, self.asked, self.dialogs = [], [], []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))
        self.url = file.as_uri()
        self.page.goto(self.url)

    def drawn(self, plots):
        """Waits until so many figures are drawn."""
        self.page.wait_for_function("n => document.querySelectorAll('.canvas .main-svg .bglayer').length >= n", arg=plots, timeout=8000)


@pytest.fixture
def visit(browser, tmp_path):
    open_visits = []

    def start(text, **context):
        file = tmp_path / f"postmortem{len(open_visits)}.html"
        file.write_text(text, encoding="utf-8")
        made = Visit(browser, file, **context)
        open_visits.append(made)
        return made

    yield start
    for made in open_visits:
        made.context.close()


@pytest.mark.parametrize("name", SIMPLE)
def test_it_opens_without_a_complaint_and_asks_for_nothing(visit, name):
    seen = visit(text_of(name))
    plots = text_of(name).count("data-plot=")
    seen.drawn(plots)
    assert seen.said == []
    assert [u for u in seen.asked if not u.startswith(("file:", "blob:", "data:"))] == []
    assert len([u for u in seen.asked if u.startswith("file:")]) == 1
    assert plots == (3 if name == "measured" else 0)


FIVE = [("Which rank", "rank 3"), ("Which host", "trn-a"), ("Which collective", "all_reduce #18"), ("Why", "rank 3 calls broadcast here"), ("What next", "Fix the code")]  # fmt: skip


def test_five_questions_are_answered_on_the_first_screen(visit):
    page = visit(text_of("hang")).page
    answers = page.evaluate(
        """() => Array.from(document.querySelectorAll('.answers > div')).map(row => ({
            question: row.querySelector('dt').innerText.trim(),
            answer: row.querySelector('dd').innerText.trim(),
            bottom: row.getBoundingClientRect().bottom, top: row.getBoundingClientRect().top }))"""
    )
    for question, answer in FIVE:
        [found] = [a for a in answers if a["question"] == question]
        assert found["answer"].startswith(answer), found
        assert 0 <= found["top"] < found["bottom"] <= WIDE["height"], found
    assert page.locator("h1").inner_text().startswith("Rank 3 skipped all_reduce #18")
    picture = page.locator(".glance svg").first.bounding_box()
    assert picture["y"] + picture["height"] <= WIDE["height"]


@pytest.mark.parametrize("name", ["hang", "hostile", "measured", "healthy"])
def test_a_narrow_screen_scrolls_in_one_direction_only(visit, name):
    page = visit(text_of(name), viewport=NARROW).page
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]


def test_the_filter_hides_what_does_not_fit(visit):
    page = visit(text_of("hang")).page
    page.fill("#find-finding", "p2p-disabled")
    assert page.locator(".finding:visible").count() == 1
    assert page.locator("#find-finding + output").inner_text() == "1 of 4"
    page.fill("#find-finding", "")
    assert page.locator(".finding:visible").count() == 4
    page.fill("#find-ranks", "rank3")
    assert page.locator("[data-filtered=ranks] tbody tr:visible").count() == 1


def test_the_filter_of_ranks_finds_rows_that_the_page_does_not_show(visit):
    page = visit(text_of("large")).page
    assert page.locator("[data-filtered=ranks] tbody tr").count() == 32
    page.fill("#find-ranks", "rank3001")
    assert page.locator("[data-filtered=ranks] tbody tr:visible").all_inner_texts() == [
        "3001\t1\tnode0375\t4001\t1\t2.27.3\twaiting\tall_reduce #18"
    ]
    page.fill("#find-ranks", "node0375")
    assert page.locator("[data-filtered=ranks] tbody tr:visible").count() == 8
    page.fill("#find-ranks", "waiting")
    assert "4095 of 4096, the first 200 shown" in page.locator("#find-ranks + output").inner_text()


def test_a_link_to_a_finding_opens_it(browser, visit):
    seen = visit(text_of("hang"))
    target = seen.page.locator("#finding-p2p-disabled-1")
    assert not target.evaluate("e => e.open")
    seen.page.goto(seen.url + "#finding-p2p-disabled-1")
    assert target.evaluate("e => e.open")
    assert target.locator(".lines").first.is_visible()
    assert target.bounding_box()["y"] < WIDE["height"]


def test_a_place_is_copied_with_one_click(visit):
    seen = visit(text_of("hang"))
    seen.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = seen.page.locator(".answers .copy").first
    button.click()
    seen.page.wait_for_function("b => b.textContent === 'Copied'", arg=button.element_handle())
    assert seen.page.evaluate("navigator.clipboard.readText()") == "fr/fr_trace_rank_3.json entries[18]"


def test_dark_mode_follows_the_system_and_the_switch(visit):
    shade = "getComputedStyle(document.body).backgroundColor"
    light, dark = "rgb(255, 255, 255)", "rgb(16, 19, 22)"
    seen = visit(text_of("measured"), color_scheme="dark")
    seen.drawn(3)
    assert seen.page.evaluate(shade) == dark
    ink = "document.querySelector('.canvas')._fullLayout.font.color"
    assert seen.page.evaluate(ink) == "#e7eaee"
    seen.page.click("#theme")
    assert seen.page.evaluate(shade) == light
    assert seen.page.evaluate(ink) == "#16191d"
    assert seen.said == []


@pytest.mark.parametrize(("name", "scheme"), [("hang", "light"), ("hang", "dark"), ("healthy", "light"), ("measured", "dark")])
def test_no_serious_barrier_is_found(visit, name, scheme):
    seen = visit(text_of(name), color_scheme=scheme, reduced_motion="reduce")
    seen.drawn(3 if name == "measured" else 0)
    seen.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    seen.page.evaluate((ROOT / "tests" / "vendor" / "axe.min.js").read_text(encoding="utf-8"))
    found = seen.page.evaluate("axe.run(document, {resultTypes: ['violations']}).then(r => r.violations)")
    assert [(v["id"], v["impact"], v["nodes"][0]["html"][:120]) for v in found if v["impact"] in ("serious", "critical")] == []


def test_the_keyboard_reaches_what_the_pointer_does(visit):
    page = visit(text_of("hang")).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#story"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "find-finding"


def test_on_paper_every_section_is_there_and_every_detail_is_open(visit, tmp_path):
    pypdf = pytest.importorskip("pypdf")
    seen = visit(text_of("measured"))
    seen.drawn(3)
    headings = [re.sub(r"\s+", " ", h).strip() for h in seen.page.locator("main h2").all_inner_texts()]
    file = tmp_path / "postmortem.pdf"
    seen.page.pdf(path=str(file), format="A4", print_background=True)
    text = re.sub(r"\s+", " ", " ".join(p.extract_text() for p in pypdf.PdfReader(file).pages))
    assert len(headings) >= 18
    squeezed = text.replace(" ", "")
    assert [h for h in headings if h.replace(" ", "") not in squeezed] == []
    for folded in ("NCCL_P2P_DISABLE=1issetontrn-bonly", "late_share", "fr/fr_trace_rank_7.json", "log_metrics(train_loop.py:49)"):
        assert folded in squeezed


def test_without_scripts_statements_tables_and_drawings_are_there(visit):
    page = visit(text_of("measured"), java_script_enabled=False).page
    assert page.locator(".js-only:visible").count() == 0
    assert page.locator("button:visible").count() == 0
    assert page.get_by_text("Rank 2 cost the others the most: 861.2 ms in 40 collectives.").is_visible()
    assert page.locator('table:has(caption:text("How late each rank arrives"))').count() == 1
    assert page.locator('svg[aria-label^="At #18"]').first.is_visible()
    assert page.locator('svg[aria-label^="Rank 3 at fault"]').last.is_visible()


def test_what_the_author_types_is_saved_as_a_new_file_that_works(visit, browser, tmp_path):
    seen = visit(text_of("measured"))
    seen.drawn(3)
    seen.page.fill("#note-impact", "96 GPU hours </textarea><script>alert(1)</script>")
    seen.page.fill("#find-finding", "p2p")
    with seen.page.expect_download() as waiting:
        seen.page.locator(".save").first.click()
    file = Path(tmp_path / waiting.value.suggested_filename)
    waiting.value.save_as(file)
    again = Visit(browser, file)
    again.drawn(3)
    assert again.page.input_value("#note-impact") == "96 GPU hours </textarea><script>alert(1)</script>"
    assert again.page.locator(".finding:visible").count() == 4
    assert again.said == again.dialogs == []
    again.context.close()


def test_hostile_evidence_is_shown_and_does_nothing(visit):
    sample = hostile()
    sample.report["findings"][0]["evidence"][0]["text"] = "\u202e<style>*{display:none}</style>\x00\x1b[2J" + "A" * 1_000_000
    seen = visit(html.render(sample.report, sample.extras))
    seen.page.wait_for_timeout(200)
    assert seen.dialogs == []
    assert seen.said == []
    assert seen.page.locator("img, iframe, object, embed, base, link").count() == 0
    assert seen.page.locator("script").count() == 1
    assert seen.page.locator("h1").is_visible()
    assert len(seen.page.content()) < 1_000_000
    assert "\u202e" not in seen.page.content()


@pytest.mark.parametrize("ranks", [4096, 16384])
def test_a_large_incident_opens_within_two_seconds(browser, tmp_path, ranks):
    """Seconds of work of the page's main thread, which is what an idle machine takes: other work on this one must not count."""
    sample = large(ranks)
    text = html.render({**sample.report, "measures": measured().report["measures"]}, sample.extras)
    assert len(text.encode()) < (6_000_000 if ranks <= 4096 else 12_000_000)
    file = tmp_path / "postmortem.html"
    file.write_text(text, encoding="utf-8")
    context = browser.new_context(viewport=WIDE)
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(file.as_uri())
    page.wait_for_function("() => document.querySelectorAll('.canvas .main-svg .bglayer').length >= 3", timeout=30_000)
    page.screenshot()
    metrics = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    context.close()
    assert 0 < metrics["TaskDuration"] < 2, metrics
