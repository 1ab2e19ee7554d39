"""A process that ended inside NCCL's init."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.died_in_init import died_in_init
from tests.rules.frames import cited, comm, comms, errors, people, told
from tests.rules.host_frames import table

PEOPLE = people((0, "node1", 100), (1, "node1", 101), (2, "node2", 102))
STARTED = comms(*[comm(r, 3) for r in range(3)])


def tails(*lines: int) -> pl.LazyFrame:
    return table(
        "nccl_tails",
        *[
            {
                "host": "node2" if r == 2 else "node1",
                "pid": 100 + r,
                "lines": n,
                "message": "Bootstrap timings",
                "source_id": r,
                "line_no": n,
            }
            for r, n in enumerate(lines)
        ],
    )


def refused(pid: int = 100) -> dict[str, object]:
    return {"kind": "connect-retry", "level": "INFO", "pid": pid, "message": "Connection refused, retrying", "line_no": 40}


def test_the_process_whose_log_ends_first_is_named_where_its_peers_are_refused() -> None:
    [finding] = died_in_init.check(tails(41, 40, 12), STARTED, errors(refused()), PEOPLE)
    assert told(finding) == ("critical", "medium", (2,))
    assert (finding.cause, finding.hosts) == ("rank-died", ("node2",))
    assert cited(finding) == [(2, 12), (0, 40)]


def test_a_peer_that_gave_up_on_it_got_no_further_by_what_it_prints_of_that() -> None:
    gave_up = {"kind": "connect-gave-up", "level": "WARN", "pid": 100, "message": "socketStartConnect: exceeded retries (20000)"}
    up = [{"kind": "propagation", "level": "INFO", "pid": 100, "code": 6, "message": "init.cc:1837 -> 6"}] * 20
    [finding] = died_in_init.check(tails(51, 40, 12), STARTED, errors(refused(), gave_up, *up), PEOPLE)
    assert finding.ranks == (2,)
    # Without them it got less far than the others: who hands an error up did not just end.
    assert died_in_init.check(tails(31, 40, 12), STARTED, errors(refused(), gave_up, *up), PEOPLE) == []


def test_a_log_that_was_cut_off_with_a_full_cut_ends_first_for_that() -> None:
    cut = pl.LazyFrame({"rank": [2]}, schema={"rank": pl.Int32()})
    assert died_in_init.check(tails(41, 40, 12), STARTED, errors(refused()), PEOPLE, cut) == []


def test_a_process_that_complains_of_refusals_itself_is_alive() -> None:
    assert died_in_init.check(tails(14, 40, 13), STARTED, errors(*[refused(pid=100)] * 3), PEOPLE) == []


def test_two_that_got_equally_far_are_not_told_apart() -> None:
    assert died_in_init.check(tails(41, 12, 12), STARTED, errors(refused()), PEOPLE) == []


def test_without_a_refused_connection_nobody_died() -> None:
    assert died_in_init.check(tails(41, 40, 12), STARTED, errors(), PEOPLE) == []


def test_a_warning_that_says_why_is_left_to_its_own_rule() -> None:
    said = errors(refused(), {"kind": "cuda-failure", "pid": 102, "message": "Cuda failure"})
    assert died_in_init.check(tails(41, 40, 12), STARTED, said, PEOPLE) == []


def test_a_communicator_that_came_up_had_no_death_in_init() -> None:
    done = comms(*[comm(r, 3, completed=True) for r in range(3)])
    assert died_in_init.check(tails(41, 40, 12), done, errors(refused()), PEOPLE) == []


def test_ranks_of_another_host_may_have_come_through() -> None:
    partly = comms(*[comm(r, 3, completed=r == 0) for r in range(3)])
    [finding] = died_in_init.check(tails(41, 40, 12), partly, errors(refused()), PEOPLE)
    assert finding.ranks == (2,)


def test_a_process_that_came_through_did_not_die_in_init() -> None:
    partly = comms(*[comm(r, 3, completed=r == 2) for r in range(3)])
    assert died_in_init.check(tails(41, 40, 12), partly, errors(refused()), PEOPLE) == []


def test_who_got_least_far_on_the_one_host_that_did_not_come_through_is_named_without_a_refused_connection() -> None:
    seats = people((0, "node1", 100), (1, "node1", 101), (2, "node2", 102), (3, "node2", 103))

    def through(*ranks: int) -> pl.LazyFrame:
        return comms(*[comm(r, 4, host="node2" if r > 1 else "node1", completed=r in ranks) for r in range(4)])

    def lines(rank: int, host: str, n: int) -> dict[str, object]:
        return {"host": host, "pid": 100 + rank, "lines": n, "message": "Trees", "source_id": rank, "line_no": n}

    ends = table("nccl_tails", lines(0, "node1", 50), lines(1, "node1", 49), lines(2, "node2", 40), lines(3, "node2", 37))
    [finding] = died_in_init.check(ends, through(0, 1), errors(), seats)
    assert told(finding) == ("critical", "low", (3,))
    # Hosts that are both amid their init, and processes of which one is hardly behind, tell nothing.
    assert died_in_init.check(ends, through(0), errors(), seats) == []
    hardly = table("nccl_tails", lines(0, "node1", 50), lines(1, "node1", 49), lines(2, "node2", 38), lines(3, "node2", 37))
    assert died_in_init.check(hardly, through(0, 1), errors(), seats) == []
