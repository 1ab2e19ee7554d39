"""Faults of the set-up: settings, libraries, limits, interfaces. Some end the job at its first communicator, some only make it slow."""

from __future__ import annotations

from collections.abc import Callable

from nccl_forensics.simulate.case import Case
from nccl_forensics.simulate.clusters import Host
from nccl_forensics.simulate.failures import broken_start
from nccl_forensics.simulate.noise import pick
from nccl_forensics.simulate.scenarios.base import Scenario, truth
from nccl_forensics.simulate.world import SECOND, Met, World

_FABRIC = ("a100", "h100", "h200", "h100-roce", "b200")
_SWITCHED = ("a100", "h100", "h200", "b200")


def _slow_run(case: Case) -> None:
    case.first_step = 0
    case.observe = "finish" if case.dice("finish") < 0.5 else "live"


def _all(case: Case, **settings: str) -> None:
    case.settings |= settings


def _on(case: Case, host: int, change: Callable[[Host], None]) -> None:
    case.hosts.append(lambda hosts: change(hosts[host]))


def _some_host(case: Case) -> int:
    return case.host_of(case.rank_asked) if case.rank_asked is not None else pick(case.seed, "host").randrange(case.host_count)


def socket_fallback(case: Case) -> None:
    _slow_run(case)
    everyone = tuple(range(case.world_size))
    if case.dice("how") < 0.6:
        _all(case, **{"NCCL_IB_DISABLE": "1"})
        what = "NCCL_IB_DISABLE=1 everywhere: TCP between hosts that have adapters"
    else:
        _all(case, **{"NCCL_NET": "Socket"})
        what = "NCCL_NET=Socket everywhere: TCP between hosts that have adapters"
    case.link_share = 0.03
    truth(case, ("socket-fallback",), ((), everyone), what)


def p2p_disabled(case: Case) -> None:
    _slow_run(case)
    everyone = tuple(range(case.world_size))
    if case.platform.nvlinks:
        _all(case, **{"NCCL_P2P_DISABLE": "1"})
        truth(case, ("p2p-disabled",), ((), everyone), "NCCL_P2P_DISABLE=1 everywhere: shared memory inside the hosts")
        return
    host = _some_host(case)

    def change(h: Host) -> None:
        h.direct_peers = False

    _on(case, host, change)
    truth(case, ("p2p-disabled",), (case.ranks_of(host), ()), f"host {host} forbids peer access (ACS on): shared memory inside it")


def gdr_disabled(case: Case) -> None:
    _slow_run(case)
    host = _some_host(case)

    def change(h: Host) -> None:
        h.peer_memory = False

    if case.dice("how") < 0.3:
        for number in range(case.host_count):
            _on(case, number, change)
        truth(case, ("gdr-disabled",), ((), tuple(range(case.world_size))), "no peer-memory module on any host")
        return
    _on(case, host, change)
    truth(case, ("gdr-disabled",), (case.ranks_of(host),), f"host {host} has no peer-memory module: its traffic goes through host memory")


def few_channels(case: Case) -> None:
    _slow_run(case)
    _all(case, NCCL_MAX_NCHANNELS=pick(case.seed, "count").choice(("1", "2", "4")))
    truth(
        case,
        ("few-channels", "bad-setting"),
        ((), tuple(range(case.world_size))),
        f"NCCL_MAX_NCHANNELS={case.settings['NCCL_MAX_NCHANNELS']} everywhere",
    )


def nic_underused(case: Case) -> None:
    _slow_run(case)
    few = pick(case.seed, "few").choice(("mlx5_0", "mlx5_0,mlx5_1", "=mlx5_2"))
    _all(case, NCCL_IB_HCA=few)
    truth(case, ("nic-underused",), ((), tuple(range(case.world_size))), f"NCCL_IB_HCA={few} everywhere")


def nvls_disabled(case: Case) -> None:
    _slow_run(case)
    _all(case, NCCL_NVLS_ENABLE="0")
    truth(
        case, ("nvls-disabled", None), ((), tuple(range(case.world_size))), "NCCL_NVLS_ENABLE=0 everywhere on GPUs that have NVLink SHARP"
    )


