"""Sharded data parallel by hand: parameters gathered per layer (with prefetch), gradients reduce-scattered, a norm over all ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from .harness import Job, leave, run
from .host_work import FEATURES, Input, checkpoint, forward

LAYERS = 4


def gather_layer(job: Job, shard: torch.Tensor, layer: int, step: int) -> tuple[torch.Tensor, dist.Work]:
    """Start to gather one layer's parameters."""
    if job.hit("shape", step, "gather") and layer == 2:
        shard = shard[:-8].contiguous()
    if job.hit("dtype", step, "gather") and layer == 2:
        shard = shard.to(torch.bfloat16)
    full = torch.empty(shard.numel() * job.world, dtype=shard.dtype, device=job.device)
    if job.hit("other-operation", step, "gather") and layer == 2:
        work = dist.all_reduce(full.zero_(), async_op=True)
    else:
        work = dist.all_gather_into_tensor(full, shard, async_op=True)
    assert work is not None
    return full, work


def unshard(job: Job, shards: list[torch.Tensor], step: int) -> list[torch.Tensor]:
    """Gather all layers, one ahead of its use."""
    order = list(range(LAYERS))
    if job.hit("swapped-order", step, "layers"):
        order[1], order[2] = order[2], order[1]
    if job.hit("skipped-collective", step, "gather"):
        order.remove(2)
    full: dict[int, torch.Tensor] = {}
    ahead: tuple[int, torch.Tensor, dist.Work] | None = None
    for layer in order:
        begun = gather_layer(job, shards[layer], layer, step)
        if ahead is not None:
            ahead[2].wait()
            full[ahead[0]] = ahead[1]
        ahead = (layer, *begun)
    assert ahead is not None
    ahead[2].wait()
    full[ahead[0]] = ahead[1]
    return [full.get(layer, shards[layer]) for layer in range(LAYERS)]


def reduce_gradients(job: Job, shards: list[torch.Tensor], step: int) -> torch.Tensor:
    """Reduce-scatter every layer's gradient, last layer first; the norm of all."""
    norm = torch.zeros(1, device=job.device)
    for layer in reversed(range(LAYERS)):
        out = torch.empty_like(shards[layer])
        grad = torch.randn(out.numel() * job.world, device=job.device)
        if job.hit("skipped-collective", step, "scatter") and layer == 1:
            continue
        dist.reduce_scatter_tensor(out, grad)
        norm += out.square().sum()
    if not job.hit("skipped-collective", step, "norm"):
        dist.all_reduce(norm)
    return norm


def train(job: Job, end_step: Callable[[], None]) -> None:
    """The training loop."""
    # One layer is wider than the others, as an embedding is.
    shards = [torch.randn(256 + 64 * (layer == 0) + 32 * layer, device=job.device) for layer in range(LAYERS)]
    model, data = torch.nn.Linear(FEATURES, 8).to(job.device), Input(job)
    for step in range(job.plan.steps):
        batch = data.load_batch(step)
        unshard(job, shards, step)
        loss = forward(job, model, batch, step)
        leave(job, step)
        reduce_gradients(job, shards, step)
        checkpoint(job, model, step)
        job.say(step, f"loss {loss.item():.4f}")
        end_step()
    dist.barrier()


if __name__ == "__main__":
    run(train)
