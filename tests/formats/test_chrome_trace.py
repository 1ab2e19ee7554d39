"""Profiler traces: what is measured in one trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_forensics.facts.collective_kernels import message_bytes, operation
from nccl_forensics.formats._trace_kernels import classify
from nccl_forensics.formats.base import Reading
from nccl_forensics.formats.chrome_trace import read
from nccl_forensics.grammar.lines import load
from nccl_forensics.reading.bundle import open_bundle
from nccl_forensics.reading.engine import InlineEngine, read_bundle
from nccl_forensics.reading.source import read_source
from nccl_forensics.values.intervals import Cover, union
from tests.corpus import corpus
from tests.trace_samples import ALL_REDUCE, Sample, collective


def row(reading: Reading, table: str, index: int = 0) -> dict[str, object]:
    return reading.frames[table].row(index, named=True)


def ms(reading: Reading, name: str, index: int = 0) -> float:
    return float(str(row(reading, "trace_windows", index)[name])) / 1e6


def gpu() -> Sample:
    """Compute 0-100 and 150-200 ms, communication 50-170 ms, a copy 190-240 ms: idle up to 300 ms, where the last kernel of 1 ms stands."""
    made = Sample()
    made.step(5, 0, 120_000).step(6, 120_000, 181_000)
    made.kernel("gemm", 0, 100_000, launch=0).kernel("gemm", 150_000, 50_000, launch=130_000)
    made.kernel(ALL_REDUCE, 50_000, 120_000, launch=10, stream=9, args=collective())
    made.copy(190_000, 50_000)
    made.kernel("tail", 300_000, 1_000, launch=299_000)
    return made


def test_the_parts_of_the_whole_are_unions_and_add_up() -> None:
    reading = read(gpu().text())
    assert (ms(reading, "compute_ns"), ms(reading, "communication_ns"), ms(reading, "memcpy_ns")) == (151, 120, 50)
    assert (ms(reading, "overlap_ns"), ms(reading, "exposed_ns"), ms(reading, "exposed_memcpy_ns")) == (70, 50, 40)
    assert ms(reading, "idle_ns") == 60
    total = sum(ms(reading, n) for n in ("compute_ns", "exposed_ns", "exposed_memcpy_ns", "idle_ns"))
    assert total == ms(reading, "duration_ns") == 301
    assert ms(reading, "host_wait_ns") == 60, "the tail was launched after the device had run dry"


def test_the_longest_stretch_in_which_a_cpu_trace_shows_no_work_is_kept_of_each_collective() -> None:
    made = Sample()
    made.operator("aten::mm", 0, 100).operator("aten::mm", 150, 250).operator("aten::mm", 500, 100)
    made.range("gloo:all_reduce", 50, 500, tid=9).range("gloo:all_reduce", 560, 30, tid=9).range("gloo:all_reduce", 590, 200, tid=9)
    listed = read(made.text()).frames["trace_collectives"]
    assert listed.select("stretch_at_ns", "stretch_ns").rows() == [(350_000, 100_000), (0, 0), (10_000, 190_000)]
    assert read(gpu().text()).frames["trace_collectives"]["stretch_ns"].null_count() == 1


def test_a_step_on_the_device_runs_from_its_first_activity_to_that_of_the_next_step() -> None:
    reading = read(gpu().text())
    assert [row(reading, "trace_windows", n)["step"] for n in (1, 2)] == [5, 6]
    assert (ms(reading, "duration_ns", 1), ms(reading, "duration_ns", 2)) == (150, 151)
    assert ms(reading, "compute_ns", 1) == 100


def test_old_and_new_spellings_and_text_times_say_the_same() -> None:
    new = read(gpu().text())
    old = gpu()
    for event in old.events:
        event["cat"] = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "cuda_runtime": "Runtime", "cpu_op": "Operator"}.get(
            str(event["cat"]), event["cat"]
        )
        event["ts"], event["dur"] = str(event["ts"]), str(event["dur"])
    assert read(old.text()).frames["trace_windows"].equals(new.frames["trace_windows"])


def test_whole_microseconds_since_1970_lose_nothing() -> None:
    made = Sample().kernel("a", 1_694_128_201_428_473, 8).kernel("b", 1_694_128_201_428_482, 1)
    assert row(read(made.text()), "traces")["time_raw_ns"] == 1_694_128_201_428_473_000
    assert row(read(made.text()), "trace_windows")["idle_ns"] == 1000


def test_the_base_time_makes_relative_times_absolute() -> None:
    made = Sample().kernel("a", 1000.25, 8)
    trace = row(read(made.text(baseTimeNanoseconds=1_700_000_000_000_000_000)), "traces")
    assert (trace["time_raw_ns"], trace["time_kind"]) == (1_700_000_000_001_000_250, "epoch")
    assert row(read(made.text()), "traces")["time_kind"] == "monotonic"


def test_a_collective_takes_its_facts_from_its_kernel() -> None:
    found = row(read(gpu().text()), "trace_collectives")
    assert (found["op"], found["bytes"], found["group_size"], found["pg_name"], found["pg_ranks"]) == ("all_reduce", 4096, 2, "0", [0, 1])
    assert (found["channels"], found["named_algorithm"], found["step"], found["exposed_ns"]) == (8, "RING", 5, 50_000_000)


def test_an_old_kernel_takes_its_operation_from_the_range_that_launched_it() -> None:
    made = Sample()
    made.range("nccl:all_to_all", 100, 60, {"Input Dims": [[8, 1024]], "Input type": ["float"]})
    made.kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", 200, 50, launch=120)
    found = row(read(made.text()), "trace_collectives")
    assert (found["op"], found["in_elements"], found["dtype"], found["bytes"]) == ("all_to_all", 8192, "float", 32768)


def test_a_gloo_trace_measures_ranges_of_its_threads_and_operators_that_call_no_collective() -> None:
    made = Sample()
    made.step(1, 0, 1000)
    made.operator("aten::linear", 300, 100).operator("aten::addmm", 310, 80)
    made.operator("DDP.forward", 400, 300).operator("c10d::allreduce_", 450, 20)
    made.range("gloo:all_reduce", 480, 400, {"Input Dims": [[256]], "Input type": ["float"]}, tid=9)
    reading = read(made.text())
    assert row(reading, "traces")["device"] == "cpu"
    assert (ms(reading, "compute_ns"), ms(reading, "communication_ns"), ms(reading, "lead_ns")) == (0.1, 0.4, 0.3)
    found = row(reading, "trace_collectives")
    assert (found["op"], found["backend"], found["bytes"], found["since_lead_ns"]) == ("all_reduce", "gloo", 1024, 300_000)


def test_a_gpu_job_without_gpu_activity_is_not_measured_as_idle() -> None:
    made = Sample().operator("aten::mm", 0, 10).range("nccl:all_reduce", 20, 5)
    reading = read(made.text())
    assert row(reading, "traces")["device"] == "host"
    assert row(reading, "trace_windows")["idle_ns"] is None


def test_durations_that_never_ended_are_clamped_and_events_without_a_time_left_out() -> None:
    made = Sample().kernel("a", 0, 10).kernel("b", 20, -5).kernel("c", 30, 1e15).kernel("d", float("nan"), 1)
    reading = read(made.text())
    trace = row(reading, "traces")
    assert (trace["clamped"], trace["malformed"]) == (2, 1)
    assert ms(reading, "compute_ns") == 0.01


def test_data_loaders_and_garbage_collection_are_told() -> None:
    made = Sample()
    made.step(1, 0, 1000).range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 600)
    made._add("python_function", "<built-in function gc.collect>", 700, 100, pid=1, tid=1)
    made.kernel("gemm", 900, 50, launch=880)
    window = row(read(made.text()), "trace_windows", 1)
    assert (window["loader_ns"], window["gc_ns"]) == (600_000, 100_000)


@pytest.mark.parametrize(
    ("name", "op", "backend"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce", "nccl"),
        ("ncclKernel_AllReduce_TREE_LL_Sum___nv_bfloat16(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce", "nccl"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter", "nccl"),
        ("ncclDevKernel_ReduceScatter_PreMulSum_u32_NVLS_SIMPLE(x)", "reduce_scatter", "nccl"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv", "nccl"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", None, "nccl"),
        ("ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16", "all_reduce", "nccl"),
        ("ncclSymkDevKernel_AllGather_LLMC", "all_gather", "nccl"),
        ("ncclNobodyKnows_7", None, "nccl"),
        ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(x)", "all_reduce", "custom"),
        ("void rcclGenericKernel<1>(x)", None, "custom"),
        ("void at::native::reduce_kernel<512, 1>(x)", None, None),
    ],
)
def test_kernels_that_communicate_are_known_by_name(name: str, op: str | None, backend: str | None) -> None:
    known = classify([name]).row(0, named=True)
    assert (known["op"], known["backend"], known["communicates"]) == (op, backend, backend is not None)


def test_names_of_operations_and_sizes_of_messages() -> None:
    assert [operation(n) for n in ("nccl:_all_gather_base", "send 0->1", "allreduce", "init")] == ["all_gather", "send", "all_reduce", None]
    assert message_bytes("all_gather", 100, 800, "BFloat16", 8) == 1600
    assert message_bytes("all_gather", 100, None, "BFloat16", 8) == 1600
    assert message_bytes("all_reduce", 100, 100, "Float", 8) == 400
    assert message_bytes("all_reduce", 100, 100, "Unheard", 8) is None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=12),
    st.lists(st.tuples(st.integers(-5, 70), st.integers(0, 40)), min_size=1, max_size=6),
)
def test_a_cover_counts_as_counting_by_hand_does(pieces: list[tuple[int, int]], windows: list[tuple[int, int]]) -> None:
    frame = pl.DataFrame({"start": [a for a, _ in pieces], "end": [a + n for a, n in pieces]}, schema={"start": pl.Int64, "end": pl.Int64})
    covered = {t for a, n in pieces for t in range(a, a + n)}
    cover = Cover.of(frame)
    assert cover.total == len(covered)
    begins, ends = pl.Series([a for a, _ in windows]), pl.Series([a + n for a, n in windows])
    assert cover.inside(begins, ends).to_list() == [len(covered & set(range(a, a + n))) for a, n in windows]
    assert union(frame, gap=1).height <= union(frame).height


def test_a_trace_cut_inside_an_event_keeps_what_stands_before_and_tells_the_place() -> None:
    text = gpu().text()
    result = read_source(text[: text.index(b'"tail"')])
    assert result.formats == ("chrome-trace",)
    assert result.frames["trace_windows"]["compute_ns"][0] == 150_000_000
    [gap] = result.frames["gaps"].iter_rows(named=True)
    assert gap["record"].startswith("traceEvents[")
    assert "byte" in gap["reason"]


def test_a_trace_is_never_read_as_lines() -> None:
    result = read_source(b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [ {"ph": "X", "na')
    assert result.lines is None
    assert result.error is not None


@pytest.mark.corpus
def test_the_public_traces_are_read_whole() -> None:
    read_rows = {}
    for name in ("kineto-hta-diff-control/evidence/control", "kineto-hta-nccl-args-2r/evidence/nccl_data"):
        with gzip.open(corpus("public") / f"{name}.json.gz") as stream:
            data = stream.read()
        reading = read(data)
        assert not reading.gaps
        assert row(reading, "traces")["events"] == len(json.loads(data)["traceEvents"])
        read_rows[name] = row(reading, "traces")
    assert [r["rank"] for r in read_rows.values()] == [3, 0]
    assert [r["collectives"] for r in read_rows.values()] == [60, 21]


def test_lark_and_the_column_form_read_kernel_names_alike() -> None:
    names = [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "ncclKernel_Generic(ncclDevComm*)",
        "ncclDevKernel_AllReduce_Sum_f8e4m3_TREE_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_AllGather_RING_LL",
        "ncclDevKernelDebug_Generic_2(x) [clone .kd]",
        "void ncclDevKernel_ReduceScatter_Sum_bf16_COLLNET_CHAIN_SIMPLE(x)",
        "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(x)",
        "ncclOther_1",
        "gemm",
    ]
    grammar = load("collective_kernel")
    found = grammar.extract(pl.Series("text", names))
    for row, name in enumerate(names):
        kind = found.kind[row]
        columns = None if kind is None else (kind, found.frames[kind].filter(pl.col("row") == row).drop("row").row(0, named=True))
        assert grammar.parse(name) == columns, name


def test_copies_that_rocm_shows_as_kernels_are_copies() -> None:
    made = (
        Sample().kernel("MEMORY_COPY_HOST_TO_DEVICE", 0, 10).kernel("__amd_rocclr_fillBufferAligned.kd", 20, 5).kernel("Cijk_Ailk", 30, 7)
    )
    reading = read(made.text())
    assert (ms(reading, "memcpy_ns"), ms(reading, "compute_ns")) == (0.015, 0.007)
    assert sorted(reading.frames["trace_kernels"]["kind"].to_list()) == ["compute", "memcpy", "memset"]


def test_events_of_no_known_category_are_told_and_not_measured() -> None:
    made = Sample()
    made._add("backward-compute", "backward-compute", 0, 10, pid=0, tid=0)
    result = read_source(json.dumps(made.events).encode())
    assert result.error is not None
    assert "backward-compute" in result.error
    assert "traces" not in result.frames


def test_a_gzip_that_was_cut_off_yields_what_it_holds(tmp_path: Path) -> None:
    packed = gzip.compress(Sample(3, 4, [e for n in range(400) for e in gpu().events]).text())
    (tmp_path / "rank3.json.gz").write_bytes(packed[: len(packed) // 2])
    with open_bundle([tmp_path]) as bundle:
        store = read_bundle(bundle, InlineEngine())
    [source] = store.sources.iter_rows(named=True)
    assert "chrome-trace" in source["formats"]
    assert source["error"] is not None
    assert store.scan("traces").collect()["rank"].to_list() == [3]
    assert "truncated" in store.scan("gaps").collect()["reason"][0]
