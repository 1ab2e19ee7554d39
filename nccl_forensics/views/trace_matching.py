"""Which collectives of different ranks' traces are the same one.

Where torch writes sequence numbers, group and number say it. Older traces have only an order: the ranks of a group run the same
collectives one after the other, so two traces differ by where their windows begin, and one number per rank (the *shift*) puts it right.
The shift comes from the ProfilerStep numbers, then from the clocks, and must make operations and sizes agree; where it stays ambiguous
the rank is left out: a wrong match would blame somebody.
"""

from __future__ import annotations

from collections import Counter

import polars as pl

from nccl_forensics.facts.collective_kernels import PAIRWISE
from nccl_forensics.frames import text_of, typed
from nccl_forensics.views import view
from nccl_forensics.views.columns import GROUP

TRACE_MATCHES = typed(
    GROUP,
    "group_known:bool capture:u32 position:i64 matched_by:str rank:i32 op:str dtype:str bytes:i64 group_size:i32 step:i64 backend:str",
    "channels:i32 start_ns:i64 duration_ns:i64 exposed_ns:i64 stretch_ns:i64 stretch_at_ns:i64 since_ns:i64",
    "since_compute_ns:i64 since_memcpy_ns:i64 since_loader_ns:i64 since_gc_ns:i64 since_lead_ns:i64 source_id:u32 record:str",
)
#: Share of the positions at which operation and size must agree for a shift to be believed.
_AGREES = 0.95
#: Two shifts that both fit are told apart by clocks only if one brings the starts at least so much nearer.
_NEARER = 4
#: Shifts that are tried where no step numbers say one.
_REACH = 512


@view(rows="operations")
def trace_matches(trace_collectives: pl.LazyFrame, trace_ranks: pl.LazyFrame) -> pl.LazyFrame:
    """Collectives that belong together, one row per rank: ``group_key``, ``capture`` and ``position`` say which; pairwise traffic and
    collectives without a counterpart are left out. ``group_known`` is false where the trace does not name groups and all ranks are taken
    for one; ``matched_by`` is sequence, order or shift."""
    counted = trace_ranks.filter(pl.col("duplicate_of").is_null() & pl.col("rank").is_not_null())
    ranks = counted.select("source_id", "rank", "capture", began="start_ns", absolute="absolute")
    own = (
        # Pairs of ranks, not groups: their kernels do not end together with everybody's.
        trace_collectives.filter(pl.col("op").is_not_null() & ~pl.col("op").is_in(PAIRWISE))
        .join(ranks, on="source_id")
        .with_columns(
            group_known=pl.col("pg_name").is_not_null(),
            group_key=pl.when(pl.col("pg_name").is_not_null())
            .then(text_of("trace:{}:{}", "pg_name", pl.col("pg_members").fill_null(text_of("{} ranks", pl.col("group_size").fill_null(0)))))
            .otherwise(text_of("trace:all:{}", pl.col("backend").fill_null(""))),
            group_name="pg_name",
            group_desc="pg_desc",
        )
        .select(*(c for c in TRACE_MATCHES if c not in ("position", "matched_by")), "ordinal", "seq", "began", "absolute")
        .sort("group_key", "capture", "rank", "ordinal")
    )
    rows = own.with_columns(turn=pl.int_range(pl.len()).over("group_key", "capture", "rank")).collect()
    placed = _placed(rows)
    matched = placed.filter(pl.len().over("group_key", "capture", "position", "op") > 1)
    return matched.select(pl.col(c).cast(t) for c, t in TRACE_MATCHES.items()).lazy()


