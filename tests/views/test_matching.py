"""Operations of all ranks on one footing: dumps chosen, ordinals counted, groups and progress."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.folding import FoldedTable
from nccl_forensics.tables import TABLES
from nccl_forensics.views.calls import OPERATIONS
from nccl_forensics.views.communicators import comms
from nccl_forensics.views.identity import PROCESSES_SCHEMA
from nccl_forensics.views.matching import _open_alone, dumps, fr_pg_names, operations, progress
from nccl_forensics.views.process_groups import groups
from nccl_forensics.views.rank_reports import rank_reports
from nccl_forensics.views.source_ranks import SOURCE_RANKS_SCHEMA
from nccl_forensics.words import UNIDENTIFIED
from tests.rules.host_frames import SECOND, table
from tests.views.frames import rows

MINUTE = 60 * SECOND


# ---- dumps ----


def dump(source: int, begin: int = 0, end: int = MINUTE, **more: object) -> dict[str, object]:
    return {
        "source_id": source,
        "encoding": "pickle",
        "comm_lib_version": "2.27.7",
        "first_created_ns": begin,
        "last_created_ns": end,
    } | more


def use(ranks: list[int], *found: dict[str, object]) -> list[tuple[int, str]]:
    """(source, use) of dumps, of which the n-th belongs to ranks[n]."""
    return dumps(table("fr_dumps", *found), owners(*ranks)).select("source_id", "use").collect().rows()


def owners(*ranks: int) -> pl.LazyFrame:
    return rows(SOURCE_RANKS_SCHEMA, *[{"source_id": n, "rank": r, "strength": 4} for n, r in enumerate(ranks)])


def test_a_dump_in_two_encodings_counts_once() -> None:
    both = dump(0, encoding="json", content_key="k"), dump(1, content_key="k")
    assert use([2, 2], *both) == [(0, "duplicate"), (1, "chosen")]


def test_an_operation_that_ended_between_two_encodings_makes_no_second_look() -> None:
    same = {"entries": 9, "first_record_id": 0, "last_record_id": 8}
    text = dump(0, encoding="json", content_key="ended", **same)
    assert use([2, 2], text, dump(1, content_key="open", **same)) == [(0, "duplicate"), (1, "chosen")]
    # Something was enqueued between the two, or both are of one encoding: two looks.
    assert use([2, 2], text, dump(1, content_key="open", entries=8, first_record_id=0, last_record_id=7)) == [(0, "older"), (1, "chosen")]
    assert use([2, 2], dump(0, content_key="ended", **same), dump(1, content_key="open", **same)) == [(0, "chosen"), (1, "older")]


def test_of_two_encodings_of_one_moment_that_with_the_frames_counts_though_an_operation_ended_after_it() -> None:
    same = {"entries": 9, "first_record_id": 0, "last_record_id": 8}
    text, binary = dump(0, encoding="json", content_key="ended", **same), dump(1, content_key="open", **same)
    people = rows(SOURCE_RANKS_SCHEMA, *({"source_id": n, "rank": 2} for n in range(2)))

    def counted(first: dict[str, object], second: dict[str, object]) -> list[str]:
        done = table("fr_status", {"source_id": 0, "last_completed": 9}, {"source_id": 1, "last_completed": 8})
        return dumps(table("fr_dumps", first, second), people, done).sort("source_id").collect()["use"].to_list()

    assert counted(text, binary) == ["duplicate", "chosen"]
    assert counted(dump(0, content_key="ended", **same), binary) == ["chosen", "older"], "of two with frames the later one"


def test_both_encodings_of_one_moment_are_of_one_process_whose_rank_nothing_tells() -> None:
    def unknown(*found: dict[str, object]) -> list[str]:
        people = rows(SOURCE_RANKS_SCHEMA, *({"source_id": n} for n in range(len(found))))
        return dumps(table("fr_dumps", *found), people).sort("source_id").collect()["use"].to_list()

    same = {"entries": 9, "first_record_id": 0, "last_record_id": 8, "begin": 7, "end": 2 * MINUTE}
    text, binary = dump(0, encoding="json", content_key="ended", **same), dump(1, content_key="open", **same)
    assert unknown(text, binary) == ["duplicate", "chosen"]
    # Where a third has that moment too, any two of them may belong together.
    assert unknown(text, binary, dump(2, content_key="other", **same)) == ["chosen"] * 3


def test_equal_contents_of_two_ranks_are_two_dumps() -> None:
    assert use([0, 1], dump(0, content_key="k"), dump(1, content_key="k")) == [(0, "chosen"), (1, "chosen")]


def test_of_two_recorders_of_each_process_the_one_that_knows_the_latest_of_all_counts_on_every_rank() -> None:
    """Rank 1 stands before what rank 0 waits in: its recorder of NCCL's calls holds no operation at all."""
    gloo = {"comm_lib_version": "", "version_major": 2, "version_minor": 10}
    empty = dump(3, first_created_ns=None, last_created_ns=None)
    first = (dump(0, end=MINUTE, **gloo), dump(1, end=MINUTE, **gloo), dump(2, end=2 * MINUTE))
    assert use([0, 1, 0, 1], *first, empty) == [(0, "beside"), (1, "beside"), (2, "chosen"), (3, "chosen")]
    later = (dump(0, end=3 * MINUTE, **gloo), dump(1, end=MINUTE, **gloo), dump(2, end=2 * MINUTE))
    assert use([0, 1, 0, 1], *later, empty) == [(0, "chosen"), (1, "chosen"), (2, "beside"), (3, "beside")]
    assert use([0, 1, 0], *first) == [(0, "beside"), (1, "chosen"), (2, "chosen")], "a rank that left one of them alone"
    before = gloo | {"version_minor": 4}
    assert use([0, 0], dump(0, end=SECOND, **before), dump(1)) == [(0, "older"), (1, "chosen")], "one of NCCL, which it did not name yet"


