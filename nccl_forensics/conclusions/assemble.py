"""From outcomes and tables to the report of the contract (``report.json``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from nccl_forensics import __version__
from nccl_forensics.conclusions.census import Census, nameless_dumps, people_of, strangers
from nccl_forensics.conclusions.checklist import checklist
from nccl_forensics.conclusions.exclusions import exclusions
from nccl_forensics.conclusions.gaps import ROWS, gaps_of
from nccl_forensics.conclusions.grounds import stood_still
from nccl_forensics.conclusions.parting import parting
from nccl_forensics.conclusions.runs import Run, attempt_of
from nccl_forensics.conclusions.trace_report import measures
from nccl_forensics.conclusions.verdict import Verdict
from nccl_forensics.evidence import AT_MOST
from nccl_forensics.frames import values_in
from nccl_forensics.masking import mask
from nccl_forensics.model import Action, Confidence, Culprit, Divergence, Evidence, blamed_by, names_of
from nccl_forensics.rules import Found, Outcome, severity_order
from nccl_forensics.store import Store
from nccl_forensics.values.units import iso
from nccl_forensics.views import Resolver
from nccl_forensics.words import sentence

SCHEMA = "nccl-forensics/report/1"
_QUOTE = 400
#: Lines of a block, such as a stack, in which one line is looked for.
_BLOCK = 400
#: What Python begins a traceback with, behind the prefix that a launcher gives the lines of a process.
_TRACEBACK = "Traceback (most recent call last):"
#: The action word that asks for evidence, as reports write it, and as evidence of hosts does.
_COLLECT = ("collect-more", "collect_more")
Quote = Callable[[int, int, int, int], list[tuple[int, str]]]


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one run came to."""

    run: Run
    resolver: Resolver
    outcomes: tuple[Outcome, ...]
    verdict: Verdict
    outcome: str
    census: Census


def assemble(
    inputs: Sequence[str], title: str, store: Store, results: Sequence[RunResult], chosen: RunResult, quote: Quote
) -> dict[str, object]:
    """The report. ``chosen`` is the run that the verdict is about."""
    writer = _Writer(store, quote)
    seen: set[str] = set()
    findings: list[dict[str, object]] = []
    for result in [chosen, *(r for r in results if r is not chosen)]:
        for outcome in result.outcomes:
            for found in outcome.found:
                if result is not chosen and found.fingerprint in seen:
                    continue
                seen.add(found.fingerprint)
                findings.append(writer.finding(found, result))
    findings.sort(key=lambda f: (severity_order(f["severity"]), f["explained_by"] is not None, str(f["id"])))  # type: ignore[arg-type]  # severities are our own words
    case = _case(inputs, title, results, chosen)
    gaps = gaps_of(case, chosen.resolver, chosen.verdict, chosen.outcome, store)
    sources, total = _sources(store, chosen)
    return {
        "schema": SCHEMA,
        "generator": {"name": "nccl-forensics", "version": __version__},
        "case": case,
        "verdict": _verdict(writer, chosen, gaps),
        "findings": findings,
        "measures": measures(chosen.resolver, store),
        "rules": [_rule(o) for o in chosen.outcomes],
        "sources": sources,
        "sources_total": total,
        "gaps": gaps[:ROWS],
        "gaps_total": len(gaps),
        "checklist": checklist(chosen.outcomes, lambda name: _holds_rows(chosen.resolver, name)),
    }


def _holds_rows(resolver: Resolver, name: str) -> bool:
    """Whether a table or view, or one column of it (``gpus.throttle``), holds anything: a format that fills several tables makes all of
    them present, also those it found nothing for."""
    table, _, column = name.partition(".")
    if not column:
        return resolver.holds(table)
    return resolver.shows(table, pl.col(column).is_not_null())


def _meant(lines: Sequence[tuple[int, str]], holds: Sequence[str]) -> tuple[int, str]:
    """The line of a block that holds these words, else its first; an empty line ends the block, and lines of others may stand in between."""
    prefix, found, _ = lines[0][1].partition(_TRACEBACK)
    for number, text in lines:
        if holds and all(word in text for word in holds) and (not found or text.startswith(prefix)):
            return number, text
        if not text.strip():
            break
    return lines[0]


