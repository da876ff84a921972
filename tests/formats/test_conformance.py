"""What every container promises; formats are found by name, so a new one is held to all of this."""

from __future__ import annotations

import multiprocessing
import random
import runpy
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dlio import formats
from dlio.dataset.checksum import crc32c
from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample, Schema
from dlio.errors import SchemaError, StorageError

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


def _labelled(keys: list[str]) -> list[Sample]:
    return [Sample(key, {"image": b"\xff\xd8\xff%d" % number, "label": number}) for number, key in enumerate(keys)]


def test_round_trip(each_container, each_schema, make, tmp_path):
    if each_container.module.refuses(each_schema) is not None:
        pytest.skip("refused: see test_a_refusal_names_field_and_formats")
    expected = make.samples(each_schema, 14)
    path = each_container.write(tmp_path / "shard", each_schema, expected)
    found = each_container.read(path, each_schema)
    assert [make.same(*pair) for pair in zip(found, expected, strict=True)] == [True] * 14
    assert [crc32c(a, each_schema) for a in found] == [crc32c(b, each_schema) for b in expected]


def test_a_refusal_names_field_and_formats(each_container, each_schema):
    reason = each_container.module.refuses(each_schema)
    if reason is None:
        assert formats.require(each_container.name, each_schema) is each_container.module
        return
    with pytest.raises(SchemaError) as raised:
        formats.require(each_container.name, each_schema)
    able = [name for name in formats.names() if formats.load(name).refuses(each_schema) is None]
    assert able, "a schema that no format can hold"
    assert each_container.name in str(raised.value)
    assert any(repr(name) in str(raised.value) for name in each_schema)
    assert all(name in str(raised.value).rpartition("formats that can")[2] for name in able)


def test_equal_samples_give_equal_bytes(each_container, each_schema, make, tmp_path):
    if each_container.module.refuses(each_schema) is not None:
        pytest.skip("refused")
    contents = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        each_container.write(tmp_path / name / "shard", each_schema, make.samples(each_schema, 9))
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        contents.append({str(path.relative_to(tmp_path / name)): path.read_bytes() for path in files})
    assert contents[0] == contents[1]


def test_empty_shard(each_container, each_schema, tmp_path):
    if each_container.module.refuses(each_schema) is not None:
        pytest.skip("refused")
    path = each_container.write(tmp_path / "shard", each_schema, [])
    reader = each_container.module.Reader(path, each_schema)
    assert len(reader) == 0
    reader.close()


def test_empty_image(each_container, tmp_path):
    samples = [Sample(key, {"image": b"", "label": 0}) for key in "abc"]
    path = each_container.write(tmp_path / "shard", IMAGE_CLASSIFICATION, samples)
    assert [found.fields for found in each_container.read(path, IMAGE_CLASSIFICATION)] == [samples[0].fields] * 3


def test_100_megabytes_in_one_sample(each_container, tmp_path):
    image = np.random.default_rng(3).bytes(100_000_001)
    samples = [Sample("small", {"image": b"a", "label": 1}), Sample("large", {"image": image, "label": 2})]
    path = each_container.write(tmp_path / "shard", IMAGE_CLASSIFICATION, [*samples, samples[0]])
    small, large, last = each_container.read(path, IMAGE_CLASSIFICATION)
    assert small.fields == last.fields == samples[0].fields
    assert large.fields["label"] == 2
    assert large.fields["image"] == image


def test_any_key_stays_readable_in_order(each_container, tmp_path):
    samples = _labelled(KEYS)
    path = each_container.write(tmp_path / "shard", IMAGE_CLASSIFICATION, samples)
    found = each_container.read(path, IMAGE_CLASSIFICATION)
    assert [sample.fields for sample in found] == [sample.fields for sample in samples]
    short = [sample.key for sample, key in zip(found, KEYS, strict=True) if len(key.encode()) < 400]
    assert len(set(short)) == len(short)


@pytest.mark.parametrize("label", [2**24, -(2**24), 2**24 + 1, 2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, -(2**63)])
def test_a_label_comes_back_exactly_or_is_refused(each_container, label, tmp_path):
    samples = _labelled(["a", "b"])
    writer = each_container.module.Writer(tmp_path / "shard", IMAGE_CLASSIFICATION)
    writer.write(samples[0])
    large = Sample("key of it", {"image": b"x", "label": label})
    expected = [samples[0], large, samples[1]]
    try:
        writer.write(large)
    except SchemaError as error:
        assert all(part in str(error) for part in ("'key of it'", "'label'", str(label)))
        assert any(name in str(error) for name in formats.names() if name != each_container.name)
        expected.remove(large)
    writer.write(samples[1])
    writer.close()
    found = each_container.read(each_container.path(tmp_path / "shard"), IMAGE_CLASSIFICATION)
    assert [sample.fields for sample in found] == [sample.fields for sample in expected]


def test_a_writer_dropped_half_way_leaves_what_was_written(each_container, make, tmp_path):
    schema = Schema.of({"image": "bytes", "label": "float32[14]"})
    samples = make.samples(schema, 10)
    writer = each_container.module.Writer(tmp_path / "shard", schema)
    for sample in samples[:4]:
        writer.write(sample)
    writer.close()
    writer.close()
    found = each_container.read(each_container.path(tmp_path / "shard"), schema)
    assert [make.same(*pair) for pair in zip(found, samples[:4], strict=True)] == [True] * 4


