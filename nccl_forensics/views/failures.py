"""Signs that the job failed at all, whatever the cause: they decide between "nothing wrong" and "unexplained"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from nccl_forensics.facts.signals import ASKS_TO_END
from nccl_forensics.frames import has_rows, typed
from nccl_forensics.stacks.places import WAITING
from nccl_forensics.views import view
from nccl_forensics.views.columns import read_at
from nccl_forensics.views.log_ends import copied_in_part
from nccl_forensics.views.looks import ordinary, standing
from nccl_forensics.views.motion import advances
from nccl_forensics.views.raised import lived_on
from nccl_forensics.views.ras import mute_processes

FAILURES = typed("sign:str count:i64 ranks:list[i32]", read_at())
#: NCCL's error lines that only a failure prints. Others (retries, plugins that are absent) occur in healthy jobs.
HARMLESS = (
    "connect-retry",
    "other",
    "ras-timeout",
    "plugin",
    "abort",
    "no-device",
    "propagation",
    "peer-closed",
    "recv-failed",
    "ib-async-event",
    # A table of addresses or a speed that changed; a device that cannot be opened and is left out.
    "ib-event",
    "ib-device",
    "ras-dead",
    "ras-own",
    # NCCL goes on in another way, and says so: a simple order of GPUs, point-to-point instead of SHARP.
    "fallback",
    # RCCL advises on the settings of the kernel; every healthy job on such a host begins with it.
    "rccl-platform",
    "rccl-balancing",
)


#: Texts of kinds that are errors otherwise, after which NCCL goes on: without a setting, an optional library (of the driver, for other ways
#: of getting memory: 2.13 to 2.20 src/misc/cudawrap.cc), reduction in the network or a device, with fewer ports than the peer, and listening after a
#: stranger connected (2.14 to 2.26 src/misc/socket.cc, 2.20 to 2.23 src/transport/net_ib.cc).
_WENT_ON = (
    r", ignoring$|disabling CollNet|^Failed to open libgdrapi|^Failed to find CUDA library |^NET/IB : Local mergedDev"
    r"|^socketFinalizeAccept.{0,80}: wrong magic |^Call to ibv_open_device failed"
)


#: What a watchdog says once it waits no longer.
GAVE_UP_WAITING = ["timeout", "failure", "dump-signal", "heartbeat-stuck", "error", "store-timeout", "store-unreachable"]
#: What ranks say of each other where calls or arrivals differ. Who reached a monitored barrier says so only where the barrier failed.
_DISAGREED = ["detail-mismatch", "barrier-missing", "barrier-ok", "recorder-analysis"]
#: What the thread that moves the data of a process says of an error.
_MOVING = r"\[Progress Thread\]"
#: Exit codes of tasks that ended well, or by SIGHUP, SIGINT or SIGTERM, as a shell hands them on or as the launcher says it
#: (``Terminated``).
_NO_FAILURE = [0, 129, 130, 143, -1, -2, -15]
#: Signs of jobs in which nothing had timed out yet: one that somebody ended, and one that was looked at while it hung.
WAITS = "ranks that wait for others"
STANDSTILL = "a standstill that somebody ended"
#: A sign of jobs that somebody ended, whether they worked or not.
ENDED = "processes that were told to end"
BADLY = "processes ended badly"
LONGER = "operations in flight for longer than any before"
TIMEOUTS, EXCEPTIONS, MISSED = "watchdog timeouts", "exceptions", "mismatches and missed barriers"
#: Signs of a rank that may have waited for as long as its timeout allows.
GAVE_UP = frozenset({TIMEOUTS, EXCEPTIONS, MISSED})


@view(rows="kinds of signs")
def failures(
    endings: pl.LazyFrame | None,
    watchdog: pl.LazyFrame | None,
    raised: pl.LazyFrame | None,
    nccl_errors: pl.LazyFrame | None,
    comms: pl.LazyFrame | None,
    waits: pl.LazyFrame | None,
    rank_reports: pl.LazyFrame | None,
    last_calls: pl.LazyFrame | None,
    worker_exits: pl.LazyFrame | None,
    bandwidth_tests: pl.LazyFrame | None,
    looks: pl.LazyFrame | None = None,
    overwritten: pl.LazyFrame | None = None,
    motion: pl.LazyFrame | None = None,
    gpu_bandwidth: pl.LazyFrame | None = None,
    cut_ends: pl.LazyFrame | None = None,
    nccl_ras_items: pl.LazyFrame | None = None,
    training_ends: pl.LazyFrame | None = None,
    moved_between: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """One row per kind of sign: bad endings, timeouts, exceptions, NCCL errors, tests, copies between GPUs and tasks of a scheduler that
    failed, communicators that never came up, ranks that wait (unless half of the ranks or more moved between two samples of their stacks or
    recorders, one recorder shows that the job moved after another was written, or none had waited for longer than usual when it was looked
    at: whoever looks at a job that works finds ranks that wait), a
    launcher that was told to end while all ranks stood in calls that wait, and operations in flight for longer than any before, on half of
    the ranks that were looked at or more.

    In a log that says that the training is over, tasks that failed before that are of another step of the same script, and what NCCL prints
    behind it as communicators are taken down is no sign either."""
    signs: list[_Sign] = []
    if endings is not None:
        signs += _of_endings(endings)
    if watchdog is not None:
        signs.append(_Sign(TIMEOUTS, _in_order(watchdog.filter(pl.col("kind").is_in(GAVE_UP_WAITING)))))
    if raised is not None:
        signs.append(_Sign(EXCEPTIONS, _in_order(raised.filter(~lived_on()))))
    if rank_reports is not None:
        signs.append(_Sign(MISSED, _in_order(rank_reports.filter(pl.col("kind").is_in(_DISAGREED)))))
    if nccl_errors is not None:
        signs += _of_nccl(nccl_errors, comms, training_ends)
    if nccl_ras_items is not None:
        told = nccl_ras_items.filter(pl.col("error").is_not_null() | ((pl.col("kind") == "DEAD") & pl.col("pid").is_not_null()))
        signs.append(_Sign("errors that RAS reports", _in_order(pl.concat([told, mute_processes(nccl_ras_items)]))))
    if bandwidth_tests is not None:
        signs.append(_Sign("tests that failed", _in_order(bandwidth_tests.filter(pl.col("error").is_not_null())), record=_RECORD))
    if gpu_bandwidth is not None:
        signs.append(_Sign("copies between GPUs that failed", _in_order(gpu_bandwidth.filter(pl.col("status") == "error")), record=_RECORD))
    if comms is not None:
        never = _in_order(_never_up(comms, overwritten, cut_ends))
        signs.append(_Sign("communicators that never came up", never, pl.col("rank").implode()))
    moves = advances(motion) or has_rows(moved_between)
    if waits is not None and not moves and not (looks is not None and _no_longer_than_usual(looks, waits)):
        strong = waits.filter(~_copied_while_running()).sort("waiter", "awaited")
        signs.append(_Sign(WAITS, strong, pl.col("waiter").unique().sort().implode(), _RECORD))
    if worker_exits is not None:
        signs.append(_Sign("tasks that failed", _in_order(_failed_tasks(worker_exits, training_ends))))
    if worker_exits is not None and _standing(last_calls):
        stopped = worker_exits.filter((pl.col("kind") == "launcher-signal") & pl.col("signal").is_in(ASKS_TO_END))
        signs.append(_Sign(STANDSTILL, _in_order(stopped).head(1)))
    if looks is not None and not advances(motion):
        signs.append(_Sign(LONGER, standing(looks).sort("rank"), pl.col("rank").implode(), _RECORD))
    return pl.concat([sign.row() for sign in signs]) if signs else pl.LazyFrame(schema=FAILURES)


#: Nobody, and no record: what most signs tell.
_NONE, _NO_RECORD = pl.lit(None, dtype=pl.List(pl.Int32())), pl.lit(None, dtype=pl.String())
#: Where the first of the rows stands in its document.
_RECORD = pl.col("record").first()


@dataclass(frozen=True, slots=True)
class _Sign:
    """One kind of sign with the rows that show it, the first of which is cited."""

    name: str
    rows: pl.LazyFrame
    ranks: pl.Expr = _NONE
    record: pl.Expr = _NO_RECORD

    def row(self) -> pl.LazyFrame:
        """The sign's row of the view; none where nothing shows it."""
        told = self.rows.select(
            sign=pl.lit(self.name),
            count=pl.len(),
            ranks=self.ranks,
            source_id=pl.col("source_id").first(),
            line_no=pl.col("line_no").first(),
            record=self.record,
        ).filter(pl.col("count") > 0)
        return told.select([pl.col(c).cast(t) for c, t in FAILURES.items()])


