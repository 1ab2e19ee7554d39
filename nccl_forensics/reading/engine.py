"""Reading all sources of a bundle: in a pool of processes with limits, or in this process.

Reading is pure, so it can run anywhere. A worker that dies or runs out of memory or time costs one source, shown with its error.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import mmap
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

import polars as pl
from polars.exceptions import PanicException

from nccl_forensics.cache import Cache, Packed
from nccl_forensics.folding import ROWS, WORDS, fold, texts_once
from nccl_forensics.limits import Limits
from nccl_forensics.reading.bundle import Bundle, Member
from nccl_forensics.reading.readers import Loss, each, forkable
from nccl_forensics.reading.twins import twins_of
from nccl_forensics.store import ALWAYS, SOURCES, Store
from nccl_forensics.tables import TABLES, third_party

if TYPE_CHECKING:
    from nccl_forensics.reading.source import SourceReading

#: Frames up to this size come back by message, larger ones as files in scratch.
_BY_MESSAGE = 1 << 20
#: A table up to this size is held in memory, and one of many rows is looked at in parts of about so many bytes.
_IN_MEMORY, _PART = 256 << 20, 8 << 20
#: Words of more bytes are worth looking for texts that several of them have.
_MANY_WORDS = 16 << 20
_BATCH_FILES, _BATCH_BYTES = 64, 4 << 20
#: Batches of much evidence have up to so many bytes, as long as each worker gets so many of them.
_BATCH_MOST, _BATCHES_EACH = 16 << 20, 4
#: What reading costs about: used only to choose how many workers to start.
_BYTES_PER_SECOND, _SECONDS_PER_FILE, _SECONDS_PER_WORKER = 20e6, 0.01, 0.5
#: A file that was written to less than so many seconds ago may have been written to again without its time telling.
_FRESH_SECONDS = 2.0

#: A frame on its way: small ones by message without ``source_id``, large ones as Arrow IPC files that hold it.
Part = Packed | Path


@dataclass(frozen=True, slots=True)
class Ref:
    """One source to read: its plain file, where big frames may be written, and the cache that keeps what was read.

    With a ``url`` the file may not be there yet; only engines that fetch are given such. ``digest``: its SHA-256 is wanted also without a
    cache, whose key it is.
    """

    source_id: int
    file: Path
    bytes: int
    scratch: Path
    cache: Cache | None = None
    url: str | None = None
    digest: bool = True

    @property
    def digested(self) -> bool:
        """Whether the SHA-256 of the content is made: of big evidence it costs as much as a tenth of reading it."""
        return self.digest or self.cache is not None


@dataclass(frozen=True, slots=True)
class Shared:
    """Rows of several sources on their way in one frame, each with its ``source_id`` in front; ``rows``: how many each source has, in their
    order."""

    part: Part
    rows: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What came back for one source: facts for its row, its frames, and in ``fills`` the tables that its formats could have filled. The
    first one of several that were read together has in ``shared`` also frames of the others."""

    source_id: int
    facts: dict[str, object]
    formats: tuple[str, ...]
    frames: dict[str, Part]
    fills: tuple[str, ...] = ()
    shared: dict[str, Shared] = field(default_factory=dict)


class Engine(Protocol):
    """Maps reading over references; results come in any order. ``fetches``: reads objects of a store where they lie."""

    @property
    def fetches(self) -> bool:
        """Whether references may name objects of a store that are not here."""
        ...

    def map(self, function: Callable[[Ref], Result], refs: Sequence[Ref]) -> Iterator[Result]:
        """Results of all references; a failed one is a result with an error."""
        ...


def read_ref(ref: Ref) -> Result:
    """Read one source from its file, which is mapped, not loaded."""
    from nccl_forensics.reading.source import read_source

    with ref.file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        before = os.fstat(stream.fileno())
        # Through the mapping, all of its pages would count as memory in use.
        digest = hashlib.file_digest(stream, "sha256").hexdigest() if ref.digested else None
        reading = read_source(data)
        settled = ref.cache is not None and digest is not None and _settled(stream, before, len(data), digest)
    return _result(ref, reading, digest, before.st_size, settled)


