"""Items as a source: each row of its listing is an item, from which a function makes samples."""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import PurePath
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import xxhash

from dlio.dataset.schema import Sample, Schema
from dlio.errors import SchemaError, SourceError, StorageError, UsageError
from dlio.pack.listing.base import Column, Listing
from dlio.pack.listing.keys import Keys, key_problem
from dlio.pack.python.fields import Given, kinds

Function = Callable[[Any], object]
SOURCE = "items"  # the origin of the data sets
_ADVICE = "without schema=, the first samples of a few items define the fields; ? is a dimension that varies"
_ITEM = "item"  # the column of a listing: the pickled items


@dataclass(frozen=True, slots=True)
class Items:
    """A source whose samples a function makes of items; a copy in a worker has no items but those of its listing."""

    function: Function
    items: Sequence[Any]
    given: Given
    shard_bytes: int | None
    schema: Schema
    name: str = SOURCE

    def __reduce__(self) -> tuple[Any, ...]:
        return Items, (self.function, (), self.given, self.shard_bytes, self.schema)

    @property
    def path(self) -> str:
        """The function, the encoding of arrays, and the size of shards if it is given."""
        own = _innermost(self.function)
        name = getattr(own, "__qualname__", type(own).__qualname__)
        sizes = "" if self.shard_bytes is None else f"shards of {self.shard_bytes:,} bytes"
        told = ", ".join(filter(None, (str(self.given), sizes)))
        return f"{own.__module__}.{name}{f' ({told})' if told else ''}"

    def listing(self) -> Listing:
        """Returns a row for each item, of equal sizes, since these are unknown; raises UsageError."""
        pickled = np.empty(len(self.items), dtype=object)
        pickled[:] = [_pickled(number, item) for number, item in enumerate(self.items)]
        keys, sizes = Keys.of(_names(self.items)), np.ones(len(pickled), "int64")
        images, versions = self.given.image_fields(self.schema), np.full(len(pickled), version_of(self.function))
        return Listing(self.schema, keys, sizes, {_ITEM: pickled}, images, versions=versions, gives_several=True)

    def reader(self, listing: Listing) -> AbstractContextManager[_ItemReader]:
        """Gives a function that returns the first sample of an item."""
        return nullcontext(_ItemReader(self, listing.keys, listing.columns[_ITEM]))


@dataclass(frozen=True, slots=True)
class _ItemReader:
    """Calls the function; a `SeveralReader`."""

    source: Items
    keys: Sequence[str]
    items: Column

    def __call__(self, index: int) -> Sample:
        for sample in self.samples(index):
            return sample
        raise SourceError(f"the item {self.keys[index]} has no sample")

    def samples(self, index: int) -> Iterator[Sample]:
        """Yields the samples of an item, which follow the schema."""
        item, key, schema = pickle.loads(self.items[index]), self.keys[index], self.source.schema
        named = key if key == str(item) else f"{key}, {item!r:.80}"
        try:
            for sample in self._made(item, key):
                if schema:
                    sample = schema.check(sample)
                else:
                    kinds(sample)  # raises if there is none
                yield sample
        except (MemoryError, StorageError):
            raise
        except SchemaError as error:
            raise SchemaError(f"the item {named}: {error} ({_ADVICE})") from error
        except SourceError as error:
            raise SourceError(f"the item {named}: {error}") from error
        except Exception as error:
            failed = f"{self.source.path} failed with {type(error).__name__}: {error}"
            raise SourceError(f"the item {named}: {failed}") from error

    def _made(self, item: Any, key: str) -> Iterator[Sample]:
        made, given = self.source.function(item), self.source.given
        if isinstance(made, Mapping | Sample):
            yield given.sample(made, None, key)
        elif made is not None:
            if isinstance(made, str | bytes) or not isinstance(made, Iterable):
                raise SchemaError(f"expected a mapping of fields, several, or None, found {type(made).__name__}")
            for number, each in enumerate(made):
                yield given.sample(each, None, f"{key}/{number:06d}")


def _names(items: Sequence[Any]) -> list[str]:
    """Returns the items themselves, if they are different texts or paths that can be keys; else their numbers."""
    names = [str(item) for item in items if isinstance(item, str | PurePath)]
    if len(set(names)) == len(items) and not any(map(key_problem, names)):
        return names
    return [f"{number:06d}" for number in range(len(items))]


def _pickled(number: int, item: object) -> bytes:
    """Returns an item as bytes that are the same for equal items, whatever objects they share."""
    for is_fast in (True, False):  # fast is without a memo, which an item that holds itself needs
        out = io.BytesIO()
        pickler = pickle.Pickler(out, protocol=5)
        pickler.fast = is_fast
        try:
            pickler.dump(item)
            return out.getvalue()
        except Exception as error:
            problem = error
    raise UsageError(f"item {number}, {item!r:.80}, cannot be pickled: {problem}: give paths, numbers or tuples")


def version_of(function: Function) -> int:
    """Returns a number that changes with the function's own code, and with what a partial or an object gives to it."""
    own = _innermost(function)
    code = getattr(own if isinstance(own, FunctionType) else type(own).__call__, "__code__", None)
    try:
        given = b"" if isinstance(function, FunctionType) else _pickled(0, function)
    except UsageError:
        given = b""
    return xxhash.xxh3_64_intdigest(given + _text(code).encode()) >> 1


def _innermost(function: Function) -> Function:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _text(value: object) -> str:
    """Returns code as text: what it does, without line numbers and comments."""
    if isinstance(value, CodeType):
        return f"{value.co_code!r} {value.co_names} {''.join(map(_text, value.co_consts))}"
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)