def test_of_two_samples_of_a_rank_the_later_is_chosen() -> None:
    assert use([0, 0, 1], dump(0, end=2 * MINUTE), dump(1), dump(2)) == [(0, "chosen"), (1, "older"), (2, "chosen")]


def test_a_dump_of_an_earlier_run_is_set_aside() -> None:
    now = 100 * MINUTE
    found = use([0, 1, 2], dump(0), dump(1, begin=now, end=now + MINUTE), dump(2, begin=now, end=now + MINUTE))
    assert found == [(0, "stale"), (1, "chosen"), (2, "chosen")]


def test_a_dump_of_a_host_whose_clock_is_off_by_an_hour_is_not_stale() -> None:
    hour = 60 * MINUTE

    def of_rank_0(off: int) -> str:
        """The use of a dump that begins and ends with the others, but for this time."""
        return use([0, 1, 2], dump(0, begin=9 * hour - off, end=9 * hour + 7 * MINUTE - off), *others)[0][1]

    others = [dump(source, begin=9 * hour, end=9 * hour + 7 * MINUTE) for source in (1, 2)]
    assert [of_rank_0(off) for off in (hour, 5 * hour + 30 * MINUTE)] == ["chosen"] * 2
    assert [of_rank_0(off) for off in (hour + 2 * MINUTE, 27 * hour)] == ["stale"] * 2


def test_a_rank_that_stopped_early_in_a_long_run_is_not_stale() -> None:
    hour = 60 * MINUTE
    assert use([0, 1, 2], dump(0, end=MINUTE), dump(1, end=hour), dump(2, end=hour)) == [(0, "chosen"), (1, "chosen"), (2, "chosen")]


# ---- operations of the recorder ----


def entry(source: int, seq: int, op: str = "all_reduce", **more: object) -> dict[str, object]:
    return (
        {"source_id": source, "record": f"entries[{seq}]", "collective_seq_id": seq, "op": op, "pg_id": 0, "pg_name": "0", "record_id": seq}
        | {
            "backend": "nccl",
            "state": "completed",
            "is_p2p": False,
        }
        | more
    )


def recorded(*entries: dict[str, object], ranks: tuple[int, ...] = (0, 1)) -> pl.LazyFrame:
    chosen = dumps(table("fr_dumps", *[dump(n) for n in range(len(ranks))]), owners(*ranks))
    return operations(table("fr_entries", *entries), chosen, None, None, None, None)


def test_operations_of_dumps_that_are_not_chosen_do_not_count() -> None:
    found = recorded(entry(0, 1), entry(1, 1), ranks=(3, 3)).collect()
    assert found.select("rank", "source_id").rows() == [(3, 0)]


def test_a_dump_of_unknown_rank_takes_part_under_a_number_that_is_no_rank() -> None:
    chosen = dumps(table("fr_dumps", dump(0), dump(1)), owners(0))
    found = operations(table("fr_entries", entry(0, 1), entry(1, 1)), chosen, None, None, None, None).collect()
    assert found["rank"].to_list() == [0, UNIDENTIFIED + 1]


def test_every_spelling_of_an_operation_becomes_one_word() -> None:
    found = recorded(entry(0, 1, "_all_gather_base"), entry(0, 2, "ALLREDUCE"), entry(0, 3, "reducescatter")).collect()
    assert found["op"].to_list() == ["all_gather_base", "all_reduce", "reduce_scatter"]


def test_sends_are_counted_by_their_own_number_and_know_their_peer() -> None:
    [row] = recorded(entry(0, 9, "send", is_p2p=True, p2p_seq_id=4, peer_src=0, peer_dst=1)).collect().to_dicts()
    assert (row["is_p2p"], row["seq"], row["peer"]) == (True, 4, 1)


