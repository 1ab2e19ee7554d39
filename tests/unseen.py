"""Sets of incidents that nobody had seen: tests/unseen_sets.toml as tables of docs/unseen.md and sums of docs/accuracy.md.

Both pages are written by hand but for what stands between `<!-- table: NAME -->` and `<!-- end -->`, which ``python -m
tests.generate_docs`` fills.
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.corpus import ROOT

FILE = ROOT / "tests" / "unseen_sets.toml"
#: What an incident of a first look counts under; no incident counts twice.
COUNTS = ("right", "rightly_abstained", "abstained", "ranks_missing", "wrong", "healthy")
_LOOK = {*COUNTS, "healthy_high", "high", "high_wrong"}
_PART = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at a set said; a number that is not known is None."""

    incidents: int
    counts: Mapping[str, int]
    healthy_high: int | None
    high: tuple[int, int] | None
    #: Verdicts at high confidence that are wrong, where it is not known how many there are in all.
    high_wrong: int
    #: The figures are of this set and the next together.
    with_next: bool = False

    @property
    def good(self) -> int | None:
        """Right, or rightly abstained."""
        return self.counts["right"] + self.counts.get("rightly_abstained", 0) if "right" in self.counts else None

    @property
    def healthy_at_high(self) -> tuple[int, int]:
        """The least and the most verdicts at high confidence that name a healthy rank."""
        if self.healthy_high is not None:
            return self.healthy_high, self.healthy_high
        named = self.counts.get("healthy", 0)
        return 0, min(named, self.high[1] - self.high[0]) if self.high else named


@dataclass(frozen=True, slots=True)
class Set:
    """One set of incidents."""

    id: str
    family: str
    what: str
    first: Look
    now: Look | None
    note: str
    #: The set that holds these incidents already.
    part_of: str


@dataclass(frozen=True, slots=True)
class Family:
    """Sets of one kind of evidence."""

    key: str
    title: str
    sets: tuple[Set, ...]
    in_total: bool

    @property
    def summed(self) -> list[Set]:
        """The sets whose incidents no other set holds."""
        return [s for s in self.sets if not s.part_of]


def families(text: str | None = None) -> list[Family]:
    """The file, or this text of one, in order; ValueError where it contradicts itself."""
    data = tomllib.loads(FILE.read_text(encoding="utf-8") if text is None else text)
    sets = [_set(d) for d in data["set"]]
    known = [f["key"] for f in data["family"]]
    for s in sets:
        if s.family not in known:
            raise ValueError(f"{s.id}: no family {s.family!r}")
        if [x.id for x in sets].count(s.id) > 1:
            raise ValueError(f"{s.id} stands there twice")
    return [
        Family(f["key"], f["title"], tuple(s for s in sets if s.family == f["key"]), not f.get("not_in_total", False))
        for f in data["family"]
    ]


def _set(data: Mapping[str, Any]) -> Set:
    if odd := data.keys() - {"id", "family", "what", "incidents", "first", "now", "note", "part_of"}:
        raise ValueError(f"{data['id']}: no such name: {', '.join(sorted(odd))}")
    note = data.get("note", "")
    if note.rstrip().endswith("."):
        raise ValueError(f"{data['id']}: the full stop of a note is set by its table")
    now = data.get("now")
    return Set(
        data["id"],
        data["family"],
        data["what"],
        _look(data["id"], data["first"], data["incidents"]),
        _look(data["id"], {k: v for k, v in now.items() if k != "of"}, now.get("of", data["incidents"])) if now else None,
        note,
        data.get("part_of", ""),
    )


def _look(name: str, data: Mapping[str, Any], incidents: int) -> Look:
    if odd := data.keys() - _LOOK - {"with_next"}:
        raise ValueError(f"{name}: no such name: {', '.join(sorted(odd))}")
    counts = {c: data[c] for c in COUNTS if c in data}
    high = tuple(data["high"]) if "high" in data else None
    if sum(counts.values()) > incidents:
        raise ValueError(f"{name}: {sum(counts.values())} counted of {incidents}")
    if high is not None and not (len(high) == 2 and high[0] <= high[1] <= incidents):
        raise ValueError(f"{name}: {high} of {incidents} at high confidence")
    healthy_high = data.get("healthy_high")
    if healthy_high is not None and healthy_high > min(counts["healthy"], high[1] - high[0] if high else incidents):
        raise ValueError(f"{name}: more healthy ranks named at high confidence than wrong verdicts")
    return Look(incidents, counts, healthy_high, high, data.get("high_wrong", 0), data.get("with_next", False))


def table(family: Family) -> str:
    """The record of a family: a row per set, and their notes."""
    text = (
        "| | what | incidents | right | rightly abstained | abstained, unread | ranks missing | wrong | healthy named (high) | high, right "
        "| now: right, rightly abstained | now: healthy named (high) | now: high, right |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
    )
    before: Set | None = None
    for s, after in zip(family.sets, [*family.sets[1:], None], strict=True):
        cells = [s.id, s.what, f"{s.first.incidents:,}", *(_number(s.first.counts.get(c)) for c in COUNTS[:-1])]
        cells += [_healthy(s.first), _high(s.first)]
        if before is not None and before.now is not None and before.now.with_next:
            cells += [f"with {before.id}"] * 3
        elif s.now is None:
            cells += ["–"] * 3
        else:
            good = _number(s.now.good)
            if s.now.incidents != s.first.incidents:
                good += f" of {s.now.incidents}" + (f" (with {after.id})" if s.now.with_next and after is not None else "")
            cells += [good, _healthy(s.now), _high(s.now)]
        before = s
        text += f"| {' | '.join(cells)} |\n"
    notes = [textwrap.fill(f"- {s.id}: {s.note}.", 140, subsequent_indent="  ") + "\n" for s in family.sets if s.note]
    return text + ("\n" + "".join(notes) if notes else "")


