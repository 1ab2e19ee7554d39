"""Operations that are kept as numbers: what a verdict looks at is the same as where each is told by itself."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_forensics import analyze, simulate
from nccl_forensics.folding import FoldedTable
from nccl_forensics.formats import text_formats
from nccl_forensics.reading import source as reading
from nccl_forensics.reading.engine import InlineEngine
from nccl_forensics.tables import TABLES
from nccl_forensics.views import calls as calls_module
from nccl_forensics.views import matching
from nccl_forensics.views.calls import Parts
from nccl_forensics.views.communicators import comms
from nccl_forensics.views.divergence import divergences
from nccl_forensics.views.jumps import broken_steps
from nccl_forensics.views.matching import operations, progress
from nccl_forensics.views.process_groups import groups
from tests.benchmarks.inputs import stretch
from tests.corpus import corpus

OWN = TABLES["nccl_ops"].own
OPS = ("AllReduce", "AllGather", "Broadcast", "AlltoAll", "Send", "Exchange")


def frame(name: str, rows: list[dict[str, object]]) -> pl.LazyFrame:
    """Rows of a table with their source."""
    own = TABLES[name].frame(rows)
    return own.insert_column(0, pl.Series("source_id", [r["source_id"] for r in rows], dtype=pl.UInt32)).lazy()


#: What may be wrong with a call: it is not made, differs in one thing, or its line is lost, doubled, or stands behind the next one.
LEFT_OUT, OTHER, LOST, DOUBLED, LATE = 0, (1, 2, 3, 4), 5, 6, 7


def logs(seed: int, ranks: int, steps: int, faults: int, *, counting: bool = False) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """Operations and communicators of ranks that repeat a step in a group of all and in pairs, with some that differ or are missing;
    ``counting``: opCount is the number of the call in its communicator."""
    rng = random.Random(seed)
    step = [(rng.choice(OPS), rng.choice([1, 64, None]), rng.choice([7, 9, None]), rng.choice([0, 4]), pair) for pair in (0, 0, 1, 0)]
    ops: list[dict[str, object]] = []
    made: list[dict[str, object]] = []
    wrong = {(rng.randrange(ranks), rng.randrange(steps), rng.randrange(len(step))) for _ in range(faults)}
    for rank in range(ranks):
        who: dict[str, object] = {"source_id": rank + 3, "host": f"n{rank // 2}", "pid": 10 + rank}
        for pair, comm in enumerate((f"0xa{rank}", f"0xb{rank}")):
            size, key = (2, f"0xe{rank // 2}") if pair else (ranks, "0xc0")
            member = rank % 2 if pair else rank
            made.append(who | {"event": "init-complete", "rank": member, "nranks": size, "comm": comm, "comm_id": key, "line_no": 1 + pair})
        line = 3
        numbers = [0, 0]
        for turn in range(steps):
            for place, (op, count, dtype, red_op, pair) in enumerate(step):
                how = rng.randrange(8) if (rank, turn, place) in wrong else None
                line += rng.randrange(1, 3)
                if how == LEFT_OUT:
                    continue
                numbers[pair] += 1
                if how == LOST:
                    continue
                call = {"op": op, "count": count, "dtype": dtype, "red_op": red_op, "root": 0, "comm": f"0x{'ab'[pair]}{rank}"}
                call |= {1: {"op": "ReduceScatter"}, 2: {"count": 65}, 3: {"dtype": 2}, 4: {"root": 1}}.get(how or 0, {})
                own_count = numbers[pair] - 1 if counting else 0
                more = {"op_count": own_count, "nranks": 2 if pair else ranks, "line_no": line, "tid": rng.randrange(2)}
                if call["op"] != "Exchange":
                    ops.append(who | call | more)
                    if how == LATE and ops[-2:-1] and ops[-2]["pid"] == who["pid"]:
                        ops[-2]["line_no"], ops[-1]["line_no"] = ops[-1]["line_no"], ops[-2]["line_no"]
                        ops[-2:] = [ops[-1], ops[-2]]
                    if how == DOUBLED:
                        line += 1
                        ops.append(who | call | more | {"line_no": line})
                    continue
                for peer in range(2 if pair else ranks):
                    for way in ("Send", "Recv"):
                        ops.append(who | call | more | {"op": way, "root": peer, "line_no": line})
                        line += 1
    return frame("nccl_ops", ops), frame("nccl_comms", made)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 90), st.integers(0, 8), st.booleans())
def test_views_say_the_same_of_numbers_as_of_rows(seed: int, ranks: int, steps: int, faults: int, counting: bool) -> None:
    ops, made = logs(seed, ranks, steps, faults, counting=counting)
    known = comms(made)
    parts = operations.function(None, None, FoldedTable.of(ops, OWN), known, None, None)
    assert isinstance(parts, Parts)
    numbered = parts.calls()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "numbered_calls", lambda *_: None)
        plain = operations(None, None, ops, known, None, None).collect().lazy()
    order = ["source_id", "line_no"]
    assert numbered.every.sort(order).collect().equals(plain.sort(order).collect())
    assert numbered.telling.collect().height <= plain.collect().height

    def same(one: pl.LazyFrame, other: pl.LazyFrame) -> None:
        assert one.collect().to_dicts() == other.collect().to_dicts()

    same(divergences(numbered), divergences(plain))
    same(progress(numbered, None, None, None, None), progress(plain, None, None, None, None))
    same(groups(numbered, None, known, None, None, None), groups(plain, None, known, None, None, None))
    assert broken_steps(numbered) == broken_steps(plain)


def test_a_torn_line_that_lost_its_communicator_is_of_the_only_one_that_its_process_has() -> None:
    def calls(pairs: bool) -> list[tuple[object, ...]]:
        where: dict[str, object] = {"source_id": 3, "host": "n0", "pid": 10}
        call = where | {"op": "AllReduce", "count": 64, "dtype": 7, "red_op": 0, "root": 0, "nranks": 2}
        made = [where | {"event": "init-complete", "rank": 0, "nranks": 2, "comm": "0xa0", "comm_id": "0xc0", "line_no": 1}]
        lines = [call | {"comm": "0xa0", "op_count": n, "line_no": 5 + n} for n in range(3)]
        if pairs:
            made.append(made[0] | {"comm": "0xb0", "comm_id": "0xc1", "line_no": 2})
            lines.append(call | {"comm": "0xb0", "op_count": 0, "line_no": 8})
        lines.append(call | {"comm": None, "nranks": None, "op_count": 3, "line_no": 9})
        known = comms(frame("nccl_comms", made))
        parts = operations.function(None, None, FoldedTable.of(frame("nccl_ops", lines), OWN), known, None, None)
        every = parts.calls().every if isinstance(parts, Parts) else parts
        return every.sort("line_no").select("group_key", "seq").collect().rows()

    assert calls(pairs=False) == [("0xc0", n) for n in range(4)]
    assert calls(pairs=True) == [("0xc0", 0), ("0xc0", 1), ("0xc0", 2), ("0xc1", 0)], "of one of the two"


def test_of_a_long_sequence_only_the_ends_and_the_differences_tell() -> None:
    ops, made = logs(7, 4, 2000, 1)
    parts = operations.function(None, None, FoldedTable.of(ops, OWN), comms(made), None, None)
    assert isinstance(parts, Parts)
    told = parts.calls().telling.collect().height
    assert told < ops.collect().height * 2 // 3
    assert told >= 4 * calls_module.ENDS


@pytest.mark.parametrize(
    "evidence", ["stretched", "nccl-stub/split-skip-8r-rank6", "nccl-stub/wrong-count-8r-rank7", "nccl-stub/killed-midway-16r-rank13"]
)
def test_the_report_is_the_same_both_ways(evidence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if evidence == "stretched":
        simulate.simulate(simulate.Request("collective-skipped", 4, 3, "h100", "log", "2.27.7", full=True), tmp_path)
        folder = tmp_path / "evidence"
        for number, log in enumerate(sorted((folder / "logs").glob("nccl.*.log"))):
            stretch(log, 200_000, number)
    else:
        folder = corpus(evidence)
    monkeypatch.setattr(reading, "_MANY", 0)
    folded = analyze([folder], engine=InlineEngine(), title="both ways").json()
    plain = tuple(replace(f, bulk=None) for f in text_formats())
    monkeypatch.setattr(reading, "_MANY", 1 << 40)
    monkeypatch.setattr(reading, "text_formats", lambda: plain)
    monkeypatch.setattr(matching, "numbered_calls", lambda *_: None)
    assert analyze([folder], engine=InlineEngine(), title="both ways").json() == folded
