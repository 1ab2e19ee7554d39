"""What the message of an exception of torch.distributed says about ranks: collectives that differ, monitored barriers, parameters without
gradient.

Source of the texts: torch/csrc/distributed/c10d (ProcessGroupWrapper.cpp, ProcessGroupGloo.cpp, reducer.cpp), torch 1.10 to 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_forensics.values.units import is_number

_MISMATCH = re.compile(
    r"Rank ([0-9]{1,7}) is running (?:inconsistent )?collective: (CollectiveFingerPrint\(.{1,4000}?\)), but Rank ([0-9]{1,7}) is running (?:inconsistent )?collective: (CollectiveFingerPrint\(.{1,4000})",
    re.DOTALL,
)
#: Up to torch 1.13 the message names only its own rank.
_MISMATCH_OLD = re.compile(r"Rank ([0-9]{1,7}) is running (?:inconsistent )?collective: (CollectiveFingerPrint\(.{1,4000})()()", re.DOTALL)
_DIFFER = re.compile(r"Collectives differ in the following aspects:(.{0,2000})", re.DOTALL)
_ASPECTS = (("Op type", "op"), ("shapes", "shape"), ("dtypes", "dtype"), ("device", "device"), ("Sequence number", "sequence"))
_COMPARED = (("OpType", "op"), ("TensorShape", "shape"), ("TensorDtypes", "dtype"), ("SequenceNumber", "sequence"))
_FAILED = re.compile(r"Ranks? ([0-9]{1,7}(?:, ?[0-9]{1,7})*) failed to pass monitoredBarrier in ([0-9]{1,12}) ms")
_TIMED_OUT = re.compile(r"Rank ([0-9]{1,7}) timed out in monitoredBarrier after ([0-9]{1,12}) ms")
_REACHED = re.compile(r"Rank ([0-9]{1,7}) successfully reached monitoredBarrier")
_GRAD_NAMES = re.compile(r"Parameters which did not receive grad for rank ([0-9]{1,7}): (.{1,4000})")
_GRAD_INDEX = re.compile(r"Parameter indices which did not receive grad for rank ([0-9]{1,7}): ([0-9 ]{1,4000})")
_FIELD = re.compile(r"(SequenceNumber=[0-9]+|(?:OpType|TensorShape|TensorDtypes)=(?:\[[^\]]{0,4096}\]|[A-Za-z0-9_]{1,64}))")


def said_of(message: str) -> Iterator[dict[str, object]]:
    """Rows of ``reports``, without their place."""
    for rank, own, other, theirs in _MISMATCH.findall(message) or _MISMATCH_OLD.findall(message):
        mine, yours = fingerprint(own), fingerprint(theirs)
        seq = mine.get("SequenceNumber")
        aspects = _DIFFER.search(message)
        yield {
            "kind": "detail-mismatch",
            "rank": int(rank),
            "ranks": [int(other)] if other else None,
            "seq": int(seq) if seq and is_number(seq) else None,
            "op": mine.get("OpType"),
            "other_op": yours.get("OpType"),
            "differs": ",".join(word for label, word in _ASPECTS if label in aspects.group(1)) or None if aspects else _apart(mine, yours),
            "detail": _shape(mine),
            "other_detail": _shape(yours),
        }
    for ranks, timeout in (*_FAILED.findall(message), *_TIMED_OUT.findall(message)):
        yield {"kind": "barrier-missing", "ranks": [int(r) for r in ranks.split(",")], "timeout_ms": int(timeout)}
    for rank in _REACHED.findall(message):
        yield {"kind": "barrier-ok", "rank": int(rank)}
    named: set[str] = set()
    for rank, names in _GRAD_NAMES.findall(message):
        named.add(rank)
        yield {"kind": "ddp-unused", "rank": int(rank), "ranks": [int(rank)], "detail": names.strip()[:1000]}
    for rank, indices in _GRAD_INDEX.findall(message):
        if rank not in named:
            yield {"kind": "ddp-unused", "rank": int(rank), "ranks": [int(rank)], "detail": f"indices {indices.strip()[:1000]}"}


def fingerprint(text: str) -> dict[str, str]:
    """Fields of a CollectiveFingerPrint: SequenceNumber, OpType, TensorShape, TensorDtypes. The device options' dtype is a fixed text.

    A barrier prints no comma after its number: ``SequenceNumber=5OpType=BARRIER`` (torch 2.13).
    """
    pairs = (str(match).partition("=") for match in _FIELD.findall(text.split("TensorDeviceTypes=", 1)[0]))
    return {name: value for name, _, value in pairs}


def _apart(mine: dict[str, str], yours: dict[str, str]) -> str | None:
    """What two calls differ in, where the message does not say it (before torch 2.1)."""
    return ",".join(word for name, word in _COMPARED if name in mine and name in yours and mine[name] != yours[name]) or None


def _shape(fields: dict[str, str]) -> str | None:
    return f"{fields.get('TensorShape', '')} {fields.get('TensorDtypes', '')}".strip() or None
