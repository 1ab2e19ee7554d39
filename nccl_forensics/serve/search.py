"""Finding incidents: filters that hold together, free text, pages; and what comes back again and again."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nccl_forensics.serve.clock import DAY_MS, day_ms
from nccl_forensics.serve.database import Database
from nccl_forensics.serve.incidents import STATES, Incident, incident_of
from nccl_forensics.serve.problems import Problem

MOST_ROWS = 200
#: How many finished incidents are looked at for what recurs.
WINDOW = 10
_WORDS = 16
_CHOICES_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Filter:
    """What is looked for; empty means any. Days are UTC, both included; ``culprit`` asks that host and rank are blamed, not only
    involved."""

    text: str = ""
    status: str = ""
    cause: str = ""
    host: str = ""
    rank: str = ""
    job: str = ""
    since: str = ""
    until: str = ""
    culprit: bool = False
    limit: int = 50
    offset: int = 0

    def narrowed(self) -> bool:
        """Whether anything is filtered at all."""
        return any((self.text, self.status, self.cause, self.host, self.rank, self.job, self.since, self.until))


def filter_of(query: Mapping[str, str]) -> Filter:
    """The filter of a query string. Raises ``Problem`` for values that cannot be meant."""
    status = query.get("status", "").strip()
    if status and status not in STATES:
        raise Problem(422, "bad-parameter", f"status is one of {', '.join(STATES)}")
    rank = query.get("rank", "").strip()
    if rank and not re.fullmatch(r"[0-9]{1,7}", rank):
        raise Problem(422, "bad-parameter", "rank is a number")
    for name in ("since", "until"):
        if (value := query.get(name, "").strip()) and day_ms(value) is None:
            raise Problem(422, "bad-parameter", f"{name} is a day such as 2026-11-21")
    culprit = query.get("culprit", "").strip().lower()
    if culprit not in ("", "0", "1", "false", "true", "on"):
        raise Problem(422, "bad-parameter", "culprit is true or false")
    return Filter(
        text=query.get("q", "").strip()[:400],
        status=status,
        cause=query.get("cause", "").strip()[:100],
        host=query.get("host", "").strip()[:300],
        rank=str(int(rank)) if rank else "",
        job=query.get("job", "").strip()[:300],
        since=query.get("since", "").strip(),
        until=query.get("until", "").strip(),
        culprit=culprit in ("1", "true", "on"),
        limit=_number(query, "limit", 50, 1, MOST_ROWS),
        offset=_number(query, "offset", 0, 0, 10_000_000),
    )


def _number(query: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = query.get(name, "").strip()
    if not text:
        return default
    if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise Problem(422, "bad-parameter", f"{name} is a number from {low} to {high}")
    return int(text)


@dataclass(frozen=True, slots=True)
class Found:
    """A page of incidents, newest first, and how many there are in all."""

    incidents: tuple[Incident, ...]
    total: int


def find(database: Database, wanted: Filter) -> Found:
    """Incidents that meet every part of the filter."""
    conditions, values = ["status <> 'deleting'"], list[object]()
    for condition, value in _conditions(wanted):
        conditions.append(condition)
        values += value
    where = " AND ".join(conditions)
    # Conditions are constants of this module; what the client sent travels as values.
    [total] = database.read(f"SELECT count(*) AS n FROM incidents WHERE {where}", values)  # noqa: S608 (constants, see above)
    rows = database.read(
        f"SELECT * FROM incidents WHERE {where} ORDER BY number DESC LIMIT ? OFFSET ?",  # noqa: S608 (as above)
        (*values, wanted.limit, wanted.offset),
    )
    return Found(tuple(incident_of(row) for row in rows), total["n"])


def _conditions(wanted: Filter) -> Iterator[tuple[str, tuple[object, ...]]]:
    if wanted.status:
        yield "status = ?", (wanted.status,)
    if wanted.cause:
        yield "EXISTS (SELECT 1 FROM subjects WHERE incident = id AND kind = 'cause' AND value = ? AND culprit)", (wanted.cause,)
    blamed = " AND culprit" if wanted.culprit else ""
    if wanted.host:
        yield (
            f"EXISTS (SELECT 1 FROM subjects WHERE incident = id AND kind = 'host' AND instr(lower(value), lower(?)){blamed})",  # noqa: S608 (put together of constants)
            (wanted.host,),
        )
    if wanted.rank:
        yield f"EXISTS (SELECT 1 FROM subjects WHERE incident = id AND kind = 'rank' AND value = ?{blamed})", (wanted.rank,)  # noqa: S608 (put together of constants)
    if wanted.job:
        yield "instr(lower(coalesce(job, '')), lower(?))", (wanted.job,)
    if (since := day_ms(wanted.since)) is not None:
        yield "coalesce(happened_ms, created_ms) >= ?", (since,)
    if (until := day_ms(wanted.until)) is not None:
        yield "coalesce(happened_ms, created_ms) < ?", (until + DAY_MS,)
    if wanted.text:
        phrase = match(wanted.text)
        yield ("number IN (SELECT rowid FROM words WHERE words MATCH ?)", (phrase,)) if phrase else ("0", ())


def match(text: str) -> str:
    """Free text as a query of the text index: every word must occur, as the beginning of a word; nothing in it is an operator."""
    words = [w for w in re.split(r"\s+", text.replace('"', " ").replace("\0", " ")) if any(c.isalnum() for c in w)]
    return " ".join(f'"{w}"*' for w in words[:_WORDS])


@dataclass(frozen=True, slots=True)
class Recurring:
    """A host, GPU or cause that was to blame in several of the last ``of`` explained incidents; ``incidents`` newest first.

    ``pattern`` tells for each incident looked at, oldest first, whether it was to blame.
    """

    kind: str
    value: str
    count: int
    of: int
    incidents: tuple[tuple[str, str], ...]
    pattern: tuple[bool, ...]

    def sentence(self) -> str:
        """What it comes to."""
        if self.kind == "cause":
            return f"{self.value} was the cause in {self.count} of the last {self.of}"
        return f"{self.value} was the culprit in {self.count} of the last {self.of}"


def recurring(database: Database, window: int = WINDOW) -> tuple[Recurring, ...]:
    """What was to blame more than once in the last explained incidents, most often first. A host comes before its GPUs before causes."""
    rows = database.read(
        "SELECT id, title FROM incidents WHERE status = 'done' AND EXISTS (SELECT 1 FROM subjects WHERE incident = id AND culprit)"
        " ORDER BY coalesce(happened_ms, created_ms) DESC, number DESC LIMIT ?",
        (window,),
    )
    titles = {row["id"]: row["title"] for row in rows}
    marks = ", ".join("?" for _ in titles)
    held: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in database.read(
        f"SELECT incident, kind, value FROM subjects WHERE culprit AND kind IN ('host', 'gpu', 'cause') AND incident IN ({marks})",  # noqa: S608 (question marks only)
        tuple(titles),
    ):
        held[row["kind"], row["value"]].add(row["incident"])
    found = [
        Recurring(
            kind,
            value,
            len(where),
            len(titles),
            tuple((i, title) for i, title in titles.items() if i in where),
            tuple(i in where for i in reversed(titles)),
        )
        for (kind, value), where in held.items()
        if len(where) > 1
    ]
    order = {"host": 0, "gpu": 1, "cause": 2}
    return tuple(sorted(found, key=lambda r: (-r.count, order[r.kind], r.value)))


@dataclass(frozen=True, slots=True)
class Related:
    """Other incidents with the same culprit or cause: kind, value, and the incidents, newest first."""

    kind: str
    value: str
    incidents: tuple[tuple[str, str], ...]


def related(database: Database, identifier: str) -> tuple[Related, ...]:
    """What the culprits and the cause of an incident also did in others."""
    held: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for row in database.read(
        "SELECT theirs.kind, theirs.value, incidents.id, incidents.title FROM subjects AS own"
        " JOIN subjects AS theirs ON theirs.kind = own.kind AND theirs.value = own.value AND theirs.culprit AND theirs.incident <> own.incident"
        " JOIN incidents ON incidents.id = theirs.incident AND incidents.status = 'done'"
        " WHERE own.incident = ? AND own.culprit AND own.kind IN ('host', 'gpu', 'cause') ORDER BY incidents.created_ms DESC LIMIT 500",
        (identifier,),
    ):
        held[row["kind"], row["value"]].append((row["id"], row["title"]))
    order = {"host": 0, "gpu": 1, "cause": 2}
    return tuple(Related(k, v, tuple(where)) for (k, v), where in sorted(held.items(), key=lambda item: (order[item[0][0]], item[0][1])))


@dataclass(slots=True)
class Choices:
    """What may be chosen in the filters: causes, hosts and job names that occur, most frequent first, 200 of each.

    Counting them goes over every host of every incident, so it is done again only when something was written, and not at once.
    """

    database: Database
    _held: dict[str, list[str]] = field(default_factory=dict)
    _writes: int = -1
    _at: float = float("-inf")

    def get(self) -> dict[str, list[str]]:
        """By kind: cause, host, job. At most a few seconds old."""
        if self._writes != self.database.writes and time.monotonic() - self._at > _CHOICES_SECONDS:
            self._writes, self._at = self.database.writes, time.monotonic()
            self._held = {
                "cause": self._values(
                    "SELECT value FROM subjects WHERE kind = 'cause' AND culprit GROUP BY value ORDER BY count(*) DESC LIMIT 200"
                ),
                "host": self._values("SELECT value FROM subjects WHERE kind = 'host' GROUP BY value ORDER BY count(*) DESC LIMIT 200"),
                "job": self._values(
                    "SELECT job FROM incidents WHERE job IS NOT NULL AND status <> 'deleting' GROUP BY job ORDER BY count(*) DESC LIMIT 200"
                ),
            }
        return self._held

    def _values(self, sql: str) -> list[str]:
        return [row[0] for row in self.database.read(sql)]
