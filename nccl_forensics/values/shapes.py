"""Shapes of tensors as recorders and logs write them."""

from __future__ import annotations

import re
from math import prod

_TENSOR = re.compile(r"\[([\d, ]*)\]|^(\d+)$")
_SIZE = re.compile(r"\d{1,15}")


def elements(shapes: object) -> list[int]:
    """How many elements each tensor has of a text such as ``[[4, 1024], [8]]``, ``[48]`` or, in NCCL's logs, ``48``; a scalar (``[[]]``) has
    one."""
    text = str(shapes)
    return [prod(map(int, _SIZE.findall(one or other))) for one, other in _TENSOR.findall(text)] if text != "[]" else []
