"""Python tracebacks, C++ terminate messages and fatal signals in text, with what they say about other ranks.

Lines of several ranks may interleave; the launcher's prefix (peeled before) keeps them apart. Of chained exceptions the first is the
root and the last is what ended the process: the root gives the row, unless it only says that another rank went away.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import polars as pl

from nccl_forensics.facts.signatures import classify
from nccl_forensics.formats.base import Reading, Text, TextFormat
from nccl_forensics.masking import mask
from nccl_forensics.tables import TABLES

_HINTS = ("hint_rank", "hint_scope", "hint_host", "hint_pid", "time_raw_ns", "time_kind")
_START = "Traceback (most recent call last):"
_CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_FRAME = re.compile(r'^\s*File "([^"]{1,1024})", line ([0-9]{1,9})(?:, in (.{1,256}))?$')
_EXCEPTION = re.compile(r"^([A-Za-z_][A-Za-z0-9_.]{0,200})(?:: ?(.*))?$")
_WHAT = re.compile(r"^\s*what\(\): {0,4}(.*)$")
_THROWN = re.compile(r"terminate called after throwing an instance of '([^']{1,200})'")
_FATAL = re.compile(
    r"^(?:Fatal Python error: |\*\*\* )(Segmentation fault|Aborted|Bus error|Floating point exception|Illegal instruction|[A-Z][A-Za-z ]{3,60})"
)
_CAUGHT = re.compile(
    r"[Cc]aught signal ([0-9]{1,2})\b|Signal: (?:Segmentation fault|Aborted|Bus error) \(([0-9]{1,2})\)|^(Segmentation fault|Bus error|Aborted|Killed)(?: +\(core dumped\))?"
)
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]{2,45}\]:[0-9]{1,5}|[0-9]{1,3}(?:\.[0-9]{1,3}){3}:[0-9]{1,5})")
_BLOCK_LINES = 4000
_NOT_USER = ("/torch/", "site-packages/", "dist-packages/", "<frozen", "/lib/python3", "torch/distributed/")


def _read(text: Text) -> Reading:
    rows: list[dict[str, object]] = []
    reports: list[dict[str, object]] = []
    used: set[int] = set()
    starts = text.hits
    if not starts.height:
        return Reading()
    lines = text.lines
    numbers = lines["line_no"].to_list()
    first_start = int(starts["line_no"][0])
    position = {n: i for i, n in enumerate(numbers) if n >= first_start}
    column = lines["text"]
    hints = lines.select(*_HINTS).rows()
    for number, content in starts.select("line_no", "text").iter_rows():
        if number in used:
            continue
        at = position[number]
        hint = hints[at]
        stripped = content.strip()
        if stripped.endswith(_START) or stripped == _START:
            block = list(_block(column, hints, numbers, at, hint[0], used))
            found = _traceback(block)
            if found is None:
                continue
            row, members, said = found
            for line_no in members:
                used.add(line_no)
            hinted = dict(zip(_HINTS, hint, strict=True))
            if row["signature"] != "launcher":
                rows.append({"line_no": number, "end_line": members[-1], **hinted, **row})
            reports += [{"line_no": members[-1], **hinted, **r} for r in said]
        else:
            crash = _crash(column, hints, numbers, at, hint[0])
            if crash is not None:
                row, members = crash
                used.update(members)
                rows.append({"line_no": number, "end_line": members[-1], **dict(zip(_HINTS, hint, strict=True)), **row})
    frames = {"exceptions": TABLES["exceptions"].frame(rows), "reports": TABLES["reports"].frame(reports)}
    return Reading(frames=frames, lines=pl.Series("line_no", sorted(used), dtype=pl.UInt32()), records=len(rows))


def _block(
    column: pl.Series, hints: list[tuple[object, ...]], numbers: list[int], at: int, rank: object, used: set[int]
) -> Iterator[tuple[int, str]]:
    """Lines from a start on, of the same rank, without those of other ranks that interleave."""
    for i in range(at, min(len(numbers), at + _BLOCK_LINES)):
        if hints[i][0] != rank:
            if rank is None:
                return
            continue
        if numbers[i] not in used:
            yield numbers[i], str(column[i])


def _traceback(block: list[tuple[int, str]]) -> tuple[dict[str, object], list[int], list[dict[str, object]]] | None:
    """(row, its lines, reports that its message makes) of a block that begins with a traceback header."""
    indent = len(block[0][1]) - len(block[0][1].lstrip())
    members = [block[0][0]]
    chains: list[tuple[list[tuple[str, str, str]], str, str]] = []
    frames: list[tuple[str, str, str]] = []
    message: list[str] | None = None
    kind = ""
    index = 1
    while index < len(block):
        number, raw = block[index]
        line = raw[indent:] if raw[:indent].strip() == "" else raw
        frame = _FRAME.match(line)
        if message is None:
            if frame and line.startswith("  "):
                frames.append((frame.group(3) or "<module>", frame.group(1), frame.group(2)))
            elif not line.startswith(" ") and line and not line.startswith("Traceback"):
                match = _EXCEPTION.match(line)
                if match is None:
                    break
                kind, message = match.group(1), [match.group(2) or ""]
            elif not line.startswith("  ") and line.strip():
                break
        elif line.strip() in _CHAIN or line.startswith("Traceback (most"):
            if line.startswith("Traceback (most"):
                chains.append((frames, kind, "\n".join(message)))
                frames, message, kind = [], None, ""
        elif not _NEW.match(line):
            message.append(line)
        else:
            break
        members.append(number)
        index += 1
    if message is not None:
        chains.append((frames, kind, "\n".join(message)))
    if not chains:
        return None
    while len(members) > 1 and not dict(block).get(members[-1], "x").strip():
        members.pop()
    root = chains[0]
    whole = "\n".join(f"{k}: {m}" for _, k, m in chains)
    frames, kind, text = root
    signature = classify(chains[-1][1], chains[-1][2])
    first = classify(kind, text)
    if first != "user" or signature == "user":
        signature = first
    innermost = [f"{name} ({path}:{line})" for name, path, line in reversed(frames)]
    user = next((f"{n} ({p.rsplit('/', 1)[-1]}:{line})" for n, p, line in reversed(frames) if not any(x in p for x in _NOT_USER)), None)
    peer = _ADDRESS.search(whole)
    row: dict[str, object] = {
        "kind": "python",
        "type": kind,
        "message": mask(whole.split(": ", 1)[1] if ": " in whole else text)[:2000],
        "signature": signature,
        "frame": user,
        "frames": "\n".join(innermost) or None,
        "peer": peer.group(1) if peer else None,
    }
    return row, members, list(_said(whole))


_NEW = re.compile(
    r"^(?:\[[IWEF] ?[0-9]{0,4}[ :]|[IWEF][0-9]{4} |={10,}|-{10,}|Root Cause|Failures:|\[[0-9]+\]:|  time +: |[\w.-]+:[0-9]+:[0-9]+ |terminate called|Fatal Python|srun: |slurmstepd: |\[W|USDT:|INFO:|[0-9]{4}-[0-9]{2}-[0-9]{2}[ T])"
)


_MISMATCH = re.compile(
    r"Rank ([0-9]+) is running (?:inconsistent )?collective: (CollectiveFingerPrint\(.{1,4000}?\)), but Rank ([0-9]+) is running collective: (CollectiveFingerPrint\(.{1,4000})",
    re.S,
)
_FAILED = re.compile(r"Ranks? ([0-9][0-9, ]*) failed to pass monitoredBarrier in ([0-9]+) ms")
_GRAD_NAMES = re.compile(r"Parameters which did not receive grad for rank ([0-9]+): (.{1,4000})")
_GRAD_INDEX = re.compile(r"Parameter indices which did not receive grad for rank ([0-9]+): ([0-9 ]{1,4000})")
_FIELD = re.compile(r"(SequenceNumber|OpType|TensorShape|TensorDtypes)=(\[[^\]]{0,4096}\]|[A-Za-z0-9_]{1,64})")


def _said(message: str) -> Iterator[dict[str, object]]:
    """What an exception's message says about ranks: mismatching collectives, barriers, parameters without gradient."""
    for rank, own, other, theirs in _MISMATCH.findall(message):
        mine, yours = _fields(own), _fields(theirs)
        seq = mine.get("SequenceNumber")
        yield {
            "kind": "detail-mismatch",
            "rank": int(rank),
            "ranks": [int(other)],
            "seq": int(seq) if seq and seq.isdigit() else None,
            "op": mine.get("OpType"),
            "other_op": yours.get("OpType"),
            "detail": f"{mine.get('TensorShape', '')} {mine.get('TensorDtypes', '')}".strip() or None,
            "other_detail": f"{yours.get('TensorShape', '')} {yours.get('TensorDtypes', '')}".strip() or None,
        }
    for ranks, timeout in _FAILED.findall(message):
        yield {"kind": "barrier-missing", "ranks": [int(r) for r in ranks.replace(" ", "").split(",") if r], "timeout_ms": int(timeout)}
    named: set[str] = set()
    for rank, names in _GRAD_NAMES.findall(message):
        named.add(rank)
        yield {"kind": "ddp-unused", "rank": int(rank), "ranks": [int(rank)], "detail": names.strip()[:1000]}
    for rank, indices in _GRAD_INDEX.findall(message):
        if rank not in named:
            yield {"kind": "ddp-unused", "rank": int(rank), "ranks": [int(rank)], "detail": f"indices {indices.strip()[:1000]}"}