def summary(all_families: Sequence[Family]) -> str:
    """The sums of each family, and of all that count in the total."""
    text = (
        "| family | sets | incidents | first look: right or rightly abstained | name a healthy rank (high) | right at high confidence "
        "| now: right or rightly abstained | name a healthy rank (high) | right at high confidence |\n|---|---|---|---|---|---|---|---|---|\n"
    )
    for f in all_families:
        text += f"| {f.title} | {' | '.join(_sums(f.summed))} |\n"
    total = [s for f in all_families if f.in_total for s in f.summed]
    without = [f.title for f in all_families if not f.in_total]
    return text + f"| **all but the {_list(without)}** | {' | '.join(_sums(total))} |\n"


def _list(titles: Sequence[str]) -> str:
    return " and ".join(t[0].lower() + t[1:] for t in titles)


def _sums(sets: Sequence[Set]) -> Iterator[str]:
    first = [s.first for s in sets]
    yield str(len(sets))
    yield f"{sum(x.incidents for x in first):,}"
    yield from _look_sums(first)
    yield from _look_sums([s.now for s in sets if s.now is not None])


def _look_sums(looks: Sequence[Look]) -> Iterator[str]:
    good = [(x.good, x.incidents) for x in looks if x.good is not None]
    yield _share(sum(g for g, _ in good), sum(n for _, n in good))
    named = [x for x in looks if "healthy" in x.counts]
    total = sum(x.counts["healthy"] for x in named)
    least, most = (sum(x.healthy_at_high[i] for x in named) for i in (0, 1))
    yield "–" if not named else f"{total} ({least if least == most else f'{least} to {most}'})" if total else "0"
    told = [x.high for x in looks if x.high is not None]
    wrong = sum(x.high_wrong for x in looks)
    yield _share(sum(r for r, _ in told), sum(n for _, n in told)) + (f" + {wrong} wrong" if wrong else "")


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({_rounded(part, whole, 0)})" if whole else "–"


def _rounded(part: int, whole: int, digits: int) -> str:
    """The share; what rounds to all and is not all stays below it."""
    if part == whole:
        return "100 %"
    return f"{min(100 * part / whole, 100 - 10.0**-digits):.{digits}f} %"


def _number(count: int | None) -> str:
    return "–" if count is None else f"{count:,}"


def _healthy(look: Look) -> str:
    named = look.counts.get("healthy")
    return _number(named) if not named else f"{named} ({_number(look.healthy_high)})"


def _high(look: Look) -> str:
    if look.high is None:
        return f"{look.high_wrong} wrong" if look.high_wrong else "–"
    return f"{look.high[0]} of {look.high[1]}" if look.high[1] else "none"


def simulated_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """The record of simulated incidents: a row per draw of seeds."""
    text = "| ranks | seeds | incidents | cause right | culprits right | at high confidence: verdicts, cause, culprits, healthy ranks named |\n"
    text += "|---|---|---|---|---|---|\n"
    for r in rows:
        healthy = f"{r['healthy']}{' (' + r['note'] + ')' if 'note' in r else ''}"
        text += f"| {r['ranks']} | {r['seeds']} | {r['incidents']} | {_percent(r['cause'])} | {_percent(r['culprits'])} "
        text += f"| {r['high']}, {_percent(r['high_cause'])}, {_percent(r['high_culprits'])}, {healthy} |\n"
    return text


def simulated_summary(rows: Iterable[Mapping[str, Any]]) -> str:
    """Their sums by size; shares of sums, from the numbers behind the rounded shares of each draw."""
    text = "| ranks | incidents | cause right | culprits right | high confidence: cause right | culprits right | healthy ranks named |\n"
    text += "|---|---|---|---|---|---|---|\n"
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for r in rows:
        if not r.get("part"):
            groups.setdefault(r["group"], []).append(r)
    for group, drawn in groups.items():
        incidents, high = sum(r["incidents"] for r in drawn), sum(r["high"] for r in drawn)
        shares = [
            _rounded(sum(round(r[share] * r[of] / 100) for r in drawn), whole, 1)
            for share, of, whole in (
                ("cause", "incidents", incidents),
                ("culprits", "incidents", incidents),
                ("high_cause", "high", high),
                ("high_culprits", "high", high),
            )
        ]
        named = "; ".join(f"{r['healthy']}{' in ' + r['note'] if 'note' in r else ''}" for r in drawn if r["healthy"])
        text += (
            f"| {group} | {incidents:,} | {shares[0]} | {shares[1]} | {shares[2]} of {high:,} verdicts | {shares[3]} | {named or '0'} |\n"
        )
    return text


def _percent(share: float) -> str:
    return f"{share:.1f} %" if share < 100 else "100 %"


def filled(page: str) -> str:
    """The page with its tables as the data are; KeyError for a table that nobody knows."""
    all_families = families()
    rows = tomllib.loads(FILE.read_text(encoding="utf-8"))["simulated"]
    tables = {f.key: table(f) for f in all_families}
    tables |= {"families": summary(all_families), "simulated": simulated_table(rows), "simulated-sums": simulated_summary(rows)}
    return _PART.sub(lambda found: f"{found[1]}\n{tables[found[2]]}\n{found[3]}", page)
