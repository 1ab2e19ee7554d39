"""What pictures are made from: states, folded events, GPU pairs, rings and trees, entries of dumps with their neighbours."""

import polars as pl
import pytest

from nccl_forensics import pictures
from nccl_forensics.exhibits.timeline import statement
from nccl_forensics.extras import Cell, GroupTimeline, TimelineRow
from nccl_forensics.pictures import events, links, people, quotes, timelines

NONE = {"nccl_version": None, "bus_id": None, "gpu_index": None, "local_rank": None}


class Frames:
    """Tables and views by name, as a resolver gives them."""

    def __init__(self, **frames):
        self.frames = {name: pl.LazyFrame(rows, infer_schema_length=None) for name, rows in frames.items()}

    def get(self, name):
        return self.frames.get(name)


def process(rank, host="a"):
    return {"proc": rank, "rank": rank, "host": host, "pid": 100 + rank, **NONE}


def report(cause="collective-skipped", culprit=None, missing=(), divergence=True):
    culprits = [] if culprit is None else [{"rank": culprit, "host": None}]
    verdict = {"cause": cause, "culprits": culprits, "first_divergence": {"seq": 2} if divergence else None}
    return {"verdict": verdict, "case": {"ranks_missing": list(missing)}}


def ending(rank, kind):
    return {"rank": rank, "kind": kind}


GROUP = GroupTimeline(
    "g",
    (1, 2),
    (
        TimelineRow((0, 2), (Cell("all_reduce", "completed"), Cell("all_reduce", "waiting"))),
        TimelineRow((1,), (Cell("all_reduce", "completed"), Cell("broadcast", "diverged"))),
    ),
    first_divergence=2,
)


def test_ranks_that_the_hang_took_down_are_shown_waiting_and_not_dead():
    frames = Frames(processes=[process(r) for r in range(3)], endings=[ending(r, "victim") for r in range(3)])
    assert people.states(report(culprit=1), frames, [GROUP]) == {0: "waiting", 1: "culprit", 2: "waiting"}


def test_a_rank_that_died_by_itself_is_dead_also_where_it_was_waited_for():
    frames = Frames(processes=[process(r) for r in range(3)], endings=[ending(2, "killed")])
    assert people.states(report("gpu-stall", 1), frames, [GROUP])[2] == "dead"


def test_ranks_of_which_logs_are_all_there_is_are_shown_and_wait_where_their_watchdogs_timed_out():
    files = [{"source_id": r, "rank": r} for r in (0, 1, 2, None)]
    frames = Frames(source_ranks=files, watchdog_calls=[{"rank": 0}])
    assert people.states(report("host-stall", 1, divergence=False), frames, []) == {0: "waiting", 1: "culprit", 2: "ok"}


def test_a_host_that_only_the_launcher_or_the_verdict_names_is_used():
    frames = Frames(processes=[process(0, None), process(1, "b"), process(2, None)], endings=[ending(0, "victim") | {"host": "a"}])
    told = {"verdict": {"culprits": [{"rank": 2, "host": "c"}, {"rank": None, "host": "d"}]}}
    found = people.homes(told, frames)
    assert found == {0: "a", 1: "b", 2: "c"}
    assert [(h.name, [s.rank for s in h.seats]) for h in people.cluster(frames, {0: "ok", 1: "ok", 3: "ok"}, found)] == [
        ("a", [0]), ("b", [1]), ("host unknown", [3]),
    ]  # fmt: skip


def test_ranks_without_a_known_host_make_the_number_of_hosts_a_least_number():
    assert pictures._home((0, 1), {0: "a", 1: "b"}) == "2 hosts"
    assert pictures._home((0, 1, 2), {0: "a", 1: "b"}) == "2 hosts or more"
    assert pictures._home((0, 1), {0: "a", 1: "a"}) == "a"
    assert pictures._home((0, 1), {0: "a"}) == "1 host or more"
    assert pictures._home((0, 1), {}) is None


def test_without_a_hang_nobody_is_said_to_wait():
    frames = Frames(processes=[process(0), process(1)])
    assert people.states(report(None, divergence=False), frames, [GROUP]) == {0: "ok", 1: "ok"}


