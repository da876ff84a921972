"""COCO, Pascal VOC and masks: what they become, and what is refused."""

from __future__ import annotations

import io
import json
import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dlio
from dlio.errors import DlioError, SourceError, UsageError
from dlio.images import Resize
from dlio.loaders import batches
from dlio.loaders.dataset import PackedSamples
from dlio.pack.listing.base import Source
from dlio.pack.recode import Recode
from dlio.pack.request import PackPlan, PackRequest, make_plan
from dlio.sources import open_source
from tests.helpers.images import encoded, image
from tests.helpers.packing import read_all


def write_coco(folder: Path, **changes: object) -> Path:
    """Writes two images of 8 x 6 pixels, with three objects of two classes whose ids have gaps."""
    for number in range(2):
        (folder / f"{number}.png").write_bytes(image(number, width=8, height=6))
    images = [{"id": 5 + n, "file_name": f"{n}.png", "width": 8, "height": 6} for n in range(2)]
    boxes = [[1, 2, 3, 4], [0, 0, 8.5, 6], [2, 2, 0, 1]]
    objects = [
        {"id": n, "image_id": 5, "category_id": 90 if n else 3, "bbox": box, "area": 7.5, "iscrowd": n}
        for n, box in enumerate(boxes)
    ]
    categories = [{"id": 90, "name": "dog"}, {"id": 3, "name": "cat"}]
    found = {"images": images, "annotations": objects, "categories": categories}
    for key, value in changes.items():
        name, _, number = key.partition("_")
        if number:
            found[name][int(number)] |= value
        else:
            found[name] = value
    path = folder / "coco.json"
    path.write_text(json.dumps(found))
    return path


def test_coco_becomes_boxes_by_their_corners_and_dense_labels(tmp_path):
    source = open_source(write_coco(tmp_path))
    first, second = read_all(source)
    assert source.listing().schema.class_names == ("cat", "dog")
    assert first["boxes"].tolist() == [[1, 2, 4, 6], [0, 0, 8, 6]]
    assert (first["labels"].tolist(), first["crowd"].tolist()) == ([0, 1], [False, True])
    assert (first["areas"].tolist(), first["image_id"], second["image_id"]) == ([7.5, 7.5], 5, 6)
    assert second["boxes"].shape == (0, 4)


def write_segments(folder: Path, *segmentations: object) -> Path:
    """Writes COCO of which the three objects have these segmentations; the second is a crowd of another class."""
    return write_coco(
        folder, **{f"annotations_{n}": {"segmentation": each, "iscrowd": n % 2} for n, each in enumerate(segmentations)}
    )


SQUARE = [[2, 1, 5, 1, 5, 4, 2, 4]]  # pixels 2, 3, 4 of the rows 1, 2, 3


def test_segmentations_of_coco_become_a_mask_of_classes(tmp_path):
    """The text is what pycocotools makes of the square and of two corners."""
    text = {"size": [6, 8], "counts": "01<2G000`0N"}
    for runs in (text, {"size": [6, 8], "counts": [0, 1, 12, 3, 3, 3, 3, 3, 19, 1]}):
        path = write_segments(tmp_path, SQUARE, [[6, 4, 8, 4, 8, 6, 6, 6]], runs)
        first, second = read_all(open_source(path, masks="classes"))
        found = np.asarray(Image.open(io.BytesIO(first["mask"])))
        expected = np.zeros((6, 8), "uint8")
        expected[4:6, 6:8] = expected[1:4, 2:5] = 255  # a crowd; a cat's that are a dog's, too
        expected[0, 0] = 2
        assert found.tolist() == expected.tolist()
        assert not np.asarray(Image.open(io.BytesIO(second["mask"]))).any()
    plain = read_all(open_source(write_segments(tmp_path, SQUARE, SQUARE, [])))[0]
    assert "mask" not in plain


def test_masks_of_coco_move_with_the_boxes(tmp_path):
    path = write_segments(tmp_path, SQUARE, [], [])
    dlio.pack(open_source(path, masks="classes"), tmp_path / "out", engine="serial")
    assert dlio.verify(tmp_path / "out", workers=1, decode=True) == []
    with closing(PackedSamples(tmp_path / "out", Resize(12))) as packed_samples:
        made = batches.make(packed_samples, [0], 0)
    left, top, right, bottom = (made["boxes"][0][0] / [1.5, 2, 1.5, 2]).tolist()
    assert (left, top, right, bottom) == (1, 2, 4, 6)
    assert made["mask"][0][2:8, 3:7].all() and made["mask"][0].sum() in range(24, 36)


