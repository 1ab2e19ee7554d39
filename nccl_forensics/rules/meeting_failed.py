"""The processes of a job could not meet: a port that is taken, a gloo interface that is none, loopback addresses, a rank that never began,
a store that is gone, launchers that did not come.

## What it finds
Exceptions of torch.distributed's store, of gloo and of the first collective of a group: the server's port is in use; GLOO_SOCKET_IFNAME names
no interface; gloo tells its peers a loopback address; a rank waited in vain for the unique id that another makes when it calls the same collective,
or the store was gone while it waited; a launcher could not reach the store of the others, or waited in vain for as many of them as the job needs.

## Why it matters
Nothing of NCCL stands in the logs yet, and the launcher blames the rank that gave up waiting, which is the wrong one.

## What would refute it
The process that is named had died before for a reason of its own: then look there first.

## What to do next
For a port: ss -ltnp on the master's host. For an interface: ip -br addr and getent hosts $(hostname) on every host. For a rank that never began:
what it did meanwhile (its progress bar, its stack).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Confidence, Finding, given
from nccl_forensics.rules import rule
from nccl_forensics.words import ranks_words, verb

_EXPLAINS = ("timeout", "closed", "rank-died", "rank-never-joined", "host-stall", "software-crash")
#: gloo/transport/tcp/device.cc: what it looked up.
_NO_DEVICE = re.compile(r"Unable to find address for: (\S{1,64})")
#: gloo/transport/tcp/pair.cc and torch's ProcessGroupGloo: whom it tried, and what it calls itself.
_FAR = re.compile(r"remote=\[([0-9A-Fa-f:.%\w]{2,64})\]")
_NEAR = re.compile(r"local=\[([0-9A-Fa-f:.%\w]{2,64})\]")
_LOOPBACK = re.compile(r"^(?:127\.|::1$|::ffff:127\.)")
#: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, broadcastUniqueNCCLID; "retreiving" up to 1.13. Both numbers are ranks inside the
#: group.
_UNIQUE_ID = re.compile(
    r"\[([0-9]{1,7})\] is setting up NCCL communicator and retr(?:ie|ei)ving ncclUniqueId from \[([0-9]{1,7})\] via c10d key-value store by key"
    r" '([^']{1,200})'"
)
_TIMED_OUT = re.compile(r"(?i)time(?:d )?out")
#: The first communicator of the default group: its key begins with a plain number, or with the group's name (torch 1.8 to 2.9).
_DEFAULT_KEY = re.compile(r"^(?:0|/?default_pg(?:/.{0,100})?|0//?.{0,100}|/0//?.{0,100})$")
_PORT = re.compile(r"(?:bind to|listen on) \[?[^\s\]]{0,64}\]?:([0-9]{1,5})\b|port: ([0-9]{1,5})")


@rule(name="port-in-use", code="NE23", cause="connection-failed", severity="critical", at_most=1, explains=_EXPLAINS)
def port_in_use(exceptions: pl.LazyFrame) -> Iterator[Finding]:
    """At most one finding: the store could not listen, because another process holds its port."""
    rows = exceptions.filter(pl.col("signature") == "address-in-use").sort("source_id", "line_no").collect()
    if not rows.height:
        return
    said = " ".join(rows["message"].drop_nulls().to_list())
    port = next((p for match in _PORT.findall(said) for p in match if p), None)
    yield Finding(
        title=f"another process holds port {port or 'of the job'}, on which the job's store was to listen".replace(
            "port of the job", "the port"
        ),
        summary="A job before that has not ended, a second job on the host with the same port, or a launcher that started the same rank twice.",
        confidence="medium",
        culprits=(),
        subject=("port", str(port)),
        evidence=cite(rows, "could not listen"),
        evidence_total=rows.height,
        remedy="End the process that holds the port, or give each job a port of its own (--master-port, --rdzv-endpoint=localhost:0).",
        prevention="Let the launcher choose a free port, or make it of the job's number.",
        would_refute=("the port is free, and the address itself is not one of the host",),
        actions=(Action("fix_config", command=f"ss -ltnp | grep {port}" if port else "ss -ltnp"),),
    )


@rule(
    name="gloo-wrong-interface",
    code="NE24",
    cause="wrong-interface",
    severity="critical",
    at_most=4,
    explains=(*_EXPLAINS, "connection-failed"),
)
def gloo_wrong_interface(exceptions: pl.LazyFrame, watchdog: pl.LazyFrame | None = None) -> Iterator[Finding]:
    """An interface that the host does not have, and addresses that only the host itself can reach."""
    rows = exceptions.filter(pl.col("signature").is_in(["gloo-interface", "gloo-connect"])).sort("source_id", "line_no").collect()
    none = rows.filter(pl.col("signature") == "gloo-interface")
    names = sorted({m[1] for text in none["message"].drop_nulls().to_list() if (m := _NO_DEVICE.search(text))})
    if none.height:
        several = any(set(name) & set("^,=") for name in names)
        yield _interface(
            none,
            f"gloo found no interface of the name {', '.join(names) or 'that it was given'}",
            "GLOO_SOCKET_IFNAME takes one name as it stands; a list that excludes (^lo,docker0) is NCCL's way of writing, not gloo's."
            if several
            else "GLOO_SOCKET_IFNAME names an interface that this host does not have.",
            "high",
            ("gloo-interface", *names),
        )
    far = rows.filter(pl.col("signature") == "gloo-connect")
    nowhere = far.filter(~pl.col("message").str.contains(_FAR.pattern))
    fallen = (
        pl.DataFrame() if watchdog is None else watchdog.filter(pl.col("kind") == "gloo-loopback").sort("source_id", "line_no").collect()
    )
    if far.height and fallen.height:
        yield _interface(
            fallen,
            "gloo took its host's loopback address, and its ranks could not connect to each other",
            "It found no address for the host's own name, and told the others one that only the host itself can reach. On a single host that would be right: then "
            "a peer had ended before.",
            "medium",
            ("gloo-fallback",),
        )
    elif nowhere.height and nowhere.height == far.height:
        yield replace(
            _interface(
                nowhere,
                "gloo's ranks could not connect to each other",
                "gloo does not say whom it could not reach. Most often it took an interface that does not lead to the other hosts; a firewall or a rank "
                "that had ended looks alike.",
                "low",
                ("gloo-connect",),
            ),
            cause="connection-failed",
            alternatives=(("wrong-interface", (), None),),
        )
    looped = [bool(_LOOPBACK.match(_first(_FAR, text)) and _LOOPBACK.match(_first(_NEAR, text))) for text in far["message"].to_list()]
    if any(looped):
        yield _interface(
            far.filter(pl.Series(looped, dtype=pl.Boolean())),
            "gloo's ranks told each other loopback addresses, and could not connect",
            "Without GLOO_SOCKET_IFNAME gloo takes the address that the host's own name resolves to; where that is 127.0.0.1 or 127.0.1.1, no other "
            "host can reach it. On a single host it would be right: then the peer had ended before.",
            "low",
            ("gloo-loopback",),
        )


def _interface(rows: pl.DataFrame, title: str, summary: str, confidence: Confidence, subject: tuple[str, ...]) -> Finding:
    return Finding(
        title=title,
        summary=summary,
        confidence=confidence,
        culprits=(),
        subject=subject,
        evidence=cite(rows, "gloo says so"),
        evidence_total=rows.height,
        remedy="Set GLOO_SOCKET_IFNAME on every host to the interface that leads to the others, or let the host's name resolve to its address there.",
        prevention="Check getent hosts $(hostname) on every host in the job's prologue: it must not answer with a loopback address.",
        would_refute=("all ranks run on one host and the interface exists",),
        actions=(Action("change-setting", command="ip -br addr; getent hosts $(hostname)", confidence=confidence),),
    )


def _first(pattern: re.Pattern[str], text: object) -> str:
    match = pattern.search(str(text or ""))
    return match[1] if match else ""


@rule(
    name="host-stall-by-unique-id",
    code="ST18",
    cause="host-stall",
    severity="critical",
    at_most=1,
    explains=("timeout", "closed", "rank-died"),
)
def host_stall_by_unique_id(exceptions: pl.LazyFrame, endings: pl.LazyFrame | None, nccl_errors: pl.LazyFrame | None) -> Iterator[Finding]:
    """At most one finding: the rank that makes the id of the default group's communicator never called the collective that the others wait
    in."""
    known = exceptions.filter(pl.col("signature") == "store-timeout").sort("source_id", "line_no").collect()
    told = [
        (m, row)
        for row in known.iter_rows(named=True)
        if (m := _UNIQUE_ID.search(str(row["message"]))) and _TIMED_OUT.search(str(row["message"]))
    ]
    if not told:
        return
    # A rank that failed inside NCCL never wrote its id either: what it says of that is nearer to the cause.
    if has_rows(nccl_errors, (pl.col("level") == "WARN") & (pl.col("kind") != "propagation")):
        return
    roots = {int(m[2]) for m, _ in told}
    default = all(_DEFAULT_KEY.match(m[3]) for m, _ in told) and len(roots) == 1
    waiters = sorted({int(m[1]) for m, _ in told}) if default else []
    root = roots.pop() if default else None
    if endings is not None and root is not None:
        ended = endings.filter((pl.col("rank") == root) & (pl.col("kind") != "clean")).head(1).collect()
        if ended.height:
            return
    ranks = given(root)
    who = ranks_words(ranks) if ranks else "the first rank of a group"
    yield Finding(
        title=f"{who} never called the first collective of {'the job' if ranks else 'its group'}: "
        f"{ranks_words(waiters) if waiters else 'others'} {verb(waiters, 'waits', 'wait') if waiters else 'wait'} for its unique id",
        summary="That rank makes the id when it calls the same collective and puts it into the store. It was elsewhere for longer than the timeout: "
        "data that one process prepares for all while the others wait behind a barrier, a download, a slow start.",
        confidence="medium" if ranks else "low",
        ranks=ranks,
        subject=("unique-id", str(root)),
        evidence=cite([row for _, row in told], "waited for the unique id in vain", at_most=8),
        evidence_total=len(told),
        remedy="Prepare data once, before the job or in a step of its own; where one rank has to work alone, give init_process_group (or ddp_timeout) "
        "a timeout that is longer than that.",
        prevention="Cache what is tokenized or downloaded, and do it outside of the job.",
        would_refute=(f"{who} had ended, or could not make an id (no interface, an error of CUDA)",),
        actions=(Action("fix-code", ranks=ranks, confidence="medium"),),
        alternatives=(("timeout-too-short", ranks, "nothing tells how far its work had come"),),
    )


@rule(name="store-gone", code="DE10", cause="rank-died", severity="critical", at_most=1, explains=("timeout", "closed"))
def store_gone(exceptions: pl.LazyFrame, endings: pl.LazyFrame | None) -> Iterator[Finding]:
    """At most one finding: ranks that waited for the unique id lost the store, and of no process is it known why it ended."""
    known = exceptions.filter(pl.col("signature") == "store-closed").sort("source_id", "line_no").collect()
    rows = known.filter(pl.col("message").str.contains(_UNIQUE_ID.pattern))
    if not rows.height or has_rows(endings, pl.col("own")):
        return
    waiters = sorted({int(m[1]) for text in rows["message"].to_list() if (m := _UNIQUE_ID.search(str(text))) and _DEFAULT_KEY.match(m[3])})
    yield Finding(
        title=f"the process that held the job's store was gone while {ranks_words(waiters) if waiters else 'others'} "
        "waited in init for a unique id",
        summary="That is rank 0, or the launcher of the first host, which goes after one of its own workers has failed. Why it ended is in no file here.",
        confidence="low",
        culprits=(),
        subject=("store-gone",),
        evidence=cite(rows, "its connection to the store broke while it waited", at_most=8),
        evidence_total=rows.height,
        remedy="Look at the output of rank 0 and of its host's launcher: the error that stands there first is the cause.",
        prevention="Keep the output of all ranks, or the launcher's log directory (torchrun --log-dir, --tee 3).",
        would_refute=("the process that held the store went on: then the connection was cut on its way",),
        actions=(Action("collect-more", ranks=(0,)),),
        alternatives=(("connection-failed", (), "the connection may have been cut on its way"),),
    )


#: torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py: where a launcher makes or first reaches the store of the meeting.
_FIRST_REACH = r"_create_tcp_store|create_backend"


@rule(
    name="rendezvous-failed",
    code="NE25",
    cause="connection-failed",
    severity="critical",
    at_most=2,
    explains=("timeout", "closed", "rank-died", "software-crash"),
)
def rendezvous_failed(exceptions: pl.LazyFrame) -> Iterator[Finding]:
    """Launchers that could not reach the store where they meet, or waited there for others in vain. One that lost the store later tells
    nothing: the launcher that held it had ended."""
    known = exceptions.filter(pl.col("signature").is_in(["rendezvous-lost", "rendezvous-timeout"])).sort("source_id", "line_no").collect()
    waited = known.filter(pl.col("signature") == "rendezvous-timeout")
    if waited.height:
        yield Finding(
            title="a launcher waited in vain for the launchers of the other hosts",
            summary="torchrun starts nothing before as many hosts have come as --nnodes asks for. Which of them did not come is in no file here.",
            confidence="low",
            culprits=(),
            cause="rank-never-joined",
            subject=("rendezvous", "timeout"),
            evidence=cite(waited, "waited for others to the end"),
            evidence_total=waited.height,
            remedy="See that the job was started on every host with the same --rdzv-id and --rdzv-endpoint, and that each host reaches that address.",
            prevention="Start all hosts by one scheduler; raise join_timeout (--rdzv-conf) where hosts start far apart.",
            would_refute=("every host's launcher came, and one of them ended before the others",),
            actions=(Action("collect-more"),),
            alternatives=(("connection-failed", (), None),),
        )
    unreached = known.filter((pl.col("signature") == "rendezvous-lost") & pl.col("frames").fill_null("").str.contains(_FIRST_REACH))
    if unreached.height:
        yield Finding(
            title="a launcher could not reach the store at which the launchers meet",
            summary="It failed as it first tried to reach it, so that nothing began on that host.",
            confidence="low",
            culprits=(),
            subject=("rendezvous", "unreached"),
            evidence=cite(unreached, "the store that was not reached"),
            evidence_total=unreached.height,
            remedy="Check that the host of --rdzv-endpoint is up and runs its launcher, that its name resolves everywhere, and that the port is open.",
            prevention="Resolve and reach the endpoint from every host in the job's prologue.",
            would_refute=("the launcher at the endpoint had ended before",),
            actions=(Action("fix_config"),),
            alternatives=(("rank-died", (), None),),
        )
