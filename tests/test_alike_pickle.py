"""Entries that are not unpickled by themselves are the ones that the unpickler gives, whatever the pickle holds."""

from __future__ import annotations

import pickle
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_forensics.decoding import alike_scan
from nccl_forensics.decoding.alike_pickle import Alike, Alikes, numbers_of
from nccl_forensics.decoding.safe_pickle import RefusedPickle, load_plain
from nccl_forensics.formats import _recorder_rings
from nccl_forensics.reading.source import SourceReading, read_source
from tests.benchmarks.inputs import dump, pickled

_COLUMNS = {"seq": ("seq",), "at": ("at",), "took": ("took",)}
_FLOATS = frozenset({"took"})


def reader() -> Alikes:
    """One that has read nothing yet."""
    return Alikes("entries", _COLUMNS, _FLOATS)


def whole(alike: Alike) -> list[dict[object, object]]:
    """The list as the unpickler gives it."""
    kept = alike.document["entries"]
    assert isinstance(kept, list)
    entries = [dict(kept[sort]) for sort in alike.sorts.to_list()]
    for column, numbers in numbers_of([alike], list(_COLUMNS), _FLOATS).items():
        for entry, number in zip(entries, numbers.to_list(), strict=True):
            if number is not None:
                assert column in entry
                entry[column] = number
    return entries


