"""What several rules about ranks that traces show late say alike, from the ``late_ranks`` view."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import polars as pl

from nccl_forensics.evidence import AT_MOST, cite
from nccl_forensics.model import CONFIDENCES, Action, Culprit, Finding
from nccl_forensics.rules.common.advice import RECORD_STACKS
from nccl_forensics.words import ranks_words, time_words

#: What a late rank did meanwhile, in words.
_MEANWHILE = {
    "compute": "its computation takes longer than its peers'",
    "memcpy": "it copies more than its peers",
    "loader": "it sits in its data loader longer than its peers",
    "gc": "it collects garbage while its peers do not",
    "lead": "it sits between the begin of the step and its first operator, where a loop takes its next batch",
    "host": "neither its device nor its host runs anything that the trace shows",
}


#: Fewer traced collectives say nothing of a habit.
_FEW = 4


#: Chance that a rank that is like its peers costs most in so many steps, up to which it may be named, and from which on nothing else is
#: needed.
_BY_CHANCE, _HARDLY, _SURELY = 0.12, 0.02, 0.001


#: What a rank does by itself, that no role in the job asks of it.
_OF_ITS_OWN = ("gc", "loader", "memcpy")
#: What it does on its host, which a batch that is longer to compute does not ask for; and the chance of its last places that is then enough.
_NOT_BY_BATCH, _SEEN_CHANCE = ("gc", "loader", "lead"), 0.01


#: Of several groups: so much of what the others lose to a rank must be time that it took itself, or it was kept by another group.
_ITSELF = 0.5


#: Of three delays that are about alike the worst makes up no more.
_ONE_OF_THREE = 0.45


def late_rows(
    late_ranks: pl.LazyFrame, *, lost_share: float, window_share: float, p_value: float, at_least: int
) -> list[dict[str, object]]:
    """Groups in which one rank costs the others a good part of the traced time, and not by chance: it comes last too often for that, or it
    alone costs a quarter of the time, at three collectives or more of which none makes up most of that. Of a few steps with one collective
    each, half of the time must be lost to it, and what it did meanwhile must be seen; of two ranks so too, in all of three steps or more,
    where it is nothing that one of two may be meant to do. Beside a rank of another group that costs more, one is told by the steps of its
    own group; of ranks in several groups one counts where it waits less than its peers, in all that it is in. One step that lost most to it
    is left aside. Who is late by a batch that is longer this time is last in all collectives of a step, so that steps are what counts where
    they are marked; a rank that nearly alone costs most in one step after the other needs no more."""
    window = pl.coalesce("habit_share", "window_share")
    enough = (pl.col("members") > 2) & (pl.col("collectives") >= at_least) & (pl.col("last_count") >= 3)
    # Two of three steps are soon said of some rank among many.
    steps = (pl.col("last_steps") >= 3) | (pl.col("last_steps") == pl.col("slow_steps"))
    steady = pl.col("step_chance").is_null() | ((pl.col("step_chance") <= _BY_CHANCE) & steps)
    alone = (pl.col("step_chance") <= _HARDLY) & (pl.col("lost_share") >= 0.8) & (window >= 0.1)
    costly = (pl.col("lost_share") >= lost_share) & (window >= window_share)
    # A start that is slow once delays the two or three calls that go out together.
    often = (pl.col("worst_ms") <= _ONE_OF_THREE * pl.col("lost_ms")).fill_null(value=True)
    sure = (pl.col("p_value") <= p_value) | ((window >= 0.25) & (pl.col("lost_share") >= 0.9) & often)
    sure |= pl.col("reason").is_in(_NOT_BY_BATCH) & (pl.col("reason_share") >= 0.6) & (pl.col("p_value") <= _SEEN_CHANCE) & (window >= 0.2)
    few = (
        (pl.col("members") > 2)
        & (pl.col("collectives") >= _FEW)
        & (pl.col("last_count") >= 3)
        & (pl.col("worst_ms") <= 0.7 * pl.col("lost_ms"))
    )
    seen = (window >= 0.5) & (pl.col("lost_share") >= 0.9) & (pl.col("reason_share") >= 0.8) & (pl.col("reason") != "host")
    own = pl.col("reason").is_in(_OF_ITS_OWN) & (window >= 0.2) & (pl.col("lost_share") >= 0.9) & (pl.col("reason_share") >= 0.8)
    of_two = (pl.col("members") == 2) & (pl.col("collectives") >= _FEW) & (pl.col("worst_ms") <= 0.7 * pl.col("lost_ms"))
    always = (pl.col("last_steps") >= 3) & (pl.col("last_steps") == pl.col("slow_steps"))
    # Several that are slow at once, each in a group of its own, share the steps in which they cost most.
    beside = enough & sure & (pl.col("group_step_chance") <= _HARDLY)
    told = (steady & ((enough & costly & sure) | (few & seen).fill_null(value=False))) | (own & ((of_two & always) | beside)).fill_null(
        value=False
    )
    itself = (pl.col("own_share") >= _ITSELF).fill_null(value=True)
    rows = (
        late_ranks.filter((told | alone.fill_null(value=False)) & itself).sort("lost_ms", "group_key", descending=[True, False]).collect()
    )
    return rows.unique("rank", keep="first", maintain_order=True).to_dicts()


def late_words(row: Mapping[str, object]) -> str:
    """How late a rank of ``late_ranks`` was, and what it did meanwhile."""
    chance = float(str(row["p_value"]))
    said = (
        f"In the profiler traces it came last to {row['last_count']} of the {row['material']} collectives in which somebody was late, and the "
        f"others lost {float(str(row['lost_ms'])):,.0f} ms to it: {float(str(row['window_share'])):.0%} of the traced time and "
        f"{float(str(row['lost_share'])):.0%} of all time lost to late arrivals"
        + (f" (chance of so many last places if all were alike: {chance:.1g})." if chance < 0.05 else ".")
    )
    if row["reason"] is None:
        return f"{said} What it does instead, the trace does not show."
    return f"{said} Meanwhile {_MEANWHILE[str(row['reason'])]} ({float(str(row['reason_ms'])):,.0f} ms)."


def late_finding(row: Mapping[str, object], title: str, *, remedy: str, prevention: str) -> Finding:
    """A finding about a rank of ``late_ranks`` of which the trace tells why it is late."""
    rank = int(str(row["rank"]))
    spans = [{"source_id": row["span_source_id"], "record": row["span_record"]}] if row["span_record"] else []
    return Finding(
        title=title,
        summary=late_words(row),
        severity="error",
        confidence="high" if _always_many(row) or _always_dear(row) else "medium",
        ranks=(rank,),
        subject=("traces", str(row["group_desc"] or row["group_name"] or "all ranks"), str(rank)),
        evidence=(
            *cite(spans, str(row["span_name"])),
            *cite([row], "the collective to which it came latest: its own time in it is the shortest"),
        ),
        evidence_total=int(str(row["last_count"])),
        remedy=remedy,
        prevention=prevention,
        would_refute=("other windows of the job show another rank last", "its peers spend as long in the same place"),
        actions=(Action("collect-more", ranks=(rank,), command=RECORD_STACKS),),
        metrics={
            "lost_ms": round(float(str(row["lost_ms"])), 1),
            "late": int(str(row["last_count"])),
            "p_value": float(f"{float(str(row['p_value'])):.3g}"),
            "reason": str(row["reason"]),
        },
    )


def _always_many(row: Mapping[str, object]) -> bool:
    """Whether a rank comes last far too often for chance, in one step after the other, to a group that the traces name."""
    return bool(row["group_known"]) and float(str(row["p_value"])) <= 1e-6 and in_all_steps(row)


#: A rank that costs this share of all that is lost in its group and of the time, in each of so many steps, for a reason that shows.
_ALL_LOST, _DEAR, _STEPS, _DOUBTED, _SHOWN = 0.95, 0.25, 4, 0.005, 0.8


def _always_dear(row: Mapping[str, object]) -> bool:
    """Whether a rank alone costs each step a good part of its time, in the one group of a job without sends and receives: it waits for nobody
    there, and what it does meanwhile makes up for it."""
    if not row["only_group"] or row["own_share"] is not None or row["step_chance"] is None or row["reason_share"] is None:
        return False
    each = int(str(row["last_steps"])) == int(str(row["slow_steps"])) >= _STEPS and float(str(row["step_chance"])) <= _DOUBTED
    dear = float(str(row["lost_share"])) >= _ALL_LOST and float(str(row["habit_share"] or 0.0)) >= _DEAR
    return each and dear and float(str(row["reason_share"])) >= _SHOWN


#: What a rank does on its host, as its traces measure it, and the cause that it then has.
_ON_ITS_HOST = {"loader": "input-stall", "gc": "host-stall"}


def because(found: Finding, trace_measures: pl.LazyFrame, reason_share: float) -> Finding:
    """The finding about ranks that work while others wait, with the cause that their traces tell: what each does more of than the middle of
    the others, where that is this share of what it waits less than they."""
    shares = (pl.col(f"{what}_ms").sum() / pl.col("span_ms").sum() for what in (*_ON_ITS_HOST, "exposed"))
    rows = trace_measures.filter((pl.col("window") == "whole") & (pl.col("span_ms") > 0)).group_by("rank").agg(*shares).collect()
    own, others = rows.filter(pl.col("rank").is_in(found.ranks)), rows.filter(~pl.col("rank").is_in(found.ranks))
    if not others.height or own.height < len(found.ranks):
        return found
    longer = float(str(others["exposed_ms"].median() or 0.0)) - own["exposed_ms"]
    for what, cause in _ON_ITS_HOST.items():
        more = own[f"{what}_ms"].fill_null(0.0) - float(str(others[f"{what}_ms"].median() or 0.0))
        if bool(((longer > 0) & (more >= reason_share * longer)).all()):
            return replace(
                found, cause=cause, summary=f"{found.summary} Meanwhile {_MEANWHILE[what]} ({float(str(more.min())):.0%} of the time)."
            )
    return found


def in_all_steps(row: Mapping[str, object]) -> bool:
    """Whether it is beyond doubt that a rank comes late in one step after the other, or steps are not marked."""
    return row["step_chance"] is None or float(str(row["step_chance"])) <= _SURELY


def stalled_or_late(
    stalled: Iterable[Finding],
    late_ranks: pl.LazyFrame | None,
    reasons: tuple[str, ...],
    what: str,
    *,
    reason_share: float,
    lost_share: float,
    window_share: float,
    p_value: float,
    at_least: int,
    remedy: str,
    prevention: str,
) -> Iterator[Finding]:
    """Findings about ranks of a job that stands still; then one for all other ranks that traces show late for one of these reasons.

    ``what``: what such a rank does while the others wait.
    """
    known: set[int] = set()
    for found in stalled:
        known.update(found.ranks)
        yield found
    if late_ranks is None:
        return
    rows = [
        row
        for row in late_rows(late_ranks, lost_share=lost_share, window_share=window_share, p_value=p_value, at_least=at_least)
        if row["reason"] in reasons and row["rank"] not in known and float(str(row["reason_share"])) >= reason_share
    ]
    late = [
        late_finding(
            row,
            f"rank {row['rank']} keeps the others waiting while {what}: {time_words(row['lost_ms'])} lost in the traced steps",
            remedy=remedy,
            prevention=prevention,
        )
        for row in rows
    ]
    if len(late) > 1:
        yield together(late, f"keep the others of their groups waiting, each while {what}")
    else:
        yield from late


def together(late: Sequence[Finding], words: str) -> Finding:
    """One finding of several, each about a rank that comes late for the same reason."""
    ranks = tuple(sorted(r for found in late for r in found.ranks))
    return replace(
        late[0],
        title=f"{ranks_words(ranks)} {words}",
        summary=" ".join(f"{ranks_words(found.ranks).capitalize()}: {found.summary}" for found in late),
        confidence=max((found.confidence for found in late), key=CONFIDENCES.index),
        ranks=ranks,
        culprits=tuple(Culprit(rank=r) for r in ranks),
        subject=("traces", ",".join(map(str, ranks))),
        evidence=tuple(e for found in late for e in found.evidence)[:AT_MOST],
        evidence_total=sum(found.evidence_total or 0 for found in late),
        actions=tuple(replace(action, ranks=ranks) for action in late[0].actions),
    )
