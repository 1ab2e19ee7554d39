"""On what grounds a run in which no rule found anything may be called well: what failed, how much of it was seen, and how it ended."""

from __future__ import annotations

import polars as pl

from nccl_forensics.conclusions.census import Census, recorded_ranks, strangers
from nccl_forensics.conclusions.verdict import Grounds
from nccl_forensics.frames import has_rows
from nccl_forensics.stacks.places import LOADING, WAITING
from nccl_forensics.store import Store
from nccl_forensics.views import Resolver
from nccl_forensics.views.log_ends import copied_in_part
from nccl_forensics.views.matching import of_nccl

#: Tables that by themselves do not tell how a job or its machines fared.
_SILENT = frozenset({"sources", "gaps", "unmodelled", "cut_ends", "training_steps"})
#: Tables of what went wrong: where they are empty, and nothing else was seen of a job, that tells nothing about the job.
_FAILURES_ONLY = frozenset({"watchdog", "reports", "exceptions", "worker_exits", "nccl_errors"})


def grounds_of(resolver: Resolver, store: Store, known: Census) -> Grounds:
    """The grounds of one run, by its views, its own tables and who is seen of it."""
    signs = _signs(resolver)
    done = resolver.holds("done")
    ended = ended_orderly(resolver, known) or done
    lost, cut, alone = lost_a_peer(resolver), copied_short(resolver), by_nccl_alone(resolver)
    everyone, copied = all_seen(resolver, known), only_warned(resolver)
    whole = everyone and not copied and more_than_recorded(resolver) and recorded_by_all(resolver, known) and began(resolver)
    going = not (stood_still(resolver) or left_open(resolver) or only_looked_at(resolver))
    # One that stops before its largest size hung there, was killed, or is copied in part.
    results = measured(resolver) and reached_largest_size(resolver)
    # Where a process may have left before the others, or never was connected to them, no end in order says that all is well.
    parted = lost or cut or left_connecting(resolver) or log_overwritten(resolver) or ended_unlike(resolver)
    part = (whole or most_seen(resolver, known)) and not copied and (results or resolver.holds("comms"))
    # A loss that only NCCL's log tells of is how a killed process looks, and how processes look that just exit.
    early = only_met(resolver) or (cut and still_coming_up(resolver))
    machines_only = known.world is None and not known.seen and not done
    return Grounds(
        signs=signs or (),
        # Where the signs of failure could not be gathered, finding nothing says nothing.
        has_job=signs is not None and _has_job(store, done) and not (machines_only and pods_down(resolver)),
        complete=ended or (whole and going and results and not parted),
        enough=part and going and not early and not (lost and alone),
        # A process that NCCL's log leaves at work may have stood, or lost another, after its last line.
        lost=lost or (alone and (cut or broke_off(resolver))),
        machines_only=machines_only,
        everyone=everyone,
        shown=_would_show(resolver, alone, ended),
    )


def _signs(resolver: Resolver) -> tuple[str, ...] | None:
    """Words for each sign that the job failed; None where they could not be gathered."""
    frame = resolver.get("failures")
    if "failures" in resolver.failed:
        return None
    return () if frame is None else tuple(f"{row['sign']} ({row['count']})" for row in frame.collect().iter_rows(named=True))


def _has_job(store: Store, done: bool) -> bool:
    """Whether anything was seen by which a job, or a part of its machines, can be judged to be well: how it was set up does not tell that,
    unless it is known to be ``done``."""
    silent = _SILENT if done else _SILENT | {"environment"}
    return any(store.holds(table) for table in sorted(store.present - silent - _FAILURES_ONLY))


def _would_show(resolver: Resolver, alone: bool, ended: bool) -> bool:
    """Whether what there is would show a job that stood still or was slow. NCCL's log ``alone`` tells a job that went on by its end in order,
    and slow links by what it found of them."""
    if alone and not (ended and links_told(resolver)):
        return False
    return (ended or not none_found_at_work(resolver)) and not waits_for_one(resolver)


# How much of the job is seen.


def all_seen(resolver: Resolver, known: Census) -> bool:
    """Whether there is something of every rank; processes whose rank is not known stand for ranks that are not seen."""
    return len(known.missing) <= strangers(resolver)


def most_seen(resolver: Resolver, known: Census) -> bool:
    """Whether at least half of the ranks are seen, and no log of NCCL's operations just stops: one that stops where a rank is missing looks
    the same in a hang and in a copy that was made too early."""
    if not _comparable(resolver):
        return False
    return known.world is None or (len(known.seen) * 2 >= known.world and not resolver.holds("nccl_ops"))


def more_than_recorded(resolver: Resolver) -> bool:
    """Whether something but recorder dumps and losses was read: these tell what was called and trained, not whether the job went on."""
    formats = _formats(resolver)
    return bool(formats - {"flight-recorder", "training-log"}) or not formats


