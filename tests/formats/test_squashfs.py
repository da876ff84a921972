"""SquashFS images against squashfs-tools, squashfuse and the kernel; keys, hidden files, golden bytes."""

from __future__ import annotations

import csv
import io
import json
import os
import struct
import subprocess
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import dlio
from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample, Schema
from dlio.errors import CorruptRecordError, SchemaError, SourceError
from dlio.formats import squashfs
from dlio.formats.layouts.squashfs.blocks import Image
from dlio.formats.layouts.squashfs.tables import image_tables
from dlio.io.random_access import RandomAccessFile
from dlio.testing.container import Container, content
from dlio.testing.images import make_image_folder
from dlio.testing.samples import SCHEMAS, samples
from tests.helpers.squashfs import loop_mount, needs, squashfuse, unsquashed

CONTAINER = Container("squashfs")
JPEG = b"\xff\xd8\xff"


def labelled(keys, sizes=None):
    sizes = sizes or [9] * len(keys)
    return [
        Sample(key, {"image": JPEG + bytes(size), "label": n})
        for n, (key, size) in enumerate(zip(keys, sizes, strict=True))
    ]


def write(folder: Path, records, schema=IMAGE_CLASSIFICATION) -> Path:
    return CONTAINER.write(folder / "shard", schema, records)


KEYS = [f"class {number % 3}/{number:05}.jpg" for number in np.random.default_rng(0).permutation(1500).tolist()]
KEYS += ["é/猫🙂.jpg", "deep/" * 40 + "x.png", "n" * 251 + ".jpg", "with\nline '\".jpg"]
SIZES = [number % 700 for number in range(len(KEYS))]
SIZES[5:8] = [131072 - 3, 131073, 400_000]  # a whole block, one byte more, several


def hidden_files(path: Path) -> dict[str, bytes]:
    with closing(RandomAccessFile(path)) as file:
        image = Image(file)
        names = {image.files.path(number).decode(): number for number in range(len(image.files))}
        return {name: image.read(number, None) for name, number in names.items() if name.startswith(".dlio-")}


def expected_files(records):
    return {record.key: record.fields["image"] for record in records}


def visible(folder: Path):
    return {name: data for name, data in content(folder).items() if not name.startswith(".dlio-")}


@needs("unsquashfs")
def test_unsquashfs_gives_every_name_and_byte(tmp_path):
    records = labelled(KEYS, SIZES)
    out = unsquashed(write(tmp_path, records), tmp_path / "out")
    assert visible(out) == expected_files(records)


@needs("squashfuse_ll", "fusermount3", "/dev/fuse")
def test_squashfuse_gives_every_name_and_byte(tmp_path):
    records = labelled(KEYS, SIZES)
    with squashfuse(write(tmp_path, records), tmp_path / "mount") as folder:
        assert visible(folder) == expected_files(records)


@pytest.mark.skipif(os.geteuid() != 0, reason="a loop mount needs root")
def test_the_kernel_gives_every_name_and_byte(tmp_path):
    records = labelled(KEYS, SIZES)
    with loop_mount(write(tmp_path, records), tmp_path / "mount") as folder:
        assert visible(folder) == expected_files(records)
        assert [(folder / key).stat().st_ino for key in KEYS[:50]] == list(range(1, 51))
        status = (folder / KEYS[0]).stat()
        assert (status.st_ino, status.st_mtime, status.st_uid, status.st_mode) == (1, 0, 0, 0o100444)


@needs("mksquashfs", "unsquashfs")
def test_mksquashfs_appends_to_an_image(tmp_path):
    records = labelled(KEYS[:100])
    path = write(tmp_path, records)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "extra.txt").write_bytes(b"more")
    command = ["mksquashfs", tmp_path / "more", path, "-noI", "-noD", "-noF", "-no-progress", "-quiet"]
    subprocess.run(command, check=True, capture_output=True)
    assert visible(unsquashed(path, tmp_path / "out")) == expected_files(records) | {"extra.txt": b"more"}


