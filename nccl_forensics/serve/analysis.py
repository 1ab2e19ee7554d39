"""Analyses one after the other: takes the incident that waits longest, has a child process read it, and writes down how that ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from dataclasses import dataclass, field, replace

import anyio.to_thread

from nccl_forensics.serve.events import Events
from nccl_forensics.serve.folders import Folders, sync
from nccl_forensics.serve.incidents import Incident, Incidents
from nccl_forensics.serve.index import Index
from nccl_forensics.serve.processes import Child
from nccl_forensics.serve.settings import GIB, Settings

LOG = logging.getLogger("nccl_forensics.serve")
_SECONDS_TO_END = 10.0
_SECONDS_BETWEEN_LOOKS = 0.5
#: What the allocators of Rust and of C say before they abort.
_OUT_OF_MEMORY = (
    b"memory allocation of",
    b"MemoryError",
    b"Cannot allocate memory",
    b"bad_alloc",
    b"OutOfMemory",
    b"can't start new thread",
)


@dataclass(frozen=True, slots=True)
class Ending:
    """How an analysis ended: ``code`` None is success, ``put back`` means that the service stopped it in good order."""

    code: str | None
    error: str = ""


@dataclass(slots=True)
class Analyses:
    """The analyses under way. Lives on the event loop; all reading of evidence is done by others."""

    settings: Settings
    folders: Folders
    incidents: Incidents
    events: Events
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _running: dict[str, Child] = field(default_factory=dict)
    _stopped: dict[str, str] = field(default_factory=dict)
    _over: dict[str, asyncio.Event] = field(default_factory=dict)

    def wake(self) -> None:
        """An incident waits."""
        self._wake.set()

    async def run(self) -> None:
        """Work off what waits, for ever; as many at the same moment as are set."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.settings.analyses):
                tasks.create_task(self._work())

    async def cancel(self, identifier: str) -> bool:
        """Stop the analysis of an incident, waiting or running; whether there was one. Returns when nothing of it runs any more."""
        return await self._stop(identifier, "cancelled", "cancelled")

    async def forget(self, identifier: str) -> None:
        """Stop the analysis of an incident that is being deleted."""
        await self._stop(identifier, "deleted", "deleted")

    async def _stop(self, identifier: str, code: str, error: str) -> bool:
        failed = await anyio.to_thread.run_sync(self.incidents.fail, identifier, code, error)
        if (child := self._running.get(identifier)) is not None:
            self._stopped[identifier] = code
            over = self._over[identifier]
            await child.end()
            await over.wait()
            failed = True
        self.events.changed(identifier)
        return failed

    async def _work(self) -> None:
        while True:
            self._wake.clear()
            try:
                incident = await anyio.to_thread.run_sync(self.incidents.take)
            except Exception:
                LOG.exception("the queue cannot be read; trying again in a few seconds")
                await asyncio.sleep(5)
                continue
            if incident is None:
                await self._wake.wait()
                continue
            self._wake.set()  # others may wait too
            try:
                await self._one(incident)
            except Exception:
                LOG.exception("incident %s", incident.id)
                await self._fail(incident.id, Ending("defect", "the service could not run the analysis; its log says why"))

    async def _one(self, incident: Incident) -> None:
        identifier = incident.id
        self._over[identifier] = asyncio.Event()
        scratch, partial = self.folders.scratch(identifier), self.folders.partial(identifier)
        try:
            await anyio.to_thread.run_sync(self._prepare, identifier)
            self._progress(identifier, "starting", 0, 0)
            ending = await self._read(incident)
            if ending.code is None:
                await anyio.to_thread.run_sync(self._keep, identifier)
            elif identifier not in self._stopped:
                await self._fail(identifier, ending)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self.incidents.put_back, identifier)
            raise
        finally:
            with anyio.CancelScope(shield=True):
                for left in (scratch, partial):
                    await anyio.to_thread.run_sync(self.folders.discard, left)
            self.events.progress.pop(identifier, None)
            self._stopped.pop(identifier, None)
            self._over.pop(identifier).set()
            self.events.changed(identifier)

    async def _read(self, incident: Incident) -> Ending:
        """Run the child. It is ended, with all that it started, however this is left."""
        identifier = incident.id
        evidence = self.folders.evidence(identifier)
        job = {
            "inputs": [str(evidence / incident.files[0].name) if len(incident.files) == 1 else str(evidence)],
            "title": incident.title,
            "output": str(self.folders.partial(identifier)),
            "memory_bytes": self.settings.analysis_bytes,
            "config": str(self.settings.config) if self.settings.config is not None else None,
        }
        child = await Child.start(job, self.folders.scratch(identifier))
        self._running[identifier] = child
        listening = asyncio.create_task(child.listen())
        watching = asyncio.create_task(self._watch(child))
        answer: dict[str, object] = {}
        try:
            if identifier in self._stopped or not await self._still_wanted(identifier):
                return Ending("cancelled")
            async with asyncio.timeout(self.settings.analysis_seconds):
                async for message in child.messages():
                    if "ended" in message:
                        answer = message
                    elif isinstance(message.get("done"), int) and isinstance(message.get("total"), int):
                        self._progress(identifier, str(message.get("stage")), int(str(message["done"])), int(str(message["total"])))
            code = await child.exit_code(_SECONDS_TO_END)
        except TimeoutError:
            return Ending("time", f"the analysis took longer than {self.settings.analysis_seconds:,.0f} s and was stopped")
        finally:
            with anyio.CancelScope(shield=True):
                await child.end()
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                await listening
            self._running.pop(identifier, None)
        ending = self._ending(answer, code, child)
        # Where the evidence lies on this server is nobody's business; its names are.
        return replace(ending, error=ending.error.replace(f"{evidence}/", "").replace(str(evidence), incident.title))

    async def _still_wanted(self, identifier: str) -> bool:
        """Whether nobody cancelled or deleted the incident while its process was started."""
        with contextlib.suppress(Exception):
            return (await anyio.to_thread.run_sync(self.incidents.get, identifier)).status == "running"
        return False

    async def _watch(self, child: Child) -> None:
        """End the child when it and its readers hold more than they may."""
        while True:
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
            if await anyio.to_thread.run_sync(child.exceeds, self.settings.analysis_bytes):
                child.exceeded = True
                await child.end()
                return

    def _ending(self, answer: dict[str, object], exit_code: int, child: Child) -> Ending:
        if answer.get("ended") == "done":
            return Ending(None)
        code, error = answer.get("code"), str(answer.get("error") or "")
        if child.exceeded or code == "memory" or (not answer and any(sign in child.last_words for sign in _OUT_OF_MEMORY)):
            return Ending(
                "memory", f"the analysis needed more than {self.settings.analysis_bytes / GIB:,.1f} GiB of memory and was stopped"
            )
        if code == "no-space":
            return Ending("no-space", error or "the server's disk is full")
        if code in ("unusable", "limit"):
            return Ending(str(code), error)
        LOG.error("an analysis failed (exit code %s): %s\n%s", exit_code, error, child.last_words.decode("utf-8", "replace"))
        return Ending("defect", error or f"the analysis process ended without an answer (exit code {exit_code})")

    def _progress(self, identifier: str, stage: str, done: int, total: int) -> None:
        self.events.progress[identifier] = {"stage": stage, "done": done, "total": total}
        self.events.changed(identifier)

    def _prepare(self, identifier: str) -> None:
        for left in (self.folders.scratch(identifier), self.folders.partial(identifier)):
            self.folders.discard(left)
        self.folders.scratch(identifier).mkdir(mode=0o700)

    def _keep(self, identifier: str) -> None:
        """The result in its place, then in the store: whoever reads that an incident is done finds its files."""
        partial, result = self.folders.partial(identifier), self.folders.result(identifier)
        found = json.loads((partial / "index.json").read_bytes())
        index = Index(
            found["verdict"], found["happened_ms"], tuple((k, v, c) for k, v, c in found["subjects"]), found["names"], found["text"]
        )
        self.folders.discard(result)
        partial.rename(result)
        sync(result.parent)
        self.incidents.finish(identifier, index)

    async def _fail(self, identifier: str, ending: Ending) -> None:
        assert ending.code is not None
        await anyio.to_thread.run_sync(self.incidents.fail, identifier, ending.code, ending.error)


__all__ = ["Analyses"]
