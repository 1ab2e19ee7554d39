"""What each rank was doing last: its stack, else the traceback that ended it."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.last_calls import last_calls
from nccl_forensics.views.raised import raised
from nccl_forensics.views.source_ranks import SOURCE_RANKS_SCHEMA
from nccl_forensics.views.stack_views import THREAD_STATES
from tests.rules.host_frames import table
from tests.views.frames import rows

STACK = rows(THREAD_STATES, {"rank": 1, "place": "lock", "user_frame": "step (train.py:3)", "moved": False, "source_id": 7, "line_no": 2})
FRAMES = "all_reduce (torch/distributed/distributed_c10d.py:2810)\nstep (train.py:9)"


def calls(states: pl.LazyFrame | None, *exceptions: dict[str, object], sources: pl.LazyFrame | None = None) -> list[tuple[object, ...]]:
    told = raised(table("exceptions", *exceptions), None, sources, None, None, None)
    frame = last_calls(states, told).collect()
    return frame.select("rank", "place", "op", "user_frame", "witness").rows()


def test_a_traceback_tells_where_a_rank_without_a_stack_was() -> None:
    assert calls(STACK, {"rank": 2, "frames": FRAMES}) == [
        (1, "lock", None, "step (train.py:3)", "stack"),
        (2, "collective", "all_reduce", "step (train.py:9)", "exception"),
    ]


def test_the_stack_of_a_rank_beats_its_traceback() -> None:
    assert [witness for *_, witness in calls(STACK, {"rank": 1, "frames": FRAMES})] == ["stack"]


def test_a_stack_without_frames_leaves_the_word_to_the_traceback() -> None:
    head = {"rank": 1, "place": "unknown", "moved": False, "source_id": 7, "line_no": 2}
    told = {"rank": 1, "frames": FRAMES}
    assert calls(rows(THREAD_STATES, head), told) == [(1, "collective", "all_reduce", "step (train.py:9)", "exception")]
    assert [witness for *_, witness in calls(rows(THREAD_STATES, head | {"user_frame": "f (train.py:1)"}), told)] == ["stack"]


def test_a_stack_of_a_program_that_is_still_loading_is_older_than_its_traceback() -> None:
    frames = ["<module> (torch/fx/graph.py:9)", "_find_and_load (<frozen importlib._bootstrap>:1176)", "<module> (train.py:3)"]
    loading = {"rank": 1, "place": "compute", "user_frame": frames[2], "frames": frames, "moved": False, "source_id": 7, "line_no": 2}
    told = {"rank": 1, "frames": FRAMES}
    assert calls(rows(THREAD_STATES, loading), told) == [(1, "collective", "all_reduce", "step (train.py:9)", "exception")]
    within = loading | {"user_frame": "build (train.py:40)"}  # an import in the midst of the job may be what the others wait for
    assert [witness for *_, witness in calls(rows(THREAD_STATES, within), told)] == ["stack"]
    every = rows(THREAD_STATES, *(within | {"rank": r, "source_id": r} for r in (1, 2)))  # every rank loads: the job just began
    assert [witness for *_, witness in calls(every, told, {"rank": 2, "frames": FRAMES})] == ["exception", "exception"]


def test_one_sample_tells_no_motion() -> None:
    states = rows(THREAD_STATES, *({"rank": n, "place": "lock", "moved": False, "samples": n, "source_id": 7} for n in (1, 2)))
    assert last_calls(states, None).collect()["moved"].to_list() == [None, False]


def test_a_traceback_belongs_to_the_rank_of_its_source_and_to_nobody_without_one() -> None:
    sources = rows(SOURCE_RANKS_SCHEMA, {"source_id": 0, "rank": 3})
    assert [rank for rank, *_ in calls(None, {"frames": FRAMES}, sources=sources)] == [3]
    assert calls(None, {"frames": FRAMES}) == []


def test_a_line_at_which_ranks_gave_up_waiting_is_a_wait() -> None:
    states = rows(
        THREAD_STATES,
        *(
            {"rank": r, "place": "user-code", "user_frame": frame, "moved": False, "source_id": 7, "line_no": r}
            for r, frame in ((1, "Shard.gather (job/fsdp.py:43)"), (2, "extension (job/work.py:88)"))
        ),
    )
    gave_up = {"rank": 0, "frames": FRAMES, "frame": "gather (/opt/job/fsdp.py:43)", "signature": "gloo-timeout"}
    assert [place for _, place, *_ in calls(states, gave_up)] == ["collective", "collective", "user-code"]
    assert [place for _, place, *_ in calls(states, gave_up | {"signature": "user"})] == ["collective", "user-code", "user-code"]


def test_a_backward_pass_in_which_the_rank_itself_gave_up_waiting_is_a_wait() -> None:
    states = rows(
        THREAD_STATES,
        *(
            {"rank": r, "place": "backward", "user_frame": "step (train.py:9)", "moved": False, "source_id": 7, "line_no": r}
            for r in (1, 2)
        ),
    )
    gave_up = {"rank": 2, "frames": FRAMES, "frame": "step (train.py:9)", "signature": "gloo-timeout"}
    assert [place for _, place, *_ in calls(states, gave_up)] == ["backward", "collective"]


def test_a_traceback_with_whole_paths_tells_the_call_as_well() -> None:
    frames = FRAMES.replace("torch/", "/opt/venv/lib/python3.11/site-packages/torch/").replace("train.py", "/opt/job/train.py")
    assert calls(None, {"rank": 2, "frames": frames}) == [(2, "collective", "all_reduce", "step (train.py:9)", "exception")]


def test_a_line_of_a_function_from_which_others_call_what_they_wait_in_may_be_a_wait() -> None:
    waits = ["all_reduce (torch/distributed/distributed_c10d.py:4181)", "layer (plm.py:32)", "forward (plm.py:47)", "train (plm.py:66)"]
    own = (("user-code", "forward (job/plm.py:52)"), ("user-code", "beam_search (plm.py:39)"), ("lock", "forward (plm.py:50)"))
    others = ({"rank": n, "place": place, "user_frame": frame, "frames": [frame]} for n, (place, frame) in enumerate(own, start=1))
    states = rows(THREAD_STATES, {"rank": 0, "place": "collective", "user_frame": waits[1], "frames": waits}, *others)
    assert last_calls(states, None).collect()["waits_from"].to_list() == [False, True, False, False]


def test_tracebacks_speak_for_all_where_a_stack_tells_nothing_and_the_others_gave_up_where_theirs_show_them() -> None:
    own = {"place": "collective", "op": "all_reduce", "user_frame": "step (train.py:9)", "moved": False, "source_id": 7}
    states = rows(THREAD_STATES, *(own | {"rank": r} for r in (0, 1)), {"rank": 2, "place": "unknown", "moved": False, "source_id": 7})
    gave_up = {"frames": FRAMES, "frame": "step (train.py:9)", "signature": "gloo-timeout"}
    last = {"rank": 2, "frames": FRAMES.replace("all_reduce", "barrier").replace("train.py:9", "train.py:12"), "signature": "gloo-timeout"}
    assert [witness for *_, witness in calls(states, gave_up | {"rank": 0}, gave_up | {"rank": 1}, last)] == ["exception"] * 3
    # One of them gave up elsewhere, or said nothing: its stack is of another moment.
    later = gave_up | {"rank": 1, "frames": FRAMES.replace("train.py:9", "train.py:7")}
    assert [witness for *_, witness in calls(states, gave_up | {"rank": 0}, later, last)] == ["stack", "stack", "exception"]
    assert [witness for *_, witness in calls(states, gave_up | {"rank": 0}, last)] == ["stack", "stack", "exception"]