def recorded_by_all(resolver: Resolver, known: Census) -> bool:
    """Whether, where some ranks left dumps of their recorder, all did: one that left none may have died before it could."""
    own = recorded_ranks(resolver)
    return len(own) < 2 or known.world is None or len(own) >= known.world


def began(resolver: Resolver) -> bool:
    """Whether, where NCCL says by which interface it starts (or nothing but its release, its settings or warnings), it says of a
    communicator too: a log that ends before looks the same in a hang and in a copy that was made too early."""
    if not _comparable(resolver):
        return False
    started = resolver.shows("nccl_network", pl.col("item") == "bootstrap")
    nccl = any(resolver.holds(name) for name in _OF_NCCL)
    if not started and (not nccl or any(resolver.holds(name) for name in _WENT_ON)):
        return True
    return resolver.holds("comms")


def measured(resolver: Resolver) -> bool:
    """Whether no bandwidth test ends before its first result: one that hangs in its first collective prints its devices and the head of its
    table."""
    return not resolver.shows("bandwidth_tests", _BROKEN_OFF & pl.col("last_bytes").is_null())


def reached_largest_size(resolver: Resolver) -> bool:
    """Whether no bandwidth test stops between its first size and its largest: what it would have met there is not known."""
    return not resolver.shows("bandwidth_tests", _BROKEN_OFF & (pl.col("last_bytes") < pl.col("max_bytes")))


#: Tests of hosts that are known, whose last line is not there.
_BROKEN_OFF = ~pl.col("complete").fill_null(value=False) & pl.col("hosts").is_not_null()


def only_warned(resolver: Resolver) -> bool:
    """Whether NCCL or a plugin of it warned of something (of no network but of GPUs that may not copy to each other, too), or named its
    release alone, and nothing tells of a communicator or of a job that went on: such lines are copied out of logs because something
    failed."""
    if resolver.holds("comms") or any(resolver.holds(name) for name in _WENT_ON):
        return False
    if resolver.shows("nccl_errors", ~pl.col("kind").is_in(_ADVICE)):
        return True
    if not resolver.holds("nccl_network"):
        return resolver.holds("nccl_versions")
    return not resolver.shows("nccl_network", ~pl.col("item").is_in(["p2p-disabled", "p2p-not-enabled"]))


def pods_down(resolver: Resolver) -> bool:
    """Whether Kubernetes shows a pod that does not come up or ended badly."""
    return resolver.shows("pods", ~pl.col("last").fill_null(value=False) & pl.col("status").str.contains(_DOWN))


def _formats(resolver: Resolver) -> set[str]:
    """The formats of all that was read."""
    sources = resolver.get("sources")
    told = [] if sources is None else sources.select("formats").collect()["formats"].to_list()
    return {f for found in told for f in found or ()}


def _comparable(resolver: Resolver) -> bool:
    """Whether, where operations in NCCL's logs are all that tells of calls, something tells whose communicators these are: logs of the
    subsystem COLL alone name them by pointers, which mean something in one process only, so that nothing was compared."""
    return not resolver.holds("nccl_ops") or resolver.holds("comms") or resolver.holds("dumps")


#: Words of kubectl for a pod that is down (kubelet's reasons of waiting and of an end).
_DOWN = r"^(?:Init:)?(?:CrashLoopBackOff|Error|OOMKilled|Evicted|ContainerCannotRun|StartError|RunContainerError|ErrImagePull|ImagePullBackOff|CreateContainer\w*Error)$"
#: What NCCL says of a host or of itself that does not keep it from working.
_ADVICE = ("rccl-platform", "rccl-balancing", "fallback", "ib-event", "ras-own")
#: What NCCL's log may hold without a word of a communicator.
_OF_NCCL = ("nccl_versions", "nccl_errors", "nccl_env")
#: What tells of a job that went on, where these are all that its log says.
_WENT_ON = ("training_steps", "bandwidth_rows", "fr_entries", "traces", "timeline_work", "stacks", "nccl_ops")


# Whether it went on.


def stood_still(resolver: Resolver) -> bool:
    """Whether several looks were taken at three ranks or more, and at most of those known, and none of them showed a rank that moved; not
    where nobody waits for anybody, as two looks may fall into one step of a program that works."""
    motion = resolver.get("motion")
    if motion is None:
        return False
    told = motion.select("motion").collect()["motion"]
    stuck = int((told == "stuck").sum())
    return stuck >= 3 and stuck * 2 > told.len() and not bool((told == "moving").any()) and not _all_at_work(resolver)


