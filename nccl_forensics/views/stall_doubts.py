"""Stalls that would look no different in a job that goes on, or with most of its files lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nccl_forensics.stacks.places import UNTOLD
from nccl_forensics.values.ranklist import as_ranks
from nccl_forensics.views.levels import alike_in_another, mostly_idle, still_enqueuing, without_a_role
from nccl_forensics.views.silences import FEW_UNSEEN, scattered
from nccl_forensics.views.stack_pairs import in_circles
from nccl_forensics.views.stall_scene import Found, Scene

#: Rows of ``STALLS``.
_Rows = list[dict[str, object]]
#: Who waits for such a share of the time is found waiting in a few looks one after the other.
_MOST_LOOKS = 0.5
#: One rank in so many that ends before its peers: then they are no exception.
_PAUSED = 4
#: So many ranks of which some progress is known make a job of which a half can be told.
_A_JOB = 4


@dataclass(frozen=True)
class _Case:
    """What the rows were made of. ``tail``: of those whose log ends in another operation, how; ``written``: ranks that files are of."""

    scene: Scene
    found: Found
    tail: Mapping[int, str]
    written: set[int]

    def kind(self, row: Mapping[str, object]) -> object:
        """What singled the rank out."""
        return self.found.get(_rank(row), {}).get("kind")

    def glimpsed(self, row: Mapping[str, object]) -> bool:
        """Whether its stack was looked at once or not at all: a job that goes on has ranks in their loaders, too."""
        return _rank(row) in self.found and self.scene.stacks.get(_rank(row), {}).get("moved") is None


def doubted(scene: Scene, found: Found, rows: _Rows, tail: Mapping[int, str], written: set[int]) -> _Rows:
    """The rows without those that would look no different in a job that goes on, or with most of its files lost; those that might, at low
    confidence. ``tail`` and ``written`` as in ``_Case``."""
    case = _Case(scene, found, tail, written)
    for step in _STEPS:
        rows = step(case, rows)
    return rows


def _by_recorders(case: _Case, rows: _Rows) -> _Rows:
    """A job that goes on looks the same at the moment at which its recorders were looked at."""
    progress, groups = case.scene.progress, case.scene.groups
    if case.scene.timed_out or progress is None:
        return rows
    # Behind its peers in one group and ahead of them in another is nobody who keeps to the order, whenever each of them was looked at.
    alone = [r for r in rows if r["seen_by"] == "progress" and case.glimpsed(r) and case.found[_rank(r)].get("beyond") is None]
    spoken = {_rank(r) for r in alone}
    goes_on, may = still_enqueuing(progress, groups, len(alone)) if alone and groups is not None else (False, False)
    if goes_on or case.scene.moved_between - spoken:
        rows = [r for r in rows if r["rank"] not in spoken]
    # A job that goes on is held up here by a loader and there by a GPU; two faults at once are rare.
    several = len({r["cause"] for r in alone}) > 1
    idle = mostly_idle(progress, {_rank(r) for r in rows})
    if idle:
        # Of a job that stands, those who have finished what a GPU has not wait for it in what comes next.
        rows = [r for r in rows if r["cause"] != "gpu-stall" or r["seen_by"] != "progress" or not case.glimpsed(r)]
    if may or several or idle:
        rows = [_unsure(r) if r["rank"] in spoken else r for r in rows]
    return rows


def _by_few_looks(case: _Case, rows: _Rows) -> _Rows:
    """What one look shows may be over at the next."""
    scene = case.scene
    if scene.timed_out:
        return rows
    # That recorders show a circle does not hang on where a stack stands.
    rows = [_glimpsed(r) if case.glimpsed(r) and (scene.at_a_moment or (r["place"] and case.kind(r) != "cycle")) else r for r in rows]
    rows = [_as_traced(r, share) if (share := _usual_waits(scene, r)) else r for r in rows]
    return [_passed(r) if scene.ended and r["place"] else r for r in rows]


def _most_of_the_job(case: _Case, rows: _Rows) -> _Rows:
    """Most of the job cannot be what the rest waits for: the end of the walk is not in the evidence, or is no rank at all."""
    known = len(case.scene.known())
    bare = {r["rank"] for r in rows if _bare(r)}
    return [r for r in rows if r["rank"] not in bare] if known >= _A_JOB and len(bare) * 2 >= known else rows


def _last_to_one_call(case: _Case, rows: _Rows) -> _Rows:
    """Several that came last to one call of another group wait there for a member of which nothing is seen, rather than stall at once. Those
    of whose open work a GPU has begun nothing wait in none."""
    bare = {_rank(r): str(case.found[_rank(r)].get("group_key")) for r in rows if _bare(r) and case.kind(r) != "not-begun"}
    if case.scene.progress is None or len(bare) < 2:
        return rows
    level = alike_in_another(case.scene.progress, bare)
    return [r for r in rows if r["rank"] not in level]


def _making_a_communicator(case: _Case, rows: _Rows) -> _Rows:
    """Several that have made no call yet in what all others have communicators for may wait there for one of them: which one, no record
    tells."""
    bare = {_rank(r) for r in rows if _bare(r) and r["cause"] == "host-stall"}
    progress, groups = case.scene.progress, case.scene.groups
    if len(bare) < 2 or progress is None or groups is None or not without_a_role(progress, groups, bare):
        return rows
    return [r for r in rows if r["rank"] not in bare]


def _at_one_line(case: _Case, rows: _Rows) -> _Rows:
    """Several that stand at one line, and nothing but that tells a circle, wait there together: for one of whom nothing is seen, if there is
    such a one."""
    guessed = [r for r in rows if r["cause"] == "group-deadlock" and r["confidence"] == "low" and not as_ranks(r["partners"])]
    alike = len(guessed) == len(rows) > 1 and len({r["user_frame"] for r in rows}) == 1
    unseen = case.scene.job() - case.scene.known() - case.scene.stacks.keys() if alike else set()
    return [] if unseen else rows


def _wide_circles(case: _Case, rows: _Rows) -> _Rows:
    """Circles of sends and collectives through most of the job: what closes them is none of these ranks alone."""
    known = len(case.scene.known())
    mixed = {r["rank"] for r in rows if r["cause"] == "group-deadlock" and r["confidence"] == "low" and len(as_ranks(r["partners"])) > 1}
    return [r for r in rows if r["rank"] not in mixed] if known >= _A_JOB and len(mixed) * 2 > known else rows


def _copied_at_work(case: _Case, rows: _Rows) -> _Rows:
    """Logs that were copied while the job ran end an operation apart."""
    paused = {r["rank"] for r in rows if case.kind(r) == "behind" and case.tail.get(_rank(r)) is not None}
    many = len(paused) > FEW_UNSEEN and len(paused) * _PAUSED > len(case.scene.known())
    return [r for r in rows if r["rank"] not in paused] if many and not case.scene.timed_out else rows


def _alone_in_a_group(case: _Case, rows: _Rows) -> _Rows:
    """A rank whose last operation is one of a group of which nobody else left anything may wait there as well as be done with it."""
    return [_apart(r) if r["cause"] == "host-stall" and case.found[_rank(r)].get("apart") else r for r in rows]


def _circles(case: _Case, rows: _Rows) -> _Rows:
    """With those who wait for each other in sends and receives, by their stacks."""
    return in_circles(rows, case.scene.stacks, case.scene.job() | case.scene.known(), sure=case.scene.timed_out)


def _left_open(case: _Case, rows: _Rows) -> _Rows:
    """Without those that are left open here and there, or for which a whole host's dumps are missing."""
    goes_on = not case.scene.timed_out
    # Files that are missing here and there were lost, and their ranks may wait as the others do.
    unseen = [_rank(r) for r in rows if case.kind(r) == "unseen" and r["rank"] not in case.scene.stacks]
    # What GPUs have done, and recorders of a job that goes on do not know of yet, is left open here and there as well.
    gpus = [_rank(r) for r in rows if goes_on and r["cause"] == "gpu-stall" and case.kind(r) == "gpu"]
    # So are those who have nothing open at the moment while the other part of a job waits for what they work on.
    hosts = [_rank(r) for r in rows if goes_on and r["cause"] == "host-stall" and _bare(r) and case.kind(r) == "behind"]
    left_open = {rank for ranks in (unseen, gpus, hosts) if scattered(ranks) for rank in ranks}
    # By the recorder of one peer each they are behind wherever that one was looked at later.
    pairs = [rank for rank in gpus if len(as_ranks(case.found[rank].get("in_group"))) == 1]
    # Of a job that stands sooner or later most ranks wait behind such a one.
    behind = {r["rank"]: len(as_ranks(r["waiters"])) for r in rows}
    few = [rank for rank in pairs if 2 * (1 + behind[rank]) <= len(case.scene.known())]
    left_open |= set(pairs) if len(pairs) > 1 else set(few)
    if goes_on and len(unseen) > FEW_UNSEEN and case.written.issuperset(unseen):
        # Of a whole host whose logs are there the dumps were left behind.
        left_open |= set(unseen)
    return [r for r in rows if r["rank"] not in left_open]