@needs("unsquashfs")
def test_files_beyond_4_gib_are_found(tmp_path):
    sizes = np.array([5, (4 << 30) + 10, 7, 0])
    starts = 96 + np.cumsum(sizes) - sizes
    path = tmp_path / "large.sqsh"
    end = 96 + int(sizes.sum())
    superblock, tail = image_tables([b"a/1", b"a/2", b"a/3", b"b"], starts, sizes, end)
    with path.open("wb") as file:  # sparse
        file.write(superblock + b"first")
        file.seek(end - 7)
        file.writelines([b"last 12", *tail])
    done = subprocess.run(["unsquashfs", "-cat", path, "a/3"], capture_output=True, check=True)
    assert done.stdout == b"last 12"
    with closing(RandomAccessFile(path)) as file:
        files = Image(file).files
    assert files.is_stored.all()
    found = {files.path(n).decode(): (files.start[n], files.size[n]) for n in range(4)}
    assert found == dict(zip(["a/1", "a/2", "a/3", "b"], zip(starts, sizes, strict=True), strict=True))


def test_an_image_has_the_bytes_that_the_format_gives(tmp_path):
    data = write(tmp_path, labelled(["b/2.jpg", "a.jpg"])).read_bytes()
    numbers = struct.unpack_from("<4s4I6H8Q", data)
    magic, inodes, made, block, fragments, compressor, log, flags, ids, major, minor = numbers[:11]
    assert (magic, inodes, made, block, fragments) == (b"hsqs", 7, 0, 131072, 0)
    assert (compressor, log, flags, ids, major, minor) == (1, 17, 0xA9B, 1, 4, 0)
    _, used, id_list, xattrs, inode_table, directories, fragment_list, _ = numbers[11:]
    assert (xattrs, fragment_list) == (2**64 - 1, 2**64 - 1)
    assert data[96:120] == (JPEG + bytes(9)) * 2
    assert used == id_list + 8
    assert len(data) % 4096 == 0
    assert not any(data[used:])
    header = struct.unpack_from("<H", data, inode_table)[0]
    assert header == 0x8000 | directories - inode_table - 2
    first = struct.unpack_from("<4H6I I", data, inode_table + 2)
    assert first == (2, 0o444, 0, 0, 0, 1, 96, 0xFFFFFFFF, 0, 12, 12 | 1 << 24)
    listing = data[directories + 2 : directories + 2 + 12 + 8 + 5]
    assert listing == struct.pack("<3I HhHH", 0, 0, 1, 0, 0, 2, 4) + b"2.jpg"  # of the folder b


def test_an_image_describes_itself(tmp_path):
    make_image_folder(tmp_path / "photos", {"cat": 3, "dog": 2})
    dlio.pack(tmp_path / "photos", tmp_path / "out", format="squashfs", engine="serial")
    table = (tmp_path / "out" / "shard-000000.samples.npz").read_bytes()
    hidden = hidden_files(tmp_path / "out" / "shard-000000.sqsh")
    stem = ".dlio-shard-000000"
    assert hidden[f"{stem}.samples.npz"] == table
    rows = list(csv.DictReader(io.StringIO(hidden[f"{stem}.labels.csv"].decode())))
    assert [(row["path"], row["label"]) for row in rows][2:4] == [("cat/0002.png", "0"), ("dog/0000.png", "1")]
    description = json.loads(hidden[f"{stem}.json"])
    assert description["class_names"] == ["cat", "dog"]
    assert np.load(io.BytesIO(hidden[f"{stem}.label.npy"])).tolist() == [0, 0, 0, 1, 1]
    assert not any("/" in name for name in hidden)  # a folder would be a class of ImageFolder


@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_workers_gives_the_same_bytes(workers, tmp_path):
    make_image_folder(tmp_path / "photos", {"cat": 30, "dog": 20})
    options = {"format": "squashfs", "num_shards": 4, "shuffle": 3}
    dlio.pack(tmp_path / "photos", tmp_path / "one", engine="serial", **options)
    dlio.pack(tmp_path / "photos", tmp_path / "other", workers=workers, **options)
    images = [{n: d for n, d in content(tmp_path / each).items() if "shard" in n} for each in ("one", "other")]
    assert images[0] == images[1]


@needs("unsquashfs")
def test_class_folders_give_the_samples_and_labels_of_the_source(tmp_path):
    make_image_folder(tmp_path / "photos", {"cat": 3, "dog": 2})
    dlio.pack(tmp_path / "photos", tmp_path / "out", format="squashfs", engine="serial")
    out = unsquashed(tmp_path / "out" / "shard-000000.sqsh", tmp_path / "tree")
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["cat", "dog"]
    again, first = (dlio.sources.image_folder(path).listing() for path in (out, tmp_path / "photos"))
    assert list(again.keys) == list(first.keys)
    assert again.columns["label"].tolist() == first.columns["label"].tolist()


