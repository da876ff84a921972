"""A missing package or permission gives one line, and another exit code than damaged data."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

import dlio
from dlio.cli import main
from tests.helpers.users import BOB, as_user, open_to_all

PACKAGES = {"tfrecord": "protobuf", "lmdb": "protobuf", "hdf5": "h5py"}
VERBS = [
    "report {packed} -o {out}",
    "show {packed} 0",
    "info {packed} --stats",
    "verify {packed}",
    "verify {packed} --decode",
    "index {foreign} --format {format}",
    "convert {packed} {out} --format webdataset",
    "pack {packed} {out} --format recordio",
]
ALONE = ("report", "show", "info")  # they start no workers


@pytest.fixture
def hidden(monkeypatch):
    """Hides protobuf and h5py as if they were not installed."""

    def hide() -> None:
        from dlio.formats.payloads import messages

        messages.message.cache_clear()
        for name in [name for name in sys.modules if name.partition(".")[0] in ("google", "h5py")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "google", None)
        monkeypatch.setitem(sys.modules, "h5py", None)

    return hide


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_package_is_one_line_and_exit_code_5(run, photos, tmp_path, hidden, name, verb):
    packed = tmp_path / "packed"
    dlio.pack(dlio.sources.image_folder(photos), packed, format=name, engine="serial")
    shutil.copytree(packed, tmp_path / "foreign", ignore=shutil.ignore_patterns("*.npz", "manifest*"))
    hidden()
    paths = {"packed": packed, "foreign": tmp_path / "foreign", "out": tmp_path / "out"}
    words = verb.format(format=name, **paths).split()
    code, out, err = run(*words, *([] if words[0] in ALONE else ["--workers", 1]))
    assert (code, out) == (5, "")
    assert err.count("\n") == 1
    assert f"needs the package {PACKAGES[name]!r}: pip install '{PACKAGES[name]}" in err


@pytest.mark.parametrize("name", ["recordio", "webdataset"])
def test_formats_that_need_no_package_are_indexed_without(photos, tmp_path, hidden, name):
    dlio.pack(photos, tmp_path / "packed", format=name, engine="serial")
    shutil.copytree(tmp_path / "packed", tmp_path / "foreign", ignore=shutil.ignore_patterns("*.npz", "manifest*"))
    hidden()
    assert dlio.index(tmp_path / "foreign", format=name, workers=1).num_samples == 12


def test_a_package_that_dlio_cannot_do_without_is_one_line_too(run, packed, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setattr("dlio.dataset.manifest.Manifest.load", lambda root: __import__("PIL"))
    code, _, err = run("info", packed)
    assert code == 5
    assert err == "dlio: the package 'pillow' is missing, or lacks a part: pip install pillow\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="root gives a data set a file that another user may not read")
def test_a_file_that_may_not_be_read_is_a_matter_of_storage(photos, tmp_path, capfd):
    packed = open_to_all(tmp_path) / "packed"
    dlio.pack(dlio.sources.image_folder(photos), packed, engine="serial")
    shard = packed / "shard-000000.tfrecord"
    shard.chmod(0o600)
    assert as_user(BOB, lambda: os._exit(main(["verify", str(packed), "--workers", "1"]))) == 4
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1 and f"{shard}: Permission denied" in err