def _all_at_work(resolver: Resolver) -> bool:
    """Whether all ranks stand in the program itself, and recorders of all of them are level and hold nothing that is under way, but for a last
    operation that is over on some of them: gloo strikes it off a little late. Of sends and receives its recorder holds none: where the job
    makes any, somebody may wait in one."""
    calls, progress, unheld = (resolver.get(name) for name in ("last_calls", "progress", "unheld_calls"))
    if calls is None or progress is None or has_rows(unheld):
        return False
    stands = calls.select("rank", "place").collect()
    recorded = progress.filter(pl.col("domain") == "fr").select("rank", "group_key", "last_seq", "first_pending").collect()
    last, waiting = pl.col("last_seq"), pl.col("first_pending")
    over = (waiting.null_count() > 0) & (waiting == last).fill_null(value=True).all()
    settled = recorded.group_by("group_key").agg(settled=(last.n_unique() == 1) & over)["settled"]
    return (
        bool(stands.height and stands["place"].is_in(_AT_WORK).all())
        and set(stands["rank"].to_list()) == set(recorded["rank"].to_list())
        and bool(settled.all())
    )


#: Places of a stack in which a program works; what else holds a process up has a place of its own.
_AT_WORK = ("user-code", "compute", "sleep")


def left_open(resolver: Resolver) -> bool:
    """Whether half of the ranks that recorders tell of, or more, have work that is not completed, and no rank was seen to move: dumps taken
    amid a step look as those of a hang do in which all are alike."""
    progress, dumps = resolver.get("progress"), resolver.get("dumps")
    if progress is None or dumps is None:
        return False
    # gloo never marks what is completed, so that the last barrier of a good job may be open.
    marking = dumps.filter(of_nccl()).select("rank").unique()
    recorded = progress.filter(pl.col("domain") == "fr").join(marking, on="rank", how="semi").group_by("rank")
    waiting = recorded.agg(pl.col("first_pending").is_not_null().any()).collect()["first_pending"]
    if not waiting.any() or int(waiting.sum()) * 2 < waiting.len():
        return False
    return not _moves(resolver)


def only_looked_at(resolver: Resolver) -> bool:
    """Whether stacks are all that was read, but for the steps and losses that the job told before, and no rank moved between two of them: those
    of a job that works look like those of one that hangs."""
    formats = _formats(resolver)
    if not formats & _STACKS or formats - _STACKS - {"training-log"}:
        return False
    return not _moves(resolver)


#: Formats of stacks of running processes.
_STACKS = frozenset({"py-spy", "py-spy-raw", "py-spy-json", "py-spy-speedscope", "pystack", "gdb", "faulthandler"})


def _moves(resolver: Resolver) -> bool:
    """Whether looks show a rank that moves."""
    return resolver.shows("motion", pl.col("motion") == "moving")


def none_found_at_work(resolver: Resolver) -> bool:
    """Whether every rank of which there is a stack, of two at least, stood in a call that waits for others, and none of those was seen to
    move, or was still loading what it imports: a look at a job that works may find that, and each look at one that hangs does, then or
    later."""
    last = resolver.get("last_calls")
    if last is None:
        return False
    loading = pl.col("frames").list.eval(pl.element().str.contains(LOADING, literal=True)).list.any().fill_null(value=False)
    seen = last.filter(pl.col("witness") == "stack").select("place", "moved", loading=loading).collect().rows()
    return len(seen) > 1 and all(early or (place in WAITING and not moved) for place, moved, early in seen)


def waits_for_one(resolver: Resolver) -> bool:
    """Whether traces show that the others of a group wait a good part of the time for one rank, and more than once: too little to blame it,
    perhaps, as it may be meant to do more or the steps are few, and too much to call the job well."""
    again = (pl.col("collectives") >= _FEW_CALLS) & (pl.col("worst_ms") <= _ONE_WAIT * pl.col("lost_ms"))
    return resolver.shows("late_ranks", (pl.col("lost_share") >= _NEARLY_ALL) & (pl.col("window_share") >= _GOOD_PART) & again)


#: What counts as waiting for one rank again and again: in so many calls, most of the loss, of which one call is no more than this, and so
#: much of the time.
_FEW_CALLS, _NEARLY_ALL, _ONE_WAIT, _GOOD_PART = 4, 0.9, 0.7, 0.15


# How it ended.


def ended_orderly(resolver: Resolver, known: Census) -> bool:
    """Whether all communicators that were seen, at least one, were taken down in order.

    An abort is what a failure ends with, and what PyTorch takes communicators down with at the end of a good job too: it counts where
    three quarters of the ranks did so, with no peer lost.
    """
    comms = resolver.get("comms")
    if comms is None:
        return False
    ended = comms.filter(pl.col("rank").is_not_null()).select("ended").collect()["ended"].fill_null("")
    if not ended.len() or not ended.is_in(["destroy-complete", "abort-complete"]).all():
        return False
    if (ended == "destroy-complete").all():
        return True
    most = known.world is None or len(known.seen) * 4 >= known.world * 3
    return most and not resolver.shows("nccl_errors", pl.col("kind").is_in(_PEER_LOST))


