"""Connections that NCCL could not make, and interfaces that peers cannot reach.

## What it finds
Bootstrap and socket errors after all retries, and interfaces (loopback, docker and other bridges) that no other host can reach.

## Why it matters
The communicator never comes up: restarting on the same hosts brings it back.

## What would refute it
The peer's process had already died for a reason of its own: then the refusal is its consequence.

## What to do next
nc -zv to the quoted address from the quoted host; check firewall, routes and NCCL_SOCKET_IFNAME.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Culprit, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.errors import NOBODY, hosts_of, own_addresses, ranks_of, still_trying, where_reported
from nccl_forensics.views.lost_hosts import INTERFACES
from nccl_forensics.words import ranks_words

#: Interfaces that other hosts cannot reach.
_PRIVATE = r"^(lo|docker\d*|br-[0-9a-f]+|virbr\d*|veth\w*|cni\d*|cbr\d*|flannel[\w.]*|cali\w*|podman\d*|lxcbr\d*|lxdbr\d*|tun\d*|dummy\d*|kube-\w+)$"
#: Lines that tell over which interface a process bootstraps: where none says it (INIT alone from 2.23 on), the sockets' is the same.
_BOOTSTRAPS = (pl.col("item") == "bootstrap") | ~(pl.col("item") == "bootstrap").any().over("host", "pid")
#: Releases up to 2.26 write "Connect".
_LOOPBACK = r"[Cc]onnect to (?:127\.|::1)"
_LINK_LOCAL = r"[Cc]onnect to (?:::ffff:)?169\.254\."
_ADDRESS = re.compile(r"[Cc]onnect to ([0-9A-Fa-f:.%\w-]{2,64}<[0-9]{1,5}>)")


@rule(
    name="wrong-interface",
    code="NE12",
    cause="wrong-interface",
    severity="critical",
    at_most=4,
    explains=("connection-failed", "rank-never-joined", "host-stall", "rank-died", "collective-stuck", "invalid-usage"),
)
def wrong_interface(
    nccl_network: pl.LazyFrame | None,
    nccl_errors: pl.LazyFrame,
    processes: pl.LazyFrame | None,
    host_ranks: pl.LazyFrame | None,
    settings: pl.LazyFrame | None,
    comms: pl.LazyFrame | None,
    nccl_tails: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """No interface at all, or one that no other host can reach, where connections failed."""
    people = processes if processes is not None else NOBODY
    yield from _no_interface(nccl_errors, settings, people)
    if nccl_network is None:
        return
    failed = where_reported(nccl_errors.filter(pl.col("kind").is_in(["connect-gave-up", "connect-failed"])), people)
    yield from _link_local(failed, nccl_network)
    asked = failed
    if nccl_tails is not None:
        trying = where_reported(still_trying(nccl_errors, nccl_tails), people)
        asked = pl.concat([failed, trying.filter(_astray(nccl_network))], how="diagonal_relaxed")
    named = nccl_network.filter(pl.col("item").is_in(INTERFACES))
    if not asked.height:
        if comms is not None:
            yield from _same_address(nccl_network, comms)
        if not has_rows(nccl_errors, pl.col("kind") == "connect-retry") and not has_rows(comms, pl.col("completed")):
            yield from _some_looped(named, people)
    if not asked.height or host_ranks is None:
        return
    # Releases that never came to a communicator name no rank: their hosts are those that name an interface.
    ranked = host_ranks.select("host").collect()["host"].to_list()
    several = len(set(ranked or named.select("host").collect()["host"].drop_nulls().to_list())) > 1
    if several and (private := _over_private(named, people)).height:
        yield _unreachable(private)
        return
    yield from _loopback_peers(asked, named, host_ranks, comms)
    if several:
        yield from _apart(failed, named.collect())


def _no_interface(nccl_errors: pl.LazyFrame, settings: pl.LazyFrame | None, people: pl.LazyFrame) -> Iterator[Finding]:
    """Processes that found no interface, or were given no address to connect to."""
    # NCCL goes on without an interface for the bootstrap alone, and says so ("…, ignoring").
    unaddressed = pl.col("kind").is_in(["no-interface", "no-address"]) & ~pl.col("message").str.ends_with(", ignoring")
    none = where_reported(nccl_errors.filter(unaddressed), people)
    # A process that connects has the address from its peer, in a message: one that was misread says nothing of an interface.
    own = none.filter(pl.col("kind") == "no-interface")
    if own.height or has_rows(nccl_errors, pl.col("kind") == "truncated-message"):
        none = own
    if not none.height:
        return
    ranks, hosts = ranks_of(none), hosts_of(none)
    wanted = {}
    if settings is not None:
        rows = settings.filter(pl.col("name") == "NCCL_SOCKET_IFNAME").collect()
        wanted = {h: r["value"] for r in rows.iter_rows(named=True) for h in r["hosts"]}
    value = next((wanted[h] for h in hosts if h in wanted), None)
    yield Finding(
        title=f"{ranks_words(ranks) if ranks else f'a process on {hosts[0]}' if hosts else 'a process'} "
        + ("found no interface to use" if own.height else "was given no address to connect to")
        + (f" (NCCL_SOCKET_IFNAME={value})" if value else ""),
        summary="NCCL_SOCKET_IFNAME matches no interface of that host, or none is up."
        if own.height
        else "A peer told an address that is none: it found no interface to give the address of.",
        confidence="high" if own.height else "medium",
        ranks=ranks,
        hosts=hosts,
        culprits=(tuple(Culprit(rank=r) for r in ranks) or tuple(Culprit(host=h) for h in hosts)) if own.height else (),
        subject=("no-interface", *hosts),
        evidence=cite(none, "no interface found"),
        evidence_total=none.height,
        remedy="Set NCCL_SOCKET_IFNAME to an interface that exists on every host, or leave it unset.",
        prevention="Check ip -br addr on every host in the job's prologue.",
        would_refute=("the interface exists and is up on that host",),
        actions=(Action("change-setting", ranks=ranks, hosts=hosts, command="ip -br addr", confidence="high"),),
    )


def _astray(nccl_network: pl.LazyFrame) -> pl.Expr:
    """Whether a retry goes to an address that may be the own host's, or that of several hosts."""
    target = pl.col("message").str.extract(_ADDRESS.pattern).str.split("<").list.first()
    shared = _shared_addresses(nccl_network)
    # Retries of releases up to 2.26 name no address; on such a host any address that a peer gave may be the host's own, and a peer that
    # bootstraps over loopback gives others an address of their own.
    looped = _loopback_hosts(nccl_network)
    unnamed = pl.col("host").is_in(shared["host"].to_list()) | (pl.lit(bool(looped)) & ~pl.col("host").is_in(looped))
    told = pl.when(target.is_null()).then(unnamed).otherwise(target.is_in(shared["address"].to_list()))
    return pl.col("message").str.contains(_LOOPBACK) | told


