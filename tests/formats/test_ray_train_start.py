"""Where Ray Train started each rank."""

from __future__ import annotations

import pytest

from nccl_forensics.reading.source import read_source


@pytest.mark.parametrize("name", ["world_rank", "rank"])
@pytest.mark.parametrize("node", ["", "node_id=4f2c11, "])
def test_each_worker_is_told_with_its_rank_host_and_pid(name: str, node: str) -> None:
    lines = ["(TrainController pid=70, ip=10.7.0.1) Started training worker group of size 2: "]
    for rank, (ip, pid, local) in enumerate((("10.7.0.1", 811, 0), ("10.7.0.2", 402, 0))):
        lines.append(
            f"(TrainController pid=70, ip=10.7.0.1) - ({node}ip={ip}, pid={pid}) {name}={rank}, local_rank={local}, node_rank={rank}"
        )
    found = read_source("\n".join(lines).encode()).frames["worker_exits"]
    told = found.select("kind", "rank", "local_rank", "host", "pid").rows()
    assert told == [("started", 0, 0, "10.7.0.1", 811), ("started", 1, 0, "10.7.0.2", 402)]
