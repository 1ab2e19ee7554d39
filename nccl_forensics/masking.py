"""Secrets in evidence: tokens, keys, passwords and URLs with credentials are masked before anything is stored or shown.

The patterns are valid for Python's and Rust's engines, so that ``mask`` and ``mask_expr`` give the same text. Runs are unbounded, because
Rust's engine unrolls large bounds; each ends where its class of characters ends, so Python's stays linear too.
"""

from __future__ import annotations

import re

import polars as pl

MASK = "***"

#: Names whose value is a secret. ``tokens`` and ``tokenizer`` are not: training logs are full of them.
_NAME = (
    r"(?:password|passwd|passphrase|secret|credential|authorization|(?:api|access|private|account|auth|signing)[_-]?key)[A-Za-z0-9_.-]{0,32}"
    r"|token(?:[_.-][A-Za-z0-9_.-]{0,32})?"
)
#: (pattern, replacement with \1 for groups), in the order in which they are applied.
_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----[A-Za-z0-9+/=\s\\]+(?:-----END [A-Z ]{0,32}PRIVATE KEY-----)?", MASK),
    (r"([A-Za-z][A-Za-z0-9+.-]{1,20}://)[^/\s:@]{0,128}:[^/\s@]{1,256}@", rf"\1{MASK}:{MASK}@"),
    (r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/-]{8,}=*", rf"\1\2{MASK}"),
    (
        rf"(?i)({_NAME})([\"']?\s{{0,3}}[=:]\s{{0,3}}|\s+set by environment to\s+)([\"']?)(?:bearer\s|basic\s)?([^\s\"',;&]{{3,}})",
        rf"\1\2\3{MASK}",
    ),
    (r"([?&](?:sig|signature|X-Amz-Signature|X-Amz-Credential|X-Goog-Signature)=)[^&\s\"']{8,}", rf"\1{MASK}"),
    (r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b", MASK),
    (r"\bAIza[0-9A-Za-z_-]{35}", MASK),
    (r"\bgh[pousr]_[A-Za-z0-9]{20,}\b", MASK),
    (r"\bgithub_pat_[A-Za-z0-9_]{20,}\b", MASK),
    (r"\bglpat-[A-Za-z0-9_-]{20,}", MASK),
    (r"\bhf_[A-Za-z0-9]{20,}\b", MASK),
    (r"\bsk-[A-Za-z0-9_-]{20,}", MASK),
    (r"\bxox[abprs]-[A-Za-z0-9-]{10,}", MASK),
    (r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}", MASK),
)
#: Names of variables (in upper case) whose whole value is a secret.
SECRET_NAME = re.compile(r"PASSWORD|PASSWD|SECRET|TOKEN|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL|(?:^|_)(?:KEY|AUTH|PWD)$")
_COMPILED = tuple((re.compile(pattern), replacement) for pattern, replacement in _PATTERNS)
#: Something of this occurs in every text that holds a secret.
_SIGN = r"(?i)passw|passphrase|secret|token|key|credential|authorization|://|[?&](?:sig|x-)|AKIA|ASIA|AIza|gh[pousr]_|github_pat|glpat|hf_|sk-|xox|eyJ|bearer|basic"
_HINT = re.compile(_SIGN)


def mask(text: str) -> str:
    """The text with secrets replaced by ``***``."""
    if not _HINT.search(text):
        return text
    for pattern, replacement in _COMPILED:
        text = pattern.sub(replacement, text)
    return text


def mask_expr(column: str | pl.Expr) -> pl.Expr:
    """A column of texts with secrets replaced by ``***``, the same as ``mask`` on each."""
    text = pl.col(column) if isinstance(column, str) else column
    masked = text
    for pattern, replacement in _PATTERNS:
        masked = masked.str.replace_all(pattern, re.sub(r"\\([0-9])", r"$${\1}", replacement).replace("$${", "${"))
    return pl.when(text.str.contains(_SIGN)).then(masked).otherwise(text)
