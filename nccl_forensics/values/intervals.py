"""Arithmetic of time intervals: unions, and how much of a union lies inside each of many windows. All times are integers (ns).

Everything about overlap follows from unions: ``|A and B| = |A| + |B| - |A or B|``.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

SCHEMA = {"start": pl.Int64(), "end": pl.Int64()}
NOTHING = pl.DataFrame(schema=SCHEMA)
_EARLIEST = -(1 << 62)


def union(*parts: pl.DataFrame, gap: int = 0) -> pl.DataFrame:
    """Disjoint intervals in order that cover what the parts cover; neighbours closer than ``gap`` become one."""
    every = pl.concat([p.select(pl.col(c).cast(t) for c, t in SCHEMA.items()) for p in parts] or [NOTHING])
    ordered = every.filter(pl.col("end") > pl.col("start")).sort("start")
    if not ordered.height:
        return NOTHING
    reach = pl.col("end").cum_max().shift(1)
    return (
        ordered.with_columns(part=(pl.col("start") > reach + gap).fill_null(value=True).cum_sum())
        .group_by("part", maintain_order=True)
        .agg(pl.col("start").first(), pl.col("end").max())
        .drop("part")
    )


@dataclass(frozen=True, slots=True)
class Cover:
    """A union of intervals that tells how much of any window it covers."""

    starts: pl.Series
    ends: pl.Series
    before: pl.Series
    total: int

    @staticmethod
    def of(*parts: pl.DataFrame) -> Cover:
        """Cover of all parts together."""
        merged = union(*parts)
        length = merged["end"] - merged["start"]
        first = pl.Series([_EARLIEST], dtype=pl.Int64)
        return Cover(
            pl.concat([first, merged["start"]]),
            pl.concat([first, merged["end"]]),
            pl.concat([pl.Series([0, 0], dtype=pl.Int64), length.cum_sum()])[: merged.height + 1],
            int(length.sum()),
        )

    @property
    def intervals(self) -> pl.DataFrame:
        """The disjoint intervals."""
        return pl.DataFrame({"start": self.starts[1:], "end": self.ends[1:]})

    def until(self, points: pl.Series) -> pl.Series:
        """How much is covered before each point."""
        at = self.starts.search_sorted(points, side="right").cast(pl.Int64) - 1
        into = pl.select(pl.min_horizontal(points.cast(pl.Int64), self.ends.gather(at))).to_series() - self.starts.gather(at)
        return self.before.gather(at) + into

    def inside(self, starts: pl.Series, ends: pl.Series) -> pl.Series:
        """How much of each window is covered; windows may overlap each other."""
        return self.until(ends) - self.until(starts)

    def longest_free(self, starts: pl.Series, ends: pl.Series) -> pl.DataFrame:
        """Of each window the longest stretch that is not covered: ``at``, where it begins, and ``length``; the window's begin and 0 where
        there is none."""
        latest = pl.Series([-_EARLIEST], dtype=pl.Int64)
        opens, closes = self.ends, pl.concat([self.starts[1:], latest])
        first = closes.search_sorted(starts, side="right")
        last = opens.search_sorted(ends, side="left")
        found = []
        for start, end, a, b in zip(starts, ends, first, last, strict=True):
            begins = opens[a:b].clip(start)
            lengths = closes[a:b].clip(upper_bound=end) - begins
            best = lengths.arg_max()
            found.append((start, 0) if best is None else (begins[best], lengths[best]))
        return pl.DataFrame(found, schema={"at": pl.Int64, "length": pl.Int64}, orient="row")


def spans(frame: pl.DataFrame, start: str = "start_ns", duration: str = "duration_ns") -> pl.DataFrame:
    """The intervals of a frame that keeps a start and a duration."""
    return frame.select(start=pl.col(start), end=pl.col(start) + pl.col(duration))
