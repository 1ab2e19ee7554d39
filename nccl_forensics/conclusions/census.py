"""Who is in the evidence, and whether that is enough to say that nothing is wrong."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from nccl_forensics.frames import has_rows
from nccl_forensics.stacks.places import LOADING, WAITING
from nccl_forensics.views import Resolver
from nccl_forensics.views.identity import PROCESSES_SCHEMA
from nccl_forensics.views.log_ends import copied_in_part
from nccl_forensics.views.matching import of_nccl
from nccl_forensics.words import UNIDENTIFIED


@dataclass(frozen=True, slots=True)
class Census:
    """Size of the job, ranks with evidence, and how many process groups and communicators there are."""

    world: int | None
    seen: frozenset[int]
    groups: int
    comms: int

    @property
    def missing(self) -> list[int]:
        """Ranks of the job from which nothing is in the evidence."""
        return sorted(set(range(self.world)) - self.seen) if self.world is not None and self.world <= 1_000_000 else []


def people_of(resolver: Resolver) -> dict[int, dict[str, object]]:
    """Processes by global rank; among them those whose stack is that of a rank that others wait for, whatever told so."""
    frame = resolver.get("processes")
    if frame is None:
        return {}
    rows = frame.filter(pl.col("rank").is_not_null()).sort("rank", "proc").collect()
    return _by_their_stacks(resolver) | {row["rank"]: row for row in rows.iter_rows(named=True)}


def _by_their_stacks(resolver: Resolver) -> dict[int, dict[str, object]]:
    states = resolver.get("thread_states")
    nameless = states.filter(pl.col("rank").is_null()).select("source_id", "line_no", "pid", "host") if states is not None else None
    stalls, hosts = (resolver.get(name) if has_rows(nameless) else None for name in ("stalls", "source_hosts"))
    if nameless is None or stalls is None or hosts is None:
        return {}
    told = (
        stalls.select("rank", source_id="stack_source_id", line_no="stack_line_no").drop_nulls().join(nameless, on=["source_id", "line_no"])
    )
    placed = told.join(hosts.select("source_id", of="host").unique("source_id"), on="source_id", how="left").collect()
    return {
        row["rank"]: dict.fromkeys(PROCESSES_SCHEMA)
        | {"rank": row["rank"], "pid": row["pid"], "host": row["host"] or row["of"], "source_id": row["source_id"]}
        for row in placed.iter_rows(named=True)
    }


def strangers(resolver: Resolver) -> int:
    """How many processes there are whose rank is not known."""
    processes = resolver.get("processes")
    if processes is None:
        return 0
    return int(processes.filter(pl.col("rank").is_null() & pl.col("pid").is_not_null()).select(pl.len()).collect().item())


def _unnumbered(resolver: Resolver) -> int:
    """How many processes got as far as NCCL's bootstrap and are of no known rank: releases before 2.23 print ranks after it only."""
    network, processes = resolver.get("nccl_network"), resolver.get("processes")
    if network is None or processes is None:
        return 0
    begun = network.filter((pl.col("item") == "bootstrap") & pl.col("pid").is_not_null()).select("host", "pid").unique()
    numbered = processes.filter(pl.col("rank").is_not_null()).select("host", "pid")
    return int(begun.join(numbered, on=["host", "pid"], how="anti").select(pl.len()).collect().item())


def nameless_dumps(resolver: Resolver) -> list[int]:
    """Sources that are recorder dumps of ranks that are not known."""
    dumps = resolver.get("dumps")
    if dumps is None:
        return []
    return dumps.filter((pl.col("use") == "chosen") & pl.col("rank").is_null()).select("source_id").collect()["source_id"].sort().to_list()


def all_seen(resolver: Resolver, known: Census) -> bool:
    """Whether there is something of every rank; processes whose rank is not known stand for ranks that are not seen."""
    return len(known.missing) <= strangers(resolver)


def more_than_recorded(resolver: Resolver) -> bool:
    """Whether something but recorder dumps and losses was read: these tell what was called and trained, not whether the job went on."""
    sources = resolver.get("sources")
    if sources is None:
        return True
    formats = {f for found in sources.select("formats").collect()["formats"].to_list() for f in found or ()}
    return bool(formats - {"flight-recorder", "training-log"}) or not formats


def recorded_ranks(resolver: Resolver) -> set[int]:
    """Ranks that left a dump of their recorder."""
    dumps = resolver.get("dumps")
    if dumps is None:
        return set()
    return set(dumps.filter(pl.col("rank").is_not_null()).select("rank").collect()["rank"].to_list())


