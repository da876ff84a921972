"""Sources: ImageFolder in torchvision's order, CSV files and MXNet's lists, with odd names and bad entries."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from dlio.errors import SourceError, StorageError, UsageError
from dlio.sources import csv_file, image_folder, lst_file
from tests.helpers.images import image, make_image_folder
from tests.helpers.users import unprivileged

TORCHVISION_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def torchvision_samples(root: Path) -> list[tuple[str, int]]:
    """Returns path below `root` and label of every image, by the loops of torchvision's `make_dataset`."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    samples = []
    for label, name in enumerate(classes):
        for folder, _, names in sorted(os.walk(root / name, followlinks=True)):
            images = [name for name in sorted(names) if name.lower().endswith(TORCHVISION_EXTENSIONS)]
            samples += [(str((Path(folder) / name).relative_to(root)), label) for name in images]
    return samples


def read(source, index):
    """Returns sample `index` of a source."""
    listing = source.listing()
    with source.reader(listing) as read:
        return read(index)


def listed(source) -> list[tuple[str, int]]:
    listing = source.listing()
    return list(zip(listing.keys, listing.columns["label"].tolist(), strict=True))


@pytest.fixture
def tree(tmp_path):
    """A tree whose order is easy to get wrong: upper and lower case, dots, folders next to files, links."""
    names = ["b/2.png", "b/10.png", "b/sub.d/0.png", "b/sub/1.PNG", "b/sub-1/z.jpeg", "b/Sub/x.tif", "B/a.webp"]
    names.append("a/x y.bmp")
    for name in names:
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"0" * len(name))
    (tmp_path / "tree/b/notes.txt").write_text("no image")
    (tmp_path / "tree/b/dir.png").mkdir()
    (tmp_path / "tree/b/dir.png/inside.ppm").write_bytes(b"1")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "linked.pgm").write_bytes(b"22")
    (tmp_path / "tree/b/link").symlink_to(elsewhere)
    (tmp_path / "tree/c").symlink_to(elsewhere)
    (tmp_path / "tree/b/3.png").symlink_to(elsewhere / "linked.pgm")
    return tmp_path / "tree"


