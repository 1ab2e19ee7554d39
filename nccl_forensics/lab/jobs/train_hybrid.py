"""Tensor, pipeline and data parallel at once: rank = (replica, stage, shard); sub-groups with the default timeout, as most jobs have."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from .harness import Job, leave, run
from .host_work import FEATURES, Input, checkpoint, forward


class Layout:
    """Groups of this rank. Every rank makes all groups, in the same order."""

    def __init__(self, job: Job) -> None:
        shards, stages = job.plan.tensor_parallel, job.plan.pipeline_parallel
        self.job = job
        self.shard = job.rank % shards
        self.stage = job.rank // shards % stages
        self.stages = stages
        self.step_to_next = shards
        replicas = job.world // (shards * stages)
        self.tp, self.dp = self._none(), self._none()
        for first in range(0, job.world, shards):
            ranks = list(range(first, first + shards))
            if job.plan.fault == "group-not-made" and job.rank in job.plan.ranks and job.rank in ranks:
                checkpoint_conversion(job)
            made = job.group(ranks, f"tp_{first // shards}")
            self.tp = made if job.rank in ranks else self.tp
        for index in range(shards * stages):
            ranks = list(range(index, job.world, shards * stages))
            if replicas == 1:
                break
            made = job.group(ranks, f"dp_{index}")
            self.dp = made if job.rank in ranks else self.dp

    @staticmethod
    def _none() -> dist.ProcessGroup | None:
        return None


def checkpoint_conversion(job: Job) -> None:
    """Work that one rank does before it makes its groups, and that never ends."""
    from .harness import wait_for_storage

    wait_for_storage(job)


def layer(job: Job, layout: Layout, x: torch.Tensor, step: int, number: int) -> torch.Tensor:
    """One tensor-parallel layer."""
    if layout.tp is None or (number == 1 and job.hit("skipped-collective", step, "tensor")):
        return x
    if number == 1 and job.hit("other-operation", step, "tensor"):
        dist.all_gather([torch.empty_like(x) for _ in range(dist.get_world_size(layout.tp))], x, group=layout.tp)
        return x
    if number == 1 and job.hit("shape", step, "tensor"):
        x = x[:4].contiguous()
    if number == 1 and job.hit("dtype", step, "tensor"):
        x = x.to(torch.float16)
    dist.all_reduce(x, group=layout.tp)
    return x


def pass_on(job: Job, layout: Layout, x: torch.Tensor, step: int) -> None:
    """Activations to the next stage, gradients back."""
    before, after = job.rank - layout.step_to_next, job.rank + layout.step_to_next
    ops = []
    if layout.stage + 1 < layout.stages and not job.hit("p2p-missing-send", step):
        ops.append(dist.P2POp(dist.isend, x, after))
    if layout.stage + 1 < layout.stages:
        ops.append(dist.P2POp(dist.irecv, torch.empty_like(x), after))
    if layout.stage > 0:
        ops += [dist.P2POp(dist.irecv, torch.empty_like(x), before), dist.P2POp(dist.isend, x, before)]
    for work in dist.batch_isend_irecv(ops) if ops else []:
        work.wait()


def sync_gradients(job: Job, layout: Layout, step: int) -> None:
    """Replicas of a shard agree on their gradients."""
    if layout.dp is None or job.hit("skipped-collective", step, "data"):
        return
    dist.all_reduce(torch.zeros(FEATURES * 32, device=job.device), group=layout.dp)


def train(job: Job, end_step: Callable[[], None]) -> None:
    """The training loop."""
    layout, data = Layout(job), Input(job)
    model = torch.nn.Linear(FEATURES, FEATURES).to(job.device)
    for step in range(job.plan.steps):
        x = data.load_batch(step)
        loss = forward(job, model, x, step)
        leave(job, step)
        if job.hit("swapped-order", step, "groups"):
            sync_gradients(job, layout, step)
        for number in range(3):
            layer(job, layout, x, step, number)
        if layout.stages > 1:
            pass_on(job, layout, x, step)
        if not job.hit("swapped-order", step, "groups"):
            sync_gradients(job, layout, step)
        checkpoint(job, model, step)
        if step % 4 == 3 and not job.hit("skipped-collective", step, "metrics"):
            dist.all_reduce(loss.detach().clone())
        job.say(step, f"loss {loss.item():.4f}")
        end_step()
    dist.barrier()


if __name__ == "__main__":
    run(train)
