"""A mesh of replicas x shards x experts' peers: named dimensions, functional collectives, coalesced and object collectives, gradient
accumulation."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from .harness import Job, leave, run
from .host_work import FEATURES, Input, checkpoint, forward

ACCUMULATE = 2


def attention_layer(job: Job, mesh: DeviceMesh, x: torch.Tensor, step: int) -> torch.Tensor:
    """Sequence parallel: gather the sequence over the shards, compute, scatter it back."""
    group = mesh["shard"].get_group()
    if job.hit("shape", step, "sequence"):
        x = x[:6].contiguous()
    full = functional.all_gather_tensor(x, 0, group)
    if isinstance(full, functional.AsyncCollectiveTensor):
        full = full.wait()
    if job.hit("skipped-collective", step, "sequence"):
        return x
    if job.hit("other-operation", step, "sequence"):
        return functional.broadcast(full, 0, group)[: x.shape[0]]
    return functional.reduce_scatter_tensor(full, "sum", 0, group)


def reduce_gradients(job: Job, mesh: DeviceMesh, grads: list[torch.Tensor], step: int) -> None:
    """Over the replicas, after the last of the accumulated micro-steps."""
    if job.hit("skipped-collective", step, "gradients"):
        return
    group = mesh["replica"].get_group()
    works = [dist.all_reduce(g, group=group, async_op=True) for g in grads]
    for work in works:
        assert work is not None
        work.wait()


def train(job: Job, end_step: Callable[[], None]) -> None:
    """The training loop."""
    shards = job.plan.tensor_parallel
    mesh = init_device_mesh(job.device.type, (job.world // shards, shards), mesh_dim_names=("replica", "shard"))
    model, data = torch.nn.Linear(FEATURES, FEATURES).to(job.device), Input(job)
    for step in range(job.plan.steps):
        rounds = ACCUMULATE
        if job.hit("skipped-collective", step, "accumulation"):
            rounds -= 1
        for _ in range(rounds):
            x = data.load_batch(step)
            loss = forward(job, model, x, step)
            attention_layer(job, mesh, x, step)
        leave(job, step)
        grads = [torch.zeros(FEATURES * FEATURES, device=job.device), torch.zeros(FEATURES, device=job.device)]
        reduce_gradients(job, mesh, grads, step)
        checkpoint(job, model, step)
        if step % 3 == 2:
            lengths: list[int | None] = [None] * job.world
            if not job.hit("skipped-collective", step, "objects"):
                dist.all_gather_object(lengths, step)
        job.say(step, f"loss {loss.item():.4f}")
        end_step()
    dist.barrier()


if __name__ == "__main__":
    run(train)
