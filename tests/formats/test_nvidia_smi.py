"""nvidia-smi: text and XML agree, N/A is null, ill GPUs are told from absent values."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.decoding import safe_xml
from nccl_forensics.formats._gpu_values import boolean, clean, number, problem
from nccl_forensics.reading.source import read_source
from nccl_forensics.values.pci import normal
from tests.corpus import ROOT, corpus

FIXTURES = ROOT / "fixtures" / "nvidia_smi"
WHERE = ["line_no", "end_line", "record", "tool"]


def frames(name: str) -> dict[str, pl.DataFrame]:
    return read_source((FIXTURES / name).read_bytes()).frames


def test_text_and_xml_of_the_same_cards_give_the_same_rows():
    text, xml = frames("two-h100.txt"), frames("two-h100.xml")
    assert text["gpus"].height == 2
    assert text["gpus"].drop(WHERE).rows(named=True) == xml["gpus"].drop(WHERE).rows(named=True)
    assert text["gpu_processes"].drop("line_no", "record").rows() == xml["gpu_processes"].drop("line_no", "record").rows()


def test_xml_inside_a_larger_text_is_read_with_its_lines():
    body = (FIXTURES / "two-h100.xml").read_text()
    result = read_source(f"=== nvidia-smi -q -x ===\n{body}\n=== end ===\n".encode())
    assert result.frames["gpus"].drop(WHERE).rows() == frames("two-h100.xml")["gpus"].drop(WHERE).rows()
    assert result.frames["gpus"]["line_no"].to_list()[0] == body.splitlines().index('\t<gpu id="00000000:17:00.0">') + 2


def test_split_counters_are_added_and_nested_reasons_are_found():
    ill = frames("two-h100.txt")["gpus"].row(1, named=True)
    assert (ill["sram_uncorrected"], ill["remap_pending"], ill["recovery_action"]) == (3, True, "Drain and Reset")
    assert ill["throttle"] == ["hw-slowdown", "hw-thermal"]
    assert (ill["pcie_width"], ill["pcie_width_max"], ill["serial"]) == (8, 16, None)


def test_a_report_cut_off_in_the_middle_keeps_the_cards_before():
    body = (FIXTURES / "two-h100.xml").read_bytes()
    result = read_source(body[: body.index(b'<gpu id="00000000:3B')])
    assert result.frames["gpus"].height == 1
    assert "truncated" in result.frames["gaps"]["reason"][0]


def test_entities_are_refused_and_the_doctype_is_tolerated():
    bomb = b'<?xml version="1.0"?><!DOCTYPE nvidia_smi_log [<!ENTITY a "x">]><nvidia_smi_log><gpu id="1">&a;</gpu></nvidia_smi_log>'
    root, error = safe_xml.parse(bomb)
    assert root is None
    assert error is not None
    assert "entities" in error
    root, error = safe_xml.parse(b'<!DOCTYPE r SYSTEM "file:///etc/hostname"><r><a>1</a></r>')
    assert (root is not None and root.value("a"), error) == ("1", None)


def test_a_transcript_of_the_other_outputs_is_read():
    got = frames("lists.txt")
    assert got["nvlinks"].filter(~pl.col("active"))["link"].to_list() == [1]
    assert got["nvlink_counters"].filter(pl.col("counter") == "Effective BER")["value"].to_list() == [0.0]
    pair = got["gpu_topology"].filter((pl.col("a") == "GPU1") & (pl.col("b") == "GPU2"))
    assert pair["relation"].to_list() == ["SYS"]
    assert got["gpu_tool_errors"].select("kind", "bus_id").rows() == [("gpu-lost", "0000:91:00.0")]


def test_slurms_daemon_says_that_a_gpu_is_lost_too():
    def lost(line: str) -> list[tuple[str]]:
        read = read_source(line.encode() + b"\n").frames
        return read["gpu_tool_errors"].select("kind").rows() if "gpu_tool_errors" in read else []

    assert lost("slurmstepd: error: NVML: Failed to get usage(15): GPU is lost") == [("gpu-lost",)]
    assert lost("slurmstepd: error: NVML: Failed to get usage(3): Not Supported") == []


def test_the_table_of_a_driver_before_410_has_no_version_of_cuda():
    bar = "+-----------------------------------------------------------------------------+"
    head = "| NVIDIA-SMI 384.81                 Driver Version: 384.81                    |"
    card = "|   0  Tesla P40           Off  | 00000000:5E:00.0 Off |                    0 |"
    use = "| N/A   31C    P8    10W / 250W |      0MiB / 22912MiB |      0%      Default |"
    [row] = read_source("\n".join([bar, head, bar, card, use, bar, ""]).encode()).frames["gpus"].to_dicts()
    assert (row["bus_id"], row["driver_version"], row["cuda_version"]) == ("0000:5e:00.0", "384.81", None)


def test_cells_of_an_ill_gpu_are_a_problem_and_not_zero():
    rows = frames("lists.txt")["gpus"]
    csv = rows.filter(pl.col("tool") == "nvidia-smi-csv")
    assert csv["throttle"].to_list() == [["hw-slowdown", "hw-thermal"], None]
    assert csv["utilization_percent"].to_list() == [100.0, None]
    assert csv["problem"].is_null().to_list() == [True, False]
    table = rows.filter(pl.col("tool") == "nvidia-smi")
    assert table["problem"].is_null().to_list() == [True, False]


@pytest.mark.parametrize(
    "text", ["N/A", "[N/A]", "[Not Supported]", "", "Requested functionality has been deprecated", "[Insufficient Permissions]"]
)
def test_what_is_not_there_is_null(text: str):
    assert clean(text) is None
    assert number(text) is None
    assert problem(text) is None


def test_values_lose_their_units_and_booleans_have_many_spellings():
    assert (number("16x"), number("400.00 W"), number("-8 C"), number("4251825415 us")) == (16.0, 400.0, -8.0, 4251825415.0)
    assert (boolean("Active"), boolean("Not Active"), boolean("Yes"), boolean("0"), boolean("N/A")) == (True, False, True, False, None)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("PCI:0000:9b:00", "0000:9b:00.0"),
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("3b000", "0000:3b:00.0"),
        ("101c0", "0000:10:1c.0"),
        ("801000", "0008:01:00.0"),
        ("0001:00:00.0", "0001:00:00.0"),
        ("GPU0", None),
        (None, None),
    ],
)
def test_every_spelling_of_a_pci_address_becomes_one(written: str | None, meant: str | None):
    assert normal(written) == meant


@pytest.mark.corpus
def test_every_real_xml_gives_one_card_without_gap():
    files = sorted(corpus("host/nvidia-smi").glob("*.xml"))
    assert files
    for file in files:
        result = read_source(file.read_bytes())
        assert result.formats == ("nvidia-smi-xml",), file.name
        assert result.frames["gpus"].height == 1, file.name
        row = result.frames["gpus"].row(0, named=True)
        assert row["bus_id"] is not None
        assert row["uuid"] is not None
        assert row["problem"] is None, file.name
        assert "gaps" not in result.frames


@pytest.mark.corpus
def test_query_and_csv_of_the_same_real_h200_agree_where_both_speak():
    result = read_source(corpus("public/nvidia-smi-h200-gpu-exporter/evidence/linux-x86_64__nvidia-h200__590.48.01.txt").read_bytes())
    gpus = result.frames["gpus"]
    query, csv = gpus.filter(pl.col("tool") == "nvidia-smi-q"), gpus.filter(pl.col("tool") == "nvidia-smi-csv")
    assert (query.height, csv.height) == (2, 2)
    same = [
        "bus_id",
        "uuid",
        "name",
        "vbios",
        "driver_version",
        "banks_max",
        "sram_uncorrected",
        "dram_corrected",
        "pcie_width",
        "recovery_action",
        "fabric_state",
        "throttle",
        "sm_clock_mhz",
        "temperature_c",
    ]
    assert query.select(same).rows() == csv.select(same).rows()
    assert result.frames["nvlinks"].height == 18


@pytest.mark.corpus
def test_real_nvlink_listings_are_read():
    inactive = read_source(corpus("host/nvidia-smi/nvlink-status.a100-all-inactive.txt").read_bytes()).frames["nvlinks"]
    assert inactive.select("link", "active").rows() == [(None, False)]
    full = read_source(corpus("host/nvidia-smi/nvlink-status.a100.txt").read_bytes()).frames["nvlinks"]
    assert (full.height, full["rate_gb_s"].unique().to_list()) == (96, [25.0])
    # An A10 has no NVLink and the command prints nothing: an empty file is named as such, not taken for a healthy listing.
    assert read_source(corpus("host/nvidia-smi/nvlink-status.a10.txt").read_bytes()).error == "empty file"


@pytest.mark.corpus
def test_real_retired_pages_are_counted():
    rows = read_source(corpus("host/nvidia-smi/nvidia-smi-q-d-PAGE_RETIREMENT.bad.txt").read_bytes()).frames["gpus"]
    assert rows["retired_double_bit"].to_list() == [5, 61, 0, 0, 0, 45, 0, 56]
    assert rows["retirement_pending"].to_list() == [False, True, False, True, False, True, False, True]


def test_the_table_ends_its_first_row_with_the_uncorrected_errors_since_the_last_reset() -> None:
    head = "| NVIDIA-SMI 575.57.08              Driver Version: 575.57.08      CUDA Version: 12.9     |\n"
    rows = [
        f"|   {n}  NVIDIA H100 80GB HBM3          On  |   00000000:{bus}:00.0 Off |  {ecc:>19} |\n"
        for n, bus, ecc in ((0, "0F", "2"), (1, "2D", "Off"))
    ]
    found = read_source((head + "".join(rows)).encode()).frames["gpus"]
    assert found.select("gpu_index", "dram_uncorrected").rows() == [(0, 2), (1, None)]
