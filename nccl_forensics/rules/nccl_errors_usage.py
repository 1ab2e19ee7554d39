"""NCCL refused what it was asked: one GPU twice, an impossible algorithm, bad arguments.

## What it finds
WARN lines that NCCL prints when it refuses a call, with the ranks that the message itself names; processes that disagree on how many ranks
there are or on who is who; and ranks that ended because NCCL or torch.distributed refused what they were handed.

## Why it matters
The job stops at once on that rank; the others hang in init or in their first collective.

## What would refute it
The refused call was handled by the program and tried again with success.

## What to do next
Duplicate GPU: check CUDA_VISIBLE_DEVICES and local rank. No algorithm: look at NCCL_ALGO and NCCL_PROTO of that rank.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.facts.cuda_errors import texts
from nccl_forensics.model import Action, Culprit, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.endings import raised_at
from nccl_forensics.rules.common.errors import garbled, hosts_of, ranks_of, where_reported
from nccl_forensics.words import ranks_words

_KINDS = ("invalid-usage", "invalid-argument", "no-algorithm", "no-network", "no-transport")
#: Of a communicator whose init does not block its caller (ncclConfig_t, blocking = 0).
_TOO_EARLY = "before the previous operation returned ncclSuccess"
#: Said by the process that gathers the others' addresses, about what another one sent.
_TOLD_OF_OTHERS = ("duplicate-rank", "rank-mismatch")

_EXPLAINS = (
    "connection-failed",
    "rank-died",
    "rank-never-joined",
    "host-stall",
    "collective-stuck",
    "software-crash",
    "collective-skipped",
)


@rule(name="invalid-usage", code="US01", cause="invalid-usage", severity="critical", at_most=8, explains=_EXPLAINS)
def invalid_usage(nccl_errors: pl.LazyFrame, processes: pl.LazyFrame, comms: pl.LazyFrame | None = None) -> Iterator[Finding]:
    """Refused calls, duplicates first. Who used a communicator that had not come up yet grew tired of waiting for it, and who used one
    after a warning of its own used one that had failed: what kept it, or what was warned of, is the cause."""
    twice = nccl_errors.filter(pl.col("kind") == "duplicate-gpu").sort("source_id", "line_no").collect()
    if twice.height:
        pairs = (
            twice["message"].str.extract_groups(r"rank ([0-9]+) and rank ([0-9]+) both on CUDA device ([0-9a-f]+)").struct.unnest().rows()
        )
        ranks = tuple(sorted({int(r) for pair in pairs for r in pair[:2] if r is not None}))
        bus = next((p[2] for p in pairs if p[2]), None)
        shared = _on_one_gpu(comms, twice) if comms is not None and not ranks else pl.DataFrame()
        if shared.height:
            ranks, bus = ranks_of(shared), ", ".join(shared["bus_id"].unique(maintain_order=True))
        yield Finding(
            title=f"{ranks_words(ranks) if ranks else 'two ranks'} use the same GPU" + (f" ({bus})" if bus else ""),
            summary="NCCL refuses two ranks of one communicator on one device.",
            confidence="high",
            ranks=ranks,
            hosts=hosts_of(shared if shared.height else twice),
            subject=("duplicate-gpu",),
            evidence=(*cite(twice, "refused: duplicate GPU"), *(cite(shared, "began with the same GPU") if shared.height else ())),
            evidence_total=twice.height + shared.height,
            remedy="Call torch.cuda.set_device(local_rank) before init, and check CUDA_VISIBLE_DEVICES and the number of tasks per node.",
            prevention="Assert that local ranks of a host have distinct devices before the first collective.",
            would_refute=("MIG or multi-rank GPU sharing was meant and NCCL_MULTI_RANK_GPU_ENABLE is set",),
            actions=(Action("fix-code", ranks=ranks, confidence="high"),),
        )
    warned = nccl_errors.filter(pl.col("level") == "WARN")
    asked = (pl.col("kind") == "cuda-failure") & pl.col("message").str.contains_any(list(texts("program")))
    wrong = pl.col("kind").is_in(list(_KINDS)) | asked
    refused = warned.filter(wrong).join(_after_a_warning(warned), on=["source_id", "line_no"], how="anti")
    refused = pl.concat([refused, _by_code(nccl_errors, warned)])
    if comms is not None:
        waiting = comms.filter(pl.col("started") & ~pl.col("completed")).select("host", "pid").unique()
        hasty = refused.filter(pl.col("message").str.contains(_TOO_EARLY, literal=True)).join(waiting, on=["host", "pid"], how="semi")
        refused = refused.join(hasty.select("source_id", "line_no"), on=["source_id", "line_no"], how="anti")
    rows = where_reported(refused, processes)
    for (kind,), part in rows.group_by("kind", maintain_order=True):
        ranks, hosts = ranks_of(part), hosts_of(part)
        message = str(part["message"][0])[:160]
        whose = ranks_words(ranks) if ranks else "a process" + (f" on {', '.join(hosts)}" if hosts else "")
        yield Finding(
            title=f"NCCL refused a call of {whose}: {message}",
            summary="The call was wrong for this rank; the other ranks wait for it.",
            confidence="high" if ranks else "medium",
            ranks=ranks,
            hosts=hosts,
            culprits=tuple(Culprit(rank=r) for r in ranks) or tuple(Culprit(host=h) for h in hosts),
            subject=(str(kind),),
            evidence=cite(part, "refused"),
            evidence_total=part.height,
            remedy="Compare the arguments and NCCL_* settings of this rank with those of its peers.",
            prevention="Start each release of the program once on two hosts with NCCL_DEBUG=WARN before the large job.",
            would_refute=("the program handled the error and went on",),
            actions=(Action("fix-code", ranks=ranks),),
        )


def _by_code(nccl_errors: pl.LazyFrame, warned: pl.LazyFrame) -> pl.LazyFrame:
    """Calls that NCCL handed back as an invalid argument (4) or usage (5) in processes whose warnings tell of nothing else."""
    place = ["source_id", "host", "pid"]
    named = warned.filter(~pl.col("kind").is_in(["other", "abort"])).select(place).unique()
    code = (pl.col("kind") == "propagation") & pl.col("file").str.ends_with("enqueue.cc") & pl.col("code").is_in([4, 5])
    return nccl_errors.filter(code).join(named, on=place, how="anti", nulls_equal=True)


def _after_a_warning(warned: pl.LazyFrame) -> pl.LazyFrame:
    """``source_id`` and ``line_no`` of the refusals of a communicator whose process had warned of something else before."""
    early = pl.col("message").str.contains(_TOO_EARLY, literal=True)
    before = warned.filter(~early).group_by("source_id", "host", "pid").agg(pl.col("line_no").min().alias("warned"))
    return (
        warned.filter(early)
        .join(before, on=["source_id", "host", "pid"], nulls_equal=True)
        .filter(pl.col("line_no") > pl.col("warned"))
        .select("source_id", "line_no")
    )


def _on_one_gpu(comms: pl.LazyFrame, refused: pl.DataFrame) -> pl.DataFrame:
    """First lines of the ranks of one communicator that name the same GPU of the same host, where the message names nobody (NCCL 2.30)."""
    place = ["comm_key", "host", "bus_id"]
    return (
        comms.filter(pl.col("rank").is_not_null() & pl.col("bus_id").is_not_null())
        .join(refused.lazy().select("host", "pid").unique(), on=["host", "pid"], how="semi")
        .filter(pl.col("rank").n_unique().over(place) > 1)
        .sort("rank", "source_id", "line_no")
        .unique("rank", keep="first", maintain_order=True)
        .collect()
    )


@rule(name="bootstrap-disagreement", code="US03", cause="invalid-usage", severity="critical", at_most=1, explains=_EXPLAINS)
def bootstrap_disagreement(nccl_errors: pl.LazyFrame, nccl_comms: pl.LazyFrame | None) -> Iterator[Finding]:
    """Processes that came with another number of ranks, or with a rank that another had already taken.

    The line is printed by the process that gathers the addresses, as a rule rank 0, and says what another one sent: it is not the one.
    """
    rows = (
        nccl_errors.filter(pl.col("kind").is_in(list(_TOLD_OF_OTHERS)) & (pl.col("level") == "WARN") & ~garbled())
        .sort("source_id", "line_no")
        .collect()
    )
    if not rows.height:
        return
    twice = sorted({int(n) for n in rows.filter(pl.col("kind") == "duplicate-rank")["number"].to_list() if n is not None})
    odd = _other_size(nccl_comms) if nccl_comms is not None and not twice else pl.DataFrame()
    ranks = tuple(twice) or (ranks_of(odd) if odd.height else ())
    message = str(rows["message"][0])[:160]
    yield Finding(
        title=(
            f"two processes say that they are {ranks_words(ranks)}: {message}"
            if twice
            else f"{ranks_words(ranks)} came with another number of ranks: {message}"
            if ranks
            else f"the processes do not agree on the number of ranks: {message}"
        ),
        summary="Whoever gathers the addresses of all processes says so; it is not the one at fault.",
        confidence="high" if ranks else "medium",
        ranks=ranks,
        hosts=hosts_of(odd) if odd.height else (),
        subject=(str(rows["kind"][0]),),
        evidence=(
            *cite(rows, "said by the process that gathers the addresses"),
            *(cite(odd, "another number of ranks than the others") if odd.height else ()),
        ),
        evidence_total=rows.height + odd.height,
        remedy="Compare RANK, WORLD_SIZE and the number of tasks per node of all processes with what the launcher was told.",
        prevention="Print rank and world size of every process before the first communicator.",
        would_refute=("a second job used the same address (NCCL_COMM_ID, MASTER_ADDR and MASTER_PORT)",),
        actions=(Action("fix-code", ranks=ranks),),
    )


def _other_size(nccl_comms: pl.LazyFrame) -> pl.DataFrame:
    """First lines of the processes that began a communicator with another number of ranks than the most of those that began the same
    one."""
    begun = (
        nccl_comms.filter((pl.col("event") == "init-start") & pl.col("comm_id").is_not_null() & pl.col("nranks").is_not_null())
        .select("source_id", "line_no", "host", "pid", "comm_id", "rank", "nranks")
        .unique(["comm_id", "host", "pid", "rank"], keep="first", maintain_order=True)
        .collect()
    )
    alike = begun.with_columns(pl.len().over("comm_id", "nranks").alias("alike"), pl.len().over("comm_id").alias("all"))
    return alike.filter(pl.col("alike") * 2 < pl.col("all")).sort("source_id", "line_no")


#: What a rank hands in does not fit what it wants out: words, and what it is where the others hand in something else.
_UNLIKE = {
    "tensors with different dtypes": "dtype-mismatch",
    "invalid tensor type at index": "dtype-mismatch",
    "invalid tensor size at index": "shape-mismatch",
}


@rule(
    name="invalid-usage-by-exception",
    code="US02",
    cause="invalid-usage",
    severity="critical",
    at_most=8,
    explains=(*_EXPLAINS, "timeout", "closed"),
)
def invalid_usage_by_exception(endings: pl.LazyFrame) -> Iterator[Finding]:
    """Ranks that ended by a refused call: one finding per text. Where all ranks that ended did so alike, none of them is special. What a
    process of unknown rank said is also what a launcher repeats with its rank: that makes no second one."""
    ranked = pl.col("rank").is_not_null()
    told = endings.with_columns(again=(pl.col("kind") == "usage") & ~ranked & ranked.any().over("type", "frame", "message"))
    everyone = told.filter(~pl.col("again")).collect()
    repeated = told.filter("again").collect()
    refused = everyone.filter((pl.col("kind") == "usage") & pl.col("own")).sort("rank")
    for (kind, frame), part in refused.group_by("type", "frame", maintain_order=True):
        ranks = ranks_of(part)
        alike = part.height == everyone.height > 1
        message = " ".join(str(part["message"][0]).split())[:160]
        splits = "PerRank[myRank]" in message
        unlike = next((unlike for words, unlike in _UNLIKE.items() if words in message), None)
        # How many said so without a rank is not known: of one rank alone it may have been all.
        unsure = part.height == 1 and part["message"][0] in repeated["message"].to_list()
        yield Finding(
            cause="argument-mismatch" if splits else None,
            title=f"a call of {'all ranks' if alike else ranks_words(ranks) if ranks else 'a process'} was refused: {message}"
            + (f" at {frame}" if frame else ""),
            summary="All ranks made the same mistake: it is the program's."
            if alike
            else "The call was wrong for this rank; the others wait for it.",
            confidence="high" if ranks and not (splits or unlike or unsure) else "medium",
            ranks=() if alike else ranks,
            hosts=() if alike else hosts_of(part),
            culprits=() if alike else tuple(Culprit(rank=r) for r in ranks),
            subject=("refused", str(kind or ""), str(frame or "")),
            evidence=cite(map(raised_at, part.to_dicts()), "the call that was refused"),
            evidence_total=part.height,
            remedy="Fix the call at the quoted line: device, layout, sizes and ranks of what it is handed.",
            prevention="Test each release of the program with as many ranks as one node has, under TORCH_DISTRIBUTED_DEBUG=DETAIL.",
            would_refute=("the program handled the error and went on",),
            actions=(Action("fix-code", ranks=() if alike else ranks),),
            alternatives=((unlike, ranks, "what it sends may be of another size or type than what the others send"),)
            if unlike and not alike
            else (),
        )
