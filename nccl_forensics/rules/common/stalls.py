"""What the rules about ranks that hold the others up say alike, from the ``stalls`` view."""

from __future__ import annotations

import re
from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import AT_MOST, at_frame, cite, whereabouts
from nccl_forensics.model import Action, Confidence, Divergence, Evidence, Finding
from nccl_forensics.words import group_words, operation_words, ranks_words, verb

#: Causes that say in which call a rank stands: whose stack or record is missing is never given one of these.
_CIRCLES = ("p2p-deadlock", "group-deadlock")
#: Causes that lie where the rank itself stands.
_WHERE_IT_STANDS = ("input-stall", "host-stall")
#: What the silence of a rank may be as well: a rank that leaves nothing may be gone, elsewhere in the program, or held up by its GPU.
_SILENCE = ("rank-died", "host-stall", "collective-skipped", "gpu-stall")
#: The stack of a process that the verdict names, to be run beside it.
_STACK = "py-spy dump --pid <pid>"
#: Places and reasons that are told one by one.
_TOLD = 3


def stall_findings(
    stalls: pl.LazyFrame, cause: str, words: tuple[str, str], *, remedy: str, prevention: str, action: str, there: str = "at"
) -> Iterator[Finding]:
    """One finding for all ranks whose stall has this cause and these reasons alike, the surest first; ``words``: for one and for several;
    ``there``: what leads from them to the line of the stalled rank's own stack."""
    rows = stalls.filter(pl.col("cause") == cause).sort("rank").collect()
    order: list[Confidence] = ["high", "medium", "low"]
    for confidence in order:
        part = rows.filter(pl.col("confidence") == confidence)
        if not part.height:
            continue
        ranks = tuple(part["rank"].to_list())
        first = part.row(0, named=True)
        waiters = sorted({w for ws in part["waiters"].to_list() for w in (ws or [])} - set(ranks))
        unheard = _unheard(part, cause)
        said = "never came, and nothing in the evidence is " + verb(ranks, "its own", "their own") if unheard else verb(ranks, *words)
        placed = part["user_frame"].drop_nulls().len() > 0
        where = f" {there} {_listed(part['user_frame'])}" if placed else ""
        waited = operation_words(first["op"], first["seq"]) if first["op"] else "a collective"
        group = f" of {group_words(first)}" if first["group_key"] else ""
        # Others wait for those who wait in this group: they stand in groups of their own.
        here = part.filter(pl.col("group_key").eq_missing(pl.lit(first["group_key"])))
        inside = sorted({w for ws in here["in_group"].to_list() for w in (ws or [])} - set(ranks)) or waiters
        behind = len(set(waiters) - set(inside))
        # What a GPU has not finished its peers may have behind them: they stand in what comes next.
        # So may the peer of one that made a call once more.
        beyond = cause == "gpu-stall" or (cause == "collective-mismatch" and not placed)
        ahead = f"for {verb(ranks, 'it', 'them')}, at {waited}{group} or beyond" if beyond else f"in {waited}{group}"
        peers = (
            f"; {ranks_words(inside)} {verb(inside, 'waits', 'wait')} {ahead}"
            + (
                f"{',' * (cause == 'gpu-stall')} and {behind:,} other{'s' if behind > 1 else ''} behind {verb(inside, 'it', 'them')}"
                if behind
                else ""
            )
            if waiters
            else f" (missing in {waited}{group})"
        )
        looked = " Several samples of its stack agree." if len(ranks) == 1 and first["stands"] else ""
        yield Finding(
            title=f"{ranks_words(ranks)} {said}{where}{peers}",
            summary=f"{_reasons(part)}."
            + looked
            + (f" The others {'called it' if cause == 'gpu-stall' else 'wait'} at {first['call_site']}." if first["call_site"] else ""),
            confidence=confidence,
            ranks=ranks,
            subject=(
                str(first["user_frame"] or first["place"] or ""),
                str(first["group_desc"] or first["group_name"] or ""),
                str(first["op"] or ""),
            ),
            divergence=Divergence(first["group_name"], first["comm_id"], first["seq"], first["op"]) if first["group_key"] else None,
            evidence=_evidence(part, first, named_by_others=not waiters),
            remedy=_remedy(remedy, part, cause, unheard=unheard),
            prevention=prevention,
            would_refute=_refuting(part, cause, f"{waited}{group}" if first["op"] else None, unheard=unheard),
            actions=_actions(action, part, cause, confidence, unheard=unheard),
            alternatives=_alternatives(part, ranks, cause, unheard=unheard),
            metrics={"waiting_ranks": len(waiters)},
        )


def _unheard(part: pl.DataFrame, cause: str) -> bool:
    """Whether the walk over the waits ends at these ranks, and nothing in the evidence is their own."""
    bare = part["own_source_id"].null_count() == part.height == part["stack_source_id"].null_count()
    return bare and part["seen_by"][0] == "progress" and cause not in _CIRCLES


