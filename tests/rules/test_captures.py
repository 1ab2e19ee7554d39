"""What captures prove."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.captures import capture_loss, capture_unanswered
from nccl_forensics.views.conversations import conversations
from tests.rules.frames import cited
from tests.rules.host_frames import table

A, B = "10.0.0.11", "10.0.0.12"


def flow(source: str, destination: str, **counts: object) -> dict[str, object]:
    """One direction; ports 45678 at A and 29500 at B."""
    ports = {A: 45678, B: 29500}
    ends = {"source": source, "source_port": ports[source], "destination": destination, "destination_port": ports[destination]}
    usual = {"protocol": "tcp", "packets": 1000, "resent": 0, "syns": 0, "syn_acks": 0, "resets": 0, "naks": 0, "record": "packet[3]"}
    return {**usual, **ends, "line_no": None, **counts}


def flows(*rows: dict[str, object]) -> pl.LazyFrame:
    return table("flows", *rows)


def test_a_direction_that_sends_much_twice_is_named() -> None:
    [finding] = capture_loss.check(flows(flow(A, B, resent=60), flow(B, A)))
    assert (finding.severity, finding.culprits[0].link) == ("error", f"{A} -> {B}")
    assert "60 of 1000 TCP packets" in finding.title
    assert cited(finding) == [(0, "packet[3]")]


def test_packets_that_tcpdump_lists_are_counted_as_those_of_a_binary_capture_are() -> None:
    ends = {"protocol": "tcp", "source": A, "source_port": 45678, "destination": B, "destination_port": 29500}
    back = {"protocol": "tcp", "source": B, "source_port": 29500, "destination": A, "destination_port": 45678}
    data = [ends | {"flags": "P.", "seq": n, "seq_end": n + 9, "length_bytes": 9, "window": 502} for n in (1, 10, 10, 19)]
    listed = table(
        "packets", ends | {"flags": "S", "seq": 7, "length_bytes": 0}, *data, back | {"flags": "R.", "length_bytes": 0, "window": 0}
    )
    found = conversations(None, listed).collect().select("source", "packets", "bytes", "resent", "syns", "resets", "zero_windows").rows()
    assert found == [(A, 5, 36, 1, 1, 0, 0), (B, 1, 0, 0, 0, 1, 0)]
    [refused] = capture_unanswered.check(conversations(None, listed))
    assert refused.title == f"{B} port 29500 refused 1 connection attempt of {A}"
    again = table("packets", *(ends | {"flags": "S", "seq": n, "length_bytes": 0} for n in (7, 8)), *data)
    assert conversations(None, again).collect()["resent"].to_list() == [0], "one port used twice"


def test_little_loss_and_few_packets_are_quiet() -> None:
    assert capture_loss.check(flows(flow(A, B, resent=9))) == []
    assert capture_loss.check(flows(flow(A, B, resent=19, packets=100))) == []
    assert capture_loss.check(flows(flow(A, B, resent=30, packets=10_000))) == []


def test_a_peer_that_never_answers_and_one_that_refuses_are_told_apart() -> None:
    [silent] = capture_unanswered.check(flows(flow(A, B, syns=5)))
    assert silent.title == f"{B} port 29500 never answered 5 connection attempts of {A}"
    [refused] = capture_unanswered.check(flows(flow(A, B, syns=1), flow(B, A, resets=1)))
    assert refused.title == f"{B} port 29500 refused 1 connection attempt of {A}"


def test_a_connection_that_came_up_and_a_single_try_are_quiet() -> None:
    assert capture_unanswered.check(flows(flow(A, B, syns=4), flow(B, A, syn_acks=1))) == []
    assert capture_unanswered.check(flows(flow(A, B, syns=2))) == []
