"""Dumps without a rank beside stacks with one."""

from __future__ import annotations

from nccl_forensics.views.identity import PROCESSES_SCHEMA
from nccl_forensics.views.odd_dumps import odd_dump
from nccl_forensics.views.pids import Pids
from tests.rules.host_frames import table
from tests.views.frames import rows

PEOPLE = rows(PROCESSES_SCHEMA, *({"proc": r, "pid": 100 + r, "rank": r} for r in range(4)))
WAITS = ["all_reduce (torch/distributed/distributed_c10d.py:3252)", "train (train.py:59)", "<module> (train.py:68)"]
BARRIER = ["barrier (torch/distributed/distributed_c10d.py:4000)", "train (train.py:61)", "<module> (train.py:68)"]
SLEEPS = ["cooldown (job.py:9)", "train (train.py:50)", "<module> (train.py:68)"]


def met(
    *calls: tuple[str, int], line: str | None = None, stands: tuple[list[str], ...] = (WAITS, WAITS, SLEEPS, WAITS)
) -> tuple[set[int], int] | None:
    """By the last call of each dump, made in this line, and the stack of each rank."""
    dumps = table("fr_dumps", *({"source_id": s, "content_key": f"k{s}"} for s in range(len(calls))))
    made = [{"source_id": s, "op": op, "collective_seq_id": n, "record_id": n, "pg_name": "0"} for s, (op, n) in enumerate(calls)]
    entries = [call | {"user_frame": line} for call in made]
    sampled = [{"pid": 100 + r, "is_main": True, "depth": 3, "frames": frames} for r, frames in enumerate(stands)]
    return odd_dump(dumps, table("fr_entries", *entries), table("stacks", *sampled), Pids(PEOPLE), set(range(len(calls))), 4)


def test_the_one_that_stands_apart_in_dumps_and_in_stacks_is_one_process() -> None:
    ahead = ("all_reduce", 7)
    assert met(("all_reduce", 6), ahead, ahead, ahead) == ({0}, 2)
    assert met(ahead, ("barrier", 7), ahead, ahead, stands=(WAITS, WAITS, WAITS, BARRIER)) == ({1}, 3)


def test_who_stands_in_the_function_that_made_the_last_call_waits_for_it() -> None:
    ahead, work = ("all_reduce", 7), ["reduce (buckets.py:32)", *WAITS[1:]]
    before, stands = ("barrier", 6), (work, work, SLEEPS, work)
    assert met(before, ahead, ahead, ahead, line="reduce (src/buckets.py:30)", stands=stands) == ({0}, 2)
    for line in ("sync (buckets.py:30)", None):
        assert met(before, ahead, ahead, ahead, line=line, stands=stands) is None


def test_where_dumps_and_stacks_are_of_other_moments_nobody_is_met() -> None:
    ahead = ("all_reduce", 7)
    assert met(ahead, ("barrier", 7), ahead, ahead) is None, "who sleeps is not in a barrier"
    assert met(("all_reduce", 8), ahead, ahead, ahead) is None, "who sleeps is not ahead"
    assert met(("broadcast", 6), ("broadcast", 7), ("broadcast", 7), ("broadcast", 7)) is None
    assert met(("all_reduce", 6), ahead, ahead) is None, "a dump is missing"
    assert met(("all_reduce", 6), ahead, ahead, ahead, stands=(WAITS, SLEEPS, SLEEPS, WAITS)) is None
