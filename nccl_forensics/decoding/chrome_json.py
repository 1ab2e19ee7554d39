"""Streams the events of a Chrome trace out of its JSON text in bounded memory: the one home of msgspec.

A trace is one JSON document of hundreds of megabytes. It is decoded in windows that end between two events, so that never more than one
window stands in memory as Python objects, and only the fields that are needed are built (``Event``, ``Args``).

That a window ends between two events needs no scanner of its own: the text from one such place to a *candidate* (``}, {"ph"`` and the
like) decodes as a list only if the candidate is such a place too.

What real exporters write and JSON forbids is repaired where the repair cannot change another event: bare ``NaN`` and ``N/A``
(pytorch/kineto#131), lone backslashes of Windows paths (pytorch#98432), control characters and broken UTF-8 (kineto#80), commas before a
closing bracket, quotes inside a name (pytorch#146900). What cannot be read is a ``Break`` with its byte offset, and reading goes on behind
it. A file that was cut yields every event before the cut.
"""

from __future__ import annotations

import json
import mmap
import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

#: Bytes that are decoded at a time.
WINDOW = 256 << 10
#: An event longer than this is given up: real ones hold a few KiB, with stacks a few hundred.
LONGEST_EVENT = 64 << 20
#: How far before a window's end a place between two events is looked for: first near it, where nearly always one is.
_NEAR, _LOOK_BACK = 4 << 10, 64 << 10
#: How much of a file a system maps around a page that is asked for, at most.
_AROUND = 128 << 10
#: What precedes or follows the list of events is metadata of at most a few MiB.
_LONGEST_HEADER = 256 << 20
_LONGEST_TAIL = 16 << 20
#: Ends of a window that are tried before it is taken for broken: lists of objects inside an event look alike.
_CANDIDATES = 16
#: Events that are decoded at a time in a broken window.
_PIECES = 256

Content = bytes | mmap.mmap
Number = int | float | str | None

_KEYS = rb'"(?:ph|name|cat|pid|tid|ts|dur|args|id|id2|bp|s|sf|tts|cname)"'
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{\s*" + _KEYS + rb"\s*:)")
_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_AT_BYTE = re.compile(r"\(byte (\d+)\)$")
_BARE = re.compile(rb"([:\[,]\s*)(?:-?(?:nan|NaN|NAN|inf|Inf|INF|Infinity)|N/A|undefined)(?=\s*[,\]}])")
_LONE_BACKSLASH = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_EXTRA_COMMA = re.compile(rb",(\s*[}\]])")
_CONTROL = bytes(32 if b < 32 and b not in (9, 10, 13) else b for b in range(256))
_NAME = re.compile(rb'("name"\s*:\s*")(.*?)("\s*(?:,\s*' + _KEYS + rb"\s*:|\}))", re.DOTALL)
_QUOTE_INSIDE = re.compile(rb'(?<!\\)"')


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that are read; everything else is passed over without being built."""

    correlation: Number = None
    stream: Number = None
    device: Number = None
    grid: msgspec.Raw = msgspec.Raw()
    bytes: Number = None
    collective: str | None = msgspec.field(name="Collective name", default=None)
    in_elements: Number = msgspec.field(name="In msg nelems", default=None)
    out_elements: Number = msgspec.field(name="Out msg nelems", default=None)
    group_size: Number = msgspec.field(name="Group size", default=None)
    dtype: str | None = None
    pg_name: Number = msgspec.field(name="Process Group Name", default=None)
    pg_desc: str | None = msgspec.field(name="Process Group Description", default=None)
    pg_ranks: msgspec.Raw = msgspec.field(name="Process Group Ranks", default=msgspec.Raw())
    sequence: Number = msgspec.field(name="Seq", default=None)
    source: Number = msgspec.field(name="Src Rank", default=None)
    destination: Number = msgspec.field(name="Dst Rank", default=None)
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    input_type: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())
    name: Number = None
    step: Number = None


class Event(msgspec.Struct, gc=False):
    """One event. ``ts`` and ``dur`` are microseconds, as a number or as text; ``pid`` and ``tid`` numbers or words."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Number = None
    tid: Number = None
    ts: Number = None
    dur: Number = None
    args: Args | None = None


