"""Reading all sources of a bundle: in a pool of processes with limits, or in this process.

Reading is pure, so it can run anywhere. A worker that dies or runs out of memory or time costs one source, shown with its error.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import mmap
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from concurrent.futures import TimeoutError as PoolTimeout
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Protocol

import polars as pl
from polars.exceptions import PanicException

from nccl_forensics.bundle import Bundle, Member
from nccl_forensics.formats import all_formats
from nccl_forensics.store import ALWAYS, SOURCES, Store

#: Frames up to this size come back by message, larger ones as files in scratch.
_BY_MESSAGE = 1 << 20
#: A table up to this size is held in memory.
_IN_MEMORY = 256 << 20
_BATCH_FILES, _BATCH_BYTES = 64, 4 << 20
#: What reading costs about: used only to choose how many workers to start.
_BYTES_PER_SECOND, _SECONDS_PER_FILE, _SECONDS_PER_WORKER = 20e6, 0.02, 1.5
_HEAD = 64 << 10


@dataclass(frozen=True, slots=True)
class Ref:
    """One source to read: its plain file and where big frames may be written."""

    source_id: int
    file: Path
    bytes: int
    scratch: Path


@dataclass(frozen=True, slots=True)
class Result:
    """What came back for one source: facts for its row and its frames (with ``source_id``), as Arrow IPC bytes or files."""

    source_id: int
    facts: dict[str, object]
    formats: tuple[str, ...]
    frames: dict[str, bytes | Path]
    filled: tuple[str, ...] = ()


class Engine(Protocol):
    """Maps reading over references; results come in any order."""

    def map(self, function: Callable[[Ref], Result], refs: Sequence[Ref]) -> Iterator[Result]:
        """Results of all references; a failed one is a result with an error."""
        ...


def read_ref(ref: Ref) -> Result:
    """Read one source from its file, which is mapped, not loaded."""
    from nccl_forensics.reading import read_source

    with ref.file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()  # through the mapping, all of its pages would count as memory in use
        reading = read_source(data)
    frames: dict[str, bytes | Path] = {}
    for name, frame in reading.frames.items():
        if not frame.height:
            continue
        # The identifier stands in the frame, so that many files of one table can be scanned as one.
        own = pl.repeat(ref.source_id, frame.height, dtype=pl.UInt32, eager=True).alias("source_id")
        frame = frame.select(own, pl.all())
        if frame.estimated_size() > _BY_MESSAGE:
            target = ref.scratch / f"{digest}.{ref.source_id}.{name}.arrow"
            frame.write_ipc(target)
            frames[name] = target
        else:
            buffer = io.BytesIO()
            frame.write_ipc(buffer)
            frames[name] = buffer.getvalue()
    facts: dict[str, object] = {
        "lines": reading.lines,
        "records": reading.records,
        "gaps": reading.gap_lines,
        "unmodelled": reading.unmodelled,
        "foreign": reading.foreign,
        "invalid_utf8": reading.invalid_utf8,
        "error": reading.error,
        "sha256": digest,
    }
    return Result(ref.source_id, facts, reading.formats, frames, reading.filled)


def _failed(ref: Ref, why: str) -> Result:
    return Result(ref.source_id, {"error": f"not read: {why}"}, (), {})


def _attempt(function: Callable[[Ref], Result], ref: Ref) -> Result:
    """One source; whatever its content brings about stays with it."""
    try:
        return function(ref)
    except MemoryError:
        return _failed(ref, "it needs more memory than one source may use")
    except (Exception, PanicException) as problem:
        return _failed(ref, f"{type(problem).__name__}: {problem}"[:300])


@dataclass(frozen=True, slots=True)
class InlineEngine:
    """Reads in this process: for tests and notebooks. Memory and time are not limited."""

    def map(self, function: Callable[[Ref], Result], refs: Sequence[Ref]) -> Iterator[Result]:
        """Results in the order of the references."""
        for ref in refs:
            yield _attempt(function, ref)


def _limit_memory(memory_bytes: int) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # not on every system, and never above what is set already
        import resource

        # RLIMIT_DATA counts private writable memory only; RLIMIT_AS would also count what Polars merely reserves.
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def _batch(function: Callable[[Ref], Result], refs: tuple[Ref, ...]) -> list[Result]:
    return [_attempt(function, ref) for ref in refs]


class _Worker(SpawnProcess):
    """A process that does not run the main program again, so that a script needs no guard to call the analysis."""

    @staticmethod
    def _Popen(process_obj: SpawnProcess) -> object:  # type: ignore[override]
        main = vars(sys.modules["__main__"])
        hidden: dict[str, object] = {name: main.pop(name) for name in ("__file__", "__spec__") if name in main}
        main["__spec__"] = None
        try:
            return SpawnProcess._Popen(process_obj)
        finally:
            main.update(hidden)


class _Context(SpawnContext):
    Process = _Worker


@dataclass(frozen=True, slots=True)
class _Lost:
    """Sources of which the worker did not come back."""

    refs: tuple[Ref, ...]
    why: str
    broken: bool


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """A pool of processes with a memory limit for each and a time limit for each source."""

    workers: int = 0
    memory_bytes: int = 6 << 30
    seconds_per_source: float = 120.0
    seconds_per_gb: float = 600.0

    def map(self, function: Callable[[Ref], Result], refs: Sequence[Ref]) -> Iterator[Result]:
        """Results as they come. Small sources travel in batches; a batch whose worker dies is read again one by one."""
        lost: list[_Lost] = []
        read_any = False
        for outcome in self._pass(function, _batches(refs)):
            if isinstance(outcome, _Lost):
                lost.append(outcome)
            else:
                read_any = True
                yield from outcome
        broken: list[_Lost] = []
        for outcome in self._pass(function, [(ref,) for one in lost for ref in one.refs]):
            if not isinstance(outcome, _Lost):
                read_any = True
                yield from outcome
            elif outcome.broken:
                broken.append(outcome)
            else:
                yield from (_failed(ref, outcome.why) for ref in outcome.refs)
        # A pool that breaks takes others' sources with it: each of them gets a pool of its own, unless no pool works at all.
        for one in broken:
            for outcome in self._pass(function, [one.refs]) if read_any else (one,):
                if isinstance(outcome, _Lost):
                    yield from (_failed(ref, outcome.why) for ref in outcome.refs)
                else:
                    yield from outcome

    def _pass(self, function: Callable[[Ref], Result], batches: Sequence[tuple[Ref, ...]]) -> Iterator[list[Result] | _Lost]:
        if not batches:
            return
        from pebble import ProcessExpired, ProcessPool

        os.environ.setdefault("POLARS_MAX_THREADS", "1")  # read by workers when they start; many sources are read side by side
        wanted = self.workers or max(1, min(os.cpu_count() or 1, 16))
        with ProcessPool(
            max_workers=min(wanted, len(batches)), initializer=_limit_memory, initargs=(self.memory_bytes,), context=_Context()
        ) as pool:
            try:
                pending: dict[Future[list[Result]], tuple[Ref, ...]] = {}
                for batch in batches:
                    try:
                        pending[pool.schedule(_batch, args=(function, batch), timeout=self._seconds(batch))] = batch
                    except RuntimeError as problem:  # the pool broke meanwhile
                        yield _Lost(batch, f"readers cannot be started ({problem})", broken=True)
                for future in as_completed(list(pending)):
                    batch = pending.pop(future)
                    try:
                        yield future.result()
                    except PoolTimeout:
                        yield _Lost(batch, f"it took longer than {self._seconds(batch):.0f} s", broken=False)
                    except ProcessExpired as problem:
                        yield _Lost(batch, f"its reader died (exit code {problem.exitcode})", broken=False)
                    except BrokenProcessPool as problem:
                        yield _Lost(batch, f"its reader died ({problem})", broken=True)
                    except (MemoryError, OSError) as problem:
                        yield _Lost(batch, type(problem).__name__, broken=False)
            except BaseException:
                pool.stop()  # type: ignore[no-untyped-call]
                raise

    def _seconds(self, refs: Sequence[Ref]) -> float:
        return self.seconds_per_source + self.seconds_per_gb * sum(r.bytes for r in refs) / 1e9


def _batches(refs: Sequence[Ref]) -> list[tuple[Ref, ...]]:
    """Big sources alone and first, small ones in batches."""
    out: list[tuple[Ref, ...]] = []
    batch: list[Ref] = []
    size = 0
    for ref in sorted(refs, key=lambda r: -r.bytes):
        if batch and (len(batch) == _BATCH_FILES or size + ref.bytes > _BATCH_BYTES):
            out.append(tuple(batch))
            batch, size = [], 0
        batch.append(ref)
        size += ref.bytes
    return [*out, tuple(batch)] if batch else out


def default_engine(bundle: Bundle) -> Engine:
    """A pool with limits, and no more workers than pay for their start."""
    seconds = sum(m.bytes for m in bundle.members) / _BYTES_PER_SECOND + len(bundle.members) * _SECONDS_PER_FILE
    return LocalEngine(workers=max(1, min(os.cpu_count() or 1, 16, int(seconds / _SECONDS_PER_WORKER))))


def read_bundle(bundle: Bundle, engine: Engine, progress: Callable[[int, int], None] | None = None) -> Store:
    """Read every member once; identical content is read once and counted once."""
    twin = _twins(bundle.members)
    refs = [
        Ref(m.source_id, m.file, m.bytes, bundle.scratch)
        for m in bundle.members
        if m.file is not None and m.bytes and m.source_id not in twin
    ]
    results: dict[int, Result] = {}
    for done, result in enumerate(engine.map(read_ref, refs), start=1):
        results[result.source_id] = result
        if progress is not None:
            progress(done, len(refs))
    held: dict[str, list[bytes | Path]] = defaultdict(list)
    for source_id in sorted(results):
        for name, content in results[source_id].frames.items():
            held[name].append(content)
    rows = [_source_row(m, results, twin.get(m.source_id)) for m in bundle.members]
    tables_of = {f.name: f.tables for f in all_formats()}
    present = {t for r in results.values() for name in r.filled for t in tables_of.get(name, ())} | set(held)
    tables = {name: _join(name, parts, bundle.scratch) for name, parts in sorted(held.items())}
    return Store(pl.DataFrame(rows, schema=SOURCES, infer_schema_length=None), ALWAYS | frozenset(present), tables)


def _twins(members: Iterable[Member]) -> dict[int, int]:
    """Members whose bytes another member before them has too, in the same folder and under the same name but for its compression.

    Some evidence says only in its path whose it is or when it was taken (a Flight Recorder dump holds no rank, two samples of a stuck
    process are alike), so equal bytes elsewhere are other facts. Only files of one size and one beginning are read for it.
    """
    alike: dict[tuple[int, str], list[Member]] = defaultdict(list)
    sizes: dict[tuple[int, str], list[Member]] = defaultdict(list)
    for member in members:
        if member.file is not None and member.bytes:
            name = member.path
            for suffix in (".gz", ".zst", ".xz", ".bz2"):
                name = name.removesuffix(suffix)
            sizes[member.bytes, name].append(member)
    for (size, name), same in sizes.items():
        for member in same if len(same) > 1 else ():
            with contextlib.suppress(OSError):
                alike[size, name + _digest(member, _HEAD)].append(member)
    twin: dict[int, int] = {}
    for (size, start), same in alike.items():
        seen: dict[str, int] = {}
        for member in same if len(same) > 1 else ():
            with contextlib.suppress(OSError):
                first = seen.setdefault(start if size <= _HEAD else _digest(member), member.source_id)
                if first != member.source_id:
                    twin[member.source_id] = first
    return twin


def _digest(member: Member, upto: int | None = None) -> str:
    assert member.file is not None
    with member.file.open("rb") as stream:
        return (hashlib.sha256(stream.read(upto)) if upto else hashlib.file_digest(stream, "sha256")).hexdigest()


def _join(name: str, parts: list[bytes | Path], scratch: Path) -> pl.DataFrame | tuple[Path, ...]:
    """One table of all its parts in their order: a frame if it is small, else files, small neighbours in one."""
    size = sum(p.stat().st_size if isinstance(p, Path) else len(p) for p in parts)
    if size <= _IN_MEMORY:
        return pl.concat([pl.read_ipc(io.BytesIO(p.read_bytes() if isinstance(p, Path) else p)) for p in parts])
    files: list[Path] = []
    small: list[pl.DataFrame] = []

    def flush() -> None:
        if small:
            files.append(scratch / f"{name}.{len(files)}.joined.arrow")
            pl.concat(small).write_ipc(files[-1])
            small.clear()

    for part in parts:
        if isinstance(part, Path):
            flush()
            files.append(part)
        else:
            small.append(pl.read_ipc(io.BytesIO(part)))
    flush()
    return tuple(files)


def _source_row(member: Member, results: Mapping[int, Result], twin: int | None) -> dict[str, object]:
    row: dict[str, object] = dict.fromkeys(SOURCES)
    row.update(source_id=member.source_id, path=member.path, bytes=member.bytes, formats=[], duplicate_of=twin)
    result = results.get(member.source_id)
    if result is not None:
        row.update(result.facts, formats=list(result.formats))
    if twin is not None and twin in results:
        row["sha256"] = results[twin].facts.get("sha256")
    read = "empty file" if member.file is not None and not member.bytes else row["error"]
    row["error"] = "; ".join(str(e) for e in (member.error, read) if e) or None
    return row


__all__ = ["Engine", "InlineEngine", "LocalEngine", "Ref", "Result", "default_engine", "read_bundle", "read_ref"]
