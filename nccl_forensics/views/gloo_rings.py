"""Who sent what a process of gloo could not receive: neighbours in the ring of an all_reduce or an all_gather."""

from __future__ import annotations

import re
from collections.abc import Hashable

import polars as pl

from nccl_forensics.alignment import REACH, candidates, expect
from nccl_forensics.facts.collective_kernels import ELEMENT_BYTES
from nccl_forensics.folding import FoldedTable
from nccl_forensics.frames import typed
from nccl_forensics.values.shapes import elements
from nccl_forensics.views import view
from nccl_forensics.views.calls import EXCHANGES, Calls, calls_of
from nccl_forensics.views.checked_calls import with_frames
from nccl_forensics.views.columns import GROUP
from nccl_forensics.views.deaths import told_at

#: An all_reduce, and where what tells of it stands: the line of the abort, and the record of the call.
_CALL = typed("seq:i64 op:str shape:str dtype:str width:i32 got_bytes:i64 expected_bytes:i64 call_site:str")
_PLACES = typed("line_source_id:u32 line_no:u32 source_id:u32 record:str")
RING_SENDERS = typed("receiver:i32 sender:i32 agreeing:list[i32]", GROUP, "ahead:i32 ahead_shape:str", _CALL, _PLACES)
#: What gloo says: length of the message that came, and of the buffer (gloo/transport/tcp/pair.cc).
_LENGTHS = re.compile(r"op\.nbytes\D{1,8}(\d{1,15}) vs (\d{1,15})")
#: No segment is longer (gloo/allreduce.h, kMaxSegmentSize).
_LONGEST_SEGMENT = 1 << 20


@view(rows="ranks")
def ring_senders(endings: pl.LazyFrame, operations: pl.LazyFrame | Calls, progress: pl.LazyFrame, groups: pl.LazyFrame) -> pl.LazyFrame:
    """Ranks that brought another size or type to an all_reduce of gloo and left no record, by what their neighbour received from them.

    In gloo's ring a member receives from the next one only, in segments whose length follows from the size of the whole
    (gloo/allreduce.cc). ``receiver`` aborted because a segment was longer (``got_bytes``) than its own (``expected_bytes``); where its own
    is what follows from the tensor that other members recorded (``agreeing``, with ``shape``, ``dtype`` and the ``width`` of an element in
    bytes), it is the sender that differs. ``ahead``: so many calls later the steps before foretell an all_reduce (of ``ahead_shape``) of
    which the segments are just those that came: the sender was in that one. Cites the receiver's message (``line_source_id``, ``line_no``)
    and a record of those that agree.
    """
    rows: list[dict[str, object]] = []
    aborted = endings.filter((pl.col("signature") == "gloo-size-mismatch") & pl.col("rank").is_not_null()).sort("rank").collect()
    lengths = {r["rank"]: found for r in aborted.iter_rows(named=True) if (found := _LENGTHS.search(str(r["message"])))}
    if not lengths:
        return pl.DataFrame(rows, schema=RING_SENDERS).lazy()
    # An operation that failed is retired like one that ended well: the last one counts either way. Whoever is further recorded the same one
    # before.
    keys = progress.filter(pl.col("domain") == "fr").select("domain", "group_key", seq=pl.coalesce("first_pending", "last_seq")).unique()
    made = calls_of(operations).recent().filter(~pl.col("is_p2p")).collect()
    recorded = made.join(keys.collect(), on=["domain", "group_key", "seq"])
    recorded = recorded.filter(~pl.col("rank").is_in(in_exchanges(progress).implode()))
    members = {g: list(m) for d, g, m in groups.select("domain", "group_key", "members").collect().iter_rows() if d == "fr"}
    for (key, _), part in recorded.sort("group_key", "seq", "rank").group_by("group_key", "seq", maintain_order=True):
        if part["op"].n_unique() != 1 or part["op"][0] != "all_reduce" or part.select("shape", "dtype").n_unique() != 1:
            continue
        for line in aborted.iter_rows(named=True):
            row = _sender(line, lengths.get(line["rank"]), part, members.get(str(key), []))
            if row is not None:
                rows.append(row | _foretold(made, part.row(0, named=True), int(str(row["got_bytes"])), len(members[str(key)])))
    return pl.DataFrame(rows, schema=RING_SENDERS, infer_schema_length=None).lazy()


