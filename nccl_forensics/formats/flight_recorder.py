"""PyTorch Flight Recorder dumps: the ring buffer of collectives that a process keeps, as pickle or JSON.

Written by ProcessGroupNCCL's heartbeat monitor on a timeout, through the pipe file, or by ``_dump_nccl_trace`` / ``_dump_fr_trace``
(torch/csrc/distributed/c10d/FlightRecorder). Schema versions unversioned, 1.x, 2.0 to 2.10, and the forks of Ascend and torchcomms.
There is no rank inside a dump.
"""

from __future__ import annotations

import gc
import hashlib
import json
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from math import isfinite
from operator import itemgetter
from types import NoneType
from typing import cast

import orjson
import polars as pl

from nccl_forensics import folding
from nccl_forensics.alike_pickle import Alike, load_alike
from nccl_forensics.folding import SORT
from nccl_forensics.formats.base import DocumentFormat, Gap, Reading
from nccl_forensics.ranklist import fold
from nccl_forensics.safe_pickle import RefusedPickle, is_pickle, load_plain
from nccl_forensics.tables import TABLES

_P2P = re.compile(r"^(send|recv|isend|irecv)\s+(\d+)\s*(->|<-)\s*(\d+)$")
_KEYS = (b'"entries"', b'"pg_config"', b'"pg_status"', b'"nccl_comm_state"', b'"hccl_comm_state"', b'"collective_seq_id"')
_TOP = {"entries", "pg_config", "pg_status", "version", "nccl_comm_state", "hccl_comm_state", "comm_lib_version", "nccl_version"}
#: Parts of a path that are not the user's code.
_NOT_USER = ("/torch/", "torch/distributed", "<frozen", "/contextlib.py", "site-packages/torch", "/c10d_logger.py", "dist-packages/torch")


def _sniff(head: bytes) -> bool:
    if is_pickle(head):
        return any(k in head for k in (b"entries", b"pg_config", b"pg_status", b"version", b"record_id"))
    start = head.lstrip()[:1]
    return start in (b"{", b"[") and sum(k in head for k in _KEYS) >= 1 and b'"traceEvents"' not in head


def _read(data: bytes) -> Reading:
    with _no_collection():
        return _read_dump(data)


