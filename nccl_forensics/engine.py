"""Reading all sources of a bundle: in a pool of processes with limits, or in this process.

Reading is pure, so it can run anywhere. A worker that dies or runs out of memory or time costs one source, shown with its error.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError as PoolTimeout
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol

import polars as pl

from nccl_forensics.bundle import Bundle, Member
from nccl_forensics.formats import all_formats
from nccl_forensics.store import ALWAYS, SOURCES, Store

#: Frames up to this size come back by message, larger ones as files in scratch.
_BY_MESSAGE = 4 << 20
_BATCH_FILES, _BATCH_BYTES = 64, 4 << 20
#: Bundles up to this size are read faster by one process than a pool starts.
_SMALL_BUNDLE = 48 << 20


@dataclass(frozen=True, slots=True)
class Ref:
    """One source to read: its plain file and where big frames may be written."""

    source_id: int
    file: Path
    bytes: int
    scratch: Path


@dataclass(frozen=True, slots=True)
class Result:
    """What came back for one source: facts for its row and its frames, as Arrow IPC bytes or files."""

    source_id: int
    facts: dict[str, object]
    formats: tuple[str, ...]
    frames: dict[str, bytes | Path]


class Engine(Protocol):
    """Maps reading over references; results come in any order."""

    def map(self, function: Callable[[Ref], Result], refs: Sequence[Ref]) -> Iterator[Result]:
        """Results of all references; a failed one is a result with an error."""
        ...


def read_ref(ref: Ref) -> Result:
    """Read one source from its file."""
    from nccl_forensics.reading import read_source

    data = ref.file.read_bytes()
    reading = read_source(data)
    digest = hashlib.sha256(data).hexdigest()
    frames: dict[str, bytes | Path] = {}
    for name, frame in reading.frames.items():
        if not frame.height:
            continue
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
    return Result(ref.source_id, facts, reading.formats, frames)


def _failed(ref: Ref, why: str) -> Result:
    return Result(ref.source_id, {"error": why}, (), {})


@dataclass(frozen=True, slots=True)
class InlineEngine:
    """Reads in this process: for small bundles, tests and notebooks. Memory and time are not limited."""

    def map(self, function: Callable[[Ref], Result], refs: Sequence[Ref]) -> Iterator[Result]:
        """Results in the order of the references."""
        for ref in refs:
            yield function(ref)


def _limit_memory(memory_bytes: int) -> None:
    import resource

    # RLIMIT_DATA counts private writable memory only; RLIMIT_AS would also count what Polars merely reserves.
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def _batch(function: Callable[[Ref], Result], refs: tuple[Ref, ...]) -> list[Result]:
    out = []
    for ref in refs:
        try:
            out.append(function(ref))
        except MemoryError:
            out.append(_failed(ref, "not read: it needs more memory than one source may use"))
    return out


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """A pool of processes with a memory limit for each and a time limit for each source."""

    workers: int = 0
    memory_bytes: int = 6 << 30
    seconds_per_source: float = 120.0
    seconds_per_gb: float = 600.0

    def map(self, function: Callable[[Ref], Result], refs: Sequence[Ref]) -> Iterator[Result]:
        """Results as they come. Small sources travel in batches; a batch that fails is read again one by one."""
        from pebble import ProcessExpired, ProcessPool

        os.environ.setdefault("POLARS_MAX_THREADS", "1")
        workers = self.workers or max(1, min(os.cpu_count() or 1, 16))
        again: list[Ref] = []
        with ProcessPool(
            max_workers=workers, initializer=_limit_memory, initargs=(self.memory_bytes,), context=get_context("spawn")
        ) as pool:
            pending = [(batch, pool.schedule(_batch, args=(function, batch), timeout=self._seconds(batch))) for batch in _batches(refs)]
            for batch, future in pending:
                try:
                    yield from future.result()
                except (PoolTimeout, ProcessExpired, MemoryError, OSError):
                    again.extend(batch)
            retries = [(ref, pool.schedule(_batch, args=(function, (ref,)), timeout=self._seconds((ref,)))) for ref in again]
            for ref, future in retries:
                try:
                    yield from future.result()
                except PoolTimeout:
                    yield _failed(ref, f"not read: took longer than {self._seconds((ref,)):.0f} s")
                except ProcessExpired as problem:
                    yield _failed(ref, f"not read: its reader died (exit code {problem.exitcode})")
                except (MemoryError, OSError) as problem:
                    yield _failed(ref, f"not read: {type(problem).__name__}")

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
    """A pool with limits; one worker where the bundle is so small that more would only cost their start."""
    total = sum(m.bytes for m in bundle.members)
    return LocalEngine(workers=1 if total < _SMALL_BUNDLE else 0)


def read_bundle(bundle: Bundle, engine: Engine, progress: Callable[[int, int], None] | None = None) -> Store:
    """Read every member once; identical content is read once and counted once."""
    shapes: dict[int, list[Member]] = {}
    for member in bundle.members:
        shapes.setdefault(member.bytes, []).append(member)
    twin: dict[int, int] = {}
    seen: dict[str, int] = {}
    for same in shapes.values():
        if len(same) > 1:
            for member in same:
                if member.file is not None and member.bytes:
                    digest = hashlib.sha256(member.file.read_bytes()).hexdigest()
                    if digest in seen:
                        twin[member.source_id] = seen[digest]
                    else:
                        seen[digest] = member.source_id
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
    frames: dict[str, list[pl.DataFrame]] = {}
    files: dict[str, list[tuple[int, Path]]] = {}
    for source_id in sorted(results):
        for name, content in results[source_id].frames.items():
            if isinstance(content, Path):
                files.setdefault(name, []).append((source_id, content))
            else:
                frame = pl.read_ipc(io.BytesIO(content))
                frames.setdefault(name, []).append(
                    frame.insert_column(
                        0, pl.Series("source_id", [source_id], dtype=pl.UInt32()).extend_constant(source_id, frame.height - 1)
                    )
                )
    rows = [_source_row(m, results.get(m.source_id), twin.get(m.source_id)) for m in bundle.members]
    tables_of = {f.name: f.tables for f in all_formats()}
    present = {t for r in results.values() for name in r.formats for t in tables_of.get(name, ())}
    return Store(
        pl.DataFrame(rows, schema=SOURCES, infer_schema_length=None),
        ALWAYS | frozenset(present),
        {name: pl.concat(parts) for name, parts in frames.items()},
        {name: tuple(parts) for name, parts in files.items()},
    )


def _source_row(member: Member, result: Result | None, twin: int | None) -> dict[str, object]:
    facts = dict(result.facts) if result is not None else {}
    row: dict[str, object] = dict.fromkeys(SOURCES)
    row.update(
        source_id=member.source_id, path=member.path, bytes=member.bytes, formats=list(result.formats) if result else [], duplicate_of=twin
    )
    row.update(facts)
    row["error"] = member.error or facts.get("error") or ("empty file" if member.file is not None and not member.bytes else None)
    if twin is not None:
        row["error"] = member.error
    return row
