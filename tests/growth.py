"""How work grows with its size: a ratio of two times of one run, which says the same on a fast machine and on a busy one."""

from __future__ import annotations

import time
from collections.abc import Callable


def growth(work: Callable[[int], object], size: int, times: int = 4) -> float:
    """CPU time of ``work(size * times)`` over that of ``work(size)``, each the best of three: about ``times`` where it is linear, its
    square where not."""

    def best(one: int) -> float:
        took = []
        for _ in range(3):
            begin = time.process_time()
            work(one)
            took.append(time.process_time() - begin)
        return min(took)

    return best(size * times) / max(best(size), 1e-4)