@contextmanager
def _no_collection() -> Iterator[None]:
    """A dump is millions of small objects without cycles: looking for cycles among them again and again takes nearly half of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _read_dump(data: bytes) -> Reading:
    encoding = "pickle" if data[:1] == b"\x80" else "json"
    try:
        alike = load_alike(data, "entries", _OWN_KEYS) if encoding == "pickle" else None
        if alike is not None and (reading := _read_alike(alike, len(data))) is not None:
            return reading
        document = load_plain(data) if encoding == "pickle" else _load_json(data)
    except RefusedPickle as problem:
        return Reading(gaps=(Gap(str(problem), record=""),))
    except (pickle.UnpicklingError, EOFError, ValueError, RecursionError, MemoryError) as problem:
        return Reading(gaps=(Gap(f"truncated or broken {encoding}: {problem}"[:200], record=""),))
    if isinstance(document, list):
        document = {"entries": document}
    if not isinstance(document, dict):
        return Reading(gaps=(Gap("not a Flight Recorder dump: no object at the top", record=""),))
    if not _TOP & {k for k in document if isinstance(k, str)}:
        return Reading(gaps=(Gap("not a Flight Recorder dump: none of its keys", record=""),))
    raw_entries = document.get("entries") or []
    gaps: list[Gap] = []
    if not isinstance(raw_entries, (list, tuple)):
        gaps.append(Gap("entries is not a list", record="entries"))
        raw_entries = []
    entries = [(i, e) for i, e in enumerate(raw_entries) if isinstance(e, dict)]
    odd = len(raw_entries) - len(entries)
    if odd:
        first = next(i for i, e in enumerate(raw_entries) if not isinstance(e, dict))
        gaps.append(Gap(f"{odd} of {len(raw_entries)} entries are not objects", record=f"entries[{first}]"))
    budget = _Budget(len(data))
    frame = _entries(entries, budget)
    if budget.exceeded:
        gaps.append(
            Gap("sizes and stacks are left out from some entry on: they unfold to far more than the dump's own size", record="entries")
        )
    status = _status(document.get("pg_status"))
    frames = {
        "fr_entries": frame,
        "fr_dumps": _dump(document, frame, status, encoding),
        "fr_groups": _groups(document.get("pg_config")),
        "fr_status": status,
    }
    return Reading(frames=frames, gaps=tuple(gaps), records=1 + len(entries))


def _read_alike(alike: Alike, size: int) -> Reading | None:
    """A dump of whose entries one of each sort was unpickled: the table folded. None where a number is none that entries have, or where
    texts would unfold to more than they may."""
    document, height = alike.document, len(alike.sorts)
    kept = document["entries"]
    assert isinstance(kept, list)
    budget = _Budget(size)
    firsts = _entries(list(enumerate(kept)), budget)
    sorts = pl.Series(SORT, alike.sorts, dtype=pl.UInt32())
    texts = (
        firsts.select(pl.sum_horizontal(pl.col("input_sizes", "output_sizes", "frames").str.len_bytes().fill_null(0))).to_series().to_list()
    )
    if not budget.take(sum(map(texts.__getitem__, alike.sorts))):
        return None
    own = _own(alike, firsts)
    if own is None:
        return None
    folded = folding.fold(firsts, TABLES["fr_entries"].own)
    named = own.with_columns(sorts, _record(pl.int_range(height, dtype=pl.UInt32())).alias("record"))
    every = pl.concat([named, firsts.select("pg_id", "op_raw", "thread_id")[sorts]], how="horizontal")
    rows = named.select("record", *_OWN, folded.rows.get_column(SORT)[sorts])
    status = _status(document.get("pg_status"))
    frames = {
        "fr_dumps": _dump(document, every, status, "pickle"),
        "fr_groups": _groups(document.get("pg_config")),
        "fr_status": status,
    }
    return Reading(frames=frames, records=1 + height, folded={"fr_entries": folding.Folded(rows, folded.words)})


def _own(alike: Alike, firsts: pl.DataFrame) -> pl.DataFrame | None:
    """The columns that differ from entry to entry, in the order of entries; ``firsts`` are those of each sort. None where a number is none
    that entries have."""
    numbered = [place for numbers in alike.numbers for place in numbers.places]
    others = sorted(set(range(len(alike.sorts))).difference(numbered))
    columns: dict[str, pl.Series] = {}
    for column, names in _OWN.items():
        of_sort = firsts.get_column(column).to_list()
        values = [of_sort[alike.sorts[place]] for place in others]
        for numbers in alike.numbers:
            own = numbers.by_key.get(next((name for name in names if name in numbers.like), ""))
            if own is None:
                values += [of_sort[alike.sorts[place]] for place in numbers.places]
                continue
            if (column in _TIMES and min(own) <= 0) or (column == "duration_ms" and not all(map(isfinite, own))):
                return None
            values += own
        columns[column] = _float_column(values) if column == "duration_ms" else _int_column(values)
    at = [0] * len(alike.sorts)
    for place, where in enumerate(chain(others, numbered)):
        at[where] = place
    return pl.DataFrame(columns)[at]


def _load_json(data: bytes) -> object:
    """orjson refuses what torch's writer may still emit: bytes of a thread name that are no UTF-8, NaN durations."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data.decode("utf-8-sig", "replace"))


class _Budget:
    """How much text sizes and stacks may unfold to. Shared lists let a small pickle stand for endless text; honest dumps stay far below."""

    def __init__(self, size: int) -> None:
        self._left = (64 << 20) + 32 * size
        self.exceeded = False

    def take(self, amount: int) -> bool:
        """Whether ``amount`` more characters are within bounds."""
        self._left -= amount
        if self._left < 0:
            self.exceeded = True
        return self._left >= 0


_PLAIN_NUMBERS = ({int}, {int, NoneType}, {NoneType})


