"""Two runs side by side: what differs, in the order of what explains it, and what is unknown rather than equal."""

from __future__ import annotations

import html.parser
import re
from pathlib import Path

import orjson
import pytest

from nccl_forensics import api
from nccl_forensics.changes import Differences, differences, transport_rank
from nccl_forensics.reading.engine import InlineEngine
from nccl_forensics.reporters import comparison_html, comparison_json, comparison_markdown, comparison_terminal
from tests.corpus import ROOT, corpus
from tests.test_docs import run
from tests.test_gate import GOOD, bandwidth, changed, finding, report, trait

INCIDENTS = ROOT / "fixtures" / "incidents"


def subjects(found: Differences, part: str) -> list[str]:
    return [c.subject for c in getattr(found, part)]


def test_the_same_report_twice_differs_in_nothing() -> None:
    found = differences(GOOD, GOOD)
    assert found.every == ()
    assert found.headline == "Nothing differs in what both sides show"
    assert len(found.equal) == 10


def test_what_came_out_stands_first_and_what_explains_it_in_its_order() -> None:
    now = changed(bandwidth=[bandwidth(50.0)], channels=2, transport="NET/Socket", version="2.26.2", setting="Tree")
    found = differences(GOOD, now)
    assert subjects(found, "results") == ["all_reduce float on 8 ranks"]
    assert subjects(found, "explains") == ["transport over the network", "NCCL_ALGO", "collective channels", "NCCL"]
    [result] = found.results
    assert (result.before, result.after, result.direction) == ("200 GB/s", "50 GB/s", "worse")
    assert result.after_where == "t.txt:9"
    assert found.headline == "all_reduce float on 8 ranks: 200 GB/s → 50 GB/s (-75 %); transport over the network: NET/IB → NET/Socket"


def test_what_one_side_shows_is_unknown_on_the_other_and_never_equal() -> None:
    bare = report(traits=[trait("transport", "transport over the network", "NET/IB")])
    found = differences(bare, report(traits=[trait("setting", "NCCL_ALGO", "Ring"), trait("channels", "collective channels", "24", 24)]))
    assert {(c.subject, c.kind) for c in found.one_sided} == {
        ("transport over the network", "only-before"),
        ("NCCL_ALGO", "only-after"),
        ("collective channels", "only-after"),
    }
    assert all("unknown" in c.note for c in found.one_sided)
    assert found.explains == ()
    assert found.equal == ()


def test_a_setting_beside_others_explains_where_it_is_decisive() -> None:
    one = report(traits=[trait("setting", "NCCL_DEBUG", "INFO")])
    other = report(traits=[trait("setting", "NCCL_DEBUG", "INFO"), trait("setting", "NCCL_TOPO_FILE", "t.xml")])
    [change] = differences(one, other).explains
    assert (change.subject, change.kind) == ("NCCL_TOPO_FILE", "only-after")
    assert "though other settings are" in change.note


def test_what_neither_side_shows_is_named_as_unknown() -> None:
    unknown = differences(report(), report()).unknown
    assert "Transports: neither side shows any" in unknown
    assert any(u.startswith("Settings that neither side shows") and "NCCL_ALGO" in u for u in unknown)
    shown = report(traits=[trait("setting", "NCCL_ALGO", "Ring")])
    assert not any("NCCL_ALGO" in u for u in differences(shown, report()).unknown)


def test_sizes_that_changed_alike_are_one_difference() -> None:
    def tuned(choice: str) -> dict[str, object]:
        sizes = [trait("algorithm", f"AllReduce of {n} bytes", choice) for n in (1 << 20, 1 << 21, 1 << 22)]
        return report(traits=[*sizes, trait("algorithm", "AllReduce of 8 bytes", "TREE/LL")])

    found = differences(tuned("RING/SIMPLE on 24 channels"), tuned("RING/LL on 2 channels"))
    assert subjects(found, "explains") == ["AllReduce, 3 sizes from 1.0 MB to 4.2 MB"]
    assert found.equal == (("algorithm", "AllReduce of 8 bytes", "TREE/LL"),)


