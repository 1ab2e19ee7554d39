"""Whose process a fault of a host struck: two kinds of evidence together tell it where each alone does not.

A host's own tools name the host, and maybe the card, but no rank; recorders name the rank that all others wait for, and not why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from nccl_forensics.conclusions.census import people_of
from nccl_forensics.conclusions.verdict import Verdict, with_root
from nccl_forensics.model import Culprit, Finding
from nccl_forensics.rules import Outcome
from nccl_forensics.views import Resolver
from nccl_forensics.words import UNIDENTIFIED, first_label

#: Ends of the walk along waits at which a rank holds up the others; who waits in a circle, or was passed, does not.
_HOLDS_UP = ("behind", "gpu", "unseen")


def with_awaited(verdict: Verdict, outcomes: Sequence[Outcome], resolver: Resolver) -> tuple[Verdict, tuple[Outcome, ...]]:
    """The same, with the ranks that others wait for as culprits of a stop that is blamed on their host alone."""
    root, blockers = verdict.root, resolver.get("blockers")
    if root is None or root.finding.severity != "critical" or blockers is None:
        return verdict, tuple(outcomes)
    hosts = _hosts(resolver)
    ends = blockers.filter((pl.col("rank") < UNIDENTIFIED) & pl.col("kind").is_in(_HOLDS_UP)).select("rank").unique().collect()
    return with_root(verdict, outcomes, struck(root.finding, {rank: hosts.get(rank) for rank in sorted(ends["rank"])}))


def _hosts(resolver: Resolver) -> dict[int, object]:
    """The host of each rank, by its process, else by the files that are of this rank alone, where they agree on one."""
    ranks, homes = resolver.get("source_ranks"), resolver.get("source_hosts")
    known: dict[int, object] = {}
    if ranks is not None and homes is not None:
        own = ranks.filter(pl.col("rank").is_not_null()).join(homes.select("source_id", "host"), on="source_id").group_by("rank")
        alike = own.agg(pl.col("host").first(), n=pl.col("host").n_unique()).filter(pl.col("n") == 1)
        known = dict(alike.select("rank", "host").collect().iter_rows())
    return known | {rank: row["host"] for rank, row in people_of(resolver).items() if row["host"] is not None}


def struck(finding: Finding, awaited: Mapping[int, object]) -> Finding:
    """``finding`` with the ``awaited`` ranks (each with its host) for culprits, if it blames one host and no rank, and all of these run
    there; of its cards as many as there are such ranks, and no adapter or port, which all ranks of a host share: a link between
    GPUs is of a card."""
    culprits = finding.culprits or ()
    hosts = {c.host for c in culprits}
    cards = [c for c in culprits if c.gpu is not None]
    if len(hosts) != 1 or None in hosts or not awaited or any(c.rank is not None or c.nic or (c.link and c.gpu is None) for c in culprits):
        return finding
    [host] = hosts
    here = all(at is not None and first_label(at) == first_label(host) for at in awaited.values())
    if not here or (cards and len(cards) != len(awaited)):
        return finding
    card = cards[0] if len(cards) == 1 else Culprit(host=host)
    return replace(finding, ranks=tuple(awaited), culprits=tuple(replace(card, rank=rank, host=host) for rank in awaited))
