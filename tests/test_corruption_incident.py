"""The whole program on a training log whose loss breaks away, beside a GPU whose memory error nothing contained; and on a healthy one."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from nccl_forensics import api
from nccl_forensics.reading.engine import InlineEngine

START = datetime(2026, 5, 1, 10)


def training_log(folder: Path, jump: int | None) -> None:
    """Two hundred steps of Megatron-LM, half a minute each; the loss is far above its course from a step on."""
    lines = []
    for step in range(1, 201):
        loss = 3.0 - 0.004 * step + 0.01 * (step * 7 % 5) + (4.0 if jump is not None and step >= jump else 0.0)
        time = START + timedelta(seconds=30 * step)
        lines.append(
            f" [{time}] iteration {step:8d}/  500000 | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {1 + step % 3 / 10:.3f} |\n"
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.log").write_text("".join(lines), encoding="utf-8")


def xid(folder: Path, step: int) -> None:
    time = START + timedelta(seconds=30 * step)
    (folder / "node7").mkdir()
    line = f"[{time:%a %b %d %H:%M:%S %Y}] NVRM: Xid (PCI:0000:9b:00): 95, pid=4711, name=python, Uncontained ECC error.\n"
    (folder / "node7" / "dmesg.txt").write_text(line, encoding="utf-8")


def findings(folder: Path) -> dict[str, dict[str, object]]:
    report = api.analyze([folder], engine=InlineEngine()).report
    found = report["findings"]
    assert isinstance(found, list)
    return {f["rule"]: f for f in found}


def test_an_uncontained_error_before_the_break_is_named_with_both_lines(tmp_path: Path) -> None:
    training_log(tmp_path, 120)
    xid(tmp_path, 118)
    found = findings(tmp_path)
    signs = found["corruption-signs"]
    assert (signs["severity"], signs["hosts"]) == ("error", ["node7"])
    evidence = signs["evidence"]
    assert isinstance(evidence, list)
    assert [(e["path"], e["line"]) for e in evidence] == [("node7/dmesg.txt", 1), ("train.log", 120)]
    assert found["loss-jump"]["severity"] == "warning"
    assert signs["explained_by"] == found["gpu-fault"]["id"]


def test_the_break_alone_blames_nobody_and_an_error_weeks_before_is_no_sign(tmp_path: Path) -> None:
    training_log(tmp_path, 120)
    found = findings(tmp_path)
    assert set(found) == {"loss-jump"}
    assert found["loss-jump"]["hosts"] == []
    xid(tmp_path, -100_000)
    assert "corruption-signs" not in findings(tmp_path)


def test_a_healthy_log_has_no_finding_and_proves_no_health(tmp_path: Path) -> None:
    training_log(tmp_path, None)
    report = api.analyze([tmp_path], engine=InlineEngine()).report
    assert report["findings"] == []
    assert report["verdict"]["status"] == "insufficient-evidence"  # type: ignore[index]
