"""Documents that are one JSON text each."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from nccl_forensics.formats.base import Gap, Reading


def of_json(word: str, *, record: str | None = None) -> Callable[[Callable[[object], Reading]], Callable[[bytes], Reading]]:
    """Makes of what reads a document what reads its bytes. Those that are no JSON are a gap, at ``record``: ``unparsed``, or
    ``unreadable`` where the reading is not worth being kept."""

    def reader(read: Callable[[object], Reading]) -> Callable[[bytes], Reading]:
        def read_bytes(data: bytes) -> Reading:
            try:
                document = orjson.loads(data)
            except orjson.JSONDecodeError as problem:
                return Reading(gaps=(Gap(f"{word}: {problem}"[:200], record=record),))
            return read(document)

        read_bytes.__doc__ = read.__doc__
        return read_bytes

    return reader
