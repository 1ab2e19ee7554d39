"""No regular expression that Python runs takes more than linear time, whatever it is fed.

Each repetition of each pattern is led into, fed and then disappointed, with texts made from the pattern itself. What counts is how the time
grows with the text, not how long it is: four times the text takes a linear pattern four times as long, a quadratic one sixteen times, on
any machine. A cubic one would take minutes: an alarm ends it.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator

import pytest

from tests.regexes import Found, patterns, pumps

#: Characters of the two texts; more than this growth is not linear; what takes less CPU time than this is neither timed well nor worth it.
_SHORT, _LONG, _GROWTH, _WORTH = 4000, 16_000, 8.0, 0.002
#: A text is held against a pattern only where it grows in each of so many measurements, or where the alarm ends one.
_LOOKS = 2
#: Seconds of CPU time (those of the clock are others' on a busy machine) after which a pattern is given up: far more than a linear one
#: takes.
_ALARM = 1.5
FOUND = patterns()


@pytest.fixture
def alarm() -> Iterator[None]:
    def ring(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, ring)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


def seconds(found: Found, text: str | bytes) -> float:
    """CPU seconds of the best of three tries; infinitely many where the alarm ended one."""
    compiled = re.compile(found.pattern, found.flags)
    run = compiled.search if found.anywhere else compiled.match
    best = float("inf")
    for _ in range(3):
        begin = time.process_time()
        signal.setitimer(signal.ITIMER_VIRTUAL, _ALARM)
        try:
            run(text)  # type: ignore[arg-type]
        except TimeoutError:
            return float("inf")
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        best = min(best, time.process_time() - begin)
        if best < _WORTH:
            break
    return best


def grows(found: Found, short: str | bytes, long: str | bytes) -> bool:
    """What does so by itself does so in each measurement; what other programs on the machine slowed down in between does not."""
    for _ in range(_LOOKS):
        took = seconds(found, short)
        longer = float("inf") if took == float("inf") else seconds(found, long) if took >= _WORTH else 0.0
        if longer == float("inf"):
            return True
        if longer <= _GROWTH * took:
            return False
    return True


def worse_than_linear(found: Found) -> str | None:
    """The beginning of a text on which the pattern's time grows faster than the text, or None."""
    for short, long in zip(pumps(found, _SHORT), pumps(found, _LONG), strict=True):
        if grows(found, short, long):
            return repr(short[:60])
    return None


def test_no_pattern_is_super_linear(alarm: None) -> None:
    assert len(FOUND) > 200
    assert not [(f.where, f.pattern, text) for f in FOUND if (text := worse_than_linear(f)) is not None]


@pytest.mark.parametrize("pattern", [r"\s+$", r"(a+)+b", r"(\w+)=x", r"^\|\s+(\S.*?)\s+(On)?\s*\|\s*x$"])
def test_the_check_finds_what_it_looks_for(alarm: None, pattern: str) -> None:
    assert worse_than_linear(Found(pattern, 0, "made up", anywhere=True)) is not None


def test_the_check_lets_a_slow_but_linear_pattern_pass(alarm: None) -> None:
    assert worse_than_linear(Found(r"[\w.-]{1,1000} \[x", 0, "made up", anywhere=True)) is None
