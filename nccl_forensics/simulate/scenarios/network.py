"""Faults of the fabric: ports that fall, lose packets or are in each other's way."""

from __future__ import annotations

from nccl_forensics.simulate.case import Case
from nccl_forensics.simulate.clusters import Host
from nccl_forensics.simulate.engine import Cut
from nccl_forensics.simulate.failures import broken_link
from nccl_forensics.simulate.scenarios.base import Scenario, truth
from nccl_forensics.simulate.world import SECOND, Met, World

_INFINIBAND = ("a100", "h100", "h200", "b200")


def ib_link(case: Case) -> None:
    rank, step = case.rank(), case.step()
    host, local = case.host_of(rank), rank % case.platform.gpus
    number = case.platform.nic_of(local)
    case.cuts.append(Cut(host, step))
    case.observe = "live"

    def late(world: World) -> None:
        machine = world.hosts[host]
        nic = machine.nics[number]
        begin = (
            max((e.started or e.created) for s in world.model.ranks.values() for e in s.unfinished()) if world.model.ranks else world.begin
        )
        down = begin + SECOND // 4
        nic.up = False
        nic.after["link_downed"] = nic.before["link_downed"] + 1
        nic.after["local_ack_timeout_err"] = 14
        machine.events.append((down, "link", {"nic": number, "state": "down", "cable": case.dice("cable") < 0.5}))
        mine = world.processes[rank]
        other = world.hosts[(host + 1) % len(world.hosts)]
        met = Met(down + 1_000_000, "nccl.event", {"hca": nic.device})
        fails = down + 16 * SECOND
        said = f"NET/IB: Got completion from peer {other.address}<{41000 + local}> with status=12 opcode=1 len=0 vendor err 129 (Send) hca {nic.device}"
        peers = [r for r in world.host_ranks(other.index) if r % case.platform.gpus == local]
        struck = {
            rank: Met(
                fails,
                "nccl.completion",
                {
                    "status": 12,
                    "vendor": 129,
                    "request": "Send",
                    "peer": f"{other.address}<{41000 + local}>",
                    "hca": nic.device,
                    "last": said,
                },
            )
        }
        for p in peers[:1]:
            back = f"{machine.address}<{42000 + local}>"
            there = other.nics[number].device
            struck[p] = Met(
                fails + SECOND // 9,
                "nccl.completion",
                {"status": 12, "vendor": 129, "request": "Recv", "peer": back, "hca": there, "last": said.replace("(Send)", "(Recv)")},
            )
        broken_link(world, down, struck)
        mine.met.insert(0, met)

    case.after.append(late)
    truth(case, ("ib-link",), (case.ranks_of(host), (rank,), ()), f"port {number} of host {host} goes down in step {step}")


def congestion(case: Case) -> None:
    host = case.host_of(case.rank())
    case.observe, case.steps, case.link_share = "live", 8, 0.4
    case.gathered.launcher = False

    def busy(hosts: list[Host]) -> None:
        for nic in hosts[host].nics:
            if case.platform.network == "roce":
                # Marks are a share of what arrives; a receiver answers at most one in some tens of microseconds and flow.
                marked = (nic.after["port_rcv_packets"] - nic.before["port_rcv_packets"]) * 9 // 100
                nic.after["np_ecn_marked_roce_packets"] = nic.before.get("np_ecn_marked_roce_packets", 0) + marked
                nic.after["np_cnp_sent"] = nic.before.get("np_cnp_sent", 0) + marked // 32 + 7 * nic.index
                nic.after["rp_cnp_handled"] = nic.before.get("rp_cnp_handled", 0) + marked // 35
            else:
                nic.after["port_xmit_wait"] = nic.before["port_xmit_wait"] + 2_600_000_000_000 + nic.index * 10**9

    case.hosts.append(busy)
    truth(case, ("congestion",), ((), case.ranks_of(host)), f"the ports of host {host} wait for credits or are told to slow down")


def packet_loss(case: Case) -> None:
    host = case.host_of(case.rank())
    case.observe, case.steps, case.link_share = "live", 8, 0.3
    case.gathered.launcher = False

    def lossy(hosts: list[Host]) -> None:
        for nic in hosts[host].nics:
            for name, value in (
                ("out_of_sequence", 412_000),
                ("packet_seq_err", 398_100),
                ("local_ack_timeout_err", 2_210),
                ("roce_adp_retrans", 4_400),
            ):
                nic.after[name] = nic.before.get(name, 0) + value + nic.index * 31

    case.hosts.append(lossy)
    truth(case, ("packet-loss",), ((), case.ranks_of(host)), f"packets to and from host {host} are lost and sent again")


def mtu_mismatch(case: Case) -> None:
    host = max(1, case.host_of(case.rank()))
    case.first_step = 0
    case.observe = "live"
    case.cuts.append(Cut(host, 0))

    def small(hosts: list[Host]) -> None:
        hosts[host].mtu = 1500

    case.hosts.append(small)

    def stuck(world: World) -> None:
        for process in world.processes.values():
            process.met = []

    case.after.append(stuck)
    truth(
        case,
        ("mtu-mismatch",),
        ((), case.ranks_of(host)),
        f"eth0 of host {host} has MTU 1500, the others 9000: large messages never arrive",
    )


SCENARIOS = (
    Scenario("ib-link", "a port of an adapter goes down", ib_link, ("log-host", "host", "log"), 16, 2, _INFINIBAND),
    Scenario(
        "congestion",
        "ports that wait for credits",
        congestion,
        ("host", "log-host", "host-only"),
        16,
        2,
        (*_INFINIBAND, "h100-roce"),
        slow=True,
    ),
    Scenario(
        "packet-loss", "packets lost on RoCE", packet_loss, ("host", "log-host", "host-only"), 16, 2, ("h100-roce", "pcie"), slow=True
    ),
    Scenario("mtu-mismatch", "MTUs that differ", mtu_mismatch, ("log-host", "host", "log-net"), 16, 2, ("tcp",)),
)
