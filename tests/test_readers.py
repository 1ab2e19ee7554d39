"""Processes that read: forked where that is safe, started anew where it is not, replaced when they are lost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nccl_forensics.reading import readers
from nccl_forensics.reading.readers import Loss, each
from tests.corpus import ROOT

#: A program that has imported Polars and not used it yet, as the command line has when it starts to read.
BEFORE = """
import os, signal, sys, threading, time
import polars as pl
from nccl_forensics.reading.readers import Loss, each, forkable

def work(task):
    if task == "die":
        os._exit(7)
    if task == "stall":
        time.sleep(60)
    if task == "count":
        return pl.DataFrame({"a": [3, 1, 2]}).lazy().sort("a").with_columns(b=pl.col("a").cum_sum()).collect()["b"].to_list()
    return os.getppid()

def run(tasks, workers=2):
    return list(each(work, tasks, workers=workers, memory_bytes=4 << 30, seconds=lambda task: 2.0 if task == "stall" else 60.0))
"""


def program(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BEFORE + code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.strip()


def own_process(task: str) -> int:
    return os.getpid()


def out_of_memory(task: str) -> int:
    if task == "big":
        raise MemoryError
    return os.getpid()


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")
def test_before_polars_has_started_its_pool_a_reader_is_forked_and_polars_works_in_it():
    assert program("assert forkable(); print(run(['count', 'count', 'count']))") == str([("count", [1, 3, 6])] * 3)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")
def test_a_program_with_polars_pool_or_a_thread_of_its_own_forks_nothing():
    assert program("pl.DataFrame({'a': [1]}).lazy().sort('a').with_columns(b=1).collect(); print(forkable())") == "False"
    assert program("threading.Thread(target=time.sleep, args=(30,), daemon=True).start(); print(forkable())") == "False"


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")
def test_a_forked_reader_that_dies_or_stalls_costs_its_task_and_is_replaced():
    told = program("assert forkable(); print(sorted(map(str, run(['die', 'stall', 'count', 'die', 'count']))))")
    assert told.count("why='died', exit_code=7") == 2
    assert told.count("why='late'") == 1
    assert told.count("[1, 3, 6]") == 2


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")
def test_readers_end_with_the_program_that_asked_them():
    # Each holds nothing that keeps another from seeing that nobody asks any more.
    code = """
running = each(work, ["who"] * 2 + ["stall"] * 2, workers=2, memory_bytes=4 << 30, seconds=lambda task: 60.0)
next(running), next(running)
import multiprocessing
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", BEFORE.replace("sleep(60)", "sleep(1)") + code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    end = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < end:
        time.sleep(0.1)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_process_started_anew_does_the_same(monkeypatch):
    monkeypatch.setattr(readers, "forkable", lambda: False)
    found = dict(each(out_of_memory, ["one", "big", "two"], workers=1, memory_bytes=4 << 30, seconds=lambda _: 60.0))
    assert found["big"] == Loss("memory")
    assert found["one"] == found["two"] != os.getpid()


def test_no_more_processes_are_started_than_there_are_tasks(monkeypatch):
    started = []
    start = readers._start
    monkeypatch.setattr(readers, "_start", lambda *given: (started.append(1), start(*given)))
    found = dict(each(own_process, ["one"], workers=8, memory_bytes=4 << 30, seconds=lambda _: 60.0))
    assert len(started) == len(found) == 1


def test_where_no_process_can_be_started_all_tasks_are_lost(monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(readers, "_start", refuse)
    found = list(each(own_process, ["a", "b"], workers=2, memory_bytes=4 << 30, seconds=lambda _: 60.0))
    assert found == [("a", Loss("unstarted")), ("b", Loss("unstarted"))]


def test_a_caller_that_looks_no_further_leaves_no_process_behind():
    import multiprocessing

    running = each(own_process, ["a", "b", "c"], workers=1, memory_bytes=4 << 30, seconds=lambda _: 60.0)
    _, pid = next(running)
    running.close()
    assert pid not in {child.pid for child in multiprocessing.active_children()}
