"""What InfiniBand and RoCE adapters tell of work that failed: the status of its completion (ibv_wc_status in libibverbs' verbs.h), and events
of the device (ibv_event_type_str(3))."""

from __future__ import annotations

import re

#: What the status of a completion says, by its number.
STATUSES = {
    1: "local length error",
    2: "local queue pair error",
    4: "local protection error",
    5: "work request flushed",
    8: "local access error",
    9: "remote invalid request",
    10: "remote access error",
    11: "remote operation error",
    12: "retry exceeded",
    13: "receiver not ready",
}
#: As NCCL writes it (2.28.7 and later with the name, 2.29.7 in brackets before the number), and UCX.
_STATUS = re.compile(r"(?:\bstatus=(?:\(?IBV_WC_\w{1,40}[()])?|\bwith error )(\d{1,2})\b")
#: Work completions that tell of no link, by the number or name of their status or by UCX's words (ibv_wc_status in libibverbs' verbs.h), how
#: they read, what may be the cause instead, and what to look at.
OTHERWISE: tuple[tuple[str, str, str | None, str], ...] = (
    (
        r"(?i)status=(?:1\b|IBV_WC_LOC_LEN_ERR)|with error 1,|local length",
        "A message is longer than what its receiver awaits: the two sides called different sizes.",
        "shape-mismatch",
        "Compare the sizes that both sides called (NCCL_DEBUG_SUBSYS=COLL, or the Flight Recorder).",
    ),
    (
        r"(?i)status=(?:[48]\b|IBV_WC_LOC_(?:PROT|ACCESS)_ERR)|with error [48],|local (?:protection|access)",
        "The card could not reach memory on its own host: a registration that is gone, or direct access between card and GPU that ACS or an IOMMU blocks.",
        None,
        "Check ACS and the IOMMU of this host, nvidia-peermem, and whether the program frees buffers that are in use.",
    ),
    (
        r"(?i)status=(?:9|1[01])\b|status=IBV_WC_REM_(?:INV_REQ|ACCESS|OP)_ERR|with error (?:9|1[01]),|remote (?:access|operation|invalid request)",
        "The far end refused the operation: its memory is gone, as where the process freed it or died.",
        "rank-died",
        "Read the log of the process at the far end: whether it died or freed the buffer before this line.",
    ),
)
#: Completions that say no more than that the peer never answered: retries exceeded, or its answers not in time.
UNANSWERED = r"status=(?:1[23]\b|IBV_WC_(?:RNR_)?RETRY_EXC_ERR)|with error 1[23],"
#: Events of a device that are faults. From 2.28.9 on NCCL calls all events "non-fatal" that it goes on after, a port that came up or a new
#: subnet manager among them.
FAULTS = r"async (?:error )?event ?:.*(?:port error|catastrophic error|CQ error|access violation|invalid request|migration request error)"
#: The event in NCCL's line, without the number that 2.28.7 and later put behind it.
EVENT = re.compile(r"\basync (?:error )?event ?: *([^(\n]{1,80}?) *(?:\(\d+\))?$")


def status_words(message: str) -> str | None:
    """``retry exceeded (status 12)``, of a line that tells the status of a completion."""
    told = _STATUS.search(message)
    if told is None:
        return None
    words = STATUSES.get(int(told[1]))
    return f"{words} (status {told[1]})" if words else f"status {told[1]}"
