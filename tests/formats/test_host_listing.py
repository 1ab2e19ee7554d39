"""Listings of a host and environment dumps; secrets never get into a table."""

from __future__ import annotations

import polars as pl

from nccl_forensics.reading.source import read_source
from tests.corpus import ROOT

NODE = (ROOT / "fixtures" / "host_listing" / "node.txt").read_bytes()


def frames() -> dict[str, pl.DataFrame]:
    return read_source(NODE).frames


def test_ps_is_read_by_its_header_and_masks_secrets():
    rows = frames()["host_processes"]
    assert rows.select("pid", "state", "wchan").rows()[0] == (4242, "Dl", "nfs_wait_bit_killable")
    assert rows["state"].to_list() == ["Dl", "Rl", "Z", "t"]
    assert "abcdef123456" not in str(rows.rows())


def test_ps_of_another_layout_is_read_too():
    text = "USER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND\nroot        4711 99.0  0.5 123456 65432 ?        Rl   06:00 100:00 python train.py\n"
    rows = read_source(text.encode()).frames["host_processes"]
    assert rows.select("pid", "cpu_percent", "rss_kb", "state", "command").rows() == [(4711, 99.0, 65432, "Rl", "python train.py")]


def test_a_full_dev_shm_is_seen_in_units():
    rows = frames()["filesystems"].filter(pl.col("mount") == "/dev/shm")
    assert rows.select("size_kb", "used_percent").rows() == [(65536.0, 100.0)]


def test_plain_df_counts_blocks_of_one_kb():
    text = "Filesystem     1K-blocks      Used Available Use% Mounted on\ntmpfs             65536        12     65524   1% /dev/shm\n"
    rows = read_source(text.encode()).frames["filesystems"]
    assert rows.select("size_kb", "used_kb", "used_percent").rows() == [(65536.0, 12.0, 1.0)]


def test_limits_of_the_shell_and_of_a_process_are_told_apart_by_unlimited():
    rows = frames()["limits"].filter(pl.col("name") == "memlock")
    assert rows.select("soft", "unlimited").rows() == [(65536.0, False), (None, True)]


def test_an_environment_dump_names_its_rank_and_host_and_hides_secrets():
    rows = frames()["environment"]
    assert set(rows["rank"]) == {3}
    assert set(rows["host"]) == {"node7"}
    values = dict(rows.select("name", "value").rows())
    assert values["NCCL_P2P_DISABLE"] == "1"
    assert values["WANDB_API_KEY"] == "***"
    assert values["PWD"] == "/home/user"


def test_proc_environ_is_separated_by_nul():
    data = b"RANK=5\0NCCL_DEBUG=INFO\0HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz\0HOSTNAME=node9\0PATH=/bin\0A=1\0"
    result = read_source(data)
    assert result.formats == ("environ",)
    assert result.frames["environment"].select("name", "rank", "host").rows()[0] == ("RANK", 5, "node9")
    assert "hf_abc" not in str(result.frames["environment"].rows())


def test_single_assignments_in_a_log_are_no_environment_dump():
    assert "environment" not in read_source(b"starting\nNCCL_DEBUG=INFO\nlr=0.1\ndone\n").formats


def test_declare_and_export_are_dumps_too():
    text = 'declare -x RANK="1"\ndeclare -x WORLD_SIZE="2"\ndeclare -x NCCL_IB_HCA="mlx5_0"\ndeclare -x X="a b"\n'
    assert dict(read_source(text.encode()).frames["environment"].select("name", "value").rows())["NCCL_IB_HCA"] == "mlx5_0"
