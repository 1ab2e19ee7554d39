"""The rank that is at work whenever somebody looks, while all others wait: where several samples of all stacks are all that is known of a
slow job."""

from __future__ import annotations

import polars as pl

from nccl_forensics.evidence import PLACE
from nccl_forensics.frames import typed
from nccl_forensics.views import view
from nccl_forensics.views.columns import read_at

STACK_WORK = typed("rank:i32 host:str pid:i64 place:str user_frame:str samples:u32 others:list[i32]", read_at(), read_at("peer_"))
#: So many looks at each of so many ranks: two find somebody at work now and then in a good job, too.
_LOOKS, _RANKS = 3, 3
#: What one rank does for all, once in a while and for long, or when its program is over.
_FOR_ALL = ("evaluation", "checkpoint", "compile", "import", "ended")


@view(rows="ranks")
def stack_work(thread_states: pl.LazyFrame) -> pl.LazyFrame:
    """At most one row: the one rank of at least three whose stack moves, and waits for nobody in any of at least three samples, where every
    other rank waits in all of its own. Empty where it evaluates or saves, which one does for all, and where ranks send to each other in
    pairs, as those of a pipeline wait in turns."""
    ranks = thread_states.filter(pl.col("rank").is_not_null() & pl.col("role").is_null()).sort("rank").collect()
    at_work = ranks.filter((pl.col("waits") == 0) & pl.col("moved") & ~pl.col("place").is_in(_FOR_ALL))
    others = ranks.filter(pl.col("waits") == pl.col("samples"))
    looked = ranks.height >= _RANKS and int(str(ranks["samples"].min())) >= _LOOKS and ranks["rank"].is_unique().all()
    if not looked or at_work.height != 1 or others.height != ranks.height - 1 or (ranks["place"] == "p2p").any():
        return pl.LazyFrame(schema=STACK_WORK)
    peer = others.row(0, named=True)
    cited = {f"peer_{name}": peer[name] for name in PLACE}
    own = {name: at_work[name][0] for name in STACK_WORK if name in at_work.columns}
    return pl.LazyFrame([own | cited | {"others": others["rank"].to_list()}], schema=STACK_WORK)