def entry(index, op="all_reduce", source=0):
    return {
        "source_id": source, "record": f"entries[{index}]", "op": op, "op_raw": op, "is_p2p": False, "collective_seq_id": index + 1, "p2p_seq_id": 0,
        "input_sizes": "[[4]]", "input_dtypes": ["Float"], "state": "scheduled", "pg_desc": "default_pg", "pg_name": "0", "user_frame": "f (a.py:1)",
    }  # fmt: skip


def cited(**evidence):
    item = {"path": "fr/0", "line": None, "end_line": None, "record": None, **evidence}
    return {"findings": [{"id": "x.1", "evidence": [item]}]}


def test_an_entry_of_a_dump_is_quoted_with_its_neighbours():
    frames = Frames(fr_entries=[entry(n, "broadcast" if n == 7 else "all_reduce") for n in range(10)])
    found = quotes.contexts(cited(record="entries[7]"), frames, {"fr/0": 0}, lambda *_: [])
    lines = found[("x.1", 0)]
    assert [(n, marked) for n, _, marked in lines] == [(5, False), (6, False), (7, True), (8, False), (9, False)]
    assert lines[2][1] == "broadcast #8 [[4]] Float, scheduled, group default_pg, at f (a.py:1)"


def test_an_entry_that_is_not_there_is_not_quoted():
    frames = Frames(fr_entries=[entry(1)])
    assert quotes.contexts(cited(record="entries[7]"), frames, {"fr/0": 0}, lambda *_: []) == {}


def test_what_a_dump_says_of_a_group_is_quoted_in_words():
    status = {"source_id": 0, "record": "pg_status[3]", "pg_id": 3, "last_enqueued": 29, "last_started": None, "last_completed": 28}
    found = quotes.contexts(cited(record="pg_status[3]"), Frames(fr_status=[status]), {"fr/0": 0}, lambda *_: [])
    assert found[("x.1", 0)] == ((3, "last enqueued #29, last completed #28", True),)
    none = status | {"last_enqueued": None, "last_completed": None}
    found = quotes.contexts(cited(record="pg_status[3]"), Frames(fr_status=[none]), {"fr/0": 0}, lambda *_: [])
    assert found[("x.1", 0)][0][1] == "no operation enqueued, started or completed yet"
    assert quotes.contexts(cited(record="pg_status[4]"), Frames(fr_status=[status]), {"fr/0": 0}, lambda *_: []) == {}


def test_secrets_around_a_line_are_masked():
    found = quotes.contexts(cited(line=2), Frames(), {"fr/0": 0}, lambda *_: [(1, "password=hunter22"), (2, "boom")])
    assert found[("x.1", 0)] == ((1, "password=***", False), (2, "boom", True))


def watchdog(rank, second, message, kind="local-unzoned", year_ns=1_760_000_000_000_000_000):
    return {
        "time_raw_ns": year_ns + int(second * 1e9), "time_kind": kind, "hint_rank": rank, "hint_host": f"h{rank % 2}", "kind": "timeout", "message": message,
        "source_id": 0, "line_no": 10 + rank,
    }  # fmt: skip


def test_the_same_text_of_many_ranks_within_two_seconds_is_one_event():
    rows = [watchdog(r, r * 0.1, f"rank {r} timed out after 600000 ms") for r in range(8)] + [
        watchdog(0, 60, "rank 0 timed out after 600000 ms")
    ]
    first, second = events.events(Frames(watchdog=rows), {0: "log"}, ())
    assert (first.count, first.ranks, first.hosts, first.path, first.line) == (8, tuple(range(8)), ("h0", "h1"), "log", 10)
    assert (second.count, second.ranks) == (1, (0,))
    assert first.local


def test_a_time_without_a_year_takes_that_of_the_others():
    dated = watchdog(0, 0, "a", "epoch")
    yearless = watchdog(1, 5, "b") | {"time_raw_ns": 24_184_805_000_000_000}
    # 2025-10-09 and, kept as of 1970, 7 October.
    assert [e.time[:10] for e in events.events(Frames(watchdog=[dated, yearless]), {0: "log"}, ())] == ["2025-10-07", "2025-10-09"]


def test_undated_and_long_past_events_are_left_out():
    old = watchdog(1, -40 * 86_400, "old")
    boot = watchdog(1, 0, "boot", "monotonic")
    assert [e.text for e in events.events(Frames(watchdog=[watchdog(0, 0, "now"), old, boot]), {0: "log"}, ())] == ["now"]
    assert events.events(Frames(watchdog=[watchdog(1, 5, "b") | {"time_raw_ns": 24_184_805_000_000_000}]), {0: "log"}, ()) == ()


