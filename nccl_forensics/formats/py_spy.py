"""Stacks taken with py-spy: ``dump`` as text (with --locals, --native, --subprocesses, several ranks in one file) and as JSON, and
``record`` as raw stacks and speedscope.

Layouts of py-spy 0.3 and 0.4. Most recent call first, except in ``record -f raw``. Headings above a block
(``=== rank 3 (pid 123) ===``) are kept: they may be all that says whose stack it is. Blocks pasted into notes are read as well; there,
several ``Thread`` lines of main threads above one list of frames are several processes in the same stack.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import orjson

from nccl_forensics.formats._documents import of_json
from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Text, TextFormat, line_numbers, line_of
from nccl_forensics.grammar.blocks import Line
from nccl_forensics.masking import mask
from nccl_forensics.stacks.frames import LONGEST_FRAME, frame_text, indent, origin, outermost, split_frame, windows
from nccl_forensics.stacks.places import is_user
from nccl_forensics.tables import TABLES
from nccl_forensics.values.documents import items, mapping
from nccl_forensics.values.units import is_number

_HEADER = r"^\s*(?:Process [0-9]{1,10}:|Thread (?:0x[0-9A-Fa-f]{1,16}|[0-9]{1,20})(?: \(|:|\s*$))"
_MAIN = "MainThread"
#: Lines above a block in which headings stand, and how many of them are looked at.
_ABOVE, _HEADINGS, _BLANKS = 16, 3, 2
#: A longer line is prose: the ranks and processes that it names need not be the one below.
_LONGEST_HEADING = 100
#: A command line may hold a script of several lines (``python -c``).
_LONGEST_COMMAND = 60
#: Lines from a process line to its threads where the version line is missing.
_NEAR = 3
_RULE = frozenset("-=`~*_#+ ")
_RANK = re.compile(r"(?:^|[^A-Za-z])(local[ _-]?)?rank[ _:=#-]{0,3}([0-9]{1,6})\b", re.IGNORECASE)
_PID = re.compile(r"(?:\bpid\b|\bprocess\b|\s-p)[ :=#]{0,3}([0-9]{2,10})\b", re.IGNORECASE)
_HOST = re.compile(r"\b(?:node|host|hostname|server|pod)\b[ :=#]{1,3}([A-Za-z][A-Za-z0-9._-]{0,62})", re.IGNORECASE)
_HOST_HEADING = re.compile(r"^\W{0,8}(node|host|hostname|server|pod)\b[ :=#]{0,3}([A-Za-z0-9][A-Za-z0-9._-]{0,62})\W{0,8}$", re.IGNORECASE)
#: An argument of torch.distributed's send or recv: ranks of the whole job (``group_src`` and ``group_dst`` count inside the group).
_PEER = re.compile(r"^\s*(?:src|dst): ([0-9]{1,6})\s*$")
#: A handle of torch.distributed's asynchronous calls among the locals of a frame.
_REQUEST = ": <torch._C._distributed_c10d.Work at 0x"
_COUNT = re.compile(r"^\W{0,8}([0-9]{1,6}) (?:process(?:es)?|ranks?)?(?: ?are| ?is)? ?in\b")


@dataclass(slots=True)
class _Thread:
    header: Line
    last: int
    frames: list[str] = field(default_factory=list)
    native: bool = False
    peer: int | None = None
    request: bool | None = None

    @property
    def name(self) -> str | None:
        quoted = self.header.fields.get("name")
        return quoted[1:-1] if quoted else None


@dataclass(slots=True)
class _Heading:
    """What the lines above a block say about whose it is."""

    text: str | None = None
    rank: int | None = None
    scope: str | None = None
    pid: int | None = None
    host: str | None = None
    count: int | None = None


def read(text: Text) -> Reading:
    """Every thread of every dump in these lines."""
    rows: list[dict[str, object]] = []
    used: set[int] = set()
    gaps: list[Gap] = []
    for lines in windows(text.lines, _HEADER, "py_spy", before=_ABOVE):
        rows += _blocks(lines, used, gaps)
    rows.sort(key=line_of)
    return Reading(frames={"stacks": TABLES["stacks"].frame(rows)}, lines=line_numbers(sorted(used)), gaps=tuple(gaps), records=len(rows))


def _blocks(lines: Sequence[Line], used: set[int], gaps: list[Gap]) -> Iterator[dict[str, object]]:
    samples: dict[int, int] = {}
    host: str | None = None
    at = 0
    while at < len(lines):
        start = at
        pid = parent = None
        command: str | None = None
        if lines[at].kind == "process" and (first := _first_thread(lines, at)) is not None:
            pid = int(str(lines[at].fields["pid"]))
            end_of_command = next((i for i in range(at + 1, first) if lines[i].kind in ("python", "parent")), at + 1)
            script = [line.text for line in lines[at + 1 : end_of_command]]
            command = mask("\n".join([lines[at].fields.get("command") or "", *script]).strip())[:400]
            parent = next((int(str(line.fields["pid"])) for line in lines[at + 1 : first] if line.kind == "parent"), None)
            used.update(line.number for line in lines[at:first])
            at = first
        elif lines[at].kind != "thread" or not _leads_to_frames(lines, at):
            named = _HOST_HEADING.match(lines[at].text.strip()) if lines[at].kind is None else None
            if named:
                word, host = named.group(1).lower(), named.group(2)
                host = f"{word} {host}" if host.isdigit() else host
            at += 1
            # Thread lines that lead to no frames are passed as one: asking from each of them would take quadratic time.
            while lines[at - 1].kind == "thread" and at < len(lines) and lines[at].kind == "thread":
                at += 1
            continue
        heading = _heading(lines, start)
        at, threads = _threads(lines, at, pid is not None, used, gaps)
        if pid is not None and not threads:
            continue
        for group in _processes(threads) if pid is None else [threads]:
            yield from _rows(group, heading, pid, parent, command, host, samples, len(threads))


def _first_thread(lines: Sequence[Line], at: int) -> int | None:
    """Where the threads of a process begin: after its version line, which comes after the command line; None if this is no dump."""
    told = False
    for i in range(at + 1, min(len(lines), at + _LONGEST_COMMAND)):
        kind = lines[i].kind
        told = told or kind == "python"
        if kind == "thread":
            # Without the version line only frames tell a dump from some log's lines.
            return i if told or (i - at <= _NEAR and _leads_to_frames(lines, i)) else None
        if kind == "process" or (told and kind not in ("python", "parent") and lines[i].text.strip()):
            return None
    return None


def _leads_to_frames(lines: Sequence[Line], at: int) -> bool:
    """Thread lines, at last with a frame below: a thread line alone is some log's."""
    while at < len(lines) and lines[at].kind == "thread":
        at += 1
    return at < len(lines) and lines[at].kind == "frame" and indent(lines[at]) > indent(lines[at - 1])


