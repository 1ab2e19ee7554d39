"""The time of day as the store keeps it: milliseconds since 1970, UTC."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta

from nccl_forensics.values.units import iso as iso_ns

DAY_MS = 86_400_000


def now_ms() -> int:
    """Now."""
    return time.time_ns() // 1_000_000


def iso(time_ms: int | None) -> str | None:
    """ISO 8601 UTC, or None."""
    return None if time_ms is None else iso_ns(time_ms * 1_000_000)


def ms_of_iso(text: object) -> int | None:
    """Milliseconds of an ISO 8601 time, or None."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def day_ms(text: str) -> int | None:
    """The first millisecond of a day written as ``2026-11-21``, or None."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    return (datetime(day.year, day.month, day.day, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
