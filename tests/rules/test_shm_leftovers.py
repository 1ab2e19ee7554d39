"""Shared memory that dead processes left."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.shm_leftovers import shm_leftovers
from tests.rules.host_frames import table


def files(*sizes: int, days: int = 1) -> pl.LazyFrame:
    return table(
        "shm_files",
        *[{"host": "node1", "name": "nccl-AbCdEf", "bytes": s, "modified": f"May  {1 + n % days} 07:08"} for n, s in enumerate(sizes)],
    )


SHM = table("filesystems", {"host": "node1", "mount": "/dev/shm", "size_kb": 65536.0})


def test_files_that_take_a_good_share_are_told() -> None:
    [finding] = shm_leftovers.check(files(9637888, 9637888, days=2), SHM, None)
    assert finding.title == "2 files of NCCL and PyTorch take 18 MiB of /dev/shm on node1 (29 % of it), from 2 different days"
    assert (finding.confidence, finding.hosts) == ("medium", ("node1",))


def test_many_bytes_of_several_days_are_told_without_a_size() -> None:
    assert len(shm_leftovers.check(files(1 << 30, 1 << 30, days=2), None, None)) == 1


def test_a_small_share_and_files_of_one_day_are_quiet() -> None:
    assert shm_leftovers.check(files(1 << 20, days=1), SHM, None) == []
    assert shm_leftovers.check(files(1 << 31), None, None) == []
    assert shm_leftovers.check(files(1 << 20, 1 << 20, days=2), None, None) == []
