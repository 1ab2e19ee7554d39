"""PyTorch Flight Recorder dumps: the ring buffer of collectives that a process keeps, as pickle or JSON.

Written by ProcessGroupNCCL's heartbeat monitor on a timeout, through the pipe file, or by ``_dump_nccl_trace`` / ``_dump_fr_trace``
(torch/csrc/distributed/c10d/FlightRecorder). Schema versions unversioned, 1.x, 2.0 to 2.10, and the forks of Ascend and torchcomms.
There is no rank inside a dump.

By release, seen in jobs on gloo: PyTorch 2.2.2 has ``_dump_nccl_trace`` alone, a bare list; 2.7.1 writes schema 2.4 and has a JSON twin, and
neither release records gloo; 2.10.0 writes schema 2.10, has ``_dump_fr_trace``, which records gloo, and keeps 0 entries unless it is told a
size; 2.13.0 keeps 2000. A recorder that is off is dumped all the same, empty.
"""

from __future__ import annotations

import gc
import json
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import orjson

from nccl_forensics.decoding.safe_pickle import RefusedPickle, is_pickle, load_plain
from nccl_forensics.formats._recorder_columns import Budget
from nccl_forensics.formats._recorder_rings import Ring, alikes, read_rings
from nccl_forensics.formats._recorder_whole import Loaded, read_loaded, read_one
from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Several, several

_KEYS = (b'"entries"', b'"pg_config"', b'"pg_status"', b'"nccl_comm_state"', b'"hccl_comm_state"', b'"collective_seq_id"')
_TOP = {"entries", "pg_config", "pg_status", "version", "nccl_comm_state", "hccl_comm_state", "comm_lib_version", "nccl_version"}
_ALIKES = alikes()
_PICKLED = b"\x80"
#: All that a recorder that is off writes up to PyTorch 2.2: an empty list, in the opcodes of torch's own pickler and of no other.
_OFF = b"\x80\x02](eq\x00."
#: What is raised where a dump is cut off or spoilt.
_BROKEN = (pickle.UnpicklingError, EOFError, ValueError, RecursionError, MemoryError)
#: So many bytes of dumps are loaded at once entry by entry, which takes some ten times as much.
_AT_ONCE = 2 << 20


def _sniff(head: bytes) -> bool:
    if is_pickle(head):
        return head == _OFF or any(k in head for k in (b"entries", b"pg_config", b"pg_status", b"version", b"record_id", b"profiling_name"))
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
    try:
        alike = _ALIKES.load(data) if data[:1] == _PICKLED else None
        for _, reading in read_rings([Ring(0, alike, len(data))]).each() if alike is not None else ():
            return reading
        dump, gaps = _loaded(data, 0)
    except RefusedPickle as problem:
        return Reading(gaps=(Gap(str(problem), record=""),))
    except _BROKEN as problem:
        return Reading(gaps=(Gap(f"truncated or broken {_encoding(data)}: {problem}"[:200], record=""),))
    if dump is None:
        return Reading(gaps=gaps)
    budget = Budget(len(data))
    reading = read_one(dump, budget)
    if budget.exceeded:
        gaps += (
            Gap("sizes and stacks are left out from some entry on: they unfold to far more than the dump's own size", record="entries"),
        )
    return replace(reading, gaps=gaps)


def _loaded(data: bytes, place: int) -> tuple[Loaded | None, tuple[Gap, ...]]:
    """A dump entry by entry, with what of it is none; None where there is none at all. Raises ``RefusedPickle`` and ``_BROKEN``."""
    encoding = _encoding(data)
    document = load_plain(data) if encoding == "pickle" else _load_json(data)
    if isinstance(document, list):
        document = {"entries": document}
    if not isinstance(document, dict):
        return None, (Gap("not a Flight Recorder dump: no object at the top", record=""),)
    if not _TOP & {k for k in document if isinstance(k, str)}:
        return None, (Gap("not a Flight Recorder dump: none of its keys", record=""),)
    raw_entries = document.get("entries") or []
    gaps: tuple[Gap, ...] = ()
    if not isinstance(raw_entries, (list, tuple)):
        gaps += (Gap("entries is not a list", record="entries"),)
        raw_entries = []
    entries = [(i, e) for i, e in enumerate(raw_entries) if isinstance(e, dict)]
    odd = len(raw_entries) - len(entries)
    if odd:
        first = next(i for i, e in enumerate(raw_entries) if not isinstance(e, dict))
        gaps += (Gap(f"{odd} of {len(raw_entries)} entries are not objects", record=f"entries[{first}]"),)
    return Loaded(place, encoding, document, entries), gaps


def _encoding(data: bytes) -> str:
    return "pickle" if data[:1] == _PICKLED else "json"


def _read_together(contents: Sequence[bytes]) -> Several:
    """Dumps of which nothing is to be told but their tables: those of which one entry of each sort tells all, and the others entry by
    entry."""
    with _no_collection():
        rings: list[Ring] = []
        others: list[int] = []
        for place, data in enumerate(contents):
            with suppress(RefusedPickle, *_BROKEN):
                alike = _ALIKES.load(data) if data[:1] == _PICKLED else None
                if alike is not None:
                    rings.append(Ring(place, alike, len(data)))
                else:
                    others.append(place)
        made = [read_rings(rings)] if rings else []
        some: list[int] = []
        for place in others:
            some.append(place)
            if sum(len(contents[n]) for n in some) > _AT_ONCE or place == others[-1]:
                made += _entry_by_entry(contents, some)
                some = []
        return several(made)


def _entry_by_entry(contents: Sequence[bytes], places: Sequence[int]) -> list[Several]:
    """Dumps at these places, but for those that have gaps or unfold to much text: each tells that by itself."""
    dumps: list[Loaded] = []
    for place in places:
        with suppress(RefusedPickle, *_BROKEN):
            dump, gaps = _loaded(contents[place], place)
            if dump is not None and not gaps:
                dumps.append(dump)
    return _within_bounds(dumps)


def _within_bounds(dumps: Sequence[Loaded]) -> list[Several]:
    """Dumps together, or half of them at a time where all unfold to more text than what is always allowed of one."""
    if not dumps:
        return []
    budget = Budget(0)
    made = read_loaded(dumps, budget)
    if not budget.exceeded:
        return [made]
    half = len(dumps) // 2
    return [*_within_bounds(dumps[:half]), *_within_bounds(dumps[half:])] if half else []


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