def _over_private(named: pl.LazyFrame, people: pl.LazyFrame) -> pl.DataFrame:
    """The lines of processes that bootstrap over an interface which no other host can reach, with their ranks."""
    ranked = people.filter(pl.col("rank").is_not_null()).select("host", "pid", "rank").unique(["host", "pid"], keep="any")
    return (
        named.filter(_BOOTSTRAPS)
        .filter(pl.col("name").str.contains(_PRIVATE) | pl.col("address").str.starts_with("127."))
        .join(ranked, on=["host", "pid"], how="left")
        .with_columns(rank=pl.coalesce("rank", pl.when(pl.col("hint_scope") == "global").then(pl.col("hint_rank"))))
        .sort("source_id", "line_no")
        .collect()
    )


def _unreachable(private: pl.DataFrame) -> Finding:
    names = sorted(set(private["name"].to_list()))
    ranks, hosts = ranks_of(private), hosts_of(private)
    return Finding(
        title=f"{ranks_words(ranks) if ranks else ', '.join(hosts)} bootstrapped over {', '.join(names)}, which other hosts cannot reach",
        summary="Connections to or from these hosts failed after all retries; the interface is a loopback or bridge of one host.",
        confidence="high",
        ranks=ranks,
        hosts=hosts,
        culprits=tuple(Culprit(rank=r) for r in ranks) or tuple(Culprit(host=h) for h in hosts),
        subject=("interface", *names, *hosts),
        evidence=cite(private, "bootstrap interface of this process"),
        evidence_total=private.height,
        remedy="Set NCCL_SOCKET_IFNAME to the network that connects the hosts (or exclude bridges: ^lo,docker0).",
        prevention="Fix NCCL_SOCKET_IFNAME in the cluster's default environment.",
        would_refute=("the peers can reach the quoted address",),
        actions=(Action("change-setting", ranks=ranks, hosts=hosts, command="export NCCL_SOCKET_IFNAME=^lo,docker0", confidence="high"),),
    )


