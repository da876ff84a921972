"""Images changed while they are packed: size, crop, colour, encoding, readiness for crops."""

from __future__ import annotations

import io
import json
from contextlib import closing

import numpy as np
import pytest
from PIL import Image

import dlio
from dlio import native
from dlio.cli import main
from dlio.codecs import decoders
from dlio.codecs.orientation import orientation_of
from dlio.dataset.manifest import CropReady, Manifest
from dlio.dataset.schema import Schema
from dlio.errors import SourceError, UsageError
from dlio.images import Resize
from dlio.loaders import batches
from dlio.loaders.dataset import PackedSamples
from dlio.pack.inspect.image_header import inspect_image
from dlio.pack.inspect.summary import summarise
from dlio.pack.recode import KEEP, Recode
from dlio.sources import csv_file, image_folder, open_source, packed
from tests.helpers.images import encoded, image, make_image_folder
from tests.helpers.packing import BYTE_IDENTICAL, content, samples


def recode(data: bytes, **options) -> Image.Image:
    recoded, info, _ = Recode(**options).apply(data, inspect_image(data))
    picture = Image.open(io.BytesIO(recoded))
    picture.load()
    assert (picture.format, picture.height, picture.width) == (info.format, info.height, info.width)
    return picture


@pytest.mark.parametrize(
    ("kind", "mode"), [("JPEG", "RGB"), ("JPEG", "L"), ("PNG", "RGB"), ("PNG", "L"), ("PNG", "RGBA")]
)
@pytest.mark.parametrize(("width", "height", "expected"), [(90, 60, (48, 32)), (60, 90, (32, 48)), (16, 16, (32, 32))])
def test_resize_sets_the_shorter_edge(kind, mode, width, height, expected):
    data = image(2, kind, mode, width, height)
    found = recode(data, resize=32)
    assert (found.size, found.mode, found.format) == (expected, mode, kind)
    reference = Image.open(io.BytesIO(data)).resize(expected, Image.Resampling.BILINEAR)
    difference = np.abs(np.asarray(found, "int16") - np.asarray(reference, "int16"))
    assert difference.mean() < (12 if kind == "JPEG" else 1)


