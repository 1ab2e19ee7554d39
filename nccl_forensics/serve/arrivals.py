"""Bytes on their way in: read from the connection as fast as they can be written, never held, and given up in good order.

A piece is parsed and written before the next one is asked for, so an upload holds a few hundred KiB of memory whatever its size. Only a few
uploads are served at the same moment; the others wait with their connection paused, and pages are answered in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeVar

import anyio.to_thread
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Message, Receive

from nccl_forensics.serve.folders import Folders, Names
from nccl_forensics.serve.incidents import EvidenceFile
from nccl_forensics.serve.problems import Problem, no_room
from nccl_forensics.serve.settings import Settings

_FIELD_BYTES, _FIELDS = 64 << 10, 32
#: Bytes between two looks at the free space of the disk.
_LOOK_EVERY = 1 << 20
_DRAIN_BYTES, _DRAIN_SECONDS = 16 << 20, 3.0
T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection; nobody is there to be answered."""


@dataclass(slots=True)
class Incoming:
    """The messages of a call as they come. ``whole``: all of its body has, and what may follow is that the client goes."""

    receive: Receive
    whole: bool = False

    async def __call__(self) -> Message:
        """The next message."""
        message = await self.receive()
        self.whole = message["type"] != "http.request" or not message.get("more_body")
        return message


async def drain(headers: Headers, receive: Receive) -> None:
    """Read on for a moment before a call is refused: a connection that is closed on a client that still sends loses the answer.

    A client that asked whether it should send at all (``Expect``) is told no by the answer itself, and one that has sent all of its body
    waits for nothing but the answer.
    """
    assert isinstance(receive, Incoming)  # the guard in front of everything hands it on
    if "100-continue" in headers.get("expect", "").lower():
        return
    left = _DRAIN_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            while left > 0 and not receive.whole:
                left -= len((await receive()).get("body", b""))


@dataclass(slots=True)
class Gate:
    """How many uploads there are, how many are served at the same moment, and the threads that write for them."""

    settings: Settings
    folders: Folders
    open: int = 0
    _turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    _threads: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(2))
    #: Threads of their own: what waits for the disk must not keep pages waiting for a thread.
    _slow: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(4))

    @contextlib.asynccontextmanager
    async def upload(self, request: Request) -> AsyncIterator[None]:
        """One more upload, if there is room for it. Raises ``Problem``."""
        if self.open >= self.settings.uploads_at_once:
            raise Problem(503, "busy", f"{self.open} uploads are under way; try again later", close=True)
        announced = request.headers.get("content-length", "")
        if announced.isdigit():
            self.room_for(int(announced))
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    def room_for(self, size_bytes: int) -> None:
        """Raises ``Problem`` where so much is above the limit or would not fit on the disk."""
        if size_bytes > self.settings.upload_bytes:
            raise Problem(413, "too-large", f"an upload may have {self.settings.upload_bytes:,} bytes at most", close=True)
        if self.folders.free_bytes() - self.settings.reserve_bytes < size_bytes:
            raise no_room()

    async def pieces(self, receive: Receive) -> AsyncIterator[bytes]:
        """The body as it comes. Raises ``Problem`` for a client that stalls or takes too long, ``ClientGone`` for one that went."""
        deadline = time.monotonic() + self.settings.upload_seconds
        more = True
        while more:
            left = min(self.settings.idle_seconds, deadline - time.monotonic())
            try:
                async with asyncio.timeout(max(0.0, left)):
                    message = await receive()
            except TimeoutError:
                raise Problem(408, "stalled", "no data arrived in time; the upload was given up", close=True) from None
            if message["type"] == "http.disconnect":
                raise ClientGone
            more = bool(message.get("more_body"))
            if piece := message.get("body", b""):
                yield piece

    async def settle(self, act: Callable[[], T]) -> T:
        """Run what waits for the disk in a thread: making, completing and removing folders."""
        return await anyio.to_thread.run_sync(act, limiter=self._slow)

    async def work(self, act: Callable[[], T]) -> T:
        """Run what parses and writes one piece in a thread, when it is this upload's turn."""
        async with self._turn:
            return await anyio.to_thread.run_sync(act, limiter=self._threads)


