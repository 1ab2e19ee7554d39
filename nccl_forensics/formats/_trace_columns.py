"""From the events of a trace, window by window, to columns: only what is measured is kept, times become integers of nanoseconds."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from nccl_forensics.decoding.chrome_json import Args, Event, Trace, owned
from nccl_forensics.frames import typed

#: Categories by kind, with the capitalised spellings of torch up to 1.8.
_KINDS = {
    "kernel": "device",
    "gpu_memcpy": "device",
    "gpu_memset": "device",
    "Kernel": "device",
    "Memcpy": "device",
    "Memset": "device",
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "hip_runtime": "call",
    "Runtime": "call",
    "runtime": "call",
    "cpu_op": "operator",
    "Operator": "operator",
    "operator": "operator",
    "user_annotation": "range",
    "python_function": "function",
    "Trace": "capture",
}
_COPIES = {"gpu_memcpy": "memcpy", "Memcpy": "memcpy", "gpu_memset": "memset", "Memset": "memset"}
#: ROCm up to 7.1 shows copies and fills as kernels.
_ROCM_COPY = re.compile(r"^(?:MEMORY_COPY_|__amd_rocclr_copyBuffer)")
_ROCM_FILL = re.compile(r"^__amd_rocclr_fillBuffer")
_COMMUNICATES = ("c10d::", "_c10d_functional", "c10d_functional", "gloo:", "nccl:", "record_param_comms", "xccl:", "hccl:")
_STEP = re.compile(r"^ProfilerStep#(\d+)$")
_LOADER = re.compile(r"enumerate\(DataLoader\)|DataLoader.*__next__|dataloader|data_loader|_next_data\b", re.IGNORECASE)
_GC = re.compile(r"^(?:gc\.collect|<built-in (?:function|method) (?:gc\.)?collect\b)|\bgc\.py|garbage collect", re.IGNORECASE)
_CHECKPOINT = re.compile(r"checkpoint|torch\.save|torch/serialization\.py\(\d+\): save\b|state_dict_saver", re.IGNORECASE)
_A_DAY_US = 86_400e6
#: Rows that become a piece of a frame at once.
_ROWS = 1 << 13
_PLAIN, _WHOLE = frozenset({int, float}), frozenset({int, type(None)})


class _Numbered(dict[object, int]):
    """Small numbers for words that repeat."""

    def __missing__(self, word: object) -> int:
        number = self[word] = len(self)
        return number


@dataclass(slots=True)
class _Pending:
    """Rows of one table on their way into a frame, column by column."""

    index: list[int] = field(default_factory=list)
    ts: list[object] = field(default_factory=list)
    dur: list[object] = field(default_factory=list)
    columns: dict[str, list[object]] = field(default_factory=dict)


@dataclass(slots=True)
class Columns:
    """What is kept of one trace. All frames have ``index`` (number of the event) and ``start``, ``end`` in ns as written.

    ``device``: ``name`` (number), ``copy`` (memcpy, memset or null), ``stream``, ``device``, ``correlation``, ``bytes``. ``calls``:
    ``thread``, ``correlation``. ``operators``: ``thread``, ``communicates``. ``ranges``: ``thread``, ``kind``, ``name``, ``step``, ``args``
    (number in ``arguments``). ``arguments`` are those of collectives' operators, ranges and kernels. ``strange`` are categories of windows
    in which nothing was of a kind that is kept.
    """

    device: pl.DataFrame
    calls: pl.DataFrame
    operators: pl.DataFrame
    ranges: pl.DataFrame
    names: list[str]
    arguments: dict[int, Args]
    pids: list[object]
    first: int | None
    last: int | None
    events: int
    malformed: int
    clamped: int
    strange: list[str] = field(default_factory=list)

    @property
    def measured(self) -> bool:
        """Whether there is any event of a kind that is kept."""
        return self.first is not None


def gather(trace: Trace) -> Columns:
    """Read all events of a trace."""
    gathered = _Gatherer()
    for first, events in trace.batches():
        gathered.take(first, events)
    return gathered.finish()


class _Gatherer:
    """Frames that grow by one piece per so many rows: a frame per window would cost more than decoding it."""

    def __init__(self) -> None:
        self._pending = {table: _Pending() for table in _SCHEMAS}
        self._parts: dict[str, list[pl.DataFrame]] = {table: [] for table in _SCHEMAS}
        self._names, self._threads, self._streams = _Numbered(), _Numbered(), _Numbered()
        self._roles: dict[str, str | None] = {}
        self._arguments: dict[int, Args] = {}
        self._pids: dict[object, int] = {}
        self._bounds: list[tuple[int, int]] = []
        self._events = self._malformed = self._clamped = 0
        self._strange: dict[str, int] = {}

    def take(self, first: int, events: Sequence[Event]) -> None:
        """Keep what is needed of one window."""
        self._events = max(self._events, first + len(events))
        held: dict[str, list[tuple[int, Event]]] = {"device": [], "call": [], "operator": [], "range": [], "function": [], "capture": []}
        kinds = _KINDS
        for pair in enumerate(events, first):
            if pair[1].ph == "X" and (kind := kinds.get(pair[1].cat)) is not None:
                held[kind].append(pair)
        if not any(held.values()):
            self._strange.update({e.cat[:40]: 0 for e in events if e.cat})
        threads = self._threads
        self._device(held["device"])
        calls = [(i, e) for i, e in held["call"] if e.args is not None and e.args.correlation is not None]
        self._add("call", calls, thread=[threads[e.tid] for _, e in calls], correlation=[_correlation(e) for _, e in calls])
        self._operators(held["operator"])
        self._ranges(held["range"], held["function"])

    def _add(self, table: str, held: Sequence[tuple[int, Event]], **columns: Sequence[object]) -> None:
        if not held:
            return
        pending = self._pending[table]
        pending.index.extend([i for i, _ in held])
        pending.ts.extend([e.ts for _, e in held])
        pending.dur.extend([e.dur for _, e in held])
        for name, values in columns.items():
            pending.columns.setdefault(name, []).extend(values)
        if len(pending.index) >= _ROWS:
            self._flush(table)

    def _flush(self, table: str) -> None:
        pending, self._pending[table] = self._pending[table], _Pending()
        if not pending.index:
            return
        schema = _SCHEMAS[table]
        start = _nanoseconds(pending.ts)
        duration, clamped = _durations(pending.dur)
        columns = {
            name: _numbers(values) if name in _NUMBERS else pl.Series(values, dtype=schema[name])
            for name, values in pending.columns.items()
        }
        frame = pl.DataFrame({"index": pl.Series(pending.index, dtype=schema["index"]), "start": start, "end": start + duration, **columns})
        usable = frame.filter(pl.col("start").is_not_null()) if start.null_count() else frame
        self._malformed += frame.height - usable.height
        self._clamped += clamped
        if usable.height:
            self._parts[table].append(usable)
            self._bounds.append((int(str(usable["start"].min())), int(str(usable["end"].max()))))

    def _device(self, held: list[tuple[int, Event]]) -> None:
        names, streams = self._names, self._streams
        for index, event in held:
            if event.args is not None and ("nccl" in event.name or event.args.collective is not None or self._custom(event.name)):
                self._arguments[index] = owned(event.args)
        self._add(
            "device",
            held,
            name=[names[e.name] for _, e in held],
            copy=[_copy(e) for _, e in held],
            stream=[streams[_stream(e)] for _, e in held],
            device=[str(e.pid if e.args is None or e.args.device is None else e.args.device) for _, e in held],
            correlation=[_correlation(e) for _, e in held],
            bytes=[None if e.args is None else e.args.bytes for _, e in held],
        )

    def _custom(self, name: str) -> bool:
        return "reduce" in name or "gather" in name

    def _operators(self, held: list[tuple[int, Event]]) -> None:
        threads = self._threads
        communicates = [e.name.startswith(_COMMUNICATES) for _, e in held]
        self._annotated([pair for pair, known in zip(held, communicates, strict=True) if known])
        for _, event in held[:1]:
            self._pids.setdefault(event.pid, 0)
        self._add("operator", held, thread=[threads[e.tid] for _, e in held], communicates=communicates)

    def _ranges(self, ranges: list[tuple[int, Event]], functions: list[tuple[int, Event]]) -> None:
        """Ranges that say something: steps, collectives, data loaders, checkpoints, garbage collection."""
        roles = self._roles
        known = []
        for index, event in ranges:
            if event.name.startswith(_COMMUNICATES) or self._role(event.name) is not None:
                known.append((index, event))
        for index, event in functions:
            name = event.name
            if (roles[name] if name in roles else self._role(name)) is not None:
                known.append((index, event))
        self._annotated(known)

    def _role(self, name: str) -> str | None:
        if name not in self._roles:
            role = None
            if _STEP.match(name):
                role = "step"
            elif _LOADER.search(name):
                role = "data-loader"
            elif _GC.search(name):
                role = "gc"
            elif _CHECKPOINT.search(name):
                role = "checkpoint"
            self._roles[name] = role
        return self._roles[name]

    def _annotated(self, held: list[tuple[int, Event]]) -> None:
        for index, event in held:
            if event.args is not None and event.name.startswith(_COMMUNICATES):
                self._arguments[index] = owned(event.args)
        self._add(
            "range",
            held,
            thread=[self._threads[e.tid] for _, e in held],
            kind=["collective" if e.name.startswith(_COMMUNICATES) else self._role(e.name) for _, e in held],
            name=[e.name[:120] for _, e in held],
            step=[int(m.group(1)) if (m := _STEP.match(e.name)) else None for _, e in held],
        )

    def finish(self) -> Columns:
        """All windows together."""
        for table in _SCHEMAS:
            self._flush(table)
        device, calls, operators, ranges = (_joined(self._parts[table], schema) for table, schema in _SCHEMAS.items())
        return Columns(
            device=device,
            calls=calls,
            operators=operators,
            ranges=ranges,
            names=[str(n) for n in self._names],
            arguments=self._arguments,
            pids=list(self._pids),
            first=min((a for a, _ in self._bounds), default=None),
            last=max((b for _, b in self._bounds), default=None),
            events=self._events,
            malformed=self._malformed,
            clamped=self._clamped,
            strange=sorted(self._strange),
        )


#: Columns that exporters write as numbers or as text.
_NUMBERS = ("correlation", "bytes")
_TIMES: dict[str, pl.DataType] = typed("index:u32 start:i64 end:i64")
_DEVICE: dict[str, pl.DataType] = typed(_TIMES, "name:u32 copy:str stream:u32 device:str correlation:i64 bytes:i64")
_CALLS: dict[str, pl.DataType] = typed(_TIMES, "thread:u32 correlation:i64")
_OPERATORS: dict[str, pl.DataType] = typed(_TIMES, "thread:u32 communicates:bool")
_RANGES: dict[str, pl.DataType] = typed(_TIMES, "thread:u32 kind:str name:str step:i64")
_SCHEMAS = {"device": _DEVICE, "call": _CALLS, "operator": _OPERATORS, "range": _RANGES}


def _joined(parts: Sequence[pl.DataFrame], schema: dict[str, pl.DataType]) -> pl.DataFrame:
    return pl.concat(parts).select(pl.col(c).cast(t) for c, t in schema.items()) if parts else pl.DataFrame(schema=schema)


def _copy(event: Event) -> str | None:
    kind = _COPIES.get(event.cat)
    if kind is None and event.name[:1] in ("M", "_"):
        if _ROCM_COPY.match(event.name):
            return "memcpy"
        if _ROCM_FILL.match(event.name):
            return "memset"
    return kind


def _stream(event: Event) -> object:
    return event.tid if event.args is None or event.args.stream is None else event.args.stream


def _correlation(event: Event) -> object:
    return None if event.args is None else event.args.correlation


def _numbers(values: Sequence[object]) -> pl.Series:
    """Whole numbers, given as numbers or as text; null for anything else."""
    if set(map(type, values)) <= _WHOLE:
        try:
            return pl.Series(values, dtype=pl.Int64)
        except OverflowError:
            pass
    return pl.Series([whole(v) for v in values], dtype=pl.Int64)


def whole(value: object) -> int | None:
    """A whole number of 63 bits, given as a number or as text; None for anything else."""
    if value.__class__ is int:
        number = value
    elif (isinstance(value, float) and value.is_integer()) or (
        isinstance(value, str) and value.strip().lstrip("-").isdigit() and len(value) < 20
    ):
        number = int(value)
    else:
        return None
    assert isinstance(number, int)
    return number if -(1 << 62) < number < (1 << 62) else None


def _nanoseconds(values: Sequence[object]) -> pl.Series:
    """Nanoseconds of microseconds. A whole epoch in microseconds times 1,000 does not fit a double: the parts are multiplied apart."""
    numbers = _real(values)
    whole_us = numbers.cast(pl.Int64)
    return whole_us * 1000 + ((numbers - whole_us) * 1000).round().cast(pl.Int64)


def _real(values: Sequence[object]) -> pl.Series:
    """Finite numbers that a double holds to the unit; null for anything else."""
    if set(map(type, values)) <= _PLAIN:
        numbers = pl.Series(values, dtype=pl.Float64, strict=False)
        usable = numbers.is_finite() & (numbers.abs() < 9e15)
        return numbers if usable.all() else pl.select(pl.when(usable).then(numbers)).to_series()
    return pl.Series([real(v) for v in values], dtype=pl.Float64)


def real(value: object) -> float | None:
    """A finite number, given as a number or as text; None for anything else."""
    if value.__class__ is str:
        try:
            value = float(str(value))
        except ValueError:
            return None
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 9e15:
        return float(value)
    return None


def _durations(values: Sequence[object]) -> tuple[pl.Series, int]:
    """Durations in ns, and how many were clamped: an event that never ended has a negative or an absurd one."""
    numbers = _real(values)
    wrong = (numbers < 0) | (numbers > _A_DAY_US)
    clamped = int(wrong.sum() or 0)
    if clamped or numbers.null_count():
        numbers = pl.select(pl.when(wrong).then(0.0).otherwise(numbers).fill_null(0.0)).to_series()
    return (numbers * 1000).round().cast(pl.Int64), clamped
