"""Secrets never reach a table or a report."""

from __future__ import annotations

import time

import polars as pl
import pytest

from nccl_forensics.masking import MASK, mask, mask_expr, mask_series, mask_variable

SECRETS = [
    ("HF_TOKEN=hf_abcdefghijklmnopqrstuvwx", "HF_TOKEN=***"),
    ("see hf_abcdefghijklmnopqrstuvwx here", "see *** here"),
    ("AWS_SECRET_ACCESS_KEY: wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "AWS_SECRET_ACCESS_KEY: ***"),
    ("id AKIAIOSFODNN7EXAMPLE", "id ***"),
    ('"wandb_api_key": "0123456789abcdef"', '"wandb_api_key": "***"'),
    ("NCCL_X_PASSWORD set by environment to hunter2", "NCCL_X_PASSWORD set by environment to ***"),
    ("--password=hunter2 --lr 3", "--password=*** --lr 3"),
    ("https://me:hunter2@host/path", "https://***:***@host/path"),
    ("redis://:hunter2@host:6379", "redis://***:***@host:6379"),
    ("Authorization: Bearer abcdefgh12345678", "Authorization: ***"),
    ("header bearer abcdefgh12345678==", "header bearer ***"),
    ("https://x.blob.core.windows.net/c?sv=2&sig=abcDEF123%2Bxyz&se=1", "https://x.blob.core.windows.net/c?sv=2&sig=***&se=1"),
    ("AccountKey=abcdefgh12345678==;EndpointSuffix=x", "AccountKey=***;EndpointSuffix=x"),
    ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "***"),
    ("sk-proj-abcdefghijklmnopqrstuvwx", "***"),
    ("xoxb-1234567890-abcdef", "***"),
    ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3.SflKxwRJSMeKKF2QT4", "jwt ***"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----", "***"),
]
HARMLESS = [
    "NCCL INFO comm 0x55d0c8 rank 3 nranks 8 cudaDev 3 busId 85000 commId 0x6511a811a4dab60c - Init COMPLETE",
    "max_tokens=4096 tokens_per_gpu: 2048 tokenizer=gpt2",
    "wait key_count:1 keys[0]:/default_pg/0//cpu//0/0 address:[::ffff:127.0.0.1]:29500",
    "tcp://10.0.0.1:29500",
    "PWD=/home/u/job",
    "sort key: rank, basic test ok",
    "NCCL_SOCKET_IFNAME set by environment to eth0",
]


@pytest.mark.parametrize(("text", "masked"), SECRETS)
def test_a_secret_is_masked(text: str, masked: str):
    assert mask(text) == masked


@pytest.mark.parametrize("text", HARMLESS)
def test_ordinary_text_is_left_alone(text: str):
    assert mask(text) == text


def test_the_column_form_gives_the_same_text():
    texts = [t for t, _ in SECRETS] + HARMLESS
    assert pl.DataFrame({"t": texts}).select(mask_expr("t"))["t"].to_list() == [mask(t) for t in texts]


def test_masking_twice_changes_nothing():
    for text, _ in SECRETS:
        assert mask(mask(text)) == mask(text)


def test_a_missing_text_stays_missing():
    assert pl.DataFrame({"t": [None, "x"]}).select(mask_expr("t"))["t"].to_list() == [None, "x"]


@pytest.mark.parametrize("piece", ["a.b-c_d.", "token", "secret_", "eyJ", "://", "?sig=", "password "])
def test_a_long_text_is_masked_in_time_that_grows_with_its_length(piece: str):
    started = time.process_time()
    mask(piece * (400_000 // len(piece)) + " key")
    assert time.process_time() - started < 5


@pytest.mark.parametrize("text", [t for t, _ in SECRETS] + HARMLESS)
def test_a_short_column_is_masked_like_a_long_one(text: str):
    short = mask_series(pl.Series("t", [None, text, ""]))
    long = mask_series(pl.Series("t", [None, text, ""] + ["x"] * 5000)).head(3)
    assert short.to_list() == long.to_list() == [None, mask(text), ""]
    lists = mask_series(pl.Series("t", [None, [text, "x"], []]))
    assert lists.to_list() == [None, [mask(text), "x"], []]


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("HF_TOKEN", "anything", MASK),
        ("WANDB_KEY", "anything", MASK),
        ("DB_PASSWORD", "1234567", MASK),
        ("API_TOKENS", "a,b", MASK),
        ("TOKENIZERS_PARALLELISM", "false", "false"),
        ("TOKENIZER_PATH", "/data/gpt2", "/data/gpt2"),
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1", "1"),
        ("MAX_TOKENS", "4096", "4096"),
        ("PWD", "/home/u", "/home/u"),
        ("NOTE", "see hf_abcdefghijklmnopqrstuvwx", "see ***"),
    ],
)
def test_a_variable_is_hidden_where_its_name_says_that_it_is_a_secret(name: str, value: str, shown: str):
    assert mask_variable(name, value) == shown
