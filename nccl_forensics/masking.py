"""Secrets in evidence: tokens, keys, passwords and URLs with credentials are masked before anything is stored or shown.

The patterns are valid for Python's and Rust's engines, so that ``mask`` and ``mask_expr`` give the same text. Runs are unbounded, because
Rust's engine unrolls large bounds; each ends where its class of characters ends, so Python's stays linear too.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import polars as pl

MASK = "***"

#: Names whose value is a secret. ``tokens`` and ``tokenizer`` are not: training logs are full of them.
_NAME = (
    r"(?:password|passwd|passphrase|secret|credential|authorization|(?:api|access|private|account|auth|signing)[_-]?key)[A-Za-z0-9_.-]{0,32}"
    r"|token(?:[_.-][A-Za-z0-9_.-]{0,32})?"
)
#: (pattern, replacement with \1 for groups), in the order in which they are applied.
_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----[A-Za-z0-9+/= \t\r\n\\]+(?:-----END [A-Z ]{0,32}PRIVATE KEY-----)?", MASK),
    # A line of a key's body, which may be quoted without its head.
    (r"(?m)^[ \t]*[A-Za-z0-9+/]{60,76}={0,2}[ \t]*$", MASK),
    (r"([A-Za-z][A-Za-z0-9+.-]{1,20}://)[^/ \t\r\n:@]{0,128}:[^/ \t\r\n@]{1,256}@", rf"\1{MASK}:{MASK}@"),
    (r"(?i)\b(bearer|basic)([ \t]+)[A-Za-z0-9._~+/-]{8,}=*", rf"\1\2{MASK}"),
    (
        rf"(?i)({_NAME})([\"']?[ \t]{{0,3}}[=:][ \t]{{0,3}}|[ \t]+set by environment to[ \t]+)([\"']?)(?:bearer[ \t]|basic[ \t])?([^ \t\r\n\"',;&]{{3,}})",
        rf"\1\2\3{MASK}",
    ),
    (r"([?&](?:sig|signature|X-Amz-Signature|X-Amz-Credential|X-Goog-Signature)=)[^& \t\r\n\"']{8,}", rf"\1{MASK}"),
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
#: Names of variables whose whole value is a secret; a tokenizer (TOKENIZERS_PARALLELISM) is none.
_SECRET_NAME = re.compile(
    r"PASSWORD|PASSWD|SECRET|TOKEN(?!IZER)|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL|(?:^|_)(?:KEY|AUTH|PWD)$", re.IGNORECASE
)
#: Of the shell itself; PWD is its working directory, no password.
_SHELL = frozenset({"PWD", "OLDPWD"})
#: Values that are no secret whatever the name says: switches, and the number of tokens of a batch or an answer.
_SWITCH = re.compile(r"|0|1|true|false|yes|no|on|off|none", re.IGNORECASE)
_COUNT = re.compile(r"[0-9]{1,7}")
_COMPILED = tuple((re.compile(pattern), replacement) for pattern, replacement in _PATTERNS)
#: Something of this occurs in every text that holds a secret.
_SIGN = r"(?i)passw|passphrase|secret|token|key|credential|authorization|://|[?&](?:sig|x-)|AKIA|ASIA|AIza|gh[pousr]_|github_pat|glpat|hf_|sk-|xox|eyJ|bearer|basic|(?m:^[ \t]*[A-Za-z0-9+/]{60,76}={0,2}[ \t]*$)"
_HINT = re.compile(_SIGN)


def mask(text: str) -> str:
    """The text with secrets replaced by ``***``."""
    if not _HINT.search(text):
        return text
    for pattern, replacement in _COMPILED:
        text = pattern.sub(replacement, text)
    return text


def mask_variable(name: str, value: str) -> str:
    """The value of a variable of an environment: all of it is a secret where the name says so, else what looks like one."""
    if _SECRET_NAME.search(name) is None or name in _SHELL or _SWITCH.fullmatch(value):
        return mask(value)
    return mask(value) if "TOKENS" in name.upper() and _COUNT.fullmatch(value) else MASK


def has_sign(text: str) -> bool:
    """Whether a text could hold a secret: only such a text is ever changed."""
    return _HINT.search(text) is not None


#: Literals of ``_SIGN`` in lower case, for one scan that finds them all.
_LITERALS = [
    *("passw", "passphrase", "secret", "token", "key", "credential", "authorization", "://", "?sig", "&sig", "?x-", "&x-", "akia", "asia"),
    *("aiza", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat", "glpat", "hf_", "sk-", "xox", "eyj", "bearer", "basic"),
]


#: Up to so many rows a column is looked through as one text of Python: starting a query of Polars costs as much as a thousand short texts.
_FEW = 2048
#: Up to so many rows that is worth while for all columns of a frame.
_ROWS = 512


def _harmless(column: pl.Series) -> bool:
    """Whether a short column of texts, or of lists of texts, holds no sign of a secret. A long one is not looked at."""
    if column.len() > _FEW:
        return False
    values = column.to_list()
    if column.dtype == pl.List(pl.String):
        values = [text for texts in values if texts for text in texts]
    return _HINT.search("\n".join(text for text in values if text)) is None


def mask_series(column: pl.Series) -> pl.Series:
    """A column of texts, or of lists of texts, with secrets replaced; columns without a sign of one cost one scan."""
    if column.dtype in (pl.String, pl.List(pl.String)) and _harmless(column):
        return column
    if column.dtype == pl.List(pl.String):
        return map_lists(column, mask_series)
    if column.dtype != pl.String:
        return column
    signs = column.str.contains_any(_LITERALS, ascii_case_insensitive=True).fill_null(False)
    if column.str.contains("PRIVATE KEY", literal=True).any():
        signs |= column.str.contains(_SIGN).fill_null(False)
    if not signs.any():
        return column
    places = signs.arg_true()
    found = column.gather(places)
    distinct = found.unique(maintain_order=True)  # stacks and names repeat
    masked = pl.select(_replaced(pl.lit(distinct))).to_series()
    return column.clone().scatter(places, found.replace_strict(distinct, masked) if distinct.len() < found.len() else masked)


def mask_frame(frame: pl.DataFrame, leave: frozenset[str] = frozenset()) -> pl.DataFrame:
    """A frame whose columns of texts hold no secrets, but for those of the names in ``leave``; one scan looks for signs in all of them."""
    texts = [c for c, t in frame.schema.items() if t == pl.String and c not in leave]
    lists = [c for c, t in frame.schema.items() if t == pl.List(pl.String) and c not in leave]
    if frame.height <= _ROWS:
        said = {text for c in texts for text in frame.get_column(c).to_list() if text}
        said.update(text for c in lists for held in frame.get_column(c).to_list() for text in held or () if text)
        text = "\n".join(said).lower()
        if not any(literal in text for literal in _LITERALS):
            return frame
    # What names a private key holds one of the literals too.
    signs = frame.select(pl.col(c).unique().str.contains_any(_LITERALS, ascii_case_insensitive=True).any() for c in texts)
    wanted = [c for c, sign in zip(texts, signs.row(0), strict=True) if sign] if texts else []
    changed = [new for c in wanted + lists if (new := mask_series(frame[c])) is not frame[c]]
    return frame.with_columns(changed) if changed else frame


def map_lists(column: pl.Series, change: Callable[[pl.Series], pl.Series]) -> pl.Series:
    """A column of lists with ``change`` applied to all of their items at once; the column itself where nothing changes."""
    filled = column.list.len().fill_null(0) > 0
    rows = pl.DataFrame({"row": pl.int_range(column.len(), eager=True), "value": column})
    items = rows.filter(filled).explode("value")
    changed = change(items["value"])
    if changed is items["value"] or changed.equals(items["value"]):
        return column
    grouped = items.with_columns(value=changed).group_by("row", maintain_order=True).agg("value")
    return (
        rows.select("row").join(grouped, on="row", how="left", maintain_order="left")["value"].zip_with(filled, column).alias(column.name)
    )


def _replaced(text: pl.Expr) -> pl.Expr:
    for pattern, replacement in _PATTERNS:
        text = text.str.replace_all(pattern, re.sub(r"\\([0-9])", r"$${\1}", replacement).replace("$${", "${"))
    return text


def mask_expr(column: str | pl.Expr) -> pl.Expr:
    """A column of texts with secrets replaced by ``***``, the same as ``mask`` on each."""
    text = pl.col(column) if isinstance(column, str) else column
    masked = _replaced(text)
    return pl.when(text.str.contains(_SIGN)).then(masked).otherwise(text)
