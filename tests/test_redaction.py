"""Nothing that was planted leaves the program: secrets ever, names of hosts, users, addresses and paths when asked to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from nccl_forensics import api
from nccl_forensics.gate import Demands
from nccl_forensics.pseudonyms import Pseudonyms
from nccl_forensics.reading.engine import InlineEngine
from nccl_forensics.redaction import Level
from nccl_forensics.reporters import (
    annotations,
    comparison_html,
    comparison_json,
    comparison_markdown,
    comparison_terminal,
    gate_text,
    junit,
    sarif,
    terminal,
)
from tests.corpus import ROOT
from tests.growth import growth

#: One secret of each kind, as it stands in a line, and the part of it that must never be seen again.
SECRETS = {
    "token": ("HF_TOKEN=planted1planted1", "planted1"),
    "hub token": ("hf_planted2planted2planted2", "planted2"),
    "password": ("--password=planted3planted3", "planted3"),
    "URL": ("https://me:planted4planted4@registry.invalid/x", "planted4"),
    "cloud key": ("AKIAPLANTED5PLANTED5", "PLANTED5"),
    "secret key": ("aws_secret_access_key=planted6planted6/AB", "planted6"),
    "bearer": ("Authorization: Bearer planted7planted7", "planted7"),
    "signed URL": ("https://x.invalid/c?sv=2&sig=planted8planted8", "planted8"),
    "code host": ("ghp_planted9planted9planted9", "planted9"),
    "chat": ("xoxb-1234567890-planted0", "planted0"),
    "model service": ("sk-proj-plantedAplantedAplantedA", "plantedA"),
    "JWT": ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0.plantedBplantedB", "plantedB"),
    "account key": ("AccountKey=plantedCplantedC==", "plantedC"),
}


def outputs(evidence: Path, tables: Path, level: Level = "secrets") -> Iterator[tuple[str, str]]:
    """Every output of every command about this evidence, as text, by name."""
    engine = InlineEngine()
    incident = api.analyze([evidence], engine=engine, tables=tables, redact=level)
    yield "postmortem.html", incident.html()
    yield "postmortem.md", incident.markdown()
    yield "report.json", incident.json().decode()
    yield "terminal", terminal.render(incident.report, incident.extras, color=True, width=120)
    for file in sorted(tables.glob("*.parquet")):
        yield file.name, pl.read_parquet(file).write_json()
    gate, _ = api.check([evidence], Demands(), engine=engine, redact=level)
    yield "gate", gate_text.render(gate, color=False)
    yield "junit", junit.render(gate).decode()
    yield "sarif", sarif.render(gate, {}).decode()
    yield "annotations", annotations.render(gate)
    report = tables.parent / "report.json"
    report.write_bytes(incident.json() if level == "secrets" else api.analyze([evidence], engine=engine).json())
    compared = api.compare(report, report if level == "secrets" else evidence, engine=engine, redact=level).differences
    for reporter in (comparison_json, comparison_html, comparison_markdown):
        yield reporter.__name__, reporter.render(compared).decode()
    yield "comparison on a terminal", comparison_terminal.render(compared, color=False, width=120)


def texts() -> list[Path]:
    """The fixtures that are text."""
    found = []
    for file in sorted((ROOT / "fixtures").rglob("*")):
        if file.is_file() and "incidents" not in file.parts and "golden" not in file.name and file.suffix not in (".md", ".webp"):
            try:
                file.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
            found.append(file)
    return found


def planted(text: str, plants: list[str]) -> str:
    """A text with a plant at the end of each line, or in each short value of a JSON document, all kinds in turn."""
    if text[:1] in "{[":
        numbers = iter(range(10**6))
        return re.sub(r'": "([^"]{0,60})"', lambda m: f'": "{m[1]} {plants[next(numbers) % len(plants)]}"', text)
    return "\n".join(f"{line} {plants[n % len(plants)]}" if line.strip() else line for n, line in enumerate(text.split("\n")))


def test_a_secret_of_no_kind_stands_in_any_output_whatever_format_it_came_in(tmp_path: Path):
    evidence = tmp_path / "evidence"
    plants = [line for line, _ in SECRETS.values()]
    for number, file in enumerate(texts()):
        target = evidence / f"{number:03}-{file.name}"
        target.parent.mkdir(exist_ok=True)
        target.write_text(planted(file.read_text(encoding="utf-8"), plants[number % len(plants) :] + plants[: number % len(plants)]))
    seen = dict(outputs(evidence, tmp_path / "tables"))
    assert len(seen) > 60, "tables of most formats are filled"
    assert not [(name, core) for name, content in seen.items() for _, core in SECRETS.values() if core in content]
    assert "***" in seen["report.json"]


HOSTS = ["hush-gpu07", "hush-gpu08"]
USER, PROJECT, SITE = "jdoe42", "orion-pretrain-v9", "cluster.hush.example.com"
ADDRESSES = ["10.77.3.41", "10.77.3.42"]
JOB, EXPERIMENT, MODEL, SPACE = "vega-ablation", "kestrel7b-sft", "acme-labs/Falconet-70B", "team-lynx"
NAMES = [*HOSTS, USER, PROJECT, SITE, "hush", "orion", *ADDRESSES, "vega", "kestrel", "falconet", "acme", "lynx"]


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundled incident with names of a site in file names, in its logs, and in files of the host."""
    root = tmp_path_factory.mktemp("named") / "evidence" / PROJECT
    source = ROOT / "fixtures" / "incidents" / "nccl-skipped-collective-8r" / "evidence"
    for file in sorted(p for p in source.rglob("*") if p.is_file()):
        target = root / f"{HOSTS[0]}.{file.name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        data = file.read_bytes()
        for name in set(re.findall(rb"(?m)^([\w-]+):\d+:\d+ \[", data)):
            data = data.replace(name, HOSTS[0].encode())
        target.write_bytes(data)
    (root / "env.txt").write_text(
        f"HOSTNAME={HOSTS[1]}.{SITE}\nUSER={USER}\nHOME=/home/{USER}\nMASTER_ADDR={ADDRESSES[0]}\nNCCL_DEBUG=INFO\nNCCL_SOCKET_IFNAME=eth0\n"
        f"PYTHONPATH=/data/{PROJECT}/src:/usr/lib/python3\nPATH=/usr/bin:/home/{USER}/bin\nRANK=1\nWORLD_SIZE=8\n"
        f"SLURM_JOB_NAME={JOB}\nWANDB_PROJECT={EXPERIMENT}\nPOD_NAMESPACE={SPACE}\n"
    )
    (root / "sacct.txt").write_text(
        f"JobID|JobName|State|ExitCode|Start|End|NodeList\n4711|{JOB}|FAILED|1:0|2026-05-01T10:00:00|2026-05-01T11:00:00|{HOSTS[0]}\n"
    )
    (root / "launcher.log").write_text(
        f'[rank3]: Traceback (most recent call last):\n[rank3]:   File "/data/{PROJECT}/{PROJECT}/layers.py", line 12, in step\n'
        f"[rank3]: RuntimeError: {USER}@{HOSTS[1]} cannot reach {ADDRESSES[1]}:29500 (node {HOSTS[1].upper()}, see https://wiki.{SITE}/x)\n"
        f"[rank3]: ValueError: bad arguments --model {MODEL} --run-name {EXPERIMENT}; {MODEL.split('/')[1]} has no head\n"
    )
    return root.parent


