"""Stacks taken with py-spy: ``dump`` as text (also with --locals, --native, --subprocesses, several ranks in one file) and as JSON.

Layouts of py-spy 0.3 and 0.4. Most recent call first. Headings above a block (``=== rank 3 (pid 123) ===``) are kept: they may be all
that says whose stack it is. Blocks pasted into notes are read as well.
"""

from __future__ import annotations

import re

import orjson
import polars as pl

from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Text, TextFormat
from nccl_forensics.masking import mask
from nccl_forensics.tables import TABLES

_PROCESS = re.compile(r"^\s*(?:Parent )?Process ([0-9]{1,10}): ?(.*)$")
_THREAD = re.compile(r'^\s*Thread (0x[0-9A-Fa-f]{1,16}|[0-9]{1,20}) ?(?:\(([a-z+]{1,30})\))?(?:: "(.{0,200})")?\s*$')
_FRAME = re.compile(r"^ {2,12}(\S.*) \(([^()]*(?:\([^()]*\))?[^()]*)\)\s*$")
_VERSION = re.compile(r"^\s*Python v[0-9]")
_RANK = re.compile(r"\brank[ _:=#-]{0,3}([0-9]{1,6})\b", re.IGNORECASE)
_HINTS = ("hint_rank", "hint_scope", "hint_host", "hint_pid", "time_raw_ns", "time_kind")
_BLANKS = 2


def _read(text: Text) -> Reading:
    rows: list[dict[str, object]] = []
    used: list[int] = []
    frame = text.lines
    hits = frame["hit"].to_list()
    if not any(hits):
        return Reading()
    numbers, content, hints = frame["line_no"].to_list(), frame["text"].to_list(), frame.select(*_HINTS).rows()
    samples: dict[int, int] = {}
    at = 0
    while at < len(numbers):
        start = _THREAD.match(content[at]) if hits[at] and not _PROCESS.match(content[at]) else None
        process = _PROCESS.match(content[at]) if hits[at] else None
        if process and not _looks_like_block(content, at + 1):
            process = None
        if process is None and not (start and _has_frame(content, at + 1)):
            at += 1
            continue
        pid = int(process.group(1)) if process else None
        command = mask(process.group(2))[:400] if process else None
        heading = _heading(content, at)
        if process:
            sample = samples.get(pid or 0, 0)
            samples[pid or 0] = sample + 1
            used.append(numbers[at])
            at += 1
            while at < len(numbers) and (_VERSION.match(content[at]) or not content[at].strip()):
                used.append(numbers[at])
                at += 1
        else:
            sample = 0
        at, threads = _threads(content, numbers, at, used)
        hinted = dict(zip(_HINTS, hints[max(0, at - 1)], strict=True))
        stated = _RANK.search(heading or "")
        if stated and hinted["hint_rank"] is None:
            hinted["hint_rank"], hinted["hint_scope"] = int(stated.group(1)), "global"
        if pid is None and heading and (named := re.search(r"\b(?:pid|process)[ :=#]{0,3}([0-9]{2,10})\b", heading, re.IGNORECASE)):
            pid = int(named.group(1))
        for index, thread in enumerate(threads):
            main = thread["thread_name"] == "MainThread" or (thread["thread_name"] is None and index == 0)
            rows.append(
                {
                    **hinted,
                    **thread,
                    "sampler": "py-spy",
                    "pid": pid,
                    "command": command,
                    "sample": sample,
                    "heading": heading,
                    "is_main": main,
                }
            )
    stacks = TABLES["stacks"].frame(rows)
    return Reading(frames={"stacks": stacks}, lines=pl.Series("line_no", sorted(set(used)), dtype=pl.UInt32()), records=len(rows))


def _looks_like_block(content: list[str], at: int) -> bool:
    """After a process header comes a version line, a blank or a thread."""
    near = content[at : at + 4]
    return any(_VERSION.match(line) or _THREAD.match(line) for line in near)


def _has_frame(content: list[str], at: int) -> bool:
    return at < len(content) and bool(_FRAME.match(content[at]))