def _some_looped(named: pl.LazyFrame, people: pl.LazyFrame) -> Iterator[Finding]:
    """Hosts that bootstrap over loopback beside others that do not, where no communicator came up: no other host reaches them there. Before
    2.24 a connection that is refused leaves a line at every thousandth try alone; where tries are told, they say more."""
    looped = _over_private(named, people).filter(pl.col("address").str.starts_with("127."))
    elsewhere = named.filter(_BOOTSTRAPS & ~pl.col("address").str.starts_with("127.")).select("host").drop_nulls().collect()["host"]
    if looped.height and set(elsewhere.to_list()) - set(hosts_of(looped)) and not set(elsewhere.to_list()) & set(hosts_of(looped)):
        yield replace(
            _unreachable(looped),
            summary="No communicator came up: these processes wait for each other at addresses that only their own host knows.",
            confidence="medium",
        )


def _same_address(nccl_network: pl.LazyFrame, comms: pl.LazyFrame) -> Iterator[Finding]:
    """Hosts that bootstrap from one address, where no communicator came up and nothing else is said: each of them calls itself."""
    came_up = comms.select(pl.col("completed").any()).collect().item()
    shared = _shared_addresses(nccl_network.filter(pl.col("item") == "bootstrap"))
    if came_up or not shared.height:
        return
    address, hosts = str(shared["address"][0]), tuple(shared.filter(pl.col("address") == shared["address"][0])["host"].to_list())
    own = pl.col("host").is_in(list(hosts)) & pl.col("address").str.starts_with(f"{address}<")
    lines = nccl_network.filter((pl.col("item") == "bootstrap") & own).sort("source_id", "line_no").collect()
    names = ", ".join(sorted({str(n) for n in lines["name"].drop_nulls()}))
    yield Finding(
        title=f"{', '.join(hosts[:4])} all bootstrap from {address}{f' of {names}' if names else ''}, and no communicator came up",
        summary="It is the address of a bridge or of the loopback, which is the same on every host: whoever connects to it reaches its own host.",
        confidence="medium",
        hosts=hosts,
        culprits=(),
        subject=("same-address", *hosts),
        evidence=cite(lines.unique("host", keep="first", maintain_order=True), "the address that this host tells its peers"),
        evidence_total=lines.height,
        remedy="Set NCCL_SOCKET_IFNAME to the network that connects the hosts (or exclude bridges: ^lo,docker0).",
        prevention="Fix NCCL_SOCKET_IFNAME in the cluster's default environment.",
        would_refute=("the names are those of containers of one host", "another rank never started"),
        actions=(Action("change-setting", hosts=hosts, command="export NCCL_SOCKET_IFNAME=^lo,docker0", confidence="medium"),),
    )


