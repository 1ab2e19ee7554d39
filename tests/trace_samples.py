"""Small Chrome traces, built event by event."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

Json = dict[str, object]


@dataclass
class Sample:
    """A trace of one rank; times are in µs."""

    rank: int | None = 0
    world: int = 2
    events: list[Json] = field(default_factory=list)
    correlation: int = 0

    def step(self, number: int, start: float, duration: float) -> Sample:
        self._add("user_annotation", f"ProfilerStep#{number}", start, duration, pid=1, tid=1)
        return self

    def operator(self, name: str, start: float, duration: float, args: Json | None = None, tid: int = 1) -> Sample:
        self._add("cpu_op", name, start, duration, pid=1, tid=tid, args=args or {})
        return self

    def range(self, name: str, start: float, duration: float, args: Json | None = None, tid: int = 1) -> Sample:
        self._add("user_annotation", name, start, duration, pid=1, tid=tid, args=args or {})
        return self

    def kernel(
        self, name: str, start: float, duration: float, launch: float | None = None, stream: int = 7, args: Json | None = None
    ) -> Sample:
        self.correlation += 1
        if launch is not None:
            self._add("cuda_runtime", "cudaLaunchKernel", launch, 1, pid=1, tid=1, args={"correlation": self.correlation})
        given = {"stream": stream, "device": 0, "correlation": self.correlation, "grid": [8, 1, 1], **(args or {})}
        self._add("kernel", name, start, duration, pid=0, tid=stream, args=given)
        return self

    def copy(
        self, start: float, duration: float, category: str = "gpu_memcpy", name: str = "Memcpy HtoD", size: int | None = None
    ) -> Sample:
        moved = {} if size is None else {"bytes": size}
        self._add(category, name, start, duration, pid=0, tid=20, args={"stream": 20, "device": 0, "correlation": 0, **moved})
        return self

    def _add(self, category: str, name: str, start: float, duration: float, **rest: object) -> None:
        self.events.append({"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, **rest})

    def document(self, **header: object) -> Json:
        info = {"backend": "nccl", "world_size": self.world} | ({"rank": self.rank} if self.rank is not None else {})
        return {"schemaVersion": 1, "distributedInfo": info, **header, "traceEvents": self.events, "traceName": "x.json"}

    def text(self, **header: object) -> bytes:
        """As Kineto lays it out: events on lines of their own."""
        document = self.document(**header)
        events = ",\n".join("  " + json.dumps(e) for e in self.events)
        top = json.dumps({k: v for k, v in document.items() if k not in ("traceEvents", "traceName")})
        return f'{top[:-1]},\n  "traceEvents": [\n{events}\n  ],\n  "traceName": "x.json"\n}}\n'.encode()


ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def collective(
    op: str = "allreduce", elements: int = 1024, seq: int | None = None, group: str = "0", ranks: Sequence[int] = (0, 1)
) -> Json:
    """Arguments of a collective's kernel as current torch writes them."""
    args: Json = {
        "Collective name": op,
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": len(ranks),
        "dtype": "Float",
        "Process Group Name": group,
        "Process Group Description": "default_pg",
        "Process Group Ranks": json.dumps(list(ranks)),
    }
    return args if seq is None else {**args, "Seq": seq}