#: In this order: each judges what the ones before left.
_STEPS: tuple[Callable[[_Case, _Rows], _Rows], ...] = (
    _by_recorders,
    _by_few_looks,
    _most_of_the_job,
    _last_to_one_call,
    _making_a_communicator,
    _at_one_line,
    _wide_circles,
    _copied_at_work,
    _alone_in_a_group,
    _circles,
    _left_open,
)


def _bare(row: Mapping[str, object]) -> bool:
    """Whether nothing but the progress of operations tells of a stall."""
    return row["cause"] in ("host-stall", "gpu-stall") and row["place"] is None and row["seen_by"] == "progress"


def _rank(row: Mapping[str, object]) -> int:
    return int(str(row["rank"]))


def _unsure(row: dict[str, object]) -> dict[str, object]:
    """A stall that may be a moment of a job that goes on."""
    why = f"{row['why']}; nothing has timed out, and ranks stand here and there or most have nothing open, as in a job that goes on"
    return _late(row) | {"confidence": "low", "why": why}


def _late(row: dict[str, object]) -> dict[str, object]:
    """A stall for which its rank may as well be late in a job that goes on, unless something else was as likely before."""
    return row | ({"alternative": "straggler", "against": None} if row["alternative"] is None else {})


def _glimpsed(row: dict[str, object]) -> dict[str, object]:
    """A stall that one look at the stack or at recorders shows: for how long it stood there is not known."""
    if row["confidence"] != "high":
        return row
    return _late(row) | {
        "confidence": "medium",
        "why": f"{row['why']}; nothing has timed out, and one look does not tell that it stays there",
    }


