"""What every container promises; files, keys, values, threads and processes."""

from __future__ import annotations

import multiprocessing
import random
import re
import runpy
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from dlio import formats
from dlio.dataset.checksum import crc32c
from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample, Schema
from dlio.errors import SchemaError, StorageError
from dlio.testing.container import Container, WatchedFile, content
from dlio.testing.samples import SCHEMAS, check_same, samples

KEYS = [
    "a/b.jpg",
    "a/b.png",
    "a/b",
    "a.b/c.d.jpg",
    "/absolute/../x.jpg",
    "./x.jpg",
    ".hidden",
    "__meta__/x.jpg",
    "with space\tand\nline.jpg",
    "nul\0.jpg",
    "quote'\".jpg",
    "ключ/猫🙂.jpg",
    "x" * 600 + ".jpg",
    "x" * 600 + ".png",
    "folder/" * 90 + "x.jpg",
    "f" * 90 + "/" + "g" * 90 + ".jpg",
    "猫" * 300,
    "a" * 5000,
    "-00000003",
    "/",
    ".",
    "0",
]
ODD_STEMS = ["with space", "quo'te\"", "new\nline", "猫🙂", "a.b.c", "per%cent", "-dash", "train-00000-of-00001"]
VECTORS = Schema.of(SCHEMAS["several labels"])
EACH_SCHEMA = pytest.mark.parametrize("schema", [Schema.of(types) for types in SCHEMAS.values()], ids=list(SCHEMAS))

_CHILD = """
from pathlib import Path
from dlio import formats
from dlio.dataset.checksum import crc32c
from dlio.dataset.schema import Schema
schema = Schema.of({types!r})
reader = formats.import_format({name!r}).Reader(Path({path!r}), schema)
sums = [crc32c(reader.read(index), schema) for index in reversed(range(len(reader)))]
reader.close()
assert sums == {sums!r}
"""


def labelled(keys: Iterable[str]) -> list[Sample]:
    """Returns a sample with a small image and its number as label for each key."""
    return [Sample(key, {"image": b"\xff\xd8\xff%d" % number, "label": number}) for number, key in enumerate(keys)]


def keys_of(container: Container) -> list[str]:
    """Returns the keys of `KEYS` that the format holds: all, unless it names files by them."""
    module = container.module
    refused = module.refused_keys(IMAGE_CLASSIFICATION, KEYS) if isinstance(module, formats.PathFormat) else {}
    return [key for number, key in enumerate(KEYS) if number not in refused]


