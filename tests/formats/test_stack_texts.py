"""Stacks in all their texts: whose they are, what their frames are, and that no line is lost."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_forensics.grammar.lines import load
from nccl_forensics.reading.source import SourceReading, read_source
from nccl_forensics.stacks.frames import frame_text, function_of, short_path, split_frame
from tests.corpus import ROOT, corpus

FIXTURES = ROOT / "fixtures" / "stacks"


def rows(data: bytes | str) -> list[dict[str, object]]:
    """Rows of ``stacks`` of a source."""
    result = read_source(data.encode() if isinstance(data, str) else data)
    return result.frames["stacks"].to_dicts() if "stacks" in result.frames else []


def fixture(name: str) -> list[dict[str, object]]:
    return rows((FIXTURES / name).read_bytes())


def lines_add_up(result: SourceReading) -> bool:
    return result.records + result.gap_lines + result.foreign == result.lines


# --- py-spy, text ----------------------------------------------------------------------------------------------------------------


def test_a_py_spy_dump_tells_process_threads_states_and_frames() -> None:
    main, pin, *_ = fixture("py_spy_ranks.txt")
    assert (main["pid"], main["thread_id"], main["thread_name"], main["is_main"], main["state"]) == (
        4100,
        "4100",
        "MainThread",
        True,
        "idle",
    )
    assert (pin["pid"], pin["thread_name"], pin["is_main"], pin["owns_gil"]) == (4100, "pin (memory)", False, True)
    assert main["native"] is True
    assert pin["native"] is False


def test_frames_are_innermost_first_and_names_keep_their_blanks_and_parentheses() -> None:
    frames = fixture("py_spy_ranks.txt")[0]["frames"]
    assert isinstance(frames, list)
    assert frames[0] == "0x7f6d678a3f16 (libc.so.6)"
    assert frames[3].startswith("pybind11::cpp_function::initialize<bool, c10d::Work>(pybind11::name const)")
    assert frames[4:] == [
        "all_reduce (torch/distributed/distributed_c10d.py:3252)",
        "_exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)",
        "step (train.py:41)",
        "<module> (train.py:90)",
    ]


def test_arguments_tell_whom_a_send_or_receive_is_for_and_only_those_of_the_call_itself() -> None:
    head = 'Process 7: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread 7 (idle): "MainThread"\n'
    call = "    recv (torch/distributed/distributed_c10d.py:2799)\n        Arguments:\n            src: 3\n            group_src: None\n"
    below = "    exchange (train.py:9)\n        Locals:\n            src: 5\n"
    assert [row["peer"] for row in rows(head + call + below)] == [3]
    assert [row["peer"] for row in rows(head + below)] == [None]
    assert [row["peer"] for row in rows(head + call.replace("recv", "broadcast"))] == [None]


def test_a_request_among_the_locals_of_the_innermost_frame_is_told_where_that_is_the_programs_own() -> None:
    request = "            work: <torch._C._distributed_c10d.Work at 0x7f518b26aeb0>\n"
    head = 'Process 7: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread 7 (idle): "MainThread"\n'
    turn, recv = "    turn (train.py:26)\n        Locals:\n", "    recv (torch/distributed/distributed_c10d.py:2799)\n        Locals:\n"
    assert [row["request"] for row in rows(head + turn + request)] == [True]
    # Of torch's own frame, of one further out, of another local.
    below = "    turn (train.py:26)\n"
    for other in (recv + request + below, below + "    main (train.py:40)\n        Locals:\n" + request, turn + "            work: 5\n"):
        assert [row["request"] for row in rows(head + other)] == [None]


def test_locals_are_lines_of_the_block_and_no_frames() -> None:
    result = read_source((FIXTURES / "py_spy_ranks.txt").read_bytes())
    assert lines_add_up(result)
    # The two headings, the remark on top and the ruler of dashes with its blanks are nobody's.
    assert result.gap_lines == 0
    assert result.foreign <= 6


def test_a_heading_gives_the_rank_and_is_kept() -> None:
    first, _, second, _ = fixture("py_spy_ranks.txt")
    assert (first["hint_rank"], first["hint_scope"], first["heading"]) == (0, "global", "=== rank 0 (pid 4100) ===")
    assert (second["hint_rank"], second["pid"]) == (1, 4101)
    assert first["hint_host"] == "gpu-07"


def test_a_child_process_names_its_parent_and_takes_no_heading() -> None:
    worker = fixture("py_spy_ranks.txt")[3]
    assert (worker["pid"], worker["parent_pid"], worker["hint_rank"], worker["heading"]) == (4222, 4101, None, None)


def test_secrets_of_the_command_line_are_masked() -> None:
    command = fixture("py_spy_ranks.txt")[0]["command"]
    assert isinstance(command, str)
    assert "abcdef123456" not in command
    assert command.startswith("/opt/venv/bin/python -u train.py")


def test_thread_ids_in_hex_are_pthread_ids() -> None:
    [row] = rows('Process 7: python\nPython v3.8.1 (/usr/bin/python)\n\nThread 0x7F5A0BC3AB80 (active): "MainThread"\n    f (a.py:1)\n')
    assert (row["pthread_id"], row["thread_id"], row["pid"]) == (str(0x7F5A0BC3AB80), None, 7)


def test_main_threads_above_one_list_of_frames_are_processes_in_the_same_stack() -> None:
    text = 'Node 4:\n\n2 in:\n```\nThread 11 (active): "MainThread"\nThread 12 (active): "MainThread"\n    recv (torch/distributed/x.py:1)\n```\n'
    first, second = rows(text)
    assert (first["pid"], second["pid"]) == (11, 12)
    assert first["frames"] == second["frames"] == ["recv (torch/distributed/x.py:1)"]
    assert first["hint_host"] == "node 4"
    assert first["stands_for"] is None


def test_a_note_that_counts_processes_stands_for_so_many() -> None:
    [row] = rows('6 processes are in:\n\nThread 835990 (active): "MainThread"\n    train (training.py:915)\n')
    assert (row["stands_for"], row["pid"]) == (6, 835990)


def test_a_frameless_thread_of_a_process_is_kept() -> None:
    idle, other = rows('Process 7: python\nPython v3.8.1 (x)\n\nThread 7 (idle): "MainThread"\nThread 9 (idle)\n    f (a.py:1)\n')
    assert (idle["depth"], idle["is_main"], other["depth"], other["is_main"]) == (0, True, 1, False)


def test_prose_that_mentions_other_processes_does_not_name_the_stack_below() -> None:
    text = 'compare it with process 688514 and with rank 3, which sits somewhere else according to what the others of this node have said\n\nThread 77 (idle): "MainThread"\n    f (a.py:1)\n'
    [row] = rows(text)
    assert (row["pid"], row["hint_rank"]) == (77, None)


def test_a_local_rank_in_a_heading_is_no_global_rank() -> None:
    [row] = rows('--- local rank 2 ---\nProcess 7: python\nPython v3.8.1 (x)\n\nThread 7 (idle): "MainThread"\n    f (a.py:1)\n')
    assert (row["hint_rank"], row["hint_scope"]) == (2, "local")


def test_a_command_line_of_several_lines_belongs_to_its_process() -> None:
    [row] = rows(
        'Process 7: python -c import time\ntime.sleep(9)\nPython v3.8.1 (x)\n\nThread 7 (idle): "MainThread"\n    <module> (<string>:2)\n'
    )
    assert row["command"] == "python -c import time\ntime.sleep(9)"


def test_dumps_of_one_process_are_numbered() -> None:
    dump = 'Process 7: python\nPython v3.8.1 (x)\n\nThread 7 (idle): "MainThread"\n    f (a.py:1)\n'
    assert [r["sample"] for r in rows(dump + "\n" + dump)] == [0, 1]


def test_a_frame_cut_off_at_the_end_is_a_gap() -> None:
    result = read_source(b'Process 7: python\nPython v3.8.1 (x)\n\nThread 7 (idle): "MainThread"\n    f (a.py:1)\n    train (tra')
    assert result.gap_lines == 1
    assert lines_add_up(result)
    assert result.frames["gaps"]["line_no"].to_list() == [6]


def test_log_lines_about_processes_and_threads_are_not_stacks() -> None:
    text = "Process 12: started\nThread 7 (idle): waiting\nThread 9 (active)\nnothing here\nMainThread: step (train.py:3)\n"
    assert rows(text) == []


def test_blocks_of_two_ranks_that_interleave_behind_prefixes_are_kept_apart() -> None:
    one = ["Process 7: python", "Python v3.8.1 (x)", "", 'Thread 7 (idle): "MainThread"', "    f (a.py:1)"]
    two = ["Process 8: python", "Python v3.8.1 (x)", "", 'Thread 8 (idle): "MainThread"', "    g (a.py:2)"]
    text = "\n".join(f"[rank{r}]: {line}" for pair in zip(one, two, strict=True) for r, line in enumerate(pair))
    assert [(r["pid"], r["hint_rank"], r["frames"]) for r in rows(text)] == [(7, 0, ["f (a.py:1)"]), (8, 1, ["g (a.py:2)"])]


# --- py-spy, JSON, record --------------------------------------------------------------------------------------------------------


def test_json_tells_the_same_as_text_and_who_owns_the_gil() -> None:
    main, other = fixture("py_spy.json")
    assert (main["pid"], main["thread_id"], main["is_main"], main["state"], main["owns_gil"]) == (4101, "4101", True, "idle", True)
    assert main["frames"] == ["step (train.py:38)", "c10d::Work::wait (libtorch_cpu.so)"]
    assert (main["parent_pid"], main["command"], main["native"]) == (4000, "python train.py", True)
    assert (other["record"], other["depth"], other["pthread_id"]) == ("[1]", 0, "139666295789248")


def test_json_dumps_that_follow_each_other_are_samples() -> None:
    data = (FIXTURES / "py_spy.json").read_bytes()
    assert [(r["record"], r["sample"]) for r in rows(data + b"\n" + data)] == [("[0][0]", 0), ("[0][1]", 0), ("[1][0]", 1), ("[1][1]", 1)]


def test_truncated_json_is_a_gap_and_no_exception() -> None:
    result = read_source((FIXTURES / "py_spy.json").read_bytes()[:400])
    assert "stacks" not in result.frames
    assert result.error is not None


def test_raw_stacks_are_turned_innermost_first_and_counted() -> None:
    plain, whole, watcher = fixture("py_spy_raw.txt")
    assert (plain["times"], plain["frames"], plain["is_main"]) == (
        3,
        ["GzipFile.write (gzip.py:289)", "step (train.py:41)", "<module> (train.py:90)"],
        True,
    )
    assert (whole["pid"], whole["thread_id"], whole["times"], whole["depth"]) == (4101, "4101", 40, 2)
    assert watcher["is_main"] is False


def test_a_profile_without_samples_says_why() -> None:
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "profiles": [],
        "shared": {"frames": []},
        "exporter": "py-spy@0.4.3",
    }
    result = read_source(json.dumps(document).encode())
    assert result.formats == ("py-spy-speedscope",)
    assert "idle threads" in result.frames["gaps"]["reason"][0]


def test_a_profile_counts_its_stacks() -> None:
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "py-spy@0.4.3",
        "shared": {"frames": [{"name": "<module>", "file": "a.py", "line": 9}, {"name": "f", "file": "a.py", "line": 2}]},
        "profiles": [
            {"type": "sampled", "name": 'Process 7 Thread 8 "MainThread"', "samples": [[0, 1], [0, 1], [0]], "weights": [1, 1, 1]}
        ],
    }
    found = rows(json.dumps(document))
    assert [(r["times"], r["frames"], r["pid"]) for r in found] == [
        (2, ["f (a.py:2)", "<module> (a.py:9)"], 7),
        (1, ["<module> (a.py:9)"], 7),
    ]


# --- faulthandler ----------------------------------------------------------------------------------------------------------------


def test_the_main_thread_of_a_faulthandler_dump_is_its_oldest_not_the_current_one() -> None:
    watch, crashed, main, native, timed = fixture("faulthandler_crash.txt")
    assert [r["is_main"] for r in (watch, crashed, main, native, timed)] == [False, False, True, False, True]
    assert (crashed["state"], main["state"]) == ("current", None)
    assert [r["sample"] for r in (main, native, timed)] == [0, 0, 1]


def test_faulthandler_frames_are_shortened_as_py_spy_does() -> None:
    watch, crashed, main, *_ = fixture("faulthandler_crash.txt")
    assert watch["frames"] == ["_watch_trigger (watch.py:70)", "run (threading.py:982)"]
    assert crashed["frames"] == ["Garbage-collecting ()", "do_one_step (torch/utils/data/_utils/pin_memory.py:27)"]
    assert main["frames"] == [
        "_engine_run_backward (torch/autograd/graph.py:979)",
        "_call_with_frames_removed (<frozen importlib._bootstrap>:241)",
        "<module> (train.py)",
    ]


def test_the_c_stack_of_a_crash_is_a_native_stack() -> None:
    native = fixture("faulthandler_crash.txt")[3]
    assert (native["native"], native["frames"]) == (True, ["abort (libc.so.6)", "?? (torch/lib/libc10.so)"])


def test_the_line_that_names_the_signal_is_left_to_the_reader_of_exceptions() -> None:
    result = read_source((FIXTURES / "faulthandler_crash.txt").read_bytes())
    assert lines_add_up(result)
    assert result.frames["exceptions"].select("line_no", "kind").rows() == [(1, "fatal-signal")]


# --- gdb, pystack ----------------------------------------------------------------------------------------------------------------


def test_gdb_threads_belong_to_the_process_that_gdb_states() -> None:
    loop, main, other = fixture("gdb.txt")
    assert (loop["pid"], loop["thread_id"], loop["thread_name"], loop["is_main"]) == (17211, "17734", "pt_gloo_runloop", False)
    assert (main["pid"], main["is_main"], main["pthread_id"]) == (17211, True, str(0x7F2F1CA8CB80))
    assert (other["pid"], other["is_main"]) == (17300, True)


def test_gdb_frames_keep_function_and_place_without_arguments_and_types() -> None:
    loop, main, _ = fixture("gdb.txt")
    assert loop["frames"] == [
        "__futex_abstimed_wait_common64 (futex-internal.c:57)",
        "gloo::broadcast (torch/lib/libtorch_cpu.so)",
        "c10d::(anonymous namespace)::AsyncBroadcastWork::broadcast (torch/lib/libtorch_cpu.so)",
    ]
    assert main["frames"] == [
        "take_gil (ceval_gil.h:224)",
        "c10d::Work::wait (torch/lib/libtorch_cpu.so)",
        "<signal handler called> (??)",
        "?? (libstdc++.so.6)",
    ]


def test_pystack_is_turned_innermost_first_and_finds_the_main_thread() -> None:
    watcher, main, empty = fixture("pystack.txt")
    assert (watcher["is_main"], main["is_main"], main["pid"], watcher["pid"]) == (False, True, 9112, 9112)
    assert main["frames"] == [
        "Garbage-collecting ()",
        "torch::autograd::Engine::execute(std::vector<int> const&) (libtorch_cpu.so)",
        "step (train.py:41)",
        "<module> (train.py:90)",
    ]
    assert (main["owns_gil"], main["native"], watcher["native"]) == (True, True, False)
    assert empty["depth"] == 0


# --- all of them -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted(p.name for p in FIXTURES.glob("*.txt")))
def test_lark_and_the_patterns_read_every_line_alike(file: str) -> None:
    lines = [line.strip() for line in (FIXTURES / file).read_text().splitlines()]
    for name in ("py_spy", "py_spy_raw", "faulthandler", "gdb", "pystack"):
        grammar = load(name)
        found = grammar.extract(pl.Series(lines))
        fast = {row.pop("row"): row for frame in found.frames.values() for row in frame.iter_rows(named=True)}
        for number, line in enumerate(lines):
            slow = grammar.parse(line)
            assert (slow[0] if slow else None) == found.kind[number], line
            assert (slow[1] if slow else None) == fast.get(number), line


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_stacks_never_raise_and_no_line_is_lost(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(p.name for p in FIXTURES.glob("*.txt"))))
    raw = (FIXTURES / name).read_bytes()
    start = data.draw(st.integers(0, len(raw) - 1))
    end = data.draw(st.integers(start + 1, len(raw)))
    # Eight bytes of systemd's make another kind of file of it.
    noise = data.draw(st.binary(max_size=8).filter(lambda b: b"\n" not in b and b != b"LPKSHHRH"))
    result = read_source(raw[:start] + noise + raw[end:] + b"\n")
    assert result.lines is None or lines_add_up(result)
    if "gaps" in result.frames:
        assert not result.frames["gaps"]["reason"].str.contains("unreadable").any()


def test_frames_are_cut_at_the_last_parenthesis() -> None:
    assert split_frame("f(a (b)) (x.py:3)") == ("f(a (b))", "x.py", 3)
    assert split_frame("g (libc.so.6)") == ("g", "libc.so.6", None)
    assert function_of("Tensor.backward (torch/_tensor.py:3)") == "backward"
    assert function_of("c10d::Work::wait (libtorch_cpu.so)") == "c10d::Work::wait"
    assert len(frame_text("x" * 5000, "a.py", 3)) <= 600


def test_paths_are_shortened_to_what_python_imported() -> None:
    assert short_path("/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py") == "torch/cuda/__init__.py"
    assert short_path("/usr/lib/python3.13t/threading.py") == "threading.py"
    assert short_path("/workspace/pytorch/torch/_tensor.py") == "torch/_tensor.py"
    assert short_path("/home/me/train.py") == "train.py"


# --- real ones -------------------------------------------------------------------------------------------------------------------


def _main_of(path: Path) -> list[str]:
    found = [r for r in rows(path.read_bytes()) if r["is_main"]]
    assert len(found) == 1, path
    frames = found[0]["frames"]
    assert isinstance(frames, list)
    return frames


@pytest.mark.corpus
def test_every_lab_stack_is_read_whole_and_text_and_json_agree() -> None:
    count = 0
    for text in sorted(corpus("lab").glob("*/evidence/stacks*/*.txt")):
        result = read_source(text.read_bytes())
        assert result.gap_lines == 0, text
        assert lines_add_up(result), text
        if not text.name.endswith((".gdb.txt", "_raw.txt")):
            assert result.foreign == 0, text
        count += 1
        twin = text.with_suffix(".json")
        if text.name.endswith(".pyspy.txt") and twin.exists():
            # Taken moments apart: a rank that runs may have moved on, a rank that waits has not.
            mine, theirs = _main_of(text), _main_of(twin)
            if "distributed_c10d" in mine[0]:
                assert mine == theirs, text
    assert count > 50


@pytest.mark.corpus
def test_faulthandler_agrees_with_py_spy_on_ranks_that_wait() -> None:
    compared = 0
    for text in sorted(corpus("lab").glob("*/evidence/stacks/*.pyspy.txt")):
        twin = text.parent.parent / "faulthandler" / text.name.replace(".pyspy", "")
        mine = _main_of(text)
        if twin.exists() and "distributed_c10d" in mine[0]:
            assert [function_of(f) for f in mine] == [function_of(f) for f in _main_of(twin)]
            assert [split_frame(f)[1:] for f in mine] == [split_frame(f)[1:] for f in _main_of(twin)]
            compared += 1
    assert compared >= 20


@pytest.mark.corpus
def test_stacks_pasted_in_real_notes_are_sixteen_processes_on_two_nodes() -> None:
    [note] = sorted(corpus("public/pyspy-bloom-eval-hang-20220430/evidence").glob("*.md"))
    found = rows(note.read_bytes())
    assert len({r["pid"] for r in found}) == len(found) == 16
    assert {r["hint_host"] for r in found} == {"node 48", "node 49"}
    [loader] = [r for r in found if r["pid"] == 688514]
    assert loader["depth"] == 17
