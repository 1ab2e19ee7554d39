"""Python tracebacks, C++ terminate messages and fatal signals in text, with what they say about other ranks.

Lines of several ranks may interleave; the launcher's prefix (peeled before) keeps them apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile

from nccl_forensics.facts.signatures import UNTHROWN, classify
from nccl_forensics.formats._nccl_rows import errors_of
from nccl_forensics.formats._raised import ADDRESS, CHAIN, OWN_RANK, RAISED_FROM, brief, raised_row
from nccl_forensics.formats.base import Gap, Reading, Text, TextFormat, line_numbers, line_of
from nccl_forensics.grammar.lines import load
from nccl_forensics.grammar.writers import WriterLines, near_hits
from nccl_forensics.masking import mask
from nccl_forensics.raised_reports import said_of
from nccl_forensics.stacks.callstack import Frame, frame_of
from nccl_forensics.tables import TABLES

_START = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"^([A-Za-z_][A-Za-z0-9_.]{0,200})(?:: ?(.*))?$")
_WHAT = re.compile(r"^\s*what\(\): {0,4}(.*)$")
_THROWN = re.compile(r"terminate called after throwing an instance of '([^']{1,200})'")
_NO_EXCEPTION = "terminate called without an active exception"
_FATAL = re.compile(
    r"^(?:\[[\w.-]{1,64}:[0-9]{1,10}\] )?\*\*\* (?:Process received signal|SIG|Aborted at|Segmentation fault|Bus error|Floating point exception)|^Fatal Python error: "
)
_CAUGHT = re.compile(
    r"(?<!\(EE\) )[Cc]aught signal ([0-9]{1,2})\b|Signal: (Segmentation fault|Aborted|Bus error|Floating point exception|Illegal instruction) \([0-9]{1,2}\)"
    r"|\*\*\* (SIG[A-Z]{3,5})|Fatal Python error: (.{1,60})$|^(Segmentation fault|Bus error|Aborted)(?: +\(core dumped\))?"
)
#: A frame as UCX (`` 2  /x/libuct.so.0(uct_rkey_release+0xe) [0x2a]``) and Open MPI (``[n1:12] [ 2] /x/lib.so(f+0x1)[0x7f]``) print it.
_NATIVE = re.compile(
    r"^(?:\[[\w.-]{1,64}:[0-9]{1,10}\] \[ ?[0-9]{1,3}\]|\s{0,8}[0-9]{1,3}) +(/[^ ()]{1,400})(?:\(([^()]{0,400})\))? ?\[0x[0-9a-f]+\]\s*$"
)
_NATIVE_AROUND = re.compile(
    r"^=+ ?backtrace|^={5,}$|^\[[\w.-]{1,64}:[0-9]{1,10}\] (?:Signal|Failing at address|\*\*\* End of error message)|^\*\*\* End of error message"
)
_SIGNALS = {
    "4": "SIGILL",
    "6": "SIGABRT",
    "7": "SIGBUS",
    "8": "SIGFPE",
    "11": "SIGSEGV",
    "15": "SIGTERM",
    "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS",
    "Aborted": "SIGABRT",
    "Floating point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}
#: What torchrun's own traceback ends with when it is told to stop.
_LAUNCHER_END = "SignalException: Process "
#: The last words of a process whose GPU the ROCm runtime gave up (ROCR-Runtime, core/runtime/runtime.cpp): no exception and no traceback
#: follow.
_HSA = re.compile(r"^(?:HW Exception by GPU node-[0-9]{1,4} |Memory access fault by GPU node-[0-9]{1,4} )\(Agent handle: ")
#: Lines after a start that may belong to its block, and lines of a message that no frame or heading ends.
_REACH, _MESSAGE = 4000, 60
#: Lines before a start: the heading above it, or the innermost frame of a traceback that lost its own.
_ABOVE = 3
#: An abort this close behind a terminate block of the same writer is its end, not another fault.
_SAME_END = 400
#: What a line looks like that begins something else.
_NEW = re.compile(
    r"^(?:\[[IWEF] ?[0-9]{0,4}[ :]|[IWEF][0-9]{4} |={10,}|-{10,}|Root Cause|Failures:|\[[0-9]+\]:|  time +: |[\w.-]+:[0-9]+:[0-9]+ |terminate called|Fatal Python|\*\*\* |srun: |slurmstepd[:-]|USDT:|(?:INFO|WARNING|ERROR|DEBUG)[ :]|[0-9]{4}-[0-9]{2}-[0-9]{2}[ T]|Segmentation fault|Aborted|Killed|Traceback \()"
)
_LAST_ERROR = "Last error:"
#: The last line of a traceback whose frames were cut away (an issue's text, a log filter), of which the text alone says what happened.
_BARE = re.compile(r"^((?:[A-Za-z_][A-Za-z0-9_.]{0,200})?(?:Error|Exception|ERROR)): (\S.*)$")
#: Sentences that say all that there is to say, in whichever words of a program (or of nccl-tests, or of XLA's log) they stand.
_PLAIN = re.compile(
    r"CUDA_ERROR_ECC_UNCORRECTABLE|CUDA_ERROR_NVLINK_UNCORRECTABLE|uncorrectable (?:ECC|NVLink) error (?:encountered|detected)"
    r"|Task was killed due to the node running low on memory|NCCL operation nccl[A-Z]\w{2,40}\(.{0,200}?\) failed: "
    r"|Aborting communicator: \w{1,40} due to async NCCL error: "
)
#: What XLA puts behind NCCL's result: the last warning of the library (ncclGetLastError), without which nothing of it stands in a JAX log.
_XLA_LAST = re.compile(r"Last NCCL warning\(error\) log entry \(may be unrelated\) '(.{1,2000}?)'(?:[.;]|$)")
#: The same of torch where the lines of a message were run together.
_IN_LINE = re.compile(r"\bnccl[A-Z][A-Za-z]{4,30}: .{1,400}? Last error: {1,400}(\S.{1,1000}?)(?: {2,}Exception raised from .*)?$")
#: What torch's getNcclErrorDetailStr writes in the line before ``Last error:``.
_RESULT = re.compile(r"^nccl(?:(?:System|Internal|Remote|UnhandledCuda)Error|InvalidUsage|InvalidArgument): ")
#: How a message goes on after a blank line.
_GOES_ON = (
    "Exception raised from",
    "frame #",
    "C++ CapturedTraceback",
    _LAST_ERROR,
    "Original exception",
    "[",
    "Compile with",
    "Parameter",
)


@dataclass(slots=True)
class _Found:
    """What the lines gave so far; its rows are of one source after the other."""

    rows: list[dict[str, object]] = field(default_factory=list)
    reports: list[dict[str, object]] = field(default_factory=list)
    nccl: list[dict[str, object]] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    used: set[int] = field(default_factory=set)


def _read(text: Text) -> Reading:
    found = _Found()
    for own in text.by_source():
        for lines in near_hits(own, _REACH, before=_ABOVE):
            _Scan(lines, found).read()
    found.rows.sort(key=line_of)
    found.reports.sort(key=line_of)
    frames = {"exceptions": TABLES["exceptions"].frame(found.rows), "reports": TABLES["reports"].frame(found.reports)}
    if found.nccl:
        warned = TABLES["nccl_errors"].frame(sorted(found.nccl, key=line_of))
        frames["nccl_errors"] = errors_of(warned, load("nccl_errors").extract(warned.get_column("message")))
    return Reading(
        frames=frames,
        lines=line_numbers(sorted(found.used)),
        gaps=tuple(found.gaps),
        records=len(found.rows),
    )


class _Scan:
    """One writer's lines, read from start to start. What a line begins is told by the first of ``_KINDS`` that knows it."""

    def __init__(self, lines: WriterLines, found: _Found) -> None:
        self.lines, self.found = lines, found
        self.barriers, self.works = _barriers(lines), _works_at(lines)
        self.aborted = -_SAME_END - 1  # line where a terminate block of this writer ended
        self.torn = 0  # last line of a torn traceback: what starts inside it is not looked at again

    def read(self) -> None:
        for at in self.lines.starts:
            number = self.lines.numbers[at]
            if number not in self.found.used and number > self.torn:
                text = self.lines.texts[at].strip()
                any(kind(self, at, text) for kind in _KINDS)

    def row(self, at: int, row: Mapping[str, object], last: int | None = None) -> None:
        """One exception that begins at ``at`` and ends in line ``last``, its own if none is given."""
        number = self.lines.numbers[at]
        self.found.rows.append({"line_no": number, "end_line": number if last is None else last, **self.lines.hints, **row})

    def says(self, at: int, said: Iterable[Mapping[str, object]], last: int | None = None) -> None:
        """What a text says about other ranks."""
        number = self.lines.numbers[at]
        end = number if last is None else last
        self.found.reports += [{"line_no": number, "end_line": end, **self.lines.hints, **r} for r in said]

    def traceback(self, at: int, text: str) -> bool:
        if not text.endswith(_START):
            return False
        found, lines, number = self.found, self.lines, self.lines.numbers[at]
        block = _traceback(lines, at)
        last = block.members[-1]
        found.used.update(block.members)
        if block.row is None:
            found.gaps.append(Gap("truncated or torn traceback", number, last, text=lines.texts[at][:200]))
            found.used.difference_update(block.members)
            self.torn = last
            return True
        if block.row["signature"] != "launcher":
            kind = _fate(lines, at, goes_on=self.works > last)
            if kind == "unraisable" and _WORKER_ABORTED.match(str(block.row["message"])):
                self.of_workers(number)
            self.row(at, {**_spawned(lines, at, found), **block.row, "kind": kind, "marked": lines.marked[at] or None}, last)
            found.nccl += _last_errors(lines, at, set(block.members))
        self.says(at, block.said, last)
        return True

    def of_workers(self, below: int) -> None:
        """What C++ printed right above it ended the workers that their parent tells of, and nobody else."""
        for row in reversed(self.found.rows):
            if row["kind"] != "cpp-terminate" or below - int(str(row["end_line"])) > _HEADING:
                break
            row["kind"], below = "survived", int(str(row["line_no"]))

    def terminate(self, at: int, text: str) -> bool:
        thrown = _THROWN.search(text)
        if not thrown and _NO_EXCEPTION not in text:
            return False
        row, members, said = _terminate(self.lines, at, thrown.group(1) if thrown else None)
        self.aborted = members[-1]
        self.found.used.update(members)
        self.row(at, row, members[-1])
        self.says(at, said, members[-1])
        self.found.nccl += _last_errors(self.lines, at, set(members))
        return True

    def fatal_signal(self, at: int, text: str) -> bool:
        if not _FATAL.match(text) and not _CAUGHT.search(text):
            return False
        found, lines, number = self.found, self.lines, self.lines.numbers[at]
        told = _CAUGHT.search(text) or next(filter(None, map(_CAUGHT.search, lines.texts[at + 1 : at + 3])), None)
        word = next((g for g in told.groups() if g), "") if told else ""
        signal = _SIGNALS.get(word, word)
        found.used.add(number)
        repeats = bool(found.rows) and found.rows[-1]["kind"] == "fatal-signal" and number - int(str(found.rows[-1]["line_no"])) < 12
        if (signal in ("SIGABRT", "") and number - self.aborted <= _SAME_END) or repeats:
            return True
        frames, members = _native(lines, at)
        found.used.update(members)
        row = {"kind": "fatal-signal", "type": signal or text[:60], "message": text[:400], "signature": "signal", "frames": frames}
        self.row(at, row, max([number, *members]))
        return True

    def rocm(self, at: int, text: str) -> bool:
        if not _HSA.match(text):
            return False
        self.found.used.add(self.lines.numbers[at])
        self.row(at, {"kind": "fatal-signal", "type": "HSA", "message": text[:400], "signature": classify("HSA", text)})
        return True

    def bare(self, at: int, _: str) -> bool:
        block = _bare(self.lines, at)
        if not block:
            return False
        self.found.used.update(block.members)
        self.row(at, block.row or {}, block.members[-1])
        self.says(at, block.said, block.members[-1])
        self.found.nccl += _last_errors(self.lines, at, set(block.members))
        return True

    def barrier(self, at: int, text: str) -> bool:
        if at not in self.barriers:
            return False
        self.found.used.add(self.lines.numbers[at])
        if self.barriers[at]:
            self.row(at, {"kind": "said", "message": text[:2000], "signature": classify("", text)})
        return True

    def quoted_error(self, at: int, text: str) -> bool:
        last = _XLA_LAST.search(text) or _IN_LINE.search(text)
        if not last:
            return False
        number = self.lines.numbers[at]
        self.found.nccl.append({"line_no": number, **self.lines.hints, "level": "WARN", "message": mask(last.group(1))})
        self.found.used.add(number)
        return True

    def sentence(self, at: int, text: str) -> bool:
        if not _PLAIN.search(text):
            return False
        self.found.used.add(self.lines.numbers[at])
        self.row(at, {"kind": "said", "message": mask(text[:4000])[:2000], "signature": classify("", text)})
        return True

    def report(self, at: int, text: str) -> bool:
        """The sentence alone, in a program's own words around it or torn off its exception."""
        said = list(said_of(text))
        if said:
            self.says(at, said)
            self.found.used.add(self.lines.numbers[at])
        return bool(said)

    def result(self, at: int, text: str) -> bool:
        if not _RESULT.match(text):
            return False
        # The lines above may be torn: several processes raise the same at once.
        near = set(self.lines.numbers[at : at + 4])
        last_ones = list(_last_errors(self.lines, at, near))
        self.found.nccl += last_ones
        self.found.used.update(n for n in near if last_ones and n <= int(str(last_ones[0]["line_no"])))
        if not last_ones:
            self.found.used.add(self.lines.numbers[at])
            kind, _, message = text.partition(": ")
            self.row(at, {"kind": "python", "type": kind, "message": message[:2000], "signature": classify(kind, text)})
        return True

    def rest_of_native(self, at: int, text: str) -> bool:
        known = bool(RAISED_FROM.match(text)) or _LAUNCHER_END in text
        if known:
            self.found.used.add(self.lines.numbers[at])
        return known