def _int(value: object) -> int | None:
    """An int, or None for what is missing or no number. Numbers may come as strings (JSON's pg_status)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -(1 << 63) <= value < (1 << 63) else None
    if isinstance(value, float):
        return int(value) if abs(value) < 1 << 62 else None  # false for NaN too
    if isinstance(value, str) and len(value) < 21:
        try:
            return _int(int(value))
        except ValueError:
            return None
    return None


def _count(value: object) -> int | None:
    """A counter: -1 (none yet) and uninitialised unsigned values are missing."""
    number = _int(value)
    return number if number is not None and 0 <= number < (1 << 31) else None


def _text(value: object) -> str | None:
    """A string, or a number as one; None for what is empty or no scalar."""
    if isinstance(value, str):
        return value or None
    return str(value)[:64] if isinstance(value, (int, float)) and not isinstance(value, bool) and _int(value) is not None else None


def _int_column(values: list[object]) -> pl.Series:
    if set(map(type, values)) in _PLAIN_NUMBERS:
        try:
            return pl.Series(values, dtype=pl.Int64())
        except (OverflowError, TypeError, ValueError, pl.exceptions.PolarsError):
            pass
    return pl.Series([_int(v) for v in values], dtype=pl.Int64())


def _float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or _int(value) is None:
        return None
    return float(value)


def _bool_column(values: list[object]) -> pl.Series:
    if not set(map(type, values)) <= {bool, NoneType}:
        values = [v if isinstance(v, bool) else None for v in values]
    return pl.Series(values, dtype=pl.Boolean())


def _float_column(values: list[object]) -> pl.Series:
    if set(map(type, values)) <= {float, NoneType}:
        return pl.Series(values, dtype=pl.Float64())
    return pl.Series([_float(v) for v in values], dtype=pl.Float64())


def _strings(values: Sequence[object]) -> pl.Series:
    """Texts as a column; lone surrogates, which a pickle and JSON can hold and UTF-8 cannot, become U+FFFD."""
    try:
        return pl.Series(values, dtype=pl.String())
    except UnicodeEncodeError:
        return pl.Series([v.encode("utf-8", "replace").decode() if isinstance(v, str) else None for v in values], dtype=pl.String())


def _text_column(values: list[object]) -> pl.Series:
    if set(map(type, values)) <= _STR_OR_NONE:
        texts = _strings(values)
        return texts.set(texts == "", None)
    return _strings([_text(v) for v in values])


_STR_OR_NONE = {str, NoneType}


def _sizes_column(values: list[object], budget: _Budget) -> pl.Series:
    """Shapes as compact text. Only lists of lists of numbers are shapes."""
    if _all_shapes([v for v in values if isinstance(v, list)], budget) and set(map(type, values)) <= {list, NoneType}:
        return _strings(_compact_all(values))
    return _strings([_shape(v, budget) for v in values])


def _all_shapes(lists: list[list[object]], budget: _Budget) -> bool:
    """Whether all of these are lists of lists of numbers and within bounds: the usual case, told in few passes."""
    if not budget.take(3 * sum(map(len, lists))):
        return False
    shapes = [shape for shape in chain.from_iterable(lists) if isinstance(shape, list)]
    if len(shapes) != sum(map(len, lists)) or not budget.take(8 * sum(map(len, shapes))):
        return False
    return set(map(type, chain.from_iterable(shapes))) <= {int}


def _shape(value: object, budget: _Budget) -> str | None:
    """The careful way, one by one."""
    if not isinstance(value, (list, tuple)) or not budget.take(3 * len(value)):
        return None
    for part in value:
        if isinstance(part, (list, tuple)):
            if not budget.take(8 * len(part)) or not set(map(type, part)) <= {int}:
                return None
        elif type(part) is not int:
            return None
    return _compact(value)


def _compact_all(values: list[object]) -> list[str | None]:
    """Lists of lists of numbers as texts, written at once where none is empty: then ``]],[[`` stands between two of them and nowhere else."""
    if not values or not all(values):
        return [None if v is None else _compact(v) for v in values]
    try:
        return [f"[[{text}]]" for text in orjson.dumps(values).decode()[3:-3].split("]],[[")]
    except TypeError:  # a number beyond 64 bits
        return [_compact(v) for v in values]


def _compact(value: object) -> str | None:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # a number beyond 64 bits
        return None


def _names_column(values: list[object], budget: _Budget) -> pl.Series:
    """Names of data types, joined by commas."""
    if set(map(type, values)) == {list} and budget.take(8 * sum(map(len, cast("list[list[object]]", values)))):
        keys = list(map(tuple, cast("list[list[object]]", values)))
        try:
            joined = {key: _joined(key) for key in set(keys)}
        except TypeError:  # a list or object among the names
            pass
        else:
            return _strings([joined[key] for key in keys])
    known: dict[tuple[object, ...], str | None] = {}
    out: list[str | None] = []
    for value in values:
        if not isinstance(value, (list, tuple)):
            out.append(value if isinstance(value, str) and value else None)
        elif not budget.take(8 * len(value)):
            out.append(None)
        else:
            key = tuple(value)
            try:
                out.append(known[key])
            except KeyError:
                known[key] = _joined(key)
                out.append(known[key])
            except TypeError:  # a list or object among the names
                out.append(None)
    return _strings(out)


def _joined(names: tuple[object, ...]) -> str | None:
    return ",".join(map(str, names))[:4096] if set(map(type, names)) <= {str} else None


#: More frames than this of one stack are not kept: runaway recursion.
_DEEPEST = 512


class _Stacks:
    """Formatted stacks, each distinct one built once. In torch's pickles equal frames are one object, so most stacks are met by identity;
    the document outlives this table, so identities stay valid."""

    def __init__(self, budget: _Budget) -> None:
        self._budget = budget
        self._by_identity: dict[tuple[int, ...], tuple[str | None, str | None]] = {}
        self._by_content: dict[tuple[object, ...], tuple[str | None, str | None]] = {}
        self._lines: dict[int, tuple[str, str | None] | None] = {}

    def of(self, frames: object) -> tuple[str | None, str | None]:
        """(user frame, all frames newline-joined) of a list of {name, filename, line}."""
        if not frames or not isinstance(frames, (list, tuple)):
            return None, None
        if len(frames) > _DEEPEST:
            frames = frames[:_DEEPEST]
        key = tuple(map(id, frames))
        known = self._by_identity.get(key)
        if known is None:
            known = self._by_identity[key] = self._build(frames)
        if known[1] is not None and not self._budget.take(len(known[1])):
            return known[0], None
        return known

    def _build(self, frames: Sequence[object]) -> tuple[str | None, str | None]:
        """A stack met for the first time as these objects; JSON-like copies of one stack share their text."""
        lines = self._lines
        out: list[str] = []
        user: str | None = None
        for frame in frames:
            number = id(frame)
            if number not in lines:
                lines[number] = _frame(frame)
            line = lines[number]
            if line is not None:
                out.append(line[0])
                user = user or line[1]
        key = tuple(out)
        if key not in self._by_content:
            self._by_content[key] = (user, "\n".join(out) or None)
        return self._by_content[key]


def _frame(frame: object) -> tuple[str, str | None] | None:
    """A frame as text, and as ``func (file.py:line)`` where it is the user's code."""
    if not isinstance(frame, dict):
        return None
    name, path, line = frame.get("name"), frame.get("filename"), frame.get("line")
    if not isinstance(name, str) or not isinstance(path, str):
        return None
    where = _int(line)
    number = "" if where is None else f":{where}"
    name, path = name[:512], path[:2048]
    mine = None if any(part in path for part in _NOT_USER) else f"{name} ({path.rsplit('/', 1)[-1]}{number})"
    return f"{name} ({path}{number})", mine


def _entries(entries: Sequence[tuple[int, Mapping[str, object]]], budget: _Budget) -> pl.DataFrame:
    rows = [e for _, e in entries]

    def column(name: str) -> list[object]:
        try:
            return list(map(itemgetter(name), rows))
        except KeyError:
            return [e.get(name) for e in rows]

    def either(name: str, older: str) -> list[object]:
        try:
            return list(map(itemgetter(name), rows))
        except KeyError:
            return [e[name] if name in e else e.get(older) for e in rows]

    groups = column("process_group")
    pairs = [g if isinstance(g, (list, tuple)) and len(g) == 2 else (g, None) for g in groups]
    raw_names = column("profiling_name")
    named = _operations(raw_names)
    stacks = _Stacks(budget)
    told = [stacks.of(frames) for frames in column("frames")]
    source = pl.Series([n[2] for n in named], dtype=pl.Int64())
    columns = {
        "record": pl.Series([i for i, _ in entries], dtype=pl.UInt32()),
        "record_id": _int_column(either("record_id", "id")),
        "pg_id": _int_column(column("pg_id")),
        "pg_name": _text_column([p[0] for p in pairs]),
        "pg_desc": _text_column([p[1] for p in pairs]),
        "backend": _strings([n[0] for n in named]),
        "op": _strings([n[1] for n in named]),
        "op_raw": _text_column(raw_names),
        "peer_src": source,
        "peer_dst": pl.Series([n[3] for n in named], dtype=pl.Int64()),
        # Up to schema 1.x one number counted everything.
        "collective_seq_id": _int_column(either("collective_seq_id", "seq_id")),
        "p2p_seq_id": _int_column(column("p2p_seq_id")),
        "op_id": _int_column(column("op_id")),
        # torchcomms writes false for send and recv too, older schemas nothing: the name of the operation tells.
        "is_p2p": _bool_column(column("is_p2p")),
        "state": _text_column(column("state")),
        "retired": _bool_column(column("retired")),
        "time_created_ns": _int_column(column("time_created_ns")),
        "time_started_ns": _int_column(column("time_discovered_started_ns")),
        "time_completed_ns": _int_column(column("time_discovered_completed_ns")),
        "duration_ms": _float_column(column("duration_ms")),
        "timeout_ms": _int_column(column("timeout_ms")),
        "input_sizes": _sizes_column(column("input_sizes"), budget),
        "output_sizes": _sizes_column(column("output_sizes"), budget),
        "input_dtypes": _names_column(column("input_dtypes"), budget),
        "output_dtypes": _names_column(column("output_dtypes"), budget),
        "thread_id": _text_column(column("thread_id")),
        "thread_name": _text_column(column("thread_name")),
        "user_frame": _strings([t[0] for t in told]),
        "frames": _strings([t[1] for t in told]),
    }
    # What is missing, in one pass: empty texts, and the zeros that JSON writes where pickle writes None.
    times = [pl.when(pl.col(c) > 0).then(pl.col(c)) for c in _TIMES]
    texts = [pl.when(pl.col(c) != "").then(pl.col(c)) for c in _TEXTS]
    p2p = pl.col("peer_src").is_not_null() | pl.col("is_p2p")
    known = pl.DataFrame(columns).with_columns(
        *times, *texts, pl.col("duration_ms").fill_nan(None), record=_record(pl.col("record")), is_p2p=p2p
    )
    return TABLES["fr_entries"].conform(known)


def _record(number: pl.Expr) -> pl.Expr:
    """The pointers to entries."""
    return "entries[" + number.cast(pl.String) + "]"


_TIMES = ("time_created_ns", "time_started_ns", "time_completed_ns")
#: Columns that differ from entry to entry, with the key of an entry that tells them, or else the older one.
_OWN = {
    "record_id": ("record_id", "id"),
    "collective_seq_id": ("collective_seq_id", "seq_id"),
    "p2p_seq_id": ("p2p_seq_id",),
    "op_id": ("op_id",),
    "time_created_ns": ("time_created_ns",),
    "time_started_ns": ("time_discovered_started_ns",),
    "time_completed_ns": ("time_discovered_completed_ns",),
    "duration_ms": ("duration_ms",),
}
_OWN_KEYS = frozenset(key for keys in _OWN.values() for key in keys)
_TEXTS = ("pg_name", "pg_desc", "op_raw", "state", "thread_id", "thread_name")


_Named = tuple[str | None, str | None, int | None, int | None]


def _operations(raw: list[object]) -> list[_Named]:
    known: dict[str, _Named] = {}
    out: list[_Named] = []
    for value in raw:
        name = value if isinstance(value, str) else ""
        if name not in known:
            known[name] = _operation(name)
        out.append(known[name])
    return out


def _operation(raw: str) -> _Named:
    """(backend, operation, source, destination) of a profiling_name such as ``nccl:send 0->1``. Ranks are those inside the group."""
    if not raw:
        return None, None, None, None
    backend, _, rest = raw.rpartition(":")
    pair = _P2P.match(rest)
    if pair is None:
        return backend or None, rest, None, None
    own, other = int(pair.group(2)), int(pair.group(4))
    return backend or None, pair.group(1).lstrip("i"), *((own, other) if pair.group(3) == "->" else (other, own))


def _dump(
    document: Mapping[str, object] | Mapping[object, object], entries: pl.DataFrame, status: pl.DataFrame, encoding: str
) -> pl.DataFrame:
    version = _text(document.get("version"))
    parts = (version or "").split(".")
    numbers = [int(p) if p.isdecimal() and len(p) < 6 else None for p in (*parts, "", "")[:2]]
    identity = entries.select("pg_id", "collective_seq_id", "p2p_seq_id", "op_id", "op_raw", "time_created_ns").write_csv()
    counters = (status.sort("pg_id") if status.height > 1 else status).drop("record").write_csv()
    key = hashlib.sha256(f"{identity}\n{counters}".encode()).hexdigest()[:32]
    created = entries["time_created_ns"]
    return TABLES["fr_dumps"].frame(
        [
            {
                "record": "",
                "encoding": encoding,
                "version": version,
                "version_major": numbers[0],
                "version_minor": numbers[1],
                "comm_lib_version": _text(document.get("comm_lib_version")) or _text(document.get("nccl_version")),
                "entries": entries.height,
                "first_record_id": entries["record_id"].min(),
                "last_record_id": entries["record_id"].max(),
                "first_created_ns": created.min(),
                "last_created_ns": created.max(),
                "thread_ids": sorted({thread for thread in entries["thread_id"].to_list() if thread is not None}),
                "content_key": key,
            }
        ]
    )


def _groups(config: object) -> pl.DataFrame:
    rows: list[dict[str, object]] = []
    if isinstance(config, dict):
        for key in sorted(config, key=str):
            value = config[key]
            if isinstance(value, dict):
                ranks = _ranks(value.get("ranks"))
                name = _text(value.get("name", key))
                if name is None and not ranks:
                    continue  # gloo's recorder writes one nameless empty group
                rows.append({"record": f"pg_config[{key}]", "pg_name": name, "pg_desc": _text(value.get("desc")), "ranks": ranks})
            elif isinstance(value, (list, tuple)):
                rows.append({"record": f"pg_config[{key}]", "pg_name": str(key), "pg_desc": None, "ranks": _ranks(value)})
    return TABLES["fr_groups"].frame(rows)


def _ranks(value: object) -> str | None:
    """Global ranks from ``"[0, 1]"``, ``"0, 1"`` or a list, folded; None where there are none (gloo does not know them)."""
    if isinstance(value, str):
        return _spelled(value) if len(value) < 10_000_000 else None
    if not isinstance(value, (list, tuple)):
        return None
    ranks = [r for r in value if isinstance(r, int) and not isinstance(r, bool) and 0 <= r < 1 << 31]
    return fold(ranks) if ranks and len(ranks) == len(value) else None


@lru_cache(maxsize=16)
def _spelled(text: str) -> str | None:
    """The same from a text. All dumps of a job spell out the same list of all ranks."""
    try:
        value = orjson.loads(text if text.startswith("[") else f"[{text}]")
    except orjson.JSONDecodeError:
        return None
    return _ranks(value) if isinstance(value, list) else None


def _status(status: object) -> pl.DataFrame:
    rows: list[dict[str, object]] = []
    if isinstance(status, dict):
        for key in sorted(status, key=str):
            value = status[key]
            if isinstance(value, dict):
                rows.append(
                    {
                        "record": f"pg_status[{key}]",
                        "pg_id": _int(key),
                        "last_enqueued": _count(value.get("last_enqueued_collective")),
                        "last_started": _count(value.get("last_started_collective")),
                        "last_completed": _count(value.get("last_completed_collective")),
                    }
                )
    return TABLES["fr_status"].frame(rows)


FORMAT = DocumentFormat(
    name="flight-recorder",
    title="PyTorch Flight Recorder dump (pickle or JSON)",
    tables=("fr_dumps", "fr_groups", "fr_status", "fr_entries"),
    sniff=_sniff,
    read=_read,
    priority=10,
)
