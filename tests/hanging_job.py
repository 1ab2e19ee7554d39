"""A job of several processes that hangs: every rank all-reduces, and one rank stays in a lock of its own before the fourth.

Run as ``python -m tests.hanging_job WORLD CULPRIT PORT``; the launcher gives each worker a rank as torchrun does, and waits.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from datetime import timedelta


def save_checkpoint() -> None:
    """Waits for a lock that nobody lets go."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def worker(culprit: int) -> None:
    """Four steps; the culprit leaves the others alone in the last."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    for step in range(4):
        if step == 3:
            print("last step", flush=True)
            if dist.get_rank() == culprit:
                save_checkpoint()
        dist.all_reduce(torch.ones(1024))


def main() -> None:
    """Start the workers and wait for them, or be one."""
    world, culprit, port = (int(word) for word in sys.argv[1:4])
    if "RANK" in os.environ:
        worker(culprit)
        return
    common = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    workers = [
        subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(world)
    ]
    for process in workers:
        process.wait()


if __name__ == "__main__":
    main()