def test_gloo_never_marks_completion_so_an_entry_is_pending_until_it_is_retired() -> None:
    found = recorded(
        entry(0, 1, backend="gloo", state="scheduled", retired=True), entry(0, 2, backend="gloo", state="scheduled", retired=False)
    ).collect()
    assert found.select("done", "pending").rows() == [(None, False), (None, True)]


def test_groups_without_a_name_are_told_apart_by_their_number() -> None:
    found = recorded(entry(0, 1, pg_name=None, pg_id=2), entry(0, 1, pg_name="", pg_id=3)).collect()
    assert found["group_key"].to_list() == ["pg_id:2", "pg_id:3"]


def keys_of_numbered(*entries: dict[str, object], ranks: int = 4) -> set[object]:
    return set(recorded(*entries, ranks=tuple(range(ranks))).collect()["group_key"].to_list())


def test_a_number_that_each_process_gives_by_itself_is_one_group_only_where_its_size_says_so() -> None:
    def calls(op: str, shape: str, out: str, number: int = 1, ranks: int = 4) -> list[dict[str, object]]:
        return [entry(n, 1, op, pg_name=None, pg_id=number, input_sizes=shape, output_sizes=out) for n in range(ranks)]

    apart = {f"pg_id:1 of rank {n}" for n in range(4)}
    assert keys_of_numbered(*calls("all_reduce", "[[8]]", "[[8]]")) == apart
    assert keys_of_numbered(*calls("_all_gather_base", "[[8,2]]", "[[16,2]]")) == apart
    assert keys_of_numbered(*calls("_all_gather_base", "[[8,2]]", "[[32,2]]")) == {"pg_id:1"}
    assert keys_of_numbered(*calls("all_gather", "[[8]]", "[[8],[8],[8],[8]]")) == {"pg_id:1"}
    assert keys_of_numbered(*calls("reduce_scatter", "[[8],[8],[8],[8]]", "[[8]]")) == {"pg_id:1"}
    # All have the first group in common, and of two alone nobody is told apart.
    assert keys_of_numbered(*calls("all_reduce", "[[8]]", "[[8]]", number=0)) == {"pg_id:0"}
    assert keys_of_numbered(*calls("all_reduce", "[[8]]", "[[8]]", ranks=2)) == {"pg_id:1"}


def test_local_numbers_of_groups_are_inferred_unless_an_entry_contradicts() -> None:
    status = table("fr_status", {"pg_id": 0}, {"pg_id": 1})
    listed = table("fr_groups", {"pg_name": "0"}, {"pg_name": "3"})
    assert fr_pg_names(status, listed, None).select("pg_id", "pg_name", "inferred").collect().rows() == [(0, "0", True), (1, "3", True)]
    against = table("fr_entries", entry(0, 1, pg_id=0, pg_name="3"))
    assert fr_pg_names(status, listed, against).select("pg_id", "pg_name").collect().rows() == [(0, "3")]
    agreeing = table("fr_entries", entry(0, 1, pg_id=0, pg_name="0"))
    assert fr_pg_names(status, listed, agreeing).select("pg_id", "pg_name", "inferred").collect().rows() == [
        (0, "0", False),
        (1, "3", True),
    ]


def test_where_names_are_not_in_the_order_of_numbers_a_number_has_the_description_that_other_dumps_give_it() -> None:
    """Rank 2 has no entry: by order its number 1 would be group 2."""
    names = [
        {"source_id": s, "pg_name": n, "pg_desc": d} for s in range(3) for n, d in (("0", "default_pg"), ("2", "replicate"), ("3", "shard"))
    ]
    status = table("fr_status", *[{"source_id": s, "pg_id": n} for s in range(3) for n in range(3)])
    said = [entry(s, 1, pg_id=n, pg_name=name) for s in range(2) for n, name in ((1, "3"), (2, "2"))]
    found = fr_pg_names(status, table("fr_groups", *names), table("fr_entries", *said)).filter(pl.col("source_id") == 2).collect()
    assert found.rows() == [(2, 1, "3", True), (2, 2, "2", True)]
    unlike = [*said[:-2], entry(1, 1, pg_id=1, pg_name="2"), entry(1, 1, pg_id=2, pg_name="3")]
    found = fr_pg_names(status, table("fr_groups", *names), table("fr_entries", *unlike)).filter(pl.col("source_id") == 2).collect()
    assert found.is_empty()


