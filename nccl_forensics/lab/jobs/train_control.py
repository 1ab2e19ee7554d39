"""A job run from rank 0: work scattered, results gathered, objects exchanged, monitored barriers, a reduce to the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from .harness import Job, leave, run
from .host_work import FEATURES, Input, checkpoint, forward


def hand_out(job: Job, step: int) -> torch.Tensor:
    """Rank 0 gives every rank its piece of work."""
    mine = torch.zeros(16, device=job.device)
    pieces = [torch.full((16,), float(step), device=job.device) for _ in range(job.world)] if job.rank == 0 else None
    dist.scatter(mine, pieces, src=0)
    return mine


def collect(job: Job, result: torch.Tensor, step: int) -> None:
    """Rank 0 gets all results."""
    if job.hit("shape", step, "gather"):
        result = result[:12].contiguous()
    if job.hit("dtype", step, "gather"):
        result = result.to(torch.float64)
    if job.hit("other-operation", step, "gather"):
        dist.all_reduce(result)
        return
    places = [torch.empty_like(result) for _ in range(job.world)] if job.rank == 0 else None
    dist.gather(result, places, dst=0)


def agree(job: Job, step: int) -> None:
    """Every rank tells all others its state."""
    states: list[dict[str, int] | None] = [None] * job.world
    dist.all_gather_object(states, {"rank": job.rank, "step": step})


def train(job: Job, end_step: Callable[[], None]) -> None:
    """The working loop."""
    model, data = torch.nn.Linear(FEATURES, 8).to(job.device), Input(job)
    for step in range(job.plan.steps):
        batch = data.load_batch(step)
        result = hand_out(job, step)
        loss = forward(job, model, batch, step)
        leave(job, step)
        if not job.hit("skipped-collective", step, "gather"):
            collect(job, result, step)
        checkpoint(job, model, step)
        if not job.hit("skipped-collective", step, "objects"):
            agree(job, step)
        total = loss.detach().clone()
        if not job.hit("skipped-collective", step, "reduce"):
            dist.reduce(total, dst=0)
        if job.option("monitored") and step % 2 == 1 and not job.hit("skipped-collective", step, "barrier"):
            if job.device.type == "cpu":
                dist.monitored_barrier(timeout=timedelta(seconds=10), wait_all_ranks=job.option("name-all"))
            else:  # NCCL has no monitored barrier
                dist.barrier()
        job.say(step, f"loss {loss.item():.4f}")
        end_step()
    dist.barrier()


if __name__ == "__main__":
    run(train)
