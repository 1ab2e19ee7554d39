"""What a scenario is, and choices that many share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nccl_forensics.simulate.case import Case, Truth
from nccl_forensics.simulate.layout import Group, Layout
from nccl_forensics.simulate.program import Item, operations, step_items


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kind of incident: its name, one line about it, what it does to a case, and its symptom variants, the plainest first.

    ``slow`` says that the job goes on under it, so that another fault may strike as well. ``needs`` are the fewest ranks; ``hosts`` the
    fewest hosts; ``layout`` says which layout it needs (by world size and GPUs per host). ``nvidia``: only NVIDIA's tools, as they are
    written here, show it.
    """

    name: str
    title: str
    apply: Callable[[Case], None]
    variants: tuple[str, ...] = ("dump", "log", "live")
    needs: int = 2
    hosts: int = 1
    platforms: tuple[str, ...] = ()
    layout: Callable[[int, int], Layout | None] | None = None
    slow: bool = False
    nvidia: bool = False


def target(case: Case, rank: int, step: int, *, least: int = 3, waiting: bool = False) -> tuple[int, Item]:
    """Position and item of a collective of this rank in this step, in a group of at least ``least`` ranks where there is one."""
    items = case.edit(rank, step, plan(case, rank, step))
    places = [i for i in operations(items) if items[i].op != "all_reduce_barrier" and (not waiting or items[i].wait)]
    wide = [i for i in places if len(group_of(case, rank, items[i].role).members) >= least]
    chosen = wide or places
    at = chosen[int(case.dice("target") * len(chosen))]
    return at, items[at]


def plan(case: Case, rank: int, step: int) -> list[Item]:
    """The ordinary program of a rank in a step."""
    return step_items(case.layout, case.training, case.layout.digits(rank)["pp"], step)


def group_of(case: Case, rank: int, role: str) -> Group:
    """The group of a role; every item's role has one."""
    found = case.layout.group(role, rank)
    assert found is not None
    return found


def sequence(case: Case, rank: int, step: int, at: int) -> dict[str, object]:
    """Group and sequence number of a collective: the ordinary count up to that position."""
    items = plan(case, rank, step)
    item = items[at]
    each = sum(x.kind == "op" and x.role == item.role and x.op not in ("send", "recv") for x in plan(case, rank, 1))
    here = sum(x.kind == "op" and x.role == item.role and x.op not in ("send", "recv") for x in items[: at + 1])
    group = group_of(case, rank, item.role)
    seq = each * step + here + (1 if item.role == "world" and step else 0)
    return {"process_group": group.name, "desc": group.desc, "collective_seq_id": seq}


def truth(case: Case, causes: tuple[str | None, ...], culprits: tuple[tuple[int, ...], ...] | None, what: str, **more: object) -> None:
    """Set the truth of a case."""
    divergence = more.get("divergence")
    assert divergence is None or isinstance(divergence, dict)
    hosts = more.get("hosts", ())
    assert isinstance(hosts, tuple)
    case.truth = Truth(causes, culprits, hosts, divergence, what)