def test_the_centre_is_cut_out_before_it_is_resized():
    picture = Image.new("RGB", (90, 30), "black")
    picture.paste("white", (30, 0, 60, 30))
    data = encoded(picture, "PNG")
    found = recode(data, center_crop=True, resize=15)
    assert found.size == (15, 15)
    assert np.asarray(found).min() == 255
    assert recode(data, center_crop=True).size == (30, 30)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_check_decode_finds_damage_behind_the_head(kind):
    data = image(2, kind, "RGB", 90, 60)
    assert Recode(check="decode").apply(data, inspect_image(data))[0] == data
    bad = data[: len(data) // 2] + b"\xff" * (len(data) // 4) + data[len(data) // 2 + len(data) // 4 :]
    assert Recode().apply(bad, inspect_image(bad))[0] == bad
    with pytest.raises(SourceError, match="cannot be decoded"):
        Recode(check="decode").apply(bad, inspect_image(bad))


def test_pack_leaves_out_what_does_not_decode(tmp_path):
    folder = tmp_path / "in" / "a"
    folder.mkdir(parents=True)
    for name in ("bad", "good"):
        (folder / f"{name}.png").write_bytes(image(2, "PNG", "RGB", 9, 9))
    data = bytearray((folder / "bad.png").read_bytes())
    data[60] ^= 255
    (folder / "bad.png").write_bytes(data)
    command = [
        "pack",
        str(tmp_path / "in"),
        str(tmp_path / "out"),
        "--check",
        "decode",
        "--on-error",
        "skip",
        "--quiet",
    ]
    assert main([*command, "--engine", "serial"]) == 1
    assert [key for key, _ in Manifest.load(tmp_path / "out").skipped] == ["a/bad.png"]


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_colour(kind):
    assert recode(image(1, kind, "L"), color="rgb").mode == "RGB"
    assert recode(image(1, kind, "RGB"), color="grey").mode == "L"
    assert recode(image(1, "PNG", "RGBA"), color="rgb").mode == "RGB"
    assert recode(image(1, "PNG", "P"), color="rgb", resize=8).mode == "RGB"
    assert recode(image(1, "PNG", "P"), color="grey").mode == "L"


@pytest.mark.parametrize(("kind", "mode", "expected"), [
    ("PNG", "RGB", "RGB"), ("PNG", "RGBA", "RGB"), ("PNG", "L", "L"), ("PNG", "P", "RGB"), ("BMP", "RGB", "RGB"),
    ("TIFF", "RGB", "RGB"), ("WEBP", "RGB", "RGB"),
])  # fmt: skip
def test_anything_becomes_a_jpeg_or_a_png(kind, mode, expected):
    found = recode(image(1, kind, mode), encoding="jpeg", quality=80)
    assert (found.format, found.mode) == ("JPEG", expected)
    assert recode(image(1, kind, mode), encoding="png").format == "PNG"


def test_cmyk_becomes_rgb():
    assert recode(image(1, "JPEG", "CMYK"), resize=8).mode == "RGB"
    assert recode(image(1, "JPEG", "CMYK"), color="rgb").mode == "RGB"


def test_16_bit_is_resized_and_refused_as_jpeg():
    assert recode(image(1, "PNG", "I;16"), resize=8).mode == "I;16"
    for options in ({"encoding": "jpeg"}, {"color": "rgb"}):
        with pytest.raises(SourceError, match="mode I;16"):
            recode(image(1, "PNG", "I;16"), **options)


def test_quality_changes_the_size():
    sizes = [
        len(
            Recode(encoding="jpeg", quality=q).apply(
                image(1, width=200, height=200), inspect_image(image(1, width=200, height=200))
            )[0]
        )
        for q in (30, 95)
    ]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("options", [{}, {"resize": 16}, {"color": "rgb"}, {"resize": 16, "quality": 10}])
def test_what_is_already_asked_for_keeps_its_bytes(kind, options):
    data = image(1, kind)
    assert Recode(**options).apply(data, inspect_image(data))[0] is data
    once = Recode(resize=8, encoding="jpeg").apply(data, inspect_image(data))
    assert Recode(resize=8, encoding="jpeg").apply(*once[:2])[0] == once[0]


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_broken_image_is_refused(kind):
    data = bytearray(image(1, kind, width=100, height=100))
    data[len(data) // 2 : len(data) // 2 + 100] = b"\xff\x00\xaa\x55" * 25
    with pytest.raises(SourceError, match="cannot be decoded"):
        recode(bytes(data), resize=50)


def test_an_image_enlarged_beyond_what_a_jpeg_holds_is_refused():
    with pytest.raises(SourceError, match=r"or encoded: .*76800 x 128, a JPEG has at most 65500 a side"):
        recode(image(1, "JPEG", width=600, height=1), resize=128)


def test_an_image_enlarged_beyond_all_memory_is_refused():
    with pytest.raises(SourceError, match="cannot be decoded or encoded"):
        recode(image(1, "JPEG", width=65_000, height=1), resize=1 << 14)


@pytest.mark.parametrize(
    "options",
    [{"resize": 0}, {"resize": 1 << 20}, {"quality": 0}, {"quality": 101}, {"color": "pink"}, {"encoding": "gif"}],
)
def test_what_cannot_be_is_refused(options):
    with pytest.raises(UsageError):
        Recode(**options)


needs_core = pytest.mark.skipif(not native.decodes_jpeg, reason="the core's decoder of JPEGs is not installed")


@needs_core
def test_crop_ready_jpegs_have_the_same_pixels_and_are_counted(tmp_path):
    make_image_folder(tmp_path / "in", {"a": 3}, kind="JPEG", width=200, height=160)
    make_image_folder(tmp_path / "in", {"b": 2})
    manifest = dlio.pack(
        image_folder(tmp_path / "in"), tmp_path / "out", recode=Recode(crop_ready=True), engine="serial"
    )
    assert [shard.crop_ready for shard in Manifest.load(tmp_path / "out").shards] == [CropReady(3, 3, 2)]
    assert manifest.origin["recode"]["crop_ready"] is True
    for key, fields in samples(tmp_path / "out"):
        before = Image.open(io.BytesIO((tmp_path / "in" / key).read_bytes()))
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(fields["image"]))), np.asarray(before))
        assert key.startswith("b") or native.probe(fields["image"]).crop_ready