def read_refs(refs: Sequence[Ref]) -> list[Result]:
    """Read several small sources together. Raises whatever reading one of them raises."""
    from nccl_forensics.reading.together import read_shared, read_sources

    contents: list[bytes] = []
    states: list[tuple[str | None, int, bool]] = []
    for ref in refs:
        with ref.file.open("rb", buffering=0) as stream:
            before = os.fstat(stream.fileno())
            content = stream.readall()
            digest = hashlib.sha256(content).hexdigest() if ref.digested else None
            settled = ref.cache is not None and digest is not None and _settled(stream, before, len(content), digest)
            states.append((digest, before.st_size, settled))
        contents.append(content)
    # A cache has the tables of each source by themselves.
    readings, several = (read_sources(contents), []) if any(ref.cache is not None for ref in refs) else read_shared(contents)
    results: list[Result] = []
    together: dict[str, list[pl.DataFrame]] = {}
    for ref, reading, state in zip(refs, readings, states, strict=True):
        result, held = _facts(ref, reading, *state)
        for name in [n for n, frame in held.items() if frame.estimated_size() <= _BY_MESSAGE]:
            together.setdefault(name, []).append(_with_source(ref.source_id, held.pop(name)))
        results.append(replace(result, frames={name: _filed(ref, name, frame) for name, frame in held.items()}))
    own = pl.Series("source_id", [ref.source_id for ref in refs], dtype=pl.UInt32())
    for made in several:
        for name, frame in made.parts(own).items():
            together.setdefault(name, []).append(frame)
    results[0] = replace(results[0], shared={name: _shared(refs[0], name, parts) for name, parts in together.items()})
    return results


def _shared(ref: Ref, name: str, parts: Sequence[pl.DataFrame]) -> Shared:
    """Small frames of several sources as one; ``ref`` is one of the sources, in the name of whose scratch it is filed if it is big."""
    frame = pl.concat(parts, rechunk=True)
    counts = frame.get_column("source_id").rle().struct.unnest()
    rows = tuple(zip(counts.get_column("value").to_list(), counts.get_column("len").to_list(), strict=True))
    if frame.estimated_size() <= _BY_MESSAGE:
        return Shared(_message(frame), rows)
    target = ref.scratch / f"{ref.source_id}.{name}.shared.arrow"
    frame.write_ipc(target)
    return Shared(target, rows)


def _with_source(source_id: int, frame: pl.DataFrame) -> pl.DataFrame:
    """A frame with the number of its source in front of each row."""
    own = pl.Series("source_id", [source_id], dtype=pl.UInt32()).new_from_index(0, frame.height)
    return frame.clone().insert_column(0, own)


def _result(ref: Ref, reading: SourceReading, digest: str | None, size: int, settled: bool) -> Result:
    result, held = _facts(ref, reading, digest, size, settled)
    frames: dict[str, Part] = {}
    for name in list(held):
        frame = held.pop(name)
        frames[name] = _filed(ref, name, frame) if frame.estimated_size() > _BY_MESSAGE else _message(frame)
    return replace(result, frames=frames)


def _facts(ref: Ref, reading: SourceReading, digest: str | None, size: int, settled: bool) -> tuple[Result, dict[str, pl.DataFrame]]:
    """What reading made of a source, without its frames, and these; they are kept in the cache where there is one."""
    from nccl_forensics.formats import all_formats

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
    fills = tuple(sorted({table for f in all_formats() if f.name in reading.filled for table in f.tables}))
    held = {name: frame for name, frame in reading.frames.items() if frame.height}
    for name, folded in reading.folded.items():
        held |= {name + ROWS: folded.rows, name + WORDS: folded.words}
    if ref.cache is not None and digest is not None and settled and _lasting(held):
        ref.cache.save(digest, size, facts, reading.formats, fills, held)
    return Result(ref.source_id, facts, reading.formats, {}, fills), held


def _message(frame: pl.DataFrame) -> Packed:
    buffer = io.BytesIO()
    frame.write_ipc_stream(buffer)
    # As long as what the frame takes; ``estimated_size`` counts a text for each row that has it.
    return Packed(frame.height, buffer.tell(), buffer.getvalue())


