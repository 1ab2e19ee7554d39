"""Who wants to know when an incident changes. A slow listener misses steps in between, never the last state, and costs no memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nccl_forensics.serve.problems import Problem

_MOST_LISTENERS = 500


@dataclass(slots=True, eq=False)
class Listener:
    """What has changed since it last looked; ``incident`` None: whatever changes."""

    incident: str | None
    _changed: set[str] = field(default_factory=set)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, identifier: str) -> None:
        """An incident has changed."""
        if self.incident in (None, identifier):
            self._changed.add(identifier)
            self._wake.set()

    def stop(self) -> None:
        """Have a waiting listener look up."""
        self._wake.set()

    async def wait(self, seconds: float) -> set[str]:
        """Incidents that changed; empty after so many seconds without any."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()
        changed, self._changed = self._changed, set()
        return changed


@dataclass(slots=True)
class Events:
    """All listeners, and how far each running analysis is. Lives on the event loop."""

    progress: dict[str, Mapping[str, object]] = field(default_factory=dict)
    closing: bool = False
    _listeners: set[Listener] = field(default_factory=set)

    @contextlib.contextmanager
    def listen(self, incident: str | None) -> Iterator[Listener]:
        """A listener for one incident or for all. Raises ``Problem`` where there are too many."""
        if len(self._listeners) >= _MOST_LISTENERS:
            raise Problem(503, "busy", "too many pages are watching; ask for the state instead")
        listener = Listener(incident)
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    def changed(self, identifier: str) -> None:
        """An incident is in another state, or further."""
        for listener in self._listeners:
            listener.tell(identifier)

    def close(self) -> None:
        """The service stops: every stream ends."""
        self.closing = True
        for listener in self._listeners:
            listener.stop()