_KINDS = (
    _Scan.traceback,
    _Scan.terminate,
    _Scan.fatal_signal,
    _Scan.rocm,
    _Scan.bare,
    _Scan.barrier,
    _Scan.quoted_error,
    _Scan.sentence,
    _Scan.report,
    _Scan.result,
    _Scan.rest_of_native,
)


#: torch/distributed/distributed_c10d.py, _store_based_barrier: printed every ten seconds until all have come (1.8 to 2.0 to everybody,
#: later for debugging).
_AT_BARRIER = re.compile(
    r"Waiting in store based barrier to initialize process group for (?:[0-9.]{1,20} seconds)?rank: ([0-9]{1,7}), key: \S{1,200} \("
)


#: What it prints then, since 1.9.
_THROUGH = re.compile(r"Rank ([0-9]{1,7}): Completed store-based barrier for ")
#: Whoever goes on with so many lines is through, in a release that does not say so too.
_WENT_ON = 50


def _barriers(lines: WriterLines) -> dict[int, bool]:
    """Lines in which ranks say that they wait for others at the store, or came through; and whether it is the last that the rank says of
    it, and it has not come through or gone on since."""
    told: dict[int, bool] = {}
    last: dict[str, int] = {}
    for at in lines.starts:
        if waits := _AT_BARRIER.search(lines.texts[at]):
            last[waits.group(1)] = at
            told[at] = False
        elif through := _THROUGH.search(lines.texts[at]):
            last.pop(through.group(1), None)
            told[at] = False
    if last and len(lines.texts) - max(last.values()) <= _WENT_ON:
        told |= dict.fromkeys(last.values(), True)
    return told


