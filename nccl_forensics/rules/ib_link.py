"""An InfiniBand or RoCE port is down, runs below its peers, or counts link errors.

## What it finds
Ports that are not active where the same port of other hosts, or the other ports of the same adapter kind, are; ports with fewer lanes or a
lower rate than their like; link counters that grew between two samples, or stand far above those of the other ports; error rates after
correction that mlxlink calls bad.

## Why it matters
A port that flaps ends the job with retries exceeded; a port at half rate slows every ring that crosses it, and so the whole job.

## What would refute it
The port is unused by design. One sample of a counter also shows what happened long before the job: only growth in the job's time proves it.

## What to do next
Reseat or swap cable and optic of the named port, clear its counters and read them again under load: perfquery -R, mlxlink -d DEVICE -c -m.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.facts.ib_counters import COUNTERS
from nccl_forensics.facts.link_rates import LANE_GBIT_S
from nccl_forensics.model import Action, Confidence, Culprit, Finding, Severity, names_of
from nccl_forensics.rules import rule
from nccl_forensics.values.others import others
from nccl_forensics.words import first_label, sentence

#: Ports of one host that should be alike. Another subnet manager means another fabric, which may be slower by design.
_LIKE = ("hca_type", "link_layer", "sm_lid")
_CITED = 4
_DAY = 24 * 60.0

Row = Mapping[str, object]


@rule(
    name="ib-link",
    code="NE01",
    cause="ib-link",
    severity="error",
    at_most=64,
    explains=(
        "timeout",
        "closed",
        "collective-stuck",
        "connection-failed",
        "packet-loss",
        "low-bus-bandwidth",
        "straggler",
        "nic-underused",
    ),
)
def ib_link(
    ib_ports: pl.LazyFrame | None,
    ib_port_counters: pl.LazyFrame | None,
    ib_links: pl.LazyFrame | None,
    link_quality: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    host_nics: pl.LazyFrame | None = None,
    *,
    peers: Annotated[int, "other ports that a port must be compared with"] = 3,
    times_threshold: Annotated[float, "a single sample counts from this multiple of ibqueryerrors' threshold on"] = 1.0,
    bit_error_rate: Annotated[float, "bit error rate after correction from which a link is bad"] = 1e-14,
    downs_per_day: Annotated[float, "times a day, since mlxlink's counters were cleared, that a link must go down to flap"] = 1.0,
) -> Iterator[Finding]:
    """Ports by state, by rate, by counters, and what the link itself says of its quality; worst first."""
    found: list[Finding] = []
    used = _used(host_nics)
    if ib_ports is not None:
        ports = ib_ports.collect()
        found.extend(_beside(f, used) for f in (*_not_active(ports, peers), *_slower(ports, peers)))
    if ib_port_counters is not None:
        counters = _counters(ib_port_counters.filter(pl.col("counter").is_in(_LINK)).collect(), peers, times_threshold)
        found.extend(_beside(f, used) for f in counters)
    if ib_links is not None:
        found.extend(_under_negotiated(ib_links))
        found.extend(_asked_for(ib_links))
        found.extend(_slower_than_neighbours(ib_links, peers))
    if link_quality is not None:
        found.extend(_quality(link_quality, source_hosts, bit_error_rate, downs_per_day))
    yield from sorted(found, key=lambda f: (f.severity != "error", f.severity != "warning"))


def _used(host_nics: pl.LazyFrame | None) -> dict[str, set[str]]:
    """By host the adapters that NCCL lists as those it uses."""
    used: dict[str, set[str]] = defaultdict(set)
    if host_nics is not None:
        for host, device in host_nics.select("host", "device").drop_nulls().collect().iter_rows():
            used[str(first_label(host))].add(str(device).partition(":")[0])
    return used


def _beside(finding: Finding, used: Mapping[str, set[str]]) -> Finding:
    """A port of an adapter that no host's NCCL uses, neither this host's nor one that has it up, is not one that the job stands on: another
    network (storage, management), or one that was filtered out."""
    hosts = {str(first_label(h)) for h in finding.hosts}
    nics = {str(c.nic).partition(" ")[0].partition(":")[0].partition("/")[0] for c in finding.culprits or () if c.nic}
    if not nics or not hosts or not hosts <= used.keys() or nics & set().union(*used.values()):
        return finding
    return replace(
        finding,
        severity="warning" if finding.severity in ("critical", "error") else finding.severity,
        confidence="low",
        summary=f"{finding.summary} NCCL uses this adapter on no host.",
    )


_LINK = [c.name for c in COUNTERS.values() if c.family == "link" and c.weight != "benign"]


#: LID of a port that no subnet manager has seen.
_NO_LID = 0xBFFF


def _not_active(ports: pl.DataFrame, peers: int) -> Iterator[Finding]:
    usual: dict[tuple[object, object], Tally[object]] = defaultdict(Tally)
    for row in ports.iter_rows(named=True):
        usual[(row["device"], row["port"])][row["state"]] += 1
    unmanaged = _unmanaged(ports)
    if unmanaged is not None:
        yield unmanaged
        ports = ports.filter(pl.col("state") != "init")
    for row in ports.filter(pl.col("phys_state") == "linkerrorrecovery").iter_rows(named=True):
        yield _finding(
            row,
            f"{_name(row)} trains its link anew",
            "A link that is well is not seen in that state: bit errors make it start again and again.",
            "error",
            "medium",
            "physical state LinkErrorRecovery",
            {},
        )
    for place, part in ports.group_by("place", maintain_order=True):
        rows = list(part.iter_rows(named=True))
        active = sum(r["state"] == "active" for r in rows)
        waiting = [r for r in rows if r["state"] == "init"]
        for row in rows:
            if row["state"] in (None, "active", "active-defer"):
                continue
            elsewhere = usual[(row["device"], row["port"])]
            others, others_active = sum(elsewhere.values()) - 1, elsewhere["active"]
            like = [r for r in rows if r is not row and all(r[k] == row[k] for k in _LIKE[:2])]
            like_active = sum(r["state"] == "active" for r in like)
            if others and others_active * 2 <= others:
                continue  # unused everywhere
            sure = others >= 1 or (len(like) >= peers and like_active == len(like))
            by_admin = row["phys_state"] == "disabled" and not others
            # A subnet manager gives addresses to ports that are up; one without a cable never had any (0, or 65535).
            was_up = row["state"] == "down" and not by_admin and not others and 0 < (row["lid"] or 0) < _NO_LID and bool(row["sm_lid"])
            severity: Severity = "error" if (sure and not by_admin) or was_up else "warning"
            if row["state"] == "init":
                why = "no subnet manager has configured it" + (
                    f", like {len(waiting) - 1} more ports of this host" if len(waiting) > 1 else ""
                )
            elif row["phys_state"] == "polling":
                why = "it sees no signal: cable, optic or switch port"
            elif row["phys_state"] == "disabled":
                why = "it is switched off"
            else:
                why = f"physical state {row['phys_state'] or 'unknown'}"
            compared = (
                f"{others_active} of {others} other hosts have this port active"
                if others
                else f"{active} other ports of the host are active"
            )
            found = _finding(
                row,
                f"{_name(row)} is {row['state']}: {why}",
                f"{compared}." + (" It still bears the address that a subnet manager gave it: it has been up before." if was_up else ""),
                severity,
                "high" if sure else "medium" if was_up else "low",
                f"state {row['state']}, physical state {row['phys_state'] or 'unknown'}",
                {"peers_active": others_active if others else like_active},
            )
            # A link that is up has a cable that works.
            unmanaged = row["state"] == "init" and row["phys_state"] == "linkup"
            yield replace(found, remedy=_UNMANAGED, actions=(_ask_manager(found),)) if unmanaged else found
        del place


_UNMANAGED = "Find why the subnet manager does not reach this port: its log, the partition keys, the switch port; the link itself is up."


def _ask_manager(found: Finding) -> Action:
    return Action("fix_config", hosts=found.hosts, command="sminfo; ibstat", confidence=found.confidence)


def _unmanaged(ports: pl.DataFrame) -> Finding | None:
    """Links that are up and wait for a subnet manager, where that is most of the InfiniBand ports with a link: then no one host is at
    fault."""
    linked = ports.filter((pl.col("phys_state") == "linkup") & (pl.col("link_layer").fill_null("infiniband") == "infiniband"))
    waiting = linked.filter(pl.col("state") == "init")
    if waiting.height < 2 or waiting.height * 2 <= linked.height:
        return None
    hosts = waiting["host"].drop_nulls().n_unique()
    found = _finding(
        waiting.row(0, named=True),
        f"{waiting.height} of {linked.height} InfiniBand ports with a link are Initializing: no subnet manager configures them",
        f"Ports of {hosts or 'some'} hosts have a link and no address: the subnet manager of the fabric is down or cannot be reached.",
        "error",
        "high",
        "state init, physical state linkup",
        {"ports_waiting": waiting.height},
        [{**row, "why": "state init, physical state linkup"} for row in waiting.iter_rows(named=True)],
    )
    return replace(
        found,
        hosts=(),
        culprits=(),
        subject=("subnet manager",),
        remedy="Start the subnet manager (opensm, or that of a switch), or find why it does not reach these hosts.",
        actions=(Action("fix_config", command="sminfo; systemctl status opensm"),),
    )


def _slower(ports: pl.DataFrame, peers: int) -> Iterator[Finding]:
    """Rate or width below the port's like: the same port of other hosts, else the same adapter kind of the same host."""
    rows = [r for r in ports.iter_rows(named=True) if r["state"] in ("active", None) and r["rate_gbit_s"]]
    # Rates and widths of all ports of a name, of those of them on one host, and of the ports of one kind on a host.
    speeds: dict[tuple[object, ...], Tally[tuple[float, object]]] = defaultdict(Tally)
    for row in rows:
        for key in _kin(row):
            speeds[key][(row["rate_gbit_s"], row["width"])] += 1
    for row in rows:
        name, here, kind = _kin(row)
        same_port = speeds[name] - speeds[here]
        if same_port.total() == 1 and (row["rate_gbit_s"], row["width"]) in same_port:
            continue  # the port of that name is as fast on the one other host: it is meant so
        across = same_port.total() >= 2
        own = Tally([(row["rate_gbit_s"], row["width"])])
        # Cards of one host may be of several kinds; where the same port of another host is like the others here, this one is meant to be.
        alike = row["hca_type"] or (
            same_port.total() and same_port.most_common(1)[0][0] == (speeds[kind] - own or own).most_common(1)[0][0]
        )
        like = same_port if across else speeds[kind] - own if alike else Tally[tuple[float, object]]()
        if like.total() < min(peers, 2 if across else peers):
            continue
        rates, widths = Tally[float](), Tally[object]()
        for (rate, lanes_of), times in like.items():
            rates[rate] += times
            widths[lanes_of] += times
        usual, share = rates.most_common(1)[0]
        if row["rate_gbit_s"] >= usual or share * 3 < like.total() * 2:
            continue
        width = widths.most_common(1)[0][0]
        narrow = row["width"] is not None and width is not None and row["width"] < width
        lanes = f" with {row['width']} of {width} lanes" if narrow else ""
        whose = "on the other hosts" if across else "of its like on this host"
        yield _finding(
            row,
            f"{_name(row)} runs at {row['rate_gbit_s']:g} of {usual:g} Gbit/s{lanes}",
            f"{share} of {like.total()} ports {whose} run at {usual:g} Gbit/s; this one carries {row['rate_gbit_s'] / usual:.0%} of that.",
            "error",
            "high",
            f"rate {row['rate_gbit_s']:g} Gbit/s",
            {"rate_gbit_s": row["rate_gbit_s"], "usual_gbit_s": usual},
        )


