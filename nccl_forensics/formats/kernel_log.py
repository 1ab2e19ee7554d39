"""Kernel log in every clock style: dmesg, dmesg -T, dmesg -x --time-format=iso, /dev/kmsg, pstore, syslog, journalctl (also as JSON).

Time stays as written. A classic syslog line has no year: its time is kept as of the year 2000 with the kind ``local-yearless``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import orjson
import polars as pl

from nccl_forensics.facts.months import MONTHS
from nccl_forensics.formats._kernel_events import EVENTS, KEEP
from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Row, Text, TextFormat
from nccl_forensics.frames import typed
from nccl_forensics.grammar.lines import Extraction, load
from nccl_forensics.tables import TABLES
from nccl_forensics.values import pci
from nccl_forensics.values.units import is_number

_KERNEL_TAGS = ("kernel", "systemd-networkd", "NetworkManager", "wickedd")
_LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")
#: Styles whose lines belong to a kernel log whatever their text says.
_CERTAIN = ("kmsg", "decoded", "talos", "dmesg_t", "dmesg_iso", "bare_tag")
_YEARLESS = 2000
_STYLE = {
    "decoded": "dmesg-x",
    "dmesg_t": "dmesg-T",
    "dmesg_iso": "dmesg-iso",
    "bare_tag": "syslog",
    "syslog_iso": "syslog",
    "hosted": "dmesg",
    "dmesg_delta": "dmesg-e",
}


def read(text: Text) -> Reading:
    """Rows of every understood line; lines that only carry a kernel clock are claimed as unmodelled."""
    lines = text.lines
    heads = _heads(lines)
    extraction = load("kernel_log").extract(heads["body"])
    frame = heads.with_columns(kind=extraction.kind)
    styled = pl.col("style").is_not_null()
    # UCX, for one, writes clocks like dmesg's: such lines are believed only beside lines that are the kernel's beyond doubt.
    sure = int(frame.select((pl.col("kind").is_not_null() | pl.col("style").is_in(_CERTAIN)).sum()).item())
    kernel_tag = pl.col("tag").is_null() | pl.col("tag").is_in(_KERNEL_TAGS)
    known = pl.col("kind").is_not_null() & kernel_tag & (styled | (pl.col("body").str.len_bytes() == pl.col("whole").str.len_bytes()))
    ours = known | (styled & pl.lit(sure > 0 or bool(text.hits.height)))
    frame = frame.with_columns(known=known, ours=ours)
    frames = _frames(frame.with_columns(kind=pl.when("known").then("kind")), extraction)
    if not int(frame["ours"].sum()):
        return Reading()
    spans = _spans(frame.filter("ours"))
    if spans.height:
        frames["kernel_spans"] = spans
    claimed = frame.filter("ours")["line_no"]
    return Reading(frames=frames, lines=claimed, unmodelled=frame.filter(pl.col("ours") & ~pl.col("known"))["line_no"])


def _heads(lines: pl.DataFrame) -> pl.DataFrame:
    """``lines`` with ``style``, ``level``, ``host``, ``tag``, time and ``body`` (text after the head); decoded lines are read twice."""
    out = lines.with_row_index("row").with_columns(
        whole=pl.col("text").str.strip_chars(),
        body=pl.col("text").str.strip_chars(),
        style=pl.lit(None, dtype=pl.String()),
        level=pl.lit(None, dtype=pl.String()),
        host=pl.lit(None, dtype=pl.String()),
        tag=pl.lit(None, dtype=pl.String()),
        repeats=pl.lit(1, dtype=pl.UInt32()),
    )
    for _ in range(2):
        found = load("kernel_clock").extract(out["body"])
        if found.kind.null_count() == out.height:
            break
        parts = [_head(kind, frame) for kind, frame in found.frames.items()]
        told = pl.concat(parts, how="diagonal_relaxed")
        joined = out.join(told, on="row", how="left", suffix="_new", maintain_order="left")
        hit = pl.col("style_new").is_not_null()
        # The outer head was written later and nearer to the reader: its wall time beats the kernel's own clock inside.
        merged = [pl.coalesce(c, f"{c}_new").alias(c) for c in ("style", "level", "host", "tag")]
        dated = pl.col("time_raw_ns").is_not_null()
        times = [pl.when(dated).then(c).otherwise(f"{c}_new").alias(c) for c in ("time_raw_ns", "time_kind")]
        body = pl.when(hit).then(pl.col("body_new").fill_null("")).otherwise("body").alias("body")
        out = joined.select(
            *(c for c in out.columns if c not in ("style", "level", "host", "tag", "time_raw_ns", "time_kind", "body")),
            *merged,
            *times,
            body,
        )
    again = pl.col("body").str.extract_groups(r"^message repeated (?P<n>\d+) times: \[ ?(?P<text>.*)\]$")
    return out.with_columns(again=again).with_columns(
        repeats=pl.coalesce(pl.col("again").struct.field("n").cast(pl.UInt32, strict=False), "repeats"),
        body=pl.coalesce(pl.col("again").struct.field("text"), "body"),
    )


def _month() -> pl.Expr:
    """The English abbreviation of ``month``; a name of no known language stays, and its time is then not known."""
    name = pl.col("month").str.strip_chars_end(".").str.to_lowercase()
    known = pl.lit(None, dtype=pl.String())
    for begin, english in MONTHS:
        known = pl.coalesce(known, pl.when(name == begin).then(pl.lit(english)))
    return pl.coalesce(known, name.str.to_titlecase())


def _head(kind: str, frame: pl.DataFrame) -> pl.DataFrame:
    """What one kind of head says, under the common names."""
    columns = frame.columns
    text = (
        pl.col("text") if "text" in columns else pl.col("kernel_text") if "kernel_text" in columns else pl.lit(None, dtype=pl.String())
    ).str.strip_chars()
    exprs: dict[str, pl.Expr] = {"body": text, "style": pl.lit(kind)}
    if kind == "kmsg":
        exprs["time_raw_ns"] = pl.col("micros").cast(pl.Int64, strict=False) * 1000
        exprs["time_kind"] = pl.lit("monotonic")
    elif kind == "dmesg":
        parts = pl.col("seconds").str.split_exact(".", 1)
        whole = parts.struct.field("field_0").cast(pl.Int64, strict=False)
        exprs["time_raw_ns"] = whole * 1_000_000_000 + parts.struct.field("field_1").cast(pl.Int64, strict=False) * 1000
        exprs["time_kind"] = pl.lit("monotonic")
    elif kind == "dmesg_t":
        stamp = pl.concat_str("year", _month(), pl.col("day").str.zfill(2), "clock", separator=" ")
        exprs["time_raw_ns"] = stamp.str.to_datetime("%Y %b %d %H:%M:%S", time_unit="ns", strict=False).cast(pl.Int64)
        exprs["time_kind"] = pl.lit("local-unzoned")
    elif kind == "syslog":
        stamp = pl.concat_str(pl.lit(str(_YEARLESS)), _month(), pl.col("day").str.zfill(2), "clock", separator=" ")
        exprs["time_raw_ns"] = stamp.str.to_datetime("%Y %b %d %H:%M:%S", time_unit="ns", strict=False).cast(pl.Int64)
        exprs["time_kind"] = pl.lit("local-yearless")
    elif kind in ("dmesg_iso", "syslog_iso", "talos"):
        column = "iso_comma" if kind == "dmesg_iso" else "iso_dot"
        stamp = pl.col(column).str.replace(",", ".", literal=True).str.replace("Z$", "+00:00").str.replace(r"([+-]\d\d)(\d\d)$", "$1:$2")
        zoned = stamp.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%:z", time_unit="ns", time_zone="UTC", strict=False)
        exprs["time_raw_ns"] = zoned.cast(pl.Int64)
        exprs["time_kind"] = pl.lit("epoch")
    if "priority" in columns:
        number = pl.col("priority").cast(pl.Int32, strict=False) % 8
        exprs["level"] = number.replace_strict(dict(enumerate(_LEVELS)), default=None, return_dtype=pl.String())
    elif "level" in columns:
        exprs["level"] = pl.col("level")
    elif "talos_level" in columns:
        exprs["level"] = pl.col("talos_level").replace("warning", "warn")
    for name in ("host", "tag"):
        if name in columns:
            exprs[name] = pl.col(name)
    if kind == "bare_tag":
        exprs["tag"] = pl.lit("kernel")
    base = {n: pl.lit(None, dtype=t) for n, t in _HEAD.items()}
    wanted = (e.alias(f"{n}_new") for n, e in (base | exprs).items())
    return frame.select(pl.col("row"), *wanted)


_HEAD = typed("style:str level:str host:str tag:str time_raw_ns:i64 time_kind:str body:str")


def _spans(ours: pl.DataFrame) -> pl.DataFrame:
    styled = ours.filter(pl.col("style").is_not_null())
    if not styled.height:
        return TABLES["kernel_spans"].frame()
    grouped = (
        styled.group_by("host", "time_kind", maintain_order=True)
        .agg(
            pl.col("line_no").min(),
            pl.col("line_no").max().alias("end_line"),
            *(pl.col(c).first() for c in ("hint_rank", "hint_scope", "hint_host", "hint_pid")),
            pl.col("time_raw_ns").min().alias("first_time_raw_ns"),
            pl.col("time_raw_ns").max().alias("last_time_raw_ns"),
            pl.col("style").first().replace(_STYLE),
            pl.len().alias("count"),
        )
        .sort("line_no")
    )
    return TABLES["kernel_spans"].conform(grouped)


# ---- from line kinds to tables ----


def _rows(lines: pl.DataFrame, extraction: Extraction, kind: str) -> pl.DataFrame | None:
    """Rows of one kind with what their heads said, or None."""
    frame = extraction.frame(kind)
    if frame is None:
        return None
    context = lines.filter(pl.col("kind") == kind).with_columns(end_line=pl.lit(None, dtype=pl.UInt32()))
    if not context.height:
        return None
    keep = [c for c in KEEP if c not in frame.columns]
    return context.select("row", *keep, "repeats", said=pl.col("body")).join(frame, on="row", how="inner", maintain_order="left")


def _frames(lines: pl.DataFrame, extraction: Extraction) -> dict[str, pl.DataFrame]:
    def get(kind: str) -> pl.DataFrame | None:
        return _rows(lines, extraction, kind)

    built = {"xids": _xids(get), "sxids": _sxids(get), "oom_kills": _oom(get), "kernel_events": _events(get)}
    return {name: frame for name, frame in built.items() if frame.height}


Get = Callable[[str], pl.DataFrame | None]


def _xids(get: Get) -> pl.DataFrame:
    table = TABLES["xids"]
    parts: list[pl.DataFrame] = []
    rows = get("xid")
    message = pl.col("message").fill_null("")
    if rows is not None:
        recovery = message.str.extract_groups(
            r"changed from 0x[0-9a-fA-F]+ \([^)]*\) to 0x(?P<code>[0-9a-fA-F]+) \((?P<label>[^)]*)\)"
        ).struct
        nvlink5 = message.str.extract_groups(r"^(?P<unit>[A-Z0-9_]+(?:/[A-Z0-9_]+)?) +(?P<fatal>Fatal|Nonfatal) +XC").struct
        link = message.str.extract(r"(?:[Ll]ink) (-?\d+)").cast(pl.Int32, strict=False)
        memory = message.str.extract(r"(framebuffer|SRAM|DRAM|L2|register file)")
        where = message.str.extract(r"(\(GPC \d+, TPC \d+, SM \d+\)|partition \d+, subpartition \d+|ENGINE \S+ \S+)")
        parts.append(
            rows.with_columns(
                code=pl.col("code").cast(pl.Int32, strict=False),
                bus_id=pci.normal_expr(pl.col("bus")),
                pid=pl.col("pid").cast(pl.Int64, strict=False),
                comm=pl.when(pl.col("comm") != "<unknown>").then("comm"),
                link=pl.when(link >= 0).then(link),
                unit=pl.coalesce(nvlink5.field("unit"), memory),
                fatal=nvlink5.field("fatal").replace_strict({"Fatal": True, "Nonfatal": False}, default=None, return_dtype=pl.Boolean()),
                channel=message.str.extract(r"^Ch(?:annel)?(?: ID)? ([0-9a-fA-F]+)"),
                where=where,
                gpu_index=message.str.extract(r"from GPU(\d+) GSP").cast(pl.Int32, strict=False),
                action=recovery.field("label"),
                action_code=recovery.field("code").str.to_integer(base=16, strict=False),
                implied=pl.lit(False),
            )
        )
        # "Ch 00000002 caused by previous Xid 149": the line of the fault itself may have left the kernel's ring.
        before = rows.with_columns(code=message.str.extract(r"caused by previous Xid (\d{1,3})\b").cast(pl.Int32, strict=False))
        stated = rows.select(code=pl.col("code").cast(pl.Int32, strict=False), bus="bus")
        before = (
            before.filter(pl.col("code").is_not_null())
            .join(stated, on=["code", "bus"], how="anti")
            .unique(["code", "bus"], keep="first", maintain_order=True)
        )
        parts.append(
            before.with_columns(
                bus_id=pci.normal_expr(pl.col("bus")),
                pid=pl.col("pid").cast(pl.Int64, strict=False),
                fatal=pl.lit(True),
                implied=pl.lit(True),
            )
        )
    elif (asked := get("reset_required")) is not None:
        # The driver refuses calls until the GPU is reset: what Xid 154 says where its line is there.
        index = pl.col("gpu_index").cast(pl.Int32, strict=False)
        told = asked.with_columns(code=pl.lit(154), gpu_index=index, action=pl.lit(_RESET), message=pl.col("said"), implied=pl.lit(True))
        parts.append(told.unique("gpu_index", keep="first", maintain_order=True))
    off = get("gpu_off_bus")
    if off is not None:
        parts.append(off.with_columns(code=pl.lit(79), bus_id=pci.normal_expr(pl.col("bus")), message=pl.col("said"), implied=pl.lit(True)))
    probed, gone = get("probe_gpu"), get("probe_off_bus")
    if gone is not None:
        # The driver names the device one or two lines above ("(PCI ID: ...) installed in this system has" stands between).
        named = gone.join_asof(
            probed.select("row", at="row", bus="bus") if probed is not None else _nobody(), on="row", strategy="backward", tolerance=4
        )
        parts.append(
            named.with_columns(code=pl.lit(79), bus_id=pci.normal_expr(pl.col("bus")), message=pl.col("said"), implied=pl.lit(True))
        )
    return _stack(table.name, parts)


#: The action of an Xid 154 in its words.
_RESET = "GPU Reset Required"


def _nobody() -> pl.DataFrame:
    return pl.DataFrame(schema={"row": pl.UInt32(), "at": pl.UInt32(), "bus": pl.String()})


def _sxids(get: Get) -> pl.DataFrame:
    rows = get("sxid")
    if rows is None:
        return TABLES["sxids"].frame()
    message = pl.col("message").fill_null("")
    word = message.str.extract(r"^(Fatal|Non-fatal)").replace_strict(
        {"Fatal": True, "Non-fatal": False}, default=None, return_dtype=pl.Boolean()
    )
    frame = rows.with_columns(
        code=pl.col("code").cast(pl.Int32, strict=False),
        bus_id=pci.normal_expr(pl.col("bus")),
        switch=pl.col("switch").cast(pl.Int32, strict=False),
        link=message.str.extract(r"[Ll]ink (\d+)").cast(pl.Int32, strict=False),
        fatal=pl.coalesce(word, message.str.extract(r"^Severity (\d)").cast(pl.Int32, strict=False) == 1),
        reporter=pl.lit("kernel"),
    )
    return TABLES["sxids"].conform(frame)


def _oom(get: Get) -> pl.DataFrame:
    """One row per killed process: the constraint line before it, the cgroup's usage line, and the kill itself are one kill. Where the log
    breaks off before the first, one of who asked for memory."""
    kinds = ("oom_invoked", "oom_usage", "oom_constraint", "oom_killed", "oom_uid", "oom_score")
    parts = [f.with_columns(line_kind=pl.lit(k)) for k in kinds if (f := get(k)) is not None]
    if not parts:
        return TABLES["oom_kills"].frame()
    rows = pl.concat(parts, how="diagonal_relaxed").sort("row")
    kills: list[Row] = []
    pending: Row = {}
    asked: Row | None = None
    for row in rows.iter_rows(named=True):
        kind = row["line_kind"]
        if kind == "oom_invoked":
            asked, pending = row, {"invoked_by": row["comm_word"]}
        elif kind == "oom_usage":
            pending["limit_kb"] = _number(row["limit_kb"])
        elif kind == "oom_constraint":
            pending |= {
                "constraint": row["constraint"],
                "memcg": row.get("memcg"),
                "task_memcg": row.get("task_memcg"),
                "comm": row.get("comm_item"),
                "pid": _number(row.get("pid")),
                "first_line": row["line_no"],
            }
        else:
            pid = _number(row["pid"])
            last = kills[-1] if kills else {}
            if kind == "oom_killed" and last.get("pid") == pid and last.get("anon_kb") is None:
                last.update(_sizes(row))  # "Kill process … or sacrifice child" came first
                continue
            same = pending.get("pid", pid) == pid
            kill: Row = {c: row[c] for c in KEEP} | (pending if same else {})
            kill |= {"pid": pid, "comm": row["comm_paren"], "uid": _number(row.get("uid")), "message": row["said"]} | _sizes(row)
            if kill.get("constraint") is None and str(row.get("oom_scope") or "").startswith("Memory cgroup"):
                kill["constraint"] = "CONSTRAINT_MEMCG"
            kills.append(kill)
            pending = {}
    if pending.get("pid") is not None:  # the log ends between the constraint and the kill
        tail = rows.filter(pl.col("line_kind") == "oom_constraint").row(-1, named=True)
        kills.append({c: tail[c] for c in KEEP} | pending | {"message": tail["said"]})
    elif asked is not None and not kills:  # it ends before any: whom it took is not told
        kills.append({c: asked[c] for c in KEEP} | {"invoked_by": asked["comm_word"], "message": asked["said"]})
    frame = TABLES["oom_kills"].frame([{k: v for k, v in kill.items() if k != "first_line"} for kill in kills])
    return frame


def _sizes(row: Mapping[str, object]) -> Row:
    return {c: _number(row[c]) for c in ("total_kb", "anon_kb", "file_kb", "shmem_kb") if row.get(c) is not None}


def _number(value: object) -> int | None:
    text = str(value) if value is not None else ""
    return int(text) if is_number(text) else None


def _events(get: Get) -> pl.DataFrame:
    parts = [
        event.rows(_waits(rows, get("stack_frame")) if event.line == "hung_task" else rows)
        for event in EVENTS
        if (rows := get(event.line)) is not None
    ]
    return _stack("kernel_events", parts)


#: Lines below a hung task within which its stack stands, and the modules that tell what it waits for.
_STACK_LINES = 40
_MODULES = {
    "storage": ("nfs", "nfsv3", "nfsv4", "sunrpc", "lustre", "ptlrpc", "lov", "osc", "mdc", "llite", "ceph", "libceph", "fuse", "gpfs", "mmfs26", "beegfs", "wekafsio"),
    "gpu": ("nvidia", "nvidia_uvm", "nvidia_peermem", "amdgpu"),
}  # fmt: skip


def _waits(tasks: pl.DataFrame, frames: pl.DataFrame | None) -> pl.DataFrame:
    """Hung tasks with ``waits_in``: storage or gpu, by the first telling frame of the stack below each."""
    if frames is None:
        return tasks.with_columns(waits_in=pl.lit(None, dtype=pl.String()))
    word = {module: word for word, modules in _MODULES.items() for module in modules}
    told = frames.select("row", waits_in=pl.col("module").replace_strict(word, default=None, return_dtype=pl.String())).drop_nulls()
    return tasks.join_asof(told, on="row", strategy="forward", tolerance=_STACK_LINES)


def _stack(table: str, parts: list[pl.DataFrame]) -> pl.DataFrame:
    if not parts:
        return TABLES[table].frame()
    return TABLES[table].conform(pl.concat(parts, how="diagonal_relaxed").sort("row"))


# ---- journalctl -o json ----


def _sniff_journal(head: bytes) -> bool:
    return head.lstrip()[:1] == b"{" and b'"__REALTIME_TIMESTAMP"' in head


def read_journal(data: bytes) -> Reading:
    """``journalctl -o json``: one object per line, with the host and an epoch time of its own."""
    rows: list[Row] = []
    gaps: list[Gap] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            entry = orjson.loads(line)
            rows.append(_journal_row(number, entry))
        except (ValueError, AttributeError, TypeError) as problem:
            gaps.append(Gap(f"unparsed: {problem}"[:120], number, number, text=line[:200].decode("utf-8", "replace")))
    schema = {"line_no": pl.UInt32(), "host": pl.String(), "tag": pl.String(), "time_raw_ns": pl.Int64(), "body": pl.String()}
    lines = pl.DataFrame(rows, schema=schema).with_row_index("row")
    hints = {"hint_rank": pl.Int32(), "hint_scope": pl.String(), "hint_host": pl.String(), "hint_pid": pl.Int64()}
    extraction = load("kernel_log").extract(lines["body"].fill_null(""))
    lines = lines.with_columns(
        kind=pl.when(pl.col("tag").is_null() | pl.col("tag").is_in(_KERNEL_TAGS)).then(extraction.kind),
        time_kind=pl.lit("epoch"),
        style=pl.lit("journal-json"),
        repeats=pl.lit(1, dtype=pl.UInt32()),
        **{n: pl.lit(None, dtype=t) for n, t in hints.items()},
    )
    frames = _frames(lines, extraction)
    frames["kernel_spans"] = _spans(lines)
    return Reading(frames=frames, gaps=tuple(gaps), records=len(rows))


def _journal_row(number: int, entry: Mapping[str, object]) -> Row:
    message = entry.get("MESSAGE")
    if isinstance(message, list):  # not valid UTF-8: journald writes the bytes as numbers
        message = bytes(int(b) & 0xFF for b in message).decode("utf-8", "replace")
    micros = _number(entry.get("__REALTIME_TIMESTAMP"))
    return {
        "line_no": number,
        "host": entry.get("_HOSTNAME"),
        "tag": entry.get("SYSLOG_IDENTIFIER"),
        "time_raw_ns": micros * 1000 if micros is not None else None,
        "body": str(message).strip() if message is not None else "",
    }


_TABLES = ("xids", "sxids", "oom_kills", "kernel_events", "kernel_spans")

FORMATS = (
    TextFormat(
        name="kernel-log",
        title="Linux kernel log: dmesg in all clock styles, /dev/kmsg, pstore, journalctl -k, syslog, binary journals of systemd (*.journal)",
        tables=_TABLES,
        anchors=(
            "NVRM: ",
            "nvidia-nvswitch",
            "nvidia-peermem",
            "nvidia-nvlink:",
            " kernel: ",
            "kern  :",
            "oom-kill",
            "Out of memory: Kill",
            "emory cgroup out of memory",
            "oom_reaper:",
            "AER: ",
            "PCIe Bus Error",
            "mlx5_core",
            "ADDRCONF(NETDEV_",
            "BUG: ",
            "hard LOCKUP",
            "blocked for more than",
            "stall on CPU",
            "stalls on CPUs",
            "Kernel panic - not syncing",
            "[Hardware Error]",
            "EDAC MC",
            "DMAR: ",
            "AMD-Vi: ",
            " lost carrier",
            "link status definitely ",
            "without any active interface",
            " Link is ",
            "not responding, still trying",
            "LustreError: ",
            "Linux version ",
            "Command line: BOOT_IMAGE",
            "audit: type=",
            "segfault at ",
            "amdgpu ",
            "file-max limit",
            "systemd[1]: ",
            "page allocation failure",
            "infoROM is corrupted",
            "nf_conntrack: ",
            "invoked oom-killer",
            "Killed process ",
            "pcieport ",
            "error status/mask=",
            "Unable to change power state",
            "link status definitely",
            "Keep alive watchdog timeout",
            "nfs: server ",
            "Lustre: ",
            "nvme nvme",
            "EXT4-fs ",
            "XFS (",
            "SYN flooding on port",
            "neighbor table overflow",
            "Sending SIGBUS to",
            "cpu clock throttled",
            "Oops: ",
            "general protection fault",
            "callbacks suppressed",
            "interrupt took too long",
        ),
        read=read,
        priority=80,
    ),
    DocumentFormat(name="journal-json", title="journalctl -o json", tables=_TABLES, sniff=_sniff_journal, read=read_journal, priority=40),
)
