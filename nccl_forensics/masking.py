"""Secrets in evidence: tokens, keys, passwords and URLs with credentials are masked before anything is stored or shown."""

from __future__ import annotations

import re

MASK = "***"

#: Names whose value is a secret.
_NAME = (
    r"[A-Za-z0-9_.-]{0,64}(?:password|passwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential|auth)[A-Za-z0-9_.-]{0,32}"
)
_PATTERNS = (
    (re.compile(rf"(?i)\b({_NAME})(\s{{0,3}}[=:]\s{{0,3}}|\s+set by environment to\s+)([\"']?)([^\s\"',;]{{3,512}})"), rf"\1\2\3{MASK}"),
    (re.compile(r"([a-z][a-z0-9+.-]{1,20}://)([^/\s:@]{1,128}):([^/\s@]{1,256})@", re.IGNORECASE), rf"\1{MASK}:{MASK}@"),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), MASK),
    (re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,255}\b"), MASK),
    (re.compile(r"\bhf_[A-Za-z0-9]{20,255}\b"), MASK),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{20,255}\b"), MASK),
    (re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,255}\b"), MASK),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{10,2000}\.[A-Za-z0-9_-]{10,2000}\.[A-Za-z0-9_-]{5,1000}\b"), MASK),
    (re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/-]{8,2000}=*"), rf"\1{MASK}"),
)
_HINT = re.compile(r"(?i)passw|secret|token|key|credential|auth|://|AKIA|ASIA|gh[pousr]_|hf_|sk-|xox|eyJ|bearer")


def mask(text: str) -> str:
    """The text with secrets replaced by ``***``."""
    if not _HINT.search(text):
        return text
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text