def _evidence(part: pl.DataFrame, first: dict[str, object], *, named_by_others: bool) -> tuple[Evidence, ...]:
    """The stack of each, the operation in which another waits for it, and its own last one there."""
    every = list(part.head(AT_MOST).iter_rows(named=True))
    own = [whereabouts(r, "own_") for r in every]
    # Where its own steps alone tell that it left a call out, what is cited is its own on both sides.
    beyond = named_by_others and first["cause"] == "collective-skipped"
    waits = (
        f"a {'peer' if first['cause'] == 'gpu-stall' else 'waiting rank'}'s {first['op']}" if first["op"] else "a rank that gave up waiting"
    )
    named = "its last call of that group" if beyond else "what names the rank" if named_by_others else waits
    first_of_all = first["comm_id"] is not None and first["seq"] == 0
    own_words = "its own last operation, in another group" if first_of_all else "the stalled rank's own last operation in that group"
    if first["seen_by"] == "endings":
        own_words = "what is last told of the rank that did not time out"
    return (
        *(e for row in every for e in _stack(row, f"stack of the stalled rank: {first['place']}")),
        *at_frame(cite(part.drop("why"), named), first["call_site"]),
        *cite(own, "the call to which it went on" if beyond else own_words),
    )


def _stack(row: dict[str, object], why: str) -> tuple[Evidence, ...]:
    """The line of a rank's own stack at which it stands."""
    return at_frame(cite([whereabouts(row, "stack_")], why), row["user_frame"])


def _remedy(usual: str, part: pl.DataFrame, cause: str, *, unheard: bool) -> str:
    """What to do: first of all to look, where no line of the program is known at which the ranks stand."""
    ranks = part["rank"].to_list()
    it, its = verb(ranks, "it", "they"), verb(ranks, "its", "their")
    if unheard:
        return (
            f"Get the log, the dump or a stack of {ranks_words(ranks)} first: whether {it} died, {verb(ranks, 'stands', 'stand')} still or left the call "
            "out is not in what was handed in."
        )
    if cause == "host-stall" and not part["user_frame"].drop_nulls().len():
        return (
            f"Take stacks of {ranks_words(ranks)}: no stack says what {it} {verb(ranks, 'does', 'do')} on {its} host{verb(ranks, '', 's')}."
        )
    return usual


def _actions(action: str, part: pl.DataFrame, cause: str, confidence: Confidence, *, unheard: bool) -> tuple[Action, ...]:
    """What to do: at which line, or what to collect beside which rank where that is not known."""
    ranks = tuple(part["rank"].to_list())
    frame = _one(part["user_frame"])
    look = Action("collect-more", ranks=ranks, command=_STACK, confidence=confidence)
    if unheard or (cause == "host-stall" and frame is None):
        return (look,)
    if action in ("collect-more", "collect_more"):
        return (Action("collect-more", ranks=ranks, command="dmesg -T; nvidia-smi -q", confidence=confidence),)
    where = frame if cause in _WHERE_IT_STANDS else _one(part["call_site"]) or frame
    return (Action(action, ranks=ranks, where=where, confidence=confidence),)


def _one(places: pl.Series) -> str | None:
    """The line of code, where it is one."""
    told = places.drop_nulls().unique().to_list()
    return str(told[0]) if len(told) == 1 else None


def _alternatives(
    part: pl.DataFrame, ranks: tuple[int, ...], cause: str, *, unheard: bool
) -> tuple[tuple[str, tuple[int, ...], str | None], ...]:
    """Other causes that were weighed; without a word against it where nothing in the evidence tells them apart."""
    if unheard:
        return tuple((other, ranks, None) for other in _SILENCE if other != cause)
    told = part.filter(pl.col("alternative").is_not_null()).group_by("alternative", "against", maintain_order=True).agg("rank")
    return tuple((str(cause), tuple(of), None if against is None else str(against)) for cause, against, of in told.iter_rows())


def _refuting(part: pl.DataFrame, cause: str, waited: str | None, *, unheard: bool) -> tuple[str, ...]:
    """What would show the finding to be wrong: something that is not in the evidence yet."""
    ranks = part["rank"].to_list()
    who = ranks_words(ranks)
    if unheard:
        return (
            f"a log, dump or stack of {who} that shows {verb(ranks, 'it in this call, or its end', 'them in this call, or their end')}",
        )
    if cause == "collective-skipped" and waited is not None:
        return (f"an entry of {who} for {waited} in another dump or log",)
    if cause == "gpu-stall":
        return (f"a later dump of {who} in which what stands open is completed",)
    if cause in _CIRCLES:
        return ("a later dump or stack in which one of these calls has ended",)
    stack = verb(ranks, "this rank's stack", "the stack of one of these ranks")
    if part["stands"].fill_null(value=False).all():
        return (f"a later sample of {stack} that stands elsewhere: then it moves",)
    return (f"two samples of {stack} that differ: then it moves",)


def _listed(frames: pl.Series) -> str:
    """The lines in which ranks stand, each once."""
    places = frames.drop_nulls().unique(maintain_order=True).to_list()
    more = len(places) - _TOLD
    return " and ".join([", ".join(places[:_TOLD]), f"{more} other place{'s' if more > 1 else ''}"] if more > 0 else places)


def _reasons(part: pl.DataFrame) -> str:
    """Why these ranks are taken to stand where they do: once where it is the same of all, else of each."""
    told = part.group_by("why", maintain_order=True).agg("rank").rows()
    if len(told) == 1:
        why, ranks = told[0]
        return str(why) if len(ranks) == 1 or not _OF_ONE.match(str(why)) else f"each of them: {why}"
    more = sum(len(ranks) for _, ranks in told[_TOLD:])
    return "; ".join(f"{ranks_words(ranks)}: {why}" for why, ranks in told[:_TOLD]) + (f"; and {more} more alike" if more else "")


#: A reason in words of one rank.
_OF_ONE = re.compile("its? |everything it |work is enqueued on its |the GPUs of its peers |a monitored barrier names it ")
