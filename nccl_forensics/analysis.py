"""From tables to the report: runs, views, findings, verdict, pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nccl_forensics.conclusions.assemble import RunResult, assemble
from nccl_forensics.conclusions.awaited import with_awaited
from nccl_forensics.conclusions.census import census
from nccl_forensics.conclusions.grounds import grounds_of
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
    known = census(resolver)
    verdict = judge(outcomes, grounds_of(resolver, own, known))
    found = [f for outcome in outcomes for f in outcome.found]
    outcome = outcome_of(verdict, found, resolver)
    verdict, judged = as_it_went(verdict, outcomes, outcome)
    verdict, judged = with_awaited(verdict, judged, resolver)
    return RunResult(run, resolver, judged, verdict, outcome, known)


def chosen_of(results: Sequence[RunResult]) -> RunResult:
    """The last run that failed; else the last with a loss; else the last. Of the attempts of one launch those that failed of a known cause
    come before those of which nothing tells why: other runs may be of another day, and tell nothing of the last one."""
    failed = [r for r in results if _severity(r) == "critical"]
    candidates = failed or [r for r in results if _severity(r) == "error"] or results
    if all(r.run.attempt is not None for r in candidates):
        candidates = [r for r in candidates if r.verdict.status != "unexplained"] or candidates
    return candidates[-1]


def _severity(result: RunResult) -> str | None:
    """How bad it was: a failure of which nothing tells the cause is as bad as any."""
    if result.verdict.status == "unexplained":
        return "critical"
    root = result.verdict.root
    return root.finding.severity if root is not None else None


__all__ = ["chosen_of", "judge_run", "judged"]
