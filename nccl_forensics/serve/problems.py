"""What a client is told when a call cannot be answered: a status, a word for scripts, a sentence for people."""

from __future__ import annotations

from collections.abc import Mapping


class Problem(Exception):
    """An answer that is no success. ``code`` is stable, ``message`` is for people."""

    def __init__(self, status: int, code: str, message: str, more: Mapping[str, object] | None = None, *, close: bool = False) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.more = status, code, message, dict(more or {})
        #: The rest of the request is not read, so the connection cannot be used again.
        self.close = close

    def body(self) -> dict[str, object]:
        """The JSON that the client gets."""
        return {"error": self.message, "code": self.code, **self.more}


def not_found(what: str = "incident") -> Problem:
    """404."""
    return Problem(404, "not-found", f"there is no such {what}")


def no_room() -> Problem:
    """507: the disk guard."""
    return Problem(507, "no-space", "the server has too little disk space left for this upload", close=True)
