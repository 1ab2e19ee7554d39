"""Workers that had ended before their launcher came to say who failed or to stop the others: rows of ``endings``, as far as they are
known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection

import polars as pl

from nccl_forensics.frames import ranks_in
from nccl_forensics.values.ranklist import MOST_RANKS
from nccl_forensics.views.pids import Pids

#: What a process says whose peer ended.
PEER_GONE = ("gloo-closed", "gloo-reset", "nccl-remote")


def left(
    worker_exits: pl.LazyFrame, path_hints: pl.LazyFrame, ranks_of_source: dict[int, int], by_pid: Pids, others: list[dict[str, object]]
) -> list[dict[str, object]]:
    """Ranks with a folder in the launcher's attempt, or between the ranks of its report at the end, that this does not list, while those
    that it lists lost a peer.

    torchrun lists every worker that failed and every one that it had to stop (torch/distributed/elastic/multiprocessing/errors
    ChildFailedError); one that is not listed had ended before with exit code 0. Where it started a function it lists the first that failed
    and no other (MultiprocessContext), also of those that it had to stop: then who ended before is left only if the pids that it stopped
    are known.
    """
    report = worker_exits.filter(pl.col("kind").is_in(["root-cause", "failure"]) & pl.col("rank").is_not_null()).sort(
        "source_id", "line_no"
    )
    listed = report.collect()
    if not listed.height or listed["source_id"].n_unique() != 1 or not any(o["signature"] in PEER_GONE for o in others):
        return []
    folders = path_hints.filter(pl.col("attempt_local_rank").is_not_null()).select("source_id", "attempt_local_rank").collect()
    launched = {ranks_of_source[s] for s in folders["source_id"].to_list() if s in ranks_of_source}
    if len(launched) != folders["attempt_local_rank"].n_unique():
        return []
    if not launched and (listed["rank"] == listed["local_rank"]).fill_null(False).all():
        # One launcher numbers its workers without a gap; who comes after the last one that it lists is not known.
        launched = set(range(max(listed["rank"].to_list())))
    signalled = worker_exits.filter((pl.col("kind") == "closing-signal") & pl.col("pid").is_not_null()).select("pid", "host")
    reported = set(listed["pid"].to_list())
    unlisted = {by_pid.rank(pid, host) for pid, host in signalled.collect().iter_rows() if pid not in reported}
    missing = sorted(launched - set(listed["rank"].to_list()) - {o["rank"] for o in others} - unlisted)
    if not missing or len(missing) * 2 > len(launched) or None in unlisted:
        return []
    first = listed.row(0, named=True)
    why = "the launcher lists it neither as failed nor as stopped: it had ended with exit code 0 while the others went on"
    if unlisted:
        why = "the launcher stopped the others that still ran and not this one, which left no word: it had ended before"
    code = None if unlisted else 0
    place = {k: first[k] for k in ("host", "source_id", "line_no", "end_line")}
    return [place | {"rank": r, "own": True, "kind": "left", "exit_code": code, "why": why} for r in missing]


#: Whom a monitored barrier missed, as one that waits for all says it (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp) and as one that
#: does not.
_MISSED = re.compile(r"Ranks? ([\d, ]{1,200}) failed to pass monitoredBarrier")


def not_stopped(
    worker_exits: pl.LazyFrame, path_hints: pl.LazyFrame, by_pid: Pids, others: list[dict[str, object]]
) -> list[dict[str, object]]:
    """The one worker that the launcher did not have to stop, where its log ends before it says who failed, or says so of workers alone that
    lost a peer.

    torchrun signals all workers that still run as soon as one has failed (torch/distributed/elastic/agent/server/api.py); it starts them
    in the order of their local ranks, so that the known pids tell which one is left out.
    """
    lines = worker_exits.filter(pl.col("kind").is_in(["closing-signal", "launcher-signal"])).sort("source_id", "line_no").collect()
    if not lines.height or lines["source_id"].n_unique() != 1:
        return []
    told = lines["kind"][0] != "closing-signal"
    missed = {int(n) for o in others for said in _MISSED.findall(str(o["message"])) for n in said.replace(",", " ").split()}
    if told and not missed and not any(o["signature"] in PEER_GONE for o in others):
        return []  # told to end from outside, it stops all that still run: one may have ended in good order
    batch = lines.filter(pl.col("kind") == "closing-signal")
    named = pl.col("kind").is_in(["failed", "failure", "root-cause"]) & pl.col("pid").is_not_null()
    failed = worker_exits.filter(named).join(batch.lazy(), on="pid", how="anti").group_by("pid").agg(pl.col("rank").max()).collect()
    bereft = {o["rank"] for o in others if o["rank"] is not None and o["signature"] in PEER_GONE}
    if not bereft.issuperset(failed["rank"].to_list()):
        return []  # it says who failed: that is the one
    known = dict(failed.iter_rows())
    pids = sorted({*batch["pid"].drop_nulls().to_list(), *known})
    launched = path_hints.filter(pl.col("attempt_local_rank").is_not_null()).select("attempt_local_rank").unique().collect().height
    if launched < 3 or len(pids) != launched - 1:
        return []
    ranks = [known.get(pid, by_pid.rank(pid)) for pid in pids]
    # Local ranks are global ones where one launcher started them all. Who ended in another way is not the one.
    ended = {o["rank"] for o in others}
    gaps = [gap for gap in range(launched) if all(rank is None or rank == i + (i >= gap) for i, rank in enumerate(ranks))]
    fitting = [gap for gap in gaps if gap not in ended]
    if len(fitting) != 1 or (missed and fitting[0] not in missed):
        return []
    first = batch.row(0, named=True)
    how = "when it was told to end" if told else "of its own accord"
    why = f"the launcher stopped all the other workers {how} and not this one: it had ended before"
    place = {k: first[k] for k in ("host", "source_id", "line_no", "end_line")}
    return [place | {"rank": fitting[0], "own": True, "kind": "left", "why": why}]


def unlisted_task(
    tasks: pl.LazyFrame, of_task: Callable[[int, str | None], int | None], others: list[dict[str, object]]
) -> list[dict[str, object]]:
    """The one task of which srun does not say how it ended, where others lost a peer: srun tells of every task that failed or that it had
    to end, and of none that ended with exit code 0. Whoever comes after the last one that it tells of is not known."""
    listed = tasks.filter(pl.col("rank").is_not_null()).sort("source_id", "line_no").collect()
    numbers = set(listed["rank"].to_list())
    missing = set(range(max(numbers, default=-1) + 1)) - numbers
    lost = [o for o in others if o["signature"] in PEER_GONE]
    if len(missing) != 1 or len(numbers) < 2 or listed["source_id"].n_unique() != 1 or not lost or missing & {o["rank"] for o in others}:
        return []
    if any(of_task(task, host) != task for task, host in listed.select("rank", "host").iter_rows()):
        return []
    first = listed.row(0, named=True)
    why = "srun tells how every other task ended, and of this one nothing: it had ended with exit code 0 while the others went on"
    place = {k: first[k] for k in ("source_id", "line_no", "end_line")}
    return [place | {"rank": missing.pop(), "own": True, "kind": "left", "exit_code": 0, "why": why}]


#: Zones differ by quarters of an hour, and launchers round to seconds.
_QUARTER_NS, _ROUNDED_NS = 900 * 10**9, 2 * 10**9
#: A wait that lasted no longer than this part of what it may was not given up.
_EARLY = 0.5


def gone_before(worker_exits: pl.LazyFrame, progress: pl.LazyFrame, others: list[dict[str, object]]) -> list[dict[str, object]]:
    """The one rank of a group that never came to the call in which recorders show all others, where those whose words are known lost a
    peer, long before that wait could time out: one that stands still keeps its connections.

    Launchers of functions print what the first that failed raised, and nothing of the others (torch/multiprocessing/spawn.py).
    """
    raised = [o["signature"] for o in others if o["signature"] is not None]
    failed = worker_exits.filter(pl.col("kind").is_in(["root-cause", "failure"]) & pl.col("time_raw_ns").is_not_null()).sort("time_raw_ns")
    first = failed.head(1).collect()
    if not raised or not first.height or any(signature not in PEER_GONE for signature in raised):
        return []
    known = progress.filter(
        (pl.col("domain") == "fr") & pl.col("last_seq").is_not_null() & pl.col("last_created_ns").is_not_null()
    ).collect()
    latest = known.filter(pl.col("group_key") == known.sort("last_created_ns")["group_key"].last()) if known.height else known
    there = latest.filter(pl.col("last_seq") == pl.col("last_seq").max())
    away = latest.filter(pl.col("last_seq") == pl.col("last_seq").max() - 1)
    # Of a rank without a recorder more could be told: it may be the one that went. Processes of unknown rank have numbers far beyond any
    # rank.
    ranks = set(latest["rank"].to_list())
    everyone = bool(ranks) and len(ranks) == max(*ranks, *(_rank(o) for o in others), 0) + 1
    if away.height != 1 or there.height < 2 or there.height + 1 != latest.height or not everyone:
        return []
    row, timeout = away.row(0, named=True), there["timeout_ms"].min()
    waited = (int(first["time_raw_ns"][0]) - int(str(there["last_created_ns"].max())) + _ROUNDED_NS) % _QUARTER_NS
    if row["rank"] in {o["rank"] for o in others} or timeout is None or waited > _EARLY * int(str(timeout)) * 10**6:
        return []
    why = "all others came to their next call, lost a peer long before it could time out, and this one never came to it: it had gone"
    # The line is cited for its time; whose launcher wrote it, and so on which host the rank was, is not told.
    place = {k: first[k][0] for k in ("source_id", "line_no", "end_line")}
    return [place | {"rank": row["rank"], "own": True, "kind": "vanished", "why": why}]


#: Ranks that must have lost a peer, at least.
_LOST = 2


def first_to_go(told: Collection[int], progress: pl.LazyFrame | None, endings: list[dict[str, object]]) -> list[dict[str, object]]:
    """The one rank of the job of which no line tells a failure, where all others ended as a peer of theirs had gone: somebody had gone
    before the first of these. The one process of unknown rank that ended by itself is given that rank, where all others raised anything that
    whoever waits in vain for a peer does. ``told``: ranks of which there is evidence other than a recorder's (``progress``)."""
    own, others = ([row for row in endings if bool(row["own"]) == mine] for mine in (True, False))
    raised = [row["signature"] for row in others]
    by_its_peers = not own and all(signature in PEER_GONE for signature in raised)
    nameless = len(own) == 1 and own[0]["rank"] is None and None not in raised
    if not (by_its_peers or nameless):
        return []
    recorded = [] if progress is None else progress.filter(pl.col("domain") == "fr").select("rank").unique().collect()["rank"].to_list()
    rank = _left_over({*told, *recorded}, others)
    if rank is None:
        return []
    if own:
        own[0].update(rank=rank, why=f"{own[0]['why']}; of all other ranks it is told how they ended")
        return []
    first = min(others, key=_rank)
    why = "all others ended as a peer of theirs had gone, and of this one alone no line tells how it ended: it went first"
    place = {k: first[k] for k in ("source_id", "line_no", "end_line", "exc_source_id", "exc_line_no")}
    return [place | {"rank": rank, "own": True, "kind": "vanished", "why": why}]