@pytest.mark.parametrize(("third", "told"), [("shard", [(2, 1, "b2", True)]), ("embedding", [])])
def test_where_names_are_no_numbers_a_number_has_the_description_that_dumps_with_groups_alike_give_it(
    third: str, told: list[tuple[object, ...]]
) -> None:
    """Rank 2 has no entry; where it is in another group than the others, its numbers may be others too."""
    lists = {s: [("0", "default_pg"), (f"b{s}", "tensor"), (f"c{s}", "shard" if s < 2 else third)] for s in range(3)}
    listed = table("fr_groups", *[{"source_id": s, "pg_name": n, "pg_desc": d} for s, names in lists.items() for n, d in names])
    status = table("fr_status", *[{"source_id": s, "pg_id": 1} for s in range(3)])
    said = table("fr_entries", *[entry(s, 1, pg_id=1, pg_name=f"b{s}") for s in range(2)])
    assert fr_pg_names(status, listed, said).filter(pl.col("source_id") == 2).collect().rows() == told


def test_names_are_matched_in_the_order_in_which_groups_were_made() -> None:
    """By number and not as text, and only where as many names as counters are there, all of them numbers."""
    counters = [{"source_id": source, "pg_id": number} for source in range(4) for number in range(3)]
    lists = [["2", "10", "9"], ["0", "1"], ["0", "1", "tp"], ["0", "1", "2"]]
    listed = table(
        "fr_groups", *[{"source_id": source, "pg_name": name} for source, names in enumerate(lists) for name in (*names, names[0])]
    )
    found = fr_pg_names(table("fr_status", *counters), listed, table("fr_entries", entry(3, 1, pg_id=7, pg_name="5"))).collect()
    assert found.rows() == [(0, 0, "2", True), (0, 1, "9", True), (0, 2, "10", True), (3, 7, "5", False)]


# ---- operations of NCCL's log ----


def member(rank: int, **more: object) -> dict[str, object]:
    return (
        {"event": "init-complete", "rank": rank, "nranks": 2, "comm": f"0xa{rank}", "comm_id": "0xc0", "line_no": 1} | process(rank) | more
    )


def process(rank: int) -> dict[str, object]:
    return {"host": "node1", "pid": 100 + rank, "source_id": rank}


#: A communicator of one: rank 1 of the job is its rank 0.
CHILD = member(1, comm="0xb1", comm_id="0xe0", line_no=3) | {"rank": 0, "nranks": 1}


def logged(rank: int, line: int, op: str = "AllReduce", **more: object) -> dict[str, object]:
    return {"op": op, "op_count": line, "comm": f"0xa{rank}", "nranks": 2, "line_no": line, "dtype": 7, "count": 8} | process(rank) | more


def people(*ranks: int) -> pl.LazyFrame:
    return rows(PROCESSES_SCHEMA, *[{"rank": r, "host": "node1", "pid": 100 + r} for r in ranks])


def numbered(members: list[dict[str, object]], *ops: dict[str, object]) -> list[tuple[object, ...]]:
    found = operations(None, None, table("nccl_ops", *ops), comms(table("nccl_comms", *members)), people(0, 1), None).collect()
    return found.sort("rank", "order").select("group_key", "rank", "seq", "op").rows()


def test_ordinals_count_from_nought_per_communicator_whatever_opcount_says() -> None:
    found = numbered([member(0), member(1)], logged(0, 2, op_count=40), logged(0, 3, op_count=40), logged(1, 2, op_count=7))
    assert found == [("0xc0", 0, 0, "all_reduce"), ("0xc0", 0, 1, "all_reduce"), ("0xc0", 1, 0, "all_reduce")]


def test_a_pointer_that_is_reused_begins_to_count_again() -> None:
    again = [member(0), member(0, event="destroy-complete", line_no=5), member(0, comm_id="0xd0", line_no=6)]
    found = numbered(again, logged(0, 2), logged(0, 3), logged(0, 8))
    assert [(key, seq) for key, _, seq, _ in found] == [("0xc0", 0), ("0xc0", 1), ("0xd0", 0)]


def test_an_operation_of_a_split_carries_the_global_rank_and_its_own_count() -> None:
    found = numbered([member(0), member(1), CHILD], logged(1, 4), logged(1, 5, comm="0xb1"))
    assert found == [("0xc0", 1, 0, "all_reduce"), ("0xe0", 1, 0, "all_reduce")]


def test_a_log_that_goes_on_in_another_file_goes_on_counting() -> None:
    first = [logged(0, 5), logged(0, 6)]
    rest = [logged(0, 1, "AllGather", source_id=7), logged(0, 2, "Broadcast", source_id=7)]
    assert [(op, seq) for *_, op, seq in _named(*first, *rest)] == [
        ("all_reduce", 0),
        ("all_reduce", 1),
        ("all_gather", 2),
        ("broadcast", 3),
    ]