def test_findings_that_came_or_went_are_told_with_their_place() -> None:
    evidence = [{"path": "n.log", "line": 5}]
    found = differences(
        report(findings=[finding("warning", fingerprint="a", title="old")]),
        report(findings=[finding("error", fingerprint="b", title="new", evidence=evidence)]),
    )
    assert [(c.before, c.after, c.direction, c.after_where) for c in found.explains] == [
        ("not found", "error: new", "worse", "n.log:5"),
        ("warning: old", "not found", "better", ""),
    ]


def test_bandwidth_at_other_sizes_is_not_compared() -> None:
    found = differences(changed(bandwidth=[bandwidth(200.0)]), changed(bandwidth=[bandwidth(10.0, 1 << 20)]))
    assert found.results == ()
    assert "not measured" in found.one_sided[0].note


@pytest.mark.parametrize(
    ("better", "worse"),
    [("P2P/CUMEM", "SHM/direct"), ("SHM/direct", "NET/IB"), ("NET/IB", "NET/Socket"), ("P2P/CUMEM", "P2P/CUMEM, SHM/direct")],
)
def test_transports_have_an_order_by_their_slowest(better: str, worse: str) -> None:
    ranks = transport_rank(better), transport_rank(worse)
    assert ranks[0] is not None
    assert ranks[1] is not None
    assert ranks[0] > ranks[1]


def test_an_unknown_transport_has_no_order() -> None:
    assert transport_rank("carrier pigeon") is None


# --- reports ---------------------------------------------------------------------------------------------------------------------

NASTY = "<script>alert(1)</script> | `x` \x1b[31m"
SHOWN = differences(
    GOOD,
    changed(bandwidth=[bandwidth(50.0), bandwidth(40.0, 1 << 24)], setting=NASTY)
    | {"findings": [finding("error", fingerprint="z", title=NASTY)]},
)


