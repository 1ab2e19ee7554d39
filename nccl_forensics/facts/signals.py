"""Signals as senders use them."""

from __future__ import annotations

#: By which a launcher, a scheduler or a person asks a process to end: no fault of its own.
ASKS_TO_END = ("SIGTERM", "SIGINT", "SIGHUP")