def _threads(lines: Sequence[Line], at: int, headed: bool, used: set[int], gaps: list[Gap]) -> tuple[int, list[_Thread]]:
    """(where they end, threads): frames are indented under their thread, locals further than frames."""
    threads: list[_Thread] = []
    margin = 0
    while at < len(lines):
        line = lines[at]
        depth = indent(line)
        if line.kind == "thread" and (not threads or depth <= indent(threads[-1].header)):
            threads.append(_Thread(line, line.number))
            margin = 0
        elif not line.text.strip():
            after = next((i for i in range(at, min(len(lines), at + 3)) if lines[i].text.strip()), None)
            if after is None or lines[after].kind != "thread" or not threads or not (headed or threads[-1].name == lines[after].text):
                break
        elif not threads or depth <= indent(threads[-1].header):
            break
        elif margin and depth > margin:
            # Locals and arguments of the frame above.
            thread = threads[-1]
            if thread.peer is None and (named := _PEER.match(line.text)) and _is_pairwise(thread.frames):
                thread.peer = int(named.group(1))
            elif _REQUEST in line.text and len(thread.frames) == 1 and is_user(thread.frames[0]):
                thread.request = True
        elif line.kind == "frame" and " (" in line.text:
            margin = margin or depth
            thread = threads[-1]
            name, path, number = split_frame(str(line.fields["frame"]))
            thread.frames.append(frame_text(name, path, number))
            thread.native = thread.native or number is None
        else:
            gaps.append(Gap("frame cut off or not understood", line.number, text=line.text))
            at += 1
            continue
        threads[-1].last = line.number
        used.add(line.number)
        at += 1
    return at, threads


