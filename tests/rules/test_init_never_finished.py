"""Jobs whose logs all end at the bootstrap of releases that print no size before it."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.rules.init_never_finished import init_never_finished
from tests.rules.frames import cited, comm, comms, told
from tests.rules.host_frames import table
from tests.views.frames import progress


def tails(*messages: str) -> pl.LazyFrame:
    """The last NCCL lines of the processes 100, 101, … on one host."""
    return table(
        "nccl_tails",
        *(
            {"source_id": i, "line_no": 9, "host": "n1", "pid": 100 + i, "dev": i, "lines": 9, "message": text}
            for i, text in enumerate(messages)
        ),
    )


def asked(count: int) -> pl.LazyFrame:
    return table(
        "nccl_network",
        *({"source_id": i, "line_no": 2, "host": "n1", "pid": 100 + i, "item": "bootstrap", "name": "eth0"} for i in range(count)),
    )


def version(text: str) -> pl.LazyFrame:
    return table("nccl_versions", {"source_id": 0, "line_no": 1, "version": text})


NETWORK = "Using network Socket"


@pytest.mark.parametrize("release", ["2.21.5", "2.22.3"])
def test_processes_that_all_end_before_the_bootstrap_wait_for_somebody(release: str) -> None:
    [finding] = init_never_finished.check(tails(NETWORK, NETWORK), asked(2), version(release), None)
    assert told(finding) == ("critical", "medium", ())
    assert cited(finding) == [(0, 9), (1, 9), (None, None)]
    assert finding.hosts == ("n1",)


@pytest.mark.parametrize(
    ("messages", "bootstraps", "release"),
    [
        ((NETWORK, "Connected all rings"), 2, "2.21.5"),
        ((NETWORK, NETWORK), 1, "2.21.5"),
        ((NETWORK, NETWORK), 2, "2.23.4"),
        ((NETWORK,), 1, "2.21.5"),
    ],
    ids=["one went on", "one does not print INIT lines", "a release that prints Init START first", "one process alone"],
)
def test_other_logs_stay_quiet(messages: tuple[str, ...], bootstraps: int, release: str) -> None:
    assert init_never_finished.check(tails(*messages), asked(bootstraps), version(release), None) == []


def test_calls_that_recorders_show_as_over_had_a_communicator_whatever_the_logs_leave_out() -> None:
    def found(done: int | None) -> int:
        recorded = progress({"pg:0": {0: (9, done), 1: (9, done)}})
        return len(init_never_finished.check(tails(NETWORK, NETWORK), asked(2), version("2.21.5"), None, None, recorded))

    assert (found(8), found(None)) == (0, 1)


def test_logs_that_were_copied_in_part_do_not_say_where_their_process_ended() -> None:
    cut = table("cut_ends", {"source_id": 1, "line_no": 9, "buffer": False})
    assert init_never_finished.check(tails(NETWORK, NETWORK), asked(2), version("2.21.5"), None, cut_ends=cut) == []


def test_where_a_communicator_was_seen_and_all_wait_nobody_is_known_to_be_left_out() -> None:
    assert init_never_finished.check(tails(NETWORK, NETWORK), asked(2), version("2.21.5"), comms(comm(0, 2)), PEOPLE) == []


def placed(**devices: list[int]) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """Ends and bootstraps of processes that wait, on hosts with these GPUs."""
    at = [(host, dev) for host, devs in devices.items() for dev in devs]
    where = [{"source_id": i, "host": host, "pid": 100 + i, "dev": dev} for i, (host, dev) in enumerate(at)]
    ends = table("nccl_tails", *(w | {"line_no": 9, "lines": 9, "message": NETWORK} for w in where))
    return ends, table("nccl_network", *(w | {"line_no": 2, "item": "bootstrap", "name": "eth0"} for w in where))


@pytest.mark.parametrize(
    ("devices", "rank"),
    [
        ({"n1": [0, 1, 3]}, 2),
        ({"n1": [0, 1, 3], "n2": [0, 1, 2, 3]}, 2),
        ({"n0": [0, 1, 2, 3], "n1": [0, 1, 2]}, 3),
        ({"n0": [0, 1, 3], "n1": [0, 1, 2, 3]}, 6),
    ],
    ids=["one host", "the host of rank 0", "as many GPUs as the other", "the second host"],
)
def test_the_gpu_without_a_process_tells_who_is_missing(devices: dict[str, list[int]], rank: int) -> None:
    ends, bootstraps = placed(**devices)
    leader = table("nccl_versions", {"host": "n1", "pid": 100, "version": "2.21.5"})
    [finding] = init_never_finished.check(ends, bootstraps, leader, None)
    assert told(finding) == ("critical", "medium", (rank,))
    assert [c.rank for c in finding.culprits] == [rank]


def test_where_every_process_prints_the_version_the_first_host_is_not_known() -> None:
    ends, bootstraps = placed(n1=[0, 1, 3])
    versions = table("nccl_versions", *({"source_id": i, "host": "n1", "pid": 100 + i, "version": "2.22.3"} for i in range(3)))
    [finding] = init_never_finished.check(ends, bootstraps, versions, None)
    assert (finding.ranks, "GPU 2 of n1" in finding.summary) == ((), True)


@pytest.mark.parametrize(
    "devices",
    [{"n1": [0, 2]}, {"n1": [0, 2, 4, 6]}, {"n1": [0, 0, 0]}, {"n1": [0, 1, 2]}, {"n1": [0, 1], "n2": [0, 1], "n3": [0, 2]}],
    ids=["every other of two", "every other of many", "one GPU seen by each", "no gap", "a third host"],
)
def test_where_no_gap_is_sure_nobody_is_named(devices: dict[str, list[int]]) -> None:
    ends, bootstraps = placed(**devices)
    leader = table("nccl_versions", {"host": "n1", "pid": 100, "version": "2.21.5"})
    [finding] = init_never_finished.check(ends, bootstraps, leader, None)
    assert (finding.ranks, finding.culprits) == ((), ())


@pytest.mark.parametrize(
    ("ranks", "missing"),
    [([4, 5, 7, 0, 1, 2, 3, 8, 9, 10, 11], (6,)), ([4, 5, 6, 0, 1, 2, 3, 8, 9, 10, 11], ())],
    ids=["in the order of the GPUs", "in another order"],
)
def test_the_ranks_of_its_neighbours_tell_who_is_missing_on_a_third_host(ranks: list[int], missing: tuple[int, ...]) -> None:
    ends, bootstraps = placed(n2=[0, 1, 3], n1=[0, 1, 2, 3], n3=[0, 1, 2, 3])
    people = pl.LazyFrame({"host": ["n2"] * 3 + ["n1"] * 4 + ["n3"] * 4, "pid": range(100, 111), "rank": ranks})
    leader = table("nccl_versions", {"host": "n1", "pid": 103, "version": "2.21.5"})
    [finding] = init_never_finished.check(ends, bootstraps, leader, None, people)
    assert (finding.ranks, tuple(c.rank for c in finding.culprits)) == (missing, missing)


PEOPLE = pl.LazyFrame({"host": ["n1"] * 4, "pid": [100, 101, 102, 103], "rank": [0, 1, 2, 3]})


def test_the_one_process_that_does_not_wait_for_a_later_communicator_is_named() -> None:
    ends = tails(NETWORK, "Init timings: rank 1", NETWORK, NETWORK)
    [finding] = init_never_finished.check(ends, asked(4), version("2.22.3"), comms(comm(0, 4)), PEOPLE)
    assert told(finding) == ("critical", "medium", (1,))
    assert cited(finding)[0] == (1, 9)


def test_two_processes_that_do_not_wait_may_belong_to_no_later_communicator() -> None:
    ends = tails(NETWORK, "Init timings: rank 1", "Init timings: rank 2", NETWORK)
    assert init_never_finished.check(ends, asked(4), version("2.22.3"), comms(comm(0, 4)), PEOPLE) == []
