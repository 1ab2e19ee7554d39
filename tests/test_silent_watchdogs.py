"""A rank whose watchdog says nothing, where those of all others timed out in one operation: told by the logs of all ranks alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccl_forensics.api import analyze
from nccl_forensics.reading.engine import InlineEngine

RANKS = 6


def steps(rank: int, last: int) -> list[str]:
    return [f"[rank {rank}] step {n} loss {3 - n * 0.01:.4f}" for n in range(last + 1)]


def timeout(rank: int, seq: int = 121) -> list[str]:
    head = f"[rank{rank}]:[E301 10:11:20.{rank:03d}000000 ProcessGroupNCCL.cpp"
    return [
        f"{head}:629] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=1024, "
        "NumelOut=1024, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.",
        f"{head}:2168] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: {seq} "
        f"PG status: last enqueued work: {seq}, last completed work: {seq - 1}",
    ]


def job(last: int = 39, quiet: tuple[int, ...] = (4,)) -> dict[int, list[str]]:
    """Lines of each rank: all come to step 39 and time out, but those that are quiet, which tell ``last`` as theirs."""
    return {r: steps(r, last) if r in quiet else [*steps(r, 39), *timeout(r)] for r in range(RANKS)}


def told(folder: Path, files: dict[str, list[str]]) -> tuple[object, ...]:
    for name, lines in files.items():
        (folder / name).write_text("\n".join([*lines, ""]))
    verdict = analyze([folder], engine=InlineEngine()).report["verdict"]
    return verdict["cause"], verdict["confidence"], [c["rank"] for c in verdict["culprits"]]


def of_ranks(logs: dict[int, list[str]]) -> dict[str, list[str]]:
    return {f"rank{r}.log": lines for r, lines in logs.items()}


def test_the_rank_whose_log_tells_steps_and_no_timeout_never_came(tmp_path: Path) -> None:
    assert told(tmp_path, of_ranks(job())) == ("host-stall", "low", [4])


def test_one_log_of_all_ranks_tells_the_same(tmp_path: Path) -> None:
    assert told(tmp_path, {"job.out": [line for lines in job().values() for line in lines]}) == ("host-stall", "low", [4])


def test_where_it_told_one_step_more_it_left_a_call_out(tmp_path: Path) -> None:
    assert told(tmp_path, of_ranks(job(last=40))) == ("collective-skipped", "medium", [4])


@pytest.mark.parametrize("case", ["no-steps", "other-files", "log-lost", "half"])
def test_silence_says_nothing_where_the_line_need_not_be_there(tmp_path: Path, case: str) -> None:
    logs = job()
    if case == "no-steps":  # nothing tells that this rank's log is of the same kind
        logs[4] = ["loading", "done"]
    elif case == "log-lost":
        del logs[2]
    elif case == "half":
        logs = job(quiet=(3, 4, 5))
    files = of_ranks(logs)
    if case == "other-files":  # what watchdogs print is kept in files of its own
        files = {f"out/rank{r}.txt": [line for line in lines if line.startswith("[rank ")] for r, lines in logs.items()}
        files |= {f"err/rank{r}.txt": timeout(r) for r in logs if r != 4}
        for folder in ("out", "err"):
            (tmp_path / folder).mkdir()
    assert told(tmp_path, files)[2] == []
