"""A pipeline of stages (activations forward, gradients back), replicated: sends and receives, and an all_reduce per stage."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from .harness import Job, leave, run
from .host_work import FEATURES, Input, checkpoint, forward

MICRO_BATCHES = 3


class Stage:
    """Where this rank stands: ranks of one pipeline are adjacent, replicas of one stage are a group."""

    def __init__(self, job: Job) -> None:
        depth = job.plan.pipeline_parallel
        self.job, self.depth = job, depth
        self.index = job.rank % depth
        self.first, self.last = self.index == 0, self.index == depth - 1
        self.group: dist.ProcessGroup | None = None
        for index in range(depth):
            ranks = list(range(index, job.world, depth))
            made = job.group(ranks, f"replicas_{index}") if len(ranks) > 1 else None
            if index == self.index:
                self.group = made

    def forward_pass(self, x: torch.Tensor, step: int, micro: int) -> None:
        """Receive from the stage before, send to the next."""
        job = self.job
        if not self.first:
            dist.recv(x, src=job.rank - 1)
        if not self.last:
            if job.hit("p2p-missing-send", step) and micro == MICRO_BATCHES - 1:
                return
            dist.send(x, dst=job.rank + 1)

    def backward_pass(self, grad: torch.Tensor, step: int) -> None:
        """Receive from the stage after, send to the one before."""
        job = self.job
        if not self.last:
            dist.recv(grad, src=job.rank + 1)
        if not self.first:
            dist.send(grad, dst=job.rank - 1)

    def exchange(self, x: torch.Tensor, step: int) -> None:
        """Neighbours swap a halo: even stages send first, odd ones receive first."""
        job = self.job
        peer = job.rank + 1 if self.index % 2 == 0 else job.rank - 1
        if self.last and self.index % 2 == 0:
            return
        receive_first = self.index % 2 == 1
        if job.plan.fault == "p2p-deadlock" and step == job.plan.step and {job.rank, peer} & set(job.plan.ranks):
            receive_first = True
        other = torch.empty_like(x)
        if job.option("batched"):
            ops = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, other, peer)]
            if job.hit("p2p-missing-send", step):
                ops.pop(0)
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            return
        if receive_first:
            dist.recv(other, src=peer)
            dist.send(x, dst=peer)
        else:
            dist.send(x, dst=peer)
            dist.recv(other, src=peer)


def train(job: Job, end_step: Callable[[], None]) -> None:
    """The training loop."""
    stage, data = Stage(job), Input(job)
    model = torch.nn.Linear(FEATURES, FEATURES).to(job.device)
    for step in range(job.plan.steps):
        x = data.load_batch(step)
        micro_batches = MICRO_BATCHES
        if job.hit("p2p-micro-batches", step):
            micro_batches += 1
        for micro in range(micro_batches):
            loss = forward(job, model, x, step)
            stage.forward_pass(x, step, micro)
        leave(job, step)
        for _ in range(micro_batches):
            stage.backward_pass(x, step)
        if job.option("halo"):
            stage.exchange(x, step)
        checkpoint(job, model, step)
        if stage.group is not None and not job.hit("skipped-collective", step, "gradients"):
            dist.all_reduce(torch.zeros(FEATURES * FEATURES, device=job.device), group=stage.group)
        if not job.hit("skipped-collective", step, "metrics"):
            dist.all_reduce(loss.detach().clone())
        job.say(step, f"loss {loss.item():.4f}")
        end_step()
    dist.barrier()


if __name__ == "__main__":
    run(train)
