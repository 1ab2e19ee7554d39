"""Gaps: what would settle the verdict comes first, and with it the verdict is surer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nccl_forensics.api import analyze
from nccl_forensics.model import CONFIDENCES
from nccl_forensics.reading.engine import InlineEngine
from nccl_forensics.simulate import Request, simulate
from tests.corpus import ROOT
from tests.robustness import drop_culprit
from tests.score import Case, cases

#: Hangs of which the culprit's own files are taken away: from a recorder, from NCCL's log, in a sub-group, of two ranks at once.
NAMES = (
    "incidents/subgroup-hang-8r",
    "lab/skip_allreduce_rank3",
    "lab/tp_dp_subgroup_hang_rank5",
    "nccl-stub/skip-8r-rank5",
    "nccl-stub/wrong-count-8r-rank7",
    "public/fr-nvrx-gpu-error-2nd",
)


def _case(name: str) -> Case:
    found = {c.name: c for c in cases() if c.name in NAMES}
    if name not in found:
        pytest.skip(f"{name} is not at hand: no corpus beside the project")
    return found[name]


def _sureness(verdict: dict[str, object]) -> int:
    """No confidence at all, low, medium, high."""
    return len(CONFIDENCES) - [*CONFIDENCES, None].index(verdict["confidence"])


@pytest.mark.parametrize("name", NAMES)
def test_the_files_that_the_first_gap_names_make_the_verdict_surer(name: str, tmp_path: Path) -> None:
    case = _case(name)
    whole = analyze([case.evidence], engine=InlineEngine()).report
    root = tmp_path / "evidence"
    shutil.copytree(case.evidence, root, copy_function=shutil.copyfile)
    assert drop_culprit(root, case, whole["sources"])  # type: ignore[arg-type]
    less = analyze([root], engine=InlineEngine()).report
    first = less["gaps"][0]  # type: ignore[index]
    named = [c["rank"] for c in whole["verdict"]["culprits"]]  # type: ignore[index]
    assert named
    assert set(named) <= set(first["ranks"])
    assert _sureness(whole["verdict"]) > _sureness(less["verdict"])  # type: ignore[arg-type]


def _told(evidence: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The verdict and the gaps of a report."""
    report = json.loads(analyze([evidence], engine=InlineEngine()).json())
    return report["verdict"], report["gaps"]


@pytest.mark.parametrize("seed", [1, 6])
def test_stacks_are_asked_of_the_rank_that_a_sure_verdict_names_and_of_no_other(seed: int, tmp_path: Path) -> None:
    """Where a rank left a call out, all those wait in the end that wait for it in groups of their own."""
    simulate(Request("collective-skipped", 64, seed, variant="dump-only"), tmp_path)
    verdict, [first, *rest] = _told(tmp_path / "evidence")
    assert verdict["confidence"] == "high"
    assert first["ranks"] == [c["rank"] for c in verdict["culprits"]]
    assert first["what"].startswith("a stack of rank ")
    assert not any(gap["what"].startswith("a stack of rank ") for gap in rest)


def test_no_stack_is_asked_of_ranks_whose_host_has_a_wrong_setting(tmp_path: Path) -> None:
    """The processes of this job have several communicators each. Its logs tell no end, so that the loss may not be all that was wrong."""
    simulate(Request("p2p-disabled", 64, 821, platform="pcie", variant="log"), tmp_path)
    verdict, gaps = _told(tmp_path / "evidence")
    assert (verdict["cause"], verdict["confidence"], len(verdict["culprits"])) == ("p2p-disabled", "medium", 8)
    assert not any(gap["what"].startswith("a stack of") for gap in gaps)


def test_no_stack_is_asked_of_a_process_that_died() -> None:
    verdict, gaps = _told(ROOT / "fixtures" / "incidents" / "killed-rank-4r" / "evidence")
    assert verdict["cause"] == "rank-died"
    dead = {c["rank"] for c in verdict["culprits"]}
    assert not any(dead & set(gap["ranks"]) for gap in gaps if gap["what"].startswith("a stack of"))


def test_equal_dumps_alone_find_no_fault_with_low_confidence_only() -> None:
    evidence = ROOT / "fixtures" / "incidents" / "healthy-gloo-4r" / "evidence"
    whole = analyze([evidence], engine=InlineEngine()).report["verdict"]
    dumps = analyze([evidence / "fr_pickle"], engine=InlineEngine()).report["verdict"]
    assert isinstance(whole, dict)
    assert isinstance(dumps, dict)
    assert (whole["status"], whole["confidence"]) == ("nothing-wrong", "medium")
    assert (dumps["status"], dumps["confidence"]) == ("nothing-wrong", "low")


