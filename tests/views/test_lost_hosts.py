"""Hosts that were gone before others could not reach them."""

from __future__ import annotations

from nccl_forensics.views.deaths import DEATHS
from nccl_forensics.views.lost_hosts import lost_hosts
from tests.rules.frames import people
from tests.rules.host_frames import table
from tests.views.frames import rows

PEOPLE = people((0, "node1", 100), (1, "node2", 101), (2, "node2.local", 102))
NETWORK = table("nccl_network", *[{"item": "bootstrap", "host": f"node{n}", "address": f"10.0.0.{n}<0>"} for n in (1, 2)])


def lost(
    *endings: dict[str, object],
    exits: tuple[str, ...] = (),
    node: dict[str, object] | None = None,
    event: str | None = None,
    reason: str | None = None,
) -> list[object]:
    found = lost_hosts(
        NETWORK,
        PEOPLE,
        rows(DEATHS, *endings),
        table("worker_exits", *[{"kind": "scheduler", "message": text, "host": text.split()[-1]} for text in exits]),
        table("scheduler_nodes", *([node] if node else [])),
        table("pods", {"pod": "train-1", "node": "node2", "reason": reason}),
        table("pod_events", *([{"reason": event, "object": "pod/train-1"}] if event else [])),
    )
    return found.collect().select("host", "address", "ranks").rows()


def test_a_rank_that_ended_of_itself_is_told_with_the_address_by_which_peers_know_it() -> None:
    assert lost({"rank": 2, "kind": "killed", "own": True}) == [("node2", "10.0.0.2", [2])]


def test_a_node_that_went_away_or_whose_pod_was_taken_takes_all_its_ranks_with_it() -> None:
    every = [("node2", "10.0.0.2", [1, 2])]
    assert lost(exits=("srun: error: Node failure on node2",)) == every
    assert lost(node={"node": "node2", "state": "DOWN"}) == every
    assert lost(event="Evicted") == every
    assert lost(reason="OOMKilled") == every


def test_what_a_broken_connection_brings_about_loses_nobody() -> None:
    assert lost({"rank": 2, "kind": "abort", "own": True}) == []
    assert lost({"rank": 2, "kind": "exception", "own": True, "signature": "nccl-error"}) == []
    assert lost({"rank": 2, "kind": "victim", "own": False}) == []
    assert lost(node={"node": "node2", "state": "IDLE", "flags": ["DRAIN"]}, event="Pulled", reason="Completed") == []


def test_a_node_of_the_job_that_tells_no_address_has_a_row_without_one() -> None:
    def gone(exits: str | None = None, event: str | None = None) -> list[object]:
        said = table("worker_exits", *([{"kind": "scheduler", "message": exits, "host": exits.split()[-1]}] if exits else []))
        events = table("pod_events", *([{"reason": "NodeNotReady", "object": event}] if event else []))
        return lost_hosts(NETWORK, PEOPLE, None, said, None, None, events).collect().select("host", "address").rows()

    assert gone(exits="srun: error: Node failure on node7") == [("node7", None)]
    assert gone(event="pod/node9") == [("node9", None)]
    # Of a pod of another name it is not known whose it is.
    assert gone(event="pod/other-1") == gone(event="node/node9") == []
