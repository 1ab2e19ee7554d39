"""Entries of a Flight Recorder dump as columns, whatever types their values have."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from types import NoneType
from typing import cast

import orjson
import polars as pl

from nccl_forensics.tables import TABLES

_P2P = re.compile(r"^(send|recv|isend|irecv)\s+(\d+)\s*(->|<-)\s*(\d+)$")
#: Parts of a path that are not the user's code. The wrapper of typing_extensions stands between the program and calls of torch 2.13 that are
#: deprecated (all_gather_into_tensor, reduce_scatter_tensor).
_NOT_USER = (
    "/torch/",
    "torch/distributed",
    "<frozen",
    "/contextlib.py",
    "/typing_extensions.py",
    "site-packages/torch",
    "/c10d_logger.py",
    "dist-packages/torch",
)


class Budget:
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


def integer(value: object) -> int | None:
    """An int, or None for what is missing or no number. Numbers may come as strings (JSON's pg_status)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -(1 << 63) <= value < (1 << 63) else None
    if isinstance(value, float):
        return int(value) if abs(value) < 1 << 62 else None  # false for NaN too
    if isinstance(value, str) and len(value) < 21:
        try:
            return integer(int(value))
        except ValueError:
            return None
    return None


def counter(value: object) -> int | None:
    """A counter: -1 (none yet) and uninitialised unsigned values are missing."""
    number = integer(value)
    return number if number is not None and 0 <= number < (1 << 31) else None


def text_of_value(value: object) -> str | None:
    """A string, or a number as one; None for what is empty or no scalar."""
    if isinstance(value, str):
        return value or None
    return str(value)[:64] if isinstance(value, (int, float)) and not isinstance(value, bool) and integer(value) is not None else None


def int_column(values: list[object]) -> pl.Series:
    if set(map(type, values)) in _PLAIN_NUMBERS:
        try:
            return pl.Series(values, dtype=pl.Int64())
        except (OverflowError, TypeError, ValueError, pl.exceptions.PolarsError):
            pass
    return pl.Series([integer(v) for v in values], dtype=pl.Int64())


def decimal(value: object) -> float | None:
    """A float, or None for what is missing or no finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or integer(value) is None:
        return None
    return float(value)


def _bool_column(values: list[object]) -> pl.Series:
    if not set(map(type, values)) <= {bool, NoneType}:
        values = [v if isinstance(v, bool) else None for v in values]
    return pl.Series(values, dtype=pl.Boolean())


def float_column(values: list[object]) -> pl.Series:
    if set(map(type, values)) <= {float, NoneType}:
        return pl.Series(values, dtype=pl.Float64())
    return pl.Series([decimal(v) for v in values], dtype=pl.Float64())


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
    return _strings([text_of_value(v) for v in values])


_STR_OR_NONE = {str, NoneType}


def _sizes_column(values: list[object], budget: Budget) -> pl.Series:
    """Shapes as compact text. Only lists of lists of numbers are shapes."""
    if _all_shapes([v for v in values if isinstance(v, list)], budget) and set(map(type, values)) <= {list, NoneType}:
        return _strings(_compact_all(values))
    return _strings([_shape(v, budget) for v in values])


def _all_shapes(lists: list[list[object]], budget: Budget) -> bool:
    """Whether all of these are lists of lists of numbers and within bounds: the usual case, told in few passes."""
    if not budget.take(3 * sum(map(len, lists))):
        return False
    shapes = [shape for shape in chain.from_iterable(lists) if isinstance(shape, list)]
    if len(shapes) != sum(map(len, lists)) or not budget.take(8 * sum(map(len, shapes))):
        return False
    return set(map(type, chain.from_iterable(shapes))) <= {int}


def _shape(value: object, budget: Budget) -> str | None:
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
    """Lists of lists of numbers as texts, written at once where none is empty: then ``]],[[`` stands between two of them and nowhere
    else."""
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


def _names_column(values: list[object], budget: Budget) -> pl.Series:
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

    def __init__(self, budget: Budget) -> None:
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
    where = integer(line)
    number = "" if where is None else f":{where}"
    name, path = name[:512], path[:2048]
    mine = None if any(part in path for part in _NOT_USER) else f"{name} ({path.rsplit('/', 1)[-1]}{number})"
    return f"{name} ({path}{number})", mine


def entries_frame(entries: Sequence[tuple[int, Mapping[str, object]]], budget: Budget) -> pl.DataFrame:
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
        "record_id": int_column(either("record_id", "id")),
        "pg_id": int_column(column("pg_id")),
        "pg_name": _text_column([p[0] for p in pairs]),
        "pg_desc": _text_column([p[1] for p in pairs]),
        "backend": _strings([n[0] for n in named]),
        "op": _strings([n[1] for n in named]),
        "op_raw": _text_column(raw_names),
        "peer_src": source,
        "peer_dst": pl.Series([n[3] for n in named], dtype=pl.Int64()),
        # Up to schema 1.x one number counted everything.
        "collective_seq_id": int_column(either("collective_seq_id", "seq_id")),
        "p2p_seq_id": int_column(column("p2p_seq_id")),
        "op_id": int_column(column("op_id")),
        # torchcomms writes false for send and recv too, older schemas nothing: the name of the operation tells.
        "is_p2p": _bool_column(column("is_p2p")),
        "state": _text_column(column("state")),
        "retired": _bool_column(column("retired")),
        "time_created_ns": int_column(column("time_created_ns")),
        "time_started_ns": int_column(column("time_discovered_started_ns")),
        "time_completed_ns": int_column(column("time_discovered_completed_ns")),
        "duration_ms": float_column(column("duration_ms")),
        "timeout_ms": int_column(column("timeout_ms")),
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
    times = [pl.when(~unset(c)).then(pl.col(c)) for c in TIMES]
    texts = [pl.when(pl.col(c) != "").then(pl.col(c)) for c in _TEXTS]
    p2p = pl.col("peer_src").is_not_null() | pl.col("is_p2p")
    known = pl.DataFrame(columns).with_columns(
        *times, *texts, pl.col("duration_ms").fill_nan(None), record=pointers(pl.col("record")), is_p2p=p2p
    )
    return TABLES["fr_entries"].conform(known)


def pointers(number: pl.Expr) -> pl.Expr:
    """The pointers to entries."""
    return "entries[" + number.cast(pl.String) + "]"


TIMES = ("time_created_ns", "time_started_ns", "time_completed_ns")
#: Nothing is found to begin or to be over a day, in ns, before it was made: such a time is a zero whose clock somebody set right.
_DAY = 24 * 3600 * 10**9


def unset(column: str) -> pl.Expr:
    """Whether a time is none: JSON writes zero where pickle writes None."""
    return (pl.col(column) <= 0) | (pl.col(column) < pl.col(TIMES[0]) - _DAY).fill_null(False)


#: Columns that differ from entry to entry, with the key of an entry that tells them, or else the older one.
OWN = {
    "record_id": ("record_id", "id"),
    "collective_seq_id": ("collective_seq_id", "seq_id"),
    "p2p_seq_id": ("p2p_seq_id",),
    "op_id": ("op_id",),
    "time_created_ns": ("time_created_ns",),
    "time_started_ns": ("time_discovered_started_ns",),
    "time_completed_ns": ("time_discovered_completed_ns",),
    "duration_ms": ("duration_ms",),
}
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