def _fields(text: str) -> dict[str, str]:
    return dict(_FIELD.findall(text.split("TensorDeviceTypes=", 1)[0]))


def _crash(
    column: pl.Series, hints: list[tuple[object, ...]], numbers: list[int], at: int, rank: object
) -> tuple[dict[str, object], list[int]] | None:
    """A C++ terminate block, a fatal Python error or a caught signal that begins at this line."""
    line = str(column[at]).strip()
    thrown = _THROWN.search(line)
    if thrown:
        members, message = [numbers[at]], ""
        for i in range(at + 1, min(at + 4, len(numbers))):
            what = _WHAT.match(str(column[i]))
            if hints[i][0] == rank and what:
                message = what.group(1)
                members.append(numbers[i])
                break
        return {
            "kind": "cpp-terminate",
            "type": thrown.group(1),
            "message": mask(message)[:2000],
            "signature": classify(thrown.group(1), message),
        }, members
    fatal = _FATAL.match(line)
    caught = _CAUGHT.search(line)
    if fatal:
        return {"kind": "fatal-signal", "type": fatal.group(1), "message": line[:400], "signature": "signal"}, [numbers[at]]
    if caught:
        number = next((g for g in caught.groups() if g), "")
        return {
            "kind": "fatal-signal",
            "type": f"signal {number}" if number.isdigit() else number,
            "message": line[:400],
            "signature": "signal",
        }, [numbers[at]]
    return None


FORMAT = TextFormat(
    name="traceback",
    title="Python tracebacks, C++ terminate messages, fatal signals",
    tables=("exceptions", "reports"),
    anchors=(
        "Traceback (most recent call last):",
        "terminate called after throwing",
        "Fatal Python error:",
        "*** SIG",
        "aught signal ",
        "Signal: Segmentation fault",
        "Segmentation fault (core dumped)",
        "Bus error (core dumped)",
    ),
    read=_read,
    priority=40,
)