def _kin(row: Row) -> tuple[tuple[object, ...], tuple[object, ...], tuple[object, ...]]:
    """Keys of what a port is compared by: its name, its name on its host, and its kind on its host."""
    name = (row["device"], row["port"])
    return name, (*name, row["place"]), (row["place"], *(row[k] for k in _LIKE))


def _counters(counters: pl.DataFrame, peers: int, times: float) -> Iterator[Finding]:
    values: dict[object, list[int]] = defaultdict(list)
    for row in counters.iter_rows(named=True):
        values[row["counter"]].append(row["last"])
    ordered = {counter: sorted(of_all) for counter, of_all in values.items()}
    by_port: dict[tuple[object, ...], list[tuple[Row, str, Severity, Confidence]]] = defaultdict(list)
    for row in counters.iter_rows(named=True):
        known = COUNTERS[row["counter"]]
        grew = row["growth"]
        if grew:
            judged: tuple[Severity, Confidence] = ("error", "high") if known.weight == "fatal" else ("error", "medium")
            if known.weight == "suspect":
                judged = ("warning", "medium")
            words = f"{known.name} grew by {grew}: {known.meaning}"
        elif row["last"] and row["last"] >= max(known.threshold, 1) * times and grew is None:
            every = ordered[row["counter"]]
            beside = others(every, row["last"])
            # ibqueryerrors lists only what is above its thresholds: all the ports that it does not list are the peers.
            listed = row["tool"] == "ibqueryerrors"
            alone = not listed and not beside.count
            if not listed and not alone and (beside.count < peers or row["last"] <= 10 * (beside.middle + 1)):
                continue
            judged = ("error", "medium") if known.weight == "fatal" and row["saturated"] and not alone else ("warning", "low")
            size = f"{row['last']}, where the counter stops" if row["saturated"] else str(row["last"])
            whose = f"the {beside.count} other ports read"
            said = f"{whose} {beside.low}" if beside.low == beside.high else f"half of {whose} {beside.middle:g} or less"
            compared = "above ibqueryerrors' threshold" if listed or alone else f"while {said}"
            words = f"{known.name} is {size}, {compared}: {known.meaning}"
        else:
            continue
        by_port[tuple(row[k] for k in ("place", "host", "node", "device", "port"))].append((row, words, *judged))
    for items in by_port.values():
        items.sort(key=lambda i: (i[2] != "error", i[3] != "high", i[3] != "medium"))
        first, words, severity, confidence = items[0]
        grew_any = any(i[0]["growth"] for i in items)
        more = "; ".join(w for _, w, _, _ in items[1:])
        once = "" if grew_any else "One sample only: it counts from the last reset and does not prove that it happened in this job."
        yield _finding(
            first,
            f"{_name(first)}: {words}",
            " ".join(t for t in (f"{sentence(more)}." if more else "", once) if t),
            severity,
            confidence,
            "",
            {str(i[0]["counter"]): int(str(i[0]["last"])) for i in items},
            [{**dict(i[0]), "why": i[1]} for i in items],
        )


