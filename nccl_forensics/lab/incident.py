"""One incident of the lab: a scenario at a rank and a step, run, with its truth beside the evidence."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nccl_forensics.lab.catalog import ACTS_AS, Scenario, ranks_for, truth
from nccl_forensics.lab.jobs.plan import Plan
from nccl_forensics.lab.launch import Outcome, Setting, run


def plan_for(scenario: Scenario, world: int, random_: random.Random, rank: int | None = None, step: int | None = None) -> Plan:
    """The plan of one run: rank and step as chosen, or at random."""
    if scenario.step is not None:
        step = scenario.step
    return Plan(
        job=scenario.job,
        fault=ACTS_AS.get(scenario.fault, scenario.fault),
        ranks=ranks_for(scenario, world, random_, rank),
        step=random_.randint(3, 7) if step is None else step,
        site=scenario.site,
        steps=scenario.steps,
        seconds=scenario.seconds,
        timeout_s=scenario.timeout_s,
        tensor_parallel=scenario.tensor_parallel,
        pipeline_parallel=scenario.pipeline_parallel,
        options=scenario.options,
    )


def world_for(scenario: Scenario, wanted: int) -> int:
    """The wanted number of ranks, or the nearest that the layout allows."""
    fitting = [n for n in range(scenario.world, 65) if n % scenario.multiple == 0]
    return min(fitting, key=lambda n: (abs(n - wanted), n))


def make(scenario: Scenario, plan: Plan, setting: Setting, out: Path, say: Callable[[str], None]) -> Outcome:
    """Run it: ``out/evidence`` and ``out/truth.json``."""
    setting = replace(
        setting,
        sample_running=setting.sample_running or scenario.running,
        stop_after_s=8.0 if scenario.stopped else setting.stop_after_s,
    )
    # The ranks run elsewhere: what they write must not depend on where they stand.
    outcome = run(plan, setting, out.absolute() / "evidence", say)
    known = truth(scenario, plan, setting.world, detail=setting.debug == "DETAIL") | {
        "stacks_taken_of_ranks": list(outcome.stacks_of),
        "ended": "from outside" if outcome.stopped else f"exit code {outcome.exit_code}",
        "settings": {"timeout_s": plan.timeout_s, "debug": setting.debug, "restarts": setting.restarts, "options": list(plan.options)},
    }
    (out / "truth.json").write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return outcome
