"""Tar and zip archives, read in place: whole, cut off, and hostile."""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib

import pytest

import dlio
from dlio.errors import SourceError, UsageError
from dlio.sources import archive, image_folder, open_source
from tests.helpers.archives import make_tar, make_zip
from tests.helpers.images import image
from tests.helpers.packing import read_all, samples

MAKERS = [
    pytest.param(lambda folder, content: make_tar(folder / "x.tar", content), id="tar"),
    pytest.param(lambda folder, content: make_zip(folder / "x.zip", content), id="deflated"),
    pytest.param(lambda folder, content: make_zip(folder / "x.zip", content, zipfile.ZIP_STORED), id="stored"),
]


@pytest.mark.parametrize("make", MAKERS)
class TestArchive:
    @pytest.mark.parametrize("prefix", ["", "photos/", "deep/down/photos/", "./"])
    def test_equals_the_unpacked_folder(self, photos, tmp_path, make, prefix):
        (photos / "cat/sub-1").mkdir()
        (photos / "cat/sub-1/x\n'☃.PNG").write_bytes(image(50))
        paths = sorted((path for path in photos.rglob("*") if path.is_file()), key=lambda path: path.name)
        content = {f"{prefix}{path.relative_to(photos)}": path.read_bytes() for path in paths}
        content[f"{prefix}cat/notes.txt"] = b"no image"
        packed, folder = open_source(make(tmp_path, content)), image_folder(photos)
        assert packed.name == "archive"
        assert list(packed.listing().keys) == list(folder.listing().keys)
        assert packed.listing().schema == folder.listing().schema
        assert packed.listing().num_bytes.tolist() == folder.listing().num_bytes.tolist()
        assert read_all(packed) == read_all(folder)

    def test_a_root_within_the_archive(self, tmp_path, make):
        path = make(tmp_path, {f"{split}/{name}/1.png": image(1) for split in ("train", "val") for name in "ab"})
        with pytest.raises(UsageError, match=r"holds the splits train, val instead of classes: .* --root train"):
            archive(path).listing()
        assert archive(path, root="val").listing().keys[:] == ["a/1.png", "b/1.png"]

    def test_one_class_is_a_class(self, tmp_path, make):
        path = make(tmp_path, {"photos/cat/1.png": image(1), "photos/cat/2.png": image(2)})
        assert archive(path).listing().keys[:] == ["cat/1.png", "cat/2.png"]

    @pytest.mark.parametrize("name", ["../evil.png", "a/../../evil.png", "/etc/evil.png"])
    def test_a_name_that_leads_outside_is_refused(self, tmp_path, make, name):
        path = make(tmp_path, {"a/1.png": image(1), name: image(2)})
        with pytest.raises(SourceError, match=r"evil\.png' points outside the archive"):
            archive(path).listing().check_whole()

    def test_an_image_outside_the_class_folders_is_named(self, tmp_path, make):
        path = make(tmp_path, {"a/1.png": image(1), "b/1.png": image(1), "2.png": image(2)})
        with pytest.raises(SourceError, match=r"'2\.png' is not in a class folder"):
            archive(path).listing().check_whole()

    def test_no_images(self, tmp_path, make):
        with pytest.raises(SourceError, match="has no images"):
            archive(make(tmp_path, {"a/b.txt": b"text"})).listing().check_whole()

    @pytest.mark.parametrize("keep", [0, 0.01, 0.3, 0.5])
    def test_a_cut_archive_is_named(self, tmp_path, make, keep):
        path = make(tmp_path, {f"a/{number}.png": image(number) for number in range(9)})
        path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
        with pytest.raises(SourceError, match=r"x\.(tar|zip)"):
            read_all(archive(path))

    def test_is_packed_by_workers(self, tmp_path, make):
        content = {f"{name}/{number}.png": image(number) for name in "ab" for number in range(9)}
        dlio.pack(archive(make(tmp_path, content)), tmp_path / "out", num_shards=4, workers=2, shuffle=2)
        assert {key: fields["image"] for key, fields in samples(tmp_path / "out")} == content


def test_tars_within_a_tar_are_class_folders(tmp_path):
    """As in ImageNet's ILSVRC2012_img_train.tar."""
    content = {}
    for name in ("n02", "n01"):
        images = {f"{name}_{number}.JPEG": image(number, "JPEG") for number in range(3)}
        inner = make_tar(tmp_path / f"{name}.tar", images)
        content[f"{name}.tar"] = inner.read_bytes()
    source = archive(make_tar(tmp_path / "train.tar", content))
    assert source.listing().keys[:] == [f"{name}/{name}_{i}.JPEG" for name in ("n01", "n02") for i in range(3)]
    assert [fields["image"] for fields in read_all(source)] == [image(i, "JPEG") for i in (0, 1, 2, 0, 1, 2)]