def connection(host, src, dst, transport="P2P", detail="P2P/CUMEM", channel=0, **known):
    return {
        "host": host, "src": src, "dst": dst, "src_dev": str(src), "dst_dev": str(dst), "transport": transport, "detail": detail, "channel": channel,
        "network": None, "net_dev": None, "gdr": None, "source_id": 0, "line_no": 5, **known,
    }  # fmt: skip


def test_hosts_with_the_same_gpu_pairs_share_a_matrix_and_the_odd_host_comes_first():
    rows = [connection(h, 0, 1) for h in ("a", "b", "c")] + [connection("d", 0, 1, "SHM", "SHM/direct/direct")]
    odd, usual = links.matrices(Frames(nccl_connections=rows), {0: "log"})
    assert (odd.hosts, odd.cells) == (("d",), (("", "SHM"), ("", "")))
    assert (usual.hosts, usual.cells, usual.path, usual.line) == (("a", "b", "c"), (("", "P2P/CUMEM"), ("", "")), "log", 5)


def test_gpus_of_several_hosts_are_not_paired_by_network_connections():
    rows = [connection(h, 0, 1, "NET", "NET/IB/0") for h in ("a", "b")]
    assert links.matrices(Frames(nccl_connections=rows), {0: "log"}) == ()
    assert len(links.matrices(Frames(nccl_connections=rows[:1]), {0: "log"})) == 1


