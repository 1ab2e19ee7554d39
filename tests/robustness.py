"""How the verdicts hold when evidence is missing, renamed, cut or mixed: right, wrong and abstained per mutation and confidence.

Run as a script: ``python -m tests.robustness [--only TEXT] [--verbose] [--write-floor]``. The mutations act on copies of every incident
with a known truth; the figures reached are floors (``robustness_floor.json``).
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timedelta
from multiprocessing import get_context
from pathlib import Path

from nccl_forensics.api import analyze
from nccl_forensics.reading.engine import InlineEngine
from nccl_forensics.values.ranklist import as_ranks
from tests.score import Case, Score, cases, run

#: Files of each kind of source, by the formats that read them.
KINDS = {
    "flight recorder": {"flight-recorder"},
    "stacks": {"py-spy", "py-spy-json", "faulthandler", "gdb", "pystack"},
    "rank logs": {"c10d-log", "traceback", "torchelastic-error"},
    "launcher log": {"launcher-log"},
}
_LOGS = {"c10d-log", "traceback", "launcher-log", "nccl-log"}
#: Lines that a log must have to lose its beginning.
_LONG = 60
Mutation = Callable[[Path, Case, list[dict[str, object]]], bool]


def _ranks(sources: list[dict[str, object]]) -> set[int]:
    """Ranks that have files."""
    return {r for s in sources for r in as_ranks(s["ranks"])}


def _read_as(source: dict[str, object], formats: set[str]) -> bool:
    """Whether one of these formats reads a source."""
    return isinstance(source["formats"], list) and not formats.isdisjoint(source["formats"])


def _files_of_rank(sources: list[dict[str, object]], rank: int) -> list[str]:
    return [str(s["path"]) for s in sources if s["ranks"] == [rank]]


def _drop(root: Path, paths: list[str]) -> bool:
    for path in paths:
        (root / path).unlink(missing_ok=True)
    return bool(paths)


def _culprits(case: Case) -> set[int]:
    lists = case.truth.get("culprit_ranks_accepted")
    return {r for accepted in lists for r in accepted} if isinstance(lists, list) else set()


def _innocents(case: Case, sources: list[dict[str, object]]) -> list[int]:
    """Ranks that have files and are no culprits."""
    return sorted(_ranks(sources) - _culprits(case))


def _text_logs(root: Path, sources: list[dict[str, object]]) -> list[Path]:
    """Logs that can be cut: lines of text, not packed."""
    logs = [root / str(s["path"]) for s in sources if s["lines"] and _read_as(s, _LOGS)]
    return [log for log in logs if log.suffix != ".gz"]


def drop_innocent(root: Path, case: Case, sources: list[dict[str, object]]) -> bool:
    """Drop all files of one innocent rank, the middle one."""
    ranks = _innocents(case, sources)
    return bool(ranks) and len(ranks) > 2 and _drop(root, _files_of_rank(sources, ranks[len(ranks) // 2]))


def drop_half(root: Path, case: Case, sources: list[dict[str, object]]) -> bool:
    """Drop all files of every second innocent rank."""
    ranks = _innocents(case, sources)
    return len(ranks) > 3 and _drop(root, [p for rank in ranks[::2] for p in _files_of_rank(sources, rank)])


def drop_culprit(root: Path, case: Case, sources: list[dict[str, object]]) -> bool:
    """Drop all files of the culprits."""
    paths = [p for rank in sorted(_culprits(case)) for p in _files_of_rank(sources, rank)]
    return bool(_culprits(case)) and len(_culprits(case)) < len(_ranks(sources)) and _drop(root, paths)


def _drop_kind(kind: str) -> Mutation:
    def mutate(root: Path, case: Case, sources: list[dict[str, object]]) -> bool:
        paths = [str(s["path"]) for s in sources if _read_as(s, KINDS[kind])]
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
    logs = _text_logs(root, sources)
    for log in logs:
        data = log.read_bytes()
        log.write_bytes(data[: len(data) // 2])
    return bool(logs)


def lose_beginning(root: Path, case: Case, sources: list[dict[str, object]]) -> bool:
    """Keep the last two thirds of every long text log, as whoever collects them with ``tail`` does."""
    long = [(log, lines) for log in _text_logs(root, sources) if len(lines := log.read_bytes().splitlines(keepends=True)) > _LONG]
    for log, lines in long:
        log.write_bytes(b"".join(lines[len(lines) // 3 :]))
    return bool(long)


def stale_dump(root: Path, case: Case, sources: list[dict[str, object]]) -> bool:
    """Mix in a dump of rank 0 from a run an hour earlier."""
    import pickle

    dumps = [root / str(s["path"]) for s in sources if _read_as(s, KINDS["flight recorder"]) and s["ranks"] == [0]]
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


#: Times in text: ISO with a blank or T, and glog's MMDD HH:MM:SS.
_ISO = re.compile(rb"(?<!\d)(20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d)")
_GLOG = re.compile(rb"(?<![\w])([IWEF])(\d{4} \d\d:\d\d:\d\d)(?=\.\d{6} )")
_HOUR = timedelta(hours=1)


def _later(data: bytes) -> bytes:
    """Text with every time an hour later."""

    def iso(found: re.Match[bytes]) -> bytes:
        text = found[1].decode()
        try:
            return (datetime.fromisoformat(text) + _HOUR).isoformat(sep=text[10]).encode()
        except ValueError:
            return found[0]

    def glog(found: re.Match[bytes]) -> bytes:
        try:
            return found[1] + (datetime.strptime("2024" + found[2].decode(), "%Y%m%d %H:%M:%S") + _HOUR).strftime("%m%d %H:%M:%S").encode()
        except ValueError:
            return found[0]

    return _GLOG.sub(glog, _ISO.sub(iso, data))


def _times(value: object) -> object:
    """A recorder document with every ``…_ns`` an hour later; zero is no time."""
    if isinstance(value, dict):
        return {
            k: v + 3600 * 10**9
            if isinstance(v, int) and v > 0 and isinstance(k, str) and k.startswith("time_") and k.endswith("_ns")
            else _times(v)
            for k, v in value.items()
        }
    return [_times(v) for v in value] if isinstance(value, list) else value


def shift_clock(root: Path, case: Case, sources: list[dict[str, object]]) -> bool:
    """Put the clock of one host (of one rank, where there is one host only) an hour ahead, in dumps and in text."""
    import pickle

    hosts = sorted({str(s["host"]) for s in sources if s["host"]})
    ranks = sorted(_ranks(sources))
    mine = [s for s in sources if s["host"] == hosts[-1]] if len(hosts) > 1 else [s for s in sources if ranks and s["ranks"] == [ranks[-1]]]
    changed = False
    for source in mine:
        file = root / str(source["path"])
        if not file.is_file() or file.suffix == ".gz":
            continue
        data = file.read_bytes()
        if _read_as(source, KINDS["flight recorder"]):
            new = (
                pickle.dumps(_times(pickle.loads(data)), protocol=2)
                if data[:1] == b"\x80"
                else json.dumps(_times(json.loads(data))).encode()
            )
        else:
            new = _later(data)
        changed |= new != data
        file.write_bytes(new)
    return changed


MUTATIONS: dict[str, Mutation] = {
    "drop an innocent rank": drop_innocent,
    "drop half of the innocent": drop_half,
    "drop the culprits": drop_culprit,
    **{f"drop all {kind}": _drop_kind(kind) for kind in KINDS},
    "rename": rename,
    "shift a clock": shift_clock,
    "truncate logs": truncate,
    "lose the beginnings of logs": lose_beginning,
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


FLOOR = Path(__file__).parent / "robustness_floor.json"


def main() -> int:
    """Print the table; exit 1 if a floor is not reached or an innocent rank is blamed at high confidence."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--verbose", action="store_true", help="every verdict that is not right, below the table")
    parser.add_argument("--write-floor", action="store_true")
    options = parser.parse_args()
    chosen = [c for c in cases() if options.only in c.name and not c.name.startswith("incidents")]
    if not chosen:
        print("the corpus is not here: nothing to mutate")
        return 0
    table: dict[str, Counter[str]] = {name: Counter() for name in MUTATIONS}
    wrong: list[str] = []
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for results in pool.map(_all, chosen):
            for name, score in results:
                _count(table[name], score)
                if not score.right:
                    wrong.append(
                        f"  {name}: {score.name}: {score.cause or score.status} {list(score.culprits)} ({score.confidence}) {score.error or ''}"
                    )
    _print(table)
    if options.verbose:
        print("\n".join(wrong))
    if options.write_floor:
        FLOOR.write_text(json.dumps({k: dict(v) for k, v in table.items()}, indent=1, sort_keys=True) + "\n")
    blamed = [f"{name}: an innocent rank is blamed at high confidence" for name, row in table.items() if row["blamed high"]]
    fallen = [] if options.only or not FLOOR.exists() else _fallen(table, json.loads(FLOOR.read_text()))
    print("\n".join(blamed + fallen) or "all floors held")
    return 1 if blamed or fallen else 0


