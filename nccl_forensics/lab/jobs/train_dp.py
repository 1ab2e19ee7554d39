"""Data parallel by hand: gradients in two buckets, a metrics all_reduce, a control broadcast, a barrier now and then."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from .harness import Job, leave, run
from .host_work import FEATURES, Input, checkpoint, forward


def build(job: Job) -> torch.nn.Module:
    """The same start on every rank."""
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 96), torch.nn.ReLU(), torch.nn.Linear(96, 8)).to(job.device)
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    return model


def sync_gradients(job: Job, model: torch.nn.Module, step: int) -> None:
    """Two buckets, last layer first."""
    grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    buckets = [torch.cat(grads[2:]), torch.cat(grads[:2])]
    if job.hit("shape", step, "gradients"):
        buckets[1] = buckets[1][:-96]
    if job.hit("dtype", step, "gradients"):
        buckets[1] = buckets[1].to(torch.float64 if job.option("wide") else torch.int32)
    if job.hit("swapped-order", step, "buckets"):
        buckets.reverse()
    if job.hit("skipped-collective", step, "gradients"):
        return
    if job.hit("other-operation", step, "gradients"):
        dist.broadcast(buckets[0], src=job.rank)
        buckets.pop(0)
    if job.option("async"):
        for work in [dist.all_reduce(bucket, async_op=True) for bucket in buckets]:
            work.wait()
        return
    for bucket in buckets:
        dist.all_reduce(bucket)


def share_metrics(job: Job, loss: torch.Tensor, step: int) -> torch.Tensor:
    """Mean loss over all ranks."""
    value = torch.stack([loss.detach(), torch.ones((), device=job.device)])
    if job.hit("shape", step, "metrics"):
        value = torch.cat([value, value])
    if job.hit("other-operation", step, "metrics"):
        out = [torch.empty_like(value) for _ in range(job.world)]
        dist.all_gather(out, value)
        return torch.stack(out).sum(0)
    dist.all_reduce(value)
    return value


def control(job: Job, step: int) -> bool:
    """Rank 0 says whether to go on."""
    flag = torch.tensor([step, 1], device=job.device)
    if job.option("object-control"):
        said = [{"step": step, "go": True}]
        dist.broadcast_object_list(said, src=0)
        return bool(said[0]["go"])
    dist.broadcast(flag, src=0)
    return bool(flag[1])


def train(job: Job, end_step: Callable[[], None]) -> None:
    """The training loop."""
    model, data = build(job), Input(job)
    for step in range(job.plan.steps):
        batch = data.load_batch(step)
        model.zero_grad()
        loss = forward(job, model, batch, step)
        loss.backward()
        leave(job, step)
        sync_gradients(job, model, step)
        checkpoint(job, model, step)
        if job.hit("swapped-order", step, "control"):
            control(job, step)
            share_metrics(job, loss, step)
        else:
            if not job.hit("skipped-collective", step, "metrics"):
                share_metrics(job, loss, step)
            if not job.hit("skipped-collective", step, "control"):
                control(job, step)
        if step % 3 == 2 and not job.hit("skipped-collective", step, "barrier"):
            dist.barrier()
        job.say(step, f"loss {loss.item():.4f}")
        end_step()
    dist.barrier()


if __name__ == "__main__":
    run(train)