#: What Python prints above a traceback that it could raise nowhere (``sys.unraisablehook``), and above that of a thread other than the main
#: one or of a task that nobody
#: waits for (asyncio).
_UNRAISABLE, _THREAD = "Exception ignored ", ("Exception in thread ", "future: <Task finished ")
#: What a process prints on its way out, its launcher behind it, or another job of the same shell; also the rest of what C++ prints as it
#: ends a process: frames, and what PyTorch says behind each error of CUDA (c10/cuda/CUDAException.cpp).
_PARTING = re.compile(
    r"^\s|^$|^[\[<{(=*+#-]|^frame #[0-9]|^(?:For debugging consider passing|Compile with `TORCH_)|^[IWEF][0-9]{4} |NCCL|ProcessGroup|destroy_process_group|resource_tracker|Traceback \(|Exception|wandb|srun|slurm|torchrun"
    r"|(?i:exit|finish|fail|error|abort|kill|done|terminat|signal|fatal|core dump|elapsed|shut|clos|clean|real|user|sys|leak|crash|stop|stack)"
)
#: What the parent of DataLoader's workers says of one that C++ ended, as it takes them down (torch/utils/data/_utils/signal_handling.py);
#: the heading of it and the line above.
_WORKER_ABORTED, _HEADING = re.compile(r"DataLoader worker \(pid [0-9]{1,10}\) is killed by signal: Aborted"), 2
#: A logger's clock before its line, and what a process prints as NCCL begins its work in it.
_CLOCK = re.compile(r"^\[[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9:.,]{8,16}\] +")
_BEGINS = re.compile(r" NCCL INFO (?:Bootstrap ?: Using |cudaDriverVersion )")
#: So many other lines of the same writer, and it went on with its work.
_LINES_OF_WORK = 2