def recorded_by_all(resolver: Resolver, known: Census) -> bool:
    """Whether, where some ranks left dumps of their recorder, all did: one that left none may have died before it could."""
    own = recorded_ranks(resolver)
    return len(own) < 2 or known.world is None or len(own) >= known.world


def began(resolver: Resolver) -> bool:
    """Whether, where NCCL says by which interface it starts (or nothing but its release, its settings or warnings), it says of a
    communicator too: a log that ends before looks the same in a hang and in a copy that was made too early."""
    if not _comparable(resolver):
        return False
    network = resolver.get("nccl_network")
    started = network is not None and network.filter(pl.col("item") == "bootstrap").head(1).collect().height > 0
    nccl = any(resolver.holds(name) for name in _OF_NCCL)
    if not started and (not nccl or any(resolver.holds(name) for name in _WENT_ON)):
        return True
    return resolver.holds("comms")


def measured(resolver: Resolver) -> bool:
    """Whether no bandwidth test ends before its first result: one that hangs in its first collective prints its devices and the head of its
    table."""
    tests = resolver.get("bandwidth_tests")
    if tests is None:
        return True
    nothing = ~pl.col("complete").fill_null(value=False) & pl.col("last_bytes").is_null() & pl.col("hosts").is_not_null()
    return not tests.filter(nothing).head(1).collect().height


def reached_largest_size(resolver: Resolver) -> bool:
    """Whether no bandwidth test stops between its first size and its largest: what it would have met there is not known."""
    tests = resolver.get("bandwidth_tests")
    if tests is None:
        return True
    stopped = ~pl.col("complete").fill_null(value=False) & pl.col("hosts").is_not_null() & (pl.col("last_bytes") < pl.col("max_bytes"))
    return not tests.filter(stopped).head(1).collect().height


def only_looked_at(resolver: Resolver) -> bool:
    """Whether stacks are all that was read, but for the steps and losses that the job told before, and no rank moved between two of them: those
    of a job that works look like those of one that hangs."""
    sources = resolver.get("sources")
    if sources is None:
        return False
    formats = {f for found in sources.select("formats").collect()["formats"].to_list() for f in found or ()}
    if not formats & _STACKS or formats - _STACKS - {"training-log"}:
        return False
    motion = resolver.get("motion")
    return motion is None or not bool((motion.select("motion").collect()["motion"] == "moving").any())


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
    late = resolver.get("late_ranks")
    if late is None:
        return False
    again = (pl.col("collectives") >= _FEW_CALLS) & (pl.col("worst_ms") <= _ONE_WAIT * pl.col("lost_ms"))
    one = (pl.col("lost_share") >= _NEARLY_ALL) & (pl.col("window_share") >= _GOOD_PART) & again
    return late.filter(one).head(1).collect().height > 0


#: What counts as waiting for one rank again and again: in so many calls, most of the loss, of which one call is no more than this, and so
#: much of the time.
_FEW_CALLS, _NEARLY_ALL, _ONE_WAIT, _GOOD_PART = 4, 0.9, 0.7, 0.15
#: Formats of stacks of running processes.
_STACKS = frozenset({"py-spy", "py-spy-raw", "py-spy-json", "py-spy-speedscope", "pystack", "gdb", "faulthandler"})


def only_warned(resolver: Resolver) -> bool:
    """Whether NCCL or a plugin of it warned of something (of no network but of GPUs that may not copy to each other, too), or named its
    release alone, and nothing tells of a communicator or of a job that went on: such lines are copied out of logs because something
    failed."""
    if resolver.holds("comms") or any(resolver.holds(name) for name in _WENT_ON):
        return False
    errors = resolver.get("nccl_errors")
    if errors is not None and errors.filter(~pl.col("kind").is_in(_ADVICE)).head(1).collect().height:
        return True
    network = resolver.get("nccl_network")
    if network is None or not resolver.holds("nccl_network"):
        return resolver.holds("nccl_versions")
    return not network.filter(~pl.col("item").is_in(["p2p-disabled", "p2p-not-enabled"])).head(1).collect().height


def pods_down(resolver: Resolver) -> bool:
    """Whether Kubernetes shows a pod that does not come up or ended badly."""
    pods = resolver.get("pods")
    if pods is None:
        return False
    now = pods.filter(~pl.col("last").fill_null(value=False))
    return now.filter(pl.col("status").str.contains(_DOWN)).head(1).collect().height > 0


