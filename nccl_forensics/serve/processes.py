"""A child process and everything that it starts: begun apart from the service, watched, and ended as one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import nccl_forensics
from nccl_forensics.serve.settings import TOKEN_VARIABLE
from nccl_forensics.serve.worker import BACKSTOP

_LONGEST_LINE = 1 << 20
_LAST_WORDS = 8192
#: Share of its backstop at which a process counts as having met it.
_NEAR = 0.95


class Child:
    """A worker under way. ``last_words`` is the end of what it wrote to standard error; ``exceeded`` says that it was ended for its
    memory."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.last_words = b""
        self.exceeded = False

    @classmethod
    async def start(cls, job: Mapping[str, object], scratch: Path) -> Child:
        """Start the worker with a job. It gets no secret of the service, and unpacks below ``scratch``."""
        environment = {k: v for k, v in os.environ.items() if k != TOKEN_VARIABLE}
        environment["TMPDIR"] = str(scratch)
        # -P: the folder that the service was started in is no place to import from.
        environment["PYTHONPATH"] = str(Path(nccl_forensics.__file__).resolve().parent.parent)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "nccl_forensics.serve.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LONGEST_LINE,
            env=environment,
            start_new_session=True,
        )
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):
            process.stdin.write(json.dumps(job).encode() + b"\n")
            await process.stdin.drain()
        return cls(process)

    async def messages(self) -> AsyncIterator[dict[str, object]]:
        """What it says, until it ends."""
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:  # a line beyond all bounds: not one of ours
                continue
            if not line:
                return
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict):
                    yield message

    async def listen(self) -> None:
        """Keep the end of its standard error, so that it never waits for a reader."""
        assert self._process.stderr is not None
        while piece := await self._process.stderr.read(4096):
            self.last_words = (self.last_words + piece)[-_LAST_WORDS:]

    def exceeds(self, memory_bytes: int) -> bool:
        """Whether it and its readers together hold more memory of their own than that, or one of them is about to meet its backstop.

        False where the system does not say.
        """
        total = 0
        for entry in os.scandir("/proc") if os.path.isdir("/proc") else ():
            if entry.name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    if _group_of(entry.name) == self._process.pid:
                        held, mapped = _private_bytes(entry.name)
                        if mapped > _NEAR * BACKSTOP * memory_bytes:
                            return True
                        total += held
        return total > memory_bytes

    async def end(self) -> int:
        """End it and all that it started; returns its exit code (negative: a signal)."""
        with contextlib.suppress(AttributeError, ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            if self._process.returncode is None:
                self._process.kill()
        return await self._process.wait()

    async def exit_code(self, seconds: float) -> int:
        """Its own exit code, if it ends in time; then all that it left is ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._process.wait()
        return await self.end()


def _group_of(pid: str) -> int:
    # The name in parentheses may hold blanks and parentheses; state, parent and group follow the last of them.
    stat = Path("/proc", pid, "stat").read_text(encoding="utf-8", errors="replace")
    return int(stat[stat.rindex(")") + 1 :].split()[2])


def _private_bytes(pid: str) -> tuple[int, int]:
    """Private memory that a process has touched, and that it has mapped (what its limit counts)."""
    rows = dict(
        row.split(":", 1) for row in Path("/proc", pid, "status").read_text(encoding="utf-8", errors="replace").splitlines() if ":" in row
    )
    return tuple(int(rows[name].split()[0]) << 10 if name in rows else 0 for name in ("RssAnon", "VmData"))  # type: ignore[return-value]  # two names give two figures
