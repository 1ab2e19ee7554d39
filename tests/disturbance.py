"""How the verdicts hold when lines of real evidence are damaged, and when nothing but its wrapping changes.

Run as a script: ``python -m tests.disturbance [--only TEXT] [--seeds N] [--kinds NAME,…] [--verbose]``. Damage (lines deleted, doubled,
swapped, cut off, bits flipped, lightly and heavily) must never bring a high-confidence verdict against a rank that no accepted truth names.
What changes nothing (files that tell nothing added, files in another order, logs split in two) must leave the verdict as it was. Claims of
every report are checked against its evidence (``tests/claims.py``).
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from nccl_forensics.api import analyze
from nccl_forensics.decoding.archives import sniff
from nccl_forensics.errors import ForensicsError
from nccl_forensics.reading.engine import InlineEngine
from tests import claims
from tests.score import Case, cases

Change = Callable[[Path, random.Random], bool]


def _texts(root: Path) -> list[Path]:
    """The files that are text as they lie."""
    out = []
    for file in sorted(p for p in root.rglob("*") if p.is_file()):
        head = file.read_bytes()[:4096]
        if head and sniff(file) is None and head[:1] not in b"\x80{[" and head[:2] not in (b"\xff\xfe", b"\xfe\xff") and b"\0" not in head:
            out.append(file)
    return out


def _damage(kind: str, share: float) -> Change:
    def change(root: Path, rng: random.Random) -> bool:
        files = [p for p in sorted(root.rglob("*")) if p.is_file()] if kind == "flip" else _texts(root)
        for file in files:
            data = file.read_bytes()
            if not data or sniff(file) is not None:
                continue
            if kind == "flip":
                file.write_bytes(_flipped(data, share, rng))
            else:
                file.write_bytes(b"\n".join(_disturbed(data.split(b"\n"), kind, share, rng)))
        return bool(files)

    return change


def _flipped(data: bytes, share: float, rng: random.Random) -> bytes:
    """One bit in every so many bytes, at least one."""
    out = bytearray(data)
    for _ in range(max(1, int(len(data) * share / 100))):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _disturbed(lines: list[bytes], kind: str, share: float, rng: random.Random) -> Iterator[bytes]:
    skip = False
    for number, line in enumerate(lines):
        if skip:
            skip = False
            continue
        if rng.random() >= share:
            yield line
        elif kind == "double":
            yield line
            yield line
        elif kind == "swap" and number + 1 < len(lines):
            yield lines[number + 1]
            yield line
            skip = True
        elif kind == "cut":
            yield line[: rng.randrange(len(line) + 1)]
        elif kind != "delete":
            yield line


def _unrelated(root: Path, rng: random.Random) -> bool:
    """Files that tell nothing about the job."""
    place = root / "misc"
    place.mkdir(exist_ok=True)
    (place / "README.md").write_text("# Notes\n\nCollected on Monday. The rank that is named here is not meant: see the wiki.\n")
    (place / "model.py").write_text("def step(batch):\n    return batch.sum()\n" * 40)
    (place / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + rng.randbytes(2000))
    (place / "empty").write_bytes(b"")
    (place / "random.bin").write_bytes(rng.randbytes(3000))
    (place / "requirements.txt").write_text("numpy==1.26.4\nrequests==2.31.0\n")
    (place / "shell.history").write_text("ls -l\ncd /tmp\nvim train.yaml\n" * 20)
    return True


def _reordered(root: Path, rng: random.Random) -> bool:
    """The same files under the same names in folders that turn their order round."""
    files = sorted(p for p in root.rglob("*") if p.is_file())
    for number, file in enumerate(files):
        target = root / "o" / f"{len(files) - number:05d}" / file.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.rename(target)
    return len(files) > 1


#: What stands at the start of a file that is read as one: a stack dump or a report of a tool cannot be split without losing some of it.
_LOGS = (b"NCCL ", b"[rank", b"ProcessGroup", b" kernel: ")


def _split(root: Path, rng: random.Random) -> bool:
    """Every log of lines in two, as rotation does."""
    done = False
    for file in _texts(root):
        lines = file.read_bytes().splitlines(keepends=True)
        own = sum(any(sign in line for sign in _LOGS) for line in lines)
        if len(lines) > 20 and own > 0.9 * len(lines):
            half = len(lines) // 2
            file.with_name(file.name + ".1").write_bytes(b"".join(lines[:half]))
            file.with_name(file.name + ".2").write_bytes(b"".join(lines[half:]))
            file.unlink()
            done = True
    return done


DAMAGE: dict[str, Change] = {
    f"{kind} {word}": _damage(kind, share)
    for kind in ("delete", "double", "swap", "cut", "flip")
    for word, share in (("lightly", 0.02), ("heavily", 0.2))
}
HARMLESS: dict[str, Change] = {"unrelated files": _unrelated, "another order": _reordered, "split logs": _split}


@dataclass(frozen=True)
class Held:
    """What came out for one case after one change. ``blamed`` are ranks that no accepted list of the truth holds."""

    case: str
    change: str
    before: tuple[object, ...]
    after: tuple[object, ...]
    blamed: tuple[int, ...]
    confidence: str | None
    claims: tuple[str, ...]
    crashed: tuple[str, ...]

    @property
    def wrong(self) -> bool:
        """A promise was broken."""
        innocent = bool(self.blamed) and self.confidence == "high"
        return bool(innocent or self.claims or self.crashed or (self.change in HARMLESS and self.before != self.after))


def outcome(report: dict[str, object]) -> tuple[object, ...]:
    """What must not change: status, cause, confidence and culprits."""
    verdict = report["verdict"]
    assert isinstance(verdict, dict)
    ranks = tuple(sorted(c["rank"] for c in verdict["culprits"] if c["rank"] is not None))
    return verdict["status"], verdict["cause"], verdict["confidence"], ranks


def held(case: Case, change: str, seed: int, before: tuple[object, ...] | None = None) -> Held | None:
    """One case after one change; None where the change has nothing to act on."""
    rng = random.Random(zlib.crc32(f"{case.name} {change} {seed}".encode()))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "evidence"
        shutil.copytree(case.evidence, root)
        for path in [root, *root.rglob("*")]:
            path.chmod(0o755)
        plain = before if before is not None else outcome(analyze([root], engine=InlineEngine()).report)
        if not (DAMAGE | HARMLESS)[change](root, rng):
            return None
        try:
            report = analyze([root], engine=InlineEngine()).report
        except ForensicsError as problem:  # so badly damaged that it is told to be unusable
            return Held(case.name, change, plain, (str(problem),), (), None, (), ())
        except Exception as problem:
            return Held(case.name, change, plain, (), (), None, (), (f"{type(problem).__name__}: {problem}",))
        status, _, confidence, ranks = after = outcome(report)
        lists = case.truth.get("culprit_ranks_accepted")
        accepted = {r for one in lists for r in one} if isinstance(lists, list) else None
        blamed = tuple(sorted(set(ranks) - accepted)) if accepted is not None and status == "explained" and isinstance(ranks, tuple) else ()
        rules = report["rules"]
        assert isinstance(rules, list)
        crashed = tuple(f"{r['rule']}: {r['error']}" for r in rules if r["status"] == "crashed")
        return Held(case.name, change, plain, after, blamed, str(confidence), tuple(claims.broken(report, root)), crashed)


def _all(job: tuple[Case, tuple[str, ...], int]) -> list[Held]:
    case, changes, seeds = job
    before = outcome(analyze([case.evidence], engine=InlineEngine()).report)
    found = [held(case, change, seed, before) for change in changes for seed in range(seeds if change in DAMAGE else 1)]
    return [f for f in found if f is not None]


def main() -> int:
    """Print the table and what broke a promise; exit 1 if anything did."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--kinds", default=",".join((*HARMLESS, *DAMAGE)))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="every verdict that changed")
    options = parser.parse_args()
    changes = tuple(options.kinds.split(","))
    chosen = [c for c in cases() if options.only in c.name]
    table: dict[str, Counter[str]] = {name: Counter() for name in changes}
    broken: list[Held] = []
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        for results in pool.map(_all, [(c, changes, options.seeds) for c in chosen]):
            for one in results:
                row = table[one.change]
                row["runs"] += 1
                row["same verdict"] += one.before == one.after
                row["blamed high"] += bool(one.blamed) and one.confidence == "high"
                row["blamed less"] += bool(one.blamed) and one.confidence != "high"
                row["claims"] += bool(one.claims)
                row["crashed"] += bool(one.crashed)
                if one.wrong:
                    broken.append(one)
                if one.wrong or (options.verbose and one.before != one.after):
                    print(
                        f"{'BROKEN' if one.wrong else 'changed'} {one.case} [{one.change}]: {one.before} -> {one.after} {one.blamed or ''} {one.claims[:2] or ''} {one.crashed or ''}",
                        flush=True,
                    )
    columns = ("runs", "same verdict", "blamed high", "blamed less", "claims", "crashed")
    print(f"{'change':20}" + "".join(f"{c:>14}" for c in columns))
    for name, row in table.items():
        print(f"{name:20}" + "".join(f"{row[c]:14}" for c in columns))
    print(f"{len(broken)} broken" if broken else "all promises held")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
