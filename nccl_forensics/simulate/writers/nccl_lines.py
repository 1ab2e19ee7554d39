"""How a release of NCCL writes its lines: what stands before them, and the source line of a warning."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from nccl_forensics.simulate.world import SECOND, Process, World

#: Source lines by release, where they are known; those of 2.27.7 are from logs of that release.
_LINES: dict[str, tuple[tuple[tuple[int, ...], str], ...]] = {
    "closed": (((2, 30), "misc/socket.cc:58"), ((2, 27), "misc/socket.cc:71"), ((2, 26), "misc/socket.cc:71"), ((2, 0), "misc/socket.cc:50")),
    "completion": (
        ((2, 30), "transport/net_ib/p2p.cc:688"), ((2, 27), "transport/net_ib.cc:2458"), ((2, 26), "transport/net_ib.cc:2358"),
        ((2, 0), "transport/net_ib.cc:1921"),
    ),
    "connect": (((2, 30), "misc/socket.cc:561"), ((2, 27), "misc/socket.cc:578"), ((2, 24), "misc/socket.cc:574"), ((2, 0), "misc/socket.cc:483")),
    "event": (((2, 30), "transport/net_ib/common.cc:214"), ((2, 0), "transport/net_ib.cc:199")),
    "verbs": (((2, 30), "misc/ibvwrap.cc:181"), ((2, 0), "misc/ibvwrap.cc:172")),
}  # fmt: skip
_FUNCTIONS = {"closed": "socketProgress", "completion": "ncclIbTest", "connect": "socketConnectCheck", "event": "ncclIbAsyncThreadMain"}


@dataclass(frozen=True, slots=True)
class Options:
    """What NCCL was told to print: ``operations`` adds COLL."""

    operations: bool = False


class Lines:
    """Lines of one process, as this release writes them."""

    def __init__(self, world: World, process: Process, options: Options) -> None:
        self.world, self.process, self.options = world, process, options
        self.version = tuple(int(x) for x in process.release.split("."))
        self.name = process.host.name
        self.local = process.local_rank
        self.cuda = "12.4" if self.version < (2, 26) else "12.8" if self.version < (2, 29) else "13.0"

    def info(self, message: str, thread: int = 0) -> str:
        """An INFO line."""
        return f"{self.name}:{self.process.pid}:{self.process.pid + thread} [{self.local}] NCCL INFO {message}\n"

    def warn(self, at: int, what: str, message: str, thread: int = 0, place: str | None = None) -> str:
        """A WARN line, with the empty line before it."""
        stamp = time.strftime("[%Y-%m-%d %H:%M:%S] ", time.gmtime(at // SECOND)) if self.version >= (2, 26) else ""
        place = self.sources + (place or next(line for since, line in _LINES[what] if self.version >= since))
        function = f" ({_FUNCTIONS.get(what, 'ncclCommInitRankFunc')})" if self.version >= (2, 30, 7) else ""
        return f"\n{stamp}{self.name}:{self.process.pid}:{self.process.pid + thread} [{self.local}] {place}{function} NCCL WARN {message}\n"

    def trace(self, places: str, code: int, thread: int = 0, tail: str = "") -> Iterator[str]:
        """Lines of an error on its way up: ``file:line(function) …``."""
        for place in places.split():
            where, _, function = place.partition("@")
            shown = f"{where} ({function or 'ncclGroupEndInternal'})" if self.version >= (2, 30, 7) else where
            yield self.info(f"{self.sources}{shown} -> {code}{tail}", thread)

    #: What stands before the name of a source file.
    sources = ""
