"""Error files of torchelastic (``error.json``): the exception that ``@record`` kept of one worker, with its time in seconds."""

from __future__ import annotations

from nccl_forensics.facts.signatures import classify
from nccl_forensics.formats._documents import of_json
from nccl_forensics.formats.base import DocumentFormat, Gap, Reading
from nccl_forensics.masking import mask
from nccl_forensics.raised_reports import said_of
from nccl_forensics.stacks.callstack import frame_of, joined, user_frame
from nccl_forensics.tables import TABLES
from nccl_forensics.values.documents import mapping
from nccl_forensics.values.units import is_number


def _sniff(head: bytes) -> bool:
    start = head.lstrip()[:1]
    return start == b"{" and b'"message"' in head and (b'"extraInfo"' in head or b'"py_callstack"' in head or b'"errorCode"' in head)


@of_json("truncated or broken JSON", record="")
def _read(document: object) -> Reading:
    body = mapping(document).get("message")
    extra: object = None
    text: object = body
    if isinstance(body, dict):
        text, extra = body.get("message"), body.get("extraInfo")
    if not isinstance(text, str):
        return Reading(gaps=(Gap("no message in the error file", record="message"),))
    kind, _, message = text.partition(": ")
    if not kind.replace(".", "").replace("_", "").isalnum():
        kind, message = "", text
    stack = mapping(extra).get("py_callstack")
    frames = [f for f in map(frame_of, stack.split("\n")[:4000]) if f] if isinstance(stack, str) else []
    stamp = mapping(extra).get("timestamp")
    seconds = int(str(stamp)) if stamp is not None and is_number(str(stamp)) and len(str(stamp)) < 12 else None
    row = {
        "line_no": 1,
        "kind": "error-file",
        "type": kind or None,
        "message": mask(message[:8000])[:2000],
        "signature": classify(kind, message),
        "frame": user_frame(frames),
        "frames": joined(frames),
        "time_raw_ns": seconds * 10**9 if seconds is not None else None,
        "time_kind": "epoch" if seconds is not None else None,
    }
    # A process that was started from a function prints nothing: the message stands here alone.
    reports = [{"line_no": 1, **said} for said in said_of(message)]
    return Reading(frames={"exceptions": TABLES["exceptions"].frame([row]), "reports": TABLES["reports"].frame(reports)}, records=1)


FORMAT = DocumentFormat(
    name="torchelastic-error",
    title="error file of a torchelastic worker (error.json)",
    tables=("exceptions", "reports"),
    sniff=_sniff,
    read=_read,
    priority=30,
)
