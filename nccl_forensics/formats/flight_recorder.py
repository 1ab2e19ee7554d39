"""PyTorch Flight Recorder dumps: the ring buffer of collectives that a process keeps, as pickle or JSON.

Written by ProcessGroupNCCL's heartbeat monitor on a timeout, through the pipe file, or by ``_dump_nccl_trace`` / ``_dump_fr_trace``
(torch/csrc/distributed/c10d/FlightRecorder). Schema versions unversioned, 1.x, 2.0 to 2.10, and the forks of Ascend and torchcomms.
There is no rank inside a dump.
"""

from __future__ import annotations

import ast
import hashlib
import pickle
import re
from collections.abc import Mapping, Sequence

import orjson
import polars as pl

from nccl_forensics.formats.base import DocumentFormat, Gap, Reading
from nccl_forensics.safe_pickle import RefusedPickle, is_pickle, load_plain
from nccl_forensics.tables import TABLES

_P2P = re.compile(r"^(send|recv|isend|irecv)\s+(\d+)\s*(->|<-)\s*(\d+)$")
_KEYS = (b'"entries"', b'"pg_config"', b'"pg_status"', b'"nccl_comm_state"', b'"hccl_comm_state"', b'"collective_seq_id"')
#: Parts of a path that are not the user's code.
_NOT_USER = ("/torch/", "torch/distributed", "<frozen", "/contextlib.py", "site-packages/torch", "/c10d_logger.py", "dist-packages/torch")


def _sniff(head: bytes) -> bool:
    if is_pickle(head):
        return any(k in head for k in (b"entries", b"pg_config", b"pg_status", b"version", b"record_id"))
    start = head.lstrip()[:1]
    return start in (b"{", b"[") and sum(k in head for k in _KEYS) >= 1 and b'"traceEvents"' not in head


def _read(data: bytes) -> Reading:
    encoding = "pickle" if data[:1] == b"\x80" else "json"
    try:
        document = load_plain(data) if encoding == "pickle" else orjson.loads(data)
    except RefusedPickle as problem:
        return Reading(gaps=(Gap(str(problem), record=""),))
    except (pickle.UnpicklingError, EOFError, ValueError, RecursionError, MemoryError) as problem:
        return Reading(gaps=(Gap(f"truncated or broken {encoding}: {problem}"[:200], record=""),))
    if isinstance(document, list):
        document = {"entries": document}
    if not isinstance(document, dict):
        return Reading(gaps=(Gap("not a Flight Recorder dump: no object at the top", record=""),))
    known = {"entries", "pg_config", "pg_status", "version", "nccl_comm_state", "hccl_comm_state", "comm_lib_version", "nccl_version"}
    if not known & set(document):
        return Reading(gaps=(Gap("not a Flight Recorder dump: none of its keys", record=""),))
    raw_entries = document.get("entries") or []
    gaps: list[Gap] = []
    if not isinstance(raw_entries, (list, tuple)):
        gaps.append(Gap("entries is not a list", record="entries"))
        raw_entries = []
    entries = [(i, e) for i, e in enumerate(raw_entries) if isinstance(e, dict)]
    gaps += [Gap("entry is not an object", record=f"entries[{i}]") for i, e in enumerate(raw_entries) if not isinstance(e, dict)]
    frame = _entries(entries)
    frames = {
        "fr_entries": frame,
        "fr_dumps": _dump(document, frame, encoding),
        "fr_groups": _groups(document.get("pg_config")),
        "fr_status": _status(document.get("pg_status")),
    }
    return Reading(frames=frames, gaps=tuple(gaps[:100]), records=1 + len(entries))


def _int(value: object) -> int | None:
    """An int, or None for what is missing or no number. Numbers may come as strings (JSON's pg_status)."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return value if -(1 << 63) <= value < (1 << 63) else None
    try:
        return int(float(str(value))) if str(value) else None
    except (ValueError, OverflowError):
        return None


def _count(value: object) -> int | None:
    """A counter: -1 (none yet) and uninitialised unsigned values are missing."""
    number = _int(value)
    return number if number is not None and 0 <= number < (1 << 31) else None


def _time(value: object) -> int | None:
    """Epoch ns; JSON writes 0 where pickle writes None."""
    number = _int(value)
    return number if number else None


def _sizes(value: object) -> str | None:
    if value is None:
        return None
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return str(value)


def _names(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return ",".join(str(v) for v in value)
    return str(value)


def _text(value: object) -> str | None:
    return None if value is None or value == "" else str(value)


class _Stacks:
    """Formatted stacks, each distinct one built once."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], tuple[str | None, str | None]] = {}

    def of(self, frames: object) -> tuple[str | None, str | None]:
        """(user frame, all frames newline-joined) of a list of {name, filename, line}."""
        if not isinstance(frames, (list, tuple)) or not frames:
            return None, None
        try:
            key = tuple((f["name"], f["filename"], f["line"]) for f in frames)
        except (KeyError, TypeError):
            return None, None
        if key not in self._known:
            lines = [f"{name} ({path}:{line})" for name, path, line in key]
            user = next(
                (f"{n} ({str(p).rsplit('/', 1)[-1]}:{line})" for n, p, line in key if not any(x in str(p) for x in _NOT_USER)), None
            )
            self._known[key] = (user, "\n".join(lines))
        return self._known[key]