def _in_order(rows: pl.LazyFrame) -> pl.LazyFrame:
    return rows.sort("source_id", "line_no")


def _of_endings(endings: pl.LazyFrame) -> Iterator[_Sign]:
    asked, ranks = pl.col("kind") == "terminated", pl.col("rank").drop_nulls().implode()
    yield _Sign(BADLY, endings.filter((pl.col("kind") != "clean") & ~asked), ranks)
    yield _Sign(ENDED, endings.filter(asked), ranks)


def _of_nccl(errors: pl.LazyFrame, comms: pl.LazyFrame | None, training_ends: pl.LazyFrame | None) -> Iterator[_Sign]:
    message = pl.col("message").fill_null("")
    warned = (pl.col("level") == "WARN") & ~pl.col("kind").is_in(list(HARMLESS))
    real = errors.filter(warned & ~message.str.contains(_WENT_ON))
    if comms is not None:
        real = _without_teardown(real, comms).join(went_on_without_nvml(errors, comms), on=["source_id", "line_no"], how="anti")
    if training_ends is not None:
        real = real.join(_over(training_ends), on="source_id", how="left").filter(~(message.str.contains(_CLOSING) & _behind()))
    yield _Sign("NCCL errors", _in_order(real))
    # 1 to 6 are errors, 7 is in progress (nccl.h, ncclResult_t).
    passed_on = (pl.col("kind") == "propagation") & pl.col("code").is_between(1, 6)
    # What ncclEnqueueCheck hands up, the caller of the collective gets.
    handed_up = passed_on & pl.col("file").str.ends_with("enqueue.cc")
    yield _Sign("collectives that NCCL failed", _in_order(errors.filter(handed_up)))
    # The thread that moves data fails only where a transfer was on its way: whose peer ended in good order has none (NCCL 2.18 on,
    # src/proxy.cc).
    yield _Sign("transfers that broke off", _in_order(errors.filter(passed_on & message.str.contains(_MOVING))))