def test_with_identity_no_name_stands_in_any_output(incident: Path, tmp_path: Path):
    seen = dict(outputs(incident, tmp_path / "tables", "identity"))
    leaks = [
        (name, word, content.lower()[content.lower().index(word) - 40 :][:100])
        for name, content in seen.items()
        for word in NAMES
        if word in content.lower()
    ]
    assert not leaks
    assert "host-1" in seen["report.json"]
    assert "pseudonyms" in seen["postmortem.html"]
    assert "pseudonyms" in seen["postmortem.md"]


def test_names_are_shown_unless_asked_otherwise(incident: Path):
    assert HOSTS[0] in api.analyze([incident], engine=InlineEngine()).json().decode()


def test_the_verdict_is_the_same_with_and_without_names(incident: Path):
    plain, hidden = (api.analyze([incident], engine=InlineEngine(), redact=level).report for level in ("secrets", "identity"))
    for key in ("status", "cause", "confidence", "first_divergence", "because", "explains"):
        assert plain["verdict"][key] == hidden["verdict"][key]
    assert [c["rank"] for c in plain["verdict"]["culprits"]] == [c["rank"] for c in hidden["verdict"]["culprits"]]
    assert [(f["id"], f["severity"], f["ranks"]) for f in plain["findings"]] == [
        (f["id"], f["severity"], f["ranks"]) for f in hidden["findings"]
    ]
    assert [(e["line"], e["kind"]) for f in plain["findings"] for e in f["evidence"]] == [
        (e["line"], e["kind"]) for f in hidden["findings"] for e in f["evidence"]
    ]