def _link_local(failed: pl.DataFrame, nccl_network: pl.LazyFrame) -> Iterator[Finding]:
    """Peers that told an address which an interface without a configuration gives itself (169.254.0.0/16), where processes that use another
    network could not connect to it."""
    asked = failed.filter(pl.col("message").str.contains(_LINK_LOCAL))
    used = nccl_network.filter(pl.col("item").is_in(INTERFACES) & pl.col("address").is_not_null()).collect()
    if not asked.height or not used.height or used["address"].str.starts_with("169.254.").any():
        return
    hosts = hosts_of(asked)
    yield Finding(
        title=f"a peer told {', '.join(hosts) or 'others'} to connect to a link-local address, and no connection came about",
        summary="All processes that are seen use another network, so whoever gave that address is not seen, or names no interface: NCCL took one there that has "
        "no configured address.",
        confidence="medium",
        culprits=(),
        hosts=hosts,
        subject=("link-local", *hosts),
        evidence=(*cite(asked, "the address that a peer gave", at_most=8), *cite(used.head(1), "the interface of a process seen here")),
        evidence_total=asked.height + 1,
        remedy="Set NCCL_SOCKET_IFNAME to the network that connects the hosts.",
        prevention="Fix NCCL_SOCKET_IFNAME in the cluster's default environment.",
        would_refute=("the hosts reach each other at these addresses",),
        actions=(Action("change-setting", command="ip -br addr", confidence="medium"),),
    )


def _shared_addresses(nccl_network: pl.LazyFrame) -> pl.DataFrame:
    """``address`` and ``host``: addresses that several hosts call their own, as those of docker's bridges: whoever connects to one reaches
    itself."""
    own = nccl_network.filter(pl.col("item").is_in(INTERFACES) & pl.col("address").is_not_null() & pl.col("host").is_not_null())
    hosts = own.group_by(address=pl.col("address").str.split("<").list.first()).agg(pl.col("host").unique())
    return hosts.filter(pl.col("host").list.len() > 1).explode("host").sort("address", "host").collect()


def _loopback_hosts(nccl_network: pl.LazyFrame) -> list[str]:
    """Hosts with a process that bootstraps over its loopback address."""
    named = nccl_network.filter(pl.col("item").is_in(INTERFACES))
    own = named.filter(_BOOTSTRAPS & pl.col("address").str.starts_with("127."))
    return sorted(own.select("host").drop_nulls().unique().collect()["host"].to_list())


#: What a connection to another network fails with.
_NO_WAY = ("Network is unreachable", "No route to host", "Connection timed out")


def _apart(failed: pl.DataFrame, named: pl.DataFrame) -> Iterator[Finding]:
    """A host that finds no way to the address that a peer gave, where the two use interfaces of other names in other networks."""
    used = {
        str(r["address"]).split("<")[0]: r for r in named.filter(pl.col("address").is_not_null() & pl.col("name").is_not_null()).to_dicts()
    }
    own = {r["host"]: (a, r) for a, r in used.items()}
    for row in failed.iter_rows(named=True):
        match = _ADDRESS.search(str(row["message"]))
        target = used.get(match.group(1).split("<")[0]) if match else None
        if target is None or row["host"] not in own or not any(words in str(row["message"]) for words in _NO_WAY):
            continue
        address, mine = own[row["host"]]
        theirs = str(target["address"]).split("<")[0]
        if mine["name"] == target["name"] or address.split(".")[:2] == theirs.split(".")[:2] or ":" in address + theirs:
            continue
        hosts = tuple(sorted({str(row["host"]), str(target["host"])}))
        yield Finding(
            title=f"{row['host']} uses {mine['name']} ({address}) and {target['host']} uses {target['name']} ({theirs}): one finds no way to the other",
            summary="The two talk over interfaces of different networks. Which of the two was meant the logs do not tell.",
            confidence="medium",
            hosts=hosts,
            culprits=(),
            subject=("interfaces-apart", *hosts),
            evidence=(*cite([row], "the connection that failed"), *cite([mine, target], "the interface that the host uses")),
            remedy="Set NCCL_SOCKET_IFNAME on both hosts to the interface of the network that connects them.",
            prevention="Give all hosts of a job the same NCCL_SOCKET_IFNAME.",
            would_refute=("a route between the two networks that both hosts have",),
            actions=(Action("change-setting", hosts=hosts, command="ip route get " + theirs, confidence="medium"),),
        )
        return


