"""The same collective was called with another number of elements on some ranks.

## What it finds
At one position of a group all ranks call the same operation, but some with another number of elements.

## Why it matters
NCCL hangs or overwrites memory, gloo aborts a process that may be innocent (the one that received too much).

## What would refute it
The operation may rightly differ in size between ranks (all_to_all, gather, scatter, variants with sizes per rank).

## What to do next
Print the tensor's shape on the deviating rank at the quoted line: uneven batches, a last partial batch and padding are the usual reasons.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite, whereabouts
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Confidence, Divergence, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.advice import COMPARE_CALLS, COMPARED_AGAIN
from nccl_forensics.rules.common.arguments import argument_findings
from nccl_forensics.rules.common.endings import raised_at
from nccl_forensics.stacks.frames import split_frame
from nccl_forensics.views.gloo_rings import wider_by
from nccl_forensics.views.levels import ROOTED
from nccl_forensics.words import operation_words, ranks_words


@rule(
    name="shape-mismatch",
    code="CO03",
    cause="shape-mismatch",
    severity="critical",
    at_most=16,
    explains=("timeout", "closed", "rank-died", "collective-stuck", "host-stall", "software-crash", "connection-failed"),
)
def shape_mismatch(
    divergences: pl.LazyFrame, last_calls: pl.LazyFrame | None = None, step_leads: pl.LazyFrame | None = None
) -> Iterator[Finding]:
    """Findings of this argument, one per group."""
    yield from argument_findings(
        divergences,
        "shape",
        "Assert equal shapes (all_gather the numel) before the collective, or run once with TORCH_DISTRIBUTED_DEBUG=DETAIL.",
        last_calls,
        step_leads,
    )


#: What is cited of those that aborted.
_TOO_MUCH = "received data size does not match"
#: Bytes alone do not tell a size from a type.
_BY_BYTES = "byte counts differ for types as well as for sizes"


@rule(
    name="shape-mismatch-by-transport",
    code="CO08",
    cause="shape-mismatch",
    severity="critical",
    at_most=1,
    explains=("timeout", "closed", "rank-died", "collective-stuck", "host-stall", "software-crash", "connection-failed", "group-deadlock"),
)
def shape_mismatch_by_transport(
    endings: pl.LazyFrame,
    divergences: pl.LazyFrame | None,
    progress: pl.LazyFrame | None,
    groups: pl.LazyFrame | None,
    ring_senders: pl.LazyFrame | None = None,
    last_calls: pl.LazyFrame | None = None,
    ring_receivers: pl.LazyFrame | None = None,
    sent_more: pl.LazyFrame | None = None,
    left_exchanges: pl.LazyFrame | None = None,
    step_leads: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """A transport that received more bytes than it expected, where no recorder tells whose size was wrong: unless what others recorded
    leaves only the one that sent them, or only the one that aborted."""
    if has_rows(divergences):
        return
    rows = endings.filter(pl.col("signature") == "gloo-size-mismatch").sort("rank").collect()
    if not rows.height:
        return
    ranks = tuple(r for r in rows["rank"].to_list() if r is not None)
    lines = [raised_at(row) for row in rows.iter_rows(named=True)]
    sent = ring_senders.collect().unique("sender", keep="first", maintain_order=True) if ring_senders is not None else None
    if sent is not None and sent.height == 1:
        yield _from_the_sender(sent)
        return
    more = sent_more.collect() if sent_more is not None else None
    if more is not None and more.height == 1:
        yield _of_the_exchange(more)
        return
    left = left_exchanges.collect() if left_exchanges is not None else None
    if left is not None and left.height:
        yield _before_the_exchange(left)
        return
    placed = _placed(ring_receivers) if ring_receivers is not None else None
    if placed is not None:
        yield _by_length(placed, last_calls)
        return
    odd = _the_unrecorded(ranks, progress, groups) if progress is not None and groups is not None and len(ranks) == 1 else None
    apart = _elsewhere(ranks[0], odd["last_call_site"].to_list(), last_calls) if odd is not None and last_calls is not None else None
    if odd is not None and apart is not None and apart["place"] == "collective":
        yield _in_another_call(ranks[0], apart, odd, lines)
        return
    if odd is not None and apart is None:
        yield _unlike_the_recorded(ranks, odd, lines)
        return
    ahead = _ahead(ranks, step_leads, last_calls) if step_leads is not None and last_calls is not None else None
    if ahead is not None:
        yield _a_step_further(ranks, *ahead, lines)
        return
    sender = _sent_to_all(ranks, endings)
    yield _of_the_only_other(sender, rows, ranks, lines) if sender is not None else _of_nobody(ranks, lines)


def _unlike_the_recorded(ranks: tuple[int, ...], odd: pl.DataFrame, lines: list[dict[str, object]]) -> Finding:
    """A rank that aborted and left no record, where all others recorded one call alike."""
    others = ranks_words(odd["rank"].to_list())
    waited = operation_words(odd["last_op"][0], odd["last_seq"][0])
    return Finding(
        title=f"{ranks_words(ranks)} brought another size or type to {waited} than {others}, and aborted on what it received",
        summary=f"{others} recorded the same sizes and types; {ranks_words(ranks)} left no record and received more bytes than it expected.",
        confidence="medium",
        ranks=ranks,
        subject=("gloo-size", str(odd["last_op"][0])),
        evidence=(*cite(lines, _TOO_MUCH), *cite(odd, "what the others recorded alike")),
        remedy=f"Compare the tensor's shape and type on this rank at {odd['last_call_site'][0] or 'that collective'}.",
        prevention=COMPARE_CALLS,
        would_refute=(f"a Flight Recorder dump of {ranks_words(ranks)} with the sizes of the others",),
        actions=(Action("fix-code", ranks=ranks, confidence="medium", where=odd["last_call_site"][0]), COMPARED_AGAIN),
        alternatives=(("dtype-mismatch", ranks, _BY_BYTES),),
    )


def _of_the_only_other(sender: pl.DataFrame, aborted: pl.DataFrame, ranks: tuple[int, ...], lines: list[dict[str, object]]) -> Finding:
    """The one rank that did not abort on what it received."""
    who = (int(sender["rank"][0]),)
    factor = wider_by(aborted)
    typed = factor is not None
    return Finding(
        cause="dtype-mismatch" if typed else None,
        title=f"{ranks_words(who)} sent more bytes than all the others expected: {ranks_words(ranks)} received too much and aborted",
        summary=f"Every other rank that ended did so on what it received; {ranks_words(who)} is the only one that did not. "
        + (
            f"Messages of unlike length were all {factor} times as long as expected: most likely it brought another data type."
            if typed
            else "It brought another size or type, or was in another operation."
        ),
        confidence="medium",
        ranks=who,
        subject=("gloo-size", "all but one"),
        evidence=(*cite(lines, _TOO_MUCH), *cite(sender, "how the one that did not abort ended")),
        remedy=f"Compare what {ranks_words(who)} calls, and its tensor's shape and type, with the others at the collective where they aborted.",
        prevention=COMPARE_CALLS,
        would_refute=(f"a Flight Recorder dump of {ranks_words(who)} with the operation and the sizes of the others",),
        actions=(Action("fix-code", ranks=who, confidence="medium"), COMPARED_AGAIN),
        alternatives=(
            ("collective-skipped", who, "it may have left out a call and sent the data of the next one"),
            ("shape-mismatch" if typed else "dtype-mismatch", who, _BY_BYTES),
        ),
    )


def _of_nobody(ranks: tuple[int, ...], lines: list[dict[str, object]]) -> Finding:
    """Where nothing tells whose size was wrong."""
    return Finding(
        title=f"sizes or types differ between ranks: {ranks_words(ranks) if ranks else 'a process'} received more bytes than expected and aborted",
        summary="The process that receives too much aborts; the one with the wrong tensor may be any other, and may have been in another call. The "
        "evidence does not tell.",
        confidence="low",
        culprits=(),
        subject=("gloo-size",),
        evidence=cite(lines, _TOO_MUCH),
        remedy="Compare the tensor's shape and type on all ranks at the collective where the others wait.",
        prevention="Keep the Flight Recorder on and dump it on a timeout: it names the rank.",
        would_refute=("Flight Recorder dumps that show equal sizes",),
        actions=(COMPARED_AGAIN, Action("collect-more", command="TORCH_FR_BUFFER_SIZE=2000")),
        alternatives=(
            ("dtype-mismatch", (), _BY_BYTES),
            ("collective-skipped", (), "who left a call out sends the data of the next one"),
        ),
    )


def _elsewhere(rank: int, sites: list[object], last_calls: pl.LazyFrame) -> dict[str, object] | None:
    """The last call of a rank, where that is in another function of the program than the operation that the others recorded last, or
    another operation than all of them stood in."""
    own = next(last_calls.filter((pl.col("rank") == rank) & pl.col("user_frame").is_not_null()).collect().iter_rows(named=True), None)
    if own is None or not all(sites) or own["place"] not in ("collective", "p2p", "user-code"):
        return None
    if _function(own["user_frame"]) not in {_function(site) for site in sites}:
        return own
    beside = last_calls.filter((pl.col("rank") != rank) & (pl.col("place") == "collective") & pl.col("op").is_not_null())
    stood = set(beside.collect()["op"].to_list())
    return own if own["op"] is not None and len(stood) == 1 and own["op"] not in stood else None


def _function(frame: object) -> tuple[str, str]:
    """Name and file of ``Class.func (dir/file.py:12)``: the class and the folder are not always told."""
    return _place(frame)[:2]


def _in_another_call(rank: int, own: dict[str, object], odd: pl.DataFrame, lines: list[dict[str, object]]) -> Finding:
    """A rank that aborted in a call that the others had not come to."""
    others = ranks_words(odd["rank"].to_list())
    waited = operation_words(odd["last_op"][0], odd["last_seq"][0])
    # In one function a rank that takes a branch makes its own call in place of the others'.
    in_place = _function(own["user_frame"]) in {_function(site) for site in odd["last_call_site"].to_list()}
    causes = ("collective-mismatch", "collective-skipped") if in_place else ("collective-skipped", "collective-mismatch")
    return Finding(
        title=f"rank {rank} was in {own['op'] or 'a call'} at {own['user_frame']} and not in {waited}, where {others} were",
        summary=f"It received more bytes than it expected there and aborted, as the others were at {odd['last_call_site'][0]}: it left that call out, or made "
        "another one in its place.",
        cause=causes[0],
        confidence="medium",
        ranks=(rank,),
        subject=("gloo-size", str(odd["last_op"][0]), "another call"),
        evidence=(
            *cite([own], "where the rank stood that aborted"),
            *cite(lines, _TOO_MUCH),
            *cite(odd, "the last operation of the others"),
        ),
        remedy=f"Find the branch by which rank {rank} passes {odd['last_call_site'][0]} without the call.",
        prevention=COMPARE_CALLS,
        would_refute=(f"a Flight Recorder dump of rank {rank} that holds {waited}",),
        actions=(Action("fix-code", ranks=(rank,), confidence="medium", where=str(own["user_frame"])), COMPARED_AGAIN),
        alternatives=(
            (causes[1], (rank,), "it may have left that call out" if in_place else "it may have called something else in its place"),
        ),
    )


def _ahead(
    aborted: tuple[int, ...], step_leads: pl.LazyFrame, last_calls: pl.LazyFrame
) -> tuple[pl.DataFrame, list[dict[str, object]]] | None:
    """The ranks whose loops told one step more than those of at least two others, and where these stood: in other lines, and not in a call of
    a root, which some have done with while others are in it. Those that aborted are of one side."""
    leads = step_leads.collect()
    ahead, others = set(leads["rank"].to_list()), set(leads["others"].explode().drop_nulls().to_list())
    if len(others) < _OTHERS or not (set(aborted) <= ahead or set(aborted) <= others):
        return None
    stood = last_calls.filter(pl.col("user_frame").is_not_null() & pl.col("place").is_in(["collective", "backward"])).collect()
    ours, theirs = (stood.filter(pl.col("rank").is_in(list(side))) for side in (ahead, others))
    apart = ours.height and theirs.height and not set(ours["user_frame"]) & set(theirs["user_frame"])
    return (leads, theirs.to_dicts()) if apart and not set(theirs["op"]) & set(ROOTED) else None


def _a_step_further(
    aborted: tuple[int, ...], leads: pl.DataFrame, stood: list[dict[str, object]], lines: list[dict[str, object]]
) -> Finding:
    """Ranks that met others in a call of the same turn a step further on: they left a call out, or ended backward without a bucket."""
    row, who = leads.row(0, named=True), tuple(leads["rank"].to_list())
    passed, where = any(call["place"] == "backward" for call in stood), str(stood[0]["user_frame"])
    return Finding(
        cause="ddp-unused-parameter" if passed else "collective-skipped",
        title=f"{ranks_words(who)} came a step further than the others in as many calls: {ranks_words(aborted)} received more bytes than expected and aborted",
        summary=f"The training loop of {ranks_words(who)} has told step {row['step']}, and those of {ranks_words(row['others'])} step {row['others_step']}. Calls of "
        "one turn met whose sizes differ, so that "
        + (
            f"{ranks_words(who)} ended backward without a bucket of gradients that others reduced at {where}."
            if passed
            else f"{ranks_words(who)} left out the call in which others stood at {where}, or one before it."
        ),
        confidence="medium",
        ranks=who,
        subject=("gloo-size", "a step further"),
        evidence=(*cite(leads, "the step that the others have not told"), *cite(lines, _TOO_MUCH)),
        remedy=f"Find the branch by which {ranks_words(who)} passes {where} without the call.",
        prevention=COMPARE_CALLS,
        would_refute=("lines of the others that were lost with their buffers, and tell the same step",),
        actions=(Action("fix-code", ranks=who, confidence="medium", where=where), *(() if passed else (COMPARED_AGAIN,))),
        alternatives=(("shape-mismatch", who, "with another size in a call that all make nobody gets a step further"),),
    )


def _sent_to_all(aborted: tuple[int, ...], endings: pl.LazyFrame) -> pl.DataFrame | None:
    """The one rank of the job that did not abort on what it received, where at least two others and all of them did: each of them received
    from somebody who was not among those that expected less."""
    ended = endings.filter(pl.col("rank").is_not_null()).sort("rank").collect()
    everybody = ended["rank"].unique().sort().to_list()
    left = ended.filter(~pl.col("rank").is_in(list(aborted)))
    whole = everybody == list(range(len(everybody)))
    return left if len(set(aborted)) >= 2 and whole and left["rank"].n_unique() == 1 and not left["own"].any() else None


#: So many others, at least, that have not told the step: of two the aborted one may have lost its line.
_OTHERS = 2
#: Bytes of the widest element of a real number.
_WIDEST = 8


def _from_the_sender(sent: pl.DataFrame) -> Finding:
    """The neighbour that sent too much. Twice, four or eight times as much is what a wider type sends; but so does a larger tensor."""
    row = sent.row(0, named=True)
    sender, ratio = (row["sender"],), row["got_bytes"] / row["expected_bytes"]
    wider = ratio in (2, 4, 8) and row["width"] * ratio <= _WIDEST
    # What comes next by the steps before has segments of just this length.
    left = row["ahead"] is not None and not wider
    waited, others = operation_words(row["op"], row["seq"]), ranks_words(row["agreeing"])
    confidence: Confidence = "low" if wider else "medium"
    title = f"{ranks_words(sender)} sent {ratio:.3g} times the bytes in {waited} that {others} brought to it"
    return Finding(
        title=f"{ranks_words(sender)} left out {waited}, to which {others} came, or a call before it"
        if left
        else title + (": most likely another data type" if wider else ""),
        summary=f"In gloo's ring rank {row['receiver']} receives from {ranks_words(sender)} alone: it got {row['got_bytes']} bytes where {row['expected_bytes']} "
        f"follow from the {row['dtype']} {row['shape']} that others recorded. "
        + (
            f"That is the length of a part of the {row['op']} of {row['ahead_shape']} that comes {row['ahead']} later in each step. "
            if left
            else ""
        )
        + f"Nothing in the evidence is a record of {ranks_words(sender)}.",
        cause="dtype-mismatch" if wider else "collective-skipped" if left else None,
        confidence=confidence,
        ranks=sender,
        subject=("gloo-size", str(row["op"])),
        divergence=Divergence(row["group_name"], None, row["seq"], row["op"]),
        evidence=(
            *cite(
                [{"source_id": row["line_source_id"], "line_no": row["line_no"]}],
                f"what rank {row['receiver']} received from its neighbour",
            ),
            *cite([{"source_id": row["source_id"], "record": row["record"]}], f"what {others} brought"),
        ),
        remedy=f"Compare the tensor's shape and type on {ranks_words(sender)} at {row['call_site'] or 'that collective'}.",
        prevention=COMPARE_CALLS,
        would_refute=(f"a Flight Recorder dump of {ranks_words(sender)} with the sizes of the others",),
        actions=(Action("fix-code", ranks=sender, confidence=confidence, where=row["call_site"]), COMPARED_AGAIN),
        alternatives=(
            (("shape-mismatch" if wider or left else "dtype-mismatch"), sender, _BY_BYTES),
            *(() if left else (("collective-skipped", sender, "it may have been in another all_reduce"),)),
        ),
    )


def _of_the_exchange(sent: pl.DataFrame) -> Finding:
    """The one rank that sent more than all others, by what another received too much."""
    row = sent.row(0, named=True)
    sender, waited, others = (row["sender"],), operation_words(row["op"], row["seq"]), ranks_words(row["agreeing"])
    who, receiver, more = ranks_words(sender), f"rank {row['receiver']}", row["got_bytes"] - row["expected_bytes"]
    return Finding(
        title=f"{who} sent {receiver} {more:,} bytes more in {waited} than that one expected",
        summary=f"{who} recorded {row['dtype']} {row['shape']} there and {others} {row['usual_shape']}: that is as many bytes more as {receiver} received too much, "
        "and aborted on.",
        confidence="medium",
        ranks=sender,
        subject=("gloo-size", str(row["op"]), "exchange"),
        divergence=Divergence(row["group_name"], None, row["seq"], row["op"]),
        evidence=(
            *cite([{"source_id": row["line_source_id"], "line_no": row["line_no"]}], f"what {receiver} received too much"),
            *cite([{"source_id": row["source_id"], "record": row["record"]}], f"what {who} brought"),
        ),
        remedy=f"Compare the counts that {who} sends at {row['call_site'] or 'that collective'} with those that {receiver} expects of it.",
        prevention="Exchange the counts (all_to_all of the sizes) before the tokens.",
        would_refute=(f"counts of {receiver} that differ from what the others send it",),
        actions=(Action("fix-code", ranks=sender, confidence="medium", where=row["call_site"]),),
        alternatives=(("argument-mismatch", (row["receiver"],), None),),
    )


def _before_the_exchange(left: pl.DataFrame) -> Finding:
    """The one rank that went on to the next exchange, by its own steps before and what the others expected."""
    row = left.row(0, named=True)
    who, receivers, waited = (row["rank"],), ranks_words(row["receivers"]), operation_words(row["op"], row["seq"])
    return Finding(
        title=f"{ranks_words(who)} left out {waited}, in which {receivers} received what it sent in the next one",
        summary=f"{receivers} expected {row['expected_bytes']} bytes of each, as of the {row['op']} of {row['left_shape']} that comes here in the steps before, and "
        f"aborted on {row['got_bytes']}, which is what each gets of the {row['made_shape']} that {ranks_words(who)} recorded here and that comes behind it.",
        cause="collective-skipped",
        confidence="medium",
        ranks=who,
        subject=("gloo-size", str(row["op"]), "left out"),
        divergence=Divergence(row["group_name"], row["comm_id"], row["seq"], row["op"]),
        evidence=(
            *cite([whereabouts(row)], f"what {ranks_words(who)} called here"),
            *cite([{"source_id": row["said_source_id"], "line_no": row["said_line_no"]}], _TOO_MUCH),
        ),
        remedy=f"Find the branch by which {ranks_words(who)} comes to {row['call_site'] or 'this call'} without the {row['op']} before it.",
        prevention=COMPARE_CALLS,
        would_refute=(f"a Flight Recorder dump of one of {receivers} with the sizes of {ranks_words(who)}",),
        actions=(Action("fix-code", ranks=who, confidence="medium", where=row["call_site"]), COMPARED_AGAIN),
        alternatives=(("shape-mismatch", who, "another size at this position leaves the same message"),),
    )


def _placed(ring_receivers: pl.LazyFrame) -> pl.DataFrame | None:
    """Those that could not receive one and the same operation, if fewer ranks are odd than agree."""
    found = ring_receivers.sort("receiver").collect()
    if not found.height or found.select("group_name", "seq").n_unique() != 1:
        return None
    odd, agreeing = set(found["odd"].to_list()), set(found["agreeing"].explode().to_list())
    return found if found.height == 1 or (not odd & agreeing and len(odd) < len(agreeing)) else None


def _by_length(found: pl.DataFrame, last_calls: pl.LazyFrame | None) -> Finding:
    """The ranks whose call was not the one that the length of what came belongs to."""
    row = found.row(0, named=True)
    odd = tuple(sorted(set(found["odd"].to_list())))
    who, waited, others = ranks_words(odd), operation_words(row["op"], row["seq"]), ranks_words(row["agreeing"])
    cause = _what_differs(row, odd, last_calls)
    title = {
        "ddp-unused-parameter": f"{who} ended backward without {waited}, a bucket of gradients that {others} reduced",
        "collective-skipped": f"{who} left out {waited}, to which {others} came",
    }.get(cause, f"{who} brought another size or type to {waited} than {'before' if row['odd'] != row['receiver'] else others}")
    own = f" Its own length is that of {operation_words(row['op'], row['own_seq'])}." if row["own_seq"] is not None else ""
    confidence: Confidence = "low" if cause == "dtype-mismatch" else "medium"
    return Finding(
        title=title,
        summary=f"rank {row['receiver']} received {row['got_bytes']} bytes where it expected {row['expected_bytes']}, and aborted. In gloo's ring that is the "
        f"length of a part of {waited}, {row['dtype']} {row['shape']}, which {others} recorded.{own}",
        cause=cause,
        confidence=confidence,
        ranks=odd,
        subject=("gloo-size", str(row["op"])),
        divergence=Divergence(row["group_name"], None, row["seq"], row["op"]),
        evidence=(
            *cite(found.select("line_no", source_id="line_source_id"), _TOO_MUCH),
            *cite(found.select("source_id", "record").unique(maintain_order=True), "what it was sent"),
        ),
        remedy=f"Find what {who} does otherwise than the others at {row['call_site'] or 'that collective'}.",
        prevention=COMPARE_CALLS,
        would_refute=(f"a Flight Recorder dump of rank {row['receiver']} that holds {waited} in the size of the others",),
        # A comparison of calls tells nothing of gradients that never came.
        actions=(
            Action("fix-code", ranks=odd, confidence=confidence, where=row["call_site"]),
            *(() if cause == "ddp-unused-parameter" else (COMPARED_AGAIN,)),
        ),
        alternatives=tuple((other, odd, against) for other, against in _INSTEAD[cause]),
    )


_TYPES = ("dtype-mismatch", _BY_BYTES)
_SIZES = ("shape-mismatch", "another size at this position leaves the same message")
#: What else leaves the same lengths.
_INSTEAD = {
    "ddp-unused-parameter": (("collective-skipped", "no bucket is reduced under no_sync either"),),
    "collective-skipped": (_SIZES, _TYPES),
    "dtype-mismatch": (_SIZES,),
    "shape-mismatch": (_TYPES,),
}


def _what_differs(row: dict[str, object], odd: tuple[int, ...], last_calls: pl.LazyFrame | None) -> str:
    """The cause, by where the odd ranks stood in a call (which a wait for an earlier one does not tell) and by how the lengths differ."""
    called = pl.col("rank").is_in(list(odd)) & pl.col("user_frame").is_not_null() & pl.col("op").is_not_null()
    stood = {_place(f) for f in last_calls.filter(called).collect()["user_frame"].to_list()} if last_calls is not None else set()
    here = _place(row["call_site"]) in stood
    if row["by_reducer"] and not here:
        # It came to what follows backward. The reducer of all ranks has the same buckets: it compares them when it is made.
        return "ddp-unused-parameter"
    # In the same function it may make that very call in another branch.
    away = bool(stood) and _function(row["call_site"]) not in {place[:2] for place in stood}
    behind = row["own_seq"] is not None and not here and (not stood or _place(row["own_call_site"]) in stood)
    if row["odd"] == row["receiver"] and (away or behind):
        return "collective-skipped"
    if row["one_type"]:
        return "shape-mismatch"
    return "dtype-mismatch" if int(str(row["got_bytes"])) in {n * int(str(row["expected_bytes"])) for n in (2, 4, 8)} else "shape-mismatch"


def _place(frame: object) -> tuple[str, str, int | None]:
    """Function, file and line of ``Class.func (dir/file.py:12)``: the class and the folder are not always told."""
    name, path, line = split_frame(str(frame))
    return name.rpartition(".")[2], path.rpartition("/")[2], line


#: Operations whose sizes differ between ranks by right: who sent too much is not known.
_UNEVEN = ("all_to_all", "alltoall", "scatter")


def _the_unrecorded(ranks: tuple[int, ...], progress: pl.LazyFrame, groups: pl.LazyFrame) -> pl.DataFrame | None:
    """The last operation of the other members of the group, if they (two at least) are level in it and only this rank is not recorded."""
    state = progress.filter((pl.col("domain") == "fr") & pl.col("last_created_ns").is_not_null()).collect()
    if ranks[0] in state["rank"].to_list():
        return None
    world = max([*state["rank"].to_list(), *ranks], default=0) + 1
    sizes = dict(groups.filter(pl.col("domain") == "fr").select("group_key", "size").collect().iter_rows())
    latest = state.sort("last_created_ns").unique("rank", keep="last")
    for (key,), part in latest.group_by("group_key", maintain_order=True):
        size = sizes.get(key) or world
        if str(part["last_op"][0]).startswith(_UNEVEN):
            continue
        if part.height >= 2 and part["last_seq"].n_unique() == 1 and size == part.height + 1:
            return part.sort("rank")
    return None
