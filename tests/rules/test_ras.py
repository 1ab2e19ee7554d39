"""What NCCL's RAS service says of ranks."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.ras import ras_behind, ras_dead
from tests.rules.frames import cited, people
from tests.rules.host_frames import table

PEOPLE = people((4, "node1", 22112), (5, "node1", 22113))
FAILED = pl.LazyFrame({"sign": ["watchdog timeouts"]})


def report(rank: int, behind: int, others: int, *, line: int = 20, comm: str = "0x1d") -> list[dict[str, object]]:
    """A MISMATCH item of a text report: most ranks at ``others``, one at ``behind``."""
    own = {"kind": "MISMATCH", "comm_id": comm, "op": "AllReduce"}
    return [
        {**own, "ranks": 31, "launched": others, "line_no": line},
        {**own, "ranks": 1, "rank": rank, "launched": behind, "pid": 22108 + rank, "host": "10.0.0.7", "line_no": line + 1},
    ]


def reports_in(*paths: str) -> pl.LazyFrame:
    """The sources of reports."""
    known = pl.LazyFrame({"source_id": range(len(paths)), "path": paths}, schema={"source_id": pl.UInt32(), "path": pl.String()})
    return known.with_columns(duplicate_of=pl.lit(None, dtype=pl.UInt32()))


def test_a_rank_behind_in_a_job_that_failed_is_named_by_its_process() -> None:
    [finding] = ras_behind.check(table("nccl_ras_items", *report(5, 6649, 6650)), None, PEOPLE, FAILED)
    assert (finding.severity, finding.confidence, finding.ranks) == ("critical", "medium", (5,))
    assert "rank 5 has launched up to AllReduce 6649, the others up to 6650" in finding.title
    assert cited(finding) == [(0, 21), (0, 20)]


def test_one_report_of_a_job_that_shows_no_failure_is_a_warning() -> None:
    [finding] = ras_behind.check(table("nccl_ras_items", *report(5, 6649, 6650)), None, PEOPLE, None)
    assert finding.severity == "warning"


def test_two_reports_with_the_same_counts_prove_that_it_does_not_move() -> None:
    twice = [*report(5, 6649, 6650), *report(5, 6649, 6650, line=60)]
    [finding] = ras_behind.check(table("nccl_ras_items", *twice), None, PEOPLE, None)
    assert (finding.severity, finding.confidence) == ("critical", "high")
    moved = [*report(5, 6600, 6650), *report(5, 6649, 6651, line=60)]
    [finding] = ras_behind.check(table("nccl_ras_items", *moved), None, PEOPLE, None)
    assert finding.severity == "warning"


def test_a_copy_of_a_report_is_no_second_look() -> None:
    twice = table("nccl_ras_items", *[{**row, "source_id": s} for s in (0, 1) for row in report(5, 6649, 6650)])
    copied = reports_in("ras-1.txt", "ras-2.txt").with_columns(duplicate_of=pl.Series([None, 0], dtype=pl.UInt32))
    apart = copied.with_columns(duplicate_of=pl.lit(None, dtype=pl.UInt32()))
    assert [f.severity for f in ras_behind.check(twice, None, PEOPLE, None, None, copied)] == ["warning"]
    assert [f.severity for f in ras_behind.check(twice, None, PEOPLE, None, None, apart)] == ["critical"]


def test_a_report_after_it_shows_that_the_ranks_went_on() -> None:
    twice = table("nccl_ras_items", *[{**row, "source_id": s} for s in (0, 1) for row in report(5, 6649, 6650)])
    even = table("nccl_ras_groups", {"group": 0, "nranks": 32, "line_no": 10, "source_id": 2})
    assert ras_behind.check(twice, None, PEOPLE, None, even, reports_in("1.txt", "2.txt", "3.txt")) == []
    assert len(ras_behind.check(twice, None, PEOPLE, None, even, reports_in("2.txt", "3.txt", "1.txt"))) == 1


def test_numbers_in_the_names_of_reports_are_numbers() -> None:
    looks = [(7110, 7111), (6649, 6650), (6649, 6650)]
    items = table("nccl_ras_items", *[{**row, "source_id": s} for s, (own, others) in enumerate(looks) for row in report(5, own, others)])
    [finding] = ras_behind.check(items, None, PEOPLE, None, None, reports_in("ras-10.txt", "ras-8.txt", "ras-9.txt"))
    assert (finding.severity, finding.metrics) == ("warning", {})
    assert "7110" in finding.title


def test_half_of_the_ranks_and_more_are_no_outliers() -> None:
    items = report(5, 6649, 6650)
    items[1]["ranks"] = 40
    items[1]["rank"] = None
    assert ras_behind.check(table("nccl_ras_items", {**items[0], "ranks": 40}, {**items[1], "ranks": 41}), None, PEOPLE, FAILED) == []


def test_ranks_of_a_report_whose_communicators_are_alike_are_those_of_the_job() -> None:
    items = table("nccl_ras_items", *report(5, 6649, 6650))
    one = table("nccl_ras_groups", {"group": 0, "nranks": 32}, {"group": 1, "nranks": 32})
    several = table("nccl_ras_groups", {"group": 0, "nranks": 32}, {"group": 1, "nranks": 4})
    assert [f.ranks for f in ras_behind.check(items, None, None, FAILED, one)] == [(5,)]
    assert [f.ranks for f in ras_behind.check(items, None, None, FAILED, several)] == [()]


def counts(*launched: int, missing: int | None = None) -> pl.LazyFrame:
    rows = [
        {"record": f"communicators[0].ranks[{r}]", "comm_id": "0xc0", "nranks": 8, "rank": r, "host": "node1", "pid": 22108 + r}
        | ({"missing": True, "considered_dead": True} if r == missing else {"missing": False, "all_reduce": n})
        for r, n in enumerate(launched)
    ]
    return table("nccl_ras_ranks", *[{**r, "line_no": None} for r in rows]).drop("line_no", strict=False)


def test_json_counts_of_the_largest_communicator_are_those_of_the_job() -> None:
    [finding] = ras_behind.check(None, counts(7, 7, 7, 6, 7, 7, 7, 7), None, FAILED)
    assert finding.ranks == (3,)
    assert cited(finding) == [(0, "communicators[0].ranks[3]"), (0, "communicators[0].ranks[0]")]


def test_equal_counts_are_quiet() -> None:
    assert ras_behind.check(None, counts(*[7] * 8), None, FAILED) == []


def test_a_process_declared_dead_is_named() -> None:
    dead = {"kind": "DEAD", "subject": "1 job process considered dead", "pid": 22113, "host": "10.0.0.7", "line_no": 30}
    [finding] = ras_dead.check(table("nccl_ras_items", dead), None, None, PEOPLE)
    assert (finding.cause or "rank-died", finding.confidence, finding.ranks) == ("rank-died", "medium", (5,))
    [finding] = ras_dead.check(None, counts(*[7] * 8, missing=6), None, None)
    assert finding.ranks == (6,)


def test_a_process_that_only_answers_late_is_not_dead() -> None:
    slow = {"kind": "INCOMPLETE", "subject": "Missing communicator data from 1 job process", "pid": 22113, "host": "10.0.0.7"}
    assert ras_dead.check(table("nccl_ras_items", slow), None, None, PEOPLE) == []


def test_an_error_of_a_communicator_bears_its_own_cause_and_a_remote_one_none() -> None:
    own = {"kind": "ERROR", "comm_id": "0x1d", "error": "Unhandled CUDA error", "ranks": 1, "rank": 5, "pid": 22113, "host": "10.0.0.7"}
    [finding] = ras_dead.check(table("nccl_ras_items", own, {**own, "error": "Remote process error", "ranks": 31}), None, None, PEOPLE)
    assert (finding.cause, finding.ranks) == ("gpu-fault", (5,))


def test_the_json_tells_an_error_by_its_number() -> None:
    ranks = counts(*[7] * 8)
    failed = pl.when(pl.col("rank") == 3).then(1).when(pl.col("rank") == 6).then(6).otherwise(pl.col("rank") % 2 * 7)
    [finding] = ras_dead.check(None, ranks.with_columns(async_error=failed), None, None)
    assert (finding.cause, finding.ranks, cited(finding)) == ("gpu-fault", (3,), [(0, "communicators[0].ranks[3]")])
    assert "1 rank reports" in finding.title


def test_peers_that_the_monitor_lost_are_a_warning() -> None:
    lost = {"event": "PEER_DEAD", "detail": "node1:22113", "line_no": 4}
    [finding] = ras_dead.check(None, None, table("nccl_ras_events", lost), None)
    assert (finding.severity, cited(finding)) == ("warning", [(0, 4)])
    assert ras_dead.check(None, None, table("nccl_ras_events", {**lost, "event": "PEER_NEW"}), None) == []


def test_a_process_that_did_not_answer_twice_is_named_unless_it_is_dead() -> None:
    mute = {"kind": "INCOMPLETE", "subject": "Missing communicator data from 1 job process", "pid": 22113, "host": "node1", "ranks": 1}
    twice = [mute | {"source_id": 0, "line_no": 30}, mute | {"source_id": 1, "line_no": 30}]
    [finding] = ras_dead.check(table("nccl_ras_items", *twice), None, None, PEOPLE)
    assert (finding.confidence, finding.ranks) == ("low", (5,))
    [finding] = ras_dead.check(table("nccl_ras_items", *twice, {**mute, "kind": "DEAD"}), None, None, PEOPLE)
    assert (finding.confidence, finding.ranks) == ("medium", (5,))