def _usual_waits(scene: Scene, row: Mapping[str, object]) -> float | None:
    """The share of the traced time in which those wait that stacks show to wait for a rank at work, where it is so large that most looks
    find them so. A rank in its data loader or in a lock is held up there in either case."""
    if row["seen_by"] != "stacks" or row["place"] not in UNTOLD:
        return None
    shares = sorted(scene.waiting_share[w] for w in as_ranks(row["waiters"]) if w in scene.waiting_share)
    usual = shares[len(shares) // 2] if shares else 0.0
    return usual if usual >= _MOST_LOOKS else None


def _as_traced(row: dict[str, object], share: float) -> dict[str, object]:
    """A stall by stacks of a job whose traces go on, and show the same waits."""
    why = f"{row['why']}; nothing has timed out, and by their traces the others wait for {share:.0%} of the time in a job that goes on"
    return _late(row) | {"confidence": "low", "why": why}


def _passed(row: dict[str, object]) -> dict[str, object]:
    """A stall that stacks show in a job whose training loop came to its end, unless it is at the very end that it stands."""
    return _late(row) | {"confidence": "low", "why": f"{row['why']}; the training loop said that it was done, and nothing has timed out"}


def _apart(row: dict[str, object]) -> dict[str, object]:
    """A stall of a rank whose last operation is one of a group of which nobody else left anything: it may wait there as well as be done
    with it."""
    return row | {
        "confidence": "low",
        "why": f"{row['why']}; its last operation is of a group of which no other rank left a record, and it may wait in it",
    }
