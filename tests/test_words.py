"""Words that titles are made of."""

import pytest

from nccl_forensics.words import time_words


@pytest.mark.parametrize(
    ("ms", "words"), [(0.04, "40 µs"), (1.44, "1.4 ms"), (14.3, "14 ms"), (940, "940 ms"), (1440, "1.4 s"), (1234567, "1,234.6 s")]
)
def test_a_span_is_told_in_the_unit_in_which_it_is_read(ms: float, words: str) -> None:
    assert time_words(ms) == words
