"""Caffe lists, ChestX-ray14, CIFAR-10, frame sequences and archives, made here as their owners publish them."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dlio
from dlio.errors import SourceError, UsageError
from dlio.pack.sources.chestxray14 import FINDINGS
from dlio.sources import archive, caffe_list, chestxray14, cifar10, frames, image_folder, names, open_source
from tests.images import image, make_image_folder
from tests.pack.conftest import samples


def read_all(source) -> list[dict]:
    listing = source.listing()
    with source.reader(listing) as read:
        return [read(index).fields for index in range(len(listing))]


class TestCaffeList:
    def write(self, folder: Path, text: str) -> Path:
        (folder / "train.txt").write_bytes(text.encode())
        return folder / "train.txt"

    def test_splits_at_the_last_space(self, tmp_path):
        listing = caffe_list(self.write(tmp_path, "a b.jpg 3\nc.jpg 0\n/d.jpg -1\n")).listing()
        assert listing.keys[:] == ["a b.jpg", "c.jpg", "/d.jpg"]
        assert listing.columns["label"].tolist() == [3, 0, -1]

    def test_the_root_stands_before_every_path_as_in_caffe(self, tmp_path):
        make_image_folder(tmp_path / "in", {"a": 2})
        path = self.write(tmp_path, "/a/0000.png 1\na/0001.png 2\n")
        assert [fields["label"] for fields in read_all(caffe_list(path, root=tmp_path / "in"))] == [1, 2]

    def test_is_recognised_by_its_first_line(self, tmp_path):
        assert open_source(self.write(tmp_path, "a.jpg 3\n")).name == "caffe-list"
        with pytest.raises(UsageError, match="not recognised"):
            open_source(self.write(tmp_path, "Dear reader\n"))

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("a.jpg 1\nb.jpg\n", "line 2: expected a path, a space, and a whole number: 'b.jpg'"),
            ("a.jpg 1\nb.jpg 1.5\n", "line 2"),
            ("a.jpg 1\n\nb.jpg 1\n", "line 2"),
            ("a.jpg 1\na.jpg 2\n", "listed twice"),
            ("", "is empty"),
        ],
    )
    def test_names_what_is_wrong_and_its_line(self, tmp_path, text, problem):
        with pytest.raises(SourceError, match=problem):
            caffe_list(self.write(tmp_path, text)).listing().check_whole()


class TestChestXray14:
    @pytest.fixture
    def xrays(self, tmp_path) -> Path:
        rows = ["Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position"]
        findings = ["No Finding", "Mass|Atelectasis", "Hernia", "Pneumothorax|Edema"]
        for number, text in enumerate(findings):
            folder = tmp_path / ("images" if number == 0 else f"images_{number:03d}/images")
            folder.mkdir(parents=True)
            (folder / f"{number:08d}_000.png").write_bytes(image(number, mode="L"))
            rows.append(f"{number:08d}_000.png,{text},0,{number},50,F,PA")
        (tmp_path / "Data_Entry_2017.csv").write_text("\n".join(rows) + "\n")
        (tmp_path / "test_list.txt").write_text("00000003_000.png\n00000001_000.png")
        return tmp_path

    def test_all_images_with_their_findings(self, xrays):
        source = open_source(xrays)
        fields = read_all(source)
        assert source.name == "chestxray14"
        assert source.listing().schema.class_names == FINDINGS == tuple(sorted(FINDINGS))
        named = [{FINDINGS[i] for i in np.flatnonzero(sample["label"])} for sample in fields]
        assert named == [set(), {"Mass", "Atelectasis"}, {"Hernia"}, {"Pneumothorax", "Edema"}]
        assert [sample["image"] for sample in fields] == [image(number, mode="L") for number in range(4)]

    def test_a_split_list_chooses_and_orders(self, xrays):
        listing = open_source(xrays / "test_list.txt").listing()
        assert listing.keys[:] == ["images_003/images/00000003_000.png", "images_001/images/00000001_000.png"]
        assert chestxray14(xrays / "test_list.txt").listing().columns["label"].tolist() == (
            listing.columns["label"].tolist()
        )

    def test_is_packed_with_the_names_of_the_findings(self, xrays, tmp_path):
        manifest = dlio.pack(open_source(xrays), tmp_path / "out", format="recordio", engine="serial")
        assert manifest.class_names == FINDINGS
        assert samples(tmp_path / "out")[2][1]["label"].tolist() == [float(name == "Hernia") for name in FINDINGS]

    def test_a_typo_in_a_finding_names_its_line(self, xrays):
        table = xrays / "Data_Entry_2017.csv"
        table.write_text(table.read_text().replace("Hernia", "Herniaa"))
        with pytest.raises(SourceError, match=r"Data_Entry_2017\.csv, line 4: 'Herniaa' is no finding: expected"):
            chestxray14(xrays).listing().check_whole()

    def test_what_is_missing_is_named(self, xrays):
        (xrays / "test_list.txt").write_text("x.png\n")
        with pytest.raises(SourceError, match=r"names 'x\.png', which the table"):
            chestxray14(xrays / "test_list.txt").listing().check_whole()
        (xrays / "images_002/images/00000002_000.png").unlink()
        with pytest.raises(SourceError, match=r"'00000002_000\.png' is in none of the folders images\*"):
            chestxray14(xrays).listing().check_whole()
        (xrays / "Data_Entry_2017.csv").write_text("a,b\n1,2\n")
        with pytest.raises(SourceError, match="no table with the columns"):
            chestxray14(xrays).listing().check_whole()


def python2_batch(data: np.ndarray, labels: list[int]) -> bytes:
    """Returns a batch as Python 2 and numpy 1 have pickled the published ones."""
    shape = b"K\x01" + b"".join(b"M" + size.to_bytes(2, "little") for size in data.shape) + b"\x86"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(" + shape + dtype
    array += b"\x89T" + data.nbytes.to_bytes(4, "little") + data.tobytes() + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + numbers + b"u."


def write_batch(path: Path, data: np.ndarray, labels: list[int], protocol: int = 3) -> None:
    path.write_bytes(pickle.dumps({b"data": data, b"labels": labels}, protocol=protocol))


class TestCifar10:
    @pytest.fixture
    def batches(self, tmp_path) -> Path:
        random = np.random.default_rng(0)
        for name in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
            data = random.integers(0, 256, (7, 3072), dtype="uint8")
            (tmp_path / name).write_bytes(python2_batch(data, random.integers(0, 10, 7).tolist()))
        meta = {b"label_names": [f"class {number}".encode() for number in range(10)]}
        (tmp_path / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
        return tmp_path

    @pytest.mark.parametrize("split", ["train", "test"])
    def test_images_are_the_planes_of_the_rows(self, batches, split):
        names = ["test_batch"] if split == "test" else [f"data_batch_{number}" for number in range(1, 6)]
        loaded = [pickle.loads((batches / name).read_bytes(), encoding="bytes") for name in names]
        expected = np.concatenate([batch[b"data"] for batch in loaded]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        labels = [label for batch in loaded for label in batch[b"labels"]]
        for form in ("png", "raw"):
            fields = read_all(open_source(batches, split=split, form=form))
            found = [np.asarray(Image.open(io.BytesIO(f["image"]))) if form == "png" else f["image"] for f in fields]
            np.testing.assert_array_equal(np.stack(found), expected)
            assert [f["label"] for f in fields] == labels

    @pytest.mark.parametrize("form", ["png", "raw"])
    def test_is_packed_shuffled(self, batches, tmp_path, form):
        source = cifar10(batches, form=form)
        manifest = dlio.pack(source, tmp_path / "out", shuffle=1, num_shards=3, workers=2)
        assert manifest.num_samples == 35
        assert manifest.class_names[3] == "class 3"
        assert source.listing().keys[8] == "data_batch_2/00001"

    @pytest.mark.parametrize("protocol", [3, 4, 5])
    @pytest.mark.parametrize("number", [int, np.int64])
    def test_batches_that_were_pickled_anew_are_read(self, batches, protocol, number):
        data = np.arange(2 * 3072).astype("uint8").reshape(2, 3072)
        write_batch(batches / "test_batch", data, [number(1), number(2)], protocol)
        fields = read_all(cifar10(batches, split="test", form="raw"))
        assert fields[1]["image"][0, 0].tolist() == data[1, [0, 1024, 2048]].tolist()
        assert [found["label"] for found in fields] == [1, 2]

    @pytest.mark.parametrize("protocol", [0, 1, 2])
    def test_pixels_that_are_in_pieces_are_refused_with_advice(self, batches, protocol):
        write_batch(batches / "test_batch", np.arange(2 * 3072).astype("uint8").reshape(2, 3072), [1, 2], protocol)
        with pytest.raises(SourceError, match=r"test_batch does not keep its pixels .* pickle it by 3 or later"):
            cifar10(batches, split="test").listing()

    def test_a_pickle_that_runs_something_is_refused(self, batches, tmp_path):
        class Evil:
            def __reduce__(self):
                return os.mkdir, (str(tmp_path / "owned"),)

        (batches / "data_batch_3").write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}))
        with pytest.raises(SourceError, match=r"data_batch_3 is no batch of CIFAR-10: it would run posix\.mkdir"):
            cifar10(batches).listing().check_whole()
        assert not (tmp_path / "owned").exists()

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"no pickle",
            pickle.dumps([1]),
            pickle.dumps({b"data": 5, b"labels": [1]}),
            pickle.dumps({b"data": np.zeros((2, 3), "uint8"), b"labels": [1, 2]}),
            pickle.dumps({b"data": np.zeros((2, 3072), "uint8"), b"labels": [1]}),
            pickle.dumps({b"data": np.zeros((2, 3072), "uint8"), b"labels": [1, "x"]}),
            pickle.dumps({b"data": np.zeros((2, 3072), "uint8"), b"labels": [1, 10]}),
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I1000000000000\ntS'b'\ntR.",
        ],
    )
    def test_anything_else_is_refused_by_name(self, batches, content):
        (batches / "data_batch_1").write_bytes(content)
        with pytest.raises(SourceError, match=str(batches)):
            cifar10(batches).listing().check_whole()

    def test_unknown_options_are_refused(self, batches):
        with pytest.raises(UsageError, match="split=train or test"):
            open_source(batches, split="validation")
        with pytest.raises(UsageError, match="no option 'shape', only split, form"):
            open_source(batches, shape="3")


class TestFrames:
    @pytest.fixture
    def sequences(self, tmp_path) -> Path:
        for name, count in [("00/image_2", 10), ("01/image_2", 3), ("02/image_2", 4)]:
            (tmp_path / name).mkdir(parents=True)
            for number in range(count):
                (tmp_path / name / f"{number:06d}.png").write_bytes(image(int(name[:2]) * 100 + number))
        (tmp_path / "00/calib.txt").write_text("P0")
        return tmp_path

    def test_clips_share_no_frame_by_default(self, sequences):
        source = frames(sequences, clip=3, targets=1)
        assert source.listing().keys[:] == ["00/image_2/000000", "00/image_2/000004", "02/image_2/000000"]
        clips = read_all(source)
        assert clips[1] == {"frames": [image(4), image(5), image(6)], "targets": [image(7)]}
        assert clips[2]["targets"] == [image(203)]

    def test_a_sequence_shorter_than_a_clip_is_named(self, sequences, tmp_path):
        with pytest.raises(SourceError, match=r"01/image_2 has 3 frames, a clip spans 4: .*--on-error skip"):
            dlio.pack(frames(sequences, clip=4), tmp_path / "out", engine="serial")
        manifest = dlio.pack(frames(sequences, clip=4), tmp_path / "out", on_error="skip", engine="serial")
        assert [key for key, _ in manifest.skipped] == ["01/image_2"]

    def test_stride_and_step(self, sequences):
        clips = read_all(frames(sequences, clip=2, targets=1, stride=3, step=2))
        assert [clip["targets"] for clip in clips] == [[image(6)], [image(8)]]
        assert clips[1]["frames"] == [image(2), image(5)]

    def test_without_targets_there_is_no_such_field(self, sequences):
        source = open_source(sequences, clip="4", step="1")
        assert source.name == "frames"
        assert source.listing().schema.types() == {"frames": "bytes[4]"}
        assert len(source.listing()) == 7 + 1

    def test_is_packed_in_every_format_that_holds_lists(self, sequences, tmp_path):
        for name in ("tfrecord", "webdataset", "hdf5"):
            dlio.pack(frames(sequences, clip=2), tmp_path / name, format=name, engine="serial")
            assert samples(tmp_path / name)[1] == ("00/image_2/000002", {"frames": [image(2), image(3)]})

    def test_a_broken_frame_is_named_by_its_clip(self, sequences, tmp_path):
        (sequences / "00/image_2/000005.png").write_bytes(b"no")
        with pytest.raises(SourceError, match=r"'00/image_2/000004'.*no known format"):
            dlio.pack(frames(sequences, clip=2), tmp_path / "out", engine="serial")

    def test_too_long_or_senseless_clips_are_refused(self, sequences, tmp_path):
        with pytest.raises(SourceError, match="no sequence of 11 frames"):
            frames(sequences, clip=11).listing()
        for options in ({"clip": 0}, {"targets": -1}, {"stride": "x"}, {"step": 0}):
            with pytest.raises(UsageError):
                frames(sequences, **options)
        (tmp_path / "empty").mkdir()
        with pytest.raises(SourceError, match="no folders of frames"):
            frames(tmp_path / "empty").listing().check_whole()


def make_tar(path: Path, content: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def make_zip(path: Path, content: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in content.items():
            file.writestr(name, data)
    return path


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
        assert packed.listing().keys == folder.listing().keys
        assert packed.listing().schema == folder.listing().schema
        assert packed.listing().num_bytes.tolist() == folder.listing().num_bytes.tolist()
        assert read_all(packed) == read_all(folder)

    def test_a_root_within_the_archive(self, tmp_path, make):
        path = make(tmp_path, {f"{split}/{name}/1.png": image(1) for split in ("train", "val") for name in "ab"})
        assert archive(path).listing().schema.class_names == ("train", "val")
        assert archive(path, root="val").listing().keys[:] == ["a/1.png", "b/1.png"]

    def test_one_class_is_a_class(self, tmp_path, make):
        path = make(tmp_path, {"photos/cat/1.png": image(1), "photos/cat/2.png": image(2)})
        assert archive(path).listing().keys[:] == ["cat/1.png", "cat/2.png"]

    @pytest.mark.parametrize("name", ["../evil.png", "a/../../evil.png", "/etc/evil.png"])
    def test_a_name_that_leads_outside_is_refused(self, tmp_path, make, name):
        path = make(tmp_path, {"a/1.png": image(1), name: image(2)})
        with pytest.raises(SourceError, match=r"evil\.png' leads outside the archive"):
            archive(path).listing().check_whole()

    def test_an_image_outside_the_class_folders_is_named(self, tmp_path, make):
        path = make(tmp_path, {"a/1.png": image(1), "b/1.png": image(1), "2.png": image(2)})
        with pytest.raises(SourceError, match=r"'2\.png' is in no class folder"):
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
    with pytest.raises(SourceError, match="no tar without compression"):
        archive(tmp_path / "z.tar").listing().check_whole()


def test_a_zip_that_holds_more_than_it_says_is_refused(tmp_path):
    path = make_zip(tmp_path / "x.zip", {"a/1.png": bytes(1 << 20)})
    data = path.read_bytes()
    path.write_bytes(data.replace((1 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little")))
    with pytest.raises(SourceError, match=r"cannot read 'a/1\.png': expected 100 bytes, found more"):
        read_all(archive(path))


def test_every_source_has_a_name_for_the_command_line():
    expected = "archive caffe-list chestxray14 cifar10 csv frames imagefolder lst"
    assert set(expected.split()) <= set(names())