#: Segments of fewer elements are of many sizes alike.
_TELLING = 8


def _foretold(made: pl.DataFrame, last: dict[str, object], got: int, size: int) -> dict[str, object]:
    """How many calls after its last one (``last``) a member will come to an all_reduce with segments of this length, and its shape."""
    of = (pl.col("group_key") == pl.lit(last["group_key"])) & (pl.col("rank") == pl.lit(last["rank"]))
    calls = _with_segments(made.filter(of & (pl.col("seq") <= pl.lit(last["seq"]))).sort("seq"), size)
    line: list[Hashable] = list(calls.select("op", "shape", "dtype").iter_rows())
    shown = dict(zip(line, calls.iter_rows(named=True), strict=True))
    for ahead, call in enumerate((shown[signature] for signature in expect(line, REACH)), 1):
        if call["op"] == "all_reduce" and call["segment"] == got and got >= _TELLING * call["width"]:
            return {"ahead": ahead, "ahead_shape": call["shape"]}
    return {}


def in_exchanges(progress: pl.LazyFrame) -> pl.Series:
    """Ranks whose last call is one to which each brings parts of its own size: what came from them may be of any length, and tells of no
    ring."""
    last = progress.filter(pl.col("domain") == "fr").sort("last_order", nulls_last=False).unique("rank", keep="last", maintain_order=True)
    return last.filter(pl.col("last_op").is_in(EXCHANGES)).sort("rank").select("rank").collect()["rank"]


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
    total = sum(elements(first["shape"])) * width
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


SENT_MORE = typed("receiver:i32 sender:i32 agreeing:list[i32] usual_shape:str group_name:str", _CALL, _PLACES)


@view(rows="ranks")
def sent_more(endings: pl.LazyFrame, operations: pl.LazyFrame | Calls, progress: pl.LazyFrame) -> pl.LazyFrame:
    """The one rank that brought more to an all_to_all of gloo than the others, which brought alike (``agreeing``, two at least,
    ``usual_shape``), by just the bytes by which a rank without a record received more than it expected: sizes of such a call may differ by
    right, and no others tell of them.

    Cites the receiver's message (``line_source_id``, ``line_no``) and the sender's record.
    """
    rows: list[dict[str, object]] = []
    aborted = endings.filter((pl.col("signature") == "gloo-size-mismatch") & pl.col("rank").is_not_null()).sort("rank").collect()
    lengths = [(r, found) for r in aborted.iter_rows(named=True) if (found := _LENGTHS.search(str(r["message"])))]
    if not lengths:
        return pl.DataFrame(rows, schema=SENT_MORE).lazy()
    keys = progress.filter(pl.col("domain") == "fr").select("domain", "group_key", seq=pl.coalesce("first_pending", "last_seq")).unique()
    made = calls_of(operations).recent().filter(pl.col("op").is_in(EXCHANGES) & pl.col("shape").is_not_null())
    recorded = made.join(keys, on=["domain", "group_key", "seq"]).sort("group_key", "seq", "rank").collect()
    for _, part in recorded.group_by("group_key", "seq", maintain_order=True):
        alike = part.group_by("shape", maintain_order=True).len().sort("len", descending=True)
        if part.select("op", "dtype").n_unique() != 1 or alike["len"].to_list() != [part.height - 1, 1] or part.height <= _HABIT:
            continue
        usual, width = alike["shape"][0], ELEMENT_BYTES.get(str(part["dtype"][0]).lower())
        sender = part.filter(pl.col("shape") != usual).row(0, named=True)
        more = (sum(elements(sender["shape"])) - sum(elements(usual))) * (width or 0)
        for line, said in lengths:
            if more > 0 and line["rank"] not in part["rank"].to_list() and int(said[1]) - int(said[2]) == more:
                rows.append(
                    {name: sender[name] for name in SENT_MORE if name in sender}
                    | {
                        "receiver": line["rank"],
                        "sender": sender["rank"],
                        "agreeing": part.filter(pl.col("shape") == usual)["rank"].to_list(),
                        "usual_shape": usual,
                        "width": width,
                        "got_bytes": int(said[1]),
                        "expected_bytes": int(said[2]),
                        "line_source_id": told_at(line)["source_id"],
                        "line_no": told_at(line)["line_no"],
                    }
                )
    return pl.DataFrame(rows, schema=SENT_MORE, infer_schema_length=None).lazy()


