from __future__ import annotations

import polars as pl

from nccl_forensics.views.silences import in_one_half, silent
from tests.rules.frames import endings


def gave_up(*ranks: int, **more: object) -> pl.LazyFrame:
    late = {"kind": "victim", "signature": "gloo-timeout", "source_id": 1, "line_no": 9}
    return endings(*[late | {"rank": rank} | more for rank in ranks])


def test_one_whose_files_tell_of_no_failure_while_all_others_timed_out_was_not_in_what_they_waited_for() -> None:
    assert list(silent(gave_up(0, 1, 3), None, written=range(4))) == [2]
    # It was looked at; it has no files; too many are quiet; the others lost a connection.
    assert silent(gave_up(0, 1, 3), None, looked_at=(2,), written=range(4)) == {}
    assert silent(gave_up(0, 1, 3), None, written=(0, 1, 3)) == {}
    assert silent(gave_up(0, 1, 3), None, written=range(8)) == {}
    assert silent(gave_up(0, 1, 3, signature="gloo-closed"), None, written=range(4)) == {}


def test_ranks_that_all_receive_may_wait_for_a_rank_that_is_not_seen() -> None:
    receives, sends = {"place": "p2p", "op": "recv"}, {"place": "p2p", "op": "send"}
    assert in_one_half((2, 3), {2: receives, 3: receives})
    assert not in_one_half((2, 3), {2: receives, 3: sends})
    assert not in_one_half((2, 3), {2: receives})
    assert not in_one_half((2,), {2: receives})
