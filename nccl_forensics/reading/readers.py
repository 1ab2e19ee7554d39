"""Processes that work on tasks side by side, each within a bound on its memory, each task within one on its time.

A process that dies or takes too long costs the task that it had, and another one takes its place. Everything happens in the thread of the
caller: nothing runs here while the caller looks at a result.

Neither ``concurrent.futures`` nor Pebble serves here: the one knows no bound on the time of a task, the other starts threads of its own
before its processes, after which a fork is no longer safe.

To start an interpreter and import Polars and the formats takes longer than to read a small source. So where it is safe, a process is
forked: on Linux, as long as this process has no threads but those that are known to do no harm. Once Polars has started its pool, or where
the caller's program has threads, processes are started anew, as on other systems.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from pickle import UnpicklingError
from typing import Generic, Literal, TypeVar

T = TypeVar("T")
R = TypeVar("R")

#: Threads of a process that has only imported Polars: jemalloc's, which is made to be forked, and one that removes what queries spilled to
#: disk.
_HARMLESS = frozenset({"jemalloc_bg_thd", "polars-ooc-clea"})
#: A process that is not ready by then never will be.
_START_SECONDS = 120.0
#: One that closed its connection is about to end.
_END_SECONDS = 5.0
#: After so many processes in a row that did not become ready, no more are started.
_FAILED_STARTS = 3


@dataclass(frozen=True, slots=True)
class Loss:
    """Why nothing came back for a task: it took longer than its time (``late``), its process ended (``died``, with its exit code), it or
    what it gave needed too much memory (``memory``), or no process could be started (``unstarted``)."""

    why: Literal["late", "died", "memory", "unstarted"]
    exit_code: int | None = None


@dataclass(slots=True)
class _Reader(Generic[T]):
    """One process, until when something must be heard of it, and what it works on: nothing before it is ready."""

    process: BaseProcess
    deadline: float
    task: T | None = None


def each(
    function: Callable[[T], R], tasks: Sequence[T], *, workers: int, memory_bytes: int, seconds: Callable[[T], float]
) -> Iterator[tuple[T, R | Loss]]:
    """Tasks with what ``function`` makes of them, in the order in which they are done; ``seconds`` bounds each."""
    waiting = deque(tasks)
    crew: dict[Connection, _Reader[T]] = {}
    failed_starts = 0
    try:
        while waiting or crew:
            starting = sum(reader.task is None for reader in crew.values())
            while len(crew) < workers and starting < len(waiting) and failed_starts < _FAILED_STARTS:
                try:
                    _start(function, memory_bytes, crew)
                    starting += 1
                except OSError:  # no more processes, or no memory for one
                    failed_starts += 1
            if not crew:
                yield from ((task, Loss("unstarted")) for task in waiting)
                return
            soonest = min(reader.deadline for reader in crew.values())
            heard = wait(list(crew), max(0.0, soonest - time.monotonic()))
            for connection, reader in list(crew.items()):
                if connection in heard:
                    said: R | Loss | None = _heard(connection)
                elif reader.deadline <= time.monotonic():
                    said = Loss("late")
                else:
                    continue
                task = reader.task
                if isinstance(said, Loss) and said.why in ("died", "late"):
                    code = _end(connection, crew, grace=_END_SECONDS if said.why == "died" else 0.0)
                    failed_starts += task is None
                    said = Loss("died", code) if said.why == "died" else said
                else:
                    failed_starts = 0
                    _go_on(connection, crew, waiting, seconds)
                if task is not None:
                    assert said is not None
                    yield task, said
    finally:
        for connection in list(crew):
            _end(connection, crew)


def _start(function: Callable[[T], R], memory_bytes: int, crew: dict[Connection, _Reader[T]]) -> None:
    """Add a process to the crew. Raises ``OSError`` where the system has none to give."""
    context: ForkContext | SpawnContext = _Spawning()
    if forkable():
        context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    # Held open in a process that was forked later, the ends of the others would keep these from seeing that this process is gone.
    held = (ours, *crew) if isinstance(context, ForkContext) else ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later count the threads that do no harm, too
            process = context.Process(target=_work, args=(theirs, held, function, memory_bytes), daemon=True)
            process.start()
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    crew[ours] = _Reader(process, time.monotonic() + _START_SECONDS)


def _heard(connection: Connection) -> R | Loss | None:
    """What a process said; None: that it is ready."""
    try:
        said: R | Loss | None = connection.recv()
    except (EOFError, OSError, UnpicklingError):
        return Loss("died")
    return said


def _go_on(connection: Connection, crew: dict[Connection, _Reader[T]], waiting: deque[T], seconds: Callable[[T], float]) -> None:
    """The next task for a process that has none, or its end."""
    if not waiting:
        _end(connection, crew)
        return
    reader = crew[connection]
    reader.task = waiting.popleft()
    reader.deadline = time.monotonic() + seconds(reader.task)
    with contextlib.suppress(OSError):  # it has just died: that is heard next
        connection.send(reader.task)


def _end(connection: Connection, crew: dict[Connection, _Reader[T]], grace: float = 0.0) -> int | None:
    """Take a process from the crew; returns its exit code, which within ``grace`` seconds may be its own."""
    reader = crew.pop(connection)
    if grace:
        reader.process.join(grace)
    reader.process.kill()
    reader.process.join()
    connection.close()
    return reader.process.exitcode


def forkable() -> bool:
    """Whether a copy of this process can go on by itself: no thread of it holds anything that the copy will need."""
    if sys.platform != "linux":
        return False
    try:
        others = [task for task in Path("/proc/self/task").iterdir() if task.name != str(os.getpid())]
        return {(task / "comm").read_text(encoding="utf-8").rstrip("\n") for task in others} <= _HARMLESS
    except OSError:
        return False


def _work(connection: Connection, held: Sequence[Connection], function: Callable[[T], R], memory_bytes: int) -> None:
    """What a process does: task after task, until nobody asks any more."""
    for other in held:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # sent to all of a terminal's processes: the one that asks ends the others
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.freeze()  # what is shared with the process that was forked is never garbage here
    _limit_memory(memory_bytes)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        connection.send(None)
        while True:
            task: T = connection.recv()
            try:
                said = ForkingPickler.dumps(function(task))
            except MemoryError:
                said = ForkingPickler.dumps(Loss("memory"))
            connection.send_bytes(said)
    os._exit(0)


def _limit_memory(memory_bytes: int) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # not on every system, and never above what is set already
        import resource

        # RLIMIT_DATA counts private writable memory only; RLIMIT_AS would also count what Polars merely reserves.
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


class _Fresh(SpawnProcess):
    """A process that does not run the main program again, so that a script needs no guard to call the analysis."""

    @staticmethod
    def _Popen(process_obj: SpawnProcess) -> object:  # type: ignore[override]  # the base class names its own process class
        main = vars(sys.modules["__main__"])
        hidden: dict[str, object] = {name: main.pop(name) for name in ("__file__", "__spec__") if name in main}
        main["__spec__"] = None
        try:
            return SpawnProcess._Popen(process_obj)
        finally:
            main.update(hidden)


class _Spawning(SpawnContext):
    Process = _Fresh


__all__ = ["Loss", "each", "forkable"]
