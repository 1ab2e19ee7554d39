"""Who is who: communicators, processes, and the rank that wrote a source."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.values.claims import CONTENT, NUMBER, PREFIX, WORD, settle
from nccl_forensics.views.communicators import comm_channels, comms
from nccl_forensics.views.identity import processes
from nccl_forensics.views.path_hints import path_hints, rank_in_path
from nccl_forensics.views.source_ranks import source_ranks
from tests.rules.host_frames import table
from tests.views.frames import rows


def sources(*paths: str, formats: str = "") -> pl.LazyFrame:
    """Sources of these names, and of these formats, one word for each."""
    told = formats.split() or [None] * len(paths)
    named = [{"source_id": n, "path": p, "formats": [f] if f else []} for n, (p, f) in enumerate(zip(paths, told, strict=True))]
    return rows({"source_id": pl.UInt32(), "path": pl.String(), "formats": pl.List(pl.String())}, *named)


# ---- paths ----


@pytest.mark.parametrize(
    ("path", "claim"),
    [
        ("logs/rank_3.log", (3, WORD)),
        ("nccl_trace_rank_17", (17, WORD)),
        ("run/rank-2/stderr", (2, WORD)),
        ("dumps/trace_12", (12, NUMBER)),
        ("nccl.node1.17.txt", (17, NUMBER)),
        ("frank7.log", (7, NUMBER)),
        ("h100-7.log", (7, NUMBER)),
        ("8a71c532aee1.json", None),
        ("93f81f510bd3", None),
        ("report.json", None),
    ],
)
def test_the_word_rank_claims_more_than_a_bare_number(path: str, claim: tuple[int, int] | None) -> None:
    assert rank_in_path(path) == claim


def test_an_attempts_folder_gives_the_local_rank() -> None:
    [hint] = path_hints(sources("job/attempt_1/3/stderr.log")).collect().to_dicts()
    assert (hint["attempt"], hint["attempt_local_rank"]) == (1, 3)


# ---- communicators ----


def event(rank: int, kind: str = "init-complete", **more: object) -> dict[str, object]:
    return {"event": kind, "rank": rank, "nranks": 2, "host": "node1", "pid": 100 + rank, "comm": f"0xa{rank}", "source_id": rank} | more


def test_a_split_without_an_id_has_the_same_key_on_all_ranks() -> None:
    split = {"comm_id": None, "split_count": 1, "color": 7, "line_no": 9}
    found = comms(
        table(
            "nccl_comms",
            *[event(r, comm_id="0xc0", line_no=3) for r in (0, 1)],
            *[event(r, comm=f"0xb{r}", parent=f"0xa{r}", **split) for r in (0, 1)],
        )
    ).collect()
    assert found["comm_key"].to_list() == ["0xc0", "0xc0/1/7", "0xc0", "0xc0/1/7"]


@pytest.mark.parametrize("parent", [True, False], ids=["with their parent", "of a release that prints no parent"])
def test_two_splits_of_one_color_that_share_an_id_are_two_communicators(parent: bool) -> None:
    def child(rank: int, turn: int, comm_id: str) -> dict[str, object]:
        return event(rank, comm=f"0x{turn}b{rank}", parent=f"0xa{rank}" if parent else None, comm_id=comm_id, line_no=9 + turn)

    # Ranks 0 and 2 have the first color in both splits, rank 1 in the first alone.
    lines = [child(0, 1, "0xe0"), child(1, 1, "0xe0"), child(0, 2, "0xe0"), child(2, 2, "0xe0"), child(1, 2, "0xe1"), child(2, 1, "0xe1")]
    keys = {(r["pid"], r["comm"]): r["comm_key"] for r in comms(table("nccl_comms", *lines)).collect().iter_rows(named=True)}
    pid = {r: int(str(child(r, 1, "0xe0")["pid"])) for r in range(3)}
    assert keys[pid[0], "0x1b0"] == keys[pid[1], "0x1b1"] != keys[pid[0], "0x2b0"] == keys[pid[2], "0x2b2"]
    assert keys[pid[1], "0x2b1"] == keys[pid[2], "0x1b2"] == "0xe1"


def test_an_id_of_which_two_processes_claim_one_rank_in_two_splits_is_of_two_communicators() -> None:
    def child(process: int, rank: int, comm_id: str, turn: int) -> dict[str, object]:
        own = {"pid": 100 + process, "source_id": process, "comm": f"0x{turn}b{process}", "parent": f"0xa{process}"}
        return event(rank, comm_id=comm_id, line_no=9 + turn, **own)

    # Hosts of two first, then one of each host: 2 and 3 have in the first split the color that 1 and 5 have in the second.
    lines = [
        child(2, 0, "0xe1", 1),
        child(3, 1, "0xe1", 1),
        child(1, 0, "0xe1", 2),
        child(5, 1, "0xe1", 2),
        child(1, 1, "0xe0", 1),
        child(5, 1, "0xe2", 1),
    ]
    keys = {(r["pid"], r["comm"]): r["comm_key"] for r in comms(table("nccl_comms", *lines)).collect().iter_rows(named=True)}
    assert keys[102, "0x1b2"] == keys[103, "0x1b3"] != keys[101, "0x2b1"] == keys[105, "0x2b5"]
    # One rank that two processes claim in one split is a fault, and one communicator.
    faulty = [child(1, 0, "0xe5", 1), child(2, 0, "0xe5", 1)]
    assert comms(table("nccl_comms", *faulty)).collect()["comm_key"].to_list() == ["0xe5", "0xe5"]


@pytest.mark.parametrize("second", ["of the same ranks", "of other ranks"])
def test_two_splits_of_one_color_without_a_count_are_told_apart_by_their_turn(second: str) -> None:
    def child(process: int, rank: int, turn: int, color: int) -> dict[str, object]:
        return event(
            rank, pid=100 + process, source_id=process, comm=f"0x{turn}b{process}", parent=f"0xa{process}", color=color, line_no=9 + turn
        )

    world = [event(p, comm=f"0xa{p}", comm_id="0xc0", nranks=4, line_no=3) for p in range(4)]
    # A group of its own for 0 and 1 comes between, or the color means other ranks in the second split: rank 1 has it in the first alone.
    again = [child(0, 0, 3, 7), child(1, 1, 2, 7), child(0, 0, 2, 5)]
    other = [child(0, 0, 2, 7), child(2, 1, 2, 7), child(2, 0, 1, 8), child(3, 1, 1, 8), child(1, 0, 2, 8), child(3, 1, 2, 8)]
    lines = [*world, child(0, 0, 1, 7), child(1, 1, 1, 7), *(again if second == "of the same ranks" else other)]
    keys = {(r["pid"], r["comm"]): r["comm_key"] for r in comms(table("nccl_comms", *lines)).collect().iter_rows(named=True)}
    last, partner = (keys[100, "0x3b0"], keys[101, "0x2b1"]) if second == "of the same ranks" else (keys[100, "0x2b0"], keys[102, "0x2b2"])
    assert keys[100, "0x1b0"] == keys[101, "0x1b1"] != last == partner
    # Of one of which a member's line is lost they stay together.
    part = comms(table("nccl_comms", *[line for line in lines if (line["pid"], line["comm"]) != (101, "0x1b1")])).collect()
    keys = {(r["pid"], r["comm"]): r["comm_key"] for r in part.iter_rows(named=True)}
    assert keys[100, "0x1b0"] == keys[100, "0x3b0" if second == "of the same ranks" else "0x2b0"]


def test_two_splits_of_one_color_without_a_count_are_told_apart_by_their_size() -> None:
    def child(process: int, rank: int, turn: int, color: int, nranks: int) -> dict[str, object]:
        own = {"pid": 100 + process, "source_id": process, "comm": f"0x{turn}b{process}", "parent": f"0xa{process}"}
        return event(rank, color=color, nranks=nranks, line_no=9 + turn, **own)

    # The first half of the ranks, then one rank of each half: 1 and 2 have no color twice.
    world = [event(p, comm=f"0xa{p}", comm_id="0xc0", nranks=6, line_no=3) for p in range(6)]
    halves = [child(p, p % 3, 1, p // 3, 3) for p in range(6)]
    pairs = [child(p, p // 3, 2, p % 3, 2) for p in range(6)]
    keys = {
        (r["pid"], r["comm"]): r["comm_key"] for r in comms(table("nccl_comms", *world, *halves, *pairs)).collect().iter_rows(named=True)
    }
    assert keys[100, "0x1b0"] == keys[102, "0x1b2"] != keys[100, "0x2b0"] == keys[103, "0x2b3"]
    assert len(set(keys.values())) == 6


def test_splits_of_other_colors_are_other_communicators() -> None:
    children = [event(r, comm=f"0xb{r}", parent=f"0xa{r}", split_count=1, color=r, line_no=9) for r in (0, 1)]
    found = comms(table("nccl_comms", *[event(r, comm_id="0xc0", line_no=3) for r in (0, 1)], *children)).collect()
    assert found["comm_key"].n_unique() == 3


def test_a_pointer_reused_after_destroy_is_another_communicator() -> None:
    found = comms(
        table(
            "nccl_comms",
            event(0, "init-start", comm_id="0xc0", line_no=1),
            event(0, comm_id="0xc0", line_no=2),
            event(0, "destroy-complete", line_no=3),
            event(0, "init-start", comm_id="0xd0", line_no=4),
        )
    ).collect()
    assert found.select("comm_key", "completed", "ended", "end_line_no").rows() == [
        ("0xc0", True, "destroy-complete", 3),
        ("0xd0", False, None, None),
    ]


def test_without_ids_the_communicators_of_one_size_are_met_in_order() -> None:
    found = comms(table("nccl_comms", *[event(r, comm=f"0x{c}{r}", line_no=n) for r in (0, 1) for n, c in enumerate("ab", 1)])).collect()
    assert found["comm_key"].to_list() == ["size2#1", "size2#2", "size2#1", "size2#2"]


def test_children_of_a_parent_that_no_line_tells_are_not_counted_through() -> None:
    # The beginning of rank 1's log is lost, and with it the first split: its second child is not the first of the others.
    children = [
        event(r, comm=f"0x{n}{r}", parent=f"0xa{r}", split_count=n, color=0, line_no=n) for r in (0, 1) for n in (1, 2) if (r, n) != (1, 1)
    ]
    found = comms(table("nccl_comms", *children)).collect()
    assert found["orphan"].to_list() == [True, True, True]
    keys = found["comm_key"].to_list()
    assert keys[1] == keys[2] != keys[0]
    # Ranks of children are not those of the job.
    logs = sources("a", "b")
    known = processes(logs, path_hints(logs), found.lazy(), None, None, None, None).collect()
    assert known["rank"].to_list() == [None, None]


def on_grid(rank: int, tp: int = 2) -> list[dict[str, object]]:
    """A process of four that makes the job's communicator, one with its tensor-parallel neighbour and one with its data-parallel one."""
    mine = {"host": f"node{rank // 2}", "pid": 100 + rank % 2, "bus_id": f"{rank % 2}a000", "source_id": rank}
    return [
        event(rank, nranks=4, comm="0xa", line_no=1, **mine),
        event(rank % tp, comm="0xb", line_no=2, **mine),
        event(rank // tp, comm="0xc", line_no=3, **mine),
    ]


def test_groups_of_one_size_without_ids_are_told_apart_by_the_ranks_of_the_job() -> None:
    found = comms(table("nccl_comms", *[e for r in range(4) for e in on_grid(r)])).collect()
    members = {key: part["source_id"].to_list() for (key,), part in found.group_by("comm_key", maintain_order=True)}
    assert sorted(members.values()) == [[0, 1], [0, 1, 2, 3], [0, 2], [1, 3], [2, 3]]


def test_groups_of_which_a_process_is_missing_stay_together() -> None:
    found = comms(table("nccl_comms", *[e for r in range(3) for e in on_grid(r)])).collect()
    assert sorted(found["comm_key"].unique().to_list()) == ["size2#1", "size2#2", "size4#1"]


def test_channels_are_of_the_communicator_that_the_thread_is_making() -> None:
    # Releases without 'Init START' tell of a communicator after its channels; of an init that never ends nothing but the start is told.
    lines = [
        {"host": "node1", "pid": 100, "source_id": 0, "coll": n, "line_no": at, "tid": tid}
        for n, at, tid in ((4, 1, 7), (2, 4, 8), (9, 7, 8))
    ]
    made = [
        event(0, comm="0xa", line_no=2, tid=7, comm_id="0xc0"),
        event(0, "init-start", comm="0xb", line_no=3, tid=8, comm_id="0xc1"),
        event(0, comm="0xb", line_no=5, tid=8, comm_id="0xc1"),
        event(1, "init-start", comm="0xd", line_no=6, tid=8, comm_id="0xc2", pid=100, source_id=0),
    ]
    frame = table("nccl_comms", *made)
    found = comm_channels(table("nccl_channels", *lines), frame, comms(frame)).collect()
    assert found.select("coll", "comm_key", "rank").rows() == [(4, "0xc0", 0), (2, "0xc1", 0), (9, "0xc2", 1)]


# ---- processes ----


def world(*members: dict[str, object]) -> pl.LazyFrame:
    return comms(table("nccl_comms", *[{"comm_id": "0xc0"} | m for m in members]))


def known(paths: pl.LazyFrame | None = None, **evidence: pl.LazyFrame) -> list[dict[str, object]]:
    where = paths if paths is not None else sources("log")
    others = (
        evidence.get(n)
        for n in (
            "comms",
            "nccl_versions",
            "worker_exits",
            "stacks",
            "nccl_tails",
            "traces",
            "fr_dumps",
            "fr_groups",
            "nccl_inspector",
            "environment",
        )
    )
    return processes(where, path_hints(where), *others).collect().to_dicts()


def test_the_communicator_beats_a_launchers_prefix_and_the_conflict_is_kept() -> None:
    [one] = known(comms=world(event(1, hint_rank=5, hint_scope="global")))
    assert (one["rank"], one["strength"]) == (1, CONTENT)
    assert one["conflict"] == "rank 1 against rank 5 by launcher prefix"


def sampled(*pids: int, pthread: str | None = None) -> pl.LazyFrame:
    """Stacks of processes, in files named by nothing but their pids."""
    return table(
        "stacks", *[{"pid": p, "pthread_id": pthread and f"{pthread}{p}", "source_id": n, "line_no": 1} for n, p in enumerate(pids)]
    )


def test_a_profilers_trace_tells_whose_pid_a_stack_is_of() -> None:
    names = sources("stacks/1.txt", "stacks/2.txt", "traces/rank1.json")
    traced = [{"pid": 101, "rank": 0, "source_id": 5}, {"pid": 102, "rank": None, "source_id": 2}]
    found = known(names, stacks=sampled(101, 102), traces=table("traces", *traced))
    assert [(p["pid"], p["rank"]) for p in found] == [(101, 0), (102, 1)]
    # A pid that nothing else tells of is no process, and one that two ranks have on two hosts is nobody's.
    assert known(names, traces=table("traces", *traced)) == []
    twice = known(names, stacks=sampled(101), traces=table("traces", traced[0], {"pid": 101, "rank": 8, "source_id": 6}))
    assert [(p["pid"], p["rank"]) for p in twice] == [(101, None)]


def test_an_environment_in_a_file_that_bears_a_pid_tells_whose_pid_it_is() -> None:
    names = sources("stacks/1.txt", "env/101.environ", "env/102/environ")
    told = [{"name": "RANK", "value": str(rank), "source_id": source} for source, rank in ((1, 5), (2, 6))]
    found = known(names, stacks=sampled(101, 102), environment=table("environment", *told))
    assert [(p["pid"], p["rank"]) for p in found] == [(101, 5), (102, 6)]
    # A number that two ranks bear is no pid, and without a process of that number nobody is made up.
    alike = known(sources("s.txt", "a/101.env", "b/101.env"), stacks=sampled(101), environment=table("environment", *told))
    assert [p["rank"] for p in alike] == [None]
    assert known(names, environment=table("environment", *told)) == []


def test_a_profilers_trace_that_states_its_host_is_a_process_for_a_rank_that_nobody_has() -> None:
    names = sources("t/a.json", "t/b.json", "t/rank7.json", "t/c.json", "t/d.json", "log")
    here = {"host": "node1", "pid": 201}
    traced = [
        here | {"rank": 4, "source_id": 0},
        {"host": "node2", "pid": 201, "rank": 5, "source_id": 1},
        {"host": "node2", "pid": 202, "rank": None, "source_id": 2},
        # Two processes that claim one rank are two runs, and one that has two ranks is none.
        {"host": "node3", "pid": 301, "rank": 9, "source_id": 3},
        {"host": "node4", "pid": 401, "rank": 9, "source_id": 4},
        {"host": "node5", "pid": 501, "rank": 0, "source_id": 5},
    ]
    found = known(names, comms=world(event(0), event(1)), traces=table("traces", *traced))
    assert [(p["rank"], p["host"], p["pid"], p["source_id"], p["strength"]) for p in found if p["pid"] > 200] == [
        (4, "node1", 201, 0, CONTENT),
        (5, "node2", 201, 1, CONTENT),
        (7, "node2", 202, 2, WORD),
    ]


def test_a_dump_named_by_its_rank_tells_whose_pid_it_is_by_the_thread() -> None:
    names = sources("stacks/1.json", "stacks/2.json", "fr/fr_trace_rank_3", "fr/fr_trace_rank_4")
    dumps = table("fr_dumps", {"thread_ids": ["7101"], "source_id": 2}, {"thread_ids": ["7102"], "source_id": 3})
    found = known(names, stacks=sampled(101, 102, pthread="7"), fr_dumps=dumps)
    assert [(p["pid"], p["rank"]) for p in found] == [(101, 3), (102, 4)]
    # Processes that were forked have their threads at the same addresses.
    alike = table("fr_dumps", {"thread_ids": ["9"], "source_id": 2}, {"thread_ids": ["9"], "source_id": 3})
    forked = table("stacks", *[{"pid": p, "pthread_id": "9", "source_id": n, "line_no": 1} for n, p in enumerate((101, 102))])
    assert [p["rank"] for p in known(names, stacks=forked, fr_dumps=alike)] == [None, None]


def test_a_prefix_that_counts_within_the_host_is_no_rank() -> None:
    [one] = known(comms=world(event(1, hint_rank=5, hint_scope="local")))
    assert (one["conflict"], one["local_rank"]) == (None, 5)


def test_a_rank_inside_a_smaller_communicator_is_not_the_global_one() -> None:
    child = event(0, comm="0xb1", comm_id="0xd0", pid=101, nranks=1)
    found = known(comms=world(event(0), event(1), child))
    assert [(p["pid"], p["rank"]) for p in found] == [(100, 0), (101, 1)]


def test_a_process_that_drives_several_gpus_is_one_row_per_gpu() -> None:
    found = known(comms=world(*[event(r, pid=100, bus_id=f"{r}b000") for r in (0, 1)]))
    assert [(p["pid"], p["bus_id"], p["rank"]) for p in found] == [(100, "0b000", 0), (100, "1b000", 1)]


def test_a_launcher_names_the_rank_of_a_process() -> None:
    [one] = known(worker_exits=table("worker_exits", {"rank": 3, "local_rank": 1, "pid": 103, "host": "node1"}))
    assert (one["rank"], one["local_rank"], one["pid"]) == (3, 1, 103)


def test_a_launcher_that_names_its_host_once_has_all_its_workers_there() -> None:
    lines = ({"pid": 103}, {"rank": 3, "local_rank": 1, "pid": 103, "host": "node1"})
    [one] = known(worker_exits=table("worker_exits", *lines))
    assert (one["rank"], one["host"]) == (3, "node1")


def test_containers_count_pids_anew_on_each_host() -> None:
    exits = table("worker_exits", *({"rank": r, "pid": 100, "host": f"node{r}", "source_id": r} for r in range(3)))
    found = known(comms=world(event(0, nranks=3, host="node0", pid=100)), worker_exits=exits)
    assert {(p["host"], p["pid"], p["rank"]) for p in found} == {(f"node{r}", 100, r) for r in range(3)}
    assert all(p["conflict"] is None for p in found)


def test_a_host_that_the_launcher_names_in_another_way_is_met_through_a_pid_that_only_one_process_has() -> None:
    exits = table("worker_exits", {"rank": 0, "local_rank": 4, "pid": 100, "host": "10.0.0.7"})
    [one] = known(comms=world(event(0)), worker_exits=exits)
    assert (one["host"], one["rank"], one["local_rank"]) == ("node1", 0, 4)


def test_the_one_process_without_a_rank_has_the_one_rank_without_a_process() -> None:
    found = known(comms=world(event(0)), nccl_tails=table("nccl_tails", {"host": "node1", "pid": 777}))
    assert [(p["pid"], p["rank"], p["strength"]) for p in found] == [(100, 0, CONTENT), (777, 1, NUMBER)]


def test_of_two_processes_without_a_rank_neither_is_guessed() -> None:
    found = known(comms=world(event(0)), nccl_tails=table("nccl_tails", *[{"host": "node1", "pid": p} for p in (777, 778)]))
    assert [p["rank"] for p in found] == [0, None, None]


def test_a_process_that_never_came_to_a_communicator_has_the_rank_of_its_files_name() -> None:
    files = sources("logs/rank0.out", "logs/rank5.out")
    members = [event(r, nranks=8) for r in (0, 1)]

    def found(*tails: dict[str, object], first: int = 0) -> list[object]:
        started = world(members[0] | {"rank": first}, members[1] | {"source_id": 7})
        own = [{"source_id": 0, "host": "node1", "pid": 100}, *({"source_id": 1, "host": "node1"} | t for t in tails)]
        return [p["rank"] for p in known(files, comms=started, nccl_tails=table("nccl_tails", *own))]

    assert found({"pid": 777}) == [0, 1, 5]
    # Two processes in one file, and names that count something else, tell nothing.
    assert found({"pid": 777}, {"pid": 778}) == [0, 1, None, None]
    assert found({"pid": 777}, first=3) == [3, 1, None]


def test_a_process_without_a_rank_is_placed_by_its_device_as_its_neighbours_are() -> None:
    def found(*devices: int) -> list[object]:
        tails = [{"host": "node1", "pid": 100 + r, "dev": d} for r, d in enumerate(devices)]
        strangers = [{"host": "node1", "pid": 777, "dev": 4}, {"host": "node1", "pid": 778, "dev": 7}]
        members = world(*[event(r, pid=100 + r, nranks=8) for r in range(len(devices))])
        people = known(comms=members, nccl_tails=table("nccl_tails", *tails, *strangers))
        return [p["rank"] for p in people if p["pid"] in (777, 778)]

    assert found(0, 1, 2) == [4, 7]
    assert found(0, 1) == [None, None]  # too few neighbours to see a pattern
    assert found(0, 0, 0) == [None, None]  # each sees its own device 0


def test_logs_that_are_numbered_through_as_the_devices_of_each_host_are_bear_the_ranks() -> None:
    def found(*devices: int, names: tuple[str, ...] = ("out.0", "out.1", "out.2", "out.3")) -> list[object]:
        tails = [{"source_id": n, "host": f"node{n // 2}", "pid": 100 + n, "dev": d} for n, d in enumerate(devices)]
        return [p["rank"] for p in sorted(known(sources(*names), nccl_tails=table("nccl_tails", *tails)), key=lambda p: str(p["pid"]))]

    assert found(0, 1, 0, 1) == [0, 1, 2, 3]
    # The devices are in another order; the numbers have a gap; names differ by more.
    assert found(0, 1, 1, 0) == [None] * 4
    assert found(0, 1, 0, 1, names=("out.0", "out.1", "out.2", "out.4")) == [None] * 4
    assert found(0, 1, 0, 1, names=("a.0", "a.1", "b.2", "b.3")) == [None] * 4


def test_tasks_that_are_numbered_through_as_the_devices_of_each_host_are_ranks() -> None:
    def found(*tasks: int, devices: tuple[int, ...] = (0, 1, 0, 1), scope: str = "task") -> list[object]:
        lines = [
            {"host": f"node{n // 2}", "pid": 100 + n, "dev": d, "hint_rank": t, "hint_scope": scope}
            for n, (t, d) in enumerate(zip(tasks, devices, strict=True))
        ]
        return [p["rank"] for p in sorted(known(sources("job.out"), nccl_tails=table("nccl_tails", *lines)), key=lambda p: str(p["pid"]))]

    assert found(0, 1, 2, 3) == [0, 1, 2, 3]
    # Launchers with two processes each; one task is missing; devices in another order; numbers within a host.
    assert found(0, 0, 1, 1) == found(0, 1, 2, 4) == found(0, 1, 2, 3, devices=(0, 1, 1, 0)) == [None] * 4
    assert found(0, 1, 2, 3, scope="local") == [None] * 4


def test_the_processes_of_the_last_host_have_the_block_of_ranks_that_nobody_else_has() -> None:
    def found(*strangers: tuple[str, int], ranks: int = 4) -> list[object]:
        tails = [{"host": "node1", "pid": 100 + r, "dev": r} for r in range(4)]
        others = [{"host": host, "pid": 700 + n, "dev": dev} for n, (host, dev) in enumerate(strangers)]
        members = world(*[event(r, pid=100 + r, nranks=8) for r in range(ranks)])
        people = known(comms=members, nccl_tails=table("nccl_tails", *tails[:ranks], *others))
        return [p["rank"] for p in sorted(people, key=lambda p: int(str(p["pid"]))) if int(str(p["pid"])) >= 700]

    block = [("node2", 1), ("node2", 0), ("node2", 2), ("node2", 3)]
    assert found(*block) == [5, 4, 6, 7]
    assert found(*block[:3]) == [None] * 3  # a rank has no process
    assert found(*block[:3], ("node3", 3)) == [None] * 4
    assert found(*block[:3], ("node2", 2)) == [None] * 4  # each sees a device of its own numbers
    assert found(*[("node2", d) for d in range(6)], ranks=2) == [None] * 6  # too few ranks to see a pattern


def test_the_name_of_a_stack_file_counts_only_if_one_process_is_in_it() -> None:
    where = sources("rank_3.txt", "rank_4.txt")
    stacks = table("stacks", {"pid": 10, "source_id": 0}, {"pid": 20, "source_id": 1}, {"pid": 21, "source_id": 1})
    assert [(p["pid"], p["rank"]) for p in known(where, stacks=stacks)] == [(10, 3), (20, None), (21, None)]


@pytest.mark.parametrize(
    ("claims", "settled"),
    [
        ([], (None, None, None, None)),
        ([(WORD, 4, "name")], (4, WORD, None, "name")),
        ([(NUMBER, 4, "name"), (PREFIX, 2, "prefix")], (2, PREFIX, "rank 2 against rank 4 by name", "prefix")),
        ([(CONTENT, 3, "a"), (CONTENT, 3, "b"), (CONTENT, 5, "c")], (3, CONTENT, "rank 3 against rank 5 by c", "a")),
        ([(CONTENT, 3, "a"), (CONTENT, 5, "b")], (None, CONTENT, "rank 3 against rank 5 by b", None)),
    ],
    ids=["nothing", "one", "the stronger wins", "the majority wins", "a tie names nobody"],
)
def test_claims_are_settled(claims: list[tuple[int, int, str]], settled: tuple[int | None, int | None, str | None, str | None]) -> None:
    assert settle(claims) == settled


def test_the_workers_of_one_torchrun_have_pids_in_the_order_of_their_ranks() -> None:
    def ranks_of(*pids: int, first: int = 0, size: str = "0-3") -> list[object]:
        failed = table("worker_exits", {"kind": "failed", "rank": first, "local_rank": first, "pid": 100})
        return [p["rank"] for p in known(worker_exits=failed, stacks=sampled(*pids), fr_groups=table("fr_groups", {"ranks": size}))]

    assert ranks_of(101, 103, 104) == [0, 1, 2, 3]
    assert ranks_of(101, 103) == [0, None, None], "of one nothing is seen"
    assert ranks_of(101, 103, 104, first=2) == [2, None, None, None], "the order is another one"
    assert ranks_of(101, 103, 9104) == [0, None, None, None]


# ---- sources ----

PEOPLE = known(comms=world(*[event(r) for r in (0, 1)]))


def writers(where: pl.LazyFrame, **evidence: pl.LazyFrame) -> dict[int, dict[str, object]]:
    order = ("processes", "fr_dumps", "fr_groups", "stacks", "exceptions", "watchdog", "reports", "nccl_comms")
    return {r["source_id"]: r for r in source_ranks(path_hints(where), *(evidence.get(n) for n in order)).collect().to_dicts()}


def test_what_a_source_holds_beats_its_name() -> None:
    lines = table("nccl_comms", event(1, source_id=0))
    [row] = writers(sources("rank_5.log"), processes=pl.LazyFrame(PEOPLE, infer_schema_length=None), nccl_comms=lines).values()
    assert (row["rank"], row["strength"], row["conflict"]) == (1, CONTENT, "rank 1 against rank 5 by file name")


def test_a_pid_that_several_hosts_have_names_the_writer_only_with_its_host() -> None:
    people = [p | {"pid": 74, "host": f"node{n}"} for n, p in enumerate(PEOPLE)]
    lines = table("nccl_comms", *(event(r, pid=74, host=f"node{r}", source_id=r) for r in (0, 1)))
    stack = table("stacks", {"pid": 74, "source_id": 2}, {"pid": 74, "source_id": 3, "hint_host": "node1"})
    where = sources("a", "b", "c", "d")
    found = writers(where, processes=pl.LazyFrame(people, infer_schema_length=None), nccl_comms=lines, stacks=stack)
    assert {s: r["rank"] for s, r in found.items()} == {0: 0, 1: 1, 3: 1}


def test_the_membership_of_its_groups_names_a_renamed_dump() -> None:
    members = table("fr_groups", *[{"pg_name": str(n), "ranks": r} for n, r in enumerate(["0-3", "2-3", "1-2"])])
    [row] = writers(sources("copy_of_9"), fr_dumps=table("fr_dumps", {}), fr_groups=members).values()
    assert (row["rank"], row["how"]) == (2, "the one rank that is in all of its groups")


def test_numbers_by_which_files_of_several_kinds_are_counted_are_no_ranks() -> None:
    def told(*names: str) -> list[int | None]:
        where = sources(*names, formats="flight-recorder flight-recorder py-spy py-spy")
        return path_hints(where).collect()["path_rank"].to_list()

    assert told("a/log1", "a/log3", "a/log2.txt", "a/log4.txt") == [None] * 4
    # Where a dump and a stack bear one number, or the names are of two sorts, a number may be a rank.
    assert told("a/log1", "a/log3", "a/log3.txt", "a/log4.txt") == [1, 3, 3, 4]
    assert told("a/fr1", "a/fr3", "a/log2.txt", "a/log4.txt") == [1, 3, 2, 4]


def test_numbers_of_names_of_which_one_is_proved_wrong_are_no_ranks() -> None:
    def told(*names: str) -> dict[int, object]:
        members = table("fr_groups", *({"source_id": n, "pg_name": "0", "ranks": "0-1"} for n in range(2)))
        dumps = table("fr_dumps", {}, {"source_id": 1})
        return {s: row["rank"] for s, row in writers(sources(*names), fr_dumps=dumps, fr_groups=members).items()}

    assert told("dump0", "dump1") == {0: 0, 1: 1}
    assert told("dump1", "dump2") == {}, "there is no rank 2"
    assert told("dump_of_rank1", "dump2") == {0: 1, 1: 0}, "the one that no other has"


def test_a_list_of_one_member_alone_names_nobody() -> None:
    members = table("fr_groups", *({"source_id": n, "pg_name": "", "ranks": "0"} for n in range(2)))
    found = writers(sources("fr_rank_0.json", "fr_rank_1.json"), fr_dumps=table("fr_dumps", {}, {"source_id": 1}), fr_groups=members)
    assert {s: row["rank"] for s, row in found.items()} == {0: 0, 1: 1}


def test_thread_ids_that_a_stack_shares_name_a_renamed_dump() -> None:
    found = writers(
        sources("copy_of_9", "stacks"),
        processes=pl.LazyFrame(PEOPLE, infer_schema_length=None),
        fr_dumps=table("fr_dumps", {"thread_ids": ["140"]}),
        stacks=table("stacks", {"pid": 101, "pthread_id": "140", "source_id": 1}),
    )
    assert (found[0]["rank"], found[0]["strength"]) == (1, CONTENT)


def test_a_bare_number_names_a_dump_and_no_log() -> None:
    found = writers(sources("trace_4", "log.4"), fr_dumps=table("fr_dumps", {"source_id": 0}))
    assert [(s, r["rank"], r["strength"]) for s, r in found.items()] == [(0, 4, NUMBER)]


def test_the_folder_of_a_worker_below_that_of_its_host_is_of_the_rank_with_that_local_rank_there() -> None:
    ends = [{"kind": "failure", "rank": r, "local_rank": r % 2, "pid": 100 + r, "host": f"node{r // 2}"} for r in range(4)]
    launched = pl.LazyFrame(known(worker_exits=table("worker_exits", *ends)), infer_schema_length=None)
    where = sources("node1/attempt_0/1/stderr.log", "logs/attempt_0/1/stderr.log", "node2/attempt_0/1/stderr.log")
    assert {s: w["rank"] for s, w in writers(where, processes=launched).items()} == {0: 3}, "of the others no folder tells the host"


def test_an_attempts_folder_names_the_rank_where_one_process_has_that_local_rank() -> None:
    where = sources("job/attempt_0/3/stderr.log")
    assert [(r["rank"], r["strength"]) for r in writers(where).values()] == [(3, NUMBER)]
    launched = known(worker_exits=table("worker_exits", {"rank": 7, "local_rank": 3, "pid": 107}))
    found = writers(where, processes=pl.LazyFrame(launched, infer_schema_length=None))
    assert [(r["rank"], r["strength"]) for r in found.values()] == [(7, PREFIX)]


def test_a_local_rank_of_several_hosts_names_no_source() -> None:
    exits = table("worker_exits", *[{"rank": r, "local_rank": 3, "pid": 100 + r, "host": f"node{r}"} for r in (3, 7)])
    launched = pl.LazyFrame(known(worker_exits=exits), infer_schema_length=None)
    assert writers(sources("job/attempt_0/3/stderr.log"), processes=launched) == {}


def test_prefixes_name_a_source_of_one_rank_only() -> None:
    lines = [{"hint_rank": r, "hint_scope": "global", "source_id": s} for s, r in ((0, 3), (0, 3), (1, 3), (1, 4))]
    found = writers(sources("a.log", "b.log"), exceptions=table("exceptions", *lines))
    assert [(s, r["rank"], r["strength"]) for s, r in found.items()] == [(0, 3, PREFIX)]


def test_a_bare_number_names_a_log_where_names_like_it_bear_the_ranks_that_their_content_tells() -> None:
    def named(*ranks: int) -> dict[int, object]:
        lines = [{"hint_rank": r, "hint_scope": "global", "source_id": s} for s, r in enumerate(ranks)]
        return {
            s: r["rank"]
            for s, r in writers(sources("job-0.out", "job-1.out", "job-2.out", "x.9"), exceptions=table("exceptions", *lines)).items()
        }

    assert named(0, 1) == {0: 0, 1: 1, 2: 2}
    assert named(0) == {0: 0}, "one may agree by chance"
    assert named(0, 8) == {0: 0, 1: 8}, "these are numbers of hosts"


# ---- the Inspector ----


def recorded_by_inspector(rank: int, nranks: int = 2, **more: object) -> dict[str, object]:
    return {
        "host": "node1",
        "pid": 100 + rank,
        "comm_id": f"0x{nranks}",
        "rank": rank,
        "nranks": nranks,
        "source_id": rank,
        "line_no": 1,
    } | more


def test_the_inspectors_records_tell_the_ranks_of_the_largest_communicator() -> None:
    alone = recorded_by_inspector(0, 1, pid=101, line_no=2)
    records = table("nccl_inspector", recorded_by_inspector(0), recorded_by_inspector(1), recorded_by_inspector(1, line_no=3), alone)
    found = processes(sources("a", "b"), path_hints(sources("a", "b")), *[None] * 8, records).collect()
    assert found.select("rank", "host", "pid", "conflict").rows() == [(0, "node1", 100, None), (1, "node1", 101, None)]


def test_where_nccl_tells_of_a_larger_communicator_the_inspectors_ranks_are_those_of_a_smaller_one() -> None:
    larger = comms(table("nccl_comms", event(3, comm_id="0xc0", nranks=4, line_no=3))).collect().lazy()
    records = table("nccl_inspector", recorded_by_inspector(1, pid=103))
    found = processes(sources("a", "b"), path_hints(sources("a", "b")), larger, *[None] * 7, records).collect()
    assert found.select("rank", "pid").rows() == [(3, 103)]


def test_a_process_in_a_pod_is_of_the_machine_that_the_pod_ran_on() -> None:
    table_of_pods = table(
        "pods", {"pod": "a-worker-0", "node": "gpu-7"}, {"pod": "a-worker-1", "node": "x"}, {"pod": "a-worker-1", "node": "y"}
    )
    exits = table("worker_exits", *({"kind": "failed", "host": f"a-worker-{n}", "pid": 10 + n} for n in range(2)))
    found = processes(sources("a"), path_hints(sources("a")), None, None, exits, *[None] * 7, table_of_pods).collect()
    assert sorted(found.select("host", "node").rows()) == [("a-worker-0", "gpu-7"), ("a-worker-1", None)]


def by_folder(*dumps: tuple[str, int, int], size: int) -> list[int | None]:
    """The ranks of NCCL's dumps, given as (path, seconds of their first and last entry) of a job of so many ranks."""
    spans = [
        {"source_id": n, "encoding": "pickle", "version_major": 2, "version_minor": 4, "first_record_id": 40}
        | {"first_created_ns": begin * 10**9, "last_created_ns": end * 10**9}
        for n, (_, begin, end) in enumerate(dumps)
    ]
    known = [{"source_id": n, "pg_name": "0", "ranks": f"0-{size - 1}"} for n in range(len(dumps))]
    found = writers(sources(*(path for path, _, _ in dumps)), fr_dumps=table("fr_dumps", *spans), fr_groups=table("fr_groups", *known))
    return [found[n]["rank"] if n in found else None for n in range(len(dumps))]


@pytest.mark.parametrize("name", ["dump_{}", "nccl_trace_rank_{}"])
def test_dumps_that_each_host_numbers_from_its_first_are_of_no_rank_by_their_name(name: str) -> None:
    apart = [(f"{host}/{name.format(n)}", late + n, 90 + n) for late, host in ((1, "node0"), (5, "node1")) for n in (0, 1)]
    assert by_folder(*apart, size=4) == [None] * 4


def test_looks_at_one_job_and_jobs_that_run_at_once_keep_the_ranks_of_their_names() -> None:
    twice = [(f"{look}/dump_{n}", 1 + n, end) for look, end in (("first", 80), ("second", 90)) for n in (0, 1)]
    again = [(f"{start}/dump_{n}", begin + n, end) for start, begin, end in (("a", 1, 40), ("b", 60, 90)) for n in (0, 1)]
    beside = [(f"{job}/dump_{n}", begin + n, 90) for job, begin in (("actor", 1), ("learner", 5)) for n in (0, 1)]
    assert [by_folder(*twice, size=4), by_folder(*again, size=4), by_folder(*beside, size=2)] == [[0, 1, 0, 1]] * 3
