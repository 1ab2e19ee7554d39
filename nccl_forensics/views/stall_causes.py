"""What makes a rank hold the others up: the cause of one stall, from what singled the rank out and where its stack stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from nccl_forensics.facts.collective_kernels import OPERATIONS
from nccl_forensics.stacks.frames import split_frame
from nccl_forensics.stacks.places import WAITING
from nccl_forensics.values.ranklist import as_ranks
from nccl_forensics.views.calls import OP_WORDS
from nccl_forensics.views.wait_edges import OTHER_HALF
from nccl_forensics.words import ranks_words, verb

P2P = ("send", "recv")
_INPUT = ("data-loader",)
_HOST = ("lock", "gil", "checkpoint", "gc", "compile", "import", "file-io", "sleep", "compute", "user-code", "evaluation")
_PAIR = 2
#: Functions of the program of which nothing tells what they do: an idle thread, one that is active.
_UNTOLD = ("user-code", "compute")

Row = Mapping[str, object]


#: What gloo makes, and records, as an all_reduce (torch 2.13 ProcessGroupGloo.cpp).
_MADE_AS = {"reduce_scatter": "all_reduce"}


def _plain(op: object) -> str | None:
    """The one name of a collective that stacks and recorders call by several; None of a function that makes several calls."""
    plain = OPERATIONS.get(str(op).removesuffix("_base"))
    return _MADE_AS.get(str(plain), plain)


class Cause(NamedTuple):
    """The cause of a stall, how sure it is, and why; ``partners`` of a deadlock; another cause that looks the same (``alternative``), and
    what speaks ``against`` it, if anything does."""

    cause: str
    confidence: str
    why: str
    partners: object = ()
    alternative: str | None = None
    against: str | None = None


class _Case(NamedTuple):
    """One rank that others wait for: how it was singled out (``row``), its stack, the stacks of all, and how its log ends."""

    rank: int
    row: Row
    stack: Row | None
    stacks: Mapping[int, Row]
    tail: str | None

    @property
    def kind(self) -> object:
        return self.row.get("kind")

    @property
    def place(self) -> str | None:
        return str(self.stack["place"]) if self.stack else None

    @property
    def stands(self) -> str:
        """Where its stack stands, in words."""
        assert self.stack is not None
        return f"it stands in {self.stack['op'] or 'a wait for others'} at {self.stack['user_frame']}"

    @property
    def beside(self) -> bool:
        """Whether several others stand at its line, or all others that were looked at."""
        own = self.stack["user_frame"] if self.stack else None
        there = sum(s["user_frame"] == own for r, s in self.stacks.items() if r != self.rank) if own is not None else 0
        return there >= _PAIR or 0 < there == len(self.stacks.keys() - {self.rank})

    @property
    def waited_for_by_name(self) -> bool:
        """Whether the stacks of all that wait for it name the call in which they stand."""
        waiting = [self.stacks[r] for r in as_ranks(self.row.get("waiters")) if r in self.stacks]
        return bool(waiting) and all(s["place"] == "collective" and s["op"] is not None for s in waiting)

    @property
    def in_another_call(self) -> bool:
        """Whether it stands in a call of the one group that there is, and those that wait for it in another one. Where its own recorder tells
        how far it came, that says more."""
        if self.row.get("own_last_op") is not None or self.row.get("pending") is not None:
            return False
        own, theirs = (_plain(op) for op in (self.stack["op"] if self.stack and self.place == "collective" else None, self.row.get("op")))
        return bool(self.row.get("one_group")) and None not in (own, theirs, self.others_at) and own != theirs

    @property
    def others_at(self) -> object:
        """Where those that wait made their call, by a record of it or by the stack of one of them."""
        stood = (self.stacks[r]["user_frame"] for r in as_ranks(self.row.get("waiters")) if r in self.stacks)
        return self.row.get("call_site") or next(stood, None)

    @property
    def sure(self) -> bool:
        """Whether something beside one look at the stacks says that others wait."""
        return self.row["seen_by"] != "stacks" or any(s["place"] in WAITING and r != self.rank for r, s in self.stacks.items())


#: Held up itself, as those that wait for it are: no cause of theirs.
_HELD_UP = Cause("", "", "")


def cause_of(rank: int, row: Row, stacks: Mapping[int, Row], tail: str | None) -> Cause | None:
    """Why ``rank`` holds the others up, by the first sign that tells; None where it is held up itself, or nothing tells.

    ``row`` is what singled it out, ``tail`` how its log ends beside its peers' (``boundary``: after whole steps; ``held``: in a send or
    receive that a peer left out).
    """
    case = _Case(rank, row, stacks.get(rank), stacks, tail)
    told = next((cause for sign in _SIGNS if (cause := sign(case)) is not None), None)
    return None if told is _HELD_UP else told


def with_unheard(told: Cause, rank: int, stacks: Mapping[int, Row], unheard: list[int]) -> Cause:
    """A cause; where all that stand in p2p calls receive, or all send, and somebody's stack is missing, a deadlock among them is a guess: a
    row of stages that wait for one behind them looks the same."""
    if told.cause != "p2p-deadlock" or rank not in stacks or stacks[rank]["place"] != "p2p" or not told.partners or not unheard:
        return told
    if len({stacks[r]["op"] for r in (rank, *as_ranks(told.partners)) if r in stacks}) > 1:
        return told
    missing = f"of {ranks_words(unheard)} there is no stack, and all of them may wait for {verb(unheard, 'it', 'one of these')}"
    return told._replace(confidence="low", why=f"{told.why}; {missing}")


def _a_step_further(case: _Case) -> Cause | None:
    if case.kind != "step-further":
        return None
    row = case.row
    told = f"its training loop has told step {row['step']}, and those of the ranks that wait step {row['others_step']}"
    why = f"{told}: it has finished the step in which they wait"
    if row.get("by_reducer"):
        # Its gradients may never have come, or it passed the whole backward: its own traceback would tell.
        return Cause("collective-skipped", "medium", why, alternative="ddp-unused-parameter")
    return Cause("collective-skipped", "high" if row["seen_by"] == "progress" else "medium", why)


def _in_p2p(case: _Case) -> Cause | None:
    if case.stack is None or case.place != "p2p" or case.kind in ("gpu", "not-begun"):
        return None  # what its GPU has not done, and its peers' have, holds up whatever it enqueued after
    if case.kind == "cycle" and case.row.get("op") in P2P and not case.row.get("mixed"):
        return None  # records tell whom each send and receive is for
    if case.stack["op"] not in P2P and case.kind == "behind" and case.row.get("pending"):
        # A wait for a whole batch: that the walk ends at one whose own is open says that its partner is held up and not that it never
        # comes.
        return _HELD_UP
    # Where somebody stands in the other half, each of them may wait for that one, as those do who send to a rank that waits for another.
    pairs = {r: s["op"] for r, s in case.stacks.items() if s["place"] == "p2p" and r != case.rank}
    # Of two that wait for each other both send, or both receive: a send would end the other's receive.
    partners = sorted(pairs) if OTHER_HALF.get(str(case.stack["op"])) not in pairs.values() else []
    why = case.stands + (", and so does its partner" if partners else "")
    # Stacks alone do not show whom each half is for: both may be for a third rank that left its own out and went on.
    return Cause("p2p-deadlock", "high" if partners and case.row["seen_by"] != "stacks" else "medium", why, partners)


def _in_another_call(case: _Case) -> Cause | None:
    if case.stack is None or not (case.kind == "other-call" or case.in_another_call):
        return None
    own = str(case.stack["user_frame"] or "")
    same = split_frame(own)[0] == split_frame(str(case.others_at or ""))[0]
    # One function may make all calls of a program: then the line that called it tells which of them it is.
    same = same and case.row.get("parts_at") in (None, own)
    why = f"{case.stands} while its peers stand in {case.row['op']} at {case.others_at}"
    return Cause("collective-mismatch" if same else "collective-skipped", "medium", why)


def _in_another_order(case: _Case) -> Cause | None:
    """Ranks that passed over a call of a group."""
    row = case.row
    if case.kind == "swapped":
        why = (
            f"each entered the next operation of another group ({row['ahead']}) without {row['op']} #{row['seq']} of its own, and they wait for each "
            "other in a circle: they took the groups in another order, or left the call out"
        )
        return Cause("group-deadlock", "medium", why, row["partners"])
    if case.kind == "jumped":
        why = (
            f"it never entered {row['op']} #{row['seq']} of this group and went on to the next operation of another group ({row['ahead']})"
        )
        # Whoever is held up in the call that it went on to never comes to what it would have called next.
        if row.get("one_loop") and row.get("no_swap") is None:
            loop = f"{why}; one line of the program calls both in turn: it may as well have taken them in another order"
            return Cause("collective-skipped", "medium", loop, (), "group-deadlock")
        by_another = bool(row.get("another_path"))
        against = row.get("no_swap")
        swap = ((), "group-deadlock", None if against is None else str(against)) if by_another or against is not None else ()
        if row.get("either") is not None:
            other = f"{why}, or {ranks_words(as_ranks([row['either']]))} called it once too often: the two are alone in this group, and nothing tells which"
            return Cause("collective-skipped", "low", other)
        if row.get("domain") == "nccl":
            # Lines of a log bear no number over all groups: one that was lost looks like a call left out.
            return Cause("collective-skipped", "medium", f"{why}; a line lost from its log would look the same", *swap)
        if by_another:
            path = f"{why}, to which it came by another path through the program than before"
            if against is None:
                # Whoever leaves a call out comes to the next one as always; a branch of its own that makes that one holds the other, too.
                order = f"{path}: it takes the two in another order, or leaves the first one out there"
                return Cause("group-deadlock", "high" if row.get("own_branch") else "medium", order, (), "collective-skipped")
            return Cause("collective-skipped", "medium", path, *swap)
        # A word that no operation bears is more likely a damaged record.
        known = row["op"] is None or row["op"] in OP_WORDS
        return Cause("collective-skipped", "high" if known else "medium", why, *swap)
    if case.kind == "once-more":
        why = f"it called {row['op']} once more than its peer, which has made the very calls that others make in groups of two"
        return Cause("collective-mismatch", "medium", f"{why}; a doubled line would look the same")
    if case.kind == "beyond":
        why = f"a monitored barrier names it as missing while it stands beyond that barrier, in {row['later']}, which the others never entered"
        return Cause("collective-skipped", "high", why)
    if case.kind == "gone-on":
        why = f"it went on to {row['later']} while most stand in {row['op']} at {row['call_site']}, which it never joined"
        return Cause("collective-skipped", "medium", why)
    return None


def _in_a_circle(case: _Case) -> Cause | None:
    if case.kind != "cycle":
        return None
    row, cycle = case.row, as_ranks(case.row.get("cycle"))
    they = f"{ranks_words(cycle)} wait for each other"
    if row.get("mixed"):
        if len(cycle) == _PAIR:
            why = f"{they}, the one in a send or receive that the other does not answer, and that one in a collective"
            return Cause("p2p-deadlock", "low", why, cycle)
        # A stage that is a step ahead closes such a circle too: whoever left a call out need not stand in it alone.
        return Cause("group-deadlock", "low", f"{they}, some in sends and receives and some in collectives", cycle)
    if row.get("op") in P2P:
        # Where all send first, or receive first, each is at fault; a longer circle of both may be of one that called a wrong peer.
        sure = len(cycle) == _PAIR or row.get("odd") or not row.get("both_halves")
        return Cause("p2p-deadlock", "high" if sure else "medium", f"{they}'s send or receive in a circle", cycle)
    if row.get("odd"):
        why = (
            f"it never entered {row['op']} #{row['seq']} and went on in another group; most ranks that have groups as it has did otherwise"
        )
        return Cause("collective-skipped", "medium", why)
    return Cause("group-deadlock", "medium", f"{they} in different groups", cycle)


def _at_work_on_its_host(case: _Case) -> Cause | None:
    if case.stack is None:
        return None
    reason, seen_by = case.stack["reason"], case.row["seen_by"]
    if case.place == "ended":
        return Cause("rank-died", "high" if case.sure else "medium", f"its program is over ({reason}), and its process waits to end")
    if case.place in _INPUT:
        return Cause("input-stall", "high" if case.sure else "medium", f"its stack is in its data loading ({reason})")
    why = f"its stack is outside any collective: {case.place} ({reason})"
    if case.place in _UNTOLD and case.row.get("pending") and case.beside:
        return None  # it has work open, and stands where several of those that wait do: in a wait that leaves no frame
    if case.place in _UNTOLD and case.kind in ("gpu", "not-begun"):
        # What its host has enqueued, and its GPU not done, is past: where a thread stands in its own function, it waits for that GPU. Such
        # a wait is active where CUDA spins, and leaves no Python frame (item, a copy from the GPU, Work.wait).
        return None
    if case.place == "user-code":
        # An active wait for a GPU leaves no frame either.
        instead = "gpu-stall" if case.row.get("pending") is not False else None
        return Cause("host-stall", "low" if seen_by == "stacks" else "medium", why, alternative=instead)
    if case.place in _HOST:
        return Cause("host-stall", "high" if case.place != "import" and case.sure else "medium", why)
    return None


#: Collectives that no rank leaves before every other one has entered them.
_OF_ALL = ("all", "reduce_scatter", "reducescatter", "barrier")
_LEFT_OUT = Cause(
    "collective-skipped",
    "low",
    "by the counts of their watchdogs its peers have completed later operations that all members take part in, which they could not if their numbers "
    "meant the same calls: it made fewer calls than they did",
    alternative="gpu-stall",
    against="a GPU that stands would have kept its peers from completing more than the operation in which it stands",
)


def _counts_otherwise(row: Row) -> bool:
    """Whether peers have completed more operations after the last of this rank than the one it stands in, all of a kind that needs
    everybody.

    The operations of a communicator run one after the other on each GPU, so that nobody can complete the second next without this rank.
    """
    if not isinstance(row.get("behind"), int) or int(str(row["behind"])) < 2:
        return False
    ops = [str(row[name]).lower().strip("_") for name in ("op", "own_last_op") if row.get(name)]
    return bool(ops) and all(op.startswith(_OF_ALL) for op in ops)


def _on_its_gpu(case: _Case) -> Cause | None:
    row = case.row
    if case.kind == "not-begun":
        why = (
            f"the GPUs of its peers have begun {row['op']} #{row['seq']}, and its own has not come to it though it is enqueued: work before it holds "
            "it up"
        )
        return Cause("gpu-stall", "medium" if row["timed_out"] else "low", why)
    if case.kind == "gpu":
        why = "work is enqueued on its GPU that its peers of the same group have long completed"
        if row.get("own_record") is None:
            # A watchdog's line counts the calls of its rank: where that rank left some out, its numbers fall behind in the same way.
            if _counts_otherwise(row):
                return _LEFT_OUT if len(as_ranks(row.get("in_group"))) > 1 else _HELD_UP
            return Cause("gpu-stall", "medium", f"{why}, by the count of its watchdog", alternative="collective-skipped")
        if not row["timed_out"] and len(as_ranks(row.get("in_group"))) == 1:
            # Of a pair at work the recorder that was looked at first is behind the other one.
            told = f"{why}, by the recorder of one peer, and nothing has timed out"
            return Cause("gpu-stall", "low", told, alternative="straggler")
        return Cause("gpu-stall", "high", why)
    if case.stack is None or case.place not in ("cuda-sync", "backward"):
        return None
    # A rank with open work of its own waits for its GPU as others do that have some: that tells nothing of this one.
    alike = [r for r, stack in case.stacks.items() if r != case.rank and stack["place"] == case.place]
    if row.get("pending") and len(alike) > 1:
        return None
    why = f"its stack waits in {case.place} ({case.stack['reason']})"
    return Cause("gpu-stall" if case.place == "cuda-sync" else "host-stall", "low", why)


def _in_a_collective(case: _Case) -> Cause | None:
    if case.stack is None or case.place != "collective":
        return None
    if case.row.get("own_last_op") == case.stack["op"] and case.row.get("pending") is not False:
        # It is in this very group, in an operation that others have left: a broadcast that ends for each member by itself. Who is wrong
        # about it (the root, a count) no place tells.
        return _HELD_UP
    if case.stack["op"] is None and case.kind == "behind" and not case.row.get("pending") and case.waited_for_by_name:
        # What it waits in is no call that its recorder holds, as those are in which the others stand; gloo's sends and receives are none.
        alike = sorted(r for r, s in case.stacks.items() if r != case.rank and s["place"] == "collective" and s["op"] is None)
        why = f"{case.stands}, of which its recorder holds nothing: a send or receive"
        return Cause("p2p-deadlock", "low", why, alike if len(alike) + 1 == _PAIR else ())
    return Cause("group-deadlock", "low", f"{case.stands} that its peers are not in")


def _not_heard_of(case: _Case) -> Cause | None:
    if case.kind == "barrier":
        why = "a monitored barrier names it as missing"
        if case.row.get("reached"):
            told = f"{why}; it says itself that it came to one, late or to another"
            return Cause("host-stall", "low", told, alternative="collective-skipped")
        return Cause("host-stall", "medium", why, alternative="collective-skipped")
    if case.kind == "unseen" and case.stack is None and case.row.get("alone_unrecorded"):
        why = "the waits of all others end at it, and it alone of all ranks left no dump, which its watchdog would write while the process lives"
        return Cause("rank-died", "low", why, alternative="host-stall")
    if case.kind == "unseen" and case.stack is None:
        return Cause("host-stall", "low", "the waits of all others end at it, and nothing in the evidence comes from it")
    if case.kind == "unanswered":
        why = "it answered neither the sampler nor the request for a dump, as a process that is stopped or in a system call does; all others wait"
        return Cause("host-stall", "low", why, alternative="gpu-stall")
    if case.kind == "silent" and case.row.get("by_steps"):
        why = "its log tells the steps of its loop as those of the others do, and no timeout, while the watchdogs of all others timed out"
        return Cause("host-stall", "low", why, alternative="collective-skipped")
    if case.kind == "silent":
        why = "it was alive until the launcher stopped it and never timed out itself, as those did that waited"
        return Cause("host-stall", "low", why, alternative="collective-skipped")
    return None


def _behind(case: _Case) -> Cause | None:
    row = case.row
    if case.kind != "behind":
        return None
    if case.tail == "held":
        return _HELD_UP
    if case.tail == "boundary":
        why = (
            "its log ends after a whole number of steps, in which it called fewer collectives than its peers, and nothing says that it died"
        )
        return Cause("collective-skipped", "medium", why, alternative="host-stall")
    if row.get("pending"):
        return _HELD_UP  # by what all members entered and none finished, or by a send or receive of its own
    if row.get("domain") == "nccl":
        return Cause("host-stall", "low", "its log ends before an operation that its peers entered", alternative="collective-skipped")
    if row.get("pending") is False:
        why = "everything it enqueued is completed and it enqueued nothing more, while its peers wait"
        if row.get("own_record") is None:
            # A watchdog's line counts the calls of its rank and names none, so that one left out at the end looks the same.
            return Cause("host-stall", "medium", f"{why}; whether it left the call out no line tells", alternative="collective-skipped")
        return Cause("host-stall", "high", why)
    why = "it never entered an operation that its peers wait in"
    if row.get("domain") == "detail" and not row.get("timed_out"):
        told = f"{why}; nothing has timed out, and lines that were copied while the job ran end an operation apart"
        return Cause("host-stall", "low", told, alternative="straggler")
    return Cause("host-stall", "medium", why, alternative="collective-skipped")


#: Signs in the order in which they are believed: the steps that its loop told, what a stack shows of sends, what the order of calls shows,
#: where the host is, what its GPU has not done, and last what is not there.
_SIGNS: tuple[Callable[[_Case], Cause | None], ...] = (
    _a_step_further,
    _in_p2p,
    _in_another_call,
    _in_another_order,
    _in_a_circle,
    _at_work_on_its_host,
    _on_its_gpu,
    _in_a_collective,
    _not_heard_of,
    _behind,
)