def _loopback_peers(failed: pl.DataFrame, named: pl.LazyFrame, host_ranks: pl.LazyFrame, comms: pl.LazyFrame | None) -> Iterator[Finding]:
    """Peers that left no evidence and told hosts that did to reach them at a loopback address."""
    asked = failed.filter(pl.col("message").str.contains(_LOOPBACK))
    used = named.filter(_BOOTSTRAPS).collect()
    if comms is None or not asked.height or not used.height:
        return
    # Where these processes use loopback themselves, they talk to each other.
    if used["address"].str.starts_with("127.").any() or used["name"].str.contains(_PRIVATE).any():
        return
    size = int(str(comms.select(pl.col("nranks").max()).collect().item() or 0))
    seen = {int(r) for ranks in host_ranks.collect()["ranks"].to_list() for r in ranks}
    unseen = tuple(sorted(set(range(size)) - seen))
    if not unseen or not seen:
        return
    host = hosts_of(asked)
    # Logs of a few ranks only: which of the others gave the address is not to be seen.
    meant = unseen if len(unseen) <= len(seen) else ()
    yield Finding(
        title=f"a peer among {ranks_words(unseen)} (no evidence) told {', '.join(host) or 'others'} to connect to a loopback address",
        summary="All processes seen here use another interface, so whoever gave that address is among those that are not seen: there NCCL "
        "bootstrapped over loopback.",
        confidence="medium",
        ranks=meant,
        subject=("loopback", *host),
        evidence=(*cite(asked, "the address that a peer gave"), *cite(used.head(1), "the interface of a process seen here")),
        evidence_total=asked.height + 1,
        remedy="Set NCCL_SOCKET_IFNAME to the network that connects the hosts (or exclude loopback: ^lo,docker0).",
        prevention="Fix NCCL_SOCKET_IFNAME in the cluster's default environment.",
        would_refute=("the logs of those ranks name another bootstrap interface",),
        actions=(Action("change-setting", ranks=unseen, command="export NCCL_SOCKET_IFNAME=^lo,docker0", confidence="medium"),),
    )