def owned(args: Args) -> Args:
    """The same arguments without hold on the window that they were decoded from: fields kept as text are views into it."""
    args.grid, args.pg_ranks = args.grid.copy(), args.pg_ranks.copy()
    args.input_dims, args.input_type = args.input_dims.copy(), args.input_type.copy()
    return args


_EVENTS = msgspec.json.Decoder(list[Event])
_ANYTHING = msgspec.json.Decoder(list[object])
_OBJECT = msgspec.json.Decoder(dict[str, object])


@dataclass(frozen=True, slots=True)
class Break:
    """A place that could not be read: the byte offset, the number of the event that stood there, and why."""

    offset: int
    index: int
    reason: str


@dataclass(slots=True)
class Trace:
    """One document: iterate ``batches`` to its end, then read the rest.

    ``header`` holds the top-level keys beside the events, those before and those behind them. ``repaired`` counts windows with text that
    is no JSON and could be read all the same. ``complete`` is false where the list of events has no end.
    """

    data: Content
    header: dict[str, object] = field(default_factory=dict)
    breaks: list[Break] = field(default_factory=list)
    repaired: int = 0
    complete: bool = False
    _bare: bool = False
    _cut_off: bool = False
    _index: int = 0

    def batches(self) -> Iterator[tuple[int, list[Event]]]:
        """(number of the first event, events) of every window, in order."""
        position = self._open()
        if position is None:
            return
        while position is not None and position < len(self.data) and not self.complete:
            begin, chosen = position, None
            for end, following in self._cuts(begin):
                segment = bytes(self.data[begin:end])
                decoded = _decode(segment)
                chosen = chosen or (end, following, decoded, segment)
                if decoded.events is not None or not decoded.cut:
                    chosen = (end, following, decoded, segment)
                    break
            if chosen is None:
                return
            end, position, decoded, segment = chosen
            yield from self._window(segment, begin, decoded, last=position is None)
            self._forget(begin, end)
        if not self.complete and not self._bare and not self._cut_off:
            # A bare list may leave its end away: the Chrome format allows it.
            self.breaks.append(Break(len(self.data), self._index, "truncated: the list of events has no end"))

    def _open(self) -> int | None:
        """Offset of the first event."""
        found = _START.search(self.data)
        if found is not None:
            self.header.update(_keys(bytes(self.data[: min(found.start(), _LONGEST_HEADER)]).rstrip().rstrip(b",") + b"}"))
            return found.end()
        head = bytes(self.data[:4096])
        if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"[":
            return None
        self._bare = True
        return head.index(b"[") + 1

    def _cuts(self, begin: int) -> Iterator[tuple[int, int | None]]:
        """Candidates for the end of a window with the start of the next one, best first; the whole rest has no next one.

        A candidate may lie inside an event, and then so may all that are near: windows grow until one fits.
        """
        size, total, any_found = WINDOW, len(self.data), False
        while begin + size < total:
            stop = begin + size
            most, tried = _CANDIDATES // (2 if any_found else 1), 0
            for back in (_NEAR, _LOOK_BACK, size):
                found = [(m.start() + 1, m.end()) for m in _BETWEEN.finditer(self.data, max(begin, stop - back), stop)]
                for candidate in found[: len(found) - tried][::-1][: most - tried]:  # the last ones were tried before
                    tried += 1
                    yield candidate
                if tried and back >= _LOOK_BACK:
                    break
            any_found = any_found or tried > 0
            if size >= LONGEST_EVENT:
                if not any_found:
                    yield from self._passed_over(begin, stop)
                return
            size *= 4
        yield total, None

    def _passed_over(self, begin: int, stop: int) -> Iterator[tuple[int, int]]:
        """An empty window in place of an event without an end."""
        self.breaks.append(Break(begin, self._index, f"an event of more than {LONGEST_EVENT >> 20} MiB is left out"))
        self._index += 1
        behind = _BETWEEN.search(self.data, stop)
        if behind is None:
            self._cut_off = True
        else:
            yield begin, behind.end()

    def _forget(self, start: int, end: int) -> None:
        """Give the pages back that were read: those of a mapped file would else count as memory in use."""
        if isinstance(self.data, mmap.mmap) and hasattr(self.data, "madvise"):
            # What lies around a page that is read is mapped along with it, so pages before the window are back since it began.
            first = max(0, start - _AROUND) // mmap.PAGESIZE * mmap.PAGESIZE
            length = end // mmap.PAGESIZE * mmap.PAGESIZE - first
            if length > 0:
                self.data.madvise(mmap.MADV_DONTNEED, first, length)

    def _window(self, segment: bytes, begin: int, decoded: _Decoded, *, last: bool) -> Iterator[tuple[int, list[Event]]]:
        if decoded.events is not None:
            yield self._hand_out(decoded.events)
            if decoded.rest is not None:
                self._close(decoded.rest + self._behind(begin + len(segment)))
            return
        cleaned = _cleaned(segment)
        for text in (cleaned, _quoted(cleaned)):
            again = _decode(text)
            if again.events is not None:
                self.repaired += 1
                yield self._hand_out(again.events)
                if again.rest is not None:
                    self._close(again.rest + self._behind(begin + len(segment)))
                return
        yield from self._piecewise(segment, cleaned, begin, last=last)

    def _behind(self, end: int) -> bytes:
        """What follows a window in which the list of events ended."""
        return bytes(self.data[end : end + _LONGEST_TAIL])

    def _piecewise(self, segment: bytes, cleaned: bytes, begin: int, *, last: bool) -> Iterator[tuple[int, list[Event]]]:
        """A window with a broken event: what stands before and behind it, and the event itself as a break."""
        self.repaired += 1
        raw = [0, *(m.end() for m in _BETWEEN.finditer(segment))]
        between = list(_BETWEEN.finditer(cleaned))
        starts = [0, *(m.end() for m in between)]
        ends = [*(m.start() + 1 for m in between), len(cleaned)]
        at = 0
        while at < len(starts):
            upto = min(len(starts), at + _PIECES)
            decoded = _decode(cleaned[starts[at] : ends[upto - 1]])
            if decoded.events is not None:
                yield self._hand_out(decoded.events)
                at = upto
            else:
                where = starts[at] + decoded.at if decoded.at is not None else ends[upto - 1]
                bad = min(max(bisect_right(starts, where) - 1, at), upto - 1)
                before = _decode(cleaned[starts[at] : ends[bad - 1]]) if bad > at else None
                if before is not None and before.events is not None:
                    yield self._hand_out(before.events)
                elif before is not None:
                    bad = at
                decoded = _decode(_quoted(cleaned[starts[bad] : ends[bad]]))
                if decoded.events is not None:
                    yield self._hand_out(decoded.events)
                else:
                    cut = last and bad == len(starts) - 1
                    offset = begin + (raw[bad] if len(raw) == len(starts) else 0)
                    why = "truncated: the file ends inside an event" if cut else "an event that is no JSON is left out"
                    self.breaks.append(Break(offset, self._index, why))
                    self._cut_off = self._cut_off or cut
                    self._index += 1
                at = bad + 1
            if decoded.rest is not None:
                self._close(decoded.rest + cleaned[ends[min(at, len(ends)) - 1] :] + self._behind(begin + len(segment)))
                return

    def _hand_out(self, events: list[Event]) -> tuple[int, list[Event]]:
        first = self._index
        self._index += len(events)
        return first, events

    def _close(self, tail: bytes) -> None:
        """The list of events has ended; ``tail`` is what follows it."""
        self.complete = True
        tail = tail.lstrip()
        if not tail.startswith(b","):
            return
        following = _keys(b"{" + tail[1:])
        if "traceEvents" in following:
            self.breaks.append(Break(len(self.data) - len(tail), self._index, "a second list of events in the same file is left out"))
            following.pop("traceEvents")
        self.header.update(following)