def test_the_next_step_says_where_to_run_it_and_beside_which_process_as_far_as_the_evidence_does() -> None:
    incidents = ROOT / "fixtures" / "incidents"

    def first_step(name: str, part: str = "") -> dict[str, object]:
        step: dict[str, object] = analyze([incidents / name / "evidence" / part], engine=InlineEngine()).verdict["actions"][0]
        return step

    told = first_step("ras-rank-behind-32r")
    assert (told["hosts"], told["command"]) == (["10.0.0.7"], "py-spy dump --pid 22113")
    traced = first_step("slow-loader-traces-4r")
    assert (traced["hosts"], traced["command"]) == (["vm"], "py-spy record -d 30 -f raw --idle --pid 2087")
    # A recorder's dumps tell neither.
    untold = first_step("lab-host-stall-3r", "fr_pickle")
    assert untold["hosts"] == []
    assert str(untold["command"]).endswith("--pid <pid>")


def test_an_earlier_job_in_the_same_output_is_left_out_and_said_to_be(tmp_path: Path) -> None:
    ends = [f"slurmstepd: error: *** JOB {job} ON n1 CANCELLED AT 2025-08-2{job}T02:26:53 DUE TO TIME LIMIT ***" for job in (1, 2)]
    failed = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "RuntimeError: boom"]
    (tmp_path / "slurm.out").write_text("\n".join([*failed, ends[0], *(f"step {n}" for n in range(40)), ends[1], ""]))
    report = analyze([tmp_path], engine=InlineEngine()).report
    verdict, gaps = report["verdict"], report["gaps"]
    assert (verdict["cause"], [g["what"] for g in gaps if "job" in g["what"]]) == ("job-stopped", ["a verdict on Slurm job 1"])
    (tmp_path / "slurm.out").write_text("\n".join([*failed, *(f"step {n}" for n in range(40)), ends[1], ""]))
    assert not [g for g in analyze([tmp_path], engine=InlineEngine()).report["gaps"] if "job" in g["what"]]