def _works_at(lines: WriterLines) -> int:
    """The number of the line from which on a writer printed just ``_LINES_OF_WORK`` lines of work: what ended before it, it outlived; 0 if it
    printed fewer."""
    work = (n for n, text in zip(reversed(lines.numbers), reversed(lines.texts), strict=True) if _is_work(text))
    return next(islice(work, _LINES_OF_WORK - 1, None), 0)


def _is_work(text: str) -> bool:
    return not _PARTING.search(_CLOCK.sub("", text)) or bool(_BEGINS.search(text))


def _fate(lines: WriterLines, at: int, *, goes_on: bool) -> str:
    """Whether a traceback may have ended its process: not one that Python could raise nowhere, nor that of a thread, nor one after which
    the writer goes on with its work, as it does after one that it caught and printed. torch itself marks those that end a rank
    (``[rank3]:``)."""
    above = lines.texts[at - 1].strip() if at else ""
    if above.startswith(_UNRAISABLE):
        return "unraisable"
    if above.startswith(_THREAD):
        return "thread"
    return "survived" if goes_on and not lines.marked[at] else "python"


#: Above what ``torch.multiprocessing.spawn`` passes on of a process that it started: their number is told as a local rank.
_SPAWNED = re.compile(r"^-- Process ([0-9]{1,6}) terminated with the following error:$")