class TestImageFolder:
    def test_has_the_order_and_labels_of_torchvision(self, tree):
        assert listed(image_folder(tree)) == torchvision_samples(tree)

    def test_names_the_classes_and_sizes(self, tree):
        listing = image_folder(tree).listing()
        assert listing.schema.class_names == ("B", "a", "b", "c")
        assert listing.num_bytes.tolist() == [(tree / key).stat().st_size for key in listing.keys]

    def test_a_class_that_may_not_be_listed_keeps_its_label(self, open_tmp):
        make_image_folder(open_tmp / "in", {"a": 2, "c": 1})
        (open_tmp / "in/b").mkdir(mode=0o000)
        with unprivileged():
            listing = image_folder(open_tmp / "in").listing()
        assert listing.schema.class_names == ("a", "b", "c")
        assert listing.columns["label"].tolist() == [0, 0, 2]
        assert [key for key, _ in listing.refused] == ["b"]

    @pytest.mark.parametrize("name", [" space", "quo'te\"s", "new\nline", "tab\t", "☃", "e\u0301", "-d", "a" * 250])
    def test_takes_odd_names(self, tmp_path, name):
        make_image_folder(tmp_path, {name: 2})
        (tmp_path / name / f"{name[:240]}.png").write_bytes(image(9))
        source = image_folder(tmp_path)
        assert listed(source) == torchvision_samples(tmp_path)
        listing = source.listing()
        contents = [read(source, index).fields["image"] for index in range(3)]
        assert contents == [(tmp_path / key).read_bytes() for key in listing.keys]

    def test_a_name_that_is_no_utf8_is_named(self, tmp_path):
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / os.fsdecode(b"caf\xe9.png")).write_bytes(image(0))
        with pytest.raises(SourceError, match=r"a/caf\\udce9.png' is not UTF-8: rename"):
            image_folder(tmp_path).listing().check_whole()

    @pytest.mark.parametrize("up", [".", "..", "../.."])
    def test_a_link_loop_is_named(self, tmp_path, up):
        make_image_folder(tmp_path / "in", {"a/deep": 1})
        (tmp_path / "in/a/deep/loop").symlink_to(up)
        with pytest.raises(SourceError, match=r"/deep/loop points to a folder above it"):
            image_folder(tmp_path / "in").listing().check_whole()

    def test_two_links_to_one_folder_are_no_loop(self, tmp_path):
        make_image_folder(tmp_path / "out", {"x": 2})
        (tmp_path / "in/a").mkdir(parents=True)
        for name in "12":
            (tmp_path / "in/a" / name).symlink_to(tmp_path / "out/x")
        assert listed(image_folder(tmp_path / "in")) == torchvision_samples(tmp_path / "in")

    def test_a_broken_link_is_listed_and_fails_when_read(self, tmp_path):
        make_image_folder(tmp_path, {"a": 1})
        (tmp_path / "a/gone.png").symlink_to(tmp_path / "nowhere.png")
        source = image_folder(tmp_path)
        listing = source.listing()
        assert list(listing.keys) == ["a/0000.png", "a/gone.png"]
        with pytest.raises(SourceError, match=r"cannot read .*gone.png: No such file"):
            read(source, 1)

    def test_a_pipe_fails_when_read_and_nobody_waits(self, tmp_path):
        make_image_folder(tmp_path, {"a": 1})
        os.mkfifo(tmp_path / "a/pipe.png")
        source = image_folder(tmp_path)
        with pytest.raises(SourceError, match=r"pipe.png: it is not a regular file"):
            read(source, 1)

    def test_a_class_without_images_is_named(self, tmp_path):
        make_image_folder(tmp_path, {"a": 1, "empty": 0})
        with pytest.raises(
            SourceError, match=r"empty has no images [^;]*; or leave such entries out with --on-error skip$"
        ):
            image_folder(tmp_path).listing().check_whole()

    def test_a_folder_without_classes_is_named(self, tmp_path):
        (tmp_path / "x.png").write_bytes(image(0))
        with pytest.raises(SourceError, match="no class folders"):
            image_folder(tmp_path).listing().check_whole()

    def test_a_folder_that_is_not_there_is_named(self, tmp_path):
        with pytest.raises(StorageError, match=r"cannot list .*absent"):
            image_folder(tmp_path / "absent").listing()

    def test_is_pickled_small(self, tmp_path):
        source = image_folder(tmp_path)
        copied = pickle.loads(pickle.dumps(source))
        assert (copied.name, copied.path, copied.folder) == (source.name, source.path, source.folder)
        assert len(pickle.dumps(source)) < 1000


def write_csv(folder: Path, text: str, encoding: str = "utf-8") -> Path:
    path = folder / "labels.csv"
    path.write_bytes(text.encode(encoding))
    return path


