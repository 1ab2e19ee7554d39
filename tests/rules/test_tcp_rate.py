"""What a run of iperf3 should have carried, and when nobody can say."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.model import Finding
from nccl_forensics.rules.tcp_rate import tcp_below_line_rate
from tests.rules.host_frames import table


def check(*runs: dict[str, object], speed: int = 10_000, address: str = "10.1.0.1") -> list[Finding]:
    interfaces = table("net_interfaces", {"name": "eth0", "speed_mbit_s": speed})
    addresses: pl.LazyFrame = table("net_addresses", {"interface": "eth0", "address": address})
    return tcp_below_line_rate.check(table("tcp_tests", *runs), addresses, interfaces, None)


def run(gbit_s: float, stream: str = "5", role: str = "receiver", **more: object) -> dict[str, object]:
    ends = {"local": "10.1.0.1", "remote": "10.1.0.2"}
    return {"test": 0, "stream": stream, "role": role, "summary": True, "gbit_s": gbit_s, "line_no": 9} | ends | more


@pytest.mark.parametrize(("gbit_s", "severity"), [(9.4, None), (7.6, None), (7.0, "warning"), (3.9, "error")])
def test_a_run_far_below_the_speed_of_its_interface_is_told(gbit_s: float, severity: str | None):
    assert [f.severity for f in check(run(gbit_s))] == ([severity] if severity else [])


def test_one_stream_says_nothing_of_a_fast_interface_and_four_do():
    assert check(run(30.0), speed=200_000) == []
    streams = [run(8.0, stream=str(n)) for n in (5, 7, 9, 11)]
    [finding] = check(*streams, run(32.0, stream="SUM"), speed=200_000)
    assert "32 of 200 Gbit/s" in finding.title


def test_an_address_of_no_known_interface_and_udp_are_left_alone():
    assert check(run(3.9), address="10.9.9.9") == []
    assert check(run(3.9, packets=1000)) == []
