"""Frames of Python tracebacks in text, and which of them is the user's."""

from __future__ import annotations

import re

#: (function, path, line) as a traceback prints it.
Frame = tuple[str, str, str]

_FRAME = re.compile(r'^\s*File "([^"]{1,1024})", line ([0-9]{1,9})(?:, in (.{1,256}))?$')
#: Parts of a path that are not the user's code.
_NOT_USER = ("/torch/", "site-packages/", "dist-packages/", "<frozen", "/lib/python3", "torch/distributed/")


def frame_of(line: str) -> Frame | None:
    """The frame that a line of a traceback names."""
    match = _FRAME.match(line)
    return (match.group(3) or "<module>", match.group(1), match.group(2)) if match else None


def joined(frames: list[Frame]) -> str | None:
    """Frames in the order of a traceback (outermost first) as ``func (path:line)``, innermost first, one per line."""
    return "\n".join(f"{name} ({path}:{line})" for name, path, line in reversed(frames)) or None


def user_frame(frames: list[Frame]) -> str | None:
    """The innermost frame outside torch, other packages and Python itself, as ``func (file.py:line)``."""
    for name, path, line in reversed(frames):
        if not any(part in path for part in _NOT_USER):
            return f"{name} ({path.rsplit('/', 1)[-1]}:{line})"
    return None
