"""Processes that failed alike: those in which NCCL met the same trouble of its own and gave the call up, and those that raised the same."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from nccl_forensics.facts.signatures import SURVIVED
from nccl_forensics.frames import has_rows

#: Kinds of exceptions that did not end the process, or not at once.
GOT_OVER = (*SURVIVED, "thread")
#: Errors that tell of a peer that is gone, or of the end: whoever loses a peer prints them.
_OF_PEERS = frozenset(
    {"peer-closed", "recv-failed", "connect-retry", "connect-gave-up", "connect-failed", "abort", "ras-dead", "ras-timeout"}
)
#: ncclUnhandledCudaError to ncclInvalidUsage (nccl.h, ncclResult_t); 6 is ncclRemoteError, 7 in progress.
_OWN_CODES = (1, 5)
_THREAD = ("source_id", "host", "pid", "tid")


def forgive_alike(rows: list[dict[str, object]], nccl_errors: pl.LazyFrame | None) -> None:
    """Of ``rows`` of ``endings``, those that left with an exit code after NCCL had failed in them as it did in at least as many others:
    whose exit the launcher saw first before it ended the rest is chance, and what NCCL failed by is the trouble of all."""
    left = {(row["host"], row["pid"]): row for row in rows if row["kind"] == "exit" and row["pid"] is not None}
    if not left or nccl_errors is None:
        return
    for group in _groups(nccl_errors).values():
        mine = left.keys() & group
        if mine and len(group) >= 2 * len(mine):
            for who in mine:
                why = f"exit code {left[who]['exit_code']} after NCCL had failed in it as in {len(group) - 1} other processes"
                left[who].update(kind="victim", own=False, why=why)


def one_of_those(people: dict[tuple[str, object], dict[str, object]], nccl_errors: pl.LazyFrame | None) -> None:
    """A launcher that names nobody (DeepSpeed's prints the command of the worker that it started last, whichever failed:
    deepspeed/launcher/launch.py) means one of those who raised something, or whom NCCL handed an error, which is raised then, where any
    did and the exit code is that of an exception."""
    nobody = people.get(("pid", None))
    if nobody is None or nobody["exit_code"] != 1:
        return
    failed = nccl_errors is not None and has_rows(nccl_errors.filter((pl.col("kind") == "propagation") & pl.col("code").is_between(1, 6)))
    if failed or any(who["rank"] is not None and who["signature"] for who in people.values()):
        del people["pid", None]


def words_of(row: Mapping[str, object]) -> tuple[object, ...]:
    """What tells that two tracebacks of a source are of one fault."""
    return row["source_id"], row["type"], str(row["message"]).split("\n", 1)[0], row["frame"]


def ended_by(
    people: Mapping[tuple[str, object], dict[str, object]],
    own: list[dict[str, object]],
    best: Mapping[str, object],
    ended: list[dict[str, object]],
    further: int,
) -> list[dict[str, object]]:
    """Who of a source ended by ``best``, if all at its end that has a cause of its own (``own``) is that, and it stands there ``further``
    times beside once for each that ``ended``: these, and those whom the launcher told to end when it saw the first, where at least half of
    them, and no more, raised it too."""
    if not ended or {words_of(row) for row in own} != {words_of(best)} or further < 0:
        return []
    told = [w for w in people.values() if w["source_id"] == best["source_id"] and w["signal"] == "SIGTERM" and w["signature"] is None]
    return [*ended, *told] if further <= len(told) <= 2 * further or not told else []


def _groups(nccl_errors: pl.LazyFrame) -> Mapping[tuple[object, ...], set[tuple[object, object]]]:
    """Processes by the place in NCCL's code that warned last before a thread of theirs handed an error up."""
    warned = (pl.col("level") == "WARN") & (pl.col("kind") != "propagation")
    place = ("kind", "file", "file_line")
    last = [pl.when(warned).then(pl.col(c)).forward_fill().over(_THREAD).alias(f"last_{c}") for c in place]
    up = (pl.col("kind") == "propagation") & pl.col("code").is_between(*_OWN_CODES) & ~pl.col("last_kind").is_in(list(_OF_PEERS))
    told = nccl_errors.sort("source_id", "line_no").with_columns(last).filter(up & pl.col("pid").is_not_null())
    groups: dict[tuple[object, ...], set[tuple[object, object]]] = {}
    for host, pid, *key in told.select("host", "pid", *(f"last_{c}" for c in place)).unique().collect().iter_rows():
        groups.setdefault(tuple(key), set()).add((host, pid))
    return groups


def exit_is_all(who: Mapping[str, object]) -> bool:
    """Whether all that is known of the end of a process is an exit code: then what it printed before may explain it, though it went on."""
    return not who.get("signature") and not who.get("signal") and bool(who.get("exit_code"))