def _under_negotiated(links: pl.LazyFrame) -> Iterator[Finding]:
    rows = links.filter(pl.col("could_be").is_not_null()).sort("source_id", pl.col("host").is_null(), "line_no").collect()
    told: set[tuple[object, frozenset[tuple[object, object]]]] = set()
    for row in rows.iter_rows(named=True):
        # A fabric tool prints a link at both of its ends: the host's is told.
        link = (row["source_id"], frozenset({(row["lid"], row["port"]), (row["peer_lid"], row["peer_port"])}))
        if link in told and row["lid"] is not None and row["peer_lid"] is not None:
            continue
        told.add(link)
        place = {**row, "place": row["host"] or row["node"]}
        yield _finding(
            place,
            f"{_name(place)} runs at {row['width'] or '?'}X {_a_lane(row['speed'])}: {row['could_be']}",
            f"The link to {row['peer'] or 'its peer'} came up below what both ends can.",
            "error",
            "high",
            row["could_be"],
            {},
        )


#: More ports than that in one file are a list of a fabric, of which many bear no cable.
_ASKED = 4


def _asked_for(links: pl.LazyFrame) -> Iterator[Finding]:
    """Ports that somebody asked for one by one (``ibportstate LID PORT``, ``smpquery portinfo``) and that are down in what was printed of
    them last."""
    asked = links.filter((pl.col("tool") == "smpquery") & pl.col("state").is_not_null()).sort("source_id", "line_no")
    last = (
        asked.unique(["source_id", "lid", "port"], keep="last", maintain_order=True).filter(pl.len().over("source_id") <= _ASKED).collect()
    )
    for row in last.filter(pl.col("state") == "down").iter_rows(named=True):
        place = {**row, "node": row["node"] or f"LID {row['lid']}"}
        phys = str(row["phys_state"] or "unknown")
        why = {"polling": "it sees no signal: cable, optic or the other end", "disabled": "it is switched off"}.get(
            phys, f"physical state {phys}"
        )
        yield _finding(
            {**place, "place": row["host"] or place["node"]},
            f"{_name(place)} is down: {why}",
            "Whether it was meant to be up, and whether the job went through it, does not stand here.",
            "warning",
            "low",
            f"state down, physical state {phys}",
            {},
        )


