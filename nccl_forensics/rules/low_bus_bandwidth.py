"""Collectives or links carry less than they should.

## What it finds
AllReduce runs of nccl-tests whose best bus bandwidth at large sizes is below what this platform reaches, or (of several hosts) what the
NICs that NCCL uses carry, or below other runs of the same kind in the evidence, or far below what the same run reached at smaller sizes;
large AllReduces of profiler traces that stay far below it; ib_write_bw and its family below the rate of their port; GPU pairs of nvbandwidth
that fall behind the others, or all behind what their platform reaches.

## Why it matters
Every step waits for its collectives: at half the bandwidth a communication-bound job runs at half speed, without any error.

## What would refute it
The expectation does not fit: fewer NICs by design, a shared link, other traffic during the test. The finding names its source.

## What to do next
Halve: one host alone, then pairs. About a half is one of two rails or lanes, an eighth is one NIC of eight, a tenth is TCP or no peer access.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import inf
from statistics import median
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.facts.bandwidth import COPIES_FROM, LARGE_BYTES, OF_NICS, ONE_NIC_GB_S, beside_nics, ceiling, copy_limit
from nccl_forensics.model import Action, Confidence, Culprit, Finding, Severity, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import located
from nccl_forensics.rules.common.ties import closest, job_of, tied

_WATCH, _DEGRADED, _HALF = 0.9, 0.75, 0.5
_RDMA_LARGE = 65536
_TWO = 2

Row = Mapping[str, object]


@rule(name="low-bus-bandwidth", code="BW01", cause="low-bus-bandwidth", severity="error", at_most=64, explains=("communication-bound",))
def low_bus_bandwidth(
    bandwidth_tests: pl.LazyFrame | None,
    bandwidth_rows: pl.LazyFrame | None,
    rdma_tests: pl.LazyFrame | None,
    gpu_bandwidth: pl.LazyFrame | None,
    ib_ports: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    trace_bandwidth: pl.LazyFrame | None = None,
    job_signs: pl.LazyFrame | None = None,
    failures: pl.LazyFrame | None = None,
    sources: pl.LazyFrame | None = None,
    host_nics: pl.LazyFrame | None = None,
    *,
    expected_gb_s: Annotated[float, "bus bandwidth in GB/s that large AllReduces must reach; 0 = what is known of the platform"] = 0.0,
    large_bytes: Annotated[int, "size from which a row counts as large"] = LARGE_BYTES,
    alike: Annotated[int, "runs of the same kind that a run must be compared with"] = 4,
    link_share: Annotated[float, "share of a port's rate that an RDMA bandwidth test must reach"] = 0.9,
    pair_share: Annotated[float, "share of the median that a cell of a GPU matrix must reach"] = 0.9,
    traced_share: Annotated[float, "share of the expectation that the best large AllReduce of profiler traces must reach"] = 0.6,
    fallen_share: Annotated[float, "share of a run's own best bus bandwidth below which its largest sizes have fallen off"] = 0.35,
) -> Iterator[Finding]:
    """Runs against the platform and against each other, RDMA tests against their port, GPU pairs against the matrix, traced AllReduces
    against the platform. A test on hosts that are none of the job's does not tell of the job."""
    if bandwidth_tests is not None and bandwidth_rows is not None:
        job = job_of(job_signs, None, failures)
        best = _best(_named(bandwidth_tests, sources), bandwidth_rows, large_bytes)
        of_runs = (
            *_against_platform(best, expected_gb_s, _nic_rates(host_nics, ib_ports), _port_rates(ib_ports)),
            *_against_alike(best, alike),
            *_fallen_off(bandwidth_tests, bandwidth_rows, large_bytes, fallen_share),
        )
        for finding in of_runs:
            yield tied(finding, closest([job.place(host) for host in finding.hosts]))
    if rdma_tests is not None:
        yield from _rdma(located(rdma_tests, source_hosts), ib_ports, link_share, alike)
    if gpu_bandwidth is not None:
        yield from _pairs(located(gpu_bandwidth, source_hosts), pair_share)
    if trace_bandwidth is not None:
        yield from _traced(trace_bandwidth, expected_gb_s, large_bytes, traced_share)


