"""Images of mksquashfs, adopted in place and packed as a source; hostile ones."""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import closing
from pathlib import Path

import pytest

import dlio
from dlio import native
from dlio.dataset.schema import IMAGE_CLASSIFICATION
from dlio.errors import CorruptRecordError, SchemaError, SourceError, UsageError
from dlio.formats import squashfs
from dlio.formats.layouts.squashfs.metadata import Table
from dlio.pack.index import index
from dlio.testing.images import image, make_image_folder
from tests.helpers.adopted import adopt, batch
from tests.helpers.packing import samples
from tests.helpers.squashfs import needs, squash

pytestmark = needs("mksquashfs")
WAYS = {
    "default": (),
    "zstd": ("-comp", "zstd"),
    "xz": ("-comp", "xz"),
    "lz4": ("-comp", "lz4"),
    "stored": ("-noI", "-noD", "-noF", "-noX", "-no-fragments", "-no-sparse", "-no-duplicates"),
    "fragments": ("-always-use-fragments", "-b", "1M"),
    "small blocks": ("-b", "4096", "-no-exports"),
    "no duplicates": ("-no-duplicates", "-no-xattrs"),
}
PACKAGES = {"zstd": "zstandard", "lz4": "lz4"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of photos of two classes: small, large, compressible, equal, of zeros, a hard link."""
    root = tmp_path_factory.mktemp("photos")
    make_image_folder(root, {"cat": 20, "dog": 10}, "JPEG")
    large = image(1, "BMP", width=500, height=300)
    for name, data in (("cat/large.bmp", large), ("dog/same.bmp", large), ("dog/zeros.png", bytes(300_000))):
        (root / name).write_bytes(data)
    os.link(root / "cat/0001.jpg", root / "dog/linked.jpg")
    return root


def by_name(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("way", WAYS)
def test_every_file_and_class_of_an_image_is_read(way, photos, tmp_path):
    pytest.importorskip(PACKAGES.get(way, "dlio"))
    squash(photos, tmp_path / "photos.squashfs", *WAYS[way])
    reader = squashfs.Reader(tmp_path / "photos.squashfs", IMAGE_CLASSIFICATION)
    found = [reader.read(number) for number in range(len(reader))]
    offsets = [reader.locate(number)[1] for number in range(len(reader))]
    reader.close()
    assert {sample.key: sample.fields["image"] for sample in found} == by_name(photos)
    assert {sample.key: sample.fields["label"] for sample in found} == {n: n[0] == "d" for n in by_name(photos)}
    assert way != "stored" or offsets == sorted(offsets)


@pytest.mark.parametrize("way", ["default", "stored"])
def test_an_image_becomes_a_data_set_in_place(way, tmp_path):
    content = make_image_folder(tmp_path / "photos", {"cat": 6, "dog": 3}, "JPEG")
    (tmp_path / "set").mkdir()
    squash(tmp_path / "photos", tmp_path / "set" / "photos.sqsh", *WAYS[way])
    manifest, found = adopt(tmp_path / "set", "squashfs")
    assert manifest.class_names == ("cat", "dog")
    assert sorted((key, fields["image"]) for key, fields in found) == sorted(content.items())
    assert len(batch(tmp_path / "set", [0, 8])["image"]) == 2


def test_classes_are_those_of_all_images_together(tmp_path):
    for name, counts in (("a", {"cat": 2, "eel": 1}), ("b", {"dog": 2})):
        make_image_folder(tmp_path / name / "deep", counts, "JPEG")
    (tmp_path / "set").mkdir()
    for name in "ab":
        squash(tmp_path / name, tmp_path / "set" / f"part-{name}.sqsh")
    manifest, found = adopt(tmp_path / "set", "squashfs", match="part-*")
    assert manifest.class_names == ("cat", "dog", "eel")
    assert {(key.split("/")[1], fields["label"]) for key, fields in found} == {("cat", 0), ("dog", 1), ("eel", 2)}


def test_dlios_own_image_keeps_its_schema_without_its_manifest(tmp_path):
    make_image_folder(tmp_path / "photos", {"cat": 3, "dog": 2})
    dlio.pack(tmp_path / "photos", tmp_path / "out", format="squashfs", engine="serial", label_offset=1, shuffle=1)
    expected = samples(tmp_path / "out")
    (tmp_path / "alone").mkdir()
    (tmp_path / "out" / "shard-000000.sqsh").rename(tmp_path / "alone" / "any.sqsh")
    manifest, found = adopt(tmp_path / "alone", "squashfs")
    assert found == expected
    assert (manifest.class_names, manifest.schema.label_offset) == (("cat", "dog"), 1)


def test_images_without_class_folders_have_no_labels(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "1.jpg").write_bytes(image(1, "JPEG"))
    (tmp_path / "set").mkdir()
    squash(tmp_path / "photos", tmp_path / "set" / "photos.sqsh")
    manifest, _ = adopt(tmp_path / "set", "squashfs")
    assert manifest.schema.types() == {"image": "bytes"}


def test_what_is_no_file_is_left_out_and_named(photos, tmp_path, caplog):
    folder = tmp_path / "photos"
    make_image_folder(folder, {"cat": 2}, "JPEG")
    (folder / "cat" / "link.jpg").symlink_to("0001.jpg")
    (folder / "notes.txt").write_text("notes")
    os.mkfifo(folder / "cat" / "fifo.jpg")
    (tmp_path / "set").mkdir()
    squash(folder, tmp_path / "set" / "photos.sqsh", "-no-xattrs")
    index(tmp_path / "set", format="squashfs", workers=1)
    assert "left out: 1 files of other kinds, 1 fifos, 1 symbolic links" in caplog.text
    assert len(samples(tmp_path / "set")) == 2


@pytest.mark.parametrize("way", ["default", "stored"])
def test_an_image_is_packed_as_its_folder_is(way, tmp_path):
    make_image_folder(tmp_path / "photos", {"cat": 6, "dog": 3}, "JPEG")
    squash(tmp_path / "photos", tmp_path / "photos.squashfs", *WAYS[way])
    for source, out in (("photos.squashfs", "a"), ("photos", "b")):
        dlio.pack(tmp_path / source, tmp_path / out, engine="serial")
    assert samples(tmp_path / "a") == samples(tmp_path / "b")


def test_a_split_is_chosen_by_root(tmp_path):
    make_image_folder(tmp_path / "photos" / "train", {"cat": 2, "dog": 1}, "JPEG")
    make_image_folder(tmp_path / "photos" / "val", {"cat": 1, "dog": 1}, "JPEG")
    (tmp_path / "set").mkdir()
    path = squash(tmp_path / "photos", tmp_path / "set" / "photos.sqsh")
    with pytest.raises(UsageError, match=r"train, val.*dlio pack .*root=train"):
        index(tmp_path / "set", format="squashfs", workers=1)
    dlio.pack(dlio.sources.archive(path, root="train"), tmp_path / "out", engine="serial")
    assert [key for key, _ in samples(tmp_path / "out")] == ["cat/0000.jpg", "cat/0001.jpg", "dog/0000.jpg"]


def test_a_shard_of_dlios_is_not_packed_as_a_folder(tmp_path):
    make_image_folder(tmp_path / "photos", {"cat": 2})
    dlio.pack(tmp_path / "photos", tmp_path / "out", format="squashfs", engine="serial")
    (tmp_path / "out" / "shard-000000.sqsh").rename(tmp_path / "alone.sqsh")
    with pytest.raises(SourceError, match="is a shard of dlio's"):
        dlio.pack(tmp_path / "alone.sqsh", tmp_path / "again", engine="serial")


@pytest.mark.parametrize("number", [2, 3, 9])
def test_other_compressors_are_refused_by_name(number, photos, tmp_path):
    path = squash(photos, tmp_path / "photos.sqsh")
    data = bytearray(path.read_bytes())
    struct.pack_into("<H", data, 20, number)
    path.write_bytes(data)
    name = {2: "lzma", 3: "lzo", 9: "number 9"}[number]
    advice = "which dlio does not read: create it again with mksquashfs -comp zstd$"
    with pytest.raises(CorruptRecordError, match=rf"photos\.sqsh: it is compressed by {name}, {advice}"):
        squashfs.Reader(path, IMAGE_CLASSIFICATION)


def test_an_image_without_images_is_refused(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a")
    (tmp_path / "set").mkdir()
    squash(tmp_path / "texts", tmp_path / "set" / "texts.sqsh")
    with pytest.raises(SchemaError, match="holds no images"):
        index(tmp_path / "set", format="squashfs", workers=1)


@pytest.fixture
def stored(photos, tmp_path) -> tuple[Path, bytearray]:
    """An image whose tables can be changed in place, and its bytes."""
    path = squash(photos, tmp_path / "photos.sqsh", *WAYS["stored"])
    return path, bytearray(path.read_bytes())


def inode_at(data: bytearray, kind: int) -> int:
    """Returns where the first inode of a type is; those of basic files have 32 bytes and their words."""
    at, end = struct.unpack_from("<QQ", data, 64)
    at += 2
    while at < end:
        (found,) = struct.unpack_from("<H", data, at)
        if found == kind:
            return at
        (size,) = struct.unpack_from("<I", data, at + (28 if found == 2 else 24))
        at += {1: 32, 2: 32 + 4 * -(-size // 131072), 9: 56 + 4 * -(-size // 131072)}[found]
    raise AssertionError(f"no inode of type {kind}")


@pytest.mark.parametrize(
    ("kind", "at", "value", "problem"),
    [
        (2, 16, 0xFFFFFF00, "has data outside"),
        (2, 20, 7, "has data outside"),
        (2, 28, 0xFFFFFFFF, "is not that of a file|is far larger"),
        (2, 32, 1 << 26, "has data outside"),
        (1, 16, 0xFFFF, "points outside its table"),
        (1, 24, 0x1FFFFFFF, "points outside"),
    ],
)
def test_a_hostile_inode_is_named(kind, at, value, problem, stored):
    path, data = stored
    inode = inode_at(data, kind)
    struct.pack_into("<I", data, inode + at, value)
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match=rf"photos\.sqsh: inode [0-9]+.*({problem})"):
        squashfs.Reader(path, IMAGE_CLASSIFICATION)


def test_a_folder_within_itself_is_refused(stored):
    path, data = stored
    root = struct.unpack_from("<Q", data, 32)[0]
    folder = inode_at(data, 1)
    inodes, directories = struct.unpack_from("<QQ", data, 64)
    entry = data.index(b"cat", directories) - 8
    struct.pack_into("<H", data, entry, (root & 0xFFFF))
    assert folder != inodes + 2 + (root & 0xFFFF)
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match="this folder has two places"):
        squashfs.Reader(path, IMAGE_CLASSIFICATION)


@pytest.mark.parametrize("name", [b"../", b"a/b", b"a\0b"])
def test_a_name_that_no_file_can_have_is_refused(name, stored):
    path, data = stored
    at = data.index(b"cat", struct.unpack_from("<Q", data, 72)[0])
    data[at : at + 3] = name
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match=r"the name b'.*', which no file can have"):
        squashfs.Reader(path, IMAGE_CLASSIFICATION)


def test_a_sparse_bomb_is_refused(tmp_path):
    (tmp_path / "bomb" / "cat").mkdir(parents=True)
    with (tmp_path / "bomb" / "cat" / "1.jpg").open("wb") as file:
        file.truncate(65 << 20)
    path = squash(tmp_path / "bomb", tmp_path / "bomb.sqsh")
    with pytest.raises(CorruptRecordError, match=r"inode [0-9] is far larger than its bytes"):
        squashfs.Reader(path, IMAGE_CLASSIFICATION)


def test_tables_that_unpack_to_more_than_an_image_has_are_refused():
    block = zlib.compress(bytes(8192), 9)
    data = (struct.pack("<H", len(block)) + block) * 12_000
    with pytest.raises(ValueError, match="its tables take more than"):
        Table.parse(data, lambda data, limit: zlib.decompress(data), len(data))


@pytest.fixture(params=["zlib", "libdeflate"])
def inflating(request, monkeypatch):
    """Decompresses by the standard library, or by the core."""
    if request.param == "libdeflate" and not native.decodes_png:
        pytest.skip("the core was built without libdeflate")
    monkeypatch.setattr(native, "decodes_png", request.param == "libdeflate")


def test_compressed_files_are_read_by_zlib_and_libdeflate(inflating, photos, tmp_path):
    path = squash(photos, tmp_path / "photos.sqsh")
    with closing(squashfs.Reader(path, IMAGE_CLASSIFICATION)) as reader:
        found = {sample.key: sample.fields["image"] for sample in map(reader.read, range(len(reader)))}
    assert found == by_name(photos)


def test_a_block_that_unpacks_to_too_much_is_refused(inflating, tmp_path):
    make_image_folder(tmp_path / "photos", {"cat": 1}, "BMP", width=400, height=200)
    path = squash(tmp_path / "photos", tmp_path / "photos.sqsh", "-no-fragments")
    data = path.read_bytes()
    bomb = zlib.compress(bytes(1 << 20), 9)
    path.write_bytes(data[:96] + bomb + data[96 + len(bomb) :])
    reader = squashfs.Reader(path, IMAGE_CLASSIFICATION)
    with pytest.raises(CorruptRecordError, match=r"inode 2: a block is damaged, cut off, or larger") as raised:
        reader.read(0)
    reader.close()
    assert raised.value.record == 0


@pytest.mark.parametrize("size", [0, 50, 96, 4000])
def test_an_image_that_is_cut_off_is_an_error(size, photos, tmp_path):
    path = squash(photos, tmp_path / "photos.sqsh")
    os.truncate(path, size)
    with pytest.raises(CorruptRecordError, match=r"cut off|does not begin"):
        squashfs.Reader(path, IMAGE_CLASSIFICATION)