def _a_lane(speed: object) -> str:
    """``HDR``, or ``25.78125 Gbit/s a lane`` where the tool prints the rate."""
    return f"{speed} Gbit/s a lane" if str(speed or "")[:1].isdigit() else str(speed or "")


def _slower_than_neighbours(links: pl.LazyFrame, peers: int) -> Iterator[Finding]:
    """Links of a host that a listing of the fabric shows slower than those of the host's other adapters."""
    lane = pl.col("speed").replace_strict(LANE_GBIT_S, default=None, return_dtype=pl.Float64())
    rows = (
        links.filter(pl.col("host").is_not_null() & pl.col("could_be").is_null() & pl.col("peer").is_not_null())
        .with_columns(gbit=lane * pl.col("width"))
        .filter(pl.col("gbit").is_not_null())
        .sort("source_id", "line_no")
        .collect()
    )
    for _, part in rows.group_by("source_id", "host", maintain_order=True):
        best = float(str(part["gbit"].max()))
        slow = part.filter(pl.col("gbit") < best)
        if slow.height * 2 >= part.height or part.height - slow.height < peers:
            continue
        for row in slow.iter_rows(named=True):
            place = {**row, "place": row["host"]}
            yield _finding(
                place,
                f"{_name(place)} runs at {row['gbit']:g} Gbit/s where {part.height - slow.height} other ports of the host run at {best:g}",
                f"The link to {row['peer']} has {row['width']} lanes of {row['speed']}. An adapter for storage may be slower by design.",
                "warning",
                "low",
                f"{row['width']}x{row['speed']}",
                {"rate_gbit_s": row["gbit"], "usual_gbit_s": best},
            )