def _filed(ref: Ref, name: str, frame: pl.DataFrame) -> Path:
    """A big frame as a file in scratch. The identifier stands in it, so that many files of one table can be scanned as one."""
    target = ref.scratch / f"{ref.source_id}.{name}.arrow"
    own = pl.repeat(ref.source_id, frame.height, dtype=pl.UInt32, eager=True).alias("source_id")
    frame.select(own, pl.all()).write_ipc(target)
    return target


def packed(file: Path) -> Packed:
    """A filed frame in the form of small ones, to go by message all the same."""
    frame = pl.read_ipc(io.BytesIO(file.read_bytes())).drop("source_id")
    buffer = io.BytesIO()
    frame.write_ipc_stream(buffer, compression="zstd")
    return Packed(frame.height, int(frame.estimated_size()), buffer.getvalue())


def _settled(stream: io.BufferedReader | io.FileIO, before: os.stat_result, length: int, digest: str) -> bool:
    """Whether the file held these bytes all the time that it was being read: some evidence is still being copied in."""

    def state(told: os.stat_result) -> tuple[int, int]:
        return told.st_size, told.st_mtime_ns

    if length != before.st_size or state(os.fstat(stream.fileno())) != state(before):
        return False
    if abs(time.time() - before.st_mtime) > _FRESH_SECONDS:
        return True
    stream.seek(0)
    return hashlib.file_digest(stream, "sha256").hexdigest() == digest


def _lasting(frames: Mapping[str, pl.DataFrame]) -> bool:
    """Whether reading again would give the same: where a reader fell over, memory or a library may have been the reason."""
    gaps = frames.get("gaps")
    return gaps is None or not gaps["reason"].str.starts_with("unreadable").any()


def recall(ref: Ref, sizes: frozenset[int]) -> Result | None:
    """What the cache knows of a source; ``sizes`` are those of the sources that it knows."""
    if ref.cache is None or ref.bytes not in sizes:
        return None
    try:
        with ref.file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        entry = ref.cache.load(digest, ref.bytes)
        if entry is None:
            return None
        frames: dict[str, Part] = {}
        for name, part in entry.frames.items():
            frames[name] = _filed(ref, name, part.frame()) if part.size > _BY_MESSAGE else part
    except (OSError, pl.exceptions.PolarsError, PanicException):
        return None
    return Result(ref.source_id, entry.facts, entry.formats, frames, entry.fills)


def failed(ref: Ref, why: str) -> Result:
    """What stands for a source that could not be read."""
    return Result(ref.source_id, {"error": f"not read: {why}"}, (), {})


def attempt(function: Callable[[Ref], Result], ref: Ref) -> Result:
    """One source; whatever its content brings about stays with it."""
    try:
        return function(ref)
    except MemoryError:
        return failed(ref, "it needs more memory than one source may use")
    except (Exception, PanicException) as problem:
        return failed(ref, f"{type(problem).__name__}: {problem}"[:300])


@dataclass(frozen=True, slots=True)
class InlineEngine:
    """Reads in this process: for tests and notebooks. Memory and time are not limited."""

    fetches: ClassVar[bool] = False

    def map(self, function: Callable[[Ref], Result], refs: Sequence[Ref]) -> Iterator[Result]:
        """Results in the order in which they are read: big sources first."""
        for batch in batches(refs):
            yield from _batch(function, batch)


def _batch(function: Callable[[Ref], Result], refs: tuple[Ref, ...]) -> list[Result]:
    if function is read_ref and len(refs) > 1:
        with contextlib.suppress(Exception, PanicException):  # one by one, each tells what is wrong with it
            return read_refs(refs)
    return [attempt(function, ref) for ref in refs]


def _prepare() -> None:
    """Import here, once, what every reader that is forked would import by itself."""
    from nccl_forensics.formats import all_formats
    from nccl_forensics.reading import source as reading

    del reading
    all_formats()


