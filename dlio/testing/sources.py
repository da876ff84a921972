"""What every source promises: a listing that fits its samples, readers that agree with it, and copies in workers."""

from __future__ import annotations

import pickle
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import dlio
from dlio.dataset.manifest import Manifest
from dlio.dataset.pool import ShardPool
from dlio.dataset.schema import Sample
from dlio.errors import DlioError
from dlio.pack.listing.base import Listing, Source
from dlio.testing.samples import check_same

PICKLED_BYTES = 10_000  # each worker gets a source with each task


def read_all(source: Source, listing: Listing) -> list[Sample]:
    """Returns the samples of a listing, or of a part of one, in order."""
    with source.reader(listing) as read:
        return [read(row) for row in range(len(listing))]


def packed_samples(root: Path) -> list[Sample]:
    """Returns the samples of a packed data set, in order."""
    with closing(ShardPool(Manifest.load(root))) as pool:
        return [pool.read(index) for index in range(pool.manifest.num_samples)]


class SourceTests:
    """The promises of `dlio.pack.listing.base.Source`; a subclass makes `source`, of three samples or more."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        """A source whose input is in `tmp_path`, or below."""
        raise NotImplementedError

    def test_a_listing_has_a_row_for_each_sample(self, source: Source) -> None:
        listing = source.listing()
        listing.check_whole()
        assert len(listing) >= 3
        assert len(set(listing.keys)) == len(listing) == len(listing.num_bytes)
        assert all(len(column) == len(listing) for column in listing.columns.values())
        assert listing.versions is None or len(listing.versions) == len(listing)
        assert all(size >= 0 for size in listing.num_bytes)

    def test_listing_again_gives_the_same(self, source: Source) -> None:
        first, again = source.listing(), source.listing()
        assert first.schema == again.schema
        assert list(first.keys) == list(again.keys)
        assert list(first.num_bytes) == list(again.num_bytes)

    def test_samples_have_the_keys_and_fields_that_were_listed(self, source: Source) -> None:
        listing = source.listing()
        for row, sample in enumerate(read_all(source, listing)):
            assert sample.key == listing.keys[row]
            checked = listing.schema.check(sample)
            listed = {name: column[row] for name, column in listing.columns.items() if name in listing.schema}
            other = [name for name, value in listed.items() if not np.array_equal(checked.fields[name], value)]
            assert not other, f"sample {row}, key {sample.key!r}: these fields are not as listed: {other}"

    def test_image_fields_are_fields_of_the_schema(self, source: Source) -> None:
        listing = source.listing()
        assert all(listing.schema[name].dtype == "bytes" for name in listing.image_fields)

    def test_a_part_is_read_as_the_whole(self, source: Source) -> None:
        listing = source.listing()
        whole = read_all(source, listing)
        backwards = np.arange(len(listing))[::-1]
        check_same(read_all(source, listing.take(range(1, 3))), whole[1:3])
        check_same(read_all(source, listing.take(backwards)), whole[::-1])

    def test_samples_may_be_read_twice_and_in_any_order(self, source: Source) -> None:
        listing = source.listing()
        with source.reader(listing) as read:
            check_same([read(2)], [read(2)])
            check_same([read(0)], read_all(source, listing)[:1])

    def test_a_pickled_copy_is_small_and_reads_the_same(self, source: Source) -> None:
        pickled = pickle.dumps(source)
        listing = source.listing()
        assert len(pickled) < PICKLED_BYTES
        copied = pickle.loads(pickle.dumps(listing))
        check_same(read_all(pickle.loads(pickled), copied), read_all(source, listing))

    def test_a_closed_reader_leaves_no_file_open(self, source: Source, tmp_path: Path) -> None:
        read_all(source, source.listing())
        links = [entry.readlink() for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
        assert not [link for link in links if link.is_relative_to(tmp_path)]

    def test_an_input_that_is_gone_is_named(self, source: Source, tmp_path: Path) -> None:
        path = Path(source.path)
        path.rename(tmp_path / "moved")
        with pytest.raises(DlioError, match=path.name) as raised:
            source.listing().check_whole()
        assert raised.value.exit_code in (3, 4)  # bad input or storage, no fault of usage

    @pytest.mark.parametrize("engine", ["serial", "processes"])
    def test_a_pack_holds_what_was_read(self, source: Source, engine: str, tmp_path: Path) -> None:
        workers = 2 if engine == "processes" else None
        dlio.pack(source, tmp_path / "out", num_shards=2, engine=engine, workers=workers)
        listing = source.listing()
        expected = [listing.schema.check(sample) for sample in read_all(source, listing)]
        found = packed_samples(tmp_path / "out")
        assert [sample.key for sample in found] == [sample.key for sample in expected]
        check_same(found, expected)
