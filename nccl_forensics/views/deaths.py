"""How each rank ended: by its own fault, as a consequence of another's, or without a word."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping

import polars as pl

from nccl_forensics.facts.signals import ASKS_TO_END
from nccl_forensics.facts.signatures import classify
from nccl_forensics.frames import has_rows, ranks_in, typed, values_in
from nccl_forensics.stacks.places import WAITING
from nccl_forensics.values.damage import cut_off
from nccl_forensics.views import view
from nccl_forensics.views.ended_before import (
    PEER_GONE,
    first_to_go,
    gone_before,
    left,
    lost_a_peer,
    not_stopped,
    unlisted_task,
    without_a_dump,
)
from nccl_forensics.views.ending_kinds import CAUSE, CRASHES, SIGNALS, VICTIM, WAITED, judge, signature_of, telling, unwritten
from nccl_forensics.views.failed_alike import GOT_OVER, ended_by, exit_is_all, forgive_alike, one_of_those, words_of
from nccl_forensics.views.local_ranks import LocalRanks
from nccl_forensics.views.pids import Pids
from nccl_forensics.views.tasks import OF_LAUNCHERS, killed_with_the_step, rank_of_task
from nccl_forensics.views.unheard_ends import crashed, vanished
from nccl_forensics.views.watchdogs import outlived_a_timeout

DEATHS = typed(
    "rank:i32 host:str pid:i64 own:bool kind:str exit_code:i32 signal:str type:str message:str signature:str frame:str library:str",
    "time_raw_ns:i64 source_id:u32 line_no:u32 end_line:u32 exc_source_id:u32 exc_line_no:u32 why:str over:bool",
)


def ended_themselves(endings: pl.LazyFrame | None) -> set[int]:
    """Ranks whose process is over for a reason of its own; ``endings`` is the view."""
    return ranks_in(endings, pl.col("own"))


def gave_up(endings: pl.LazyFrame | None) -> set[int]:
    """Ranks that raised something, whosever fault it was; ``endings`` is the view."""
    return ranks_in(endings, pl.col("signature").is_not_null())


def told_at(ending: Mapping[str, object]) -> dict[str, object]:
    """Where a row of ``endings`` has its message from: ``source_id`` and ``line_no`` of the exception, else of the line that tells the
    ending."""
    exception = "exc_" if ending["exc_source_id"] is not None else ""
    return {name: ending[exception + name] for name in ("source_id", "line_no")}


@view(rows="ranks")
def endings(
    worker_exits: pl.LazyFrame | None,
    raised: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
    source_ranks: pl.LazyFrame | None,
    comms: pl.LazyFrame | None,
    path_hints: pl.LazyFrame | None,
    sources: pl.LazyFrame | None,
    kernel_events: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    watchdog: pl.LazyFrame | None = None,
    progress: pl.LazyFrame | None = None,
    nccl_notes: pl.LazyFrame | None = None,
    nccl_errors: pl.LazyFrame | None = None,
    last_calls: pl.LazyFrame | None = None,
    done: pl.LazyFrame | None = None,
    groups: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """One row per rank (or per process of unknown rank) that ended badly: ``kind`` (killed, segfault, abort, exception, exit, gpu, driver,
    usage, out-of-memory, victim, terminated, vanished, left, unheard), ``own`` (the ending has a cause in this process), exit code, signal,
    exception.

    ``vanished``: the process left its communicators without a word while all of its peers took them down in order, and nobody says that the
    job ended well.
    ``over``: a launcher says how it ended, or torch itself marked what it raised as the end of its rank (``[rank3]:``).
    ``library``: where the kernel says that it crashed.
    ``left``: it ended without a word while the others went on: it is not among the workers that the launcher found failed or had to stop
    (in its report, or where that is missing in the signals that it sent).
    ``unheard``: it left with an exit code, as the victims of a timeout do too, and its own output is not in the evidence though others' is.
    """
    by_pid, roster = Pids(processes), _Roster(processes)
    ranks_of_source: dict[int, int] = {}
    if source_ranks is not None:
        ranks_of_source = dict(source_ranks.filter(pl.col("rank").is_not_null()).select("source_id", "rank").collect().iter_rows())
    exits = worker_exits.sort("source_id", "line_no").collect() if worker_exits is not None else None
    if exits is not None:
        local_ranks = LocalRanks(processes, worker_exits, {*roster.where, *ranks_of_source.values()}, _folders(path_hints, ranks_of_source))
        of_task = rank_of_task(exits, processes, progress)
        _exited(roster, exits, by_pid, local_ranks, of_task)
        _before_the_step(roster.people, exits, of_task)
        for rank in killed_with_the_step(exits, of_task) & {who["rank"] for who in roster.people.values() if who["signal"] == "SIGKILL"}:
            roster.people["rank", rank].update(
                kind="terminated", own=False, why="killed as the step was ended, which another task had failed"
            )
    every = raised.collect() if raised is not None else pl.DataFrame(schema={"kind": pl.String(), "rank": pl.Int32()})
    nameless = _raised(roster, every, _alone_in(processes), ranks_of_source) if every.height else {}
    printed = every.filter(pl.col("rank").is_null() & pl.col("kind").is_in(["python", "survived"])).rows(named=True)
    one_of_those(roster.people, nccl_errors)
    heard = _heard(ranks_of_source, path_hints, sources)
    ended_by_watchdog, watchdogs = _ended_by_watchdog(watchdog, ranks_of_source)
    waited, stood = _recorded_waiting(progress), _stood_waiting(last_calls)
    bereft, erred = lost_a_peer(watchdog, ranks_of_source)
    _pair_nameless(roster.people, nameless, watchdogs, erred, Counter(map(words_of, printed)))
    lost = exits.filter(pl.col("kind") == "lost").rows(named=True) if exits is not None else []
    for row in _silently(lost, nameless, watchdogs):
        who = roster.person(by_pid.rank(row["pid"], row["host"]), row["pid"])
        if who["exit_code"] is None and who["signature"] is None:
            who.update({k: row[k] for k in ("kind", "own", "why", "source_id", "line_no", "end_line")}, host=who["host"] or row["host"])
    for row in crashed(kernel_events, source_hosts, roster.where):
        who = roster.person(row["rank"], row["pid"])
        who["library"] = row["library"]
        if who["signal"] is None and who["exit_code"] is None and who["signature"] is None:
            who.update({k: v for k, v in row.items() if v is not None}, signal="SIGSEGV")
    # Of a job that ended well a log that stops early is one that was copied in part.
    over = has_rows(done)
    for row in vanished(comms, roster.where, progress, nccl_notes, nccl_errors, processes).values() if not over else ():
        who = roster.person(row["rank"], row["pid"])
        if who["kind"] is None and who["exit_code"] is None and who["signature"] is None:
            who.update({k: v for k, v in row.items() if v is not None})
            who.update(kind="vanished", own=True)
    asked = _asked(exits, by_pid)
    _signalled_by_others(roster.people, asked, exits)
    for who in roster.people.values():
        if who["rank"] in bereft and who["signature"] is None and who["signal"] == "SIGABRT":
            who.update(signature="nccl-remote")
    rows_out = _judged(
        roster.people, asked, ended_by_watchdog, watchdogs, heard, waited, stood, outlived_a_timeout(watchdog, exits, ranks_of_source)
    )
    forgive_alike(rows_out, nccl_errors)
    if worker_exits is not None and path_hints is not None and not any(r["own"] for r in rows_out):
        before = left(worker_exits, path_hints, ranks_of_source, by_pid, rows_out) or not_stopped(
            worker_exits, path_hints, by_pid, rows_out
        )
        before = before or unlisted_task(worker_exits.filter(pl.col("kind") == "task"), of_task, rows_out)
        if not before and progress is not None:
            before = gone_before(worker_exits, progress, rows_out)
        rows_out += [dict.fromkeys(DEATHS) | row for row in before]
    told = {*ranks_of_source.values(), *roster.where}
    if exits is not None:
        without_a_dump(told, exits, progress, groups, rows_out)
    first = first_to_go(told, progress, rows_out)
    rows_out += [dict.fromkeys(DEATHS) | row for row in first]
    return pl.DataFrame(rows_out, schema=DEATHS, infer_schema_length=None).lazy()


class _Roster:
    """Who ended: rows of ``DEATHS`` by rank, else by pid, local rank or task. ``where``: host and pid of each known rank."""

    def __init__(self, processes: pl.LazyFrame | None) -> None:
        self.people: dict[tuple[str, object], dict[str, object]] = {}
        self.where: dict[int, tuple[object, object]] = {}
        if processes is not None:
            known = processes.filter(pl.col("rank").is_not_null()).select("rank", "host", "pid").collect()
            self.where = {rank: (host, pid) for rank, host, pid in known.iter_rows()}

    def person(self, rank: object, pid: object, local: object = None, task: object = None) -> dict[str, object]:
        names = (("rank", rank), ("pid", pid), ("local", local), ("task", task))
        key = next((name for name in names if name[1] is not None), ("pid", None))
        if key not in self.people:
            host, its_pid = self.where.get(int(str(rank)), (None, None)) if rank is not None else (None, None)
            self.people[key] = dict.fromkeys(DEATHS) | {"rank": rank, "pid": pid if pid is not None else its_pid, "host": host}
        return self.people[key]


def _alone_in(processes: pl.LazyFrame | None) -> dict[int, tuple[object, object]]:
    """Host and pid of the process that a source is of, of sources of one process."""
    if processes is None:
        return {}
    known = processes.filter(pl.col("host").is_not_null()).group_by("source_id")
    alone = known.agg(pl.col("host").first(), pl.col("pid").first(), n=pl.len()).filter(pl.col("n") == 1)
    return {s: (host, pid) for s, host, pid in alone.select("source_id", "host", "pid").collect().iter_rows()}


#: Exit lines that tell of no worker that ended by itself.
_NO_EXIT = ("closing-signal", "launcher-signal", "scheduler")


def _exited(
    roster: _Roster, rows: pl.DataFrame, by_pid: Pids, local_ranks: LocalRanks, of_task: Callable[[int, str | None], int | None]
) -> None:
    """Exit codes and signals, as launchers and schedulers report them. Of a task that may be a launcher only a signal tells something: the
    code is that of what it started."""
    launched = rows["kind"].is_in(list(OF_LAUNCHERS)).any()
    # What does not end at the first signal the launcher kills (PContext.close of torch.distributed.elastic.multiprocessing, after 30 s).
    kills = rows.filter((pl.col("kind") == "closing-signal") & (pl.col("signal") == "SIGKILL") & pl.col("pid").is_not_null())
    forced: set[object] = set(kills.select("source_id", "pid").rows())
    forced |= {by_pid.rank(pid, host) for pid, host in kills.select("pid", "host").iter_rows()} - {None}
    for row in rows.iter_rows(named=True):
        if (row["exit_code"] is None and row["signal"] is None) or row["kind"] in _NO_EXIT:
            continue
        if row["kind"] == "task" and launched:
            continue  # the scheduler started launchers: its task is one of them, and no rank
        task = row["rank"] if row["kind"] == "task" else None
        rank = row["rank"] if task is None else of_task(task, row["host"])
        if rank is None and row["pid"] is not None:
            rank = by_pid.rank(row["pid"], row["host"])
        if rank is None:
            rank = local_ranks.rank(row["local_rank"])
        if rank is None and row["pid"] is None:
            nobody = row["kind"] == "failed" and row["local_rank"] is None
            told = row["signal"] is not None if task is not None else nobody or (row["local_rank"] is not None and not local_ranks)
            if not told:
                continue  # nobody, or one of several of which the launcher means one
        who = roster.person(rank, row["pid"], row["local_rank"], task)
        if who["exit_code"] is None or (row["kind"] != "failed" and row["exit_code"] is not None):
            who.update(
                exit_code=row["exit_code"],
                signal=row["signal"] or SIGNALS.get(row["exit_code"] or 0),
                host=who["host"] or row["host"],
                # torchrun's line has no year, which its block has.
                time_raw_ns=row["time_raw_ns"] if row["kind"] != "failed" else None,
                source_id=row["source_id"],
                line_no=row["line_no"],
                end_line=row["end_line"],
            )
            who["forced"] = rank in forced or (row["source_id"], row["pid"]) in forced
        if row["has_traceback"] and row["message"] and who["signature"] is None:
            raised, _, said = str(row["message"]).partition(": ")
            who.update(type=raised, message=said, signature=classify(raised, said), from_block=True)


def _asked(exits: pl.DataFrame | None, by_pid: Pids) -> set[tuple[str, object]]:
    """Pids and ranks that a launcher told to end."""
    if exits is None:
        return set()
    told = exits.filter((pl.col("kind") == "closing-signal") & pl.col("pid").is_not_null()).select("pid", "host")
    return {who for pid, host in told.iter_rows() for who in (("pid", pid), ("rank", by_pid.rank(pid, host)))} - {("rank", None)}


def _told_to_end(who: Mapping[str, object], asked: set[tuple[str, object]]) -> bool:
    """Whether a launcher told this process to end: it was alive then."""
    return not asked.isdisjoint({("rank", who["rank"]), ("pid", who["pid"])})


def _signalled_by_others(
    people: Mapping[tuple[str, object], dict[str, object]], asked: set[tuple[str, object]], exits: pl.DataFrame | None
) -> None:
    """Gives those an end of their own that a signal told to end which their launcher never sent, and was not told to end itself: the first
    that it saw fail, where it tells whom it stopped then; else the only one of all ranks whose peer did not go away first."""
    if exits is None or (exits["kind"] == "launcher-signal").any():
        return
    first = set(exits.filter(pl.col("kind").is_in(["failed", "root-cause"]))["pid"].drop_nulls().to_list())
    told = [who for who in people.values() if who["kind"] is None and judge(who)["kind"] == "terminated"]
    rest = [who for who in people.values() if who not in told]
    everyone = {who["rank"] for who in people.values()} == set(range(len(people)))
    alone = len(told) == 1 and everyone and len(rest) > 1 and all(who["signature"] in PEER_GONE for who in rest)
    for who in told:
        why = None
        if asked:
            if who["pid"] in first and not _told_to_end(who, asked):
                why = "ended by a signal that its launcher did not send: it stopped the others after that, and not this one"
        elif alone:
            why = "ended by a signal, and all others ended as a peer of theirs was gone: it went first"
        if why:
            who.update(kind="killed", own=True, signal=who["signal"] or "SIGTERM", why=why)


def _before_the_step(
    people: Mapping[tuple[str, object], dict[str, object]], exits: pl.DataFrame, of_task: Callable[[int, str | None], int | None]
) -> None:
    """Gives tasks an end of their own that a signal ended before srun terminated the step, or the scheduler cancelled it."""
    ends = exits.filter(pl.col("kind").is_in(["scheduler", "scheduler-note"])).group_by("source_id").agg(end=pl.col("line_no").min())
    tasks = exits.filter((pl.col("kind") == "task") & pl.col("rank").is_not_null() & pl.col("signal").is_not_null())
    early = tasks.join(ends, on="source_id").filter(pl.col("line_no") < pl.col("end"))
    ranks = {of_task(task, host) for task, host in early.select("rank", "host").iter_rows()} - {None}
    for who in people.values():
        if who["rank"] in ranks and who["signal"] in ASKS_TO_END:
            why = f"ended by {who['signal']} before the step was ended: nothing that srun sent"
            who.update(kind="killed", own=True, why=why)


def _raised(
    roster: _Roster, rows: pl.DataFrame, homes: Mapping[int, tuple[object, object]], ranks_of_source: Mapping[int, int]
) -> dict[object, list[dict[str, object]]]:
    """What each rank raised, the most telling first (what it got over only where an exit code and no other words tell of its end); back
    come those that nothing gives to a rank, by source."""
    nameless: dict[object, list[dict[str, object]]] = {}
    for row in rows.sort(pl.col("kind").is_in(GOT_OVER).fill_null(value=False), maintain_order=True).iter_rows(named=True):
        rank = row["rank"]
        if row["kind"] in GOT_OVER and not exit_is_all(roster.people.get(("rank", rank), {})):
            continue
        if rank is None:
            nameless.setdefault(row["source_id"], []).append(row)
            continue
        who = roster.person(rank, row["pid"])
        home = homes.get(row["source_id"])
        if home is not None and who["host"] not in (None, home[0]) and ranks_of_source.get(row["source_id"]) == rank:
            # Another job has a rank of this number: the text stands in the file of this rank on another host.
            who.update(host=home[0], pid=home[1])
        row["signature"] = signature_of(row)
        who["over"] = who["over"] or bool(row["marked"]) or (row["kind"] != "python" and row["hint_scope"] == "global")
        if who["message"] is not None and cut_off(str(row["message"]), str(who["message"])):
            continue  # another copy of the same, cut short
        if who["message"] is not None and cut_off(str(who["message"]), str(row["message"])):
            who["signature"] = None
        # The first exception with a cause of its own speaks for the rank, then one that blames another rank, then a bare signal.
        if who["signature"] is None or who.pop("from_block", False) or telling(row["signature"]) > telling(who["signature"]):
            who.update(
                type=row["type"],
                message=row["message"],
                signature=row["signature"],
                frame=row["frame"],
                exc_source_id=row["source_id"],
                exc_line_no=row["line_no"],
                time_raw_ns=who["time_raw_ns"] if who["time_raw_ns"] is not None else row["time_raw_ns"],
            )
            if who["source_id"] is None:
                who.update(source_id=row["source_id"], line_no=row["line_no"], end_line=row["end_line"])
        for other in unwritten(row) - {rank} if row["signature"] == "user" else ():
            peer = roster.person(other, None)
            if peer["signature"] is None:
                told = {k: row[k] for k in ("type", "message", "signature")}
                peer.update(told, exc_source_id=row["source_id"], exc_line_no=row["line_no"])
                if peer["source_id"] is None:
                    peer.update(source_id=row["source_id"], line_no=row["line_no"], end_line=row["end_line"])
    return nameless


#: What an exception says where a signal broke off the system call that the process was in.
_EINTR = re.compile(r"Interrupted system call|\[Errno 4\]")


def _judged(
    people: Mapping[tuple[str, object], dict[str, object]],
    asked: set[tuple[str, object]],
    ended_by_watchdog: set[int],
    watchdogs: Mapping[object, int],
    heard: set[int],
    waited: set[int],
    stood: set[int],
    outlived: set[int],
) -> list[dict[str, object]]:
    """Rows of ``DEATHS``, in the order of ranks: own fault or consequence of another's."""
    # A launcher of one host may tell of local ranks alone: as many that aborted as their watchdogs ended are the same.
    nameless_aborts = Counter(who["source_id"] for who in people.values() if who["rank"] is None and who["signal"] == "SIGABRT")
    # Launchers of several hosts may share a text of their own, which names neither hosts nor ranks: so do all that aborted and all
    # watchdogs.
    told = {who["rank"] for who in people.values() if who["rank"] is not None and who["signal"] == "SIGABRT"}
    elsewhere = len(ended_by_watchdog - told) if nameless_aborts.total() <= len(ended_by_watchdog - told) else 0
    gave_up = any(who["signature"] in WAITED for who in people.values() if not _told_to_end(who, asked))
    rows = []
    for _, who in sorted(people.items(), key=lambda item: (item[0][0], str(item[0][1]).zfill(9))):
        if who["kind"] is None:
            who.update(judge(who))
            if who["kind"] == "killed" and gave_up and _told_to_end(who, asked):
                who.update(kind="terminated", own=False, why="killed after another had waited until its timeout and its launcher ended all")
            if who["kind"] == "killed" and who["rank"] in outlived:
                who.update(
                    kind="terminated", own=False, why="killed after an operation had timed out: its own watchdog wrote of that before"
                )
            unnamed = who["rank"] is None and 0 < nameless_aborts[who["source_id"]] <= max(watchdogs.get(who["source_id"], 0), elsewhere)
            if who["kind"] == "exception" and _EINTR.search(str(who["message"])) and _told_to_end(who, asked):
                who.update(kind="terminated", own=False, why="a system call of it broke off at the signal by which its launcher ended it")
            if (who["kind"] in ("abort", "exit") and who["rank"] in ended_by_watchdog) or (who["kind"] == "abort" and unnamed):
                who.update(kind="victim", own=False, signature="nccl-timeout", why="its own watchdog or monitor ended it after a timeout")
            elif who["kind"] == "abort" and who["rank"] in waited:
                why = "its recorder was written while it waited in an operation, as a watchdog does before it aborts the process"
                who.update(kind="victim", own=False, signature="nccl-timeout", why=why)
            elif who["kind"] == "exit" and who["rank"] in stood:
                why = f"exit code {who['exit_code']}, as a wait that fails ends a process, and its stack had stood in one"
                who.update(kind="victim", own=False, why=why)
        if who["kind"] in ("exit", "abort") and len(heard) > 1 and who["rank"] not in heard:
            who.update(kind="unheard", own=False, why=f"exit code {who['exit_code']}, and its own output is not in the evidence")
        who["over"] = bool(who["over"]) or who["exit_code"] is not None or who["signal"] is not None
        who.pop("from_block", None)
        who.pop("forced", None)
        rows.append(who)
    if any(who["signature"] == "gloo-size-mismatch" for who in rows):
        for who in rows:
            if who["signature"] == "wrong-size":
                who.update(
                    kind="victim",
                    own=False,
                    why="the size it asked for is no size: it read it from data of which another rank says that they do not fit",
                )
    return rows