def _meaning(exit_code: object) -> str:
    """What such an end usually means: a library that gets no memory aborts (SIGABRT), and a system that has none left kills (SIGKILL)."""
    return ", as where memory runs out" if exit_code in (-6, -9) else ""


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """A pool of processes with a memory limit for each and a time limit for each source."""

    fetches: ClassVar[bool] = False
    workers: int = 0
    memory_bytes: int = 6 << 30
    seconds_per_source: float = 120.0
    seconds_per_gb: float = 600.0

    def map(self, function: Callable[[Ref], Result], refs: Sequence[Ref]) -> Iterator[Result]:
        """Results as they come. Small sources travel in batches; a batch that is lost is read again one by one."""
        lost: list[Ref] = []
        for batch, outcome in self._read(function, batches(refs, self._many())):
            if isinstance(outcome, Loss) and outcome.why != "unstarted":
                lost += batch
            else:
                yield from self._results(batch, outcome)
        for batch, outcome in self._read(function, [(ref,) for ref in lost]):
            yield from self._results(batch, outcome)

    def _read(
        self, function: Callable[[Ref], Result], batches: Sequence[tuple[Ref, ...]]
    ) -> Iterator[tuple[tuple[Ref, ...], list[Result] | Loss]]:
        if not batches:
            return iter(())
        os.environ.setdefault("POLARS_MAX_THREADS", "1")  # read by readers when they start; many sources are read side by side
        if forkable():
            _prepare()
        return each(partial(_batch, function), batches, workers=self._many(), memory_bytes=self.memory_bytes, seconds=self._seconds)

    def _many(self) -> int:
        """How many processes read side by side."""
        return self.workers or max(1, min(os.cpu_count() or 1, 16))

    def _results(self, batch: tuple[Ref, ...], outcome: list[Result] | Loss) -> list[Result]:
        """What came of a batch, or what stands for it."""
        if not isinstance(outcome, Loss):
            return outcome
        code = outcome.exit_code
        why = {
            "late": f"it took longer than {self._seconds(batch):.0f} s",
            "died": f"its reader died (exit code {code}{_meaning(code)})",
            "memory": "it needs more memory than one source may use",
            "unstarted": "readers cannot be started",
        }[outcome.why]
        return [failed(ref, why) for ref in batch]

    def _seconds(self, refs: Sequence[Ref]) -> float:
        return self.seconds_per_source + self.seconds_per_gb * sum(r.bytes for r in refs) / 1e9