@needs("unsquashfs")
def test_other_fields_lie_next_to_the_image(tmp_path):
    schema = Schema.of({"image": "bytes", "mask": "bytes", "caption": "str", "box": "int32[4]"})
    box = np.arange(4, dtype="int32")
    sample = Sample("a/1.jpg", {"image": JPEG, "mask": b"\x89PNG\r\n\x1a\n", "caption": "é", "box": box})
    path = write(tmp_path, [schema.check(sample)], schema)
    names = sorted(visible(unsquashed(path, tmp_path / "out")))
    assert names == ["a/1.jpg", "a/1.jpg.caption.txt", "a/1.jpg.mask.png"]
    assert CONTAINER.read(path, schema)[0].key == "a/1.jpg"


def test_a_key_without_extension_gets_that_of_its_content(tmp_path):
    found = CONTAINER.read(write(tmp_path, labelled(["a", "./b.png", "c//d.jpg"])), IMAGE_CLASSIFICATION)
    assert [sample.key for sample in found] == ["a.jpg", "b.png", "c/d.jpg"]


def test_a_taken_path_gets_the_number_of_its_record(tmp_path):
    found = CONTAINER.read(write(tmp_path, labelled(["a.jpg", "b", "a", "a/x.jpg"])), IMAGE_CLASSIFICATION)
    assert [sample.key for sample in found] == ["a.jpg", "b.jpg", "a-00000002.jpg", "a/x.jpg"]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("n" * 253 + ".jpg", "a name in it has 257 bytes"),
        ("../1.jpg", "not a path below a folder"),
        ("b.jpg/1.jpg", "its folder 'b.jpg' is the file of another sample"),
        (".dlio-x.jpg", "dlio's own"),
    ],
)
def test_keys_that_cannot_be_paths_are_refused_at_the_plan(key, reason, tmp_path):
    make_image_folder(tmp_path, {"photos": 2})
    (tmp_path / "list.csv").write_text(f"path,label\nb.jpg,0\n{key},1\n")
    with pytest.raises(SourceError, match=f"{key[:30]}.*squashfs cannot hold this key.*{reason}"):
        dlio.pack(tmp_path / "list.csv", tmp_path / "out", format="squashfs", engine="serial")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_a_file_is_refused_by_the_writer(tmp_path):
    writer = squashfs.Writer(tmp_path / "shard", IMAGE_CLASSIFICATION)
    first, second = labelled(["a.jpg", "a.jpg/b.jpg"])
    writer.write(first)
    with pytest.raises(SchemaError, match=r"'a.jpg/b.jpg'.*its folder 'a.jpg' is the file"):
        writer.write(second)
    writer.close()
    assert len(CONTAINER.read(tmp_path / "shard.sqsh", IMAGE_CLASSIFICATION)) == 1


def test_fields_that_differ_in_case_are_refused():
    assert "'a' and 'A'" in squashfs.refuses(Schema.of({"a": "bytes", "A": "bytes"}))


def test_values_are_found_without_reading_records(tmp_path):
    for name in ("several files", "raw images", "one label", "label first"):
        schema = Schema.of(SCHEMAS[name])
        records = samples(schema, 20)
        reader = squashfs.Reader(write(tmp_path, records, schema), schema)
        field = next(name for name in ("mask", "image") if name in schema)
        size = schema[field].fixed_bytes if schema[field].is_fixed else None
        sizes = np.array([size or len(record.fields[field]) for record in records])
        spans = reader.spans(field, sizes)
        for record, start, gap, length in zip(records, spans.starts, spans.gaps, sizes, strict=True):
            value = record.fields[field]
            expected = value if isinstance(value, bytes) else value.tobytes()
            assert spans.file.read(int(start + gap), int(length)) == expected
        reader.close()
        (tmp_path / "shard.sqsh").unlink()


@pytest.mark.parametrize("at", [0, 12, 28, 32, 48, 64, 72])
def test_a_wrong_superblock_is_named(at, tmp_path):
    path = write(tmp_path, labelled(["a.jpg", "b.jpg"]))
    data = bytearray(path.read_bytes())
    data[at] ^= 0x55
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match=r"shard\.sqsh"):
        CONTAINER.read(path, IMAGE_CLASSIFICATION)


def test_an_unfinished_image_is_named(tmp_path):
    writer = squashfs.Writer(tmp_path / "shard", IMAGE_CLASSIFICATION)
    writer.write(labelled(["a.jpg"])[0])
    writer._file.flush()
    with pytest.raises(CorruptRecordError, match="incomplete"):
        squashfs.Reader(tmp_path / "shard.sqsh", IMAGE_CLASSIFICATION)
    writer.close()
