"""Damaged LMDB files: refused by an error that names the place, where LMDB itself would end the process."""

from __future__ import annotations

import random
import struct

import pytest

from dlio.dataset.schema import Sample
from dlio.errors import CorruptRecordError, StorageError
from dlio.formats import lmdb as container
from dlio.formats.layouts.lmdb import PAGE_BYTES as PAGE
from tests.formats.lmdb_shards import BYTES, read, samples, single_file, write
from tests.helpers.rounds import ROUNDS


@pytest.mark.parametrize("make", [lambda path: path, lambda path: path.mkdir() or path])
def test_a_missing_file_is_a_storage_error(tmp_path, make):
    with pytest.raises(StorageError, match=r"a\.lmdb"):
        container.Reader(make(tmp_path / "a.lmdb"), BYTES)


def test_a_file_of_another_format_is_named(tmp_path):
    (tmp_path / "a").write_bytes(b"\x89HDF" * 9000)
    with pytest.raises(CorruptRecordError, match="not a meta page of LMDB"):
        container.Reader(tmp_path / "a", BYTES)


def test_a_file_cut_short_is_refused_at_once(tmp_path):
    data = (write(tmp_path / "a", samples(300)) / "data.mdb").read_bytes()
    cut = tmp_path / "cut"
    for size in [
        0,
        1,
        100,
        PAGE,
        2 * PAGE - 1,
        2 * PAGE,
        len(data) // 2,
        len(data) - PAGE,
        len(data) - 1,
    ]:
        cut.write_bytes(data[:size])
        with pytest.raises(CorruptRecordError, match=r"cut: |cut, offset"):
            container.Reader(cut, BYTES)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("page_bytes", [0, 1, 100, 2 * PAGE, 2**32 - 1])
def test_meta_pages_of_different_page_sizes_are_refused(tmp_path, number, page_bytes):
    """A page of 0 bytes has no head to check."""
    data = bytearray((write(tmp_path / "a", samples(3)) / "data.mdb").read_bytes())
    struct.pack_into("<I", data, number * PAGE + 16 + 24, page_bytes)
    (tmp_path / "b").write_bytes(data)
    with pytest.raises(CorruptRecordError, match=r"b, offset \d+: .*page"):
        container.Reader(tmp_path / "b", BYTES)


def tree_pages(data: bytes) -> list[int]:
    heads = [(page, *struct.unpack_from("<QHH", data, page * PAGE)) for page in range(len(data) // PAGE)]
    return [page for page, number, _, flags in heads if number == page and flags in (1, 2, 8)]


def test_flipped_bits_in_the_tree_give_errors_or_the_samples(tmp_path):
    """LMDB itself ends with SIGBUS on some of these files."""
    written = samples(150)
    data = (write(tmp_path / "a", written) / "data.mdb").read_bytes()
    generator = random.Random(7)
    outcomes = {"refused": 0, "whole": 0}
    for _ in range(200 * ROUNDS):
        damaged = bytearray(data)
        page = generator.choice(tree_pages(data))
        # half of the flips hit the head and the first nodes, where the structure is
        position = page * PAGE + generator.randrange(generator.choice([200, PAGE]))
        damaged[position] ^= 1 << generator.randrange(8)
        (tmp_path / "flipped").write_bytes(damaged)
        try:
            found = read(tmp_path / "flipped")
        except CorruptRecordError as error:
            assert error.path == str(tmp_path / "flipped")
            outcomes["refused"] += 1
        else:
            assert len(found) == len(written)
            # no checksum guards keys and the values within leaf pages: at most the sample that was hit differs
            assert sum(a != b for a, b in zip(found, written, strict=True)) <= 1
            outcomes["whole"] += 1
    assert min(outcomes.values()) > 20, outcomes


def test_a_page_that_is_its_own_child_is_refused(tmp_path):
    path = write(tmp_path / "a", samples(2000, largest=100), single_file)
    data = bytearray(path.read_bytes())
    _, branch = max(struct.unpack_from("<QQQ", data, page * PAGE + 128)[::-2] for page in range(2))  # root, last, txn
    node = struct.unpack_from("<H", data, branch * PAGE + 16)[0]
    struct.pack_into("<I", data, branch * PAGE + node, branch)
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match="is not the leaf page"):
        container.Reader(path, BYTES)


def test_an_overflow_page_that_is_another_names_the_record(tmp_path):
    path = write(tmp_path / "a", [Sample("a", {"image": bytes(9000), "label": 1})] * 3, single_file)
    reader = container.Reader(path, BYTES)
    offset = reader.locate(1)[1]
    data = bytearray(path.read_bytes())
    data[offset - 16] ^= 1
    path.write_bytes(data)
    assert reader.read(0).fields["label"] == 1
    with pytest.raises(CorruptRecordError, match=f"record 1, offset {offset - 16}: expected overflow page"):
        reader.read(1)
    reader.close()
