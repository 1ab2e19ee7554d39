"""``comparison.json``: everything that a comparison says, for other programs."""

from __future__ import annotations

from dataclasses import asdict

from nccl_forensics import __version__
from nccl_forensics.changes import Change, Differences
from nccl_forensics.reporters.json_report import render as dump

SCHEMA = "nccl-forensics/comparison/1"


def render(compared: Differences) -> bytes:
    """UTF-8, sorted keys, the same bytes for the same two runs."""
    return dump(
        {
            "schema": SCHEMA,
            "generator": {"name": "nccl-forensics", "version": __version__},
            "headline": compared.headline,
            "before": asdict(compared.before),
            "after": asdict(compared.after),
            "results": [_change(c) for c in compared.results],
            "explains": [_change(c) for c in compared.explains],
            "others": [_change(c) for c in compared.others],
            "one_sided": [_change(c) for c in compared.one_sided],
            "equal": [{"area": area, "subject": subject, "value": value} for area, subject, value in compared.equal],
            "unknown": list(compared.unknown),
        }
    )


def _change(change: Change) -> dict[str, object]:
    out = asdict(change) | {"fingerprint": change.fingerprint}
    out["details"] = [{"what": what, "before": before, "after": after} for what, before, after in change.details]
    del out["finding"]
    return out