def _silently(
    lost: list[dict[str, object]], nameless: Mapping[object, list[dict[str, object]]], watchdogs: Mapping[object, int]
) -> list[dict[str, object]]:
    """Processes to which a launcher lost its connection and that left no word of their own: once per process, by pid where one is told.

    No more of them than watchdogs of this source ended their processes are the consequence of a timeout.
    """
    said = {row["pid"] if row["pid"] is not None else row["hint_pid"] for rows in nameless.values() for row in rows}
    named = {row["pid"]: row for row in reversed(lost) if row["pid"] is not None}
    silent = [row for row in (named.values() if named else lost[:1]) if row["pid"] is None or row["pid"] not in said]
    many = Counter(row["source_id"] for row in silent)
    victims = {source for source, n in many.items() if n <= watchdogs.get(source, 0)}
    why = "its launcher lost the connection to it, and it left no word of its own"
    after = "its launcher lost the connection to it after a watchdog's timeout"
    ends = ({"kind": "victim", "own": False, "why": after}, {"kind": "vanished", "own": True, "why": why})
    return [row | ends[row["source_id"] not in victims] for row in silent]


#: Exceptions whose text says all that there is to say, whoever raised them.
_REFUSALS = frozenset({"refused", "nccl-usage"})


def _pair_nameless(
    people: dict[tuple[str, object], dict[str, object]],
    nameless: dict[object, list[dict[str, object]]],
    watchdogs: Mapping[object, int],
    erred: Mapping[object, int],
    printed: Mapping[object, int],
) -> None:
    """Words that name no process: the exit code with which Python ends after an exception belongs to the exceptions of the same text, and
    what C++ threw to the one process that aborted. One process has what tells most of them; of several, each has ended by what all of these
    say if they all blame others, and so have those that aborted if as many watchdogs say it (``erred``). ``printed``: how often which words
    stand in which source, those behind which its text goes on among them: another process may write it."""
    for source, raised in nameless.items():
        aborted = [w for w in people.values() if w["source_id"] == source and w["signal"] == "SIGABRT" and w["signature"] is None]
        thrown = [row for row in raised if row["kind"] == "cpp-terminate"]
        if len(aborted) == len(thrown) == 1:
            told = {k: thrown[0][k] for k in ("type", "message", "signature", "frame")}
            aborted[0].update(told, exc_source_id=source, exc_line_no=thrown[0]["line_no"])
        ended = [
            who
            for (scope, _), who in people.items()
            if scope in ("rank", "pid", "local") and who["source_id"] == source and who["exit_code"] == 1 and who["signature"] is None
        ]
        for row in raised:
            row["signature"] = signature_of(row)
        best = max(raised, key=lambda row: telling(row["signature"]))
        if not ended and best["signature"] in _REFUSALS:
            own = {k: best[k] for k in ("type", "message", "signature", "frame", "source_id", "line_no", "end_line")}
            people[("source", source)] = dict.fromkeys(DEATHS) | own | {"exc_source_id": source, "exc_line_no": best["line_no"]}
        if not ended and best["signature"] == "signal" and best["type"] in CRASHES and not watchdogs.get(source):
            words = [row for row in raised if (row["signature"], row["type"]) == ("signal", best["type"])]
            reported = [w for w in people.values() if w["source_id"] == source and w["signal"] == best["type"] and w["signature"] is None]
            if len(words) == len(reported) == 1:  # its launcher names it, and these are its last words
                told = {k: best[k] for k in ("type", "message", "signature", "frame")}
                reported[0].update(told, exc_source_id=source, exc_line_no=best["line_no"])
            for row in words[len(reported) :]:
                place = {k: row[k] for k in ("source_id", "line_no", "end_line")}
                people[("source", (source, row["line_no"]))] = dict.fromkeys(DEATHS) | place | {"signal": row["type"]}
        if best["signature"] in PEER_GONE and len(aborted) <= erred.get(source, 0):
            ended += [who for who in aborted if who["signature"] is None]
        causes = [row for row in raised if telling(row["signature"]) == CAUSE]
        by_it = ended_by(people, causes, best, ended, printed[words_of(best)] - len(ended))
        for who in by_it or (ended if len(ended) == 1 or best["signature"] in VICTIM else ()):
            who.update({k: best[k] for k in ("type", "message", "signature", "frame")}, exc_source_id=source, exc_line_no=best["line_no"])


