"""The scorecard: every case with a truth, what was expected and what came out. ``make score`` prints it; floors stand in score_floor.json.

Run as a script: ``python -m tests.score [--write-floor] [--only TEXT]``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from tests import claims
from tests.corpus import ROOT, corpus_root

FLOOR = ROOT / "tests" / "score_floor.json"


@dataclass(frozen=True)
class Case:
    """One incident with its truth."""

    name: str
    evidence: Path
    truth: dict[str, object]


@dataclass(frozen=True)
class Score:
    """What came out for one case."""

    name: str
    expected: tuple[str | None, ...]
    accepted: tuple[tuple[int, ...], ...] | None
    status: str
    cause: str | None
    culprits: tuple[int, ...]
    confidence: str | None
    loud: int
    seconds: float
    error: str | None = None
    #: What the report claims and the evidence does not hold (``tests/claims.py``).
    broken: tuple[str, ...] = ()
    #: Number of the first operation in which the ranks parted, as the truth and as the report tell it; both None where the truth does not.
    parted: tuple[int | None, int | None] = (None, None)

    @property
    def cause_right(self) -> bool:
        """The cause is one of the accepted ones; a status without a cause answers only "nothing wrong"."""
        if self.status == "explained":
            return self.cause in self.expected
        return self.status == "nothing-wrong" and None in self.expected

    @property
    def culprits_right(self) -> bool:
        """Exactly one of the accepted lists."""
        return self.accepted is None or tuple(sorted(self.culprits)) in {tuple(sorted(a)) for a in self.accepted}

    @property
    def blamed(self) -> tuple[int, ...]:
        """Ranks that no accepted list holds."""
        if self.accepted is None:
            return ()
        return tuple(sorted(set(self.culprits) - {r for a in self.accepted for r in a}))

    @property
    def right(self) -> bool:
        """Cause and culprits."""
        return self.error is None and self.cause_right and self.culprits_right


def cases() -> list[Case]:
    """All cases of the bundled fixtures and, where it is there, of the corpus."""
    found: list[Case] = []
    for place in (ROOT / "fixtures" / "incidents", *(corpus_root() / kind for kind in ("lab", "nccl-stub", "public"))):
        truths = sorted(place.glob("*/truth.json"))
        found += [Case(f"{place.name}/{t.parent.name}", t.parent / "evidence", json.loads(t.read_text())) for t in truths]
    return found


def run(case: Case) -> Score:
    """Analyse one case in this process."""
    from nccl_forensics.api import analyze
    from nccl_forensics.reading.engine import InlineEngine

    raw = case.truth["cause_accepted"]
    expected = tuple(raw) if isinstance(raw, list) else (raw,)
    lists = case.truth.get("culprit_ranks_accepted")
    accepted = tuple(tuple(x) for x in lists) if isinstance(lists, list) else None
    begin = time.perf_counter()
    try:
        report = analyze([case.evidence], engine=InlineEngine()).report
    except Exception as problem:
        return Score(case.name, expected, accepted, "error", None, (), None, 0, 0.0, f"{type(problem).__name__}: {problem}"[:200])
    verdict = report["verdict"]
    crashed = [r["rule"] for r in report["rules"] if r["status"] == "crashed"]
    loud = sum(f["severity"] in ("critical", "error") for f in report["findings"])
    culprits = tuple(sorted({c["rank"] for c in verdict["culprits"] if c["rank"] is not None}))
    return Score(
        case.name,
        expected,
        accepted,
        verdict["status"],
        verdict["cause"],
        culprits,
        verdict["confidence"],
        loud,
        time.perf_counter() - begin,
        f"rules crashed: {crashed}" if crashed else None,
        tuple(claims.broken(report, case.evidence)),
        _parted(case.truth.get("first_divergence"), verdict["first_divergence"]),
    )


def _parted(truth: object, told: object) -> tuple[int | None, int | None]:
    known = truth.get("collective_seq_id") if isinstance(truth, dict) else None
    return (known, told.get("seq") if isinstance(told, dict) else None) if known is not None else (None, None)


def run_all(only: str = "", workers: int = 2) -> list[Score]:
    """All cases, in parallel."""
    chosen = [c for c in cases() if only in c.name]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(run, chosen, chunksize=4))


def summary(scores: list[Score]) -> dict[str, dict[str, int]]:
    """Figures per collection of cases: cases, right, causes right, culprits right, ranks wrongly blamed, loud healthy runs,
    verdicts at high confidence, and cases whose truth tells where the ranks parted."""
    out: dict[str, dict[str, int]] = {}
    for s in scores:
        place = s.name.split("/")[0]
        row = out.setdefault(
            place,
            dict.fromkeys(
                ("cases", "right", "cause", "culprits", "blamed", "loud_healthy", "high", "high_right", "parted", "parted_right"), 0
            ),
        )
        row["cases"] += 1
        row["right"] += s.right
        row["cause"] += s.cause_right
        row["culprits"] += s.culprits_right
        row["blamed"] += len(s.blamed)
        row["loud_healthy"] += bool(s.expected == (None,) and s.loud)
        row["high"] += s.confidence == "high"
        row["high_right"] += s.confidence == "high" and s.right
        row["parted"] += s.parted[0] is not None
        row["parted_right"] += s.parted[0] is not None and s.parted[0] == s.parted[1]
    return out


def sure(scores: list[Score]) -> str:
    """How many of the right verdicts that name a cause have high confidence; that nothing is wrong is never said with it."""
    named = [s for s in scores if s.right and s.cause is not None]
    high = sum(s.confidence == "high" for s in named)
    return f"high confidence: {high} of {len(named)} right verdicts that name a cause ({100 * high / max(1, len(named)):.1f} %)"


def main() -> int:
    """Print the table; exit 1 if a floor is not reached."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write-floor", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    scores = run_all(options.only)
    print(f"{'':5} {'case':48} {'expected':42} {'got':34} {'culprits':22} {'conf':6} {'loud':>4} {'s':>5}")
    for s in scores:
        expected = "|".join(str(e) for e in s.expected)
        got = s.cause or s.status
        print(
            f"{'ok' if s.right else 'WRONG':5} {s.name[:48]:48} {expected[:42]:42} {got[:34]:34} {str(list(s.culprits))[:22]:22} "
            f"{s.confidence or '-':6} {s.loud:4} {s.seconds:5.1f}"
            + (f"  {s.error}" if s.error else "")
            + (f"  parted at #{s.parted[1]}, not #{s.parted[0]}" if s.parted[0] != s.parted[1] else "")
        )
    figures = summary(scores)
    for place, row in figures.items():
        print(place, json.dumps(row))
    print(sure(scores))
    if options.write_floor:
        FLOOR.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")
    if options.only or not FLOOR.exists():
        return 0
    fallen = [f"{s.name}: {problem}" for s in scores for problem in s.broken[:4]] + below_floor(figures, json.loads(FLOOR.read_text()))
    print("\n".join(fallen) if fallen else "all floors held")
    return 1 if fallen else 0


def below_floor(figures: dict[str, dict[str, int]], floor: dict[str, dict[str, int]]) -> list[str]:
    """Figures that fell: fewer right ones, or more ranks blamed or healthy runs that are loud, for collections that are there."""
    out = []
    for place, row in floor.items():
        got = figures.get(place)
        if got is None:
            continue
        out += [
            f"{place}: {k} fell from {row[k]} to {got[k]}"
            for k in ("right", "cause", "culprits", "high_right", "parted_right")
            if got[k] < row.get(k, 0)
        ]
        out += [f"{place}: {k} rose from {row[k]} to {got[k]}" for k in ("blamed", "loud_healthy") if got[k] > row[k]]
    return out


if __name__ == "__main__":
    sys.exit(main())
