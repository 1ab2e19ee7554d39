"""The part of a training job that is not communication: input, compute, checkpoints, metrics. Some of it can stall or lag."""

from __future__ import annotations

import ctypes
import os
import queue
import re
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

from .harness import Job, wait_for_storage

FEATURES = 64


class Corpus(torch.utils.data.Dataset[torch.Tensor]):
    """Samples for a DataLoader with worker processes."""

    def __init__(self, stuck_from: int | None) -> None:
        self.stuck_from = stuck_from

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.stuck_from is not None and index // 8 >= self.stuck_from:
            time.sleep(86_400)
        return torch.full((FEATURES,), float(index % 7))


class Input:
    """The input pipeline of one rank."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.workers = None
        if job.option("loader-workers"):
            mine = job.plan.fault == "stuck-loader" and job.rank in job.plan.ranks
            data = Corpus(job.plan.step if mine else None)
            self.workers = iter(torch.utils.data.DataLoader(data, batch_size=8, num_workers=1, prefetch_factor=2))

    def load_batch(self, step: int) -> torch.Tensor:
        """One batch of 8 samples."""
        if self.workers is not None:
            return next(self.workers).to(self.job.device)
        if self.job.late("slow-loader", step):
            read_shard(self.job.plan.seconds)
        if self.job.hit("stuck-loader", step, "storage"):
            wait_for_storage(self.job)
        if self.job.hit("stuck-loader", step, "tokenize"):
            tokenize("shard-000017")
        if self.job.hit("stuck-loader", step, "queue"):
            self.fetch_from_queue()
        if self.job.hit("gil-held", step, "regex"):
            clean_text("a" * 48 + "!")
        return torch.randn(8, FEATURES, device=self.job.device)

    def fetch_from_queue(self) -> torch.Tensor:
        """Wait for a prefetch thread that is gone."""
        prefetched: queue.Queue[torch.Tensor] = queue.Queue()
        return prefetched.get()


def read_shard(seconds: float) -> None:
    """A read from slow storage."""
    time.sleep(seconds)


def tokenize(text: str) -> int:
    """A tokenizer that does not come to an end on this sample."""
    total = 0
    while True:
        for c in text:
            total = (total * 31 + ord(c)) % 1_000_003


def clean_text(text: str) -> bool:
    """A pattern that backtracks for ever, with the GIL held."""
    return re.match(r"(a|a)*$", text) is not None


def forward(job: Job, model: torch.nn.Module, x: torch.Tensor, step: int) -> torch.Tensor:
    """Forward pass and loss."""
    time.sleep(job.plan.pace)
    if job.late("slow-compute", step):
        attention(job, job.plan.seconds)
    if job.hit("stuck-compute", step):
        attention(job, 86_400)
    if job.hit("memory-limit", step):
        return longer_sequences(job, x).mean()
    loss: torch.Tensor = model(x).square().mean()
    return loss


def attention(job: Job, seconds: float) -> torch.Tensor:
    """Matrix products for the given time."""
    end = time.monotonic() + seconds
    a = torch.randn(192, 192, device=job.device)
    while time.monotonic() < end:
        a = torch.nn.functional.normalize(a @ a)
    return a


def longer_sequences(job: Job, x: torch.Tensor) -> torch.Tensor:
    """A batch that does not fit into what this process may take: on the host by a limit, on a GPU by its size."""
    if job.plan.device == "cuda":
        return torch.empty(torch.cuda.get_device_properties(job.device).total_memory, device=job.device) + x.mean()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
    if job.plan.site == "python":
        held = [bytearray(32 << 20) for _ in range(64)]
        return x + len(held)
    return torch.zeros(1 << 30, device=job.device) + x.mean()


def checkpoint(job: Job, model: torch.nn.Module, step: int) -> None:
    """Save, on rank 0 or on the rank whose storage hangs."""
    if job.hit("host-stall", step, "checkpoint"):
        save_to(slow_disk(), model)
    if job.hit("host-stall", step, "lock"):
        with_lock_held_elsewhere()
    if job.hit("host-stall", step, "metrics"):
        push_metrics(step)
    if job.hit("host-stall", step, "subprocess"):
        run_hook()
    if job.hit("gil-held", step, "extension"):
        native_extension()
    if job.hit("evaluation", step):
        evaluate(job)
    if job.rank == 0 and step % 4 == 3:
        with tempfile.TemporaryFile() as out:
            torch.save(model.state_dict(), out)


def slow_disk() -> Path:
    """A path whose writes never return."""
    path = Path(tempfile.mkdtemp()) / "checkpoint.pt"
    os.mkfifo(path)
    return path


def save_to(path: Path, model: torch.nn.Module) -> None:
    """Write a checkpoint."""
    torch.save(model.state_dict(), path)


def with_lock_held_elsewhere() -> None:
    """A lock that a thread took and never gives back."""
    lock, taken = threading.Lock(), threading.Event()

    def flush() -> None:
        with lock:
            taken.set()
            time.sleep(86_400)

    threading.Thread(target=flush, name="log-flusher", daemon=True).start()
    taken.wait()
    with lock:
        pass


def push_metrics(step: int) -> bytes:
    """Send metrics to a server that accepts and never answers."""
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    client.sendall(f"loss,step={step}\n".encode())
    return client.recv(16)


def run_hook() -> None:
    """A user's hook in a process of its own that never ends."""
    subprocess.run([sys.executable, "-c", "import time; time.sleep(86400)"], check=True)


def native_extension() -> None:
    """A call into C that keeps the GIL: no other thread of this process runs Python meanwhile."""
    libc = ctypes.PyDLL(None)
    while True:  # a signal ends a sleep
        libc.sleep(86_400)


def evaluate(job: Job) -> None:
    """A validation pass on one rank while the others go on to the next collective."""
    end = time.monotonic() + job.plan.seconds
    part = 0
    while time.monotonic() < end:
        attention(job, 0.5)
        part += 1
        print(f"rank {job.rank} evaluated {part} batches", flush=True)
