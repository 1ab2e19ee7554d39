"""What an edge of the wait-for graph is, however it was found."""

from __future__ import annotations

from nccl_forensics.frames import typed
from nccl_forensics.views.columns import GROUP, read_at

#: What names a group, first in each row about one.
OF_GROUP = typed("domain:str", GROUP, "comm_id:str")

WAITS = typed(
    OF_GROUP,
    "kind:str waiter:i32 awaited:i32 seq:i64 op:str behind:i64",
    read_at(),
    "call_site:str timeout_ms:i64 created_ns:i64",
)

#: One row of ``waits``, by column.
Edge = dict[str, object]

#: Operations whose data flow one way only: members upstream are done with them, and with the next ones, before those downstream are.
ONE_WAY = r"(?i)^_?(?:broadcast|bcast|reduce|gather|scatter)(?:_oop)?$"
#: What a send waits for, and a receive.
OTHER_HALF = {"send": "recv", "recv": "send"}
#: Operations that end on no rank before all have begun them.
JOINED = r"^(all_reduce|_?all_gather|_?reduce_scatter|all_to_all|barrier)"


def edge(group: dict[str, object], fact: dict[str, object], waiter: int) -> Edge:
    """Who waits, in what, and where that is said: an edge but for its ``kind``, whom it awaits, the number and how far that one is behind.

    ``group`` is a row of ``groups``, ``fact`` one of ``progress``.
    """
    return {
        **{name: group[name] for name in OF_GROUP},
        "waiter": waiter,
        "op": fact["last_op"],
        "source_id": fact["source_id"],
        "line_no": fact["line_no"],
        "record": fact["record"],
        "call_site": fact["last_call_site"],
        "timeout_ms": fact["timeout_ms"],
        "created_ns": fact["last_created_ns"],
    }


def members_of(group: dict[str, object]) -> list[int]:
    """Members of a row of ``groups``."""
    members = group["members"]
    assert isinstance(members, list)
    return members


def is_pair(row: Edge) -> bool:
    """Whether a rank waits in a send or receive."""
    return row["op"] in ("send", "recv")
