"""Launcher and collector prefixes: peeled off the lines of a text source, keeping what each tells (rank, host, pid, time).

Most sources carry none, so each kind is looked for first and peeled only where it occurs. Kinds that could be ordinary text
(a number and a colon, a bare ``[3]``, a word and a colon) are peeled only where nearly every line of the source carries them.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

#: Share of non-empty lines that must carry an ambiguous prefix before it is believed.
_NEARLY_ALL = 0.9
_ROUNDS = 4
#: Words with which messages of the kernel and of programs begin: a column of them is no column of hosts.
_NO_HOST = (
    r"^(?:NVRM|IPv6|DMAR|AMD-Vi|mce|watchdog|rcu|nfs|rpc|Lustre|LustreError|perf|hrtimer|printk|traps|audit|oom_reaper|oom-kill|memory|TCP|VFS|"
    r"neighbour|nf_conntrack|iommu|EDAC|Oops|BUG|INFO|WARNING|WARN|ERROR|DEBUG|FATAL|CRITICAL|Error|Warning|Traceback|RuntimeError): "
)


@dataclass(frozen=True, slots=True)
class Prefix:
    """One kind of prefix: a pattern anchored at the line's start whose named groups are what it tells."""

    name: str
    pattern: str
    scope: str | None
    certain: bool


PREFIXES: tuple[Prefix, ...] = (
    # kubectl --timestamps and CRI: time, then maybe the stream and F/P
    Prefix("cri", r"^(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z) (?:(?:stdout|stderr) [FP] )?", None, True),
    # mpirun --timestamp-output
    Prefix("mpi-time", r"^(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}(?:\[)", None, True),
    # mpirun --tag-output, PRRTE
    Prefix("mpi", r"^\[(?:[\w.@-]*[,@])?(?P<rank>\d+)\]<(?:stdout|stderr|stddiag)>: ?", "global", True),
    Prefix("torch-rank", r"^\[rank(?P<rank>\d+)\]:(?: |$)?", "global", True),
    Prefix("accelerate", r"^\[rank=(?P<rank>\d+)\] ", "global", True),
    Prefix("torchrun-tee", r"^\[(?:default|trainer|worker|node)(?P<rank>\d+)\]:", "local", True),
    Prefix("ray", r"^\((?P<role>[\w.:-]+) pid=(?P<pid>\d+)(?:, ip=(?P<host>[\w.:-]+))?\) ", None, True),
    Prefix("compose", r"^(?P<host>[\w.-]+-\d+) +\| ", None, True),
    Prefix("kubectl", r"^\[pod/(?P<host>[\w.-]+)/[\w.-]+\] ", None, True),
    Prefix("srun", r"^ *(?P<rank>\d{1,6}): ", "task", False),
    Prefix("mpich", r"^\[(?P<rank>\d{1,6})\] ", "global", False),
    Prefix("pdsh", r"^(?P<host>[A-Za-z][\w.-]{1,62}): ", None, False),
)
_ANSI = r"\x1b\[[0-9;?]*[A-Za-z]"


def peel(lines: pl.DataFrame) -> pl.DataFrame:
    """``lines`` (``line_no``, ``text``) without colour codes, CR, NUL and prefixes, with the columns of what the prefixes said."""
    frame = _clean(lines).with_columns(
        hint_rank=pl.lit(None, dtype=pl.Int32()),
        hint_scope=pl.lit(None, dtype=pl.String()),
        hint_host=pl.lit(None, dtype=pl.String()),
        hint_pid=pl.lit(None, dtype=pl.Int64()),
        time_raw_ns=pl.lit(None, dtype=pl.Int64()),
        time_kind=pl.lit(None, dtype=pl.String()),
    )
    for _ in range(_ROUNDS):
        changed = False
        for prefix in PREFIXES:
            result = _apply(frame, prefix)
            if result is not None:
                frame, changed = result, True
        if not changed:
            break
    return frame


def _clean(lines: pl.DataFrame) -> pl.DataFrame:
    text = pl.col("text")
    marks = lines.select(
        ansi=text.str.contains("\x1b", literal=True).any(),
        cr=text.str.ends_with("\r").any(),
        nul=text.str.contains("\x00", literal=True).any(),
    ).row(0)
    for dirty, cleaned in zip(
        marks,
        (text.str.replace_all(_ANSI, ""), text.str.strip_chars_end("\r"), text.str.replace_all("\x00", "", literal=True)),
        strict=True,
    ):
        if dirty:
            lines = lines.with_columns(text=cleaned)
    return lines


def _apply(frame: pl.DataFrame, prefix: Prefix) -> pl.DataFrame | None:
    """The frame with this prefix peeled, or None where the source does not carry it."""
    carries = frame["text"].str.contains(prefix.pattern)
    if prefix.name == "pdsh":
        carries &= ~frame["text"].str.contains(_NO_HOST)
    hits = int(carries.sum() or 0)
    if not hits:
        return None
    if not prefix.certain:
        filled = int((frame["text"].str.len_bytes() > 0).sum() or 0)
        if filled < 2 or hits < _NEARLY_ALL * filled or frame["hint_scope"].drop_nulls().len() > hits // 2:
            return None
        # A redacted NCCL prefix such as "[0] NCCL INFO" is not a launcher's.
        if prefix.name in ("mpich", "pdsh") and bool(frame["text"].str.contains(r"^(?:\[\d+\] NCCL |[\w.-]+:\d+:\d+ )").any()):
            return None
    groups = frame["text"].str.extract_groups(prefix.pattern).struct
    told = {field: groups.field(field) for field in groups.fields}
    updates = {"text": pl.when(carries).then(pl.col("text").str.replace(prefix.pattern, "")).otherwise(pl.col("text"))}
    if prefix.name == "mpi-time":
        updates["text"] = pl.when(carries).then(pl.lit("[") + pl.col("text").str.replace(prefix.pattern, "")).otherwise(pl.col("text"))
    if "rank" in told:
        number = told["rank"].cast(pl.Int32, strict=False)
        # The innermost global rank wins over a task or local number peeled before.
        better = carries & (frame["hint_scope"].is_null() | pl.Series([prefix.scope == "global"] * frame.height))
        updates["hint_rank"] = pl.when(better).then(number).otherwise(pl.col("hint_rank"))
        updates["hint_scope"] = pl.when(better).then(pl.lit(prefix.scope)).otherwise(pl.col("hint_scope"))
    if "host" in told:
        updates["hint_host"] = pl.when(carries).then(told["host"]).otherwise(pl.col("hint_host"))
    if "pid" in told:
        updates["hint_pid"] = pl.when(carries).then(told["pid"].cast(pl.Int64, strict=False)).otherwise(pl.col("hint_pid"))
    if "iso" in told:
        stamp = told["iso"].str.strip_suffix("Z").str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit="ns", strict=False).cast(pl.Int64)
        updates["time_raw_ns"] = pl.when(carries).then(stamp).otherwise(pl.col("time_raw_ns"))
        updates["time_kind"] = pl.when(carries).then(pl.lit("epoch")).otherwise(pl.col("time_kind"))
    return frame.with_columns(**updates)
