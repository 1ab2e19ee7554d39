"""How GPUs and hosts are linked: connections, channels, GPU pairs, rings, trees and network devices, hosts that are alike folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import polars as pl

from nccl_forensics.extras import ChannelCount, HostNics, LinkMatrix, Ring, TransportRow, TreeShape
from nccl_forensics.views import Resolver
from nccl_forensics.words import UNKNOWN_HOST

#: GPUs of a host that a matrix is made for; kinds of matrices, rings and hosts that a report carries.
_GPUS, _MATRICES, _RINGS, _ROWS = 64, 12, 48, 400
_FORM = pl.col("detail").str.extract(r"^(P2P/[A-Za-z]+|SHM|direct shared memory|NET|COLLNET)")


def transports(resolver: Resolver) -> tuple[TransportRow, ...]:
    """Connections by host and kind; hosts with the same connections share a row."""
    connections = resolver.get("nccl_connections")
    if connections is None:
        return ()
    folded = (
        connections.with_columns(form=_FORM)
        .group_by("host", "transport", "form", "network", "gdr")
        .agg(pl.len().alias("count"), pl.col("channel").n_unique().alias("channels"))
        .sort("host", "transport", "form", "network", "gdr", nulls_last=True)
        .collect()
    )
    alike: dict[tuple[object, ...], list[str]] = {}
    for r in folded.iter_rows(named=True):
        kind = str(r["form"] if r["transport"] == "P2P" and r["form"] else r["transport"])
        key = (r["transport"], kind, r["network"], r["gdr"], r["channels"], r["count"])
        alike.setdefault(key, []).append(str(r["host"] or UNKNOWN_HOST))
    out = []
    for (transport, form, network, gdr, channels_, count), hosts in alike.items():
        names = ", ".join(hosts[:2]) + (f" and {len(hosts) - 2} more hosts alike" if len(hosts) > 2 else "")
        target = "other hosts" if transport in ("NET", "COLLNET") else "same host"
        total = int(str(count)) * len(hosts)
        out.append(
            TransportRow(
                names,
                target,
                str(form),
                str(network) if network else None,
                gdr is True if gdr is not None else None,
                int(str(channels_)),
                total,
            )
        )
    return tuple(out[:_ROWS])


def channels(resolver: Resolver) -> tuple[ChannelCount, ...]:
    """Lines that tell how many channels a communicator has, those alike counted."""
    frame = resolver.get("nccl_channels")
    if frame is None:
        return ()
    folded = frame.group_by("coll", "p2p", "nvls").agg(pl.len().alias("n")).sort("n", "coll", "p2p", "nvls", descending=True).collect()
    return tuple(
        ChannelCount(f"told by {r['n']:,} {'process' if r['n'] == 1 else 'processes'}", None, r["coll"], r["p2p"], r["nvls"])
        for r in folded.head(50).iter_rows(named=True)
    )


def matrices(resolver: Resolver, paths: Mapping[int, str]) -> tuple[LinkMatrix, ...]:
    """GPU pairs of each host: what NCCL connected them by, and what ``nvidia-smi topo -m`` says of the machine."""
    return (*_connected(resolver, paths), *_topology(resolver, paths))[:_MATRICES]


def _connected(resolver: Resolver, paths: Mapping[int, str]) -> list[LinkMatrix]:
    connections = resolver.get("nccl_connections")
    if connections is None:
        return []
    one_host = connections.select(pl.col("host").n_unique()).collect().item() == 1
    inside = pl.col("transport").is_in(["P2P", "SHM"]) | (pl.lit(one_host) & (pl.col("transport") == "NET"))
    pairs = (
        connections.filter(inside & pl.col("src_dev").is_not_null() & pl.col("dst_dev").is_not_null())
        .with_columns(form=pl.coalesce(_FORM, "transport"), host=pl.col("host").fill_null(UNKNOWN_HOST))
        .group_by("host", "src_dev", "dst_dev", "form")
        .agg(pl.len().alias("n"), pl.col("source_id").min(), pl.col("line_no").sort_by("source_id", "line_no").first())
        .sort("host", "src_dev", "dst_dev", "n", "form", descending=[False, False, False, True, False])
        .collect()
    )
    hosts: dict[str, dict[tuple[str, str], str]] = {}
    cites: dict[str, tuple[int, int]] = {}
    for r in pairs.iter_rows(named=True):
        hosts.setdefault(r["host"], {}).setdefault((r["src_dev"], r["dst_dev"]), r["form"])
        cites.setdefault(r["host"], (r["source_id"], r["line_no"]))
    return _folded("Connections between GPUs as NCCL made them", hosts, cites, paths)


def _topology(resolver: Resolver, paths: Mapping[int, str]) -> list[LinkMatrix]:
    topology = resolver.get("gpu_topology")
    if topology is None:
        return []
    rows = topology.filter(pl.col("a").str.starts_with("GPU") & pl.col("b").str.starts_with("GPU")).sort("source_id", "a", "b").collect()
    hosts: dict[str, dict[tuple[str, str], str]] = {}
    cites: dict[str, tuple[int, int]] = {}
    for r in rows.iter_rows(named=True):
        host = str(r["host"] or r["hint_host"] or paths.get(r["source_id"], UNKNOWN_HOST))
        if r["a"] != r["b"]:
            hosts.setdefault(host, {}).setdefault((r["a"], r["b"]), str(r["relation"] or ""))
        if r["line_no"] is not None:
            cites.setdefault(host, (r["source_id"], r["line_no"]))
    return _folded("Links of the machine (nvidia-smi topo -m)", hosts, cites, paths)


def _folded(
    title: str, hosts: Mapping[str, Mapping[tuple[str, str], str]], cites: Mapping[str, tuple[int, int]], paths: Mapping[int, str]
) -> list[LinkMatrix]:
    """Hosts with equal matrices share one; the smallest class of hosts, which stands out, first."""
    alike: dict[tuple[tuple[str, ...], tuple[tuple[str, ...], ...]], list[str]] = {}
    for host, pairs in hosts.items():
        names = tuple(sorted({d for pair in pairs for d in pair}, key=_device_order))
        if len(names) <= _GPUS:
            cells = tuple(tuple(pairs.get((a, b), "") for b in names) for a in names)
            alike.setdefault((names, cells), []).append(host)
    out = []
    for (names, cells), own in sorted(alike.items(), key=lambda item: (len(item[1]), item[1])):
        source, line = cites.get(own[0], (None, None))
        out.append(LinkMatrix(title, tuple(own), names, cells, paths.get(source) if source is not None else None, line))
    return out


def _device_order(name: str) -> tuple[int, str]:
    digits = "".join(c for c in name if c.isdigit())
    return (int(digits), name) if digits and name.removeprefix("GPU").isdigit() else (1 << 40, name.zfill(16))


def rings(resolver: Resolver, paths: Mapping[int, str]) -> tuple[Ring, ...]:
    """Ring orders of the largest communicator, channels that share one together."""
    frame = resolver.get("nccl_rings")
    if frame is None:
        return ()
    rows = frame.filter(pl.col("ranks").list.len() > 1).sort("source_id", "line_no").collect()
    longest = max(rows["ranks"].list.len().to_list(), default=0)
    homes = _homes(resolver, longest)
    alike: dict[tuple[int, ...], tuple[set[int], int, int]] = {}
    for r in rows.iter_rows(named=True):
        order = tuple(r["ranks"])
        if len(order) == longest:
            alike.setdefault(order, (set(), r["source_id"], r["line_no"]))[0].add(r["channel"])
    out = []
    for order, (own, source, line) in list(alike.items())[:_RINGS]:
        out.append(Ring(tuple(sorted(own)), order, _walk(order, homes), paths.get(source), line))
    return tuple(out)


def _homes(resolver: Resolver, size: int) -> dict[int, str]:
    """Rank to host of the one communicator of this size; empty where several have it."""
    comms = resolver.get("comms")
    if comms is None:
        return {}
    rows = comms.filter((pl.col("nranks") == size) & pl.col("rank").is_not_null() & pl.col("host").is_not_null()).collect()
    if rows["comm_key"].n_unique() != 1:
        return {}
    return dict(rows.select("rank", "host").iter_rows())


def _walk(order: tuple[int, ...], homes: Mapping[int, str]) -> tuple[str, ...]:
    """Hosts in the order in which the ring enters them."""
    if any(r not in homes for r in order):
        return ()
    out: list[str] = []
    for rank in order:
        if not out or out[-1] != homes[rank]:
            out.append(homes[rank])
    return tuple(out[:-1] if len(out) > 1 and out[0] == out[-1] else out)


def trees(resolver: Resolver, paths: Mapping[int, str]) -> tuple[TreeShape, ...]:
    """Trees by their shape. Lines do not name their communicator: where a rank has two places in one channel, nothing is said."""
    frame = resolver.get("nccl_trees")
    if frame is None:
        return ()
    rows = frame.filter(pl.col("rank").is_not_null()).unique(["channel", "rank", "up", "down"]).sort("channel", "rank").collect()
    if rows.select("channel", "rank").is_duplicated().any():
        return ()
    cite = (
        frame.sort("source_id", "line_no")
        .group_by("channel", maintain_order=True)
        .agg(pl.col("source_id").first(), pl.col("line_no").first())
    )
    cites = {c: (s, n) for c, s, n in cite.collect().iter_rows()}
    alike: dict[tuple[int | None, int, int], tuple[list[int], set[int]]] = {}
    for (channel,), own in rows.group_by("channel", maintain_order=True):
        root, depth, widest, count = _shape(own)
        same = alike.setdefault((depth, widest, count), ([], set()))
        same[0].append(int(str(channel)))
        same[1].update(() if root is None else (root,))
    out = []
    for (depth, widest, count), (own_channels, roots) in alike.items():
        source, line = cites.get(own_channels[0], (None, None))
        path = paths.get(source) if source is not None else None
        out.append(TreeShape(tuple(own_channels), tuple(sorted(roots)), depth, widest, count, path, line))
    return tuple(out[:_RINGS])


def _shape(own: pl.DataFrame) -> tuple[int | None, int | None, int, int]:
    """(root, depth, most children, ranks); root and depth are null where the ranks that told do not reach from one root."""
    children = {r: [c for c in down or [] if c is not None] for r, down in own.select("rank", "down").iter_rows()}
    roots = [r for r, up in own.select("rank", "up").iter_rows() if up is None]
    widest = max((len(c) for c in children.values()), default=0)
    if len(roots) != 1:
        return None, None, widest, own.height
    seen, level, depth = {roots[0]}, [roots[0]], 0
    while level:
        level = [c for r in level for c in children.get(r, []) if c not in seen]
        seen |= set(level)
        depth += bool(level)
    return roots[0], depth if len(seen) == own.height else None, widest, own.height


def nics(resolver: Resolver, paths: Mapping[int, str]) -> tuple[HostNics, ...]:
    """Network devices by host, and which of them connections use; hosts that are alike share a row."""
    listed = resolver.get("host_nics")
    if listed is None:
        return ()
    used: dict[str, set[int]] = {}
    connections = resolver.get("nccl_connections")
    if connections is not None:
        net = connections.filter((pl.col("transport") == "NET") & pl.col("net_dev").is_not_null()).select("host", "net_dev").unique()
        for host, device in net.collect().iter_rows():
            used.setdefault(str(host), set()).add(device)
    alike: dict[tuple[object, ...], tuple[list[str], int, int]] = {}
    for (host,), own in listed.sort("host", "port", "device").collect().group_by("host", maintain_order=True):
        names: dict[int, str] = {}
        for r in own.iter_rows(named=True):
            names.setdefault(r["port"] if r["port"] is not None else len(names), str(r["device"]))
        taken = tuple(names[n] for n in sorted(used.get(str(host), ())) if n in names)
        speeds = Counter(s for s in own["speed_mbps"].to_list() if s)
        links = Counter(str(x) for x in own["link"].to_list() if x)
        key = (
            tuple(names[n] for n in sorted(names)),
            taken,
            speeds.most_common(1)[0][0] if speeds else None,
            links.most_common(1)[0][0] if links else None,
        )
        alike.setdefault(key, ([], own["source_id"][0], own["line_no"][0]))[0].append(str(host))
    out = []
    for (devices, taken_, speed, link), (hosts, source, line) in alike.items():
        assert isinstance(devices, tuple)
        assert isinstance(taken_, tuple)
        gbit = int(str(speed)) / 1000 if speed is not None else None
        out.append(HostNics(tuple(hosts), devices, taken_, gbit, str(link) if link else None, paths.get(source), line))
    return tuple(out[:_ROWS])
