"""Times and amounts as text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

#: ``Thu Nov 14 15:35:07 2024``, as C's ``ctime`` writes it.
CTIME = "%a %b %d %H:%M:%S %Y"


def is_number(text: str) -> bool:
    """Whether a text is a whole number that ``int`` takes and 64 bits hold: ASCII digits (``str.isdigit`` also takes ²), at most 18."""
    return text.isascii() and text.isdigit() and len(text) <= 18


def local_time(text: object, form: str) -> dict[str, object]:
    """The columns of a time that is written without a zone, in a form of ``strptime``; none where it is no such time."""
    try:
        moment = datetime.strptime(" ".join(str(text).split()), form).replace(tzinfo=UTC)
    except ValueError:
        return {}
    return {"time_raw_ns": round(moment.timestamp() * 1000) * 1_000_000, "time_kind": "local-unzoned"}


def iso(time_ns: int | None) -> str | None:
    """ISO 8601 UTC with milliseconds, or None (also for times beyond what a calendar holds)."""
    if time_ns is None:
        return None
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_ns // 1000)
    except OverflowError:
        return None
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