def _spawned(lines: WriterLines, at: int, found: _Found) -> dict[str, object]:
    """Whose traceback it is that the parent prints, if nothing else on the line says so."""
    told = _SPAWNED.match(lines.texts[at - 1].strip()) if at else None
    if told is None:
        return {}
    found.used.add(lines.numbers[at - 1])
    return {"hint_rank": int(told.group(1)), "hint_scope": "local"} if lines.hints["hint_rank"] is None else {}


def _bare(lines: WriterLines, at: int) -> _Block | None:
    """An exception's message without a traceback above it, where a library's own text says what it is, or the rest of a traceback whose
    heading was cut off says that ``torch.distributed`` raised it."""
    head = _BARE.match(lines.texts[at].strip())
    if head is None:
        return None
    message, members = [head.group(2)], [lines.numbers[at]]
    for index in range(at + 1, min(at + _REACH, len(lines.texts))):
        if _ends(lines, index, lines.texts[index], len(message)) or lines.texts[index].startswith("  File "):
            break
        message.append(lines.texts[index])
        members.append(lines.numbers[index])
    above = list(takewhile(lambda text: text.startswith("  "), reversed(lines.texts[:at])))
    frames = [frame for frame in map(frame_of, reversed(above)) if frame]
    members = [*lines.numbers[at - len(above) : at], *members] if frames else members
    chain = [(frames, head.group(1), "\n".join(message))]
    row = raised_row(chain)
    if row["signature"] == "launcher" or (row["signature"] == "user" and not (frames and "torch/distributed/" in frames[-1][1])):
        return None
    return _Block(row, members, list(said_of(f"{head.group(1)}: {chain[0][2]}")))


