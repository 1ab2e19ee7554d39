"""``python -m nccl_forensics.lab.survey``: every fault of the lab several times, with random job, rank, step and number of ranks, and how
many were named right.

It takes a while: about a minute for each incident on two cores.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nccl_forensics.errors import UnusableEvidence
from nccl_forensics.lab import torch_env
from nccl_forensics.lab.__main__ import asks_for_comparison, compare, say
from nccl_forensics.lab.catalog import Scenario, choose, faults
from nccl_forensics.lab.incident import make, plan_for, world_for
from nccl_forensics.lab.jobs.plan import Plan
from nccl_forensics.lab.launch import Setting


@dataclass(frozen=True)
class Result:
    """What came out for one incident."""

    fault: str
    #: At the first look, and in the end: where a verdict asks for a run under DETAIL, that is made and counts.
    first: bool
    right: bool
    #: Right without a rank, as no file names one (``Scenario.untold``).
    untold: bool
    line: str
    #: Whether the run left anything that can be read, such as a machine too busy to start it does not.
    evidence: bool = True


def one(fault: str, number: int, seed: int, found: torch_env.TorchEnvironment, out: Path) -> Result:
    """Make one incident, analyse it, and hold the verdict against what was done."""
    dice = random.Random(f"{fault} {number} {seed}")
    scenario = choose(fault, dice)
    world = world_for(scenario, dice.choice((3, 4, 4, 6)))
    plan = plan_for(scenario, world, dice)
    if plan.timeout_s is None and not scenario.running and not scenario.stopped:
        plan = replace(plan, timeout_s=25.0)
    place = out / f"{fault}-{number}"
    where = f"{scenario.job.removeprefix('train_')}{' ' + scenario.site if scenario.site else ''}, {world} ranks, rank {list(plan.ranks)} step {plan.step}"
    looked = _look(scenario, plan, Setting(world, found.python.absolute()), place)
    if looked is None:
        return Result(fault, False, False, False, f"{'-':5} {fault:20} {where:55} left nothing that can be read", evidence=False)
    verdict, first = looked
    right, again = first, False
    if asks_for_comparison(verdict):
        second = _look(scenario, plan, Setting(world, found.python.absolute(), debug="DETAIL"), place / "again")
        if second is not None:
            (verdict, right), again = second, True
    ranks = sorted({c["rank"] for c in verdict["culprits"] if c["rank"] is not None})
    told = f"{verdict['cause'] or verdict['status']} {ranks} {verdict['confidence'] or ''}{' (second run, as the first verdict asked)' if again else ''}"
    untold = right and bool(scenario.untold) and not ranks
    told += " (no file names the rank)" if untold else ""
    return Result(fault, first, right, untold, f"{'ok' if right else 'WRONG':5} {fault:20} {where:55} {told}")


def _look(scenario: Scenario, plan: Plan, setting: Setting, place: Path) -> tuple[dict[str, Any], bool] | None:
    """One run, unless it is there already, and its verdict; whether that is right. None where the run left nothing that can be read."""
    if not (place / "truth.json").exists():
        with tempfile.TemporaryDirectory(prefix="lab-") as scratch:
            make(scenario, plan, replace(setting, scratch=Path(scratch)), place, lambda text: None)
    report = place / "report.json"
    command = [sys.executable, "-m", "nccl_forensics.cli", "analyze", str(place / "evidence"), "--json", str(report)]
    done = subprocess.run(command, check=False, capture_output=True)
    if done.returncode == UnusableEvidence.exit_code:
        return None
    done.check_returncode()
    verdict = json.loads(report.read_text())["verdict"]
    return verdict, compare(verdict, json.loads((place / "truth.json").read_text()))


def main(argv: list[str]) -> int:
    """Exit code 0 if all were right, 1 if not, 3 where PyTorch is missing."""
    parser = argparse.ArgumentParser(prog="python -m nccl_forensics.lab.survey", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="of each fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="faults whose name contains this")
    parser.add_argument("--workers", type=int, default=2, help="incidents made at once")
    parser.add_argument("--python", type=Path, help="interpreter that has PyTorch")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/survey"), help="incidents that are there already are only analysed")
    options = parser.parse_args(argv)
    found = torch_env.find(options.python, Path(".venv-lab"))
    if found is None:
        say("PyTorch is not installed here: name an interpreter that has it with --python")
        return 3
    items = [(fault, number) for number in range(options.runs) for fault in faults() if options.only in fault]
    results: list[Result] = []
    with ThreadPoolExecutor(options.workers) as pool:
        for result in pool.map(lambda item: one(item[0], item[1], options.seed, found, options.output), items):
            say(result.line)
            results.append(result)
    right = sum(r.right for r in results)
    silent = sum(not r.evidence for r in results)
    untold = sum(r.untold for r in results)
    say(
        f"{right} of {len(results) - silent} named right, {sum(r.first for r in results)} at the first look"
        + (f"; {silent} more left nothing that can be read" if silent else "")
        + (f"; {untold} of them without a rank, as no file names it" if untold else "")
    )
    return 0 if right == len(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
