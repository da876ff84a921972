"""Several sources packed as one."""

from __future__ import annotations

from pathlib import Path

import pytest

import dlio
from dlio.cli import main
from dlio.dataset.manifest import Manifest
from dlio.errors import SourceError, UsageError
from dlio.pack.listing.base import Source
from dlio.pack.listing.joined import joined
from dlio.sources import open_source
from dlio.testing.sources import SourceTests
from tests.conformance.test_sources import INPUTS
from tests.helpers.archives import make_zip
from tests.helpers.images import image, make_image_folder
from tests.helpers.packing import samples


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """Class folders, and a zip with another class between theirs and a name that they have."""
    make_image_folder(tmp_path / "in" / "a", {"ant": 2, "cat": 1})
    first = sorted(path.name for path in (tmp_path / "in" / "a" / "ant").iterdir())[0]
    members = {f"ant/{first}": image(7), "bee/1.png": image(8), "bee/2.png": image(9)}
    return [tmp_path / "in" / "a", make_zip(tmp_path / "in" / "b.zip", members)]


class TestTwoKinds(SourceTests):
    @pytest.fixture
    def source(self, two, tmp_path) -> Source:
        return _At(joined([open_source(path) for path in two]), tmp_path / "in")


class _At:
    """Sources that lie in one folder, which the suite moves away."""

    def __init__(self, source: Source, path: Path) -> None:
        self.name, self.path, self.listing, self.reader = source.name, path, source.listing, source.reader


def test_classes_are_joined_and_repeated_keys_begin_with_their_source(two, tmp_path):
    assert main(["pack", *map(str, two), str(tmp_path / "out"), "--workers", "2", "--num-shards", "2", "--quiet"]) == 0
    found = samples(tmp_path / "out")
    manifest = Manifest.load(tmp_path / "out")
    assert manifest.class_names == ("ant", "bee", "cat") and manifest.origin["source"] == "imagefolder, archive"
    assert [fields["label"] for _, fields in found] == [0, 0, 2, 0, 1, 1]
    assert found[3] == (f"b.zip/{found[0][0]}", {"image": image(7), "label": 0}) and found[4][0] == "bee/1.png"


def test_shuffled_offset_and_pinned_samples_keep_their_images(two, tmp_path):
    classes = ["cat", "bee", "ant"]
    dlio.pack(two, tmp_path / "out", shuffle=3, classes=classes, label_offset=1, num_shards=3, engine="serial")
    dlio.pack(two, tmp_path / "plain", engine="serial")
    plain = {key: (fields["image"], {0: 3, 1: 2, 2: 1}[fields["label"]]) for key, fields in samples(tmp_path / "plain")}
    assert {key: (each["image"], each["label"]) for key, each in samples(tmp_path / "out")} == plain


def test_sources_of_all_kinds_of_columns_are_joined(tmp_path):
    for kind in ("coco", "masks", "parquet", "npz", "shards"):
        (tmp_path / kind).mkdir()
        one, two = (INPUTS[kind](tmp_path / kind / name) for name in ("one", "two"))
        dlio.pack([one, two], tmp_path / kind / "out", num_shards=3, engine="serial")
        found = samples(tmp_path / kind / "out")
        half = len(found) // 2
        assert [repr(fields) for _, fields in found[:half]] == [repr(fields) for _, fields in found[half:]]


def test_sources_that_do_not_fit_are_named(two, tmp_path):
    other = INPUTS["coco"](tmp_path / "coco")
    with pytest.raises(SourceError, match=r"instances_val\.json has .*boxes.* has .*label"):
        dlio.pack([two[0], other], tmp_path / "out", engine="serial")
    with pytest.raises(UsageError, match="no source"):
        dlio.pack([], tmp_path / "out", engine="serial")
    with pytest.raises(UsageError, match="is inside the input"):
        dlio.pack(two, two[0] / "out", engine="serial")