class _Writer:
    """Turns values into the contract's shapes, quoting the lines that evidence points at."""

    def __init__(self, store: Store, quote: Quote) -> None:
        self._paths = dict(store.sources.select("source_id", "path").iter_rows())
        self._quote = quote

    def finding(self, found: Found, result: RunResult) -> dict[str, object]:
        f = found.finding
        evidence = [self.evidence(e) for e in f.evidence[:AT_MOST]]
        return {
            "id": found.id,
            "fingerprint": found.fingerprint,
            "rule": found.rule.name,
            "code": found.rule.code,
            "cause": f.cause,
            "severity": f.severity,
            "confidence": f.confidence,
            "title": mask(f.title),
            "summary": mask(f.summary),
            "ranks": list(f.ranks),
            "hosts": list(f.hosts),
            "explained_by": result.verdict.explained_by.get(found.id),
            "suppressed": None,
            "evidence": evidence,
            "evidence_total": f.evidence_total if f.evidence_total is not None else len(f.evidence),
            "remedy": f.remedy,
            "prevention": f.prevention,
            "metrics": dict(f.metrics),
            "run": result.run.number,
        }

    def evidence(self, e: Evidence) -> dict[str, object]:
        text, line = None, e.line
        if e.source_id is not None and e.line is not None:
            lines = self._quote(e.source_id, e.line, 0, _BLOCK if e.holds else 0)
            line, text = _meant(lines, e.holds) if lines else (e.line, None)
        masked = mask(text) if text is not None else None
        shown = masked[:_QUOTE] if masked is not None else None
        return {
            "kind": e.kind,
            "path": self._paths.get(e.source_id) if e.source_id is not None else None,
            "line": line,
            "end_line": e.end_line,
            "record": e.record,
            "looked_in": list(e.looked_in),
            "text": shown,
            "truncated": masked is not None and len(masked) > _QUOTE,
            "masked": masked != text,
            "why": e.why,
        }

    def culprit(self, c: Culprit, people: Mapping[int, Mapping[str, object]]) -> dict[str, object]:
        known = people.get(c.rank, {}) if c.rank is not None else {}
        source = {"source": self._paths.get(c.source_id)} if c.source_id is not None else {}
        return source | {
            "rank": c.rank,
            "host": c.host or known.get("host"),
            "gpu": c.gpu or known.get("bus_id") or (str(known["gpu_index"]) if known.get("gpu_index") is not None else None),
            "pid": c.pid if c.pid is not None else known.get("pid"),
            "nic": c.nic,
            "link": c.link,
        }


def _verdict(writer: _Writer, chosen: RunResult, gaps: Sequence[Mapping[str, object]]) -> dict[str, object]:
    verdict = chosen.verdict
    people = people_of(chosen.resolver)
    base: dict[str, object] = {"run": chosen.run.number, "attempt": chosen.run.attempt}
    if verdict.root is not None:
        body = _explained(writer, verdict.root, chosen, people, verdict.confidence)
        others = [_explained(writer, o, chosen, people, o.finding.confidence) for o in verdict.others[:16]]
        for o in others:
            o.update(status="explained", others=[], run=chosen.run.number, attempt=chosen.run.attempt)
        return base | body | {"status": verdict.status, "confidence": verdict.confidence, "others": others}
    words = {
        "unexplained": "The job failed and no cause can be proved from this evidence"
        + (f" (signs: {', '.join(verdict.failure)})." if verdict.failure else "."),
        "nothing-wrong": "No fault was found in what was handed in. What is not in the evidence was not checked.",
        "insufficient-evidence": "The evidence does not tell of a job: not even whether something is wrong can be said.",
    }
    if any(f.finding.severity == "warning" for o in chosen.outcomes for f in o.found):
        words["insufficient-evidence"] = (
            "The evidence does not tell of a job: whether one ran into what is odd here (see the findings) cannot be said."
        )
    if people:
        words["insufficient-evidence"] = "No fault was found, but what there is of the job is too little to say that nothing is wrong."
    if stood_still(chosen.resolver):
        words["insufficient-evidence"] = (
            "No fault was found, but no process moved between two looks at it. Whether the job goes on or hangs cannot be said."
        )
    broken = sorted(o.rule.name for o in chosen.outcomes if o.status == "crashed" and o.rule.built_in)
    if broken:
        words["insufficient-evidence"] = (
            f"Nothing was found, but checks broke off: {', '.join(broken[:4])}. Whether all is well is not known."
        )
    actions = [
        _action(Action("collect-more", command=str(g["command"]) if g.get("command") else None, confidence="medium")) for g in gaps[:3]
    ]
    return base | {
        "status": verdict.status,
        "cause": None,
        "confidence": None if verdict.status == "insufficient-evidence" else verdict.confidence,
        "summary": words[verdict.status],
        "culprits": [],
        "first_divergence": None,
        "because": [],
        "explains": [],
        "remedy": None,
        "prevention": None,
        "actions": actions if verdict.status != "nothing-wrong" else [],
        "others": [],
        "alternatives": [],
        "would_refute": [],
    }


