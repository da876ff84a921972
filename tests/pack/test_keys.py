"""Keys: a sequence of text that takes little more than its text."""

from __future__ import annotations

import pickle
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio.errors import SourceError
from dlio.pack.listing import keys as keys_module
from dlio.pack.listing.keys import Keys

NAMES = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1), max_size=50)


@given(NAMES, st.data())
def test_is_the_sequence_of_its_names(names, data):
    keys = Keys.of(names)
    assert list(keys) == names == [keys[index] for index in range(len(names))]
    assert keys[:] == names
    assert list(pickle.loads(pickle.dumps(keys))) == list(keys)
    indices = data.draw(st.lists(st.integers(0, len(names) - 1), max_size=60)) if names else []
    assert list(keys.take(np.array(indices, dtype="int64"))) == [names[index] for index in indices]


@given(NAMES)
def test_what_occurs_twice_is_found(names):
    first = {name: number for number, name in reversed(list(enumerate(names)))}
    assert Keys.of(names).repeated() == [number for number, name in enumerate(names) if first[name] != number]


@pytest.mark.parametrize(("name", "problem"), [("", "empty path"), ("a\0b", "zero byte"), ("\udce9", "not UTF-8")])
def test_what_is_no_key_is_refused(name, problem):
    with pytest.raises(SourceError, match=problem):
        Keys.of(["good", name])


def test_a_long_listing_tells_how_far_it_is(caplog, monkeypatch):
    clock = iter([0.0, 59.0, 61.0, 100.0])
    monkeypatch.setattr(keys_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))  # of this module only
    Keys.of(f"{number}.png" for number in range(3 * keys_module.BLOCK))
    assert caplog.messages == ["listing: 131072 files so far, 2149 files/s"]


def test_memory_is_the_text_and_eight_bytes_a_key():
    sizes = {}
    for count in (30_000, 60_000):
        tracemalloc.start()
        keys = Keys.of(f"n{number // 1000:08d}/n{number:08d}.JPEG" for number in range(count))
        sizes[count] = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert len(keys) == count
    assert sizes[60_000] < 60_000 * (24 + 8) * 1.3  # 24 bytes of text; what grows is grown ahead by an eighth
    assert sizes[60_000] < 2.2 * sizes[30_000]


def test_keys_may_come_in_memory_that_is_not_aligned() -> None:
    """As Dask sends them."""
    buffers: list[pickle.PickleBuffer] = []
    keys = Keys.of(["a", "b/ü", "c"])
    sent = pickle.dumps(keys, protocol=5, buffer_callback=buffers.append)
    moved = [memoryview(b"-" + buffer.raw())[1:] for buffer in buffers]
    found = pickle.loads(sent, buffers=moved)
    assert found[1] == "b/ü" and list(found) == list(keys)