class FormatTests:
    """The promises of `dlio.formats.Format`; a subclass names its module in `format_name`, or makes `container`."""

    format_name = ""

    @pytest.fixture
    def container(self) -> Container:
        """The format under test."""
        formats.import_format(self.format_name)
        return Container(self.format_name)

    @pytest.fixture
    def vectors(self, container: Container) -> Schema:
        """Images with vectors of labels; with one label where the format refuses vectors."""
        return IMAGE_CLASSIFICATION if container.module.refuses(VECTORS) else VECTORS

    @EACH_SCHEMA
    def test_round_trip(self, container: Container, schema: Schema, tmp_path: Path) -> None:
        if container.module.refuses(schema) is not None:
            pytest.skip("refused: see test_a_refusal_names_field_and_formats")
        expected = samples(schema, 14)
        found = container.read(container.write(tmp_path / "shard", schema, expected), schema)
        check_same(found, expected)
        assert [crc32c(a, schema) for a in found] == [crc32c(b, schema) for b in expected]

    @EACH_SCHEMA
    def test_a_refusal_names_field_and_formats(self, container: Container, schema: Schema) -> None:
        if container.module.refuses(schema) is None:
            assert formats.require(container.name, schema) is container.module
            return
        with pytest.raises(SchemaError) as raised:
            formats.require(container.name, schema)
        able = [name for name in formats.names() if formats.load(name).refuses(schema) is None]
        assert able, "a schema that no format can hold"
        assert container.name in str(raised.value)
        assert any(repr(name) in str(raised.value) for name in schema)
        assert all(name in str(raised.value).rpartition("formats that can")[2] for name in able)

    @EACH_SCHEMA
    def test_equal_samples_give_equal_bytes(self, container: Container, schema: Schema, tmp_path: Path) -> None:
        if container.module.refuses(schema) is not None:
            pytest.skip("refused: see test_a_refusal_names_field_and_formats")
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            container.write(tmp_path / name / "shard", schema, samples(schema, 9))
        assert content(tmp_path / "first") == content(tmp_path / "second")

    @EACH_SCHEMA
    def test_empty_shard(self, container: Container, schema: Schema, tmp_path: Path) -> None:
        if container.module.refuses(schema) is not None:
            pytest.skip("refused: see test_a_refusal_names_field_and_formats")
        assert container.read(container.write(tmp_path / "shard", schema, []), schema) == []

    def test_empty_image(self, container: Container, tmp_path: Path) -> None:
        empty = [Sample(key, {"image": b"", "label": 0}) for key in "abc"]
        path = container.write(tmp_path / "shard", IMAGE_CLASSIFICATION, empty)
        assert [found.fields for found in container.read(path, IMAGE_CLASSIFICATION)] == [empty[0].fields] * 3

    def test_100_megabytes_in_one_sample(self, container: Container, tmp_path: Path) -> None:
        image = np.random.default_rng(3).integers(0, 1 << 64, 12_500_000, dtype=np.uint64).tobytes() + b"\n"
        small, large = Sample("small", {"image": b"a", "label": 1}), Sample("large", {"image": image, "label": 2})
        path = container.write(tmp_path / "shard", IMAGE_CLASSIFICATION, [small, large, small])
        first, second, last = container.read(path, IMAGE_CLASSIFICATION)
        assert first.fields == last.fields == small.fields
        assert second.fields["label"] == 2
        assert second.fields["image"] == image

    def test_any_key_stays_readable_in_order(self, container: Container, tmp_path: Path) -> None:
        keys = keys_of(container)
        expected = labelled(keys)
        path = container.write(tmp_path / "shard", IMAGE_CLASSIFICATION, expected)
        found = container.read(path, IMAGE_CLASSIFICATION)
        assert [sample.fields for sample in found] == [sample.fields for sample in expected]
        short = [sample.key for sample, key in zip(found, keys, strict=True) if len(key.encode()) < 400]
        assert len(set(short)) == len(short) >= 10

    def test_a_refused_key_is_named_and_leaves_the_shard_whole(self, container: Container, tmp_path: Path) -> None:
        first, last = labelled(["a", "b"])
        writer = container.module.Writer(tmp_path / "shard", IMAGE_CLASSIFICATION)
        writer.write(first)
        for sample in labelled(sorted(set(KEYS) - set(keys_of(container)))):
            with pytest.raises(SchemaError, match=re.escape(repr(sample.key))):
                writer.write(sample)
        writer.write(last)
        writer.close()
        found = container.read(container.path(tmp_path / "shard"), IMAGE_CLASSIFICATION)
        assert [sample.fields for sample in found] == [first.fields, last.fields]

    @pytest.mark.parametrize("label", [2**24, -(2**24), 2**24 + 1, 2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, -(2**63)])
    def test_a_label_comes_back_exactly_or_is_refused(self, container: Container, label: int, tmp_path: Path) -> None:
        first, last = labelled(["a", "b"])
        large = Sample("key of it", {"image": b"x", "label": label})
        expected = [first, large, last]
        writer = container.module.Writer(tmp_path / "shard", IMAGE_CLASSIFICATION)
        writer.write(first)
        try:
            writer.write(large)
        except SchemaError as error:
            assert all(part in str(error) for part in ("'key of it'", "'label'", str(label)))
            assert any(name in str(error) for name in formats.names() if name != container.name)
            expected.remove(large)
        writer.write(last)
        writer.close()
        found = container.read(container.path(tmp_path / "shard"), IMAGE_CLASSIFICATION)
        assert [sample.fields for sample in found] == [sample.fields for sample in expected]

    def test_a_writer_dropped_half_way_leaves_what_was_written(
        self, container: Container, vectors: Schema, tmp_path: Path
    ) -> None:
        expected = samples(vectors, 10)[:4]
        writer = container.module.Writer(tmp_path / "shard", vectors)
        for sample in expected:
            writer.write(sample)
        writer.close()
        writer.close()
        found = container.read(container.path(tmp_path / "shard"), vectors)
        check_same(found, expected)

    @pytest.mark.parametrize("stem", ODD_STEMS)
    def test_odd_paths(self, container: Container, stem: str, tmp_path: Path) -> None:
        folder = tmp_path / f"in {stem}"
        folder.mkdir()
        expected = labelled(["a", "b"])
        found = container.read(container.write(folder / stem, IMAGE_CLASSIFICATION, expected), IMAGE_CLASSIFICATION)
        assert [sample.fields for sample in found] == [sample.fields for sample in expected]
        assert all(entry.name.startswith(stem) for entry in folder.iterdir())

    def test_locate_gives_the_file_and_different_offsets(self, container: Container, tmp_path: Path) -> None:
        keys = keys_of(container)
        path = container.write(tmp_path / "shard", IMAGE_CLASSIFICATION, labelled(keys))
        reader = container.module.Reader(path, IMAGE_CLASSIFICATION)
        located = [reader.locate(index) for index in range(len(reader))]
        reader.close()
        assert {file.is_file() and file.is_relative_to(path) for file, _ in located} == {True}
        offsets = [offset for _, offset in located if offset is not None]
        assert len(offsets) in (0, len(keys))
        assert all(0 <= offset < located[0][0].stat().st_size for offset in offsets)
        assert len(set(offsets)) == len(offsets)

    def test_a_missing_shard_is_a_storage_error(self, container: Container, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="absent"):
            container.module.Reader(container.path(tmp_path / "absent"), IMAGE_CLASSIFICATION)

    def test_close_twice_and_no_descriptor_left(self, container: Container, tmp_path: Path) -> None:
        path = container.write(tmp_path / "shard", IMAGE_CLASSIFICATION, labelled(["a", "b"]))
        first = container.module.Reader(path, IMAGE_CLASSIFICATION)
        second = container.module.Reader(path, IMAGE_CLASSIFICATION)
        first.close()
        first.close()
        assert second.read(1).fields["label"] == 1
        second.close()
        links = [entry.readlink() for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
        assert not [link for link in links if link.is_relative_to(tmp_path)]

    def test_many_threads_read_at_once(self, container: Container, vectors: Schema, tmp_path: Path) -> None:
        expected = samples(vectors, 200)
        reader = container.module.Reader(container.write(tmp_path / "shard", vectors, expected), vectors)
        order = [index for index in range(200) for _ in range(10)]
        random.Random(7).shuffle(order)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(reader.read, order))
        reader.close()
        check_same(found, [expected[index] for index in order])

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_an_open_reader_does_not_disturb_those_of_child_processes(
        self, container: Container, vectors: Schema, method: str, tmp_path: Path
    ) -> None:
        expected = samples(vectors, 20)
        path = container.write(tmp_path / "shard", vectors, expected)
        sums = [crc32c(sample, vectors) for sample in reversed(expected)]
        script = tmp_path / "child.py"
        script.write_text(_CHILD.format(types=vectors.types(), name=container.name, path=str(path), sums=sums))
        reader = container.module.Reader(path, vectors)
        context = multiprocessing.get_context(method)
        children = [context.Process(target=runpy.run_path, args=(str(script),)) for _ in "ab"]  # type: ignore[attr-defined]
        for child in children:
            child.start()
        found = [reader.read(index) for index in range(20)]
        for child in children:
            child.join()
        reader.close()
        assert [child.exitcode for child in children] == [0, 0]
        check_same(found, expected)

    def test_files_hold_what_passed_through_open_file_only(self, container: Container, tmp_path: Path) -> None:
        opened: list[WatchedFile] = []

        def open_watched(path: Path) -> WatchedFile:
            opened.append(WatchedFile(path))
            return opened[-1]

        writer = container.module.Writer(tmp_path / "shard", IMAGE_CLASSIFICATION, open_watched)
        for sample in samples(IMAGE_CLASSIFICATION, 9):
            writer.write(sample)
        writer.close()
        assert all(file.path.read_bytes() == file.passed for file in opened)

    def test_a_full_disk_is_raised_and_all_files_are_closed(self, container: Container, tmp_path: Path) -> None:
        opened: list[WatchedFile] = []

        def open_full(path: Path) -> WatchedFile:
            opened.append(WatchedFile(path, room=1000))
            return opened[-1]

        writer = container.module.Writer(tmp_path / "shard", IMAGE_CLASSIFICATION, open_full)
        if not opened:
            writer.close()
            pytest.skip(f"{container.name} opens its file itself")
        with pytest.raises(StorageError, match="no space"):
            for sample in labelled(["a", "b", "c"] * 50):
                writer.write(sample)
        with suppress(StorageError):
            writer.close()
        assert [file.closed for file in opened] == [True] * len(opened)
