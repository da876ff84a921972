"""Inputs that would take memory without bound: what they take is measured in its own process."""

from __future__ import annotations

import io
import os
import shutil
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest
from PIL import Image

import dlio
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import EXIT_SKIPPED, ManifestError, SourceError, StorageError
from dlio.sources import image_folder
from tests.helpers import children
from tests.helpers.children import MiB

SERIAL = ("--format", "recordio", "--engine", "serial")
MOST = 400 * MiB  # dlio itself takes a quarter of it


def pack(source: Path, *arguments: object, environ: dict[str, str] | None = None) -> children.Ended:
    return children.dlio("pack", source, source.parent / "out", *SERIAL, *arguments, environ=environ)


def sparse(path: Path, num_bytes: int) -> Path:
    """Returns a file of zeros that takes no room."""
    with path.open("ab") as file:
        file.truncate(num_bytes)
    return path


def encoded(kind: str, side: int = 8) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (side, side), "red").save(out, kind)
    return out.getvalue()


@pytest.fixture
def two_gigabytes(tmp_path: Path) -> int:
    if shutil.disk_usage(tmp_path).free < 4 << 30:
        pytest.skip("pack looks for room for all of its input first, and here are no 4 GiB")
    return 2 << 30


class TestImageFiles:
    @pytest.fixture
    def photos(self, photos: Path, two_gigabytes: int) -> Path:
        sparse(photos / "cat" / "huge.jpg", two_gigabytes)
        return photos

    def test_a_large_file_of_another_kind_is_refused_by_head(self, photos: Path) -> None:
        ended = pack(photos)
        assert ended.code == SourceError.exit_code
        assert f"cannot pack {photos}/cat/huge.jpg: it is not an image: its 2,147,483,648 bytes" in ended.err
        assert ended.peak_bytes < MOST

    def test_it_can_be_skipped(self, photos: Path) -> None:
        ended = pack(photos, "--on-error", "skip")
        assert ended.code == EXIT_SKIPPED
        assert ended.peak_bytes < MOST
        assert [key for key, _ in Manifest.load(photos.parent / "out").skipped] == ["cat/huge.jpg"]

    def test_a_large_one_like_an_image_is_bounded(self, photos: Path) -> None:
        with (photos / "cat" / "huge.jpg").open("r+b") as file:
            file.write(encoded("JPEG"))
        ended = pack(photos)
        assert ended.code == SourceError.exit_code
        assert "huge.jpg: it has 2,147,483,648 bytes, more than the limit of 1,073,741,824 for one" in ended.err
        assert "set DLIO_MAX_SAMPLE to its size" in ended.err
        assert ended.peak_bytes < MOST


def test_large_images_are_packed_and_the_limit_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = encoded("PPM", 4800)
    assert len(image) > 64 * MiB
    (tmp_path / "photos" / "red").mkdir(parents=True)
    (tmp_path / "photos" / "red" / "large.ppm").write_bytes(image)
    monkeypatch.setenv("DLIO_MAX_SAMPLE", str(len(image) - 1))
    with pytest.raises(SourceError, match=r"large\.ppm: it has 69,120,017 bytes, more than the limit of 69,120,016"):
        dlio.pack(image_folder(tmp_path / "photos"), tmp_path / "out", format="recordio", engine="serial")
    monkeypatch.setenv("DLIO_MAX_SAMPLE", str(len(image)))
    packed = dlio.pack(image_folder(tmp_path / "photos"), tmp_path / "out", format="recordio", engine="serial")
    assert packed.num_bytes > len(image)


