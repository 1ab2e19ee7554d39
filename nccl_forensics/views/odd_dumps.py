"""Recorder dumps that say nothing of their rank, beside stacks that do: the one that stands apart in both is one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Set
from typing import NamedTuple, TypeVar

import polars as pl

from nccl_forensics.folding import SORT, FoldedTable
from nccl_forensics.stacks.frames import line_of_code
from nccl_forensics.stacks.places import role_of, standing
from nccl_forensics.views.pids import Pids

_Who = TypeVar("_Who", bound=Hashable)
#: Processes of which one may stand apart.
_SEVERAL = 3


def odd_dump(
    fr_dumps: pl.LazyFrame, fr_entries: pl.LazyFrame | FoldedTable, stacks: pl.LazyFrame, by_pid: Pids, unknown: Set[int], size: int
) -> tuple[set[int], int] | None:
    """The dumps of the one process that stands apart, and its rank by its stack: of all ``size`` ranks there is a dump and a stack, all
    others stand in one and the same operation by both, and this one in another call by both, or outside any and before that operation.
    ``unknown``: dumps without a rank.

    Dumps of one content are of one process. Workers that one parent forked share the addresses by which a stack meets a dump else.
    """
    if size < _SEVERAL:
        return None
    contents = contents_of(fr_dumps)
    ends = _ends(fr_entries, set(contents))
    # Of two encodings the pickle knows the lines of the program.
    by_dump = {contents[source]: end for source, end in sorted(ends.items(), key=lambda item: item[1].frame is not None)}
    places = _places(stacks, by_pid)
    if not unknown or len(by_dump) != size or set(places) != set(range(size)) or None in contents.values():
        return None
    dump, stack = _apart(by_dump), _apart(places)
    if dump is None or stack is None:
        return None
    (content, mine, others), (rank, own, theirs) = dump, stack
    where = {source for source, key in contents.items() if key == content}
    # ``Work.wait()`` leaves no frame: a stack in the function that made the last call waits for it, as others do.
    waits = theirs.op is None and _function(theirs.frame) == _function(others.frame) is not None
    same = (waits or others.op == theirs.op) and (mine.op == own.op is not None or (own.op is None and mine.seq < others.seq))
    return (where, rank) if same and where <= unknown else None


def _function(frame: str | None) -> tuple[str, str] | None:
    function, _, file = line_of_code(frame)
    return (function, file) if file else None


#: What two dumps have alike between which nothing was enqueued.
MOMENT = ("entries", "first_record_id", "last_record_id", "first_created_ns", "last_created_ns")


def contents_of(fr_dumps: pl.LazyFrame) -> dict[int, object]:
    """What tells the contents of each dump apart. A pickle and a text of one moment, which no other dump shares, are of one process, though
    an operation may have ended between the two."""
    rows = fr_dumps.select("source_id", "content_key", "encoding", *MOMENT).sort("source_id").collect()
    found: dict[int, object] = dict(rows.select("source_id", "content_key").iter_rows())
    for _, part in rows.filter(pl.col("last_created_ns").is_not_null()).group_by(*MOMENT, maintain_order=True):
        keys = part.unique("content_key", maintain_order=True)
        if sorted(keys["encoding"].to_list()) == ["json", "pickle"]:
            found |= dict.fromkeys(part["source_id"].to_list(), keys["content_key"][0])
    return found


class _Spot(NamedTuple):
    """Where a process stands: the operation, if any, its number (0 where a stack tells it), the line of the program, and what else tells it
    from other places."""

    op: str | None
    seq: int
    frame: str | None
    more: str = ""


def _apart(spots: Mapping[_Who, _Spot]) -> tuple[_Who, _Spot, _Spot] | None:
    """Who stands elsewhere than all others, where, and where they stand."""
    counts = Counter(spots.values()).most_common()
    if len(counts) != 2 or counts[1][1] != 1 or counts[0][1] < 2:
        return None
    return next((who, spot, counts[0][0]) for who, spot in spots.items() if spot == counts[1][0])


def _ends(fr_entries: pl.LazyFrame | FoldedTable, sources: Set[int]) -> dict[int, _Spot]:
    """The last operation of each dump: what, in which group, its number and its sizes."""
    told = ("op", "pg_name", "input_sizes", "user_frame")
    folded = fr_entries if isinstance(fr_entries, FoldedTable) else None
    rows = folded.lazy() if folded is not None else fr_entries.lazy()
    mine = rows.filter(pl.col("source_id").is_in(list(sources)) & pl.col("collective_seq_id").is_not_null())
    last = mine.filter(pl.col("record_id") == pl.col("record_id").max().over("source_id"))
    if folded is not None:
        last = last.join(folded.words.lazy().select("source_id", SORT, *told), on=["source_id", SORT], how="left")
    found = last.select("source_id", "collective_seq_id", *told).unique("source_id").collect()
    return {source: _Spot(str(op), int(seq), frame, f"{group} {sizes}") for source, seq, op, group, sizes, frame in found.iter_rows()}


def _places(stacks: pl.LazyFrame, by_pid: Pids) -> dict[int, _Spot]:
    """The operation and the line of the program in which the main thread of each rank stands; nothing of ranks that moved between
    samples."""
    found: dict[int, set[_Spot]] = {}
    mains = stacks.filter(pl.col("is_main") & (pl.col("depth") > 0) & pl.col("pid").is_not_null())
    for pid, host, frames in mains.select("pid", "hint_host", "frames").collect().iter_rows():
        rank = by_pid.rank(pid, host)
        if rank is not None and role_of(frames) is None:
            stands = standing(frames, None)
            found.setdefault(rank, set()).add(_Spot(stands.op if stands.place == "collective" else None, 0, stands.user_frame))
    return {rank: spots.pop() for rank, spots in found.items() if len(spots) == 1}
