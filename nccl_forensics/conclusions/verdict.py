"""The verdict: the one place where rules meet. What explains what is data; the root is what nothing else explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from nccl_forensics.model import CONFIDENCES, Confidence, Culprit, Finding, Status
from nccl_forensics.rules import Found, Outcome

#: How deep a cause lies: of two findings that explain each other the deeper one is the root.
DEPTH: dict[str, int] = {
    cause: depth
    for depth, causes in {
        100: (
            "node-failed",
            "job-stopped",
            "gpu-fault",
            "nvlink-fault",
            "out-of-memory",
            "shm-exhausted",
            "memlock-limit",
            "data-corruption",
        ),
        95: ("ib-link", "version-mismatch", "invalid-usage", "wrong-interface"),
        92: ("environment-mismatch", "bad-setting"),
        90: ("collective-skipped", "collective-mismatch", "dtype-mismatch", "shape-mismatch", "argument-mismatch", "ddp-unused-parameter"),
        80: ("software-crash",),
        75: ("rank-died",),
        70: ("p2p-deadlock", "input-stall"),
        65: ("group-deadlock", "gpu-stall"),
        60: ("host-stall", "straggler"),
        55: ("connection-failed", "mtu-mismatch", "packet-loss"),
        50: ("rank-never-joined",),
        30: ("timeout-too-short",),
        20: ("collective-stuck",),
    }.items()
    for cause in causes
}


#: (cause, effect): the effect is explained only while it is no proof. Without memory CUDA fails too; a fault that the driver itself
#: reports is another one.
_UNLESS_PROVED = frozenset({("out-of-memory", "gpu-fault")})
#: What a look at a rank is taken for that is away from the others.
_AWAY = ("host-stall", "input-stall")
#: Effects that are of ranks which are known: a fault elsewhere, which is less sure, does not account for them.
_SEEN = frozenset({"rank-died", *_AWAY})
#: Effects that stay on the host of their cause: a fault of another host does not account for them.
_LOCAL = frozenset({"data-corruption", "gdr-disabled", "gpu-fault"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of one run, before it is written down."""

    status: Status
    root: Found | None
    confidence: Confidence | None
    others: tuple[Found, ...] = ()
    explained_by: dict[str, str] = field(default_factory=dict)
    failure: tuple[str, ...] = ()


def with_root(verdict: Verdict, outcomes: Sequence[Outcome], finding: Finding) -> tuple[Verdict, tuple[Outcome, ...]]:
    """The same, with what the verdict's root found told as ``finding``."""
    root = verdict.root
    assert root is not None
    told = replace(root, finding=finding)
    every = tuple(replace(o, found=tuple(told if f.id == root.id else f for f in o.found)) for o in outcomes)
    return replace(verdict, root=told), every


def weight(found: Found) -> tuple[int, int, int, str]:
    """Order of roots: sure ones first, then deep ones."""
    finding = found.finding
    return (CONFIDENCES.index(finding.confidence), -DEPTH.get(finding.cause or "", 40), -len(finding.ranks), found.id)


def explains(a: Found, b: Found) -> bool:
    """Whether finding ``a`` accounts for finding ``b``: as data (``explains`` of the rule), deeper, and not a mere guess against a
    proof."""
    if a.id == b.id or b.finding.cause not in a.rule.explains:
        return False
    if a.rule.name == b.rule.name and a.finding.cause == b.finding.cause:
        return False  # two cards, two hosts: one rule's findings of one cause stand beside each other
    surer = CONFIDENCES.index(b.finding.confidence) < CONFIDENCES.index(a.finding.confidence)
    within = bool(a.finding.ranks) and set(a.finding.ranks) <= set(b.finding.ranks)
    if a.finding.cause == b.finding.cause and surer and not within:
        return False  # one cause by two rules: the surer speaks, unless the other tells more closely which of its ranks it is
    if (a.finding.cause, b.finding.cause) in _UNLESS_PROVED and b.finding.confidence == "high":
        return False
    if b.finding.cause in _SEEN and surer and _elsewhere(a.finding, b.finding):
        return False
    # A card of another host that fails for the same cause is another card.
    local = b.finding.cause in _LOCAL or a.finding.cause == b.finding.cause == "ib-link"
    if local and a.finding.hosts and b.finding.hosts and not set(a.finding.hosts) & set(b.finding.hosts):
        return False
    if CONFIDENCES.index(a.finding.confidence) > CONFIDENCES.index(b.finding.confidence) + 1:
        return False
    if a.finding.cause in b.rule.explains:
        return weight(a) < weight(b)
    return True


