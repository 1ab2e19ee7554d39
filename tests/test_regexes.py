"""No regular expression that Python runs takes more than linear time, whatever it is fed.

Each repetition of each pattern is led into, fed and then disappointed, with texts made from the pattern itself. At 4,000 characters a
linear pattern takes well below a millisecond, a quadratic one tens of them, a cubic one minutes (an alarm ends it), so the bound needs no fine clock.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator

import pytest

from tests.regexes import Found, patterns, pumps

_LENGTH, _SECONDS = 4000, 0.02
FOUND = patterns()


@pytest.fixture
def alarm() -> Iterator[None]:
    def ring(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def seconds(found: Found, text: str | bytes) -> float:
    """CPU seconds of the better of two tries."""
    compiled = re.compile(found.pattern, found.flags)
    run = compiled.search if found.anywhere else compiled.match
    best = 9.0
    for _ in range(2):
        begin = time.process_time()
        signal.setitimer(signal.ITIMER_REAL, 1)
        try:
            run(text)  # type: ignore[arg-type]
        except TimeoutError:
            return 9.0
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        best = min(best, time.process_time() - begin)
        if best < _SECONDS:
            break
    return best


def test_no_pattern_is_super_linear(alarm: None) -> None:
    assert len(FOUND) > 200
    slow = [(f.where, f.pattern, text[:60]) for f in FOUND for text in pumps(f, _LENGTH) if seconds(f, text) > _SECONDS]
    assert not slow


@pytest.mark.parametrize("pattern", [r"\s+$", r"(a+)+b", r"(\w+)=x", r"^\|\s+(\S.*?)\s+(On)?\s*\|\s*x$"])
def test_the_check_finds_what_it_looks_for(alarm: None, pattern: str) -> None:
    found = Found(pattern, 0, "made up", anywhere=True)
    assert any(seconds(found, text) > _SECONDS for text in pumps(found, _LENGTH))
