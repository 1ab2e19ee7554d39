"""The whole pass as one call: sources, tables, views, findings, verdict, report."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import polars as pl

from nccl_forensics.aside import written_aside
from nccl_forensics.cache import Cache
from nccl_forensics.errors import OutputError, UnusableEvidence, UsageError
from nccl_forensics.frames import engine_for
from nccl_forensics.limits import Limits
from nccl_forensics.query import newest_day, saved_store, select, table
from nccl_forensics.reading.bundle import Bundle, open_bundle
from nccl_forensics.reading.engine import Engine, default_engine, read_bundle
from nccl_forensics.redaction import Level, Redactor
from nccl_forensics.store import Store
from nccl_forensics.suppressions import Suppression, suppress

if TYPE_CHECKING:
    from nccl_forensics.changes import Differences
    from nccl_forensics.extras import Extras
    from nccl_forensics.gate import Demands, Gate
    from nccl_forensics.rules import Value

#: No report is bigger: its lists are bounded.
_REPORT_BYTES = 256 << 20
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Incident:
    """The result of an analysis: the report of the contract, what its pictures need, and the tables.

    Tables that are too big for memory lie in files that are removed with the incident. ``redactor`` made the report and the pictures fit to
    be shown and does the same to tables when they are written; ``table`` and ``sql`` give what was read.
    """

    report: dict[str, object]
    gathered: Extras | None
    store: Store
    redactor: Redactor = field(default_factory=lambda: Redactor("secrets"))

    @property
    def extras(self) -> Extras:
        """What pictures need: nothing where none were wanted."""
        from nccl_forensics.extras import Extras

        return Extras() if self.gathered is None else self.gathered

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that something in the evidence could fill."""
        return tuple(sorted(self.store.present | {"sources"}))

    def table(self, name: str) -> pl.LazyFrame:
        """A table or view. Raises ``UsageError`` for an unknown name, ``UnusableEvidence`` for a view that nothing can fill."""
        return table(self.store, name)

    def sql(self, query: str) -> pl.DataFrame:
        """Rows of a query in Polars' SQL over tables and views. Raises as ``query.select``."""
        return select(self.store, query)

    @property
    def verdict(self) -> Mapping[str, object]:
        """The verdict of the report."""
        verdict = self.report["verdict"]
        assert isinstance(verdict, dict)
        return verdict

    @property
    def findings(self) -> Sequence[Mapping[str, object]]:
        """The findings of the report, worst first."""
        return _findings(self)

    def html(self) -> str:
        """``postmortem.html``."""
        from nccl_forensics.reporters import html

        return html.render(self.report, self.extras)

    def markdown(self) -> str:
        """``postmortem.md``."""
        from nccl_forensics.reporters import markdown

        return markdown.render(self.report, self.extras)

    def json(self) -> bytes:
        """``report.json``."""
        from nccl_forensics.reporters import json_report

        return json_report.render(self.report)

    def _repr_html_(self) -> str:
        """What a notebook shows: the verdict, its proof and the findings."""
        from nccl_forensics.reporters import notebook

        return notebook.render(self.report, self.extras)

    def write_tables(self, folder: Path) -> list[Path]:
        """Every table as a parquet file, each whole or not at all, redacted like the report; returns the files. Raises ``OutputError``."""
        written = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name in sorted(self.store.present | {"sources"}):
                target = folder / f"{name}.parquet"
                with written_aside(target) as partial:
                    if self.redactor.level == "secrets":  # masked when it was read
                        self.store.scan(name).sink_parquet(partial, engine="streaming")
                    else:
                        self.redactor.table(name, self.store.scan(name).collect()).write_parquet(partial)
                written.append(target)
        except OSError as problem:
            raise OutputError(f"{folder}: tables cannot be written: {problem}") from problem
        return written