def batches(refs: Sequence[Ref], workers: int = 1) -> list[tuple[Ref, ...]]:
    """Big sources alone, small ones in batches with their neighbours, the more of them together the more there are; the most bytes
    first."""
    small = sorted((ref for ref in refs if ref.bytes <= _BATCH_BYTES), key=lambda ref: ref.source_id)
    most = max(_BATCH_BYTES, min(_BATCH_MOST, sum(ref.bytes for ref in small) // (_BATCHES_EACH * workers)))
    out: list[tuple[Ref, ...]] = [(ref,) for ref in refs if ref.bytes > _BATCH_BYTES]
    batch: list[Ref] = []
    size = 0
    for ref in small:
        if batch and (len(batch) == _BATCH_FILES or size + ref.bytes > most):
            out.append(tuple(batch))
            batch, size = [], 0
        batch.append(ref)
        size += ref.bytes
    return sorted([*out, tuple(batch)] if batch else out, key=lambda refs: -sum(ref.bytes for ref in refs))


def default_engine(bundle: Bundle, limits: Limits | None = None) -> Engine:
    """A pool with limits, and no more workers than pay for their start."""
    bounds = limits or Limits()
    seconds = sum(m.bytes for m in bundle.members) / _BYTES_PER_SECOND + len(bundle.members) * _SECONDS_PER_FILE
    workers = max(1, min(os.cpu_count() or 1, 16, int(seconds / _SECONDS_PER_WORKER)))
    return LocalEngine(workers, bounds.source_memory_bytes, bounds.source_seconds)


def read_bundle(
    bundle: Bundle,
    engine: Engine,
    progress: Callable[[int, int], None] | None = None,
    cache: Cache | None = None,
    *,
    digests: bool = True,
) -> Store:
    """Read every member once, but for those that the cache knows; identical content is read once and counted once.

    Without ``digests`` the column ``sha256`` of ``sources`` is filled only where a cache needs it.
    """
    twin = twins_of(bundle.members)
    refs = [
        Ref(m.source_id, m.file, m.bytes, bundle.scratch, cache, m.url, digests)
        for m in bundle.members
        if m.file is not None and m.bytes and m.source_id not in twin
    ]
    results: dict[int, Result] = {}
    frames: dict[int, dict[str, _Part]] = defaultdict(dict)
    spool = _Spool(bundle.scratch / "parts.spool")
    for done, result in enumerate(_results(refs, engine, cache), start=1):
        for name, part in result.frames.items():
            frames[result.source_id][name] = spool.kept(part)
        for name, shared in result.shared.items():
            several, first = _Several(spool.kept(shared.part), sum(rows for _, rows in shared.rows)), 0
            for source_id, height in shared.rows:
                frames[source_id][name] = _Rows(several, first, height)
                first += height
        results[result.source_id] = replace(result, frames={}, shared={})
        if progress is not None:
            progress(done, len(refs))
    held: dict[str, list[tuple[int, _Part]]] = defaultdict(list)
    folded = {name.removesuffix(WORDS) for parts in frames.values() for name in parts if name.endswith(WORDS)}
    for source_id in sorted(frames):
        for name, content in _alike(frames.pop(source_id), folded).items():
            held[name].append((source_id, content))
    rows = [_source_row(m, results, twin.get(m.source_id)) for m in bundle.members]
    third_party()  # before tables are named: extensions may fill some of their own
    present = {table for r in results.values() for table in r.fills}
    present |= {name.removesuffix(ROWS).removesuffix(WORDS) for name in held}
    tables = {name: _join(name, held.pop(name), bundle.scratch) for name in sorted(held)}
    spool.file.unlink(missing_ok=True)
    return Store(pl.DataFrame(rows, schema=SOURCES, infer_schema_length=None), ALWAYS | frozenset(present), tables)


def _alike(parts: dict[str, _Part], folded: set[str]) -> dict[str, _Part]:
    """The frames of a source with those tables folded that are folded in another source."""
    out: dict[str, _Part] = {}
    for name, part in parts.items():
        if name not in folded:
            out[name] = part
            continue
        own = fold(_numbered(0, part).drop("source_id"), TABLES[name].own)
        out |= {name + ROWS: _message(own.rows), name + WORDS: _message(own.words)}
    return out


@dataclass(frozen=True, slots=True)
class _Spooled:
    """A small frame that waits in a file."""

    rows: int
    size: int
    file: Path
    offset: int
    length: int

    def frame(self) -> pl.DataFrame:
        """The frame."""
        with self.file.open("rb") as stream:
            stream.seek(self.offset)
            return pl.read_ipc_stream(io.BytesIO(stream.read(self.length)))


@dataclass(slots=True)
class _Spool:
    """Small frames of many sources, in memory as long as they are few: what a hundred thousand ranks send would not fit."""

    file: Path
    held: int = 0

    def kept(self, part: Part) -> _Small | Path:
        """A frame of a result, in the file if it is beyond the bound."""
        if isinstance(part, Packed) and self.held + len(part.stream) > _IN_MEMORY // 4:
            with self.file.open("ab") as out:
                spooled = _Spooled(part.rows, part.size, self.file, out.tell(), len(part.stream))
                out.write(part.stream)
            return spooled
        if isinstance(part, Packed):
            self.held += len(part.stream)
        return part


_Small = Packed | _Spooled


@dataclass(frozen=True, slots=True)
class _Several:
    """A frame of several sources."""

    part: _Small | Path
    rows: int

    @property
    def bytes(self) -> int:
        """What it takes."""
        return _bytes(self.part)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Those rows of it that are of one source, or of some that follow each other."""

    several: _Several
    first: int
    rows: int

    @property
    def size(self) -> int:
        """About what they take."""
        return self.several.bytes * self.rows // max(1, self.several.rows)


_Part = _Small | _Rows | Path


def _bytes(part: _Part) -> int:
    return part.stat().st_size if isinstance(part, Path) else part.size


def _results(refs: Sequence[Ref], engine: Engine, cache: Cache | None) -> Iterator[Result]:
    """Results of all sources: first those that the cache knows. It is kept within its bound while the others are read."""
    if cache is None:
        yield from engine.map(read_ref, refs)
        return
    sizes = cache.sizes()
    known: set[int] = set()
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:  # hashing and decoding leave the interpreter's lock
        for result in pool.map(lambda ref: recall(ref, sizes), refs) if sizes else ():
            if result is not None:
                known.add(result.source_id)
                yield result
    size_of = {ref.source_id: ref.bytes for ref in refs if ref.source_id not in known}
    fresh = 0
    for result in engine.map(read_ref, [ref for ref in refs if ref.source_id not in known]):
        yield result
        fresh += size_of[result.source_id]
        if fresh * 8 > cache.limit_bytes:
            cache.trim()
            fresh = 0
    if fresh:
        cache.trim()


def _join(name: str, parts: list[tuple[int, _Part]], scratch: Path) -> pl.DataFrame | tuple[Path, ...]:
    """One table of all its parts in their order: a frame if it is small, else files, small neighbours in one."""
    parts = _in_runs(parts)
    size = sum(_bytes(p) for _, p in parts)
    together = _words if name.endswith(WORDS) and size > _MANY_WORDS else _together
    # Rows of a folded table are read part by part, so a file of one need not be copied into memory.
    if size <= (_IN_MEMORY if not name.endswith(ROWS) else _BY_MESSAGE):
        return together(parts)
    files: list[Path] = []
    small: list[tuple[int, _Part]] = []

    def flush() -> None:
        if small:
            files.append(scratch / f"{name}.{len(files)}.joined.arrow")
            together(small).write_ipc(files[-1])
            for _, copied in small:
                if isinstance(copied, Path):
                    copied.unlink(missing_ok=True)
            small.clear()

    waiting, most = 0, _PART if name.endswith(ROWS) else _IN_MEMORY // 4
    for source_id, part in parts:
        own = _bytes(part)
        if isinstance(part, Path) and own * 2 > most:
            flush()
            files.append(part)
            waiting = 0
            continue
        if waiting + own > most:
            flush()
            waiting = 0
        small.append((source_id, part))
        waiting += own
    flush()
    return tuple(files)


def _in_runs(parts: list[tuple[int, _Part]]) -> list[tuple[int, _Part]]:
    """The same with rows that follow each other in a frame of several sources as one part, and as its file where they are all of that."""
    out: list[tuple[int, _Part]] = []
    for source_id, part in parts:
        last = out[-1][1] if out else None
        if isinstance(part, _Rows) and isinstance(last, _Rows) and last.several is part.several and last.first + last.rows == part.first:
            out[-1] = out[-1][0], replace(last, rows=last.rows + part.rows)
        else:
            out.append((source_id, part))
    return [
        (n, p.several.part) if isinstance(p, _Rows) and isinstance(p.several.part, Path) and p.rows == p.several.rows else (n, p)
        for n, p in out
    ]


def _together(parts: list[tuple[int, _Part]]) -> pl.DataFrame:
    """One frame of several parts, each row with the number of its source in front."""
    # In one piece: Polars 2.1.0 leaves an empty piece behind when a frame of several is filtered, on which some functions panic.
    return pl.concat([_numbered(source_id, part) for source_id, part in parts], rechunk=True)


def _words(parts: list[tuple[int, _Part]]) -> pl.DataFrame:
    """The same of words, which say of one source much of what they say of the next."""
    return texts_once(_together(parts))


def _numbered(source_id: int, part: _Part) -> pl.DataFrame:
    """A part with the number of the source in front of each row."""
    if isinstance(part, _Rows):
        held = part.several.part
        return (pl.read_ipc(held) if isinstance(held, Path) else held.frame()).slice(part.first, part.rows)
    if isinstance(part, Path):
        return pl.read_ipc(io.BytesIO(part.read_bytes()))
    frame = part.frame()
    return frame.insert_column(0, pl.repeat(source_id, frame.height, dtype=pl.UInt32, eager=True).alias("source_id"))


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


__all__ = [
    "Engine",
    "InlineEngine",
    "LocalEngine",
    "Part",
    "Ref",
    "Result",
    "attempt",
    "batches",
    "default_engine",
    "failed",
    "packed",
    "read_bundle",
    "read_ref",
    "recall",
]