def without_a_dump(
    told: Collection[int],
    worker_exits: pl.DataFrame,
    progress: pl.LazyFrame | None,
    groups: pl.LazyFrame | None,
    endings: list[dict[str, object]],
) -> None:
    """Gives the one process of unknown rank that ended by itself the rank of the one dump that is missing: a recorder is written by processes
    that live when a wait has lasted too long. Nothing else may tell of that rank (``told``), and it is no less than the local rank that the
    launcher says."""
    own = [row for row in endings if row["own"]]
    if len(own) != 1 or own[0]["rank"] is not None or progress is None or groups is None:
        return
    recorded = ranks_in(progress, pl.col("domain") == "fr")
    greatest = groups.filter(pl.col("domain") == "fr").select(pl.col("members").list.max().max()).collect().item()
    missing = set(range(int(greatest) + 1)) - recorded if greatest is not None and greatest < MOST_RANKS else set()
    line = worker_exits.filter((pl.col("source_id") == own[0]["source_id"]) & (pl.col("line_no") == own[0]["line_no"]))
    least = max(line["local_rank"].drop_nulls().to_list(), default=0)
    if len(missing) == 1 and len(recorded) >= _LOST and not missing & {*told} and min(missing) >= least:
        own[0].update(rank=missing.pop(), why=f"{own[0]['why']}; all other ranks lived to write what their recorders hold")