def analyze(
    inputs: Sequence[str | Path],
    *,
    engine: Engine | None = None,
    cache: Cache | None = None,
    scratch: Path | None = None,
    limits: Limits | None = None,
    overrides: Mapping[str, Mapping[str, Value]] | None = None,
    suppressions: Sequence[Suppression] = (),
    today: date | None = None,
    title: str | None = None,
    tables: Path | None = None,
    redact: Level = "secrets",
    progress: Progress | None = None,
    pictures: bool = True,
) -> Incident:
    """Analyse folders, archives and files; see the contract for what the report holds.

    ``overrides`` are thresholds by rule and name. ``suppressions`` are judged by ``today``, or without one by the newest day in the
    evidence; the findings that they fit stay in the report and are marked. With a ``cache`` (``nccl_forensics.cache.open_cache``), sources
    that were read before are not read again; the report is the same. ``scratch`` is where archives are unpacked and big tables lie.
    ``redact``: secrets are always masked; ``identity`` also puts pseudonyms for hosts, users, jobs, addresses and paths into the report,
    the figures and the tables that are written. Without ``pictures`` nothing is gathered for reports but ``report.json``, whose bytes are
    the same.

    Raises ``UnusableEvidence`` where nothing can be used, ``LimitReached`` where a bound is met, ``OutputError`` for ``tables``.
    """

    def finish(incident: Incident) -> Incident:
        if suppressions:
            suppress(_findings(incident), suppressions, today or newest_day(incident.store))
        return _redacted(incident, redact)

    # Names are learned from the pictures, too: pseudonyms are numbered as they are met.
    wanted = pictures or redact == "identity"
    return _pass(inputs, finish, engine, cache, scratch, limits, overrides, title, tables, progress, wanted)


def _pass(
    inputs: Sequence[str | Path],
    finish: Callable[[Incident], Incident],
    engine: Engine | None,
    cache: Cache | None,
    scratch: Path | None,
    limits: Limits | None,
    overrides: Mapping[str, Mapping[str, Value]] | None,
    title: str | None,
    tables: Path | None,
    progress: Progress | None,
    pictures: bool = True,
) -> Incident:
    """The incident as ``finish`` leaves it; with its tables written, and scratch removed now or with the incident."""
    bundle = open_bundle(inputs, limits=limits, scratch=scratch, fetch=engine is None or not engine.fetches)
    try:
        with engine_for(sum(member.bytes for member in bundle.members)):
            store = _read(bundle, engine, cache, progress, limits, digests=tables is not None)
            # Loaded now: what readers are forked from should hold what they need, and no more.
            from nccl_forensics.analysis import judged

            report, gathered = judged(bundle, store, overrides, title, progress, pictures)
            incident = finish(Incident(report, gathered, store))
            if tables is not None:
                incident.write_tables(tables)
    except BaseException:
        bundle.close()
        raise
    if store.on_disk:
        bundle.drop_sources()
        weakref.finalize(incident, bundle.close)
    else:
        bundle.close()
    return incident


def _redacted(incident: Incident, level: Level, *others: object) -> Incident:
    """The incident with its report and figures redacted; names in ``others`` are learned too."""
    redactor = Redactor(level)
    redactor.learn(incident.store, values=(incident.report, incident.gathered, *others))
    return replace(incident, report=redactor.report(incident.report), gathered=redactor.apply(incident.gathered), redactor=redactor)