def _traced(rows: pl.LazyFrame, expected: float, large: int, share: float) -> Iterator[Finding]:
    """The best large AllReduce of a group whose ranks were all traced: its shortest duration among them holds no waiting for a late one. It
    shares the GPU with computation, so only a clear distance counts."""
    known = (
        rows.filter(
            (pl.col("collective") == "all_reduce") & (pl.col("backend") == "nccl") & (pl.col("bytes") >= large) & (pl.col("count") >= 3)
        )
        .filter((pl.col("ranks_seen") == pl.col("ranks")) & pl.col("best_bus_bw_gb_s").is_not_null())
        .with_columns(goal=pl.lit(expected) if expected > 0 else pl.col("expected_gb_s"))
        .sort("best_bus_bw_gb_s", "group_key", descending=[True, False])
        .group_by("group_key", maintain_order=True)
        .first()
        .filter(pl.col("best_bus_bw_gb_s") < share * pl.col("goal"))
        .sort("group_key")
        .collect()
    )
    for row in known.iter_rows(named=True):
        yield Finding(
            title=f"the best of {row['count']} traced AllReduces of {_size(row['bytes'])} reaches {row['best_bus_bw_gb_s']:.1f} of {row['goal']:.0f} GB/s "
            f"bus bandwidth ({row['best_bus_bw_gb_s'] / row['goal']:.0%})",
            summary="By the shortest duration among the ranks, so waiting for a late one is not in it; computation that runs beside it is."
            + _shape(row["best_bus_bw_gb_s"] / row["goal"]),
            # Computation beside it may halve it, and no more.
            severity="error" if row["best_bus_bw_gb_s"] < _FAR_BELOW * row["goal"] else "warning",
            confidence="medium",
            subject=("traces", str(row["group_desc"] or row["group_name"] or row["group_key"])),
            evidence=cite([row], "the shortest of them"),
            evidence_total=row["count"],
            remedy="Run all_reduce_perf on the same nodes: it tells the links from what the job does beside them.",
            prevention="Watch the bus bandwidth of the largest collectives of a profiled step in every release.",
            would_refute=("nccl-tests reaches the expectation on these nodes", "the expectation is not for this platform"),
            actions=(Action("collect-more", command="NCCL_DEBUG=INFO all_reduce_perf -b 256M -e 8G -f 2"),),
            metrics={"bus_bw_gb_s": round(row["best_bus_bw_gb_s"], 2), "expected_gb_s": row["goal"]},
        )


#: A traced AllReduce below this share of what the platform reaches has lost more than what runs beside it can take.
_FAR_BELOW = 0.35
#: Words of file names; a table of two ranks does not tell an all_reduce from a send and receive, nor any table an all_gather from an
#: alltoall.
_IN_NAMES = r"(?i)(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv|broadcast)[^/]*$"
_SPELLED = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}


def _named(tests: pl.LazyFrame, sources: pl.LazyFrame | None) -> pl.LazyFrame:
    """The tests, with the collective of the file's name where the table itself does not tell it."""
    if sources is None:
        return tests
    word = pl.col("path").str.extract(_IN_NAMES).str.to_lowercase().str.replace_all("_", "").replace(_SPELLED)
    named = sources.select("source_id", in_name=word)
    return tests.join(named, on="source_id", how="left").with_columns(collective=pl.coalesce("collective", "in_name")).drop("in_name")


