"""Hostile pickles: nothing of them runs, and none costs more than its size."""

from __future__ import annotations

import pickle
import struct
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_forensics.decoding.safe_pickle import RefusedPickle, _check_each, _is_torch_like, is_pickle, load_plain
from nccl_forensics.formats.flight_recorder import FORMAT

#: What a dump begins with, so that a hostile file would be taken for one.
HEAD = b"\x80\x02}X\x07\x00\x00\x00entries"
NAME = b"X\x02\x00\x00\x00osX\x06\x00\x00\x00system"

HOSTILE = {
    "GLOBAL": HEAD + b"cos\nsystem\ns.",
    "REDUCE": HEAD + b"cos\nsystem\nX\x04\x00\x00\x00true\x85Rs.",
    "STACK_GLOBAL": b"\x80\x04}X\x07\x00\x00\x00entries" + NAME + b"\x93s.",
    "INST": HEAD + b"(X\x04\x00\x00\x00trueios\nsystem\ns.",
    "OBJ": HEAD + b"(cos\nsystem\nX\x04\x00\x00\x00trueos.",
    "NEWOBJ": HEAD + b"cbuiltins\nobject\n)\x81s.",
    "NEWOBJ_EX": b"\x80\x04}X\x07\x00\x00\x00entriescbuiltins\nobject\n)}\x92s.",
    "EXT1": HEAD + b"\x82\x01s.",
    "EXT2": HEAD + b"\x83\x01\x00s.",
    "EXT4": HEAD + b"\x84\x01\x00\x00\x00s.",
    "PERSID": HEAD + b"Pwherever\ns.",
    "BINPERSID": HEAD + b"X\x01\x00\x00\x00xQs.",
    "BUILD": HEAD + b"}}bs.",
    "NEXT_BUFFER": b"\x80\x05}X\x07\x00\x00\x00entries\x97s.",
    "DUP": HEAD + b"]2as.",
    "set": b"\x80\x04}X\x07\x00\x00\x00entries\x8fs.",
    "bytes": b"\x80\x03}X\x07\x00\x00\x00entriesC\x01as.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_plain_data_does_not_need_is_refused(name: str):
    with pytest.raises(RefusedPickle):
        load_plain(HOSTILE[name])


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_dump_is_a_gap_that_says_what_was_refused(name: str):
    result = FORMAT.read(HOSTILE[name])
    assert not result.frames
    assert [g.reason[:8] for g in result.gaps] == ["refused:"]


class Planted:
    """Its pickle calls a function when it is loaded."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (pytest.fail, ("a planted pickle ran",))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_planted_object_deep_inside_a_dump_does_not_run(protocol: int):
    document = {"version": "2.10", "entries": [{"record_id": 1}, {"frames": [{"name": Planted()}]}]}
    with pytest.raises(RefusedPickle):
        load_plain(pickle.dumps(document, protocol=protocol))


def test_an_escape_that_is_none_in_a_damaged_argument_is_no_warning():
    with pytest.raises(RefusedPickle):
        load_plain(b"ca\\q\nb\n.")
    assert load_plain(b"S'a\\q'\n.") == "a\\q"


def test_a_memo_number_far_beyond_the_size_is_refused():
    with pytest.raises(RefusedPickle, match="memo number"):
        load_plain(HEAD + b"]r\xff\xff\xff\x7fs.")


def test_a_text_memo_number_far_beyond_the_size_is_refused():
    with pytest.raises(RefusedPickle, match="memo number"):
        load_plain(HEAD + b"]p2147483647\ns.")


def test_tuples_of_tuples_that_take_for_ever_to_hash_are_refused():
    pairs = b")q\x00" + b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86q" + bytes([n + 1]) for n in range(80))
    started = time.monotonic()
    with pytest.raises(RefusedPickle, match="tuple inside a tuple"):
        load_plain(b"\x80\x02}" + pairs + b"Ns.")
    assert time.monotonic() - started < 5


def test_tuples_of_tuples_are_refused_where_strings_hide_them():
    # The pair of strings is in the memo as a tuple; getting it twice would start the chain.
    data = b"\x80\x02}X\x01\x00\x00\x00aq\x00h\x00\x86q\x01h\x01h\x01\x86Ns."
    with pytest.raises(RefusedPickle, match="tuple inside a tuple"):
        load_plain(data)


def test_a_memo_number_that_was_a_string_and_became_a_tuple_is_not_taken_for_a_string():
    data = b"\x80\x02}X\x01\x00\x00\x00aq\x00X\x01\x00\x00\x00b\x86q\x00h\x00h\x00\x86Ns."
    with pytest.raises(RefusedPickle, match="tuple inside a tuple"):
        load_plain(data)


def test_deep_nesting_is_data_like_any_other():
    deep = load_plain(b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".")
    assert isinstance(deep, list)
    result = FORMAT.read(HEAD + b"]" * 100_000 + b"a" * 99_999 + b"s.")
    assert result.frames["fr_entries"].height == 0
    assert [g.record for g in result.gaps] == ["entries[0]"]


def test_a_list_that_holds_itself_ends():
    result = FORMAT.read(HEAD + b"]q\x00h\x00as.")
    assert [g.record for g in result.gaps] == ["entries[0]"]


@pytest.mark.parametrize("length", [0x7FFFFFFF, 0xFFFFFFFF])
def test_a_string_longer_than_the_file_is_broken_not_allocated(length: int):
    with pytest.raises((pickle.UnpicklingError, EOFError)):
        load_plain(HEAD + b"X" + struct.pack("<I", length) + b"abc")


@pytest.mark.parametrize("opcode", [b"\x8e", b"\x96", b"\x8d"])
def test_a_length_of_exabytes_is_not_allocated(opcode: bytes):
    with pytest.raises((RefusedPickle, pickle.UnpicklingError)):
        load_plain(b"\x80\x05" + opcode + struct.pack("<Q", 1 << 56) + b".")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5) | st.tuples(st.text(), st.text()),
    max_leaves=30,
)


@given(PLAIN, st.sampled_from([2, 3, 4, 5]))
@settings(max_examples=150, deadline=None)
def test_plain_data_comes_back_as_it_was(value: object, protocol: int):
    assert load_plain(pickle.dumps(value, protocol=protocol)) == value


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_garbage_after_a_pickle_head_never_raises_anything_else(tail: bytes):
    try:
        load_plain(b"\x80\x02" + tail)
    except (RefusedPickle, pickle.UnpicklingError, EOFError):
        return


@given(st.binary(max_size=64), st.integers(min_value=0, max_value=2000))
@settings(max_examples=150, deadline=None)
def test_a_dump_with_a_damaged_piece_is_read_or_becomes_a_gap(piece: bytes, at: int):
    document = {"version": "2.10", "entries": [{"record_id": n, "process_group": ("0", "pg"), "op_id": n << 33} for n in range(20)]}
    data = pickle.dumps(document, protocol=2)
    result = FORMAT.read(data[:at] + piece + data[at + len(piece) :])
    assert result.frames or result.gaps


def test_a_pickle_is_known_by_its_first_bytes():
    assert is_pickle(pickle.dumps({}, protocol=2))
    assert not is_pickle(b"\x80\x09}.")
    assert not is_pickle(b"\x80\x02.")
    assert not is_pickle(b"{}")


def test_a_number_that_gets_a_tuple_after_it_held_a_string_is_no_string_any_more() -> None:
    strings = b"X\x01\x00\x00\x00aq\x00X\x01\x00\x00\x00bq\x01"
    pair = b"h\x00h\x01\x86"
    assert load_plain(b"\x80\x02](" + strings + pair * 5 + b"e.") == ["a", "b", *[("a", "b")] * 5]
    for put in (b"q\x00", b"q\x01", b"r\x00\x00\x00\x00"):
        with pytest.raises(RefusedPickle, match="a tuple inside a tuple"):
            load_plain(b"\x80\x02](" + strings + pair * 5 + put + pair * 5 + b"e.")


def test_pairs_of_strings_by_long_numbers_are_told_as_well() -> None:
    strings = b"X\x01\x00\x00\x00aq\x00X\x01\x00\x00\x00br\x01\x00\x00\x00"
    pair = b"h\x00j\x01\x00\x00\x00\x86"
    assert load_plain(b"\x80\x02](" + strings + (pair + b"K\x86") * 3 + b"e.") == ["a", "b", *[("a", "b"), 0x86] * 3]


def test_a_tuple_that_gets_a_number_behind_a_string_without_one_is_no_string() -> None:
    numbered = b"X\x01\x00\x00\x00aq\x00X\x01\x00\x00\x00bq\x01"
    pair, bare = b"h\x00h\x01\x86", b"X\x01\x00\x00\x00z"
    data = b"\x80\x02](" + numbered + pair + bare + b"X\x01\x00\x00\x00cq\x02" + pair + b"q\x05" + b"h\x05h\x05\x86e."
    with pytest.raises(RefusedPickle, match="a tuple inside a tuple"):
        load_plain(data)


#: Two strings with numbers and a tuple of them, and what may come behind: strings with and without numbers, pairs, numbers given to what is
#: on top.
PAIRED = b"\x80\x02](X\x01\x00\x00\x00aq\x00X\x01\x00\x00\x00bq\x01h\x00h\x01\x86"
PIECES = [b"X\x01\x00\x00\x00z", b"h\x00h\x01\x86", b"r\x01\x00\x00\x00", b"j\x01\x00\x00\x00", b"\x86", b"}", b"]", b"K\x01", b"N"]
PIECES += [b"X\x01\x00\x00\x00cq" + bytes([n]) for n in range(4)]
PIECES += [opcode + bytes([n]) for n in range(4) for opcode in (b"q", b"h")]
PIECES += [b"h%ch%c\x86" % (n, n) for n in (2, 3)]
#: A pair right behind a string, and one of what was numbered last: where the short way has much to remember.
PIECES += [b"X\x01\x00\x00\x00z" + b"X\x01\x00\x00\x00cq" + bytes([n]) + b"h\x00h\x01\x86" for n in (2, 3)]
PIECES += [b"q%ch%ch%c\x86" % (n, n, n) for n in (2, 3)]


@given(pieces=st.lists(st.sampled_from(PIECES), min_size=3, max_size=14))
@settings(max_examples=1000, deadline=None)
def test_what_passes_in_the_short_way_passes_opcode_by_opcode(pieces: list[bytes]) -> None:
    data = PAIRED + b"".join(pieces) + b"e."
    if _is_torch_like(data):
        _check_each(data)
