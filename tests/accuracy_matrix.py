"""The accuracy matrix: simulated incidents of every cause, analysed and compared with their truth. Not part of the test suite.

``python -m tests.accuracy_matrix [--scenario NAME …] [--ranks 8,64,1024] [--seeds 5] [--platform NAME …] [--lost 0.2] [--keep DIR]
[--variant dump,live] [--rotate] [--resume FILE]``

``--resume FILE`` appends each outcome to a file of JSON lines as it comes and leaves out what stands there already, so that a matrix of
hours may be stopped and gone on with; ``--report FILE …`` prints the tables of such files and runs nothing.
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
from contextlib import nullcontext
from dataclasses import asdict, dataclass
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
    #: Seconds of processor time, all threads: to make it, to analyse it.
    made_s: float
    analysed_s: float

    @property
    def label(self) -> str:
        """Name of the incident, enough to make it again."""
        r = self.request
        return f"{r.scenario} --ranks {r.ranks} --seed {r.seed} --platform {self.platform} --variant {self.variant}"


def key(request: Request) -> str:
    """What tells one incident from another."""
    return json.dumps(asdict(request), sort_keys=True)


def as_line(o: Outcome) -> str:
    """An outcome as a line of JSON."""
    return json.dumps(asdict(o), sort_keys=True)


def from_line(line: str) -> Outcome:
    """The outcome that ``as_line`` wrote."""
    held = json.loads(line)
    request, score = held.pop("request"), held.pop("score")
    request["also"] = tuple(request["also"])
    for name in ("expected", "culprits", "broken", "parted"):
        score[name] = tuple(score[name])
    score["accepted"] = None if score["accepted"] is None else tuple(tuple(x) for x in score["accepted"])
    return Outcome(request=Request(**request), score=Score(**score), **held)


def play(job: Job) -> Outcome | None:
    """Make and analyse one incident; None where the request cannot be."""
    root = Path(job.keep) if job.keep else Path(tempfile.mkdtemp(prefix="matrix-"))
    name = f"{job.request.scenario}-{job.request.ranks}r-{job.request.platform or 'any'}-s{job.request.seed}"
    folder = root / name
    shutil.rmtree(folder, ignore_errors=True)
    begin = time.process_time()
    try:
        simulate(job.request, folder)
    except UsageError:
        if not job.keep:
            shutil.rmtree(root, ignore_errors=True)
        return None
    made = time.process_time() - begin
    truth = json.loads((folder / "truth.json").read_text())
    try:
        score = run(Case(name, folder / "evidence", truth))
    except BaseException as problem:  # a panic below Python is no Exception, and one incident must not end the matrix
        if isinstance(problem, KeyboardInterrupt):
            raise
        score = Score(
            name, tuple(truth["cause_accepted"]), None, "error", None, (), None, 0, 0.0, f"{type(problem).__name__}: {problem}"[:200]
        )
    analysed = time.process_time() - begin - made
    if not job.keep:
        shutil.rmtree(root, ignore_errors=True)
    return Outcome(job.request, truth["variant"], truth["platform"], score, round(made, 2), round(analysed, 2))


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
        number = sorted(SCENARIOS).index(name)
        wanted = [v for v in arguments.variant.split(",") if v in scenario.variants]
        fitting = [p for p in sorted(scenario.platforms or PLATFORMS) if not scenario.nvidia or PLATFORMS[p].vendor == "nvidia"]
        for ranks in (int(x) for x in arguments.ranks.split(",")):
            for platform in arguments.platform or [None]:
                for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
                    if platform and scenario.platforms and platform not in scenario.platforms:
                        continue
                    variant = wanted[0] if wanted else None
                    if arguments.rotate:
                        turn = wanted or list(dict.fromkeys(scenario.variants))
                        variant = turn[(seed + number) % len(turn)]
                        platform = fitting[(seed + 3 * number) % len(fitting)]
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
    parser.add_argument("--rotate", action="store_true", help="platforms and variants (of --variant, else all) go round with the seed")
    parser.add_argument("--resume", type=Path, help="append outcomes to this file of JSON lines; those that stand there are not made again")
    parser.add_argument("--report", type=Path, nargs="+", help="print the tables of such files, and run nothing")
    arguments = parser.parse_args()
    if arguments.report:
        known = [from_line(line) for path in arguments.report for line in path.read_text().splitlines()]
        outcomes = list({key(o.request): o for o in known}.values())
        for o in outcomes:
            _tell(o)
    else:
        outcomes = list(played(arguments))
    print()
    print("\n".join(rows(outcomes)))
    print(f"\nprocessor time: making {sum(o.made_s for o in outcomes):.0f} s, analysing {sum(o.analysed_s for o in outcomes):.0f} s")
    return 0


def played(arguments: argparse.Namespace) -> Iterator[Outcome]:
    """Every outcome that the command line asks for, from the file to resume or fresh."""
    path: Path | None = arguments.resume
    held = {key(o.request): o for o in map(from_line, path.read_text().splitlines())} if path is not None and path.exists() else {}
    todo = []
    for job in jobs(arguments):
        if (o := held.get(key(job.request))) is None:
            todo.append(job)
        else:
            yield o
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) if arguments.workers > 1 else nullcontext() as pool:
        for o in map(play, todo) if pool is None else pool.map(play, todo, chunksize=1):
            if o is None:
                continue
            if path is not None:
                with path.open("a") as file:
                    file.write(as_line(o) + "\n")
            _tell(o)
            yield o


if __name__ == "__main__":
    sys.exit(main())