def _ended_by_watchdog(watchdog: pl.LazyFrame | None, ranks_of_source: dict[int, int]) -> tuple[set[int], dict[object, int]]:
    """Ranks whose own watchdog says that an operation timed out: it ends the process (ProcessGroupNCCL, "taking the entire process down"),
    with SIGABRT and without a message of its own where the end of the log is missing; or whose heartbeat monitor says that it ends the
    process, which it also does where another rank's operation timed out. Then how many of these each source holds."""
    if watchdog is None:
        return set(), {}
    columns = ("source_id", "hint_rank", "hint_scope", "pg_rank")
    lines = watchdog.filter(pl.col("kind").is_in(["timeout", "failure", "terminating"])).select(columns).unique().collect()
    ranks: set[int] = set()
    writers: dict[object, set[int]] = {}
    for source, hint, scope, inside in lines.iter_rows():
        rank = hint if scope == "global" else ranks_of_source.get(source)
        if rank is not None:
            ranks.add(rank)
        if (writer := rank if rank is not None else inside) is not None:
            writers.setdefault(source, set()).add(writer)
    return ranks, {source: len(found) for source, found in writers.items()}


def _recorded_waiting(progress: pl.LazyFrame | None) -> set[int]:
    """Ranks whose recorder holds an operation that is not finished: a process that aborts by itself writes none."""
    return ranks_in(progress, pl.col("domain") == "fr", pl.col("first_pending").is_not_null())


