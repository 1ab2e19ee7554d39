"""The coverage table names what exists, and holds every row of the guides that stand beside the corpus."""

from __future__ import annotations

import re

import polars as pl
import pytest

from nccl_forensics.formats import own_formats
from nccl_forensics.model import CAUSES
from nccl_forensics.reading.source import read_source
from nccl_forensics.rules import own_rules
from nccl_forensics.store import Store
from nccl_forensics.views import Resolver
from tests.corpus import ROOT, corpus_root
from tests.coverage import shown_formats, shown_rules
from tests.coverage_rows import GUIDE, HOSTS, TORCH, Row
from tests.coverage_signatures import CONTEXT, INFO, SIGNATURES

RULES = {r.name: r for r in own_rules()}
FORMATS = {f.name for f in own_formats()}


@pytest.mark.parametrize("row", [*GUIDE, *HOSTS, *TORCH], ids=lambda r: f"{r.key}-{r.words[:30]}")
def test_a_row_names_rules_formats_and_pages_that_exist_and_are_tested(row: Row) -> None:
    assert set(row.rules) <= RULES.keys()
    assert set(row.formats) <= FORMATS
    assert all((ROOT / "docs" / page).is_file() for page in row.pages)
    assert row.rules or row.pages or row.missing
    assert all(shown_rules().get(name) for name in row.rules)
    assert not row.formats or any(shown_formats().get(name) for name in row.formats)


def test_every_cause_has_a_rule_with_a_test() -> None:
    for cause in CAUSES:
        assert any(shown_rules().get(r.name) for r in RULES.values() if r.cause == cause), cause


def store_of(key: str, message: str) -> Store:
    """The tables of a log with this one message, at the level at which NCCL prints it."""
    level = "NCCL INFO" if key in INFO else "init.cc:12 (caller) NCCL WARN"
    log = f"node7:1:9 [0] NCCL INFO NCCL version 2.27.5+cuda12.9\nnode7:1:9 [1] {level} {message}\n"
    frames = read_source(log.encode()).frames
    return Store.from_frames({n: f.with_columns(source_id=pl.lit(0, dtype=pl.UInt32())) for n, f in frames.items()})


@pytest.mark.parametrize(("key", "message", "kind", "rules"), SIGNATURES, ids=[s[0] for s in SIGNATURES])
def test_a_line_of_nccl_is_read_as_its_signature_and_makes_these_rules_speak(key: str, message: str, kind: str, rules: str) -> None:
    store = store_of(key, message)
    errors = store.scan("nccl_errors").collect()
    assert errors["kind"].to_list() == ([kind] if kind else [])
    resolver = Resolver(store)
    spoke = []
    for rule in RULES.values():
        if "nccl_errors" not in rule.inputs.names or resolver.missing(rule.inputs):
            continue
        code = rule.function.__code__
        if rule.check(*[resolver.get(n) for n in code.co_varnames[: code.co_argcount]]):
            spoke.append(rule.name)
    assert spoke == rules.split()


def test_a_line_that_makes_no_rule_speak_has_a_reason_and_no_other_has() -> None:
    assert {key for key, _, _, rules in SIGNATURES if not rules} == CONTEXT.keys()


def guide(name: str) -> str:
    file = corpus_root().parent / name
    if not file.exists():
        pytest.skip(f"{name} is not beside the corpus")
    return file.read_text(encoding="utf-8")


@pytest.mark.corpus
def test_every_row_of_the_field_guide_is_in_the_table() -> None:
    assert [row.key for row in GUIDE] == re.findall(r"^\| ([HESCA]\d+) \|", guide("field-guide.md"), re.MULTILINE)


@pytest.mark.corpus
def test_every_sign_of_the_host_catalogue_is_in_the_table() -> None:
    text = guide("formats/host.md")
    section = text[text.index("# 9. Rule catalogue") : text.index("# 10.")]
    assert sorted(row.key for row in HOSTS) == sorted(re.findall(r"^\| ([A-Z]\d+) \|", section, re.MULTILINE))


@pytest.mark.corpus
def test_every_signature_of_nccls_catalogue_is_in_the_table() -> None:
    text = guide("formats/nccl.md")
    section = text[text.index("### 5.3 ") : text.index("### 5.9 ")]
    assert [s[0] for s in SIGNATURES] == re.findall(r"^\| ([A-Z]\d+) \|", section, re.MULTILINE)
