"""What the administrator may set, and the bounds that hold for every upload and analysis."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from nccl_forensics.errors import UsageError

GIB = 1 << 30
TOKEN_VARIABLE = "NCCL_FORENSICS_TOKEN"  # noqa: S105 (the name of a variable)
DATA_VARIABLE = "NCCL_FORENSICS_DATA"


@dataclass(frozen=True, slots=True)
class Settings:
    """Bounds in bytes and seconds; ``reserve_bytes`` is what uploads always leave free on the disk."""

    data: Path
    token: str | None = None
    #: Names under which the service may be addressed; empty: any. Without a token a page elsewhere could otherwise rebind its name to us.
    hosts: frozenset[str] = frozenset()
    upload_bytes: int = 64 * 10**9
    upload_files: int = 10_000
    upload_seconds: float = 6 * 3600.0
    #: A client that sends nothing for so long is let go.
    idle_seconds: float = 60.0
    uploads_at_once: int = 128
    waiting: int = 1000
    #: A resumable upload without a new byte for so long is removed.
    resume_seconds: float = 24 * 3600.0
    analyses: int = 1
    analysis_bytes: int = 8 * GIB
    analysis_seconds: float = 3600.0
    reserve_bytes: int = GIB
    #: Thresholds and suppressions, as for every command.
    config: Path | None = None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. A name that is no address counts as reachable from outside, but ``localhost``."""
    if host.lower() in ("localhost", "localhost.localdomain", "ip6-localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def default_data() -> Path:
    """``NCCL_FORENSICS_DATA``, else the user's place for data."""
    if named := os.environ.get(DATA_VARIABLE):
        return Path(named)
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "nccl-forensics"


def read_token(file: Path | None) -> str | None:
    """The token of the file, else of ``NCCL_FORENSICS_TOKEN``. Raises ``UsageError`` for one that is empty or cannot be sent in a
    header."""
    if file is not None:
        try:
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as problem:
            raise UsageError(f"{file}: the token cannot be read: {getattr(problem, 'strerror', None) or problem}") from problem
        where = str(file)
    else:
        if TOKEN_VARIABLE not in os.environ:
            return None
        token, where = os.environ[TOKEN_VARIABLE].strip(), TOKEN_VARIABLE
    if not token:
        raise UsageError(f"{where}: the token is empty")
    if not all(33 <= ord(c) <= 126 for c in token):
        raise UsageError(f"{where}: a token is made of printable ASCII characters without blanks")
    return token


def physical_memory() -> int:
    """Bytes of this machine's memory; 8 GiB where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 8 * GIB
