"""`dlio.pack_items`: what a function makes of items, by the workers of every engine, in the items' order."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

import dlio
from dlio.dataset.manifest import NAME
from dlio.dataset.schema import Sample, Schema
from dlio.errors import SchemaError, SourceError, UsageError
from dlio.pack.listing.base import Source
from dlio.pack.python.fields import Given
from dlio.pack.python.items import Items, version_of
from dlio.testing.sources import SourceTests
from tests.helpers.forked import run_until
from tests.helpers.images import image, make_image_folder
from tests.helpers.packing import BYTE_IDENTICAL, content, samples, stop_after
from tests.helpers.rounds import ROUNDS


def picture(number: int) -> dict:
    return {"image": image(number), "label": number % 3}


def several(number: int) -> Iterator[dict]:
    for part in range(number % 4):
        yield {"number": number, "part": part, "tokens": np.arange(number)}


def read(path: Path) -> dict:
    return {"image": path.read_bytes(), "label": 1}


def at_odds(number: int) -> dict | None:
    if number % 5 == 3:
        return None
    return {"x": 1 // (number - 12)}


def shaped(number: int, edge: int = 4) -> dict:
    return {"__key__": f"s{number}", "image": np.full((edge + number, 6, 3), number, "uint8")}


EDGE = {"edge": 4}


def growing(number: int) -> dict:
    return shaped(number, EDGE["edge"])


def numbered(number: int, step: int) -> dict:
    return {"x": number * step}


def another(text: str) -> Callable[[int], dict]:
    """Returns a function of this text, always of one name."""
    names: dict = {}
    exec(f"def made(number):\n return {{'x': {text}}}", names)
    return names["made"]


def same_key(number: int) -> dict:
    return {"__key__": "one", "x": number}


class TestItemsAsSource(SourceTests):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        names = make_image_folder(tmp_path / "in", {"a": 4})
        schema = Schema.of({"image": "bytes", "label": "int64"})
        return _ItemsOf(Items(read, [tmp_path / "in" / name for name in names], Given(), None, schema), tmp_path / "in")


class _ItemsOf:
    """Items whose path is the folder that they are in, as the suite moves it away."""

    name = "items"

    def __init__(self, items: Items, path: Path) -> None:
        self.items, self.path = items, path

    def listing(self):
        found = self.items.listing()
        if not self.path.exists():
            with self.items.reader(found) as read_one:
                read_one(0)
        return found

    def reader(self, listing) -> AbstractContextManager:
        return self.items.reader(listing)


@pytest.mark.parametrize("name", BYTE_IDENTICAL)
def test_any_number_of_workers_makes_the_same_bytes(name, tmp_path):
    for engine, workers in (("serial", None), ("processes", 1), ("processes", 3)):
        out = tmp_path / f"{engine}{workers}"
        types = {"number": "int64", "part": "int64", "tokens": "int64[]"}
        options = {"schema": types, "num_shards": 4, "format": name}
        dlio.pack_items(several, range(30), out, engine=engine, workers=workers, **options)
    assert content(tmp_path / "serialNone") == content(tmp_path / "processes1") == content(tmp_path / "processes3")
    found = samples(tmp_path / "serialNone")
    expected = [(number, part) for number in range(30) for part in range(number % 4)]
    assert [(fields["number"], fields["part"]) for _, fields in found] == expected
    assert [key for key, _ in found[:3]] == ["000001/000000", "000002/000000", "000002/000001"]


def test_items_that_are_paths_name_their_samples(tmp_path):
    names = make_image_folder(tmp_path / "in", {"a": 3})
    paths = [tmp_path / "in" / name for name in names]
    made = dlio.pack_items(read, paths, tmp_path / "out", engine="serial", classes=["no", "yes"])
    assert [key for key, _ in samples(tmp_path / "out")] == [str(path) for path in paths]
    assert made.class_names == ("no", "yes") and made.schema.is_image_classification


def test_the_size_of_shards_follows_from_a_few_items(tmp_path):
    make = functools.partial(dlio.pack_items, shaped, range(40), engine="serial")
    found = make(tmp_path / "out", shard_size=8000)
    assert found.schema.types() == {"image": "uint8[?,6,3]"}
    assert 3 <= len(found.shards) <= 8 and sum(shard.num_samples for shard in found.shards) == 40
    assert len(make(tmp_path / "one").shards) == 1


def test_arrays_are_encoded_where_asked_for(tmp_path):
    found = dlio.pack_items(shaped, range(3), tmp_path / "out", engine="serial", encode={"image": "png"})
    assert found.schema.types() == {"image": "bytes"}
    (key, fields), *_ = samples(tmp_path / "out")
    assert key == "s0" and fields["image"].startswith(b"\x89PNG") and found.origin["path"].endswith("(image as png)")


def test_an_error_names_the_item_and_the_function(tmp_path):
    with pytest.raises(SourceError, match=r"the item 000012, 12: .*at_odds failed with ZeroDivisionError"):
        dlio.pack_items(at_odds, range(30), tmp_path / "out", workers=2)
    found = dlio.pack_items(at_odds, range(30), tmp_path / "out", engine="serial", on_error="skip")
    assert found.num_samples == 23 and [key for key, _ in found.skipped] == ["000012"]


@pytest.mark.parametrize("made", [3, "text", [{"x": 1}, 4], {"x": None}])
def test_what_is_no_sample_is_named_with_its_item(made, tmp_path):
    with pytest.raises(
        (SourceError, SchemaError), match=r"the item 000000, 1: .*(expected a mapping|no type of field can hold)"
    ):
        dlio.pack_items(lambda number: made, [1, 2], tmp_path / "out", engine="serial")


def test_samples_with_one_key_are_refused_before_the_data_set_appears(tmp_path):
    with pytest.raises(SourceError, match=r"two samples have the key 'one', the second in shard-000000"):
        dlio.pack_items(same_key, range(4), tmp_path / "out", num_shards=2, engine="serial")
    assert not (tmp_path / "out" / NAME).exists()


def test_a_sample_unlike_those_tried_is_told_what_to_do(tmp_path):
    with pytest.raises(SchemaError, match=r"the item 000001, 1: .*int64\[29\], found int64\[1\].*\? is a dimension"):
        dlio.pack_items(several, range(30), tmp_path / "out", engine="serial")


def test_a_function_that_cannot_be_sent_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"<lambda> cannot be sent to a worker: .*define it at the top of a module"):
        dlio.pack_items(lambda number: {"x": number}, range(3), tmp_path / "out", workers=1)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [({"items": []}, "no items"), ({"items": [lambda: 1]}, "item 0, <function .*cannot be pickled"),
     ({"append": True}, "append"), ({"encode": {"x": "gif"}}, "encode=")],
)  # fmt: skip
def test_wrong_use_is_refused(arguments, problem, tmp_path):
    with pytest.raises(UsageError, match=problem):
        dlio.pack_items(shaped, **{"items": range(3), "out": tmp_path / "out", "engine": "serial", **arguments})


@pytest.mark.parametrize("item", [("a", "a"), {"a": [1, {"b": "a"}]}, Sample("a", {"x": 1})])
def test_equal_items_are_one_plan_whatever_objects_they_share(item):
    """An item that is read again from a file shares no texts: it must not be another data set."""
    import copy
    import pickle

    def listed(each: object) -> bytes:
        return Items(shaped, [each], Given(), None, Schema(())).listing().columns["item"][0]

    unshared = pickle.loads(pickle.dumps(item)) if isinstance(item, Sample) else copy.deepcopy(item)
    if item == ("a", "a"):
        unshared = ("a", "".join(["", "a"])[:1])
    assert listed(item) == listed(unshared)
    own: list = []
    own.append(own)
    assert listed(own)


class TestResume:
    def test_a_stopped_run_goes_on_and_a_finished_one_does_nothing(self, tmp_path):
        make = functools.partial(dlio.pack_items, picture, range(40), workers=2, shard_size=1000)
        make(tmp_path / "whole")
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path / "out", report=stop_after(2))
        assert not (tmp_path / "out" / NAME).exists()
        reported = []
        make(tmp_path / "out", report=lambda shard: reported.append(shard.name))
        assert content(tmp_path / "out") == content(tmp_path / "whole")
        before = content(tmp_path / "out")
        make(tmp_path / "out")
        assert content(tmp_path / "out") == before

    def test_a_plan_is_kept_though_the_function_gives_other_sizes(self, tmp_path, monkeypatch):
        make = functools.partial(
            dlio.pack_items, growing, range(40), tmp_path / "out", engine="serial", shard_size=4000
        )
        first = make()
        monkeypatch.setitem(EDGE, "edge", 90)
        assert make().content_id == first.content_id

    @pytest.mark.parametrize("change", ["code", "argument"])
    def test_shards_of_another_function_are_made_again_or_refused(self, change, tmp_path):
        other = another("number % 3 + 1") if change == "code" else functools.partial(numbered, step=2)
        first = another("number % 3") if change == "code" else functools.partial(numbered, step=1)
        make = functools.partial(dlio.pack_items, items=range(8), num_shards=4, engine="serial")
        with pytest.raises(KeyboardInterrupt):
            make(first, out=tmp_path / "out", report=stop_after(2))
        make(other, out=tmp_path / "out")
        make(other, out=tmp_path / "whole")
        assert samples(tmp_path / "out") == samples(tmp_path / "whole")
        with pytest.raises(UsageError, match=r"4 of 4 shards were changed since.*--overwrite"):
            make(first, out=tmp_path / "out")
        make(first, out=tmp_path / "out", overwrite=True)
        assert samples(tmp_path / "out") != samples(tmp_path / "whole")

    def test_comments_and_places_of_a_function_do_not_change_it(self):
        assert version_of(another("number % 3")) == version_of(another("(number  # a comment\n % 3)"))
        assert version_of(another("number in {'a', 'b'}")) != version_of(another("number in {'a', 'c'}"))

    def test_other_items_or_options_are_another_data_set(self, tmp_path):
        make = functools.partial(dlio.pack_items, shaped, out=tmp_path / "out", engine="serial")
        make(items=range(4))
        for change in ({"items": range(5)}, {"items": range(4), "shard_size": 100}, {"items": [0, 1, 2, 7]}):
            with pytest.raises(UsageError, match="holds another data set"):
                make(**change)
        assert make(items=range(5), overwrite=True).num_samples == 5

    def test_a_killed_run_goes_on_to_the_same_shards(self, tmp_path):
        make = functools.partial(dlio.pack_items, picture, range(12), num_shards=4, engine="serial")
        make(tmp_path / "whole")
        for when in range(1, 24, 6 if ROUNDS == 1 else 1):
            out = tmp_path / f"{when}"
            assert run_until("rename", when, lambda out=out: make(out)) in (0, -signal.SIGKILL)
            make(out)
            assert content(out) == content(tmp_path / "whole")
