"""What a stack says: where its thread stands, how stacks of many processes merge, and who stands apart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_forensics.reading.bundle import open_bundle
from nccl_forensics.reading.engine import default_engine, read_bundle
from nccl_forensics.rules.stack_stalls import collective_skipped_by_stacks
from nccl_forensics.stacks.places import role_of, standing, user_frame
from nccl_forensics.stacks.tree import (
    BUSY,
    CHAINED,
    ELSEWHERE,
    MAKING,
    PAIRED,
    PASSED,
    UNANSWERED,
    Key,
    classes,
    merge,
    moved,
    odd_ones_out,
)
from nccl_forensics.tables import TABLES
from nccl_forensics.views import Resolver
from nccl_forensics.views.last_calls import last_calls
from nccl_forensics.views.stack_stalls import stack_stalls
from nccl_forensics.views.stack_views import odd_stacks, thread_states
from tests.corpus import corpus
from tests.views.frames import progress

WRAPPER = "_exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)"
ALL_REDUCE = ["all_reduce (torch/distributed/distributed_c10d.py:3252)", WRAPPER, "train (train.py:59)", "<module> (train.py:68)"]
BROADCAST = ["broadcast (torch/distributed/distributed_c10d.py:2000)", WRAPPER, "train (train.py:61)", "<module> (train.py:68)"]
RECV = [
    "recv (torch/distributed/distributed_c10d.py:2799)",
    WRAPPER,
    "exchange (pp.py:15)",
    "train (train.py:45)",
    "<module> (train.py:68)",
]
LOADER = [
    "Condition.wait (threading.py:327)",
    "Queue.get (queue.py:180)",
    "_MultiProcessingDataLoaderIter._try_get_data (torch/utils/data/dataloader.py:1131)",
    "_BaseDataLoaderIter.__next__ (torch/utils/data/dataloader.py:633)",
    "train (train.py:55)",
    "<module> (train.py:68)",
]
SYNC = ["synchronize (torch/cuda/__init__.py:792)", "train (train.py:60)", "<module> (train.py:68)"]
COMPUTE = [
    "Net.forward (model.py:21)",
    "Module._call_impl (torch/nn/modules/module.py:1789)",
    "train (train.py:39)",
    "<module> (train.py:68)",
]


def stack(*frames: str) -> list[str]:
    """These frames on top of a training loop."""
    return [*frames, "train (train.py:55)", "<module> (train.py:68)"]


# --- where a stack stands --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "place", "op"),
    [
        (ALL_REDUCE, "collective", "all_reduce"),
        (RECV, "p2p", "recv"),
        (LOADER, "data-loader", None),
        (SYNC, "cuda-sync", None),
        (
            stack("monitored_barrier (torch/distributed/distributed_c10d.py:5435)", "save_checkpoint (train.py:63)"),
            "collective",
            "monitored_barrier",
        ),
        (
            stack(
                "all_gather_object (torch/distributed/distributed_c10d.py:9)", "save (torch/distributed/checkpoint/state_dict_saver.py:9)"
            ),
            "collective",
            "all_gather_object",
        ),
        (stack("0x7f (libc.so.6)", "c10d::Work::wait (libtorch_cpu.so)", *ALL_REDUCE[:2]), "collective", "all_reduce"),
        (stack("ncclGroupEnd (libnccl.so.2)", "pncclAllGather (libnccl.so.2)"), "collective", "all_gather"),
        (
            stack("gloo::transport::tcp::UnboundBuffer::waitRecv (libtorch_cpu.so)", "gloo::broadcast (libtorch_cpu.so)"),
            "collective",
            "broadcast",
        ),
        (stack("_communicate (megatron/core/pipeline_parallel/p2p_communication.py:300)"), "p2p", "_communicate"),
        (
            stack(
                "_wait_batch_p2p (torch/distributed/pipelining/schedules.py:958)",
                "Schedule1F1B._step_microbatches (torch/distributed/pipelining/schedules.py:1487)",
            ),
            "p2p",
            "_wait_batch_p2p",
        ),
        (
            stack(
                "_store_based_barrier (torch/distributed/distributed_c10d.py:500)",
                "init_process_group (torch/distributed/distributed_c10d.py:900)",
            ),
            "rendezvous",
            None,
        ),
        (stack("save (torch/serialization.py:850)", "write (ckpt.py:3)"), "checkpoint", None),
        (stack("Garbage-collecting ()", "step (train.py:3)"), "gc", None),
        (stack("Event.wait (threading.py:655)", "run_once (work.py:3)"), "lock", None),
        (stack("wait (torch/utils/file_baton.py:60)", "load (my/ops.py:3)"), "lock", None),
        (stack("compile_fx (torch/_inductor/compile_fx.py:800)"), "compile", None),
        (stack("_find_and_load (<frozen importlib._bootstrap>:1176)"), "import", None),
        (stack("_engine_run_backward (torch/autograd/graph.py:979)", "Tensor.backward (torch/_tensor.py:623)"), "backward", None),
        (stack("SSLSocket.read (ssl.py:1100)", "download (store.py:4)"), "file-io", None),
        (stack("pysleep (timemodule.c:2159)", "nap (work.py:3)"), "sleep", None),
    ],
)
def test_places(frames: list[str], place: str, op: str | None) -> None:
    found = standing(frames)
    assert (found.place, found.op, found.by_name) == (place, op, False)


@pytest.mark.parametrize(
    ("frame", "place"),
    [
        ("tokenize (train.py:34)", "data-loader"),
        ("load_batch (train.py:18)", "data-loader"),
        ("Loader.get_next_batch (input.py:18)", "data-loader"),
        ("Corpus.open (my/dataset.py:18)", "data-loader"),
        ("Loader._remote (train.py:70)", "data-loader"),
        ("train.<locals>.ShardReader.seek (train.py:70)", "data-loader"),
        ("save_checkpoint (train.py:61)", "checkpoint"),
        ("hold_lock (train.py:61)", "lock"),
        ("lock_gil (train.py:61)", "gil"),
        ("evaluate (train.py:61)", "evaluation"),
    ],
)
def test_names_of_user_functions_are_hints_and_the_reason_says_so(frame: str, place: str) -> None:
    found = standing(stack(frame), active=True)
    assert (found.place, found.by_name) == (place, True)
    assert "by the name of the user's" in found.reason


@pytest.mark.parametrize(
    "frame",
    [
        "run_block (model.py:3)",
        "fragile_step (model.py:3)",
        "clock_tick (model.py:3)",
        "_checkpointed_forward (model.py:3)",
        "get_data_parallel_rank (state.py:3)",
        "ModelLoader.place (train.py:70)",
        "Trainer.fit (train.py:70)",
    ],
)
def test_names_that_only_look_alike_are_no_hints(frame: str) -> None:
    assert standing(stack(frame), active=True).place == "compute"


def test_a_wait_under_a_loading_function_is_data_loading() -> None:
    assert standing(stack("Condition.wait (threading.py:327)", "next_batch (input.py:3)")).place == "data-loader"


def test_a_rank_that_waits_for_the_gil_after_its_collective_is_not_in_the_collective() -> None:
    assert standing(["take_gil (ceval_gil.h:224)", "c10d::Work::wait (libtorch_cpu.so)", *ALL_REDUCE]).place == "gil"


def test_compiled_code_that_runs_does_not_compile() -> None:
    frames = stack("all_reduce (torch/distributed/_functional_collectives.py:100)", "_fn (torch/_dynamo/eval_frame.py:574)")
    assert standing(frames).place == "collective"
    assert standing(stack("_fn (torch/_dynamo/eval_frame.py:574)"), active=True).place == "compute"


def test_an_active_stack_computes_and_an_idle_one_is_only_in_user_code() -> None:
    assert standing(COMPUTE, active=True).place == "compute"
    assert standing(COMPUTE, active=False).place == "user-code"
    assert standing([]).place == "unknown"


def test_the_user_frame_is_the_innermost_outside_torch_and_python() -> None:
    assert user_frame(LOADER) == "train (train.py:55)"
    assert user_frame(["get (queue.py:3)", "_next_batch (deepspeed/runtime/pipe/engine.py:627)", "train (train.py:1)"]) == (
        "_next_batch (deepspeed/runtime/pipe/engine.py:627)"
    )
    assert user_frame(["epoll_wait (epoll_wait.c:30)"]) is None


def test_what_runs_a_script_is_no_part_of_it() -> None:
    runs = ["_run_code (<frozen runpy>:88)", "run_path (<frozen runpy>:291)", "worker (starter.py:8)"]
    assert user_frame([ALL_REDUCE[0], "<module> (policy.py:31)", *runs]) == "<module> (policy.py:31)"
    # A module that the program reads while it runs is no script of its own.
    assert user_frame(["<module> (plans.py:2)", "import_module (importlib/__init__.py:126)", "train (train.py:9)"]) == "train (train.py:9)"


def test_who_made_a_call_is_not_what_ran_inside_it() -> None:
    handler = ["_dump (rescue.py:12)", "sleep (time.py:1)"]
    assert standing([*handler, *ALL_REDUCE]).user_frame == "train (train.py:59)"
    assert standing([*handler, ALL_REDUCE[0]]).user_frame == "_dump (rescue.py:12)"


def test_workers_and_launchers_are_told_from_ranks() -> None:
    assert role_of(["read (dataset.py:1)", "_worker_loop (torch/utils/data/_utils/worker.py:351)"]) == "data-worker"
    assert role_of(["sleep (time.py:1)", "_invoke_run (torch/distributed/elastic/agent/server/api.py:870)"]) == "launcher"
    assert role_of(["wrapper (torch/distributed/elastic/multiprocessing/errors/__init__.py:367)", "<module> (train.py:1)"]) is None
    # A rank that its launcher forked stands on the frames of that one.
    forked = ["all_reduce (torch/distributed/distributed_c10d.py:4181)", "BaseProcess._bootstrap (multiprocessing/process.py:314)"]
    launcher = [
        "_start_workers (torch/distributed/elastic/agent/server/local_elastic_agent.py:472)",
        "launch_agent (torch/distributed/launcher/api.py:377)",
    ]
    assert role_of([*forked, *launcher]) is None
    assert role_of(launcher) == "launcher"


# --- trees and classes -----------------------------------------------------------------------------------------------------------


def test_stacks_merge_from_the_outermost_frame() -> None:
    tree = merge([(0, ALL_REDUCE), (1, ALL_REDUCE), (2, LOADER)])
    assert list(tree.lines()) == [
        "<module> (train.py:68)  [all]",
        "  train (train.py:59)  [lacks 2]",
        f"    {WRAPPER}  [lacks 2]",
        "      all_reduce (torch/distributed/distributed_c10d.py:3252)  [lacks 2]",
        "  train (train.py:55)  [has 2]",
        "    _BaseDataLoaderIter.__next__ (torch/utils/data/dataloader.py:633)  [has 2]",
        "      _MultiProcessingDataLoaderIter._try_get_data (torch/utils/data/dataloader.py:1131)  [has 2]",
        "        Queue.get (queue.py:180)  [has 2]",
        "          Condition.wait (threading.py:327)  [has 2]",
    ]


def test_a_stack_that_ends_inside_another_stays_in_the_tree() -> None:
    tree = merge([(0, ["f (a.py:1)"]), (1, ["g (a.py:2)", "f (a.py:1)"]), (2, [])])
    assert tree.keys == (0, 1, 2)
    assert list(tree.lines()) == ["f (a.py:1)  [lacks 2]", "  g (a.py:2)  [has 1]"]


def test_deep_stacks_merge_without_recursion() -> None:
    deep = [f"f{n} (a.py:{n})" for n in range(5000)]
    assert len(list(merge([(0, deep), (1, deep[1:])]).lines())) == 5000


@given(st.permutations([(0, tuple(ALL_REDUCE)), (1, tuple(RECV)), (2, tuple(LOADER)), (3, tuple(ALL_REDUCE)), ("pid 9", tuple(SYNC))]))
def test_trees_classes_and_odd_ones_do_not_depend_on_the_order(rows: list[tuple[Key, tuple[str, ...]]]) -> None:
    ordered = [(0, tuple(ALL_REDUCE)), (1, tuple(RECV)), (2, tuple(LOADER)), (3, tuple(ALL_REDUCE)), ("pid 9", tuple(SYNC))]
    assert list(merge(rows).lines()) == list(merge(ordered).lines())
    assert classes(rows) == classes(ordered)
    assert odd_ones_out(rows) == odd_ones_out(ordered)


def test_classes_are_led_by_the_biggest() -> None:
    found = classes([(3, LOADER), (0, ALL_REDUCE), (1, ALL_REDUCE)])
    assert [c.keys for c in found] == [(0, 1), (3,)]
    assert found[0].standing.op == "all_reduce"


# --- who stands apart ------------------------------------------------------------------------------------------------------------


def test_the_one_that_loads_data_while_the_others_wait_is_named_with_the_line_where_it_parts() -> None:
    [odd] = odd_ones_out([(r, ALL_REDUCE) for r in range(7)] + [(7, LOADER)])
    assert (odd.keys, odd.reason, odd.sure, odd.standing.place) == ((7,), BUSY, True, "data-loader")
    assert (odd.shared_frame, odd.parts_at, odd.others_at) == ("<module> (train.py:68)", "train (train.py:55)", "train (train.py:59)")
    assert odd.others_ops == ("all_reduce",)


def test_peers_that_wait_on_their_gpu_count_but_prove_less() -> None:
    [odd] = odd_ones_out([(r, SYNC) for r in range(7)] + [(7, LOADER)])
    assert (odd.keys, odd.sure) == ((7,), False)


def test_a_pair_in_receives_is_named_before_those_in_the_collective_after() -> None:
    [odd] = odd_ones_out([(0, RECV), (1, RECV), (2, ALL_REDUCE), (3, ALL_REDUCE)])
    assert (odd.keys, odd.reason) == ((0, 1), PAIRED)
    # A third may wait for one of the two.
    [odd] = odd_ones_out([*((r, RECV) for r in range(3)), *((r, ALL_REDUCE) for r in range(3, 6))])
    assert (odd.keys, odd.reason) == ((0, 1, 2), CHAINED)


SEND = ["send (torch/distributed/distributed_c10d.py:2753)", *RECV[1:]]


@pytest.mark.parametrize(
    ("stacks", "named"),
    [
        ([RECV, ALL_REDUCE, ALL_REDUCE, ALL_REDUCE], (0,)),
        ([RECV, SEND, ALL_REDUCE, ALL_REDUCE], (0, 1)),
        ([RECV, RECV, RECV, ALL_REDUCE], (0, 1, 2)),
        ([RECV, SEND, RECV, RECV], (0, 1, 2, 3)),
        ([RECV, RECV, RECV, RECV], (0, 1, 2, 3)),
    ],
    ids=["alone", "a send and a receive", "most", "a pipeline", "all receive"],
)
def test_sends_and_receives_that_nobody_answers_are_told_and_nobody_is_sure(stacks: list[list[str]], named: tuple[int, ...]) -> None:
    odd = odd_ones_out(enumerate(stacks))
    assert {o.reason for o in odd} == {UNANSWERED}
    assert not any(o.sure for o in odd)
    assert tuple(sorted(k for o in odd for k in o.keys)) == named


def test_one_in_another_collective_is_named_without_certainty() -> None:
    [odd] = odd_ones_out([(r, ALL_REDUCE) for r in (0, 1, 2)] + [(3, BROADCAST)])
    assert (odd.keys, odd.reason, odd.sure) == ((3,), ELSEWHERE, False)


def test_few_in_a_collective_that_most_have_passed_are_told() -> None:
    past = ["train (train.py:90)", "<module> (train.py:68)"]
    [odd] = odd_ones_out([(r, past) for r in range(6)] + [(6, BROADCAST), (7, BROADCAST)])
    assert (odd.keys, odd.reason) == ((6, 7), PASSED)


def test_few_in_a_receive_while_most_sleep_in_one_line_wait_for_their_other_half() -> None:
    request = ["rotate (ring.py:15)", "<module> (train.py:68)"]
    receive = ["recv (torch/distributed/distributed_c10d.py:2799)", "rotate (ring.py:13)", "<module> (train.py:68)"]
    [odd] = odd_ones_out([(r, request) for r in (0, 2, 3)] + [(1, receive)])
    assert (odd.keys, odd.reason) == ((1,), UNANSWERED)
    [odd] = odd_ones_out([(r, request) for r in (0, 2, 3)] + [(1, BROADCAST)])
    assert odd.reason == PASSED


def test_two_that_sleep_in_one_line_may_wait_and_the_third_is_named_without_certainty() -> None:
    request = ["two (train.py:93)", "train (train.py:97)", "<module> (train.py:68)"]
    busy = ["match (re/__init__.py:166)", "clean_text (train.py:27)", "train (train.py:50)", "<module> (train.py:68)"]
    [odd] = odd_ones_out([(0, request), (1, request), (2, busy), (3, ALL_REDUCE)])
    assert (odd.keys, odd.reason, odd.sure) == ((2,), BUSY, False)
    # Threads that run wait for nobody, and two that are each alone in their line are alike.
    assert odd_ones_out([(0, request), (1, request), (2, busy), (3, ALL_REDUCE)], running={0, 1, 2}) == ()
    assert odd_ones_out([(0, COMPUTE), (1, request), (2, busy), (3, ALL_REDUCE)]) == ()


def test_addresses_of_frames_without_a_name_do_not_part_stacks() -> None:
    def native(rank: int, frames: list[str]) -> dict[str, object]:
        return ranked(rank, [*frames, f"0x7f3bc9c4{rank}24a (libc.so.6)"])

    [odd] = odd_stacks(states(stacks(*(native(r, ALL_REDUCE) for r in range(3)), native(3, BROADCAST)))).collect().to_dicts()
    assert (odd["rank"], odd["parts_at"], odd["others_at"]) == (3, "train (train.py:61)", "train (train.py:59)")


def test_equal_halves_and_single_processes_name_nobody() -> None:
    assert odd_ones_out([(0, ALL_REDUCE), (1, ALL_REDUCE), (2, COMPUTE), (3, LOADER)]) == ()
    assert odd_ones_out([(0, LOADER)]) == ()
    assert odd_ones_out([(r, ALL_REDUCE) for r in range(8)]) == ()


def test_a_job_that_computes_names_nobody() -> None:
    assert odd_ones_out([(0, COMPUTE), (1, SYNC), (2, COMPUTE), (3, SYNC)]) == ()


def test_a_process_that_moves_between_two_dumps_is_not_named() -> None:
    first = [(r, ALL_REDUCE) for r in range(4)] + [(4, LOADER)]
    assert odd_ones_out([*first, (4, COMPUTE)]) == ()
    assert [o.keys for o in odd_ones_out([*first, (4, LOADER)])] == [(4,)]


def test_a_process_that_spins_inside_one_call_does_not_move() -> None:
    assert not moved([stack("tokenize (train.py:33)"), stack("tokenize (train.py:34)")])
    assert moved([stack("tokenize (train.py:33)"), ["tokenize (train.py:33)", "train (train.py:70)", "<module> (train.py:68)"]])
    assert not moved([ALL_REDUCE, ["0x7f (libc.so.6)", *ALL_REDUCE]])
    assert moved([ALL_REDUCE, BROADCAST])


# --- views -----------------------------------------------------------------------------------------------------------------------


def stacks(*rows: dict[str, object]) -> pl.LazyFrame:
    """Rows of ``stacks``, each the main thread of a process."""
    full = [
        {"source_id": n, "line_no": 4, "is_main": True, "sampler": "py-spy", "sample": 0, "depth": len(r["frames"]), **r}  # type: ignore[arg-type]
        for n, r in enumerate(rows)
    ]
    frame = TABLES["stacks"].frame(full)
    return frame.with_columns(pl.Series("source_id", [r["source_id"] for r in full], dtype=pl.UInt32())).lazy()


def ranked(rank: int, frames: list[str], **more: object) -> dict[str, object]:
    return {"hint_rank": rank, "hint_scope": "global", "pid": 100 + rank, "frames": frames, "state": "idle", **more}


def states(frame: pl.LazyFrame) -> pl.LazyFrame:
    return thread_states(frame, None, None)


def test_the_plainest_sampler_speaks_and_its_last_sample_counts() -> None:
    frame = stacks(ranked(0, ALL_REDUCE, sampler="gdb"), ranked(0, COMPUTE, sample=0), ranked(0, LOADER, sample=1))
    [row] = states(frame).collect().to_dicts()
    assert (row["place"], row["samples"], row["moved"], row["sampler"], row["rank"]) == ("data-loader", 2, True, "py-spy", 0)
    assert row["waits"] == 0
    waiting = stacks(ranked(0, ALL_REDUCE, sampler="py-spy", sample=0), ranked(0, COMPUTE, sample=1), ranked(0, ALL_REDUCE, sample=2))
    assert states(waiting).select("samples", "waits").collect().rows() == [(3, 2)]


def test_an_idle_frame_of_the_program_that_holds_a_request_waits_for_it() -> None:
    turn = ["Ring.turn (ring.py:26)", "main (job.py:57)", "<module> (job.py:65)"]

    def place(*, held: list[str] = turn, state: str = "idle", frames: list[str] = turn) -> str:
        looks = [ranked(0, held, sample=0) | {"request": True, "state": state}, ranked(0, frames, sample=1) | {"state": state}]
        [row] = states(stacks(*looks)).collect().to_dicts()
        return str(row["place"])

    assert place() == "collective"
    # At work, or elsewhere by then.
    assert place(state="active") == "compute"
    assert place(frames=["Ring.fold (ring.py:31)", *turn[1:]]) == "user-code"


def test_where_all_main_threads_wait_for_a_thread_of_their_own_that_thread_tells() -> None:
    lock = ["Condition.wait (threading.py:327)", "Queue.get (queue.py:171)", "main (job.py:57)", "<module> (job.py:65)"]
    busy = ["fetch (job.py:9)", "Metrics.run (job.py:19)", "Thread._bootstrap (threading.py:1002)"]

    def frame(*helpers: list[str]) -> pl.LazyFrame:
        mains = [ranked(r, lock) for r in range(3)]
        beside = [ranked(r, own, is_main=False, thread_name="metrics") for r, own in enumerate(helpers)]
        return stacks(*mains, *beside)

    assert states(frame(ALL_REDUCE, busy, ALL_REDUCE)).collect()["place"].to_list() == ["collective", "user-code", "collective"]
    assert set(states(frame(busy, busy, ALL_REDUCE)).collect()["place"]) == {"lock"}
    assert set(states(frame(ALL_REDUCE, ALL_REDUCE)).collect()["place"]) == {"lock"}, "one process has no such thread"


def test_a_profile_speaks_by_its_most_frequent_stack() -> None:
    frame = stacks(ranked(0, LOADER, sampler="py-spy-raw", times=90), ranked(0, COMPUTE, sampler="py-spy-raw", times=3))
    [row] = states(frame).collect().to_dicts()
    assert row["place"] == "data-loader"


def test_workers_of_a_loader_have_no_rank_and_are_never_odd() -> None:
    worker = ["read (dataset.py:1)", "_worker_loop (torch/utils/data/_utils/worker.py:351)", "<module> (train.py:1)"]
    frame = states(stacks(*(ranked(r, ALL_REDUCE) for r in range(3)), ranked(1, worker, pid=900)))
    assert frame.filter(pl.col("role") == "data-worker").select("rank", "pid").collect().rows() == [(None, 900)]
    assert odd_stacks(frame).collect().height == 0


def test_processes_of_unknown_rank_are_told_by_pid_and_host() -> None:
    unknown = [{"pid": 7 + n, "hint_host": "node 48", "frames": ALL_REDUCE} for n in range(3)]
    frame = odd_stacks(states(stacks(*unknown, {"pid": 99, "hint_host": "node 48", "frames": LOADER}))).collect()
    [row] = frame.to_dicts()
    assert (row["rank"], row["pid"], row["host"], row["others_text"], row["others_count"]) == (
        None,
        99,
        "node 48",
        "pid 7, pid 8, pid 9",
        3,
    )


def test_a_note_that_stands_for_six_outweighs_two() -> None:
    past = {"pid": 1, "frames": ["train (train.py:90)", "<module> (train.py:68)"], "stands_for": 6, "state": "active"}
    frame = odd_stacks(states(stacks(past, {"pid": 2, "frames": BROADCAST, "stands_for": 2}))).collect()
    assert frame.select("pid", "reason").rows() == [(2, PASSED)]


def verdicts(*rows: dict[str, object], failed: bool | str = False, over: bool = False) -> list[tuple[str, str, int | None]]:
    """(cause, confidence, rank) of what these stacks alone say; ``over``: the training loop said that it was done."""
    signs = pl.LazyFrame({"sign": [failed if isinstance(failed, str) else "timeout"]}) if failed else None
    ends = pl.LazyFrame({"source_id": [1], "line_no": [9]}) if over else None
    frame = stack_stalls(odd_stacks(states(stacks(*rows))), None, None, None, signs, None, None, None, ends)
    return frame.select("cause", "confidence", "rank").collect().rows()


def test_a_loader_among_waiting_ranks_is_an_input_stall_surer_if_the_job_failed() -> None:
    rows = [*(ranked(r, ALL_REDUCE) for r in range(3)), ranked(3, LOADER)]
    assert verdicts(*rows) == [("input-stall", "medium", 3)]
    assert verdicts(*rows, failed=True) == [("input-stall", "high", 3)]


def test_several_before_a_call_that_the_others_have_passed_may_wait_there_for_one_of_them() -> None:
    def found(few: int) -> list[int | None]:
        rows = [*(ranked(r, ALL_REDUCE) for r in range(few)), *(ranked(r, BROADCAST) for r in range(few, 8))]
        return [rank for _, _, rank in verdicts(*rows, failed=True)]

    assert found(1) == [0]
    assert found(3) == []


def test_one_look_at_ranks_that_sleep_in_one_line_beside_one_in_a_collective_is_no_sure_sign() -> None:
    sleeping = ["main (train.py:47)", "<module> (train.py:68)"]
    rows = [*(ranked(r, sleeping) for r in range(3)), ranked(3, BROADCAST)]
    assert verdicts(*rows) == [("collective-skipped", "low", 3)]
    assert verdicts(*rows, failed=True) == [("collective-skipped", "medium", 3)]
    assert verdicts(*rows, over=True) == []


def test_two_that_receive_may_both_wait_for_a_third_whether_the_job_failed_or_not() -> None:
    rows = [*(ranked(r, RECV) for r in (0, 1)), *(ranked(r, ALL_REDUCE) for r in (2, 3))]
    for failed in (False, True):
        assert verdicts(*rows, failed=failed) == [("p2p-deadlock", "medium", rank) for rank in (0, 1)]


def test_that_ranks_wait_for_one_that_left_nothing_is_no_failure() -> None:
    rows = [*(ranked(r, ALL_REDUCE) for r in range(3)), ranked(3, COMPUTE)]
    assert verdicts(*rows, failed="ranks that wait for others") == []
    assert verdicts(*rows, failed="watchdog timeouts") == [("host-stall", "low", 3)]


def test_who_waits_in_init_for_others_that_passed_without_it_is_not_busy_on_its_host() -> None:
    making = ["init_process_group (torch/distributed/distributed_c10d.py:2721)", "main (train.py:9)", "<module> (train.py:68)"]
    assert verdicts(*(ranked(r, ALL_REDUCE) for r in range(3)), ranked(3, making), failed=True) == []


def test_whose_program_is_over_has_left_unless_it_gave_up_waiting() -> None:
    over = ["Thread._wait_for_tstate_lock (threading.py:1132)", "_shutdown (threading.py:1583)"]
    fetched = [
        "Event.wait (multiprocessing/synchronize.py:356)",
        "_wrap (torch/distributed/elastic/multiprocessing/api.py:708)",
        "<module> (launch.py:8)",
    ]
    peers = [ranked(r, ALL_REDUCE) for r in range(3)]
    assert verdicts(*peers, ranked(3, over)) == [("rank-died", "medium", 3)]
    assert verdicts(*peers, ranked(3, fetched), failed=True) == [("rank-died", "high", 3)]
    # The function that it runs stands between.
    assert verdicts(*peers, ranked(3, [fetched[0], "step (train.py:9)", "wrapper (x.py:1)", "run (x.py:2)", *fetched[1:]])) == [
        ("host-stall", "medium", 3)
    ]
    odd = odd_stacks(states(stacks(*peers, ranked(3, over))))
    ended = pl.LazyFrame({"own": [False], "rank": [3], "signature": ["gloo-timeout"]})
    assert stack_stalls(odd, None, None, ended, None, None, None, None).collect().height == 0


def test_a_single_snapshot_of_a_rank_that_computes_proves_nothing() -> None:
    rows = [*(ranked(r, ALL_REDUCE) for r in range(3)), ranked(3, COMPUTE)]
    assert verdicts(*rows) == []
    # Idle in its own function it may as well wait for a request, which leaves no frame of Python.
    assert verdicts(*rows, failed=True) == [("host-stall", "low", 3)]
    assert verdicts(*rows[:3], ranked(3, COMPUTE, state="active"), failed=True) == [("host-stall", "medium", 3)]


def test_of_a_job_that_moves_those_that_were_seen_once_are_not_stuck() -> None:
    def seen(rank: int, *samples: list[str]) -> list[dict[str, object]]:
        return [ranked(rank, frames, sample=n) for n, frames in enumerate(samples)]

    once = [ranked(r, ALL_REDUCE) for r in range(2, 6)]
    loading = ranked(6, LOADER)

    def told(*twice: dict[str, object]) -> list[tuple[str, str, int | None]]:
        known = states(stacks(*twice, *once, loading))
        frame = stack_stalls(odd_stacks(known), None, None, None, None, None, last_calls(known, None), None)
        return frame.select("cause", "confidence", "rank").collect().rows()

    # Most files of the second sample are lost: of the two ranks that were seen twice, both moved.
    assert told(*seen(0, COMPUTE, ALL_REDUCE), *seen(1, LOADER, ALL_REDUCE)) == []
    assert told(*seen(0, ALL_REDUCE, ALL_REDUCE), *seen(1, LOADER, ALL_REDUCE)) == [("input-stall", "medium", 6)]


def test_past_the_call_of_the_others_is_a_skip_and_another_way_of_a_branch_a_mismatch() -> None:
    later, earlier = list(BROADCAST), [*BROADCAST[:2], "train (train.py:58)", BROADCAST[3]]
    peers = [ranked(r, ALL_REDUCE) for r in range(3)]
    assert verdicts(*peers, ranked(3, later)) == [("collective-skipped", "medium", 3)]
    assert verdicts(*peers, ranked(3, earlier)) == [("collective-mismatch", "low", 3)]
    # In a function of its own that is called at an earlier line, it is in the next round of the loop.
    inner = [*BROADCAST[:2], "sync (train.py:12)", "train (train.py:58)", BROADCAST[3]]
    assert verdicts(*peers, ranked(3, inner)) == [("collective-skipped", "low", 3)]


def test_a_wait_that_its_own_exception_tells_is_no_stall_of_the_host() -> None:
    known = states(stacks(*(ranked(r, ALL_REDUCE) for r in range(3)), ranked(3, COMPUTE)))
    signs = pl.LazyFrame({"sign": ["timeout"]})

    def told(place: str) -> list[tuple[object, ...]]:
        last = last_calls(known, None).with_columns(place=pl.when(pl.col("rank") == 3).then(pl.lit(place)).otherwise("place"))
        frame = stack_stalls(odd_stacks(known), None, None, None, signs, None, last, None)
        return frame.select("cause", "rank").collect().rows()

    assert told("collective") == []
    assert told("user-code") == [("host-stall", 3)]


def test_better_evidence_silences_the_stacks() -> None:
    odd = odd_stacks(states(stacks(*(ranked(r, ALL_REDUCE) for r in range(3)), ranked(3, LOADER))))
    told = pl.LazyFrame({"rank": [1]})
    assert stack_stalls(odd, told, None, None, None, None, None, None).collect().height == 0
    assert stack_stalls(odd, None, told, None, None, None, None, None).collect().height == 0
    assert (
        stack_stalls(odd, None, None, pl.LazyFrame({"own": [True], "rank": [1], "signature": ["user"]}), None, None, None, None)
        .collect()
        .height
        == 0
    )
    assert stack_stalls(odd, None, None, None, None, pl.LazyFrame({"kind": ["behind"]}), None, None).collect().height == 0
    assert stack_stalls(odd, None, None, None, None, pl.LazyFrame({"kind": ["unseen"]}), None, None).collect().height == 1


def test_a_rank_whose_recorder_finished_what_the_others_waited_in_came_after_all() -> None:
    odd = odd_stacks(states(stacks(*(ranked(r, ALL_REDUCE) for r in range(3)), ranked(3, LOADER))))
    level: dict[int, tuple[int, int | None]] = dict.fromkeys(range(4), (9, 9))
    failed = pl.LazyFrame({"sign": ["timeout"]})
    for state, signs, expected in (
        (level, None, 0),
        (level | {0: (9, 8)}, None, 0),  # the dump of one was taken before its last operation was marked
        (level | {3: (9, 8)}, None, 1),
        (level | {3: (8, 8)}, None, 1),
        (dict.fromkeys((0, 1, 3), (9, 9)), None, 1),
        (level, failed, 1),
    ):
        found = stack_stalls(odd, None, None, None, signs, None, None, progress({"pg:0": state})).collect()
        assert found.height == expected, state
    # They stand in a call that is not what any recorder ends in: it holds none of that group.
    other = progress({"pg:0": level}).with_columns(last_op=pl.lit("broadcast"))
    assert stack_stalls(odd, None, None, None, None, None, None, other).collect().height == 1


def test_a_rank_whose_recorder_was_written_in_a_later_call_that_all_others_left_came_after_all() -> None:
    odd = odd_stacks(
        states(stacks(*(ranked(r, ALL_REDUCE) for r in range(3)), ranked(3, ["gc_collect_main (python3.11)", "clean (train.py:30)"])))
    )
    inside: dict[int, tuple[int, int | None]] = dict.fromkeys(range(3), (9, 9)) | {3: (9, 8)}
    last = progress({"pg:0": inside})
    # The last operation is another one than the others were seen in, or the same.
    later = last.with_columns(last_op=pl.lit("barrier"))
    assert stack_stalls(odd, None, None, None, None, None, None, later).collect().height == 0
    assert stack_stalls(odd, None, None, None, None, None, None, last).collect().height == 1
    # More than that is open, or nobody has left it.
    open_too = progress({"pg:0": inside | {3: (9, 7)}}).with_columns(last_op=pl.lit("barrier"))
    nobody = progress({"pg:0": dict.fromkeys(range(4), (9, 8))}).with_columns(last_op=pl.lit("barrier"))
    assert stack_stalls(odd, None, None, None, None, None, None, open_too).collect().height == 1
    assert stack_stalls(odd, None, None, None, None, None, None, nobody).collect().height == 1
    # In its data loader it is what slows the job, which goes on.
    reading = odd_stacks(states(stacks(*(ranked(r, ALL_REDUCE) for r in range(3)), ranked(3, LOADER))))
    assert stack_stalls(reading, None, None, None, None, None, None, later).collect().height == 1


def looked(rank: int, py_spy: list[str], later: list[str]) -> list[dict[str, object]]:
    """A rank as py-spy saw it and as faulthandler did, which writes whole paths and bare names."""
    return [ranked(rank, py_spy), ranked(rank, later, sampler="faulthandler")]


HELD = ["Tracker.flush (kit.py:53)", "train (train.py:55)", "<module> (train.py:68)"]
HELD_LATER = ["flush (/opt/job/kit.py:53)", "train (/opt/job/train.py:55)", "<module> (/opt/job/train.py:68)"]


def test_two_samplers_are_two_looks_at_a_process() -> None:
    waits = ["all_reduce (torch/distributed/distributed_c10d.py:3252)", *HELD_LATER[1:]]
    inside = stack(*ALL_REDUCE[:2])
    # Another thread of the process collected garbage when faulthandler looked, which then says so on top of the waiting one.
    rows = [
        *looked(0, HELD, HELD_LATER),
        *looked(1, inside, waits),
        *looked(2, inside, HELD_LATER),
        *looked(3, inside, ["Garbage-collecting", *waits]),
    ]
    found = states(stacks(*rows)).select("rank", "samples", "moved").sort("rank").collect().rows()
    assert found == [(0, 2, False), (1, 2, False), (2, 2, True), (3, 2, False)]


def test_a_rank_that_two_samplers_find_in_its_own_code_is_stuck_there() -> None:
    peers = [row for r in range(3) for row in looked(r, ALL_REDUCE, ALL_REDUCE)]
    assert verdicts(*peers, *looked(3, HELD, HELD_LATER)) == [("host-stall", "low", 3)]
    assert verdicts(*peers, ranked(3, HELD)) == []
    other = ["step (/opt/job/kit.py:90)", *HELD_LATER[1:]]
    assert verdicts(*peers, *looked(3, HELD, other)) == []


ASLEEP = ["train (train.py:59)", "<module> (train.py:68)"]
IN_QUEUE = ["Condition.wait (threading.py:327)", "Queue.get (queue.py:180)", "train (train.py:55)", "<module> (train.py:68)"]


def asleep(odd: list[str], samples: int, moving: bool = False) -> list[tuple[str, str, int | None]]:
    """What is said of rank 3, where three others sleep in one line of their own code."""
    rows = [ranked(r, ASLEEP, sample=n) for r in range(3) for n in range(samples)]
    if moving:
        rows[0] = ranked(0, COMPUTE, sample=0)
    known = states(stacks(*rows, *(ranked(3, odd, sample=n) for n in range(samples))))
    frame = stack_stalls(odd_stacks(known), None, None, None, None, None, last_calls(known, None), None)
    return frame.select("cause", "confidence", "rank").collect().rows()


def test_where_most_sleep_in_one_line_twice_the_one_in_a_place_that_tells_is_what_they_wait_for() -> None:
    assert asleep(IN_QUEUE, 2) == [("host-stall", "low", 3)]
    assert asleep(LOADER, 2) == [("input-stall", "low", 3)]


def test_sleepers_that_are_seen_once_or_move_or_one_that_only_sleeps_elsewhere_tell_nothing() -> None:
    assert asleep(IN_QUEUE, 1) == []
    assert asleep(IN_QUEUE, 2, moving=True) == []
    assert asleep(["train (train.py:61)", "<module> (train.py:68)"], 2) == []


def test_one_in_the_making_of_a_group_is_told_and_another_may_have_left_it_out() -> None:
    making = [
        "_new_process_group_helper (torch/distributed/distributed_c10d.py:2169)",
        "new_group (torch/distributed/distributed_c10d.py:5863)",
    ]
    odd = odd_stacks(
        states(stacks(*(ranked(r, ALL_REDUCE) for r in range(3)), ranked(3, [*making, "train (train.py:61)", ALL_REDUCE[-1]])))
    )
    assert odd.select("rank", "reason").collect().rows() == [(3, MAKING)]
    found = stack_stalls(odd, None, None, None, None, None, None, None)
    assert found.select("cause", "confidence").collect().rows() == [("collective-skipped", "low")]
    [finding] = collective_skipped_by_stacks.check(found)
    assert (finding.ranks, finding.culprits) == ((), ())


def test_who_waits_in_the_backward_pass_waits_for_what_the_recorder_holds() -> None:
    backward = ["_engine_run_backward (torch/autograd/graph.py:979)", "train (train.py:59)", "<module> (train.py:68)"]
    busy = [ranked(3, COMPUTE, sample=n, state="active") for n in range(2)]
    odd = odd_stacks(states(stacks(*(ranked(r, backward, sample=n) for r in range(3) for n in range(2)), *busy)))
    level: dict[int, tuple[int, int | None]] = dict.fromkeys(range(4), (9, 9))
    for reached, expected in ((level, 0), (level | {3: (8, 8)}, 1)):
        assert stack_stalls(odd, None, None, None, None, None, None, progress({"pg:0": reached})).collect().height == expected


# --- real ones -------------------------------------------------------------------------------------------------------------------


def _odd(folder: str) -> Iterator[dict[str, object]]:
    with open_bundle([corpus(folder)]) as bundle:
        frame = Resolver(read_bundle(bundle, default_engine(bundle), None)).get("odd_stacks")
        assert frame is not None
        yield from frame.collect().iter_rows(named=True)


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("case", "ranks", "place", "frame"),
    [
        ("healthy", [], "", ""),
        ("tp_dp_subgroup_hang_rank5", [5], "data-loader", "tokenize"),
        ("straggler_rank2", [2], "data-loader", "load_batch"),
        ("skip_allreduce_rank3", [3], "collective", "sync_control"),
        ("wrong_op_rank1", [1], "collective", "sync_gradients"),
        ("monitored_barrier_rank2", [2], "checkpoint", "save_checkpoint"),
        ("monitored_barrier_all_ranks", [2, 4], "checkpoint", "save_checkpoint"),
        ("p2p_deadlock_pair01", [0, 1], "p2p", "exchange"),
    ],
)
def test_the_odd_ranks_of_the_lab_are_those_of_the_truth(case: str, ranks: list[int], place: str, frame: str) -> None:
    found = list(_odd(f"lab/{case}/evidence/stacks"))
    assert sorted(int(str(r["rank"])) for r in found) == ranks
    assert {r["place"] for r in found} <= {place}
    assert all(str(r["user_frame"]).startswith(frame) for r in found)


@pytest.mark.corpus
@pytest.mark.parametrize("case", ["tp_dp_subgroup_hang_rank5", "skip_allreduce_rank3", "p2p_deadlock_pair01"])
def test_faulthandler_alone_names_the_same_ranks(case: str) -> None:
    by_py_spy = {r["rank"] for r in _odd(f"lab/{case}/evidence/stacks")}
    assert {r["rank"] for r in _odd(f"lab/{case}/evidence/faulthandler")} == by_py_spy


@pytest.mark.corpus
def test_the_odd_process_of_a_real_hang_is_the_one_in_the_loader() -> None:
    [row] = _odd("public/pyspy-bloom-eval-hang-20220430/evidence")
    assert (row["pid"], row["host"], row["place"], row["sure"]) == (688514, "node 48", "data-loader", True)
    assert str(row["parts_at"]).startswith("_next_batch")


def test_equal_pids_in_files_named_by_rank_are_ranks_of_their_own(tmp_path: Path) -> None:
    for rank in range(4):
        body = "".join(f"    {frame}\n" for frame in (LOADER if rank == 2 else ALL_REDUCE))
        (tmp_path / f"rank{rank}.txt").write_text(
            f'Process 7: python train.py\nPython v3.11.7 (x)\n\nThread 7 (idle): "MainThread"\n{body}'
        )
    with open_bundle([tmp_path]) as bundle:
        frame = Resolver(read_bundle(bundle, default_engine(bundle), None)).get("odd_stacks")
        assert frame is not None
        assert frame.select("rank", "place", "others").collect().rows() == [(2, "data-loader", [0, 1, 3])]


def test_equal_pids_on_several_hosts_are_processes_of_their_own() -> None:
    frame = states(stacks(*({"pid": 1, "hint_host": f"pod-{n}", "frames": ALL_REDUCE} for n in range(3))))
    assert frame.select("pid", "host").collect().rows() == [(1, "pod-0"), (1, "pod-1"), (1, "pod-2")]


@pytest.mark.corpus
def test_all_ranks_in_one_file_under_headings_give_the_same_answer(tmp_path: Path) -> None:
    files = sorted(corpus("lab/tp_dp_subgroup_hang_rank5/evidence/stacks").glob("*.pyspy.txt"))
    parts = [f"=== rank {file.name[4]} ===\n{file.read_text()}" for file in files]
    (tmp_path / "dump.txt").write_text("\n".join(parts))
    with open_bundle([tmp_path]) as bundle:
        frame = Resolver(read_bundle(bundle, default_engine(bundle), None)).get("odd_stacks")
        assert frame is not None
        assert frame.select("rank", "place").collect().rows() == [(5, "data-loader")]


# ---- samples with native frames beside samples without ----

REQUEST = ["pass_on (train.py:77)", "train (train.py:100)", "<module> (train.py:112)"]


def native(*inside: str) -> list[str]:
    """The request's stack as ``py-spy dump --native`` shows it."""
    return ["pthread_cond_timedwait (libc.so.6)", *inside, "pybind11::cpp_function::dispatcher (libtorch_python.so)", *REQUEST]


