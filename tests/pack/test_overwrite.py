"""What OUT holds already: repaired where it is the same data set, replaced only by a whole one, never by two runs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dlio
from dlio.cli import main
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import ManifestError, SourceError, StorageError, UsageError
from dlio.pack import overwrite
from dlio.pack.inspect.verify import verify
from dlio.pack.recode import Recode
from dlio.pack.resume import CLAIMS
from dlio.pack.write import ASIDE
from dlio.sources import image_folder
from tests.helpers.forked import run_until
from tests.helpers.images import make_image_folder
from tests.helpers.manifests import unpublish
from tests.helpers.packing import content, samples
from tests.helpers.staging import flip

HOW = {"num_shards": 3, "engine": "serial"}


@pytest.fixture
def out(photos, tmp_path) -> Path:
    """The photos, packed."""
    dlio.pack(image_folder(photos), tmp_path / "out", **HOW)
    return tmp_path / "out"


@pytest.fixture
def others(tmp_path):
    """Another source, with fewer images."""
    make_image_folder(tmp_path / "others", {"fish": 8, "worm": 4})
    return image_folder(tmp_path / "others")


class TestSameDataSet:
    @pytest.mark.parametrize("damage", ["lost", "cut"])
    def test_a_shard_that_was_lost_or_cut_is_written_again(self, photos, out, damage):
        before = content(out)
        kept = {path.name: path.stat().st_ino for path in out.glob("shard-00000[02]*")}
        file = out / Manifest.load(out).shards[1].files[0].name
        file.unlink() if damage == "lost" else file.write_bytes(b"cut")
        dlio.pack(image_folder(photos), out, **HOW)
        assert content(out) == before
        assert kept == {path.name: path.stat().st_ino for path in out.glob("shard-00000[02]*")}

    def test_a_damaged_shard_is_written_again_if_asked_to_overwrite(self, photos, out):
        before = content(out)
        kept = {path.name: path.stat().st_ino for path in out.glob("shard-00000[02]*")}
        flip(out / Manifest.load(out).shards[1].files[0].name)
        damaged = content(out)
        dlio.pack(image_folder(photos), out, **HOW)
        assert content(out) == damaged != before
        dlio.pack(image_folder(photos), out, overwrite=True, **HOW)
        assert content(out) == before
        assert kept == {path.name: path.stat().st_ino for path in out.glob("shard-00000[02]*")}

    @pytest.mark.parametrize("name", ["lmdb", "hdf5"])
    def test_of_formats_that_vary_the_manifest_follows(self, photos, tmp_path, name):
        dlio.pack(image_folder(photos), tmp_path / "out", format=name, **HOW)
        (tmp_path / "out" / Manifest.load(tmp_path / "out").shards[1].files[0].name).unlink()
        manifest = dlio.pack(image_folder(photos), tmp_path / "out", format=name, **HOW)
        assert verify(manifest, workers=1) == []

    def test_an_image_changed_at_equal_size_makes_another_set(self, photos, out):
        changed = photos / "dog/0003.png"
        status = changed.stat()
        changed.write_bytes(bytes(reversed(changed.read_bytes())))
        os.utime(changed, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        with pytest.raises(UsageError, match=r"another data set .* the files of 1 of 3 shards were changed since"):
            dlio.pack(image_folder(photos), out, **HOW)

    def test_only_shards_of_changed_images_are_written_again(self, photos, out, tmp_path):
        unpublish(out)
        kept = {path.name: path.stat().st_ino for path in out.glob("shard-00000[02]*")}
        listing = image_folder(photos).listing()
        changed = photos / listing.keys[len(listing) // 2]
        changed.write_bytes(changed.read_bytes())
        os.utime(changed)
        dlio.pack(image_folder(photos), out, **HOW)
        assert kept == {path.name: path.stat().st_ino for path in out.glob("shard-00000[02]*")}
        dlio.pack(image_folder(photos), tmp_path / "whole", **HOW)
        assert content(out) == content(tmp_path / "whole")


class TestNothingWorthKeeping:
    def test_a_pack_without_a_shard_leaves_the_options_open(self, photos, tmp_path):
        (photos / "cat/0000.png").write_bytes(b"no image")
        with pytest.raises(SourceError):
            dlio.pack(image_folder(photos), tmp_path / "out", num_shards=1, engine="serial")
        dlio.pack(image_folder(photos), tmp_path / "out", num_shards=2, on_error="skip", engine="serial")
        assert len(samples(tmp_path / "out")) == 35

    def test_shards_not_listed_by_a_killed_run_are_its_own(self, photos, out, others):
        unpublish(out, most=0)
        with pytest.raises(UsageError, match="an unfinished pack of another data set"):
            dlio.pack(others, out, **HOW)
        dlio.pack(image_folder(photos), out, **HOW)
        assert len(samples(out)) == 36
        unpublish(out, most=0)
        dlio.pack(others, out, overwrite=True, num_shards=1, engine="serial")
        assert not list(out.glob("shard-000001*"))

    def test_out_that_is_a_file_is_called_one(self, photos, tmp_path):
        (tmp_path / "out").write_text("")
        with pytest.raises(UsageError, match=r"out is a file: give the name of a folder"):
            dlio.pack(image_folder(photos), tmp_path / "out", **HOW)


class TestOverwrite:
    def test_replaces_a_data_set_as_if_it_had_never_been(self, out, others, tmp_path):
        for name in ("recordio", "lmdb", "tfrecord"):
            dlio.pack(others, out, format=name, overwrite=True, engine="serial")
            assert Manifest.load(out).format == name
            assert verify(Manifest.load(out), workers=1) == []
        dlio.pack(others, tmp_path / "new", format="tfrecord", engine="serial")
        assert content(out) == content(tmp_path / "new")
        assert {path.name for path in out.iterdir()} == {path.name for path in (tmp_path / "new").iterdir()}

    def test_the_old_set_is_read_until_the_new_is_whole(self, out, others):
        before, seen = samples(out), []
        dlio.pack(others, out, overwrite=True, report=lambda shard: seen.append(samples(out)), **HOW)
        assert seen == [before] * 3
        assert len(samples(out)) == 12

    def test_the_old_shards_are_there_until_the_new_ones_have_their_names(self, out, others, monkeypatch):
        before, publish_all = samples(out), overwrite.files.publish_all

        def refuse(aside, final, names):
            if final == out:
                raise StorageError("the disk fails")
            publish_all(aside, final, names)

        monkeypatch.setattr(overwrite.files, "publish_all", refuse)
        with pytest.raises(StorageError, match="the disk fails"):
            dlio.pack(others, out, overwrite=True, num_shards=2, engine="serial")  # fewer: one of the old is removed
        assert samples(out) == before

    def test_a_bad_source_costs_nothing(self, out, others, tmp_path):
        before = content(out)
        bad = tmp_path / "others/worm/0002.png"
        good = bad.read_bytes()
        bad.write_bytes(b"no image")
        with pytest.raises(SourceError):
            dlio.pack(others, out, overwrite=True, **HOW)
        assert {name: data for name, data in content(out).items() if not name.startswith(ASIDE)} == before
        bad.write_bytes(good)
        dlio.pack(others, out, overwrite=True, **HOW)
        assert len(samples(out)) == 12
        assert not (out / ASIDE).exists()

    def test_a_foreign_file_costs_nothing(self, out, others):
        (out / "thesis.tex").write_text("years of work")
        before = content(out)
        with pytest.raises(UsageError, match=r"holds 'thesis\.tex', which dlio has not packed"):
            dlio.pack(others, out, overwrite=True, **HOW)
        assert content(out) == before

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_damaged_manifest_leaves_a_way_out(self, out, others, overwrite):
        with (out / NAME).open("a") as file:
            file.write("{")
        with pytest.raises(ManifestError, match=r"line 5: .* remove .*out yourself, or give another folder"):
            dlio.pack(others, out, overwrite=overwrite, **HOW)

    def test_an_unfinished_pack_is_replaced(self, out, others):
        unpublish(out)
        with pytest.raises(UsageError, match="an unfinished pack of another data set"):
            dlio.pack(others, out, **HOW)
        dlio.pack(others, out, overwrite=True, num_shards=1, engine="serial")
        assert len(samples(out)) == 12
        assert not list(out.glob("shard-000001*"))

    @pytest.mark.parametrize("call", ["rename", "unlink"])
    @pytest.mark.parametrize("when", [2, 5, 8, 10, 12, 14, 15])
    def test_killed_on_the_way_the_same_command_ends_it(self, out, others, tmp_path, call, when):
        words = ["pack", str(others.path), str(out), "--format", "recordio"]
        words += ["--num-shards", "2", "--engine", "serial", "--overwrite", "--quiet"]
        assert run_until(call, when, lambda: main(words)) in (0, -signal.SIGKILL)
        assert Manifest.load(out).num_samples in (12, 36)
        assert main(words) == 0
        dlio.pack(others, tmp_path / "new", format="recordio", num_shards=2, engine="serial")
        assert content(out) == content(tmp_path / "new")
        assert not (out / ASIDE).exists()


SLOW = """
import os, sys, time
import dlio
from pathlib import Path
source, out, ready = map(Path, sys.argv[1:])
reported = []
def wait(shard):
    reported.append(shard)
    if len(reported) == 3:
        ready.touch()
        time.sleep(1000)
