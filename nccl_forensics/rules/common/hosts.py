"""What rules about hosts and GPUs share: whose evidence a row is, and which ranks stand behind a host, a GPU or a process."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

import polars as pl

from nccl_forensics.evidence import AT_MOST, cite, whereabouts
from nccl_forensics.frames import has_rows, ranks_in
from nccl_forensics.model import Culprit, Evidence, Finding
from nccl_forensics.rules.common.errors import hosts_of
from nccl_forensics.values import pci
from nccl_forensics.words import UNIDENTIFIED, first_label


def located(table: pl.LazyFrame, source_hosts: pl.LazyFrame | None) -> pl.DataFrame:
    """The rows with ``host``: what the line states, then the launcher's prefix, then what is known of the source; null if nothing is."""
    frame = table.collect()
    if source_hosts is not None and frame.height:
        known = source_hosts.select("source_id", source_host="host").unique("source_id").collect()
        frame = frame.join(known, on="source_id", how="left", maintain_order="left")
    else:
        frame = frame.with_columns(source_host=pl.lit(None, dtype=pl.String()))
    stated = [c for c in ("host", "hint_host", "source_host") if c in frame.columns]
    return frame.with_columns(host=pl.coalesce(stated)).drop("source_host")


def homes(net_addresses: pl.LazyFrame | None, source_hosts: pl.LazyFrame | None) -> dict[str, str]:
    """Hosts by the addresses that they alone bear."""
    if net_addresses is None:
        return {}
    known = located(net_addresses, source_hosts).drop_nulls(["host", "address"])
    return dict(known.filter(pl.col("host").n_unique().over("address") == 1).select("address", "host").iter_rows())


def refused(
    nccl_errors: pl.LazyFrame | None, exceptions: pl.LazyFrame | None, source_hosts: pl.LazyFrame | None, says: pl.Expr, columns: list[str]
) -> pl.DataFrame:
    """Exceptions that say that the host refused something, in the order of their lines. None where NCCL itself says so: that is judged by
    a rule of its own, and the framework then only repeats it."""
    in_nccl = nccl_errors is not None and has_rows(nccl_errors.filter(says))
    if exceptions is None or in_nccl:
        return pl.DataFrame(schema=dict.fromkeys(columns, pl.String()))
    return located(exceptions.filter(says), source_hosts).select(columns).sort("source_id", "line_no")


def addressed(
    rows: pl.DataFrame, gpus: pl.LazyFrame | None, kernel_events: pl.LazyFrame | None, source_hosts: pl.LazyFrame | None
) -> pl.DataFrame:
    """Rows with ``uuid``, ``host`` and ``bus_id``: where a tool or the kernel tells where the GPU of a UUID sits, host and address are its.

    UUIDs are unique in the world, so the place that one states outweighs the host that is guessed from a file. One that is nowhere told
    stands for the address itself.
    """
    if "uuid" not in rows.columns or not rows["uuid"].is_not_null().any():
        return rows
    told = []
    if gpus is not None:
        told.append(located(gpus, source_hosts).select("uuid", "host", "bus_id"))
    if kernel_events is not None:
        named = kernel_events.filter((pl.col("kind") == "gpu-name") & pl.col("detail").str.starts_with("GPU-"))
        told.append(located(named, source_hosts).select(uuid="detail", host="host", bus_id="device"))
    if told:
        places = pl.concat(told).drop_nulls(["uuid", "bus_id"]).unique(maintain_order=True)
        sure = places.filter(pl.struct("host", "bus_id").n_unique().over("uuid") == 1)
        rows = rows.join(sure.rename({"host": "_host", "bus_id": "_bus"}), on="uuid", how="left", maintain_order="left").with_columns(
            host=pl.coalesce("_host", "host"), bus_id=pl.coalesce("bus_id", "_bus")
        )
    return rows.with_columns(bus_id=pl.coalesce("bus_id", "uuid")).drop("_host", "_bus", strict=False)


_HOUR_NS = 3600 * 1_000_000_000
_YEAR_NS = 366 * 24 * _HOUR_NS


