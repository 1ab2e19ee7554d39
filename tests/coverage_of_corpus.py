"""Which format reads which file of the corpus, and what is left: a table of every file under ``host`` and ``public``.

Run as a script: ``python -m tests.coverage_of_corpus [--all]``. Exit 1 where a file is neither read nor listed as unknown on purpose, or
where a log leaves more than 3 % of its NCCL lines as gaps or without a model.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tests.corpus import corpus_root

PLACES = ("host", "public")
#: Most of a log's NCCL lines that may be gaps or known by their prefix alone.
ALLOWED = 0.03
_NCCL_LINE = r"NCCL (?:INFO|WARN|CALL|TRACE|VERSION)\b|^[NR]CCL version "
#: Files that no format reads, on purpose: (pattern of the path, reason). Notes about the corpus are never evidence.
UNKNOWN_ON_PURPOSE: tuple[tuple[str, str], ...] = (
    (r"(?:^|/)(?:provenance|truth)\.json$", "a note about the corpus, never evidence"),
    (r"(?:^|/)fault_injection\.log$", "a note on how the fault was made, never evidence"),
    (r"dcgm_(?:mn)?diag_schema\.json$", "a JSON schema, not a result"),
    (r"slurmrestd\.(?:diag|partitions)\.json$", "statistics of the controller and its partitions: nothing about a job or a node"),
    (r"/m[sw]-(?:AR|ST)\.json$", "figures of a what-if study of the profiles beside it, no profile"),
    (r"nccltests-pairwise-failures-h100/evidence/failures\.txt$", "a summary that somebody's script made of the logs beside it"),
    (r"nvlink-status\.a10\.txt$", "an empty file: the tool prints nothing on a board without NVLink"),
)


@dataclass(frozen=True, slots=True)
class Covered:
    """One file: its formats, lines and what was not understood."""

    path: str
    formats: tuple[str, ...]
    lines: int | None
    records: int
    gaps: int
    foreign: int
    error: str | None
    nccl_lines: int
    nccl_left: int
    reason: str | None

    @property
    def known(self) -> bool:
        """Read by a format, or unknown on purpose."""
        return bool(self.formats) or self.reason is not None

    @property
    def left_share(self) -> float:
        """Share of the NCCL lines that are gaps or only known by their prefix."""
        return self.nccl_left / self.nccl_lines if self.nccl_lines else 0.0


def cover(place: str) -> Iterator[Covered]:
    """Every file below one folder of the corpus, in the order of its path."""
    from nccl_forensics.reading.bundle import open_bundle
    from nccl_forensics.reading.engine import InlineEngine, read_bundle

    with open_bundle([corpus_root() / place]) as bundle:
        store = read_bundle(bundle, InlineEngine(), None)
        left = _left(store.scan("gaps"), store.scan("unmodelled"))
        files = {m.path: m.file for m in bundle.members}
        prefix = f"{place}/"
        for row in store.sources.sort("path").iter_rows(named=True):
            reason = next((why for pattern, why in UNKNOWN_ON_PURPOSE if re.search(pattern, prefix + row["path"])), None)
            formats = tuple(row["formats"] or ())
            nccl = _count(files.get(row["path"])) if "nccl-log" in formats else 0
            yield Covered(
                prefix + row["path"],
                formats,
                row["lines"],
                row["records"] or 0,
                row["gaps"] or 0,
                row["foreign"] or 0,
                row["error"],
                nccl,
                left.get(row["source_id"], 0),
                None if formats else reason,
            )


def _left(gaps: pl.LazyFrame, unmodelled: pl.LazyFrame) -> dict[int, int]:
    """Lines of NCCL by source that are gaps or without a model."""
    torn = gaps.filter(pl.col("format") == "nccl-log").group_by("source_id").agg(pl.len().cast(pl.Int64).alias("n"))
    vague = unmodelled.filter(pl.col("format") == "nccl-log").group_by("source_id").agg(pl.col("count").sum().cast(pl.Int64).alias("n"))
    summed = pl.concat([torn, vague]).group_by("source_id").agg(pl.col("n").sum()).collect()
    return dict(summed.iter_rows())


def _count(file: Path | None) -> int:
    """Lines of a file that bear NCCL's prefix."""
    if file is None:
        return 0
    text = file.read_text(encoding="utf-8", errors="replace")
    return sum(1 for line in text.split("\n") if re.search(_NCCL_LINE, line))


def failures(files: list[Covered]) -> list[str]:
    """What must not be: unknown files without a reason, and logs of which too much is left."""
    out = [f"{f.path}: read by no format, and no reason is listed" for f in files if not f.known]
    out += [
        f"{f.path}: {f.nccl_left} of {f.nccl_lines} NCCL lines ({100 * f.left_share:.1f} %) are gaps or without a model"
        for f in files
        if f.left_share > ALLOWED
    ]
    return out


def main() -> int:
    """Print the table: one line per file, or per folder of many small files alike unless ``--all``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    files = [f for place in PLACES for f in cover(place)]
    groups: dict[tuple[str, tuple[str, ...]], list[Covered]] = {}
    for f in files:
        folder = f.path.rsplit("/", 1)[0]
        groups.setdefault((f.path if options.all else folder, f.formats), []).append(f)
    print(f"{'file or folder':86} {'n':>4} {'formats':44} {'lines':>8} {'foreign':>7} {'gaps':>5} {'NCCL left':>9}")
    for (name, formats), part in groups.items():
        shown = name if options.all or len(part) > 1 else part[0].path
        lines, foreign, gaps = sum(f.lines or 0 for f in part), sum(f.foreign for f in part), sum(f.gaps for f in part)
        nccl = sum(f.nccl_lines for f in part)
        left = f"{100 * sum(f.nccl_left for f in part) / nccl:.2f} %" if nccl else "-"
        what = ", ".join(formats) or f"unknown on purpose: {part[0].reason or '?'}"
        print(f"{shown[-86:]:86} {len(part):4} {what[:60]:44} {lines:8} {foreign:7} {gaps:5} {left:>9}")
    known = sum(bool(f.formats) for f in files)
    worst = max(files, key=lambda f: f.left_share)
    print(f"{len(files)} files: {known} read, {sum(f.reason is not None for f in files)} unknown on purpose")
    print(f"most NCCL lines left: {100 * worst.left_share:.2f} % in {worst.path}")
    wrong = failures(files)
    print("\n".join(wrong) if wrong else "every file is read or unknown on purpose; every log within its share")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