def state(*samples: list[str]) -> dict[str, object]:
    """The state of rank 3 from its samples, one file each."""
    rows = [
        {
            "pid": 7,
            "sampler": "py-spy",
            "sample": 1,
            "depth": len(f),
            "frames": f,
            "is_main": True,
            "state": "idle",
            "source_id": n,
            "line_no": 4,
        }
        | {"hint_rank": 3, "hint_scope": "global"}
        for n, f in enumerate(samples)
    ]
    schema = {"source_id": pl.UInt32(), **TABLES["stacks"].schema}
    frame = pl.DataFrame(rows, schema_overrides={k: v for k, v in schema.items() if k in rows[0]})
    frame = frame.with_columns(pl.lit(None, dtype=t).alias(c) for c, t in schema.items() if c not in frame.columns)
    [found] = thread_states(frame.lazy(), None, None).collect().to_dicts()
    return found


def test_native_frames_of_one_sample_tell_what_a_request_waits_in() -> None:
    told = native(
        "gloo::transport::tcp::UnboundBuffer::waitRecv (libtorch_cpu.so)", "c10d::ProcessGroupGloo::RecvWork::wait (libtorch_cpu.so)"
    )
    for samples in ((REQUEST, told), (told, REQUEST)):
        found = state(*samples)
        assert (found["place"], found["op"], found["moved"], found["user_frame"]) == ("p2p", "recv", False, REQUEST[0])
        assert found["source_id"] == samples.index(told), "the sample that tells is cited"
        assert found["frames"] == ["c10d::ProcessGroupGloo::RecvWork::wait (libtorch_cpu.so)", *REQUEST]


