"""What the job itself shows of each of its ranks, beside which a line of a host's log can be laid: is it this rank that failed, or another
one?"""

from __future__ import annotations

import polars as pl

from nccl_forensics.facts.cuda_errors import cuda_error
from nccl_forensics.frames import has_rows, typed
from nccl_forensics.values import pci
from nccl_forensics.values.ranklist import MOST_RANKS
from nccl_forensics.views import view
from nccl_forensics.words import UNIDENTIFIED, first_label

JOB_SIGNS = typed("rank:i32 host:str pid:i64 bus_id:str sign:str node:str")
#: Endings of a process that somebody or something outside of it may have brought about.
_TAKEN = ("killed", "vanished", "bus-error", "out-of-memory")


@view(rows="ranks")
def job_signs(
    processes: pl.LazyFrame | None,
    endings: pl.LazyFrame | None,
    raised: pl.LazyFrame | None,
    stalls: pl.LazyFrame | None,
    stack_stalls: pl.LazyFrame | None,
    divergences: pl.LazyFrame | None,
    groups: pl.LazyFrame | None,
    done: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """One row per rank of the job, also of one that left nothing (a number below another's, or below the size of a group), with the
    ``sign`` that tells of it before all others, if any does: ``gpu`` (it says that its GPU failed it), ``taken`` (killed, or gone without a
    word), ``died`` (another end of its own), ``stands`` (the others wait for it), ``parted`` (it surely made other calls than its peers).
    Whoever only waited, or was told to end, has none. A row without a rank tells that there was a job, which ended well (view ``done``)."""
    signs: dict[int, str] = {}

    def note(ranks: list[object], sign: str) -> None:
        for rank in ranks:
            if rank is not None:
                signs.setdefault(int(str(rank)), sign)

    if raised is not None:
        said = raised.filter(pl.col("rank").is_not_null() & pl.col("message").str.contains("(?i)cuda|by GPU node-")).select(
            "rank", "message"
        )
        for rank, message in said.collect().iter_rows():
            told = cuda_error(str(message))
            if told is not None and told.speaks in ("gpu", "kernel", "not-ready"):
                note([rank], "gpu")
    if endings is not None:
        for rank, kind in endings.filter("own").sort("rank").select("rank", "kind").collect().iter_rows():
            note([rank], "gpu" if kind == "gpu" else "taken" if kind in _TAKEN else "died")
    for frame in (stalls, stack_stalls):
        if frame is not None:
            note(frame.filter(pl.col("confidence") != "low").select("rank").collect()["rank"].to_list(), "stands")
    if divergences is not None:
        for (ranks,) in divergences.filter("sure").select("ranks").collect().iter_rows():
            note(list(ranks or ()), "parted")
    known: dict[int, dict[str, object]] = {}
    if processes is not None:
        rows = processes.filter(pl.col("rank").is_not_null()).select("rank", "host", "node", "pid", "bus_id").sort("rank")
        for rank, host, node, pid, bus in rows.collect().iter_rows():
            where = {"host": first_label(host), "node": first_label(node), "pid": pid, "bus_id": pci.normal(bus)}
            known.setdefault(rank, {"rank": rank, **where})
    sizes = groups.select(pl.col("size").max(), pl.col("members").explode().max() + 1).collect().row(0) if groups is not None else ()
    # Ranks are numbered from 0: below the greatest there are all, and whoever left nothing ran on a host that may be none of the others'.
    least = max((n for n in (*sizes, *(rank + 1 for rank in {*known, *signs})) if n is not None and n <= UNIDENTIFIED), default=0)
    for rank in {*signs, *range(min(least, MOST_RANKS))}:
        known.setdefault(rank, {"rank": rank})
    if not known and has_rows(done):
        return pl.DataFrame([dict.fromkeys(JOB_SIGNS)], schema=JOB_SIGNS).lazy()
    out = [dict.fromkeys(JOB_SIGNS) | row | {"sign": signs.get(rank)} for rank, row in sorted(known.items())]
    return pl.DataFrame(out, schema=JOB_SIGNS).lazy()
