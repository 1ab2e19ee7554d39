"""``python -m nccl_forensics.lab``: make a real hang (or crash, or slow run) on this machine, gather its evidence, have it analysed."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from nccl_forensics.lab import torch_env
from nccl_forensics.lab.catalog import SCENARIOS, Scenario, choose, faults
from nccl_forensics.lab.incident import make, plan_for, world_for
from nccl_forensics.lab.jobs.plan import Plan
from nccl_forensics.lab.launch import Setting
from nccl_forensics.outlets import outlive_readers


def say(text: str = "") -> None:
    """One line to the terminal."""
    print(text, flush=True)


def arguments(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m nccl_forensics.lab",
        description="Run a real multi-process PyTorch job with a chosen fault, gather the evidence as a user would, and analyse it.",
    )
    parser.add_argument("fault", nargs="?", default="skipped-collective", choices=faults(), metavar="FAULT", help="see --list")
    parser.add_argument("--list", action="store_true", help="what faults there are, in which jobs and places")
    parser.add_argument("--job", help="the training job that the fault acts in")
    parser.add_argument("--site", help="the place in that job")
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="number of ranks (rounded to what the job's layout allows)")
    parser.add_argument("--rank", type=int, help="the rank at fault; at random if not given")
    parser.add_argument("--step", type=int, help="the step at which it happens; at random if not given")
    parser.add_argument("--seed", type=int, help="of all that is chosen at random")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="of the default process group; 0 is PyTorch's own, 30 minutes")
    parser.add_argument("--debug", default="OFF", choices=("OFF", "INFO", "DETAIL"), help="TORCH_DISTRIBUTED_DEBUG")
    parser.add_argument("--trace", action="store_true", help="traces of three steps (torch.profiler)")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="cuda: NCCL, several ranks per GPU (untested on a GPU)")
    parser.add_argument("--python", type=Path, help="interpreter that has PyTorch")
    parser.add_argument("--venv", type=Path, default=Path(".venv-lab"), help="the lab's own environment")
    parser.add_argument(
        "--install", action="store_true", help="install PyTorch into --venv where no interpreter has it; says the size first"
    )
    parser.add_argument("--torch", help="what to install: a requirement of pip")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/lab"), help="gets evidence/, truth.json and report/")
    parser.add_argument("--no-analysis", action="store_true", help="gather only")
    return parser.parse_args(argv)


def listing() -> str:
    """Every fault with its jobs and places."""
    lines = []
    for fault in faults():
        lines.append(fault)
        for s in SCENARIOS:
            if s.fault == fault:
                place = f"--job {s.job}" + (f" --site {s.site}" if s.site else "")
                lines.append(f"    {place:40} {s.what}")
    return "\n".join(lines)


def environment(options: argparse.Namespace) -> torch_env.TorchEnvironment | None:
    """The interpreter for the jobs, installed first if that was asked for."""
    found = torch_env.find(options.python, options.venv)
    if found is not None:
        say(f"PyTorch {found.version} of {found.python}: nothing to install")
        return found
    requirements = (options.torch,) if options.torch else torch_env.REQUIREMENTS
    if options.install:
        return torch_env.install(options.venv, requirements, say)
    say("PyTorch is not installed here.")
    say(torch_env.cost(requirements))
    say("Add --install to do so in an environment of its own (.venv-lab), or name an interpreter that has it with --python.")
    return None


def analyse(output: Path) -> dict[str, object]:
    """The verdict, as ``nccl-forensics analyze`` prints and writes it."""
    command = [sys.executable, "-m", "nccl_forensics.cli", "analyze", str(output / "evidence"), "-o", str(output / "report")]
    subprocess.run(command, check=True)
    verdict = json.loads((output / "report" / "report.json").read_text())["verdict"]
    assert isinstance(verdict, dict)
    return verdict


def compare(verdict: dict[str, object], truth: dict[str, object]) -> bool:
    """Whether the verdict names the fault that was put in, and the ranks that had it."""
    causes, lists = truth["cause_accepted"], truth["culprit_ranks_accepted"]
    culprits = verdict["culprits"]
    assert isinstance(causes, list)
    assert isinstance(lists, list)
    assert isinstance(culprits, list)
    ranks = sorted({c["rank"] for c in culprits if c["rank"] is not None})
    cause = verdict["cause"] if verdict["status"] == "explained" else None
    told = cause in causes and (cause is not None or verdict["status"] == "nothing-wrong")
    return told and ranks in [sorted(x) for x in lists]


def asks_for_comparison(verdict: dict[str, object]) -> bool:
    """Whether the verdict asks for a run in which PyTorch compares each collective between the ranks."""
    actions = verdict["actions"]
    assert isinstance(actions, list)
    return any(a["action"] == "collect-more" and "TORCH_DISTRIBUTED_DEBUG=DETAIL" in (a["command"] or "") for a in actions)


def incident(options: argparse.Namespace, scenario: Scenario, found: torch_env.TorchEnvironment, random_: random.Random) -> bool:
    """Run one scenario and say what came out; True if the analysis was right or not wanted."""
    world = world_for(scenario, options.ranks)
    plan = replace(plan_for(scenario, world, random_, options.rank, options.step), device=options.device, trace=options.trace)
    if options.timeout is not None:
        plan = replace(plan, timeout_s=options.timeout or None)
    elif plan.timeout_s is None and not scenario.running and not scenario.stopped:
        plan = replace(plan, timeout_s=25.0)
    output: Path = options.output
    if (output / "evidence").exists():
        raise SystemExit(f"{output}/evidence is there already: name another folder with -o")
    where = f"on rank {', '.join(map(str, plan.ranks))} in step {plan.step}" if plan.ranks else "on no rank"
    say(f"{scenario.fault} {where} of {world} ranks: {scenario.what}")
    begin = time.monotonic()
    verdict, right = _run(options, scenario, plan, world, found, output, options.debug)
    if verdict is not None and options.debug != "DETAIL" and asks_for_comparison(verdict):
        say("As the verdict asks, the same once more under TORCH_DISTRIBUTED_DEBUG=DETAIL:")
        _, right = _run(options, scenario, plan, world, found, output / "again", "DETAIL")
    say(f"From start to verdict: {time.monotonic() - begin:.0f} s")
    return right


def _run(
    options: argparse.Namespace,
    scenario: Scenario,
    plan: Plan,
    world: int,
    found: torch_env.TorchEnvironment,
    output: Path,
    debug: str,
) -> tuple[dict[str, object] | None, bool]:
    """One run and its verdict (None where no analysis is wanted); whether that is right."""
    with tempfile.TemporaryDirectory(prefix="lab-") as scratch:
        setting = Setting(world, found.python.absolute(), scratch=Path(scratch), debug=debug)
        outcome = make(scenario, plan, setting, output, say)
    ended = "was ended from outside" if outcome.stopped else f"ended with exit code {outcome.exit_code}"
    say(f"The job {'hung and ' if outcome.hung else ''}{ended} after {outcome.seconds:.0f} s; the evidence is in {output}/evidence")
    if options.no_analysis:
        return None, True
    verdict = analyse(output)
    right = compare(verdict, json.loads((output / "truth.json").read_text()))
    say(f"The verdict {'agrees' if right else 'does NOT agree'} with what was done.")
    return verdict, right


def main(argv: list[str]) -> int:
    """Exit code: 0, 1 where the verdict does not agree with what was done, 2 for a wrong command line, 3 where PyTorch is missing."""
    outlive_readers()
    options = arguments(argv)
    if options.list:
        say(listing())
        return 0
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 16)
    random_ = random.Random(seed)
    try:
        scenario = choose(options.fault, random_, options.job, options.site)
        plan_for(scenario, world_for(scenario, options.ranks), random.Random(seed), options.rank, options.step)
    except ValueError as problem:
        print(f"nccl_forensics.lab: {problem}", file=sys.stderr)
        return 2
    found = environment(options)
    if found is None:
        return 3
    if options.device == "cuda" and not (found.gpus and found.nccl):
        print("nccl_forensics.lab: --device cuda needs a GPU and a PyTorch with NCCL", file=sys.stderr)
        return 3
    say(f"seed {seed}")
    return 0 if incident(options, scenario, found, random_) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