def _is_pairwise(frames: Sequence[str]) -> bool:
    """Whether the frame read last is torch's own send or receive, with no other one of Python's inside."""
    pythons = [f for f in frames if split_frame(f)[1].endswith(".py")]
    return (
        len(pythons) == 1 and pythons[0].startswith(("send (torch/distributed/", "recv (torch/distributed/")) and frames[-1] == pythons[0]
    )


def _processes(threads: Sequence[_Thread]) -> Iterator[list[_Thread]]:
    """Threads without a process line: every main thread begins a process. Main threads without frames share those of the next."""
    waiting: list[_Thread] = []
    current: list[_Thread] = []
    for thread in threads:
        if thread.name != _MAIN:
            current.append(thread)
            continue
        if current:
            yield current
            current = []
        if not thread.frames:
            waiting.append(thread)
            continue
        for other in waiting:
            yield [_Thread(other.header, thread.last, thread.frames, thread.native, thread.peer, thread.request)]
        waiting = []
        current = [thread]
    if current:
        yield current
    for other in waiting:
        yield [other]


def _rows(
    group: Sequence[_Thread],
    heading: _Heading,
    pid: int | None,
    parent: int | None,
    command: str | None,
    host: str | None,
    samples: dict[int, int],
    listed: int,
) -> Iterator[dict[str, object]]:
    ids = [t.header.fields.get("id") or "" for t in group]
    if pid is None:
        # The main thread's id is the process id on Linux.
        pid = next((int(i) for t, i in zip(group, ids, strict=True) if t.name == _MAIN and is_number(i)), heading.pid)
    mains = [t.name == _MAIN or (pid is not None and i == str(pid)) for t, i in zip(group, ids, strict=True)]
    if not any(mains):
        roots = [outermost(t.frames) == "<module>" for t in group]
        mains = roots if any(roots) else [n == 0 for n in range(len(group))]
    sample = samples.get(pid, 0) if pid is not None else 0
    if pid is not None:
        samples[pid] = sample + 1
    for thread, number, main in zip(group, ids, mains, strict=True):
        hexadecimal = number.startswith("0x")
        state = thread.header.fields.get("state")
        hints = origin(thread.header)
        if heading.rank is not None and hints["hint_rank"] is None:
            hints["hint_rank"], hints["hint_scope"] = heading.rank, heading.scope
        hints["hint_host"] = hints["hint_host"] or heading.host or host
        yield {
            **hints,
            "line_no": thread.header.number,
            "end_line": thread.last,
            "sampler": "py-spy",
            "pid": pid,
            "parent_pid": parent,
            "command": command or None,
            "thread_id": None if hexadecimal else number,
            "pthread_id": str(int(number, 16)) if hexadecimal else None,
            "thread_name": thread.name,
            "is_main": main,
            "state": state,
            "owns_gil": True if state and "gil" in state else None,
            "sample": sample,
            "native": thread.native,
            "depth": len(thread.frames),
            "frames": thread.frames,
            "peer": thread.peer,
            "request": thread.request,
            "heading": heading.text,
            "stands_for": heading.count if heading.count and listed == 1 else None,
        }


def _heading(lines: Sequence[Line], at: int) -> _Heading:
    """What stands above a block, within two blank lines: the nearest line is its heading, the nearest that names a rank tells it."""
    found = _Heading()
    blanks = seen = 0
    for i in range(at - 1, max(-1, at - _ABOVE), -1):
        line = lines[i].text.strip()
        if set(line) <= _RULE or line.startswith("```"):
            blanks += not line
            if blanks > _BLANKS:
                break
            continue
        if lines[i].kind is not None:
            break
        seen += 1
        found.text = found.text or mask(line)[:200]
        if len(line) <= _LONGEST_HEADING:
            ranks = {(int(number), "local" if local else "global") for local, number in _RANK.findall(line)}
            if found.rank is None and len(ranks) == 1:
                found.rank, found.scope = ranks.pop()
            if found.pid is None and (pid := _PID.search(line)):
                found.pid = int(pid.group(1))
            if found.host is None and (host := _HOST.search(line)):
                found.host = host.group(1)
        if seen == 1 and (count := _COUNT.match(line)):
            found.count = int(count.group(1))
        if seen == _HEADINGS:
            break
    return found