#: Words of kubectl for that (kubelet's reasons of waiting and of an end).
_DOWN = r"^(?:Init:)?(?:CrashLoopBackOff|Error|OOMKilled|Evicted|ContainerCannotRun|StartError|RunContainerError|ErrImagePull|ImagePullBackOff|CreateContainer\w*Error)$"
#: What NCCL says of a host or of itself that does not keep it from working.
_ADVICE = ("rccl-platform", "rccl-balancing", "fallback", "ib-event", "ras-own")


def _comparable(resolver: Resolver) -> bool:
    """Whether, where operations in NCCL's logs are all that tells of calls, something tells whose communicators these are: logs of the
    subsystem COLL alone name them by pointers, which mean something in one process only, so that nothing was compared."""
    return not resolver.holds("nccl_ops") or resolver.holds("comms") or resolver.holds("dumps")


#: What NCCL's log may hold without a word of a communicator.
_OF_NCCL = ("nccl_versions", "nccl_errors", "nccl_env")
#: What tells of a job that went on, where these are all that its log says.
_WENT_ON = ("training_steps", "bandwidth_rows", "fr_entries", "traces", "timeline_work", "stacks", "nccl_ops")


def most_seen(resolver: Resolver, known: Census) -> bool:
    """Whether at least half of the ranks are seen, and no log of NCCL's operations just stops: one that stops where a rank is missing looks
    the same in a hang and in a copy that was made too early."""
    if not _comparable(resolver):
        return False
    return known.world is None or (len(known.seen) * 2 >= known.world and not resolver.holds("nccl_ops"))


def stood_still(resolver: Resolver) -> bool:
    """Whether several looks were taken at three ranks or more, and at most of those known, and none of them showed a rank that moved; not
    where nobody waits for anybody, as two looks may fall into one step of a program that works."""
    motion = resolver.get("motion")
    if motion is None:
        return False
    told = motion.select("motion").collect()["motion"]
    stuck = int((told == "stuck").sum())
    return stuck >= 3 and stuck * 2 > told.len() and not bool((told == "moving").any()) and not _all_at_work(resolver)


#: Places of a stack in which a program works; what else holds a process up has a place of its own.
_AT_WORK = ("user-code", "compute", "sleep")


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
    motion = resolver.get("motion")
    return motion is None or not bool((motion.select("motion").collect()["motion"] == "moving").any())


def lost_a_peer(resolver: Resolver) -> bool:
    """Whether a process lost the connection to another one, while no communicator was taken down: a job whose processes just exit ends so,
    and one of which a process was killed between two collectives does too."""
    notes, errors = resolver.get("nccl_notes"), resolver.get("nccl_errors")
    local = notes is not None and notes.filter(pl.col("kind") == "local-peer-closed").head(1).collect().height
    if not local and (errors is None or not errors.filter(pl.col("kind") == "peer-closed").head(1).collect().height):
        return False
    comms = resolver.get("comms")
    return comms is None or not comms.filter(pl.col("ended").is_not_null()).head(1).collect().height


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
    unfinished = resolver.get("connecting")
    return unfinished is not None and unfinished.head(1).collect().height > 0


def ended_unlike(resolver: Resolver) -> bool:
    """Whether NCCL's logs of a communicator's ranks end after different numbers of collectives, or a process began to make a communicator
    of which its log says no more: some ranks may wait for others there, or the logs were copied while the job went on."""
    progress, network, comms = resolver.get("progress"), resolver.get("nccl_network"), resolver.get("nccl_comms")
    if progress is not None:
        ends = progress.filter(pl.col("domain") == "nccl").group_by("group_key").agg(pl.col("last_seq").n_unique())
        if ends.filter(pl.col("last_seq") > 1).head(1).collect().height:
            return True
    if network is None or comms is None:
        return False
    # The network is chosen anew for each communicator that is no part of another one, before anything else is said of it.
    place = ["source_id", "host", "pid"]
    asked = network.filter(pl.col("item") == "using").group_by(place).agg(asked=pl.col("line_no").max())
    told = comms.group_by(place).agg(told=pl.col("line_no").max())
    return asked.join(told, on=place, nulls_equal=True).filter(pl.col("asked") > pl.col("told")).head(1).collect().height > 0