@needs_core
def test_conversion_keeps_the_counts_and_tells_rewritten_from_kept(tmp_path):
    make_image_folder(tmp_path / "in", {"a": 3}, kind="JPEG", width=200, height=160)
    make_image_folder(tmp_path / "in", {"b": 2})
    dlio.pack(image_folder(tmp_path / "in"), tmp_path / "out", recode=Recode(crop_ready=True), engine="serial")
    for name, how in {"plain": KEEP, "again": Recode(crop_ready=True)}.items():
        dlio.pack(packed(tmp_path / "out"), tmp_path / name, format="lmdb", recode=how, num_shards=2, engine="serial")
        shards = Manifest.load(tmp_path / name).shards
        assert sum((shard.crop_ready or CropReady() for shard in shards), CropReady()).ready == 3
        assert sum(shard.crop_ready.rewritten for shard in shards if shard.crop_ready) == 0
        assert summarise(Manifest.load(tmp_path / name)).crop_ready.kept >= 3
    plain = dlio.pack(image_folder(tmp_path / "in"), tmp_path / "none", engine="serial")
    assert [shard.crop_ready for shard in plain.shards] == [None]


@needs_core
def test_conversion_keeps_the_counts_of_images_with_other_labels(tmp_path):
    make_image_folder(tmp_path / "in", {"a": 2}, kind="JPEG", width=200, height=160)
    (tmp_path / "in/t.csv").write_text("path,x,y\na/0000.jpg,1,2\na/0001.jpg,3,4\n")
    dlio.pack(csv_file(tmp_path / "in/t.csv"), tmp_path / "out", recode=Recode(crop_ready=True), engine="serial")
    converted = dlio.pack(packed(tmp_path / "out"), tmp_path / "lmdb", format="lmdb", engine="serial")
    assert [shard.crop_ready for shard in converted.shards] == [CropReady(ready=2, rewritten=0, kept=2)]


def test_a_recoded_data_set(tmp_path):
    make_image_folder(tmp_path / "in", {"a": 6}, kind="JPEG", width=90, height=60)
    source, how = image_folder(tmp_path / "in"), Recode(resize=30, color="grey")
    for name in BYTE_IDENTICAL:
        dlio.pack(source, tmp_path / name, format=name, recode=how, num_shards=3, workers=2)
        dlio.pack(source, tmp_path / f"{name} again", format=name, recode=how, num_shards=3, engine="serial")
        assert content(tmp_path / name) == content(tmp_path / f"{name} again")
    for _, fields in samples(tmp_path / "tfrecord"):
        assert Image.open(io.BytesIO(fields["image"])).size == (45, 30)


def test_other_options_are_another_data_set(tmp_path):
    make_image_folder(tmp_path / "in", {"a": 6}, kind="JPEG")
    dlio.pack(image_folder(tmp_path / "in"), tmp_path / "out", recode=Recode(resize=8), engine="serial")
    for other in (KEEP, Recode(resize=8, quality=90)):
        with pytest.raises(UsageError, match="another data set"):
            dlio.pack(image_folder(tmp_path / "in"), tmp_path / "out", recode=other, engine="serial")


