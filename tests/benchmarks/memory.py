"""Memory of a program and of the processes that it starts, each apart and all together.

    python -m tests.benchmarks.memory [--every 0.2] [--trace FILE] COMMAND…

prints for each process the peak of its resident memory, of it what is its own (anonymous), and its CPU seconds; then the peak of all
together: proportional (PSS: a page that several processes map counts in parts), and anonymous. ``--trace`` writes the course as CSV.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def children(pid: int) -> Iterator[int]:
    """All processes below one."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return
    for task in tasks:
        try:
            found = [int(word) for word in (task / "children").read_text().split()]
        except OSError:
            continue
        for child in found:
            yield child
            yield from children(child)


def held(pid: int) -> dict[str, int]:
    """``Rss``, ``Pss`` and ``Anonymous`` bytes of a process; nothing of one that ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    told = {line.split()[0].rstrip(":"): int(line.split()[1]) << 10 for line in lines}
    return {name: told.get(name, 0) for name in ("Rss", "Pss", "Anonymous")}


def _spent(pid: int) -> float:
    """CPU seconds of a process so far."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / _TICKS


@dataclass(slots=True)
class Own:
    """One process."""

    cpu: float = 0.0
    most: dict[str, int] = field(default_factory=dict)


class Watch(threading.Thread):
    """Samples a process and all below it until it is told to end."""

    def __init__(self, pid: int, every: float = 0.2, trace: Path | None = None) -> None:
        super().__init__(daemon=True)
        self.pid, self.every, self.trace = pid, every, trace
        self.processes: dict[int, Own] = {}
        self.most = {"Pss": 0, "Anonymous": 0}
        self._over = threading.Event()

    def run(self) -> None:
        began, course = time.monotonic(), []
        while not self._over.wait(self.every):
            now = {pid: found for pid in (self.pid, *children(self.pid)) if (found := held(pid))}
            for pid, found in now.items():
                own = self.processes.setdefault(pid, Own())
                own.cpu = max(own.cpu, _spent(pid))
                own.most = {name: max(size, own.most.get(name, 0)) for name, size in found.items()}
            for name in self.most:
                self.most[name] = max(self.most[name], sum(found[name] for found in now.values()))
            course += [f"{time.monotonic() - began:.1f},{pid},{f['Rss']},{f['Anonymous']},{f['Pss']}" for pid, f in now.items()]
        if self.trace is not None:
            self.trace.write_text("\n".join(["seconds,pid,rss,anonymous,pss", *course]) + "\n", encoding="utf-8")

    def end(self) -> None:
        """No more samples."""
        self._over.set()
        self.join()


def watched(command: Sequence[str], every: float = 0.2, trace: Path | None = None) -> tuple[Watch, int, float]:
    """Run a command under a watch; the watch, its exit code and its CPU seconds with those of all its children."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    watch = Watch(process.pid, every, trace)
    watch.start()
    _, status, used = os.wait4(process.pid, 0)
    watch.end()
    process.returncode = os.waitstatus_to_exitcode(status)
    return watch, process.returncode, used.ru_utime + used.ru_stime


def told(watch: Watch) -> str:
    """The peaks in words, a line for each process and one for all."""

    def mb(size: int) -> str:
        return f"{size / 1e6:,.0f} MB"

    lines = [
        f"  {'driver' if pid == watch.pid else 'child':8} {own.cpu:7.1f} CPU s   peak {mb(own.most['Rss'])}, of it its own {mb(own.most['Anonymous'])}"
        for pid, own in watch.processes.items()
    ]
    return "\n".join([*lines, f"  all together: peak {mb(watch.most['Pss'])} (PSS), of their own {mb(watch.most['Anonymous'])}"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--every", type=float, default=0.2)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    began = time.monotonic()
    watch, code, cpu = watched(asked.command, asked.every, asked.trace)
    sys.stdout.write(f"exit code {code}, {cpu:.1f} CPU s, {time.monotonic() - began:.0f} s\n{told(watch)}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