def _left_over(known: Collection[int], others: list[dict[str, object]]) -> int | None:
    """The one rank of a whole job that is not among these, two at least."""
    ended = {o["rank"] for o in others}
    rest = set(known) - ended
    whole = len(rest) == 1 and _LOST <= len(ended) == len(others) and ended | rest == set(range(len(ended) + 1))
    return rest.pop() if whole else None


def _rank(ending: dict[str, object]) -> int:
    return int(str(ending["rank"])) if ending["rank"] is not None else 0


def lost_a_peer(watchdog: pl.LazyFrame | None, ranks_of_source: dict[int, int]) -> tuple[set[int], dict[object, int]]:
    """Ranks whose watchdog says that NCCL found a peer gone, after which it ends the process with SIGABRT, and how many such lines each
    source holds."""
    if watchdog is None:
        return set(), {}
    said = watchdog.filter((pl.col("kind") == "error") & pl.col("message").str.contains("remote process exited", literal=True))
    ranks: set[int] = set()
    lines: Counter[object] = Counter()
    for source, hint, scope in said.select("source_id", "hint_rank", "hint_scope").collect().iter_rows():
        lines[source] += 1
        if (rank := hint if scope == "global" else ranks_of_source.get(source)) is not None:
            ranks.add(rank)
    return ranks, dict(lines)
