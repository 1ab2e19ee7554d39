"""Journals of systemd in their binary form, as the text that ``journalctl --file F --utc --all -o short-iso-precise`` makes of them.

The layout is that of https://systemd.io/JOURNAL_FILE_FORMAT (little-endian; objects aligned to 8 bytes follow the header). Entries are
found by going from object to object, which needs none of the indexes and reads what is whole of a file that was cut off or not closed.
Memory, text and unpacked bytes are bounded by the size of the file, whatever its pointers say.
"""

from __future__ import annotations

import lzma
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from nccl_forensics.decoding.archives import unpack_zstd

MAGIC = b"LPKSHHRH"
Content = bytes | mmap.mmap

_DATA, _ENTRY = 1, 3
_COMPACT = 1 << 4
#: Features that a reader has to know: compression by XZ, LZ4 and ZSTD, keyed hashes, compact objects.
_KNOWN = 0b11111
_OBJECT, _DATA_HEAD, _ENTRY_HEAD = 16, 64, 64
_FIELDS = {
    b"MESSAGE": "message",
    b"_HOSTNAME": "host",
    b"SYSLOG_IDENTIFIER": "tag",
    b"_COMM": "comm",
    b"SYSLOG_PID": "pid",
    b"_PID": "process",
    b"_SOURCE_REALTIME_TIMESTAMP": "source_time",
}
_LONGEST_NAME = max(map(len, _FIELDS)) + 1
#: A message is cut here; what is longer is a core dump or a file.
_LONGEST = 64 << 10
_CACHED = 1 << 16
_SPARE = 16 << 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Damaged(Exception):
    """Bytes that are no journal any more."""


def is_journal(head: bytes) -> bool:
    """Whether the first bytes are those of a journal."""
    return head.startswith(MAGIC)


def write_text(data: Content, write: Callable[[bytes], object]) -> str | None:
    """Hand over the journal's entries as lines of text; what could not be read, in words, or ``None``."""
    try:
        return _Reader(data, write).run()
    except (_Damaged, struct.error) as problem:
        return f"unreadable: {problem}"


