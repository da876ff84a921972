"""Decode-ready records as people see them: as JPEGs, or as an error with a remedy if that has no meaning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import DecodeReady, Manifest
from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError, UsageError
from dlio.images import Resize
from dlio.look.filesystem import DlioFileSystem
from dlio.look.measure import forms, loading, storage
from dlio.pack.recode import Recode
from dlio.sources import image_folder
from tests.helpers.decode_ready import COME_BACK, STAY, damaged, needs_core, write_images
from tests.helpers.images import make_image_folder
from tests.helpers.packing import samples
from tests.loaders.packing import pack_samples

pytestmark = needs_core


@pytest.fixture
def ready(tmp_path) -> Path:
    write_images(tmp_path / "in")
    how = {"recode": Recode(decode_ready=True), "format": "squashfs", "num_shards": 2, "engine": "serial"}
    dlio.pack(image_folder(tmp_path / "in"), tmp_path / "ready", **how)
    return tmp_path / "ready"


def test_show_writes_the_jpegs(ready, tmp_path, run):
    code, out, _ = run("show", ready, *range(8), "--out", tmp_path / "found", "--json")
    shown = {sample["key"]: Path(sample["path"]) for sample in json.loads(out)["samples"]}
    assert code == 0 and {path.suffix for path in shown.values()} == {".jpg"}
    assert all(shown[key].read_bytes() == (tmp_path / "in" / key).read_bytes() for key in COME_BACK)


def test_paths_of_fsspec_are_the_jpegs(ready, tmp_path):
    view = DlioFileSystem(str(ready), skip_instance_cache=True)
    found = view.find("", detail=True)
    assert len(found) == 10
    assert all(view.cat_file(key) == (tmp_path / "in" / key).read_bytes() for key in (*COME_BACK, *STAY))
    assert all(entry["size"] == len(view.cat_file(key)) == view.size(key) for key, entry in found.items())
    view.invalidate_cache()


def test_a_damaged_record_is_named_by_its_path(tmp_path):
    record = samples(tmp_path_of_one(tmp_path))[0][1]["image"]
    bad = [Sample("a/k.jpg", {"image": damaged(record)})]
    pack_samples(tmp_path / "bad", Schema.of({"image": "bytes"}), bad, num_shards=1)
    view = DlioFileSystem(str(tmp_path / "bad"), skip_instance_cache=True)
    with pytest.raises(CorruptRecordError, match=r"record 0.*'a/k\.jpg': .*CRC-32C"):
        view.cat_file("a/k.jpg")
    view.invalidate_cache()


def test_a_damaged_record_is_shown_as_what_it_is(tmp_path):
    record = samples(tmp_path_of_one(tmp_path))[0][1]["image"]
    pack_samples(
        tmp_path / "bad", Schema.of({"image": "bytes"}), [Sample("k", {"image": damaged(record)})], num_shards=1
    )
    [shown] = dlio.show(tmp_path / "bad")
    with pytest.raises(ValueError, match="CRC-32C"):
        _ = shown.image


def tmp_path_of_one(folder: Path) -> Path:
    make_image_folder(folder / "one", {"a": 1}, "JPEG", width=200, height=160)
    dlio.pack(image_folder(folder / "one"), folder / "packed", recode=Recode(decode_ready=True), engine="serial")
    return folder / "packed"


def test_info_and_report_tell_of_them(ready, tmp_path, run):
    code, out, _ = run("info", ready)
    assert code == 0 and "decode ready" in out.replace("_", " ") and "progressive: 1" in out
    assert json.loads(run("info", ready, "--json")[1])["decode_ready"] == {"records": 8, "progressive": 1}
    page = dlio.report(ready, tmp_path / "report.html").read_text()
    assert "decode-ready JPEG, 3 channels" in page and "decode-ready JPEG, 1 channel" in page
    assert run("doctor", ready)[0] in (0, 1)


def test_their_numbers_are_those_of_the_jpegs(ready, tmp_path):
    plain = dlio.pack(image_folder(tmp_path / "in"), tmp_path / "plain", engine="serial")
    one, other = (dlio.info(folder, stats=True)["stats"] for folder in (plain.root, ready))
    assert {name: one[name] for name in ("mean", "std")} == {name: other[name] for name in ("mean", "std")}


def test_mount_refuses_them_with_the_way_out(ready, tmp_path, run):
    code, _, error = run("mount", ready, tmp_path / "here", "--", "true")
    assert code == 2 and f"only dlio can read: dlio convert {ready} OUT --format squashfs --jpeg" in error


def test_parts_and_unions_keep_them(ready, tmp_path, run):
    stored = samples(ready)
    assert run("split", ready, "-o", tmp_path / "parts", "--fractions", "0.5,0.5")[0] == 0
    parts = [tmp_path / "parts" / name for name in ("train", "val")]
    assert run("merge", *parts, "-o", tmp_path / "whole")[0] == 0
    assert sorted(samples(tmp_path / "whole"), key=str) == sorted(stored, key=str)
    assert Manifest.load(tmp_path / "whole").decode_ready.records >= 8
    assert run("verify", tmp_path / "whole", "--decode", "--quiet", "--workers", "1")[0] == 0
    code, _, _ = run("convert", tmp_path / "whole", tmp_path / "back", "--jpeg", "--quiet", "--engine", "serial")
    back = {key: fields["image"] for key, fields in samples(tmp_path / "back")}
    assert code == 0 and all(back[key] == (tmp_path / "in" / key).read_bytes() for key in COME_BACK)
    assert Manifest.load(tmp_path / "back").decode_ready == DecodeReady()


@pytest.fixture
def quick(monkeypatch):
    for module in (storage, loading, forms):
        monkeypatch.setattr(module, "SECONDS", 0.02)
    monkeypatch.setattr(storage, "MOST_BYTES", 1 << 20)


@pytest.mark.parametrize("name", ["in", "ready"])
def test_bench_measures_windows_of_the_sets_own_images(quick, ready, name, tmp_path, run):
    folder = ready
    if name == "in":
        folder = dlio.pack(image_folder(tmp_path / "in"), tmp_path / "plain", engine="serial").root
    words = ["--decode-ready", "--transform", "CenterCrop:8"]
    code, out, _ = run("bench", folder, tmp_path, *words, "--json")
    found = json.loads(out)["windows"]
    assert (code, found["num_images"], found["num_records"]) == (0, 10, 8)
    assert all(found["milliseconds"][form] > 0 and found["num_bytes"][form] > 0 for form in forms.FORMS)
    assert "8 of 10 images read qualify" in json.loads(out)["verdict"][3]
    said = run("bench", folder, tmp_path / "new", *words)[1]
    assert "window, decode-ready" in said and f"\nlocal is {tmp_path}\n" in said


def test_bench_says_where_decode_ready_does_nothing(quick, photos, run):
    packed = dlio.pack(photos, photos.parent / "packed", engine="serial").root
    found = dlio.bench(packed, photos.parent, transform=Resize(8), decode_ready=True)
    assert "has no effect: none of the 36 images read" in found.verdict()[3]
    pack_samples(photos.parent / "text", Schema.of({"text": "str"}), [Sample("k", {"text": "t"})], num_shards=1)
    with pytest.raises(UsageError, match=r"is for images.*'text'"):
        dlio.bench(photos.parent / "text", decode_ready=True)


@pytest.mark.parametrize(("ready_ms", "said"), [(0.2, "pays if the CPU limits"), (0.39, "does not pay on this")])
def test_the_verdict_compares_with_crop_ready(ready_ms, said):
    milliseconds = dict(zip(forms.FORMS, (0.6, 0.4, ready_ms), strict=True))
    found = forms.FormTimes(9, 8, milliseconds, dict(zip(forms.FORMS, (100, 97, 103), strict=True))).verdict()
    assert said in found and "become 1.03 times as large" in found and "0.60 ms from a JPEG, 0.40 crop-ready" in found