def _elsewhere(fault: Finding, seen: Finding) -> bool:
    """Whether a fault is of a link while a rank died, or of the card of a rank that is not among those that died: what surely ended these, the
    fault, which is less sure, did not bring about. Nor does it hold up a rank that is seen at something else on its host, unless it is known to
    be of that rank or of its host."""
    if fault.cause == "ib-link":
        return seen.cause == "rank-died"
    if fault.cause != "gpu-fault" or set(fault.ranks) & set(seen.ranks):
        return False
    if seen.cause in _AWAY:
        return not set(fault.hosts) & set(seen.hosts)
    return bool(fault.ranks) and bool(seen.ranks)


@dataclass(frozen=True, slots=True)
class Grounds:
    """What the evidence of a run tells beside what rules find: whether the job failed, and how far it tells that nothing was wrong."""

    #: Words for each sign that the job failed.
    signs: tuple[str, ...] = ()
    #: Something tells of a job at all.
    has_job: bool = True
    #: Every rank of the job has evidence, or an orderly end was seen.
    complete: bool = True
    #: What there is of an incomplete job still tells that nothing was wrong with it.
    enough: bool = True
    #: Processes lost others, and whether that was the job's end in order is not known, or no end is told of some that came up: a loss may
    #: then not be all that was wrong.
    lost: bool = False
    #: What is there tells of hosts and of no rank: whether a job ran into what is odd on them is not known.
    machines_only: bool = False
    #: There is something of every rank: that those who left nothing were well is less sure, however the others ended.
    everyone: bool = True
    #: What is there would show a job that stood still or was slow.
    shown: bool = True


def judge(outcomes: Sequence[Outcome], grounds: Grounds) -> Verdict:
    """Verdict of one run: by what stopped it; else, of a job that failed, by a loss that can do that, and of another by any; else by whether
    its grounds are enough to call it well."""
    every = [f for o in outcomes for f in o.found]
    stops, losses = (sorted((f for f in every if f.finding.severity == level), key=weight) for level in ("critical", "error"))
    able = [f for f in losses if f.finding.cause in _CAN_STOP]
    explained_by = {} if grounds.signs else {s.id: late.id for s in stops for late in losses if _comes_late(s, late)}
    stops = [s for s in stops if s.id not in explained_by]
    bound: Confidence = "high"
    if stops:
        roots, bound = _stopped_by(stops, able, explained_by)
        explained_by |= {f.id: roots[0].id for f in every if f.id != roots[0].id and f.id not in explained_by and explains(roots[0], f)}
    elif grounds.signs:
        roots = _roots(able, explained_by)
        said = any(f.finding.cause in _SAID_BY_NCCL and explains(root, f) for root in roots[:1] for f in every)
        bound = "high" if said else "medium"
    else:
        roots = _roots(losses, explained_by)
        bound = "medium" if grounds.lost else "high"
    if roots:
        return Verdict("explained", roots[0], _at_most(roots[0].finding, bound), tuple(roots[1:]), explained_by, grounds.signs)
    if grounds.signs:
        return Verdict("unexplained", None, "low", (), explained_by, grounds.signs)
    if not _can_be_called_well(outcomes, every, grounds):
        return Verdict("insufficient-evidence", None, None, (), explained_by)
    whole = grounds.complete and grounds.everyone and grounds.shown
    return Verdict("nothing-wrong", None, "medium" if whole else "low", (), explained_by)


def _stopped_by(stops: Sequence[Found], able: Sequence[Found], explained_by: dict[str, str]) -> tuple[list[Found], Confidence]:
    """The roots of what stopped a job, losses that are behind it among them, and how sure the first of them may be said."""
    sure = any(f.finding.confidence == "high" for f in stops)
    behind = _behind_sure(able, stops) if sure else _behind_weak(able, stops)
    if behind:
        explained_by.clear()
    roots = _roots([*behind, *stops], explained_by)
    return roots, "medium" if sure and roots[0] in behind else "high"


def _can_be_called_well(outcomes: Sequence[Outcome], every: Sequence[Found], grounds: Grounds) -> bool:
    """Whether enough was read and checked of a job in which nothing was found. What a check would have found that broke off is not known;
    those of other packages are extra."""
    unchecked = any(o.status == "crashed" and o.rule.severity in ("critical", "error") and o.rule.built_in for o in outcomes)
    odd = grounds.machines_only and any(f.finding.severity == "warning" and f.finding.cause in _OF_MACHINES for f in every)
    return grounds.has_job and (grounds.complete or grounds.enough) and not unchecked and not odd


def _behind_sure(able: Sequence[Found], stops: Sequence[Found]) -> list[Found]:
    """Losses that are behind stops of which one is sure: where packets of full size are seen to vanish, that is how a call ends that all
    are surely in."""
    vanishing = [f for f in able if f.finding.cause == "mtu-mismatch" and f.finding.confidence == "high"]
    return vanishing if _bare(stops) else []