def version_mismatch(case: Case) -> None:
    case.first_step = 0
    rank = case.rank()
    host = case.host_of(rank)
    other = next(r for r in reversed(case.platform.releases) if r != case.release)
    whole = case.host_count > 1
    odd = case.ranks_of(host) if whole else (rank,)

    def late(world: World) -> None:
        for r in odd:
            world.processes[r].release = other
        at = world.begin + 9 * SECOND
        broken_start(
            world,
            at,
            {odd[0]: (3, "Message truncated : received 1024 bytes instead of 256", Met(at, "nccl.truncated", {"got": 1024, "want": 256}))},
            bootstrap=True,
        )

    case.after.append(late)
    rest = tuple(r for r in range(case.world_size) if r not in odd)
    even = len(odd) == len(rest)
    # Up to 2.21 only the process with rank 0 prints its release: who is odd cannot be told then.
    quiet = "2.21.5" in (case.release, other)
    accepted = (odd, rest, ()) if even else (odd, ()) if quiet else (odd,)
    truth(case, ("version-mismatch",), accepted, f"ranks {list(odd)} load NCCL {other}, the others {case.release}")


def environment_mismatch(case: Case) -> None:
    case.first_step = 0
    host = _some_host(case) if case.host_count > 2 else case.host_count - 1
    odd = case.ranks_of(host) if case.host_count > 2 else (case.rank(),)
    name, value = "NCCL_MAX_NCHANNELS", pick(case.seed, "setting").choice(("2", "4"))

    def late(world: World) -> None:
        for r in odd:
            process = world.processes[r]
            process.settings = process.settings | {name: value}
        at = world.begin + 7 * SECOND
        failing = {
            r: (3, "Message truncated : received 6144 bytes instead of 4096", Met(at, "nccl.truncated", {"got": 6144, "want": 4096}))
            for r in (odd[0],)
        }
        broken_start(world, at, failing, bootstrap=False)

    case.after.append(late)
    truth(case, ("environment-mismatch", "bad-setting"), (odd,), f"ranks {list(odd)} have {name}={value}, the others have not")


def wrong_interface(case: Case) -> None:
    case.first_step = 0
    where = pick(case.seed, "interface").choice(("docker0", "lo"))
    address = "172.17.0.1" if where == "docker0" else "127.0.0.1"
    host = max(1, _some_host(case))
    everywhere = where == "docker0"
    case.settings |= {"NCCL_SOCKET_IFNAME": where} if everywhere else {}

    def change(hosts: list[Host]) -> None:
        for h in hosts if everywhere else [hosts[host]]:
            h.interface, h.address = where, address
            h.settings["NCCL_SOCKET_IFNAME"] = where

    case.hosts.append(change)

    def late(world: World) -> None:
        at = world.begin + 70 * SECOND
        port = 40000 + case.seed % 20000
        struck = [r for r in world.processes if r >= case.platform.gpus] if everywhere else [case.ranks_of(host)[0] - 1]
        said = f"socketPollConnect: connect to {address}<{port}> returned Connection refused, exceeded error retry count after 35 attempts"
        failing = {
            r: (6, said, Met(at, "nccl.connect", {"peer": f"{address}<{port}>", "error": "Connection refused", "tries": 34}))
            for r in struck
        }
        broken_start(world, at, failing, bootstrap=True)

    case.after.append(late)
    ranks = tuple(range(case.world_size))
    accepted = ((), ranks, ranks[case.platform.gpus :]) if everywhere else (case.ranks_of(host), ())
    truth(case, ("wrong-interface",), accepted, f"NCCL_SOCKET_IFNAME={where} {'everywhere' if everywhere else f'on host {host}'}")


def connection_failed(case: Case) -> None:
    case.first_step = 0
    host = max(1, _some_host(case))
    error = pick(case.seed, "error").choice(("Connection refused", "No route to host", "Connection timed out"))

    def late(world: World) -> None:
        at = world.begin + 70 * SECOND
        peer = f"{world.hosts[0].address}<{40000 + case.seed % 20000}>"
        function = "socketPollConnect" if "refused" in error else "socketStartConnect"
        said = f"{function}: connect to {peer} returned {error}, exceeded error retry count after 35 attempts"
        failing = {r: (6, said, Met(at, "nccl.connect", {"peer": peer, "error": error, "tries": 34})) for r in case.ranks_of(host)}
        broken_start(world, at, failing, bootstrap=True)

    case.after.append(late)
    truth(case, ("connection-failed",), ((), case.ranks_of(host), case.ranks_of(0)), f"host {host} cannot reach host 0: {error}")


