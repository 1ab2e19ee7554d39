"""Words that titles are made of."""

import pytest

from nccl_forensics.words import folded, group_words, time_words


@pytest.mark.parametrize(
    ("ms", "words"), [(0.04, "40 µs"), (1.44, "1.4 ms"), (14.3, "14 ms"), (940, "940 ms"), (1440, "1.4 s"), (1234567, "1,234.6 s")]
)
def test_a_span_is_told_in_the_unit_in_which_it_is_read(ms: float, words: str) -> None:
    assert time_words(ms) == words


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ({"group_name": "0", "group_desc": "default_pg"}, "process group default_pg (0)"),
        ({"group_name": "cf75142724a21d0b9d71663758a112f301d0abad", "group_desc": "tp"}, "process group tp (cf751427…)"),
        ({"group_name": "deadbeef", "group_desc": "undefined"}, "process group deadbeef"),
        ({"comm_id": "0x1d7e3a52"}, "communicator 0x1d7e3a52"),
    ],
)
def test_a_group_is_called_by_what_tells_it_from_others(group: dict[str, object], words: str) -> None:
    assert group_words(group) == words


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_5"], ["mlx5_[0-2]", "mlx5_5"]),
        (["node-09", "node-10", "node-11"], ["node-[09-11]"]),
        (["node-9", "node-10", "node-11"], ["node-[9-11]"]),
        (["0", "1", "2"], ["0-2"]),
        # Two are no run; another width with zeros before it, another stem and a gap end one.
        (["a1", "a2", "b3"], ["a1", "a2", "b3"]),
        (["a01", "a2", "a3"], ["a01", "a2", "a3"]),
        (["0", "01", "02"], ["0", "01", "02"]),
        (["a1", "a3", "a5"], ["a1", "a3", "a5"]),
    ],
)
def test_names_that_differ_in_their_last_number_are_told_as_slurm_lists_hosts(names: list[str], told: list[str]) -> None:
    assert folded(names) == told