def _never_up(comms: pl.LazyFrame, overwritten: pl.LazyFrame | None, cut_ends: pl.LazyFrame | None) -> pl.LazyFrame:
    """Communicators that were begun and not completed, where the line that says that they were cannot have been lost."""
    if overwritten is not None:
        comms = comms.join(overwritten, on="source_id", how="anti")
    # One that was taken down in order had come up, whatever became of the line that says so.
    open_ = pl.col("started") & ~pl.col("completed") & (pl.col("ended").fill_null("") != "destroy-complete")
    return comms.join(copied_in_part(cut_ends), on="source_id", how="anti").filter(open_)


def _failed_tasks(exits: pl.LazyFrame, training_ends: pl.LazyFrame | None) -> pl.LazyFrame:
    """Tasks of a scheduler that failed, not before a training that then came to its end."""
    failed = exits.filter((pl.col("kind") == "task") & ~pl.col("exit_code").fill_null(0).is_in(_NO_FAILURE))
    if training_ends is None:
        return failed
    return failed.join(_over(training_ends), on="source_id", how="left").filter(_behind() | pl.col("over_at").is_null())


#: What the proxy's service thread says when its own process aborts the communicator while its peers close theirs (NCCL 2.19 to 2.24
#: src/proxy.cc).
_CLOSING = r"^\[Service thread\] (?:Accept failed|Could not receive type from localRank \d+, res=3)|^\[Proxy Service \d+\] Failed to execute operation (?:Close|Stop) "


