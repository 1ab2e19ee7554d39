"""The key of the store names the rank whose address was waited for."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.rules.rank_never_joined_store import rank_never_joined_by_store
from tests.rules.frames import cited, endings, people, told
from tests.rules.host_frames import table


def waited(awaited: int, *ranks: int, group: str = "default_pg/0") -> list[dict[str, object]]:
    """Ranks that gave up waiting for the address of a rank; each wrote it into a file of its own."""
    said = f"wait timeout after 25000ms, keys: /{group}//cpu//0/{awaited}"
    return [{"rank": r, "own": False, "signature": "store-timeout", "message": said, "exc_source_id": r, "exc_line_no": 3} for r in ranks]


def test_the_rank_that_all_others_waited_for_never_joined() -> None:
    [finding] = rank_never_joined_by_store.check(endings(*waited(3, 0, 1, 2), {"rank": 3, "kind": "terminated"}), None, None, None)
    assert told(finding) == ("critical", "high", (3,))
    assert finding.title == "rank 3 never joined: ranks 0-2 waited in init for its address"
    assert cited(finding) == [(0, 3), (1, 3), (2, 3)]


def test_where_some_others_did_not_wait_for_it_the_verdict_is_less_sure() -> None:
    some = endings(*waited(3, 0), {"rank": 3, "kind": "terminated"}, {"rank": 1, "kind": "terminated"})
    assert told(rank_never_joined_by_store.check(some, None, None, None)[0]) == ("critical", "medium", (3,))


def test_a_rank_whose_own_connections_failed_had_put_its_address_into_the_store() -> None:
    came = {"rank": 0, "own": False, "signature": "gloo-connect"}
    assert rank_never_joined_by_store.check(endings(*waited(0, 1), came), None, None, None) == []
    assert (
        len(
            rank_never_joined_by_store.check(
                endings(*waited(0, 1), came | {"rank": 2}, {"rank": 0, "kind": "terminated"}), None, None, None
            )
        )
        == 1
    )


def test_who_hosts_the_store_and_waited_for_its_clients_had_come() -> None:
    host = {
        "rank": 0,
        "own": False,
        "signature": "store-timeout",
        "message": "Timed out after 26 seconds waiting for clients. 5/6 clients joined.",
    }
    assert rank_never_joined_by_store.check(endings(*waited(0, 1, 3, 4, 5), host), None, None, None) == []


def test_a_process_that_waits_for_its_own_number_takes_itself_for_another_rank() -> None:
    [finding] = rank_never_joined_by_store.check(endings(*waited(2, 0, 1, 2, 3)), None, None, None)
    assert (finding.cause, *told(finding)) == ("environment-mismatch", "critical", "medium", (2,))


def test_a_rank_that_nothing_else_tells_of_is_not_named_a_culprit() -> None:
    known = people((0, "node1", 10), (1, "node1", 11))
    [finding] = rank_never_joined_by_store.check(endings(*waited(4, 1)), known, None, None)
    assert told(finding) == ("critical", "low", ())
    assert "the number of ranks is wrong" in finding.summary


def test_what_the_missing_rank_says_of_the_store_is_cited_beside_those_who_waited() -> None:
    lines = table(
        "watchdog", {"kind": "store-timeout", "message": "[c10d] The client socket has timed out while trying to connect to (node1, 9)."}
    )
    mine = pl.LazyFrame({"source_id": [0], "rank": [3]})
    ended = endings(*waited(3, 1, 2), {"rank": 3, "kind": "terminated"})
    [finding] = rank_never_joined_by_store.check(ended, None, lines, mine)
    assert cited(finding)[-1] == (0, 1)
    assert [cause for cause, *_ in finding.alternatives] == ["connection-failed"]
    assert cited(rank_never_joined_by_store.check(ended, None, lines, None)[0])[-1] == (2, 3)


@pytest.mark.parametrize("message", ["wait timeout after 300000ms, keys: /default_pg/0//cpu//0", "Socket Timeout", None])
def test_other_keys_name_nobody(message: str | None) -> None:
    row = {"rank": 0, "own": False, "signature": "store-timeout", "message": message}
    assert rank_never_joined_by_store.check(endings(row), None, None, None) == []


def test_numbers_inside_other_groups_are_no_ranks_of_the_job() -> None:
    assert rank_never_joined_by_store.check(endings(*waited(1, 4, 6, group="3")), None, None, None) == []


def test_a_rank_that_waited_for_another_one_had_put_its_own_address_there() -> None:
    found = rank_never_joined_by_store.check(endings(*waited(1, 0), *waited(2, 1, 3), {"rank": 2, "kind": "terminated"}), None, None, None)
    assert [f.ranks for f in found] == [(2,)]
    crossed = rank_never_joined_by_store.check(endings(*waited(1, 0), *waited(0, 1)), None, None, None)
    assert [f.ranks for f in crossed] == [(1,), (0,)], "each of two that wait for the other may use a store of its own"
