"""One rank keeps arriving late to the collectives of its process group.

## What it finds
Ranks that come last in a good share of their group's collectives and by a margin that costs real time. Measured by the enqueue times of the
Flight Recorder after taking off each host's clock offset, and by profiler traces without any clock: a collective ends on all ranks together,
so the rank that is in it for the shortest time came last. In a mesh of pairs on one host, where who is late makes its neighbours late in their
other groups: the one rank that never waits; so too by traces, where who is late is not the last to leave the operation that it was late to (who
sends to it goes on), or of which each step holds one time between two collectives that is many times the longest of any other; several
ranks, where these work and every other waits, as those of one host of GPUs may. Of several that make sends and receives, which gloo's recorder does not hold, one may wait
for another: those that no look at the stacks finds waiting, and else none. Where every rank but one left a trace, and all of these wait
alike in the same small call of each step: the one that left none, with low confidence. By traces whose steps are marked it must cost most
in more of them than chance would have it, since a long batch makes a rank late to all collectives of a step.

## Why it matters
A collective runs at the pace of its last rank: one straggler slows the whole group.

Of fewer collectives than can be compared (four to seven), a rank that is late to nearly all of them is a warning. Of a few steps, to which
it was late three or four times, it is named with low confidence where they lost half of their time to it and no other rank was late like
that.

A rank that alone of its group works with others outside of it (a trainer among those that generate) may be meant to come last: nothing is
said of that group.

A rank that is late to what the others wait for only behind their own work, as traces show, is not named either. A rank that is late in the traced steps only, while recorders of the whole run show that little was lost to it, is not named.

## What would refute it
Every rank of that host trails alike: then look at the host's clock first. Its enqueue is late because it waited for another group.

## What to do next
Compare the rank's input pipeline, GPU clocks and throttling with its neighbours; take its stack twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Annotated, Any

import polars as pl

from nccl_forensics.evidence import cite, cite_absence
from nccl_forensics.model import Action, Culprit, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.advice import LOG_LAG, LOOK_BETWEEN, RECORD_STACKS
from nccl_forensics.rules.common.late import because, in_all_steps, late_finding, late_rows, late_words, together
from nccl_forensics.values.chances import tail
from nccl_forensics.words import group_words, ranks_words, time_words, verb


@rule(name="straggler", code="ST01", cause="straggler", severity="error", at_most=4, explains=("communication-bound", "low-overlap"))
def straggler(
    lag: pl.LazyFrame | None,
    late_ranks: pl.LazyFrame | None = None,
    own_time: pl.LazyFrame | None = None,
    unseen_late: pl.LazyFrame | None = None,
    trace_own_time: pl.LazyFrame | None = None,
    unheld_calls: pl.LazyFrame | None = None,
    thread_states: pl.LazyFrame | None = None,
    trace_measures: pl.LazyFrame | None = None,
    bridges: pl.LazyFrame | None = None,
    trace_lag: pl.LazyFrame | None = None,
    trace_arrivals: pl.LazyFrame | None = None,
    *,
    late_at_least: Annotated[int, "collectives that a rank must come last to, by 50 ms or more"] = 5,
    lost_share: Annotated[float, "share of all time lost to waiting that must be this rank's"] = 0.6,
    time_share: Annotated[float, "share of the window that must be lost to the rank, by enqueue times"] = 0.1,
    window_share: Annotated[float, "share of the traced time that the others must lose to it, by traces"] = 0.05,
    p_value: Annotated[float, "chance of so many last places among alike ranks, by traces"] = 0.001,
    late_chance: Annotated[float, "chance of so many late arrivals among alike ranks of all groups, by enqueue times"] = 0.01,
    at_least: Annotated[int, "collectives of the group that must be comparable"] = 8,
    own_share: Annotated[
        float, "share of the window that a rank must spend by itself, where groups are too small to compare arrivals"
    ] = 0.9,
    margin: Annotated[float, "share of the window by which that must exceed the time of every other rank"] = 0.25,
    reason_share: Annotated[
        float, "share of what it waits less that a rank must spend in its loader or in garbage collection, to be told so"
    ] = 0.6,
    unseen_share: Annotated[float, "share of the traced time that all ranks with a trace must wait for one without"] = 0.3,
    several_share: Annotated[float, "share of the traced time that all others must wait for several ranks of a job on GPUs"] = 0.15,
) -> Iterator[Finding]:
    """At most one rank per group: nobody is late where lateness is shared. A rank that both sources show is one finding."""
    shown = (
        late_rows(late_ranks, lost_share=lost_share, window_share=window_share, p_value=p_value, at_least=at_least)
        if late_ranks is not None
        else []
    )
    traced = {int(str(row["rank"])): row for row in shown}
    if lag is not None and bridges is not None:
        lag = _comparable(lag, bridges)
    late = list(_enqueued(lag, late_at_least, lost_share, time_share, at_least, late_chance)) if lag is not None else []
    late = [f for f in late if not _awaited_by_nobody(trace_lag, f, time_share)]
    found = [f for f in late if f.severity != "warning"]
    own = own_time.collect() if own_time is not None else None
    if own is not None:
        found = _each_by_itself([f for f in found if not _itself_waiting(own, f.ranks[0], margin)], own)
        found = found or list(_never_waiting(own, late_at_least, 2 * at_least, own_share, margin, _OTHER_CLOCKS))
        if unheld_calls is not None:
            found = [_apart_from_waits(f, unheld_calls, thread_states) for f in found]
    if not found and not traced:
        if lag is not None and unheld_calls is not None:
            found = list(_late_together(lag, unheld_calls, thread_states, time_share, at_least))
        found = found or _by_own_time_in_traces(trace_own_time, trace_measures, own_share, margin, reason_share)
        if not found and late_ranks is not None and trace_lag is not None and trace_arrivals is not None:
            found = list(_several_on_gpus(late_ranks, trace_lag, trace_arrivals, several_share, at_least))
        if not found and unseen_late is not None:
            yield from _unseen(unseen_late, unseen_share)
        if not found:
            yield from late[:1]
    for told in found:
        row = traced.pop(told.ranks[0], None) if told.ranks else None
        yield told if row is None else _traced_too(told, row)
    for rank, row in traced.items():
        if lag is not None and not _by_its_gpu(row) and _only_in_the_window(lag, rank, int(str(row["collectives"])), time_share):
            continue
        yield late_finding(
            row,
            f"rank {rank} was last in {row['last_count']} of {row['collectives']} traced collectives"
            f"{f' of {group_words(row)}' if row['group_known'] else ''}; the others lost {time_words(row['lost_ms'])} waiting for it",
            remedy=LOOK_BETWEEN,
            prevention=LOG_LAG,
        )


def _traced_too(told: Finding, row: Mapping[str, object]) -> Finding:
    """What recorders tell of a rank, with what its trace tells of it."""
    cited = cite([row], "the collective in its trace in which its own time is the shortest")
    sure = "high" if in_all_steps(row) else told.confidence
    return replace(told, summary=f"{told.summary} {late_words(row)}", confidence=sure, evidence=(*told.evidence, *cited))


def _by_own_time_in_traces(
    trace_own_time: pl.LazyFrame | None, trace_measures: pl.LazyFrame | None, own_share: float, margin: float, reason_share: float
) -> list[Finding]:
    """Ranks that traces show at work by themselves, whatever groups they are in, while all others wait."""
    if trace_own_time is None:
        return []
    own = trace_own_time.collect()
    found = list(_never_waiting(own, _FEW_GAPS, _FEW_COLLECTIVES, own_share, margin, _OTHER_STEPS)) or list(_longest(own, margin))
    return found if trace_measures is None else [because(f, trace_measures, reason_share) for f in found]


def _comparable(lag: pl.LazyFrame, bridges: pl.LazyFrame) -> pl.LazyFrame:
    """Without the groups that lose most to the one that alone of them works with others outside of it: so it may be meant to."""
    most = (pl.col("lost_ms") == pl.col("lost_ms").max().over("group_key")) & (pl.col("lost_ms") > 0)
    kept_waiting = lag.filter(most).join(bridges, on=["group_key", "rank"], how="semi").select("group_key")
    return lag.join(kept_waiting, on="group_key", how="anti", maintain_order="left")


#: A recorder that holds so many times the collectives of the traces speaks for the whole run, of which they are a moment.
_WHOLE_RUN = 4


def _by_its_gpu(row: Mapping[str, object]) -> bool:
    """Whether a rank is late by what its GPU does: its host, which runs ahead of it, enqueues no later than others then."""
    return bool(row["on_gpu"]) and row["reason"] in ("compute", "memcpy", None)


def _only_in_the_window(lag: pl.LazyFrame, rank: int, traced: int, time_share: float) -> bool:
    """Whether the recorders hold many times the collectives that were traced, and the others lost little of that time to the rank."""
    known = lag.filter((pl.col("rank") == rank) & (pl.col("members") > 2)).collect()
    longest = known.filter(pl.col("collectives") >= _WHOLE_RUN * traced)
    return longest.height > 0 and not (known["lost_ms"] >= time_share * known["span_ms"]).any()


def _awaited_by_nobody(trace_lag: pl.LazyFrame | None, late: Finding, time_share: float) -> bool:
    """Whether traces show the rank to come as late, and that the others compute meanwhile: who began once later than they do is late to all
    that is enqueued before the work of a step and waited for behind it, and costs them nothing."""
    if trace_lag is None:
        return False
    usual = max(_LATE_MS, _HALF * float(str(late.metrics["median_ms"])))
    alike = trace_lag.filter((pl.col("rank") == late.ranks[0]) & (pl.col("median_ms") >= usual)).collect()
    return alike.height > 0 and bool((alike["lost_ms"] < time_share * alike["window_ms"]).all())


#: So few collectives, or late arrivals, that a rank may be late to nearly all of them by chance are told, and prove nothing.
_FEW_COLLECTIVES, _NEARLY_ALL, _FEW_STEPS = 4, 0.8, 3


def _enqueued(
    lag: pl.LazyFrame, late_at_least: int, lost_share: float, time_share: float, at_least: int, late_chance: float
) -> Iterator[Finding]:
    """By the enqueue times of Flight Recorder dumps; of a few collectives, to nearly all of which one rank comes late, a warning; of a few
    steps that lose most of their time to it, a guess."""
    # Of two whose clocks may differ either may be late; and in a job of more ranks whoever is late in a pair may have waited elsewhere.
    pair = pl.col("one_clock").fill_null(value=False) & (pl.col("rank").n_unique() == 2)
    rows = (
        lag.with_columns(pair=pair)
        .filter((pl.col("collectives") >= _FEW_COLLECTIVES) & ((pl.col("members") > 2) | pl.col("pair")))
        .collect()
    )
    looked_at = rows["group_key"].n_unique()
    # One long delay, as a checkpoint or a profile that is written, is no habit: what a rank costs again and again is what is left without
    # it.
    again = pl.when(pl.col("collectives") >= at_least).then(pl.col("lost_ms") - pl.col("worst_ms")).otherwise("lost_ms")
    waited = _waited(lag)
    for _, part in rows.with_columns(habit_ms=again.clip(0)).group_by("group_key", maintain_order=True):
        total = float(part["habit_ms"].sum() or 0.0)
        if total <= 0:
            continue
        worst = part.sort("habit_ms", "rank", descending=[True, False]).row(0, named=True)
        late = worst["late_count"]
        # A step has many collectives and a slow rank is late to the first of them only, so that they cannot be counted as shares.
        short = worst["collectives"] < at_least
        # Of a few steps most of the time has to be lost to it, and nobody else may be late to half as many.
        steps = late_at_least > late >= _FEW_STEPS and worst["habit_ms"] >= _HALF * (worst["span_ms"] or 0.0) and _late_alone(rows, worst)
        few = short or steps
        if late < (_NEARLY_ALL * worst["collectives"] if short else _FEW_STEPS if few else late_at_least):
            continue
        # Where all come late by chance, somebody is last most often, the more so the more groups there are.
        if not few and tail(int(part["late_count"].sum()), late, 1 / worst["members"]) * looked_at > late_chance:
            continue
        if worst["habit_ms"] < lost_share * total or worst["habit_ms"] < time_share * (worst["span_ms"] or 0.0):
            continue
        if sum(ms for key, ms in waited.get(worst["rank"], ()) if key != worst["group_key"]) >= _HALF * worst["habit_ms"]:
            continue
        place = f" (worst before {worst['call_site']})" if worst["call_site"] else ""
        yield Finding(
            title=f"rank {worst['rank']} was last in {late} of {worst['collectives']} collectives of {group_words(worst)}; the others lost {time_words(worst['lost_ms'])} waiting for it",
            summary=f"{worst['habit_ms'] / total:.0%} of all time lost to late arrivals in this group is its own{place}."
            + (" These are too few collectives to be sure: collect more steps." if few else ""),
            severity="warning" if short else None,
            confidence="low" if few else "high" if worst["habit_ms"] >= 0.8 * total else "medium",
            ranks=(worst["rank"],),
            subject=("straggler", str(worst["group_desc"] or worst["group_name"])),
            evidence=cite([worst], "the collective to which it came latest"),
            evidence_total=late,
            remedy=LOOK_BETWEEN,
            prevention=LOG_LAG,
            would_refute=("all ranks of its host are late alike",),
            actions=(Action("collect-more", ranks=(worst["rank"],), command="py-spy dump --pid <pid>"),),
            metrics={"lost_ms": round(worst["lost_ms"], 1), "median_ms": round(worst["median_ms"], 2), "late": late},
        )


def _waited(lag: pl.LazyFrame) -> dict[int, list[tuple[str, float]]]:
    """What each rank waited in each of its groups at least, but for one long delay: what these lost to the others. Who waited half as long as
    it kept the members of another group was kept itself."""
    habit = pl.col("lost_ms") - pl.col("worst_ms")
    out: dict[int, list[tuple[str, float]]] = {}
    for rank, key, ms in lag.select("rank", "group_key", habit.sum().over("group_key") - habit).collect().iter_rows():
        out.setdefault(rank, []).append((key, ms))
    return out


def _late_alone(rows: pl.DataFrame, worst: Mapping[str, Any]) -> bool:
    """Whether no other rank is late half as often in any group."""
    others = rows.filter(pl.col("rank") != worst["rank"])["late_count"].max()
    return 2 * int(str(others or 0)) < int(worst["late_count"])


def _unseen(unseen_late: pl.LazyFrame, share: float) -> Iterator[Finding]:
    """The one rank without a trace, for which all others wait in each step."""
    for row in unseen_late.filter(pl.col("window_share") >= share).collect().iter_rows(named=True):
        rank, others = row["rank"], f"all {row['world_size'] - 1} ranks that left a trace"
        yield Finding(
            title=f"{others} wait alike in the same {row['op']} of each step, {time_words(row['lost_ms'])} in all; rank {rank} is the only one without a trace",
            summary=f"In each of {row['steps']} steps they wait {row['least_ms']:,.0f} ms or more in a call that carries next to nothing, {row['window_share']:.0%} "
            "of the traced time, and none of them comes last. So they wait for somebody whose time is not seen.",
            confidence="low",
            ranks=(rank,),
            subject=("straggler", "without a trace"),
            evidence=(
                *cite([row], "the longest of these waits"),
                *cite_absence(f"a trace, or a recorder's dump, of rank {rank}", ("all profiler traces and dumps of the bundle",)),
            ),
            evidence_total=row["steps"],
            remedy=f"Collect the trace of rank {rank} of the same steps: in that call its own time is short if it is the one that comes late.",
            prevention=LOG_LAG,
            would_refute=(f"a trace of rank {rank} shows it waiting in the same call as long as the others",),
            alternatives=(("collective-stuck", (), "the call may itself be slow: a link that drops what is sent and sends it again"),),
            actions=(Action("collect-more", ranks=(rank,), command=RECORD_STACKS),),
            metrics={"lost_ms": round(row["lost_ms"], 1), "steps": row["steps"]},
        )


#: A rank with so many times the own time of any other, in half of the window or more, is busy where the others are not. One gap alone is no
#: rule.
_BUSIER, _HALF, _ONE_GAP = 3.0, 0.5, 0.45
#: Traces are of few steps: so many long times of its own.
_FEW_GAPS, _SOME_GAPS = 3, 4
#: Ranks of which one may wait for the other, and the margin by which they come late together (view ``lag``).
_PAIR, _LATE_MS = 2, 50.0
_OTHER_CLOCKS = "the ranks are not on one host, so that their clocks differ"
_OTHER_STEPS = "in the same steps without the profiler no rank waits"


def _each_by_itself(found: list[Finding], own: pl.DataFrame) -> list[Finding]:
    """One finding of several ranks that come late, each to a group of its own, where each takes twice as long by itself as any of the others,
    which are more: none of them waits for another."""
    first = list({f.ranks: f for f in reversed(found)}.values())[::-1]
    slow = pl.col("rank").is_in([f.ranks[0] for f in first])
    mine, others = own.filter(slow)["own_ms"], own.filter(~slow)["own_ms"]
    if len(first) < _PAIR or not len(first) == len(mine) < len(others):
        return found
    if float(str(mine.min())) < _PAIR * float(str(others.max())):
        return found
    one = together(first, "keep the others of their groups waiting, each by itself")
    return [replace(one, subject=("straggler", *one.subject[1:]))]


def _itself_waiting(own: pl.DataFrame, rank: int, margin: float) -> bool:
    """Whether another rank has by so much more time of its own that this one, where it came late, had waited for it in another group."""
    mine = own.filter(pl.col("rank") == rank)
    if not mine.height or not own.height:
        return False
    row = mine.row(0, named=True)
    return bool(float(str(own["own_ms"].max())) - row["own_ms"] >= margin * row["span_ms"])


def _never_waiting(
    rows: pl.DataFrame, late_at_least: int, at_least: int, own_share: float, margin: float, refuted: str
) -> Iterator[Finding]:
    """The one rank that spends the window by itself while every other waits for a good part of it, or that again and again is busy for much
    longer than any other."""
    shares = rows.with_columns(share=pl.col("own_ms") / pl.col("span_ms")).sort("share", "rank", descending=[True, False])
    if rows.height < 2 or int(str(rows["collectives"].min())) < at_least:
        return
    # Several may be slow at once; then the widest gap in the first half parts them from the others, and more than half are never the slow
    # ones.
    falls = (shares["share"] - shares["share"].shift(-1)).head(max(1, rows.height // 2))
    slow = int(str(falls.arg_max())) + 1
    second = shares.row(slow, named=True)
    # A window that begins later, as that of whose profiler started last, holds less of the same waits: its share alone tells nothing.
    most_ms = float(str(shares.tail(rows.height - slow)["own_ms"].max()))
    for one in shares.head(slow).iter_rows(named=True):
        apart = one["own_ms"] >= _BUSIER * second["own_ms"] or one["share"] - second["share"] >= _HALF
        busier = one["share"] >= own_share or (one["share"] >= _HALF and apart)
        again = one["long_count"] >= late_at_least and one["longest_ms"] <= _ONE_GAP * one["own_ms"]
        # One long delay, a checkpoint before a barrier, is no habit: what is left without it must part them as well.
        other = (1 - 1 / max(one["long_count"], 1)) * one["span_ms"]
        habit = one["own_ms"] - one["longest_ms"] - second["share"] * other
        more = min(one["share"] - second["share"], (one["own_ms"] - most_ms) / one["span_ms"])
        if not (busier and again) or more < margin or habit < margin * other:
            return
    if slow > 1:
        yield _several(shares.head(slow), second, 2 * slow == rows.height, refuted)
        return
    worst = shares.row(0, named=True)
    lost_ms = (worst["share"] - second["share"]) * worst["span_ms"]
    yield Finding(
        title=f"rank {worst['rank']} {'never waits while every other rank does' if worst['share'] >= own_share else 'works while every other rank waits'}: {time_words(worst['own_ms'])} of {time_words(worst['span_ms'])} are its own between collectives",
        summary=f"The next busiest, rank {second['rank']}, spends {second['share']:.0%} of the time by itself. Who is late makes those that wait for it "
        "late in what follows; the one that waits for nobody is where it begins.",
        # Of two either may be meant to wait for the other; and a few steps tell little.
        confidence="low" if rows.height == 2 or worst["long_count"] < _SOME_GAPS else "medium",
        ranks=(worst["rank"],),
        subject=("straggler", "own time"),
        evidence=cite([worst], "the collective before which it took longest"),
        evidence_total=worst["long_count"],
        remedy=LOOK_BETWEEN,
        prevention=LOG_LAG,
        would_refute=(refuted,),
        actions=(Action("collect-more", ranks=(worst["rank"],), command="py-spy dump --pid <pid>"),),
        metrics={"own_ms": round(worst["own_ms"], 1), "lost_ms": round(lost_ms, 1)},
    )


#: Who never waits does so for this share of what the others wait, at most.
_HARDLY = 0.25


def _several_on_gpus(
    late_ranks: pl.LazyFrame, trace_lag: pl.LazyFrame, trace_arrivals: pl.LazyFrame, share: float, at_least: int
) -> Iterator[Finding]:
    """Several GPUs, less than half, that hardly wait in the one group of their job, while every other rank waits in each step: all ranks of
    a host, which take turns in coming last."""
    alone = late_ranks.filter(pl.col("only_group") & pl.col("on_gpu") & pl.col("own_share").is_null()).collect()
    rows = trace_lag.filter((pl.col("collectives") >= at_least) & (pl.col("window_ms") > 0)).collect()
    if not alone.height or rows["group_key"].n_unique() != 1 or rows.height <= _PAIR:
        return
    rows = rows.with_columns(waits=pl.col("waited_ms") / pl.col("window_ms")).sort("waits", "rank")
    gaps = (rows["waits"].shift(-1) - rows["waits"]).head((rows.height - 1) // 2)
    slow, others = rows.head(int(str(gaps.arg_max())) + 1), rows.tail(rows.height - 1 - int(str(gaps.arg_max())))
    most, least = float(str(slow["waits"].max())), float(str(others["waits"].min()))
    if slow.height < _PAIR or most > _HARDLY * least or least - most < share:
        return
    summed = trace_arrivals.drop_nulls("step").group_by("capture", "step", "rank").agg(pl.col("wait_ns").sum())
    mine = pl.col("rank").is_in(slow["rank"].to_list())
    by_step = summed.group_by("capture", "step").agg(
        slow=pl.col("wait_ns").filter(mine).max(), others=pl.col("wait_ns").filter(~mine).min()
    )
    apart = by_step.select((pl.col("slow") <= _HARDLY * pl.col("others")) & (pl.col("others") > 0)).collect().to_series()
    often = int(str(apart.sum()))
    if often < _FEW_GAPS or often < apart.len() - apart.len() // _FIFTH:
        return
    ranks = tuple(sorted(slow["rank"].to_list()))
    lost_ms = (least - most) * float(str(rows["window_ms"].median()))
    yield Finding(
        title=f"{ranks_words(ranks)} keep every other rank waiting in {'each' if often == apart.len() else often} of {apart.len()} traced steps: {time_words(lost_ms)} in all",
        summary=f"Each of the other {others.height} ranks waits for {least:.0%} of the traced time or more, and none of these for more than {most:.1%}.",
        confidence="medium",
        ranks=ranks,
        subject=("straggler", "several"),
        evidence=cite(slow, "the collective to which it came latest"),
        evidence_total=slow.height,
        remedy="Look at what these ranks share, such as their host: launches of kernels that take longer, data loading, clocks, another job.",
        prevention=LOG_LAG,
        would_refute=(_OTHER_STEPS,),
        actions=(Action("collect-more", ranks=ranks, command=RECORD_STACKS),),
        metrics={"lost_ms": round(lost_ms, 1)},
    )


#: So many steps in which the same ranks take a long time tell something; of more than four one may be another's.
_TWO_STEPS, _FIFTH = 2, 5


def _longest(rows: pl.DataFrame, margin: float) -> Iterator[Finding]:
    """Few ranks that in each step take one time by themselves that is many times the longest of any other: those wait meanwhile, in
    whatever group."""
    if rows.height < 2 or rows["gaps_ms"].null_count() or (steps := len(rows["gaps_ms"][0])) < _TWO_STEPS:
        return
    ordered = rows.with_columns(usual=pl.col("gaps_ms").list.median()).sort("usual", "rank", descending=[True, False])
    gaps = ordered["gaps_ms"].to_list()
    # Of so many ranks from the slowest on the shortest time of each step, and of the others the longest.
    shortest = list(accumulate(gaps, lambda one, two: list(map(min, one, two))))
    longest = list(accumulate(reversed(gaps), lambda one, two: list(map(max, one, two))))[::-1]
    for count in range(1, max(1, rows.height // 4) + 1):
        slow, least, most = ordered.head(count), shortest[count - 1], longest[count]
        longer = [a - b if a >= _BUSIER * b else 0.0 for a, b in zip(least, most, strict=True)]
        # What a rank does at the end of a step stands before the first collective of the next.
        begun = longer[1:] if not longer[0] and steps > _TWO_STEPS else longer
        often = sum(gap > 0 for gap in begun)
        # Of two one is the slower in both of two steps as often as not.
        enough = max(len(begun) - len(begun) // _FIFTH, _FEW_GAPS if rows.height == _PAIR else 0)
        if often < enough or sum(longer) < margin * float(str(rows["span_ms"].median())):
            continue
        ranks = tuple(sorted(slow["rank"].to_list()))
        yield Finding(
            title=f"{ranks_words(ranks)} {'keeps' if count == 1 else 'keep'} every other rank waiting in {'each' if often == steps else often} of {steps} traced steps: {time_words(sum(longer))} in all",
            summary=f"Between two collectives of such a step {'it takes' if count == 1 else 'each takes'} {time_words(min(a for a, gap in zip(least, longer, strict=True) if gap))} or more by itself, "
            f"and no other rank more than {time_words(max(b for b, gap in zip(most, longer, strict=True) if gap))}.",
            confidence="low" if rows.height == 2 or often < _SOME_GAPS else "medium",
            ranks=ranks,
            subject=("straggler", "own time"),
            evidence=cite(slow, "the collective before which it took longest"),
            evidence_total=often * count,
            remedy="Look at what is done between collectives there: data loading, clocks, a noisy neighbour.",
            prevention="Log the arrival lag of every rank; alarm when few ranks lose most of it.",
            would_refute=(_OTHER_STEPS,),
            actions=(Action("collect-more", ranks=ranks, command="py-spy dump --pid <pid>"),),
            metrics={"lost_ms": round(sum(longer), 1)},
        )
        return


def _apart_from_waits(found: Finding, unheld_calls: pl.LazyFrame, thread_states: pl.LazyFrame | None) -> Finding:
    """Of several ranks that work together those that no look at the stacks found waiting, if they make sends and receives that no recorder
    holds: a rank that waits for another in one seems to work with it. A wait for a request leaves no frame, so that of ranks that were never
    found waiting those count that were found on a CPU, where there are any. None of them where no look tells."""
    unheld = set(unheld_calls.collect()["rank"].to_list())
    if len(found.ranks) < _PAIR or len(unheld.intersection(found.ranks)) < _PAIR:
        return found
    busy, waiting, running = set[int](), set[int](), set[int]()
    if thread_states is not None:
        seen = thread_states.filter(pl.col("rank").is_in(found.ranks) & pl.col("role").is_null()).group_by("rank")
        for rank, waits, runs in seen.agg(pl.col("waits", "runs").sum()).sort("rank").collect().iter_rows():
            (waiting if waits else busy).add(rank)
            running |= {rank} if runs and not waits else set()
    if running and running != busy:
        busy, waiting = running, waiting | (busy - running)
    if busy == set(found.ranks):
        return found
    if not busy or busy | waiting != set(found.ranks):
        why = f"{_UNHELD}: one of them may wait for another in one, and nothing tells which."
        return replace(found, summary=f"{found.summary} {why}", confidence="low", ranks=(), culprits=())
    ranks, rest = tuple(sorted(busy)), ranks_words(tuple(sorted(waiting)))
    return replace(
        found,
        title=f"{ranks_words(ranks)} {verb(ranks, 'works', 'work')} while every other rank waits, {rest} in a send or receive",
        summary=f"{found.summary} {_UNHELD}: who waits for another in one seems to work. Looks at the stacks find {rest} waiting, or never at work.",
        ranks=ranks,
        culprits=tuple(Culprit(rank=r) for r in ranks),
    )


_UNHELD = "Recorders of gloo hold no sends and receives, and these ranks make some"


def _late_together(
    lag: pl.LazyFrame, unheld_calls: pl.LazyFrame, thread_states: pl.LazyFrame | None, time_share: float, at_least: int
) -> Iterator[Finding]:
    """Ranks that come late together, as one of them keeps others waiting in a send or receive first: the one that looks at the stacks found at
    work."""
    rows = lag.filter((pl.col("members") > _PAIR) & (pl.col("collectives") >= at_least)).collect()
    for _, part in rows.group_by("group_key", maintain_order=True):
        ordered = part.sort("median_ms", "rank", descending=[True, False])
        falls = (ordered["median_ms"] - ordered["median_ms"].shift(-1)).head(max(1, ordered.height // 2))
        slow = ordered.head(int(str(falls.arg_max() or 0)) + 1)
        late_ms = float(str(falls.max() or 0.0))
        count, span_ms = int(str(slow["collectives"].min())), float(str(slow["span_ms"].max()))
        if slow.height < _PAIR or late_ms < _LATE_MS or late_ms * count < time_share * span_ms:
            continue
        ranks = tuple(sorted(slow["rank"].to_list()))
        together = Finding(
            title=f"{ranks_words(ranks)} come late together",
            summary=f"{ranks_words(ranks)} come {time_words(late_ms)} after every other rank to most of {count} collectives.",
            confidence="low",
            ranks=ranks,
            subject=("straggler", "late together"),
            evidence=cite(slow, "the collective to which it came latest"),
            evidence_total=count,
            remedy=LOOK_BETWEEN,
            prevention=LOG_LAG,
            would_refute=("more looks at the stacks that find it waiting, and its partner at work",),
            actions=(Action("collect-more", ranks=ranks, command="py-spy dump --pid <pid>"),),
            metrics={"median_ms": round(late_ms, 2)},
        )
        told = _apart_from_waits(together, unheld_calls, thread_states)
        if told.culprits:
            yield told


def _several(slow: pl.DataFrame, next_one: Mapping[str, object], half: bool, refuted: str) -> Finding:
    """Ranks that work while all others wait. Where they are half of the job, they may be meant to."""
    ranks = tuple(sorted(slow["rank"].to_list()))
    least = float(str(slow["share"].min()))
    return Finding(
        title=f"{ranks_words(ranks)} work while every other rank waits: {least:.0%} of the time or more is their own between collectives",
        summary=f"The next busiest, rank {next_one['rank']}, spends {float(str(next_one['share'])):.0%} of the time by itself.",
        confidence="low" if half else "medium",
        ranks=ranks,
        subject=("straggler", "own time"),
        evidence=cite(slow, "the collective before which it took longest"),
        evidence_total=int(str(slow["long_count"].sum())),
        remedy="Look at what these ranks share: a host, its load, its clocks, its storage, a part of the model.",
        prevention="Log the arrival lag of every rank; alarm when few ranks lose most of it.",
        would_refute=(refuted, "the program gives these ranks more to do than the others"),
        actions=(Action("collect-more", ranks=ranks, command="py-spy dump --pid <pid>"),),
        metrics={"own_ms": round(float(str(slow["own_ms"].min())), 1)},
    )
