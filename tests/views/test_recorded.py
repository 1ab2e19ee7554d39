"""Operations of recorders that are told by number: what views make of them is the same as where each is told by itself."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from nccl_forensics.folding import FoldedTable
from nccl_forensics.tables import TABLES
from nccl_forensics.views import arrivals, recorded
from nccl_forensics.views import lag as lag_module
from nccl_forensics.views import long_waits as long_waits_module
from nccl_forensics.views.calls import ENDS, Calls, Parts, calls_of
from nccl_forensics.views.checked_calls import checked_calls
from nccl_forensics.views.divergence import divergences
from nccl_forensics.views.jumps import broken_steps
from nccl_forensics.views.lag import lag
from nccl_forensics.views.long_waits import long_waits
from nccl_forensics.views.looks import looks
from nccl_forensics.views.matching import fr_pg_names, operations, progress
from nccl_forensics.views.motion import motion
from nccl_forensics.views.pair_waits import unfinished
from nccl_forensics.views.process_groups import groups
from tests.rules.host_frames import table
from tests.views.frames import waits_of

OPS = ("all_reduce", "_all_gather_base", "broadcast", "all_to_all", "send", "coalesced")
OWN = TABLES["fr_entries"].own
#: What may be wrong with an entry: it is missing, of another kind or size, its number is another's or none, or it stands elsewhere.
MISSING, OTHER, SIZE, TWICE, UNNUMBERED, MOVED = range(6)


def rings(seed: int, ranks: int, steps: int, faults: int) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """Entries and dumps of ranks that repeat a step in a group of all and in pairs; one rank more than is counted."""
    rng = random.Random(seed)
    step = [(rng.choice(OPS), rng.choice(["[[1]]", "[[64]]", None]), rng.choice(["Float", None]), pair) for pair in (0, 0, 1, 0)]
    wrong = {(rng.randrange(ranks), rng.randrange(steps), rng.randrange(len(step))) for _ in range(faults)}
    entries: list[dict[str, object]] = []
    made: list[dict[str, object]] = []
    for rank in range(ranks + 1):
        own: list[dict[str, object]] = []
        numbers = {(pair, p2p): 0 for pair in (0, 1) for p2p in (False, True)}
        backend = "gloo" if rng.random() < 0.1 else "nccl"
        for turn in range(steps):
            for place, (op, size, dtype, pair) in enumerate(step):
                how = rng.randrange(6) if (rank, turn, place) in wrong else None
                if how == MISSING:
                    continue
                p2p = op == "send"
                numbers[pair, p2p] += how != TWICE
                number = None if how == UNNUMBERED else numbers[pair, p2p]
                created = turn * 1_000_000 + place * 1000 + rng.randrange(500)
                over = turn < steps - 2 or rng.random() < 0.5
                own.append(
                    {
                        "source_id": rank + 2,
                        "record": f"entries[{len(own)}]",
                        "record_id": len(own),
                        "pg_id": pair,
                        "pg_name": f"{1 + rank // 2}" if pair else "0",
                        "pg_desc": None if pair else "default_pg",
                        "backend": backend,
                        "op": "broadcast" if how == OTHER else op,
                        "peer_dst": 1 - rank % 2 if p2p else None,
                        "collective_seq_id": None if p2p else number,
                        "p2p_seq_id": number if p2p else 0,
                        "is_p2p": p2p,
                        "state": "completed" if over else "started",
                        "retired": over,
                        "time_created_ns": created + 1,
                        "time_completed_ns": created + 900 if over else None,
                        "input_sizes": "[[65]]" if how == SIZE else size,
                        "input_dtypes": dtype,
                        "user_frame": f"step (train.py:{place})",
                        "frames": "all_reduce (/torch/distributed_c10d.py:1)\nstep (train.py:3)",
                    }
                )
                if how == MOVED and len(own) > 1:
                    own[-2:] = own[:-3:-1]
        entries += own
        made.append({"source_id": rank + 2, "rank": rank, "use": "older" if rank == ranks else "chosen", "comm_lib_version": "2.27.7"})
    table = TABLES["fr_entries"].frame(entries)
    table = table.insert_column(0, pl.Series("source_id", [e["source_id"] for e in entries], dtype=pl.UInt32))
    schema = {"source_id": pl.UInt32(), "rank": pl.Int32(), "use": pl.String(), "comm_lib_version": pl.String()}
    return table.lazy(), pl.DataFrame(made, schema=schema).lazy()


def calls(entries: pl.LazyFrame, chosen: pl.LazyFrame, *, pieces: int = 1, folder: Path | None = None) -> Calls:
    """Operations by number, of a table in so many pieces, in files of a folder if one is given."""
    folded = FoldedTable.of(entries, OWN)
    sources = folded.words["source_id"].unique(maintain_order=True).to_list()
    rows = folded.parts[0]
    assert isinstance(rows, pl.DataFrame)
    cut = [rows.filter(pl.col("source_id").is_in(sources[n::pieces])) for n in range(pieces)]
    held: list[pl.DataFrame | Path] = [*cut]
    if folder is not None:
        for n, piece in enumerate(cut):
            piece.write_ipc(folder / f"{n}.arrow")
            held[n] = folder / f"{n}.arrow"
    parts = operations.function(FoldedTable(entries, tuple(held), folded.words), chosen, None, None, None, None)
    assert isinstance(parts, Parts)
    return parts.calls()


@given(
    seed=st.integers(0, 10_000),
    ranks=st.integers(1, 5),
    steps=st.integers(1, 100),
    faults=st.integers(0, 4),
    pieces=st.integers(1, 3),
)
@example(seed=1, ranks=2, steps=3, faults=3, pieces=1)  # entries that do not stand in the order in which they were made
@settings(max_examples=40, deadline=None)
def test_views_say_the_same_of_numbers_as_of_rows(seed: int, ranks: int, steps: int, faults: int, pieces: int) -> None:
    entries, chosen = rings(seed, ranks, steps, faults)
    known = calls(entries, chosen, pieces=pieces)
    every = calls(entries, chosen).every.collect()
    plain = calls_of(every.lazy())
    order = ["source_id", "order", "record"]
    assert known.every.sort(order).collect().equals(every.sort(order))
    assert known.telling.unique().collect().height == known.telling.collect().height
    assert known.telling.join(every.lazy(), on=every.columns, how="anti", nulls_equal=True).collect().is_empty()

    def same(one: pl.LazyFrame, other: pl.LazyFrame) -> None:
        assert one.collect().to_dicts() == other.collect().to_dicts()

    key = ["domain", "group_key", "rank", "op", "shape"]
    same(known.counts.sort(key), plain.counts.sort(key))
    same(divergences(known), divergences(plain))
    same(progress(known, None, None, None, None), progress(plain, None, None, None, None))
    same(groups(known, None, None, None, None, None), groups(plain, None, None, None, None, None))
    assert broken_steps(known.recent()) == broken_steps(plain.telling)
    same(motion(None, None, None, known), motion(None, None, None, plain))
    asked = table("collected", *({"rank": rank, "at_ns": 10**8} for rank in range(ranks)))
    same(looks(asked, known), looks(asked, plain))
    found = divergences(plain)
    state, who = progress(plain, None, None, None, None), groups(plain, None, None, None, None, None)
    same(waits_of(known, state, who, found, None), waits_of(plain, state, who, found, None))
    late, of_rows = lag(known).collect(), lag(plain).collect()
    assert_frame_equal(late, of_rows)


@given(seed=st.integers(0, 10_000), faults=st.integers(0, 3))
@settings(max_examples=10, deadline=None)
def test_what_is_looked_up_of_a_folded_table_is_what_the_table_says(seed: int, faults: int) -> None:
    entries, chosen = rings(seed, 4, 5, faults)
    folded = FoldedTable.of(entries, OWN)
    of_numbers = fr_pg_names.function(None, None, folded)
    assert isinstance(of_numbers, pl.LazyFrame)
    assert of_numbers.collect().equals(fr_pg_names(None, None, entries).collect())
    known = calls(entries, chosen)
    checked = checked_calls.function(known, folded)
    assert isinstance(checked, pl.LazyFrame)
    assert checked.collect().equals(checked_calls(known.every, entries).collect())


@pytest.mark.parametrize("in_files", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_what_does_not_fit_into_memory_at_once_is_told_in_parts(seed: int, in_files: bool, tmp_path: Path) -> None:
    entries, chosen = rings(seed, 5, 40, seed)
    late = pl.when(pl.col("source_id") == 3).then(pl.col("collective_seq_id") % 7 * 10**9).otherwise(0)
    entries = entries.with_columns(time_created_ns=pl.col("time_created_ns") + late, timeout_ms=pl.lit(10_000, dtype=pl.Int64))
    whole = calls(entries, chosen)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(arrivals, "AT_ONCE", 100)
        patched.setattr(recorded, "_GATHERED", 100)
        patched.setattr(recorded, "_FEW", 0)
        for module in (lag_module, long_waits_module):
            patched.setattr(module, "AT_ONCE", 20)
        parts = calls(entries, chosen, pieces=4, folder=tmp_path if in_files else None)
        waited = long_waits(parts).collect()
        assert_frame_equal(lag(parts).collect(), lag(whole).collect())
        assert_frame_equal(waited, long_waits(whole).collect())
        assert divergences(parts).collect().equals(divergences(whole).collect())
        assert progress(parts, None, None, None, None).collect().equals(progress(whole, None, None, None, None).collect())
        assert not list(tmp_path.glob("arrivals*"))
        assert bool(list(tmp_path.glob("numbers*/*"))) == in_files
        del parts
        gc.collect()
        assert not list(tmp_path.glob("numbers*"))
    assert waited.height
    assert 1 in set(waited["late"])


def test_of_a_long_ring_only_the_ends_and_the_differences_tell() -> None:
    entries, chosen = rings(7, 4, 500, 0)
    known = calls(entries, chosen)
    assert known.telling.collect().height < 200
    assert 4 * ENDS <= known.recent().collect().height < entries.collect().height * 2 // 3


@pytest.mark.parametrize("missing", [True, False])
def test_a_rank_of_which_nothing_is_known_has_a_number_of_its_own(missing: bool) -> None:
    entries, chosen = rings(1, 2, 3, 0)
    unknown = chosen.with_columns(rank=pl.when(pl.col("source_id") == 2).then(None).otherwise("rank")) if missing else chosen
    ranks = calls(entries, unknown).every.select(pl.col("rank").unique()).collect()["rank"].to_list()
    assert len(ranks) == 2
    assert (0 in ranks) != missing


def entry(record: int, op: str, *, p2p: int, seq: int = 7, peer: int | None = None, over: bool = False) -> dict[str, object]:
    name = {
        "record_id": record,
        "record": f"entries[{record}]",
        "pg_id": 1,
        "pg_name": "5",
        "pg_desc": "mesh_pp",
        "backend": "nccl",
        "op": op,
    }
    numbers = {"collective_seq_id": seq, "p2p_seq_id": p2p, "is_p2p": op in ("send", "recv"), "peer_dst": peer if op == "send" else None}
    ends = {"state": "completed" if over else "scheduled", "retired": over, "time_completed_ns": 9_000 if over else None}
    return name | numbers | ends | {"peer_src": peer if op == "recv" else None, "time_created_ns": 1_000 + record, "input_sizes": "[[4]]"}


def of_one(*entries: dict[str, object]) -> Calls:
    table = TABLES["fr_entries"].frame([dict(e) for e in entries])
    table = table.insert_column(0, pl.Series("source_id", [2] * len(entries), dtype=pl.UInt32))
    chosen = pl.DataFrame(
        {"source_id": [2], "rank": [0], "use": ["chosen"], "comm_lib_version": ["2.27.7"]},
        schema_overrides={"source_id": pl.UInt32, "rank": pl.Int32},
    )
    return calls(table.lazy(), chosen.lazy())


def test_what_runs_in_a_batch_has_the_state_of_the_entry_that_ends_it() -> None:
    made = of_one(
        *(entry(0, "send", p2p=1, peer=1), entry(1, "recv", p2p=1, peer=1), entry(2, "coalesced", p2p=1, over=True)),
        *(entry(3, "send", p2p=2, peer=1), entry(4, "coalesced", p2p=2)),
    )
    rows = made.every.select("op", "seq", "is_p2p", "done", "pending").collect().rows()
    assert rows == [
        ("send", 1, True, None, None),
        ("recv", 1, True, None, None),
        ("coalesced", 1, True, True, False),
        ("send", 2, True, None, None),
        ("coalesced", 2, True, False, True),
    ]
    left = unfinished(made)
    assert left is not None
    assert left.select("op", "seq").collect().rows() == [("send", 2), ("coalesced", 2)]


def test_a_batch_that_is_numbered_among_the_collectives_is_told_from_the_one_before_it() -> None:
    # PyTorch 2.3 and 2.4: the number of sends and receives stands still while batches come and go.
    made = of_one(
        *(entry(0, "send", p2p=0, seq=7, peer=1), entry(1, "coalesced", p2p=0, seq=7, over=True)),
        *(entry(2, "recv", p2p=0, seq=8, peer=1), entry(3, "coalesced", p2p=0, seq=8)),
    )
    left = unfinished(made)
    assert left is not None
    assert left.select("op", "order").collect().rows() == [("recv", 2), ("coalesced", 3)]


def test_an_end_of_a_batch_that_says_it_is_a_send_or_receive_is_no_state_of_the_others() -> None:
    end = entry(2, "coalesced", p2p=1, over=True) | {"is_p2p": True}
    rows = of_one(entry(0, "send", p2p=1, peer=1), entry(1, "recv", p2p=1, peer=1), end).every.select("done", "pending").collect().rows()
    assert rows == [(None, None), (None, None), (True, False)]
    single = of_one(entry(0, "send", p2p=1, peer=1, over=True), entry(1, "recv", p2p=2, peer=1), entry(2, "coalesced", p2p=3, over=True))
    assert single.every.select("done", "pending").collect().rows() == [(True, False), (False, True), (True, False)]


def test_sends_and_receives_of_one_number_ran_in_a_batch_though_no_end_of_one_is_kept() -> None:
    # A dump of what is open alone: the batches are over, and their ends with them.
    batch = of_one(entry(0, "send", p2p=1, peer=1), entry(1, "recv", p2p=1, peer=1), entry(2, "send", p2p=2, peer=1))
    assert batch.every.select("done", "pending").collect().rows() == [(None, None)] * 3
    left = unfinished(batch)
    assert left is not None
    assert left.collect().height == 0
    singles = of_one(entry(0, "send", p2p=1, peer=1), entry(1, "recv", p2p=2, peer=1), entry(2, "send", p2p=3, peer=1))
    assert singles.every.select("done", "pending").collect().rows() == [(False, True)] * 3


def test_a_single_send_keeps_its_own_state_and_a_batch_of_collectives_its_position() -> None:
    rows = (
        of_one(entry(0, "send", p2p=1, peer=1, over=True), entry(1, "send", p2p=2, peer=1)).every.select("done", "pending").collect().rows()
    )
    assert rows == [(True, False), (False, True)]
    rows = (
        of_one(entry(0, "all_reduce", p2p=0, over=True), entry(1, "coalesced", p2p=0, seq=8)).every.select("seq", "is_p2p").collect().rows()
    )
    assert rows == [(7, False), (8, False)]


def parted(*lines: list[dict[str, object]]) -> list[tuple[object, ...]]:
    """Where ranks part, by the entries of each."""
    entries = [e | {"source_id": rank + 2} for rank, own in enumerate(lines) for e in own]
    made = table("fr_entries", *entries)
    ranks = list(range(len(lines)))
    chosen = pl.DataFrame(
        {"source_id": [r + 2 for r in ranks], "rank": ranks, "use": "chosen", "comm_lib_version": "2.27.7"},
        schema_overrides={"source_id": pl.UInt32, "rank": pl.Int32},
    )
    return divergences(calls(made, chosen.lazy())).select("kind", "seq", "ranks").collect().rows()


def batch(first: int, seq: int, op: str = "all_to_all", *, over: bool = True) -> list[dict[str, object]]:
    """A batch of two collectives, whose calls share a position."""
    return [*(entry(first + n, op, p2p=0, seq=seq) for n in range(2)), entry(first + 2, "coalesced", p2p=0, seq=seq, over=over)]


def test_a_batch_of_collectives_whose_beginning_the_ring_has_lost_is_no_other_call() -> None:
    whole = [*batch(40, 7), *batch(43, 8), entry(46, "all_reduce", p2p=0, seq=9, over=True)]
    assert parted(whole, whole[2:], whole[1:], whole) == []
    # What stands behind batches is compared, and so is one that is open.
    assert parted(whole, [*whole[2:-1], entry(46, "broadcast", p2p=0, seq=9)], whole) == [("different", 9, [1])]
    opened = batch(40, 7, over=False)
    assert parted(opened, batch(40, 7, "broadcast", over=False), opened) == [("different", 7, [1])]


def test_what_runs_in_a_batch_of_collectives_has_no_state_of_its_own_whether_its_end_is_kept_or_not() -> None:
    whole = of_one(*batch(0, 7), entry(3, "all_reduce", p2p=0, seq=8)).every.select("op", "done", "pending").collect().rows()
    assert whole == [("all_to_all", None, None)] * 2 + [("coalesced", True, False), ("all_reduce", False, True)]
    # A dump of what is open alone.
    opened = of_one(*batch(0, 7)[:2], entry(3, "all_reduce", p2p=0, seq=8)).every.select("op", "done", "pending").collect().rows()
    assert opened == [("all_to_all", None, None)] * 2 + [("all_reduce", False, True)]
    apart = of_one(*(entry(n, "all_to_all", p2p=0, seq=7 + n) for n in range(2))).every.select("done", "pending").collect().rows()
    assert apart == [(False, True)] * 2


def test_of_entries_that_bear_no_number_times_tell_the_order() -> None:
    entries, chosen = rings(3, 2, 4, 0)
    bare = entries.with_columns(record_id=pl.lit(None, dtype=pl.Int64()))
    for made in (entries, bare):
        line = calls(made, chosen).every.filter(pl.col("rank") == 0).sort("order").collect()
        assert line["order"].null_count() == 0
        assert line["created_ns"].is_sorted()
    assert calls(bare.reverse(), chosen).telling.filter(pl.col("order").is_null()).collect().is_empty()