# --- JSON ------------------------------------------------------------------------------------------------------------------------


def _sniff_dump(head: bytes) -> bool:
    return head.lstrip()[:1] == b"[" and b'"frames"' in head and (b'"thread_id"' in head or b'"os_thread_id"' in head)


def read_dump(data: bytes) -> Reading:
    """``py-spy dump --json``: a list of threads; several dumps may follow each other in one file."""
    documents, problem = _documents(data)
    rows: list[dict[str, object]] = []
    gaps = [Gap(f"truncated or broken JSON: {problem}"[:200], record=f"[{len(documents)}]")] if problem else []
    samples: dict[object, int] = {}
    for place, document in enumerate(documents):
        prefix = f"[{place}]" if len(documents) > 1 else ""
        seen: set[object] = set()
        for index, thread in enumerate(document if isinstance(document, list) else [document]):
            record = f"{prefix}[{index}]"
            if not isinstance(thread, dict) or not isinstance(thread.get("frames"), list):
                gaps.append(Gap("not a thread of py-spy", record=record))
                continue
            row = _json_row(thread, record)
            row["sample"] = samples.get(row["pid"], 0)
            seen.add(row["pid"])
            rows.append(row)
        for pid in seen:
            samples[pid] = samples.get(pid, 0) + 1
    return Reading(frames={"stacks": TABLES["stacks"].frame(rows)}, gaps=tuple(gaps), records=len(rows))


def _documents(data: bytes) -> tuple[list[object], str | None]:
    try:
        return [orjson.loads(data)], None
    except orjson.JSONDecodeError as error:
        problem = str(error)
    text = data.decode("utf-8", "replace")
    decoder, at = json.JSONDecoder(), 0
    found: list[object] = []
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        try:
            document, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return found, problem
        found.append(document)
    return found, None if found else problem


def _json_row(thread: dict[str, object], record: str) -> dict[str, object]:
    frames = [_json_frame(f) for f in items(thread.get("frames")) if isinstance(f, dict)]
    pid, os_id, pthread = _integer(thread.get("pid")), _integer(thread.get("os_thread_id")), _integer(thread.get("thread_id"))
    name, info = thread.get("thread_name"), thread.get("process_info")
    info = mapping(info)
    above = info.get("parent")
    command = info.get("command_line")
    return {
        "record": record,
        "sampler": "py-spy-json",
        "pid": pid,
        "parent_pid": _integer(above.get("pid")) if isinstance(above, dict) else None,
        "command": mask(command)[:400] if isinstance(command, str) else None,
        "thread_id": str(os_id) if os_id is not None else None,
        "pthread_id": str(pthread) if pthread is not None else None,
        "thread_name": name if isinstance(name, str) else None,
        "is_main": name == _MAIN or (os_id is not None and os_id == pid),
        "state": "active" if thread.get("active") else "idle",
        "owns_gil": bool(thread.get("owns_gil")),
        "native": any(not isinstance(f, dict) or not f.get("line") for f in items(thread.get("frames"))),
        "depth": len(frames),
        "frames": frames,
    }


def _json_frame(frame: dict[str, object]) -> str:
    path = frame.get("short_filename") or frame.get("filename") or frame.get("file") or frame.get("module")
    return frame_text(str(frame.get("name")), str(path) if path else None, _integer(frame.get("line")))


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# --- py-spy record ---------------------------------------------------------------------------------------------------------------


