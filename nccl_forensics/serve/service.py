"""All parts of the running service, and what it does when it starts and stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

import anyio.to_thread
import orjson

from nccl_forensics.serve import retention
from nccl_forensics.serve.access import Sessions
from nccl_forensics.serve.analysis import Analyses
from nccl_forensics.serve.arrivals import Gate
from nccl_forensics.serve.database import Database
from nccl_forensics.serve.events import Events
from nccl_forensics.serve.folders import Folders
from nccl_forensics.serve.incidents import Incidents
from nccl_forensics.serve.index import Index, index_of
from nccl_forensics.serve.search import Choices
from nccl_forensics.serve.settings import Settings
from nccl_forensics.serve.uploads import Uploads

LOG = logging.getLogger("nccl_forensics.serve")
_SECONDS_BETWEEN_TIDYINGS = 600.0


@dataclass(frozen=True, slots=True)
class Service:
    """What the routes work with."""

    settings: Settings
    folders: Folders
    database: Database
    incidents: Incidents
    events: Events
    gate: Gate
    uploads: Uploads
    analyses: Analyses
    sessions: Sessions | None
    choices: Choices

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """From the first request to the last: analyses are worked off, and old things removed."""
        await anyio.to_thread.run_sync(self._recover)
        tasks = [asyncio.create_task(self.analyses.run()), asyncio.create_task(self._keep_tidy())]
        try:
            yield
        finally:
            self.events.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await anyio.to_thread.run_sync(self.database.close)

    def progress(self, identifier: str, status: str) -> dict[str, object] | None:
        """How far a running analysis is."""
        if status == "queued":
            return {"stage": "waiting", "done": 0, "total": 0}
        if status != "running":
            return None
        return dict(self.events.progress.get(identifier) or {"stage": "starting", "done": 0, "total": 0})

    async def delete(self, identifier: str) -> None:
        """Delete an incident, under way or not. Raises ``Problem``."""
        await anyio.to_thread.run_sync(self.incidents.hide, identifier)
        await self.analyses.forget(identifier)
        await anyio.to_thread.run_sync(retention.finish_deletion, self.folders, self.incidents, identifier)
        self.events.changed(identifier)

    async def _keep_tidy(self) -> None:
        while True:
            await asyncio.sleep(_SECONDS_BETWEEN_TIDYINGS)
            await self.tidy()

    async def tidy(self) -> None:
        """Remove what is past its time."""
        try:
            await anyio.to_thread.run_sync(self.uploads.expire)
            await anyio.to_thread.run_sync(retention.enforce, self.database, self.folders, self.incidents)
        except Exception:
            LOG.exception("old incidents could not be removed; trying again later")

    def _recover(self) -> None:
        self.folders.clear_scratch()
        retention.tidy(self.folders, self.incidents)
        completed = self.uploads.recover()
        queued, failed = self.incidents.recover()
        if queued or failed or completed:
            LOG.warning("after a restart: %d incidents are read again, %d given up, %d uploads completed", queued, failed, completed)
        self._reindex()

    def _reindex(self) -> None:
        """Index finished incidents anew where this version takes more from a report than the one before."""
        indexes: dict[str, Index] = {}
        for identifier in self.incidents.to_index():
            with contextlib.suppress(OSError, ValueError):
                report = orjson.loads((self.folders.result(identifier) / "report.json").read_bytes())
                indexes[identifier] = index_of(report)
        self.incidents.reindex(indexes)


def open_service(settings: Settings) -> Service:
    """Open the data folder. Raises ``OutputError`` and ``UsageError``."""
    folders = Folders(settings.data)
    folders.make()
    database = Database(folders.database)
    incidents, events, gate = Incidents(database), Events(), Gate(settings, folders)
    return Service(
        settings,
        folders,
        database,
        incidents,
        events,
        gate,
        Uploads(settings, folders, database, incidents, gate),
        Analyses(settings, folders, incidents, events),
        Sessions(database, settings.token) if settings.token is not None else None,
        Choices(database),
    )