def _best(tests: pl.LazyFrame, rows: pl.LazyFrame, large: int) -> list[dict[str, object]]:
    """Every run with its best large row, and with what the same hosts ``reached`` in any run of the collective."""
    top = (
        rows.filter((pl.col("bytes") >= large) & pl.col("bus_bw_gb_s").is_not_null())
        .sort("bus_bw_gb_s", descending=True, maintain_order=True)
        .group_by("source_id", "test", maintain_order=True)
        .agg(
            pl.col("bus_bw_gb_s").first().alias("best"),
            pl.col("bytes").first().alias("at_bytes"),
            pl.col("dtype", "red_op").first(),
            pl.col("line_no").first().alias("row_line"),
            pl.col("record").first().alias("row_record"),
        )
    )
    same = ["collective", "ranks", pl.col("hosts").list.sort()]
    alone = pl.col("hosts").list.len().fill_null(0) == 0
    reached = pl.when(alone).then("best").otherwise(pl.col("best").max().over(same))
    return tests.join(top, on=["source_id", "test"]).with_columns(reached=reached).sort("source_id", "test").collect().to_dicts()


def _judged(ratio: float) -> tuple[Severity, str]:
    if ratio < _HALF:
        return "error", "broken"
    if ratio < _DEGRADED:
        return "error", "degraded"
    return ("error", "below") if ratio < _WATCH else ("info", "as expected")


def _against_platform(
    best: list[dict[str, object]], expected: float, nics: Mapping[str, list[float]], ports: Mapping[str, list[float]]
) -> Iterator[Finding]:
    """Runs against what is configured, else what the platform reaches, else what the NICs of their hosts carry: those that NCCL uses, or
    where nothing tells them the ports that are up, of which a run may have been meant to use some. Where nothing tells of NICs at all, below
    half of what a single one carries is too little for boards that have one beside each GPU."""
    for run in best:
        if run["collective"] != "all_reduce":
            continue
        gpus, hosts = _texts(run["gpus"]), _texts(run["hosts"])
        known = ceiling(gpus, _number(run["ranks"]), len(hosts) or None)
        value = float(str(run["best"]))
        by_nics = by_ports = False
        if expected > 0:
            goal, source = expected, "the configuration"
        elif known is not None:
            goal, source = known.bus_bw_gb_s, known.source
        elif (carried := _carried(hosts, _number(run["ranks"]), nics, "the NICs that NCCL uses")) is not None:
            (goal, source), by_nics = carried, True
        elif (carried := _carried(hosts, _number(run["ranks"]), ports, "the active ports")) is not None:
            (goal, source), by_ports = carried, True
            if value >= _HALF * goal or not beside_nics(gpus):
                continue
        elif len(hosts) >= _TWO and beside_nics(gpus) and value < _HALF * ONE_NIC_GB_S:
            goal, source = ONE_NIC_GB_S, f"{OF_NICS:.0%} of one NIC of 100 Gbit/s, where hosts of such GPUs have several"
        else:
            continue
        if value >= _WATCH * goal:
            continue
        severity, word = _judged(value / goal)
        if by_nics and (value >= _DEGRADED * goal or not beside_nics(gpus)):
            severity = "warning"
        yield _run_finding(
            run,
            f"AllReduce of {run['ranks']} ranks{_on(hosts)} reaches {value:.1f} of {goal:.0f} GB/s bus bandwidth ({value / goal:.0%}, {word})",
            f"Best of all sizes from {_size(run['at_bytes'])} on. Expected: {source}.{_shape(value / goal)}",
            severity,
            "low" if by_ports else "medium",
            {"bus_bw_gb_s": value, "expected_gb_s": round(goal, 2), "expected_by": source},
            least=_WATCH * goal,
        )


def _nic_rates(host_nics: pl.LazyFrame | None, ib_ports: pl.LazyFrame | None) -> dict[str, list[float]]:
    """Rates in Gbit/s of the RDMA devices that NCCL uses, by host, as it tells them or as the port itself does; without hosts of which one
    is not known."""
    if host_nics is None:
        return {}
    nics = host_nics.select("host", stem=pl.col("device").str.replace(r":[0-9]+$", ""), told=pl.col("speed_mbps") / 1000)
    if ib_ports is not None:
        rates = ib_ports.group_by("host", stem="device").agg(rate=pl.col("rate_gbit_s").max())
        nics = nics.join(rates, on=["host", "stem"], how="left").with_columns(told=pl.coalesce("told", "rate"))
    known = nics.group_by("host").agg(pl.col("told").sort(), whole=pl.col("told").is_not_null().all() & (pl.col("told") > 0).all())
    return {host: list(told) for host, told in known.filter("whole").select("host", "told").collect().iter_rows()}


