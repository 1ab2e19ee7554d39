"""Ranks that the framework prints, of groups of all ranks and of some."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.rank_reports import rank_reports
from nccl_forensics.views.source_ranks import SOURCE_RANKS_SCHEMA
from nccl_forensics.words import UNIDENTIFIED
from tests.rules.host_frames import table
from tests.views.frames import rows

#: Rank 10 + n of the bundle's files is that of rank n.
FILES = rows(SOURCE_RANKS_SCHEMA, *({"source_id": 10 + r, "rank": r} for r in range(8)))


def lists(*groups: str) -> pl.LazyFrame:
    return table("fr_groups", *({"ranks": group, "pg_name": str(n)} for n, group in enumerate(groups)))


def differs(rank: int, other: int, source: int, seq: int = 26, **more: object) -> dict[str, object]:
    said = {"kind": "detail-mismatch", "rank": rank, "ranks": [other], "seq": seq, "op": "ALLREDUCE", "other_op": "ALLREDUCE"}
    return said | {"source_id": source, "line_no": 3} | more


def told(*lines: dict[str, object], groups: pl.LazyFrame | None = None, files: pl.LazyFrame = FILES) -> list[tuple[object, ...]]:
    found = rank_reports(table("reports", *lines), files, groups).collect()
    return found.sort("source_id", "line_no").select("source_id", "rank", "ranks", "in_subgroup").rows()


def test_in_the_group_of_all_ranks_the_numbers_stand() -> None:
    assert told(differs(3, 0, 13), differs(0, 3, 10)) == [(10, 0, [3], False), (13, 3, [0], False)]
    assert told({"kind": "barrier-missing", "ranks": [2], "source_id": 10}) == [(10, None, [2], False)]


def test_two_that_name_each_other_tell_whom_the_other_means() -> None:
    assert told(differs(1, 0, 15), differs(0, 1, 14)) == [(14, 4, [5], True), (15, 5, [4], True)]


def test_the_first_rank_of_a_smaller_group_bears_its_own_number_there() -> None:
    assert told(differs(1, 0, 12), differs(0, 1, 10)) == [(10, 0, [2], True), (12, 2, [0], True)]


def test_a_line_alone_is_read_by_the_groups_of_the_recorders() -> None:
    assert told(differs(2, 0, 15), groups=lists("0-7", "1-7:2", "4-5")) == [(15, 5, [1], True)]
    assert told(differs(2, 0, 15), groups=lists("0-7")) == [(15, 5, None, True)]
    # Two groups in which rank 5 is the third, and no word of the other.
    assert told(differs(2, 0, 15), groups=lists("1-7:2", "3-6")) == [(15, 5, None, True)]


def test_a_line_whose_number_fits_is_of_the_group_that_the_other_lines_of_that_call_are_of() -> None:
    """Of the group of ranks 0, 2 and 4 the file of rank 2, which is 1 there, was not collected."""
    assert told(differs(0, 1, 10), differs(2, 1, 14)) == [(10, 0, None, True), (14, 4, None, True)]
    assert told(differs(0, 1, 10), differs(2, 1, 14), groups=lists("0-7", "0-4:2")) == [(10, 0, [2], True), (14, 4, [2], True)]
    # So is one of a file that nothing else knows.
    assert told(differs(1, 0, 99), differs(2, 1, 14))[-1] == (99, None, None, True)
    # Another call is another matter.
    assert told(differs(0, 1, 10, seq=3), differs(2, 1, 14))[0] == (10, 0, [1], False)


def test_speakers_that_nothing_else_knows_are_nobody_where_some_ranks_take_no_part() -> None:
    """Files without a name: three ranks of a group of the eight that other files tell of."""
    lines = (differs(0, 1, 90), differs(1, 0, 91), differs(2, 1, 92))
    assert told(*lines) == [(90 + n, UNIDENTIFIED + 90 + n, None, True) for n in range(3)]
    # Here all of the job, by whatever is known, take part; and here one of them is known, by a number that fits.
    four = FILES.filter(pl.col("rank") < 3)
    assert told(*lines, files=four) == [(90, 0, [1], False), (91, 1, [0], False), (92, 2, [1], False)]
    assert told(*lines, differs(3, 1, 13))[1] == (90, 0, [1], False)
    # A line is all there is.
    assert told(differs(2, 5, 90), files=FILES.clear()) == [(90, 2, [5], False)]


def test_two_groups_that_part_at_once_do_not_tell_who_is_meant() -> None:
    lines = (differs(1, 0, 15), differs(0, 1, 14), differs(1, 0, 17), differs(0, 1, 16))
    assert [(rank, ranks) for _, rank, ranks, _ in told(*lines)] == [(4, None), (5, None), (6, None), (7, None)]
    # Without the file of the last one the other group's second rank is not taken for it.
    assert [(rank, ranks) for _, rank, ranks, _ in told(*lines[:2], lines[3])] == [(4, None), (5, None), (6, None)]
    known = told(*lines, groups=lists("0-7", "4-5", "6-7"))
    assert [(rank, ranks) for _, rank, ranks, _ in known] == [(4, [5]), (5, [4]), (6, [7]), (7, [6])]


def test_a_barrier_is_told_by_the_first_rank_of_its_group() -> None:
    missed = {"kind": "barrier-missing", "ranks": [1], "source_id": 14}
    assert told(missed, groups=lists("0-7", "4-5")) == [(14, None, [5], True)]
    assert told(missed, groups=lists("0-7")) == [(14, None, None, True)]


def test_a_copy_of_what_a_barrier_says_is_known_without_the_loggers_prefix() -> None:
    missed = {"kind": "barrier-missing", "ranks": [1]}
    lines = (missed | {"rank": 0, "source_id": 14}, missed | {"source_id": 99})
    assert told(*lines, groups=lists("0-7", "4-5")) == [(14, 0, [5], True), (99, None, [5], True)]


def test_a_copy_in_the_launchers_log_says_the_same_as_the_line() -> None:
    assert told(differs(1, 0, 15), differs(0, 1, 14), differs(1, 0, 99))[-1] == (99, 5, [4], True)
    two = (differs(1, 0, 15), differs(0, 1, 14), differs(1, 0, 17), differs(0, 1, 16), differs(1, 0, 99))
    assert told(*two)[-1] == (99, None, None, True)


def test_ranks_that_used_no_parameter_are_those_that_say_so() -> None:
    unused = {"kind": "ddp-unused", "rank": 1, "ranks": [1], "detail": "head.weight", "source_id": 13}
    assert told(unused) == [(13, 3, [3], True)]


def test_lines_as_they_run_are_those_of_their_file() -> None:
    runs = {"kind": "fingerprint", "rank": 1, "seq": 4, "op": "ALLREDUCE", "source_id": 15}
    assert told(runs) == [(15, 5, None, True)]
    assert told(runs | {"rank": 5}) == [(15, 5, None, False)]
    # A launcher's prefix tells the rank of each line of a log of all.
    assert told(runs | {"source_id": 99, "hint_rank": 6, "hint_scope": "global"}) == [(99, 6, None, True)]


def runs(home: int, number: int, seq: int = 26, detail: str = "[4] Float") -> dict[str, object]:
    return {"kind": "fingerprint", "rank": number, "seq": seq, "op": "ALLREDUCE", "detail": detail, "source_id": 10 + home, "line_no": 2}


def test_who_alone_prints_the_call_that_another_met_is_meant() -> None:
    """The groups of ranks 0 to 3 and 4 to 7 call at one number; rank 4 brings another type and is ended before it speaks."""
    met = differs(1, 0, 15, other_detail="[4] Double")
    lines = [runs(home, home % 4, detail="[4] Double" if home == 4 else "[4] Float") for home in range(8)]
    assert (15, 5, [4], True) in told(met, *lines)
    # Two of that number in their groups made such a call; the log of one rank, which may be the one that is meant, is not there.
    assert (15, 5, None, True) in told(met, *lines[1:], runs(0, 0, detail="[4] Double"))
    assert (15, 5, None, True) in told(met, *lines[:6], lines[7])


def test_whom_the_barrier_before_a_call_of_some_ranks_misses_is_who_bore_that_number_before() -> None:
    """Ranks 0, 2 and 4 are numbers 0, 1 and 2 of a group; rank 4, which never comes to its call #26, is missed as number 2."""
    before = [runs(home, home, seq=3) for home in range(6)] + [runs(home, home // 2, seq=2) for home in (0, 2, 4)]
    missed = {"kind": "barrier-missing", "ranks": [2], "source_id": 10, "line_no": 9}
    six = FILES.filter(pl.col("rank") < 6)
    assert (10, None, [4], True) in told(*before, runs(0, 0), runs(2, 1), missed, files=six)
    # In the group of all ranks those that came bear their own numbers; a log that is not there may be of the one that is missed.
    assert (10, None, [2], False) in told(*before, runs(0, 0), runs(1, 1), missed, files=six)
    assert (10, None, None, True) in told(*before, runs(0, 0), runs(2, 1), missed)


def test_a_launcher_that_says_whose_exception_it_prints_tells_of_which_group_the_numbers_are() -> None:
    def with_raised(rank: int, scope: str = "local", line: int = 3) -> list[tuple[object, ...]]:
        known = table("exceptions", {"source_id": 99, "line_no": line, "hint_rank": 4, "hint_scope": scope, "rank": rank})
        found = rank_reports(table("reports", differs(4, 0, 99)), FILES, None, known).collect()
        return found.select("rank", "ranks", "in_subgroup").rows()

    nobody = [(UNIDENTIFIED + 99, None, True)]
    assert with_raised(4) == [(4, [0], False)]
    assert with_raised(6) == [(6, None, True)], "it is the fifth of a group of some"
    assert with_raised(4, line=9) == nobody, "another exception"
