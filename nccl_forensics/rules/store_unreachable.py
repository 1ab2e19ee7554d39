"""Processes could not reach the store where the ranks of a job meet.

## What it finds
Exceptions of PyTorch's TCPStore, or lines of torch's own log, that no connection to the master's address came about, with what the system said: a name that does not
resolve, nobody who listens, no route, no answer.

## Why it matters
Nothing begins before all ranks have met; the others wait in init until their own timeout, and say that clients are missing.

## What would refute it
The store had been up and its process ended: then its own end is the cause, and these are its consequences.

## What to do next
Try it from the named host: getent hosts NAME, nc -zv NAME PORT. Check MASTER_ADDR and MASTER_PORT, the firewall, and that rank 0 lives.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding
from nccl_forensics.rules import rule
from nccl_forensics.stacks.places import WAITING
from nccl_forensics.words import first_label, ranks_words

#: ``(node0, 29500)`` or ``[node0]:29500`` (torch/csrc/distributed/c10d/socket.cpp).
_TARGET = r"(?:\(|\[)([A-Za-z0-9._:%-]{1,253}?)(?:, |\]:)([0-9]{1,5})"
#: Places at which a rank has come to the store, or past it, or nowhere in particular.
_NOT_AWAY = (*WAITING, "rendezvous", "unknown", "import", "ended")
#: What the system says, and what that means.
_REASONS = (
    (r"gai error: -?[0-9]+|Name or service not known|name resolution|cannot be retrieved", "its name does not resolve there"),
    (r"Connection refused|errno: 111", "nobody listens at that address and port"),
    (r"No route to host|errno: 113|Network is unreachable|errno: 101", "there is no route to it"),
    (r"timed out|errno: 110", "nothing answers there"),
)


@rule(
    name="store-unreachable",
    code="NE22",
    cause="connection-failed",
    severity="critical",
    at_most=8,
    explains=("timeout", "closed", "rank-never-joined", "host-stall"),
)
def store_unreachable(
    raised: pl.LazyFrame | None,
    endings: pl.LazyFrame | None,
    watchdog: pl.LazyFrame | None = None,
    source_ranks: pl.LazyFrame | None = None,
    source_hosts: pl.LazyFrame | None = None,
    last_calls: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """One finding per address, none where rank 0, which holds the store, is seen not to have come to it. Most ranks, or hosts of launchers, in vain: the address or its host; few: their own way there."""
    rows = _failed(raised, watchdog, source_ranks)
    if not rows.height or (last_calls is not None and _holder_away(last_calls)):
        return
    parts = pl.col("message").str.extract_groups(_TARGET).struct
    rows = rows.with_columns(target=parts.field("1"), port=parts.field("2"))
    known = endings.filter(pl.col("rank").is_not_null()).collect().height if endings is not None else 0
    home = dict(source_hosts.select("source_id", "host").drop_nulls().collect().iter_rows()) if source_hosts is not None else {}
    met = _met(raised, home)
    for (target, port), part in rows.group_by("target", "port", maintain_order=True):
        ranks = tuple(sorted(set(part["rank"].drop_nulls().to_list())))
        said = " ".join(part["message"].to_list())
        reason = next(
            (words for pattern, words in _REASONS if pl.Series([said]).str.contains(f"(?i){pattern}").any()), "no connection came about"
        )
        own = {first_label(h) for s in part["source_id"].to_list() if (h := home.get(s))}
        # Launchers have no rank: of those that give up, the hosts whose store's server answered others of the job.
        there = tuple(sorted(str(h) for h in own)) if not ranks and len(own) * 2 <= len(met - own) + len(own) else ()
        few = 0 < len(ranks) * 2 <= known or bool(there)
        place = f"{target}:{port}" if target else "the master's address"
        yield Finding(
            title=f"{ranks_words(ranks) if ranks else f'a process of {there[0]}' if there else 'a process'} could not reach the job's store at {place}: {reason}",
            summary="The others reached it: it is the way from these processes."
            if few
            else "The ranks meet there before anything else begins.",
            confidence="medium",
            ranks=ranks if few else (),
            hosts=there if few else (str(target),) if target else (),
            culprits=(tuple(Culprit(rank=r) for r in ranks) or tuple(Culprit(host=h) for h in there))
            if few
            else (Culprit(host=str(target)),)
            if target
            else (),
            subject=("store", str(target), str(port)),
            evidence=cite(part, "the connection that failed"),
            evidence_total=part.height,
            remedy="Check that MASTER_ADDR resolves and is reachable from every host, that MASTER_PORT is open, and that rank 0 is up.",
            prevention="Resolve and reach the master's address from every host in the job's prologue.",
            would_refute=("the process that holds the store ended before",),
            actions=(
                Action(
                    "fix_config", ranks=ranks if few else (), command=f"getent hosts {target}; nc -zv {target} {port}" if target else None
                ),
            ),
        )


def _holder_away(last_calls: pl.LazyFrame) -> bool:
    """Whether the stack of rank 0, which makes the store as it comes to it, stands still on its own host."""
    own = (pl.col("rank") == 0) & (pl.col("witness") == "stack") & ~pl.col("place").is_in(_NOT_AWAY)
    return last_calls.filter(own & ~pl.col("moved").fill_null(value=False)).collect().height > 0


def _met(raised: pl.LazyFrame | None, home: dict[object, object]) -> set[str | None]:
    """Hosts of processes that reached the store, and waited there for others."""
    if raised is None:
        return set()
    waited = (
        raised.filter(pl.col("message").str.contains(" clients joined", literal=True)).select("source_id").collect()["source_id"].to_list()
    )
    return {first_label(home[s]) for s in waited if home.get(s)}


def _failed(raised: pl.LazyFrame | None, watchdog: pl.LazyFrame | None, source_ranks: pl.LazyFrame | None) -> pl.DataFrame:
    """The exceptions that say so; of sources without one, the lines of torch's own log in which the store's client gave up."""
    columns = {"source_id": pl.UInt32(), "line_no": pl.UInt32(), "end_line": pl.UInt32(), "rank": pl.Int32(), "message": pl.String()}
    parts = [pl.DataFrame(schema=columns)]

    def take(frame: pl.LazyFrame, rank: pl.Expr) -> pl.DataFrame:
        have = frame.collect_schema().names()
        named = [pl.col(c) if c in have else pl.lit(None).alias(c) for c in columns if c != "rank"]
        rows = frame.sort("source_id", "line_no").select(*named, rank.alias("rank")).collect()
        return rows.select([pl.col(c).cast(t) for c, t in columns.items()])

    if raised is not None:
        parts.append(take(raised.filter(pl.col("signature") == "store-unreachable"), pl.col("rank")))
    if watchdog is not None:
        told = watchdog.filter(pl.col("kind").is_in(["store-unreachable", "store-timeout"]))
        if parts[-1].height:
            told = told.filter(~pl.col("source_id").is_in(parts[-1]["source_id"].unique().to_list()))
        rank: pl.Expr = pl.when(pl.col("hint_scope") == "global").then("hint_rank")
        if source_ranks is not None:
            told = told.join(source_ranks.select("source_id", of_source="rank"), on="source_id", how="left")
            rank = pl.coalesce(rank, "of_source")
        parts.append(take(told, rank))
    return pl.concat(parts)