def sql(
    inputs: Sequence[str | Path],
    query: str,
    *,
    engine: Engine | None = None,
    cache: Cache | None = None,
    scratch: Path | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> pl.DataFrame:
    """Rows of a query over the tables of evidence, or of a folder of tables that an analysis saved. Raises as ``analyze`` does."""
    saved = saved_store(Path(inputs[0])) if len(inputs) == 1 and Path(inputs[0]).is_dir() else None
    if saved is not None:
        return select(saved, query)
    with open_bundle(inputs, limits=limits, scratch=scratch, fetch=engine is None or not engine.fetches) as bundle:
        return select(_read(bundle, engine, cache, progress, limits), query)


def check(
    inputs: Sequence[str | Path],
    demands: Demands | None = None,
    *,
    baseline: str | Path | Mapping[str, object] | None = None,
    engine: Engine | None = None,
    cache: Cache | None = None,
    scratch: Path | None = None,
    limits: Limits | None = None,
    overrides: Mapping[str, Mapping[str, Value]] | None = None,
    today: date | None = None,
    redact: Level = "secrets",
    progress: Progress | None = None,
) -> tuple[Gate, Incident]:
    """Analyse, and hold the run against demands and the report of a good run; ``exit_code`` of the gate is that of the contract.

    Raises as ``analyze``, and ``UsageError`` for a baseline that is no report.
    """
    from nccl_forensics.gate import Demands, judge_run

    wanted = demands or Demands()
    good = read_report(baseline) if isinstance(baseline, str | Path) else baseline
    gates: list[Gate] = []

    def finish(incident: Incident) -> Incident:
        day = today or newest_day(incident.store)
        if wanted.suppressions:
            suppress(_findings(incident), wanted.suppressions, day)
        gate = judge_run(incident.report, wanted, good, day)  # before names are replaced: suppressions and the baseline hold real ones
        shown = _redacted(incident, redact, gate)
        gates.append(shown.redactor.apply(gate))
        return shown

    incident = _pass(inputs, finish, engine, cache, scratch, limits, overrides, None, None, progress)
    return gates[0], incident


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Two runs side by side: their reports, and what differs, ordered by what explains most."""

    before: Mapping[str, object]
    after: Mapping[str, object]
    differences: Differences


def compare(
    before: str | Path,
    after: str | Path,
    *,
    engine: Engine | None = None,
    cache: Cache | None = None,
    scratch: Path | None = None,
    limits: Limits | None = None,
    overrides: Mapping[str, Mapping[str, Value]] | None = None,
    redact: Level = "secrets",
    progress: Progress | None = None,
) -> Comparison:
    """Analyse two runs, or take their ``report.json`` (or the folder of an earlier analysis), and lay them side by side. Raises as
    ``analyze`` does.

    With ``redact`` a name that both runs have gets the same pseudonym.
    """
    from nccl_forensics.changes import differences

    redactor = Redactor(redact)

    def side(given: str | Path, title: str) -> Mapping[str, object]:
        earlier = _report_of(Path(given))
        if earlier is not None:
            return read_report(earlier)
        incident = analyze(
            [given], engine=engine, cache=cache, scratch=scratch, limits=limits, overrides=overrides, title=title, progress=progress
        )
        redactor.learn(incident.store)
        return incident.report

    sides = [side(given, title) for given, title in zip((before, after), _titles(before, after), strict=True)]
    redactor.learn(values=sides)
    one, other = (redactor.report(s) for s in sides)
    return Comparison(one, other, differences(one, other))


def _titles(before: str | Path, after: str | Path) -> tuple[str, str]:
    """The last names of both paths, with as many folders in front as tell them apart."""
    parts = [Path(given).parts for given in (before, after)]
    for count in range(1, max(len(p) for p in parts) + 1):
        one, other = ("/".join(p[-count:]) for p in parts)
        if one != other:
            return one, other
    return str(before), str(after)


def _report_of(given: Path) -> Path | None:
    """The report that a path stands for: itself, or that of a folder which `analyze -o` wrote; None for evidence."""
    file = given / "report.json" if (given / "postmortem.md").is_file() else given
    return file if _is_report(file) else None


def _is_report(file: Path) -> bool:
    """A ``report.json``, told by its content; its keys are sorted, so its schema stands late."""
    try:
        if not file.is_file() or file.stat().st_size > _REPORT_BYTES:
            return False
        with file.open("rb") as stream:
            return stream.read(1) == b"{" and b'"nccl-forensics/report/' in stream.read()
    except OSError:
        return False


def read_report(file: str | Path) -> dict[str, object]:
    """A ``report.json`` written earlier. Raises ``UsageError``."""
    try:
        report = orjson.loads(Path(file).read_bytes())
    except OSError as problem:
        raise UsageError(f"{file}: cannot be read: {problem.strerror}") from problem
    except orjson.JSONDecodeError as problem:
        raise UsageError(f"{file}: not valid JSON: {problem}") from problem
    from nccl_forensics.conclusions.assemble import SCHEMA

    schema = report.get("schema") if isinstance(report, dict) else None
    if not isinstance(schema, str) or not schema.startswith("nccl-forensics/report/"):
        raise UsageError(f"{file}: no report of nccl-forensics (it has no schema 'nccl-forensics/report/…')")
    if schema != SCHEMA:
        raise UsageError(f"{file}: its schema {schema!r} is not {SCHEMA!r}")
    return dict(report)


def _findings(incident: Incident) -> list[dict[str, object]]:
    findings = incident.report["findings"]
    assert isinstance(findings, list)
    return findings


def _read(
    bundle: Bundle,
    engine: Engine | None,
    cache: Cache | None,
    progress: Progress | None,
    limits: Limits | None,
    *,
    digests: bool = True,
) -> Store:
    step = (lambda done, total: progress("reading", done, total)) if progress is not None else None
    store = read_bundle(bundle, engine or default_engine(bundle, limits), step, cache, digests=digests)
    counted = store.sources.filter(pl.col("lines").is_not_null() & pl.col("error").is_null()).select("source_id", "lines")
    bundle.counted(dict(counted.iter_rows()))
    if not any(store.sources["formats"].list.len().fill_null(0).to_list()):
        raise UnusableEvidence(f"nothing recognised in {', '.join(bundle.inputs)}: {_why_nothing(store)}")
    return store


def _why_nothing(store: Store) -> str:
    errors = store.sources.filter(pl.col("error").is_not_null()).select("path", "error").head(3).rows()
    listed = "; ".join(f"{path}: {error}" for path, error in errors)
    return listed or "no file is of a kind that can be read (see `nccl-forensics formats`)"


__all__ = ["Comparison", "Incident", "analyze", "check", "compare", "read_report", "sql"]
