"""From tables to the report: runs, views, findings, verdict, pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nccl_forensics.conclusions.assemble import RunResult, assemble
from nccl_forensics.conclusions.awaited import with_awaited
from nccl_forensics.conclusions.census import (
    all_seen,
    began,
    broke_off,
    by_nccl_alone,
    census,
    copied_short,
    ended_orderly,
    ended_unlike,
    left_connecting,
    left_open,
    links_told,
    log_overwritten,
    lost_a_peer,
    measured,
    more_than_recorded,
    most_seen,
    none_found_at_work,
    only_looked_at,
    only_met,
    only_warned,
    pods_down,
    reached_largest_size,
    recorded_by_all,
    still_coming_up,
    stood_still,
    waits_for_one,
)
from nccl_forensics.conclusions.run_outcome import as_it_went, outcome_of
from nccl_forensics.conclusions.runs import Run, find_runs
from nccl_forensics.conclusions.since_boot import with_wall_times
from nccl_forensics.conclusions.traits import traits
from nccl_forensics.conclusions.verdict import judge
from nccl_forensics.extensions import extensions
from nccl_forensics.reading.bundle import Bundle
from nccl_forensics.rules import Value, run_rules
from nccl_forensics.store import Store
from nccl_forensics.views import Resolver

if TYPE_CHECKING:
    from nccl_forensics.extras import Extras

#: Tables that by themselves do not tell how a job or its machines fared.
_SILENT = frozenset({"sources", "gaps", "unmodelled", "cut_ends", "training_steps"})
#: Tables of what went wrong: where they are empty, and nothing else was seen of a job, that tells nothing about the job.
_FAILURES_ONLY = frozenset({"watchdog", "reports", "exceptions", "worker_exits", "nccl_errors"})


def judged(
    bundle: Bundle,
    store: Store,
    overrides: Mapping[str, Mapping[str, Value]] | None,
    title: str | None,
    progress: Callable[[str, int, int], None] | None,
    pictures: bool = True,
) -> tuple[dict[str, object], Extras | None]:
    """The report of the contract, and what its ``pictures`` need if there shall be any; ``overrides`` are thresholds by rule and name."""
    store = with_wall_times(store)
    runs = find_runs(store)
    step = (lambda done, total: progress("checking", done, total)) if progress is not None else None
    results = [judge_run(store, run, bundle.scratch, overrides, f"R{run.number}-" if len(runs) > 1 else "", step) for run in runs]
    chosen = chosen_of(results)
    name = title or ", ".join(Path(i).name or i for i in bundle.inputs)
    report = assemble([Path(i).name or i for i in bundle.inputs], name, store, results, chosen, bundle.quote)
    report["traits"] = traits(chosen, store)
    report["plugins"] = extensions()
    if not pictures:
        return report, None
    from nccl_forensics.pictures import gather

    return report, gather(report, chosen, store, bundle.quote)


def judge_run(
    store: Store,
    run: Run,
    scratch: Path,
    overrides: Mapping[str, Mapping[str, Value]] | None,
    prefix: str,
    step: Callable[[int, int], None] | None,
) -> RunResult:
    """Views, findings and verdict of one run; ``prefix`` goes in front of the ids of findings, ``step`` is told how many rules are done."""
    own = run.part_of(store)
    resolver = Resolver(own, scratch)
    outcomes = tuple(run_rules(resolver, overrides, prefix, step))
    resolver.forgive()
    signs: list[str] = []
    frame = resolver.get("failures")
    # Where the signs of failure could not be gathered, finding nothing says nothing.
    told = _has_job(own) and "failures" not in resolver.failed
    if frame is not None:
        signs = [f"{row['sign']} ({row['count']})" for row in frame.collect().iter_rows(named=True)]
    known, still = census(resolver), stood_still(resolver) or left_open(resolver)
    done = resolver.holds("done")
    ended = ended_orderly(resolver, known) or done
    everyone = all_seen(resolver, known)
    whole = everyone and more_than_recorded(resolver) and recorded_by_all(resolver, known) and began(resolver)
    whole = whole and not only_warned(resolver)
    going = not still and not only_looked_at(resolver)
    # One that stops before its largest size hung there, was killed, or is copied in part.
    results = measured(resolver) and reached_largest_size(resolver)
    # Where a process may have left before the others, or never was connected to them, no end in order says that all is well.
    lost = lost_a_peer(resolver)
    cut = copied_short(resolver)
    hidden = lost or left_connecting(resolver) or log_overwritten(resolver) or ended_unlike(resolver) or cut
    complete = ended or (whole and going and results and not hidden)
    # A loss that only NCCL's log tells of is how a killed process looks, and how processes look that just exit.
    alone = by_nccl_alone(resolver)
    told_of = (whole or most_seen(resolver, known)) and not only_warned(resolver) and (results or resolver.holds("comms"))
    enough = told_of and going and not (lost and alone) and not (cut and still_coming_up(resolver)) and not only_met(resolver)
    machines_only = known.world is None and not known.seen and not done
    told = told and not (machines_only and pods_down(resolver))
    # NCCL's log alone tells a job that went on by its end in order, and slow links by what it found of them.
    shown = (not alone or (ended and links_told(resolver))) and (ended or not none_found_at_work(resolver))
    shown = shown and not waits_for_one(resolver)
    # So is one that it leaves at work: it may have stood, or lost a process, after its last line.
    unsure = lost or (alone and (cut or broke_off(resolver)))
    verdict = judge(
        outcomes, signs, told, complete, enough=enough, lost=unsure, machines_only=machines_only, everyone=everyone, shown=shown
    )
    found = [f for outcome in outcomes for f in outcome.found]
    outcome = outcome_of(verdict, found, resolver)
    verdict, judged = as_it_went(verdict, outcomes, outcome)
    verdict, judged = with_awaited(verdict, judged, resolver)
    return RunResult(run, resolver, judged, verdict, outcome)


def _has_job(store: Store) -> bool:
    """Whether anything was seen by which a job, or a part of its machines, can be judged to be well."""
    return any(store.holds(table) for table in sorted(store.present - _SILENT - _FAILURES_ONLY))


def chosen_of(results: Sequence[RunResult]) -> RunResult:
    """The last run that failed; else the last with a loss; else the last. Of the attempts of one launch those that failed of a known cause
    come before those of which nothing tells why: other runs may be of another day, and tell nothing of the last one."""
    for severity in ("critical", "error"):
        failed = [r for r in results if r.verdict.status == "unexplained" or _severity(r) == severity]
        told = [r for r in failed if r.verdict.status != "unexplained"]
        of_one_launch = all(r.run.attempt is not None for r in failed)
        if failed:
            return (told if told and of_one_launch else failed)[-1]
    return results[-1]


def _severity(result: RunResult) -> str | None:
    root = result.verdict.root
    return root.finding.severity if root is not None else None


__all__ = ["chosen_of", "judge_run", "judged"]
