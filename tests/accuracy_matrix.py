"""The accuracy matrix: simulated incidents of every cause, analysed and compared with their truth. Not part of the test suite.

``python -m tests.accuracy_matrix [--scenario NAME …] [--ranks 8,64,1024] [--seeds 5] [--platform NAME …] [--lost 0.2] [--keep DIR]
[--variant dump,live]``
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from nccl_forensics.errors import UsageError
from nccl_forensics.simulate import FULL_UP_TO, PLATFORMS, SCENARIOS, Request, simulate
from tests.score import Case, Score, run


@dataclass(frozen=True)
class Job:
    """One incident to make and to analyse."""

    request: Request
    keep: str | None


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    request: Request
    variant: str
    platform: str
    score: Score
    made_s: float

    @property
    def label(self) -> str:
        """Name of the incident, enough to make it again."""
        r = self.request
        return f"{r.scenario} --ranks {r.ranks} --seed {r.seed} --platform {self.platform} --variant {self.variant}"


def play(job: Job) -> Outcome | None:
    """Make and analyse one incident; None where the request cannot be."""
    root = Path(job.keep) if job.keep else Path(tempfile.mkdtemp(prefix="matrix-"))
    name = f"{job.request.scenario}-{job.request.ranks}r-{job.request.platform or 'any'}-s{job.request.seed}"
    folder = root / name
    shutil.rmtree(folder, ignore_errors=True)
    begin = time.perf_counter()
    try:
        simulate(job.request, folder)
    except UsageError:
        return None
    made = time.perf_counter() - begin
    truth = json.loads((folder / "truth.json").read_text())
    try:
        score = run(Case(name, folder / "evidence", truth))
    except BaseException as problem:  # a panic below Python is no Exception, and one incident must not end the matrix
        if isinstance(problem, KeyboardInterrupt):
            raise
        score = Score(
            name, tuple(truth["cause_accepted"]), None, "error", None, (), None, 0, 0.0, f"{type(problem).__name__}: {problem}"[:200]
        )
    if not job.keep:
        shutil.rmtree(root, ignore_errors=True)
    return Outcome(job.request, truth["variant"], truth["platform"], score, made)


def culprits_right(o: Outcome) -> bool:
    """As in the scorecard; where files are lost, or only those of some ranks are kept, naming some of an accepted list is right too: the
    others cannot be seen."""
    score, request = o.score, o.request
    sampled = request.ranks > FULL_UP_TO if request.full is None else not request.full
    if score.culprits_right or not (request.lost or sampled) or score.accepted is None:
        return score.culprits_right
    return any(score.culprits and set(score.culprits) <= set(a) for a in score.accepted)


def silent(o: Outcome) -> bool:
    """No cause was named although there is one."""
    return o.score.status != "explained" and not o.score.cause_right


def jobs(arguments: argparse.Namespace) -> Iterator[Job]:
    """All incidents that the command line asks for."""
    full = {"auto": None, "full": True, "sampled": False}[arguments.detail]
    for name in arguments.scenario or sorted(SCENARIOS):
        scenario = SCENARIOS[name]
        variant = next((v for v in arguments.variant.split(",") if v in scenario.variants), None)
        for ranks in (int(x) for x in arguments.ranks.split(",")):
            for platform in arguments.platform or [None]:
                for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
                    if platform and scenario.platforms and platform not in scenario.platforms:
                        continue
                    request = Request(
                        name, ranks, seed, platform=platform, variant=variant, full=full,
                        lost=arguments.lost, torn=arguments.torn, also=tuple(arguments.also),
                    )  # fmt: skip
                    yield Job(request, arguments.keep)


def rows(outcomes: list[Outcome]) -> Iterator[str]:
    """A table per scenario and world size, then per confidence."""
    by: dict[tuple[str, int], list[Outcome]] = defaultdict(list)
    for o in outcomes:
        by[(o.request.scenario, o.request.ranks)].append(o)
    yield f"{'scenario':24}{'ranks':>6}{'n':>4}{'cause':>8}{'silent':>8}{'culprits':>10}{'blamed':>8}   verdicts"
    for (name, ranks), group in sorted(by.items()):
        said = sorted({f"{o.score.cause or o.score.status}" for o in group if not o.score.cause_right})
        yield (
            f"{name:24}{ranks:>6}{len(group):>4}{sum(o.score.cause_right for o in group):>8}{sum(map(silent, group)):>8}{sum(map(culprits_right, group)):>10}"
            f"{sum(len(o.score.blamed) for o in group):>8}   {', '.join(said)}"
        )
    yield ""
    yield f"{'confidence':24}{'n':>10}{'cause':>8}{'silent':>8}{'culprits':>10}{'blamed':>8}"
    for confidence in ("high", "medium", "low", None):
        group = [o for o in outcomes if o.score.confidence == confidence]
        if group:
            share = 100 * sum(o.score.cause_right for o in group) / len(group)
            right = 100 * sum(map(culprits_right, group)) / len(group)
            blamed = sum(len(o.score.blamed) for o in group)
            yield f"{confidence or 'none':24}{len(group):>10}{share:>7.1f}%{sum(map(silent, group)):>8}{right:>9.1f}%{blamed:>8}"
    total = len(outcomes)
    yield (
        f"{'all':24}{total:>10}{100 * sum(o.score.cause_right for o in outcomes) / total:>7.1f}%{sum(map(silent, outcomes)):>8}"
        f"{100 * sum(map(culprits_right, outcomes)) / total:>9.1f}%{sum(len(o.score.blamed) for o in outcomes):>8}"
    )


def _tell(o: Outcome) -> None:
    """Print a miss as soon as it is known: the matrix of a large world takes hours."""
    s = o.score
    if o.score.error or not (s.cause_right and culprits_right(o)):
        got = f"{s.status} {s.cause} {s.culprits} {s.confidence} {s.error or ''}"
        print(f"miss: {o.label}: expected {s.expected} {s.accepted}, got {got}"[:400], flush=True)


def main() -> int:
    """Print the matrix and every miss."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", action="append", choices=sorted(SCENARIOS))
    parser.add_argument("--ranks", default="8,64")
    parser.add_argument("--platform", action="append", choices=sorted(PLATFORMS))
    parser.add_argument(
        "--variant", default="", help="one or several, by comma: the first of them that a scenario has, else one by the seed"
    )
    parser.add_argument("--detail", default="auto", choices=("auto", "full", "sampled"), help="as of the command simulate")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--lost", type=float, default=0.0, help="share of files removed")
    parser.add_argument("--torn", type=float, default=0.0, help="share of files cut off")
    parser.add_argument("--also", action="append", default=[], choices=sorted(n for n, s in SCENARIOS.items() if s.slow))
    parser.add_argument("--keep", help="keep the incidents in this folder")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", help="write all outcomes to this file")
    arguments = parser.parse_args()
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        for o in pool.map(play, list(jobs(arguments)), chunksize=1):
            if o is not None:
                outcomes.append(o)
                _tell(o)
    print()
    print("\n".join(rows(outcomes)))
    print(f"\nmaking {sum(o.made_s for o in outcomes):.0f} s, analysing {sum(o.score.seconds for o in outcomes):.0f} s")
    if arguments.json:
        data = [
            {"label": o.label, "status": o.score.status, "cause": o.score.cause, "culprits": o.score.culprits,
             "confidence": o.score.confidence, "cause_right": o.score.cause_right, "culprits_right": o.score.culprits_right,
             "blamed": o.score.blamed}
            for o in outcomes
        ]  # fmt: skip
        Path(arguments.json).write_text(json.dumps(data, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
