"""Every input of the table of hostile inputs ends as the table says, and leaves nothing behind."""

from __future__ import annotations

import re
import time
from pathlib import Path

import polars as pl
import pytest

from nccl_forensics.analysis import judged
from nccl_forensics.errors import LimitReached, UnusableEvidence
from nccl_forensics.reading.bundle import open_bundle
from nccl_forensics.reading.engine import InlineEngine, read_bundle
from nccl_forensics.store import Store
from tests.hostile_inputs import INPUTS, Input

#: CPU seconds for one input, most of which are a few hundred bytes; the 24 MB of one of them take the longest.
_SECONDS = 12.0


def test_the_table_is_long_enough_and_names_each_input_once():
    assert len(INPUTS) >= 60
    assert len({(i.group, i.name) for i in INPUTS}) == len(INPUTS)


@pytest.mark.parametrize("one", INPUTS, ids=[f"{i.group}: {i.name}" for i in INPUTS])
def test_a_hostile_input_ends_as_the_table_says(one: Input, tmp_path: Path):
    folder, scratch = tmp_path / "in", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    (folder / "evidence").write_bytes(one.make())
    begin = time.process_time()
    if one.outcome in ("limit", "nothing"):
        raised = LimitReached if one.outcome == "limit" else UnusableEvidence
        with pytest.raises(raised, match=one.says) as caught:
            _read(one, folder / "evidence", scratch)
        assert caught.value.exit_code == (4 if one.outcome == "limit" else 3)
    else:
        _judge(one, *_read(one, folder / "evidence", scratch))
    assert time.process_time() - begin < _SECONDS
    assert not list(scratch.iterdir()), "scratch was not emptied"
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["evidence", "in", "scratch"], "something was written elsewhere"


def _read(one: Input, file: Path, scratch: Path) -> tuple[Store, list[tuple[str, str]], dict[str, bytes]]:
    with open_bundle([file], limits=one.limits, scratch=scratch) as bundle:
        for member in bundle.members:
            assert member.path.isprintable()
            if member.file is not None:
                assert member.file == file or member.file.parent == bundle.scratch
        content = {m.path: m.file.read_bytes()[:200] for m in bundle.members if m.file is not None}
        store = read_bundle(bundle, InlineEngine())
        if not any(store.sources["formats"].list.len().fill_null(0).to_list()):
            listed = "; ".join(str(e) for e in store.sources["error"].drop_nulls())
            if one.outcome == "nothing":
                raise UnusableEvidence(listed)
        if one.group in ("JSON", "text"):
            report, _ = judged(bundle, store, None, None, None, pictures=True)
            assert isinstance(report["rules"], list)
            assert not [r for r in report["rules"] if r["status"] == "crashed"]
        return store, list(bundle.skipped), content


def _judge(one: Input, store: Store, skipped: list[tuple[str, str]], content: dict[str, bytes]) -> None:
    sources = store.sources
    errors = [str(e) for e in sources["error"].drop_nulls()]
    gaps = [str(r) for r in store.scan("gaps").collect()["reason"]] if store.has("gaps") else []
    raised = [g for g in gaps if re.match(r"unreadable: [A-Z]\w+: ", g)]
    assert not raised, "a reader fell over"
    for row in sources.filter(pl.col("lines").is_not_null()).iter_rows(named=True):
        assert row["records"] + row["gaps"] + row["foreign"] == row["lines"]
    if one.outcome == "passed over":
        assert any(re.search(one.says, why) for _, why in skipped), skipped
        assert content.get("x.log") == content.get("x.log#2") or "x.log" in content
    elif one.outcome == "row":
        assert any(re.search(one.says, e) for e in errors), errors
    elif one.outcome == "gap":
        assert gaps or errors
        assert any(re.search(one.says, t) for t in (*gaps, *errors)), (gaps, errors)
    else:
        assert not errors, errors
    if one.group == "archive" and "x.log" in content:
        assert "nccl-log" in {f for formats in sources["formats"].to_list() for f in formats or []}


def test_members_of_one_name_are_told_apart_in_citations(tmp_path: Path):
    [one] = [i for i in INPUTS if i.name == "tar: three members of one name"]
    (tmp_path / "x.tar").write_bytes(one.make())
    with open_bundle([tmp_path / "x.tar"]) as bundle:
        assert [m.path for m in bundle.members] == ["x.log", "x.log#2", "x.log#3"]
