"""The smaller grammars of host evidence: both forms of each give the same rows."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.grammar.lines import load

SAMPLES = {
    "kernel_clock": [
        "[171167.620236] text here",
        "<6>[    2.608284] text",
        "[Sun Feb 23 16:24:18 2025] text",
        "2025-01-21T04:41:44,283302+00:00 text",
        "kern  :warn  : 2025-01-21T04:41:44,283302+00:00 text",
        "6,3964,206764307,-;text",
        "Aug 17 06:18:01 node7 kernel: text",
        "Aug  7 06:18:01 node7 systemd-networkd[5398]: ib6: lost carrier",
        "2024-05-06T07:08:09+0200 node7 kernel: text",
        "node7 kernel: text",
        "node7: NVRM: text",
        "node7: [Sun Feb 23 16:24:18 2025] text",
    ],
    "fabric_manager": [
        "[Feb 25 2025 13:59:45] [ERROR] [tid 1803] detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 61",
        "[Feb 25 2025 13:59:45] [INFO] [tid 1808] multicast group 0 is freed.",
        "[Feb 25 2025 14:01:18] [INFO] [tid 1808] successfully setup multicast team for request id 83319.",
        "[Feb 25 2025 14:01:18] [ERROR] [tid 1808] failed to find the GPU handle 541006338 in the multicast team request setup 61302854119.",
        "[Feb 25 2025 14:01:18] [INFO] [tid 1808] anything else",
    ],
    "ethtool": [
        "Pause parameters for ens1f0np0:",
        "Ring parameters for eth0:",
        "Features for eth0:",
        "Pre-set maximums:",
        "RX Mini:\t\tn/a",
        "Module temperature                        : 45.12 degrees C / 113.22 degrees F",
    ],
    "ibtracert": [
        'From ca {0xe41d2d0300163650} portnum 1 lid 5-5 "node01 mlx5_0"',
        '[1] -> switch port {0x7cfe900300a5a1b0}[12] lid 7-7 "leaf3"',
        'To ca {0xe41d2d0300163660} portnum 1 lid 22-22 "node02 mlx5_0"',
        "ibtracert: iberror: failed: can't find a route from 5 to 23",
    ],
    "tshark": ["1 0.000000 10.0.0.11 → 10.0.0.12 TCP 74 45678 → 29500 [SYN] Seq=0", "12 2026-01-01 10:00:00.5 fe80::1 -> fe80::2 TCP 74 x"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in SAMPLES.items() for text in texts])
def test_lark_and_the_columns_agree(name: str, text: str):
    grammar = load(name)
    extraction = grammar.extract(pl.Series([text]))
    kind = extraction.kind[0]
    assert kind is not None
    assert grammar.parse(text) == (kind, extraction.frames[kind].drop("row").row(0, named=True))
