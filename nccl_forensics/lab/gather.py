"""Gather the evidence of a running job as an operator would: its processes, their stacks, their dumps."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Worker:
    """One rank's process."""

    rank: int
    pid: int


def workers_of(launcher: int) -> list[Worker]:
    """The ranks that this launcher started, by ``RANK`` in their environment; helpers that a rank started itself are left out."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent != launcher:
                continue
            raw = (stat.parent / "environ").read_bytes().split(b"\0")
            environment = dict(item.split(b"=", 1) for item in raw if b"=" in item)
            if b"LOCAL_RANK" in environment:
                found.append(Worker(int(environment[b"RANK"]), int(stat.parent.name)))
    return sorted(found, key=lambda w: w.rank)


def cpu_seconds(pids: list[int]) -> float:
    """CPU time that these processes have used, those that are gone left out."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            ticks += int(user) + int(system)
    return ticks / os.sysconf("SC_CLK_TCK")


def py_spy(python: Path) -> str | None:
    """py-spy beside the interpreter that runs the jobs, or on the path."""
    beside = python.parent / "py-spy"
    return str(beside) if beside.exists() else shutil.which("py-spy")


def take_stacks(tool: str, workers: list[Worker], folder: Path, *, as_json: bool = False, native: bool = False) -> int:
    """``py-spy dump`` of every rank as text (and as JSON; with ``native`` frames where py-spy can); how many could be taken."""
    folder.mkdir(parents=True, exist_ok=True)

    def one(worker: Worker) -> bool:
        target = folder / f"rank{worker.rank}.pyspy.txt"
        dump = [tool, "dump", "--pid", str(worker.pid)]
        # Not every platform can unwind native frames; without them a stack still tells most.
        taken = (native and _output_to(target, [*dump, "--native"])) or _output_to(target, dump)
        if as_json:
            taken = _output_to(target.with_suffix(".json"), [*dump, "--json"]) or taken
        return taken

    with ThreadPoolExecutor(4) as pool:
        return sum(pool.map(one, workers))


def _output_to(target: Path, command: list[str]) -> bool:
    """Whether the command came to an end well within its time and said something, which is now in the file."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, timeout=30, check=False)
        if done.returncode == 0 and done.stdout:
            target.write_bytes(done.stdout)
            return True
    return False


def list_processes(workers: list[Worker], target: Path) -> bool:
    """What the kernel says of the ranks' processes (state, where they sleep), as ``ps`` lists it; False where there is no ``ps``.

    Before stacks are taken: a sampler stops the processes for a moment.
    """
    tool = shutil.which("ps")
    pids = ",".join(str(w.pid) for w in workers)
    return bool(tool and pids) and _output_to(target, [str(tool), "-o", "pid,ppid,stat,wchan:32,pcpu,rss,etime,args", "-p", pids])


def ask_for_dumps(trigger: Path, folder: Path, expected: int, patience_s: float = 4.0) -> None:
    """Have the ranks write their Flight Recorders; a rank whose interpreter is blocked cannot, and its dump stays missing."""
    trigger.touch()
    end = time.monotonic() + patience_s
    while time.monotonic() < end and len(list(folder.glob("fr_trace_rank_*"))) < expected:
        time.sleep(0.2)
    time.sleep(0.3)


def ask_for_faulthandler(workers: list[Worker]) -> None:
    """Every rank prints its Python stacks on SIGUSR1; one that does not catch it yet, or no longer, would die of it and is left alone."""
    for worker in workers:
        with contextlib.suppress(OSError, ValueError, StopIteration):
            status = Path(f"/proc/{worker.pid}/status").read_text().splitlines()
            caught = int(next(line for line in status if line.startswith("SigCgt:")).split()[1], 16)
            if caught >> (signal.SIGUSR1 - 1) & 1:
                os.kill(worker.pid, signal.SIGUSR1)
    time.sleep(0.5)