dlio.pack(dlio.sources.image_folder(source), out, num_shards=3, engine="serial", report=wait)
"""


class TestTwoAtOnce:
    @pytest.fixture
    def slow(self, photos, tmp_path):
        """A pack that has published its shards and hangs before its end."""
        ready = tmp_path / "ready"
        command = [sys.executable, "-c", SLOW, str(photos), str(tmp_path / "out"), str(ready)]
        with subprocess.Popen(command) as run:
            while not ready.exists():
                assert run.poll() is None
                time.sleep(0.01)
            yield run
            run.kill()

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_the_second_is_told_at_once(self, slow, photos, tmp_path, overwrite):
        out = tmp_path / "out"
        (out / f".{NAME}.{slow.pid}.tmp").write_text("being written")
        before = content(out)
        problem = rf"another dlio pack into .*out is under way, by process {slow.pid} on "
        with pytest.raises(StorageError, match=problem):
            dlio.pack(image_folder(photos), out, overwrite=overwrite, **HOW)
        assert content(out) == before

    def test_the_dead_are_succeeded(self, slow, photos, tmp_path):
        slow.send_signal(signal.SIGKILL)
        slow.wait()
        assert list((tmp_path / "out" / ASIDE / CLAIMS).iterdir())
        dlio.pack(image_folder(photos), tmp_path / "out", **HOW)
        dlio.pack(image_folder(photos), tmp_path / "whole", **HOW)
        assert content(tmp_path / "out") == content(tmp_path / "whole")
        assert not (tmp_path / "out" / ASIDE).exists()


def test_where_nothing_is_to_do_nothing_is_written(photos, out):
    before = out.stat()
    assert dlio.pack(image_folder(photos), out, **HOW).num_samples == 36
    assert out.stat().st_ctime_ns == before.st_ctime_ns


@pytest.mark.parametrize(
    ("change", "options", "problem"),
    [
        ("new", {}, r"1 sample added \(such as 'cat/new.png'; --append packs what was added\): give"),
        ("gone", {}, r"1 sample removed \(such as 'dog/0000.png'\)"),
        ("touched", {}, "the files of 1 of 1 shards were changed since"),
        ("", {"shuffle": 7}, "shuffle is 7, there not given"),
        (
            "",
            {"format": "webdataset", "num_shards": 2},
            "format is webdataset, there tfrecord, num_shards is 2, there 1",
        ),
        ("", {"recode": Recode(resize=20)}, "resize is 20, there not given: give another folder, or --overwrite"),
    ],
)
def test_what_differs_is_said(photos, tmp_path, change, options, problem):
    dlio.pack(photos, tmp_path / "out", engine="serial")
    first = photos / "dog/0000.png"
    if change == "new":
        shutil.copy(first, photos / "cat/new.png")
    elif change == "gone":
        first.unlink()
    elif change == "touched":
        os.utime(first, (1, 1))
    with pytest.raises(UsageError, match=f"holds another data set .*; {problem}"):
        dlio.pack(photos, tmp_path / "out", engine="serial", **options)


def test_what_was_skipped_was_not_added(photos, tmp_path):
    bad = photos / "cat/bad.png"
    bad.write_bytes(b"no image")
    packed = dlio.pack(photos, tmp_path / "out", engine="serial", on_error="skip")
    assert len(packed.skipped) == 1
    shutil.copy(photos / "cat/0000.png", photos / "cat/new.png")
    with pytest.raises(UsageError, match=r"; 1 sample added \(such as 'cat/new.png'; --append"):
        dlio.pack(photos, tmp_path / "out", engine="serial", on_error="skip")
    again = dlio.pack(photos, tmp_path / "out", engine="serial", on_error="skip", append=True)
    assert again.num_samples == packed.num_samples + 1 and again.skipped == packed.skipped