def timely(rows: pl.DataFrame, job_times: pl.LazyFrame | None, hours: float) -> pl.Series:
    """Whether each row may lie in the job's time, widened by ``hours`` on both sides. What has no wall time is given the benefit of
    doubt. Where either states no year, days and clocks are compared."""
    slack = int(hours * _HOUR_NS)
    return _timed(rows, job_times, lambda time, first, last: time.is_between(first - slack, last + slack))


def zoned(rows: pl.DataFrame, job_times: pl.LazyFrame | None, seconds: float) -> pl.Series:
    """Whether each row lies in the job's time, widened by ``seconds`` on both sides, or would on a clock of another zone: such differ by
    whole half hours."""
    slack = int(seconds * 1e9)
    return _timed(rows, job_times, lambda time, first, last: (time - (first - slack)) % (_HOUR_NS // 2) <= last - first + 2 * slack)


def after_the_end(rows: pl.DataFrame, job_times: pl.LazyFrame | None, seconds: float) -> pl.Series:
    """Whether each row lies more than ``seconds``, but less than a quarter of an hour, after the last that the job told of its failure:
    later ones may be of another zone."""
    least, most = int(seconds * 1e9), _HOUR_NS // 4
    return _timed(rows, job_times, lambda time, _, last: time.is_between(last + least, last + most), undated=False)


def at_the_stop(rows: pl.DataFrame, job_times: pl.LazyFrame | None, seconds: float) -> pl.Series:
    """Whether each row lies within ``seconds`` of the beginning of the call that the job waited for in vain."""
    slack = int(seconds * 1e9)
    return _timed(rows, _stalled(job_times), lambda time, first, _: time.is_between(first - slack, first + slack), undated=False)


def while_it_stood(rows: pl.DataFrame, job_times: pl.LazyFrame | None, seconds: float) -> pl.Series:
    """Whether each row lies between the beginning of that call, less ``seconds``, and the last that the job told of it."""
    slack = int(seconds * 1e9)
    return _timed(rows, _stalled(job_times), lambda time, first, last: time.is_between(first - slack, last), undated=False)


def _stalled(job_times: pl.LazyFrame | None) -> pl.LazyFrame | None:
    """The window of a job in which something timed out, from when that began."""
    return job_times.drop_nulls("stalled_raw_ns").with_columns(first_raw_ns="stalled_raw_ns") if job_times is not None else None


def _timed(
    rows: pl.DataFrame,
    job_times: pl.LazyFrame | None,
    fits: Callable[[pl.Expr, pl.Expr, pl.Expr], pl.Expr],
    *,
    undated: bool = True,
) -> pl.Series:
    """``fits`` of the time of each row and the ends of the job's window: of the year 2000, as of which times without a year are kept, where
    either states none. ``undated`` is the answer for what has no wall time."""
    window = job_times.collect() if job_times is not None else None
    if window is None or not window.height:
        return pl.Series("timely", [undated] * rows.height, dtype=pl.Boolean)
    first, last = (pl.lit(int(window[c][0]), dtype=pl.Int64()) for c in ("first_raw_ns", "last_raw_ns"))
    time, kind = pl.col("time_raw_ns"), pl.col("time_kind")
    began, ended = (first, last) if window["yearless"][0] else (_of_2000(first), _of_2000(last))
    # A window over New Year's Eve ends before it begins; one that is close to it meets times of its other side.
    ended = pl.when(ended < began).then(ended + _YEAR_NS).otherwise(ended)
    alike = pl.any_horizontal(fits(_of_2000(time) + turn, began, ended) for turn in (-_YEAR_NS, 0, _YEAR_NS))
    wall = alike if window["yearless"][0] else fits(time, first, last)
    told = pl.when(kind.is_in(["epoch", "local-unzoned"])).then(wall).when(kind == "local-yearless").then(alike).otherwise(undated)
    return rows.select(told.fill_null(undated).alias("timely")).to_series()


def _of_2000(time: pl.Expr) -> pl.Expr:
    """The same day and clock of the year 2000, which was a leap year."""
    return time.cast(pl.Datetime("ns")).dt.replace(year=2000).cast(pl.Int64)


def near_job(rows: pl.DataFrame, job_times: pl.LazyFrame | None, near_s: float, window_h: float) -> pl.DataFrame:
    """The rows with ``close`` (the clock says that it happened in the job's time, ``near_s`` allowed on both sides) and ``inside`` (it may
    have).

    A time that names its zone and is not close is another one's. Local times may be off by ``window_h``; a time since boot says nothing.
    """
    dated = has_rows(job_times)
    kind = rows["time_kind"]
    wall = kind.is_in(["epoch", "local-unzoned", "local-yearless"]).fill_null(False)
    close = timely(rows, job_times, near_s / 3600) & wall & dated
    elsewhere = (kind == "epoch").fill_null(False) & dated
    return rows.with_columns(close=close, inside=close | (timely(rows, job_times, window_h) & ~elsewhere))


def untimely_finding(rows: pl.DataFrame, what: str) -> Finding:
    """Context: events of a host that lie outside the job's time are named, cited and not judged."""
    hosts = hosts_of(rows)
    count = rows.height
    return Finding(
        title=f"{count} {what} {'lies' if count == 1 else 'lie'} outside the time of the job and {'is' if count == 1 else 'are'} not judged",
        summary="The host's log reaches beyond the job. Old events explain nothing here, but may speak of a host that fails again and again.",
        severity="info",
        confidence="medium",
        hosts=hosts,
        culprits=tuple(Culprit(host=h) for h in hosts),
        subject=(what, "outside", *hosts),
        evidence=cite(rows, "outside the time of the job"),
        evidence_total=count,
        would_refute=("the clocks of host and job differ by more than a day",),
    )


@dataclass(frozen=True, slots=True)
class Placement:
    """What puts a rank on a GPU that no line of its own names, and what would refute it."""

    lines: tuple[Evidence, ...]
    would_refute: str


@dataclass(frozen=True, slots=True)
class People:
    """Ranks by host, by GPU and by process."""

    gpus: dict[tuple[str | None, str], int] = field(default_factory=dict)
    pids: dict[tuple[str | None, int], int] = field(default_factory=dict)
    hosts: dict[str, list[int]] = field(default_factory=dict)
    by_bus: dict[str, set[int]] = field(default_factory=dict)
    by_pid: dict[int, set[int]] = field(default_factory=dict)
    indices: dict[tuple[str | None, int], int] = field(default_factory=dict)
    #: Ranks that no log of their own tells: placed by the lines of neighbouring hosts (view ``placements``), or by how they stand or lag
    #: (``place_by_stall``, ``place_by_word``, ``place_by_pace``).
    placed: dict[int, Placement] = field(default_factory=dict)

    def of_gpu(self, host: object, bus_id: object) -> int | None:
        """The rank on a GPU; without a host only where one rank of the job sits on that address."""
        if bus_id is None:
            return None
        if host is not None:
            return self.gpus.get((first_label(host), str(bus_id)))
        ranks = self.by_bus.get(str(bus_id), set())
        return next(iter(ranks)) if len(ranks) == 1 else None

    def of_index(self, host: object, index: object) -> int | None:
        """The rank on the GPU with this NVML index, which is nvidia-smi's; only where the host is known."""
        return self.indices.get((first_label(host), int(str(index)))) if host is not None and index is not None else None

    def of_listed(self, host: object, bus_id: object, index: object) -> int | None:
        """The rank on the GPU of a listing that gives its address, or but its index."""
        return self.of_gpu(host, bus_id) if bus_id is not None else self.of_index(host, index)

    def of_pid(self, host: object, pid: object) -> int | None:
        """The rank of a process; where its host or that of the rank is not known, or their hosts bear names of another make (a machine's,
        where theirs are of containers), only if no other rank has that pid."""
        if pid is None:
            return None
        number = int(str(pid))
        if host is not None and (first_label(host), number) in self.pids:
            return self.pids[(first_label(host), number)]
        ranks = self.by_pid.get(number, set())
        unnamed = host is None or (None, number) in self.pids or not kin(first_label(host) or "", self.hosts)
        return next(iter(ranks)) if len(ranks) == 1 and unnamed else None

    def of_host(self, host: object) -> tuple[int, ...]:
        """All ranks of a host."""
        return tuple(sorted(self.hosts.get(first_label(host) or "", ())))


def people(processes: pl.LazyFrame | None, placements: pl.LazyFrame | None = None) -> People:
    """From the ``processes`` view, and where given from ``placements`` for the GPUs that it leaves out; empty without."""
    found = People()
    if processes is not None:
        _tell(found, processes)
    if placements is not None:
        _place(found, placements.collect())
    return found


def _tell(found: People, processes: pl.LazyFrame) -> None:
    by_bus: dict[str, set[int]] = defaultdict(set)
    by_pid: dict[int, set[int]] = defaultdict(set)
    columns = ("rank", "host", "node", "pid", "bus_id", "gpu_index")
    for rank, host, node, pid, bus, index in (
        processes.filter(pl.col("rank").is_not_null()).select(columns).sort("rank").collect().iter_rows()
    ):
        name, address = first_label(host), pci.normal(bus)
        # A pod counts its processes and its GPUs anew; addresses on the bus are the machine's.
        for place in {name, first_label(node)} - {None}:
            found.hosts.setdefault(str(place), []).append(rank)
        if address:
            by_bus[address].add(rank)
            for place in {name, first_label(node) or name}:
                found.gpus[(place, address)] = rank
        if index is not None:
            found.indices[(name, index)] = rank
        if pid is not None:
            found.pids[(name, pid)] = rank
            by_pid[pid].add(rank)
    found.by_bus.update(by_bus)
    found.by_pid.update(by_pid)


def _place(found: People, rows: pl.DataFrame) -> None:
    for row in rows.iter_rows(named=True):
        rank, host = row["rank"], row["host"]
        found.gpus.setdefault((host, row["bus_id"]), rank)
        if row["gpu_index"] is not None:
            found.indices.setdefault((host, row["gpu_index"]), rank)
        beside = (whereabouts(row, of) for of in ("", "after_"))
        found.placed[rank] = Placement(
            cite(beside, f"a neighbouring host in the order of names and ranks, which puts rank {rank} on {host}"),
            "the hosts without logs were given their ranks in another order than their neighbours",
        )


def place_by_stall(found: People, broken: pl.DataFrame, stalls: pl.LazyFrame) -> None:
    """Puts the one rank whose GPU stands still on the one GPU that broke (``broken``: ``host``, ``bus_id``), where nothing tells whose GPU
    that is.

    Only where both stand alone: with two of either, nothing tells which belongs to which. A rank that is known to be elsewhere is not put
    there.
    """
    places = _gpus_of(broken)
    standing = stalls.filter((pl.col("cause") == "gpu-stall") & (pl.col("confidence") != "low")).unique("rank").collect()
    if len(places) != 1 or standing.height != 1 or found.of_gpu(*places[0]) is not None:
        return
    rank = int(standing["rank"][0])
    own = whereabouts(standing.row(0, named=True), "own_" if standing["own_source_id"][0] is not None else "")
    _put(found, places[0], rank, cite([own], f"the GPU of rank {rank}, and of no other, stands still: it is the one that broke"))


def place_by_word(found: People, broken: pl.DataFrame, said: pl.DataFrame) -> None:
    """Puts the one rank that says that its GPU failed it (``said``: ``rank`` and where it stands) on the one GPU that broke, where nothing
    tells whose GPU that is."""
    places = _gpus_of(broken)
    told = said.filter(pl.col("rank").is_not_null()).unique("rank", keep="first", maintain_order=True)
    if len(places) != 1 or told.height != 1 or said["rank"].null_count() or found.of_gpu(*places[0]) is not None:
        return
    rank = int(told["rank"][0])
    words = f"rank {rank}, and no other, says that its GPU failed it: it is the one that broke"
    _put(found, places[0], rank, cite([whereabouts(told.row(0, named=True))], words))


def _gpus_of(broken: pl.DataFrame) -> list[tuple[str | None, str]]:
    return [(first_label(host), bus) for host, bus in broken.select("host", "bus_id").drop_nulls("bus_id").unique().iter_rows()]


#: A rank's device is slow, for a GPU of its host that is known to be, where its kernels or copies take so much longer than usual.
_SLOWER = 1.2


def place_by_pace(found: People, broken: pl.DataFrame, pace: pl.LazyFrame | None, kind: str) -> None:
    """Puts the one rank of a host whose kernels, or copies (``kind`` of view ``kernel_pace``), are slow on the one GPU of that host that is
    known to be slow (``broken``: ``host``, ``bus_id``), where nothing tells whose GPU that is. Of listings that name no host (``listing``) one
    alone may show such a GPU."""
    if pace is None or not broken.height:
        return
    every = pace.filter((pl.col("kind") == kind) & (pl.col("pace") >= _SLOWER) & (pl.col("least_pace") >= (1 + _SLOWER) / 2)).collect()
    places: dict[tuple[str | None, int | None], set[str]] = defaultdict(set)
    for host, source, bus in broken.select("host", "source_id", "bus_id").drop_nulls("bus_id").unique().iter_rows():
        places[first_label(host), None if host else source].add(bus)
    for (host, _), buses in sorted(places.items(), key=str):
        # Older traces do not tell their host, nor do some listings: then the one slow rank of all is on the one slow GPU of all.
        slow = every.filter(pl.col("rank").is_in(found.hosts.get(host or "", []))) if found.hosts or len(places) > 1 else every
        if len(buses) != 1 or slow.height != 1 or found.of_gpu(host, bus := min(buses)) is not None:
            continue
        rank = int(slow["rank"][0])
        words = f"of the ranks {f'of {host} ' if found.hosts else ''}rank {rank} alone is slow in its {'kernels' if kind == 'compute' else 'copies'}: it runs on the GPU that is"
        _put(found, (host, bus), rank, cite([whereabouts(slow.row(0, named=True))], words))


def _put(found: People, place: tuple[str | None, str], rank: int, lines: tuple[Evidence, ...]) -> None:
    """Puts a rank on a GPU, unless it is known to be elsewhere."""
    host, bus = place
    elsewhere = any(rank in ranks for name, ranks in found.hosts.items() if name != host)
    if elsewhere or rank in found.gpus.values() or rank >= UNIDENTIFIED:
        return
    found.gpus[(host, bus)] = rank
    if host is None:
        found.by_bus[bus] = {rank}
    found.placed[rank] = Placement(lines, f"rank {rank} runs on another GPU")


def with_placements(findings: Iterable[Finding], who: People) -> Iterator[Finding]:
    """The findings; those that name a rank which no line of its own places cite what does, and say what would refute it."""
    for finding in findings:
        placed = [who.placed[c.rank] for c in finding.culprits or () if c.rank in who.placed]
        if not placed:
            yield finding
            continue
        lines = [line for one in placed for line in one.lines]
        yield replace(
            finding,
            evidence=(*finding.evidence, *dict.fromkeys(lines))[: max(AT_MOST, len(finding.evidence))],
            evidence_total=(finding.evidence_total or len(finding.evidence)) + len(set(lines)),
            would_refute=tuple(dict.fromkeys((*finding.would_refute, *(one.would_refute for one in placed)))),
        )


def kin(name: str, hosts: Collection[str]) -> bool:
    """Whether the job's hosts bear names of the same make, so that this one is known under its own."""
    return _make(name) in {_make(other) for other in hosts}


def _make(name: str) -> str:
    """A host's name without what counts hosts: its numbers, or a letter at its end."""
    return re.sub(r"\d+|(?<=[-_])[a-z]$", "#", name)


def gave_up(watchdog_calls: pl.LazyFrame | None) -> set[int]:
    """Ranks that were there when their watchdogs timed out."""
    return ranks_in(watchdog_calls)


def place(host: object, gpu: object = None) -> str:
    """``GPU 0000:9b:00.0 of node7``, ``node7``, or words for what is not known."""
    if gpu is None:
        return str(host) if host else "a host whose name is not in the evidence"
    return f"GPU {gpu} of {host}" if host else f"GPU {gpu}"


def ranks_of(culprits: Iterable[Culprit]) -> tuple[int, ...]:
    """Ranks that culprits name, in order."""
    return tuple(dict.fromkeys(c.rank for c in culprits if c.rank is not None))


#: What a dead or ill device, host or process accounts for.
EXPLAINS_STOP: tuple[str, ...] = (
    "timeout",
    "closed",
    "rank-died",
    "gpu-stall",
    "collective-stuck",
    "connection-failed",
    "rank-never-joined",
    "host-stall",
    "straggler",
    "software-crash",
    "p2p-deadlock",
)