def _explained(
    writer: _Writer, root: Found, result: RunResult, people: Mapping[int, Mapping[str, object]], confidence: Confidence | None
) -> dict[str, object]:
    f = root.finding
    culprits = [writer.culprit(c, people) for c in blamed_by(f)]
    told = {c["rank"]: c for c in culprits}
    actions = (*f.actions, *(exclusions(f) if confidence == "high" else ()))
    return {
        "cause": f.cause,
        "confidence": f.confidence,
        "summary": mask(f"{sentence(f.title).removesuffix('.')}. {sentence(f.summary)}".strip()),
        "culprits": culprits,
        "first_divergence": _divergence(parting(f, *(result.resolver.get(view) for view in ("blockers", "progress", "groups", "endings")))),
        "because": [root.id],
        "explains": sorted(i for i, by in result.verdict.explained_by.items() if by == root.id),
        "remedy": f.remedy or None,
        "prevention": f.prevention or None,
        "actions": [_action(_where(a, told)) for a in actions],
        "alternatives": [
            {"cause": c, "culprits": [writer.culprit(Culprit(rank=r), people) for r in ranks], "against": why}
            for c, ranks, why in f.alternatives
        ],
        "would_refute": list(f.would_refute),
    }


def _divergence(d: Divergence | None) -> dict[str, object] | None:
    return None if d is None else {"process_group": d.process_group, "comm_id": d.comm_id, "seq": d.seq, "op": d.op}


_SOME_PID = re.compile(r"<pid(?: of the rank)?>")


def _where(a: Action, told: Mapping[object, Mapping[str, object]]) -> Action:
    """A command to run beside one rank, with the host and the process id that the verdict names for it."""
    if a.action not in _COLLECT or len(a.ranks) != 1 or a.command is None:
        return a
    known = told.get(a.ranks[0], {})
    host, pid = known.get("host"), known.get("pid")
    command = a.command if pid is None else _SOME_PID.sub(str(pid), a.command)
    return replace(a, command=command, hosts=a.hosts or names_of(host))


def _action(a: Action) -> dict[str, object]:
    return {
        "action": _COLLECT[0] if a.action in _COLLECT else a.action,
        "hosts": list(a.hosts),
        "gpus": list(a.gpus),
        "ranks": list(a.ranks),
        "command": a.command,
        "confidence": a.confidence,
        "where": a.where,
    }


def _rule(o: Outcome) -> dict[str, object]:
    return {
        "rule": o.rule.name,
        "title": o.rule.title,
        "code": o.rule.code,
        "status": o.status,
        "missing": list(o.missing),
        "thresholds": dict(o.thresholds),
        "error": o.error,
    }


def _case(inputs: Sequence[str], title: str, results: Sequence[RunResult], chosen: RunResult) -> dict[str, object]:
    resolver = chosen.resolver
    people = people_of(resolver)
    known = chosen.census
    comms = resolver.get("comms")
    first, last = _span(resolver)
    versions = sorted({str(p["nccl_version"]) for p in people.values() if p["nccl_version"]})
    backends = set()
    entries = resolver.words("fr_entries")
    if entries is not None:
        backends |= set(entries.select(pl.col("backend").drop_nulls().unique()).collect()["backend"].to_list())
    if comms is not None:
        backends.add("nccl")
    traced = resolver.get("trace_ranks")
    if traced is not None:
        told = traced.select("backend", "nccl_version").collect()
        backends |= set(told["backend"].drop_nulls())
        versions = sorted({*versions, *told["nccl_version"].drop_nulls()})
    if "nccl" in backends:
        versions = sorted({*versions, *values_in(resolver.get("fr_dumps"), "comm_lib_version")})
    listed, tested, released = _tested(resolver)
    # The tag of the process that prints a test's table is no count of its ranks.
    ranks = 0 if known.comms or known.groups else listed
    # Files of as many processes whose ranks are not known may be theirs.
    missing = known.missing if len(known.missing) > max(strangers(resolver), len(nameless_dumps(resolver))) else []
    hosts = {str(p["host"]) for p in people.values() if p["host"]} or tested | values_in(resolver.get("source_hosts"), "host")
    buses = {str(p["bus_id"]) for p in people.values() if p["bus_id"]}
    return {
        "title": title,
        "inputs": list(inputs),
        "world_size": max(known.world or 0, ranks) or None,
        "ranks_seen": max(len(known.seen), ranks, strangers(resolver) if known.world is None else 0),
        "ranks_missing": [] if ranks else missing[:ROWS],
        "hosts": sorted(hosts)[:ROWS],
        "gpus": sorted(buses | values_in(resolver.get("gpus"), "name") | values_in(resolver.get("bandwidth_devices"), "gpu"))[:ROWS],
        "nccl_versions": sorted({*versions, *released} or values_in(resolver.get("nccl_versions"), "version")),
        "torch_versions": _torch_versions(resolver),
        "backends": sorted(backends),
        "started_at": iso(first),
        "ended_at": iso(last),
        "communicators": known.comms,
        "process_groups": known.groups,
        "runs": [_run(r) for r in results],
    }