def _native(lines: WriterLines, at: int) -> tuple[str | None, list[int]]:
    """The native stack that UCX or Open MPI print below a signal: frames innermost first, and the numbers of its lines."""
    frames: list[str] = []
    members: list[int] = []
    for i in range(at + 1, min(at + 200, len(lines.texts))):
        line = lines.texts[i]
        if match := _NATIVE.match(line):
            library = match.group(1).rsplit("/", 1)[-1]
            frames.append(f"{match.group(2).split('+', 1)[0] or '??'} ({library})")
        elif not _NATIVE_AROUND.match(line):
            break
        members.append(lines.numbers[i])
    return "\n".join(frames) or None, members


def _last_errors(lines: WriterLines, at: int, members: set[int]) -> Iterator[dict[str, object]]:
    """NCCL's last warning, which torch puts under ``Last error:`` (ncclGetLastError, NCCL 2.13 and later): where NCCL_DEBUG was not set, it
    stands nowhere else."""
    last = max(members)
    for index in range(at, len(lines.texts)):
        number = lines.numbers[index]
        if number > last:
            return
        if number in members and (told := _XLA_LAST.search(lines.texts[index])):
            yield {"line_no": number, **lines.hints, "level": "WARN", "message": mask(told.group(1))}
        if number == last:
            return
        after = lines.numbers[index + 1]
        said = lines.texts[index + 1].strip()
        heads = number in members and after in members and lines.texts[index].strip() == _LAST_ERROR
        if heads and said and not RAISED_FROM.match(said):
            yield {"line_no": after, **lines.hints, "level": "WARN", "message": mask(said[:2000])}


@dataclass(frozen=True, slots=True)
class _Block:
    row: dict[str, object] | None
    members: list[int]
    said: list[dict[str, object]]


def _traceback(lines: WriterLines, at: int) -> _Block:
    """A traceback with all that are chained to it, from its heading on."""
    heading = lines.texts[at]
    indent = len(heading) - len(heading.lstrip())
    members = [lines.numbers[at]]
    chains: list[tuple[list[Frame], str, str]] = []
    frames: list[Frame] = []
    message: list[str] | None = None
    kind = ""
    end = min(len(lines.texts), at + _REACH)
    index = at + 1
    while index < end:
        raw = lines.texts[index]
        line = raw[indent:] if not raw[:indent].strip() else raw
        if message is None:
            frame = frame_of(line) if line.startswith("  ") else None
            if frame:
                frames.append(frame)
            elif line and not line.startswith(" "):
                match = None if line.startswith("Traceback (") else _EXCEPTION.match(line)
                if match is None:
                    break
                kind, message = match.group(1), [match.group(2) or ""]
            elif not line.startswith("  ") and line.strip():
                break
        elif line.strip() in CHAIN:
            after = next((i for i in range(index + 1, min(index + 4, end)) if lines.texts[i].strip()), None)
            if after is None or not lines.texts[after].strip().startswith(_START):
                break
            members += lines.numbers[index:after]
            chains.append((frames, kind, "\n".join(message)))
            frames, message, kind, index = [], None, "", after
        elif _ends(lines, index, line, len(message)):
            break
        else:
            message.append(line)
        members.append(lines.numbers[index])
        index += 1
    if message is not None:
        chains.append((frames, kind, "\n".join(message)))
    position = {n: i for i, n in enumerate(lines.numbers[at:index], at)}
    while len(members) > 1 and not lines.texts[position[members[-1]]].strip():
        members.pop()
    if not chains:
        return _Block(None, members, [])
    return _Block(raised_row(chains), members, list(said_of("\n".join(f"{k}: {m}" for _, k, m in chains))))


def _ends(lines: WriterLines, index: int, line: str, taken: int) -> bool:
    """Whether a message ends before this line."""
    if _NEW.match(line):
        return True
    if not line.strip():
        following = next((t.strip() for t in lines.texts[index + 1 : index + 4] if t.strip()), "")
        return not (following.startswith(_GOES_ON) or following in CHAIN)
    return taken >= _MESSAGE and not RAISED_FROM.match(line)


