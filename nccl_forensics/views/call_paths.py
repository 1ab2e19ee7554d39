"""By which path through the program a rank came to a call, beside the paths by which it came there before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import polars as pl

from nccl_forensics.folding import FoldedTable
from nccl_forensics.stacks.frames import line_of_code
from nccl_forensics.views.calls import Calls
from nccl_forensics.views.checked_calls import with_frames

#: Operations of a group that are looked at, the last one among them.
_BACK = 32
_KEY = ("rank", "group_key")
#: Times that each line has to come for the calls to tell whole steps.
_AGAIN = 2


def by_another_path(calls: Calls, fr_entries: pl.LazyFrame | FoldedTable, groups: Mapping[int, str]) -> dict[int, str]:
    """Those of the ranks in ``groups`` whose recorder tells that they came to their last operation of that group by other frames than to
    any alike before it (the same operation at the same line, or of the same shape at other lines in each step): whoever makes calls in
    another order than usual stands in another branch. With the line of that call."""
    last = _last_calls(calls, groups)
    out: dict[int, str] = {}
    for rows in with_frames(last, fr_entries).partition_by("rank", maintain_order=True) if last.height else ():
        now = rows.row(-1, named=True)
        alike = rows.head(-1).filter(pl.col("op") == now["op"])
        here = alike.filter(pl.col("call_site") == now["call_site"])
        before = set(here["frames"].drop_nulls().to_list())
        if before and now["frames"] is not None and now["frames"] not in before:
            out[now["rank"]] = now["call_site"]
        elsewhere = alike.filter(pl.col("shape") == pl.lit(now["shape"], dtype=pl.String))
        if not here.height and elsewhere.height >= _AGAIN * elsewhere["call_site"].n_unique() > 0:
            out[now["rank"]] = now["call_site"]
    return out


def stands_before(line: object, other: object) -> bool:
    """Whether a line stands before another one in one function: what follows a loop stands behind the calls in it."""
    (function, at, file), (other_function, other_at, other_file) = line_of_code(line), line_of_code(other)
    return (function, file) == (other_function, other_file) and at.isdigit() and other_at.isdigit() and int(at) < int(other_at)


def apart_from_peers(stacks: Mapping[int, Mapping[str, object]], ranks: Iterable[int]) -> set[int]:
    """Those of ``ranks`` that stand in the same line of a call as others, all of which came there by one path, and they by another."""
    paths: dict[int, tuple[tuple[str, ...], ...]] = {}
    for rank, row in stacks.items():
        frames = row["frames"]
        if row["place"] == "collective" and row["witness"] == "stack" and isinstance(frames, list):
            paths[rank] = tuple(line_of_code(frame) for frame in frames)
    out: set[int] = set()
    for rank in set(ranks) & paths.keys():
        alike = [r for r in paths if r != rank and all(stacks[r][c] == stacks[rank][c] for c in ("op", "user_frame"))]
        if len(alike) > 1 and len({paths[r] for r in alike}) == 1 and paths[alike[0]] != paths[rank]:
            out.add(rank)
    return out


def in_one_loop(calls: Calls, fr_entries: pl.LazyFrame | FoldedTable, groups: Mapping[int, str], left: Mapping[int, str]) -> set[int]:
    """Those of the ranks in ``groups`` that came to their last operation of that group by just the frames by which they made those of the
    group in ``left``: one line calls both in turn, as a loop over groups does, and tells nothing of the order."""
    two = {rank: group for rank, group in groups.items() if rank in left and left[rank] != group}
    behind, ahead = (with_frames(_last_calls(calls, {rank: of[rank] for rank in two}), fr_entries) for of in (left, two))
    made = set(behind.select("rank", "frames").drop_nulls().iter_rows())
    latest = ahead.unique("rank", keep="last", maintain_order=True).select("rank", "frames")
    return {rank for rank, frames in latest.iter_rows() if (rank, frames) in made}


def no_swap(calls: Calls, groups: Mapping[int, str]) -> dict[int, str]:
    """What speaks against that a rank in ``groups`` came to its last operation of that group only in another order than usual: that it
    makes it where it always does, so that what comes before it is behind; or that it makes none such in its steps; of one that always made
    it at other lines, no more than that it did not make the other call. Nothing of ranks of which no line is known."""
    out: dict[int, str] = {}
    last = _last_calls(calls, groups)
    for rows in last.partition_by("rank", maintain_order=True) if last.height else ():
        now, earlier = rows.row(-1, named=True), rows.head(-1)
        alike = earlier.filter(pl.col("op") == now["op"])["call_site"]
        if now["call_site"] in set(alike.to_list()):
            out[now["rank"]] = "it came to the next call at the line at which it always makes it"
        elif earlier.height and not alike.len():
            out[now["rank"]] = "the call to which it went on is none of those that it makes in each step"
        elif alike.len() >= _AGAIN * alike.n_unique() > 0:
            out[now["rank"]] = (
                "it has not made the call, and stands where it never made the next one before: whether it would make it after that one is open"
            )
    return out


def _last_calls(calls: Calls, groups: Mapping[int, str]) -> pl.DataFrame:
    """The last recorded operations of each rank in its group that tell from which line they came, in their order."""
    wanted = pl.LazyFrame(list(groups.items()), schema={"rank": pl.Int32(), "group_key": pl.String()}, orient="row")
    own = (pl.col("domain") == "fr") & ~pl.col("is_p2p") & pl.col("seq").is_not_null() & pl.col("call_site").is_not_null()
    made = (
        calls.every.filter(own & pl.col("rank").is_in(sorted(groups)))
        .join(wanted, on=_KEY)
        .select(*_KEY, "seq", "op", "shape", "call_site", "source_id", "record")
    )
    return made.sort(*_KEY, "seq").group_by(_KEY, maintain_order=True).tail(_BACK).collect()
