"""Devices whose PCIe link carries less than that of their neighbours in NCCL's picture of a host."""

from __future__ import annotations

import polars as pl

from nccl_forensics.formats.topo_xml import read
from nccl_forensics.rules.pcie_in_topology import pcie_in_topology
from nccl_forensics.views.nccl_facts import GPU_LINKS
from tests.rules.frames import settings, told
from tests.views.frames import rows

#: What a device has that is not named; GPUs by their compute capability.
RATE, CARD, HOPPER, DISPLAY = 32, 16, 90, 75

Some = dict[int, int] | None


def dump(*, sm: Some = None, rates: Some = None, cards: Some = None, n: int = 4) -> pl.LazyFrame:
    """A dump of a host with GPUs and cards of 400 Gb/s beside them, alike but for these."""
    text = '<system version="1"><cpu numaid="0">'
    for g in range(n):
        rate, card, model = ((d or {}).get(g, own) for d, own in ((rates, RATE), (cards, CARD), (sm, HOPPER)))
        text += f'<pci busid="0000:{g + 1}0:00.0" class="0x030200" link_speed="{rate}.0 GT/s PCIe" link_width="16">'
        text += f'<gpu dev="{g}" sm="{model}" rank="{g}"/></pci>'
        text += f'<pci busid="0000:{g + 1}1:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="{card}">'
        text += f'<nic><net name="mlx5_{g}" dev="{g}" speed="400000"/></nic></pci>'
    frame = read(f"{text}</cpu></system>".encode()).frames["nccl_topo"]
    return frame.with_columns(source_id=pl.lit(0, pl.UInt32)).lazy()


def test_a_gpu_at_a_lower_rate_and_a_card_on_fewer_lanes_are_named() -> None:
    [finding] = pcie_in_topology.check(dump(rates={1: 8}), None, None, None)
    assert told(finding) == ("error", "medium", (1,))
    [finding] = pcie_in_topology.check(dump(cards={1: 4}), None, None, None)
    assert (finding.ranks, finding.culprits[0].nic) == ((), "0000:21:00.0")


def test_alike_devices_halves_and_two_of_a_kind_are_quiet() -> None:
    for quiet in (dump(), dump(rates={0: 8, 1: 8}), dump(rates={0: 8}, n=2)):
        assert pcie_in_topology.check(quiet, None, None, None) == []


def test_a_card_for_the_display_beside_gpus_that_compute_is_no_weak_one() -> None:
    beside = dump(sm={3: DISPLAY}, rates={3: 8})
    assert pcie_in_topology.check(beside, None, None, None) == []


def test_a_dump_of_what_nccl_was_handed_shows_the_file_and_not_the_host() -> None:
    forced = settings("NCCL_TOPO_FILE", ("/x.xml", [0, 1, 2, 3]))
    assert pcie_in_topology.check(dump(rates={2: 8}), None, forced, None) == []


def test_the_tree_in_nccls_log_tells_of_pcie_as_well() -> None:
    tree = rows(
        GPU_LINKS,
        *[
            {
                "host": "a",
                "gpu": f"{g}000",
                "rank": g,
                "nvlink_gb_s": 370.8,
                "pcie_gb_s": 12.0 if g == 3 else 48.0,
                "source_id": 0,
                "line_no": g,
            }
            for g in range(4)
        ],
    )
    [finding] = pcie_in_topology.check(None, tree, None, None)
    assert told(finding) == ("error", "medium", (3,))
    assert finding.title == "GPU 3000 of a (rank 3) has 12 GB/s of PCIe, its neighbours 48"
