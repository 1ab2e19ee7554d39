"""Listings of /dev/shm."""

from __future__ import annotations

import pytest

from nccl_forensics.reading.source import read_source
from tests.corpus import ROOT


def test_files_of_nccl_are_read_and_the_directory_is_not() -> None:
    found = read_source((ROOT / "fixtures" / "shm_files" / "sample.txt").read_bytes())
    assert found.frames["shm_files"].select("line_no", "name", "owner", "bytes", "modified").rows() == [
        (5, "nccl-AbCdEf", "root", 9637888, "May  6 07:08"),
        (6, "nccl-XyZ123", "root", 9637888, "May  1 07:08"),
    ]


@pytest.mark.parametrize(
    "line", ["-rw------- 1 a b 3 May  6 07:08 nccl-tests", "-rw-r--r-- 1 a b 3 2024-05-06 07:08 notes nccl-x", "built nccl-AbCdEf"]
)
def test_other_files_are_not_shared_memory(line: str) -> None:
    assert "shm_files" not in read_source(f"{line}\n".encode()).frames
