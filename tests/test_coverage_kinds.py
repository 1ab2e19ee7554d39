"""Every kind of evidence that the format pages name is read, by the format, into the tables and for the rules that the coverage page
says."""

from __future__ import annotations

import re
from functools import cache

import pytest

from nccl_forensics.formats import own_formats
from nccl_forensics.reading.source import read_source
from nccl_forensics.rules import own_rules
from nccl_forensics.views import all_views
from tests.corpus import corpus_root
from tests.coverage import shown_formats, shown_rules
from tests.coverage_kinds import KINDS, UNREAD, Kind

RULES = {r.name: r for r in own_rules()}


@cache
def reached(rule: str) -> frozenset[str]:
    """Tables that a rule reads, itself or through views."""
    views = all_views()
    wanted, found = list(RULES[rule].inputs.names), set[str]()
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            wanted += views[name].inputs.names if name in views else ()
    return frozenset(found)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: f"{k.page}-{k.words[:40]}")
def test_a_kind_is_read_by_its_format_into_its_tables(kind: Kind) -> None:
    found = read_source(kind.content)
    assert kind.format in found.filled
    held = set(found.frames) | set(found.folded)
    assert set(kind.tables) <= held
    assert all(found.frames[t].height for t in kind.tables if t in found.frames)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: f"{k.page}-{k.words[:40]}")
def test_rules_that_use_a_kind_read_its_tables_and_are_tested(kind: Kind) -> None:
    assert kind.rules
    assert shown_formats()[kind.format]
    for rule in kind.rules:
        assert reached(rule) & set(kind.tables), rule
        assert shown_rules()[rule]


def test_every_format_is_the_reader_of_a_kind() -> None:
    own = {
        "collect-manifest",
        "training-log",
        "mllog",
        "traceback",
        "environment",
        "sysfs-value",
        "nsight-systems",
    }  # shown by tests of their own
    assert {f.name for f in own_formats()} - {k.format for k in KINDS} - own == set()


@pytest.mark.corpus
def test_every_section_of_the_host_page_with_formats_has_a_row() -> None:
    page = corpus_root().parent / "formats" / "host.md"
    if not page.exists():
        pytest.skip("host.md is not beside the corpus")
    sections = re.findall(r"^## ([1-7]\.\d+) ", page.read_text(encoding="utf-8"), re.MULTILINE)
    named = {k.page.removeprefix("host ") for k in KINDS} | {page.removeprefix("host ") for page, _, _ in UNREAD}
    # Sections of meanings and expectations: what they describe is read with the sections around them.
    meanings = {"1.1", "1.2", "1.3", "2.4", "5.2", "5.3", "7.2", "7.3"}
    assert set(sections) - named - meanings == set()