@rule(
    name="connection-failed",
    code="NE11",
    cause="connection-failed",
    severity="critical",
    at_most=4,
    explains=("rank-never-joined", "host-stall", "collective-stuck", "collective-skipped"),
)
def connection_failed(
    nccl_errors: pl.LazyFrame,
    processes: pl.LazyFrame,
    nccl_network: pl.LazyFrame | None = None,
    nccl_tails: pl.LazyFrame | None = None,
    comms: pl.LazyFrame | None = None,
    bootstrapped: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """Connections that failed after all retries, or of which the log ends amid retries that find no way, by errno text and pair of host and
    address."""
    rows = where_reported(nccl_errors.filter(pl.col("kind").is_in(["connect-gave-up", "connect-failed"])), processes)
    trying = not rows.height
    if trying and nccl_tails is not None:
        # A peer that is late or gone refuses; that nothing answers, or no way leads there, is the network's doing.
        no_way = pl.any_horizontal(pl.col("message").str.contains(words, literal=True) for words in _NO_WAY)
        tries = still_trying(nccl_errors, nccl_tails)
        rows = where_reported(tries.filter(no_way), processes)
        if not rows.height:
            rows = where_reported(_barred(tries, nccl_tails, comms), processes)
    if not rows.height:
        return
    hosts = hosts_of(rows)
    targets = sorted({m.group(1).split("<")[0] for text in rows["message"].to_list() if (m := _ADDRESS.search(str(text)))})
    said = _why(rows, nccl_errors)
    reasons = sorted(w for w in _REASONS if any(w in text for text in said))
    link = f"{', '.join(hosts[:4]) or 'a host'} to {', '.join(targets[:4]) or 'a peer'}"
    own = bool(targets) and len(hosts) == 1 and set(targets) <= own_addresses(nccl_network, hosts)
    # A process that is gone refuses every connection: where others failed for reasons of their own, this is what follows.
    gone = _failed_themselves(nccl_errors, processes, rows) if reasons == ["Connection refused"] else ()
    mixed = _other_type(nccl_errors)
    inside = not trying and _refused_inside(targets, nccl_errors, nccl_tails, nccl_network)
    met = reasons == ["Connection refused"] and _after_meeting(rows, comms, bootstrapped)
    yield Finding(
        title=f"no connection from {link}: {', '.join(reasons) or 'failed after all retries'}",
        summary=f"{ranks_words(ranks_of(rows)) if ranks_of(rows) else 'Processes'} {'tried in vain to the end of the log' if trying else 'gave up after all retries'}. "
        + (
            "The address is their own host's, so no network lies between: the process there had ended, or was not the one that was meant."
            if own
            else "Processes of the host behind that address are refused as well, by nothing between hosts: more likely a process there has ended."
            if inside
            else f"{ranks_words(gone)} had errors of {'its' if len(gone) == 1 else 'their'} own, so the refusal may be no more than that the process had ended."
            if gone
            else "A socket of another type answered where these ranks meet, so they may not speak the same transport."
            if mixed
            else "All processes had met before, so the one that refuses had a port open: more likely it has ended since."
            if met
            else "Which end is at fault needs a look at both."
        ),
        confidence="low" if gone or mixed else "medium" if own or trying or inside or met else "high",
        hosts=hosts,
        culprits=tuple(Culprit(link=f"{h} -> {t}") for h in (hosts[:4] or ("?",)) for t in (targets[:4] or ["?"])),
        subject=("connect", *hosts, *reasons),
        evidence=cite(rows, "gave up connecting"),
        evidence_total=rows.height,
        remedy="Check that the peer's process was up, then firewall, routes and interface between these hosts.",
        prevention="Test the port range between all pairs of hosts in the job's prologue.",
        would_refute=("the peer's process died before the first attempt",),
        actions=(Action("collect_more", hosts=hosts, command=f"nc -zv {targets[0] if targets else '<address>'} <port>"),),
    )


def _barred(tries: pl.LazyFrame, nccl_tails: pl.LazyFrame, comms: pl.LazyFrame | None) -> pl.LazyFrame:
    """Retries of whole hosts that are refused to the end while no communicator ever came up, where another host has processes that all wait
    and none that is refused: had the process that they all look for (the root, bootstrap.cc) ended, its own host would be refused as well."""
    refused = tries.filter(pl.col("message").str.contains("Connection refused", literal=True))
    if has_rows(comms, pl.col("completed")):
        return refused.clear()
    seen = nccl_tails.filter(pl.col("host").is_not_null()).group_by("host").agg(seen=pl.struct("pid").n_unique())
    held = refused.group_by("host").agg(held=pl.struct("pid").n_unique())
    counted = seen.join(held, on="host", how="left").with_columns(pl.col("held").fill_null(0)).collect()
    several = pl.col("seen") > 1
    whole, free = several & (pl.col("held") == pl.col("seen")), several & (pl.col("held") == 0)
    if not (counted.select(whole.any()).item() and counted.select(free.any()).item() and counted.select((whole | free).all()).item()):
        return refused.clear()
    return refused


#: Why a connection does not come about, in the words of the system (strerror).
_REASONS = ("Connection refused", "Connection timed out", "No route to host", "Network is unreachable", "Connection reset by peer")


def _why(rows: pl.DataFrame, nccl_errors: pl.LazyFrame) -> list[str]:
    """What each process was told that gave up. Releases up to 2.22 say it at every try and not at the end ("exceeded retries")."""
    place = ["source_id", "host", "pid"]
    tries = nccl_errors.filter(pl.col("kind") == "connect-retry").sort("source_id", "line_no").select(*place, "line_no", tried="message")
    told = rows.with_columns(mute=~pl.any_horizontal(pl.col("message").str.contains(w, literal=True) for w in _REASONS))
    before = told.filter("mute").select(*place, ended="line_no").lazy().join(tries, on=place, nulls_equal=True)
    last = before.filter(pl.col("line_no") < pl.col("ended")).group_by(*place, "ended", maintain_order=True).agg(pl.col("tried").last())
    return [str(m) for m in (*told["message"].to_list(), *last.sort(*place, "ended").collect()["tried"].to_list())]


def _refused_inside(
    targets: list[str], nccl_errors: pl.LazyFrame, nccl_tails: pl.LazyFrame | None, nccl_network: pl.LazyFrame | None
) -> bool:
    """Whether a log of the host that has one of the addresses ends while it is refused: by a process of that host, as far as it tells no
    address."""
    if nccl_tails is None or nccl_network is None:
        return False
    owners = nccl_network.filter(pl.col("item").is_in(INTERFACES) & pl.col("address").str.split("<").list.first().is_in(targets))
    hosts = owners.select("host").drop_nulls().unique().collect()["host"].to_list()
    ends = nccl_tails.group_by("source_id", "host", "pid").agg(last_line=pl.col("line_no").max())
    refused = nccl_errors.filter(
        (pl.col("kind") == "connect-retry") & pl.col("host").is_in(hosts) & pl.col("message").str.contains("refused", literal=True)
    )
    address = pl.col("message").str.extract(_ADDRESS.pattern).str.split("<").list.first()
    near = refused.filter(address.is_null() | address.is_in(targets)).join(ends, on=["source_id", "host", "pid"], nulls_equal=True)
    return has_rows(near, pl.col("line_no") + 1 >= pl.col("last_line"))


def _after_meeting(rows: pl.DataFrame, comms: pl.LazyFrame | None, bootstrapped: pl.LazyFrame | None) -> bool:
    """Whether all processes that gave up are of communicators in whose bootstrap every rank had checked in."""
    if comms is None or bootstrapped is None:
        return False
    met = comms.join(bootstrapped.select("comm_key"), on="comm_key", how="semi").select("host", "pid").collect()
    return rows.join(met, on=["host", "pid"], how="anti", nulls_equal=True).height == 0


def _other_type(nccl_errors: pl.LazyFrame) -> bool:
    """Whether some rank was answered by a socket of another type (NCCL src/misc/socket.cc): it meets a peer that speaks another
    transport."""
    answered = (pl.col("kind") == "handshake-mismatch") & pl.col("message").str.contains("wrong type", literal=True)
    return has_rows(nccl_errors, answered)


def _failed_themselves(nccl_errors: pl.LazyFrame, processes: pl.LazyFrame, refused: pl.DataFrame) -> tuple[int, ...]:
    """Ranks that NCCL handed an error of a collective up to (1 to 6 are errors), or one of making a communicator that no connection fails
    with (not 2 and 6, system and remote errors; nccl.h, ncclResult_t), of which no line says that a connection failed."""
    propagated = pl.col("kind") == "propagation"
    calling = pl.col("file").str.ends_with("enqueue.cc") & pl.col("code").is_between(1, 6)
    making = pl.col("file").str.ends_with("init.cc") & pl.col("code").is_in([1, 3, 4, 5])
    told = where_reported(nccl_errors.filter(propagated & (calling | making)), processes)
    return tuple(sorted(set(ranks_of(told)) - set(ranks_of(refused))))