def _count(row: Counter[str], score: Score) -> None:
    abstained = score.status in ("unexplained", "insufficient-evidence", "error")
    outcome = "right" if score.right else "abstained" if abstained else "wrong"
    row["cases"] += 1
    row[outcome] += 1
    if outcome != "abstained":
        row[f"{outcome} {score.confidence}"] += 1
    row["blamed high"] += bool(score.blamed) and score.confidence == "high"


_COLUMNS = (
    "cases",
    "right",
    "abstained",
    "wrong",
    *(f"{o} {c}" for o in ("right", "wrong") for c in ("high", "medium", "low")),
    "blamed high",
)


def _print(table: dict[str, Counter[str]]) -> None:
    print(f"{'mutation':26}" + "".join(f"{c:>13}" for c in _COLUMNS))
    for name, row in table.items():
        print(f"{name:26}" + "".join(f"{row[c]:13}" for c in _COLUMNS) + f"  {row['right'] / max(1, row['cases']):6.1%}")


def _fallen(table: dict[str, Counter[str]], floor: dict[str, dict[str, int]]) -> list[str]:
    return [
        f"{name}: right fell from {row['right']} to {table[name]['right']}"
        for name, row in floor.items()
        if table[name]["right"] < row["right"]
    ]


if __name__ == "__main__":
    sys.exit(main())
