"""The verbs over data sets at URLs, from a web server that is its own process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import dlio
from dlio.look import bench as bench_module
from dlio.look.measure import loading, storage
from tests.helpers.packing import content
from tests.helpers.web import served

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> None:
    """fsspec keeps a thread for its requests, and connections."""


@pytest.fixture
def url(packed: Path) -> Iterator[str]:
    """The URL of the packed data set, with a password that nobody may see."""
    with served(packed.parent) as url:
        yield f"{url.replace('://', '://me:Hush@')}/packed"


def test_what_a_data_set_holds(run, url, packed):
    code, out, err = run("info", url, "--json")
    here, there = json.loads(run("info", packed, "--json")[1]), json.loads(out)
    assert (code, err) == (0, "")
    assert there.pop("path").endswith("/packed") and here.pop("path")
    assert here == there
    assert "Hush" not in out
    stats = [json.loads(run("info", data, "--stats", "--quiet", "--json")[1])["stats"] for data in (url, packed)]
    assert stats[0] == stats[1] and stats[0]["samples_read"]


def test_damage_is_found_and_named_by_its_url(run, url, packed):
    assert run("verify", url, "--decode", "--quiet") == (0, "", "")
    records = packed / "shard-000001.tfrecord"
    data = bytearray(records.read_bytes())
    data[100] ^= 1
    records.write_bytes(data)
    (packed / "shard-000000.tfrecord").unlink()
    code, out, err = run("verify", url, "--json", "--workers", 1)
    damaged = json.loads(out)["damaged"]
    assert code == 1 and "Hush" not in out + err
    place = url.replace("me:Hush@", "")
    assert [damage["path"].removeprefix(place) for damage in damaged] == [
        "/shard-000000.tfrecord", "/shard-000001.tfrecord", "/shard-000001.tfrecord",
    ]  # fmt: skip
    assert damaged[2]["record"] == 0
    code, _, err = run("verify", url, "--repair")
    assert code == 2 and "for copies in folders" in err and "Hush" not in err


@pytest.mark.parametrize("options", [[], ["--shuffle", "3"]])
def test_a_data_set_is_converted_from_there(run, url, packed, tmp_path, options):
    words = ["--format", "recordio", "--engine", "serial", "--quiet", *options]
    assert run("convert", url, tmp_path / "there", *words) == (0, "", "")
    assert run("convert", packed, tmp_path / "here", *words) == (0, "", "")
    there, here = content(tmp_path / "there"), content(tmp_path / "here")
    assert b"Hush" not in there.pop("manifest.jsonl") and here.pop("manifest.jsonl")
    assert there == here


def test_its_images_are_shown(run, url, packed, tmp_path):
    assert run("show", url, 3, "--out", tmp_path / "out")[0] == 0
    run("show", packed, 3, "--out", tmp_path / "same")
    assert content(tmp_path / "out") == content(tmp_path / "same")
    assert run("report", url, "--out", tmp_path / "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert "packed: 12 samples" in page and "Hush" not in page


def test_its_rates_are_measured_and_its_copy_is_looked_for(run, url, tmp_path, monkeypatch):
    for module in (storage, loading):
        monkeypatch.setattr(module, "SECONDS", 0.2)
    monkeypatch.setattr(storage, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(bench_module, "_ENOUGH_BYTES", 1)
    (tmp_path / "node").mkdir()
    code, out, _ = run("bench", url, tmp_path / "node", "--transform", "CenterCrop:8", "--json")
    found = json.loads(out)
    assert code == 0 and found["source_rate"] > 0 and found["decode_rate"] > 0
    assert list((tmp_path / "node").iterdir()) == []
    findings = [finding.found for finding in dlio.doctor(url) if finding.check == "data set"]
    assert ["12 samples" in findings[0], findings[1]] == [True, "no copy is staged on this node"]
    assert "Hush" not in "".join(findings)