def _dump(op: str, late: int) -> bytes:
    """A recorder's dump of one of six ranks of a job with one group: nothing in it tells which."""
    entries = [
        {
            "record_id": n,
            "pg_id": 0,
            "process_group": ["0", "default_pg"],
            "collective_seq_id": n + 1,
            "p2p_seq_id": 0,
            "op_id": n + 1,
            "profiling_name": f"nccl:{op if n == 3 else 'all_reduce'}",
            "time_created_ns": 1_800_000_000_000_000_000 + 1000 * n + late,
            "input_sizes": [[64]],
            "input_dtypes": ["Float"],
            "output_sizes": [[64]],
            "output_dtypes": ["Float"],
            "state": "scheduled" if n == 3 else "completed",
            "timeout_ms": 600_000,
            "is_p2p": False,
            "retired": n < 3,
            "frames": [],
        }
        for n in range(4)
    ]
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3, 4, 5]"}}
    return json.dumps({"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}).encode()


def test_a_process_that_nothing_gives_a_rank_is_told_by_its_file(tmp_path: Path) -> None:
    for late, name in enumerate("abcdef"):
        (tmp_path / name).write_bytes(_dump("broadcast" if name == "d" else "all_reduce", late))
    report = analyze([tmp_path], engine=InlineEngine())
    assert json.loads(report.json())["case"]["ranks_missing"] == []
    assert not report.extras.timeline
    verdict, gaps = _told(tmp_path)
    assert (verdict["cause"], [(c["rank"], c["source"]) for c in verdict["culprits"]]) == ("collective-mismatch", [(None, "d")])
    assert [action["ranks"] for action in verdict["actions"]] == [[]]
    # No rank is said to be missing, as each dump is one's; without two of them two are.
    assert gaps[0]["what"] == "the ranks of 6 recorder dumps"
    assert not any(gap["what"].startswith("evidence of") for gap in gaps)
    for name in "ab":
        (tmp_path / name).unlink()
    assert [g["what"] for g in _told(tmp_path)[1]][:2] == ["the ranks of 4 recorder dumps", "evidence of 2 of these ranks"]
    # By its name each is somebody's.
    for n, name in enumerate("cdef"):
        (tmp_path / name).rename(tmp_path / f"fr_trace_rank_{n}")
    verdict, gaps = _told(tmp_path)
    assert [(c["rank"], "source" in c) for c in verdict["culprits"]] == [(1, False)]
    assert gaps[0]["what"] == "a stack of rank 1"


def test_of_nccls_log_alone_its_other_subsystems_and_the_launcher_are_asked_for(tmp_path: Path) -> None:
    log = tmp_path / "nccl.log"
    log.write_text("node1:10:20 [0] NCCL INFO comm 0x55 rank 0 nranks 1 cudaDev 0 busId 1b000 - Init COMPLETE\n", encoding="utf-8")
    asked = [str(gap["what"]) for gap in _told(tmp_path)[1]]
    assert "NCCL's log with its subsystems ENV, NET and GRAPH" in asked
    assert "what the launcher or the scheduler printed" in asked
    log.write_text(
        log.read_text(encoding="utf-8") + "node1:10:20 [0] NCCL INFO === System : maxBw 240.0 totalBw 240.0 ===\n", encoding="utf-8"
    )
    assert not any("subsystems" in str(gap["what"]) for gap in _told(tmp_path)[1])


def test_the_rest_of_logs_that_were_copied_in_part_is_missing(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "fixtures" / "incidents" / "nccl-skipped-collective-8r" / "evidence", tmp_path, dirs_exist_ok=True)
    logs = [file for file in tmp_path.rglob("*") if file.is_file()]
    for log in logs:
        data = log.read_bytes()
        log.write_bytes(data[: data.index(b"\n", len(data) // 3) + 9])
    verdict, gaps = _told(tmp_path)
    assert verdict["status"] == "insufficient-evidence"
    [rest] = [gap for gap in gaps if str(gap["what"]).startswith("the rest of ")]
    assert f"and {len(logs) - 1} more" in rest["what"]


def test_a_job_that_speaks_gloo_alone_is_not_asked_for_logs_of_nccl() -> None:
    _, gaps = _told(ROOT / "fixtures" / "incidents" / "lab-host-stall-3r" / "evidence")
    assert gaps
    assert not [g for g in gaps if "NCCL" in g["what"]]


def test_of_recorders_that_were_off_dumps_that_hold_operations_are_asked_for(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(b"\x80\x02](eq\x00.")
    assert "Flight Recorder dumps that hold operations" in [gap["what"] for gap in _told(tmp_path)[1]]
    _, gaps = _told(ROOT / "fixtures" / "incidents" / "lab-host-stall-3r" / "evidence")
    assert not [g for g in gaps if "hold operations" in g["what"]]


def test_the_kernel_log_of_the_named_host_comes_first_where_a_process_was_killed() -> None:
    verdict, gaps = _told(ROOT / "fixtures" / "incidents" / "killed-rank-4r" / "evidence")
    hosts = sorted({c["host"] for c in verdict["culprits"] if c["host"]})
    kernel, *_ = [g for g in gaps if not g["ranks"]]
    assert (kernel["what"], kernel["hosts"]) == ("kernel logs of the hosts", hosts)


def test_of_a_gpu_that_is_at_fault_its_own_state_is_asked_for_before_any_dump(tmp_path: Path) -> None:
    (tmp_path / "node7").mkdir()
    line = "[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.\n"
    (tmp_path / "node7" / "dmesg-T.txt").write_text(line)
    verdict, gaps = _told(tmp_path)
    assert verdict["cause"] == "gpu-fault"
    assert (gaps[0]["command"], gaps[0]["hosts"]) == ("nvidia-smi -q", ["node7"])


def test_of_a_rank_that_left_nothing_its_evidence_is_to_be_got_before_any_line_is_mended(tmp_path: Path) -> None:
    case = _case("incidents/subgroup-hang-8r")
    whole = analyze([case.evidence], engine=InlineEngine()).report
    root = tmp_path / "evidence"
    shutil.copytree(case.evidence, root, copy_function=shutil.copyfile)
    assert drop_culprit(root, case, whole["sources"])  # type: ignore[arg-type]
    verdict, gaps = _told(root)
    [culprit] = [c["rank"] for c in verdict["culprits"]]
    assert gaps[0]["what"] == f"a stack of rank {culprit}"
    assert [a["action"] for a in verdict["actions"]] == ["collect-more"]
    assert all(a["against"] is None for a in verdict["alternatives"])


def test_a_rank_whose_recorder_left_nothing_beside_those_of_others_is_asked_for(tmp_path: Path) -> None:
    """A healthy job of four ranks: once with all dumps, and once without that of rank 2, of which there is a log."""
    evidence = ROOT / "fixtures" / "incidents" / "healthy-gloo-4r" / "evidence"
    assert not any("Recorder" in gap["what"] for gap in _told(evidence)[1])
    shutil.copytree(evidence, tmp_path / "evidence", copy_function=shutil.copyfile)
    dumps = [p for p in (tmp_path / "evidence").rglob("*rank_2*") if "fr_" in str(p)]
    assert dumps
    for dump in dumps:
        dump.unlink()
    [gap] = [gap for gap in _told(tmp_path / "evidence")[1] if "Recorder" in gap["what"]]
    assert (gap["what"], gap["ranks"]) == ("the Flight Recorder dump of rank 2", [2])
