"""Labels as users have them: splits, pinned classes, several labels, none, and files that are no images."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import dlio
from dlio import formats
from dlio.errors import SourceError, UsageError
from dlio.sources import csv_file, image_folder, images, open_source
from tests.helpers.images import image, make_image_folder
from tests.helpers.packing import samples


@pytest.fixture
def splits(tmp_path):
    """A folder with the splits train (cat, dog, emu) and val (cat, emu)."""
    make_image_folder(tmp_path / "photos/train", {"cat": 3, "dog": 2, "emu": 2})
    make_image_folder(tmp_path / "photos/val", {"cat": 1, "emu": 2})
    return tmp_path / "photos"


def pack(source, out, **options):
    return dlio.pack(source, out, engine="serial", **options)


def labels(out):
    return [fields["label"] for _, fields in samples(out)]


def table(tmp_path, text, name="t.csv"):
    for file in ("a.png", "b.png", "c.png"):
        (tmp_path / file).write_bytes(image(1))
    (tmp_path / name).write_text(text)
    return tmp_path / name


class TestSplits:
    def test_splits_are_not_taken_for_classes(self, splits, tmp_path):
        with pytest.raises(UsageError, match="splits train, val instead of classes: --option split=train"):
            pack(open_source(splits), tmp_path / "out")

    def test_each_split_gets_the_classes_of_all(self, splits, tmp_path):
        for split, expected in {"train": [0, 0, 0, 1, 1, 2, 2], "val": [0, 2, 2]}.items():
            manifest = pack(open_source(splits, split=split), tmp_path / split)
            assert manifest.class_names == ("cat", "dog", "emu")
            assert labels(tmp_path / split) == expected

    def test_classes_may_be_called_so(self, splits):
        assert image_folder(splits, split="no").listing().schema.class_names == ("train", "val")

    def test_a_split_that_is_not_there_is_an_error_that_names_those_that_are(self, splits):
        with pytest.raises(UsageError, match="no split 'test', only train, val"):
            image_folder(splits, split="test")


class TestClasses:
    def test_a_file_and_a_data_set_pin_the_classes(self, splits, tmp_path):
        (tmp_path / "classes.txt").write_text("emu\ncat\ndog\n")
        pack(image_folder(splits / "train"), tmp_path / "train", classes=tmp_path / "classes.txt")
        pack(image_folder(splits / "val"), tmp_path / "val", classes=tmp_path / "train")
        assert labels(tmp_path / "train") == [1, 1, 1, 2, 2, 0, 0]
        assert labels(tmp_path / "val") == [1, 0, 0]

    def test_a_class_that_is_not_named_is_refused_or_left_out(self, splits, tmp_path):
        with pytest.raises(SourceError, match=r"'dog/0000\.png': the class 'dog' is not one of --classes"):
            pack(image_folder(splits / "train"), tmp_path / "out", classes=["cat", "emu"])
        manifest = pack(image_folder(splits / "train"), tmp_path / "out", classes=["cat", "emu"], on_error="skip")
        assert labels(tmp_path / "out") == [0, 0, 0, 1, 1]
        assert [key for key, _ in manifest.skipped] == ["dog/0000.png", "dog/0001.png"]

    def test_packed_labels_move_with_their_offset(self, splits, tmp_path):
        pack(image_folder(splits / "train"), tmp_path / "one", label_offset=1)
        manifest = pack(dlio.sources.packed(tmp_path / "one"), tmp_path / "two", classes=["emu", "dog", "cat"])
        assert manifest.schema.label_offset == 1
        assert labels(tmp_path / "two") == [3, 3, 3, 2, 2, 1, 1]

    def test_numbers_get_names_and_those_beyond_are_refused(self, tmp_path):
        path = table(tmp_path, "path,label\na.png,0\nb.png,2\n")
        with pytest.raises(SourceError, match="the class '2' is not one of --classes"):
            pack(csv_file(path), tmp_path / "out", classes=["cat", "dog"])
        assert pack(csv_file(path), tmp_path / "out", classes=["x", "y", "z"]).class_names == ("x", "y", "z")

    @pytest.mark.parametrize(("classes", "problem"), [([], "no classes"), (["a", "b", "a"], "'a' twice")])
    def test_a_list_that_is_none_is_refused(self, splits, tmp_path, classes, problem):
        with pytest.raises(UsageError, match=problem):
            pack(image_folder(splits / "val"), tmp_path / "out", classes=classes)

    def test_columns_of_several_labels_are_pinned_too(self, tmp_path):
        path = table(tmp_path, "path,label\na.png,x|y\nb.png,z\n")
        pack(csv_file(path, separator="|"), tmp_path / "out", classes=["z", "y", "x", "w"])
        assert np.array(labels(tmp_path / "out")).tolist() == [[0, 1, 1, 0], [1, 0, 0, 0]]
        with pytest.raises(SourceError, match=r"'b\.png': the class .* is not one of --classes"):
            pack(csv_file(path, separator="|"), tmp_path / "other", classes=["x", "y"])


class TestLists:
    def test_several_labels_are_asked_for(self, tmp_path):
        path = table(tmp_path, "path,label\na.png,0|1\nb.png,10\nc.png,\n")
        with pytest.raises(UsageError, match=r"line 2: the label '0\|1' has a '\|': give --option 'separator=\|'"):
            csv_file(path).listing()
        for several in "0 1 12", '"0,1"':
            with pytest.raises(UsageError, match=r"if these are several labels, --option labels=names if it is one"):
                csv_file(table(tmp_path, f"path,label\na.png,0\nb.png,{several}\n")).listing()
        path = table(tmp_path, "path,label\na.png,0|1\nb.png,10\nc.png,\n")
        listing = csv_file(path, separator="|").listing()
        assert listing.schema.class_names == ("0", "1", "10")
        assert listing.columns["label"].tolist() == [[1, 1, 0], [0, 0, 1], [0, 0, 0]]

    def test_minus_one_is_no_class(self, tmp_path):
        path = table(tmp_path, "path,label\na.png,-1\nb.png,3\n")
        with pytest.raises(SourceError, match=r"'a\.png': the label -1 is not a class index"):
            pack(csv_file(path), tmp_path / "out")
        assert str(pack(csv_file(path, labels="numbers"), tmp_path / "out").schema["label"]) == "float32"
        (tmp_path / "t.lst").write_text("0\t-1\ta.png\n")
        with pytest.raises(SourceError, match="not a class index"):
            pack(open_source(tmp_path / "t.lst"), tmp_path / "lst")
        assert labels(pack(open_source(tmp_path / "t.lst", labels="numbers"), tmp_path / "lst").root) == [-1.0]

    def test_numbers_may_be_the_names_of_classes(self, tmp_path):
        listing = csv_file(table(tmp_path, "path,label\na.png,10\nb.png,9\n"), labels="names").listing()
        assert listing.schema.class_names == ("10", "9")
        assert listing.columns["label"].tolist() == [0, 1]

    @pytest.mark.parametrize(("name", "mark"), [("t.csv", ";"), ("t.csv", "|"), ("t.tsv", "\t"), ("t.csv", ",")])
    def test_the_delimiter_is_found(self, tmp_path, name, mark):
        listing = open_source(table(tmp_path, f"path{mark}label\na.png{mark}1\n", name)).listing()
        assert listing.columns["label"].tolist() == [1]

    def test_a_delimiter_may_be_given(self, tmp_path):
        assert csv_file(table(tmp_path, "path:label\na.png:1\n"), delimiter=":").listing().keys[0] == "a.png"
        with pytest.raises(UsageError, match="one character"):
            csv_file(tmp_path / "t.csv", delimiter="::")

    def test_other_columns_become_fields(self, tmp_path):
        path = table(tmp_path, "path,label,Patient Age,sex\na.png,1,30,F\nb.png,0,4.5,\n")
        out = pack(csv_file(path, fields="Patient Age,sex"), tmp_path / "out").root
        found = [{name: value for name, value in fields.items() if name != "image"} for _, fields in samples(out)]
        assert found == [{"label": 1, "Patient_Age": 30.0, "sex": "F"}, {"label": 0, "Patient_Age": 4.5, "sex": ""}]

    def test_two_columns_do_not_become_one_field(self, tmp_path):
        path = table(tmp_path, "path,label,a b,a-b\na.png,1,2,3\n")
        with pytest.raises(UsageError, match="second field 'a_b'"):
            csv_file(path, fields=["a b", "a-b"]).listing()

    def test_a_list_of_paths_has_no_labels(self, tmp_path):
        out = pack(csv_file(table(tmp_path, "path\na.png\nb.png\n")), tmp_path / "out")
        assert out.schema.types() == {"image": "bytes"}
        assert samples(out.root)[1] == ("b.png", {"image": image(1)})


class TestUnlabelled:
    @pytest.mark.parametrize("name", formats.names())
    def test_a_flat_folder_packs_into_every_format(self, tmp_path, name):
        make_image_folder(tmp_path / "in", {"a": 3})
        source = open_source(tmp_path / "in/a")
        assert source.name == "images"
        manifest = pack(source, tmp_path / "out", format=name)
        assert manifest.schema.types() == {"image": "bytes"}
        assert [fields for _, fields in samples(manifest.root)] == [{"image": image(n)} for n in range(3)]

    def test_folders_below_are_taken_too(self, tmp_path):
        make_image_folder(tmp_path, {"b": 1, "a/c": 1})
        assert list(images(tmp_path).listing().keys) == ["a/c/0000.png", "b/0000.png"]

    def test_a_folder_without_images_is_an_error(self, tmp_path):
        with pytest.raises(SourceError, match="has no images"):
            images(tmp_path).listing()


class TestLeftOut:
    def test_what_is_not_packed_is_counted_and_named(self, tmp_path, caplog):
        make_image_folder(tmp_path / "in", {"a": 2})
        for name in ("a/g.gif", "README", "loose.png", "a/.hidden"):
            shutil.copy(tmp_path / "in/a/0000.png", tmp_path / "in" / name)
        for number in range(1200):
            (tmp_path / f"in/a/{number:04}.xml").touch()
        pack(image_folder(tmp_path / "in"), tmp_path / "out")
        assert [record.getMessage() for record in caplog.records] == [
            f"{tmp_path / 'in'}: not packed: 1 in no class folder (loose.png); 1 without a suffix (README); "
            "1,200 .xml (a/0000.xml, a/0001.xml, a/0002.xml, ...); 1 .gif (a/g.gif)"
        ]

    def test_nothing_is_said_of_nothing(self, tmp_path, caplog):
        make_image_folder(tmp_path / "in", {"a": 2})
        pack(image_folder(tmp_path / "in"), tmp_path / "out")
        assert not caplog.records