def _heading(content: list[str], at: int) -> str | None:
    """The nearest line above that is no frame, if it stands within two blank lines and says something."""
    blanks = 0
    for i in range(at - 1, max(-1, at - 5), -1):
        line = content[i].strip()
        if not line or set(line) <= set("-=`"):
            blanks += 1
            if blanks > _BLANKS:
                return None
            continue
        return None if _FRAME.match(content[i]) else line[:200]
    return None


def _threads(content: list[str], numbers: list[int], at: int, used: list[int]) -> tuple[int, list[dict[str, object]]]:
    threads: list[dict[str, object]] = []
    current: list[str] | None = None
    while at < len(numbers):
        line = content[at]
        thread = _THREAD.match(line)
        if thread:
            number = thread.group(1)
            hexadecimal = number.startswith("0x")
            current = []
            threads.append(
                {
                    "line_no": numbers[at],
                    "end_line": numbers[at],
                    "thread_id": None if hexadecimal else number,
                    "pthread_id": str(int(number, 16)) if hexadecimal else None,
                    "state": thread.group(2),
                    "thread_name": thread.group(3),
                    "owns_gil": True if thread.group(2) and "gil" in thread.group(2) else None,
                    "frames": current,
                    "depth": 0,
                    "native": False,
                }
            )
        elif current is not None and line.startswith("        "):
            pass  # locals and arguments of the frame above
        elif current is not None and (frame := _FRAME.match(line)):
            current.append(f"{frame.group(1).strip()} ({frame.group(2)})"[:600])
            threads[-1]["depth"] = len(current)
            threads[-1]["native"] = bool(threads[-1]["native"]) or ".so" in frame.group(2) or ":" not in frame.group(2)
        else:
            break
        threads[-1]["end_line"] = numbers[at]
        used.append(numbers[at])
        at += 1
    return at, threads


def _sniff(head: bytes) -> bool:
    return head.lstrip()[:1] == b"[" and b'"frames"' in head and (b'"thread_id"' in head or b'"os_thread_id"' in head)


def _read_json(data: bytes) -> Reading:
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as problem:
        return Reading(gaps=(Gap(f"truncated or broken JSON: {problem}"[:200], record=""),))
    rows: list[dict[str, object]] = []
    gaps: list[Gap] = []
    for index, thread in enumerate(document if isinstance(document, list) else []):
        if not isinstance(thread, dict) or not isinstance(thread.get("frames"), list):
            gaps.append(Gap("not a thread", record=f"[{index}]"))
            continue
        frames = [
            f"{f.get('name')} ({f.get('short_filename') or f.get('filename')}" + (f":{f['line']})" if f.get("line") else ")")
            for f in thread["frames"]
            if isinstance(f, dict)
        ]
        name = thread.get("thread_name")
        os_id, pthread = thread.get("os_thread_id"), thread.get("thread_id")
        rows.append(
            {
                "record": f"[{index}]",
                "sampler": "py-spy-json",
                "pid": thread.get("pid") if isinstance(thread.get("pid"), int) else None,
                "thread_id": str(os_id) if isinstance(os_id, int) else None,
                "pthread_id": str(pthread) if isinstance(pthread, int) else None,
                "thread_name": name if isinstance(name, str) else None,
                "is_main": name == "MainThread" or (os_id is not None and os_id == thread.get("pid")),
                "state": "active" if thread.get("active") else "idle",
                "owns_gil": bool(thread.get("owns_gil")),
                "sample": 0,
                "depth": len(frames),
                "frames": [f[:600] for f in frames],
            }
        )
    return Reading(frames={"stacks": TABLES["stacks"].frame(rows)}, gaps=tuple(gaps), records=len(rows))


FORMATS = (
    TextFormat("py-spy", "py-spy dump, text", ("stacks",), ("Process ", "Thread ", "MainThread"), _read, 10),
    DocumentFormat("py-spy-json", "py-spy dump --json", ("stacks",), _sniff, _read_json, 20),
)
