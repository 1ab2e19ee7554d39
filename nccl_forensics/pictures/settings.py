"""Settings with their values and the ranks that have them."""

from __future__ import annotations

from nccl_forensics.extras import Setting
from nccl_forensics.views import Resolver
from nccl_forensics.words import rank_list


def settings(resolver: Resolver) -> tuple[Setting, ...]:
    """By name; a value stands with its ranks, or with the number of processes where their ranks are not known."""
    frame = resolver.get("settings")
    if frame is None:
        return ()
    out = []
    for (name,), part in frame.sort("name", "value").collect().group_by("name", maintain_order=True):
        values = tuple(
            (str(r["value"]), rank_list(r["ranks"]) if r["ranks"] else f"{r['processes']} processes") for r in part.iter_rows(named=True)
        )
        out.append(Setting(str(name), values, bool(part["differs"].any())))
    return tuple(out)
