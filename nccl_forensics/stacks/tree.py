"""Stacks of many processes merged into a prefix tree, and the processes that stand apart from the others.

Trees grow from the outermost frame. A node's members are the ranks (or whatever keys) whose stacks pass through it; its text says
``has 5`` or, where most do, ``lacks 5``: all but these.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nccl_forensics.stacks.frames import function_of, split_frame
from nccl_forensics.stacks.places import UNTOLD, WAITING, WAITING_ON_GPU, Standing, standing
from nccl_forensics.words import rank_list

Key = int | str
#: Why processes stand apart.
BUSY = "the others wait, and who stands apart does not"
ALIKE = "the others sleep in one and the same line, as a wait for a request leaves it, and they do not"
PAIRED = "both send or both receive, so that neither answers the other; the others have gone on to a collective"
CHAINED = "some of them wait for each other, and others for one of these; the rest has gone on to a collective"
UNANSWERED = "they wait in a send or a receive that nobody answers"
ELSEWHERE = "they stand at another call than most"
MAKING = "they wait for a group to be made; who is no member of it passes through, and one that is has left it out, or they called it alone"
PASSED = "they wait in a collective; most are not in it, and stand at one line"
#: Calls that make groups.
_MAKING = ("new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group")
#: Ranges in a node's text.
_RANGES = 8


@dataclass(frozen=True, slots=True)
class Node:
    """A frame, who stands in it, and the frames called from it. The root has no frame."""

    frame: str | None
    keys: tuple[Key, ...]
    children: tuple[Node, ...]

    def walk(self) -> Iterator[tuple[int, Node]]:
        """(depth, node) of all nodes with a frame, callers before callees. A loop: stacks can be deeper than Python recurses."""
        left: list[tuple[int, Node]] = [(0, self)]
        while left:
            depth, node = left.pop()
            if node.frame is not None:
                yield depth, node
                depth += 1
            left.extend((depth, child) for child in reversed(node.children))


@dataclass(frozen=True, slots=True)
class StackTree:
    """The merged stacks of ``keys``."""

    root: Node

    @property
    def keys(self) -> tuple[Key, ...]:
        """Everybody in the tree."""
        return self.root.keys

    def text_of(self, node: Node) -> str:
        """``has 0-3``, or ``lacks 5`` where fewer are outside than inside; ``all``."""
        inside = set(node.keys)
        outside = [k for k in self.keys if k not in inside]
        if not outside:
            return "all"
        return f"lacks {key_list(outside)}" if len(outside) < len(inside) else f"has {key_list(inside)}"

    def lines(self) -> Iterator[str]:
        """The tree as indented text, one frame per line with its members."""
        for depth, node in self.root.walk():
            yield f"{'  ' * depth}{node.frame}  [{self.text_of(node)}]"


@dataclass(frozen=True, slots=True)
class StackClass:
    """Processes whose stacks are equal. ``frames`` innermost first."""

    keys: tuple[Key, ...]
    frames: tuple[str, ...]
    standing: Standing


@dataclass(frozen=True, slots=True)
class OddOne:
    """Processes that stand apart. ``parts_at`` is their own frame just after the last one they share with the others."""

    keys: tuple[Key, ...]
    others: tuple[Key, ...]
    standing: Standing
    shared_frame: str | None
    parts_at: str | None
    others_at: str | None
    others_ops: tuple[str, ...]
    others_place: str
    reason: str
    sure: bool


def key_list(keys: Iterable[Key]) -> str:
    """Ranks as ranges; other keys by name."""
    known = sorted(set(keys), key=_order)
    numbers = [k for k in known if isinstance(k, int)]
    names = [str(k) for k in known if not isinstance(k, int)]
    shown = [*([rank_list(numbers, _RANGES)] if numbers else []), *names[:_RANGES]]
    return ", ".join(shown) + (f" … ({len(names)})" if len(names) > _RANGES else "")


def merge(rows: Iterable[tuple[Key, Sequence[str]]]) -> StackTree:
    """The prefix tree of stacks (frames innermost first). Biggest branch first, then the smallest member, then the frame."""
    stacks = sorted(((key, tuple(reversed(frames))) for key, frames in rows), key=lambda s: (_order(s[0]), s[1]))
    return StackTree(_node(None, stacks, 0))


def _node(frame: str | None, stacks: Sequence[tuple[Key, tuple[str, ...]]], depth: int) -> Node:
    # Runs without branches are walked in a loop: recursion is as deep as stacks branch, not as they are long.
    parts: dict[str, list[tuple[Key, tuple[str, ...]]]] = {}
    chain: list[str] = []
    while True:
        parts = {}
        for stack in stacks:
            if len(stack[1]) > depth:
                parts.setdefault(stack[1][depth], []).append(stack)
        if len(parts) == 1 and len(next(iter(parts.values()))) == len(stacks):
            chain.append(next(iter(parts)))
            depth += 1
            continue
        break
    keys = tuple(sorted({key for key, _ in stacks}, key=_order))
    ordered = sorted(parts.items(), key=lambda item: (-len({k for k, _ in item[1]}), min(_order(k) for k, _ in item[1]), item[0]))
    children = tuple(_node(own, members, depth + 1) for own, members in ordered)
    node: Node | None = None
    for own in reversed(chain):
        node = Node(own, keys, children if node is None else (node,))
    if frame is None and not chain:
        return Node(None, keys, children)
    return Node(frame, keys, children if node is None else (node,))


def classes(rows: Iterable[tuple[Key, Sequence[str]]]) -> tuple[StackClass, ...]:
    """Processes by equal stacks, the biggest class first."""
    found: dict[tuple[str, ...], set[Key]] = {}
    for key, frames in rows:
        found.setdefault(tuple(frames), set()).add(key)
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), min(_order(k) for k in item[1]), item[0]))
    return tuple(StackClass(tuple(sorted(keys, key=_order)), frames, standing(frames)) for frames, keys in ordered)


def moved(samples: Sequence[Sequence[str]]) -> bool:
    """Whether several stacks of one process show that it makes progress.

    A process that spins in one call shows other lines and helpers of that call, so only what stands further out counts: the place, and
    the call that led there. One that waits in a call for its peers does not move until the call changes.
    """
    return len({_position(sample) for sample in samples}) > 1


def _position(frames: Sequence[str]) -> Hashable:
    found = standing(frames)
    if found.place in WAITING or found.frame is None:
        return found.place, found.op, tuple(f for f in frames[found.frame or 0 :] if split_frame(f)[2] is not None)
    if found.place == "import":
        # Each module that is loaded is a step forward.
        return found.place, tuple(f for f in frames if function_of(f) == "<module>")
    anchor = found.user_frame or frames[found.frame]
    at = frames.index(anchor)
    return found.place, function_of(anchor), tuple(frames[at + 1 :])


def odd_ones_out(
    samples: Iterable[tuple[Key, Sequence[str]]], running: Collection[Key] = (), held: Collection[Key] = ()
) -> tuple[OddOne, ...]:
    """Who stands apart, surest first; empty where nobody does.

    Several samples of one process (in the order of the dumps) tell whether it moves: the last one counts, and a process that moves is no
    culprit of a hang. ``running``: processes whose thread is seen to run: they wait for nobody. ``held``: processes of which something else
    tells that they wait for their GPU. Six situations are told apart: most wait for others and few do something else; most sleep in one line
    of their own code and few stand in a place that tells; most stand in collectives and few in point-to-point calls among themselves; sends
    or receives that nobody answers, as their peer stands in a collective or answers another; most stand at one call and few at another; few
    wait in one collective that most have passed, standing at one and the same line.
    """
    history: dict[Key, list[Sequence[str]]] = {}
    for key, frames in samples:
        if frames:
            history.setdefault(key, []).append(frames)
    if len(history) < 2:
        return ()
    last = {key: tuple(seen[-1]) for key, seen in history.items()}
    moving = {key for key, seen in history.items() if moved(seen)}
    scene = _Scene(last, {key: standing(frames) for key, frames in last.items()}, moving, running, held)
    for ask in (_busy_few, _asleep_few, _pairs_apart, _told_by_the_asleep):
        found = ask(scene)
        if found is not None:
            return found
    return _minority(set(last) - moving, last, scene.where)


class _Scene:
    """Where each process stands at its last sample, and who of them waits, works or moves."""

    def __init__(
        self,
        last: dict[Key, tuple[str, ...]],
        where: dict[Key, Standing],
        moving: set[Key],
        running: Collection[Key],
        held: Collection[Key],
    ) -> None:
        self.last, self.where, self.moving, self.running = last, where, moving, running
        self.waiting = {k for k, s in where.items() if s.place in WAITING}
        on_gpu = {k for k, s in where.items() if s.place in WAITING_ON_GPU or (k in held and s.place == "user-code")}
        self.waiters = self.waiting or on_gpu
        self.busy = set(last) - self.waiting - on_gpu
        self.stopped = self.busy - moving

    def named(self, few: set[Key], most: set[Key], reason: str, *, sure: bool = False) -> tuple[OddOne, ...]:
        return _named(few, most, self.last, reason, sure=sure)


# Each tells the odd ones, nobody, or None where its situation is not met.


def _busy_few(scene: _Scene) -> tuple[OddOne, ...] | None:
    """Most wait for others, few do something else."""
    if len(scene.waiters) < 2 or not scene.stopped or len(scene.busy) * 2 >= len(scene.last):
        return None
    return scene.named(scene.stopped, scene.waiters, BUSY, sure=bool(scene.waiting) and not scene.busy & scene.moving)


def _asleep_few(scene: _Scene) -> tuple[OddOne, ...] | None:
    """Some wait, and most are busy: few that were left behind, or few that stand apart from those that sleep alike."""
    if not scene.busy or not scene.waiters:
        return None
    stopped = scene.stopped
    behind = _left_behind(scene.waiting, stopped, scene.last, scene.where)
    alike = {k for k in stopped if scene.where[k].place == "user-code" and k not in scene.running and _together(k, stopped, scene.last)}
    alone = stopped - alike
    if behind or not alike or not alone or len(scene.busy - alike) * 2 >= len(scene.last):
        return behind
    # Some that sleep in one line of their own code may wait for a request, which leaves no frame of Python.
    return scene.named(alone, scene.waiters | alike, BUSY)


def _pairs_apart(scene: _Scene) -> tuple[OddOne, ...] | None:
    """All wait, some of them in calls between two."""
    pairs = {k for k in scene.waiting if scene.where[k].place == "p2p"}
    if scene.waiting != set(scene.last) or not pairs:
        return None
    rest = scene.waiting - pairs
    # One alone has no partner among those that stand so, and of many the few that went on may have left out their part.
    ops = {scene.where[k].op for k in pairs}
    paired = (len(pairs) == 2 <= len(rest) + 1 or 2 < len(pairs) <= len(rest)) and ops != {"send", "recv"}
    if paired:
        # Behind two that both receive first, their other neighbours stand in the same line.
        return scene.named(pairs, rest, PAIRED if len(pairs) == 2 else CHAINED)
    still = pairs - scene.moving
    return scene.named(still, rest or still, UNANSWERED) if still else ()


def _told_by_the_asleep(scene: _Scene) -> tuple[OddOne, ...] | None:
    """Nobody is seen to wait: most sleep in one line of their own code, few stand in a place that tells."""
    if scene.waiters:
        return None
    asleep = _asleep(scene.last, scene.where, scene.running)
    elsewhere = {k for k in scene.stopped - asleep if scene.where[k].place not in UNTOLD}
    if len(asleep) < 2 or len(asleep) * 2 <= len(scene.last) or elsewhere != scene.busy - asleep:
        return None
    return scene.named(elsewhere, asleep, ALIKE)


def _asleep(last: Mapping[Key, tuple[str, ...]], where: Mapping[Key, Standing], running: Collection[Key]) -> set[Key]:
    """The most that stand in one and the same stack of which no frame tells what they wait in, and do not run."""
    alike: dict[tuple[str, ...], set[Key]] = {}
    for key, frames in last.items():
        if where[key].place == "user-code" and key not in running:
            alike.setdefault(frames, set()).add(key)
    return max(alike.values(), key=lambda keys: (len(keys), [str(k) for k in sorted(keys, key=_order)]), default=set())


def _together(key: Key, keys: set[Key], last: Mapping[Key, tuple[str, ...]]) -> bool:
    """Whether another one stands in the very same stack."""
    return any(other != key and last[other] == last[key] for other in keys)


def _minority(still: set[Key], last: Mapping[Key, tuple[str, ...]], where: Mapping[Key, Standing]) -> tuple[OddOne, ...]:
    """All in calls of one kind: the few whose call or line differs from that of most."""
    spots: dict[Hashable, set[Key]] = {}
    for key, found in where.items():
        spots.setdefault((found.place, found.op, found.user_frame), set()).add(key)
    ordered = sorted(spots.values(), key=lambda keys: (-len(keys), min(_order(k) for k in keys)))
    if len(ordered) < 2 or len(ordered[0]) * 2 <= len(last) or len(ordered[0]) < 2:
        return ()
    few = set().union(*ordered[1:]) & still
    making = {k for k in few if where[k].op in _MAKING}
    rest = few - making
    return (*_named(rest, ordered[0], last, ELSEWHERE, sure=False), *_named(making, ordered[0], last, MAKING, sure=False))


def _left_behind(
    waiting: set[Key], stopped: set[Key], last: Mapping[Key, tuple[str, ...]], where: Mapping[Key, Standing]
) -> tuple[OddOne, ...]:
    """Few in one collective, or in one half of a pair, while most stand at the same line of their own code, in no place that would explain
    them."""
    calls = {(where[k].op, where[k].user_frame) for k in waiting}
    stands = {last[k] for k in stopped}
    idle = all(where[k].place in ("compute", "user-code", "unknown") for k in stopped)
    if len(calls) == 1 and len(stands) == 1 and idle and len(waiting) + len(stopped) == len(last) and len(waiting) < len(stopped):
        halves = all(where[k].place == "p2p" for k in waiting)
        return _named(waiting, stopped, last, UNANSWERED if halves else PASSED, sure=False)
    return ()


def _named(few: set[Key], most: set[Key], last: Mapping[Key, tuple[str, ...]], reason: str, *, sure: bool) -> tuple[OddOne, ...]:
    peer_classes = classes((k, last[k]) for k in most)
    ops = tuple(dict.fromkeys(c.standing.op for c in peer_classes if c.standing.op is not None))
    found = []
    for odd in classes((k, last[k]) for k in few):
        near = max(peer_classes, key=lambda c: (_shared(odd.frames, c.frames), len(c.keys)))
        shared = _shared(odd.frames, near.frames)
        found.append(
            OddOne(
                keys=odd.keys,
                others=tuple(sorted(most, key=_order)),
                standing=odd.standing,
                shared_frame=odd.frames[-shared] if shared else None,
                parts_at=odd.frames[-shared - 1] if shared < len(odd.frames) else None,
                others_at=near.frames[-shared - 1] if shared < len(near.frames) else None,
                others_ops=ops,
                others_place=near.standing.place,
                reason=reason,
                sure=sure,
            )
        )
    return tuple(found)


def parting(one: object, other: object) -> str | None:
    """Of two stacks, innermost frame first, the frame of the first just after the last one that they share; None where there is none."""
    if not isinstance(one, list) or not isinstance(other, list):
        return None
    shared = _shared(one, other)
    return str(one[-shared - 1]) if 0 < shared < len(one) else None


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    """How many outermost frames two stacks share."""
    count = 0
    for a, b in zip(reversed(one), reversed(other), strict=False):
        if a != b:
            break
        count += 1
    return count


def _order(key: Key) -> tuple[bool, int, str]:
    return (not isinstance(key, int), key if isinstance(key, int) else 0, str(key))
