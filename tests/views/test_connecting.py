"""Processes that began to connect channels and never were done."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.connecting import connecting
from tests.rules.frames import comms
from tests.rules.host_frames import table

RING = "Channel 07/0 : 0[0] -> 1[1] via P2P/CUMEM"


def found(
    conn: int = 0, connected: int | None = None, ring: int | None = None, last: str = RING, completed: bool = True, version: str = "2.24.3"
) -> list[tuple[object, ...]]:
    where = {"host": "node1", "pid": 7, "source_id": 0}
    lines = [where | {"conn": conn, "line_no": n} for n in (20, 21)]
    view = connecting(
        table("nccl_connections", *lines),
        table("nccl_notes", *([where | {"kind": "connected", "line_no": connected}] if connected is not None else [])),
        table("nccl_network", *([where | {"item": "ring-gdr", "line_no": ring}] if ring is not None else [])),
        comms({"host": "node1", "pid": 7, "completed": completed}),
        table("nccl_tails", where | {"lines": 20, "line_no": 21, "message": last}),
        table("nccl_versions", {"version": version}),
    )
    return view.select(pl.col("host", "pid", "source_id", "line_no")).collect().rows()


def test_a_log_that_ends_amid_the_channels_of_a_ring_or_tree_is_told_with_the_last_of_them() -> None:
    assert found() == [("node1", 7, 0, 21)]
    assert found(last="Imported shareable buffer device 0 size 6291456 ptr 0x7f1fe4c00000") == [("node1", 7, 0, 21)]
    # The rings were connected, the trees were not.
    assert found(ring=15) == [("node1", 7, 0, 21)]


def test_channels_that_are_all_connected_are_none() -> None:
    assert found(connected=25) == []
    assert found(ring=25) == []


def test_sends_and_a_process_that_went_on_tell_nothing() -> None:
    assert found(conn=1) == []
    assert found(last="AllReduce: opCount 3 sendbuff 0x1") == []
    assert found(last="comm 0x55 rank 0 nranks 2 cudaDev 0 busId 1b000 - Destroy COMPLETE") == []


def test_a_communicator_that_never_came_up_is_told_by_itself() -> None:
    assert found(completed=False) == []


def test_older_releases_connect_before_they_say_that_the_communicator_is_up() -> None:
    assert found(version="2.21.5") == []
