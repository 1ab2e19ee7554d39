"""nccl-tests, perftest, nvbandwidth, p2pBandwidthLatencyTest and iperf3."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.facts.bandwidth import bus_factor, ceiling
from nccl_forensics.reading.source import SourceReading, read_source
from tests.corpus import ROOT, corpus

FIXTURES = ROOT / "fixtures"


def read(name: str) -> SourceReading:
    return read_source((FIXTURES / name).read_bytes())


def test_the_old_layout_without_a_root_column_is_read_by_its_header():
    reading = read("nccl_tests/old_layout.txt")
    [test] = reading.frames["bandwidth_tests"].to_dicts()
    rows = reading.frames["bandwidth_rows"]
    assert (test["collective"], test["collective_known_by"], test["ranks"], test["hosts"]) == ("all_reduce", "ratio", 4, ["node01"])
    assert rows["placement"].to_list() == ["out-of-place", "in-place"] * 2
    assert rows["max_error"].to_list() == [None, None, 2e-06, 0.0]
    assert rows["wrong"].null_count() == 4
    assert test["complete"]
    assert rows["bus_bw_gb_s"].mean() == pytest.approx(test["average_bus_bw_gb_s"], abs=0.005)


def test_rows_that_a_launchers_tag_or_a_line_of_nccl_cuts_are_put_together():
    reading = read("nccl_tests/wrong_and_cut.txt")
    rows = reading.frames["bandwidth_rows"]
    assert rows.select("bytes", "placement", "bus_bw_gb_s").rows() == [
        (268435456, "out-of-place", 48.81),
        (268435456, "in-place", 48.81),
        (536870912, "out-of-place", 48.81),
        (536870912, "in-place", 48.81),
    ]
    assert rows["wrong"].to_list() == [0, 17, 0, 0]


CUT_BY = """# Using devices
#  Rank  0 Group  0 Pid   1469 on {host} device  0 [0000:41:00] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
   268435456      67108864     float     sum      -1{host}:1469:1469 [0] NCCL INFO AllReduce: 268435456 Bytes -> Algo RING proto SIMPLE
  1111.86  241.43  402.38       {wrong}{host}:1469:1469 [0] NCCL INFO AllReduce: 268435456 Bytes -> Algo RING proto SIMPLE
  1112.92  241.20  402.00       0
"""


@pytest.mark.parametrize(("host", "wrong"), [("38dcf168f605", 0), ("38dcf168f605", 12), ("node7", 3)])
def test_the_host_of_a_line_that_cuts_a_row_is_no_part_of_its_last_number(host: str, wrong: int):
    # The id of a container, which it has for a host's name, may begin with digits.
    reading = read_source(CUT_BY.format(host=host, wrong=wrong).encode())
    assert reading.frames["bandwidth_rows"]["wrong"].to_list() == [wrong, 0]


OF_NCCL_1 = """# Using devices
#   Rank  0 uses device  0 [0x0a] GPU of old
#   Rank  1 uses device  1 [0x09] GPU of old
#   Rank  2 uses device  2 [0x06] GPU of old
#   Rank  3 uses device  3 [0x05] GPU of old

#                                                 out-of-place                    in-place
#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res
    10000000      10000000    char     sum    2.000   5.00   7.50    0e+00    2.500   4.00   6.00    0e+00
"""


def test_a_table_of_nccl_1_is_read_in_milliseconds():
    reading = read_source(OF_NCCL_1.encode())
    [test] = reading.frames["bandwidth_tests"].to_dicts()
    assert (test["collective"], test["ranks"], test["hosts"], test["gpus"]) == ("all_reduce", 4, None, ["GPU of old"])
    rows = reading.frames["bandwidth_rows"]
    assert rows.select("bytes", "red_op", "time_us", "max_error").rows() == [(10000000, "sum", 2000.0, 0.0), (10000000, "sum", 2500.0, 0.0)]


ROWS = """   268435456      67108864     float     sum      -1  1111.86  241.43  422.50       0  1112.92  241.20  422.10      {wrong}
   536870912     134217728     float     sum      -1  2201.10  243.91  426.84       0  2203.30  243.66  426.41       0
