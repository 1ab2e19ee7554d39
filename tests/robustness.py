"""How the verdicts hold when evidence is missing, renamed, cut or mixed: right, wrong and abstained per mutation and confidence.

Run as a script: ``python -m tests.robustness [--only TEXT]``. The mutations act on copies of every incident with a known truth.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from nccl_forensics.api import analyze
from nccl_forensics.engine import InlineEngine
from tests.score import Case, Score, cases, run

#: Files of each kind of source, by the formats that read them.
KINDS = {
    "flight recorder": {"flight-recorder"},
    "stacks": {"py-spy", "py-spy-json", "faulthandler", "gdb", "pystack"},
    "rank logs": {"c10d-log", "traceback", "torchelastic-error"},
    "launcher log": {"launcher-log"},
}
Mutation = Callable[[Path, Case, list[dict[str, object]]], bool]


def _files_of_rank(sources: list[dict[str, object]], rank: int) -> list[str]:
    return [str(s["path"]) for s in sources if s["ranks"] == [rank]]


def _drop(root: Path, paths: list[str]) -> bool:
    for path in paths:
        (root / path).unlink(missing_ok=True)
    return bool(paths)


def _culprits(case: Case) -> set[int]:
    lists = case.truth.get("culprit_ranks_accepted")
    return {r for accepted in lists for r in accepted} if isinstance(lists, list) else set()


def drop_innocent(root: Path, case: Case, sources: list[dict[str, object]]) -> bool:
    """Drop all files of one innocent rank, the middle one."""
    ranks = sorted({r for s in sources for r in s["ranks"]} - _culprits(case))  # type: ignore[attr-defined]
    return bool(ranks) and len(ranks) > 2 and _drop(root, _files_of_rank(sources, ranks[len(ranks) // 2]))


def drop_culprit(root: Path, case: Case, sources: list[dict[str, object]]) -> bool:
    """Drop all files of the culprits."""
    paths = [p for rank in sorted(_culprits(case)) for p in _files_of_rank(sources, rank)]
    everyone = {r for s in sources for r in s["ranks"]}  # type: ignore[attr-defined]
    return bool(_culprits(case)) and len(_culprits(case)) < len(everyone) and _drop(root, paths)


def _drop_kind(kind: str) -> Mutation:
    def mutate(root: Path, case: Case, sources: list[dict[str, object]]) -> bool:
        paths = [str(s["path"]) for s in sources if KINDS[kind] & set(s["formats"])]  # type: ignore[call-overload]
        others = [s for s in sources if s["formats"] and str(s["path"]) not in paths]
        return bool(paths) and bool(others) and _drop(root, paths)

    return mutate


def rename(root: Path, case: Case, sources: list[dict[str, object]]) -> bool:
    """Give every file a name that says nothing, in an order that says nothing."""
    files = sorted((p for p in root.rglob("*") if p.is_file()), key=lambda p: hash_of(p.relative_to(root).as_posix()))
    target = root / "renamed"
    target.mkdir()
    for file in files:
        suffix = "".join(s for s in file.suffixes[-1:] if s == ".gz")
        file.rename(target / f"f-{hash_of(file.relative_to(root).as_posix())}x{suffix}")
    return True


def hash_of(text: str) -> str:
    """A stable name of letters."""
    import hashlib

    return "".join(chr(97 + b % 26) for b in hashlib.sha256(text.encode()).digest()[:10])


def truncate(root: Path, case: Case, sources: list[dict[str, object]]) -> bool:
    """Cut every text log by half."""
    logs = [
        root / str(s["path"]) for s in sources if s["lines"] and {"c10d-log", "traceback", "launcher-log", "nccl-log"} & set(s["formats"])
    ]  # type: ignore[call-overload]
    for log in logs:
        if log.suffix != ".gz":
            data = log.read_bytes()
            log.write_bytes(data[: len(data) // 2])
    return any(log.suffix != ".gz" for log in logs)


def stale_dump(root: Path, case: Case, sources: list[dict[str, object]]) -> bool:
    """Mix in a dump of rank 0 from a run an hour earlier."""
    import pickle

    dumps = [root / str(s["path"]) for s in sources if "flight-recorder" in set(s["formats"]) and s["ranks"] == [0]]  # type: ignore[call-overload]
    pickles = [d for d in dumps if d.read_bytes()[:1] == b"\x80"]
    if not pickles:
        return False
    document = pickle.loads(pickles[0].read_bytes())
    document["entries"] = document["entries"][: max(1, len(document["entries"]) // 2)]
    for entry in document["entries"]:
        entry["time_created_ns"] -= 3600 * 10**9
    (root / "old").mkdir()
    (root / "old" / pickles[0].name).write_bytes(pickle.dumps(document, protocol=2))
    return True


MUTATIONS: dict[str, Mutation] = {
    "drop an innocent rank": drop_innocent,
    "drop the culprits": drop_culprit,
    **{f"drop all {kind}": _drop_kind(kind) for kind in KINDS},
    "rename": rename,
    "truncate logs": truncate,
    "stale dump": stale_dump,
}


def mutated(case: Case) -> Iterator[tuple[str, Score]]:
    """Scores of all mutations that apply to a case."""
    sources = analyze([case.evidence], engine=InlineEngine()).report["sources"]
    assert isinstance(sources, list)
    for name, mutation in MUTATIONS.items():
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder) / "evidence"
            shutil.copytree(case.evidence, root)
            for path in [root, *root.rglob("*")]:
                path.chmod(0o755)
            if mutation(root, case, sources):
                yield name, run(Case(case.name, root, case.truth))


def _all(case: Case) -> list[tuple[str, Score]]:
    return list(mutated(case))


def main() -> int:
    """Print the table; every wrong one below it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    chosen = [c for c in cases() if options.only in c.name and not c.name.startswith("incidents")]
    table: dict[str, Counter[str]] = {}
    wrong: list[str] = []
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for results in pool.map(_all, chosen):
            for name, score in results:
                row = table.setdefault(name, Counter())
                row["cases"] += 1
                row["right"] += score.right
                abstained = score.status in ("unexplained", "insufficient-evidence", "error")
                row["abstained"] += abstained and not score.right
                bad = not score.right and not abstained
                row["wrong"] += bad
                row["blamed at high confidence"] += bool(score.blamed) and score.confidence == "high"
                if not score.right:
                    wrong.append(
                        f"  {name}: {score.name}: {score.cause or score.status} {list(score.culprits)} ({score.confidence}) {score.error or ''}"
                    )
    for name, row in table.items():
        print(f"{name:28} {json.dumps(dict(row))}")
    if options.verbose:
        print("\n".join(wrong))
    return 1 if any(row["blamed at high confidence"] for row in table.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
