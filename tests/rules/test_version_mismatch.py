"""Ranks with different releases of NCCL."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.version_mismatch import other_versions, version_mismatch
from tests.rules.frames import cited, comm, comms, endings, people, told
from tests.rules.host_frames import table

PEOPLE = people((0, "node1", 100), (1, "node1", 101), (2, "node2", 102))


def versions(*found: str | None) -> pl.LazyFrame:
    return table(
        "nccl_versions",
        *[
            {"host": "node2" if n == 2 else "node1", "pid": 100 + n, "version": v, "source_id": n, "line_no": 1}
            for n, v in enumerate(found)
        ],
    )


def test_the_rank_with_another_release_is_named_with_its_host() -> None:
    [finding] = version_mismatch.check(versions("2.27.7", "2.27.7", "2.21.5"), PEOPLE, None)
    assert told(finding) == ("critical", "high", (2,))
    assert finding.hosts == ("node2",)
    assert cited(finding) == [(2, 1), (0, 1), (1, 1)]
    assert finding.title == "rank 2 loaded NCCL 2.21.5, the others 2.27.7"


def test_a_line_without_a_process_is_that_of_the_only_process_of_its_file() -> None:
    bare = versions("2.27.7", "2.27.7", "2.21.5").with_columns(
        host=pl.when(pl.col("source_id") == 2).then(None).otherwise("host"),
        pid=pl.when(pl.col("source_id") == 2).then(None).otherwise("pid"),
    )
    [finding] = version_mismatch.check(bare, PEOPLE, None)
    assert told(finding) == ("critical", "high", (2,))
    crowd = pl.concat([PEOPLE, people((3, "node2", 103)).with_columns(source_id=pl.lit(2, dtype=pl.UInt32))])
    assert version_mismatch.check(bare, crowd, None) == [], "whose of two it is nobody knows"


def test_one_against_one_is_less_sure() -> None:
    [finding] = version_mismatch.check(versions("2.27.7", "2.21.5"), PEOPLE, None)
    assert finding.confidence == "medium"


def test_of_as_many_against_as_many_nobody_is_named() -> None:
    [finding] = version_mismatch.check(versions("2.27.7", "2.29.7"), PEOPLE, None)
    assert finding.ranks == finding.culprits == finding.hosts == ()
    assert finding.title == "rank 0 loaded NCCL 2.27.7, rank 1 2.29.7"
    [finding] = version_mismatch.check(versions("2.27.7", "2.29.7", "2.29.7"), PEOPLE, None)
    assert finding.ranks == (0,)


def test_a_process_of_unknown_rank_is_counted_and_not_blamed() -> None:
    [finding] = version_mismatch.check(versions("2.27.7", "2.27.7", "2.21.5"), people((0, "node1", 100)), None)
    assert finding.culprits == ()
    assert finding.title.startswith("1 process loaded")


def test_a_release_that_only_rank_0_prints_is_not_counted_against_the_others() -> None:
    [finding] = version_mismatch.check(versions("2.21.5", "2.27.7", "2.27.7"), PEOPLE, None)
    assert told(finding) == ("critical", "high", ())
    assert finding.hosts == ()


def test_processes_that_print_no_release_have_the_old_one_that_a_line_of_nobody_tells() -> None:
    lines = versions("2.27.7", "2.27.7", "2.19.4").with_columns(
        host=pl.when(pl.col("source_id") == 2).then(None).otherwise("host"),
        pid=pl.when(pl.col("source_id") == 2).then(None).otherwise("pid"),
    )
    ranked = people((4, "node1", 100), (5, "node1", 101))

    def begun(*pids: int) -> pl.LazyFrame:
        rows = [{"item": "bootstrap", "host": "node1" if p < 102 else "node2", "pid": p, "source_id": 2, "line_no": p} for p in pids]
        return table("nccl_network", *rows)

    [finding] = version_mismatch.check(lines, ranked, None, begun(100, 101, 102, 103, 104, 105))
    assert told(finding) == ("critical", "high", (4, 5))
    assert cited(finding) == [(0, 1), (1, 1), (2, 1)]
    assert finding.title == "ranks 4-5 loaded NCCL 2.27.7, the others 2.19.4"
    # Those that got a rank came through: they are of another job. A line of nobody with nobody who is silent is no more than a line.
    through = pl.concat([ranked, people(*((n, "node2", 102 + n) for n in range(4))).with_columns(source_id=pl.lit(2, dtype=pl.UInt32))])
    assert version_mismatch.check(lines, through, None, begun(100, 101, 102, 103, 104, 105)) == []
    assert version_mismatch.check(lines, ranked, None, begun(100, 101)) == []


def test_equal_releases_stay_quiet_and_the_first_line_of_a_process_speaks() -> None:
    assert version_mismatch.check(versions("2.27.7", "2.27.7", "2.27.7"), PEOPLE, None) == []
    twice = pl.concat([versions("2.27.7", "2.27.7"), versions("2.27.7", "2.21.5").with_columns(line_no=pl.lit(9, pl.UInt32))])
    assert version_mismatch.check(twice, PEOPLE, None) == []


def test_the_error_of_a_rank_names_the_release_that_its_log_does_not() -> None:
    # Before 2.22 rank 0 alone prints its release: one line against one.
    logs = versions("2.21.5+cuda12.4", None, "2.27.7")
    assert version_mismatch.check(logs, PEOPLE, None)[0].culprits == ()
    failed = [
        {"rank": r, "message": f"NCCL error in: x.hpp:3, internal error, NCCL version {v}", "exc_source_id": 20 + r, "exc_line_no": 7}
        for r, v in ((1, "2.21.5"), (2, "2.27.7"))
    ]
    [finding] = version_mismatch.check(logs, PEOPLE, endings(*failed))
    assert told(finding) == ("critical", "high", (2,))
    assert "NCCL 2.27.7, the others 2.21.5+cuda12.4" in finding.title
    assert (21, 7) in cited(finding)


def test_a_program_of_its_own_that_came_up_alone_is_no_mismatch() -> None:
    helper = versions("2.27.7", "2.27.7", "2.21.5")

    def mates(*keys: str, up: bool = True) -> pl.LazyFrame:
        each = [comm(n, nranks=2, pid=100 + n, comm_key=key, completed=up) for n, key in enumerate(keys)]
        return comms(*[c | {"host": "node2" if n == 2 else "node1"} for n, c in enumerate(each)])

    assert version_mismatch.check(helper, PEOPLE, None, None, mates("0xa", "0xa", "0xb")) == []
    for shared in (mates("0xa", "0xa", "0xa"), mates("0xa", "0xa", "0xb", up=False), mates("0xa", "0xa")):
        assert len(version_mismatch.check(helper, PEOPLE, None, None, shared)) == 1
    one_each = versions("2.27.7", None, "2.21.5")
    assert version_mismatch.check(one_each, PEOPLE, None, None, mates("0xa", "0xc", "0xb")) == []
    assert len(version_mismatch.check(one_each, PEOPLE, None, None, mates("0xa", "0xc", "0xa"))) == 1


def refused(node: str, *, python: str = "3.11.9", signature: str = "other-versions") -> dict[str, object]:
    """What Ray raises in a process that would join its cluster."""
    own = f"This process on node {node} was started with:\n    Ray: 2.44.1\n    Python: {python}"
    said = f"Version mismatch: The cluster was started with:\n    Ray: 2.41.0\n    Python: 3.11.9\n{own}"
    return {"type": "RuntimeError", "signature": signature, "message": said}


def test_a_process_that_ray_refuses_is_named_by_its_node_with_what_differs() -> None:
    first, second = other_versions.check(
        table("exceptions", refused("10.0.0.4"), refused("10.0.0.4"), refused("10.0.0.5", python="3.12.1"))
    )
    assert (first.hosts, first.cause, first.confidence, cited(first)) == (("10.0.0.4",), "version-mismatch", "high", [(0, 1)])
    assert first.title == "Ray refused a process on 10.0.0.4: it runs on Ray 2.44.1, the cluster Ray 2.41.0"
    assert second.title.endswith("Ray 2.44.1, the cluster Ray 2.41.0; Python 3.12.1, the cluster Python 3.11.9")


def test_other_exceptions_are_no_refusal_of_rays() -> None:
    assert other_versions.check(table("exceptions", refused("10.0.0.4", signature="user"))) == []
