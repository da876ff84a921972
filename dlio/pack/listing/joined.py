"""Several sources as one: their samples one source after the other, with one list of classes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import PurePath

import numpy as np

from dlio.dataset.schema import Sample, Schema
from dlio.errors import SourceError
from dlio.pack.listing.base import Column, Listing, Numbers, Source
from dlio.pack.listing.keys import Keys

log = logging.getLogger(__name__)
_SOURCE, _PREFIX = "source", "prefix"  # columns: the number of each sample's source, and the length of its key's prefix
_SHARED = "label"  # the column that all sources have in common


def joined(sources: Sequence[Source]) -> Source:
    """Returns several sources as one."""
    return sources[0] if len(sources) == 1 else Joined(tuple(sources))


@dataclass(frozen=True, slots=True)
class Joined:
    """See `joined`; `sources` are those that are joined."""

    sources: tuple[Source, ...]

    @property
    def name(self) -> str:
        """The kinds of the sources, once each."""
        return ", ".join(dict.fromkeys(source.name for source in self.sources))

    @property
    def path(self) -> str:
        """The paths of the sources."""
        return ", ".join(str(source.path) for source in self.sources)

    def listing(self) -> Listing:
        """Returns all samples; a key that repeats an earlier one begins with its source's name, as `b/cat/1.jpg`.

        Raises:
            SourceError: the sources have different fields, or classes that cannot be joined.
        """
        found = [source.listing() for source in self.sources]
        schema = self._schema(found)
        found = [_with_classes(each, schema.class_names) for each in found]
        keys, prefixes = self._keys(found)
        counts = [len(each) for each in found]
        columns = {_SOURCE: np.repeat(np.arange(len(found)), counts), _PREFIX: prefixes}
        if all(_SHARED in each.columns for each in found):
            columns[_SHARED] = np.concatenate([each.columns[_SHARED] for each in found])
        for number, each in enumerate(found):
            own = {name: column for name, column in each.columns.items() if name != _SHARED or _SHARED not in columns}
            columns |= {f"{number} {name}": _for_all_samples(column, counts, number) for name, column in own.items()}
        versions = [each.versions for each in found if each.versions is not None]
        return Listing(
            schema,
            keys,
            np.concatenate([each.num_bytes for each in found]),
            columns,
            found[0].image_fields,
            versions=np.concatenate(versions) if len(versions) == len(found) else None,
            refused=list(chain.from_iterable(each.refused for each in found)),
            in_order=any(each.in_order for each in found),
            left_out="; ".join(filter(None, (each.left_out for each in found))),
        )

    def _schema(self, found: Sequence[Listing]) -> Schema:
        first = found[0].schema
        for source, each in zip(self.sources, found, strict=True):
            theirs = each.schema
            if theirs.types() != first.types() or theirs.label_offset != first.label_offset:
                raise SourceError(f"{source.path} has ({theirs}), {self.sources[0].path} has ({first})")
            if each.image_fields != found[0].image_fields:
                raise SourceError(f"{source.path} has images in {each.image_fields}, others in {found[0].image_fields}")
            if theirs.class_names != first.class_names and not _are_joinable(each, found[0]):
                advice = "pack each into a data set with --classes, then dlio merge"
                raise SourceError(f"{source.path} has other classes than {self.sources[0].path}: {advice}")
        names = [each.schema.class_names for each in found]
        every = dict.fromkeys(chain.from_iterable(names))
        is_sorted = all(list(some) == sorted(some) for some in names)
        return replace(first, class_names=tuple(sorted(every) if is_sorted else every))

    def _keys(self, found: Sequence[Listing]) -> tuple[Keys, Numbers]:
        """Returns the keys, and the length of each key's prefix."""
        names = list(chain.from_iterable(each.keys for each in found))
        prefixes = np.zeros(len(names), "int64")
        firsts = np.cumsum([0, *map(len, found)])
        repeated = Keys.of(names).repeated()
        for row in repeated:
            source = self.sources[int(np.searchsorted(firsts, row, side="right")) - 1]
            prefix = f"{PurePath(source.path).name}/"
            names[row], prefixes[row] = prefix + names[row], len(prefix)
        keys = Keys.of(names)
        if repeated:
            log.warning(
                "%s: %d keys repeated others and were renamed: the first is %r now",
                self.path,
                len(repeated),
                names[repeated[0]],
            )
            keys.check_distinct(self.path)
        return keys, prefixes

    @contextmanager
    def reader(self, listing: Listing) -> Iterator[Callable[[int], Sample]]:
        """Gives a function that reads one sample by its source's reader."""
        numbers, own = listing.columns[_SOURCE], [each for each in (_SHARED,) if each in listing.columns]
        rows, readers = np.zeros(len(listing), "int64"), {}
        with ExitStack() as opened:
            for number in np.unique(numbers).tolist():
                taken = np.flatnonzero(numbers == number)
                rows[taken] = np.arange(len(taken))
                part = _part(listing, number, taken)
                readers[number] = opened.enter_context(self.sources[number].reader(part))
            of, row_of = numbers.tolist(), rows.tolist()

            def read(index: int) -> Sample:
                sample = readers[of[index]](row_of[index])
                known = {name: listing.columns[name][index] for name in own}
                return Sample(listing.keys[index], sample.fields | known)

            yield read


def _part(listing: Listing, number: int, taken: Numbers) -> Listing:
    """Returns the rows of one source, as its reader knows them."""
    mark = f"{number} "
    columns = {name: column for name, column in listing.columns.items() if name == _SHARED}
    columns |= {name.removeprefix(mark): each for name, each in listing.columns.items() if name.startswith(mark)}
    prefixes = listing.columns[_PREFIX][taken].tolist()
    keys = Keys.of(listing.keys[row][prefix:] for row, prefix in zip(taken.tolist(), prefixes, strict=True))
    own = {name: column[taken] for name, column in columns.items()}
    return Listing(listing.schema, keys, listing.num_bytes[taken], own, listing.image_fields)


def _for_all_samples(column: Column, counts: Sequence[int], number: int) -> Column:
    """Returns a column of one source for the samples of all."""
    first = sum(counts[:number])
    whole = np.zeros((sum(counts), *column.shape[1:]), column.dtype)
    if column.dtype == object:
        whole[:] = b""
    whole[first : first + len(column)] = column
    return whole


def _are_joinable(*found: Listing) -> bool:
    whole = (each for each in found if str(each.schema.get(_SHARED)) == "int64" and _SHARED in each.columns)
    return sum(bool(each.schema.class_names) for each in whole) == len(found)


def _with_classes(listing: Listing, names: tuple[str, ...]) -> Listing:
    """Returns a listing whose labels count in this list of classes."""
    own, offset = listing.schema.class_names, listing.schema.label_offset
    if own == names:
        return listing
    index = np.array([names.index(name) for name in own], "int64")
    labels = index[listing.columns[_SHARED] - offset] + offset
    return replace(listing, columns={**listing.columns, _SHARED: labels})
