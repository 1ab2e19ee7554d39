"""PyTorch's own sharded data parallel (fully_shard) on a device mesh: collectives are called by hooks, deep inside the framework."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from .harness import Job, leave, run
from .host_work import FEATURES, Input, checkpoint, forward


class Block(torch.nn.Module):
    """One residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(FEATURES, 2 * FEATURES)
        self.down = torch.nn.Linear(2 * FEATURES, FEATURES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(torch.relu(self.up(x)))
        return x + out


def validate(job: Job, model: torch.nn.Module, step: int) -> None:
    """A forward pass without gradients; every rank must make it, for the parameters are gathered."""
    if step % 3 != 2 or job.hit("skipped-collective", step, "validation"):
        return
    with torch.no_grad():
        model(torch.zeros(2, FEATURES, device=job.device))


def train(job: Job, end_step: Callable[[], None]) -> None:
    """The training loop."""
    mesh = init_device_mesh(job.device.type, (job.world,), mesh_dim_names=("shard",))
    model = torch.nn.Sequential(*(Block() for _ in range(3))).to(job.device)
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer, data = torch.optim.SGD(model.parameters(), lr=0.01), Input(job)
    for step in range(job.plan.steps):
        batch = data.load_batch(step)
        loss = forward(job, model, batch, step)
        leave(job, step)
        if not job.hit("skipped-collective", step, "backward"):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        checkpoint(job, torch.nn.Linear(FEATURES, 1), step)
        validate(job, model, step)
        if not job.hit("skipped-collective", step, "metrics"):
            dist.all_reduce(loss.detach().clone())
        job.say(step, f"loss {loss.item():.4f}")
        end_step()
    dist.barrier()


if __name__ == "__main__":
    run(train)
