"""Standard output and error that outlive their readers: what is written to a pipe that nobody reads any more goes nowhere, and work goes
on.

``nccl-forensics check run.tar.gz | head -3`` must still end with the exit code of the gate, and ``analyze -o out | head -3`` must still
write its files, although ``head`` has left.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

#: What a write to a pipe without a reader says; Windows says "invalid argument".
_GONE = (errno.EPIPE, errno.ESHUTDOWN, *((errno.EINVAL,) if os.name == "nt" else ()))


class _Onward(io.RawIOBase):
    """A raw stream that takes what is written and drops it once its reader has left."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw

    @property
    def name(self) -> object:
        return getattr(self._raw, "name", None)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._raw.isatty()

    def fileno(self) -> int:
        return self._raw.fileno()

    def write(self, data: ReadableBuffer, /) -> int | None:
        try:
            return self._raw.write(data)
        except OSError as problem:
            if problem.errno not in _GONE:
                raise
        # Child processes write there as well, and so does what Python itself prints at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        return memoryview(data).nbytes


def outlive_readers() -> None:
    """Make ``sys.stdout`` and ``sys.stderr`` such streams, and open what was closed when the program began.

    Without that the first file that is opened would become the standard output, and be written into.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:
            opened = open(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115 (stays open to the end)
        elif type(stream) is io.TextIOWrapper:
            inner: object = stream.buffer
            buffered = inner if isinstance(inner, io.BufferedWriter) else None  # PYTHONUNBUFFERED leaves the buffer out
            raw = buffered.raw if buffered is not None else inner
            if not isinstance(raw, io.FileIO):
                continue  # a console of Windows
            settings = (stream.encoding, stream.errors, None, stream.line_buffering, stream.write_through)
            stream.detach()
            if buffered is not None:
                buffered.detach()
            onward = _Onward(raw)
            opened = io.TextIOWrapper(io.BufferedWriter(onward) if buffered is not None else onward, *settings)
        else:
            continue  # a test's or a notebook's own
        setattr(sys, name, opened)
        setattr(sys, f"__{name}__", opened)  # flushed at exit as well, and the old one has nothing left to flush


__all__ = ["outlive_readers"]
