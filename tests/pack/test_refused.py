"""What a listing refuses: named all at once, or left out and listed under `--on-error skip`."""

from __future__ import annotations

import json
import os
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

import dlio
from dlio.cli import main
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import SourceError
from dlio.pack.sources.chestxray14 import TABLES
from dlio.sources import open_source
from tests.helpers.images import image, make_image_folder
from tests.helpers.packing import content, samples

Made = tuple[Path, dict[str, str], list[tuple[str, int]]]  # input, words of each refusal, keys and labels of the rest


def photos(folder: Path, *names: str) -> None:
    """Writes images of these names."""
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(image(number))


def tree(folder: Path) -> Made:
    root = folder / os.fsdecode(b"in\xe4")
    photos(root, "cat/1.png", "dog/1.png", "owl/1.png", os.fsdecode(b"bee/caf\xe9.png"))
    (root / "cat/loop").symlink_to("..")
    (root / "cat/self.png").symlink_to("self.png")
    (root / "ant").mkdir()
    refused = {"ant": "has no images", "bee/caf\\xe9.png": "not UTF-8"}
    refused |= {"cat/loop": "points to a folder above", "cat/self.png": "cannot read"}
    return root, refused, [("cat/1.png", 1), ("dog/1.png", 2), ("owl/1.png", 3)]  # 0 is that of the bees


def table(folder: Path) -> Made:
    photos(folder, *"abcdefg")
    rows = b"path,label\na,1\nb,x\nc,2,3\nd,\na,4\ncaf\xe9,5\n,6\ng,7\n"
    (folder / "in.csv").write_bytes(rows)
    refused = {"line 4": "3 columns", "b": "line 3: the label 'x'", "d": "missing"}
    refused |= {"a": "listed twice, first by line 2"}
    return folder / "in.csv", refused | {"caf\\xe9": "not UTF-8", "line 8": "empty path"}, [("a", 1), ("g", 7)]


def lst(folder: Path) -> Made:
    photos(folder, *"abcd")
    (folder / "in.lst").write_bytes(b"0\t1\ta\n1 1 b\n2\t1\t2\tc\n3\tone\td\n4\t3\tb\n")
    refused = {"line 2": "1 column,", "line 3": "2 labels", "d": "line 4: the label 'one' is not a number"}
    return folder / "in.lst", refused, [("a", 1), ("b", 3)]


def caffe_list(folder: Path) -> Made:
    photos(folder, *"abc")
    (folder / "in.txt").write_bytes(b"a 1\nb one\nc 2\nc 3\n")
    return folder / "in.txt", {"line 2": "whole number: 'b one'", "c": "line 4"}, [("a", 1), ("c", 2)]


ARCHIVED = {"a/1.png": 0, "../b/2.png": 1, "b/1.png": 2, "loose.png": 3}
LEFT_OUT = {"../b/2.png": "points outside", "loose.png": "not in a class folder"}
KEPT = [("a/1.png", 0), ("b/1.png", 1)]


def zipped(folder: Path) -> Made:
    with zipfile.ZipFile(folder / "in.zip", "w") as archive:
        for name, number in ARCHIVED.items():
            archive.writestr(name, image(number))
    return folder / "in.zip", LEFT_OUT, KEPT