class TestCsv:
    @pytest.mark.parametrize(
        ("text", "kind", "labels", "class_names"),
        [
            ("path,label\na.png,3\nb.png,-1\n", "int64", [3, -1], ()),
            ("path,label\na.png,9007199254740993\nb.png,0\n", "int64", [9007199254740993, 0], ()),
            ("file,label\na.png,0.5\nb.png,1\n", "float32", [0.5, 1], ()),
            ("image,class\na.png,zebra\nb.png,ant\n", "int64", [1, 0], ("ant", "zebra")),
            ("image,age,weight\na.png,3,70.5\nb.png,4,60\n", "float32[2]", [[3, 70.5], [4, 60]], ("age", "weight")),
            ("image,other,target\na.png,x,7\nb.png,y,8\n", "int64", [7, 8], ()),
            ("first,second\na.png,1\nb.png,2\n", "int64", [1, 2], ()),
            ("PATH,Label\r\na.png,1\r\nb.png,2\r\n", "int64", [1, 2], ()),
            ("label,path\n1,a.png\n2,b.png", "int64", [1, 2], ()),
            ("id,filepath,category\n1,a.png,dog\n2,b.png,cat\n", "int64", [1, 0], ("cat", "dog")),
            ("id,photo,category\n1,a.png,dog\n2,b.png,cat\n", "int64", [1, 0], ("cat", "dog")),
        ],
    )
    def test_finds_paths_and_labels(self, tmp_path, text, kind, labels, class_names):
        listing = csv_file(write_csv(tmp_path, text)).listing()
        assert list(listing.keys) == ["a.png", "b.png"]
        assert str(listing.schema["label"]) == kind
        assert listing.columns["label"].tolist() == labels
        assert listing.schema.class_names == class_names

    def test_columns_can_be_chosen(self, tmp_path):
        path = write_csv(tmp_path, "path,where,label,x,y\np,a.png,9,1,2\n")
        listing = csv_file(path, path_column="where", label_columns=("y", "x")).listing()
        assert list(listing.keys) == ["a.png"]
        assert listing.columns["label"].tolist() == [[2, 1]]
        assert listing.schema.class_names == ("y", "x")
        with pytest.raises(UsageError, match="no column 'z'"):
            csv_file(path, label_columns=("z",)).listing()

    def test_columns_of_text_are_no_vector_of_labels(self, tmp_path):
        path = write_csv(tmp_path, "file,species,age\na.png,cat,3\n")
        with pytest.raises(UsageError, match=r"which of species, age is the label.*--option label_columns=species"):
            csv_file(path).listing()
        assert csv_file(path, label_columns=("species",)).listing().schema.class_names == ("cat",)

    def test_a_byte_order_mark_is_no_part_of_a_name(self, tmp_path):
        path = write_csv(tmp_path, "path,label\na.png,1\n", "utf-8-sig")
        assert csv_file(path).listing().keys[:] == ["a.png"]

    def test_quoted_commas_quotes_and_newlines_belong_to_the_path(self, tmp_path):
        path = write_csv(tmp_path, 'path,label\n"a,""b""\n.png",1\nc.png,oops\n')
        with pytest.raises(SourceError, match="line 4: the label 'oops'"):
            csv_file(path).listing().check_whole()
        path = write_csv(tmp_path, 'path,label\n"a,""b""\n.png",1\nc.png,2\n')
        assert csv_file(path).listing().keys[:] == ['a,"b"\n.png', "c.png"]

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("path,label\na.png,1\nb.png,\n", "line 3: the label in column 'label' is missing"),
            ("path,label\na.png,1\nb.png,two\n", "line 3: the label 'two' in column 'label' is not a number"),
            ("path,label\na.png,1.5\nb.png,nan\n", "line 3: the label 'nan'"),
            ("path,x,y\na.png,1,2\nb.png,3,\n", "line 3: the label '' in column 'y' is not a number"),
            ("path,label\na.png,1\nb.png\n", "line 3: 1 column, the header has 2"),
            ("path,label\na.png,9223372036854775808\n", "line 2: the label '9223372036854775808' .* int64"),
            ("path,label\na.png,1\na.png,2\n", "labels.csv, line 3: 'a.png' is listed twice, first by line 2"),
            ("path,label\na.png,1\nb.png,1e39\n", "line 3: the label '1e39' in column 'label' is beyond a float32"),
            ("path,x,y\na.png,1,16777217\n", "line 2: the label '16777217' in column 'y' would become 16777216"),
            ("path,label,label\na.png,1,2\n", "line 1: two columns are called 'label'"),
            ("path,label\n,1\n", "empty path"),
            ("path,label\na\0.png,1\n", "zero byte"),
            ("path,label\n", "no rows"),
            ("", "no rows"),
        ],
    )
    def test_names_what_is_wrong_and_its_line(self, tmp_path, text, problem):
        path = write_csv(tmp_path, text)
        with pytest.raises(SourceError, match=problem):
            csv_file(path).listing().check_whole()

    def test_a_file_without_a_header_keeps_its_first_image(self, tmp_path):
        make_image_folder(tmp_path, {"a": 2})
        path = write_csv(tmp_path, "a/0000.png,1\na/0001.png,2\n")
        with pytest.raises(SourceError, match=r"line 1: 'a/0000\.png' is a file: expected the columns' names"):
            csv_file(path).listing().check_whole()

    def test_white_space_makes_no_class(self, tmp_path):
        listing = csv_file(write_csv(tmp_path, "path, label\na.png, cat\nb.png,cat \nc.png,dog\n")).listing()
        assert listing.schema.class_names == ("cat", "dog")
        assert listing.columns["label"].tolist() == [0, 0, 1]

    def test_latin1_is_refused(self, tmp_path):
        with pytest.raises(SourceError, match=r"labels\.csv, line 2: the name 'caf\\udce9\.png' is not UTF-8"):
            csv_file(write_csv(tmp_path, "path,label\ncafé.png,1\n", "latin-1")).listing().check_whole()

    def test_paths_start_from_the_root(self, tmp_path):
        make_image_folder(tmp_path / "images", {"a": 1})
        source = csv_file(write_csv(tmp_path, "path,label\na/0000.png,1\n"), root=tmp_path / "images")
        assert read(source, 0).fields == {"image": image(0), "label": 1}

    def test_an_absolute_path_stays(self, tmp_path):
        make_image_folder(tmp_path, {"a": 1})
        source = csv_file(write_csv(tmp_path, f"path,label\n{tmp_path}/a/0000.png,1\n"), root="/nowhere")
        assert read(source, 0).fields["image"] == image(0)