@dataclass(slots=True)
class Writer:
    """Appends to one file and watches the limits."""

    folders: Folders
    settings: Settings
    written: int = 0
    _unseen: int = 0

    def write(self, stream: BinaryIO, data: bytes | memoryview) -> None:
        """Append. Raises ``Problem`` at the size limit and where the disk is full."""
        self.written += len(data)
        if self.written > self.settings.upload_bytes:
            raise Problem(413, "too-large", f"an upload may have {self.settings.upload_bytes:,} bytes at most", close=True)
        self._unseen += len(data)
        if self._unseen >= _LOOK_EVERY or self.written == len(data):
            self._unseen = 0
            if self.folders.free_bytes() - self.settings.reserve_bytes < len(data):
                raise no_room()
        left = memoryview(data)
        try:
            while left:
                left = left[stream.write(left) :]
        except OSError as problem:
            raise no_room() from problem


@dataclass(slots=True)
class Form:
    """A multipart body written to files as it is parsed: ``file`` parts go to the folder, other parts become ``fields``."""

    folder: Path
    folders: Folders
    settings: Settings
    boundary: bytes
    files: dict[str, EvidenceFile] = field(default_factory=dict)
    fields: dict[str, str] = field(default_factory=dict)
    _writer: Writer = field(init=False)
    _parser: MultipartParser = field(init=False)
    _headers: dict[bytes, bytes] = field(default_factory=dict)
    _header: tuple[bytearray, bytearray] = field(default_factory=lambda: (bytearray(), bytearray()))
    _stream: BinaryIO | None = None
    _name: str = ""
    _path: str = ""
    _start: int = 0
    _text: bytearray = field(default_factory=bytearray)
    _parts: int = 0
    _names: Names = field(default_factory=Names)
    _ended: bool = False

    def __post_init__(self) -> None:
        self._writer = Writer(self.folders, self.settings)
        self._parser = MultipartParser(
            self.boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_end,
                "on_part_data": self._data,
                "on_part_end": self._end,
                "on_end": self._all,
            },
        )

    def feed(self, piece: bytes) -> None:
        """Parse and write one piece. Raises ``Problem``."""
        try:
            self._parser.write(piece)
        except FormParserError as problem:
            raise Problem(400, "bad-form", f"the multipart body cannot be read: {problem}", close=True) from problem

    def close(self) -> None:
        """Close what is open."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.close()
            self._stream = None

    def complete(self) -> tuple[EvidenceFile, ...]:
        """The files, once the body has been fed whole. Raises ``Problem`` for a body that was cut off or holds none."""
        self.close()
        if not self._ended:
            raise Problem(400, "bad-form", "the multipart body ends before its last boundary")
        if not self.files:
            raise Problem(400, "no-file", "the form holds no part named 'file' with a file in it")
        if not any(f.bytes for f in self.files.values()):
            raise Problem(400, "empty", "the uploaded files are empty")
        return tuple(self.files.values())

    def _begin(self) -> None:
        self._headers, self._header = {}, (bytearray(), bytearray())
        self._parts += 1
        if self._parts > self.settings.upload_files + _FIELDS:
            raise Problem(413, "too-many", f"an upload may have {self.settings.upload_files} files at most", close=True)

    def _header_end(self) -> None:
        name, value = self._header
        self._headers[bytes(name).lower()] = bytes(value)
        self._header = (bytearray(), bytearray())

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        self._text = bytearray()
        if b"filename" not in options:
            return
        given = options[b"filename"].decode("utf-8", "replace")
        if self._name != "file":
            raise Problem(400, "bad-form", f"files are sent in parts named 'file', not {self._name!r}", close=True)
        if len(self.files) >= self.settings.upload_files:
            raise Problem(413, "too-many", f"an upload may have {self.settings.upload_files} files at most", close=True)
        if not given:
            self._name = ""  # an empty file input of a browser
            return
        self._path = self._names.add(given)
        target = self.folder / self._path
        try:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._stream = target.open("xb", buffering=0)
        except OSError as problem:
            raise no_room() from problem
        self._start = self._writer.written

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._stream is not None:
            self._writer.write(self._stream, memoryview(data)[start:end])
            return
        self._text += data[start:end]
        if len(self._text) > _FIELD_BYTES:
            raise Problem(413, "too-large", f"a form field may have {_FIELD_BYTES} bytes at most", close=True)

    def _end(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
            self.files[self._path] = EvidenceFile(self._path, self._writer.written - self._start)
        elif self._name and len(self.fields) < _FIELDS:
            self.fields[self._name] = self._text.decode("utf-8", "replace")

    def _all(self) -> None:
        self._ended = True


def boundary_of(content_type: str) -> bytes:
    """The boundary of a multipart request. Raises ``Problem``."""
    kind, options = parse_options_header(content_type.encode("latin-1", "replace"))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 0 < len(boundary) <= 200:
        raise Problem(415, "not-multipart", "send multipart/form-data with one or more 'file' parts", close=True)
    return boundary
