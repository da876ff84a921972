"""Shards of every format are read while they arrive, and wrong bytes are brought again; the agent is this process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dlio import formats
from dlio.dataset.manifest import Manifest
from dlio.dataset.pool import ShardPool
from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError
from dlio.formats.payloads import example
from dlio.pack.index import index
from dlio.stage.client.arriving import Wanted, open_arriving
from dlio.stage.copies.blocks import Blocks
from tests.formats.test_array_record import package_writes
from tests.loaders.packing import pack_samples

SCHEMA = Schema.of({"image": "bytes", "label": "int64"}, ("a", "b"), 0)


class Folder:
    """Fills a folder from a source on demand: a `Filling`. The first bytes that it brings of a place may be wrong.

    Attributes:
        num_brought, num_bad: the bytes that were brought, and how often ranges were called bad.
    """

    def __init__(self, source: Manifest, root: Path, stack: ExitStack, *, flips: bool = False) -> None:
        self.source, self.root, self.stack, self.flips = source, root, stack, flips
        self.num_brought = self.num_bad = 0
        root.mkdir()
        for shard in source.shards:
            for file in shard.files:
                (root / file.name).parent.mkdir(parents=True, exist_ok=True)

    def prepare(self, names):
        large = max(names, key=lambda name: (self.source.root / name).stat().st_size)
        self.complete([name for name in names if name != large])
        return [large]

    def complete(self, names):
        for name in names:
            (self.root / name).write_bytes((self.source.root / name).read_bytes())

    def arrival(self, path):
        if path.name.endswith(".part"):
            return None
        data = (self.source.root / path.relative_to(self.root)).read_bytes()
        unfinished, bits = path.with_name(path.name + ".part"), path.with_name(path.name + ".bits")
        with unfinished.open("wb") as file:
            file.truncate(len(data))
        blocks = Blocks.create(bits, len(data))
        self.stack.callback(blocks.close)

        def need(ranges, *, flips=self.flips):
            missing = blocks.missing_of(ranges)
            with unfinished.open("r+b") as file:
                for begin, end in missing:
                    piece = bytearray(data[begin:end])
                    if flips:
                        piece[len(piece) // 3] ^= 64
                    file.seek(begin)
                    file.write(piece)
                    self.num_brought += end - begin
            for begin, end in missing:
                blocks.set(begin, end)
            return True

        def bad(ranges):
            self.num_bad += 1
            for begin, end in ranges:
                blocks.clear(begin, end)
            need(ranges, flips=False)

        return open_arriving(unfinished, bits, path, len(data), Wanted(need, lambda *_: None, bad))


@pytest.fixture(scope="module", params=formats.names())
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    chosen = random.Random(2)
    samples = [Sample(f"{i:03}", {"image": chosen.randbytes(20_000), "label": i % 2}) for i in range(60)]
    return pack_samples(tmp_path_factory.mktemp("data") / "packed", SCHEMA, samples, num_shards=2, name=request.param)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def read(pool: ShardPool, records: list[int]) -> list[bytes]:
    with pool.shard(1) as shard:
        shard.prefetch_hint(np.array(records))
        return [bytes(image) for image in shard.read_columns(np.array(records))["image"]]


def test_a_few_samples_bring_a_few_blocks(packed, tmp_path, stack):
    folder = Folder(packed, tmp_path / "copy", stack)
    pool, whole = ShardPool(replace(packed, root=folder.root), filling=folder), ShardPool(packed)
    assert read(pool, [3, 17, 18]) == read(whole, [3, 17, 18])
    assert folder.num_bad == 0 and folder.num_brought < 0.6 * packed.shards[1].num_bytes
    assert pool.read(59).fields == whole.read(59).fields
    pool.close()
    whole.close()


def test_wrong_bytes_are_brought_again_and_never_delivered(packed, tmp_path, stack):
    folder = Folder(packed, tmp_path / "copy", stack, flips=True)
    pool, whole = ShardPool(replace(packed, root=folder.root), filling=folder), ShardPool(packed)
    for records in ([5], [0, 1, 2, 29], list(range(30))):
        assert read(pool, records) == read(whole, records)
    assert folder.num_bad > 0
    for each in (pool, whole):
        each.close()


def test_a_source_that_is_damaged_is_the_usual_error(packed, tmp_path, stack):
    bad = pack_damaged(packed, tmp_path / "bad")
    folder = Folder(bad, tmp_path / "copy", stack)
    pool = ShardPool(replace(bad, root=folder.root), filling=folder)
    with pytest.raises(CorruptRecordError, match="restore"):
        read(pool, list(range(30)))
    assert folder.num_bad > 0
    pool.close()


def pack_damaged(packed: Manifest, root: Path) -> Manifest:
    """Returns a copy of a data set in whose second shard a bit of an image is flipped."""
    with_image = ShardPool(packed)
    image = with_image.read(40).fields["image"]
    with_image.close()
    for shard in packed.shards:
        for file in shard.files:
            (root / file.name).parent.mkdir(parents=True, exist_ok=True)
            data = (packed.root / file.name).read_bytes()
            (root / file.name).write_bytes(data.replace(image, bytes([image[0] ^ 1]) + image[1:]))
    return replace(packed, root=root)


def test_a_shard_without_checksums_is_read_when_it_is_whole(packed, tmp_path, stack):
    bare = tuple(
        shard.replace(files=tuple(file for file in shard.files if not file.name.endswith(".npz")))
        for shard in packed.shards
    )
    folder = Folder(packed, tmp_path / "copy", stack)
    pool = ShardPool(replace(packed, root=folder.root, shards=bare), filling=folder)
    assert pool.read(0).fields["label"] == 0
    assert folder.num_brought == 0 and (folder.root / packed.shards[0].files[0].name).exists()
    pool.close()


def test_groups_of_array_record_arrive_and_wrong_ones_are_brought_again(tmp_path, stack):
    pytest.importorskip("array_record")
    (tmp_path / "in").mkdir()
    chosen, encode = random.Random(2), example.encoder(SCHEMA)
    samples = [Sample(str(i), {"image": chosen.randbytes(20_000), "label": i % 2}) for i in range(60)]
    records = [b"".join(encode(sample)) for sample in samples]
    package_writes(tmp_path / "in" / "all.array_record", records, "group_size:2")
    manifest = index(tmp_path / "in", format="array_record", workers=1)
    folder = Folder(manifest, tmp_path / "copy", stack, flips=True)
    pool, whole = ShardPool(replace(manifest, root=folder.root), filling=folder), ShardPool(manifest)
    assert [pool.read(number).fields for number in (8, 0, 59)] == [whole.read(number).fields for number in (8, 0, 59)]
    assert folder.num_bad > 0
    for each in (pool, whole):
        each.close()