class TestLst:
    def write(self, folder: Path, text: str) -> Path:
        (folder / "train.lst").write_bytes(text.encode())
        return folder / "train.lst"

    def test_one_whole_label_is_int64(self, tmp_path):
        listing = lst_file(self.write(tmp_path, "5\t1.000000\tb.png\n2\t0.000000\ta b.png\n")).listing()
        assert list(listing.keys) == ["b.png", "a b.png"]
        assert listing.columns["label"].dtype == "int64"
        assert listing.columns["label"].tolist() == [1, 0]

    def test_one_fraction_makes_labels_float32(self, tmp_path):
        listing = lst_file(self.write(tmp_path, "0\t1.5\tb.png\n1\t2\ta.png")).listing()
        assert listing.columns["label"].dtype == "float32"
        assert str(listing.schema["label"]) == "float32"

    def test_several_labels_are_a_vector(self, tmp_path):
        listing = lst_file(self.write(tmp_path, "0\t1\t2\t3\tb.png\r\n1\t4\t5\t6\ta.png\r\n")).listing()
        assert list(listing.keys) == ["b.png", "a.png"]
        np.testing.assert_array_equal(listing.columns["label"], np.array([[1, 2, 3], [4, 5, 6]], "float32"))

    def test_only_a_newline_ends_a_line(self, tmp_path):
        listing = lst_file(self.write(tmp_path, "0\t1\ta\u2028\x0c\x85.png\n")).listing()
        assert list(listing.keys) == ["a\u2028\x0c\x85.png"]

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("0\t1\ta.png\n1\tx\tb.png\n", "line 2: the label 'x' is not a number"),
            ("0\t1\ta.png\n1\tnan\tb.png\n", "line 2: the label 'nan' is not a number"),
            ("0\t1\ta.png\n1 2 b.png\n", "line 2: 1 column, expected index, label and path"),
            ("0\t1\ta.png\n\n", "line 2: 1 column"),
            ("0\t1\ta.png\n1\t1\t2\tb.png\n", "line 2: 2 labels, the lines before have 1"),
            ("0\t1\ta.png\n1\t1\ta.png\n", "train.lst, line 2: 'a.png' is listed twice, first by line 1"),
            ("0\t1\ta.png\n1\t1e300\tb.png\n", "line 2: the label '1e300' is beyond a float32"),
            (f"0\t{2**63}\ta.png\n", f"line 1: the label '{2**63}' is beyond an int64"),
            ("0\t0.5\ta.png\n1\t16777217\tb.png\n", "line 2: the label '16777217' would become 16777216"),
            ("", "is empty"),
        ],
    )
    def test_names_what_is_wrong_and_its_line(self, tmp_path, text, problem):
        with pytest.raises(SourceError, match=problem):
            lst_file(self.write(tmp_path, text)).listing().check_whole()