class Page(html.parser.HTMLParser):
    """Tags and text of a page; every tag must be closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.stack: list[str] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not [a for a, _ in attrs if a in ("src", "href", "style") and not dict(attrs).get("href", "#").startswith("#")]  # type: ignore[union-attr]
        self.tags.append(tag)
        if tag not in ("meta", "br"):
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_is_whole_loads_nothing_and_escapes_what_is_foreign() -> None:
    page = comparison_html.render(SHOWN).decode()
    parsed = Page(page)
    assert parsed.stack == []
    assert "script" not in parsed.tags
    assert NASTY.split(" |")[0] in parsed.words
    assert "://" not in page
    assert "svg" in parsed.tags
    assert "default-src &#39;none&#39;" in page
    assert page == comparison_html.render(SHOWN).decode()


def test_markdown_escapes_what_is_foreign_and_keeps_its_tables() -> None:
    text = comparison_markdown.render(SHOWN).decode()
    assert "<script" not in text
    for line in text.splitlines():
        if line.startswith("| **"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 5, line


def test_the_terminal_fits_its_width_and_has_no_escape_without_colour() -> None:
    text = comparison_terminal.render(SHOWN, color=False, width=80)
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "200 GB/s" not in text
    assert "GB/s" in text
    assert "\x1b" in comparison_terminal.render(SHOWN, color=True, width=80)


def test_json_holds_every_difference_with_both_values() -> None:
    document = orjson.loads(comparison_json.render(SHOWN))
    assert document["schema"] == "nccl-forensics/comparison/1"
    listed = [c for part in ("results", "explains", "others", "one_sided") for c in document[part]]
    assert len(listed) == len(SHOWN.every)
    assert document["results"][0]["details"][0] == {"what": "16.8 MB", "before": "100 GB/s", "after": "40 GB/s"}
    assert all(len(c["fingerprint"]) >= 1 for c in listed)


def test_an_empty_comparison_makes_every_report() -> None:
    nothing = differences(report(), report())
    Page(comparison_html.render(nothing).decode())
    assert b"# Comparison" in comparison_markdown.render(nothing)
    assert "0 things" in comparison_terminal.render(nothing, color=False, width=80)


def test_sides_of_one_name_are_told_apart_by_their_folders() -> None:
    assert api._titles("a/evidence", "b/evidence") == ("a/evidence", "b/evidence")
    assert api._titles("runs/a.tar", "runs/b.tar") == ("a.tar", "b.tar")
    assert api._titles("x", "x") == ("x", "x")


# --- the command -----------------------------------------------------------------------------------------------------------------


def test_a_side_may_be_a_report_of_an_earlier_analysis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nccl_forensics.api.default_engine", lambda bundle, limits=None: InlineEngine())
    good, bad = (str(INCIDENTS / name / "evidence") for name in ("nccl-healthy-8r", "nccl-version-mismatch-8r"))
    assert run(["analyze", good, "--json", str(tmp_path / "good.json"), "--quiet"]).exit_code == 0
    from_report = run(["compare", str(tmp_path / "good.json"), bad, "--json", "-"])
    from_evidence = run(["compare", good, bad, "--json", "-"])
    assert from_report.exit_code == from_evidence.exit_code == 0
    document, other = (orjson.loads(done.stdout_bytes) for done in (from_report, from_evidence))
    assert other["before"].pop("title") == "nccl-healthy-8r/evidence"
    assert document["before"].pop("title") == "evidence"
    assert {k: v for k, v in document.items() if k != "after"} == {k: v for k, v in other.items() if k != "after"}
    assert "2.26.2" in str([c["after"] for c in document["explains"] if c["subject"] == "NCCL"])
    assert run(["compare", good, "/nowhere"]).exit_code == 3
    (tmp_path / "out").mkdir()
    (tmp_path / "good.json").rename(tmp_path / "out" / "report.json")
    (tmp_path / "out" / "postmortem.md").write_text("# written by analyze -o")
    assert api._report_of(tmp_path / "out") == tmp_path / "out" / "report.json"
    assert api._report_of(tmp_path) is None


def compared(before: Path, after: Path) -> Differences:
    return api.compare(before, after, engine=InlineEngine()).differences


@pytest.mark.corpus
def test_a_topology_file_with_uneven_nvlinks_explains_lost_bandwidth() -> None:
    found = compared(corpus("public/nccl227-a100pcie-2r-nvlink-ok/evidence"), corpus("public/nccl227-a100pcie-2r-nvlink-degraded/evidence"))
    [result] = [c for c in found.results if c.area == "bandwidth"]
    assert result.direction == "worse"
    assert result.ratio is not None
    assert result.ratio < 0.2
    told = {c.subject: c for c in found.explains}
    assert told["NVLinks per GPU in the topology file"].after == "1-12, asymmetric"
    assert told["NCCL_TOPO_FILE"].kind == "only-after"
    assert told["collective channels of communicators of 2 ranks"].after == "2"
    assert subjects(found, "explains")[0] == "NVLinks per GPU in the topology file"


@pytest.mark.corpus
def test_gpudirect_that_is_off_explains_lost_bandwidth() -> None:
    folder = corpus("public/nccl216-2node-gdr-on-vs-off/evidence")
    found = compared(folder / "gdr_on.txt", folder / "gdr_off.txt")
    assert [c.direction for c in found.results if c.area == "bandwidth"] == ["worse"]
    first = found.explains[0]
    assert (first.area, first.subject, first.before, first.after) == ("gdr", "GPUDirect RDMA", "on", "off")


@pytest.mark.corpus
def test_another_transport_and_its_settings_stand_beside_the_timeout() -> None:
    folder = corpus("public/nccl220-polaris-8r-ofi-hang-20250626/evidence")
    found = compared(folder / "without_aws.log", folder / "with_aws.log")
    [outcome] = [c for c in found.results if c.area == "outcome"]
    assert (outcome.before, outcome.after) == ("finished", "timed out")
    first = found.explains[0]
    assert (first.before, first.after) == ("NET/Socket", "NET/AWS Libfabric")
    assert {c.subject for c in found.one_sided if c.area == "setting"} == {"NCCL_CROSS_NIC", "NCCL_NET_GDR_LEVEL", "NCCL_SOCKET_IFNAME"}
