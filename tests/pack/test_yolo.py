"""YOLO's folders: boxes in pixels of the stored image, in every layout; wrong lines refuse their image."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dlio
from dlio.errors import SourceError, UsageError
from dlio.pack.recode import Recode
from dlio.sources import open_source
from tests.helpers.packing import read_all, samples
from tests.helpers.users import unprivileged


def write(folder: Path, lines: dict[str, str | None], split: str = "", config: str = "names: {0: cat, 1: dog}") -> Path:
    """Writes images of 40 x 20 pixels, and their text files."""
    for name in ("images", "labels"):
        (folder / name / split).mkdir(parents=True, exist_ok=True)
    for name, text in lines.items():
        Image.new("RGB", (40, 20)).save(folder / "images" / split / f"{name}.jpg")
        if text is not None:
            (folder / "labels" / split / f"{name}.txt").write_text(text)
    if config:
        (folder / "data.yaml").write_text(config)
    return folder


def test_boxes_are_corners_in_pixels(tmp_path):
    write(tmp_path / "in", {"a": "1 0.5 0.5 0.5 0.2\n0 0.9 0.5 0.4 1\n", "b": None, "c": "0 0.1 0.1 0.5 0.1 0.5 0.6"})
    dlio.pack(tmp_path / "in", tmp_path / "out", engine="serial")
    a, b, c = (fields for _, fields in samples(tmp_path / "out"))
    assert np.allclose(a["boxes"], [[10, 8, 30, 12], [28, 0, 40, 20]]) and a["labels"].tolist() == [1, 0]
    assert np.allclose(a["areas"], [80, 240]) and not a["crowd"].any()
    assert b["boxes"].shape == (0, 4)
    assert np.allclose(c["boxes"], [[4, 2, 20, 12]]) and np.allclose(c["areas"], [80])
    assert open_source(tmp_path / "in").listing().schema.class_names == ("cat", "dog")


def test_splits_in_both_layouts_are_chosen(tmp_path):
    write(tmp_path / "one", {"a": "0 0.5 0.5 1 1"}, "train")
    write(tmp_path / "one", {"b": "1 0.5 0.5 1 1"}, "val")
    for place in ("images", "labels"):
        for split in ("train", "val"):
            (tmp_path / "two" / split).mkdir(parents=True, exist_ok=True)
            (tmp_path / "two" / split / place).symlink_to(tmp_path / "one" / place / split)
    (tmp_path / "two" / "data.yaml").write_text("names: [cat, dog]")
    for folder in ("one", "two/data.yaml"):
        with pytest.raises(UsageError, match="holds the splits train, val: give one with --option split="):
            open_source(tmp_path / folder).listing()
        [sample] = read_all(open_source(tmp_path / folder, split="val"))
        assert sample["labels"].tolist() == [1] and sample["boxes"].tolist() == [[0, 0, 40, 20]]
    with pytest.raises(UsageError, match="no split 'test', only train, val"):
        open_source(tmp_path / "one", split="test").listing()


@pytest.mark.parametrize("orientation", range(2, 9))
def test_boxes_of_a_turned_image_are_those_of_its_stored_pixels(orientation, tmp_path):
    """YOLO counts in the upright image: packed upright, the box is what its line says."""
    write(tmp_path / "in", {"a": "0 0.25 0.5 0.5 0.2"})
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (40, 20)).save(tmp_path / "in" / "images" / "a.jpg", exif=exif)
    dlio.pack(tmp_path / "in", tmp_path / "out", engine="serial", recode=Recode(upright=True))
    [(_, fields)] = samples(tmp_path / "out")
    width, height = Image.open(io.BytesIO(fields["image"])).size
    assert (width, height) == ((20, 40) if orientation > 4 else (40, 20))
    expected = np.array([0, 0.4, 0.5, 0.6]) * [width, height, width, height]
    assert np.allclose(fields["boxes"], [expected])


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("0 0.5 0.5 0.5", "a class and 4 numbers"),
        ("0 0.5 0.5 0.5 1.5", "from 0 to 1"),
        ("0 0.5 0.5 nan 0.5", "from 0 to 1"),
        ("cat 0.5 0.5 0.5 0.5", "invalid literal"),
        ("2 0.5 0.5 0.5 0.5", r"class 2 is not one of the 2 in data\.yaml"),
        ("0 0.5 0.5 0.5 0.5 0.9", "a class and 4 numbers, or a polygon"),
    ],
)
def test_a_wrong_line_refuses_its_image(line, problem, tmp_path):
    write(tmp_path / "in", {"a": line, "b": "0 0.5 0.5 1 1"})
    with pytest.raises(SourceError, match=rf"a\.txt: .*{problem}"):
        dlio.pack(tmp_path / "in", tmp_path / "out", engine="serial")
    assert dlio.pack(tmp_path / "in", tmp_path / "out", engine="serial", on_error="skip").num_samples == 1


def test_lines_that_may_not_be_read_refuse_their_image(open_tmp):
    write(open_tmp / "in", {"a": "0 0.5 0.5 0.5 0.2"})
    (open_tmp / "in/labels").chmod(0)
    with unprivileged():
        listing = open_source(open_tmp / "in", name="yolo").listing()
    with pytest.raises(SourceError, match=r"labels/a.txt: .*Permission denied"):
        listing.check_whole()


def test_points_of_a_pose_are_left_out(tmp_path):
    write(tmp_path, {"a": "0 0.5 0.5 1 1 0.1 0.1 0.2 0.2"}, config="names: [person]\nkpt_shape: [2, 2]")
    assert read_all(open_source(tmp_path))[0]["boxes"].tolist() == [[0, 0, 40, 20]]


@pytest.mark.parametrize("config", ["names: 3", "- a", "names: {1: cat}", "a: [", "!!python/object:os.system {}"])
def test_a_damaged_config_is_named(config, tmp_path):
    with pytest.raises(SourceError, match=r"data\.yaml: expected a list of class names"):
        open_source(write(tmp_path, {"a": ""}, config=config)).listing()


def test_a_config_that_aliases_would_expand_is_refused(tmp_path):
    lists = "".join(f"{here}: &{here} [{', '.join([f'*{above}'] * 9)}]\n" for above, here in pairwise("abcdefg"))
    folder = write(tmp_path, {"a": ""}, config=f"a: &a [x]\n{lists}names: *g")
    with pytest.raises(SourceError, match=r"data\.yaml: .*it has aliases"):
        open_source(folder).listing()


def test_a_folder_without_images_is_named(tmp_path):
    (tmp_path / "data.yaml").write_text("names: [cat]")
    with pytest.raises(SourceError, match="no folder images, nor train/images"):
        open_source(tmp_path).listing()