@pytest.mark.parametrize("stem", ODD_STEMS)
def test_odd_paths(each_container, stem, tmp_path):
    folder = tmp_path / f"in {stem}"
    folder.mkdir()
    samples = _labelled(["a", "b"])
    path = each_container.write(folder / stem, IMAGE_CLASSIFICATION, samples)
    found = each_container.read(path, IMAGE_CLASSIFICATION)
    assert [sample.fields for sample in found] == [sample.fields for sample in samples]
    assert all(entry.name.startswith(stem) for entry in folder.iterdir())


def test_locate_gives_the_file_and_ascending_offsets(each_container, tmp_path):
    path = each_container.write(tmp_path / "shard", IMAGE_CLASSIFICATION, _labelled(KEYS))
    reader = each_container.module.Reader(path, IMAGE_CLASSIFICATION)
    places = [reader.locate(index) for index in range(len(reader))]
    reader.close()
    assert {file.is_file() and file.is_relative_to(path) for file, _ in places} == {True}
    offsets = [offset for _, offset in places if offset is not None]
    assert len(offsets) in (0, len(KEYS))
    assert all(0 <= offset < places[0][0].stat().st_size for offset in offsets)
    assert len(set(offsets)) == len(offsets)


def test_a_missing_shard_is_a_storage_error(each_container, tmp_path):
    path = each_container.path(tmp_path / "absent")
    with pytest.raises(StorageError, match="absent"):
        each_container.module.Reader(path, IMAGE_CLASSIFICATION)


def test_close_twice_and_no_descriptor_left(each_container, tmp_path):
    path = each_container.write(tmp_path / "shard", IMAGE_CLASSIFICATION, _labelled(["a", "b"]))
    first = each_container.module.Reader(path, IMAGE_CLASSIFICATION)
    second = each_container.module.Reader(path, IMAGE_CLASSIFICATION)
    first.close()
    first.close()
    assert second.read(1).fields["label"] == 1
    second.close()
    links = [entry.readlink() for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    assert not [link for link in links if link.is_relative_to(tmp_path)]


def test_many_threads_read_at_once(each_container, make, tmp_path):
    schema = Schema.of({"image": "bytes", "label": "float32[14]"})
    samples = make.samples(schema, 200)
    path = each_container.write(tmp_path / "shard", schema, samples)
    reader = each_container.module.Reader(path, schema)
    order = [index for index in range(200) for _ in range(10)]
    random.Random(7).shuffle(order)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(reader.read, order))
    reader.close()
    assert all(make.same(sample, samples[index]) for sample, index in zip(found, order, strict=True))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_readers_in_other_processes(each_container, method, make, tmp_path):
    """A reader that is open here does not disturb those that child processes open."""
    schema = Schema.of({"image": "bytes", "label": "float32[14]"})
    samples = make.samples(schema, 20)
    path = each_container.write(tmp_path / "shard", schema, samples)
    script = tmp_path / "child.py"
    script.write_text(
        textwrap.dedent(f"""
        from pathlib import Path
        from dlio import formats
        from dlio.dataset.schema import Schema
        from dlio.dataset.checksum import crc32c
        schema = Schema.of({schema.types()!r})
        reader = formats.load({each_container.name!r}).Reader(Path({str(path)!r}), schema)
        sums = [crc32c(reader.read(index), schema) for index in reversed(range(len(reader)))]
        reader.close()
        assert sums == {[crc32c(sample, schema) for sample in reversed(samples)]!r}
        """)
    )
    reader = each_container.module.Reader(path, schema)
    children = [multiprocessing.get_context(method).Process(target=runpy.run_path, args=(str(script),)) for _ in "ab"]
    for child in children:
        child.start()
    found = [reader.read(index) for index in range(20)]
    for child in children:
        child.join()
    reader.close()
    assert [child.exitcode for child in children] == [0, 0]
    assert all(make.same(*pair) for pair in zip(found, samples, strict=True))


class Passing(SimpleNamespace):
    """A file behind which stands the plain one `file`; `write` is what the tests change."""

    def writelines(self, parts, /):
        for part in parts:
            self.write(part)

    def tell(self):
        return self.file.tell()

    def close(self):
        self.file.close()


def test_a_watched_file_gets_every_byte(each_container, make, tmp_path):
    """Files written through `open_file` hold what passed through it, and nothing else is written to them."""
    passed: dict[Path, bytearray] = {}

    class Watched(Passing):
        def write(self, data, /):
            passed[self.path] += data
            return self.file.write(data)

    def open_watched(path):
        passed[path] = bytearray()
        return Watched(path=path, file=formats.open_plain(path))

    writer = each_container.module.Writer(tmp_path / "shard", IMAGE_CLASSIFICATION, open_watched)
    for sample in make.samples(IMAGE_CLASSIFICATION, 9):
        writer.write(sample)
    writer.close()
    assert all(path.read_bytes() == content for path, content in passed.items())


def test_a_full_disk_is_raised_and_both_files_are_closed(each_container, tmp_path):
    """A file that refuses every byte from some point on is closed all the same, and so is the one beside it."""
    opened = []

    class Full(Passing):
        def write(self, data, /):
            if self.room < len(data):
                raise StorageError(28, f"cannot write {self.path}: no space")
            self.room -= len(data)
            return self.file.write(data)

    def open_full(path):
        opened.append(Full(path=path, file=formats.open_plain(path), room=1000))
        return opened[-1]

    writer = each_container.module.Writer(tmp_path / "shard", IMAGE_CLASSIFICATION, open_full)
    if not opened:
        writer.close()
        pytest.skip(f"{each_container.name} opens its file itself")
    with pytest.raises(StorageError, match="no space"):
        for sample in _labelled(["a", "b", "c"] * 50):
            writer.write(sample)
    with suppress(StorageError):
        writer.close()
    assert [file.file.closed for file in opened] == [True] * len(opened)