def _behind_weak(able: Sequence[Found], stops: Sequence[Found]) -> list[Found]:
    """Losses that are behind stops of which none is sure. One that NCCL refuses to live with is behind a stop that says no more, and less
    surely, than that NCCL failed. That all wait in one call and none comes out says less still: a fault of the way between them need be no
    surer."""
    bare = _bare(stops)
    return [f for f in able if any((_surer(f, s) or (bare and _of_the_way(f))) and explains(f, s) for s in stops)]


def _bare(stops: Sequence[Found]) -> bool:
    """Whether nothing is seen to stop but a call that none comes out of."""
    return all(f.finding.cause == "collective-stuck" for f in stops)


def _surer(a: Found, b: Found) -> bool:
    return CONFIDENCES.index(a.finding.confidence) < CONFIDENCES.index(b.finding.confidence)


#: Troubles of a machine that stop or slow the job which meets them.
_OF_MACHINES = frozenset({"ib-link", "gpu-fault", "nvlink-fault", "node-failed", "out-of-memory", "connection-failed"})


def _comes_late(stop: Found, late: Found) -> bool:
    """Whether a rank that a few looks found away from the others is more surely known to come late, or no less where both are guesses, and
    goes on: of a job that nothing says to have failed, that is where it spends the time by which it is late."""
    guess, known = stop.finding, late.finding
    as_sure = guess.confidence == "low" or CONFIDENCES.index(known.confidence) < CONFIDENCES.index(guess.confidence)
    return guess.cause in _AWAY and known.cause == "straggler" and as_sure and _blames(known, guess)


#: Causes of a loss that can also end a job.
_CAN_STOP = frozenset(
    {
        "ib-link",
        "wrong-interface",
        "environment-mismatch",
        "version-mismatch",
        "bad-setting",
        "packet-loss",
        "mtu-mismatch",
        "memlock-limit",
        "gpu-fault",
        "nvlink-fault",
    }
)


#: Of these, faults of the way between ranks.
_OF_THE_WAY = frozenset({"ib-link", "mtu-mismatch", "packet-loss", "nvlink-fault"})


def _of_the_way(loss: Found) -> bool:
    """Whether it is a fault of the way between ranks and more than a guess."""
    return loss.finding.cause in _OF_THE_WAY and loss.finding.confidence != "low"


#: What NCCL says where ranks are set up differently: that it failed for such a difference is then no guess.
_SAID_BY_NCCL = frozenset({"version-mismatch", "invalid-usage"})


def _at_most(finding: Finding, bound: Confidence) -> Confidence:
    return CONFIDENCES[max(CONFIDENCES.index(finding.confidence), CONFIDENCES.index(bound))]


def _roots(candidates: Sequence[Found], explained_by: dict[str, str]) -> list[Found]:
    """Candidates that no other one explains, best first; the rest is written into ``explained_by``."""
    for b in candidates:
        for a in candidates:
            if explains(a, b):
                explained_by[b.id] = a.id
                break
    roots = [f for f in candidates if f.id not in explained_by]
    if not roots and candidates:
        best = min(candidates, key=weight)
        explained_by.pop(best.id, None)
        roots = [best]
    own: list[Found] = []
    for found in sorted(roots, key=weight):
        told = next((r for r in own if restates(r, found)), None)
        if told is None:
            own.append(found)
        else:
            explained_by[found.id] = told.id
    return own


def restates(a: Found, b: Found) -> bool:
    """Whether ``b`` blames, for the same cause, nobody but those whom ``a`` blames: two rules may report one trouble by different
    evidence."""
    return a.finding.cause == b.finding.cause and _blames(a.finding, b.finding)


def _blames(a: Finding, b: Finding) -> bool:
    """Whether all whom ``b`` blames, and it blames somebody, are blamed by ``a``."""
    blamed, again = _blamed(a), _blamed(b)
    return bool(again) and all(any(_same(x, y) for x in blamed) for y in again)


def _blamed(finding: Finding) -> tuple[Culprit, ...]:
    """Whom a finding is about, for comparison with others."""
    return finding.culprits or tuple(Culprit(rank=r) for r in finding.ranks) or tuple(Culprit(host=h) for h in finding.hosts)


def _same(a: Culprit, b: Culprit) -> bool:
    """Whether what both tell of is alike, and there is such a thing: a rank without its host and a host without its ranks are not
    compared."""
    both = [(x, y) for x, y in zip(_names(a), _names(b), strict=True) if x is not None and y is not None]
    return bool(both) and all(x == y for x, y in both)


def _names(culprit: Culprit) -> tuple[object, ...]:
    return (culprit.rank, culprit.host, culprit.gpu, culprit.pid, culprit.nic, culprit.link, culprit.source_id)