"""


def test_rows_whose_header_is_lost_are_read_as_those_of_the_usual_layout():
    reading = read_source(ROWS.format(wrong=7).encode())
    [test] = reading.frames["bandwidth_tests"].to_dicts()
    assert (test["collective"], test["collective_known_by"], test["ranks"], test["complete"]) == ("all_reduce", "ratio", 8, False)
    assert reading.frames["bandwidth_rows"]["wrong"].to_list() == [0, 7, 0, 0]


@pytest.mark.parametrize(
    "other", [ROWS.replace("67108864 ", "67108865 "), ROWS.replace("float", "thing"), ROWS.replace("     {wrong}", "")]
)
def test_a_line_whose_size_does_not_hold_its_elements_or_that_has_other_words_or_cells_is_no_row(other: str):
    frames = read_source(other.splitlines()[0].format(wrong=0).encode()).frames
    assert "bandwidth_rows" not in frames


def test_a_run_that_died_keeps_its_error_its_host_and_the_size_it_had_reached():
    reading = read("nccl_tests/wrong_and_cut.txt")
    [test] = reading.frames["bandwidth_tests"].to_dicts()
    assert (test["collective"], test["nccl_version"], test["complete"]) == ("all_reduce", "2.28.7", False)
    assert (test["failed_host"], test["last_bytes"]) == ("node02", 1073741824)
    assert test["error"] == "remote process exited or there was a network error"
    assert reading.frames["gaps"]["text"].to_list() == ["  1073741824     268435456     float     sum      -1"]


def test_json_that_an_aborted_run_left_open_is_read_up_to_its_last_whole_value():
    reading = read("nccl_tests/broken.json")
    assert reading.formats == ("nccl-tests-json",)
    [test] = reading.frames["bandwidth_tests"].to_dicts()
    assert (test["collective"], test["ranks"], test["validation"], test["complete"]) == ("all_gather", 2, True, False)
    assert reading.frames["bandwidth_rows"]["wrong"].to_list() == [0, None]
    assert reading.frames["gaps"]["reason"][0].startswith("truncated")
    assert not any("SECRET" in str(row) for frame in reading.frames.values() for row in frame.rows())


@pytest.mark.parametrize(
    ("collective", "ranks", "factor"),
    [("all_reduce", 8, 1.75), ("all_gather", 8, 0.875), ("alltoall", 2, 0.5), ("broadcast", 8, 1.0), ("sendrecv", 2, 1.0), (None, 8, None)],
)
def test_bus_bandwidth_factors_are_those_of_nccl_tests(collective: str | None, ranks: int, factor: float | None):
    assert bus_factor(collective, ranks) == factor


def test_a_platform_that_no_source_knows_has_no_expectation():
    assert ceiling(["NVIDIA H100 80GB HBM3"], 8, 1) is not None
    assert ceiling(["NVIDIA H100 80GB HBM3"], 7, 1) is None
    assert ceiling(["NVIDIA H100 PCIe"], 8, 1) is None
    assert ceiling(["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"], 8, 1) is None


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("folder", "runs"),
    [
        ("nccltests-superbench-8r-a100", 6),
        ("nccltests-gcp-a3mega-16r", 1),
        ("nccltests-polaris-2160r", 1),
        ("nccltests-pairwise-failures-h100", 158),
        ("nccl222-p5-efa-16r-filename-says-2203", 1),
        ("nccl216-2node-gdr-on-vs-off", 2),
        ("nccl227-a100pcie-2r-nvlink-ok", 1),
        ("nccl227-a100pcie-2r-nvlink-degraded", 1),
    ],
)
def test_average_and_ratio_of_real_tables_equal_what_they_print(folder: str, runs: int):
    seen = 0
    for path in sorted((corpus(f"public/{folder}") / "evidence").iterdir()):
        frames = read_source(path.read_bytes()).frames
        for test in frames["bandwidth_tests"].to_dicts() if "bandwidth_tests" in frames else []:
            seen += 1
            rows = frames["bandwidth_rows"].filter(pl.col("test") == test["test"]) if "bandwidth_rows" in frames else None
            if not test["complete"]:
                continue
            assert rows is not None
            # Rows are printed to a hundredth, so their mean is off by less than half of that.
            assert rows["bus_bw_gb_s"].mean() == pytest.approx(test["average_bus_bw_gb_s"], abs=0.005), path.name
            factor = bus_factor(test["collective"], test["ranks"])
            if factor is not None:
                off = (rows["alg_bw_gb_s"] * factor - rows["bus_bw_gb_s"]).abs().max()
                assert off is not None
                assert float(str(off)) <= 0.02, path.name
    assert seen == runs


def test_perftest_rows_are_in_gbit_whatever_unit_was_printed():
    rows = read("perftest/sample.txt").frames["rdma_tests"]
    first = rows.row(0, named=True)
    assert (first["device"], first["mtu_bytes"], first["qps"], first["average_gbit_s"]) == ("mlx5_3", 4096, 4, 196.98)
    assert rows["latency_us"].drop_nulls().to_list() == [2.15]
    assert rows["status"].drop_nulls().to_list() == [12]
    assert rows["error"].null_count() == 2


@pytest.mark.corpus
def test_a_result_of_perftest_that_is_no_object_is_a_gap_beside_the_others():
    reading = read_source(
        b'{"test_info":{"test":"RDMA_Write_BW_Test","Device":"mlx5_0"},"results":[{"MsgSize":65536,"BW_average":1.0},null]}'
    )
    assert reading.frames["rdma_tests"]["bytes"].to_list() == [65536]
    assert reading.frames["gaps"]["record"].to_list() == ["results[1]"]


def test_megabytes_of_real_perftest_output_agree_with_its_message_rate():
    rows = read_source((corpus("public/ib-superbench-loopback") / "evidence" / "ib_loopback_8M_size.log").read_bytes()).frames["rdma_tests"]
    for row in rows.iter_rows(named=True):
        assert row["rate_mpps"] * 1e6 * row["bytes"] * 8 / 1e9 == pytest.approx(row["average_gbit_s"], rel=1e-3)


def test_cells_of_gpu_matrices_know_row_column_and_unit():
    rows = read("gpu_bandwidth/sample.txt").frames["gpu_bandwidth"]
    cell = rows.filter((pl.col("test") == "device_to_device_memcpy_read_ce") & (pl.col("row") == "1") & (pl.col("column") == "0"))
    assert cell.select("value", "unit").rows() == [(276.4, "gb_s")]
    assert rows.filter(pl.col("status") == "waived")["test"].to_list() == ["device_to_host_memcpy_sm"]
    assert rows.filter((pl.col("test") == "access") & (pl.col("value") == 0)).select("row", "column").rows() == [("0", "1")]
    assert rows.filter(pl.col("test").str.starts_with("p2p=enabled latency")).height == 8


def test_matrices_know_the_gpus_that_they_are_of_where_all_bear_one_name():
    text = read("gpu_bandwidth/sample.txt").frames["gpu_bandwidth"]
    assert text.filter(pl.col("test") == "host_to_device_memcpy_ce")["gpu"].unique().to_list() == ["NVIDIA H100 80GB HBM3"]
    case = '"testcases":[{"name":"x_ce","status":"Passed","bandwidth_matrix":[["1.0"]]}]'

    def named(*gpus: str) -> list[str | None]:
        listed = ",".join(f'"{i}: {gpu}"' for i, gpu in enumerate(gpus))
        document = f'{{"nvbandwidth":{{"GPU Device list":[{listed}],{case}}}}}'
        return read_source(document.encode()).frames["gpu_bandwidth"]["gpu"].to_list()

    assert named("NVIDIA H200: (00000000:1b:00)", "NVIDIA H200: (00000000:43:00)") == ["NVIDIA H200"]
    assert named("NVIDIA H200: (00000000:1b:00)", "NVIDIA H100: (00000000:43:00)") == [None]


def test_iperf3_summaries_intervals_and_errors_are_told_apart():
    rows = read("iperf3/sample.txt").frames["tcp_tests"]
    assert rows.filter("summary")["role"].to_list() == ["sender", "receiver", None]
    assert rows.filter(pl.col("role") == "sender")["retransmits"].to_list() == [4524]
    assert rows["error"].drop_nulls().to_list() == ["unable to connect to server: Connection refused"]


def test_iperf3_json_gives_its_sums_and_its_error():
    good = b'{"start":{"cookie":"c","connected":[{"local_host":"10.0.0.1","remote_host":"10.0.0.2"}],"tcp_mss_default":8948},'
    good += b'"end":{"sum_sent":{"seconds":10,"bytes":125000000000,"bits_per_second":1e11,"retransmits":7},"cpu_utilization_percent":{"host_total":99.5}}}'
    [row] = read_source(good).frames["tcp_tests"].to_dicts()
    assert (row["gbit_s"], row["retransmits"], row["cpu_percent"], row["remote"]) == (100.0, 7, 99.5, "10.0.0.2")
    bad = b'{"start":{"cookie":"c","connected":[]},"intervals":[],"end":{},"error":"control socket has closed unexpectedly"}'
    assert read_source(bad).frames["tcp_tests"]["error"].to_list() == ["control socket has closed unexpectedly"]


def test_iperf3_json_of_a_test_that_found_no_server_tells_whom_it_asked():
    told = b'{"start":{"connected":[],"version":"iperf 3.12","connecting_to":{"host":"10.0.0.2","port":5201}},"intervals":[],"end":{},'
    told += b'"error":"error - unable to connect to server: Connection timed out"}'
    found = read_source(told)
    assert found.formats == ("iperf3-json",)
    assert found.frames["tcp_tests"].select("remote", "error").rows() == [("10.0.0.2", "unable to connect to server: Connection timed out")]
