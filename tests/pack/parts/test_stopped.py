"""Shards in parts whose run was stopped or killed, or whose bytes the disk lost: nothing differs in the end."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

from dlio.dataset.manifest import NAME, PARTIAL_NAME
from dlio.errors import StorageError
from dlio.io import files
from dlio.pack.resume import PartialManifest
from dlio.pack.write import ASIDE
from tests.helpers.forked import run_until
from tests.helpers.packing import content, samples, stop_after
from tests.helpers.parts import IMAGE, pack_one, parts_listed


@pytest.mark.parametrize("done", [0, 1, 3])
def test_a_stopped_run_continues_with_the_parts_that_are_left(done, photos, tmp_path, whole):
    out, reported = tmp_path / "out", []
    with pytest.raises(KeyboardInterrupt):
        pack_one(photos, out, shuffle=1, report=stop_after(done))
    assert {path.name for path in out.iterdir()} >= {ASIDE, PARTIAL_NAME}
    assert not (out / IMAGE).exists()
    listed = parts_listed(out)
    states = {name: (out / f"{name}.samples.npz").stat().st_ino for name in listed}
    started = []
    pack_one(photos, out, shuffle=1, report=reported.append, started=lambda *_: started.append(len(reported)))
    assert len(states) >= done
    assert started == [len(listed)], "parts of the first run were packed again"
    assert content(out) == whole


@pytest.mark.parametrize(("call", "when"), [("fsync", 3), ("fsync", 16), ("rename", 9), ("rename", 10), ("rename", 11)])
def test_a_run_killed_in_a_system_call_continues(call, when, photos, tmp_path, whole):
    out = tmp_path / "out"
    assert run_until(call, when, lambda: pack_one(photos, out, shuffle=1)) == -signal.SIGKILL
    assert not (out / NAME).exists()
    pack_one(photos, out, shuffle=1)
    assert content(out) == whole


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_the_bytes_of_a_part_are_on_the_disk_before_it_is_listed(engine, photos, tmp_path, monkeypatch):
    seen, sync_file, append = [], files.sync_file, PartialManifest.append

    def listed(partial, shard):
        seen.append(shard.name)
        append(partial, shard)

    monkeypatch.setattr(files, "sync_file", lambda path: seen.append(path.name) or sync_file(path))
    monkeypatch.setattr(PartialManifest, "append", listed)
    pack_one(photos, tmp_path / "out", engine=engine, workers=None if engine == "serial" else 1)
    parts = [name for name in seen if ".part-" in name and not name.endswith(".npz")]
    assert len(parts) == 4
    for part in parts:
        before = seen[: seen.index(part)]
        assert before[before.index(f"{part}.files.npz") - 1] == IMAGE


def test_a_published_file_that_is_not_listed_is_not_packed_again(photos, tmp_path, whole):
    out, reported = tmp_path / "out", []
    with pytest.raises(KeyboardInterrupt):
        pack_one(photos, out, shuffle=1, report=stop_after(3))
    (out / ASIDE / IMAGE).rename(out / IMAGE)
    parts = len(parts_listed(out))
    pack_one(photos, out, shuffle=1, report=reported.append, started=lambda *_: reported.clear())
    assert len(reported) == 4 - parts
    assert content(out) == whole


def test_parts_whose_file_was_removed_are_packed_again(photos, tmp_path, whole):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        pack_one(photos, out, shuffle=1, report=stop_after(2))
    shutil.rmtree(out / ASIDE)
    pack_one(photos, out, shuffle=1)
    assert content(out) == whole


def test_bytes_that_the_disk_lost_are_found_and_packed_again(photos, tmp_path, whole):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        pack_one(photos, out, shuffle=1, report=stop_after(2))
    with (out / ASIDE / IMAGE).open("r+b") as file:
        file.seek((64 << 10) + 5000)
        file.write(bytes(4000))
    with pytest.raises(
        StorageError, match=r"shard-000000\.sqsh is damaged: bytes 65,536 to .* \(1 of 4 parts\): run the same"
    ):
        pack_one(photos, out, shuffle=1)
    assert not (out / IMAGE).exists()
    pack_one(photos, out, shuffle=1)
    assert content(out) == whole


def test_other_inputs_begin_the_parts_again(photos, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        pack_one(photos, out, report=stop_after(3))
    changed = photos / "class 0" / "0000.bmp"
    data = bytearray(changed.read_bytes())
    data[-1] ^= 1
    changed.write_bytes(data)
    os.utime(changed, (1, 1))
    pack_one(photos, out)
    assert dict(samples(out))["class 0/0000.bmp"]["image"] == bytes(data)


def test_another_data_set_replaces_an_unfinished_one(photos, tmp_path, whole):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        pack_one(photos, out, report=stop_after(2))
    pack_one(photos, out, shuffle=1, overwrite=True)
    assert content(out) == whole
