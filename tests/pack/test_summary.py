"""The figures of `info`: sizes of samples and shards, classes, without reading an image."""

from __future__ import annotations

import pytest

import dlio
from dlio import formats
from dlio.pack.inspect.summary import summarise
from dlio.sources import csv_file, image_folder
from tests.helpers.images import make_image_folder


@pytest.mark.parametrize("name", [name for name in formats.names() if name != "mds"])
def test_sizes_and_classes(photos, tmp_path, name):
    manifest = dlio.pack(image_folder(photos), tmp_path / "out", format=name, num_shards=3, engine="serial")
    summary = summarise(manifest)
    sizes = sorted(path.stat().st_size + 8 for path in photos.rglob("*.png"))  # a label takes 8 bytes
    assert summary.class_counts == {"cat": 16, "dog": 11, "owl": 9}
    assert (summary.sample_bytes["0%"], summary.sample_bytes["100%"]) == (sizes[0], sizes[-1])
    assert summary.sample_bytes["50%"] in sizes[17:19]
    assert summary.shard_bytes["100%"] == max(shard.num_bytes for shard in manifest.shards)


def test_an_offset_moves_no_class(photos, tmp_path):
    manifest = dlio.pack(image_folder(photos), tmp_path / "out", label_offset=1, engine="serial")
    assert summarise(manifest).class_counts == {"cat": 16, "dog": 11, "owl": 9}


def test_several_labels_are_counted_apart(tmp_path):
    make_image_folder(tmp_path / "in", {"a": 3})
    (tmp_path / "in/t.csv").write_text("path,x,y\na/0000.png,1,0\na/0001.png,1,1\na/0002.png,0,0\n")
    manifest = dlio.pack(csv_file(tmp_path / "in/t.csv"), tmp_path / "out", engine="serial")
    assert summarise(manifest).class_counts == {"x": 2, "y": 1}


def test_classes_without_names_are_counted_by_their_numbers(tmp_path):
    make_image_folder(tmp_path / "in", {"a": 2})
    (tmp_path / "in/t.csv").write_text("path,label\na/0000.png,1\na/0001.png,7\n")
    manifest = dlio.pack(csv_file(tmp_path / "in/t.csv"), tmp_path / "out", engine="serial")
    assert summarise(manifest).class_counts == {"1": 1, "7": 1}
