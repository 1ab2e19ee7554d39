"""``python -m torch.utils.collect_env``: the versions of PyTorch and of what it was built with; also pip's and conda's lists."""

from __future__ import annotations

import polars as pl

from nccl_forensics.formats.base import Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import Line, after, classify

_OPENS = r"^(?:Collecting environment information|PyTorch version: |Package +Version|# packages in environment at |(?:torch|nvidia-nccl-cu\d+)==\d)"
#: Lines that follow without a blank belong to the listing; it has no more.
_REACH = 400
_NAMES = {
    "torch": "torch",
    "python": "python",
    "driver": "nvidia-driver",
    "cudnn": "cudnn",
    "libc": "libc",
    "system": "os",
    "runtime": "cuda-runtime",
}
_NONE = ("N/A", "Could not collect", "No CUDA", "None")


def read(text: Text) -> Reading:
    """One row per version. What could not be collected is no row."""
    rows: list[Row] = []
    claimed: list[int] = []
    collected = False
    for line in classify(after(text.lines, pl.col("text").str.contains(_OPENS), reach=_REACH), "collect_env"):
        if line.text.startswith(
            ("Collecting environment information", "Package ", "# packages in environment", "Versions of relevant libraries")
        ):
            collected = collected or line.text.startswith("Collecting")
            claimed.append(line.number)
        elif (fact := _fact(line)) is not None:
            collected = collected or line.kind == "torch"
            claimed.append(line.number)
            if fact["value"] not in _NONE:
                rows.append({**line.where, "tool": "collect_env" if collected else "pip", "kind": "version", **fact})
        elif collected and line.kind == "other":
            claimed.append(line.number)
    return Reading(frames=filled({"host_facts": rows}), lines=line_numbers(claimed if rows else []))


def _fact(line: Line) -> Row | None:
    get = line.get
    match line.kind:
        case "torch" | "driver":
            return {"name": _NAMES[line.kind], "value": get("version")}
        case "python":
            return {"name": "python", "value": get("python")}
        case "cudnn" | "libc" | "system" | "runtime":
            return {"name": _NAMES[line.kind], "value": get("value")}
        case "built":
            build = "cuda-build" if line.text.startswith("CUDA") else "rocm-build"
            return {"name": build, "value": get("value")}
        case "available":
            return {"name": "cuda-available", "value": get("available")}
        case "package" | "frozen" | "listed":
            name = get("name") or ""
            package = "torch" if name == "pytorch" else "nccl-package" if name.startswith("nvidia-nccl") else name
            return {"name": package, "value": get("version")}
        case _:
            return None


FORMAT = TextFormat(
    name="collect-env",
    title="python -m torch.utils.collect_env, pip freeze, pip list, conda list",
    tables=("host_facts",),
    anchors=("PyTorch version: ", "torch==", "nvidia-nccl-cu", "torch  "),
    read=read,
    priority=58,
)