def test_a_rotated_log_whose_older_part_sorts_last_counts_from_the_part_that_made_the_communicator() -> None:
    older, newer = {"source_id": 7}, {"source_id": 3}
    members = comms(table("nccl_comms", member(0, **older)))
    ops = table("nccl_ops", logged(0, 1, "AllGather", **newer), logged(0, 5, **older))
    found = operations(None, None, ops, members, people(0, 1), None).collect()
    assert sorted(found.select("seq", "op").rows()) == [(0, "all_reduce"), (1, "all_gather")]


def bare(*ops: dict[str, object], known: pl.LazyFrame | None = None) -> set[tuple[object, ...]]:
    """Groups and ranks of operations where no line tells how a communicator was made."""
    found = operations(None, None, table("nccl_ops", *ops), comms(table("nccl_comms")), known, None).collect()
    return set(found.select("group_key", "rank").rows())


def test_without_lines_that_make_communicators_the_only_one_of_all_processes_is_known_by_its_size() -> None:
    each = [logged(r, n, dev=r) for r in (0, 1) for n in (3, 4)]
    assert bare(*each) == {("size2", 0), ("size2", 1)}
    # A launcher's prefix and what else tells ranks come before devices.
    assert bare(*[o | {"hint_rank": 1 - int(str(o["dev"])), "hint_scope": "global"} for o in each], known=people()) == {
        ("size2", 0),
        ("size2", 1),
    }
    assert bare(*each, known=people(0, 1)) == {("size2", 0), ("size2", 1)}


def test_devices_of_two_hosts_or_of_processes_that_see_one_each_are_no_ranks() -> None:
    assert bare(logged(0, 3, dev=0), logged(1, 3, dev=1, host="node2")) == {("size2", None)}
    assert bare(logged(0, 3, dev=0), logged(1, 3, dev=0)) == {("size2", None)}


def test_communicators_that_size_does_not_tell_apart_stay_apart() -> None:
    two = [logged(r, n, dev=r, comm=f"0x{c}{r}") for r in (0, 1) for n, c in ((3, "a"), (4, "b"))]
    assert {key for key, _ in bare(*two)} == {"size2#0xa0", "size2#0xb0", "size2#0xa1", "size2#0xb1"}
    # Of three processes that share communicators of two, nothing says which two are one.
    assert {key for key, _ in bare(*[logged(r, 3, dev=r) for r in range(3)])} == {"size2#0xa0", "size2#0xa1", "size2#0xa2"}


def _named(*ops: dict[str, object]) -> list[tuple[object, ...]]:
    found = operations(None, None, table("nccl_ops", *ops), comms(table("nccl_comms", member(0, line_no=4))), people(0, 1), None).collect()
    return found.sort("seq").select("group_key", "op", "seq").rows()


def test_call_lines_repeat_what_operation_lines_say() -> None:
    call = {"op_count": None, "from_call": True}
    assert len(numbered([member(0)], logged(0, 2, **call), logged(0, 3))) == 1
    assert len(numbered([member(0)], logged(0, 2, **call), logged(0, 3, **call))) == 2


def test_lines_that_nccl_never_prints_are_left_out() -> None:
    assert numbered([member(0)], logged(0, 2, unofficial=True)) == []


def test_sends_do_not_advance_the_count_of_collectives() -> None:
    found = numbered([member(0)], logged(0, 2), logged(0, 3, "Send"), logged(0, 4))
    assert [(seq, op) for _, _, seq, op in found] == [(0, "all_reduce"), (None, "send"), (1, "all_reduce")]


# ---- operations of DETAIL ----


def fingerprint(rank: int, seq: int, **more: object) -> dict[str, object]:
    return {"kind": "fingerprint", "rank": rank, "seq": seq, "op": "ALLREDUCE", "detail": "[4]Float", "line_no": 1 + seq} | more


def said(*lines: dict[str, object]) -> pl.LazyFrame:
    return rank_reports(table("reports", *lines), None, None)


def test_a_mismatch_error_tells_of_both_ranks() -> None:
    other = {"kind": "detail-mismatch", "ranks": [1], "other_op": "BARRIER", "other_detail": None}
    found = operations(None, None, None, None, None, said(fingerprint(0, 0, **other))).collect()
    assert found.sort("rank").select("rank", "seq", "op").rows() == [(0, 1, "all_reduce"), (1, 1, "barrier")], (
        "numbered as recorders number them"
    )


def test_what_a_rank_says_of_itself_beats_what_others_read() -> None:
    # Where the layouts differ torch misreads the other's print, its number included.
    misread = {"kind": "detail-mismatch", "ranks": [1], "other_op": "GATHER", "other_detail": None, "differs": "op,sequence"}
    heard = {"kind": "detail-mismatch", "ranks": [0], "other_op": "REDUCE", "other_detail": None, "differs": "op"}
    rows = said(fingerprint(0, 0, **misread), fingerprint(1, 0, op="ALLTOALL_BASE", **heard))
    found = operations(None, None, None, None, None, rows).collect()
    assert found.sort("rank").select("rank", "op").rows() == [(0, "all_reduce"), (1, "all_to_all")]
    alone = operations(None, None, None, None, None, said(fingerprint(0, 0, **misread))).collect()
    assert alone["rank"].to_list() == [0]


