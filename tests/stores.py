"""What a store holds, for comparison with another."""

from __future__ import annotations

from nccl_forensics.store import Store


def rows(store: Store) -> dict[str, str]:
    """All rows of each table, as text."""
    return {name: store.scan(name).collect().write_json() for name in sorted(store.present)}