#: By how much an element of one type may be wider than one of another.
_WIDER = (2, 4, 8)


def wider_by(aborted: pl.DataFrame) -> int | None:
    """How many times as long as expected all messages were that these processes aborted on, of at least two lengths, where a wider type
    explains it: pieces of unlike length that are all wrong by one factor are a wrong size by chance alone."""
    said = [found for message in aborted["message"].to_list() if (found := _LENGTHS.search(str(message)))]
    pairs = {(int(m[1]), int(m[2])) for m in said}
    if len(said) < aborted.height or len({expected for _, expected in pairs}) < 2:
        return None
    return next((f for f in _WIDER if all(got == f * expected for got, expected in pairs)), None)


def _with_segments(calls: pl.DataFrame, members: int) -> pl.DataFrame:
    """Calls with the ``width`` of an element and the ``segment`` in which a member sends them, in bytes; null where the type is not
    known."""
    widths = pl.col("dtype").str.to_lowercase().replace_strict(ELEMENT_BYTES, default=None, return_dtype=pl.Int32())
    calls = calls.with_columns(width=widths)
    told = calls.select("op", "shape", "width").iter_rows()
    # What each brings to an all_gather goes round in two halves (gloo/allgather.cc).
    lengths = [
        None if not width else total * width // 2 if op == "all_gather" else _segment(total * width, width, members)
        for op, total, width in ((op, sum(elements(shape)), width) for op, shape, width in told)
    ]
    return calls.with_columns(segment=pl.Series(lengths, dtype=pl.Int64()))


