"""Who sent what a process of gloo could not receive: neighbours in the ring of an all_reduce."""

from __future__ import annotations

import math
import re

import polars as pl

from nccl_forensics.facts.collective_kernels import ELEMENT_BYTES
from nccl_forensics.views import view
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.views.deaths import told_at

RING_SENDERS = {
    "receiver": pl.Int32(),
    "sender": pl.Int32(),
    "agreeing": pl.List(pl.Int32()),
    "group_key": pl.String(),
    "group_name": pl.String(),
    "group_desc": pl.String(),
    "seq": pl.Int64(),
    "op": pl.String(),
    "shape": pl.String(),
    "dtype": pl.String(),
    "width": pl.Int32(),
    "got_bytes": pl.Int64(),
    "expected_bytes": pl.Int64(),
    "call_site": pl.String(),
    "line_source_id": pl.UInt32(),
    "line_no": pl.UInt32(),
    "source_id": pl.UInt32(),
    "record": pl.String(),
}
#: What gloo says: length of the message that came, and of the buffer (gloo/transport/tcp/pair.cc).
_LENGTHS = re.compile(r"op\.nbytes\D{1,8}(\d{1,15}) vs (\d{1,15})")
_NUMBERS = re.compile(r"\d{1,15}")
#: No segment is longer (gloo/allreduce.h, kMaxSegmentSize).
_LONGEST_SEGMENT = 1 << 20


@view(rows="ranks")
def ring_senders(endings: pl.LazyFrame, operations: pl.LazyFrame | Calls, progress: pl.LazyFrame, groups: pl.LazyFrame) -> pl.LazyFrame:
    """Ranks that brought another size or type to an all_reduce of gloo and left no record, by what their neighbour received from them.

    In gloo's ring a member receives from the next one only, in segments whose length follows from the size of the whole (gloo/allreduce.cc).
    ``receiver`` aborted because a segment was longer (``got_bytes``) than its own (``expected_bytes``); where its own is what follows from
    the tensor that other members recorded (``agreeing``, with ``shape``, ``dtype`` and the ``width`` of an element in bytes), it is the
    sender that differs. Cites the receiver's message (``line_source_id``, ``line_no``) and a record of those that agree.
    """
    rows: list[dict[str, object]] = []
    aborted = endings.filter((pl.col("signature") == "gloo-size-mismatch") & pl.col("rank").is_not_null()).sort("rank").collect()
    lengths = {r["rank"]: found for r in aborted.iter_rows(named=True) if (found := _LENGTHS.search(str(r["message"])))}
    if not lengths:
        return pl.DataFrame(rows, schema=RING_SENDERS).lazy()
    # An operation that failed is retired like one that ended well: the last one counts either way.
    keys = progress.filter(pl.col("domain") == "fr").select("domain", "group_key", "rank", seq=pl.coalesce("first_pending", "last_seq"))
    recorded = calls_of(operations).telling.filter(~pl.col("is_p2p")).join(keys, on=["domain", "group_key", "rank", "seq"]).collect()
    members = {g: list(m) for d, g, m in groups.select("domain", "group_key", "members").collect().iter_rows() if d == "fr"}
    for (key, _), part in recorded.sort("group_key", "seq", "rank").group_by("group_key", "seq", maintain_order=True):
        if part["op"].n_unique() != 1 or part["op"][0] != "all_reduce" or part.select("shape", "dtype").n_unique() != 1:
            continue
        for line in aborted.iter_rows(named=True):
            row = _sender(line, lengths.get(line["rank"]), part, members.get(str(key), []))
            if row is not None:
                rows.append(row)
    return pl.DataFrame(rows, schema=RING_SENDERS, infer_schema_length=None).lazy()


def _sender(line: dict[str, object], said: re.Match[str] | None, recorded: pl.DataFrame, members: list[int]) -> dict[str, object] | None:
    """The member that the receiver of ``line`` has its segments from, if all that is recorded speaks against it."""
    receiver = line["rank"]
    if said is None or receiver not in members or len(members) < 3:
        return None
    sender = members[(members.index(int(str(receiver))) + 1) % len(members)]
    witnesses = recorded.filter(pl.col("rank") != receiver)
    first = recorded.row(0, named=True)
    width = ELEMENT_BYTES.get(str(first["dtype"]).lower())
    got, expected = int(said[1]), int(said[2])
    if not witnesses.height or sender in recorded["rank"].to_list() or width is None:
        return None
    total = math.prod(int(n) for n in _NUMBERS.findall(str(first["shape"]))) * width
    if expected != _segment(total, width, len(members)) or got <= expected:
        return None
    cited = witnesses.row(0, named=True)
    return {name: cited[name] for name in RING_SENDERS if name in cited} | {
        "receiver": receiver,
        "sender": sender,
        "agreeing": sorted({*witnesses["rank"].to_list(), receiver}),
        "width": width,
        "got_bytes": got,
        "expected_bytes": expected,
        "line_source_id": told_at(line)["source_id"],
        "line_no": told_at(line)["line_no"],
    }


def _segment(total: int, width: int, members: int) -> int:
    """Bytes of one segment: two for each member, whole elements, at most a mebibyte."""
    longest = width * (_LONGEST_SEGMENT // width)
    return -(-min(-(-total // (2 * members)), longest) // width) * width
