"""PyTorch Flight Recorder dumps: the ring buffer of collectives that a process keeps, as pickle or JSON.

Written by ProcessGroupNCCL's heartbeat monitor on a timeout, through the pipe file, or by ``_dump_nccl_trace`` / ``_dump_fr_trace``
(torch/csrc/distributed/c10d/FlightRecorder). Schema versions unversioned, 1.x, 2.0 to 2.10, and the forks of Ascend and torchcomms.
There is no rank inside a dump.
"""

from __future__ import annotations

import gc
import json
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import orjson

from nccl_forensics.formats._recorder_columns import Budget, entries_frame
from nccl_forensics.formats._recorder_head import SPANS, content_keys, dump_row, group_rows, operations, status_rows
from nccl_forensics.formats._recorder_rings import Ring, alikes, read_rings
from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Several
from nccl_forensics.safe_pickle import RefusedPickle, is_pickle, load_plain
from nccl_forensics.tables import TABLES

_KEYS = (b'"entries"', b'"pg_config"', b'"pg_status"', b'"nccl_comm_state"', b'"hccl_comm_state"', b'"collective_seq_id"')
_TOP = {"entries", "pg_config", "pg_status", "version", "nccl_comm_state", "hccl_comm_state", "comm_lib_version", "nccl_version"}
_ALIKES = alikes()


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
        alike = _ALIKES.load(data) if encoding == "pickle" else None
        for _, reading in read_rings([Ring(0, alike, len(data))]).each() if alike is not None else ():
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
    budget = Budget(len(data))
    frame = entries_frame(entries, budget)
    if budget.exceeded:
        gaps.append(
            Gap("sizes and stacks are left out from some entry on: they unfold to far more than the dump's own size", record="entries")
        )
    status = TABLES["fr_status"].frame(status_rows(document.get("pg_status")))
    spans = [bound for c in SPANS for bound in (frame[c].min(), frame[c].max())]
    (key,) = content_keys(operations(frame), frame, [frame.height], status, [status.height])
    row = dump_row(document, encoding, frame.height, spans, frame["thread_id"].to_list(), key)
    frames = {
        "fr_entries": frame,
        "fr_dumps": TABLES["fr_dumps"].frame([row]),
        "fr_groups": TABLES["fr_groups"].frame(group_rows(document.get("pg_config"))),
        "fr_status": status,
    }
    return Reading(frames=frames, gaps=tuple(gaps), records=1 + len(entries))


def _read_together(contents: Sequence[bytes]) -> Several:
    """Those dumps of which one entry of each sort tells all."""
    with _no_collection():
        rings: list[Ring] = []
        for place, data in enumerate(contents):
            with suppress(RefusedPickle, pickle.UnpicklingError, EOFError, ValueError, RecursionError, MemoryError):
                alike = _ALIKES.load(data) if is_pickle(data) else None
                if alike is not None:
                    rings.append(Ring(place, alike, len(data)))
        return read_rings(rings) if rings else Several({}, {}, {})


def _load_json(data: bytes) -> object:
    """orjson refuses what torch's writer may still emit: bytes of a thread name that are no UTF-8, NaN durations."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data.decode("utf-8-sig", "replace"))


FORMAT = DocumentFormat(
    name="flight-recorder",
    title="PyTorch Flight Recorder dump (pickle or JSON)",
    tables=("fr_dumps", "fr_groups", "fr_status", "fr_entries"),
    sniff=_sniff,
    read=_read,
    priority=10,
    together=_read_together,
)
