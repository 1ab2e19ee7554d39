"""Flight Recorder dumps: both encodings, all schema versions, and everything that is wrong with files in the field."""

from __future__ import annotations

import gc
import json
import pickle
from pathlib import Path

import polars as pl
import pytest

from nccl_forensics.formats.base import Reading
from nccl_forensics.formats.flight_recorder import FORMAT
from nccl_forensics.reading.source import read_source
from tests.corpus import ROOT, corpus

FIXTURES = ROOT / "fixtures" / "flight_recorder"
TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def entry(**facts: object) -> dict[str, object]:
    """An entry as schema 2.10 writes it."""
    return {
        "record_id": 7,
        "pg_id": 1,
        "process_group": ("3", "tp_0"),
        "collective_seq_id": 5,
        "p2p_seq_id": 0,
        "op_id": 9,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1758580155798650967,
        "input_sizes": [[2, 3], [4]],
        "output_sizes": [[2, 3], [4]],
        "input_dtypes": ["BFloat16", "Float"],
        "output_dtypes": ["BFloat16", "Float"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": False,
        "timeout_ms": 600000,
        "is_p2p": False,
        "thread_id": "139",
        "thread_name": "pt_main_thread",
        "frames": [
            {"name": "all_reduce", "filename": TORCH, "line": 2700},
            {"name": "inner", "filename": "/usr/lib/python3.11/contextlib.py", "line": 81},
            {"name": "step", "filename": "/home/u/job/train.py", "line": 39},
            {"name": "<module>", "filename": "/home/u/job/train.py", "line": 50},
        ],
    } | facts


def dump(*entries: dict[str, object], **top: object) -> dict[str, object]:
    return {
        "version": "2.10",
        "comm_lib_version": "2.27.5",
        "pg_config": {"3": {"name": "3", "desc": "tp_0", "ranks": "[0, 4]"}},
        "pg_status": {"1": {"last_enqueued_collective": 6, "last_started_collective": -1, "last_completed_collective": 4}},
        "entries": list(entries),
    } | top


def read(document: object, protocol: int = 2) -> Reading:
    return FORMAT.read(pickle.dumps(document, protocol=protocol))


def entries_of(document: object) -> pl.DataFrame:
    return read(document).frames["fr_entries"]


def test_an_entry_fills_every_column():
    [row] = entries_of(dump(entry())).to_dicts()
    assert row == {
        "record": "entries[0]",
        "record_id": 7,
        "pg_id": 1,
        "pg_name": "3",
        "pg_desc": "tp_0",
        "backend": "nccl",
        "op": "all_reduce",
        "op_raw": "nccl:all_reduce",
        "peer_src": None,
        "peer_dst": None,
        "collective_seq_id": 5,
        "p2p_seq_id": 0,
        "op_id": 9,
        "is_p2p": False,
        "state": "scheduled",
        "retired": False,
        "time_created_ns": 1758580155798650967,
        "time_started_ns": None,
        "time_completed_ns": None,
        "duration_ms": None,
        "timeout_ms": 600000,
        "input_sizes": "[[2,3],[4]]",
        "output_sizes": "[[2,3],[4]]",
        "input_dtypes": "BFloat16,Float",
        "output_dtypes": "BFloat16,Float",
        "thread_id": "139",
        "thread_name": "pt_main_thread",
        "user_frame": "step (train.py:39)",
        "frames": f"all_reduce ({TORCH}:2700)\ninner (/usr/lib/python3.11/contextlib.py:81)\n"
        "step (/home/u/job/train.py:39)\n<module> (/home/u/job/train.py:50)",
    }


@pytest.mark.parametrize(
    ("name", "backend", "op", "src", "dst"),
    [
        ("nccl:send 0->1", "nccl", "send", 0, 1),
        ("nccl:recv 1<-0", "nccl", "recv", 0, 1),
        ("nccl:_reduce_scatter_base", "nccl", "_reduce_scatter_base", None, None),
        ("nccl:coalesced", "nccl", "coalesced", None, None),
        ("xccl:all_reduce_barrier", "xccl", "all_reduce_barrier", None, None),
        ("all_reduce", None, "all_reduce", None, None),
        ("", None, None, None, None),
    ],
)
def test_a_profiling_name_tells_backend_operation_and_peers(
    name: str, backend: str | None, op: str | None, src: int | None, dst: int | None
):
    frame = entries_of(dump(entry(profiling_name=name, is_p2p=False)))
    assert frame.select("backend", "op", "peer_src", "peer_dst").row(0) == (backend, op, src, dst)


def test_the_wrapper_of_a_deprecated_call_is_not_the_line_that_called_it():
    wrapper = {"name": "wrapper", "filename": "/venv/lib/python3.11/site-packages/typing_extensions.py", "line": 3140}
    frames = [{"name": "all_gather_into_tensor", "filename": TORCH, "line": 4413}, wrapper, *entry()["frames"][2:]]
    assert entries_of(dump(entry(frames=frames)))["user_frame"].to_list() == ["step (train.py:39)"]


def test_a_send_is_p2p_even_where_torchcomms_says_false():
    assert entries_of(dump(entry(profiling_name="ncclx:send 2->3", is_p2p=False)))["is_p2p"].to_list() == [True]


def test_counters_of_minus_one_and_unsigned_garbage_are_missing():
    status = {"0": {"last_enqueued_collective": "12", "last_started_collective": "-1", "last_completed_collective": 3452013982}}
    [row] = read(dump(pg_status=status)).frames["fr_status"].to_dicts()
    assert row == {"record": "pg_status[0]", "pg_id": 0, "last_enqueued": 12, "last_started": None, "last_completed": None}


@pytest.mark.parametrize("ranks", ["[0, 4]", "0, 4", "[0,4]", [0, 4], (0, 4)])
def test_the_ranks_of_a_group_are_read_in_every_spelling(ranks: object):
    frame = read(dump(pg_config={"3": {"name": "3", "desc": "x", "ranks": ranks}})).frames["fr_groups"]
    assert frame["ranks"].to_list() == ["0,4"]


def test_groups_of_schema_1_2_are_lists_by_number():
    frame = read(dump(pg_config={0: [0, 1], 1: [1]}, version="1.2")).frames["fr_groups"]
    assert frame.select("pg_name", "ranks").rows() == [("0", "0-1"), ("1", "1")]


def test_the_nameless_empty_group_of_gloo_is_no_group():
    assert read(dump(pg_config={"": {"name": "", "desc": "", "ranks": "[]"}})).frames["fr_groups"].height == 0


def test_empty_strings_for_a_group_are_missing():
    frame = entries_of(dump(entry(process_group=("", ""))))
    assert frame.select("pg_name", "pg_desc").row(0) == (None, None)


def test_schema_1_1_has_one_sequence_number_for_everything():
    old = {"pg_id": 0, "seq_id": 17, "profiling_name": "nccl:all_reduce", "time_created_ns": 1, "state": "started", "input_sizes": [[8]]}
    result = read({"version": "1.1", "entries": [old]})
    assert result.frames["fr_entries"].select("collective_seq_id", "pg_name", "retired", "frames").row(0) == (17, None, None, None)
    assert result.frames["fr_dumps"].select("version_major", "version_minor").row(0) == (1, 1)


def test_a_bare_list_is_the_dump_of_2023():
    result = read([{"pg_id": 0, "seq_id": 1, "profiling_name": "nccl:broadcast"}])
    assert result.frames["fr_entries"]["op"].to_list() == ["broadcast"]
    assert result.frames["fr_dumps"]["version"].to_list() == [None]
    assert FORMAT.sniff(pickle.dumps([{"pg_id": 0, "seq_id": 1, "profiling_name": "nccl:broadcast"}], protocol=2))
    assert not FORMAT.sniff(pickle.dumps([{"name": "conv1", "weight": [1.0]}], protocol=2))


def test_the_empty_list_of_a_recorder_that_was_off_is_a_dump():
    """As torch 2.2.2 writes it; an empty list of Python's own pickler may be anybody's."""
    off = b"\x80\x02](eq\x00."
    assert read_source(off).formats == ("flight-recorder",)
    assert FORMAT.read(off).frames["fr_dumps"]["entries"].to_list() == [0]
    assert not FORMAT.sniff(pickle.dumps([], protocol=2))


def test_version_2_10_is_newer_than_2_9():
    frame = read(dump()).frames["fr_dumps"]
    assert frame.select("version", "version_major", "version_minor", "comm_lib_version").row(0) == ("2.10", 2, 10, "2.27.5")


def test_a_dump_of_the_ascend_fork_is_read():
    result = read({"version": "2.4", "hccl_comm_state": {}, "entries": [entry(profiling_name="hccl:all_reduce")]})
    assert result.frames["fr_entries"]["backend"].to_list() == ["hccl"]


@pytest.mark.parametrize("document", [dump(), {k: v for k, v in dump().items() if k != "entries"}])
def test_a_dump_without_entries_still_tells_groups_and_counters(document: object):
    result = read(document)
    assert result.frames["fr_dumps"]["entries"].to_list() == [0]
    assert (result.frames["fr_groups"].height, result.frames["fr_status"].height, result.gaps) == (1, 1, ())


def as_json(document: dict[str, object]) -> bytes:
    """The document as torch's JSON writer gives it: no frames, 0 for absent times, numbers of the status as strings, no empty entries."""
    out = json.loads(json.dumps(document))
    for e in out["entries"]:
        del e["frames"]
        e["time_discovered_started_ns"] = e["time_discovered_started_ns"] or 0
        e["time_discovered_completed_ns"] = e["time_discovered_completed_ns"] or 0
    out["pg_status"] = {k: {n: str(v) for n, v in s.items()} for k, s in out["pg_status"].items()}
    return json.dumps(out, sort_keys=True).encode()


def test_pickle_and_json_of_one_dump_give_the_same_rows_and_the_same_key():
    document = dump(entry(), entry(op_id=10, time_discovered_started_ns=5, duration_ms=0.25))
    first, second = read(document), FORMAT.read(as_json(document))
    assert first.frames["fr_entries"].drop("frames", "user_frame").equals(second.frames["fr_entries"].drop("frames", "user_frame"))
    assert first.frames["fr_dumps"].drop("encoding").equals(second.frames["fr_dumps"].drop("encoding"))
    assert first.frames["fr_status"].equals(second.frames["fr_status"])


def test_another_dump_of_the_same_process_has_another_key():
    keys = {read(dump(entry(op_id=n))).frames["fr_dumps"]["content_key"][0] for n in (1, 2)}
    assert len(keys) == 2


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_binary_protocol_gives_the_same_rows(protocol: int):
    document = dump(entry(), entry(op_id=10))
    assert read(document, protocol).frames["fr_entries"].equals(read(document, 2).frames["fr_entries"])


def test_frames_that_are_equal_but_not_the_same_object_give_the_same_text():
    frames = entry()["frames"]
    copies = [dict(f) for f in frames]  # type: ignore[attr-defined]
    assert entries_of(dump(entry(frames=frames), entry(frames=copies)))["frames"].n_unique() == 1


def test_json_with_nan_and_broken_utf8_is_still_read():
    text = as_json(dump(entry(duration_ms=1.5, thread_name="x?y"))).replace(b"1.5", b"NaN").replace(b"x?y", b"x\xffy")
    frame = FORMAT.read(text).frames["fr_entries"]
    assert frame.select("duration_ms", "thread_name").row(0) == (None, "x\N{REPLACEMENT CHARACTER}y")


ODD: list[tuple[str, object]] = [
    ("record_id", 1 << 80),
    ("record_id", True),
    ("op_id", "12x"),
    ("time_created_ns", -3),
    ("is_p2p", 1),
    ("input_sizes", [[[1]]]),
    ("input_sizes", [["a"]]),
    ("input_sizes", [[1 << 70]]),
    ("input_dtypes", [["Float"]]),
    ("thread_id", {"a": 1}),
    ("thread_name", 1 << 9000),
    ("frames", [1, {"name": 2}]),
    ("state", ["scheduled"]),
    ("retired", "yes"),
    ("profiling_name", 5),
]


@pytest.mark.parametrize(("key", "value"), ODD)
def test_a_value_of_the_wrong_kind_is_missing_and_the_entry_stays(key: str, value: object):
    column = {"profiling_name": "op"}.get(key, key)
    frame = entries_of(dump(entry(**{key: value}), entry()))
    assert frame[column].null_count() == 1
    assert frame["op_id"].to_list()[1] == 9


def test_entries_that_are_no_objects_are_a_gap_beside_the_others():
    result = read(dump(entry(), entries=[1, entry(), None]))
    assert result.frames["fr_entries"]["record"].to_list() == ["entries[1]"]
    assert [(g.record, g.reason) for g in result.gaps] == [("entries[0]", "2 of 3 entries are not objects")]


@pytest.mark.parametrize("data", [pickle.dumps(dump(entry()), protocol=2), as_json(dump(entry()))])
def test_a_truncated_dump_is_a_gap_that_says_so(data: bytes):
    for cut in (len(data) // 3, len(data) - 1):
        result = FORMAT.read(data[:cut])
        assert not result.frames
        assert [g.reason[:19] for g in result.gaps] == ["truncated or broken"]


def test_a_dump_is_known_by_its_content_alone():
    assert read_source(pickle.dumps(dump(entry()), protocol=2)).formats == ("flight-recorder",)
    assert read_source(as_json(dump(entry()))).formats == ("flight-recorder",)
    assert read_source(b'{"traceEvents": [], "entries": 1}').formats != ("flight-recorder",)
    assert read_source(b"").error == "empty file"


def test_shared_stacks_cannot_unfold_without_bound():
    frame = {"name": "f" * 500, "filename": "/" + "d" * 2000, "line": 1}
    stack = [frame] * 500
    result = read(dump(*[entry(frames=stack)] * 2000))
    assert result.frames["fr_entries"].height == 2000
    assert result.frames["fr_entries"]["frames"].null_count() > 0
    assert "unfold" in result.gaps[0].reason


def test_shared_sizes_cannot_unfold_without_bound():
    shape = [1] * 10_000
    result = read(dump(entry(input_sizes=[shape] * 10_000)))
    assert result.frames["fr_entries"]["input_sizes"].to_list() == [None]
    assert "unfold" in result.gaps[0].reason


def test_the_collector_of_cycles_is_on_again_afterwards():
    read(dump(entry()))
    assert gc.isenabled()


def test_the_fixture_has_wrapped_and_both_encodings_agree():
    first = FORMAT.read((FIXTURES / "ring_wrap_rank_0").read_bytes())
    second = FORMAT.read((FIXTURES / "ring_wrap_rank_0.json").read_bytes())
    assert first.frames["fr_dumps"].select("first_record_id", "last_record_id", "entries").row(0) == (17, 32, 16)
    assert first.frames["fr_entries"]["user_frame"].null_count() == 0
    keys = ["record_id", "op_id", "op", "collective_seq_id", "input_sizes", "time_created_ns"]
    assert first.frames["fr_entries"].select(keys).equals(second.frames["fr_entries"].select(keys))


def dumps_below(folder: str) -> list[Path]:
    return sorted(p for p in corpus(folder).glob("*/evidence/fr_*/*") if p.is_file())


def test_every_dump_of_the_lab_is_read_without_a_gap():
    paths = dumps_below("lab")
    assert paths
    for path in paths:
        result = read_source(path.read_bytes())
        assert result.formats == ("flight-recorder",), path.name
        assert "gaps" not in result.frames, path.name


def test_dumps_of_a_real_nccl_job_name_their_groups():
    folder = corpus("public/fr-nvrx-gpu-error-2nd/evidence")
    results = [FORMAT.read(p.read_bytes()) for p in sorted(folder.iterdir())]
    groups = pl.concat([r.frames["fr_groups"] for r in results])
    entries = pl.concat([r.frames["fr_entries"] for r in results])
    assert not any(r.gaps for r in results)
    assert groups["ranks"].null_count() == 0
    assert set(entries["backend"].unique()) == {"nccl"}
    assert set(entries["pg_name"].unique()) <= set(groups["pg_name"].unique())