def test_a_copy_in_a_file_of_its_own_does_not_stand_for_the_line_among_the_others() -> None:
    apart = {"kind": "detail-mismatch", "ranks": [1], "other_op": "BARRIER", "other_detail": None}
    copy = fingerprint(0, 3, source_id=0, **apart) | {"line_no": 1}
    log = [fingerprint(0, seq, source_id=1) for seq in range(3)] + [fingerprint(0, 3, source_id=1, **apart)]
    found = operations(None, None, None, None, None, said(copy, *log)).collect().filter(pl.col("rank") == 0)
    assert found.sort("seq").select("source_id", "line_no").rows() == [(1, n) for n in range(1, 5)]


def test_where_numbers_of_several_groups_mix_nothing_is_claimed() -> None:
    mixed = said(fingerprint(0, 0), fingerprint(0, 0, op="BARRIER"))
    assert operations(None, None, None, None, None, mixed).collect().height == 0


def test_where_numbers_of_several_groups_mix_what_differed_at_one_number_is_told() -> None:
    parted = {"kind": "detail-mismatch", "ranks": [2], "other_op": "GATHER", "other_detail": None, "differs": "op,sequence"}
    both = [fingerprint(r, 0, op="BARRIER") for r in (0, 1, 2)] + [fingerprint(r, 0) for r in (0, 1, 2)]
    raised = [fingerprint(0, 6, **parted), fingerprint(1, 6, **parted), fingerprint(2, 6, **parted | {"op": "ALLGATHER"})]
    found = operations(None, None, None, None, None, said(*both, *raised)).collect()
    assert found.sort("rank").select("rank", "seq", "op").rows() == [(0, 7, "all_reduce"), (1, 7, "all_reduce"), (2, 7, "all_gather")]
    # At two numbers these may be two groups.
    later = fingerprint(3, 7, **parted)
    assert operations(None, None, None, None, None, said(*both, *raised, later)).collect().height == 0


def test_what_led_up_to_a_difference_in_one_of_several_groups_is_told() -> None:
    """Ranks 0 and 1 make calls #0 to #2 in a second group too, by the same numbers; only lines of one group number the calls from #3 on."""
    steps = [fingerprint(r, seq, op=("ALLGATHER", "ALLREDUCE")[seq % 2], line_no=10 + seq) for r in (0, 1) for seq in range(7)]
    second = [fingerprint(r, seq, op="BARRIER", line_no=20 + seq) for r in (0, 1) for seq in range(3)]
    odd = {"kind": "detail-mismatch", "op": "ALLGATHER", "ranks": [1], "other_op": "BROADCAST", "other_detail": "[4]Float"}
    met = [
        fingerprint(0, 7, op="ALLGATHER", line_no=30),
        fingerprint(1, 7, op="BROADCAST", line_no=30),
        fingerprint(0, 7, line_no=31, **odd),
    ]
    found = operations(None, None, None, None, None, said(*steps, *second, *met)).collect().sort("rank", "seq")
    lines = [(rank, seq, op) for rank in (0, 1) for seq, op in ((4, "all_reduce"), (5, "all_gather"), (6, "all_reduce"), (7, "all_gather"))]
    assert found.select("rank", "seq", "op").rows() == [*lines[:4], (0, 8, "all_gather"), *lines[4:], (1, 8, "broadcast")]
    # A line is missing in the log of rank 1: what stands before the gap may be of any group.
    gap = [line for line in steps if (line["rank"], line["seq"]) != (1, 5)]
    short = operations(None, None, None, None, None, said(*gap, *second, *met)).collect().filter(pl.col("rank") == 1)
    assert short.sort("seq")["seq"].to_list() == [7, 8]


# ---- groups ----


def test_every_rank_with_a_dump_is_in_the_default_group_before_its_first_operation() -> None:
    chosen = dumps(table("fr_dumps", dump(0), dump(1), dump(2)), owners(0, 1, 2))
    ops = operations(table("fr_entries", entry(0, 1, pg_desc="default_pg"), entry(1, 1)), chosen, None, None, None, None)
    [group] = groups(ops, None, None, None, chosen, None).collect().to_dicts()
    assert group["members"] == [0, 1, 2]


def test_a_rank_number_that_nothing_shows_is_a_member_of_the_default_group() -> None:
    chosen = dumps(table("fr_dumps", dump(0), dump(1)), owners(0, 3))
    ops = operations(table("fr_entries", entry(0, 1), entry(1, 1)), chosen, None, None, None, None)
    [group] = groups(ops, None, None, None, chosen, None).collect().to_dicts()
    assert group["members"] == [0, 1, 2, 3]


