"""`info --stats`: the numbers of the pixels, found once for a content, whatever lies next to the manifest."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dlio
from dlio.cli import main
from dlio.dataset.location import STATS_NAME
from dlio.dataset.schema import Sample, Schema
from dlio.look import numbers
from dlio.look.checks import storage
from tests.helpers.damage import flipped
from tests.loaders.packing import pack_samples

RED, GREY = (255, 0, 0), (51, 51, 51)


@pytest.fixture
def packed(tmp_path) -> Path:
    for name, color, count in (("red", RED, 3), ("grey", GREY, 1)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (30, 20), color).save(tmp_path / "photos" / name / f"{number}.png")
    dlio.pack(tmp_path / "photos", tmp_path / "packed", engine="serial")
    return tmp_path / "packed"


def test_the_numbers_are_those_of_the_pixels(packed):
    read = []
    stats = dlio.info(packed, stats=True, progress=lambda count, size: read.append(count))["stats"]
    pixels = np.array([RED, RED, RED, GREY]) / 255
    assert stats["mean"] == pytest.approx(pixels.mean(axis=0), abs=1e-5)
    assert stats["std"] == pytest.approx(pixels.std(axis=0), abs=1e-5)
    assert stats["class_weights"] == {"grey": 2.0, "red": pytest.approx(2 / 3, abs=1e-6)}
    assert (stats["heights"]["50%"], stats["widths"]["100%"]) == (20, 30)
    assert sum(read) == stats["samples_read"] == 4
    assert dlio.info(packed, stats=True, progress=read.append)["stats"] == stats  # read from the file


def test_no_numbers_are_made_up_where_no_image_decodes(packed, capsys):
    for path in packed.glob("*.tfrecord"):
        path.write_bytes(bytes(path.stat().st_size))
    stats = dlio.info(packed, stats=True)["stats"]
    assert (stats["mean"], stats["std"], stats["heights"]) == (None, None, {})
    assert (stats["images_decoded"], stats["samples_damaged"]) == (0, 4)
    assert not (packed / STATS_NAME).exists()  # the file may be restored
    assert main(["info", str(packed), "--stats"]) == 0
    assert "unknown: none of 4 samples has an image that decodes" in capsys.readouterr().out


def test_a_set_without_images_has_numbers_without_means(tmp_path):
    schema = Schema.of({"label": "int64"})
    pack_samples(tmp_path / "set", schema, [Sample(str(n), {"label": n % 2}) for n in range(4)], num_shards=2)
    assert dlio.info(tmp_path / "set", stats=True) == dlio.info(tmp_path / "set", stats=True)
    assert json.loads((tmp_path / "set" / STATS_NAME).read_text())["mean"] is None


def test_a_grown_set_has_new_numbers(packed):
    before = dlio.info(packed, stats=True)["stats"]
    Image.new("RGB", (30, 20), GREY).save(packed.parent / "photos" / "grey" / "1.png")
    dlio.pack(packed.parent / "photos", packed, append=True, engine="serial")
    assert dlio.info(packed, stats=True)["stats"]["mean"] != before["mean"]
    dlio.pack(packed.parent / "photos", packed, overwrite=True, num_shards=2, engine="serial")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: "[" * 10**5,
        lambda text: json.dumps(json.loads(text) | {"mean": [[], [], []]}),
        lambda text: json.dumps(json.loads(text) | {"class_weights": {"red": "much"}}),
        lambda text: json.dumps(json.loads(text) | {"content_id": "0" * 32, "mean": [1, 1, 1]}),
    ],
)
def test_what_is_not_of_this_content_is_found_anew(packed, change):
    stats, path = dlio.info(packed, stats=True)["stats"], packed / STATS_NAME
    path.write_text(change(path.read_text()))
    assert dlio.info(packed, stats=True)["stats"] == stats
    assert json.loads(path.read_text())["mean"] == stats["mean"]


def test_a_folder_in_the_place_of_the_file_does_no_harm(packed):
    (packed / STATS_NAME).mkdir()
    assert dlio.info(packed, stats=True)["stats"]["samples_read"] == 4


def test_a_flipped_bit_of_the_kept_numbers_gives_no_other_numbers(packed):
    stats, path = dlio.info(packed, stats=True)["stats"], packed / STATS_NAME
    manifest, content = dlio.Manifest.load(packed), path.read_bytes()
    for bit in range(0, 8 * len(content), 5):
        with flipped(path, bit):
            assert numbers._read(path, manifest.content_id) in (None, stats)
    path.write_bytes(content.replace(b'"mean": [0.', b'"mean": [1.'))
    assert path.read_bytes() != content
    assert dlio.info(packed, stats=True)["stats"] == stats
    assert path.read_bytes() == content, "they were computed again"


def test_images_that_exif_turns_are_counted(tmp_path, capsys):
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "photos" / "a").mkdir(parents=True)
    for number in range(3):
        photo = Image.new("RGB", (30, 20), RED)
        photo.save(tmp_path / "photos" / "a" / f"{number}.jpg", **({"exif": exif} if number else {}))
    dlio.pack(tmp_path / "photos", tmp_path / "packed", engine="serial")
    assert dlio.info(tmp_path / "packed", stats=True)["stats"]["images_turned"] == 2
    assert "EXIF turns 2 images" in dlio.report(tmp_path / "packed", tmp_path / "page.html").read_text()
    findings = storage.data_set(tmp_path / "packed", "data set")
    assert [each.advice for each in findings if "EXIF turns 2 of 3 images" in each.found] == [
        "give the loader upright=True, or pack with --upright"
    ]