def _over(training_ends: pl.LazyFrame) -> pl.LazyFrame:
    """By source the last line that says that the training is over."""
    return training_ends.group_by("source_id").agg(pl.col("line_no").max().alias("over_at"))


def _behind() -> pl.Expr:
    """Whether a line stands behind that one."""
    return (pl.col("line_no") > pl.col("over_at")).fill_null(value=False)


def went_on_without_nvml(errors: pl.LazyFrame, comms: pl.LazyFrame) -> pl.LazyFrame:
    """Source and line of what a process says of NVML that it could not be started, since the driver's library is of another release, where
    a communicator of it came up after that: NCCL 2.18.1 goes on without its word on NVLinks (src/graph/xml.cc, "Skipping nvlink detection")."""
    refused = (pl.col("kind") == "nvml") & pl.col("message").str.contains("(?i)nvmlInit.*version mismatch")
    up = comms.filter("completed").select("source_id", "host", "pid", up_at="end_line_no")
    met = errors.filter(refused).join(up, on=["source_id", "host", "pid"], nulls_equal=True)
    return met.filter(pl.col("line_no") < pl.col("up_at")).select("source_id", "line_no").unique()


def _without_teardown(errors: pl.LazyFrame, comms: pl.LazyFrame) -> pl.LazyFrame:
    """The same without what a process prints just before it is done with aborting its communicator: a job may end so in good order."""
    done = comms.filter(pl.col("ended") == "abort-complete").select("source_id", "host", "pid", done_at="end_line_no")
    closing = (
        errors.filter(pl.col("message").fill_null("").str.contains(_CLOSING))
        .join(done, on=["source_id", "host", "pid"], nulls_equal=True)
        .filter(pl.col("line_no") < pl.col("done_at"))
        .select("source_id", "line_no")
        .unique()
    )
    return errors.join(closing, on=["source_id", "line_no"], how="anti")


def _copied_while_running() -> pl.Expr:
    """Whether an edge is of a group of NCCL's log in which more than a third of the ranks are one or two operations behind the others, and
    no other group waits: logs that are copied while a job runs end so."""
    behind = pl.col("kind") == "behind"
    group = ["domain", "group_key"]
    awaited = pl.col("awaited").n_unique().over(group)
    waiters = pl.col("waiter").n_unique().over(group)
    single = (pl.col("group_key").n_unique() == 1) & (pl.col("domain") == "nccl").all()
    near = (behind & (pl.col("behind") <= 2)).sum().over(group) == behind.sum().over(group)
    return single & near & (awaited > 2) & (awaited * 2 > waiters)


def _no_longer_than_usual(looks: pl.LazyFrame, waits: pl.LazyFrame) -> bool:
    return ordinary(looks, waits.select(pl.col("waiter").n_unique()).collect().item())


def _standing(last_calls: pl.LazyFrame | None) -> bool:
    """Whether no rank with a stack, of at least three, moved, and all stand in calls that wait for others, or most where groups are
    made."""
    if last_calls is None:
        return False
    seen = last_calls.filter(pl.col("witness") == "stack").select("place", "moved").collect()
    if seen.height < 3 or seen["moved"].any():
        return False
    making = int((seen["place"] == "rendezvous").sum())
    return making * 2 > seen.height or bool(seen["place"].is_in([*WAITING, "rendezvous"]).all())
