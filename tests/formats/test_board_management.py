"""Sensors and events of the board management, and clocks by ntpq."""

from __future__ import annotations

from nccl_forensics.reading.source import read_source
from nccl_forensics.rules.host_differences import host_differs
from tests.corpus import ROOT
from tests.rules.host_frames import table


def rows(path: str) -> list[tuple[object, ...]]:
    frame = read_source((ROOT / "fixtures" / path).read_bytes()).frames["host_facts"]
    return frame.select("kind", "name", "value", "number").rows()


def test_sensors_are_read_in_the_three_forms_of_ipmitool() -> None:
    assert rows("host_facts/sensors.txt") == [
        ("sensor", "CPU1 Temp", "95 degrees C: cr", 95.0),
        ("sensor", "GPU1 Temp", "45 degrees C", 45.0),
        ("sensor", "PSU1 Status", "0x01", None),
        ("sensor", "FAN1", "no reading", None),
        ("sensor", "PSU2 Input", "0 Watts: nr", 0.0),
        ("sensor", "Inlet Temp", "45 degrees C", 45.0),
        ("sensor", "PS2 Status", "Presence detected, Failure detected: cr", None),
        ("sensor", "CPU2 Temp", "45.000 degrees C", 45.0),
    ]


def test_the_clock_follows_the_peer_with_a_star() -> None:
    assert rows("host_facts/ntpq.txt") == [
        ("clock", "synchronized", "yes", None),
        ("clock", "offset", "-120.456 ms to ntp1.example", 0.120456),
    ]
    alone = b"     remote           refid      st t when poll reach   delay   offset  jitter\n x.example       .INIT.          16 u    -   64    0    0.000    0.000   0.000\n"
    assert read_source(alone).frames["host_facts"].select("name", "value").rows() == [("synchronized", "no")]


def test_redfish_tells_events_with_their_time() -> None:
    found = read_source((ROOT / "fixtures" / "documents" / "redfish.json").read_bytes()).frames["host_facts"]
    assert found.select("record", "name", "value", "time_raw_ns").rows() == [
        ("Members[0]", "Power Supply", "Failure detected", 1714979289_000000000),
        ("Members[1]", "Log Entry 2", "System boot completed", 1714979290_000000000),
    ]


def test_critical_sensors_are_named_and_others_are_quiet() -> None:
    def sensor(name: str, value: str) -> dict[str, object]:
        return {"kind": "sensor", "tool": "ipmitool", "name": name, "value": value, "host": "node7"}

    hot = table("host_facts", sensor("CPU1 Temp", "95 degrees C: cr"), sensor("PSU2 Input", "0 Watts: nr"))
    assert [f.title for f in host_differs.check(hot, None, None)] == [
        "node7: too hot (CPU1 Temp at 95 degrees C: cr)",
        "node7: power or cooling is not as it should be (PSU2 Input at 0 Watts: nr)",
    ]
    quiet = table("host_facts", sensor("CPU1 Temp", "80 degrees C: unc"), sensor("FAN1", "no reading"), sensor("Chassis Intru", "0x01: cr"))
    assert host_differs.check(quiet, None, None) == []


def test_a_host_tells_when_it_came_up() -> None:
    found = read_source(b"cpu  1 2 3 4\nctxt 99\nbtime 1752269821\nprocesses 5\n         system boot  2025-07-11 21:37\n").frames[
        "host_facts"
    ]
    assert found.select("kind", "time_raw_ns", "time_kind").rows() == [
        ("boot", 1752269821_000000000, "epoch"),
        ("boot", 1752269820_000000000, "local-unzoned"),
    ]
