"""Devices that hang on fewer links than their neighbours in NCCL's picture of a host."""

from __future__ import annotations

import polars as pl

from nccl_forensics.formats.topo_xml import read
from nccl_forensics.rules.topology_dump import nvlink_in_dump, pcie_in_topology
from nccl_forensics.views.nccl_facts import GPU_LINKS
from tests.rules.frames import settings, told
from tests.views.frames import rows

#: What a device has that is not named; GPUs by their compute capability.
LANES, CARD, LINKS, HOPPER, DISPLAY = 16, 16, 18, 90, 75

Some = dict[int, int] | None


def dump(*, sm: Some = None, lanes: Some = None, links: Some = None, cards: Some = None, n: int = 4) -> pl.LazyFrame:
    """A dump of a host with GPUs and cards of 400 Gb/s beside them, alike but for these."""
    text = '<system version="1"><cpu numaid="0">'
    for g in range(n):
        lane, link, card, model = ((d or {}).get(g, own) for d, own in ((lanes, LANES), (links, LINKS), (cards, CARD), (sm, HOPPER)))
        text += f'<pci busid="0000:{g + 1}0:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="{lane}">'
        text += f'<gpu dev="{g}" sm="{model}" rank="{g}"><nvlink target="0000:05:00.0" count="{link}" tclass="0x068000"/></gpu></pci>'
        text += f'<pci busid="0000:{g + 1}1:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="{card}">'
        text += f'<nic><net name="mlx5_{g}" dev="{g}" speed="400000"/></nic></pci>'
    frame = read(f"{text}</cpu></system>".encode()).frames["nccl_topo"]
    return frame.with_columns(source_id=pl.lit(0, pl.UInt32)).lazy()


def test_the_gpu_with_fewer_nvlinks_in_the_dump_is_named_with_its_rank() -> None:
    [finding] = nvlink_in_dump.check(dump(links={2: 10}), None, None)
    assert told(finding) == ("error", "medium", (2,))
    assert finding.title == "GPU 0000:30:00.0 (rank 2) has 10 of 18 NVLinks"


def test_a_gpu_on_fewer_lanes_and_a_card_on_fewer_are_named() -> None:
    [finding] = pcie_in_topology.check(dump(lanes={1: 8}), None, None, None)
    assert told(finding) == ("error", "medium", (1,))
    [finding] = pcie_in_topology.check(dump(cards={1: 4}), None, None, None)
    assert (finding.ranks, finding.culprits[0].nic) == ((), "0000:21:00.0")


def test_alike_devices_halves_and_two_of_a_kind_are_quiet() -> None:
    for quiet in (dump(), dump(lanes={0: 8, 1: 8}, links={0: 9, 1: 9}), dump(lanes={0: 8}, links={0: 9}, n=2)):
        assert nvlink_in_dump.check(quiet, None, None) == []
        assert pcie_in_topology.check(quiet, None, None, None) == []


def test_a_card_for_the_display_beside_gpus_that_compute_is_no_weak_one() -> None:
    beside = dump(sm={3: DISPLAY}, lanes={3: 8}, links={3: 0})
    assert nvlink_in_dump.check(beside, None, None) == []
    assert pcie_in_topology.check(beside, None, None, None) == []


def test_a_dump_of_what_nccl_was_handed_shows_the_file_and_not_the_host() -> None:
    forced = settings("NCCL_TOPO_FILE", ("/x.xml", [0, 1, 2, 3]))
    assert nvlink_in_dump.check(dump(links={2: 10}), forced, None) == []
    assert pcie_in_topology.check(dump(lanes={2: 8}), None, forced, None) == []


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
