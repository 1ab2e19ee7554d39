"""Reading ``report.json``'s mapping: every foreign text is made harmless here, and a missing part is an empty one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nccl_forensics.model import SEVERITIES
from nccl_forensics.plain import plain
from nccl_forensics.words import sentence

Json = Mapping[str, object]

#: Longest text of a quote, of a sentence, of a command.
QUOTE, SENTENCE, COMMAND = 600, 900, 2000


def part(mapping: Json, key: str) -> Json:
    """A nested mapping; empty where there is none."""
    value = mapping.get(key)
    return value if isinstance(value, Mapping) else {}


def rows(mapping: Json, key: str) -> Sequence[Json]:
    """A list of mappings; empty where there is none."""
    value = mapping.get(key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def words(mapping: Json, key: str, limit: int = SENTENCE) -> list[str]:
    """A list of harmless texts."""
    value = mapping.get(key)
    return [plain(item, limit) for item in value if item is not None] if isinstance(value, list | tuple) else []


def ranks(mapping: Json, key: str) -> list[int]:
    """A list of rank numbers."""
    value = mapping.get(key)
    return [item for item in value if isinstance(item, int)] if isinstance(value, list | tuple) else []


def text(mapping: Json, key: str, limit: int = SENTENCE) -> str:
    """A harmless text; empty for null."""
    return plain(mapping.get(key), limit)


def command(mapping: Json) -> str:
    """The command of an action or gap: the one text that may have several lines."""
    value = mapping.get("command")
    return "\n".join(plain(line, COMMAND) for line in str(value).splitlines()[:40]) if value else ""


def number(mapping: Json, key: str) -> int | None:
    """A whole number, or None."""
    value = mapping.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def amount(value: object) -> str:
    """A number as people read it: thousands in groups, at most four significant decimals; null is empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return plain(value, 200)


def size(value: int | None) -> str:
    """Bytes in the largest unit that leaves a whole number or one decimal (10^3 steps)."""
    if value is None:
        return ""
    scaled, units = float(value), ("B", "kB", "MB", "GB", "TB")
    for unit in units:
        if scaled < 1000 or unit == units[-1]:
            return f"{scaled:.0f} {unit}" if unit == "B" or scaled >= 100 else f"{scaled:.1f} {unit}"
        scaled /= 1000
    return ""


def severity_order(severity: str) -> int:
    return next((n for n, s in enumerate(SEVERITIES) if s == severity), len(SEVERITIES))


def joined(items: Sequence[str], at_most: int = 6) -> str:
    rest = len(items) - at_most
    return ", ".join(items[:at_most]) + (f" … and {rest:,} more" if rest > 0 else "")


def beyond(title: str, summary: str) -> str:
    """A summary without the title that it opens with."""
    if summary[: len(title)].lower() != title.lower():
        return summary
    return sentence(summary[len(title) :].lstrip(" .:;,"))
