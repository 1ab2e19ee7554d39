"""Binding and serving: refuses to be reachable from outside without a token, lets clients go that send no request, ends in good order."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from nccl_forensics.errors import OutputError, UsageError
from nccl_forensics.serve.app import make_app
from nccl_forensics.serve.folders import Folders
from nccl_forensics.serve.service import Service, open_service
from nccl_forensics.serve.settings import Settings, is_loopback

_REQUEST_SECONDS = 30.0
_SHUTDOWN_SECONDS = 8
_CONNECTIONS = 2000
_HEADER_BYTES = 32 << 10


class Protocol(H11Protocol):
    """HTTP that closes connections on which no complete request arrives in time, whether a byte trickles in or none."""

    #: How long a connection may be without a complete request.
    seconds: float = _REQUEST_SECONDS
    _seen: object = None
    _watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # asyncio's base names a wider transport
        """Start the watch."""
        super().connection_made(transport)
        self._watch = self.loop.call_later(self.seconds, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the watch."""
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.cycle is self._seen:
            self.transport.close()
            return
        # The request that was answered last: if it still is at the next look, nothing has come since.
        self._seen = self.cycle if idle else self
        self._watch = self.loop.call_later(self.seconds, self._look)


class Server(uvicorn.Server):
    """Ends the streams of events as soon as it is asked to stop, so that nothing else has to wait for them."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._ready = service, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        await super().startup(sockets)
        if self.started:
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal asks to stop."""
        super().handle_exit(sig, frame)
        self._service.events.close()


def check_reach(host: str, settings: Settings, *, insecure: bool) -> None:
    """Raises ``UsageError`` where others could reach the service and nobody would be asked for a token."""
    if not is_loopback(host) and settings.token is None and not insecure:
        raise UsageError(
            f"{host} can be reached from other machines: set a token (--token-file F or NCCL_FORENSICS_TOKEN), or --insecure to serve anyone"
        )


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ``UsageError`` for an address that is not ours or is taken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        held = socket.socket(family, kind, protocol)
        # On Windows "reuse" would let another program take the port over; the other option there keeps it for this one.
        held.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR), 1)
        held.bind(address)
    except OSError as problem:
        raise UsageError(f"{host}:{port}: cannot be bound: {problem.strerror or problem}") from problem
    return held


def serve(settings: Settings, host: str, port: int, *, insecure: bool, announce: Callable[[str], None]) -> None:
    """Serve until a signal. ``announce`` gets the address once requests are answered."""
    check_reach(host, settings, insecure=insecure)
    listening = bind(host, port)
    shown, real = listening.getsockname()[:2]
    url = f"http://{f'[{shown}]' if ':' in shown else shown}:{real}/"
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    logging.getLogger("nccl_forensics.serve").setLevel(logging.INFO)
    os.umask(0o077)  # evidence holds what is nobody else's business
    folders = Folders(settings.data)
    folders.make()
    with listening, folders.locked():
        service = open_service(settings)
        config = uvicorn.Config(
            make_app(service),
            http=type("PatientProtocol", (Protocol,), {"seconds": min(_REQUEST_SECONDS, settings.idle_seconds)}),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=_CONNECTIONS,
            timeout_keep_alive=10,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            h11_max_incomplete_event_size=_HEADER_BYTES,
        )
        server = Server(config, service, lambda: announce(url))
        server.run(sockets=[listening])
        if not server.started:
            raise OutputError("the service could not start; the lines above say why")
