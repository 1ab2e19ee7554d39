"""What a run was and how it ran, as traits that can be laid beside those of another run: the report's ``traits``.

A trait is one thing of which a run has one value: a setting, a version, the transport between hosts, the channels of communicators of one
size. Nothing in it names a process, a time or a file of this run but the place that it was read from. What the evidence does not tell has
no trait, so that "not shown" is never taken for "the same" or for "not set".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from nccl_forensics.conclusions.assemble import RunResult
from nccl_forensics.frames import text_of
from nccl_forensics.masking import mask
from nccl_forensics.store import Store
from nccl_forensics.words import rank_list

#: Traits of one area that a report carries.
AT_MOST = 512
_VALUES = 8
#: Sizes of which the report keeps algorithm and protocol, those with most calls first.
_SIZES = 256
#: Variables of an environment dump that decide how a job communicates.
_DECIDES = r"^(?:NCCL|RCCL|TORCH_NCCL|TORCH_DISTRIBUTED|GLOO|UCX|FI|OMPI_MCA|CUDA|HIP|HSA|ROCR|PYTORCH|OMP|OFI_NCCL)_"
#: Of those the ones that differ between ranks or runs by their nature.
_OWN = ("CUDA_VISIBLE_DEVICES", "NCCL_DEBUG_FILE", "NCCL_COMM_ID")
_RDMA_LESS = "Socket"


@dataclass(slots=True)
class _Traits:
    paths: Mapping[int, str]
    rows: list[dict[str, object]] = field(default_factory=list)

    def add(
        self,
        area: str,
        subject: str,
        value: object,
        where: Mapping[str, object],
        *,
        number: float | None = None,
        unit: str | None = None,
        note: str | None = None,
    ) -> None:
        source, line, record = where.get("source_id"), where.get("line_no"), where.get("record")
        self.rows.append(
            {
                "area": area,
                "subject": mask(subject),
                "value": mask(str(value)),
                "number": number,
                "unit": unit,
                "note": mask(note) if note else None,
                "path": self.paths.get(int(str(source))) if source is not None else None,
                "line": int(str(line)) if line is not None else None,
                "record": str(record) if record is not None and line is None else None,
            }
        )


def traits(chosen: RunResult, store: Store) -> list[dict[str, object]]:
    """Traits of the run that the verdict is about, in a fixed order: by area as listed here, then by subject."""
    out = _Traits(dict(store.sources.select("source_id", "path").iter_rows()))
    for part in (_outcome, _transports, _network, _topology, _channels, _settings, _versions, _hardware, _tuning):
        before = len(out.rows)
        part(chosen, out)
        del out.rows[before + AT_MOST :]
    return out.rows


def _outcome(chosen: RunResult, out: _Traits) -> None:
    failures = _rows(chosen, "failures")
    timeouts = next((f for f in failures if f["sign"] == "watchdog timeouts"), None)
    value = "timed out" if timeouts is not None and chosen.outcome in ("hung", "unknown") else chosen.outcome
    if value == "unknown" and not failures:
        return
    signs = "; ".join(f"{f['sign']}: {f['count']}" for f in failures)
    out.add("outcome", "the job", value, timeouts or (failures[0] if failures else {}), note=signs or None)


def _transports(chosen: RunResult, out: _Traits) -> None:
    frame = chosen.resolver.get("nccl_connections")
    if frame is None:
        return
    kind = (
        pl.when(pl.col("transport") == "NET")
        .then(text_of("NET/{}", pl.col("network").fill_null("unknown")))
        .otherwise(pl.col("detail").str.extract(r"^([^/]+(?:/[^/]+)?)").str.strip_chars())
    )
    rows = (
        frame.filter(pl.col("transport").is_in(["P2P", "SHM", "NET", "COLLNET"]) & pl.col("detail").is_not_null())
        .with_columns(
            kind=kind,
            place=pl.when(pl.col("transport").is_in(["P2P", "SHM"])).then(pl.lit("within hosts")).otherwise(pl.lit("over the network")),
        )
        .sort("source_id", "line_no")
        .group_by("place", "kind", maintain_order=True)
        .agg(pl.len().alias("n"), pl.col("source_id", "line_no").first())
        .sort(["n", "kind"], descending=[True, False])
        .collect()
    )
    for place in ("within hosts", "over the network"):
        own = rows.filter(pl.col("place") == place)
        if own.height:
            counted = ", ".join(f"{k}: {n} connections" for k, n in own.select("kind", "n").iter_rows())
            out.add("transport", f"transport {place}", ", ".join(sorted(own["kind"].to_list())), own.row(0, named=True), note=counted)
    gdr = (
        frame.filter((pl.col("transport") == "NET") & pl.col("gdr").is_not_null() & (pl.col("network") != _RDMA_LESS))
        .sort("source_id", "line_no")
        .group_by("gdr", maintain_order=True)
        .agg(pl.len().alias("n"), pl.col("source_id", "line_no").first())
        .collect()
    )
    if gdr.height:
        counts = {bool(r["gdr"]): int(r["n"]) for r in gdr.iter_rows(named=True)}
        value = "partly" if len(counts) > 1 else "on" if True in counts else "off"
        # Where some connections lack it, the line of one of those is the telling one.
        where = gdr.sort("gdr").row(0, named=True)
        out.add("gdr", "GPUDirect RDMA", value, where, note=f"{counts.get(True, 0)} of {sum(counts.values())} network connections use it")


def _network(chosen: RunResult, out: _Traits) -> None:
    networks = _rows(chosen, "networks")
    if networks:
        out.add("network", "network that NCCL chose", ", ".join(sorted({str(n["network"]) for n in networks if n["network"]})), networks[0])
    nics = _rows(chosen, "host_nics")
    if nics:
        devices: dict[object, set[str]] = {}
        for n in nics:
            devices.setdefault(n["host"], set()).add(str(n["device"]))
        counts = [len(own) for own in devices.values()]
        out.add("network", "RDMA devices per host", _range(counts), nics[0], number=min(counts))
        links = sorted({str(n["link"]) for n in nics if n["link"]})
        if links:
            out.add("network", "link layer", ", ".join(links), nics[0])
        speeds = [int(str(n["speed_mbps"])) for n in nics if n["speed_mbps"]]
        if speeds:
            text = _range([s // 1000 for s in speeds], " Gbit/s")
            out.add("network", "speed of RDMA devices", text, nics[0], number=min(speeds) / 1000, unit="Gbit/s")
    frame = chosen.resolver.get("nccl_network")
    if frame is not None:
        wanted = {"bootstrap": "bootstrap interface", "plugin": "network plugin"}
        rows = (
            frame.filter(pl.col("item").is_in(list(wanted)) & pl.col("name").is_not_null())
            .sort("source_id", "line_no")
            .group_by("item", maintain_order=True)
            .agg(pl.col("name").unique().sort().alias("names"), pl.col("source_id", "line_no").first())
            .collect()
        )
        for row in rows.iter_rows(named=True):
            out.add("network", wanted[row["item"]], ", ".join(row["names"][:_VALUES]), row)


def _topology(chosen: RunResult, out: _Traits) -> None:
    people = [p for p in _rows(chosen, "processes") if p["rank"] is not None]
    comms = chosen.resolver.get("comms")
    if comms is not None:
        largest = comms.sort("nranks", "source_id", "line_no", descending=[True, False, False], nulls_last=True).head(1).collect()
        if largest.height and largest["nranks"][0] is not None:
            size = int(largest["nranks"][0])
            out.add("topology", "ranks", size, largest.row(0, named=True), number=size)
    hosts: dict[object, set[object]] = {}
    for p in people:
        if p["host"] is not None:
            hosts.setdefault(p["host"], set()).add(p["rank"])
    if hosts:
        out.add("topology", "hosts", len(hosts), people[0], number=len(hosts))
        out.add("topology", "ranks per host", _range(len(r) for r in hosts.values()), people[0])
    links = _rows(chosen, "gpu_links")
    if links:
        for column, words in (
            ("nvlink_gb_s", "NVLink bandwidth per GPU that NCCL counts with"),
            ("pcie_gb_s", "PCIe bandwidth per GPU that NCCL counts with"),
        ):
            known = [row for row in links if row[column] is not None]
            if known:
                worst = min(known, key=lambda row: float(str(row[column])))
                values = [float(str(row[column])) for row in known]
                uneven = len(set(values)) > 1
                out.add(
                    "topology",
                    words,
                    _range(values, " GB/s"),
                    worst,
                    number=min(values),
                    unit="GB/s",
                    note=f"uneven: GPU {worst['gpu']} has least" if uneven else None,
                )
    topo = chosen.resolver.get("nccl_topo")
    if topo is not None:
        _topology_files(topo, out)


def _topology_files(topo: pl.LazyFrame, out: _Traits) -> None:
    """NVLinks per GPU as topology files and dumps give them; two ends of a link that disagree are said to."""
    ends = topo.filter((pl.col("element") == "nvlink") & pl.col("count").is_not_null()).select(
        "source_id", "bus_id", "target", "count", "line_no", "record"
    )
    per_gpu = (
        ends.group_by("source_id", "bus_id")
        .agg(pl.col("count").sum(), pl.col("line_no", "record").first())
        .sort("count", "source_id", "bus_id")
        .collect()
    )
    if not per_gpu.height:
        return
    both = ends.filter(pl.col("target").is_not_null())
    torn = (
        both.join(both, left_on=["source_id", "bus_id", "target"], right_on=["source_id", "target", "bus_id"], suffix="_back")
        .filter(pl.col("count") != pl.col("count_back"))
        .sort("source_id", "line_no")
        .collect()
    )
    note = None
    if torn.height:
        row = torn.row(0, named=True)
        note = f"asymmetric: {row['bus_id']} counts {row['count']} to {row['target']}, which counts {row['count_back']} back"
    least = per_gpu.row(0, named=True)
    value = _range(per_gpu["count"].to_list()) + (", asymmetric" if torn.height else "")
    out.add("topology", "NVLinks per GPU in the topology file", value, least, number=float(least["count"]), note=note)


def _channels(chosen: RunResult, out: _Traits) -> None:
    # Without a line of a communicator there are channels and not whose they are.
    told = chosen.resolver.get("comm_channels")
    channels = chosen.resolver.get("nccl_channels") if told is None else told
    if channels is None:
        return
    rows = channels.sort("source_id", "line_no")
    if "nranks" not in rows.collect_schema().names():
        rows = rows.with_columns(nranks=pl.lit(None, dtype=pl.Int32))
    kinds = {"coll": "collective", "p2p": "point-to-point", "nvls": "NVLink SHARP"}
    frame = rows.select("nranks", *kinds, "source_id", "line_no").collect()
    for (size,), part in sorted(frame.group_by("nranks"), key=lambda g: -(int(str(g[0][0])) if g[0][0] is not None else 0)):
        words = f" of communicators of {size} ranks" if size is not None else ""
        for column, kind in kinds.items():
            known = part.filter(pl.col(column).is_not_null()).sort(column, "source_id", "line_no")
            if known.height and int(str(known[column].max() or 0)) > 0:
                least = known.row(0, named=True)
                out.add("channels", f"{kind} channels{words}", _range(known[column].to_list()), least, number=float(least[column]))


def _settings(chosen: RunResult, out: _Traits) -> None:
    shown: dict[str, list[dict[str, object]]] = {}
    for row in _rows(chosen, "settings"):
        shown.setdefault(str(row["name"]), []).append(row)
    for name in sorted(shown):
        values = shown[name]
        first = values[0]
        if len(values) == 1:
            count, of = int(str(first["processes"])), int(str(first["of"]))
            note = f"{count} of {of} processes show it" if count < of else None
            out.add("setting", name, first["value"], first, note=note)
        else:
            listed = "; ".join(f"{v['value']} ({_who(v['ranks'])})" for v in values[:_VALUES])
            out.add("setting", name, listed, first, note="differs between ranks")
    frame = chosen.resolver.get("environment")
    if frame is not None:
        rows = (
            frame.filter(pl.col("name").str.contains(_DECIDES) & ~pl.col("name").is_in([*_OWN, *shown]))
            .sort("source_id", "line_no")
            .group_by("name")
            .agg(pl.col("value").unique().sort().alias("values"), pl.col("source_id", "line_no", "record").first())
            .sort("name")
            .collect()
        )
        for variable in rows.iter_rows(named=True):
            out.add("setting", str(variable["name"]), "; ".join(map(str, variable["values"][:_VALUES])), variable)


def _versions(chosen: RunResult, out: _Traits) -> None:
    frame = chosen.resolver.get("nccl_versions")
    if frame is not None:
        for column, words in (("version", "NCCL"), ("cuda", "CUDA that NCCL was built with"), ("vendor", "library")):
            _distinct(frame, column, "version", words, out)
    notes = chosen.resolver.get("nccl_notes")
    if notes is not None:
        drivers = notes.filter(pl.col("kind") == "driver")
        _distinct(drivers, "value", "version", "CUDA of the driver", out, show=_cuda)
    gpus = chosen.resolver.get("gpus")
    if gpus is not None:
        for column, words in (("driver_version", "GPU driver"), ("vbios", "VBIOS"), ("gsp_firmware", "GSP firmware")):
            _distinct(gpus, column, "version", words, out)
    interfaces = chosen.resolver.get("net_interfaces")
    if interfaces is not None:
        _distinct(interfaces, "firmware", "version", "firmware of network interfaces", out)


def _hardware(chosen: RunResult, out: _Traits) -> None:
    gpus = chosen.resolver.get("gpus")
    if gpus is not None:
        for column, words in (("name", "GPU model"), ("pcie_gen_max", "most PCIe generation"), ("ecc", "ECC"), ("mig", "MIG")):
            _distinct(gpus, column, "hardware", words, out)
    devices = chosen.resolver.get("bandwidth_devices")
    if devices is not None:
        _distinct(devices, "gpu", "hardware", "GPU model of the bandwidth test", out)


def _tuning(chosen: RunResult, out: _Traits) -> None:
    frame = chosen.resolver.get("nccl_tuning")
    if frame is None:
        return
    rows = (
        frame.filter(pl.col("op").is_not_null() & pl.col("bytes").is_not_null())
        .with_columns(
            choice=pl.concat_str(
                [
                    text_of("{}/{}", pl.col("algo").fill_null("?"), pl.col("proto").fill_null("?")),
                    text_of(" on {} channels", "channels"),
                ],
                ignore_nulls=True,
            )
        )
        .sort("source_id", "line_no")
        .group_by("op", "bytes")
        .agg(pl.col("choice").unique().sort().alias("choices"), pl.len().alias("n"), pl.col("source_id", "line_no").first())
        .sort(["n", "op", "bytes"], descending=[True, False, False])
        .head(_SIZES)
        .sort("op", "bytes")
        .collect()
    )
    for row in rows.iter_rows(named=True):
        subject = f"{row['op']} of {row['bytes']} bytes"
        out.add("algorithm", subject, ", ".join(row["choices"][:_VALUES]), row, number=None, note=f"{row['n']} calls")


def _distinct(frame: pl.LazyFrame, column: str, area: str, words: str, out: _Traits, show: Callable[[object], str] = str) -> None:
    """All values of a column as one trait, which cites the first place of the first value."""
    there = frame.collect_schema().names()
    order = [c for c in ("source_id", "line_no") if c in there]
    where = [*order, *(["record"] if "record" in there else [])]
    rows = (
        frame.filter(pl.col(column).is_not_null())
        .select(column, *where)
        .sort(order)
        .unique(column, keep="first", maintain_order=True)
        .collect()
    )
    if rows.height:
        values = sorted({show(v) for v in rows[column].to_list()})
        out.add(area, words, ", ".join(values[:_VALUES]), rows.row(0, named=True))


def _cuda(version: object) -> str:
    """12020 as 12.2."""
    number = int(float(str(version)))
    return f"{number // 1000}.{number % 1000 // 10}"


def _rows(chosen: RunResult, name: str) -> list[dict[str, object]]:
    """Rows of a view whose rows are bounded."""
    frame = chosen.resolver.get(name)
    return frame.collect().rows(named=True) if frame is not None else []


def _who(ranks: object) -> str:
    return f"ranks {rank_list(ranks)}" if isinstance(ranks, Sequence) and ranks else "ranks unknown"


def _range(values: Iterable[float], unit: str = "") -> str:
    """``24`` or ``2-24``."""
    known = sorted(set(values))
    texts = [f"{v:g}" for v in (known[0], known[-1])]
    return (texts[0] if len(known) == 1 else "-".join(texts)) + unit


__all__ = ["AT_MOST", "traits"]