#: NCCL's words for a peer that does not answer; its own abort is not among them.
_PEER_LOST = ("ras-timeout", "ras-dead", "ib-completion", "ib-async-fatal", "ib-fatal", "peer-closed", "recv-failed")


def lost_a_peer(resolver: Resolver) -> bool:
    """Whether a process lost the connection to another one, while no communicator was taken down: a job whose processes just exit ends so,
    and one of which a process was killed between two collectives does too."""
    local = resolver.shows("nccl_notes", pl.col("kind") == "local-peer-closed")
    if not local and not resolver.shows("nccl_errors", pl.col("kind") == "peer-closed"):
        return False
    return not resolver.shows("comms", pl.col("ended").is_not_null())


def broke_off(resolver: Resolver) -> bool:
    """Whether NCCL's log tells of a process whose communicators came up, none of which was taken down: whether it went on, stood or was
    gone when its log ends is not known. Where its operations are not logged, one that was killed in silence leaves just this."""
    comms = resolver.get("comms")
    if comms is None:
        return False
    ends = comms.filter(pl.col("completed")).group_by("host", "pid").agg(open=pl.col("ended").is_null().all())
    return bool(ends.collect()["open"].any())


def left_connecting(resolver: Resolver) -> bool:
    """Whether a process began to connect channels and its log ends before it says that all are connected: one that hangs in it and one
    whose log was copied too early look alike."""
    return resolver.holds("connecting")


def ended_unlike(resolver: Resolver) -> bool:
    """Whether NCCL's logs of a communicator's ranks end after different numbers of collectives, or a process began to make a communicator
    of which its log says no more: some ranks may wait for others there, or the logs were copied while the job went on."""
    progress, network, comms = resolver.get("progress"), resolver.get("nccl_network"), resolver.get("nccl_comms")
    if progress is not None:
        ends = progress.filter(pl.col("domain") == "nccl").group_by("group_key").agg(pl.col("last_seq").n_unique())
        if has_rows(ends.filter(pl.col("last_seq") > 1)):
            return True
    if network is None or comms is None:
        return False
    # The network is chosen anew for each communicator that is no part of another one, before anything else is said of it.
    place = ["source_id", "host", "pid"]
    asked = network.filter(pl.col("item") == "using").group_by(place).agg(asked=pl.col("line_no").max())
    told = comms.group_by(place).agg(told=pl.col("line_no").max())
    return has_rows(asked.join(told, on=place, nulls_equal=True).filter(pl.col("asked") > pl.col("told")))


def log_overwritten(resolver: Resolver) -> bool:
    """Whether processes have written over each other's lines in some log: then what is missing in it tells nothing."""
    return resolver.holds("overwritten")


def copied_short(resolver: Resolver) -> bool:
    """Whether logs were copied in part: what came after is not in evidence."""
    return has_rows(copied_in_part(resolver.get("cut_ends")))


# What NCCL's log tells by itself.


def by_nccl_alone(resolver: Resolver) -> bool:
    """Whether NCCL's log is all that tells how the job went: neither its steps, nor a measurement, a recorder or a stack was read."""
    nccl = any(resolver.holds(name) for name in ("comms", *_OF_INIT))
    return nccl and not any(resolver.holds(name) for name in _WENT_ON if name != "nccl_ops")


def only_met(resolver: Resolver) -> bool:
    """Whether NCCL's log is all that tells how the job went, and ends with the network that each process chose: who hangs in the bootstrap
    says no more than that."""
    further = ("comms", "nccl_ops", *(name for name in _OF_INIT if name != "nccl_network"))
    return by_nccl_alone(resolver) and not any(resolver.holds(name) for name in further)


def still_coming_up(resolver: Resolver) -> bool:
    """Whether NCCL's log is all that tells how the job went, and it ends before a process had brought a communicator up."""
    return by_nccl_alone(resolver) and (resolver.get("comms") is None or resolver.shows("comms", ~pl.col("completed")))


#: What a process says of its init, where the line that names its communicator is not among those handed in.
_OF_INIT = ("nccl_network", "nccl_connections", "nccl_rings", "nccl_trees", "nccl_channels")


def links_told(resolver: Resolver) -> bool:
    """Whether NCCL's log says what links, adapters and speeds it found, which it does under its subsystem GRAPH alone."""
    return resolver.shows("nccl_notes", pl.col("kind").is_in(_OF_GRAPH))


#: Lines of the subsystem GRAPH (NCCL src/graph/topo.cc, search.cc).
_OF_GRAPH = ("system", "gpu-link", "net-link", "pattern")