def _segment(total: int, width: int, members: int) -> int:
    """Bytes of one segment: two for each member, whole elements, at most a mebibyte."""
    longest = width * (_LONGEST_SEGMENT // width)
    return -(-min(-(-total // (2 * members)), longest) // width) * width


RING_RECEIVERS = typed(
    "receiver:i32 odd:i32 agreeing:list[i32] group_name:str",
    _CALL,
    "own_seq:i64 own_call_site:str one_type:bool by_reducer:bool",
    _PLACES,
)
#: Earlier calls of one size from one line that make a habit, and other members that make a majority.
_HABIT = 2
#: How far ahead in the ring that member is from which one receives (gloo/allreduce.cc, gloo/allgather.cc).
_FROM = {"all_reduce": 1, "all_gather": -1}
#: What runs backward in C++: a call with nothing of Python above it was made by the reducer of DistributedDataParallel
#: (torch/autograd/graph.py).
ENGINE = "_engine_run_backward ("
#: DistributedDataParallel, which compares and sends its parameters when it is made.
_WRAPPER = "torch/nn/parallel/distributed.py"


@view(rows="ranks")
def ring_receivers(
    endings: pl.LazyFrame,
    operations: pl.LazyFrame | Calls,
    progress: pl.LazyFrame,
    groups: pl.LazyFrame,
    fr_entries: pl.LazyFrame | FoldedTable,
) -> pl.LazyFrame:
    """Which all_reduce (or all_gather) of gloo it was that a rank without a record could not receive, by the length of what came: what its
    neighbour had recorded.

    ``seq``, ``op``, ``shape``, ``dtype`` (of ``width`` bytes) and ``call_site`` are those that ``agreeing`` recorded. ``odd`` is the rank
    that was in another one: the receiver, if most members agree (or, in a group of two, if the neighbour's call is of the size that its
    calls from that line always had, or the neighbour left no record, and no call of any other has the receiver's length), else the
    neighbour, whose call is of another size than ever, where the receiver's is of the usual one. ``own_seq``: another such call of which
    the receiver's own length is, the next of that size or else the last. ``one_type``: the odd rank's calls from that line were of one
    type, all that are recorded. ``by_reducer``: the others' call was made by the reducer of DDP, and so is the one before ``own_seq``.
    """
    rows: list[dict[str, object]] = []
    aborted = endings.filter((pl.col("signature") == "gloo-size-mismatch") & pl.col("rank").is_not_null()).sort("rank").collect()
    lengths = {r["rank"]: (r, match) for r in aborted.iter_rows(named=True) if (match := _LENGTHS.search(str(r["message"])))}
    if not lengths:
        return pl.DataFrame(rows, schema=RING_RECEIVERS).lazy()
    own = (pl.col("domain") == "fr") & ~pl.col("is_p2p") & pl.col("seq").is_not_null()
    made = calls_of(operations).recent().filter(own).sort("group_key", "rank", "seq").collect()
    made = made.filter(~pl.col("rank").is_in(in_exchanges(progress).implode()))
    members = {g: list(m) for d, g, m in groups.select("domain", "group_key", "members").collect().iter_rows() if d == "fr" and m}
    latest = set(made.sort("rank", "order").unique("rank", keep="last").select("source_id", "record").iter_rows())
    for rank, (line, said) in lengths.items():
        got, expected = int(said[1]), int(said[2])
        own_rows: list[dict[str, object]] = []
        for (key,), part in made.group_by("group_key", maintain_order=True):
            # Of a group that nothing states, those that recorded it are known; whether this rank is of it the length tells.
            ring = sorted({*members.get(str(key), []), rank})
            if len(ring) < 2 or rank in part["rank"].to_list() or got <= expected:
                continue
            each = ((op, ring[(ring.index(rank) + ahead) % len(ring)]) for op, ahead in _FROM.items())
            found = next((f for op, sender in each if (f := _left_out(part, op, rank, sender, len(ring), got, expected)) is not None), None)
            if found is not None:
                told = told_at(line)
                own_rows.append(found | {"receiver": rank, "line_source_id": told["source_id"], "line_no": told["line_no"]})
        # Of several groups with a call of that length the one in which somebody stood last.
        rows += [row for row in own_rows if (row["source_id"], row["record"]) in latest] or own_rows
    if not rows:
        return pl.DataFrame(rows, schema=RING_RECEIVERS).lazy()
    schema = {k: t for k, t in RING_RECEIVERS.items() if k != "by_reducer"} | {"before_record": pl.String()}
    known = pl.DataFrame(rows, schema=schema, infer_schema_length=None)
    before = known.select("source_id", seq=pl.col("own_seq") - 1, record="before_record")
    return known.with_columns(by_reducer=of_reducer(known, fr_entries) & of_reducer(before, fr_entries)).select(*RING_RECEIVERS).lazy()


def of_reducer(calls: pl.DataFrame, fr_entries: pl.LazyFrame | FoldedTable) -> pl.Series:
    """Whether these calls (``source_id``, ``seq``, ``record``) were made by the reducer of DDP: by itself, or by the communication hook
    that it calls in backward. That looks like a hook on a gradient: of a hook it is where a recorder has calls of DDP's own."""
    frames = with_frames(calls.select("source_id", "seq", "record"), fr_entries)["frames"]
    itself = frames.str.starts_with(ENGINE)
    hooked = frames.str.contains(ENGINE, literal=True) & ~itself
    if hooked.any():
        rows = fr_entries.words if isinstance(fr_entries, FoldedTable) else fr_entries
        wraps = rows.lazy().select(pl.col("frames").str.contains(_WRAPPER, literal=True).any()).collect().item()
        itself = itself | (hooked & bool(wraps))
    return itself.fill_null(value=False)


def _left_out(part: pl.DataFrame, op: str, receiver: int, sender: int, size: int, got: int, expected: int) -> dict[str, object] | None:
    """The last such call of the sender of which the length is that of what came, and who is the odd one of it."""
    line = part.filter(pl.col("rank") == sender)
    # Half of what one brings is as long as many other things: of calls that are no reductions only the sender's last tells.
    reduction = op == "all_reduce"
    if not reduction and line["op"].to_list()[-1:] != [op]:
        return None
    part = part.filter(pl.col("op") == op)
    mine = _with_segments(part.filter(pl.col("rank") == sender), size)
    if not mine.height:
        # Another's record tells as much of a length that never was: what came is usual there, and what was expected is of no call.
        mine = _with_segments(part.filter(pl.col("rank") == pl.col("rank").min()), size)
        if expected in mine["segment"].to_list():
            return None
    sent = mine.filter(pl.col("segment") == got).tail(1)
    if not sent.height or not (reduction or sent["seq"][0] == line["seq"][-1]):
        return None
    row = sent.row(0, named=True)
    there = part.filter(pl.col("seq") == row["seq"])
    agreeing = there.filter((pl.col("shape") == row["shape"]) & (pl.col("dtype") == row["dtype"]))
    if agreeing.height * 2 <= size:
        # Those that were in another call were in that of the receiver.
        apart = _with_segments(there.join(agreeing, on="rank", how="anti"), size)
        if not (apart["segment"] == expected).fill_null(value=False).all():
            return None
    from_there = mine.filter(pl.col("call_site").eq_missing(pl.lit(row["call_site"])))
    before = from_there.filter(pl.col("seq") < row["seq"])["segment"]
    usual = {length for length, times in before.value_counts().iter_rows() if times >= _HABIT}
    behind = mine.clear()
    if agreeing.height * 2 > size > _HABIT or (got in usual and expected not in usual):
        odd = receiver
    elif expected in usual and before.n_unique() == 1 and agreeing.height == 1:
        odd = sender
    else:
        earlier = mine.filter(pl.col("seq") < row["seq"], pl.col("segment") == got).tail(1)["seq"].to_list()
        # A line that makes several in a row, as backward does of its buckets, is left as a whole.
        passed = line.filter(pl.lit(bool(earlier)) & (pl.col("seq") > pl.lit(max(earlier, default=0))))
        beyond = passed.filter(pl.col("call_site").ne_missing(pl.lit(row["call_site"]))).head(1)["seq"].to_list()
        following = (pl.col("seq") - 1).is_in(earlier) | pl.col("seq").is_in(beyond)
        behind = mine.filter(following & (pl.col("segment") == expected)).head(1)
        if agreeing.height >= _HABIT and behind.height:
            odd = receiver  # in what came next when this call was made before
        else:
            told = _out_of_habit(_with_segments(line, size), row["seq"], got, expected) if line.height and reduction else None
            if told is None:
                return None
            odd = receiver if told == _IN_HABIT else sender
    alike = mine.filter((pl.col("segment") == expected) & (pl.col("seq") != row["seq"]))
    other = (
        pl.concat([alike.filter(pl.col("seq") > row["seq"]).head(1), behind, alike.tail(1)]).head(1) if odd == receiver else alike.clear()
    )
    return {name: row[name] for name in RING_RECEIVERS if name in row} | {
        "odd": odd,
        "agreeing": sorted(agreeing["rank"].to_list()),
        "got_bytes": got,
        "expected_bytes": expected,
        "own_seq": other["seq"][0] if other.height else None,
        "own_call_site": other["call_site"][0] if other.height else None,
        "one_type": odd == sender and from_there["dtype"].n_unique() == 1,
        "before_record": mine.filter(pl.col("seq") == other["seq"][0] - 1)["record"].first() if other.height else None,
    }


#: Of a sender that made just the calls that the steps before foretell.
_IN_HABIT = -1


def _out_of_habit(line: pl.DataFrame, at: int, got: int, expected: int) -> int | None:
    """The position at which a sender left what its steps before foretell, where the receiver kept to it by the lengths; ``_IN_HABIT`` where
    the sender kept to it; None where its steps tell neither. All reductions that were enqueued one after the other up to ``at`` may be
    meant."""
    calls = list(zip(line["op"].to_list(), line["shape"].to_list(), line["dtype"].to_list(), strict=True))
    lengths = dict(zip(calls, line["segment"].to_list(), strict=True))
    seqs = line["seq"].to_list()
    kept = False
    for place in range(seqs.index(at), 0, -1):
        if calls[place][0] != "all_reduce":
            return _IN_HABIT if kept else None
        foretold = candidates(calls[:place])
        if len(foretold) != 1 or foretold[0] not in lengths or foretold[0][0] != "all_reduce":
            continue
        if foretold[0] == calls[place]:
            kept = True
        else:
            fits = (lengths[calls[place]], lengths[foretold[0]]) == (got, expected)
            return seqs[place] if fits else None
    return None  # what one line of reductions has alike is no step


def lengths_said(message: object) -> tuple[int, int] | None:
    """Bytes of the message that came, and of the buffer that it was to go into, as gloo says them."""
    said = _LENGTHS.search(str(message))
    return (int(said[1]), int(said[2])) if said else None