def _terminate(lines: WriterLines, at: int, thrown: str | None) -> tuple[dict[str, object], list[int], list[dict[str, object]]]:
    """A C++ terminate block: its message may have several lines, and lines of other writers may stand before it."""
    members, message = [lines.numbers[at]], list[str]()
    index = at + 1
    while index < min(at + 60, len(lines.texts)) and not _WHAT.match(lines.texts[index]):
        if "terminate called" in lines.texts[index]:
            break
        index += 1
    if index < len(lines.texts) and (what := _WHAT.match(lines.texts[index])):
        message.append(what.group(1))
        members.append(lines.numbers[index])
        for following in range(index + 1, min(index + 300, len(lines.texts))):
            line = lines.texts[following]
            if _ends(lines, following, line, len(message)):
                break
            message.append(line)
            members.append(lines.numbers[following])
    said = "\n".join(message).rstrip()
    short = brief(said)
    peer = ADDRESS.search(short)
    own = OWN_RANK.search(short)
    return (
        {
            "kind": "cpp-terminate",
            "rank": int(own.group(1)) if own else None,
            "type": thrown or UNTHROWN,
            "message": mask(short[:8000])[:2000],
            "signature": classify(thrown or "", short),
            "peer": peer.group(1) if peer else None,
        },
        members,
        list(said_of(short)),
    )


FORMAT = TextFormat(
    name="traceback",
    title="Python tracebacks, C++ terminate messages, fatal signals",
    tables=("exceptions", "reports", "nccl_errors"),
    anchors=(
        "Traceback (most recent call last):",
        "Error: NCCL error in: ",
        "Error: CUDA out of memory",
        "Error: CUDA error: ",
        "Error: cuda runtime error (",
        "Error: HIP error: ",
        "Error: NCCL error: ",
        "Error: NCCL Error ",
        "Error: NCCL communicator was aborted",
        "Error: : NCCL communicator was aborted",
        "Error: DataLoader worker (pid",
        "insufficient shared memory (shm)",
        "Error: The client socket has ",
        "Error: Timed out after ",
        "Error: Timed out initializing process group",
        "Waiting in store based barrier",
        "Completed store-based barrier for ",
        "Error: The server socket has ",
        "Error: Expected to have finished reduction in the prior iteration",
        "Error: Gloo connectFullMesh failed",
        "Error: The connection to the C10d store has failed",
        "/third_party/gloo/gloo/transport/",
        "Error: [gloo/transport/",
        "Error: [enforce fail at ",
        "Error: wait timeout after ",
        " is setting up NCCL communicator and retr",
        "Detected mismatch between collectives on ranks",
        " failed to pass monitoredBarrier in ",
        "which did not receive grad for rank ",
        "Last NCCL warning(error) log entry",
        "Error: Socket Timeout",
        "Error: Connection reset by peer",
        "Error: Broken pipe",
        "Version mismatch: The cluster was started with",
        "Error: Triton Error [CUDA]: ",
        "Error: HIP out of memory",
        "Task was killed due to the node running low on memory",
        "_ERROR_ECC_UNCORRECTABLE",
        "_ERROR_NVLINK_UNCORRECTABLE",
        "uncorrectable ECC error ",
        "uncorrectable NVLink error ",
        "NCCL operation nccl",
        " due to async NCCL error: ",
        "ncclSystemError: ",
        "ncclInternalError: ",
        "ncclRemoteError: ",
        "ncclUnhandledCudaError: ",
        "ncclInvalidUsage: ",
        "ncclInvalidArgument: ",
        "terminate called ",
        "SignalException: Process ",
        "Exception raised from ",
        "frame #",
        "C++ CapturedTraceback:",
        "Fatal Python error:",
        "*** SIG",
        "*** Process received signal",
        "*** Aborted at",
        "aught signal ",
        "Signal: Segmentation fault",
        "Signal: Aborted",
        "Signal: Bus error",
        "Segmentation fault (core dumped)",
        "Bus error (core dumped)",
        "Aborted (core dumped)",
        "HW Exception by GPU node-",
        "Memory access fault by GPU node-",
    ),
    read=_read,
    priority=40,
    together=True,
)