def _tested(resolver: Resolver) -> tuple[int, set[str], set[str]]:
    """Ranks, hosts and releases of NCCL that the heads of bandwidth tests list: of a test alone nothing else tells them."""
    frame = resolver.get("bandwidth_tests")
    tests = [] if frame is None else list(frame.select("ranks", "hosts", "nccl_version").collect().iter_rows())
    hosts = {str(h) for _, listed, _ in tests for h in listed or ()}
    return max((int(n) for n, _, _ in tests if n), default=0), hosts, {str(v) for _, _, v in tests if v}


def _torch_versions(resolver: Resolver) -> list[str]:
    """What machines say of their PyTorch; dumps and logs of PyTorch do not name its release."""
    facts = resolver.get("host_facts")
    if facts is None:
        return []
    told = facts.filter((pl.col("kind") == "version") & (pl.col("name") == "torch")).select(pl.col("value").drop_nulls().unique().sort())
    return [str(v) for v in told.collect()["value"].to_list()][:ROWS]


def _run(result: RunResult) -> dict[str, object]:
    first, last = _span(result.resolver)
    own: dict[str, object] = {"run": result.run.number, "attempt": result.run.attempt, "started_at": iso(first), "ended_at": iso(last)}
    return own | {"outcome": result.outcome}


def _span(resolver: Resolver) -> tuple[int | None, int | None]:
    frame = resolver.get("dumps")
    if frame is None:
        return None, None
    used = (
        frame.filter(pl.col("use").is_in(["chosen", "older", "beside"]))
        .select(pl.col("first_created_ns").min(), pl.col("last_created_ns").max())
        .collect()
    )
    first, last = used.row(0)
    return first, last


def _sources(store: Store, chosen: RunResult) -> tuple[list[dict[str, object]], int]:
    ranks: dict[int, int] = {}
    stale = values_in(chosen.resolver.get("dumps"), "source_id", pl.col("use") == "stale")
    owners = chosen.resolver.get("source_ranks")
    if owners is not None:
        ranks = dict(owners.filter(pl.col("rank").is_not_null()).select("source_id", "rank").collect().iter_rows())
    traced = chosen.resolver.get("trace_ranks")
    if traced is not None:
        ranks |= dict(traced.filter(pl.col("rank").is_not_null()).select("source_id", "rank").collect().iter_rows())
    hosts: dict[int, object] = {}
    located = chosen.resolver.get("source_hosts")
    if located is not None:
        hosts = dict(located.select("source_id", "host").collect().iter_rows())
    comms = chosen.resolver.get("comms")
    if comms is not None:
        hosts |= dict(comms.group_by("source_id").agg(pl.col("host").first()).collect().iter_rows())
    rows = store.sources.sort(pl.col("error").is_null(), pl.col("gaps").fill_null(0), "source_id", descending=[False, True, False])
    out = []
    for row in rows.head(ROWS).iter_rows(named=True):
        sid = row["source_id"]
        out.append(
            {
                "path": row["path"],
                "formats": list(row["formats"] or []),
                "host": hosts.get(sid),
                "ranks": [ranks[sid]] if sid in ranks else [],
                "run": chosen.run.number if sid not in chosen.run.foreign else None,
                "attempt": attempt_of(row["path"]),
                "bytes": row["bytes"],
                "lines": row["lines"],
                "records": row["records"],
                "gaps": row["gaps"],
                "unmodelled": row["unmodelled"],
                "foreign": row["foreign"],
                "stale": sid in stale,
                "error": row["error"],
                "duplicate_of": row["duplicate_of"],
            }
        )
    return out, rows.height
