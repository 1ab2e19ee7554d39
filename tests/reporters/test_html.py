import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from nccl_forensics.extras import Cell, Extras, GroupTimeline, Host, Process, Seat, StackClass, TimelineRow, Wait
from nccl_forensics.render import asset
from nccl_forensics.reporters import html
from nccl_forensics.words import UNKNOWN_HOST
from tests.reporters.samples import SAMPLES, Sample, hang, healthy, hostile, insufficient, large, measured, unexplained

BLOCKS = {"div", "dt", "dd", "p", "li", "td", "th", "tr", "h1", "h2", "h3", "summary", "figcaption", "caption"}
VOID = {"meta", "input", "br", "link", "img", "hr", "path", "rect"}


class Page(HTMLParser):
    """What a browser would make of a page, as far as these tests ask."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.text, self.open, self.unclosed, self.scripts, self.styles, self.headings = [], [], [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in BLOCKS:
            self.text.append(" ")
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append([dict(attrs).get("type"), ""])
        if tag == "style":
            self.styles.append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            self.unclosed.append((tag, list(self.open[-3:])))

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1][1] += data
        elif self.open and self.open[-1] == "style":
            self.styles[-1] += data
        else:
            self.text.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]

    @property
    def words(self):
        return " ".join("".join(self.text).split())

    @property
    def policy(self):
        return next(a["content"] for a in self.all("meta") if a.get("http-equiv") == "Content-Security-Policy")


def render(sample):
    return html.render(sample.report, sample.extras)


@pytest.fixture(scope="module", params=sorted(SAMPLES))
def page(request):
    return Page(render(SAMPLES[request.param]()))


def digest(text):
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_every_script_and_style_is_allowed_by_its_hash_and_nothing_else_is(page):
    runnable = [text for kind, text in page.scripts if kind is None]
    assert all(digest(text) in page.policy for text in [*runnable, *page.styles])
    assert page.policy.startswith("default-src 'none';")
    assert "unsafe" not in page.policy
    assert "http" not in page.policy
    assert page.policy.count("sha256-") == len(runnable) + len(page.styles) + (1 if len(runnable) > 1 else 0)


def test_nothing_is_loaded_and_no_attribute_runs_or_styles(page):
    for tag, attrs in page.tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "video", "audio"}
        assert not [a for a in attrs if a.startswith("on") or a in {"style", "src", "srcset", "action"}], (tag, attrs)
        assert str(attrs.get("href", "#")).startswith("#")


def test_tags_close_and_ids_are_unique_and_links_lead_somewhere(page):
    assert page.unclosed == []
    assert page.open == []
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {a["href"][1:] for a in page.all("a")} <= set(ids)


def test_it_can_be_read_by_landmarks_headings_and_captions(page):
    assert [len(page.all(t)) for t in ("main", "nav", "header", "footer", "h1")] == [1, 1, 1, 1, 1]
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("table")) == len(page.all("caption"))
    assert all("scope" in a for a in page.all("th"))
    assert all(a.get("aria-label") for a in page.all("button") if a.get("class") == "copy")
    labelled = {a["for"] for a in page.all("label")}
    assert {a["id"] for a in page.all("textarea")} <= labelled


def test_no_invisible_or_reordering_character_is_left(page):
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]", page.words)


def test_the_first_screen_answers_which_rank_host_collective_why_and_what_next():
    first = Page(render(hang()).split('<div class="wrap body">')[0]).words
    assert "Explained collective-skipped" in first
    assert "Which rank rank 3" in first
    assert "Which host trn-a GPU 3" in first
    assert "Which collective all_reduce #18 process group default_pg (0)" in first
    assert "Why rank 3 calls broadcast here fr/fr_trace_rank_3.json entries[18]" in first
    assert "What next Fix the code rank 3 Make every rank" in first


def test_where_no_collective_is_named_a_slow_job_is_late_to_many():
    incident = hang()
    report = {**incident.report, "verdict": {**incident.report["verdict"], "first_divergence": None}}
    said = re.compile("Which collective ([^.]*?) When")
    assert (
        said.search(Page(render(Sample(report, incident.extras))).words)[1]
        == "none; the cause lies outside the collectives, or none was recorded"
    )
    runs = [{**run, "outcome": "slow"} for run in report["case"]["runs"]]
    slow = {**report, "case": {**report["case"], "runs": runs}}
    shown = Page(render(Sample(slow, incident.extras))).words
    assert said.search(shown)[1] == "no single one: the job goes on and is slow"
    assert "Where they parted" not in shown, "nobody has parted: who is behind in the moment of the look comes"
    assert "Where they parted" in Page(render(incident)).words


def test_the_story_comes_before_the_exhibits():
    text = render(hang())
    order = [
        text.index(f'<h2 id="{anchor}">')
        for anchor in ("why", "now", "doubt", "timeline", "waits", "stacks", "cluster", "findings", "checked", "collect")
    ]
    assert order == sorted(order)


def test_evidence_stands_in_its_context_with_its_line_marked():
    text = render(hang())
    assert re.search(r'<span class="ln hit"><span class="no"><b aria-label="evidence">▸</b>214</span>WARNING:root:loss is nan', text)
    assert '<span class="ln"><span class="no">213</span>step 4 rank 3 loss nan' in text


def test_every_exhibit_is_a_sentence_with_a_table():
    words = Page(render(hang())).words
    assert "At #18 ranks 0-2, 4-7 (7 ranks) wait in all_reduce; rank 3 called broadcast instead." in words
    assert "Ranks 0-2, 4-7 (7 ranks) wait for rank 3, of which no wait is known." in words
    assert "Rank 3 stands in broadcast (torch" in words
    assert "Rank 3 at fault on trn-a; ranks 0-2, 4-7 (7 ranks) waiting on trn-a, trn-b." in words
    assert "NCCL_P2P_DISABLE differs between ranks." in words


def test_a_clean_run_says_what_was_not_checked_and_what_there_was_no_evidence_of():
    words = Page(render(healthy())).words
    assert "No fault was found in what was handed in" in words
    assert "gpu-fault, nvlink-fault for want of kernel log" in words
    assert "No evidence of these kinds" in words
    assert "ruled out" not in words.lower()
    assert "Why we believe it" not in words


def test_an_unexplained_hang_leads_with_findings_and_what_to_collect():
    text = render(unexplained())
    assert "The job hung, and nothing handed in proves why" in text
    assert text.index('<h2 id="findings">') < text.index('<h2 id="absent">')


def test_too_little_evidence_claims_nothing():
    words = Page(render(insufficient())).words
    assert "What was handed in does not tell whether anything went wrong" in words
    assert "confidence" not in words.lower().split("contents")[0]


def test_hostile_text_stays_text():
    text = render(hostile())
    assert text.count("<script") == 1
    assert "<script>alert(1)" not in text
    assert "{{ 7*7 }}" in text
    page = Page(text)
    assert "<script>alert(1)</script>" in page.words
    assert not page.all("img")


def test_a_failed_source_is_shown_with_its_error():
    words = Page(render(hang())).words
    assert "1 of 20 sources could not be read as a whole" in words
    assert "truncated: gzip stream ends after 1,204,224 bytes" in words


def test_sizes_stay_within_what_one_can_mail():
    assert len(render(hang()).encode()) < 200_000
    measures = measured().report["measures"]
    for world, most in ((1024, 6_000_000), (16_384, 12_000_000)):
        sample = large(world)
        assert len(html.render({**sample.report, "measures": measures}, sample.extras).encode()) < most


def test_thousands_of_ranks_are_cut_with_an_honest_count():
    words = Page(render(large())).words
    assert "… and 4,064 more, in tables/." in words
    assert "… and 452 more, in tables/." in words
    assert "4,108 sources" in words


def test_the_plotting_library_comes_only_with_measures():
    assert len(render(hang())) < 200_000
    page = Page(render(measured()))
    data = [json.loads(text) for kind, text in page.scripts if kind == "application/json"]
    assert [sorted(d) for d in data] == [["data", "layout"]] * 3 + [["dark", "light", "meanings"]]
    assert "Rank 2 cost the others the most: 861.2 ms in 40 collectives." in page.words


def test_the_same_report_gives_the_same_page():
    assert render(hang()) == render(hang())


def test_a_circle_of_waits_is_called_one():
    extras = Extras(waits=(Wait((0,), (1,)), Wait((1,), (0,))))
    assert "wait for each other" in html.render(healthy().report, extras)


def test_a_timeline_shows_the_columns_around_the_divergence():
    columns = tuple(range(100))
    rows = (
        TimelineRow((0,), tuple(Cell("all_reduce", "completed") for _ in columns)),
        TimelineRow((1,), tuple(Cell("all_gather", "diverged") for _ in columns)),
    )
    text = html.render(healthy().report, Extras(timeline=(GroupTimeline("0", columns, rows, first_divergence=60),)))
    assert ">#60<" in text
    assert ">#10<" not in text


def test_a_lone_stack_shares_its_frames_with_nobody():
    text = html.render(healthy().report, Extras(stacks=(StackClass((0, 1), ("f (a.py:1)", "g (a.py:2)")),)))
    assert "All 2 ranks with a stack stand in the same place." in text
    assert 'class="shared"' not in text


def luminance(colour):
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize(
    ("front", "back"),
    [(f, b) for f in ("ink", "soft", "link", "bad", "warn", "good") for b in ("paper", "panel", "raised")]
    + [
        ("paper", "bad"),
        ("paper", "warn"),
        ("paper", "good"),
        ("ink", "mark"),
        ("blue", "blue-soft"),
        ("bad", "bad-soft"),
        ("soft", "grey-soft"),
        ("on-dead", "dead"),
    ],
)
def test_text_can_be_read_in_light_and_dark(front, back, mode):
    pairs = {
        name: (light, dark) for name, light, dark in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", asset("postmortem.css"))
    }
    high, low = sorted((luminance(pairs[front][mode]), luminance(pairs[back][mode])), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= 4.5


def test_only_a_rank_that_waits_for_nobody_ends_the_waiting():
    extras = Extras(waits=(Wait((0,), (1,)), Wait((1,), (2,))))
    text = html.render(healthy().report, extras)
    assert re.search(r'class="node n-culprit"/><text [^>]*>rank 2<', text)
    assert re.search(r'class="node n-waiting"/><text [^>]*>rank 1<', text)
    assert text.count('class="tip"') == 2


def test_what_an_operation_was_called_with_stands_below_it():
    row = TimelineRow((0,), (Cell("all_reduce [[64,64]] Float", "waiting"),))
    text = html.render(healthy().report, Extras(timeline=(GroupTimeline("0", (5,), (row,), first_divergence=5),)))
    assert ">all_reduce<" in text
    assert ">[[64,64]] Float<" in text


def test_a_column_that_nothing_fills_is_left_out():
    sample = hang()
    bare = Extras(processes=(Process(0, "ok", pid=7),))
    headers = re.search(r"Processes of the run.*?</thead>", html.render(sample.report, bare), re.S)[0]
    assert ">Pid<" in headers
    assert ">NCCL<" not in headers


def _listed(*, missing: int) -> tuple[list[str], str]:
    """First ranks and head of the table of 100 processes, of which the first so many are missing, rank 99 is at fault, and those that wait have a
    host."""
    known = {"waiting": "node7", "culprit": None, "missing": None}
    states = ["missing"] * missing + ["waiting"] * (99 - missing) + ["culprit"]
    everyone = tuple(Process(n, state, host=known[state]) for n, state in enumerate(states))
    drawn = html.render(hang().report, Extras(processes=everyone))
    part = re.search(r"Processes of the run.*?</table>", drawn, re.S)[0]
    return re.findall(r"<tr[^>]*>\s*<t[hd][^>]*>(\d+)<", part)[:3], re.search(r"<thead>.*?</thead>", part, re.S)[0]


def test_where_most_ranks_are_missing_those_that_are_there_are_listed_before_them():
    assert _listed(missing=80)[0] == ["99", "80", "81"]
    assert _listed(missing=10)[0] == ["99", "0", "1"]


def test_a_column_that_only_rows_behind_the_cut_fill_is_there_for_the_filter():
    assert ">Host<" in _listed(missing=40)[1]
    assert ">Pid<" not in _listed(missing=40)[1]


def test_many_ranks_of_one_unknown_host_do_not_fill_the_first_screen():
    crowd = (Host("node7", (Seat(3000, "culprit"),)), Host(UNKNOWN_HOST, tuple(Seat(n, "missing") for n in range(3000))))
    drawn = html.render(hang().report, Extras(cluster=crowd))
    glance = re.search(r'class="glance".*?<svg[^>]*>', drawn, re.S)[0]
    assert float(re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', glance)[1]) < 250
