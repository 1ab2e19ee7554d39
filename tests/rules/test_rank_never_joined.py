"""Communicators that never got all their ranks."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.rules.rank_never_joined import rank_never_joined
from nccl_forensics.views.last_calls import LAST_CALLS
from nccl_forensics.views.nccl_facts import BOOTSTRAPPED
from tests.rules.frames import cited, comm, comms, endings, errors, told
from tests.rules.host_frames import processes, table
from tests.views.frames import progress, rows


def past(*keys: str) -> pl.LazyFrame:
    """Communicators of which a line shows that all ranks checked in."""
    return rows(BOOTSTRAPPED, *({"comm_key": key, "source_id": 0, "line_no": 6} for key in keys))


def test_the_rank_that_no_log_shows_is_named_with_those_that_wait() -> None:
    [finding] = rank_never_joined.check(comms(*[comm(r, 4) for r in (0, 1, 3)]), past(), None, None, None, None)
    assert told(finding) == ("critical", "high", (2,))
    assert cited(finding) == [(0, 5), (1, 5), (3, 5), (None, None)]
    assert finding.evidence[-1].kind == "absence"
    assert finding.title == "rank 2 of 4 never joined; 3 ranks wait in init"


def test_a_message_of_another_size_shows_that_another_release_came_whose_log_is_lost() -> None:
    other = comm(0, 1) | {"comm_key": "0xc1", "pid": 2000, "completed": True}

    def found(**line: object) -> tuple[object, ...]:
        waiting = comms(*[comm(r, 4) for r in (0, 1, 3)], other)
        [finding] = rank_never_joined.check(waiting, past(), None, None, None, None, errors({"kind": "truncated-message"} | line))
        return *told(finding), "another release" in finding.summary

    host, pid = comms(comm(1, 4)).select("host", "pid").collect().row(0)
    assert found(host=host, pid=pid) == ("critical", "medium", (2,), True)
    assert found(host=comms(other).select("host").collect().item(), pid=2000) == ("critical", "high", (2,), False), (
        "of another communicator"
    )
    assert found(host=host, pid=pid, kind="connect-failed") == ("critical", "high", (2,), False)


def test_ranks_that_misread_the_first_messages_and_made_no_communicator_are_of_another_release() -> None:
    waiting, misread = comms(*[comm(r, 4) for r in (0, 1, 3)]), {"kind": "truncated-message", "host": "node7", "pid": 70, "line_no": 9}
    [finding] = rank_never_joined.check(waiting, past(), None, None, None, None, errors(misread))
    assert (finding.cause, told(finding)) == ("version-mismatch", ("critical", "medium", ()))
    assert cited(finding)[0] == (0, 9)
    # Nobody is missing, or the communicator came up.
    everybody = comms(*[comm(r, 4) for r in range(4)])
    assert rank_never_joined.check(everybody, past(), None, None, None, None, errors(misread)) == []
    assert rank_never_joined.check(waiting, past("0xc0"), None, None, None, None, errors(misread)) == []


def test_of_two_releases_that_meet_the_ranks_that_print_otherwise_than_most_are_named_where_all_processes_are_seen() -> None:
    misread = {"kind": "truncated-message", "host": "node7", "pid": 70, "line_no": 9}

    def named(told_by: tuple[int, ...], size: int, seen: int) -> tuple[int, ...]:
        waiting, everybody = comms(*[comm(r, size) for r in told_by]), processes(*[(r, "node7", 70 + r, "1b000") for r in range(seen)])
        [finding] = rank_never_joined.check(waiting, past(), None, None, None, None, errors(misread), everybody)
        assert finding.cause == "version-mismatch"
        return finding.ranks

    assert named((2,), 6, seen=6) == (2,), "it alone prints its rank before the bootstrap"
    assert named((0, 1, 3), 4, seen=4) == (2,), "it alone does not"
    assert named((2,), 6, seen=5) == (), "of one nothing is seen"
    assert named((0, 1), 4, seen=4) == (), "two and two"


def test_a_first_message_of_another_layout_is_of_another_release_too() -> None:
    host, pid = comms(comm(0, 4)).select("host", "pid").collect().row(0)
    waiting, everybody = comms(*[comm(r, 4) for r in (0, 1, 3)]), processes(*[(r, "node7", 70 + r, "1b000") for r in range(4)])

    def found(roots: str) -> object:
        said = f"Bootstrap Root : mismatch in info from procs, nranks 4 vs 4, nroots 1 vs {roots}, iroot 0 vs 230555650"
        line = errors({"kind": "rank-mismatch", "message": said, "host": host, "pid": pid, "line_no": 9})
        [finding] = rank_never_joined.check(waiting, past(), None, None, None, None, line, everybody)
        return finding.cause, finding.ranks

    assert found("185335818") == found("-7") == ("version-mismatch", (2,))
    assert found("2") == ("rank-never-joined", (2,))


def test_a_log_that_was_copied_in_part_tells_neither_who_waits_nor_who_came() -> None:
    def found(*cut: int, buffer: bool = False) -> int:
        waiting = comms(*[comm(r, 4) for r in (0, 1, 3)])
        ends = table("cut_ends", *({"source_id": source, "line_no": 40, "buffer": buffer} for source in cut))
        tails = table("nccl_tails", *({"source_id": source, "line_no": 40} for source in (0, 1, 3, 7)))
        return len(rank_never_joined.check(waiting, past(), None, None, None, None, cut_ends=ends, nccl_tails=tails))

    assert found(0, 1, 3) == 0, "each may have gone on"
    assert found(7) == 0, "it may be of the missing rank"
    assert found(0) == found(9) == found(0, 1, 3, buffer=True) == 1


@pytest.mark.parametrize(
    ("members", "missing", "named"),
    [
        ((4, 6, 7, 9, 10, 11, 12), 5, (11,)),  # one rank fits between 10 and 12
        ((4, 6, 7, 9, 10, 11, 13), 5, ()),  # 11 or 12
        ((1, 4, 7, 10, 13), 3, (10,)),  # every third
        ((8, 9, 10, 11), 0, (8,)),
        ((0, 8), 1, ()),
    ],
)
def test_a_smaller_communicator_counts_its_own_ranks(members: tuple[int, ...], missing: int, named: tuple[int, ...]) -> None:
    job = [comm(r, 16, comm_id="0xa", comm_key="0xa") | {"completed": True} for r in range(16)]
    pids = {row["rank"]: (row["host"], row["pid"]) for row in job}
    child = [
        comm(place, len(members), comm_id="0xb", comm_key="0xb") | dict(zip(("host", "pid"), pids[rank], strict=True))
        for place, rank in enumerate(members)
        if place != missing
    ]
    everyone = pl.LazyFrame([{"host": host, "pid": pid, "rank": rank} for rank, (host, pid) in pids.items()])
    [finding] = rank_never_joined.check(comms(*job, *child), past(), None, None, None, None, None, everyone)
    assert told(finding) == ("critical", "high" if named else "medium", named)


def test_where_several_logs_are_missing_some_were_perhaps_not_collected() -> None:
    [finding] = rank_never_joined.check(comms(comm(0, 4), comm(1, 4)), past(), None, None, None, None)
    assert told(finding) == ("critical", "medium", (2, 3))
    assert "may not have been collected" in finding.summary


def test_logs_that_are_missing_here_and_there_were_lost() -> None:
    host = [comm(r, 16) for r in range(16) if r not in (4, 5, 6, 7)]
    [finding] = rank_never_joined.check(comms(*host), past(), None, None, None, None)
    assert (finding.confidence, [c.rank for c in finding.culprits]) == ("medium", [4, 5, 6, 7])
    spread = [comm(r, 16) for r in range(16) if r not in (1, 6, 7, 12)]
    [finding] = rank_never_joined.check(comms(*spread), past(), None, None, None, None)
    assert (finding.confidence, finding.ranks, finding.culprits) == ("low", (), ())
    [finding] = rank_never_joined.check(comms(*[comm(r, 8) for r in range(8) if r not in (1, 6)]), past(), None, None, None, None)
    assert (finding.confidence, finding.culprits) == ("low", ()), "one of two that lie apart may just have lost its log"
    [finding] = rank_never_joined.check(comms(*[comm(r, 64) for r in range(64) if r not in (1, 6)]), past(), None, None, None, None)
    assert (finding.confidence, finding.ranks) == ("low", (1, 6))


def test_ranks_are_not_blamed_where_as_many_would_lose_their_files_of_every_kind_by_chance() -> None:
    def blamed(logs: set[int], dumps: set[int]) -> tuple[str, tuple[int, ...]]:
        own = comms(*[comm(r, 64) for r in range(64) if r in logs])
        [finding] = rank_never_joined.check(own, past(), None, None, pl.LazyFrame({"rank": sorted(dumps)}), None)
        return finding.confidence, finding.ranks

    everyone, gone = set(range(64)), {0, 16, 32, 48}
    # A quarter of the logs and a quarter of the dumps are missing: four ranks lose both.
    assert blamed({r for r in everyone if r % 4}, {r for r in everyone if r % 16 > 3}) == ("low", ())
    assert blamed(everyone - gone, everyone - gone) == ("low", (0, 16, 32, 48))


def test_of_most_ranks_missing_none_is_blamed() -> None:
    [finding] = rank_never_joined.check(comms(comm(0, 4)), past(), None, None, None, None)
    assert (finding.ranks, finding.culprits) == ((), ())


def test_a_rank_without_a_log_did_join_where_another_got_past_the_bootstrap() -> None:
    members = [comm(r, 4) for r in (0, 1, 3)]
    assert rank_never_joined.check(comms(*members), past(str(members[0]["comm_key"])), None, None, None, None) == []
    assert len(rank_never_joined.check(comms(*members), past("another communicator"), None, None, None, None)) == 1


def test_a_communicator_of_which_only_the_end_is_seen_may_have_had_all_its_ranks() -> None:
    late = comm(6, 8, started=False, ended="abort-complete")
    assert rank_never_joined.check(comms(late), past(), None, None, None, None) == []
    assert len(rank_never_joined.check(comms(late | {"started": True}), past(), None, None, None, None)) == 1


@pytest.mark.parametrize(
    "members",
    [[comm(r, 4) for r in range(4)], [comm(r, 4, completed=r == 0) for r in (0, 1, 3)], [comm(0, 4) | {"nranks": None}]],
    ids=["all ranks came", "one completed it", "of unknown size"],
)
def test_other_communicators_stay_quiet(members: list[dict[str, object]]) -> None:
    assert rank_never_joined.check(comms(*members), past(), None, None, None, None) == []


def test_ranks_that_show_elsewhere_that_they_came_are_not_missing() -> None:
    seen = comms(*[comm(r, 6) for r in (0, 1, 2)])
    failed = endings({"rank": 3, "kind": "victim", "signature": "nccl-remote"})
    recorded = progress({"pg:0": {4: (1, 0)}})
    # Logs of ranks that came are lost, so that of the last one may be lost too.
    [finding] = rank_never_joined.check(seen, past(), failed, recorded, None, None)
    assert told(finding) == ("critical", "medium", (5,))
    [finding] = rank_never_joined.check(seen, past(), failed, None, None, None)
    assert told(finding) == ("critical", "low", (4, 5))
    everyone = endings(*({"rank": r, "kind": "victim", "signature": "nccl-remote"} for r in (3, 4, 5)))
    assert rank_never_joined.check(seen, past(), everyone, None, None, None) == []
    other = endings({"rank": 3, "kind": "exception", "signature": "user"})
    assert told(rank_never_joined.check(seen, past(), other, None, None, None)[0]) == ("critical", "medium", (3, 4, 5))


def test_a_dump_speaks_for_its_rank_while_others_are_left() -> None:
    seen = comms(*[comm(r, 5) for r in (0, 1, 2)])
    [finding] = rank_never_joined.check(seen, past(), None, None, pl.LazyFrame({"rank": [3]}), None)
    assert told(finding) == ("critical", "medium", (4,))
    [finding] = rank_never_joined.check(seen, past(), None, None, pl.LazyFrame({"rank": [3, 4]}), None)
    assert told(finding) == ("critical", "medium", (3, 4))


def test_a_rank_without_a_log_that_stands_in_the_call_of_the_others_came_too() -> None:
    seen = comms(*[comm(r, 6) for r in (0, 1, 2)])

    def standing(**calls: str) -> list[tuple[object, ...]]:
        stacks = [
            {
                "rank": int(r[1:]),
                "witness": "stack",
                "place": "collective" if op == "barrier" else "user-code",
                "op": op,
                "user_frame": "setup",
            }
            for r, op in calls.items()
        ]
        return [told(f) for f in rank_never_joined.check(seen, past(), None, None, None, rows(LAST_CALLS, *stacks))]

    waiting = {f"r{r}": "barrier" for r in (0, 1, 2)}
    assert standing(**waiting, r3="barrier", r4="barrier") == [("critical", "medium", (5,))]
    assert standing(**waiting, r3="barrier", r4="load") == [("critical", "low", (4, 5))]
    # Where no stack of those that began it shows in which call they wait, the others' stacks tell nothing.
    assert standing(r3="barrier", r4="barrier") == [("critical", "medium", (3, 4, 5))]
