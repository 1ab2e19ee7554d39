"""Made-up incidents with a known truth: a model of a job and its machines runs, a fault acts on it, writers print what is left.

It shares nothing with the readers but tables of facts, so that a mistake in a reader is not mirrored here.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from nccl_forensics.errors import OutputError, UsageError
from nccl_forensics.simulate.case import Case, Truth, new_case
from nccl_forensics.simulate.clusters import PLATFORMS
from nccl_forensics.simulate.noise import mix
from nccl_forensics.simulate.output import Folder, write_evidence, write_truth
from nccl_forensics.simulate.scenarios import SCENARIOS
from nccl_forensics.simulate.world import World

#: Worlds up to this size keep the text logs of every rank unless told otherwise.
FULL_UP_TO = 512


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for; None leaves the choice to the seed."""

    scenario: str
    ranks: int = 8
    seed: int = 0
    platform: str | None = None
    variant: str | None = None
    release: str | None = None
    rank: int | None = None
    step: int | None = None
    full: bool | None = None
    thin: bool = False
    lost: float = 0.0
    torn: float = 0.0
    also: tuple[str, ...] = ()


def make(request: Request) -> tuple[Case, World]:
    """Run the model of a request. Raises ``UsageError`` for what cannot be."""
    scenario = SCENARIOS.get(request.scenario)
    if scenario is None:
        raise UsageError(f"no scenario {request.scenario!r}; `simulate --list` prints them")
    number = sorted(SCENARIOS).index(request.scenario)
    seed = mix(request.seed, request.scenario, request.ranks) >> 1
    variant = request.variant or scenario.variants[(request.seed + number) % len(scenario.variants)]
    if variant not in scenario.variants:
        raise UsageError(f"scenario {request.scenario}: no variant {variant!r}; there are {', '.join(dict.fromkeys(scenario.variants))}")
    platform = request.platform
    if platform is not None and platform not in PLATFORMS:
        raise UsageError(f"no platform {platform!r}; there are {', '.join(PLATFORMS)}")
    if platform is None and scenario.platforms:
        platform = scenario.platforms[mix(seed, "platform") % len(scenario.platforms)]
    if platform is not None and scenario.platforms and platform not in scenario.platforms:
        raise UsageError(f"scenario {request.scenario} is for {', '.join(scenario.platforms)}")
    if platform is not None and scenario.nvidia and PLATFORMS[platform].vendor != "nvidia":
        raise UsageError(f"scenario {request.scenario} is for machines of NVIDIA")
    gpus = PLATFORMS[platform].gpus if platform else 8
    least = max(scenario.needs, gpus * (scenario.hosts - 1) + 1)
    if request.ranks < least:
        raise UsageError(f"scenario {request.scenario} needs at least {least} ranks")
    if request.rank is not None and not 0 <= request.rank < request.ranks:
        raise UsageError(f"rank {request.rank} is not among {request.ranks} ranks")
    layout = scenario.layout(request.ranks, gpus) if scenario.layout else None
    case = new_case(
        request.ranks, seed, variant, platform=platform, layout=layout, release=request.release, rank=request.rank, step=request.step
    )
    if request.release is not None and request.release not in case.platform.releases:
        raise UsageError(f"platform {case.platform.name}: no release {request.release!r}; there are {', '.join(case.platform.releases)}")
    for name in request.also:
        _also(case, name)
    scenario.apply(case)
    _check_step(case, request)
    if case.truth.causes == (None,) and case.also:
        # A job that would be well: what acts beside nothing is the trouble, each of them a right answer.
        causes = tuple(dict.fromkeys(c for _, t in case.also for c in t.causes))
        culprits = tuple(dict.fromkeys(x for _, t in case.also for x in t.culprits or ()))
        case.truth = Truth(causes, culprits, what="; ".join(t.what for _, t in case.also))
    return case, case.build()


def _check_step(case: Case, request: Request) -> None:
    """A step that is asked for must be one in which the fault can strike; else the job would run on as if it were healthy."""
    if request.step is None:
        return
    if not case.step_taken:
        raise UsageError(f"scenario {request.scenario} strikes no single step; leave out --step")
    last = case.first_step + case.steps - 1
    if not case.first_step <= request.step <= last:
        raise UsageError(
            f"step {request.step} is not part of this run: scenario {request.scenario} keeps steps {case.first_step} to {last}"
        )


def _also(case: Case, name: str) -> None:
    """Let a lasting trouble act as well; the truth stays that of the fault that ends or slows the job first and names the others."""
    other = SCENARIOS.get(name)
    if other is None or not other.slow:
        known = ", ".join(sorted(n for n, s in SCENARIOS.items() if s.slow))
        raise UsageError(f"{name!r} cannot act beside another fault; these can: {known}")
    fits = not other.platforms or case.platform.name in other.platforms
    if not fits or (other.nvidia and case.platform.vendor != "nvidia") or case.host_count < other.hosts:
        raise UsageError(
            f"{name} needs {other.hosts} hosts of {', '.join(other.platforms) or 'any platform'}, not {case.host_count} of {case.platform.name}"
        )
    kept = (case.observe, case.steps, case.gathered.launcher, case.rank_asked, case.first_step)
    case.rank_asked = mix(case.seed, "also", name) % case.world_size
    other.apply(case)
    case.also.append((name, case.truth))
    case.observe, case.steps, case.gathered.launcher, case.rank_asked, case.first_step = kept


def simulate(request: Request, out: Path) -> int:
    """Write ``out/evidence/`` and ``out/truth.json``; how many files. Raises ``UsageError`` and ``OutputError``."""
    case, world = make(request)
    evidence = out / "evidence"
    try:
        if evidence.exists():
            raise OutputError(f"{evidence}: exists already")
        evidence.mkdir(parents=True)
        folder = Folder(evidence, case.seed, request.lost, request.torn)
        full = request.full if request.full is not None else request.ranks <= FULL_UP_TO
        write_evidence(case, world, folder, full and not request.thin, request.thin)
        write_truth(case, world, request.scenario, out / "truth.json")
    except OSError as problem:
        shutil.rmtree(evidence, ignore_errors=True)
        raise OutputError(f"{out}: cannot be written: {problem.strerror}") from problem
    return folder.written


__all__ = ["FULL_UP_TO", "PLATFORMS", "SCENARIOS", "Request", "make", "simulate"]
