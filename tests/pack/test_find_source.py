"""Sources are found by their names, and recognised by their inputs."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import dlio
from dlio import sources
from dlio.errors import StorageError, UsageError
from dlio.sources import names, open_source
from tests.helpers.images import image, make_image_folder
from tests.helpers.packing import read_all, samples
from tests.helpers.users import unprivileged

#: A whole source, as another package adds it: one image in a file.
FLOPPY = """
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
import numpy as np
from dlio.dataset.schema import Sample, Schema
from dlio.pack.listing.base import Listing
from dlio.pack.listing.keys import Keys
def recognises(path):
    return path.suffix == ".floppy"
def open_source(path, kind="soft"):
    return Floppy(path, kind)
@dataclass(frozen=True)
class Floppy:
    path: Path
    kind: str
    name: str = "floppy-disk"
    def listing(self):
        return Listing(Schema.of({"image": "bytes"}), Keys.of([self.kind]), np.zeros(1, "int64"), {})
    def reader(self, listing):
        return nullcontext(lambda index: Sample(listing.keys[index], {"image": self.path.read_bytes()}))
"""


def test_recognises_each_kind(tmp_path):
    make_image_folder(tmp_path / "tree", {"a": 1})
    (tmp_path / "labels.csv").write_text("path,label\na,1\n")
    (tmp_path / "x.lst").write_text("0\t1\ta\n")
    names = [open_source(tmp_path / name).name for name in ("tree", "labels.csv", "x.lst")]
    assert names == ["imagefolder", "csv", "lst"]


def test_says_what_it_cannot_open(tmp_path):
    (tmp_path / "x.doc").write_text("?")
    with pytest.raises(UsageError, match="not recognised"):
        open_source(tmp_path / "x.doc")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="empty is empty: give a folder of class folders"):
        open_source(tmp_path / "empty")
    with pytest.raises(UsageError, match="does not exist"):
        open_source(tmp_path / "absent")
    with pytest.raises(UsageError, match="'floppy' is not a source"):
        open_source(tmp_path, name="floppy")


def test_a_path_that_may_not_be_looked_at_is_named(open_tmp):
    (open_tmp / "in").mkdir(mode=0o700)
    with unprivileged(), pytest.raises(StorageError, match=r"cannot read .*in/tree: Permission denied"):
        open_source(open_tmp / "in/tree")


def test_a_source_is_added_by_one_file(tmp_path, monkeypatch):
    (tmp_path / "more").mkdir()
    (tmp_path / "more/floppy_disk.py").write_text(FLOPPY)
    package = importlib.import_module("dlio.pack.sources")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path / "more")])
    (tmp_path / "x.floppy").write_bytes(image(1))
    assert "floppy-disk" in names()
    for source in (open_source(tmp_path / "x.floppy"), open_source(tmp_path / "x.floppy", name="floppy-disk")):
        dlio.pack(source, tmp_path / "out", engine="serial")
        assert samples(tmp_path / "out") == [("soft", {"image": image(1)})]


def test_a_source_in_the_folder_is_a_function_too(tmp_path, monkeypatch):
    (tmp_path / "floppy_disk.py").write_text(FLOPPY)
    package = importlib.import_module("dlio.pack.sources")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    monkeypatch.setattr(sources, "floppy_disk", None, raising=False)  # put back afterwards
    monkeypatch.delattr(sources, "floppy_disk")
    assert {"floppy_disk", "image_folder"} <= {*sources.__all__} & {*dir(sources)}
    assert sources.open_source is open_source
    assert sources.floppy_disk.__module__ == "dlio.pack.sources.floppy_disk"


def test_type_checkers_and_completion_see_every_function():
    tree = ast.parse(Path(sources.__file__).read_text())
    typed = next(node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    functions = {alias.name for line in typed.body for alias in line.names}
    assert functions == {*sources.__all__} - {"names", "open_source"}
    assert functions <= {*dir(dlio.sources)}
    assert all(inspect.isfunction(getattr(dlio.sources, name)) for name in functions)


def test_looking_at_sources_imports_none_before_one_is_used():
    code = "import sys, dlio; dlio.sources.names(); print(*sys.modules); print(dlio.sources.archive)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "dlio.pack.sources" in found.split() and "dlio.pack.sources.packed" not in found
    assert "<function archive" in found


def test_every_source_has_a_name_for_the_command_line():
    expected = "archive caffe-list chestxray14 cifar10 csv frames imagefolder lst"
    assert set(expected.split()) <= set(names())


def test_a_folder_with_annotations_of_coco_is_not_taken_for_class_folders(tmp_path):
    for folder in ("images", "annotations"):
        (tmp_path / "set" / folder).mkdir(parents=True)
    (tmp_path / "set" / "images" / "0.png").write_bytes(image(0, width=8, height=6))
    images = [{"id": 5, "file_name": "0.png", "width": 8, "height": 6}]
    objects = [{"id": 1, "image_id": 5, "category_id": 3, "bbox": [1, 2, 3, 4], "area": 12, "iscrowd": 0}]
    found = {"images": images, "annotations": objects, "categories": [{"id": 3, "name": "cat"}]}
    (tmp_path / "set" / "annotations" / "coco.json").write_text(json.dumps(found))
    (tmp_path / "set" / "classes.json").write_text('{"images": 2, "annotations": 3}')
    source = open_source(tmp_path / "set")
    [fields] = read_all(source)
    assert source.name == "coco" and fields["boxes"].tolist() == [[1, 2, 4, 6]]
    (tmp_path / "set" / "more.json").write_text(json.dumps(found))
    with pytest.raises(UsageError, match=r"2 annotation files of COCO \(annotations/coco.json, more.json\): give one"):
        open_source(tmp_path / "set")
    assert open_source(tmp_path / "set", name="imagefolder").name == "imagefolder"
