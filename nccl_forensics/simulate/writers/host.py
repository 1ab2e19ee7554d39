"""What the tools on a host print: kernel log, nvidia-smi, ibstat and counters, ip, ulimit and df."""

from __future__ import annotations

import time
from collections.abc import Iterator

from nccl_forensics.simulate.clusters import Gpu, Host, Nic
from nccl_forensics.simulate.noise import mix, share
from nccl_forensics.simulate.world import COUNTERS, HW_COUNTERS, SECOND, World

_XID_NAMES = "pt_main_thread"


def kernel(world: World, host: Host) -> Iterator[str]:
    """The kernel log of a host, in one of dmesg's three layouts; all hosts of a case in the same."""
    style = mix(world.seed, "dmesg") % 3
    began = max(host.boot_ns + 60 * SECOND, host.boot_ns)
    lines = [(began + i * 2 * SECOND, text) for i, text in enumerate(_driver(host))]
    for i in range(mix(world.seed, "noise", host.index) % 4):
        at = world.begin - int(share(world.seed, "noise", host.index, i) * 6 * 3600) * SECOND
        nic = host.nics[i % len(host.nics)] if host.nics else None
        if nic is not None and host.platform.network != "efa":
            lines.append(
                (
                    at,
                    f"mlx5_core {nic.bus_id}: mlx5_cmd_out_err:838:(pid 2711): ACCESS_REG(0x805) op_mod(0x1) failed, status bad resource(0x5), syndrome (0x305684), err(-22)",
                )
            )
        else:
            lines.append((at, "perf: interrupt took too long (2503 > 2500), lowering kernel.perf_event_max_sample_rate to 79750"))
    for at, kind, facts in host.events:
        lines += [(at + 40_000 * i, text) for i, text in enumerate(_kernel_event(host, kind, facts))]
    for at, text in sorted(lines, key=lambda x: x[0]):
        if style == 0:
            t = time.asctime(time.gmtime(at // SECOND))
            yield f"[{t}] {text}\n"
        elif style == 1:
            t = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at // SECOND))
            yield f"{t},{at % SECOND // 1000:06d}+00:00 {text}\n"
        else:
            since = at - host.boot_ns
            yield f"[{since // SECOND:5d}.{since % SECOND // 1000:06d}] {text}\n"


def _driver(host: Host) -> list[str]:
    """What the GPUs' driver says as it is loaded."""
    if host.platform.vendor == "amd":
        return ["[drm] amdgpu kernel modesetting enabled.", f"[drm] amdgpu version: {host.platform.driver}"]
    return [
        f"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {host.platform.driver}  Release Build  (dvs-builder@U16-I3-B17-4-1)",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 234",
    ]


def _kernel_event(host: Host, kind: str, f: dict[str, object]) -> list[str]:
    if kind == "xid":
        gpu = host.gpus[int(str(f["gpu"]))]
        bus = gpu.bus_id.rsplit(".", 1)[0]
        pid = f.get("pid")
        who = f"pid={pid}, name={_XID_NAMES}, " if pid is not None else "pid='<unknown>', name=<unknown>, "
        lines = [f"NVRM: GPU at PCI:{bus}: {gpu.uuid}", f"NVRM: GPU Board Serial Number: {gpu.serial}"] if f.get("first") else []
        lines.append(f"NVRM: Xid (PCI:{bus}): {f['code']}, {who}{f['text']}")
        if f["code"] == 79:
            lines.append(f"NVRM: GPU {gpu.bus_id}: GPU has fallen off the bus.")
        return lines
    if kind == "oom":
        group = f"/system.slice/slurmstepd.scope/job_{f['job']}/step_0/user/task_{f['task']}"
        return [
            "pt_main_thread invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
            f"memory: usage {f['limit_kb']}kB, limit {f['limit_kb']}kB, failcnt 8121",
            f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg={group},task_memcg={group},task=pt_main_thread,pid={f['pid']},uid=1000",
            f"Memory cgroup out of memory: Killed process {f['pid']} (pt_main_thread) total-vm:{int(str(f['rss_kb'])) * 3}kB, anon-rss:{f['rss_kb']}kB, file-rss:311200kB, shmem-rss:0kB, UID:1000 pgtables:182340kB oom_score_adj:0",
            f"oom_reaper: reaped process {f['pid']} (pt_main_thread), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
        ]
    if kind == "link":
        nic = host.nics[int(str(f["nic"]))]
        lines = [f"mlx5_core {nic.bus_id} {nic.netdev}: Link {f['state']}"]
        if f.get("cable"):
            lines.insert(0, f"mlx5_core {nic.bus_id}: Port module event: module 0, Cable unplugged")
        return lines
    if kind == "segfault":
        return [
            f"pt_main_thread[{f['pid']}]: segfault at 8 ip 00007f1b7a3c1d2e sp 00007ffd2a7be8a0 error 4 in {f['library']}[7f1b79e00000+2200000]"
        ]
    if kind == "bandwidth":
        gpu = host.gpus[int(str(f["gpu"]))]
        lines = []
        for _ in range(3):
            lines += [
                f"pcieport 0000:{gpu.bus_id[5:7]}:01.0: AER: Corrected error received: {gpu.bus_id}",
                f"nvidia {gpu.bus_id}: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
                f"nvidia {gpu.bus_id}:   device [10de:2330] error status/mask=00000001/0000e000",
                f"nvidia {gpu.bus_id}:    [ 0] RxErr                  (First)",
            ]
        return lines
    return [str(f["text"])]


def nvidia_smi(world: World, host: Host) -> Iterator[str]:
    """``nvidia-smi -q`` of a host: the sections that matter, in the layout of driver branch 550."""
    p = host.platform
    yield "\n==============NVSMI LOG==============\n\n"
    yield f"{'Timestamp':55}: {time.asctime(time.gmtime(world.now // SECOND))}\n"
    yield f"{'Driver Version':55}: {p.driver}\n{'CUDA Version':55}: {p.cuda_driver // 1000}.{p.cuda_driver % 1000 // 10}\n\n"
    yield f"{'Attached GPUs':55}: {sum(not g.lost for g in host.gpus)}\n"
    for gpu in host.gpus:
        if gpu.lost:
            continue
        yield from _gpu(host, gpu)
    for gpu in host.gpus:
        if gpu.lost:
            yield f"Unable to determine the device handle for GPU{gpu.bus_id}: Unknown Error\n"


def _line(depth: int, name: str, value: object) -> str:
    return f"{'    ' * depth + name:55}: {value}\n"


def _gpu(host: Host, gpu: Gpu) -> Iterator[str]:
    p = host.platform
    yield f"GPU 0000{gpu.bus_id.upper()}\n"
    yield _line(1, "Product Name", p.product) + _line(1, "Product Architecture", p.architecture) + _line(1, "Persistence Mode", "Enabled")
    yield _line(1, "Serial Number", gpu.serial) + _line(1, "GPU UUID", gpu.uuid) + _line(1, "Minor Number", gpu.index)
    yield _line(1, "VBIOS Version", "96.00.A5.00.03") + _line(1, "GSP Firmware Version", p.driver)
    if p.driver >= "570":
        yield _line(1, "GPU Recovery Action", gpu.recovery)
    else:
        needed = "Yes" if gpu.recovery in ("Reset", "Reboot") else "No"
        yield "    GPU Reset Status\n" + _line(2, "Reset Required", needed) + _line(2, "Drain and Reset Recommended", "No")
    yield "    PCI\n" + _line(2, "Bus Id", f"0000{gpu.bus_id.upper()}") + "        GPU Link Info\n            PCIe Generation\n"
    yield _line(4, "Max", p.pcie_gen) + _line(4, "Current", gpu.pcie_gen) + _line(4, "Device Current", gpu.pcie_gen)
    yield _line(4, "Device Max", p.pcie_gen) + _line(4, "Host Max", "N/A")
    yield "            Link Width\n" + _line(4, "Max", "16x") + _line(4, "Current", f"{gpu.pcie_width}x")
    yield _line(2, "Replays Since Reset", gpu.pcie_replays) + _line(2, "Replay Number Rollovers", 0)
    yield _line(1, "Performance State", "P0") + "    Clocks Event Reasons\n"
    names = (
        ("Idle", ""), ("Applications Clocks Setting", ""), ("SW Power Cap", "sw-power"), ("HW Slowdown", "hw"),
    )  # fmt: skip
    for name, key in names:
        yield _line(2, name, _active(gpu, key))
    yield _line(3, "HW Thermal Slowdown", _active(gpu, "hw-thermal")) + _line(3, "HW Power Brake Slowdown", _active(gpu, "brake"))
    yield _line(2, "Sync Boost", "Not Active") + _line(2, "SW Thermal Slowdown", _active(gpu, "sw-thermal"))
    yield _line(2, "Display Clock Setting", "Not Active")
    yield "    FB Memory Usage\n" + _line(2, "Total", f"{p.memory_mib} MiB") + _line(2, "Reserved", "551 MiB")
    yield _line(2, "Used", f"{gpu.used_mib} MiB") + _line(2, "Free", f"{p.memory_mib - gpu.used_mib - 551} MiB")
    yield "    Utilization\n" + _line(2, "GPU", f"{gpu.utilization} %") + _line(2, "Memory", "41 %")
    yield "    ECC Mode\n" + _line(2, "Current", "Enabled") + _line(2, "Pending", "Enabled")
    yield "    ECC Errors\n"
    for scope in ("Volatile", "Aggregate"):
        yield f"        {scope}\n" + _line(3, "SRAM Correctable", 0) + _line(3, "SRAM Uncorrectable Parity", 0)
        yield (
            _line(3, "SRAM Uncorrectable SEC-DED", 0)
            + _line(3, "DRAM Correctable", gpu.corrected)
            + _line(3, "DRAM Uncorrectable", gpu.uncorrected)
        )
    yield "    Remapped Rows\n" + _line(2, "Correctable Error", 0) + _line(2, "Uncorrectable Error", min(gpu.uncorrected, 1))
    yield _line(2, "Pending", "Yes" if gpu.remap_pending else "No") + _line(
        2, "Remapping Failure Occurred", "Yes" if gpu.remap_failed else "No"
    )
    hot = {"hw-thermal", "sw-thermal"} & gpu.throttle
    yield (
        "    Temperature\n"
        + _line(2, "GPU Current Temp", f"{gpu.temperature} C")
        + _line(2, "GPU T.Limit Temp", f"{0 if hot else 87 - gpu.temperature} C")
    )
    yield _line(2, "GPU Shutdown T.Limit Temp", "-8 C") + _line(2, "GPU Slowdown T.Limit Temp", "-2 C")
    yield _line(2, "GPU Max Operating T.Limit Temp", "0 C") + _line(2, "Memory Current Temp", f"{gpu.temperature + 9} C")
    yield (
        "    GPU Power Readings\n"
        + _line(2, "Average Power Draw", f"{gpu.power_w}.31 W")
        + _line(2, "Instantaneous Power Draw", f"{gpu.power_w + 7}.02 W")
    )
    yield (
        _line(2, "Current Power Limit", f"{p.power_w}.00 W")
        + _line(2, "Default Power Limit", f"{p.power_w}.00 W")
        + _line(2, "Max Power Limit", f"{p.power_w}.00 W")
    )
    yield "    Clocks\n" + _line(2, "Graphics", f"{gpu.sm_mhz} MHz") + _line(2, "SM", f"{gpu.sm_mhz} MHz") + _line(2, "Memory", "2619 MHz")
    yield "    Max Clocks\n" + _line(2, "Graphics", f"{p.sm_mhz} MHz") + _line(2, "SM", f"{p.sm_mhz} MHz") + _line(2, "Memory", "2619 MHz")
    if p.nvswitch and p.architecture in ("Hopper", "Blackwell"):
        yield "    Fabric\n" + _line(2, "State", "Completed") + _line(2, "Status", "Success")
    yield "    Processes                                          : None\n"


def _active(gpu: Gpu, key: str) -> str:
    return "Active" if key and key in gpu.throttle else "Not Active"


def _listed(host: Host) -> Iterator[tuple[Gpu, str]]:
    """The GPUs that nvidia-smi still finds, with the line that names each."""
    for gpu in host.gpus:
        if not gpu.lost:
            yield gpu, f"GPU {gpu.index}: {host.platform.product} (UUID: {gpu.uuid})\n"


def nvlink(host: Host) -> Iterator[str]:
    """``nvidia-smi nvlink -s``."""
    p = host.platform
    for gpu, name in _listed(host):
        yield name
        for link in range(p.nvlinks):
            yield f"\t Link {link}: {'<inactive>' if link in gpu.dead_links else f'{p.nvlink_gb_s:g} GB/s'}\n"


def nvlink_errors(host: Host) -> Iterator[str]:
    """``nvidia-smi nvlink -e`` of boards up to Hopper."""
    for gpu, name in _listed(host):
        yield name
        for link in range(host.platform.nvlinks):
            count = gpu.link_errors.get(link, 0)
            yield f"\t Link {link}: Replay Errors: {count}\n\t Link {link}: Recovery Errors: {count // 40}\n\t Link {link}: CRC Errors: {count * 3}\n"


def ibstat(host: Host) -> Iterator[str]:
    """``ibstat``."""
    roce = host.platform.network == "roce"
    for nic in host.nics:
        tail = "Ethernet" if roce else "InfiniBand"
        yield f"CA '{nic.device}'\n\tCA type: {host.platform.nic_type}\n\tNumber of ports: 1\n\tFirmware version: 28.41.1000\n"
        yield f"\tHardware version: 0\n\tNode GUID: 0x{nic.guid}\n\tSystem image GUID: 0x{nic.guid}\n\tPort 1:\n"
        yield f"\t\tState: {'Active' if nic.up else 'Down'}\n\t\tPhysical state: {'LinkUp' if nic.up else 'Polling'}\n"
        yield f"\t\tRate: {nic.gbit_s if nic.up else 40}\n\t\tBase lid: {0 if roce else nic.lid}\n\t\tLMC: 0\n\t\tSM lid: {0 if roce else 3}\n"
        yield f"\t\tCapability mask: {'0x00010000' if roce else '0xa751e848'}\n\t\tPort GUID: 0x{nic.guid}\n\t\tLink layer: {tail}\n"


def counters(host: Host, nics: list[Nic], when: str) -> Iterator[str]:
    """/sys/class/infiniband as ``grep -r .`` shows it, before the job or after it."""
    for nic in nics:
        base = f"/sys/class/infiniband/{nic.device}"
        values = nic.before if when == "before" else nic.after
        yield f"{base}/board_id:MT_0000000838\n{base}/fw_ver:28.41.1000\n{base}/hca_type:{host.platform.nic_type}\n"
        for name in COUNTERS:
            yield f"{base}/ports/1/counters/{name}:{values.get(name, 0)}\n"
        for name in HW_COUNTERS:
            yield f"{base}/ports/1/hw_counters/{name}:{values.get(name, 0)}\n"
        up = nic.up or when == "before"
        layer = "Ethernet" if host.platform.network == "roce" else "InfiniBand"
        yield f"{base}/ports/1/link_layer:{layer}\n{base}/ports/1/phys_state:{'5: LinkUp' if up else '2: Polling'}\n"
        yield f"{base}/ports/1/rate:{nic.gbit_s} Gb/sec ({nic.lanes}X {nic.speed})\n{base}/ports/1/state:{'4: ACTIVE' if up else '1: DOWN'}\n"


def addresses(world: World, host: Host) -> Iterator[str]:
    """``ip addr``."""
    yield "1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN group default qlen 1000\n"
    yield "    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00\n    inet 127.0.0.1/8 scope host lo\n       valid_lft forever preferred_lft forever\n"
    mac = mix(world.seed, "mac", host.index) & 0xFFFFFF
    shown = f"b8:3f:d2:{mac >> 16:02x}:{mac >> 8 & 255:02x}:{mac & 255:02x}"
    first = world.hosts[host.index].address if host.interface == "eth0" else f"10.8.{host.index // 200}.{host.index % 200 + 10}"
    yield f"2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu {host.mtu} qdisc mq state UP group default qlen 1000\n"
    yield f"    link/ether {shown} brd ff:ff:ff:ff:ff:ff\n    inet {first}/8 brd 10.255.255.255 scope global eth0\n       valid_lft forever preferred_lft forever\n"
    yield "3: docker0: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 qdisc noqueue state DOWN group default\n"
    yield "    link/ether 02:42:8e:11:73:0a brd ff:ff:ff:ff:ff:ff\n    inet 172.17.0.1/16 brd 172.17.255.255 scope global docker0\n       valid_lft forever preferred_lft forever\n"


def limits(host: Host) -> Iterator[str]:
    """``ulimit -a``."""
    memlock = "unlimited" if host.memlock_kib is None else str(host.memlock_kib)
    rows = (
        ("real-time non-blocking time  (microseconds, -R)", "unlimited"), ("core file size              (blocks, -c)", "0"),
        ("data seg size               (kbytes, -d)", "unlimited"), ("scheduling priority                 (-e)", "0"),
        ("file size                   (blocks, -f)", "unlimited"), ("pending signals                     (-i)", "8254531"),
        ("max locked memory           (kbytes, -l)", memlock), ("max memory size             (kbytes, -m)", "unlimited"),
        ("open files                          (-n)", "1048576"), ("pipe size                (512 bytes, -p)", "8"),
        ("stack size                  (kbytes, -s)", "8192"), ("cpu time                   (seconds, -t)", "unlimited"),
        ("max user processes                  (-u)", "8254531"), ("virtual memory              (kbytes, -v)", "unlimited"),
    )  # fmt: skip
    for name, value in rows:
        yield f"{name} {value}\n"


def shared_memory(host: Host) -> Iterator[str]:
    """``df /dev/shm`` in 1K blocks."""
    if host.shm_bytes < 1 << 30:
        total = host.shm_bytes // 1024
        used, free = total, 0
    else:
        total = 1_056_000_000
        used, free = 48_212, total - 48_212
    yield "Filesystem     1K-blocks  Used Available Use% Mounted on\n"
    yield f"{'shm' if total < 1 << 20 else 'tmpfs':10} {total:>13} {used:>5} {free:>9} {100 * used // total:>3}% /dev/shm\n"