def test_the_gate_judges_by_the_real_names(incident: Path):
    good = api.analyze([incident], engine=InlineEngine()).report
    plain, _ = api.check([incident], Demands(), baseline=good, engine=InlineEngine())
    hidden, _ = api.check([incident], Demands(), baseline=good, engine=InlineEngine(), redact="identity")
    assert (plain.exit_code, len(plain.issues)) == (hidden.exit_code, len(hidden.issues))


def test_two_runs_give_the_same_bytes(incident: Path):
    one, other = (api.analyze([incident], engine=InlineEngine(), redact="identity") for _ in range(2))
    assert one.json() == other.json()
    assert one.html() == other.html()


def names() -> Pseudonyms:
    made = Pseudonyms()
    made.learn("host", ["node3", "node10.cluster.acme.com", "gpu-b200-01"])
    made.learn("user", ["alice", "root"])
    made.learn_path("acme-llm_run7/nccl.node3.1234.log")
    return made


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("node3 died, NODE3 too, node30 did not", "host-2 died, host-2 too, node30 did not"),
        ("node10.cluster.acme.com:29500 and node10", "host-3.domain-1:29500 and host-3"),
        ("from 10.1.2.3:29500 to 10.1.2.77 by 10.9.0.1", "from 198.18.1.1:29500 to 198.18.1.2 by 198.18.2.1"),
        ("lo 127.0.0.1, any 0.0.0.0, mask 255.255.255.0, NCCL 2.27.7", "lo 127.0.0.1, any 0.0.0.0, mask 255.255.255.0, NCCL 2.27.7"),
        ("[::ffff:10.1.2.3]:5 fe80::1ff:fe23:4567:890a at 12:34:56", "[::ffff:198.18.1.1]:5 2001:db8:2::2 at 12:34:56"),
        ("alice@node3:/home/alice/x", "user-1@host-2:/home/user-1/x"),
        ("root started it, nobody else", "root started it, nobody else"),
        ("/data/secret_proj/train.py:12", "/data/path-2/train.py:12"),
        ("/opt/x/site-packages/torch/nn/a.py", "/opt/x/site-packages/torch/nn/a.py"),
        ("torch/distributed/distributed_c10d.py:3151 threading.py:1", "torch/distributed/distributed_c10d.py:3151 threading.py:1"),
        ("proj/deep_model.py:7 in forward", "path-2/path-3.py:7 in forward"),
        ("acme-llm_run7/nccl.node3.1234.log:55", "path-1/nccl.host-2.1234.log:55"),
        ("2.5 GB/s of 3/8, N/A and/or TX/RX", "2.5 GB/s of 3/8, N/A and/or TX/RX"),
        ("mail bob@acme.com", "mail user-2@domain-2"),
        ("https://wiki.acme.com/team/x tcp://10.1.2.3:80", "https://host-4.domain-2/path-2/x tcp://198.18.1.1:80"),
        ("see https://pytorch.org/docs/stable/elastic/run.html", "see https://pytorch.org/docs/stable/elastic/run.html"),
        ("98:03:9b:00:ab:cd 0000:3b:00.0", "00:00:00:00:00:01 0000:3b:00.0"),
        ("GPU-8f3c0000-1111-2222-3333-444455556666", "GPU-00000000-0000-0000-0000-000000000001"),
        ("node[3,10] and entries[18]", "host-2,host-3 and entries[18]"),
    ],
)
def test_what_becomes_of_a_text(text: str, becomes: str):
    assert names().text(text) == becomes


def test_doing_it_again_changes_nothing():
    made = names()
    once = made.text("node3 of alice, node10.cluster.acme.com, /data/secret_proj/x.log, acme-llm_run7, 98:03:9b:00:ab:cd")
    assert made.text(once) == once


def test_the_order_in_which_names_are_learned_does_not_matter():
    one, other = Pseudonyms(), Pseudonyms()
    one.learn("host", ["b2", "b10", "a1"])
    other.learn("host", ["a1", "b10", "b2"])
    assert one.text("a1 b2 b10") == other.text("a1 b2 b10") == "host-1 host-2 host-3"


@pytest.mark.parametrize("piece", ["a.", "/a", "1.", "a@", "::", "a-", "x.com", "node", "0:", "[1,", "a://"])
def test_a_long_text_takes_time_that_grows_with_its_length(piece: str):
    made = names()
    assert growth(lambda size: made.text(piece * (size // len(piece))), 50_000) < 8
