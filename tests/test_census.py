"""What must be seen before it is said that nothing is wrong."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from nccl_forensics.api import analyze
from nccl_forensics.conclusions.census import census, people_of
from nccl_forensics.conclusions.grounds import (
    began,
    broke_off,
    ended_unlike,
    left_connecting,
    left_open,
    lost_a_peer,
    measured,
    none_found_at_work,
    only_looked_at,
    reached_largest_size,
    recorded_by_all,
    stood_still,
    waits_for_one,
)
from nccl_forensics.reading.engine import InlineEngine
from nccl_forensics.store import Store
from nccl_forensics.views import Resolver
from nccl_forensics.views.identity import PROCESSES_SCHEMA
from nccl_forensics.views.late_ranks import LATE_RANKS
from nccl_forensics.views.stack_views import THREAD_STATES
from nccl_forensics.views.stalls import STALLS
from tests.rules.host_frames import table
from tests.views.frames import rows

BOOTSTRAP = "node1:10:10 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\nnode1:10:10 [0] NCCL INFO Using network Socket\n"
STARTED = "node1:10:20 [0] NCCL INFO comm 0x55 rank 0 nranks 1 cudaDev 0 busId 1b000 - Init COMPLETE\n"


class Told(Resolver):
    """Views as given."""

    def __init__(self, **frames: pl.DataFrame) -> None:
        super().__init__(Store.from_frames({}))
        self._given = frames

    def get(self, name: str) -> pl.LazyFrame | None:
        return self._given[name].lazy() if name in self._given else super().get(name)


def moved(*motions: str) -> Resolver:
    return Told(motion=pl.DataFrame({"rank": range(len(motions)), "motion": motions}))


@pytest.mark.parametrize(
    ("motions", "still"),
    [
        (("stuck",) * 4, True),
        (("stuck", "stuck", "stuck", "unknown"), True),
        (("stuck", "stuck", "stuck", "moving"), False),
        (("stuck", "stuck", "unknown", "unknown"), False),
        (("stuck", "stuck"), False),
    ],
)
def test_a_job_stands_still_where_most_ranks_were_looked_at_twice_and_none_moved(motions: tuple[str, ...], still: bool) -> None:
    assert stood_still(moved(*motions)) is still


@pytest.mark.parametrize(
    ("changed", "still"),
    [
        ({}, False),
        ({"place": ["user-code", "user-code", "collective"]}, True),
        ({"place": ["file-io"] * 3}, True),
        ({"first_pending": [None, None, 9]}, False),
        ({"first_pending": [9, 9, 9]}, True),
        ({"first_pending": [None, None, 8]}, True),
        ({"last_seq": [9, 9, 8]}, True),
        ({"rank": [0, 1, 3]}, True),
        ({"calls": 2}, True),
    ],
)
def test_a_job_in_which_nobody_waits_does_not_stand_still(changed: dict[str, object], still: bool) -> None:
    row: dict[str, object] = {
        "place": ["user-code"] * 3,
        "first_pending": [None] * 3,
        "last_seq": [9] * 3,
        "rank": [0, 1, 2],
        "calls": 0,
    } | changed
    facts = {name: row[name] for name in ("rank", "last_seq", "first_pending")} | {"domain": "fr", "group_key": "pg:0"}
    frames = {
        "motion": pl.DataFrame({"rank": [0, 1, 2], "motion": "stuck"}),
        "last_calls": pl.DataFrame({"rank": [0, 1, 2], "place": row["place"]}),
        "progress": pl.DataFrame(facts, schema_overrides={"first_pending": pl.Int64}),
        "unheld_calls": pl.DataFrame({"rank": [0], "calls": [row["calls"]]}).filter(pl.col("calls") > 0),
    }
    assert stood_still(Told(**frames)) is still
    del frames["progress"]
    assert stood_still(Told(**frames)), "no recorder tells that nobody waits"


def opened(*pending: int | None, library: str | None = "2.27.7", minor: int = 10, motion: str = "stuck") -> Resolver:
    ranks = range(len(pending))
    return Told(
        progress=pl.DataFrame({"domain": "fr", "rank": ranks, "first_pending": pending}, schema_overrides={"first_pending": pl.Int64}),
        dumps=pl.DataFrame(
            {"rank": ranks, "comm_lib_version": [library] * len(pending), "version_major": 2, "version_minor": minor},
            schema_overrides={"comm_lib_version": pl.String},
        ),
        motion=pl.DataFrame({"rank": ranks, "motion": motion}),
    )


def test_dumps_with_open_work_on_half_of_the_ranks_do_not_tell_that_all_is_well() -> None:
    assert left_open(opened(4, 4, None, None))
    assert left_open(opened(4, 4, library=None, minor=4)), "a recorder that knows NCCL alone"
    assert not left_open(opened(4, None, None, None))
    assert not left_open(opened(4, 4, library=None)), "gloo does not say what is completed"
    assert not left_open(opened(4, 4, motion="moving"))
    assert not left_open(Resolver(Store.from_frames({})))


def dumped(*ranks: int, world: int) -> Resolver:
    groups = pl.DataFrame({"domain": ["fr"], "members": [list(range(world))], "size": [world]})
    schema = {"comm_lib_version": "2.27.7", "version_major": 2, "version_minor": 10}
    held = {"rank": ranks, "use": "chosen", "first_record_id": 0, "last_record_id": 0, "entries": 1} | schema
    return Told(dumps=pl.DataFrame(held), groups=groups)


def all_recorded(resolver: Resolver) -> bool:
    return recorded_by_all(resolver, census(resolver))


def test_dumps_of_some_ranks_alone_are_not_all() -> None:
    assert not all_recorded(dumped(0, 1, 3, world=4))
    assert all_recorded(dumped(0, 1, 2, world=3))
    assert all_recorded(Resolver(Store.from_frames({})))


def test_a_start_without_a_communicator_is_no_whole_log() -> None:
    line = {"item": "bootstrap", "name": "eth0", "host": "node1", "pid": 10, "source_id": 0, "line_no": 1}
    assert not began(Resolver(Store.from_frames({"nccl_network": table("nccl_network", line).collect()})))
    assert began(Resolver(Store.from_frames({})))
    release = table("nccl_versions", {"version": "2.21.5", "host": "a", "pid": 1}).collect()
    assert not began(Resolver(Store.from_frames({"nccl_versions": release}))), "nothing but NCCL's release"
    calls = table("nccl_ops", {"op": "AllReduce", "host": "n1", "pid": 7, "comm": "0xa0", "nranks": 8, "count": 4, "op_count": 0}).collect()
    assert not began(Resolver(Store.from_frames({"nccl_ops": calls}))), "calls of communicators that nothing names"
    steps = table("training_steps", {"step": 1, "loss": 2.5}).collect()
    assert began(Resolver(Store.from_frames({"nccl_versions": release, "training_steps": steps})))


def test_the_inspectors_communicators_tell_how_many_ranks_there_are() -> None:
    record = {"host": "n1", "pid": 7, "comm_id": "0xa0", "rank": 2, "nranks": 4, "source_id": 0, "line_no": 1}
    known = census(Resolver(Store.from_frames({"nccl_inspector": table("nccl_inspector", record).collect()})))
    assert (known.world, known.seen, known.missing) == (4, {2}, [0, 1, 3])


UNKNOWN = "node1:10:20 [0] ofi_mr:81 NCCL WARN NET/OFI Could not register memory on rail 0\n"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (UNKNOWN, "insufficient-evidence"),
        ("NCCL version 2.2.13+cuda9.0\n", "insufficient-evidence"),
        (
            "node1:10:20 [0] NCCL INFO P2P is disabled between connected GPUs 1 and 0. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.\n",
            "insufficient-evidence",
        ),
        (BOOTSTRAP + UNKNOWN, "insufficient-evidence"),
        (UNKNOWN + STARTED, "nothing-wrong"),
        (
            'node1:10:20 [0] init.cpp:122 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to low performance\n'
            + STARTED,
            "nothing-wrong",
        ),
    ],
)
def test_warnings_alone_do_not_tell_that_all_is_well(tmp_path: Path, text: str, status: str) -> None:
    (tmp_path / "nccl.log").write_text(text, encoding="utf-8")
    verdict = analyze([tmp_path], engine=InlineEngine()).report["verdict"]
    assert isinstance(verdict, dict)
    assert verdict["status"] == status


WAITING = """Process 7: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 7 (idle): "MainThread"
    wait (threading.py:327)
    get (queue.py:171)
    train (train.py:{0})