def nested(levels: int, name: str) -> bytes:
    """Returns a tar in a tar in a tar and so on, with two images."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for number in range(2):
            member = tarfile.TarInfo(f"{number}/1.png")
            member.size = len(image(number))
            tar.addfile(member, io.BytesIO(image(number)))
    heads, member, inner = [], tarfile.TarInfo(name), out.getvalue()
    for level in range(levels):
        member.size = len(inner) + 3 * 512 * level
        heads.append(member.tobuf())
    return b"".join(reversed(heads)) + inner + bytes(1024 * levels)


def test_tars_lie_in_tars_at_any_depth_that_a_path_can_have(tmp_path):
    (tmp_path / "x.tar").write_bytes(nested(1100, "a.tar"))
    assert archive(tmp_path / "x.tar").listing().keys[:] == ["0/1.png", "1/1.png"]
    (tmp_path / "x.tar").write_bytes(nested(60, "a" * 90 + ".tar"))
    with pytest.raises(SourceError, match=r"a\.tar' has a path of 4,098 characters"):
        archive(tmp_path / "x.tar").listing().check_whole()


@pytest.mark.parametrize("first", [True, False])
def test_a_tar_whose_header_tells_an_impossible_length_is_refused(tmp_path, first):
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("a/1.png", "a/2.png") if not first else ("a/2.png",):
            member = tarfile.TarInfo(name)
            member.pax_headers = {"comment": "x" * 30} if name == "a/2.png" else {}
            tar.addfile(member)
    data = (tmp_path / "x.tar").read_bytes()
    (tmp_path / "x.tar").write_bytes(data.replace(b"42 comment=xxxxxxxxxxxxxxxxxx", b"9" * 20 + b" comment="))
    assert (tmp_path / "x.tar").read_bytes() != data
    with pytest.raises(SourceError, match=r"x\.tar is neither a tar"):
        archive(tmp_path / "x.tar").listing()


def test_links_and_compressed_tars_are_refused(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        link = tarfile.TarInfo("a/1.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(SourceError, match=r"'a/1\.png' is a link"):
        archive(tmp_path / "x.tar").listing().check_whole()
    with tarfile.open(tmp_path / "z.tar", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("a"))
    (tmp_path / "z.tar.gz").write_bytes((tmp_path / "z.tar").read_bytes())
    with pytest.raises(SourceError, match=r"z\.tar\.gz is compressed as a whole.*decompress it to a \.tar"):
        open_source(tmp_path / "z.tar.gz").listing().check_whole()
    with pytest.raises(SourceError, match="neither a tar without compression"):
        archive(tmp_path / "z.tar").listing().check_whole()


def test_a_zip_that_holds_more_than_it_says_is_refused(tmp_path):
    path = make_zip(tmp_path / "x.zip", {"a/1.png": bytes(1 << 20)})
    data = path.read_bytes()
    path.write_bytes(data.replace((1 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little")))
    with pytest.raises(SourceError, match=r"cannot read 'a/1\.png': expected 100 bytes, found more"):
        read_all(archive(path))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_flipped_bit_in_a_zip_is_refused(tmp_path, method):
    path = make_zip(tmp_path / "x.zip", {f"a/{number}.png": image(number) for number in range(3)}, method)
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as file:
        entry = file.infolist()[1]
    data[entry.header_offset + 30 + len(entry.filename) + entry.compress_size // 2] ^= 1
    path.write_bytes(data)
    listing = archive(path).listing()
    with archive(path).reader(listing) as read, pytest.raises(SourceError, match=r"x\.zip: cannot read 'a/1\.png': "):
        for index in range(3):
            assert read(index).fields["image"] == image(index)


@pytest.mark.parametrize("signed", [True, False])
def test_a_checksum_behind_the_bytes_is_looked_at(tmp_path, signed):
    """As in a zip that was written to a pipe; the mark before it may be missing."""

    class Pipe(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            written.extend(data)
            return len(data)

    written = bytearray()
    with zipfile.ZipFile(Pipe(), "w") as file:
        file.writestr("a/1.png", image(1))
    assert bytes(written).count(b"PK\7\10") == 1
    path = tmp_path / "x.zip"
    path.write_bytes(written if signed else written.replace(b"PK\7\10" + (told := _crc(image(1))), told + b"\0\0\0\0"))
    assert read_all(archive(path))[0]["image"] == image(1)
    path.write_bytes(written.replace(_crc(image(1)), b"abcd"))
    with pytest.raises(SourceError, match=r"cannot read 'a/1\.png': its CRC-32 is wrong"):
        read_all(archive(path))


def _crc(data):
    return zlib.crc32(data).to_bytes(4, "little")


def test_a_member_without_a_name_is_refused(tmp_path):
    path = make_zip(tmp_path / "x.zip", {"a/1.png": image(1), "b.png": image(2)})
    path.write_bytes(path.read_bytes().replace(b"b.png", b"\0.png"))  # a name ends at the first zero
    listing = archive(path).listing()
    assert listing.keys[:] == ["a/1.png"]
    assert len(listing.refused) == 1


@pytest.mark.parametrize("told", [(1 << 63, 10), (1 << 62, 10), (100, 1 << 63)], ids=str)
def test_a_zip_whose_directory_tells_impossible_sizes_is_refused(tmp_path, told):
    path = make_zip(tmp_path / "x.zip", {"a/1.png": image(1)})
    with zipfile.ZipFile(path) as file:
        entry, start = file.infolist()[0], file.start_dir
    before = path.read_bytes()[:start]
    entry.file_size, entry.compress_size = told
    with path.open("wb") as raw, zipfile.ZipFile(raw, "w") as file:
        raw.write(before)
        file.filelist.append(entry)
        file.start_dir, file._didModify = start, True
    with pytest.raises(SourceError, match=r"'a/1\.png' cannot have [0-9,]+ bytes, deflated to [0-9,]+, of [0-9,]+"):
        archive(path).listing().check_whole()