def test_bad_images_are_skipped_by_name(tmp_path):
    make_image_folder(tmp_path / "in", {"a": 3}, kind="PNG", width=50, height=50)
    broken = bytearray(image(1, width=50, height=50))
    broken[len(broken) // 2] ^= 0xFF
    (tmp_path / "in/a/0001.png").write_bytes(broken)
    (tmp_path / "in/a/0002.png").write_bytes(image(1, mode="I;16"))
    how = Recode(resize=20, encoding="jpeg")
    manifest = dlio.pack(image_folder(tmp_path / "in"), tmp_path / "out", recode=how, on_error="skip", engine="serial")
    skipped = dict(manifest.skipped)
    assert skipped.keys() == {"a/0001.png", "a/0002.png"}
    assert "cannot be decoded" in skipped["a/0001.png"]
    assert "mode I;16" in skipped["a/0002.png"]


def test_images_in_vectors_of_labels_are_recoded_too(tmp_path):
    make_image_folder(tmp_path / "in", {"a": 2})
    (tmp_path / "in/t.csv").write_text("path,x,y\na/0000.png,1,2\na/0001.png,3,4\n")
    dlio.pack(csv_file(tmp_path / "in/t.csv"), tmp_path / "out", recode=Recode(resize=5), engine="serial")
    assert min(Image.open(io.BytesIO(samples(tmp_path / "out")[1][1]["image"])).size) == 5


def turned_image(kind: str, orientation: int, mode: str = "RGB") -> bytes:
    gradient = Image.fromarray(np.add.outer(np.arange(48) * 2, np.arange(64)).astype("uint8")).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(gradient, kind, exif=exif)


def upright_pixels(data: bytes) -> np.ndarray:
    return np.asarray(decoders.decode_rgb(data, upright=True)).astype(int)


@pytest.mark.parametrize(
    "options", [{"resize": 24}, {"encoding": "png"}, {"encoding": "jpeg"}, {"center_crop": True}], ids=str
)
@pytest.mark.parametrize(("kind", "mode"), [("JPEG", "RGB"), ("JPEG", "L"), ("PNG", "RGB"), ("WEBP", "RGB")])
@pytest.mark.parametrize("orientation", [1, 2, 5, 6, 8])
def test_an_image_encoded_again_keeps_its_orientation(kind, mode, orientation, options):
    data = turned_image(kind, orientation, mode)
    found, info, _ = Recode(**options).apply(data, inspect_image(data))
    assert orientation_of(found) == orientation
    assert (info.height, info.width) == Image.open(io.BytesIO(found)).size[::-1]
    upright, _, _ = Recode(**options, upright=True).apply(data, inspect_image(data))
    assert orientation_of(upright) == 1
    assert np.abs(upright_pixels(found) - upright_pixels(upright)).mean() < 2
    assert np.array_equal(upright_pixels(upright), np.asarray(decoders.decode_rgb(upright)))


def test_upright_leaves_what_is_upright_as_it_is():
    data = turned_image("JPEG", 1)
    assert Recode(upright=True).apply(data, inspect_image(data))[0] is data


def test_pack_upright_turns_boxes_and_masks(tmp_path):
    for name in ("stored", "upright"):
        listing = coco_of_turned_images(tmp_path / name)
        recode = Recode(upright=name == "upright")
        dlio.pack(open_source(listing, masks="classes"), tmp_path / name / "out", engine="serial", recode=recode)
    made = []
    for name, upright in (("stored", True), ("upright", False)):
        with closing(PackedSamples(tmp_path / name / "out", Resize(32), upright=upright)) as packed_samples:
            made.append(batches.make(packed_samples, range(8), 0))
    one, other = made
    assert all(np.array_equal(a, b) for a, b in zip(one["boxes"], other["boxes"], strict=True))
    assert len({tuple(boxes.ravel().tolist()) for boxes in one["boxes"]}) == 8
    assert np.array_equal(one["mask"], other["mask"]) and one["mask"].any()
    assert np.abs(one["image"].astype(int) - other["image"]).mean() < 2


def coco_of_turned_images(folder):
    folder.mkdir()
    for number in range(1, 9):
        (folder / f"{number}.jpg").write_bytes(turned_image("JPEG", number))
    images = [{"id": n, "file_name": f"{n}.jpg", "width": 64, "height": 48} for n in range(1, 9)]
    square = {"bbox": [8, 4, 24, 16], "area": 384, "iscrowd": 0, "segmentation": [[8, 4, 32, 4, 32, 20, 8, 20]]}
    annotations = [{"id": n, "image_id": n, "category_id": 1} | square for n in range(1, 9)]
    found = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "cat"}]}
    (folder / "coco.json").write_text(json.dumps(found))
    return folder / "coco.json"


def test_pack_upright_names_a_field_that_may_turn_or_not():
    schema = Schema.of({"image": "bytes", "keypoints": "float32[17,2]"})
    with pytest.raises(UsageError, match=r"'keypoints' \(float32\[17,2\]\).*pack without --upright"):
        Recode(upright=True).check_targets("in", schema)
