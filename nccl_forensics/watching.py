"""Looking again at evidence that is still being gathered: when to analyse, and what a new verdict says that the one before did not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nccl_forensics.plain import plain
from nccl_forensics.values.documents import mapping

#: Path -> size, time of the last change in ns, and inode of every file.
State = Mapping[str, tuple[int, int, int]]
Json = Mapping[str, object]
_LISTED = 8
_TEXT = 160


@dataclass(frozen=True, slots=True)
class Pace:
    """How often files are looked at, how long they must stand still, and after what time of steady change they are analysed all the same.

    An analysis that takes long is not begun again before ``times`` its duration has passed while files keep changing.
    """

    look_seconds: float = 1.0
    still_seconds: float = 3.0
    at_latest_seconds: float = 60.0
    times: float = 5.0


def look(inputs: Sequence[str | Path]) -> State:
    """All files of the inputs as they are now; what vanishes meanwhile is left out."""
    found: dict[str, tuple[int, int, int]] = {}

    def add(path: str) -> None:
        try:
            told = os.stat(path)
        except OSError:
            return
        found[path] = told.st_size, told.st_mtime_ns, told.st_ino

    for given in map(str, inputs):
        if os.path.isdir(given):
            for folder, _, files in os.walk(given):
                for name in files:
                    add(os.path.join(folder, name))
        else:
            add(given)
    return found


def rounds(see: Callable[[], State], sleep: Callable[[float], object], clock: Callable[[], float], pace: Pace) -> Iterator[State]:
    """The states to analyse, for ever: at once, then whenever files changed and stand still again, or have been changing for long.

    What changes while the caller analyses a state is part of the next one.
    """
    done: State | None = None
    seen: State = see()
    still_since, changing_since = clock() - pace.still_seconds, clock()
    latest = pace.at_latest_seconds
    while True:
        now = clock()
        if seen != done and (now - still_since >= pace.still_seconds or now - changing_since >= latest):
            done = seen
            yield seen
            after = clock()
            latest = max(pace.at_latest_seconds, pace.times * (after - now))
            changing_since = after
        sleep(pace.look_seconds)
        fresh = see()
        if fresh != seen:
            if seen == done:
                changing_since = clock()
            seen, still_since = fresh, clock()


def files_changed(before: State, after: State) -> str:
    """How many files are new, changed and gone, in words."""
    new, gone = len(after.keys() - before.keys()), len(before.keys() - after.keys())
    changed = sum(1 for path in after.keys() & before.keys() if after[path] != before[path])
    told = [f"{n:,} {word}" for n, word in ((new, "new"), (changed, "changed"), (gone, "gone")) if n]
    total = new + changed + gone
    return f"{', '.join(told)} {'file' if total == 1 else 'files'}" if told else "no file changed"


def verdict_changes(before: Json, after: Json) -> tuple[str, ...]:
    """What the verdict of a report says differently from that of another, one line each; empty where it says the same."""
    lines: list[str] = []

    def compare(label: str, one: str, other: str) -> None:
        if one != other:
            lines.append(f"{label}: {one} → {other}")

    old, new = mapping(before.get("verdict")), mapping(after.get("verdict"))
    for key in ("status", "cause", "confidence"):
        compare(key, _word(old.get(key)), _word(new.get(key)))
    compare("culprits", _culprits(old), _culprits(new))
    compare("first divergence", _divergence(old), _divergence(new))
    case, case_now = mapping(before.get("case")), mapping(after.get("case"))
    compare("ranks seen", _seen(case), _seen(case_now))
    had, has = _findings(before), _findings(after)
    lines += _listed("+", [has[key] for key in has if key not in had])
    lines += _listed("-", [had[key] for key in had if key not in has])
    return tuple(lines)


def _word(value: object) -> str:
    return plain(str(value), _TEXT) if value is not None else "none"


def _culprits(verdict: Json) -> str:
    told = verdict.get("culprits")
    names = []
    for culprit in told if isinstance(told, list) else []:
        parts = [f"{key} {culprit[key]}" for key in ("rank", "host", "gpu", "nic", "link") if culprit.get(key) is not None]
        names.append(" ".join(parts))
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return plain(", ".join(names[:_LISTED]) + more, _TEXT) or "none"


def _divergence(verdict: Json) -> str:
    told = verdict.get("first_divergence")
    if not isinstance(told, dict):
        return "none"
    return plain(f"{told.get('op') or 'operation'} {told.get('seq')} of {told.get('process_group') or told.get('comm_id')}", _TEXT)


def _seen(case: Json) -> str:
    return f"{case.get('ranks_seen')} of {case.get('world_size') or '?'}"


def _findings(report: Json) -> dict[tuple[object, ...], str]:
    """Findings by what they are about; where several are about one thing, each counts."""
    found: dict[tuple[object, ...], str] = {}
    told = report.get("findings")
    for finding in told if isinstance(told, list) else []:
        key = (finding.get("fingerprint"), finding.get("title"))
        found[key] = plain(f"{finding.get('severity')} {finding.get('rule')}: {finding.get('title')}", _TEXT)
    return found


def _listed(sign: str, titles: Sequence[str]) -> list[str]:
    more = [f"{sign} {len(titles) - _LISTED} more findings"] if len(titles) > _LISTED else []
    return [f"{sign} {title}" for title in titles[:_LISTED]] + more


__all__ = ["Pace", "State", "files_changed", "look", "rounds", "verdict_changes"]
