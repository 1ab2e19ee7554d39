"""Faults of hosts, GPUs and their memory, and of those who run them."""

from __future__ import annotations

from nccl_forensics.facts.bandwidth import ceiling
from nccl_forensics.simulate.aftermath import Death
from nccl_forensics.simulate.case import Case
from nccl_forensics.simulate.clusters import Host
from nccl_forensics.simulate.noise import pick, share
from nccl_forensics.simulate.program import Item, inserted
from nccl_forensics.simulate.scenarios.base import Scenario, target, truth
from nccl_forensics.simulate.scenarios.programs import _MAIN
from nccl_forensics.simulate.world import SECOND, BandwidthTest, Ending, Met, World

#: Xid -> (text, CUDA's words to the process, what nvidia-smi shows afterwards).
_XIDS: tuple[tuple[int, str, str, str], ...] = (
    (79, "GPU has fallen off the bus.", "unspecified launch failure", "lost"),
    (94, "Contained: SM (0x1). RST: No, D-RST: No", "uncorrectable ECC error encountered", "ecc"),
    (95, "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No", "uncorrectable ECC error encountered", "ecc"),
    (48, "DBE (double bit error) ECC Error: An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 6, subpartition 0.", "uncorrectable ECC error encountered", "ecc"),
    (119, "Timeout after 6s of waiting for RPC response from GPU{gpu} GSP! Expected function 76 (GSP_RM_CONTROL) (0x20800a4c 0x4).", "unknown error", "gsp"),
)  # fmt: skip


def _strike(case: Case, rank: int, step: int, *, hang: bool = False) -> None:
    """The rank's GPU stops at a collective; its process ends or hangs there."""
    at, _ = target(case, rank, step)
    case.change(rank, step, lambda items: inserted(items, at, Item("gpu-stop" if hang else "die")))


def _named(case: Case, rank: int) -> tuple[tuple[int, ...], ...]:
    """Accepted culprits: where no log of a rank tells which GPU is whose, nobody can be named by rank."""
    return ((rank,), ()) if not case.gathered.nccl and not case.gathered.torch else ((rank,),)


