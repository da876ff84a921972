"""Packing to a bucket: an S3-compatible server is its own process."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest

import dlio
from dlio import cli
from dlio.dataset.manifest import NAME, Manifest
from dlio.dataset.remote import load
from dlio.errors import DlioError, StorageError, UsageError
from dlio.io import answers
from dlio.io.remote_files import RemoteFiles
from dlio.sources import image_folder
from tests.helpers.packing import content, stop_after
from tests.helpers.s3_server import s3_server

OUT = "s3://bucket/sets/packed"


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    """s3fs, of a server with an empty bucket."""
    with pytest.MonkeyPatch.context() as environment, s3_server(environment):
        s3 = pytest.importorskip("s3fs").S3FileSystem()
        s3.mkdir("bucket")
        yield s3


@pytest.fixture
def s3(server: Any) -> Iterator[Any]:
    """s3fs, of a server with an empty bucket."""
    yield server
    server.invalidate_cache()
    if names := server.find("bucket"):
        server.rm(names)


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> None:
    """fsspec keeps a thread for its requests, and connections."""


def stored(s3: Any) -> dict[str, bytes]:
    """Returns the files at OUT, by their names there; read by plain HTTP, which takes a tenth of the time of s3fs."""
    s3.invalidate_cache()
    prefix, address = OUT.removeprefix("s3://"), os.environ["AWS_ENDPOINT_URL"]

    def read(name: str) -> bytes:
        with urlopen(f"{address}/{quote(name)}") as answer:
            return bytes(answer.read())

    return {name.removeprefix(f"{prefix}/"): read(name) for name in s3.find(prefix)}


def numbered(number: int) -> dict[str, Any]:
    return {"__key__": f"key {min(number, 8)}", "x": number}


def test_a_bucket_gets_what_a_function_makes(s3: Any, tmp_path: Path) -> None:
    for out in (OUT, tmp_path / "out"):
        dlio.pack_items(numbered, range(8), out, num_shards=2, engine="serial")
    assert stored(s3) == content(tmp_path / "out")
    with pytest.raises(DlioError, match="two samples have the key 'key 8'"):
        dlio.pack_items(numbered, range(10), "s3://bucket/sets/other", num_shards=2, engine="serial")
    assert not s3.exists("bucket/sets/other/manifest.jsonl")


def test_a_bucket_gets_what_a_folder_gets(s3: Any, photos: Path, tmp_path: Path) -> None:
    words = ["--format", "lmdb", "--num-shards", "3", "--workers", "2", "--quiet"]
    assert cli.main(["pack", str(photos), OUT, *words]) == cli.main(
        ["pack", str(photos), str(tmp_path / "out"), *words]
    )
    assert stored(s3) == content(tmp_path / "out")
    assert load(OUT) == Manifest.load(tmp_path / "out")
    before = s3.info(f"{OUT}/{NAME}")
    assert cli.main(["pack", str(photos), f"{OUT}/", *words]) == 0
    assert s3.info(f"{OUT}/{NAME}") == before


def test_a_stopped_run_shows_no_manifest_and_goes_on(
    s3: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, scratch = image_folder(photos), tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    with pytest.raises(KeyboardInterrupt):
        dlio.pack(source, OUT, num_shards=6, engine="serial", report=stop_after(3))
    found = stored(s3)
    assert NAME not in found and ".dlio-packing/shard-000002" in found
    kept, cut = "shard-000001.tfrecord", "shard-000002.tfrecord"
    s3.pipe_file(f"{OUT}/{kept}", b"x" * len(found[kept]))  # seen again only if it is not sent again
    s3.pipe_file(f"{OUT}/{cut}", found[cut][:-1])
    dlio.pack(source, OUT, num_shards=6, engine="serial")
    whole = dlio.pack(source, tmp_path / "out", num_shards=6, engine="serial")
    expected = content(tmp_path / "out")
    assert stored(s3) == expected | {kept: b"x" * len(found[kept])}
    assert {damage.path for damage in dlio.verify(OUT, workers=1)} == {f"{OUT}/{kept}"}
    assert load(OUT).content_id == whole.content_id
    assert list(scratch.iterdir()) == []


def test_bad_samples_are_skipped_and_told_as_in_a_folder(s3: Any, photos: Path, capsys: Any) -> None:
    (photos / "cat/0003.png").write_bytes(b"no image")
    assert cli.main(["pack", str(photos), OUT, "--engine", "serial"]) == 3
    assert NAME not in stored(s3)
    assert cli.main(["pack", str(photos), OUT, "--engine", "serial", "--on-error", "skip"]) == 1
    assert "cat/0003.png" in capsys.readouterr().err
    assert load(OUT).num_samples == 35


def test_a_missing_shard_of_a_finished_set_is_packed_again(s3: Any, photos: Path) -> None:
    dlio.pack(image_folder(photos), OUT, num_shards=3, engine="serial")
    before = stored(s3)
    s3.rm_file(f"{OUT}/shard-000001.tfrecord")
    dlio.pack(image_folder(photos), OUT, num_shards=3, engine="serial")
    assert stored(s3) == before


def test_large_files_are_sent_in_parts_and_lost_parts_given_up(
    s3: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "PART_BYTES", 5 << 20)
    data = bytes(range(256)) * (11 << 12)
    (tmp_path / "large").write_bytes(data)
    files = RemoteFiles(OUT)
    files.put("large", tmp_path / "large")
    assert s3.info(f"{OUT}/large")["size"] == len(data)
    assert files.fetch("large", 20, (10 << 20, (10 << 20) + 20)) == data[10 << 20 : (10 << 20) + 20]
    files.remove("large")
    files.remove("large")
    for key in ("sets/packed/shard-000009.tfrecord", "sets/packed-too/shard-000009.tfrecord"):
        s3.call_s3("create_multipart_upload", Bucket="bucket", Key=key)
    dlio.pack(image_folder(photos), OUT, engine="serial")
    [left] = s3.call_s3("list_multipart_uploads", Bucket="bucket", Prefix="sets/")["Uploads"]
    assert left["Key"].startswith("sets/packed-too/")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://me:Hush@127.0.0.1/packed", r"object stores \(s3://.*not to https://127.0.0.1/packed"),
        ("s3://me:Hush@bucket/packed", "holds no keys"),
        ("s3://missing/packed", "cannot write s3://missing/packed"),
    ],
)
def test_a_url_that_cannot_be_written_is_refused(s3: Any, photos: Path, url: str, problem: str) -> None:
    with pytest.raises(DlioError, match=problem) as raised:
        dlio.pack(photos, url, engine="serial")
    assert "Hush" not in str(raised.value)


def test_what_is_there_is_not_replaced(s3: Any, photos: Path) -> None:
    dlio.pack(photos, OUT, num_shards=3, engine="serial")
    before = stored(s3)
    with pytest.raises(UsageError, match="num_shards is 4, there 3: give another URL, or remove what is there"):
        dlio.pack(photos, OUT, num_shards=4, engine="serial")
    with pytest.raises(UsageError, match="append needs the data set in a folder"):
        dlio.pack(photos, OUT, append=True, engine="serial")
    with pytest.raises(UsageError, match="remove s3://bucket/sets/packed first"):
        dlio.pack(photos, OUT, num_shards=4, engine="serial", overwrite=True)
    with pytest.raises(UsageError, match="s3://bucket/sets holds 'packed', which dlio has not packed"):
        dlio.pack(photos, "s3://bucket/sets", engine="serial")
    assert stored(s3) == before


def test_the_input_is_not_written_to(s3: Any) -> None:
    s3.pipe_file("bucket/sets/a/1.png", b"")
    with pytest.raises(UsageError, match="is inside the input"):
        dlio.pack("s3://bucket/sets", OUT, engine="serial")


def test_a_begun_set_of_another_plan_or_with_a_damaged_header_is_told(s3: Any, photos: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        dlio.pack(photos, OUT, num_shards=6, engine="serial", report=stop_after(1))
    with pytest.raises(UsageError, match="holds an unfinished pack of another data set"):
        dlio.pack(photos, OUT, num_shards=5, engine="serial")
    header = s3.cat_file(f"{OUT}/.dlio-packing/header")
    for damaged in (b"{\xff", header.replace(b'"label_offset":0', b'"label_offset":1')):
        s3.pipe_file(f"{OUT}/.dlio-packing/header", damaged)
        with pytest.raises(DlioError, match=r"remove s3://bucket/sets/packed/\.dlio-packing"):
            dlio.pack(photos, OUT, num_shards=6, engine="serial")


@pytest.mark.parametrize("damage", [lambda line: b"{\xff", lambda line: line.replace(b'"samples":6', b'"samples":7')])
def test_a_damaged_line_of_a_begun_set_costs_its_shard(
    s3: Any, photos: Path, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        dlio.pack(photos, OUT, num_shards=6, engine="serial", report=stop_after(3))
    path = f"{OUT}/.dlio-packing/shard-000001"
    line = s3.cat_file(path)
    s3.pipe_file(path, damage(line))
    assert s3.cat_file(path) != line
    whole = dlio.pack(photos, tmp_path / "whole", num_shards=6, engine="serial")
    assert dlio.pack(photos, OUT, num_shards=6, engine="serial") == whole
    assert stored(s3) == content(tmp_path / "whole")


def test_a_disk_without_room_for_a_shard_is_told_first(s3: Any, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 0, 9))  # type: ignore[attr-defined]
    with pytest.raises(StorageError, match="set TMPDIR to a larger folder"):
        dlio.pack(photos, OUT, engine="serial")


def test_a_data_set_goes_from_bucket_to_bucket(s3: Any, photos: Path, tmp_path: Path) -> None:
    dlio.pack(photos, tmp_path / "local", num_shards=2, engine="serial")
    s3.put(f"{tmp_path / 'local'}/", "bucket/first/", recursive=True)
    assert cli.main(["convert", "s3://bucket/first", OUT, "--format", "webdataset", "--workers", "2", "--quiet"]) == 0
    dlio.convert(tmp_path / "local", tmp_path / "converted", format="webdataset", engine="serial")
    own, there = content(tmp_path / "converted"), stored(s3)
    assert {name: data for name, data in there.items() if name != NAME} == {n: d for n, d in own.items() if n != NAME}


def test_temporary_shards_go_to_no_folder_that_anybody_may_swap(
    s3: Any, tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose").chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "loose"))
    with pytest.raises(StorageError, match=r"anybody could replace .*loose, whose mode is 777"):
        dlio.pack(image_folder(photos), OUT, format="recordio", engine="serial")
    assert list((tmp_path / "loose").iterdir()) == []
