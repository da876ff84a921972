"""Caffe lists, ChestX-ray14 and frame sequences, made here as their owners publish them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import dlio
from dlio.errors import SourceError, UsageError
from dlio.pack.sources.chestxray14 import FINDINGS
from dlio.sources import caffe_list, chestxray14, frames, open_source
from tests.helpers.images import image, make_image_folder
from tests.helpers.packing import read_all, samples
from tests.helpers.users import unprivileged


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
        with pytest.raises(SourceError, match=r"Data_Entry_2017\.csv, line 4: 'Herniaa' is not a finding: expected"):
            chestxray14(xrays).listing().check_whole()

    def test_what_is_missing_is_named(self, xrays):
        (xrays / "test_list.txt").write_text("x.png\n")
        with pytest.raises(SourceError, match=r"names 'x\.png', which the table"):
            chestxray14(xrays / "test_list.txt").listing().check_whole()
        (xrays / "images_002/images/00000002_000.png").unlink()
        with pytest.raises(SourceError, match=r"'00000002_000\.png' is in none of the folders images\*"):
            chestxray14(xrays).listing().check_whole()
        (xrays / "Data_Entry_2017.csv").write_text("Finding Labels,Image Index\nMass\n")
        with pytest.raises(SourceError, match=r"Data_Entry_2017\.csv, line 2 names no image"):
            chestxray14(xrays).listing().check_whole()
        (xrays / "Data_Entry_2017.csv").write_text("a,b\n1,2\n")
        with pytest.raises(SourceError, match="not a table with the columns"):
            chestxray14(xrays).listing().check_whole()


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
        with pytest.raises(SourceError, match=r"01/image_2: it has 3 frames, a clip spans 4: .*--on-error skip"):
            dlio.pack(frames(sequences, clip=4), tmp_path / "out", engine="serial")
        manifest = dlio.pack(frames(sequences, clip=4), tmp_path / "out", on_error="skip", engine="serial")
        assert [key for key, _ in manifest.skipped] == ["01/image_2"]

    @pytest.mark.parametrize("year", [2026, 2500])
    def test_long_clips_and_files_of_later_centuries_are_found_again(self, sequences, tmp_path, year):
        for path in sequences.rglob("*.png"):
            os.utime(path, (0, (year - 1970) * 365 * 86400))
        source = frames(sequences / "00", clip=8, targets=2)
        first = dlio.pack(source, tmp_path / "out", engine="serial")
        assert first.num_samples == 1
        assert dlio.pack(source, tmp_path / "out", engine="serial") == first
        os.utime(sequences / "00/image_2/000003.png", (0, 0))
        with pytest.raises(UsageError, match="were changed since"):
            dlio.pack(source, tmp_path / "out", engine="serial")

    def test_sequences_behind_links_are_sequences_and_loops_are_named(self, sequences, tmp_path):
        (tmp_path / "in").mkdir()
        for name, target in (("03", sequences / "00"), ("04", ".")):
            (tmp_path / "in" / name).symlink_to(target)
        (tmp_path / "in/05").mkdir()
        (tmp_path / "in/05/up").symlink_to("..")
        listing = frames(tmp_path / "in", clip=10).listing()
        assert listing.keys[:] == ["03/image_2/000000"]
        assert [key for key, _ in listing.refused] == ["04", "05/up"]

    def test_a_sequence_with_a_frame_named_without_utf8_is_named(self, sequences):
        (sequences / "00/image_2" / os.fsdecode(b"\xff.png")).write_bytes(image(0))
        listing = frames(sequences, clip=3).listing()
        assert [reason for _, reason in listing.refused] == [
            f"{sequences}/00/image_2: the name '00/image_2/\\udcff.png' is not UTF-8: rename the file"
        ]

    def test_a_folder_that_may_not_be_listed_is_named(self, open_tmp):
        make_image_folder(open_tmp / "in", {"00": 8})
        (open_tmp / "in/01").mkdir(mode=0o000)
        with unprivileged():
            listing = frames(open_tmp / "in", clip=2, targets=0).listing()
        assert len(listing) == 4
        with pytest.raises(SourceError, match=r"cannot list .*in/01: Permission denied.* --on-error skip"):
            listing.check_whole()
        (open_tmp / "in/00").chmod(0)
        with unprivileged(), pytest.raises(SourceError, match=r"^cannot list .*in/00: Permission denied"):
            frames(open_tmp / "in", clip=2).listing()

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