def gpu_fault(case: Case) -> None:
    rank, step = case.rank(), case.step()
    code, text, said, after = _XIDS[int(case.dice("xid") * len(_XIDS))]
    host, local = case.host_of(rank), rank % case.platform.gpus
    _strike(case, rank, step)
    case.deaths[rank] = Death("signal", 6, delay_ms=4000)
    case.swift = case.variant != "host" or case.dice("swift") < 0.5

    def late(world: World) -> None:
        process = world.processes[rank]
        at = process.ending.at - 3 * SECOND
        machine, gpu = world.hosts[host], process.gpu
        machine.events.append(
            (
                at,
                "xid",
                {"gpu": local, "code": code, "text": text.format(gpu=local), "first": True, "pid": None if code == 79 else process.pid},
            )
        )
        if code == 48:
            machine.events.append(
                (at + 2000, "xid", {"gpu": local, "code": 63, "text": "Row Remapper: New row marked for remapping, reset gpu to activate."})
            )
        machine.events.append(
            (
                at + SECOND,
                "xid",
                {
                    "gpu": local,
                    "code": 154,
                    "text": "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
                    if after == "lost"
                    else "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
                },
            )
        )
        machine.events.append(
            (process.ending.at + SECOND // 2, "xid", {"gpu": local, "code": 45, "text": "Ch 00000008", "pid": process.pid})
        )
        gpu.lost = after == "lost"
        gpu.recovery = "Reboot" if gpu.lost else "Reset"
        if after == "ecc":
            gpu.uncorrected, gpu.remap_pending = 1, True
        process.met.append(Met(process.ending.at - SECOND, "torch.cuda", {"text": said}))

    case.after.append(late)
    seen: tuple[str | None, ...] = ("gpu-fault",) if case.gathered.kernel or "ECC" in said else ("gpu-fault", "rank-died")
    truth(case, seen, ((rank,),), f"Xid {code} on GPU {local} of host {host} (rank {rank}) in step {step}")


def nvlink_fault(case: Case) -> None:
    rank, step = case.rank(), case.step()
    host, local = case.host_of(rank), rank % case.platform.gpus
    link = pick(case.seed, "link").randrange(case.platform.nvlinks)
    _strike(case, rank, step)
    case.deaths[rank] = Death("signal", 6, delay_ms=3000)

    def late(world: World) -> None:
        process, machine = world.processes[rank], world.hosts[host]
        at = process.ending.at - 2 * SECOND
        if case.platform.architecture == "Blackwell":
            text = f"NETIR_LINK_EVT  Fatal   XC0 i0 Link {link:02d} (0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
            machine.events.append((at, "xid", {"gpu": local, "code": 149, "text": text, "first": True}))
        else:
            text = f"NVLink: fatal error detected on link {link}(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
            machine.events.append((at, "xid", {"gpu": local, "code": 74, "text": text, "first": True}))
        machine.events.append(
            (process.ending.at + SECOND // 2, "xid", {"gpu": local, "code": 45, "text": "Ch 00000008", "pid": process.pid})
        )
        process.gpu.dead_links = frozenset({link})
        process.gpu.link_errors = {link: 4000 + link}
        process.met.append(
            Met(process.ending.at - SECOND, "torch.cuda", {"text": "uncorrectable NVLink error detected during the execution"})
        )

    case.after.append(late)
    truth(case, ("nvlink-fault",), _named(case, rank), f"NVLink {link} of GPU {local} on host {host} (rank {rank}) dies in step {step}")


def gpu_throttled(case: Case) -> None:
    rank = case.rank()
    host, local = case.host_of(rank), rank % case.platform.gpus
    kind = pick(case.seed, "kind").choice(("hw-thermal", "brake", "sw-thermal"))
    case.steps, case.observe = 12, "live"
    case.slow_gpu[rank] = 2.1
    case.gathered.launcher = False

    def hot(hosts: list[Host]) -> None:
        gpu = hosts[host].gpus[local]
        gpu.throttle = frozenset({kind, "hw"} if kind != "sw-thermal" else {kind})
        gpu.sm_mhz = case.platform.sm_mhz * 45 // 100
        gpu.temperature = 88 if "thermal" in kind else 61
        gpu.power_w = case.platform.power_w * 52 // 100

    case.hosts.append(hot)
    truth(case, ("gpu-throttled",), _named(case, rank), f"GPU {local} of host {host} (rank {rank}) is held at half its clocks: {kind}")


def pcie_degraded(case: Case) -> None:
    rank = case.rank()
    host, local = case.host_of(rank), rank % case.platform.gpus
    case.steps, case.observe = 12, "live"
    case.gathered.launcher = False

    def narrow(hosts: list[Host]) -> None:
        gpu = hosts[host].gpus[local]
        gpu.pcie_width = 4
        gpu.pcie_gen = max(1, case.platform.pcie_gen - 2)
        gpu.pcie_replays = 51_233
        for i in range(4):
            hosts[host].events.append((hosts[host].boot_ns + (3600 + 900 * i) * SECOND, "bandwidth", {"gpu": local}))

    case.hosts.append(narrow)
    truth(case, ("pcie-degraded",), _named(case, rank), f"GPU {local} of host {host} (rank {rank}) has 4 of its 16 PCIe lanes")


def out_of_memory(case: Case) -> None:
    rank, step = case.rank(), case.step()
    _strike(case, rank, step)
    host = case.host_of(rank)
    device = case.dice("device") < 0.4 and case.variant != "host-only"
    if device:
        total = case.platform.memory_mib / 1024
        words = "HIP" if case.platform.vendor == "amd" else "CUDA"
        said = (
            f"torch.OutOfMemoryError: {words} out of memory. Tried to allocate 2.50 GiB. GPU {rank % case.platform.gpus} has a total capacity of {total:.2f} GiB "
            f"of which 1.31 GiB is free. Including non-PyTorch memory, this process has {total - 1.4:.2f} GiB memory in use. Of the allocated memory "
            f"{total - 5:.2f} GiB is allocated by PyTorch, and 2.11 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try "
            f"setting PYTORCH_{words}_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  "
            "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
        )
        case.deaths[rank] = Death("exit", 1, said, (("forward", "/opt/job/model/layer.py", 133), *_MAIN), 5)
    else:
        case.deaths[rank] = Death("signal", 9)

    def late(world: World) -> None:
        process = world.processes[rank]
        if device:
            return
        facts: dict[str, object] = {"pid": process.pid, "job": world.job, "task": host, "limit_kb": 201_326_592, "rss_kb": 198_203_112}
        world.hosts[host].events.append((process.ending.at - SECOND // 100, "oom", facts))
        world.scheduler.insert(0, Met(process.ending.at + SECOND, "oom", {"host": world.hosts[host].name, "task": host}))

    case.after.append(late)
    told = device or case.gathered.kernel
    truth(
        case,
        ("out-of-memory",) if told else ("out-of-memory", "rank-died"),
        _named(case, rank),
        f"rank {rank} runs out of {'GPU' if device else 'host'} memory in step {step}",
    )


def node_failed(case: Case) -> None:
    host = case.host_of(case.rank(not_first=True)) or 1
    step = case.step()
    victims = case.ranks_of(host)
    for rank in victims:
        _strike(case, rank, step)
        case.deaths[rank] = Death("signal", 9)

    def late(world: World) -> None:
        at = min(world.processes[r].ending.at for r in victims)
        machine = world.hosts[host]
        machine.alive = False
        world.launcher_died.add(host)
        for r in victims:
            world.processes[r].ending = Ending(at, "signal", 9, "gone")
            world.processes[r].met = [m for m in world.processes[r].met if m.at <= at]
        world.scheduler = [Met(at + 30 * SECOND, "node", {"host": machine.name})]
        for process in world.processes.values():
            if process.host.index != host:
                process.ending = Ending(at + 31 * SECOND + int(share(world.seed, "stop", process.rank) * SECOND), "signal", 15, "launcher")

    case.after.append(late)
    truth(case, ("node-failed",), (victims, ()), f"host {host} goes away in step {step}")


def job_stopped(case: Case) -> None:
    why = pick(case.seed, "why").choice((" DUE TO TIME LIMIT", "", " DUE TO PREEMPTION"))
    case.observe = "live"

    def late(world: World) -> None:
        at = max(s.cpu for s in world.model.ranks.values()) + SECOND // 10
        for process in world.processes.values():
            process.ending = Ending(at + int(share(world.seed, "stop", process.rank) * SECOND), "signal", 15, "launcher")
            process.dumped_at = None
        world.scheduler = [Met(at, "cancelled", {"why": why}), Met(at, "waiting")]
        world.now = at + 60 * SECOND

    case.after.append(late)
    truth(case, ("job-stopped",), ((), tuple(range(case.world_size))), f"the scheduler ends the running job{why.lower()}")


def software_crash(case: Case) -> None:
    step = case.step()
    amd = ("librccl.so.1.0.70200", "libtorch_hip.so", "libMIOpen.so.1.0.70200")
    nvidia = ("libnccl.so.2.27.7", "libtorch_cuda.so", "libcudnn_ops.so.9")
    library = pick(case.seed, "library").choice(amd if case.platform.vendor == "amd" else nvidia)
    for rank in range(case.world_size):
        at, _ = target(case, rank, step)
        case.change(rank, step, lambda items, at=at: inserted(items, at, Item("die")))  # type: ignore[misc]  # mypy gives such a lambda no type
        case.deaths[rank] = Death("signal", 11, delay_ms=int(800 * case.dice("late", rank)))

    def late(world: World) -> None:
        for process in world.processes.values():
            process.host.events.append((process.ending.at, "segfault", {"pid": process.pid, "library": library}))
            frames = (
                "Fatal Python error: Segmentation fault\n\n"
                f"Thread 0x{world.pointer(process.rank, 'thread'):016x} (most recent call first):\n"
                '  File "/opt/job/model/layer.py", line 133 in forward\n  File "/opt/job/trainer.py", line 188 in train_step\n'
                '  File "/opt/job/pretrain.py", line 97 in main\n  File "/opt/job/pretrain.py", line 121 in <module>\n'
            )
            process.met.append(Met(process.ending.at, "torch.said", {"text": frames}))

    case.after.append(late)
    truth(case, ("software-crash",), ((), tuple(range(case.world_size))), f"every rank crashes in {library} in step {step}")


def _tested(case: Case, part: float, wrong: dict[int, int]) -> None:
    """A bandwidth test ran before the job; the job itself goes well."""
    case.observe, case.first_step = "finish", 0
    limit = ceiling([case.platform.product], 8, 1)
    inside = limit.bus_bw_gb_s * 1.03 if limit is not None else case.platform.nvlinks * case.platform.nvlink_gb_s * 0.8
    between = case.platform.nics * case.platform.nic_gbit_s / 8 * 0.95
    reached = inside if case.host_count == 1 else min(inside, between)

    def late(world: World) -> None:
        world.bandwidth_test = BandwidthTest(reached * part, wrong)

    case.after.append(late)


def data_corruption(case: Case) -> None:
    dice = pick(case.seed, "sizes")
    wrong = {8 << (2 * dice.randrange(8, 15)): dice.randrange(1, 5000) for _ in range(2)}
    _tested(case, 1.0, wrong)
    truth(case, ("data-corruption",), ((), tuple(range(case.world_size))), f"all_reduce_perf counts wrong elements: {wrong}")


def low_bus_bandwidth(case: Case) -> None:
    part = 0.35 + 0.3 * case.dice("part")
    # What several hosts should reach stands in no data sheet: there a test alone proves nothing.
    _tested(case, part, {})
    truth(
        case,
        ("low-bus-bandwidth",) if case.host_count == 1 else ("low-bus-bandwidth", None),
        ((), tuple(range(case.world_size))),
        f"all_reduce_perf reaches {part:.0%} of what the platform carries",
    )


SCENARIOS = (
    Scenario(
        "data-corruption",
        "a bandwidth test gets wrong results",
        data_corruption,
        ("log", "dump", "log-host"),
        8,
        platforms=("a100", "h100", "h200", "v100"),
    ),
    Scenario(
        "low-bus-bandwidth",
        "a bandwidth test far below what the links carry",
        low_bus_bandwidth,
        ("log", "dump", "log-host"),
        8,
        platforms=("a100", "h100", "h200", "v100"),
    ),
    Scenario(
        "gpu-fault",
        "a GPU fails: Xid, memory errors, off the bus",
        gpu_fault,
        ("host", "host-only", "log", "log-host"),
        4,
        platforms=("a100", "h100", "h200", "h100-roce"),
    ),
    Scenario(
        "nvlink-fault",
        "an NVLink dies",
        nvlink_fault,
        ("host", "host-only", "log-host", "log"),
        4,
        platforms=("a100", "h100", "h200", "b200"),
    ),
    Scenario(
        "gpu-throttled", "a GPU is held down by heat or power", gpu_throttled, ("host", "log-host", "host-only"), 4, slow=True, nvidia=True
    ),
    Scenario("pcie-degraded", "a GPU lost PCIe lanes", pcie_degraded, ("host", "log-host", "host-only"), 4, slow=True, nvidia=True),
    Scenario("out-of-memory", "host or GPU memory runs out", out_of_memory, ("host", "log-host", "host-only", "log"), 4),
    Scenario("node-failed", "a node goes away", node_failed, ("log-host", "host", "host-only"), 16, 2),
    Scenario("job-stopped", "the scheduler ends the job", job_stopped, ("log-host", "host", "host-only"), 4),
    Scenario("software-crash", "all ranks crash alike", software_crash, ("log", "log-host", "host-only"), 4),
)