def tarred(folder: Path) -> Made:
    with tarfile.open(folder / "in.tar", "w") as archive:
        for name, number in {**ARCHIVED, os.fsdecode(b"a/\xe9.png"): 4}.items():
            member = tarfile.TarInfo(name)
            member.size = len(image(number))
            archive.addfile(member, BytesIO(image(number)))
        link = tarfile.TarInfo("a/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "1.png"
        archive.addfile(link)
    return folder / "in.tar", LEFT_OUT | {"a/link.png": "is a link", "a/\\xe9.png": "not UTF-8"}, KEPT


def xrays(folder: Path) -> Made:
    photos(folder, *(f"images/{number}.png" for number in range(4)), "images_001/3.png")
    (folder / "images_001/2.png").symlink_to("../images/2.png")
    rows = ["0.png,Hernia", "1.png,Herniaa", "2.png,No Finding", "9.png,Mass", "0.png,Mass", "3.png,Mass"]
    (folder / TABLES[0]).write_text("\n".join(["Image Index,Finding Labels", *rows, ""]))
    refused = {"0.png": "listed twice", "1.png": "line 3: 'Herniaa' is not a finding", "9.png": "none of the folders"}
    refused |= {"3.png": "is in images and images_001 of"}
    return folder, refused, [("images/0.png", 1), ("images_001/2.png", 0)]


MAKERS = [tree, table, lst, caffe_list, zipped, tarred, xrays]


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_refused_is_listed_and_the_rest_is_packed(tmp_path, make, capsys):
    (tmp_path / "data").mkdir()
    source, refused, kept = make(tmp_path / "data")
    options = ["--format", "recordio", "--workers", "1", "--on-error", "skip"]
    command = ["pack", str(source), str(tmp_path / "out"), *options]
    assert main([*command, "--dry-run"]) == 1
    assert not (tmp_path / "out").exists()
    assert main(command) == 1
    manifest = Manifest.load(tmp_path / "out")
    assert sorted(name for name, _ in manifest.skipped) == sorted(refused)
    assert all(refused[name] in reason for name, reason in manifest.skipped)
    written = (tmp_path / "out" / NAME).read_bytes().splitlines()
    assert all(json.dumps(json.loads(line), ensure_ascii=False).encode() for line in written)  # which is Unicode
    said = capsys.readouterr().err
    assert all(said.count(f"skipped {name!r}: ") in (1, 2) for name in refused)
    assert [(key, int(np.sum(fields["label"]))) for key, fields in samples(tmp_path / "out")] == kept
    before = content(tmp_path / "out")
    assert main(command) == 1
    assert content(tmp_path / "out") == before


@pytest.mark.parametrize("make", MAKERS)
def test_raise_names_the_first_and_counts_the_others(tmp_path, make, capsys):
    (tmp_path / "data").mkdir()
    source, _, _ = make(tmp_path / "data")
    refused = open_source(source).listing().refused
    for options in ([], ["--dry-run"]):
        assert main(["pack", str(source), str(tmp_path / "out"), "--format", "recordio", *options]) == 3
        said = capsys.readouterr().err
        assert refused[0][1].encode(errors="backslashreplace").decode() in said
        assert f"({len(refused) - 1} more entr" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["in", "in.tar"])
def test_a_class_without_a_name_is_refused_always_since_other_labels_follow_from_it(tmp_path, name, capsys):
    photos(tmp_path / "in", "ant/1.png", os.fsdecode(b"b\xe4r/1.png"), "cat/1.png")
    if name == "in.tar":
        with tarfile.open(tmp_path / name, "w") as archive:
            archive.add(tmp_path / "in", "in")
    for skip in ([], ["--on-error", "skip"]):
        assert main(["pack", str(tmp_path / name), str(tmp_path / "out"), *skip]) == 3
        folder = "b\\xe4r" if name == "in" else "in/b\\xe4r"
        assert f"{tmp_path / name}: the class folder {folder} is not UTF-8: rename it" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_where_all_is_refused_nothing_is_packed(tmp_path):
    (tmp_path / "in.lst").write_text("a\nb\n")
    with pytest.raises(SourceError, match=r"in.lst: every entry is refused: .*line 1: 1 column, .*; .*line 2"):
        dlio.pack(open_source(tmp_path / "in.lst"), tmp_path / "out", on_error="skip", engine="serial")
    assert not (tmp_path / "out").exists()


def test_same_samples_same_content_id_whatever_was_refused(tmp_path):
    make_image_folder(tmp_path / "in", {"a": 3})
    whole = dlio.pack(open_source(tmp_path / "in"), tmp_path / "whole", engine="serial")
    (tmp_path / "in/a/loop").symlink_to(".")
    partly = dlio.pack(open_source(tmp_path / "in"), tmp_path / "partly", engine="serial", on_error="skip")
    assert len(partly.skipped) == 1
    assert partly.content_id == whole.content_id