@dataclass(slots=True)
class _Reader:
    """One pass over a journal. A class because what was seen of a data object serves all entries that point to it."""

    data: Content
    write: Callable[[bytes], object]
    compact: bool = False
    #: What a data object holds, by its offset: name of the field and its value, or None for a field that no line needs.
    seen: dict[int, tuple[str, bytes] | None] = field(default_factory=dict)
    room: int = 0
    unpacked: int = 0
    skipped: int = 0
    boot: bytes = b""

    def run(self) -> str | None:
        size = len(self.data)
        if size < 208:
            raise _Damaged("the journal ends within its header")
        (flags,) = struct.unpack_from("<I", self.data, 12)
        header, _, _, _, _, _, _, _, stated = struct.unpack_from("<9Q", self.data, 88)
        if flags & ~_KNOWN:
            return "unreadable: a journal of a newer systemd; export it: journalctl --file F -o short-iso-precise"
        self.compact = bool(flags & _COMPACT)
        self.room = self.unpacked = 4 * size + _SPARE
        at, read = header, 0
        while at + _OBJECT <= size:
            kind, length = self.data[at], struct.unpack_from("<Q", self.data, at + 8)[0]
            if length < _OBJECT or at + length > size:
                break
            if kind == _ENTRY and length >= _ENTRY_HEAD:
                self.entry(at, length)
                read += 1
                if self.room < 0:
                    return f"truncated: more text than a journal of its size holds; {read:,} of {stated:,} entries were read"
            at += (length + 7) & ~7
        if read < stated:
            return f"truncated: the journal states {stated:,} entries, {read:,} could be read"
        return f"unreadable: {self.skipped:,} fields of entries of the journal" if self.skipped else None

    def entry(self, at: int, length: int) -> None:
        """One entry as a line, or as several where its message has several."""
        realtime = struct.unpack_from("<Q", self.data, at + 24)[0]
        boot = bytes(self.data[at + 40 : at + 56])
        step, form = (4, "<I") if self.compact else (16, "<Q")
        told: dict[str, bytes] = {}
        for place in range(at + _ENTRY_HEAD, at + length - step + 1, step):
            (offset,) = struct.unpack_from(form, self.data, place)
            try:
                held = self.seen[offset] if offset in self.seen else self.remember(offset)
            except (_Damaged, struct.error):
                self.skipped += 1
                continue
            if held is not None:
                told[held[0]] = held[1]
        if self.boot and boot != self.boot:
            self.put(b"-- Boot " + boot.hex().encode() + b" --\n")
        self.boot = boot
        if "message" not in told:
            return
        stated = told.get("source_time", b"")
        micros = int(stated) if stated.isdigit() and len(stated) < 18 else realtime
        tag = told.get("tag") or told.get("comm") or b"unknown"
        pid = told.get("process") or told.get("pid")
        parts = [_stamp(micros), *([host] if (host := told.get("host")) else []), tag + (b"[" + pid + b"]" if pid else b"") + b": "]
        head = b" ".join(_one_line(p) for p in parts)
        first, *rest = told["message"].rstrip(b"\n").split(b"\n")
        self.put(head + _one_line(first) + b"\n" + b"".join(b" " * len(head) + _one_line(line) + b"\n" for line in rest))

    def put(self, text: bytes) -> None:
        self.room -= len(text)
        if self.room >= 0:
            self.write(text)

    def remember(self, offset: int) -> tuple[str, bytes] | None:
        """What the data object at an offset holds, as far as a line needs it. Raises ``_Damaged``."""
        held = self.value(offset)
        if held is None or held[0] != "message" or len(self.seen) < _CACHED:
            self.seen[offset] = held
        return held

    def value(self, offset: int) -> tuple[str, bytes] | None:
        if offset % 8 or offset + _DATA_HEAD > len(self.data) or self.data[offset] != _DATA:
            raise _Damaged("a pointer to nothing")
        flags, length = self.data[offset + 1], struct.unpack_from("<Q", self.data, offset + 8)[0]
        start = offset + _DATA_HEAD + (8 if self.compact else 0)
        end = offset + length
        if end > len(self.data) or start > end:
            raise _Damaged("a data object past the end")
        if flags & 7:
            payload = self.unpack(flags & 7, bytes(self.data[start : min(end, start + 4 * _LONGEST)]))
        elif (name := _name(bytes(self.data[start : min(end, start + _LONGEST_NAME)]))) is None:
            return None
        else:
            payload = bytes(self.data[start : min(end, start + len(name) + 1 + _LONGEST)])
        name = _name(payload)
        return (_FIELDS[name], payload[len(name) + 1 :]) if name is not None else None

    def unpack(self, method: int, packed: bytes) -> bytes:
        """The start of what a compressed object holds. Raises ``_Damaged``."""
        if self.unpacked <= 0:
            raise _Damaged("more compressed data than a journal of its size holds")
        try:
            if method == 1:
                # What follows the part that is needed may be missing: the stream is not asked for its end.
                out = lzma.LZMADecompressor(memlimit=64 << 20).decompress(packed, max_length=_LONGEST)
            elif method == 2:
                out = unpack_lz4(packed[8:], _LONGEST)  # after the size of what is packed
            elif method == 4:
                out = unpack_zstd(packed, _LONGEST)
            else:
                raise _Damaged("an object with two compressions")
        except (lzma.LZMAError, ValueError) as problem:
            raise _Damaged(str(problem)) from problem
        self.unpacked -= len(out)
        return out


def _name(payload: bytes) -> bytes | None:
    """The name of the field, if lines need it."""
    name, equals, _ = payload[:_LONGEST_NAME].partition(b"=")
    return name if equals and name in _FIELDS else None


def _stamp(micros: int) -> bytes:
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        moment = _EPOCH
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f%z").encode()


def _one_line(text: bytes) -> bytes:
    return text.replace(b"\r", b" ").replace(b"\n", b" ").replace(b"\0", b" ")


def unpack_lz4(packed: bytes, at_most: int) -> bytes:
    """The first ``at_most`` bytes of an LZ4 block; a block that is cut off gives what it holds. Raises ``ValueError``."""
    out = bytearray()
    at, end = 0, len(packed)
    while at < end and len(out) < at_most:
        token = packed[at]
        literals, at = _lz4_length(packed, at + 1, token >> 4)
        out += packed[at : at + literals]
        at += literals
        if at + 2 > end:
            break
        distance = packed[at] | packed[at + 1] << 8
        copied, at = _lz4_length(packed, at + 2, token & 15)
        if not 0 < distance <= len(out):
            raise ValueError("LZ4 data points before its start")
        copied = min(copied + 4, at_most - len(out))
        piece = bytes(out[len(out) - distance :])
        out += (piece * (copied // distance + 1))[:copied]  # what is copied may run into itself
    return bytes(out[:at_most])


def _lz4_length(packed: bytes, at: int, length: int) -> tuple[int, int]:
    """A length of LZ4 and the place after it: 15 goes on in further bytes, up to one below 255."""
    if length == 15:
        more = 255
        while more == 255 and at < len(packed):
            more = packed[at]
            length += more
            at += 1
    return length, at


__all__ = ["MAGIC", "is_journal", "unpack_lz4", "write_text"]