class TestArchives:
    def zipped(self, folder: Path, head: bytes, num_bytes: int) -> Path:
        """Returns an archive whose second member begins with `head`; nobody reads its zeros to the end, or its CRC."""
        deflated = [zlib.compressobj(1, wbits=-15) for _ in range(2)]
        begin, zeros = (
            stream.compress(data) + stream.flush(zlib.Z_FULL_FLUSH)
            for stream, data in zip(deflated, (head, bytes(MiB)), strict=True)
        )
        path, huge = folder / "photos.zip", zipfile.ZipInfo("cat/huge.jpg")
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("cat/small.jpg", encoded("JPEG"), zipfile.ZIP_DEFLATED)
            archive.writestr(huge, begin + zeros * (num_bytes // MiB) + b"\3\0")
            huge.compress_type, huge.file_size = zipfile.ZIP_DEFLATED, len(head) + num_bytes
        with path.open("r+b") as file:  # the same in the member's own header
            file.seek(huge.header_offset)
            file.write(huge.FileHeader(zip64=False))
        return path

    def test_a_member_that_inflates_beyond_the_limit_is_refused(self, tmp_path: Path, two_gigabytes: int) -> None:
        ended = pack(self.zipped(tmp_path, encoded("JPEG"), 1100 * MiB))
        assert ended.code == SourceError.exit_code
        assert "photos.zip: cannot read 'cat/huge.jpg': it has 1,15" in ended.err
        assert "set DLIO_MAX_SAMPLE to its size" in ended.err
        assert ended.peak_bytes < MOST

    def test_a_large_member_of_another_kind_is_refused_by_head(self, tmp_path: Path) -> None:
        ended = pack(self.zipped(tmp_path, b"", 500 * MiB), "--on-error", "skip")
        assert ended.code == EXIT_SKIPPED
        [(key, reason)] = Manifest.load(tmp_path / "out").skipped
        assert key == "cat/huge.jpg"
        assert "it is not an image: its 524,288,000 bytes begin like no known format" in reason
        assert ended.peak_bytes < MOST

    def test_a_large_member_of_a_tar_is_refused_by_head(self, tmp_path: Path, two_gigabytes: int) -> None:
        header = tarfile.TarInfo("cat/huge.jpg")
        header.size = two_gigabytes
        path = tmp_path / "photos.tar"
        path.write_bytes(header.tobuf())
        sparse(path, two_gigabytes + 3 * tarfile.BLOCKSIZE)
        ended = pack(path)
        assert ended.code == SourceError.exit_code
        assert "cannot read 'cat/huge.jpg': it is not an image" in ended.err
        assert ended.peak_bytes < MOST

    @pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
    def test_a_tar_whose_name_has_two_gigabytes_is_refused(self, kind: bytes, tmp_path: Path) -> None:
        header = tarfile.TarInfo("name")
        header.type, header.size = kind, 2 << 30
        path = tmp_path / "photos.tar"
        path.write_bytes(header.tobuf())
        ended = pack(sparse(path, 3 << 30))
        assert ended.code == SourceError.exit_code
        assert f"{path} has a header or directory of more than 1,048,576 bytes" in ended.err
        assert ended.peak_bytes < MOST

    def test_a_zip_whose_directory_has_two_gigabytes_is_refused(self, tmp_path: Path) -> None:
        path = sparse(tmp_path / "photos.zip", 2 << 30)
        with path.open("ab") as file:
            file.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, 2 << 30, 0, 0))
        ended = pack(path, environ={"DLIO_MAX_SAMPLE": "64MiB"})
        assert ended.code == SourceError.exit_code
        assert f"{path} has a header or directory of more than 67,108,864 bytes" in ended.err
        assert ended.peak_bytes < MOST

    @pytest.mark.parametrize("suffix", [".tar.gz", ".tgz"])
    def test_a_compressed_tar_is_refused_by_its_name(self, suffix: str, tmp_path: Path) -> None:
        ended = pack(sparse(tmp_path / f"photos{suffix}", 2 << 30))
        assert ended.code == SourceError.exit_code
        assert "is compressed as a whole" in ended.err
        assert ended.peak_bytes < MOST


class TestCifar10:
    @pytest.mark.parametrize("number", [1 << 27, (1 << 32) - 1])
    def test_a_pickle_that_counts_far_takes_no_memory(self, number: int, tmp_path: Path) -> None:
        (tmp_path / "test_batch").write_bytes(b"\x80\x02}r" + struct.pack("<I", number) + b".")
        ended = pack(tmp_path, "--source", "cifar10", "--option", "split=test")
        assert ended.code == SourceError.exit_code
        assert "test_batch has no array 'data'" in ended.err
        assert ended.peak_bytes < MOST

    def test_a_batch_that_is_too_large_is_refused(self, tmp_path: Path) -> None:
        sparse(tmp_path / "test_batch", 4 << 30)
        ended = pack(tmp_path, "--source", "cifar10", "--option", "split=test")
        assert ended.code == SourceError.exit_code
        assert "test_batch has more than 268,435,456 bytes: it is not one of CIFAR-10's batches" in ended.err

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "test_batch")
        ended = pack(tmp_path, "--source", "cifar10", "--option", "split=test")
        assert ended.code == StorageError.exit_code
        assert "test_batch: it is not a regular file" in ended.err


class TestManifests:
    def test_one_that_is_too_large_is_refused(self, tmp_path: Path) -> None:
        sparse(tmp_path / NAME, 8 << 30)
        ended = children.dlio("info", tmp_path, environ={"DLIO_MAX_MANIFEST": "64MiB"})
        assert ended.code == ManifestError.exit_code
        assert f"{tmp_path / NAME} has more than 67,108,864 bytes" in ended.err
        assert "set DLIO_MAX_MANIFEST to its size" in ended.err
        assert ended.peak_bytes < MOST

    def test_what_is_no_file_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / NAME)
        with pytest.raises(StorageError, match=f"cannot read {tmp_path / NAME}: it is not a regular file"):
            Manifest.load(tmp_path)
        (tmp_path / NAME).unlink()
        (tmp_path / NAME).symlink_to("/dev/zero")
        with pytest.raises(StorageError, match="it is not a regular file"):
            Manifest.load(tmp_path)
