"""dlio bench: results are printed, and kept for plan and stage; nothing else is left."""

from __future__ import annotations

import json
import os

import pytest

import dlio
from dlio.errors import StorageError
from dlio.look import bench as bench_module
from dlio.look.bench import Measured
from dlio.look.measure import loading, storage
from dlio.stage.choose import machine_file
from tests.helpers.images import make_image_folder


@pytest.fixture
def quick(monkeypatch):
    for module in (storage, loading):
        monkeypatch.setattr(module, "SECONDS", 0.02)
    monkeypatch.setattr(storage, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(bench_module, "_ENOUGH_BYTES", 1)


def test_rates_are_measured_told_and_kept(quick, tmp_path, run):
    make_image_folder(tmp_path / "photos", {"cat": 5, "dog": 7})
    packed = dlio.pack(tmp_path / "photos", tmp_path / "packed", engine="serial")
    (tmp_path / "node").mkdir()
    before = machine_file.measured()
    code, out, _ = run(
        "bench", tmp_path / "packed", tmp_path / "node/new/dest", "--transform", "CenterCrop:8", "--json"
    )
    found = json.loads(out)
    assert (code, found["num_samples"], found["num_bytes"]) == (0, 12, packed.num_bytes)
    assert all(found[name] > 0 for name in ("source_rate", "write_rate", "read_rate", "decode_rate"))
    assert set(found["loader_rates"]) >= {"1"} and len(found["verdict"]) == 3
    kept = machine_file.measured()
    assert before == machine_file.Rates() and found["rates"] == str(machine_file.rates_path())
    assert found["source_rate"] in kept.read.values() and found["write_rate"] in kept.write.values()
    assert list((tmp_path / "node").iterdir()) == []
    assert found["rates"] in dlio.plan(tmp_path / "packed", nodes=2).chosen.why


def test_a_set_too_small_to_measure_leaves_the_source_unknown(quick, monkeypatch, photos):
    monkeypatch.setattr(bench_module, "_ENOUGH_BYTES", 1 << 40)
    packed = dlio.pack(photos, photos.parent / "packed", engine="serial")
    found = dlio.bench(packed, photos.parent)
    assert found.source_rate == 0 and machine_file.measured().read == {}
    assert "too small" in found.verdict()[1]


def verdict(source_rate: float, loader_rates: dict[int, float]) -> list[str]:
    return Measured(1000, 100_000, source_rate, 1e6, 1e6, 50.0, loader_rates, "/node", "").verdict()


@pytest.mark.parametrize(
    "source_rate, loader_rates, said",
    [
        (1e6, {1: 100, 2: 199, 4: 200}, ["use 2 threads", "the source waits for the loader", "does not pay"]),
        (1e4, {1: 2000}, ["use 1 thread:", "the loader waits for the source", "takes 10 s, and pays after 1.1 epochs"]),
    ],
)
def test_the_verdict_says_what_waits_for_what(source_rate, loader_rates, said):
    for line, words in zip(verdict(source_rate, loader_rates), said, strict=True):
        assert words in line


@pytest.mark.parametrize("text", ["CenterCrop", "CenterCrop:0", "os:224", "Resize:-1"])
def test_a_transform_that_is_none_is_refused(text, run, tmp_path):
    code, _, err = run("bench", tmp_path, "--transform", text)
    assert code == 2 and "--transform" in err


@pytest.mark.parametrize("num_files", [1, 3, 9])
def test_every_byte_is_read_once_however_few_the_files(num_files, tmp_path):
    paths = [tmp_path / str(number) for number in range(num_files)]
    for path in paths:
        path.write_bytes(bytes(10_007))
    assert storage.read_rate(paths)[1] == num_files * 10_007


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="pipe"):
        storage.read_rate([tmp_path / "pipe"])


def test_loaders_are_measured_with_shards_that_fit_into_memory(photos, tmp_path):
    packed = dlio.pack(photos, tmp_path / "packed", num_shards=4, engine="serial")
    for most, count in ((1 << 30, 4), (sum(shard.num_bytes for shard in packed.shards[:2]), 2), (1, 1)):
        assert bench_module._first_shards(packed, most).shards == packed.shards[:count]
