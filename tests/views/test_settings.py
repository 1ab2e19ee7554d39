"""Settings from NCCL's lines and from dumps of environments."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.identity import PROCESSES_SCHEMA
from nccl_forensics.views.settings import job_settings, settings
from tests.rules.host_frames import table
from tests.views.frames import rows

PEOPLE = rows(
    PROCESSES_SCHEMA,
    *[{"rank": r, "host": f"node{r // 2 + 1}", "pid": 100 + r, "bus_id": f"{r % 2}b000", "line_no": 1} for r in range(4)],
)


def by(rank: int, **more: object) -> dict[str, object]:
    return {"host": f"node{rank // 2 + 1}", "pid": 100 + rank, "source_id": rank} | more


def shown(*lines: dict[str, object]) -> list[tuple[object, ...]]:
    frame = settings(table("nccl_env", *lines), None, PEOPLE, None, None, None).collect()
    return frame.select("name", "value", "ranks", "processes", "of", "differs").rows()


def test_a_setting_that_all_share_does_not_differ() -> None:
    assert shown(*[by(r, name="NCCL_ALGO", value="Ring") for r in range(4)]) == [("NCCL_ALGO", "Ring", [0, 1, 2, 3], 4, 4, False)]


def test_two_values_differ_and_each_knows_its_ranks() -> None:
    found = shown(*[by(r, name="NCCL_SOCKET_IFNAME", value="ib0" if r == 3 else "eth0") for r in range(4)])
    assert [(value, ranks, differs) for _, value, ranks, _, _, differs in found] == [("eth0", [0, 1, 2], True), ("ib0", [3], True)]


def test_a_line_that_some_lack_differs_only_where_all_must_read_it() -> None:
    assert shown(by(0, name="NCCL_ALGO", value="Ring"))[0][-1] is True
    assert shown(by(0, name="NCCL_SOCKET_IFNAME", value="eth0"))[0][-1] is False


def test_the_first_line_of_a_process_counts_without_its_full_stop() -> None:
    found = shown(by(0, name="NCCL_NET", value="IB.", line_no=3), by(0, name="NCCL_NET", value="Socket", line_no=9))
    assert [(value, ranks) for _, value, ranks, *_ in found] == [("IB", [0])]


def test_a_value_that_nccl_refused_is_not_in_force() -> None:
    assert shown(by(0, name="NCCL_ALGO", value="Rong", invalid=True)) == []


def test_settings_without_processes_are_told_without_ranks() -> None:
    frame = settings(table("nccl_env", by(0, name="NCCL_ALGO", value="Ring")), None, None, None, None, None).collect()
    assert frame.select("ranks", "hosts", "processes").rows() == [([], ["node1"], 1)]


# ---- environments ----


def dump(rank: int | None, source: int, **values: str) -> list[dict[str, object]]:
    """An environment, one line per variable."""
    return [{"source_id": source, "line_no": n, "rank": rank, "name": k, "value": v} for n, (k, v) in enumerate(values.items(), 1)]


def of_dumps(*lines: dict[str, object], log: pl.LazyFrame | None = None, people: pl.LazyFrame | None = None) -> list[tuple[object, ...]]:
    frame = settings(log, table("environment", *lines), people, None, None, None).collect()
    return frame.select("name", "value", "ranks", "differs", "origin", "source_id", "line_no").rows()


def test_environments_of_ranks_are_compared_and_what_one_lacks_is_not_set() -> None:
    found = of_dumps(*dump(0, 7, PATH="/bin", NCCL_ALGO="Ring"), *dump(1, 8, PATH="/bin"))
    assert found == [
        ("NCCL_ALGO", "Ring", [0], True, "environment", 7, 2),
        ("NCCL_ALGO", None, [1], True, "environment", 8, 1),
    ]


def test_variables_that_are_no_settings_are_left_out() -> None:
    assert of_dumps(*dump(0, 7, HOME="/root", SLURM_JOB_ID="3")) == []


def test_what_the_log_says_is_what_the_process_read() -> None:
    log = table("nccl_env", by(1, name="NCCL_ALGO", value="Tree", line_no=4))
    assert of_dumps(*dump(1, 9, NCCL_ALGO="Ring", NCCL_NET="IB"), log=log, people=PEOPLE) == [
        ("NCCL_ALGO", "Tree", [1], True, "nccl", 1, 4),
        ("NCCL_NET", "IB", [1], True, "environment", 9, 2),
    ]


def test_a_dump_without_a_rank_speaks_only_where_no_process_does() -> None:
    log = table("nccl_env", by(1, name="NCCL_ALGO", value="Tree", line_no=4))
    found = of_dumps(*dump(None, 9, NCCL_ALGO="Ring", FI_PROVIDER="tcp"), log=log, people=PEOPLE)
    assert [(name, value, ranks) for name, value, ranks, *_ in found] == [("FI_PROVIDER", "tcp", []), ("NCCL_ALGO", "Tree", [1])]


def test_the_file_a_dump_stands_in_can_tell_its_rank_and_host() -> None:
    ranks = pl.LazyFrame({"source_id": [5], "rank": [3]}, schema={"source_id": pl.UInt32(), "rank": pl.Int32()})
    hosts = pl.LazyFrame({"source_id": [5], "host": ["node9.cluster"]}, schema={"source_id": pl.UInt32(), "host": pl.String()})
    frame = settings(None, table("environment", *dump(None, 5, NCCL_ALGO="Ring")), None, None, ranks, hosts).collect()
    assert frame.select("ranks", "hosts").rows() == [([3], ["node9"])]


def test_settings_of_nccl_are_not_those_of_a_job_that_speaks_through_gloo() -> None:
    names = ["NCCL_P2P_DISABLE", "GLOO_SOCKET_IFNAME"]
    known = settings(
        None, table("environment", *[{"rank": 0, "name": n, "value": "1", "source_id": 0} for n in names]), PEOPLE, None, None, None
    )
    through = [table("fr_entries", {"backend": name}) for name in ("gloo", "nccl")]
    left = [job_settings(known, None, None, None, None, recorded).collect()["name"].to_list() for recorded in (*through, None)]
    assert left == [["GLOO_SOCKET_IFNAME"], sorted(names), sorted(names)]
