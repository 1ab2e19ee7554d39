"""What one run of a job is to do: read by every rank, written by the lab. Needs no PyTorch."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Plan:
    """The job to run, and the fault put into it."""

    job: str
    fault: str
    ranks: tuple[int, ...]
    step: int
    site: str = ""
    steps: int = 12
    #: Seconds that a late rank loses per step, or that a stalled one sleeps at a time.
    seconds: float = 0.5
    #: Of the default process group; ``None`` is PyTorch's default of 30 minutes.
    timeout_s: float | None = None
    device: str = "cpu"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    trace: bool = False
    #: A rank that fails writes its Flight Recorder on the way out, as a job with its own exception handler does.
    dump_on_error: bool = True
    #: A rank that the launcher ends does so too.
    dump_on_terminate: bool = True
    #: Seconds of work per step, so that a run lasts long enough to be looked at.
    pace: float = 0.05
    options: tuple[str, ...] = ()
    places: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls) -> Plan:
        """The plan in the file that ``LAB_PLAN`` names."""
        raw = json.loads(Path(os.environ["LAB_PLAN"]).read_text())
        return cls(**{**raw, "ranks": tuple(raw["ranks"]), "options": tuple(raw["options"])})