def _placed(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with ``position`` and ``matched_by``; ranks that cannot be placed are left out."""
    key = ["group_key", "capture"]
    numbered = rows.filter(pl.col("seq").is_not_null().all().over(key))
    # Several kernels may share one number (a coalesced call): they keep their order.
    by_number = numbered.with_columns(
        position=pl.col("seq") * 4096 + pl.int_range(pl.len()).over(*key, "rank", "seq").clip(0, 4095), matched_by=pl.lit("sequence")
    )
    ordered = rows.join(numbered.select(key).unique(), on=key, how="anti")
    shifts = _shifts(ordered)
    by_order = ordered.join(shifts, on=[*key, "rank"]).with_columns(position=pl.col("turn") + pl.col("shift"))
    return pl.concat([by_number.select(by_order.drop("shift").columns), by_order.drop("shift")])


def _shifts(rows: pl.DataFrame) -> pl.DataFrame:
    """``shift`` per group, capture and rank: what is added to a rank's own count so that equal numbers are one collective."""
    schema = {"group_key": pl.String(), "capture": pl.UInt32(), "rank": pl.Int32(), "shift": pl.Int64(), "matched_by": pl.String()}
    signed = rows.select(
        "group_key",
        "capture",
        "rank",
        "step",
        sign=pl.struct("op", "bytes", "dtype").hash(),
        at=pl.when("absolute").then(pl.col("began") + pl.col("start_ns")),
    )
    out: list[dict[str, object]] = []
    for (group, capture), part in signed.group_by("group_key", "capture", maintain_order=True):
        lines = [(rank, line) for (rank,), line in part.group_by("rank", maintain_order=True)]
        reference = max((line for _, line in lines), key=lambda line: line.height)
        for rank, line in lines:
            found = (0, "order") if line is reference else shift_of(reference, line)
            if found is not None:
                out.append({"group_key": group, "capture": capture, "rank": rank, "shift": found[0], "matched_by": found[1]})
    return pl.DataFrame(out, schema=schema, infer_schema_length=None)


def shift_of(reference: pl.DataFrame, line: pl.DataFrame) -> tuple[int, str] | None:
    """How far a rank's order lies behind the reference's, and how that is known; None where it cannot be told.

    Both frames hold one group's collectives in order: ``sign`` (operation and size), ``step`` and ``at`` (time since 1970), either null.
    """
    first = (reference["step"][0], line["step"][0])
    if first[0] == first[1] and reference["sign"].equals(line["sign"]):
        return 0, "order"
    by_step = _by_steps(reference, line)
    if by_step is not None:
        return (by_step, "shift") if _agrees(reference, line, by_step) else None
    reach = min(max(reference.height, line.height), _REACH)
    fits = [s for s in range(-reach, reach + 1) if _agrees(reference, line, s)]
    if len(fits) == 1:
        return fits[0], "shift"
    if not fits or reference["at"].null_count() or line["at"].null_count():
        return None
    nearest = sorted((_distance(reference, line, s), s) for s in fits)
    best, other = nearest[0], nearest[1]
    return (best[1], "shift") if other[0] >= _NEARER * best[0] else None


def _by_steps(reference: pl.DataFrame, line: pl.DataFrame) -> int | None:
    """The shift at which most steps begin together."""
    starts = [
        dict(f.with_row_index("turn").filter(pl.col("step").is_not_null()).group_by("step").agg(pl.col("turn").min()).iter_rows())
        for f in (reference, line)
    ]
    # The first step of a window may be cut: it is used only where there is no other.
    shared = sorted(set(starts[0]) & set(starts[1]))
    votes = Counter(starts[0][k] - starts[1][k] for k in (shared[1:] or shared))
    if not votes:
        return None
    best: int = min(votes, key=lambda s: (-votes[s], abs(s)))
    return best


def _overlap(reference: pl.DataFrame, line: pl.DataFrame, shift: int) -> tuple[int, int, int]:
    """(first row of the reference, first row of the line, rows) of what both cover."""
    a, b = max(shift, 0), max(-shift, 0)
    return a, b, min(reference.height - a, line.height - b)


def _agrees(reference: pl.DataFrame, line: pl.DataFrame, shift: int) -> bool:
    a, b, rows = _overlap(reference, line, shift)
    if rows < 1 or rows * 2 < min(reference.height, line.height):
        return False
    return int((reference["sign"].slice(a, rows) == line["sign"].slice(b, rows)).sum()) >= _AGREES * rows


def _distance(reference: pl.DataFrame, line: pl.DataFrame, shift: int) -> float:
    a, b, rows = _overlap(reference, line, shift)
    return float(str((reference["at"].slice(a, rows) - line["at"].slice(b, rows)).abs().median() or 0.0))
