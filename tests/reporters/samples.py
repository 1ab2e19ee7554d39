"""Made-up incidents as the reporters get them: a report as in the contract, with the extras of its figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nccl_forensics.extras import (
    Cell,
    ChannelCount,
    Event,
    Extras,
    GroupTimeline,
    Host,
    HostNics,
    LinkMatrix,
    Process,
    Ring,
    Seat,
    Setting,
    StackClass,
    TimelineRow,
    TransportRow,
    TreeShape,
    Wait,
)

Report = dict[str, object]

SKIPPED_FRAMES = (
    "broadcast (torch/distributed/distributed_c10d.py:3151)",
    "sync_control (train_loop.py:55)",
    "train (train_loop.py:91)",
    "main (train_loop.py:103)",
)
WAITING_FRAMES = (
    "all_reduce (torch/distributed/distributed_c10d.py:3252)",
    "log_metrics (train_loop.py:49)",
    "train (train_loop.py:90)",
    "main (train_loop.py:103)",
)


@dataclass(frozen=True)
class Sample:
    report: Report
    extras: Extras


def culprit(rank: int | None = None, **known: object) -> Report:
    return {"rank": rank, "host": None, "gpu": None, "pid": None, "nic": None, "link": None, **known}


def line(path: str, number: int, text: str, why: str = "", **known: object) -> Report:
    return {
        "kind": "line",
        "path": path,
        "line": number,
        "end_line": None,
        "record": None,
        "looked_in": [],
        "text": text,
        "truncated": False,
        "masked": False,
        "why": why,
        **known,
    }


def record(path: str, pointer: str, text: str, why: str = "") -> Report:
    return {**line(path, 1, text, why), "kind": "record", "line": None, "record": pointer}


def absence(why: str, looked_in: list[str]) -> Report:
    return {**line("", 1, "", why), "kind": "absence", "path": None, "line": None, "text": None, "looked_in": looked_in}


def finding(ident: str, title: str, cause: str, severity: str = "critical", **known: object) -> Report:
    evidence = known.get("evidence", [])
    return {
        "id": ident, "fingerprint": ident.encode().hex()[:16], "rule": cause, "code": known.pop("code", "CO01"), "cause": cause, "severity": severity,
        "confidence": "high", "title": title, "summary": "", "ranks": [], "hosts": [], "explained_by": None, "suppressed": None, "evidence": evidence,
        "evidence_total": len(evidence) if isinstance(evidence, list) else 0, "remedy": "", "prevention": "", "metrics": {}, **known,
    }  # fmt: skip


def rule_row(name: str, code: str, status: str, missing: list[str] | None = None, error: str | None = None, **thresholds: object) -> Report:
    return {"rule": name, "code": code, "status": status, "missing": missing or [], "thresholds": thresholds, "error": error}


def source(path: str, formats: list[str], rank: int | None = None, host: str | None = "trn-a", **known: object) -> Report:
    return {
        "path": path, "formats": formats, "host": host, "ranks": [] if rank is None else [rank], "run": 1, "attempt": 0, "bytes": 48_213, "lines": 412, "records": 377,
        "gaps": 0, "unmodelled": 3, "foreign": 35, "stale": False, "error": None, **known,
    }  # fmt: skip


def action(word: str, command: str | None = None, **known: object) -> Report:
    return {"action": word, "hosts": [], "gpus": [], "ranks": [], "command": command, "confidence": "high", **known}


def gap(what: str, why: str, command: str | None, priority: int, **known: object) -> Report:
    return {"what": what, "why": why, "ranks": [], "hosts": [], "priority": priority, "command": command, **known}


def check(item: str, answer: str, found: str | None = None, where: str | None = None) -> Report:
    return {"item": item, "answer": answer, "finding": found, "where": where}


def no_measures() -> Report:
    return {"traces": [], "bandwidth": [], "lag": []}


def case(world: int, hosts: list[str], outcome: str, **known: object) -> Report:
    return {
        "title": "llm-7b pretraining, job 88213", "inputs": ["job-88213.tar.zst"], "world_size": world, "ranks_seen": world, "ranks_missing": [], "hosts": hosts,
        "gpus": ["NVIDIA H100 80GB HBM3"], "nccl_versions": ["2.27.3"], "torch_versions": ["2.8.0"], "backends": ["nccl"],
        "started_at": "2026-03-14T09:58:11.000Z", "ended_at": "2026-03-14T10:14:02.000Z", "communicators": 1, "process_groups": 1,
        "runs": [{"run": 1, "attempt": 0, "started_at": "2026-03-14T09:58:11.000Z", "ended_at": "2026-03-14T10:14:02.000Z", "outcome": outcome}], **known,
    }  # fmt: skip


def no_verdict(status: str, summary: str, **known: object) -> Report:
    return {
        "status": status, "run": 1, "attempt": 0, "cause": None, "confidence": None if status == "insufficient-evidence" else "medium", "summary": summary, "culprits": [],
        "first_divergence": None, "because": [], "explains": [], "remedy": None, "prevention": None, "actions": [], "others": [], "alternatives": [], "would_refute": [], **known,
    }  # fmt: skip


def report(case_: Report, verdict: Report, **known: object) -> Report:
    return {
        "schema": "nccl-forensics/report/1", "generator": {"name": "nccl-forensics", "version": "0.1.0"}, "case": case_, "verdict": verdict, "findings": [],
        "measures": no_measures(), "rules": [], "sources": [], "gaps": [], "checklist": [], **known,
    }  # fmt: skip


RULES = [
    rule_row("collective-skipped", "CO01", "found"),
    rule_row("collective-mismatch", "CO02", "found"),
    rule_row("shape-mismatch", "CO03", "clean"),
    rule_row("dtype-mismatch", "CO04", "clean"),
    rule_row("group-deadlock", "CO06", "clean"),
    rule_row("rank-died", "DE01", "found"),
    rule_row("p2p-disabled", "TR01", "found"),
    rule_row("straggler", "ST01", "clean", late_share=0.2, least_collectives=20),
    rule_row("gpu-fault", "GP01", "skipped", ["kernel log"]),
    rule_row("gpu-throttled", "GP03", "skipped", ["nvidia-smi query"]),
    rule_row("nvlink-fault", "GP02", "skipped", ["kernel log"]),
    rule_row("ib-link", "FA01", "skipped", ["ibstat", "port counters"]),
    rule_row("small-buckets", "PE04", "crashed", error="ColumnNotFoundError: bucket_bytes"),
]

GAPS = [
    gap(
        "Kernel log of both hosts",
        "A GPU or link fault on a host would show there; without it no hardware fault can be told from a clean host.",
        "sudo journalctl -k -o short-iso-precise --since '2026-03-14 09:50' > $(hostname).kernel.log",
        1,
        hosts=["trn-a", "trn-b"],
    ),
    gap(
        "Flight Recorder dump of rank 3 with stacks",
        "It would name the line of code that skipped the collective.",
        "TORCH_NCCL_TRACE_BUFFER_SIZE=20000 TORCH_NCCL_DUMP_ON_TIMEOUT=1",
        2,
        ranks=[3],
    ),
    gap("Port counters before and after", "To rule in or out packet loss.", "perfquery -x", 3),
]


def hang() -> Sample:
    """Rank 3 of 8 skips an all_reduce."""
    peers = (0, 1, 2, 4, 5, 6, 7)
    skipped = "collective-skipped.1"
    findings = [
        finding(
            skipped, "rank 3 skipped all_reduce #18 of process group default_pg (0); ranks 0-2, 4-7 wait in it", "collective-skipped",
            summary="At position 18 of process group default_pg (0) ranks 0-2, 4-7 called all_reduce (peers at train_loop.py:49), while rank 3 was already in broadcast at train_loop.py:55: its next calls are those its peers make one position later.",
            ranks=[3], hosts=["trn-a"], metrics={"skipped": 1, "position": 18},
            evidence=[
                record("fr/fr_trace_rank_3.json", "entries[18]", '{"profiling_name": "nccl:broadcast", "collective_seq_id": 18, "input_sizes": [[4]], "state": "scheduled", "process_group": ["0", "default_pg"]}', "rank 3 calls broadcast here"),
                record("fr/fr_trace_rank_0.json", "entries[18]", '{"profiling_name": "nccl:all_reduce", "collective_seq_id": 18, "input_sizes": [[1]], "state": "started", "process_group": ["0", "default_pg"]}', "rank 0 calls all_reduce at the same position"),
                line("stacks/rank3.pyspy.txt", 5, "    broadcast (torch/distributed/distributed_c10d.py:3151)", "rank 3 stands in broadcast"),
                line("logs/rank3.stderr.log", 214, "WARNING:root:loss is nan at step 4, metrics not reduced", "the last line of user code before the skip"),
            ],
            evidence_total=9,
            remedy="Make every rank of process group default_pg (0) call all_reduce at train_loop.py:49, or none: look for a branch around it that depends on the rank or on its data.",
            prevention="TORCH_DISTRIBUTED_DEBUG=DETAIL in a small run compares every collective between the ranks before it starts.",
        ),
        finding("rank-died.1", "the watchdog of ranks 0-2, 4-7 ended the processes after 600 s", "rank-died", ranks=list(peers), explained_by=skipped, confidence="high",
                evidence=[line("logs/rank0.stderr.log", 391, "[rank0]:[E314 10:13:58.120 ProcessGroupNCCL.cpp:685] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=18, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.", "timeout of rank 0")]),
        finding("p2p-disabled.1", "GPU pairs 0-1 and 2-3 of trn-b talk through host memory", "p2p-disabled", "warning", ranks=[4, 5, 6, 7], hosts=["trn-b"], confidence="medium",
                summary="P2P is disabled between GPUs of one host; the setting NCCL_P2P_DISABLE=1 is set on trn-b only.",
                evidence=[line("logs/nccl.trn-b.rank4.log", 88, "trn-b:2417:2431 [0] NCCL INFO Channel 00 : 4[0] -> 5[1] via SHM/direct/direct", "")],
                remedy="Unset NCCL_P2P_DISABLE on trn-b.", prevention="Compare the environment of all hosts at start."),
        finding("environment-mismatch.1", "NCCL_P2P_DISABLE differs between the hosts", "environment-mismatch", "info", hosts=["trn-b"], confidence="high", suppressed={"reason": "known, ticket open", "until": "2026-04-01"}),
    ]  # fmt: skip
    verdict: Report = {
        "status": "explained", "run": 1, "attempt": 0, "cause": "collective-skipped", "confidence": "high",
        "summary": findings[0]["summary"],
        "culprits": [culprit(3, host="trn-a", gpu="3", pid=17218)],
        "first_divergence": {"process_group": "default_pg (0)", "comm_id": "0x5c1d7e02aa10", "seq": 18, "op": "all_reduce"},
        "because": [skipped], "explains": ["rank-died.1"], "remedy": findings[0]["remedy"], "prevention": findings[0]["prevention"],
        "actions": [
            action("fix-code", "sed -n 40,60p train_loop.py", ranks=[3]),
            action("change-setting", "export TORCH_DISTRIBUTED_DEBUG=DETAIL", confidence="medium"),
        ],
        "others": [],
        "alternatives": [
            {"cause": "collective-mismatch", "culprits": [culprit(3)], "against": "what it called next is what its peers call later, so it left one out"},
            {"cause": "ib-link", "culprits": [], "against": "the peers wait for rank 3 alone, on its own host as well as on the other"},
        ],
        "would_refute": ["an entry of rank 3 for all_reduce #18 in another dump or log", "a stack of rank 3 that stands in log_metrics"],
    }  # fmt: skip
    sources = [source(f"fr/fr_trace_rank_{r}.json", ["flight-recorder"], r, "trn-a" if r < 4 else "trn-b", lines=None) for r in range(8)]
    sources += [source(f"logs/rank{r}.stderr.log", ["torch-log", "nccl-log"], r, "trn-a" if r < 4 else "trn-b") for r in range(8)]
    sources += [
        source("traces/rank6.json.gz", ["kineto-trace"], 6, "trn-b", error="truncated: gzip stream ends after 1,204,224 bytes", gaps=1),
        source("logs/rank5.stdout.log", ["torch-log"], 5, "trn-b", gaps=2),
        source("notes.docx", [], None, None, lines=None, records=None),
        source("fr/old/fr_trace_rank_0.json", ["flight-recorder"], 0, "trn-a", stale=True),
    ]
    checklist = [
        check("Did every rank enter the same collectives in the same order?", "bad", skipped, "flight recorder, 8 of 8 ranks"),
        check("Did every rank start?", "ok", None, "NCCL init lines of 8 ranks"),
        check("Did a process die on its own?", "ok", None, "exit codes of 8 processes"),
        check("Did a GPU report an Xid?", "unknown", None, "no kernel log"),
        check("Are all links at full width and speed?", "unknown", None, "no link report"),
    ]
    ops = ["all_reduce", "reduce_scatter", "all_reduce", "broadcast", "all_gather"]
    columns = (16, 17, 18, 19, 20)

    def cells(skips: bool) -> tuple[Cell, ...]:
        path = "fr/fr_trace_rank_3.json" if skips else "fr/fr_trace_rank_0.json"
        done = tuple(Cell(ops[n], "completed", path, None, f"entries[{c}]") for n, c in enumerate(columns[:2]))
        if skips:
            here = Cell("broadcast", "diverged", path, None, "entries[18]", "sync_control (train_loop.py:55)")
            return (*done, here, Cell("", "missing"), Cell("", "unknown"))
        here = Cell("all_reduce", "waiting", path, None, "entries[18]", "log_metrics (train_loop.py:49)")
        return (*done, here, Cell("", "missing"), Cell("", "unknown"))

    timeline = GroupTimeline(
        "0",
        columns,
        (
            TimelineRow((0, 1, 2), cells(False), "trn-a"),
            TimelineRow((3,), cells(True), "trn-a"),
            TimelineRow((4, 5, 6, 7), cells(False), "trn-b"),
        ),
        "default_pg",
        "0x5c1d7e02aa10",
        8,
        18,
    )
    hosts = (
        Host("trn-a", tuple(Seat(r, "culprit" if r == 3 else "waiting", str(r)) for r in range(4)), "unknown"),
        Host("trn-b", tuple(Seat(r, "waiting", str(r - 4)) for r in range(4, 8)), "unknown", "P2P off by setting"),
    )
    events = (
        Event("job starts, 8 ranks on 2 hosts", "2026-03-14T09:58:11.000Z", None, None, "logs/torchrun.log", 3, "start"),
        Event("communicator ready, 24 channels", "2026-03-14T09:58:19.410Z", 0, "trn-a", "logs/rank0.stderr.log", 96, "init"),
        Event("loss is nan at step 4, metrics not reduced", "2026-03-14T10:03:57.902Z", 3, "trn-a", "logs/rank3.stderr.log", 214, "log"),
        Event("enters broadcast #18 while the others enter all_reduce #18", None, 3, "trn-a", None, None, "divergence"),
        Event(
            "watchdog timeout after 600 s",
            "2026-03-14T10:13:58.120Z",
            None,
            None,
            "logs/rank0.stderr.log",
            391,
            "timeout",
            "watchdog",
            peers,
            ("trn-a", "trn-b"),
            7,
            "2026-03-14T10:13:59.300Z",
            True,
        ),
        Event("SIGABRT, job ends", "2026-03-14T10:14:02.000Z", None, None, "logs/torchrun.log", 41, "exit"),
    )
    extras = Extras(
        timeline=(timeline,),
        cluster=hosts,
        waits=(Wait(peers, (3,), "default_pg (0)", "all_reduce", 18, "rank 3 has no entry for it; the others have started it"),),
        stacks=(
            StackClass(peers, WAITING_FRAMES, False, "stacks/rank0.pyspy.txt", 5),
            StackClass((3,), SKIPPED_FRAMES, True, "stacks/rank3.pyspy.txt", 5),
        ),
        transports=(
            TransportRow("trn-a", "trn-a", "P2P/CUMEM", "NVLink", None, 24, 12),
            TransportRow("trn-b", "trn-b", "SHM", None, None, 24, 12),
            TransportRow("trn-a", "trn-b", "NET/IB", "mlx5_0", True, 24, 8),
        ),
        channels=(ChannelCount("0x5c1d7e02aa10 (default_pg)", 8, 24, 32, 0),),
        matrices=(
            LinkMatrix(
                "Connections between GPUs as NCCL made them", ("trn-b",), ("0", "1", "2", "3"),
                tuple(tuple("" if a == b else "SHM" for b in range(4)) for a in range(4)), "logs/nccl.trn-b.rank4.log", 88,
            ),
        ),
        rings=(Ring((0, 1, 2), (0, 1, 2, 3, 4, 5, 6, 7), ("trn-a", "trn-b"), "logs/rank0.stderr.log", 90),),
        trees=(TreeShape((0, 1, 2), (0,), 3, 2, 8, "logs/rank0.stderr.log", 91),),
        nics=(HostNics(("trn-a", "trn-b"), ("mlx5_0", "mlx5_1"), ("mlx5_0",), 400.0, "IB", "logs/rank0.stderr.log", 12),),
        settings=(
            Setting("NCCL_P2P_DISABLE", (("1", "4-7"), ("not set", "0-3")), True),
            Setting("NCCL_DEBUG", (("INFO", "0-7"),)),
            Setting("NCCL_SOCKET_IFNAME", (("eth0", "0-7"),)),
        ),
        events=events,
        processes=tuple(
            Process(r, "culprit" if r == 3 else "waiting", r % 4, "trn-a" if r < 4 else "trn-b", 17215 + r, str(r % 4), "2.27.3", "SIGABRT (6)" if r != 3 else "SIGTERM (15)", "broadcast #18" if r == 3 else "all_reduce #18")
            for r in range(8)
        ),
        contexts={
            (skipped, 2): (
                (3, 'Thread 17218 (idle): "MainThread"', False),
                (4, "", False),
                (5, "    broadcast (torch/distributed/distributed_c10d.py:3151)", True),
                (6, "    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)", False),
                (7, "    sync_control (train_loop.py:55)", False),
            ),
            (skipped, 3): (
                (212, "step 3 rank 3 loss 0.0943", False),
                (213, "step 4 rank 3 loss nan", False),
                (214, "WARNING:root:loss is nan at step 4, metrics not reduced", True),
            ),
        },
    )  # fmt: skip
    return Sample(
        report(
            case(8, ["trn-a", "trn-b"], "hung"),
            verdict,
            findings=findings,
            rules=list(RULES),
            sources=sources,
            gaps=list(GAPS),
            checklist=checklist,
        ),
        extras,
    )


def healthy() -> Sample:
    """Nothing wrong, and some of it could not be looked at."""
    rules = [
        rule_row(str(r["rule"]), str(r["code"]), "skipped" if r["status"] == "skipped" else "clean", list(r["missing"])) for r in RULES
    ]
    sources = [source(f"logs/rank{r}.stderr.log", ["nccl-log"], r) for r in range(8)]
    verdict = no_verdict("nothing-wrong", "8 ranks ran 400 steps and finished.")
    return Sample(
        report(
            case(8, ["trn-a"], "finished"),
            verdict,
            rules=rules,
            sources=sources,
            gaps=list(GAPS[:1]),
            checklist=[check("Did every rank start?", "ok", None, "8 of 8")],
        ),
        Extras(),
    )


def unexplained() -> Sample:
    """A hang that nobody can explain."""
    verdict = no_verdict("unexplained", "All 8 ranks stopped writing at 10:04 and none says why.", confidence="low")
    return Sample(
        report(
            case(8, ["trn-a"], "hung"), verdict, rules=list(RULES), gaps=list(GAPS), sources=[source("logs/rank0.log", ["nccl-log"], 0)]
        ),
        Extras(),
    )


def insufficient() -> Sample:
    """One file that says next to nothing."""
    verdict = no_verdict("insufficient-evidence", "One environment listing tells of no job.", run=None, attempt=None)
    empty = case(
        8,
        [],
        "unknown",
        world_size=None,
        ranks_seen=0,
        gpus=[],
        nccl_versions=[],
        torch_versions=[],
        backends=[],
        started_at=None,
        ended_at=None,
        communicators=0,
        process_groups=0,
        runs=[],
    )
    return Sample(report(empty, verdict, gaps=list(GAPS), rules=list(RULES), sources=[source("env.txt", ["environment"])]), Extras())


def large(world: int = 4096) -> Sample:
    """The hang on many ranks: rank 1403 skips, everything is as long as it gets."""
    small = hang()
    odd = 1403 if world > 1403 else world // 3
    peers = tuple(r for r in range(world) if r != odd)
    hosts = [f"node{n:04d}" for n in range(world // 8)]
    verdict = dict(small.report["verdict"])  # type: ignore[call-overload]
    verdict["culprits"] = [culprit(odd, host=hosts[odd // 8], gpu=str(odd % 8), pid=4242)]
    findings = [dict(f) for f in small.report["findings"]]  # type: ignore[attr-defined]
    findings[0] |= {
        "ranks": [odd],
        "title": f"rank {odd} skipped all_reduce #18 of process group default_pg (0); ranks 0-{odd - 1}, {odd + 1}-{world - 1} wait in it",
    }
    findings[1] |= {"ranks": list(peers)}
    findings += [
        finding(f"straggler.{n}", f"rank {n} was late to 5 of 20 collectives", "straggler", "warning", ranks=[n]) for n in range(600)
    ]
    sources = [source(f"node{r // 8:04d}.tar.gz!/logs/rank{r}.log", ["nccl-log", "torch-log"], r, hosts[r // 8]) for r in range(world)]
    row = small.extras.timeline[0].rows
    extras = Extras(
        timeline=(
            GroupTimeline(
                "0",
                small.extras.timeline[0].columns,
                (TimelineRow(peers, row[0].cells), TimelineRow((odd,), row[1].cells, hosts[odd // 8])),
                "default_pg",
                "0x5c1d7e02aa10",
                world,
                18,
            ),
        ),
        cluster=tuple(
            Host(h, tuple(Seat(n * 8 + g, "culprit" if n * 8 + g == odd else "waiting", str(g)) for g in range(8)))
            for n, h in enumerate(hosts)
        ),
        waits=(Wait(peers, (odd,), "default_pg (0)", "all_reduce", 18, "no entry"),),
        stacks=(StackClass(peers, WAITING_FRAMES), StackClass((odd,), SKIPPED_FRAMES, True)),
        events=tuple(
            Event(
                f"watchdog timeout of rank {r}",
                "2026-03-14T10:13:58.120Z",
                r,
                hosts[r // 8],
                f"node{r // 8:04d}.tar.gz!/logs/rank{r}.log",
                391,
                "timeout",
            )
            for r in range(world)
        ),
        processes=tuple(
            Process(r, "culprit" if r == odd else "waiting", r % 8, hosts[r // 8], 1000 + r, str(r % 8), "2.27.3", None, "all_reduce #18")
            for r in range(world)
        ),
        contexts=small.extras.contexts,
    )
    return Sample(
        report(
            case(world, hosts, "hung"),
            verdict,
            findings=findings,
            rules=list(RULES),
            sources=sources,
            sources_total=world + 12,
            gaps=list(GAPS),
        ),
        extras,
    )


def measured() -> Sample:
    """A slow run with measures: rank 2 lags, bandwidth is low."""
    traces = [
        {"rank": r, "window": "steps", "span_ms": 4000.0, "compute_ms": 2600.0 - 40 * r, "communication_ms": 1500.0 + 20 * r, "exposed_ms": 900.0 + 40 * r, "memcpy_ms": 80.0, "idle_ms": 420.0, "overlap_fraction": 0.4, "compute_fraction": 0.65}
        for r in range(8)
    ]  # fmt: skip
    lag = [
        {
            "rank": r,
            "collectives": 40,
            "median_ms": 0.4 if r != 2 else 21.5,
            "p99_ms": 2.0 if r != 2 else 44.1,
            "lost_ms": 3.0 if r != 2 else 861.2,
        }
        for r in range(8)
    ]
    bandwidth = [
        {"source": "nccl-tests/all_reduce.txt", "collective": "all_reduce", "dtype": "float", "bytes": 1 << n, "ranks": 8, "alg_bw_gb_s": n * 5.0, "bus_bw_gb_s": n * 8.75, "expected_gb_s": 370.0}
        for n in range(20, 32, 2)
    ]  # fmt: skip
    sample = hang()
    return Sample({**sample.report, "measures": {"traces": traces, "lag": lag, "bandwidth": bandwidth}}, sample.extras)


NASTY = "\x1b]0;owned\x07\x1b[2J</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202egnp.exe\u2066 | `rm -rf /` ```\n# heading\n[x](javascript:alert(3)) {{ 7*7 }} {% raw %} @everyone #1 \ud800 \x9b31m" + "A" * 3000  # fmt: skip


def hostile() -> Sample:
    """The hang with a nasty text in every place where evidence can put one."""

    def spoil(value: object, key: str = "") -> object:
        if isinstance(value, dict):
            return {k: spoil(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [spoil(v, key) for v in value]
        fixed = {
            "schema",
            "id",
            "explained_by",
            "because",
            "explains",
            "cause",
            "severity",
            "confidence",
            "status",
            "kind",
            "outcome",
            "answer",
            "finding",
            "started_at",
            "ended_at",
        }
        return f"{NASTY}{value}" if isinstance(value, str) and key not in fixed else value

    small = hang()
    spoiled = spoil(small.report)
    assert isinstance(spoiled, dict)
    before = small.extras
    extras = Extras(
        timeline=tuple(
            GroupTimeline(
                NASTY,
                t.columns,
                tuple(TimelineRow(r.ranks, tuple(Cell(NASTY, c.state, NASTY, 3, None, NASTY) for c in r.cells), NASTY) for r in t.rows),
                NASTY,
                NASTY,
                t.size,
                t.first_divergence,
            )
            for t in before.timeline
        ),
        cluster=tuple(Host(NASTY, tuple(Seat(s.rank, s.state, NASTY) for s in h.seats), h.state, NASTY) for h in before.cluster),
        waits=(Wait((0,), (1,), NASTY, NASTY, 1, NASTY),),
        stacks=(StackClass((0,), (NASTY, NASTY), True, NASTY, 1), StackClass((1,), (NASTY,), False, NASTY, 1)),
        transports=(TransportRow(NASTY, NASTY, NASTY, NASTY, True, 1, 1),),
        channels=(ChannelCount(NASTY, 1, 1, 1, 1),),
        settings=(Setting(NASTY, ((NASTY, NASTY), (NASTY, NASTY)), True),),
        matrices=(LinkMatrix(NASTY, (NASTY, NASTY), (NASTY, NASTY), (("", NASTY), (NASTY, "")), NASTY, 1),),
        rings=(Ring((0,), (0, 1), (NASTY, NASTY), NASTY, 1),),
        trees=(TreeShape((0,), (0,), 1, 1, 2, NASTY, 1),),
        nics=(HostNics((NASTY,), (NASTY,), (NASTY,), 1.0, NASTY, NASTY, 1),),
        events=(
            Event(NASTY, NASTY, 1, NASTY, NASTY, 1, NASTY),
            Event(NASTY, "2026-03-14T10:13:58.120Z", 1, NASTY, NASTY, 1, NASTY, NASTY, (1, 2), (NASTY, NASTY), 2, NASTY),
            Event(NASTY, "2026-03-14T10:13:59.120Z", 1, NASTY, NASTY, 2, NASTY, NASTY),
        ),
        processes=(Process(1, "ok", 1, NASTY, 1, NASTY, NASTY, NASTY, NASTY),),
        contexts={("collective-skipped.1", 0): ((1, NASTY, True), (2, NASTY, False))},
    )
    return Sample(spoiled, extras)


SAMPLES: dict[str, Callable[[], Sample]] = {
    "hang": hang,
    "healthy": healthy,
    "unexplained": unexplained,
    "insufficient": insufficient,
    "large": large,
    "hostile": hostile,
    "measured": measured,
}
