"""Exceptions as a process printed them, to rows of ``exceptions``: one row for a chain of them.

Of chained exceptions the first is the root and the last is what ended the process: the root gives the row, unless it is the user's and the
last one is known.
"""

from __future__ import annotations

import re

from nccl_forensics.facts.signatures import classify
from nccl_forensics.masking import mask
from nccl_forensics.stacks.callstack import Frame, joined, user_frame

#: How Python says that the exception above led to the one below.
CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
#: The native stack that torch's C++ errors carry: never a start of its own, always what follows a message.
RAISED_FROM = re.compile(
    r"^\s*(?:C\+\+ CapturedTraceback:|Exception raised from .{1,400} \(most recent call first\):|frame #[0-9]{1,4}: |#[0-9]{1,4} .{1,300} from )"
)
ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]{2,45}\]:[0-9]{1,5}|[0-9]{1,3}(?:\.[0-9]{1,3}){3}[:<][0-9]{1,5})")
#: Messages name their writer by its rank in the group; in the default group that is the global rank.
OWN_RANK = re.compile(r"\[PG (?:ID )?0 (?:PG GUID 0(?:\(default_pg\))? |\(default_pg\) )?Rank ([0-9]{1,7})\]")
#: One exception: its frames from the outermost on, its type and its message.
Raised = tuple[list[Frame], str, str]


def raised_row(chains: list[Raised]) -> dict[str, object]:
    """One row for a chain of exceptions."""
    frames, kind, text = chains[0]
    signature = classify(kind, text)
    if signature == "user":
        signature = classify(chains[-1][1], chains[-1][2])
    said = "\n".join([brief(text)] + [f"{k}: {brief(m)}" for _, k, m in chains[1:]])
    peer = ADDRESS.search(said)
    own = OWN_RANK.search(said)
    return {
        "kind": "python",
        "rank": int(own.group(1)) if own else None,
        "type": kind,
        "message": mask(said[:8000])[:2000],
        "signature": signature,
        "frame": user_frame(frames),
        "frames": joined(frames),
        "peer": peer.group(1) if peer else None,
    }


def brief(message: str) -> str:
    """A message without the native stack behind it."""
    kept: list[str] = []
    for line in message.split("\n"):
        if RAISED_FROM.match(line):
            break
        kept.append(line)
    return "\n".join(kept).rstrip()