def test_traces_state_how_many_ranks_the_default_group_has() -> None:
    chosen = dumps(table("fr_dumps", dump(0), dump(1)), owners(0, 1))
    ops = operations(table("fr_entries", entry(0, 1), entry(1, 1)), chosen, None, None, None, None)
    for sizes, members in (([3, 3], [0, 1, 2]), ([None, None], [0, 1])):
        traced = pl.LazyFrame({"world_size": sizes}, schema={"world_size": pl.Int32})
        [group] = groups(ops, None, None, None, chosen, None, None, traced).collect().to_dicts()
        assert group["members"] == members


def test_what_a_dump_states_of_a_group_gives_its_members_and_size() -> None:
    stated = table("fr_groups", {"pg_name": "tp", "pg_desc": "tp", "ranks": "4-5"})
    [group] = groups(None, stated, None, None, None, None).collect().to_dicts()
    assert (group["group_key"], group["members"], group["size"]) == ("pg:tp", [4, 5], 2)


def test_a_smaller_communicator_is_named_in_global_ranks() -> None:
    members = comms(table("nccl_comms", member(0), member(1), CHILD))
    found = groups(None, None, members, people(0, 1), None, None).collect()
    assert found.select("group_key", "members", "size").rows() == [("0xc0", [0, 1], 2), ("0xe0", [1], 1)]


# ---- progress ----


def far(
    status: pl.LazyFrame | None, *entries: dict[str, object], version: str = "2.27.7", schema: int = 9, **kept: object
) -> list[tuple[object, ...]]:
    """Of two ranks, how far they are; ``kept``: what the ring of the second one holds."""
    written = {"comm_lib_version": version, "version_major": 2, "version_minor": schema}
    chosen = dumps(table("fr_dumps", dump(0, **written), dump(1, **written | kept)), owners(0, 1))
    ops = operations(table("fr_entries", *entries), chosen, None, None, None, None)
    names = fr_pg_names(status, table("fr_groups", {"pg_name": "0"}, {"pg_name": "0", "source_id": 1}), None)
    return progress(ops, status, names, chosen, None).select("rank", "last_seq", "last_done").collect().rows()


def counters(**more: object) -> pl.LazyFrame:
    status = {"pg_id": 0, "last_enqueued": 9, "last_completed": 8}
    return table("fr_status", status | more, status | {"source_id": 1} | more)


def test_the_recorders_counters_speak_for_an_empty_dump() -> None:
    assert far(counters(), entry(0, 7), entry(0, 8)) == [(0, 9, 8), (1, 9, 8)]


def test_the_counters_of_gloo_count_other_things() -> None:
    assert far(counters(), entry(0, 7), version="") == [(0, 7, 7)]


def test_recorders_of_nccl_alone_name_no_library_and_count_all_the_same() -> None:
    assert far(counters(), entry(0, 7), version="", schema=5) == [(0, 9, 8), (1, 9, 8)]


def test_a_recorder_that_holds_nothing_completed_has_completed_all_before_its_first_open_operation() -> None:
    half = entry(0, 6), entry(0, 7, state="scheduled"), entry(1, 5, state="scheduled"), entry(1, 6, state="scheduled")
    assert far(None, *half) == [(0, 7, 6), (1, 6, 4)]
    cut = {"entries": 2, "first_record_id": 40, "last_record_id": 41}
    assert far(None, *half, **cut) == [(0, 7, 6), (1, 6, None)], "what its ring has lost may be open as well"
    assert far(None, *half, **cut | {"last_record_id": 90}) == [(0, 7, 6), (1, 6, 4)], "it was asked for what is open alone"
    # Where nobody marks what is completed nothing is known of it.
    assert far(None, *[e | {"backend": "gloo", "retired": False} for e in half], version="") == [(0, 7, None), (1, 6, None)]


def test_what_a_dump_of_open_operations_alone_does_not_hold_is_over_though_the_counters_lag() -> None:
    another = entry(0, 3, pg_id=1, pg_name="4", state="scheduled"), entry(1, 3, pg_id=1, pg_name="4", state="scheduled")
    gaps = {"entries": 1, "first_record_id": 40, "last_record_id": 90}
    assert (1, 9, 9) in far(counters(), *another, **gaps)
    # In a whole ring the last operation of a quiet group may have been the first to be lost.
    assert (1, 9, 8) in far(counters(), *another, **gaps | {"last_record_id": 40})
    # What is open stays open, and a dump that holds what is over was not asked for what is open alone.
    assert (1, 9, 8) in far(counters(), *another, entry(1, 9, state="scheduled"), **gaps)
    assert (1, 9, 8) in far(counters(), *another, entry(0, 2, pg_id=1, pg_name="4"), **gaps)