def _stood_waiting(last_calls: pl.LazyFrame | None) -> set[int]:
    """Ranks whose stack stood in one wait for others whenever it was looked at, twice at least: what they wait for ends before they do
    anything of their own again."""
    return ranks_in(
        last_calls, pl.col("witness") == "stack", pl.col("place").is_in(WAITING), pl.col("moved").eq_missing(pl.lit(value=False))
    )


def _folders(path_hints: pl.LazyFrame | None, ranks_of_source: Mapping[int, int]) -> list[tuple[int, int]]:
    """Local rank and rank of the sources in a launcher's folder of a worker."""
    if path_hints is None:
        return []
    hints = path_hints.filter(pl.col("attempt_local_rank").is_not_null()).select("source_id", "attempt_local_rank").collect()
    return [(local, ranks_of_source[source]) for source, local in hints.iter_rows() if source in ranks_of_source]


#: Formats of what a process itself prints when it fails.
_OWN_WORDS = frozenset({"c10d-log", "traceback", "torchelastic-error"})


def _heard(ranks_of_source: dict[int, int], path_hints: pl.LazyFrame | None, sources: pl.LazyFrame | None) -> set[int]:
    """Ranks whose own output is in the evidence. NCCL's log alone is that only where the files of this job hold both."""
    if sources is None:
        return set(ranks_of_source.values())
    formats = {s: set(f or ()) for s, f in sources.select("source_id", "formats").collect().iter_rows()}
    mixed = any("nccl-log" in f and f & _OWN_WORDS for f in formats.values())
    words = _OWN_WORDS | {"nccl-log"} if mixed else _OWN_WORDS
    folders = values_in(path_hints, "source_id", pl.col("attempt_local_rank").is_not_null())
    return {rank for source, rank in ranks_of_source.items() if source in folders or formats.get(source, set()) & words}