def _quality(quality: pl.LazyFrame, source_hosts: pl.LazyFrame | None, worst: float, often: float) -> Iterator[Finding]:
    rows = quality.sort("source_id", "line_no")
    if source_hosts is not None:
        rows = rows.join(source_hosts.select("source_id", pl.col("host").alias("of_source")), on="source_id", how="left")
        rows = rows.with_columns(host=pl.coalesce("host", "hint_host", "of_source"))
    for raw in rows.collect().iter_rows(named=True):
        row = {**raw, "place": raw["host"], "port": None}
        said: list[str] = []
        for errors, rate, words in (
            ("effective_errors", "effective_ber", "errors after correction"),
            ("symbol_errors", "symbol_ber", "symbol errors"),
        ):
            if row[errors] and row[rate] and row[rate] >= worst:
                said.append(f"{row[errors]} {words} (bit error rate {row[rate]:.0e})")
        sure = bool(said)
        if row["opcode"]:
            said.append(f"mlxlink's opcode {row['opcode']}: {row['recommendation'] or 'no text'}")
        minutes = row["minutes_since_clear"]
        if row["link_downs"] and (not minutes or row["link_downs"] * _DAY / minutes >= often):
            age = f" in {minutes / 60:.0f} hours" if minutes else ""
            said.append(f"{row['link_downs']} link down{'s' if row['link_downs'] > 1 else ''}{age}")
        if said:
            yield _finding(
                row, f"{_name(row)} is a bad link: {said[0]}", "; ".join(said) + ".", "error" if sure else "warning", "medium", said[0], {}
            )


def _name(row: Row) -> str:
    port = f" port {row['port']}" if row.get("port") is not None else ""
    device = row.get("device")
    owner = row.get("host") or row.get("node")
    if device is None:
        return f"{owner or 'a node'}{port}"
    return f"{device}{port}" + (f" of {owner}" if owner else "")


def _finding(
    row: Row,
    title: str,
    summary: str,
    severity: Severity,
    confidence: Confidence,
    why: str,
    metrics: Mapping[str, float | int | str | None],
    cited: list[dict[str, object]] | None = None,
) -> Finding:
    host = str(row["host"]) if row.get("host") else None
    device = str(row["device"]) if row.get("device") else None
    link = f"{device or row.get('node')}/{row['port']}" if row.get("port") is not None else device
    hosts = names_of(host)
    check = f"mlxlink -d {device} -m -c -e" if device and device.startswith("mlx") else "ibdiagnet -pc"
    rows = cited or [{**row, "why": why}]
    return Finding(
        title=title,
        summary=summary,
        severity=severity,
        confidence=confidence,
        hosts=hosts,
        culprits=(Culprit(host=host, nic=device, link=link),),
        subject=(str(row.get("place") or row.get("node") or ""), str(link)),
        evidence=cite(rows, why, at_most=_CITED * 5),
        evidence_total=len(rows),
        remedy="Reseat or swap the cable or optic of this port; if it comes back, swap the switch port, then the adapter.",
        prevention="Check state, rate and error counters of every port in the job's prologue and keep nodes with growing counters out.",
        would_refute=("the port is unused by design, or its counters stand still under load",),
        actions=(Action("check_cable_or_optic", hosts=hosts, command=check, confidence=confidence),),
        metrics=dict(metrics),
    )