def test_native_frames_that_tell_no_wait_change_nothing() -> None:
    found = state(REQUEST, native("std::condition_variable::wait (libstdc++.so.6)"))
    assert (found["place"], found["moved"]) == ("user-code", False)


def test_a_process_that_moved_between_a_plain_and_a_native_sample_moves() -> None:
    told = native("c10d::ProcessGroupGloo::RecvWork::wait (libtorch_cpu.so)")
    assert state(["pass_on (train.py:70)", "train (train.py:90)", "<module> (train.py:112)"], told)["moved"]


def test_native_frames_in_between_do_not_hide_the_data_loader() -> None:
    deep = [f"native{n} (libtorch_cpu.so)" for n in range(20)]
    found = state(LOADER, [LOADER[0], *deep, *LOADER[1:]])
    assert (found["place"], found["moved"]) == ("data-loader", False)


def test_a_sample_of_a_process_that_takes_itself_down_says_nothing_of_where_it_stood() -> None:
    ending = ["gc_collect_main (libpython3.11.so.1.0)", "0x7f120ae4524a (libc.so.6)"]
    assert standing(ending).place == "unknown"
    assert standing(["Garbage-collecting"]).place == "unknown"
    found = state(RECV, ending)
    assert (found["place"], found["samples"], found["source_id"]) == ("p2p", 1, 0)
    assert standing(["gc_collect_main (libpython3.11.so.1.0)", "_PyEval_EvalFrameDefault (libpython3.11.so.1.0)"]).place == "gc"
    assert standing(["Garbage-collecting", "step (train.py:9)"]).place == "gc"


def test_a_thread_that_waits_for_others_is_not_the_one_that_collects_garbage() -> None:
    waits = ["all_reduce (/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:3252)", "step (/job/train.py:9)"]
    assert standing(stack("Garbage-collecting ()", *ALL_REDUCE[:2])).place == "collective"
    # The user's own function collects, whoever called it.
    assert standing(stack("Garbage-collecting ()", "clean (train.py:30)", *ALL_REDUCE[:2])).place == "gc"
    # Native frames tell this very thread.
    assert standing(stack("gc_collect_main (python3.11)", *waits)).place == "gc"


def test_the_wrapper_of_a_deprecated_call_is_not_the_users_line() -> None:
    # torch 2.13 marks reduce_scatter_tensor as deprecated with typing_extensions, whose wrapper stands between the call and the program.
    frames = (
        "reduce_scatter_single (torch/distributed/distributed_c10d.py:4936)",
        "reduce_scatter_tensor (torch/distributed/distributed_c10d.py:4962)",
        "wrapper (typing_extensions.py:3140)",
        "Layer.reduce (sharded.py:30)",
    )
    found = standing(frames)
    assert (found.place, found.op, found.user_frame) == ("collective", "reduce_scatter_single", "Layer.reduce (sharded.py:30)")
