"""DistributedDataParallel with an auxiliary head that can stay unused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .harness import Job, leave, run
from .host_work import FEATURES, Input, checkpoint, forward


class Net(torch.nn.Module):
    """A trunk, a head, and an auxiliary head."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = torch.nn.Linear(FEATURES, 96)
        self.aux = torch.nn.Linear(96, 8)
        self.head = torch.nn.Linear(96, 8)
        self.use_aux = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.trunk(x))
        out: torch.Tensor = self.head(hidden)
        return out + self.aux(hidden) if self.use_aux else out


def train(job: Job, end_step: Callable[[], None]) -> None:
    """The training loop."""
    net = Net().to(job.device)
    model = DistributedDataParallel(net, bucket_cap_mb=1, static_graph=False)
    optimizer, data = torch.optim.SGD(model.parameters(), lr=0.01), Input(job)
    steps = job.plan.steps
    if job.plan.fault == "uneven-data" and job.rank in job.plan.ranks:
        steps = job.plan.step
    for step in range(steps):
        batch = data.load_batch(step)
        net.use_aux = not job.hit("unused-parameter", step)
        quiet = job.hit("skipped-collective", step, "gradients")
        with model.no_sync() if quiet else contextlib.nullcontext():
            loss = forward(job, model, batch, step)
            leave(job, step)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        checkpoint(job, net, step)
        if not job.option("no-metrics") and not job.hit("skipped-collective", step, "metrics"):
            dist.all_reduce(loss.detach().clone())
        job.say(step, f"loss {loss.item():.4f}")
        end_step()
    if job.option("final-eval"):
        scores = [torch.zeros(4, device=job.device) for _ in range(job.world)]
        dist.all_gather(scores, torch.ones(4, device=job.device))
    dist.barrier()


if __name__ == "__main__":
    run(train)