_VALUE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 300),
    st.sampled_from(["", "a", "nccl:send 0->1", "h\x00}(h"]),
)
_FIELDS = st.fixed_dictionaries(
    {"frames": st.lists(st.sampled_from(["x", "y"]), max_size=2), "seq": st.one_of(st.integers(0, 70_000), st.none())},
    optional={"at": st.integers(2**40, 2**60), "state": _VALUE, "sizes": st.lists(st.lists(st.integers(0, 2**33), max_size=2), max_size=2)},
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_FIELDS, min_size=2, max_size=40), st.integers(1, 9))
def test_entries_are_those_that_the_unpickler_gives(entries: list[dict[str, object]], times: int):
    data = pickled({"version": "2.10", "entries": entries * times, "after": {"x": "entries"}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alike_scan, "_FEWEST", 2)
        patch.setattr(alike_scan, "_WALKED", 10_000)
        alike = reader().load(data)
    if alike is not None:
        assert whole(alike) == pickle.loads(data)["entries"]


def test_of_many_alike_entries_few_are_kept():
    data = pickled({"entries": [{"frames": ["a"], "seq": n, "at": 2**50 + n, "state": "done"} for n in range(2000)]})
    alike = reader().load(data)
    assert alike is not None
    assert len(alike.document["entries"]) == 3  # type: ignore[arg-type]  # the first, and one for each width of "seq"
    assert whole(alike) == pickle.loads(data)["entries"]


def test_floats_are_told_too():
    one = b"}(X\x01\0\0\0aq\0h\x01G" + struct.pack(">d", 0.5) + b"u"
    rest = b"".join(b"}(h\x00K\x01h\x01G" + struct.pack(">d", n / 7) + b"u" for n in range(300))
    data = b"\x80\x02}(X\x04\0\0\0tookq\x01NX\x07\0\0\0entriesq\x02](" + one.replace(b"q\0h\x01", b"q\0K\x01h\x01") + rest + b"eu."
    alike = reader().load(data)
    assert alike is not None
    assert whole(alike) == pickle.loads(data)["entries"]


def _list_of(entry: bytes, times: int = 300) -> bytes:
    """A document with a list of dictionaries of which all but the first are set by these opcodes."""
    first = b"}(X\x01\0\0\0aq\0](e" + b"u"
    return b"\x80\x02}(X\x01\0\0\0lq\x05]q\x06X\x07\0\0\0entriesq\x07](" + first + entry * times + b"eu."


@pytest.mark.parametrize(
    "entry",
    [
        b"}(h\x00h\x06(K\x01eu",  # adds to a list that another part of the document holds
        b"}(h\x00]q\x09u",  # writes into the memo, each time at the same place
        b"}(h\x00]ue]q\x08(}(h\x00]u",  # ends the list, and begins another one
        b"}(h\x00K\x01h\x00K\x02u",  # a key twice
        b"}(h\x00]u0}(h\x00]u",  # drops a dictionary
        b"}(h\x00K\x01u}(",  # no whole dictionary
    ],
)
def test_what_torch_does_not_write_is_left_to_the_unpickler(entry: bytes):
    assert reader().load(_list_of(entry)) is None


def test_a_second_list_of_the_same_name_is_left_to_the_unpickler():
    assert reader().load(_list_of(b"}(h\x00]u").removesuffix(b"u.") + b"h\x07]u.") is None
    assert reader().load(_list_of(b"}(h\x00]u")) is not None


def test_lists_of_ever_new_entries_are_left_to_the_unpickler():
    data = pickled({"entries": [{"frames": ["a"], "sizes": [n, n * n]} for n in range(1000)]})
    assert reader().load(data) is None


def both(data: bytes) -> tuple[SourceReading, SourceReading]:
    """A dump read by sorts of entries, and entry by entry."""
    quick = read_source(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Alikes, "load", lambda *_: None)
        return quick, read_source(data)


def _told_otherwise() -> bytes:
    """A dump in which some entries have a text for a number, or a number that is a float elsewhere."""
    document = pickle.loads(dump(3, 8, 600, None))
    for n, entry in enumerate(document["entries"]):
        entry |= {"p2p_seq_id": "7"} if n % 2 else {"duration_ms": n / 8 if n % 4 else n}
    return pickled(document)


@pytest.mark.parametrize("data", [dump(3, 8, 600, None), dump(3, 8, 600, 3), _told_otherwise()], ids=["healthy", "culprit", "odd"])
def test_a_dump_gives_the_same_tables_either_way(data: bytes):
    quick, slow = both(data)
    assert "fr_entries" in quick.folded
    assert not slow.folded
    assert (quick.records, quick.formats, quick.gap_lines) == (slow.records, slow.formats, slow.gap_lines)
    for name in slow.frames:
        assert quick.table(name).equals(slow.table(name)), name


def test_zeros_that_were_moved_with_the_times_are_no_times_either_way():
    """Whoever sets a host's clock right in its dumps moves what was never set, too."""
    document = pickle.loads(dump(3, 8, 600, 3))
    unset = [e for e in document["entries"] if e["time_discovered_completed_ns"] is None]
    assert unset
    for entry in unset:
        entry["time_discovered_completed_ns"] = 3600 * 10**9
    for entry in document["entries"]:
        entry["time_created_ns"] += 3600 * 10**9
    quick, slow = both(pickled(document))
    told = slow.table("fr_entries")
    assert told["time_completed_ns"].null_count() == len(unset)
    assert quick.table("fr_entries").equals(told)


def test_texts_that_unfold_to_too_much_are_told_either_way(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_recorder_rings.Budget, "take", lambda self, amount: amount < 50_000)
    quick, slow = both(dump(0, 8, 600, None))
    assert not quick.folded
    assert quick.table("fr_entries").equals(slow.table("fr_entries"))


def _ring(dice: random.Random, entries: int = 40) -> dict[str, object]:
    """A document like those of the other ranks of a job, with some of the differences that ranks have."""
    thread, group = str(dice.choice([140024721156992, 7])), dice.choice(["0", "1", "12"])
    first, called = dice.choice([0, 0, 0, 200, 250]), dice.choice(["h", "h", "hook"])
    rows: list[dict[str, object]] = []
    for n in range(dice.choice([entries, entries, entries - 3])):
        row: dict[str, object] = {"frames": ["f", "g", f"{called}{n // 12}"], "seq": first + n, "group": [group, "name"], "thread": thread}
        row |= {
            "sizes": [[n % 3]],
            "at": 2**60 + dice.randrange(2**50),
            "took": dice.choice([None, dice.random()]) if n > entries - 6 else None,
        }
        rows.append(row)
    if dice.random() < 0.3:
        rows.insert(dice.randrange(len(rows)), {"frames": [], "seq": 5, "extra": dice.choice(["x", "y"])})
    if dice.random() < 0.3:
        del rows[dice.randrange(len(rows))]
    before: dict[str, object] = {"version": dice.choice(["2.9", "2.9", "2.10"]), "status": {group: {"last": dice.randrange(500)}}}
    behind: dict[str, object] = {"after": dice.choice([{"f": thread}, {"f": "f"}])}
    return {**before, "entries": rows, **(behind if dice.random() < 0.5 else {})}


def _told(of: Alikes, data: bytes) -> object:
    """A document as a reader tells it; None where it leaves it to the unpickler, or the unpickler refuses what it was given."""
    try:
        alike = of.load(data)
    except (pickle.UnpicklingError, EOFError, ValueError):
        return None
    return None if alike is None else {**alike.document, "entries": whole(alike)}


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short lists count, and may be of many sorts."""
    monkeypatch.setattr(alike_scan, "_FEWEST", 8)
    monkeypatch.setattr(alike_scan, "_WALKED", 10_000)


def test_a_list_that_follows_another_is_the_one_that_the_unpickler_gives(eager: None):
    dice = random.Random(7)
    of = reader()
    followed = 0
    for _ in range(250):
        data = pickled(_ring(dice))
        alike = of.load(data)
        assert alike is not None
        assert {**alike.document, "entries": whole(alike)} == pickle.loads(data)
        followed += bool(alike.strays) or len(of._patterns) > 1
    assert followed > 100


@pytest.mark.parametrize("seed", range(3))
def test_a_spoilt_list_is_never_taken_for_the_one_it_follows(eager: None, seed: int):
    dice = random.Random(seed)
    of, data = reader(), pickled(_ring(dice))
    assert _told(of, data) == pickle.loads(data)
    told = 0
    for _ in range(400):
        at = dice.randrange(2, len(data))
        width = dice.choice([0, 1, 1, 1, 2])
        spoilt = (
            data[:at]
            + bytes(dice.choice(b"}](uehqKMNX\x8a\x86.\x00\x01\x05") for _ in range(dice.choice([0, 1, 1, 2])))
            + data[at + width :]
        )
        found = _told(of, spoilt)
        if found is not None:
            known = pickle.loads(spoilt)
            assert found == known or repr(found) == repr(known)  # no NaN equals another
            told += 1
    assert told > 20


def test_dumps_of_a_job_share_what_they_have_in_common():
    of = _recorder_rings.alikes()
    one, other, last = (of.load(dump(rank, 8, 600, 2)) for rank in range(3))
    assert one is not None
    assert other is not None
    assert last is not None
    assert other.document is one.document
    assert last.document is not one.document
    assert last.places is one.places
    assert 0 < len(last.strays) < 64


def test_names_of_other_lengths_do_not_keep_a_list_from_following(eager: None):
    of = reader()
    places = []
    for name in ("f", "function"):
        document = {"entries": [{"frames": [f"{name}{n // 10}"], "seq": n, "at": 2**50 + n} for n in range(40)]}
        alike = of.load(pickled(document))
        assert alike is not None
        assert whole(alike) == document["entries"]
        places.append(alike.places)
    assert places[0] is places[1]


def test_keys_known_by_number_are_those_of_each_pickle(eager: None):
    of = reader()
    for keys in (["seq", "pos"], ["pos", "seq"]):  # the same numbers of the memo, and the same bytes of entries
        document = {"keys": keys, "entries": [{keys[0]: n, keys[1]: 9 - n} for n in range(10)]}
        alike = of.load(pickled(document))
        assert alike is not None
        assert whole(alike) == document["entries"]


@pytest.mark.parametrize("bad", [b"cos\nsystem\n(X\x02\0\0\0lstR", b"r\xff\xff\xff\x7f"])
@pytest.mark.parametrize("where", ["head", "entry", "tail"])
def test_what_is_refused_is_refused_behind_a_list_that_is_not(eager: None, bad: bytes, where: str):
    of = reader()
    good = pickled({"version": "1", "entries": [{"frames": ["x"], "seq": n, "at": 2**40 + n} for n in range(20)], "after": None})
    assert of.load(good) is not None
    at = {"head": good.index(b"X\x01\0\0\x001"), "entry": good.rindex(b"](h"), "tail": good.rindex(b"N")}[where]
    spoilt = good[:at] + bad + good[at:]
    assert _told(of, spoilt) is None
    with pytest.raises((RefusedPickle, pickle.UnpicklingError)):
        load_plain(spoilt)


def test_a_number_of_the_memo_that_the_head_wrote_is_not_written_again(eager: None):
    entries = b"}(X\x01\0\0\0aq\0X\x01\0\0\0bq\x01u" + b"}(h\0h\x01u" * 300 + b"eu."
    good, bad = (b"\x80\x02}(X\x04\0\0\0headX\x01\0\0\0zq" + number + b"X\x07\0\0\0entries](" + entries for number in (b"\x09", b"\x01"))
    of = reader()
    assert of.load(good) is not None
    assert of.load(bad) is None
