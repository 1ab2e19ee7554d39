"""Frames of stacks as one text, ``func (file:line)``, whoever sampled them, and the blocks of lines that stacks are printed in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import polars as pl

from nccl_forensics.grammar.blocks import ORIGIN, Line, classify
from nccl_forensics.values.units import is_number

#: Characters of a frame that are kept: names of C++ templates run to kilobytes.
LONGEST_FRAME = 600
#: Lines after a header that may belong to its block: with locals, a deep stack fills a few thousand.
REACH = 6000
#: Below these folders lie libraries; what follows is the path as py-spy shortens it.
_LIBRARY_FOLDERS = ("/site-packages/", "/dist-packages/")
_STDLIB = re.compile(r"/lib(?:64)?/python[0-9.]{1,6}t?/")


def short_path(path: str) -> str:
    """A path as py-spy prints it: relative to the folder that Python found it in; the bare name of a script or library of C."""
    for folder in _LIBRARY_FOLDERS:
        if folder in path:
            return path.rsplit(folder, 1)[1]
    found = _STDLIB.search(path)
    if found:
        return path[found.end() :]
    if "/torch/" in path and path.endswith(".py"):
        return path[path.index("/torch/") + 1 :]
    return path if path.startswith("<") else path.rsplit("/", 1)[-1]


def frame_text(name: str, path: str | None, line: str | int | None) -> str:
    """``func (file:line)``; without a line where none is known."""
    where = path or "??"
    if line is not None and is_number(str(line)) and int(line) > 0:
        where = f"{where}:{line}"
    return f"{name[: LONGEST_FRAME - len(where) - 3]} ({where})" if len(where) < LONGEST_FRAME - 40 else f"{name} ({where})"[:LONGEST_FRAME]


def split_frame(frame: str) -> tuple[str, str, int | None]:
    """(qualified name, file, line) of ``func (file:line)``; names may hold blanks and parentheses, so the last `` (`` cuts."""
    name, cut, where = frame.rpartition(" (")
    if not cut:
        return frame, "", None
    path, colon, line = where.rstrip(")").rpartition(":")
    return (name, path, int(line)) if colon and is_number(line) else (name, where.rstrip(")"), None)


def shortened(frame: str) -> str:
    """A frame of a traceback or a recorder with the path that samplers of stacks print: known calls are told by it."""
    name, path, line = split_frame(frame)
    return frame_text(name, short_path(path), line) if path.startswith("/") else frame


def line_of_code(frame: object) -> tuple[str, str, str]:
    """(bare function, line, bare file) of ``func (dir/file.py:12)``: what is the same whoever tells it. Recorders and tracebacks of older
    Pythons write ``dispatch`` where py-spy writes ``Router.dispatch``, and paths come whole or shortened."""
    function, _, place = str(frame).partition(" (")
    name, _, line = place.rstrip(")").rpartition("/")[2].rpartition(":")
    return function.rpartition(".")[2], line, name


def function_of(frame: str) -> str:
    """The bare function name: ``Tensor.backward`` gives ``backward``; names of C++ stay whole."""
    name, path, _ = split_frame(frame)
    return name if "::" in name or not (path.endswith((".py", ">")) or path == "") else name.rsplit(".", 1)[-1]


def windows(lines: pl.DataFrame, header: str, grammar: str, before: int = 0) -> Iterator[list[Line]]:
    """Classified lines around headers (a pattern), writer by writer: lines of several ranks may interleave in one source.

    Only lines near a header are looked at: at most ``REACH`` after it and ``before`` in front of it.
    """
    found = lines.get_column("hit") & lines.get_column("text").str.contains(header)
    starts = found.arg_true().to_list()
    if not starts:
        return
    keep: list[tuple[int, int]] = []
    for start in starts:
        first, last = max(0, start - before), min(lines.height, start + REACH)
        if keep and first <= keep[-1][1]:
            keep[-1] = (keep[-1][0], last)
        else:
            keep.append((first, last))
    near = pl.concat([lines.slice(a, b - a) for a, b in keep]) if len(keep) > 1 else lines.slice(keep[0][0], keep[0][1] - keep[0][0])
    who = ["hint_rank", "hint_scope", "hint_host", "hint_pid"]
    for part in near.partition_by(who, maintain_order=True):
        yield classify(part, grammar, strip=True)


def indent(line: Line) -> int:
    """Blanks in front of a line."""
    return len(line.text) - len(line.text.lstrip(" \t"))


def origin(line: Line) -> dict[str, object]:
    """What the launcher's prefix said about the writer of a line, all columns."""
    return {name: line.origin.get(name) for name in ORIGIN}


def without_address(frame: str) -> str:
    """A frame of which only the address is known, without it: the same place lies elsewhere in each process."""
    name, path, line = split_frame(frame)
    return frame_text("??", path, line) if name.startswith("0x") and path else frame


def outermost(frames: Sequence[str]) -> str:
    """The bare name of the outermost frame of Python, or an empty text."""
    for frame in reversed(frames):
        name = function_of(frame)
        if ".py" in frame or name.startswith("<"):
            return name
    return ""


def python_frames(frames: Sequence[str]) -> list[str]:
    """Frames of Python alone: samplers differ in whether they show native ones, and a mark such as ``Garbage-collecting`` counts as one of
    Python."""
    return [f for f in frames if (path := split_frame(f)[1]).endswith((".py", ">")) or not path]


def runs_python(frame: str) -> bool:
    """Whether a frame is one of a Python program, as samplers of Python show it or as the interpreter's own loop does in a native stack."""
    return split_frame(frame)[1].endswith((".py", ">")) or frame.startswith(("_PyEval_", "PyEval_EvalCode"))