def test_dumps_of_open_operations_alone_say_what_is_over_without_counters() -> None:
    opened = entry(0, 6, state="scheduled"), entry(1, 5, state="scheduled"), entry(1, 6, state="scheduled")
    gaps = {"entries": 2, "first_record_id": 40, "last_record_id": 90}
    assert far(None, *opened, **gaps) == [(0, 6, 5), (1, 6, 4)]
    assert far(None, *opened, **gaps | {"last_record_id": 41}) == [(0, 6, None), (1, 6, None)], "what the rings have lost may be open"


@pytest.mark.parametrize(("held", "alone"), [([8, 8, 9], True), ([9, 9, 8], False), ([9, 9, 9], False)])
def test_rings_that_have_room_for_more_lost_nothing_and_hold_what_is_open_alone(held: list[int], alone: bool) -> None:
    kept = [{"entries": n, "first_record_id": 40, "last_record_id": 39 + n} for n in held]
    chosen = dumps(table("fr_dumps", *(dump(rank, **more) for rank, more in enumerate(kept))), owners(0, 1, 2))
    assert _open_alone(rows(OPERATIONS, {"domain": "fr", "done": False}), chosen) is alone


@pytest.mark.parametrize(("first", "told"), [(5, 4), (6, None), (8, None)])
def test_of_the_fullest_ring_what_it_has_lost_may_be_open_as_well(first: int, told: int | None) -> None:
    """Three ranks of one group, of which the first and the last stand in #6, and the ring of the second is the fullest."""
    sizes = {0: 3, 1: 4, 2: 3}
    kept = [dump(r, entries=n, first_record_id=40, last_record_id=39 + n) for r, n in sizes.items()]
    chosen = dumps(table("fr_dumps", *kept), owners(0, 1, 2))
    opened = [entry(r, (first if r == 1 else 6) + n, state="scheduled") for r, size in sizes.items() for n in range(size)]
    ops = operations(table("fr_entries", *opened), chosen, None, None, None, None)
    found = dict(progress(ops, None, None, chosen, None).select("rank", "last_done").collect().iter_rows())
    assert found == {0: 5, 1: told, 2: 5}


def test_the_counters_of_a_group_with_sends_count_other_things() -> None:
    sent = entry(0, 9, "send", is_p2p=True, p2p_seq_id=1, peer_dst=1)
    assert far(counters(), entry(0, 7), sent) == [(0, 7, 7)]


def test_sends_that_are_over_show_in_the_numbers_of_what_is_open() -> None:
    chosen = dumps(table("fr_dumps", dump(0, comm_lib_version="2.27.7"), dump(1, comm_lib_version="2.27.7")), owners(0, 1))
    names = fr_pg_names(counters(), table("fr_groups", {"pg_name": "0"}, {"pg_name": "0", "source_id": 1}), None)

    def last(sends: int) -> list[tuple[object, ...]]:
        entries = table("fr_entries", entry(0, 7, p2p_seq_id=sends), entry(1, 7, p2p_seq_id=0))
        ops = operations(entries, chosen, None, None, None, None)
        return [
            progress(ops, counters(), names, chosen, None, None, told).select("last_seq", "last_done").collect().rows()
            for told in (entries, FoldedTable.of(entries, TABLES["fr_entries"].own))
        ]

    assert last(0) == [[(9, 8), (9, 8)]] * 2
    assert last(12) == [[(7, 7), (7, 7)]] * 2


def test_the_first_pending_operation_and_the_last_completed_one_are_told() -> None:
    ops = recorded(entry(0, 1), entry(0, 2, state="started"), entry(0, 3, state="scheduled"))
    [row] = progress(ops, None, None, None, None).collect().to_dicts()
    assert (row["first_seq"], row["last_seq"], row["last_done"], row["first_pending"], row["record"]) == (1, 3, 1, 2, "entries[3]")


def test_a_watchdogs_line_tells_of_its_rank_in_the_default_group() -> None:
    line = {"kind": "timeout", "pg_name": "0", "pg_rank": 3, "seq": 6, "last_enqueued": 8, "last_completed": 5, "op": "ALLREDUCE"}
    [row] = progress(None, None, None, None, table("watchdog", line)).collect().to_dicts()
    assert (row["domain"], row["rank"], row["last_seq"], row["last_done"], row["first_pending"]) == ("watchdog", 3, 8, 5, 6)


def test_the_rank_inside_another_group_is_not_the_global_one() -> None:
    line = {"kind": "timeout", "pg_name": "tp", "pg_desc": "tp", "pg_rank": 1, "seq": 6}
    assert progress(None, None, None, None, table("watchdog", line)).collect().height == 0