def memlock_limit(case: Case) -> None:
    case.first_step = 0
    host = _some_host(case)

    def limit(h: Host) -> None:
        h.memlock_kib = 64

    _on(case, host, limit)

    def late(world: World) -> None:
        at = world.begin + 12 * SECOND
        said = "Call to ibv_reg_mr failed with error Cannot allocate memory"
        broken_start(world, at, {r: (2, said, Met(at, "nccl.register")) for r in case.ranks_of(host)}, bootstrap=False)

    case.after.append(late)
    truth(case, ("memlock-limit",), (case.ranks_of(host), ()), f"locked memory is limited to 64 KiB on host {host}")


def shm_exhausted(case: Case) -> None:
    case.first_step = 0
    case.settings |= {"NCCL_P2P_DISABLE": "1"}
    host = _some_host(case)

    def small(h: Host) -> None:
        h.shm_bytes = 64 << 20

    _on(case, host, small)

    def late(world: World) -> None:
        at = world.begin + 11 * SECOND
        failing = {}
        for r in case.ranks_of(host):
            path = "/dev/shm/nccl-" + "".join(pick(case.seed, "shm", r).choices("abcdefghijkmnpqrstuvwxyzABCDEFGHJK", k=6))
            said = f"Error while creating shared memory segment {path} (size 9637888), error: No space left on device (28)"
            failing[r] = (2, said, Met(at, "nccl.shm", {"path": path, "size": 9637888}))
        broken_start(world, at, failing, bootstrap=False)

    case.after.append(late)
    truth(case, ("shm-exhausted",), ((), case.ranks_of(host)), f"/dev/shm of host {host} holds 64 MB and no peer access")


def invalid_usage(case: Case) -> None:
    case.first_step = 0
    rank = case.rank()
    local = rank % case.platform.gpus
    other = rank - 1 if local else rank + 1
    low, high = sorted((rank, other))

    def late(world: World) -> None:
        world.processes[high].gpu = world.processes[low].gpu
        bus = world.processes[low].gpu.bus_id.replace(":", "").replace(".", "").lstrip("0")
        at = world.begin + 8 * SECOND
        said = f"Duplicate GPU detected : rank {low} and rank {high} both on CUDA device {bus}"
        failing = {r: (5, said, Met(at, "nccl.duplicate", {"a": low, "b": high, "bus": bus})) for r in (low, high)}
        broken_start(world, at, failing, bootstrap=True)

    case.after.append(late)
    truth(case, ("invalid-usage",), ((low, high), (high,), (low,)), f"ranks {low} and {high} take the same GPU")


SCENARIOS = (
    Scenario(
        "socket-fallback", "TCP between hosts that have adapters", socket_fallback, ("log", "dump", "log-host"), 16, 2, _FABRIC, slow=True
    ),
    Scenario(
        "p2p-disabled",
        "shared memory between GPUs that could talk directly",
        p2p_disabled,
        ("log", "dump", "log-host"),
        8,
        platforms=(*_SWITCHED, "pcie"),
        slow=True,
    ),
    Scenario("gdr-disabled", "no GPUDirect RDMA", gdr_disabled, ("log", "dump", "log-host"), 16, 2, _FABRIC, slow=True),
    Scenario("few-channels", "a limit on channels", few_channels, ("log", "dump", "log-host"), 8, platforms=_SWITCHED, slow=True),
    Scenario(
        "nic-underused",
        "fewer adapters than the host has",
        nic_underused,
        ("log", "dump", "log-host"),
        16,
        2,
        ("a100", "h100", "h200"),
        slow=True,
    ),
    Scenario(
        "nvls-disabled",
        "NVLink SHARP switched off",
        nvls_disabled,
        ("log", "dump", "log-host"),
        8,
        platforms=("h100", "h200", "b200"),
        slow=True,
    ),
    Scenario("version-mismatch", "ranks load another NCCL", version_mismatch, ("log", "dump", "log-host"), 8),
    Scenario("environment-mismatch", "ranks with another setting", environment_mismatch, ("log", "dump", "log-host"), 8),
    Scenario("wrong-interface", "bootstrap on docker0 or loopback", wrong_interface, ("log", "dump", "log-host"), 16, 2),
    Scenario("connection-failed", "a host that cannot reach another", connection_failed, ("log", "dump", "log-host"), 16, 2),
    Scenario("memlock-limit", "locked memory is limited", memlock_limit, ("log", "dump", "log-host"), 16, 2, ("a100", "h100", "h200")),
    Scenario("shm-exhausted", "/dev/shm is full", shm_exhausted, ("log", "dump", "log-host"), 8),
    Scenario("invalid-usage", "two ranks on one GPU", invalid_usage, ("log", "dump", "log-host"), 8),
)
