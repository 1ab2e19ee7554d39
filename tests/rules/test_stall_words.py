"""How a finding about several stalled ranks is worded."""

from __future__ import annotations

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
