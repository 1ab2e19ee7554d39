"""How a finding about several stalled ranks is worded."""

from __future__ import annotations

from nccl_forensics.rules.collective_skipped import collective_skipped_by_step
from nccl_forensics.rules.gpu_stall import gpu_stall
from nccl_forensics.rules.host_stall import host_stall
from tests.rules.frames import stalls


def test_ranks_that_stand_in_different_places_are_told_with_theirs() -> None:
    alike = {"cause": "host-stall", "confidence": "high"}
    save = alike | {"user_frame": "save (ckpt.py:6)", "why": "its stack is outside any collective: checkpoint"}
    lock = alike | {"user_frame": "lock (io.py:9)", "why": "its stack is outside any collective: lock"}
    [both] = host_stall.check(stalls(save | {"rank": 2}, save | {"rank": 4}))
    assert "at save (ckpt.py:6);" in both.title
    assert both.summary.startswith("each of them: its stack is outside any collective: checkpoint.")
    [two] = host_stall.check(stalls(save | {"rank": 2}, lock | {"rank": 4}))
    assert "at save (ckpt.py:6) and lock (io.py:9);" in two.title
    assert two.summary.startswith(
        "rank 2: its stack is outside any collective: checkpoint; rank 4: its stack is outside any collective: lock."
    )
    many = [save | {"rank": r, "user_frame": f"f{r} (a.py:{r})", "why": f"its stack is at {r}"} for r in range(2, 7)]
    [five] = host_stall.check(stalls(*many))
    assert "at f2 (a.py:2), f3 (a.py:3), f4 (a.py:4) and 2 other places;" in five.title
    assert "; and 2 more alike." in five.summary


def test_ranks_that_left_nothing_are_to_be_looked_at_first_and_their_silence_may_have_other_causes() -> None:
    nothing = {"rank": 5, "cause": "host-stall", "confidence": "low", "seen_by": "progress"}
    none = dict.fromkeys(("own_source_id", "own_record", "stack_source_id", "stack_line_no"))
    [finding] = host_stall.check(stalls(nothing | none))
    assert "the quoted line" not in finding.remedy
    assert finding.remedy.startswith("Get the log, the dump or a stack of rank 5 first")
    assert [(a.action, a.ranks) for a in finding.actions] == [("collect-more", (5,))]
    assert [(cause, against) for cause, _, against in finding.alternatives] == [
        ("rank-died", None),
        ("collective-skipped", None),
        ("gpu-stall", None),
    ]
    [known] = host_stall.check(stalls(nothing | {"user_frame": "save (ckpt.py:6)"}))
    assert known.alternatives == ()
    assert [(a.action, a.where) for a in known.actions] == [("fix-code", "save (ckpt.py:6)")]


def test_without_a_stack_there_is_no_line_to_fix() -> None:
    [finding] = host_stall.check(stalls({"rank": 5, "cause": "host-stall", "stack_source_id": None, "stack_line_no": None}))
    assert finding.remedy == "Take stacks of rank 5: no stack says what it does on its host."
    assert [(a.action, a.command) for a in finding.actions] == [("collect-more", "py-spy dump --pid <pid>")]


def test_what_would_refute_a_stall_is_not_what_is_there_already() -> None:
    stack = {"rank": 2, "cause": "host-stall", "user_frame": "save (ckpt.py:6)"}
    [once] = host_stall.check(stalls(stack))
    assert once.would_refute == ("two samples of this rank's stack that differ: then it moves",)
    [again] = host_stall.check(stalls(stack | {"stands": True}))
    assert again.would_refute == ("a later sample of this rank's stack that stands elsewhere: then it moves",)
    assert "Several samples of its stack agree." in again.summary
    [left_out] = collective_skipped_by_step.check(stalls(stack | {"cause": "collective-skipped"}))
    assert left_out.would_refute == ("an entry of rank 2 for all_reduce #6 of process group default_pg (0) in another dump or log",)
    [gpu] = gpu_stall.check(stalls(stack | {"cause": "gpu-stall"}))
    assert "later dump" in gpu.would_refute[0]


def test_the_line_to_fix_is_that_of_the_call_left_out_and_several_lines_are_none() -> None:
    left = {"cause": "collective-skipped", "call_site": "step (train.py:31)", "user_frame": "step (train.py:40)"}
    [finding] = collective_skipped_by_step.check(stalls(left | {"rank": 2}))
    assert [a.where for a in finding.actions] == ["step (train.py:31)"]
    stack = {"cause": "host-stall", "confidence": "high"}
    [two] = host_stall.check(stalls(stack | {"rank": 2, "user_frame": "f (a.py:1)"}, stack | {"rank": 3, "user_frame": "g (a.py:2)"}))
    assert [a.where for a in two.actions] == [None]
