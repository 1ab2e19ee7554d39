"""How long incidents are kept: set on the settings page or by the API, none of it on by default, pinned incidents never touched."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from nccl_forensics.serve.clock import DAY_MS, now_ms
from nccl_forensics.serve.database import Database
from nccl_forensics.serve.folders import Folders
from nccl_forensics.serve.incidents import Incidents
from nccl_forensics.serve.problems import Problem

LOG = logging.getLogger("nccl_forensics.serve")
_MOST_DAYS, _MOST_GB = 36_500, 1_000_000


@dataclass(frozen=True, slots=True)
class Retention:
    """None means without end. ``evidence_days``: how long after its upload evidence is kept beside its report; ``incident_days``: how long
    the incident itself; ``store_gb``: how much evidence may lie here in all (10⁹ bytes), the oldest goes first.
    """

    evidence_days: int | None = None
    incident_days: int | None = None
    store_gb: int | None = None


def retention_of(values: Mapping[str, object]) -> Retention:
    """Settings from a client; what it leaves out is None. Raises ``Problem``."""
    known = {f.name for f in fields(Retention)}
    if unknown := set(values) - known:
        raise Problem(422, "bad-field", f"unknown setting {sorted(unknown)[0]!r}; there are {', '.join(sorted(known))}")
    out: dict[str, int | None] = {}
    for name in known:
        value = values.get(name)
        most = _MOST_GB if name == "store_gb" else _MOST_DAYS
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most):
            raise Problem(422, "bad-field", f"{name} is a number from 1 to {most}, or null for without end")
        out[name] = value
    return Retention(**out)


def load(database: Database) -> Retention:
    """What is set."""
    rows = database.read("SELECT value FROM meta WHERE key = 'retention'")
    return Retention(**json.loads(rows[0]["value"])) if rows else Retention()


def save(database: Database, retention: Retention) -> None:
    """Set it."""
    with database.write() as connection:
        connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('retention', ?)", (json.dumps(asdict(retention)).encode(),))


def evidence_bytes(database: Database) -> int:
    """Bytes of evidence kept in all."""
    [row] = database.read("SELECT coalesce(sum(size_bytes), 0) AS n FROM incidents WHERE evidence AND status <> 'deleting'")
    return int(row["n"])


def enforce(database: Database, folders: Folders, incidents: Incidents) -> tuple[int, int]:
    """Remove what is past its time; returns how many incidents and how many incidents' evidence."""
    wanted = load(database)
    removed = dropped = 0
    if wanted.incident_days is not None:
        for row in database.read(
            "SELECT id FROM incidents WHERE status IN ('done', 'failed') AND NOT pinned AND created_ms < ?",
            (now_ms() - wanted.incident_days * DAY_MS,),
        ):
            delete(folders, incidents, row["id"])
            removed += 1
    candidates = "SELECT id, size_bytes FROM incidents WHERE status IN ('done', 'failed') AND NOT pinned AND evidence"
    if wanted.evidence_days is not None:
        for row in database.read(f"{candidates} AND created_ms < ?", (now_ms() - wanted.evidence_days * DAY_MS,)):
            drop_evidence(folders, incidents, row["id"])
            dropped += 1
    if wanted.store_gb is not None:
        above = evidence_bytes(database) - wanted.store_gb * 10**9
        for row in database.read(f"{candidates} ORDER BY created_ms") if above > 0 else ():
            drop_evidence(folders, incidents, row["id"])
            dropped, above = dropped + 1, above - row["size_bytes"]
            if above <= 0:
                break
    if removed or dropped:
        LOG.info("retention: %d incidents and the evidence of %d removed", removed, dropped)
    return removed, dropped


def drop_evidence(folders: Folders, incidents: Incidents, identifier: str) -> None:
    """Remove the evidence of an incident and keep its report. The store is told first: what it says is there is there."""
    incidents.without_evidence(identifier)
    folders.discard(folders.evidence(identifier))


def delete(folders: Folders, incidents: Incidents, identifier: str) -> None:
    """Remove an incident with all that is known of it. Interrupted, it is finished by the next start. Raises ``Problem``."""
    incidents.hide(identifier)
    finish_deletion(folders, incidents, identifier)


def finish_deletion(folders: Folders, incidents: Incidents, identifier: str) -> None:
    """The rest of a deletion, once nobody sees the incident any more."""
    folders.discard(folders.incident(identifier))
    incidents.remove(identifier)


def tidy(folders: Folders, incidents: Incidents) -> None:
    """After a restart: finish deletions, remove files of evidence that the store no longer keeps."""
    for identifier in incidents.hidden():
        finish_deletion(folders, incidents, identifier)
    for row in incidents.database.read("SELECT id FROM incidents WHERE NOT evidence"):
        folders.discard(folders.evidence(row["id"]))


__all__ = ["Retention", "delete", "drop_evidence", "enforce", "evidence_bytes", "load", "retention_of", "save", "tidy"]