@pytest.mark.parametrize(
    ("segmentation", "problem"),
    [
        ([[1, 1, 2]], "reshape"),
        ([[1, 1, 2, 2]], "a polygon of 2 points"),
        ([[1, 1, 2, float("inf"), 3, 3]], "of finite numbers"),
        ([["a", 1, 2, 2, 3, 3]], "could not convert"),
        ([[0, 0, 8, 6, 8, 0] * 20_000], "edges cross rows"),
        ({"size": [8, 6], "counts": [48]}, r"of an image of \[8, 6\]"),
        ({"size": [6, 8], "counts": [10**12]}, "run lengths of 1,000,000,000,000 pixels"),
        ({"size": [6, 8], "counts": [-1, 49]}, "run lengths of 48 pixels"),
        ({"size": [6, 8], "counts": "P" * 40}, "pycocotools does not write"),
        ({"size": [6, 8], "counts": "é"}, "pycocotools does not write"),
        ({"size": [6, 8]}, "counts"),
        (7, "subscriptable"),
    ],
)
def test_a_wrong_segmentation_is_named_with_its_image(tmp_path, segmentation, problem):
    source = open_source(write_segments(tmp_path, segmentation, [], []), masks="classes")
    with source.reader(source.listing()) as read, pytest.raises(SourceError, match=rf"no mask of '0.png': .*{problem}"):
        read(0)


def test_a_mask_needs_segmentations_and_the_size_of_the_image(tmp_path):
    [(name, reason)] = open_source(write_coco(tmp_path), masks="classes").listing().refused
    assert name == "0.png" and "segmentation" in reason
    source = open_source(write_coco(tmp_path, annotations=[], images_0={"width": 9}), masks="classes")
    with source.reader(source.listing()) as read, pytest.raises(SourceError, match="it is 8 x 6, its annotation says"):
        read(0)
    with pytest.raises(UsageError, match="masks='yes'"):
        open_source(tmp_path / "coco.json", masks="yes")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"annotations_0": {"category_id": 4}}, "of category 4, which is not listed"),
        ({"annotations_1": {"id": 0}}, "annotation 0 is listed twice"),
        ({"annotations_0": {"bbox": [5, 5, 5, 5]}}, "not within the image, 8 x 6"),
        ({"annotations_0": {"bbox": [-3, 0, 5, 5]}}, "not within the image"),
        ({"annotations_0": {"bbox": [1, 1, -1, 5]}}, "not within the image"),
        ({"annotations_0": {"bbox": [1, float("nan"), 1, 5]}}, "not of finite numbers"),
        ({"annotations_0": {"bbox": [1, 2, 3]}}, "not enough values"),
        ({"images_1": {"id": 5}}, "image 5 is listed twice"),
        ({"images_1": {"file_name": "0.png"}}, "'0.png' is listed twice"),
    ],
)
def test_a_wrong_annotation_refuses_its_image_by_name(tmp_path, change, problem):
    listing = open_source(write_coco(tmp_path, **change)).listing()
    assert len(listing) == 1
    [(_, reason)] = listing.refused
    assert problem in reason
    assert "coco.json" in reason
    with pytest.raises(SourceError, match="--on-error skip"):
        listing.check_whole()


@pytest.mark.parametrize(
    "change",
    [
        {"annotations_0": {"image_id": 99}},
        {"annotations_0": {"image_id": "5"}},
        {"categories": [{"id": 3, "name": "cat"}, {"id": 3, "name": "dog"}]},
        {"images": None},
        {"annotations": [7]},
    ],
)
def test_an_annotation_file_of_another_form_is_named(tmp_path, change):
    with pytest.raises(SourceError, match=r"coco\.json is not an annotation file of COCO"):
        open_source(write_coco(tmp_path, **change)).listing()


def write_voc(folder: Path, objects: str, head: str = "") -> Path:
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / name).mkdir(parents=True)
    (folder / "ImageSets/Main/train.txt").write_text("7\n")
    (folder / "JPEGImages" / "7.jpg").write_bytes(image(7, "JPEG", width=8, height=6))
    size = "<size><width>8</width><height>6</height></size>"
    (folder / "Annotations" / "7.xml").write_text(f"{head}<annotation>{size}{objects}</annotation>")
    return folder


def voc_object(name: str, *box: object, more: str = "") -> str:
    sides = "".join(
        f"<{side}>{value}</{side}>" for side, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    )
    return f"<object><name>{name}</name>{more}<bndbox>{sides}</bndbox></object>"


@pytest.mark.parametrize("options", [{}, {"split": "train"}])
def test_voc_counts_pixels_from_one(tmp_path, options):
    objects = voc_object("dog", 1, 1, 8, 6) + voc_object("cat", 2, 3, 2, 3, more="<difficult>1</difficult>")
    source = open_source(write_voc(tmp_path, objects), **options)
    [found] = read_all(source)
    assert source.listing().schema.class_names == ("cat", "dog")
    assert found["boxes"].tolist() == [[0, 0, 8, 6], [1, 2, 2, 3]]
    assert (found["labels"].tolist(), found["difficult"].tolist()) == ([1, 0], [False, True])