"""


@pytest.mark.parametrize(
    ("status", "verdict"),
    [("CrashLoopBackOff", "insufficient-evidence"), ("Init:Error", "insufficient-evidence"), ("Running", "nothing-wrong")],
)
def test_pods_that_are_down_are_not_well(tmp_path: Path, status: str, verdict: str) -> None:
    listing = f"NAME            READY   STATUS             RESTARTS   AGE\ntrain-master-0   0/1     {status}   8          2m32s\n"
    (tmp_path / "pods.txt").write_text(listing, encoding="utf-8")
    told = analyze([tmp_path], engine=InlineEngine()).report["verdict"]
    assert isinstance(told, dict)
    assert told["status"] == verdict


def test_stacks_of_one_look_do_not_tell_that_all_is_well(tmp_path: Path) -> None:
    (tmp_path / "pyspy.txt").write_text(WAITING.format(40), encoding="utf-8")
    verdict = analyze([tmp_path], engine=InlineEngine()).report["verdict"]
    assert isinstance(verdict, dict)
    assert verdict["status"] == "insufficient-evidence"
    # Beside what the job itself wrote they are one more witness.
    (tmp_path / "nccl.log").write_text(BOOTSTRAP + STARTED, encoding="utf-8")
    verdict = analyze([tmp_path], engine=InlineEngine()).report["verdict"]
    assert isinstance(verdict, dict)
    assert verdict["status"] == "nothing-wrong"


def test_stacks_that_show_motion_tell_of_a_job_that_goes_on() -> None:
    def looked(*formats: str, motions: tuple[str, ...]) -> bool:
        motion = pl.DataFrame({"motion": motions}, schema={"motion": pl.String})
        return only_looked_at(Told(sources=pl.DataFrame({"formats": [[name] for name in formats]}), motion=motion))

    assert looked("py-spy", "gdb", motions=("stuck", "unknown"))
    assert not looked("py-spy", motions=("stuck", "moving"))
    assert not looked("py-spy", "nccl-log", motions=())
    # Steps that it told before say nothing of the moment of the look.
    assert looked("py-spy", "training-log", motions=("unknown",))
    assert not looked("py-spy", "training-log", motions=("stuck", "moving"))
    assert not looked("training-log", motions=())


@pytest.mark.parametrize(
    ("places", "moved", "waiting"),
    [
        (("collective", "p2p", "collective"), None, True),
        (("collective", "user-code"), None, False),
        (("collective", "collective"), True, False),
        (("collective",), None, False),
    ],
)
def test_a_look_that_finds_all_in_calls_that_wait_does_not_tell_a_job_that_works(
    places: tuple[str, ...], moved: bool | None, waiting: bool
) -> None:
    last = pl.DataFrame({"place": places}).with_columns(
        witness=pl.lit("stack"), moved=pl.lit(moved, dtype=pl.Boolean), frames=pl.lit(None, dtype=pl.List(pl.String))
    )
    assert none_found_at_work(Told(last_calls=last)) is waiting


@pytest.mark.parametrize(("place", "waiting"), [("collective", True), ("user-code", False)])
def test_nor_does_one_that_finds_ranks_still_loading_what_they_import(place: str, waiting: bool) -> None:
    frames = [["exec_module (<frozen importlib._bootstrap_external>:940)", "<module> (train.py:3)"], ["step (train.py:90)"]]
    last = pl.DataFrame({"place": ["user-code", place], "frames": frames, "witness": "stack", "moved": [True, False]})
    assert none_found_at_work(Told(last_calls=last)) is waiting


@pytest.mark.parametrize(
    ("known", "told"),
    [({}, True), ({"lost_share": 0.7}, False), ({"window_share": 0.1}, False), ({"worst_ms": 90.0}, False), ({"collectives": 3}, False)],
)
def test_traces_in_which_all_wait_for_one_rank_again_and_again_do_not_tell_a_job_that_is_well(known: dict[str, object], told: bool) -> None:
    row = {"collectives": 8, "lost_share": 0.95, "window_share": 0.3, "lost_ms": 100.0, "worst_ms": 40.0}
    assert waits_for_one(Told(late_ranks=rows(LATE_RANKS, row | known).collect())) is told


LINKS = "node1:10:20 [0] NCCL INFO === System : maxBw 240.0 totalBw 240.0 ===\n"
ENDED = "node1:10:20 [0] NCCL INFO comm 0x55 rank 0 nranks 1 cudaDev 0 busId 1b000 - Destroy COMPLETE\n"


@pytest.mark.parametrize(
    ("text", "confidence"),
    [
        (BOOTSTRAP + LINKS + STARTED, "low"),
        (BOOTSTRAP + STARTED + ENDED, "low"),
        (BOOTSTRAP + LINKS + STARTED + ENDED, "medium"),
        (BOOTSTRAP + STARTED + "step 100: loss 2.31\nstep 200: loss 2.20\n", "medium"),
    ],
    ids=["no end", "no links", "whole", "with its steps"],
)
def test_nccls_log_alone_is_called_well_with_more_than_low_confidence_where_it_shows_links_and_an_end(
    tmp_path: Path, text: str, confidence: str
) -> None:
    (tmp_path / "nccl.log").write_text(text, encoding="utf-8")
    verdict = analyze([tmp_path], engine=InlineEngine()).report["verdict"]
    assert isinstance(verdict, dict)
    assert (verdict["status"], verdict["confidence"]) == ("nothing-wrong", confidence)


@pytest.mark.parametrize(
    "text",
    [
        BOOTSTRAP + STARTED,
        "node0:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\nnode0:7:9 [0] NCCL INFO Connected all trees\n",
    ],
    ids=["no end", "links alone"],
)
def test_a_log_of_nccl_alone_that_ends_in_its_start_is_called_well_with_low_confidence_only(tmp_path: Path, text: str) -> None:
    (tmp_path / "nccl.log").write_text(text, encoding="utf-8")
    verdict = analyze([tmp_path], engine=InlineEngine()).report["verdict"]
    assert isinstance(verdict, dict)
    assert (verdict["status"], verdict["confidence"]) == ("nothing-wrong", "low")


def test_a_log_of_nccl_alone_that_ends_in_the_bootstrap_may_be_that_of_a_hang(tmp_path: Path) -> None:
    (tmp_path / "nccl.log").write_text(BOOTSTRAP, encoding="utf-8")
    verdict = analyze([tmp_path], engine=InlineEngine()).report["verdict"]
    assert isinstance(verdict, dict)
    assert (verdict["status"], verdict["confidence"]) == ("insufficient-evidence", None)


def test_a_job_that_ends_with_lost_connections_and_in_no_order_may_have_lost_a_process() -> None:
    lost = pl.DataFrame({"kind": ["local-peer-closed"]})
    open_ended = pl.DataFrame({"ended": [None]}, schema={"ended": pl.String()})
    assert lost_a_peer(Told(nccl_notes=lost, comms=open_ended))
    assert not lost_a_peer(Told(nccl_notes=lost, comms=pl.DataFrame({"ended": ["destroy-complete"]})))
    assert not lost_a_peer(Told(nccl_notes=lost.clear(), comms=open_ended))
    afar = pl.DataFrame({"kind": ["peer-closed"]})
    assert lost_a_peer(Told(nccl_errors=afar, comms=open_ended))
    assert not lost_a_peer(Told(nccl_errors=afar.clear(), comms=open_ended))


def test_a_process_that_came_up_and_of_which_no_end_is_told_may_have_stood_or_gone() -> None:
    def comms(*ends: tuple[int, str | None], up: bool = True) -> pl.DataFrame:
        rows = [{"host": "n1", "pid": pid, "completed": up, "ended": end} for pid, end in ends]
        return pl.DataFrame(rows, schema_overrides={"ended": pl.String()})

    assert broke_off(Told(comms=comms((1, None), (2, None))))
    assert broke_off(Told(comms=comms((1, None), (2, "abort-complete")))), "the others gave up, it left no word"
    assert not broke_off(Told(comms=comms((1, None), (1, "destroy-complete")))), "a part of a communicator goes with it"
    assert not broke_off(Told(comms=comms((1, None), up=False))), "one that never came up is a trouble of init"


@pytest.mark.parametrize(
    ("more", "status"),
    [("", "insufficient-evidence"), (ENDED, "nothing-wrong"), ("step 100: loss 2.31\nstep 200: loss 2.20\n", "nothing-wrong")],
    ids=["nothing more", "taken down in order", "with its steps"],
)
def test_a_loss_that_nccls_log_alone_tells_of_leaves_open_whether_a_process_was_killed(tmp_path: Path, more: str, status: str) -> None:
    closed = "node1:10:30 [0] NCCL INFO [Service thread] Connection closed by localRank 1\n"
    (tmp_path / "nccl.log").write_text(BOOTSTRAP + STARTED + closed + more, encoding="utf-8")
    verdict = analyze([tmp_path], engine=InlineEngine()).report["verdict"]
    assert isinstance(verdict, dict)
    assert verdict["status"] == status


def test_a_job_whose_log_ends_amid_the_channels_is_not_surely_well() -> None:
    process = pl.DataFrame({"host": ["node1"], "pid": [7]})
    assert left_connecting(Told(connecting=process))
    assert not left_connecting(Told(connecting=process.clear()))


def counted(*last: int, domain: str = "nccl") -> Resolver:
    return Told(progress=pl.DataFrame({"domain": domain, "group_key": "a", "rank": range(len(last)), "last_seq": last}))


def test_logs_of_one_communicator_that_hold_different_numbers_of_calls_do_not_tell_that_all_is_well() -> None:
    assert ended_unlike(counted(7, 7, 8, 7))
    assert not ended_unlike(counted(7, 7, 7, 7))
    assert not ended_unlike(counted(7, 7, 8, 7, domain="fr")), "recorders tell themselves what is open"


def lines(table_name: str, told: dict[str, object], *line_nos: int) -> pl.DataFrame:
    return table(table_name, *({"source_id": 0, "host": "node1", "pid": 10, "line_no": n} | told for n in line_nos)).collect()


def test_a_network_chosen_for_a_communicator_of_which_nothing_more_is_said_does_not_tell_that_all_is_well() -> None:
    comms = lines("nccl_comms", {"event": "init-complete", "comm": "0x55"}, 5)
    assert ended_unlike(Told(nccl_network=lines("nccl_network", {"item": "using"}, 2, 9), nccl_comms=comms))
    assert not ended_unlike(Told(nccl_network=lines("nccl_network", {"item": "using"}, 2), nccl_comms=comms))


@pytest.mark.parametrize(
    ("complete", "last_bytes", "told"),
    [(False, None, False), (False, 1024, True), (True, None, True)],
    ids=["ended before its first row", "ended amid its table", "with its footer"],
)
def test_a_bandwidth_test_without_a_result_tells_of_no_job_that_is_well(complete: bool, last_bytes: int | None, told: bool) -> None:
    tests = table("bandwidth_tests", {"test": 0, "hosts": ["node1"], "complete": complete, "last_bytes": last_bytes})
    assert measured(Told(bandwidth_tests=tests)) is told


@pytest.mark.parametrize(("complete", "last_bytes", "told"), [(False, 1 << 20, False), (False, 8 << 30, True), (True, 1 << 20, True)])
def test_a_bandwidth_test_that_stops_before_its_largest_size_leaves_that_open(complete: bool, last_bytes: int, told: bool) -> None:
    test = {"test": 0, "hosts": ["node1"], "complete": complete, "last_bytes": last_bytes, "max_bytes": 8 << 30}
    assert reached_largest_size(Told(bandwidth_tests=table("bandwidth_tests", test))) is told


def test_the_head_of_a_bandwidth_test_alone_is_not_enough_evidence(tmp_path: Path) -> None:
    head = "# nThread 1 nGpus 2 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n"
    head += "".join(f"#  Rank  {r} Group  0 Pid   4711 on    node1 device  {r} [0x1{r}] NVIDIA A40\n" for r in range(2)) + "#\n"
    head += "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    (tmp_path / "all_reduce.log").write_text(head)
    assert analyze([tmp_path], engine=InlineEngine()).report["verdict"]["status"] == "insufficient-evidence"


def test_a_job_whose_communicators_are_seen_is_not_surely_well_by_the_head_of_its_bandwidth_test(tmp_path: Path) -> None:
    lines = "".join(
        f"node1:471{r}:471{r} [{r}] NCCL INFO ncclCommInitRank comm 0x5{r} rank {r} nranks 2 cudaDev {r} nvmlDev {r} busId 1{r}000 commId 0x77 - Init {s}\n"
        for r in range(2)
        for s in ("START", "COMPLETE")
    )
    head = "# nThread 1 nGpus 1 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n"
    head += "".join(f"#  Rank  {r} Group  0 Pid   471{r} on    node1 device  {r} [0x1{r}] NVIDIA A40\n" for r in range(2)) + "#\n"
    (tmp_path / "all_reduce.log").write_text(head + lines)
    verdict = analyze([tmp_path], engine=InlineEngine()).report["verdict"]
    assert (verdict["status"], verdict["confidence"]) == ("nothing-wrong", "low")


@pytest.mark.parametrize(("started", "size", "seen"), [("", None, 3), (STARTED, 1, 1)], ids=["no rank printed", "size printed"])
def test_the_name_of_a_file_does_not_tell_the_size_of_a_job_whose_processes_print_no_rank(
    tmp_path: Path, started: str, size: int | None, seen: int
) -> None:
    (tmp_path / "rank0.out").write_text("rank 0: starting\n" + "NCCL version 2.19.4+cuda12.2\n", encoding="utf-8")
    for pid in (10, 11, 12):
        (tmp_path / f"nccl.{pid}.log").write_text((BOOTSTRAP + started).replace(":10:", f":{pid}:"), encoding="utf-8")
    case = analyze([tmp_path], engine=InlineEngine()).report["case"]
    assert isinstance(case, dict)
    assert (case["world_size"], case["ranks_seen"]) == (size, seen)


def test_the_process_whose_stack_is_that_of_a_stalled_rank_is_that_rank_s_also_where_no_file_says_so() -> None:
    told = Told(
        processes=rows(PROCESSES_SCHEMA, {"rank": 0, "host": "node1", "pid": 10}, {"pid": 42}).collect(),
        stalls=rows(STALLS, {"rank": 5, "stack_source_id": 7, "stack_line_no": 4}).collect(),
        thread_states=rows(THREAD_STATES, {"pid": 42, "source_id": 7, "line_no": 4}, {"pid": 43, "source_id": 8, "line_no": 4}).collect(),
        source_hosts=pl.DataFrame({"source_id": [7], "host": ["node2"]}, schema={"source_id": pl.UInt32(), "host": pl.String()}),
    )
    people = people_of(told)
    assert {rank: (row["host"], row["pid"]) for rank, row in people.items()} == {0: ("node1", 10), 5: ("node2", 42)}
    known = Told(**told._given | {"thread_states": rows(THREAD_STATES, {"rank": 5, "pid": 42, "source_id": 7, "line_no": 4}).collect()})
    assert set(people_of(known)) == {0}, "whose rank its file tells stands among the processes"
