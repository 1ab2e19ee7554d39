"""Output of nccl-tests' all_reduce_perf, in its layout since 2022."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_forensics.facts.bandwidth import bus_factor
from nccl_forensics.simulate.noise import share
from nccl_forensics.simulate.world import BandwidthTest, World


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10000 else f"{value:.1f}" if value < 100000 else f"{value:.0f}"


def all_reduce(world: World, test: BandwidthTest) -> Iterator[str]:
    """One run over all ranks, 8 bytes to 8 GiB in steps of 4."""
    ranks = world.layout.world
    yield "# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n"
    yield "#\n# Using devices\n"
    for rank in range(ranks):
        process = world.processes[rank]
        bus = process.gpu.bus_id[5:7]
        yield f"#  Rank {rank:2d} Group  0 Pid {process.pid - 5000:6d} on {process.host.name:>10} device {process.local_rank:2d} [0x{bus}] {world.platform.product}\n"
    yield "#\n"
    yield "#                                                              out-of-place                       in-place          \n"
    yield "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    yield "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       \n"
    factor = bus_factor("all_reduce", ranks) or 1.0
    latency = 26.0 + 6.0 * (ranks // world.platform.gpus).bit_length()
    size, total, lines, bad = 8, 0.0, 0, 0
    while size <= 8 << 30:
        row = f"{size:12d}  {size // 4:12d}  {'float':>8}  {'sum':>6}  {-1:>6}"
        for placement in ("out", "in"):
            noise = 0.98 + 0.03 * share(world.seed, "test", size, placement)
            micros = (latency + size * factor / test.bus_gb_s / 1000) * noise
            algorithm = size / micros / 1000
            wrong = test.wrong.get(size, 0) if placement == "out" else 0
            row += f"  {_number(micros):>7}  {algorithm:>6.2f}  {algorithm * factor:>6.2f}  {wrong:>5}"
            total, lines, bad = total + algorithm * factor, lines + 1, bad + wrong
        yield row + "\n"
        size *= 4
    yield f"# Out of bounds values : {bad} {'FAILED' if bad else 'OK'}\n# Avg bus bandwidth    : {total / lines:.4f} \n#\n"