def _port_rates(ib_ports: pl.LazyFrame | None) -> dict[str, list[float]]:
    """Rates in Gbit/s of the ports that are active, by host."""
    if ib_ports is None:
        return {}
    up = ib_ports.filter((pl.col("state") == "active") & (pl.col("rate_gbit_s") > 0) & pl.col("host").is_not_null())
    rates = up.group_by("host", "device", "port").agg(pl.col("rate_gbit_s").max()).group_by("host").agg("rate_gbit_s")
    return {host: sorted(told) for host, told in rates.collect().iter_rows()}


def _carried(hosts: list[str], ranks: int | None, nics: Mapping[str, list[float]], what: str) -> tuple[float, str] | None:
    """Bus bandwidth in GB/s of a large AllReduce over several hosts, of whose NICs each GPU drives one at most, and how it is known; None
    where a host's are not."""
    if len(hosts) < _TWO or ranks is None or ranks % len(hosts) or any(host not in nics for host in hosts):
        return None
    driven = {host: sorted(nics[host], reverse=True)[: ranks // len(hosts)] for host in hosts}
    least = min(hosts, key=lambda host: (sum(driven[host]), host))
    rates = driven[least]
    source = f"{OF_NICS:.0%} of what {what} on {least} carry ({len(rates)} x {min(rates):g} Gbit/s)"
    return OF_NICS * sum(rates) / 8, source


def _against_alike(best: list[dict[str, object]], alike: int) -> Iterator[Finding]:
    """Runs of the same collective, ranks, hosts and GPUs, with the same data and as many repetitions, on other hosts: the fleet is the
    yardstick. Several runs of the same hosts are one of them. A third of the runs may be slow, or all those, and only those, that one host
    took part in."""
    groups: dict[tuple[object, ...], list[dict[str, object]]] = defaultdict(list)
    for run in best:
        like: tuple[object, ...] = (
            run["collective"],
            run["ranks"],
            len(_texts(run["hosts"])),
            tuple(_texts(run["gpus"])),
            run["max_bytes"],
            run["iterations"],
            run["dtype"],
            run["red_op"],
        )
        groups[like].append(run)
    for key, runs in groups.items():
        named = {tuple(sorted(_texts(r["hosts"]))) or (str(i),): float(str(r["reached"])) for i, r in enumerate(runs)}
        if key[0] is None or len(named) <= alike:
            continue
        usual = median(named.values())
        slow = [r for r in runs if float(str(r["best"])) < _WATCH * usual]
        tested = [set(_texts(r["hosts"])) for r in runs if r not in slow]
        if len(slow) * 3 > len(runs) and not _one_in_all(slow, tested):
            continue
        for run in slow:
            hosts = _texts(run["hosts"])
            value = float(str(run["best"]))
            # A host that is fast with others is not the one to blame alone.
            blamed = [h for h in hosts if not any(h in t for t in tested)] or hosts
            severity, word = _judged(value / usual)
            yield _run_finding(
                run,
                f"{key[0]} of {run['ranks']} ranks{_on(hosts)} reaches {value:.1f} GB/s, {len(runs)} runs alike {usual:.1f} ({value / usual:.0%}, {word})",
                f"Best of all sizes from {_size(run['at_bytes'])} on. Expected: the median of {len(runs)} runs of the same kind in this evidence.",
                severity,
                "high" if len(blamed) < len(hosts) or len(hosts) == 1 else "medium",
                {"bus_bw_gb_s": value, "expected_gb_s": usual, "expected_by": "median of runs alike"},
                blamed,
                least=_WATCH * usual,
            )


def _one_in_all(slow: list[dict[str, object]], tested: list[set[str]]) -> bool:
    """Whether of several slow pairs one host is in each, and every other one is fast with others."""
    hosts = [set(_texts(r["hosts"])) for r in slow]
    fast = set[str]().union(*tested)
    return len(slow) > _TWO and len(set.intersection(*hosts) - fast) == 1 and len(set.union(*hosts) - fast) == 1


def _rdma(rows: pl.DataFrame, ib_ports: pl.LazyFrame | None, share: float, alike: int) -> Iterator[Finding]:
    large = rows.filter(
        (pl.col("bytes") >= _RDMA_LARGE) & pl.col("average_gbit_s").is_not_null() & ~pl.col("bidirectional").fill_null(False)
    )
    tests = (
        large.sort("average_gbit_s", descending=True, maintain_order=True)
        .group_by("source_id", "test", maintain_order=True)
        .first()
        .sort("source_id", "test")
    )
    rates = {}
    if ib_ports is not None:
        for host, device, rate in (
            ib_ports.filter(pl.col("rate_gbit_s").is_not_null()).select("host", "device", "rate_gbit_s").collect().iter_rows()
        ):
            rates[(host, device)] = rate
    values: dict[object, list[float]] = defaultdict(list)
    for row in tests.iter_rows(named=True):
        values[row["name"]].append(row["average_gbit_s"])
    for row in tests.iter_rows(named=True):
        value = row["average_gbit_s"]
        rate = rates.get((row["host"], row["device"]))
        usual = median(values[row["name"]])
        if rate is not None:
            goal, source, least = rate, "the rate that the port itself reports", share
        elif len(values[row["name"]]) > alike:
            goal, source, least = usual, f"the median of {len(values[row['name']])} tests alike", _WATCH
        else:
            continue
        if value >= least * goal:
            continue
        host = name_of(row["host"])
        severity, word = _judged(value / goal)
        yield Finding(
            title=f"{row['name']} over {row['device']}{f' of {host}' if host else ''} reaches {value:.1f} of {goal:.0f} Gbit/s ({value / goal:.0%}, {word})",
            summary=f"Average at {_size(row['bytes'])}. Expected: {source}. Half the rate is often PCIe generation or width, or the wrong NUMA node.",
            severity=severity,
            confidence="medium",
            hosts=names_of(host),
            culprits=(Culprit(host=host, nic=row["device"]),),
            subject=("rdma", str(host), str(row["device"])),
            evidence=cite([row], "average of the test"),
            remedy="Check PCIe width and generation of the NIC, its NUMA node, and the link itself.",
            prevention="Run ib_write_bw between neighbours in the burn-in of every node.",
            would_refute=("other traffic used the port during the test",),
            actions=(Action("collect_more", hosts=names_of(host), command=f"lspci -vv (LnkSta of {row['device']})"),),
            metrics={"average_gbit_s": value, "expected_gbit_s": goal, "expected_by": source},
        )


def _pairs(rows: pl.DataFrame, share: float) -> Iterator[Finding]:
    """Cells far below the matrix' median, gathered by the GPU that they share."""
    cells = rows.filter((pl.col("unit") == "gb_s") & pl.col("value").is_not_null() & ~pl.col("test").str.contains("disabled"))
    for (source, host, test), part in cells.group_by("source_id", "host", "test", maintain_order=True):
        other = part.filter((pl.col("row") != pl.col("column")) | (part["row"].n_unique() == 1))
        if other.height < 4:
            continue
        usual = float(str(other["value"].median()))
        yield from _behind_platform(other, host, str(test), usual)
        low = other.filter(pl.col("value") < share * usual)
        if low.is_empty() or low.height * 3 > other.height:
            continue
        counts: dict[str, int] = defaultdict(int)
        for r, c in low.select("row", "column").iter_rows():
            counts[r] += part["row"].n_unique() > 1
            counts[c] += 1
        gpu = max(sorted(counts), key=lambda g: counts[g])
        # Of one pair, or of pairs that have none in common, nothing tells whose fault it is.
        shared = [g for g, n in counts.items() if n == low.height] == [gpu]
        who = f"GPU {gpu}" if shared else "a pair" if low.height == 1 else f"{low.height} pairs"
        worst = float(str(low["value"].min()))
        whose = name_of(host)
        severity, word = _judged(worst / usual)
        yield Finding(
            title=f"{who}{f' of {whose}' if whose else ''} reaches {worst:.1f} of {usual:.1f} GB/s in {test} ({worst / usual:.0%}, {word})",
            summary=f"{low.height} of {other.height} cells are below {share:.0%} of the median"
            + (f"; all of them are GPU {gpu}'s." if shared else ", and no GPU is in all of them."),
            severity=severity,
            confidence="medium",
            hosts=names_of(whose),
            culprits=(Culprit(host=whose, gpu=gpu),) if shared else (Culprit(host=whose),) if whose else (),
            subject=("gpu-bandwidth", str(whose or source), str(test), *((gpu,) if shared else ())),
            evidence=cite(low, "cell below the others"),
            evidence_total=low.height,
            remedy="Compare PCIe width and generation, NVLink state and clocks of this GPU with its neighbours.",
            prevention="Run nvbandwidth in the burn-in of every node.",
            would_refute=("the pairs differ by design (no NVLink between them)",),
            actions=(Action("collect_more", hosts=names_of(whose), command="nvidia-smi -q; nvidia-smi nvlink -s; lspci -vv"),),
            metrics={"gb_s": worst, "expected_gb_s": usual, "expected_by": "median of the matrix"},
        )


def _behind_platform(cells: pl.DataFrame, host: object, test: str, usual: float) -> Iterator[Finding]:
    """A matrix of which half the cells and more stay below what the platform reaches: nothing in it stands out."""
    gpu = cells["gpu"][0]
    limit = copy_limit(gpu, test)
    if limit is None or usual >= limit:
        return
    whose = name_of(host)
    yield Finding(
        title=f"{test}{f' on {whose}' if whose else ''} reaches {usual:.1f} GB/s between most pairs, {limit:.0f} on such a platform",
        summary=f"Of {gpu}: {COPIES_FROM}. Hosts with an older PCIe generation are slower by design.",
        severity="warning",
        confidence="low",
        hosts=names_of(whose),
        culprits=(Culprit(host=whose),) if whose else (),
        subject=("gpu-copies", str(whose), test),
        evidence=cite(cells.sort("value", "source_id", "line_no"), "a cell of the matrix"),
        evidence_total=cells.height,
        remedy="Compare PCIe generation and width of all GPUs with the platform's, and the test's affinity to CPUs and memory.",
        prevention="Keep the result of a healthy host per platform and compare with it.",
        would_refute=("the platform is another one", "other work ran on the GPUs"),
        actions=(Action("collect_more", hosts=names_of(whose), command="lspci -vv; nvidia-smi -q; numactl --hardware"),),
        metrics={"gb_s": usual, "expected_gb_s": limit, "expected_by": COPIES_FROM},
    )


def _fallen_off(tests: pl.LazyFrame, rows: pl.LazyFrame, large: int, share: float) -> Iterator[Finding]:
    """Runs whose two largest sizes and all between them and the fall carry far less than a smaller one did: bus bandwidth grows with the
    size and levels out. A message that outgrows a cache of the host loses some of it, not two thirds."""
    seen = rows.filter(pl.col("bus_bw_gb_s").is_not_null() & (pl.col("bytes") * 8 >= large))
    sizes = seen.group_by("source_id", "test", "bytes").agg(
        pl.col("bus_bw_gb_s").max(), row_line=pl.col("line_no").first(), row_record=pl.col("record").first()
    )
    for run in sizes.sort("source_id", "test", "bytes").collect().partition_by("source_id", "test", maintain_order=True):
        top = run.row(int(str(run["bus_bw_gb_s"].arg_max())), named=True)
        behind = run.filter(pl.col("bytes") > top["bytes"])
        fallen = behind.filter(pl.col("bus_bw_gb_s") < share * top["bus_bw_gb_s"])
        if fallen.height < 2 or not (behind.tail(fallen.height)["bytes"] == fallen["bytes"]).all():
            continue
        about = tests.filter((pl.col("source_id") == top["source_id"]) & (pl.col("test") == top["test"])).collect().to_dicts()
        first, last = fallen.row(0, named=True), fallen.row(-1, named=True)
        found = about[0] if about else {"collective": None, "hosts": [], "source_id": top["source_id"]}
        yield _run_finding(
            {**found, "row_line": first["row_line"], "row_record": first["row_record"]},
            f"{found['collective'] or 'a collective'} falls off from {_size(first['bytes'])} on: {last['bus_bw_gb_s']:.1f} GB/s at {_size(last['bytes'])} after "
            f"{top['bus_bw_gb_s']:.1f} GB/s at {_size(top['bytes'])}",
            "Bus bandwidth grows with the size and levels out. What falls off under load only is loss or pauses on the network (buffers of a switch, flow "
            "control that is off), a clock that is held down, or host memory that several share.",
            "error",
            "medium",
            {"bus_bw_gb_s": last["bus_bw_gb_s"], "best_bus_bw_gb_s": top["bus_bw_gb_s"]},
        )


def _run_finding(
    run: Row,
    title: str,
    summary: str,
    severity: Severity,
    confidence: Confidence,
    metrics: Mapping[str, float | int | str | None],
    blamed: list[str] | None = None,
    least: float = inf,
) -> Finding:
    """``least``: what the same hosts must have reached in another run to be able to carry what is expected."""
    hosts = tuple(blamed if blamed is not None else _texts(run["hosts"]))
    able = float(str(run.get("reached") or 0.0)) >= least
    if able:
        severity, confidence = "info" if severity == "info" else "warning", "low"
        summary += f" The same hosts reached {float(str(run['reached'])):.1f} GB/s in another run: they can, and this one was made otherwise or at another time."
    row = {"source_id": run["source_id"], "line_no": run["row_line"], "record": run["row_record"]}
    return Finding(
        title=title,
        summary=summary,
        severity=severity,
        confidence=confidence,
        hosts=hosts,
        culprits=tuple(Culprit(host=h) for h in hosts) if len(hosts) <= 2 else (),
        subject=(str(run["collective"]), *sorted(hosts)[:8]),
        evidence=cite([row], "the best large row of the run"),
        remedy="Test one host alone, then pairs, until the slow part is found; then look at its NVLink, NICs, PCIe and GPUDirect RDMA.",
        prevention="Keep the result of a healthy run per platform and compare with it.",
        would_refute=("other traffic or a shared link during the test", "the expectation is not for this platform"),
        actions=(Action("collect_more", hosts=hosts, command="NCCL_DEBUG=INFO all_reduce_perf -b 256M -e 8G -f 2"),),
        metrics=dict(metrics),
    )


def _shape(ratio: float) -> str:
    for goal, words in ((0.5, "one of two rails or lanes, or half the PCIe width"), (0.125, "one NIC of eight")):
        if abs(ratio - goal) < 0.1 * goal:
            return f" About {goal:g} of it is typical for {words}."
    return " About a tenth is typical for TCP or shared memory instead of RDMA or NVLink." if 0.05 < ratio < 0.12 else ""


def _on(hosts: list[str]) -> str:
    return f" on {', '.join(hosts[:2])}{' ...' if len(hosts) > 2 else ''}" if hosts else ""


def _size(size: object) -> str:
    count = int(str(size or 0))
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def _texts(value: object) -> list[str]:
    return [str(v) for v in value] if isinstance(value, list) else []


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None