def by_nccl_alone(resolver: Resolver) -> bool:
    """Whether NCCL's log is all that tells how the job went: neither its steps, nor a measurement, a recorder or a stack was read."""
    nccl = any(resolver.holds(name) for name in ("comms", *_OF_INIT))
    return nccl and not any(resolver.holds(name) for name in _WENT_ON if name != "nccl_ops")


#: What a process says of its init, where the line that names its communicator is not among those handed in.
_OF_INIT = ("nccl_network", "nccl_connections", "nccl_rings", "nccl_trees", "nccl_channels")


def links_told(resolver: Resolver) -> bool:
    """Whether NCCL's log says what links, adapters and speeds it found, which it does under its subsystem GRAPH alone."""
    notes = resolver.get("nccl_notes")
    return notes is not None and notes.filter(pl.col("kind").is_in(_OF_GRAPH)).head(1).collect().height > 0


#: Lines of the subsystem GRAPH (NCCL src/graph/topo.cc, search.cc).
_OF_GRAPH = ("system", "gpu-link", "net-link", "pattern")


def log_overwritten(resolver: Resolver) -> bool:
    """Whether processes have written over each other's lines in some log: then what is missing in it tells nothing."""
    holed = resolver.get("overwritten")
    return holed is not None and holed.head(1).collect().height > 0


def copied_short(resolver: Resolver) -> bool:
    """Whether logs were copied in part: what came after is not in evidence."""
    return has_rows(copied_in_part(resolver.get("cut_ends")))


def only_met(resolver: Resolver) -> bool:
    """Whether NCCL's log is all that tells how the job went, and ends with the network that each process chose: who hangs in the bootstrap
    says no more than that."""
    further = ("comms", "nccl_ops", *(name for name in _OF_INIT if name != "nccl_network"))
    return by_nccl_alone(resolver) and not any(resolver.holds(name) for name in further)


def still_coming_up(resolver: Resolver) -> bool:
    """Whether NCCL's log is all that tells how the job went, and it ends before a process had brought a communicator up."""
    comms = resolver.get("comms")
    return by_nccl_alone(resolver) and (comms is None or has_rows(comms.filter(~pl.col("completed"))))


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
    errors = resolver.get("nccl_errors")
    lost = errors is not None and errors.filter(pl.col("kind").is_in(_PEER_LOST)).head(1).collect().height > 0
    return not lost and (known.world is None or len(known.seen) * 4 >= known.world * 3)


#: NCCL's words for a peer that does not answer; its own abort is not among them.
_PEER_LOST = ("ras-timeout", "ras-dead", "ib-completion", "ib-async-fatal", "ib-fatal", "peer-closed", "recv-failed")


def census(resolver: Resolver) -> Census:
    """Counted from everything that names ranks: to be asked for once."""
    people = people_of(resolver)
    ranks: set[int] = set(people)
    world = 0
    n_groups = n_comms = 0
    groups = resolver.get("groups")
    if groups is not None:
        frame = groups.collect()
        n_groups = frame.filter(pl.col("domain") == "fr").height
        n_comms = frame.filter(pl.col("domain") == "nccl").height
        for members in frame["members"].to_list():
            ranks |= {r for r in members or [] if r < UNIDENTIFIED}
        world = int(str(frame["size"].max() or 0))
    for name in ("comms", "nccl_inspector"):
        told = resolver.get(name)
        if told is not None:
            world = max(world, int(str(told.select(pl.col("nranks").max()).collect().item() or 0)))
    seen = set(people)
    traced = resolver.get("trace_ranks")
    if traced is not None:
        world = max(world, int(str(traced.select(pl.col("world_size").max()).collect().item() or 0)))
    for name in ("dumps", "source_ranks", "endings", "trace_ranks"):
        known = resolver.get(name)
        if known is not None:
            known = known.filter(pl.col("rank").is_not_null())
            if name == "source_ranks":
                # A file whose name holds a rank and whose text is of no kind says nothing about it.
                sources = resolver.get("sources")
                assert sources is not None
                known = known.join(sources.filter(pl.col("formats").list.len() > 0), on="source_id", how="semi")
            seen |= set(known.select("rank").collect()["rank"].to_list())
    ranks |= seen
    # Ranks that are known tell how many there are only while no more processes than the gaps between them are without one.
    if ranks and (world or _unnumbered(resolver) <= max(ranks) + 1 - len(ranks)):
        world = max(world, max(ranks) + 1)
    return Census(world or None, frozenset(seen), n_groups, n_comms)
