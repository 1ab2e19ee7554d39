"""NVIDIA's device plugin for Kubernetes: Xids that NVML told it, by the UUID of the GPU, and GPUs that it took out of service."""

from __future__ import annotations

from nccl_forensics.formats.base import Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import Line, classify, moment, whole


def read(text: Text) -> Reading:
    """One row per line that the plugin writes of a GPU."""
    rows: dict[str, list[Row]] = {"xids": [], "gpu_tool_errors": []}
    claimed: list[int] = []
    for line in classify(text.hits, "device_plugin"):
        if line.kind is None:
            continue
        claimed.append(line.number)
        common: Row = {**line.where, **_stamp(line), **_gpu(line.get("uuid"))}
        if line.kind == "unhealthy":
            rows["gpu_tool_errors"].append({**common, "tool": "device-plugin", "kind": "unhealthy", "message": line.text})
        else:
            rows["xids"].append({**common, "code": whole(line.get("code")), "message": line.text, "implied": False, "repeats": 1})
    return Reading(frames=filled(rows), lines=line_numbers(claimed))


def _gpu(uuid: str | None) -> Row:
    """The GPU of a device id: replicas of a shared GPU end with ``::N``, slices of old drivers read ``MIG-GPU-.../instance/compute``."""
    if uuid is None:
        return {}
    plain = uuid.partition("::")[0]
    if not plain.startswith("MIG-GPU-"):
        return {"uuid": plain}
    parent, *instances = plain.removeprefix("MIG-").split("/")
    return {"uuid": parent, **dict(zip(("gpu_instance", "compute_instance"), instances, strict=False))}


def _stamp(line: Line) -> Row:
    """The time of the log's head, where no prefix told one with its zone: klog writes no year, and neither writes a zone."""
    if line.origin.get("time_raw_ns") is not None or line.get("clock") is None:
        return {}
    klog, date = line.get("klog"), line.get("date")
    day = f"2000-{klog[1:3]}-{klog[3:5]}" if klog else (date or "").replace("/", "-")
    stamp = moment(f"{day}T{line.get('clock')}")
    return {} if stamp is None else {"time_raw_ns": stamp, "time_kind": "local-yearless" if klog else "local-unzoned"}


FORMAT = TextFormat(
    name="device-plugin",
    title="NVIDIA's device plugin for Kubernetes (log)",
    tables=("xids", "gpu_tool_errors"),
    anchors=("XidCriticalError: Xid=", " device marked unhealthy: "),
    read=read,
    priority=42,
)
