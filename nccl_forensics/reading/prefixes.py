"""Launcher and collector prefixes: peeled off the lines of a text source, keeping what each tells (rank, host, pid, time).

Most sources carry none, so the first characters of all lines are looked at before any pattern is tried. Prefixes that could be ordinary
text (a number and a colon, a bare ``[3]``, a word and a colon) are peeled only where nearly every line of the source carries them, or
where text of a job is seen to follow them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl

#: Share of non-empty lines that must carry a prefix that could be ordinary text.
_NEARLY_ALL = 0.9
#: Lines looked at before a whole source is searched for such a prefix.
_SAMPLE = 1000
#: Fewer lines that begin with rising numbers may be the tasks of a job, each with one line.
_LEAST_NUMBERED = 5
#: How many prefixes may stand before a line (Kubernetes, mpirun, srun, torchrun, PyTorch).
_ROUNDS = 5

_ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)"
_CTIME = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}"
_BSD = r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
_LOCAL = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
#: A system log with ISO times is not a container's log: its own readers need the time and the host.
_ISO_SYSLOG = rf"^{_ISO} [\w.-]+ (?:kernel|[\w./@-]+\[\d+\]): "
#: What NCCL, PyTorch, launchers and the kernel's ring buffer begin their lines with.
_JOB = (
    r"^(?:\[\d{4}-[^\]]{4,40}\] )?(?:[\w.-]+:\d+:\d+ (?:\[-?\d+\] |NCCL CALL )|(?:\[\d+\] )?NCCL (?:INFO|WARN|version)"
    r"|\[rank\d+\]:|\[default\d+\]:|\[\d+,\d+\]<std|\[[IWEF]\d{3,4} \d|\[[IWEF] \w+\.cpp:|[IWEF]\d{4} \d\d:\d\d:|Traceback \(most recent"
    r"|\[ *\d+\.\d{6}\] |# nThread \d|\[ *\d+\] local )"
)
#: Names by which every host calls itself.
_ANY_HOST = ("localhost", "127.0.0.1")
#: What pdsh says itself among the lines of its hosts.
_PDSH_OWN = r"^pdsh@[\w.-]+: "
#: What a batch script with set -x says of itself beside the lines of srun's tasks, and srun and slurmstepd of theirs.
_SCRIPT_OWN = r"^(?:\+{1,4} |srun: |slurmstepd: )"
#: Words with which messages of the kernel and of programs begin, and names of devices: a column of them is no column of hosts.
_NO_HOST = (
    r"^(?:NVRM|IPv6|DMAR|AMD-Vi|mce|watchdog|rcu|nfs|rpc|Lustre|LustreError|perf|hrtimer|printk|traps|audit|oom_reaper|oom-kill|memory|TCP|VFS|"
    r"neighbour|nf_conntrack|iommu|EDAC|Oops|BUG|INFO|WARNING|WARN|ERROR|DEBUG|FATAL|CRITICAL|Error|Warning|Traceback|RuntimeError|"
    r"(?i:mlx|gpu|eth|ib|en[ops]|nvme|cpu|rank|step|epoch|card)[\w.-]*): "
)
#: JSON that each line is wrapped into: how it begins, and where the text and its time stand. Docker's json-file log driver, and what other
#: programs write of it; milabench's runner; what logcli prints of Loki (--output=jsonl).
_WRAPPED = (
    (r'^\{"log": ?"', "$.log", "$.time"),
    (r'^\{"event": ?"line", ?"data": ?"', "$.data", "$.time"),
    (r'^\{"labels": ?\{', "$.line", "$.timestamp"),
)
_ANSI = r"\x1b\[[0-9;?]*[A-Za-z]"
#: A progress bar (tqdm) ends no line, so that the next message of any writer follows it on the same one: all up to its rate and its
#: carriage return is bar, where text of a job follows; that text may cut it off before its rate. Rust's engine has no look-ahead: what
#: follows is a group.
_BAR = (
    r"^.*(?:\r|(?:it/s|s/it|[0-9]B/s| examples/s)[^\]\r]{0,400}\][ \r]*|[0-9]%\|[^|\r]{0,200}\|[^\]\r]{0,200}[0-9](?:s/i?|i?t?/s?))"
    r"((?:slurmstepd: |srun: |\[rank\d+\]:|\[default\d+\]:|\[[IWEF]\d{3,4} \d|\[[IWEF] \w+\.cpp:|[IWEF]\d{4} \d\d:\d\d:|[NR]CCL version "
    r"|(?:INFO|WARNING|ERROR):torch\.[\w.]{1,100}:|[\w.-]{1,64}:\d+:\d+ \[-?\d+\] |Traceback \(most recent|terminate called |Fatal Python error: ).*)$"
)


@dataclass(frozen=True, slots=True)
class Prefix:
    """One kind of prefix: a pattern anchored at the line's start whose named groups are what it tells.

    ``belief``: ``always`` where it is found; ``column`` where nearly all lines carry it and its values repeat; ``job`` where text of a job
    follows it in lines of the same ``unit`` (if it names none: somewhere, and nearly all lines carry it); ``numbered`` where nearly all
    lines carry it, its numbers rise from line to line, and text of a job follows somewhere. ``first``: the characters it can begin with, as
    a character class. ``keep``: what stays of the match. Repetitions of big classes are counted only where it matters: what such a count costs
    to compile is more than a short text costs to look at.
    """

    name: str
    first: str
    pattern: str
    belief: Literal["always", "column", "job", "numbered"] = "always"
    scope: Literal["global", "local", "task"] | None = None
    keep: str = ""

    @property
    def column_group(self) -> int:
        """The number of the group whose values a column of this prefix repeats."""
        groups = re.compile(self.pattern).groupindex
        return groups.get("rank") or groups["host"]

    @property
    def of_nearly_all(self) -> bool:
        """Whether it is believed only where nearly all lines of the source carry it."""
        return self.belief in ("column", "numbered") or (self.belief == "job" and "(?P<unit>" not in self.pattern)


PREFIXES: tuple[Prefix, ...] = (
    # Docker's json-file is unwrapped before all others; then kubectl --timestamps, CRI with its stream and F or P (part of a line), and the
    # column of times of CloudWatch's viewer
    Prefix("cri", r"[ \d]", rf"^(?: {{1,4}}\| )?(?P<iso>{_ISO}) (?:(?:stdout|stderr) [FP] ?|\| )?"),
    # Polyaxon's command line: 2026-11-22 10:00:00 UTC worker.1 -- text
    Prefix("polyaxon", r"\d", r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [A-Z]{3,4} [\w.-]{1,63} -- "),
    Prefix("mpi-time", "[MTWFS]", rf"^(?P<ctime>{_CTIME})(?P<next>[\[<])", keep="${next}"),
    # mpirun --tag-output [1,11]<stdout>: and PRRTE [prterun-host-123@1,3]<stdout>:
    Prefix("mpi", r"\[", r"^\[(?:[\w.@-]*[,@])?(?P<rank>\d+)\]<(?:stdout|stderr|stddiag)>:", scope="global"),
    # A viewer's or a cluster's clock or number before PyTorch's own prefix, or the blanks of a text that was moved in
    Prefix(
        "clock",
        r"[ \d\[]",
        rf"^(?: {{1,16}}|\[(?P<iso>{_ISO})\] |\[\d{{1,9}}\] |(?P<local>{_LOCAL}) |\d\d:\d\d:\d\d(?:[.,]\d{{1,9}})? )(?P<next>\[rank\d)",
        keep="${next}",
    ),
    # A reply that quotes a log
    Prefix("quoted", ">", r"^> ?", "job"),
    # A program that starts srun and passes on what it says: launch.py: srun#64: slurmstepd: error: Detected 1 oom_kill event
    Prefix("step-wrapper", r"\w", r"^(?:[\w.@#-]+: ){1,2}(?P<next>(?:slurmstepd|srun): error: )", keep="${next}"),
    # PyTorch's excepthook puts one blank after it, its C++ log none
    Prefix("torch-rank", r"\[", r"^\[rank(?P<rank>\d+)\]:(?: |$)?", scope="global"),
    Prefix("accelerate", r"\[", r"^\[rank=(?P<rank>\d+)\] ", scope="global"),
    # TorchX and NeMo-Run: role/replica, where torchrun on each replica goes on
    Prefix("torchx", "[A-Za-z]", r"^[A-Za-z][\w.-]{0,62}/\d{1,6} (?P<next>\[(?:default|rank)\d)", keep="${next}"),
    Prefix("torchrun-tee", r"\[", r"^\[(?:default|trainer|worker|node)(?P<rank>\d+)(?:\|\d+)?\]:", scope="local"),
    # vLLM's workers add their rank. With the remains of colour codes whose ESC a log viewer took away
    Prefix(
        "ray",
        r"[\[(]",
        r"^(?:\[\d+m)?\([\w.:/-]+ (?:rank=(?P<rank>\d+) )?pid=(?P<pid>\d+)(?:, ip=(?P<host>[\w.:-]+))?\)(?:\[0m)? ",
        scope="global",
    ),
    # SkyPilot: its rank counts hosts, and its pid is that of the shell which it started there
    Prefix("skypilot", r"\(", r"^\((?:head|worker\d{1,6}), rank=\d{1,6}, pid=\d{1,9}(?:, ip=(?P<host>[\w.:-]+))?\) "),
    Prefix("raylet", r"\(", r"^\(raylet(?:, ip=(?P<host>[\w.:-]+))?\) "),
    # Modal tells a container what the driver of its host said
    Prefix("modal", r"\[", r"^\[gpu-health\] \[[A-Z]{4,8}\] (?:GPU-[\w-]{1,64}: )?[A-Z][\w -]{0,40}: "),
    Prefix("kubectl", r"\[", r"^\[pod/(?P<host>[\w.-]+)/[\w.-]+\] "),
    Prefix("syslog", r"[A-Z\d]", rf"^(?:{_BSD}|(?P<iso>{_ISO})) (?P<host>[\w.-]+) (?P<unit>[\w./@-]+)\[(?P<pid>\d+)\]: ", "job"),
    # docker compose names a container project-service-1, docker-compose before 2.0 service_1; among what it says itself of building images
    Prefix("compose", r"\w", r"^(?P<host>[\w.-]+[-_]\d+) +\| ?", "column"),
    Prefix("compose-unit", r"\w", r"^(?P<unit>(?P<host>[\w.-]+[-_]\d+)) +\| ?", "job"),
    # Again, behind what was peeled before in the same round: a column of it is no column of a role's name
    Prefix("torch-rank-behind", r"\[", r"^\[rank(?P<rank>\d+)\]:(?: |$)?", scope="global"),
    Prefix("torchrun-role", r"\[", r"^\[[A-Za-z_][A-Za-z_-]*(?P<rank>\d+)\]:", "column", "local"),
    # Composer's launcher numbers the ranks of its host
    Prefix("composer", r"\[", r"^\[(?P<rank>\d{1,3})\]:(?P<next>\S|$)", "column", "local", keep="${next}"),
    Prefix("srun", r"[ \d]", r"^ *(?P<rank>\d{1,6}):(?: |$)", "column", "task"),
    Prefix("mpich", r"\[", r"^\[(?P<rank>\d{1,6})\] ", "column", "global"),
    # Launchers of one's own: rank3: text, Rank 3: text, rank3 | text
    Prefix("rank-column", "[Rr]", r"^[Rr]ank[ _-]?(?P<rank>\d{1,6})(?::| \||\|)(?: |$)", "column", "global"),
    # A host by its name or, as DeepSpeed's hostfile may hold it, by its address
    Prefix("pdsh", r"[A-Za-z\d]", r"^(?P<host>[A-Za-z][\w.-]{1,62}|\d{1,3}(?:\.\d{1,3}){3}):(?: |$)", "column"),
    # What a log viewer, grep -n or an issue's text put before every line: [812] text, 812: text, 812 text
    Prefix("numbered", r"[ \d\[]", r"^ *(?:\[(?P<number>\d{1,9})\] |(?P<number2>\d{1,9})(?::|\t| {1,2}|-))", "numbered"),
    # A bench runner's name and the stream: resnet.node3 [stderr] text
    Prefix("stream", r"\w", r"^[\w.@-]+ \[(?:stdout|stderr)\] ?"),
    # Loggers of inference servers around every line of a message: vLLM (ERROR 04-15 00:31:11 worker_base.py:574] text), SGLang ([time TP3]
    # text)
    Prefix("vllm", "[DIWEC]", r"^(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]+:\d{1,6}\] ?"),
    # Ray's own C++ log: [time,ms E pid tid] (raylet) logging.cc:108: text
    Prefix("ray-log", r"\[", rf"^\[(?P<local>{_LOCAL}) [DIWEFC] (?P<pid>\d+) \d+\] (?:\([\w-]+\) )?[\w./]+\.(?:cc|h|cpp):\d+: "),
    Prefix("sglang", r"\[", rf"^\[(?P<local>{_LOCAL})(?: (?:DP|TP|EP|PP|ATTN_TP)\d{{1,5}}){{1,4}}\] "),
    # A logger of the program that every line goes through: [2026-11-23 20:55:55,771] [rank 8] text
    Prefix(
        "logged-rank",
        r"\[",
        rf"^\[(?P<local>{_LOCAL})\] \[(?i:rank)[ :=_-]?(?P<rank>\d{{1,6}})\](?: |$)",
        "column",
        "global",
    ),
    # A logger's stamp before every line of a traceback: [time,ms] Traceback (most recent call last):
    Prefix(
        "stamped-traceback",
        r"\[",
        rf"^\[(?P<local>{_LOCAL})\] "
        r"(?P<next>Traceback \(most recent call last\):|  +\S|[\w.]{1,200}(?:Error|Exception|Interrupt)(?::|$))",
        keep="${next}",
    ),
    Prefix("stern", "[a-z]", r"^(?P<host>[a-z][a-z0-9.-]*-[a-z0-9]+) [a-z][a-z0-9-]* ", "job"),
    # What a filter puts before every line: ts and ts -s of moreutils, iperf3 --timestamps
    Prefix("stamp", r"[A-Z\d]", rf"^(?:(?P<ctime>{_CTIME})|(?P<local>{_LOCAL})|{_BSD})[ \t]", "job"),
)


#: Names of the prefixes that torch itself writes, and what its excepthook puts before each line of an exception that ends a rank (2.3 and
#: later); a launcher that tells ranks apart says nothing of their end.
_OF_TORCH, _EXCEPTHOOK = ("torch-rank", "torch-rank-behind"), r"^\[rank\d+\]: "


#: Of a source of which at least this share of lines carries no prefix, none is believed for standing in nearly all lines.
BARE_SHARE = 0.2


def peel(lines: pl.DataFrame, *, bare_left_out: bool = False) -> pl.DataFrame:
    """``lines`` (``line_no``, ``text``) without colour codes, CR, NUL and prefixes, with the columns of what the prefixes said.

    ``bare_left_out``: the source has other lines, at least ``BARE_SHARE`` of all, that carry no prefix and are left out here.
    """
    frame = _clean(lines).with_columns(
        hint_rank=pl.lit(None, dtype=pl.Int32()),
        hint_scope=pl.lit(None, dtype=pl.String()),
        hint_host=pl.lit(None, dtype=pl.String()),
        hint_pid=pl.lit(None, dtype=pl.Int64()),
        time_raw_ns=pl.lit(None, dtype=pl.Int64()),
        time_kind=pl.lit(None, dtype=pl.String()),
        marked=pl.lit(value=False),
    )
    frame = _unwrap(frame)
    asked = [prefix for prefix in PREFIXES if not (bare_left_out and prefix.of_nearly_all)]
    for _ in range(_ROUNDS):
        peeled = False
        likely = _likely(frame["text"], asked)
        for place, prefix in enumerate(asked):
            if prefix.name not in likely:
                continue
            carries = _carries(frame, prefix)
            if carries is not None:
                frame, peeled = _peel(frame, prefix, carries), True
                likely = _likely(frame["text"], asked[place + 1 :])
        if not peeled:
            break
    return frame


def _likely(text: pl.Series, prefixes: Sequence[Prefix]) -> frozenset[str]:
    """Names of the prefixes that a line may carry, by its first character; of a short text, those that a line does carry: one query for all
    of them, as a query costs more than looking at a few lines."""
    starts = "".join(start for start in text.str.slice(0, 1).unique().to_list() if start)
    fitting = [p for p in prefixes if re.search(p.first, starts)]
    if text.len() > 2 * _SAMPLE or len(fitting) < 2:
        return frozenset(p.name for p in fitting)
    column = pl.col("text").str
    found = pl.DataFrame({"text": text}).select(column.contains(p.pattern).any().alias(p.name) for p in fitting).row(0)
    return frozenset(p.name for p, here in zip(fitting, found, strict=True) if here)


def bare(text: pl.Series) -> pl.Series:
    """Which lines surely carry nothing that would be peeled but colour codes, CR and NUL, and do not even look as if."""
    clean = _clean(pl.DataFrame({"text": text}))["text"]
    starts = "".join(start for start in clean.str.slice(0, 1).unique().to_list() if start)
    looks = clean.str.contains("|".join(begins for begins, _, _ in _WRAPPED))
    for prefix in PREFIXES:
        if re.search(prefix.first, starts):
            looks |= clean.str.contains(prefix.pattern)
    return ~looks


def _clean(lines: pl.DataFrame) -> pl.DataFrame:
    text = pl.col("text")
    marks = lines.select(
        ansi=text.str.contains("\x1b", literal=True).any(),
        cr=text.str.ends_with("\r").any(),
        nul=text.str.contains("\x00", literal=True).any(),
        bar=text.str.contains_any(["it/s", "s/it", "B/s", " examples/s", "%|", "\r"]).any(),
    ).row(0)
    for dirty, cleaned in zip(
        marks,
        (
            text.str.replace_all(_ANSI, ""),
            text.str.strip_chars_end("\r"),
            text.str.replace_all("\x00", "", literal=True),
            text.str.replace(_BAR, "${1}"),
        ),
        strict=True,
    ):
        if dirty:
            lines = lines.with_columns(text=cleaned)
    return lines


def _unwrap(frame: pl.DataFrame) -> pl.DataFrame:
    """Lines that a log driver wrapped into JSON become the lines that the process wrote."""
    for begins, said, at in _WRAPPED:
        wrapped = frame["text"].str.contains(begins) & frame["text"].str.ends_with("}")
        if wrapped.any():
            frame = _unwrapped(frame, wrapped, said, at)
    return frame


def _unwrapped(frame: pl.DataFrame, wrapped: pl.Series, said: str, at: str) -> pl.DataFrame:
    text = pl.col("text").str
    some = frame.filter(wrapped).select("line_no", said=text.json_path_match(said), at=text.json_path_match(at))
    both = frame.join(some, on="line_no", how="left", maintain_order="left")
    known = pl.col("said").is_not_null()
    return both.with_columns(
        text=pl.when(known).then(pl.col("said").str.strip_chars_end("\r\n").str.replace_all(_ANSI, "")).otherwise("text"),
        time_raw_ns=pl.when(known).then(_instant("at")).otherwise("time_raw_ns"),
        time_kind=pl.when(known & _instant("at").is_not_null()).then(pl.lit("epoch")).otherwise("time_kind"),
    ).drop("said", "at")


def _carries(frame: pl.DataFrame, prefix: Prefix) -> pl.Series | None:
    """Which lines carry this prefix, or None where the source is not believed to."""
    text = frame["text"]
    if prefix.belief == "column" and frame.height > 2 * _SAMPLE:
        sample = text.head(_SAMPLE)
        if int(sample.str.contains(prefix.pattern).sum() or 0) < 0.5 * int((sample.str.len_bytes() > 0).sum() or 0):
            return None
    carries = text.str.contains(prefix.pattern)
    if prefix.name == "pdsh" and carries.any():
        carries = carries & ~text.str.contains(_NO_HOST)
    if prefix.name == "cri" and carries.any():
        carries = carries & ~text.str.contains(_ISO_SYSLOG)
    hits = int(carries.sum() or 0)
    if not hits:
        return None
    if prefix.belief == "column" and not _is_column(frame, prefix, carries, hits):
        return None
    if prefix.belief == "numbered" and not _rises(frame, prefix, carries, hits):
        return None
    return _of_a_job(frame, prefix, carries) if prefix.belief == "job" else carries


def _rises(frame: pl.DataFrame, prefix: Prefix, carries: pl.Series, hits: int) -> bool:
    """Whether nearly all lines begin with a number above that of the line before, and text of a job follows in one."""
    text = frame["text"]
    if hits < _LEAST_NUMBERED or hits < _NEARLY_ALL * int((text.str.len_bytes() > 0).sum() or 0):
        return False
    some = text.filter(carries)
    groups = some.str.extract_groups(prefix.pattern).struct
    numbers = pl.select(pl.coalesce(*(groups.field(g) for g in groups.fields)).cast(pl.Int64, strict=False)).to_series()
    return bool(
        (numbers.diff().drop_nulls() > 0).all() and some.str.replace(prefix.pattern, "").str.strip_prefix(" ").str.contains(_JOB).any()
    )


def _is_column(frame: pl.DataFrame, prefix: Prefix, carries: pl.Series, hits: int) -> bool:
    text = frame["text"]
    filled = int((text.str.len_bytes() > 0).sum() or 0)
    if prefix.name == "pdsh":
        filled -= int(text.str.contains(_PDSH_OWN).sum() or 0)
    if prefix.name == "srun":
        filled -= int(text.str.contains(_SCRIPT_OWN).sum() or 0)
    if filled < 2 or (hits < _NEARLY_ALL * filled and not (prefix.name == "srun" and _of_tasks(frame, prefix, carries))):
        return False
    if prefix.scope is not None and frame["hint_scope"].drop_nulls().len() > hits // 2:
        return False  # a rank is known already: what looks like one is text
    values = frame["text"].filter(carries).str.extract(prefix.pattern, prefix.column_group)
    if values.n_unique() * 2 > hits:
        return False  # numbered lines, or keys of values
    rest = frame.filter(carries).select(pl.col("text").str.replace(prefix.pattern, ""))["text"]
    if prefix.name == "mpich":
        # A redacted NCCL prefix such as "[0] NCCL INFO" is not a launcher's.
        return not rest.str.contains(r"^NCCL ").any()
    if prefix.name == "pdsh":
        several = values.n_unique() > 1 and values.str.contains(r"\d").all()
        return bool(several or rest.str.contains(_JOB).any())
    return True


def _of_tasks(frame: pl.DataFrame, prefix: Prefix, carries: pl.Series) -> bool:
    """Whether text of a job follows every number from 0 on, of two at least: what a batch script printed itself stands beside it."""
    some = frame["text"].filter(carries)
    number = some.str.extract(prefix.pattern, prefix.column_group).cast(pl.Int64, strict=False)
    writers = number.filter(some.str.replace(prefix.pattern, "").str.contains(_JOB)).unique()
    return writers.len() > 1 and set(writers) == set(number) == set(range(writers.len()))


def _of_a_job(frame: pl.DataFrame, prefix: Prefix, carries: pl.Series) -> pl.Series | None:
    """Lines of the units that are seen to write what jobs write: in a system log, other programs keep their heads."""
    some = frame.filter(carries).select("line_no", "text")
    job = some["text"].str.replace(prefix.pattern, "").str.contains(_JOB)
    if not job.any():
        return None
    groups = some["text"].str.extract_groups(prefix.pattern).struct
    if "unit" in groups.fields:
        units = groups.field("unit")
        some = some.filter(units.is_in(units.filter(job).unique().implode()))
    elif some.height < _NEARLY_ALL * int((frame["text"].str.len_bytes() > 0).sum() or 0):
        return None
    return frame["line_no"].is_in(some["line_no"].implode())


def _peel(frame: pl.DataFrame, prefix: Prefix, carries: pl.Series) -> pl.DataFrame:
    """The frame with this prefix taken off the lines that carry it. What stands nearer to the text is nearer to its writer."""
    groups = frame["text"].str.extract_groups(prefix.pattern).struct
    told = {name: groups.field(name) for name in groups.fields}
    rest = frame["text"].str.replace(prefix.pattern, prefix.keep)
    if prefix.name == "mpi":
        # mpirun tags each write, and a C++ stream without a buffer writes a line piece by piece.
        tags = pl.DataFrame({"rest": rest, "tag": frame["text"].str.extract(f"({prefix.pattern.removeprefix('^')})", 1)})
        rest = tags.select(pl.when(carries).then(pl.col("rest").str.split(pl.col("tag")).list.join("")).otherwise("rest"))["rest"]
    if prefix.name in ("mpi", "srun", "pdsh", "compose", "compose-unit", "numbered"):
        rest = _without_blank(rest, carries)
    updates = {"text": pl.when(carries).then(rest).otherwise("text")}
    if prefix.name in _OF_TORCH:
        updates["marked"] = pl.col("marked") | (carries & frame["text"].str.contains(_EXCEPTHOOK))
    if "rank" in told:
        better = (
            carries & told["rank"].is_not_null() & ((pl.col("hint_scope") != "global").fill_null(True) | pl.lit(prefix.scope == "global"))
        )
        updates["hint_rank"] = pl.when(better).then(told["rank"].cast(pl.Int32, strict=False)).otherwise("hint_rank")
        updates["hint_scope"] = pl.when(better).then(pl.lit(prefix.scope)).otherwise("hint_scope")
    if "host" in told:
        host = told["host"]
        updates["hint_host"] = pl.when(carries & host.is_not_null() & ~host.is_in(_ANY_HOST)).then(host).otherwise("hint_host")
    if "pid" in told:
        updates["hint_pid"] = pl.when(carries).then(told["pid"].cast(pl.Int64, strict=False)).otherwise("hint_pid")
    for name, instant, kind in (("iso", _instant, "epoch"), ("ctime", _local, "local-unzoned"), ("local", _unzoned, "local-unzoned")):
        if name in told:
            frame = frame.with_columns(told[name].alias(f"_{name}"))
            known = carries & instant(f"_{name}").is_not_null()
            if kind != "epoch":  # a clock with a zone tells more, wherever it stands
                known &= (pl.col("time_kind") != "epoch").fill_null(True)
            for column, value in (("time_raw_ns", instant(f"_{name}")), ("time_kind", pl.lit(kind))):
                updates[column] = pl.when(known).then(value).otherwise(updates.get(column, pl.col(column)))
    return frame.with_columns(**updates).drop("_iso", "_ctime", "_local", strict=False)


def _without_blank(rest: pl.Series, carries: pl.Series) -> pl.Series:
    """Some versions put one blank after the colon: it goes where every line has it, else blanks are the text's own indentation."""
    own = rest.filter(carries)
    filled = own.filter(own.str.len_bytes() > 0)
    return rest.str.replace("^ ", "") if filled.len() and filled.str.starts_with(" ").all() else rest


def _instant(column: str) -> pl.Expr:
    """Nanoseconds since the epoch of an ISO time with a zone."""
    text = pl.col(column).str.replace(",", ".", literal=True).str.replace(r"Z$", "+00:00")
    return text.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%z", time_unit="ns", strict=False).dt.epoch("ns")


def _local(column: str) -> pl.Expr:
    """Nanoseconds of a local time without a zone, as if it were UTC."""
    return (
        pl.col(column)
        .str.replace("  ", " 0", literal=True)
        .str.to_datetime("%a %b %d %H:%M:%S %Y", time_unit="ns", strict=False)
        .dt.epoch("ns")
    )


def _unzoned(column: str) -> pl.Expr:
    """Nanoseconds of an ISO time without a zone, as if it were UTC."""
    text = pl.col(column).str.replace(",", ".", literal=True).str.replace(" ", "T", literal=True)
    return text.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit="ns", strict=False).dt.epoch("ns")
