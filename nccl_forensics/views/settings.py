"""Settings of the communication stack, from NCCL's own lines and from dumps of environments, in one view."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import polars as pl

from nccl_forensics.facts.setting_effects import is_setting
from nccl_forensics.facts.settings import MUST_AGREE
from nccl_forensics.folding import FoldedTable
from nccl_forensics.frames import has_rows, typed
from nccl_forensics.views import view
from nccl_forensics.views.columns import read_at

SETTINGS = typed("name:str value:str ranks:list[i32] hosts:list[str] processes:u32 of:u32 differs:bool origin:str", read_at())

#: A process: (host, pid) of NCCL's prefix, ("rank", n) of a dump that names a rank, ("dump", source) of one that does not.
Who = tuple[object, object]


@dataclass(frozen=True, slots=True)
class _Said:
    """One statement: value, origin and place."""

    value: str | None
    origin: str
    source_id: int
    line_no: int | None
    record: str | None = None

    @property
    def order(self) -> tuple[int, int, str]:
        return (self.source_id, self.line_no or 0, self.record or "")


@dataclass(slots=True)
class _Known:
    """What is known of the processes while the tables are gone through."""

    rank_of: dict[Who, int] = field(default_factory=dict)
    host_of: dict[Who, str] = field(default_factory=dict)
    everyone: set[Who] = field(default_factory=set)
    said: dict[str, dict[Who, _Said]] = field(default_factory=lambda: defaultdict(dict))
    #: Processes whose whole environment is there: what it lacks is not set. The place is the dump's first row.
    whole: dict[Who, _Said] = field(default_factory=dict)


@view(rows="settings x values")
def settings(
    nccl_env: pl.LazyFrame | None,
    environment: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
    nccl_versions: pl.LazyFrame | None,
    source_ranks: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
) -> pl.LazyFrame:
    """Each setting and value with the ranks and hosts that show it. ``value`` is null for processes whose whole environment is in the
    evidence without the setting, where another process has it. ``origin`` is nccl (a line of NCCL's log: what the process really read) or
    environment (a dump). ``differs``: the processes do not all show the same value; a process without a line of NCCL's log counts only for
    settings that every rank reads early (it may not have read others yet). A dump without a rank speaks only for settings of which no
    process speaks itself.
    """
    known = _Known()
    if processes is not None:
        for host, pid, rank, line in processes.select("host", "pid", "rank", "line_no").collect().iter_rows():
            if rank is not None:
                known.rank_of[(host, pid)] = rank
            if line is not None and pid is not None and (nccl_env is not None or nccl_versions is not None):
                known.everyone.add((host, pid))
    if nccl_env is not None:
        _nccl(known, nccl_env)
    if environment is not None:
        _dumps(known, environment, _pairs(source_ranks, "rank"), _pairs(source_hosts, "host"))
    return pl.DataFrame(list(_rows(known)), schema=SETTINGS, infer_schema_length=None).lazy()


#: Families of variables that only NCCL and RCCL read, and the libraries that they move data with; and those that decide how its kernels
#: overlap others.
_OF_NCCL = r"^(?:NCCL|RCCL|MSCCL|OFI_NCCL|FI|TORCH_NCCL)_|^CUDA_LAUNCH_BLOCKING$|^CUDA_DEVICE_MAX_CONNECTIONS$"


@view(rows="settings x values")
def job_settings(
    settings: pl.LazyFrame,
    comms: pl.LazyFrame | None,
    nccl_env: pl.LazyFrame | None,
    nccl_versions: pl.LazyFrame | None,
    trace_ranks: pl.LazyFrame | None,
    fr_entries: pl.LazyFrame | FoldedTable | None,
) -> pl.LazyFrame:
    """``settings`` without those of NCCL where all that is known of the job is that it communicates through other libraries: such a setting
    stands in many an environment and does nothing there."""
    if any(has_rows(t) for t in (comms, nccl_env, nccl_versions)):
        return settings
    told: set[object] = set()
    if trace_ranks is not None:
        told |= set(trace_ranks.select(pl.col("backend").drop_nulls().unique()).collect()["backend"])
    if fr_entries is not None:
        words = fr_entries.words.lazy() if isinstance(fr_entries, FoldedTable) else fr_entries
        told |= set(words.select(pl.col("backend").drop_nulls().unique()).collect()["backend"])
    unused = bool(told) and not any("nccl" in str(name) for name in told)
    return settings.filter(~pl.col("name").str.contains(_OF_NCCL)) if unused else settings


def _pairs(frame: pl.LazyFrame | None, column: str) -> dict[int, object]:
    if frame is None:
        return {}
    return dict(frame.filter(pl.col(column).is_not_null()).select("source_id", column).collect().iter_rows())


def _nccl(known: _Known, nccl_env: pl.LazyFrame) -> None:
    """The first line of each process and setting counts."""
    valid = nccl_env.filter(pl.col("name").is_not_null() & ~pl.col("invalid").fill_null(False)).sort("source_id", "line_no")
    for name, value, host, pid, source, line in valid.select("name", "value", "host", "pid", "source_id", "line_no").collect().iter_rows():
        who = (host, pid)
        text = str(value if value is not None else "").removesuffix(".")
        known.said[name].setdefault(who, _Said(text, "nccl", source, line))
        known.everyone.add(who)
        if host is not None:
            known.host_of.setdefault(who, str(host))


def _dumps(known: _Known, environment: pl.LazyFrame, rank_of_source: dict[int, object], host_of_source: dict[int, object]) -> None:
    """Dumps that name a rank are the process of that rank; the others are remembered for what nobody says."""
    process_of: dict[int, list[Who]] = defaultdict(list)
    for process, number in sorted(known.rank_of.items(), key=lambda x: (x[1], str(x[0]))):
        process_of[number].append(process)
    columns = ["source_id", "line_no", "record", "rank", "hint_rank", "hint_scope", "host", "hint_host", "name", "value"]
    loose: dict[str, dict[Who, _Said]] = defaultdict(dict)
    rows = environment.select(columns).sort("source_id", "line_no", "record", nulls_last=True, maintain_order=True).collect()
    for row in rows.iter_rows(named=True):
        source = row["source_id"]
        hinted = row["hint_rank"] if row["hint_scope"] == "global" else None
        told = next((r for r in (row["rank"], hinted, rank_of_source.get(source)) if r is not None), None)
        rank = int(str(told)) if told is not None else None
        own = process_of.get(rank, []) if rank is not None else []
        who: Who = own[0] if len(own) == 1 else ("rank", rank) if rank is not None else ("dump", source)
        host = row["host"] or row["hint_host"] or host_of_source.get(source)
        if host:
            known.host_of.setdefault(who, str(host).split(".", 1)[0])
        said = _Said(row["value"] or "", "environment", source, row["line_no"], row["record"])
        if rank is not None:
            known.rank_of.setdefault(who, rank)
            known.everyone.add(who)
            known.whole.setdefault(who, said)
        if row["name"] and is_setting(str(row["name"])):
            (known.said if rank is not None else loose)[str(row["name"])].setdefault(who, said)
    for name, owners in loose.items():
        if name not in known.said:
            known.said[name] = owners


def _rows(known: _Known) -> list[dict[str, object]]:
    out: list[dict[str, object]] = []
    for name in sorted(known.said):
        owners = dict(known.said[name])
        everyone = known.everyone | set(owners)
        # Where the log is what is known of a process, a line that is not there may just not have been written yet.
        unset = {who: place for who, place in known.whole.items() if who not in owners}
        loose = all(who[0] == "dump" for who in owners)
        if not loose:
            owners.update({who: _Said(None, "environment", p.source_id, p.line_no, p.record) for who, p in unset.items()})
        values: dict[str | None, list[Who]] = defaultdict(list)
        for who, said in owners.items():
            values[said.value].append(who)
        absent = name in MUST_AGREE and not loose and len(owners) < len(everyone)
        for value in sorted(values, key=lambda v: (v is None, v or "")):
            group = values[value]
            first = min((owners[w] for w in group), key=lambda s: s.order)
            out.append(
                {
                    "name": name,
                    "value": value,
                    "ranks": sorted({known.rank_of[w] for w in group if w in known.rank_of}),
                    "hosts": sorted({known.host_of[w] for w in group if w in known.host_of}),
                    "processes": len(group),
                    "of": len(everyone),
                    "differs": len(values) > 1 or absent,
                    "origin": "nccl" if any(owners[w].origin == "nccl" for w in group) else "environment",
                    "source_id": first.source_id,
                    "line_no": first.line_no,
                    "record": first.record,
                }
            )
    return out