def read_raw(text: Text) -> Reading:
    """``py-spy record -f raw``: root first, one row for each distinct stack. Idle threads are left out unless --idle was given."""
    rows: list[dict[str, object]] = []
    used: set[int] = set()
    for lines in windows(text.lines, r"\);\S.* \(.*\) [0-9]{1,12}\s*$", "py_spy_raw"):
        for line in lines:
            if line.kind != "stack":
                continue
            parts = [part.strip() for part in str(line.fields["stack"]).split(";")]
            process = next((m for p in parts if (m := _RAW_PROCESS.match(p))), None)
            thread = next((m for p in parts if (m := _RAW_THREAD.match(p))), None)
            frames = [p[:LONGEST_FRAME] for p in reversed(parts) if not _RAW_PROCESS.match(p) and not _RAW_THREAD.match(p)]
            used.add(line.number)
            rows.append(
                {
                    **origin(line),
                    "line_no": line.number,
                    "sampler": "py-spy-raw",
                    "pid": int(process.group(1)) if process else None,
                    "thread_id": thread.group(1) if thread else None,
                    "is_main": outermost(frames) == "<module>",
                    "state": "active",
                    "native": any(split_frame(f)[2] is None for f in frames),
                    "depth": len(frames),
                    "frames": frames,
                    "times": int(str(line.fields["count"])),
                }
            )
    return Reading(frames={"stacks": TABLES["stacks"].frame(rows)}, lines=line_numbers(sorted(used)), records=len(rows))


_RAW_PROCESS = re.compile(r"^process ([0-9]{1,10})(?::|$)")
_RAW_THREAD = re.compile(r"^thread \(?([0-9]{1,20}|0x[0-9A-Fa-f]{1,16})\)?")
_PROFILE_PID = re.compile(r"\bProcess ([0-9]{1,10})\b")
_PROFILE_THREAD = re.compile(r"\bThread ([0-9]{1,20})\b(?: \"?([^\"]{1,100})\"?)?")


def _sniff_profile(head: bytes) -> bool:
    return b"speedscope.app/file-format-schema" in head and b"py-spy" in head


@of_json("truncated or broken JSON", record="")
def read_profile(document: object) -> Reading:
    """``py-spy record -f speedscope``: distinct stacks of each profile, with how many samples showed them."""
    whole = mapping(document)
    known = [_json_frame(f) for f in items(mapping(whole.get("shared")).get("frames")) if isinstance(f, dict)]
    rows: list[dict[str, object]] = []
    gaps: list[Gap] = []
    for index, profile in enumerate(items(whole.get("profiles"))):
        counted: dict[tuple[int, ...], int] = {}
        for sample in items(mapping(profile).get("samples")):
            key = tuple(i for i in items(sample) if isinstance(i, int) and 0 <= i < len(known))
            counted[key] = counted.get(key, 0) + 1
        title = str(mapping(profile).get("name") or "")
        process, thread = _PROFILE_PID.search(title), _PROFILE_THREAD.search(title)
        for key, times in counted.items():
            frames = [known[i] for i in reversed(key)]
            rows.append(
                {
                    "record": f"profiles[{index}]",
                    "sampler": "py-spy-raw",
                    "pid": int(process.group(1)) if process else None,
                    "thread_id": thread.group(1) if thread else None,
                    "thread_name": thread.group(2) if thread else None,
                    "is_main": outermost(frames) == "<module>",
                    "state": "active",
                    "depth": len(frames),
                    "frames": frames,
                    "times": times,
                }
            )
    if not rows:
        gaps.append(Gap("the profile holds no samples: py-spy record leaves out idle threads", record="profiles"))
    return Reading(frames={"stacks": TABLES["stacks"].frame(rows)}, gaps=tuple(gaps), records=max(1, len(rows)))


FORMATS = (
    TextFormat("py-spy", "py-spy dump, text", ("stacks",), ("Process ", "Thread ", _MAIN), read, 10),
    TextFormat("py-spy-raw", "py-spy record -f raw", ("stacks",), (");",), read_raw, 15),
    DocumentFormat("py-spy-json", "py-spy dump --json", ("stacks",), _sniff_dump, read_dump, 20),
    DocumentFormat("py-spy-speedscope", "py-spy record -f speedscope", ("stacks",), _sniff_profile, read_profile, 20),
)