def test_rings_of_the_largest_communicator_walk_through_its_hosts():
    rows = [{"channel": c, "ranks": [0, 1, 2, 3], "source_id": 0, "line_no": 9} for c in (0, 1)] + [
        {"channel": 0, "ranks": [0, 1], "source_id": 0, "line_no": 3}
    ]
    comms = [{"rank": r, "nranks": 4, "host": "ab"[r // 2], "comm_key": "x"} for r in range(4)]
    [ring] = links.rings(Frames(nccl_rings=rows, comms=comms), {0: "log"})
    assert (ring.channels, ring.ranks, ring.hosts) == ((0, 1), (0, 1, 2, 3), ("a", "b"))


def tree(rank, up, down, channel=0):
    return {"channel": channel, "rank": rank, "up": up, "down": down, "source_id": 0, "line_no": rank}


def test_a_tree_is_told_by_root_depth_and_width():
    rows = [tree(0, None, [1, 2]), tree(1, 0, [3]), tree(2, 0, []), tree(3, 1, [])]
    [shape] = links.trees(Frames(nccl_trees=rows), {0: "log"})
    assert (shape.roots, shape.depth, shape.widest, shape.ranks) == ((0,), 2, 2, 4)


def test_trees_of_several_communicators_in_one_log_are_not_mixed():
    rows = [tree(0, None, [1]), tree(1, 0, []), tree(1, None, [])]
    assert links.trees(Frames(nccl_trees=rows), {0: "log"}) == ()


def test_network_devices_that_no_connection_uses_are_told():
    listed = [
        {"host": "a", "device": f"mlx5_{n}", "port": n, "link": "IB", "speed_mbps": 400_000, "source_id": 0, "line_no": 1} for n in range(2)
    ]
    used = [connection("a", 0, 8, "NET", "NET/IB/0", network="IB", net_dev=0, gdr=True)]
    [nics] = links.nics(Frames(host_nics=listed, nccl_connections=used), {0: "log"})
    assert (nics.devices, nics.used, nics.speed_gbit_s, nics.link) == (("mlx5_0", "mlx5_1"), ("mlx5_0",), 400.0, "IB")


def operation(rank, seq, op="all_reduce", shape="[[4]]", done=True):
    return {
        "domain": "fr", "group_key": "g", "rank": rank, "seq": seq, "op": op, "shape": shape, "dtype": "Float", "call_site": f"f (a.py:{seq})", "done": done,
        "is_p2p": False, "source_id": rank, "line_no": None, "record": f"entries[{seq}]",
    }  # fmt: skip


def divergence(seq):
    return {"domain": "fr", "group_key": "g", "group_name": "0", "group_desc": "dp", "comm_id": None, "seq": seq}


def test_sizes_that_differ_by_right_split_no_class_of_ranks():
    rows = [operation(r, 1, "all_to_all", f"[[{r},64]]") for r in range(3)] + [operation(r, 2, done=False) for r in range(2)]
    groups = [{"domain": "fr", "group_key": "g", "members": [0, 1, 2]}]
    [found] = timelines.timelines(Frames(operations=rows, divergences=[divergence(2)], groups=groups), {0: "a", 1: "b", 2: "c"})
    assert [(r.ranks, [c.state for c in r.cells]) for r in found.rows] == [
        ((0, 1), ["completed", "waiting"]),
        ((2,), ["completed", "missing"]),
    ]
    assert [c.text for c in found.rows[0].cells] == ["all_to_all", "all_reduce [[4]] Float"]
    assert [c.site for c in found.rows[0].cells] == [None, "f (a.py:2)"]


@pytest.mark.parametrize(("shape", "state"), [("[[4]]", "waiting"), ("[[8]]", "diverged")])
def test_at_the_divergence_sizes_count(shape, state):
    rows = [operation(r, 2, shape=shape if r == 2 else "[[4]]", done=False) for r in range(3)]
    [found] = timelines.timelines(Frames(operations=rows, divergences=[divergence(2)]), {})
    assert found.rows[-1].cells[0].state == state


def test_at_the_divergence_too_sizes_of_an_exchange_say_nothing():
    rows = [operation(rank, 2, "all_to_all", f"[[{rank}]]", done=False) for rank in range(3)]
    [found] = timelines.timelines(Frames(operations=rows, divergences=[divergence(2)]), {})
    assert [(row.ranks, [c.state for c in row.cells]) for row in found.rows] == [((0, 1, 2), ["waiting"])]


def test_before_the_first_entry_that_is_kept_nothing_is_known_and_what_is_open_is_not_completed():
    rows = [operation(0, 1), operation(0, 2, done=False), operation(1, 2, done=False), operation(2, 1, done=False)]
    [found] = timelines.timelines(Frames(operations=rows, divergences=[divergence(2)]), {})
    assert [(row.ranks, [c.state for c in row.cells]) for row in found.rows] == [
        ((0,), ["completed", "waiting"]), ((1,), ["unknown", "waiting"]), ((2,), ["waiting", "missing"]),
    ]  # fmt: skip


def test_a_rank_that_left_a_call_out_is_drawn_without_it_also_where_its_next_call_bears_the_number():
    # Rank 2 left out #2 of the group "w" and called the next one, which it counts as #2, after going on in the group "g".
    rows = [operation(r, 1) | {"group_key": "w"} for r in range(3)] + [operation(r, 2, done=False) | {"group_key": "w"} for r in range(3)]
    rows += [operation(r, 1) for r in range(3)] + [operation(2, 2, done=False)]
    stall = {"rank": 2, "cause": "collective-skipped", "group_key": "w", "group_name": "1", "group_desc": None, "comm_id": None, "seq": 2, "op": "all_reduce"}  # fmt: skip
    groups = [{"domain": "fr", "group_key": key, "members": [0, 1, 2]} for key in ("g", "w")]
    frames = Frames(operations=rows, divergences=[divergence(2)], stalls=[stall], groups=groups)
    at = {"process_group": "1", "comm_id": None, "seq": 2, "op": "all_reduce"}
    verdict = {"cause": "collective-skipped", "culprits": [{"rank": 2}], "first_divergence": at}
    first, other = timelines.timelines(frames, {}, verdict)
    assert (first.group, first.columns, first.moved) == ("process group 1", (1, 2, 3), (2,))
    assert [(r.ranks, [c.state for c in r.cells]) for r in first.rows] == [
        ((0, 1), ["completed", "waiting", "missing"]),
        ((2,), ["completed", "missing", "waiting"]),
    ]
    assert first.rows[1].cells[2].record == "entries[2]"
    assert "calls of rank 2 stand one place later" in statement(first)
    assert (other.group, other.moved) == ("process group dp (0)", ())
    # Another verdict moves no call, and a group in which nobody parts is not drawn first.
    [only] = timelines.timelines(frames, {}, verdict | {"cause": "collective-stuck"})
    assert only.group == other.group