@pytest.mark.parametrize(
    ("objects", "head", "problem"),
    [
        (voc_object("cat", 1, 1, 80, 6), "", "not within the image"),
        (voc_object("cat", 1, 1, "x", 6), "", "could not convert"),
        (voc_object("", 1, 1, 2, 2), "", "an element without name"),
        ("<object>", "", "mismatched tag"),
        ("", "<?xml version='1.0' encoding='foo'?>", "unknown encoding"),
        ("", '<!DOCTYPE a [<!ENTITY b "cc"><!ENTITY d "&b;&b;">]>', "declares its own document type"),
    ],
)
def test_a_wrong_annotation_of_voc_refuses_its_image_by_name(tmp_path, objects, head, problem):
    listing = open_source(write_voc(tmp_path, objects, head)).listing()
    assert not len(listing)
    assert problem in listing.refused[0][1]
    assert "7.xml" in listing.refused[0][1]


def test_masks_are_the_files_of_the_same_names(tmp_path):
    for folder in ("images/a", "masks/a"):
        (tmp_path / folder).mkdir(parents=True)
    colours = Image.fromarray(np.array([[0, 1], [2, 255]], "uint8"), "L")
    (tmp_path / "images/a/1.jpg").write_bytes(image(1, "JPEG"))
    (tmp_path / "masks/a/1.png").write_bytes(encoded(colours, "PNG"))
    for lone in ("images/a/2.jpg", "masks/a/3.png", "images/a/4.jpg", "images/a/4.png", "masks/a/4.png"):
        (tmp_path / lone).write_bytes(image(2))
    listing = open_source(tmp_path, name="masks").listing()
    assert list(listing.keys) == ["a/1.jpg"]
    said = "\n".join(reason for _, reason in listing.refused)
    assert all(text in said for text in ("has no mask a/2.png", "it has no image", "2 images share its mask"))
    with open_source(tmp_path / "images", name="masks", masks="../masks").reader(listing) as read:
        assert read(0).fields["mask"] == (tmp_path / "masks/a/1.png").read_bytes()
    with pytest.raises(DlioError, match="masks"):
        open_source(tmp_path / "images", name="masks").listing()


@pytest.mark.parametrize("recode", [Recode(resize=8), Recode(center_crop=True)])
def test_images_with_boxes_keep_their_size(tmp_path, recode):
    source = open_source(write_coco(tmp_path))
    with pytest.raises(UsageError, match="loaders resize images, boxes and masks together"):
        make_plan(source, PackRequest("tfrecord", num_shards=1, recode=recode))
    make_plan(source, PackRequest("tfrecord", num_shards=1, recode=Recode(color="rgb")))


def write_masks(folder: Path, suffix: str = ".png") -> Path:
    for name in ("images", "masks"):
        (folder / name).mkdir()
    (folder / "images/1.jpg").write_bytes(image(1, "JPEG"))
    (folder / f"masks/1{suffix}").write_bytes(encoded(Image.new("L", (8, 6)), "PNG"))
    return folder


@pytest.mark.parametrize("recode", [Recode(resize=8), Recode(color="rgb"), Recode(encoding="jpeg")])
def test_images_with_masks_are_not_changed(tmp_path, recode):
    with pytest.raises(UsageError, match="loaders resize images, boxes and masks together"):
        make_plan(
            open_source(write_masks(tmp_path), name="masks"), PackRequest("tfrecord", num_shards=1, recode=recode)
        )


def plan_of(source: Source) -> PackPlan:
    return make_plan(source, PackRequest("tfrecord", num_shards=1))


def test_objects_that_move_to_another_image_change_the_plan(tmp_path):
    before = plan_of(open_source(write_coco(tmp_path)))
    after = plan_of(open_source(write_coco(tmp_path, annotations_1={"image_id": 6})))
    assert before.header.origin["plan"] != after.header.origin["plan"]


def test_a_changed_mask_is_a_changed_input(tmp_path):
    source = open_source(write_masks(tmp_path), name="masks")
    before, path = plan_of(source), tmp_path / "masks/1.png"
    assert source.listing().num_bytes.tolist() == [path.stat().st_size + (tmp_path / "images/1.jpg").stat().st_size]
    os.utime(path, ns=(0, 7))
    assert plan_of(source).inputs != before.inputs


def test_a_mask_may_have_a_suffix_in_capitals(tmp_path):
    [found] = read_all(open_source(write_masks(tmp_path, ".PNG"), name="masks"))
    assert found["mask"] == (tmp_path / "masks/1.PNG").read_bytes()


def test_a_class_of_voc_has_the_same_index_in_each_split(tmp_path):
    write_voc(tmp_path, voc_object("dog", 1, 1, 8, 6))
    cat = (tmp_path / "Annotations/7.xml").read_text().replace("dog", "cat")
    (tmp_path / "Annotations/8.xml").write_text(cat)
    (tmp_path / "ImageSets/Main/val.txt").write_text("8\n")
    splits = [open_source(tmp_path, name="voc", split=split).listing() for split in ("train", "val")]
    assert [(len(each), each.schema.class_names) for each in splits] == [(1, ("cat", "dog"))] * 2


def test_the_area_of_a_box_of_voc_is_that_of_the_box_within_the_image(tmp_path):
    [found] = read_all(open_source(write_voc(tmp_path, voc_object("dog", 1, 1, 9, 6))))
    assert (found["boxes"].tolist(), found["areas"].tolist()) == ([[0, 0, 8, 6]], [48])