def _entries(entries: Sequence[tuple[int, Mapping[str, object]]]) -> pl.DataFrame:
    columns: dict[str, list[object]] = {name: [] for name in TABLES["fr_entries"].schema}
    stacks = _Stacks()
    names: dict[object, tuple[str | None, str | None, int | None, int | None]] = {}
    add = {name: column.append for name, column in columns.items()}
    for index, e in entries:
        get = e.get
        raw = get("profiling_name")
        named = names.get(raw)
        if named is None:
            named = names[raw] = _operation(raw)
        group = get("process_group")
        pg_name, pg_desc = (group[0], group[1]) if isinstance(group, (list, tuple)) and len(group) == 2 else (group, None)
        seq = get("collective_seq_id")
        user, frames = stacks.of(get("frames"))
        started, completed = _time(get("time_discovered_started_ns")), _time(get("time_discovered_completed_ns"))
        duration = get("duration_ms")
        add["record"](f"entries[{index}]")
        add["record_id"](_int(get("record_id")) if "record_id" in e else _int(get("id")))
        add["pg_id"](_int(get("pg_id")))
        add["pg_name"](_text(pg_name))
        add["pg_desc"](_text(pg_desc))
        add["backend"](named[0])
        add["op"](named[1])
        add["op_raw"](_text(raw))
        add["peer_src"](named[2])
        add["peer_dst"](named[3])
        add["collective_seq_id"](_int(seq if seq is not None else get("seq_id")))
        add["p2p_seq_id"](_int(get("p2p_seq_id")))
        add["op_id"](_int(get("op_id")))
        add["is_p2p"](get("is_p2p") if isinstance(get("is_p2p"), bool) else named[2] is not None or None)
        add["state"](_text(get("state")))
        add["retired"](get("retired") if isinstance(get("retired"), bool) else None)
        add["time_created_ns"](_time(get("time_created_ns")))
        add["time_started_ns"](started)
        add["time_completed_ns"](completed)
        add["duration_ms"](float(duration) if isinstance(duration, (int, float)) and not isinstance(duration, bool) else None)
        add["timeout_ms"](_int(get("timeout_ms")))
        add["input_sizes"](_sizes(get("input_sizes")))
        add["output_sizes"](_sizes(get("output_sizes")))
        add["input_dtypes"](_names(get("input_dtypes")))
        add["output_dtypes"](_names(get("output_dtypes")))
        add["thread_id"](_text(get("thread_id")))
        add["thread_name"](_text(get("thread_name")))
        add["user_frame"](user)
        add["frames"](frames)
    return pl.DataFrame(columns, schema=TABLES["fr_entries"].schema, strict=False)


def _operation(raw: object) -> tuple[str | None, str | None, int | None, int | None]:
    """(backend, operation, source, destination) of a profiling_name such as ``nccl:send 0->1``. Ranks are those inside the group."""
    if not isinstance(raw, str) or not raw:
        return None, None, None, None
    backend, _, rest = raw.rpartition(":")
    pair = _P2P.match(rest)
    if pair is None:
        return backend or None, rest, None, None
    own, other = int(pair.group(2)), int(pair.group(4))
    return backend or None, pair.group(1).lstrip("i"), *((own, other) if pair.group(3) == "->" else (other, own))


def _dump(document: Mapping[str, object], entries: pl.DataFrame, encoding: str) -> pl.DataFrame:
    version = _text(document.get("version"))
    parts = (version or "").split(".")
    numbers = [int(p) if p.isdigit() else None for p in (*parts, "", "")[:2]]
    identity = entries.select("pg_id", "collective_seq_id", "p2p_seq_id", "op_id", "op_raw", "time_created_ns").rows()
    status = sorted(_status(document.get("pg_status")).drop("record").rows(), key=str)
    key = hashlib.sha256(repr((identity, status)).encode()).hexdigest()[:32]
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
                "thread_ids": entries["thread_id"].drop_nulls().unique().sort().to_list(),
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


def _ranks(value: object) -> list[int] | None:
    """Global ranks from ``"[0, 1]"``, ``"0, 1"`` or a list; None where there are none (gloo does not know them)."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value if value.startswith("[") else f"[{value}]") if len(value) < 10_000_000 else None
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
    if not isinstance(value, (list, tuple)):
        return None
    ranks = [r for r in value if isinstance(r, int) and not isinstance(r, bool)]
    return ranks if ranks and len(ranks) == len(value) else None


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