def is_trace(head: bytes) -> bool:
    """Whether a file may be a Chrome trace, by its first 64 KiB: events may follow after long metadata."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] == b"{":
        return b'"traceEvents"' in head or (b'"schemaVersion"' in head and (b'"deviceProperties"' in head or b'"distributedInfo"' in head))
    if start[:1] == b"[":
        first = start[1:4096].lstrip()
        return first[:1] == b"{" and b'"ph"' in first and b'"ts"' in first
    return False


def plain(raw: msgspec.Raw | bytes) -> object:
    """The value of a field that was kept as text; None where it is absent or broken."""
    text = bytes(raw)
    if not text:
        return None
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value


@dataclass(frozen=True, slots=True)
class _Decoded:
    """What a piece of the list came to: its events (None where the text is broken) and, where the list ended in it, what follows.

    Of broken text ``at`` is the offset of the trouble where it is known; ``cut`` tells that the piece may only have been cut at a wrong
    place.
    """

    events: list[Event] | None
    rest: bytes | None = None
    at: int | None = None
    cut: bool = False


def _decode(segment: bytes) -> _Decoded:
    wrapped = b"".join((b"[", segment, b"]"))
    try:
        return _Decoded(_typed(wrapped))
    except msgspec.DecodeError as problem:
        found = _AT_BYTE.search(str(problem))
        at = int(found.group(1)) if found else None
        if at is not None and "trailing characters" in str(problem):
            # The offset points at the first character behind the list, or (msgspec 0.18 to 0.22) just past it.
            for stop in (at - 1, at):
                with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    return _Decoded(_typed(wrapped[:stop]), rest=wrapped[stop:-1])
            return _Decoded(None)
        return _Decoded(None, at=at - 1 if at else None, cut=at is None or at >= len(wrapped) - 1)
    except (UnicodeDecodeError, RecursionError):
        return _Decoded(None)


def _typed(text: bytes) -> list[Event]:
    """Events; fields of another type than expected are left out instead of costing the window."""
    try:
        return _EVENTS.decode(text)
    except msgspec.ValidationError:
        out = []
        for item in _ANYTHING.decode(text):
            try:
                out.append(msgspec.convert(item, Event))
            except (msgspec.ValidationError, TypeError):
                out.append(_loose(item))
        return out


def _loose(item: object) -> Event:
    """An event of which only fields of the right kind are kept."""
    if not isinstance(item, dict):
        return Event()
    event = Event()
    for name in ("ph", "cat", "name"):
        if isinstance(item.get(name), str):
            setattr(event, name, item[name])
    for name in ("pid", "tid", "ts", "dur"):
        value = item.get(name)
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            setattr(event, name, value)
    given = item.get("args")
    if isinstance(given, dict):
        kept = {k: v for k, v in given.items() if isinstance(v, str) or (isinstance(v, int | float) and not isinstance(v, bool))}
        try:
            event.args = msgspec.json.decode(msgspec.json.encode(kept), type=Args)
        except msgspec.MsgspecError:
            event.args = None
    return event


def _cleaned(segment: bytes) -> bytes:
    """The same text with what exporters write and JSON forbids put right; unchanged where there is nothing of the kind."""
    try:
        segment.decode("utf-8")
    except UnicodeDecodeError:
        segment = segment.decode("utf-8", "replace").encode()
    segment = segment.translate(_CONTROL)
    if b"\\" in segment:
        segment = _LONE_BACKSLASH.sub(lambda m: m.group() if len(m.group()) > 1 else b"\\\\", segment)
    segment = _BARE.sub(rb"\1null", segment)
    return _EXTRA_COMMA.sub(rb"\1", segment)


def _quoted(text: bytes) -> bytes:
    """The same text with the quotes inside names escaped."""
    return _NAME.sub(lambda m: m.group(1) + _QUOTE_INSIDE.sub(rb"\"", m.group(2)) + m.group(3), text)


def _keys(text: bytes) -> dict[str, object]:
    """Top-level keys of a part of the document, empty where it cannot be read."""
    body = text.strip()
    for attempt in (body, _cleaned(body)):
        try:
            return _OBJECT.decode(attempt)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    try:
        value = json.loads(body.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
