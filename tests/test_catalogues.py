"""Tables of facts against the catalogues that stand beside the corpus."""

from __future__ import annotations

import re

import pytest

from nccl_forensics.facts.sxid import sxid
from nccl_forensics.facts.xid import XIDS
from tests.corpus import corpus_root

pytestmark = pytest.mark.corpus


def section(start: str, end: str) -> str:
    """A section of the catalogue of host evidence."""
    file = corpus_root().parent / "formats" / "host.md"
    if not file.exists():
        pytest.skip("the catalogue host.md is not beside the corpus")
    text = file.read_text(encoding="utf-8")
    return text[text.index(start) : text.index(end)]


def bucket(text: str) -> str:
    """NVIDIA's word without its spelling: the page writes ``(none)`` where there is none."""
    return text.strip().replace("(none)", "").replace("_", "")


def test_every_xid_of_the_catalogue_has_nvidias_name_and_first_action() -> None:
    rows = re.findall(r"^\| (\d+) \| ([^|]+)\| [^|]+\| [^|]+\| ([^|]+)\|", section("## 1.2 Official", "## 1.3 Xid 154"), re.M)
    assert len(rows) > 100
    for code, _, immediate in rows:
        known = XIDS[int(code)]
        assert bucket(known.immediate or "") == bucket(immediate), code
        assert known.meaning, code
        assert known.action, code
    assert set(XIDS) == {int(code) for code, *_ in rows}


def codes(text: str) -> set[int]:
    found: set[int] = set()
    for first, last in re.findall(r"\b(\d{5})(?:-(\d{5}))?", text):
        found |= set(range(int(first), int(last or first) + 1))
    return found


@pytest.mark.parametrize(
    ("row", "kinds"),
    [
        ("corrected, ignore", {"corrected"}),
        ("ignore/watch", {"watch"}),
        ("check connection", {"connection"}),
        ("non-fatal but stalls", {"stall"}),
        ("treated as serious", {"serious"}),
        ("fatal (port)", {"fatal-port"}),
        ("always fatal", {"fatal"}),
    ],
)
def test_every_sxid_of_the_guide_is_in_its_class(row: str, kinds: set[str]) -> None:
    text = section("## 1.5 SXid", "## 1.6 PCIe")
    found = re.search(rf"^\| {re.escape(row)} \| (.*?) \|", text, re.M)
    assert found is not None
    # What stands in brackets explains, and may name another class' codes.
    listed = codes(re.sub(r"\([^)]*\)", "", found.group(1)))
    assert listed
    assert {sxid(code).kind for code in listed} == kinds
