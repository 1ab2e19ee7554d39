"""A bandwidth test did not finish: it reports a failure, or its output ends before its footer.

## What it finds
Runs of nccl-tests and perftest that say why they failed, and runs whose table stops without the closing lines. Failures of several runs are
laid over each other: a host that is in most failed runs and in few good ones is the suspect.

## Why it matters
A test that hangs between two hosts will hang any job that uses both. The pair alone does not say which of the two it is; the others do.

## What would refute it
The run was cut off by a time limit or by hand, or the output is only copied in part.

## What to do next
Repeat the test for the named host with a third one, with NCCL_DEBUG=INFO; read the port counters of both ends before and after.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import located

_NETWORK = r"(?i)remote process exited|network error|unhandled system error|connection|timeout|retry"
#: What a test's own error says of its cause, where it is no matter of the network; the texts are cudaGetErrorString's and hipError's.
_CAUSES = (
    (r"(?i)out of memory|hipErrorOutOfMemory", "out-of-memory"),
    (
        r"(?i)system not yet initialized|initialization error|uncorrectable|unspecified launch|hardware stack|GPU is lost|no (?:CUDA|ROCm)-capable",
        "gpu-fault",
    ),
    (
        r"(?i)driver version is insufficient|forward compatibility was attempted|unsupported display driver|unsupported toolchain",
        "version-mismatch",
    ),
    (r"(?i)invalid device|invalid usage|invalid argument|hipErrorInvalidDevice", "invalid-usage"),
)
#: What perftest and others say where a queue pair could not be led to its peer's address.
_UNREACHED = r"^Failed to modify QP.*: (?:Connection timed out|Network is unreachable|No route to host)"
#: What iperf3 says where it reaches no server.
_NO_WAY = r"(?i)unable to connect|No route to host|Connection (?:refused|timed out)|Network is unreachable"


@rule(name="bandwidth-test-failed", code="BW03", cause="connection-failed", severity="warning", at_most=48, explains=("low-bus-bandwidth",))
def bandwidth_test_failed(
    bandwidth_tests: pl.LazyFrame | None,
    rdma_tests: pl.LazyFrame | None,
    tcp_tests: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
) -> Iterator[Finding]:
    """Hosts that fail with several others first, then single runs."""
    if bandwidth_tests is not None:
        yield from _collective(bandwidth_tests.sort("source_id", "test").collect())
    if rdma_tests is not None:
        yield from _rdma(located(rdma_tests.filter(pl.col("error").is_not_null()), source_hosts))
    if tcp_tests is not None:
        yield from _tcp(located(tcp_tests.filter(pl.col("error").str.contains(_NO_WAY)), source_hosts))


def _collective(tests: pl.DataFrame) -> Iterator[Finding]:
    failed = [t for t in tests.iter_rows(named=True) if t["error"] or (not t["complete"] and t["hosts"])]
    good = [set(t["hosts"] or ()) for t in tests.iter_rows(named=True) if t["complete"] and not t["error"]]
    left = list(failed)
    while left:
        partners: dict[str, set[str]] = {}
        for test in left:
            both = set(test["hosts"] or ())
            for host in both if len(both) == 2 else ():
                partners.setdefault(host, set()).update(both - {host})
        several = {h: p for h, p in partners.items() if len(p) > 1}
        if not several:
            break
        # Who fails with most others; of equals, who is fine with fewest.
        suspect = max(sorted(several), key=lambda h: (len(several[h]), -sum(h in g for g in good)))
        mine = [t for t in left if suspect in (t["hosts"] or ())]
        left = [t for t in left if t not in mine]
        fine = sorted({h for g in good if suspect in g for h in g - {suspect}} - several[suspect])
        yield _finding(
            f"tests between {suspect} and {_list(sorted(several[suspect]))} did not finish",
            f"{len(mine)} failed runs have {suspect} in common."
            + (f" It finished with {len(fine)} other hosts, so the path to those partners may be at fault instead." if fine else ""),
            (suspect,),
            mine,
        )
    for test in left:
        hosts = tuple(test["hosts"] or ())
        what = test["error"] or ("ended after its last row" if test["last_bytes"] else "ended before its first row")
        where = f" of {_list(list(hosts))}" if hosts else ""
        yield _finding(f"{test['collective'] or 'a test'}{where} did not finish: {what}", "Its closing lines are missing.", hosts, [test])


def _rdma(rows: pl.DataFrame) -> Iterator[Finding]:
    for (source, test), part in rows.group_by("source_id", "test", maintain_order=True):
        first = part.row(0, named=True)
        status = next((r for r in part.iter_rows(named=True) if r["status"] is not None), first)
        hosts = names_of(first["host"])
        over = f" over {first['device']}" if first["device"] else ""
        # A port that never answers and an address that no route or neighbour leads to are the network's; who refuses may not have been
        # started.
        network = status["status"] == 12 or bool(part["error"].str.contains(_UNREACHED).any())
        yield Finding(
            title=f"{first['name'] or 'a perftest run'}{over} failed: {status['error']}",
            summary="; ".join(str(e) for e in part["error"].to_list()[:4]) + ".",
            severity="error" if network else "warning",
            cause="ib-link" if status["status"] == 12 else "connection-failed",
            confidence="medium",
            hosts=hosts,
            culprits=(Culprit(host=hosts[0] if hosts else None, nic=first["device"]),) if hosts or first["device"] else (),
            subject=("perftest", str(hosts), str(first["device"]), str(status["status"])),
            evidence=cite(part, "the failure"),
            evidence_total=part.height,
            remedy="Status 12 means that the other port never answered: check both ports, the GID index and the switch between them.",
            prevention="Run ib_write_bw between neighbours in the burn-in of every node.",
            would_refute=("the server was not started",),
            actions=(Action("collect_more", hosts=hosts, command="ibstat; show_gids; perfquery -x"),),
            metrics={"source": int(str(source)), "test": int(str(test))},
        )


def _tcp(rows: pl.DataFrame) -> Iterator[Finding]:
    """iperf3 that came to no server. A refusal is an answer of the host; silence is a firewall, a route, or a host that is gone."""
    for (host, remote), part in rows.sort("source_id", "line_no", "record", nulls_last=True).group_by(
        "host", "remote", maintain_order=True
    ):
        said = str(part["error"][0])
        refused = "refused" in said
        yield Finding(
            title=f"iperf3 from {host or 'a host'} came to no server{f' at {remote}' if remote else ''}: {said[:120]}",
            summary="The host answers, but nothing listens on the port of the test: most likely the server was not started."
            if refused
            else "Nothing answered: a firewall, a route, or a host that is gone.",
            severity="info" if refused else "warning",
            confidence="low",
            hosts=names_of(host),
            subject=("iperf3", str(host or ""), str(remote or "")),
            evidence=cite(part, "the failure"),
            evidence_total=part.height,
            remedy="Start iperf3 -s on the other host and repeat; if it still fails, look at firewall and routes between the two.",
            would_refute=("the server was not started",),
            actions=(
                Action(
                    "collect_more",
                    hosts=names_of(host),
                    command=f"nc -zv {remote or '<host>'} 5201; ip route get {remote or '<host>'}",
                ),
            ),
        )


_REMEDIES = {
    "out-of-memory": "Look with nvidia-smi for what else uses the GPU's memory, and repeat the test with a smaller largest size.",
    "gpu-fault": "Read the kernel log for Xid; on hosts with NVSwitch see that the fabric manager runs and is of the driver's version.",
    "version-mismatch": "Update the driver to what the CUDA library of the test needs (nvidia-smi shows the newest CUDA that it serves), or build the test against an older one.",
    "invalid-usage": "Compare the number of GPUs asked for (-g, -t, ranks per host) with those that the process may see (nvidia-smi -L, rocminfo, device files).",
}


def _list(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _finding(title: str, summary: str, hosts: tuple[str, ...], tests: list[dict[str, object]]) -> Finding:
    said = " ".join(str(t["error"] or "") for t in tests)
    other = next((cause for pattern, cause in _CAUSES if re.search(pattern, said)), None)
    network = any(pl.Series([str(t["error"] or "")]).str.contains(_NETWORK).item() for t in tests)
    return Finding(
        title=title,
        summary=summary,
        severity="error" if network or other else "warning",
        cause=None if network else other,
        confidence="medium" if len(tests) > 1 or other else "low",
        hosts=hosts,
        culprits=tuple(Culprit(host=h) for h in hosts) if len(hosts) <= 2 else (),
        subject=("test-failed", *sorted(hosts)[:8]),
        evidence=cite([_cited(t) for t in tests], "did not finish"),
        evidence_total=len(tests),
        remedy=_REMEDIES.get(
            other or "", "Repeat the test of this host with a third one; if it fails again, look at its port, cable and adapter."
        ),
        prevention="Run a short all-pairs test before a node joins a partition.",
        would_refute=("the run was cut off from outside",),
        actions=(Action("collect_more", hosts=hosts, command="NCCL_DEBUG=INFO alltoall_perf -b 32M -e 1G -f 2"),),
        metrics={"failed_runs": len(tests)},
    )


def _cited(test: Mapping[str, object]) -> dict[str, object]:
    words = test["error"] or f"no closing lines; the last size is {test['last_bytes'] or 'missing'}"
    return {"source_id": test["source_id"], "line_no": test["line_no"], "record": test["record"], "why": str(words)}
