"""`--decode-ready`: which images become records, what comes back, and what conversions make of them."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dlio
from dlio import formats, native
from dlio.cli import main
from dlio.codecs import decode_ready
from dlio.codecs.orientation import orientation_of
from dlio.dataset.manifest import CropReady, DecodeReady, Manifest
from dlio.dataset.schema import DECODE_READY, Sample, Schema
from dlio.errors import SourceError, UsageError
from dlio.pack.inspect.image_header import inspect_image
from dlio.pack.inspect.summary import summarise
from dlio.pack.inspect.verify import verify
from dlio.pack.recode import Recode
from dlio.sources import image_folder
from tests.helpers.decode_ready import (
    COME_BACK,
    PROGRESSIVE,
    STAY,
    damaged,
    is_record,
    needs_core,
    rgb,
    turned,
    write_images,
)
from tests.helpers.images import encoded, photo
from tests.helpers.packing import samples
from tests.loaders.packing import pack_samples

pytestmark = needs_core
HOW = Recode(decode_ready=True)


def images_of(folder: Path) -> dict[str, bytes]:
    return {key: fields["image"] for key, fields in samples(folder)}


def packed(folder: Path, **options) -> tuple[dict[str, bytes], Manifest]:
    """Returns the images, and the data set of their records."""
    found = write_images(folder / "in")
    return found, dlio.pack(image_folder(folder / "in"), folder / "out", recode=HOW, engine="serial", **options)


def converted(folder: Path, name: str, *options: str) -> dict[str, bytes]:
    assert main(["convert", str(folder / "out"), str(folder / name), "--quiet", "--engine", "serial", *options]) == 0
    return images_of(folder / name)


@pytest.mark.parametrize("name", formats.names())
def test_jpegs_come_back_from_every_format(name, tmp_path):
    images, manifest = packed(tmp_path, format=name, num_shards=2)
    counts = Manifest.load(tmp_path / "out").decode_ready
    assert counts == manifest.decode_ready == DecodeReady(records=len(COME_BACK) + 1, progressive=1)
    stored = images_of(tmp_path / "out")
    assert {key for key, data in stored.items() if is_record(data)} == {*COME_BACK, PROGRESSIVE}
    assert {key: stored[key] for key in STAY} == {key: images[key] for key in STAY}
    assert verify(manifest, decode=True, workers=1) == []
    back = converted(tmp_path, "back", "--jpeg", "--format", name)
    assert {key: back[key] == images[key] for key in images} == {key: key != PROGRESSIVE for key in images}
    with Image.open(io.BytesIO(back[PROGRESSIVE])) as baseline:
        assert baseline.format == "JPEG" and "progressive" not in baseline.info
    assert np.array_equal(rgb(back[PROGRESSIVE]), rgb(images[PROGRESSIVE]))
    assert [shard.decode_ready for shard in Manifest.load(tmp_path / "back").shards] == [None, None]


@pytest.mark.parametrize("name", ["recordio", "webdataset"])
def test_an_index_of_shards_counts_them(name, tmp_path):
    _, manifest = packed(tmp_path, format=name, num_shards=2)
    (adopted := tmp_path / "adopted").mkdir()
    for shard in manifest.shards:
        shutil.copy(manifest.root / shard.files[0].name, adopted)
    found = dlio.index(adopted, format=name, workers=1)
    assert [shard.decode_ready for shard in found.shards] == [shard.decode_ready for shard in manifest.shards]
    plain = dlio.pack(image_folder(tmp_path / "in"), tmp_path / "plain", format=name, engine="serial")
    (tmp_path / "plain" / "manifest.jsonl").unlink()
    assert [shard.decode_ready for shard in dlio.index(plain.root, format=name, workers=1).shards] == [None]


def test_the_manifest_counts_them_among_the_crop_ready_ones(tmp_path):
    images, manifest = packed(tmp_path, num_shards=1)
    assert manifest.shards[0].crop_ready == CropReady(ready=8, rewritten=8, kept=2) and len(images) == 10
    assert summarise(manifest).decode_ready == DecodeReady(8, 1) and manifest.origin["recode"]["decode_ready"] is True
    plain = dlio.pack(image_folder(tmp_path / "in"), tmp_path / "plain", engine="serial")
    assert [shard.decode_ready for shard in plain.shards] == [None]


def test_what_has_no_record_becomes_crop_ready(tmp_path):
    twelve = encoded(photo(200, 160), quality=90) + b"\xff\xd8\xff"  # what follows its end comes back, too
    how = Recode(decode_ready=True)
    for data in (twelve, encoded(photo(200, 160).convert("CMYK"))):
        made, info, _ = how.apply(data, inspect_image(data))
        expected = native.to_planes(data) or native.make_crop_ready(data)
        assert made == expected and (info.format == DECODE_READY) == is_record(made)


def test_a_conversion_keeps_records_but_for_what_changes_pixels(tmp_path):
    images, _ = packed(tmp_path)
    stored = images_of(tmp_path / "out")
    assert converted(tmp_path, "lmdb", "--format", "lmdb") == stored
    assert Manifest.load(tmp_path / "lmdb").decode_ready == DecodeReady(8, 1)
    assert converted(tmp_path, "again", "--decode-ready") == stored
    crop_ready = converted(tmp_path, "crop", "--crop-ready")
    assert crop_ready["a/fine.jpg"] == native.make_crop_ready(images["a/fine.jpg"])
    small = converted(tmp_path, "small", "--resize", "64", "--decode-ready")
    assert is_record(small["a/fine.jpg"]) and min(native.decode(small["a/fine.jpg"]).shape[:2]) == 64
    plain = converted(tmp_path, "png", "--encoding", "png", "--color", "rgb")
    assert np.array_equal(rgb(plain["a/fine.jpg"]), rgb(images["a/fine.jpg"]))
    assert {data[:4] for data in plain.values()} == {b"\x89PNG"}


def test_encoding_jpeg_gives_the_originals_back(tmp_path):
    images, _ = packed(tmp_path)
    found = converted(tmp_path, "back", "--encoding", "jpeg")
    assert {key: found[key] for key in COME_BACK} == {key: images[key] for key in COME_BACK}


def test_images_are_turned_before_they_become_records(tmp_path):
    data = encoded(photo(120, 80), exif=turned(6))
    made, info, _ = Recode(decode_ready=True, upright=True).apply(data, inspect_image(data))
    assert is_record(made) and (info.height, info.width) == (120, 80) and orientation_of(made) == 1
    kept, info, _ = HOW.apply(data, inspect_image(data))
    assert is_record(kept) and (info.height, info.width) == (80, 120) and orientation_of(kept) == 6
    again, info, _ = Recode(upright=True).apply(kept, info)
    expected, same, _ = Recode(upright=True).apply(data, inspect_image(data))
    assert (again, info) == (expected, same)


def test_records_in_fields_of_any_name_come_back(tmp_path):
    jpegs = [encoded(photo(200, 160, number), quality=90) for number in range(3)]
    records = [native.to_planes(jpeg) for jpeg in jpegs]
    schema = Schema.of({"left": "bytes", "rest": "bytes[]", "note": "str"})
    sample = Sample("k", {"left": records[0], "rest": records[1:], "note": "n"})
    pack_samples(tmp_path / "out", schema, [sample], num_shards=1)
    assert main(["convert", str(tmp_path / "out"), str(tmp_path / "back"), "--jpeg", "--quiet"]) == 0
    (_, fields), = samples(tmp_path / "back")  # fmt: skip
    assert (fields["left"], fields["rest"], fields["note"]) == (jpegs[0], jpegs[1:], "n")


def test_a_damaged_record_is_an_error_that_names_the_sample(tmp_path):
    record = native.to_planes(encoded(photo(200, 160), quality=90))
    schema = Schema.of({"image": "bytes", "label": "int64"})
    pair = [Sample("cat.jpg", {"image": damaged(record), "label": 0}), Sample("dog.jpg", {"image": record, "label": 0})]
    manifest = pack_samples(tmp_path / "out", schema, pair, num_shards=1)
    assert verify(manifest, workers=1) == []
    [damage] = verify(manifest, decode=True, workers=1)
    assert (damage.key, damage.record) == ("cat.jpg", 0) and "the field 'image' cannot be decoded" in damage.problem
    with pytest.raises(SourceError, match=r"'cat\.jpg'.*decode-ready record: CRC-32C"):
        dlio.convert(tmp_path / "out", tmp_path / "back", recode=Recode(jpeg=True), engine="serial")
    assert main(["convert", str(tmp_path / "out"), str(tmp_path / "b"), "--jpeg", "--quiet", "--on-error", "skip"]) == 1
    assert [key for key, _ in Manifest.load(tmp_path / "b").skipped] == ["cat.jpg"]


@pytest.mark.parametrize("options", [{"encoding": "png"}, {"jpeg": True}], ids=str)
def test_options_that_contradict_each_other_are_refused(options):
    with pytest.raises(UsageError, match="leave out"):
        Recode(decode_ready=True, **options)


def test_the_record_starts_as_the_schema_says():
    record = native.to_planes(encoded(photo(200, 160), quality=90))
    assert native.is_planes(record) and decode_ready.is_record(record) and decode_ready.is_record(memoryview(record))
