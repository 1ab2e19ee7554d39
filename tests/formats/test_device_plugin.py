"""The log of NVIDIA's device plugin for Kubernetes."""

from __future__ import annotations

from nccl_forensics.reading.source import read_source
from tests.corpus import ROOT

SECOND = 1_000_000_000


def test_xids_come_with_the_uuid_of_the_gpu_and_the_time_of_the_log() -> None:
    found = read_source((ROOT / "fixtures" / "device_plugin" / "plugin.log").read_bytes())
    assert found.frames["xids"].select("line_no", "code", "uuid", "gpu_instance", "time_kind").rows() == [
        (2, 79, "GPU-509665ad-b600-ac93-3616-d754b23d636d", None, "local-yearless"),
        (4, 48, "GPU-6f3a1b52-4f0e-9f11-2c33-0a1b2c3d4e5f", "1", "local-unzoned"),
        (6, 119, None, None, "local-unzoned"),
    ]
    assert found.frames["xids"]["time_raw_ns"].to_list() == [957596889 * SECOND, 1714979290 * SECOND, 1714979291 * SECOND]
    assert found.frames["gpu_tool_errors"].select("line_no", "kind", "uuid").rows() == [
        (3, "unhealthy", "GPU-509665ad-b600-ac93-3616-d754b23d636d"),
        (5, "unhealthy", "GPU-0c1d2e3f-1111-2222-3333-444455556666"),
    ]
    assert (found.records, found.foreign) == (5, 1)


def test_events_that_the_plugin_skips_and_mentions_in_prose_are_no_xids() -> None:
    lines = (
        "I0506 07:08:10.000000       1 health.go:150] Skipping event {Device:{Handle:0x7f} EventType:8 EventData:31}\n"
        "look for XidCriticalError: Xid= in the log of the plugin\n"
    )
    assert read_source(lines.encode()).frames == {}
