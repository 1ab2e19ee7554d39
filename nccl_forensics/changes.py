"""What differs between two reports: what came out, what explains it, and what neither of them shows.

Works on reports of the contract, whether just made or read from a file. A thing that only one side shows is unknown on the other; a thing
that neither shows is unknown, not equal.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from nccl_forensics.facts.settings import DECISIVE, HARMLESS
from nccl_forensics.plain import plain
from nccl_forensics.presentation import amount, number, part, rows, size, text
from nccl_forensics.words import sentence

Json = Mapping[str, object]
Kind = Literal["changed", "only-before", "only-after"]
Direction = Literal["worse", "better", "neutral"]

#: Areas, each with what it is called; the first four are what came out, the others what may explain it.
AREA_WORDS: dict[str, str] = {
    "outcome": "Outcome",
    "bandwidth": "Bus bandwidth",
    "step": "Step breakdown",
    "lag": "Arrival lag",
    "finding": "Findings",
    "topology": "Topology",
    "transport": "Transports",
    "gdr": "GPUDirect RDMA",
    "network": "Network",
    "setting": "Settings",
    "channels": "Channels",
    "algorithm": "Algorithms and protocols",
    "version": "Versions",
    "hardware": "Hardware",
}
RESULTS = ("outcome", "bandwidth", "step", "lag")
#: Sizes below it measure latency, and vary from run to run.
BANDWIDTH_FROM = 1 << 20
#: Relative difference of a measure below which two runs count as alike.
_ALIKE = 0.03
#: Causes that are felt rather than cause: they come after what may explain them.
_EFFECTS = frozenset({"low-bus-bandwidth", "communication-bound", "low-overlap", "straggler", "collective-stuck", "timeout-too-short"})
_SEVERITY = {"critical": 4, "error": 3, "warning": 2, "info": 0}
#: How good an outcome is; one that is not known is neither better nor worse.
_OUTCOMES = {"finished": 4, "slow": 3, "stopped": 1, "timed out": 0, "hung": 0, "crashed": 0}
_SWITCH = {"on": 2, "partly": 1, "off": 0}
#: Shares of a step of which more is better.
_GOOD_SHARES = frozenset({"overlap of communication with compute", "share of compute"})


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. ``before`` and ``after`` are None where that side does not show the thing; ``weight`` orders by what explains
    most."""

    area: str
    subject: str
    kind: Kind
    before: str | None
    after: str | None
    direction: Direction = "neutral"
    ratio: float | None = None
    worst_ratio: float | None = None
    weight: int = 0
    note: str = ""
    before_where: str = ""
    after_where: str = ""
    before_number: float | None = None
    after_number: float | None = None
    details: tuple[tuple[str, str, str], ...] = ()
    finding: str = ""

    @property
    def fingerprint(self) -> str:
        """Stable identity of what changed, whatever its values are; that of the finding where a finding came or went."""
        return self.finding or hashlib.sha256("\x1f".join(("baseline", self.area, self.subject)).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs in a few words."""

    title: str
    inputs: tuple[str, ...]
    status: str
    cause: str
    summary: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Differences:
    """Everything that a comparison says. ``equal`` are (area, subject, value), ``unknown`` texts on what neither side shows."""

    before: Side
    after: Side
    results: tuple[Change, ...]
    explains: tuple[Change, ...]
    others: tuple[Change, ...]
    one_sided: tuple[Change, ...]
    equal: tuple[tuple[str, str, str], ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """What came out, and the difference that explains most, in one sentence."""
        told = [f"{c.subject}: {c.before} → {c.after}{percent(c)}" for c in self.results[:2]]
        told += [_arrow(c) for c in self.explains[:1]]
        return sentence("; ".join(told)) if told else "Nothing differs in what both sides show"

    @property
    def every(self) -> tuple[Change, ...]:
        """All differences, in the order shown."""
        return self.results + self.explains + self.others + self.one_sided


@dataclass(slots=True)
class _Found:
    changes: list[Change] = field(default_factory=list)
    equal: list[tuple[str, str, str]] = field(default_factory=list)


def percent(change: Change) -> str:
    """`` (-87 %)`` for a measure that changed; empty otherwise."""
    return f" ({change.ratio - 1:+.0%})".replace("%", " %") if change.ratio is not None and change.area in RESULTS else ""


def _arrow(change: Change) -> str:
    if change.kind == "only-after":
        return f"{change.subject} {change.after}, not shown before"
    if change.kind == "only-before":
        return f"{change.subject} {change.before}, not shown after"
    if change.area == "finding":
        return change.after or "" if change.before == "not found" else f"gone: {change.before}"
    return f"{change.subject}: {change.before} → {change.after}"


#: Weight from which a difference is told as an explanation; the others are listed after.
EXPLAINS_FROM = 40


def differences(before: Json, after: Json) -> Differences:
    """Everything that differs between two reports."""
    found = _Found()
    _traits(before, after, found)
    _bandwidth(before, after, found)
    _steps(before, after, found)
    _lag(before, after, found)
    _findings(before, after, found)
    ordered = sorted(found.changes, key=lambda c: (-c.weight, -_size(c.ratio), c.area, c.subject))
    results = [c for c in ordered if c.area in RESULTS and c.kind == "changed"]
    results.sort(key=lambda c: RESULTS.index(c.area))
    rest = [c for c in ordered if c not in results]
    told = [c for c in rest if c.kind == "changed" or c.weight >= EXPLAINS_FROM]
    return Differences(
        _side(before),
        _side(after),
        tuple(results),
        tuple(c for c in told if c.weight >= EXPLAINS_FROM),
        tuple(c for c in told if c.weight < EXPLAINS_FROM),
        tuple(c for c in rest if c not in told),
        tuple(found.equal),
        tuple(_unknown(before, after)),
    )


def _side(report: Json) -> Side:
    case, verdict = part(report, "case"), part(report, "verdict")
    outcome = next((text(t, "value") for t in rows(report, "traits") if t.get("area") == "outcome"), "")
    inputs = case.get("inputs")
    return Side(
        text(case, "title"),
        tuple(plain(i, 200) for i in inputs) if isinstance(inputs, list) else (),
        text(verdict, "status"),
        text(verdict, "cause"),
        text(verdict, "summary"),
        outcome,
    )


# --- traits --------------------------------------------------------------------------------------------------------------------


def _keyed(report: Json) -> dict[tuple[str, str], Json]:
    return {(text(t, "area"), text(t, "subject")): t for t in rows(report, "traits")}


def _traits(before: Json, after: Json, found: _Found) -> None:
    old, new = _keyed(before), _keyed(after)
    shown = {side: {area for area, _ in keyed} for side, keyed in (("before", old), ("after", new))}
    algorithms: dict[tuple[str, Kind, str | None, str | None], list[tuple[int, Json | None, Json | None]]] = {}
    for key in sorted(old.keys() | new.keys(), key=lambda k: (list(AREA_WORDS).index(k[0]) if k[0] in AREA_WORDS else 99, k[1])):
        area, subject = key
        b, a = old.get(key), new.get(key)
        value_b, value_a = _value(b), _value(a)
        if b is not None and a is not None and value_b == value_a:
            found.equal.append((area, subject, value_b or ""))
            continue
        kind: Kind = "changed" if b is not None and a is not None else "only-before" if b is not None else "only-after"
        if area == "algorithm":
            op, _, rest = subject.partition(" of ")
            algorithms.setdefault((op, kind, value_b, value_a), []).append(
                (int(rest.split(" ")[0] or 0) if rest[:1].isdigit() else 0, b, a)
            )
            continue
        both_shown = area in shown["before"] and area in shown["after"]
        found.changes.append(_trait_change(area, subject, kind, b, a, both_shown))
    for (op, kind, value_b, value_a), cases in algorithms.items():
        found.changes.append(_algorithm_change(op, kind, value_b, value_a, cases))


def _value(trait: Json | None) -> str | None:
    return None if trait is None else text(trait, "value", 400)


def _trait_change(area: str, subject: str, kind: Kind, b: Json | None, a: Json | None, both_shown: bool) -> Change:
    number_b, number_a = _number(b), _number(a)
    notes = [f"{word}: {note}" for word, t in (("before", b), ("after", a)) if t is not None and (note := text(t, "note"))]
    if kind != "changed":
        missing = "after" if kind == "only-before" else "before"
        if area == "setting" and both_shown:
            notes.append(f"not shown {missing}, though other settings are")
        else:
            notes.append(f"unknown {missing}")
    weight = _weight(area, subject)
    if kind != "changed":
        # A setting that appears beside others says something; anything else that one side lacks was perhaps only not printed.
        weight = weight - 2 if area == "setting" and both_shown else min(weight, EXPLAINS_FROM - 1)
    return Change(
        area,
        subject,
        kind,
        _value(b),
        _value(a),
        _direction(area, subject, b, a) if kind == "changed" else "neutral",
        ratio=number_a / number_b if number_a is not None and number_b else None,
        weight=weight,
        note="; ".join(notes),
        before_where=where(b),
        after_where=where(a),
        before_number=number_b,
        after_number=number_a,
    )


def _number(trait: Json | None) -> float | None:
    value = None if trait is None else trait.get("number")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def where(trait: Json | None) -> str:
    """``path:line`` or ``path record``; empty where there is no place."""
    if trait is None or not trait.get("path"):
        return ""
    line, record = number(trait, "line"), text(trait, "record")
    return text(trait, "path") + (f":{line}" if line is not None else f" {record}" if record else "")


def _weight(area: str, subject: str) -> int:
    """How well a difference of this kind explains another speed or another end."""
    if area == "setting":
        return 5 if subject in HARMLESS else 88 if subject in ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE") else 72 if subject in DECISIVE else 42
    if area == "topology":
        return 99 if subject in ("ranks", "hosts", "ranks per host") else 93 if subject.startswith("NVLinks") else 92
    if area == "network":
        return {"network that NCCL chose": 95, "bootstrap interface": 38}.get(subject, 78)
    if area == "version":
        return {"NCCL": 66, "GPU driver": 52, "library": 66}.get(subject, 45)
    return {"outcome": 100, "transport": 96, "gdr": 94, "hardware": 90, "channels": 70}.get(area, 40)


def transport_rank(value: str) -> int | None:
    """How fast the slowest kind of transport in a list is: direct copies, then host memory, then RDMA, then sockets."""
    ranks = []
    for kind in (k.strip() for k in value.split(",")):
        if kind.startswith("P2P"):
            ranks.append(4)
        elif kind.startswith("SHM"):
            ranks.append(3)
        elif kind.startswith(("NET/", "COLLNET")):
            ranks.append(1 if kind == "NET/Socket" else 2)
        else:
            return None
    return min(ranks, default=None)


def _direction(area: str, subject: str, b: Json | None, a: Json | None) -> Direction:
    old, new = _value(b) or "", _value(a) or ""
    if area == "outcome":
        return _order(_OUTCOMES.get(old), _OUTCOMES.get(new))
    if area == "gdr":
        return _order(_SWITCH.get(old), _SWITCH.get(new))
    if area == "transport":
        return _order(transport_rank(old), transport_rank(new))
    if area == "network" and subject == "network that NCCL chose":
        return _order(old != "Socket", new != "Socket")
    if area == "topology" and "asymmetric" in new and "asymmetric" not in old:
        return "worse"
    if area == "channels" or (area == "topology" and subject not in ("ranks", "hosts")) or area == "network":
        return _order(_number(b), _number(a))
    return "neutral"


def _order(before: float | None, after: float | None, *, less_is_better: bool = False) -> Direction:
    if before is None or after is None or before == after:
        return "neutral"
    return "worse" if (after > before) == less_is_better else "better"


def _algorithm_change(
    op: str, kind: Kind, before: str | None, after: str | None, cases: list[tuple[int, Json | None, Json | None]]
) -> Change:
    """All sizes of an operation that changed alike as one."""
    cases.sort(key=lambda c: c[0])
    first, last = cases[0][0], cases[-1][0]
    spread = size(first) if first == last else f"{len(cases)} sizes from {size(first)} to {size(last)}"
    return Change(
        "algorithm",
        f"{op}, {spread}",
        kind,
        before,
        after,
        weight=60 if kind == "changed" else EXPLAINS_FROM - 1,
        note="" if kind == "changed" else f"unknown {'after' if kind == 'only-before' else 'before'}",
        before_where=where(cases[0][1]),
        after_where=where(cases[0][2]),
    )


# --- measures ------------------------------------------------------------------------------------------------------------------


def _tests(report: Json) -> dict[str, dict[int, tuple[float, Json]]]:
    """Best bus bandwidth by test and size."""
    out: dict[str, dict[int, tuple[float, Json]]] = {}
    for row in rows(part(report, "measures"), "bandwidth"):
        value, count = row.get("bus_bw_gb_s"), number(row, "bytes")
        if isinstance(value, int | float) and count is not None:
            ranks = number(row, "ranks")
            name = " ".join(w for w in (text(row, "collective"), text(row, "dtype"), f"on {ranks} ranks" if ranks is not None else "") if w)
            own = out.setdefault(name, {})
            if count not in own or own[count][0] < value:
                own[count] = (float(value), row)
    return out


def _bandwidth(before: Json, after: Json, found: _Found) -> None:
    old, new = _tests(before), _tests(after)
    for name in sorted(old.keys() | new.keys()):
        b, a = old.get(name, {}), new.get(name, {})
        common = sorted(b.keys() & a.keys())
        if not common:
            one = b or a
            best = max(value for value, _ in one.values())
            row = max(one.values(), key=lambda v: v[0])[1]
            shown = f"{amount(best)} GB/s at best"
            missing = "after" if b else "before"
            place = _source(row)
            found.changes.append(
                Change(
                    "bandwidth",
                    name,
                    "only-before" if b else "only-after",
                    shown if b else None,
                    shown if a else None,
                    note=f"not measured {missing} at the same sizes",
                    before_where=place if b else "",
                    after_where=place if a else "",
                )
            )
            continue
        large = [s for s in common if s >= BANDWIDTH_FROM] or common
        mean_b, mean_a = (statistics.fmean(side[s][0] for s in large) for side in (b, a))
        worst = min(large, key=lambda s: a[s][0] / b[s][0] if b[s][0] else 1.0)
        ratio = mean_a / mean_b if mean_b else None
        worst_ratio = a[worst][0] / b[worst][0] if b[worst][0] else None
        spread = size(large[0]) if len(large) == 1 else f"mean of {len(large)} sizes from {size(large[0])} to {size(large[-1])}"
        if ratio is None or (abs(ratio - 1) <= _ALIKE and (worst_ratio is None or worst_ratio >= 1 - 3 * _ALIKE)):
            found.equal.append(("bandwidth", name, f"{amount(mean_a)} GB/s, {spread}"))
            continue
        change = (
            f"largest fall at {size(worst)}: {amount(b[worst][0])} to {amount(a[worst][0])} GB/s" if worst_ratio and worst_ratio < 1 else ""
        )
        found.changes.append(
            Change(
                "bandwidth",
                name,
                "changed",
                f"{amount(mean_b)} GB/s",
                f"{amount(mean_a)} GB/s",
                _order(mean_b, mean_a),
                ratio,
                worst_ratio,
                98,
                "; ".join(n for n in (spread, change) if n),
                _source(b[worst][1]),
                _source(a[worst][1]),
                mean_b,
                mean_a,
                tuple((size(s), f"{amount(b[s][0])} GB/s", f"{amount(a[s][0])} GB/s") for s in common),
            )
        )


def _source(row: Json) -> str:
    line, record = number(row, "line"), text(row, "record")
    return text(row, "source") + (f":{line}" if line is not None else f" {record}" if record else "")


def shares(report: Json) -> dict[str, float]:
    """Medians over the ranks with traces of what a step is made of, as shares of its span; the steps where traces mark them."""
    traces = rows(part(report, "measures"), "traces")
    steps = [t for t in traces if t.get("window") == "steps"] or traces
    out: dict[str, list[float]] = {}
    kinds = {
        "compute_ms": "share of compute",
        "communication_ms": "share of communication",
        "exposed_ms": "share of exposed communication",
        "memcpy_ms": "share of copies",
        "idle_ms": "share of idling",
    }
    for row in steps:
        span = row.get("span_ms")
        for key, words in kinds.items():
            value = row.get(key)
            if isinstance(span, int | float) and span > 0 and isinstance(value, int | float):
                out.setdefault(words, []).append(value / span)
        overlap = row.get("overlap_fraction")
        if isinstance(overlap, int | float):
            out.setdefault("overlap of communication with compute", []).append(float(overlap))
    return {words: statistics.median(values) for words, values in out.items()}


def _steps(before: Json, after: Json, found: _Found) -> None:
    old, new = shares(before), shares(after)
    for name in sorted(old.keys() | new.keys()):
        b, a = old.get(name), new.get(name)
        texts = [None if v is None else f"{v:.1%}" for v in (b, a)]
        if b is not None and a is not None and abs(a - b) <= _ALIKE:
            found.equal.append(("step", name, f"{a:.1%}"))
            continue
        kind: Kind = "changed" if b is not None and a is not None else "only-before" if b is not None else "only-after"
        direction = _order(b, a, less_is_better=name not in _GOOD_SHARES)
        found.changes.append(
            Change(
                "step",
                name,
                kind,
                texts[0],
                texts[1],
                direction,
                a / b if a is not None and b else None,
                weight=97,
                note="median over the ranks with traces",
                before_number=b,
                after_number=a,
            )
        )


def lost_per_collective(report: Json) -> tuple[float, int | None] | None:
    """Milliseconds that the latest rank costs per collective, and that rank."""
    worst: tuple[float, int | None] | None = None
    for row in rows(part(report, "measures"), "lag"):
        lost, count = row.get("lost_ms"), number(row, "collectives")
        if isinstance(lost, int | float) and count:
            value = (lost / count, number(row, "rank"))
            worst = value if worst is None or value[0] > worst[0] else worst
    return worst


def _lag(before: Json, after: Json, found: _Found) -> None:
    old, new = lost_per_collective(before), lost_per_collective(after)
    if old is None and new is None:
        return
    name = "time lost to the latest rank, per collective"
    texts = [None if v is None else f"{amount(round(v[0], 3))} ms" + (f" (rank {v[1]})" if v[1] is not None else "") for v in (old, new)]
    if old is not None and new is not None and abs(new[0] - old[0]) <= max(0.2, _ALIKE * old[0]):
        found.equal.append(("lag", name, texts[1] or ""))
        return
    kind: Kind = "changed" if old is not None and new is not None else "only-before" if old is not None else "only-after"
    b, a = (None if v is None else v[0] for v in (old, new))
    found.changes.append(
        Change(
            "lag",
            name,
            kind,
            texts[0],
            texts[1],
            _order(b, a, less_is_better=True),
            a / b if a is not None and b else None,
            weight=96,
            before_number=b,
            after_number=a,
        )
    )


# --- findings and what nobody shows ----------------------------------------------------------------------------------------------


def _findings(before: Json, after: Json, found: _Found) -> None:
    old, new = ({text(f, "fingerprint"): f for f in rows(r, "findings")} for r in (before, after))
    for key in sorted(old.keys() ^ new.keys()):
        gone = key in old
        finding = old[key] if gone else new[key]
        severity = text(finding, "severity")
        cause = text(finding, "cause")
        weight = (44 if cause in _EFFECTS else 80) + 4 * _SEVERITY.get(severity, 0) if _SEVERITY.get(severity, 0) else 20
        if finding.get("explained_by"):
            weight = min(weight, 43)
        quoted = rows(finding, "evidence")
        places = [where(e) for e in quoted if where(e)]
        shown = f"{severity}: {text(finding, 'title')}"
        found.changes.append(
            Change(
                "finding",
                cause or text(finding, "rule"),
                "changed",
                shown if gone else "not found",
                "not found" if gone else shown,
                "neutral" if severity == "info" else "better" if gone else "worse",
                weight=weight,
                note=f"rule {text(finding, 'rule')}",
                before_where=places[0] if gone and places else "",
                after_where=places[0] if not gone and places else "",
                finding=key,
            )
        )


def _unknown(before: Json, after: Json) -> list[str]:
    """What neither side shows, so that nobody takes silence for sameness."""
    shown = {area for r in (before, after) for area, _ in _keyed(r)}
    measured = {
        "bandwidth": bool(_tests(before) or _tests(after)),
        "step": bool(shares(before) or shares(after)),
        "lag": lost_per_collective(before) is not None or lost_per_collective(after) is not None,
    }
    out = []
    for area, words in AREA_WORDS.items():
        if area == "finding" or area in shown or measured.get(area):
            continue
        out.append(f"{words}: neither side shows any")
    settings = {subject for r in (before, after) for area, subject in _keyed(r) if area == "setting"}
    hidden = sorted(DECISIVE - settings)
    if hidden:
        out.append(f"Settings that neither side shows, which may differ: {', '.join(hidden)}")
    return out


def _size(ratio: float | None) -> float:
    return abs(1 - ratio) if ratio is not None else 0.0
