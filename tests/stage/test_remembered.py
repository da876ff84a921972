"""A copy is found where it was staged, whatever the folder; a list that others could write is not believed."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

import dlio
from dlio.cli import main
from dlio.loaders.dataset import PackedSamples
from dlio.stage.client.resolve import staged
from dlio.stage.copies import lease
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.locations import known_folders, remember
from dlio.stage.run import run
from tests.helpers.staging import node
from tests.helpers.users import BOB, as_user


@pytest.fixture
def packed(photos, tmp_path) -> Path:
    return dlio.pack(dlio.sources.image_folder(photos), tmp_path / "packed", engine="serial").root


@pytest.fixture
def dests(tmp_path) -> Path:
    return tmp_path / f"dlio-u{os.geteuid()}/dests"


def test_a_loader_finds_what_was_staged_anywhere_and_says_so(packed, tmp_path, caplog):
    caplog.set_level(logging.INFO, "dlio.stage.client.resolve")
    assert PackedSamples(packed).manifest.root == packed
    assert f"{packed} is read in place: this node has no copy of" in caplog.text
    staged = dlio.stage(packed, tmp_path / "nvme")
    assert PackedSamples(packed).manifest.root == staged.root == dlio.resolve(packed)
    assert f"{packed} is read from its staged copy {staged.root}" in caplog.text


def test_a_folder_is_forgotten_when_its_copies_are_gone(packed, tmp_path, dests):
    dlio.stage(packed, tmp_path / "nvme")
    dlio.stage(packed, tmp_path / "nvme")
    assert len(list(dests.iterdir())) == 1
    assert len(dlio.clean(tmp_path / "nvme")) == 1
    assert tmp_path / "nvme" not in known_folders()
    assert not list(dests.iterdir())


def test_what_is_left_of_a_removed_copy_is_passed_in_silence(packed, tmp_path, caplog):
    copy = dlio.stage(packed, tmp_path / "nvme").root
    shutil.rmtree(copy.parent)
    copy.mkdir(parents=True)
    assert PackedSamples(packed).manifest.root == packed
    assert not caplog.text


def test_clean_without_dest_leaves_the_folders_that_were_named(packed, tmp_path, monkeypatch, capsys):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    named, chosen = dlio.stage(packed, tmp_path / "nvme").root, dlio.stage(packed).root
    assert named != chosen and chosen not in named.parents
    assert main(["clean"]) == 0
    told = capsys.readouterr().out
    assert f"removed {chosen}" in told and f"left 1 copy in {tmp_path / 'nvme'}" in told
    assert named.exists() and not chosen.exists()
    assert not lease.leases(StagedFolder(tmp_path / "nvme", named.name))  # so that the next job's clean removes it
    assert dlio.clean(tmp_path / "nvme") == [named]


def test_an_odd_path_is_remembered(tmp_path):
    odd = tmp_path / "a\nb \udcff"
    (odd / "dlio").mkdir(parents=True)
    remember(odd)
    assert odd in known_folders()


def test_a_folder_that_cannot_be_looked_at_hides_no_other_one(tmp_path, dests, monkeypatch):
    for name in "abc":
        (tmp_path / name / "dlio").mkdir(parents=True)
        remember(tmp_path / name)
    plain = Path.is_dir

    def is_dir(path: Path) -> bool:
        if path.is_relative_to(tmp_path / "b"):
            raise PermissionError
        return plain(path)

    monkeypatch.setattr(Path, "is_dir", is_dir)
    assert {tmp_path / "a", tmp_path / "c"} <= set(known_folders())
    assert len(list(dests.iterdir())) == 3


def test_an_entry_that_a_crash_left_empty_is_forgotten(tmp_path, dests, monkeypatch):
    (tmp_path / "nvme/dlio").mkdir(parents=True)
    remember(tmp_path / "nvme")
    (dests / "0").touch()
    monkeypatch.chdir(tmp_path / "nvme")
    assert Path() not in known_folders()
    assert not (dests / "0").exists()


def test_a_list_that_others_may_write_is_not_read(tmp_path, dests):
    (tmp_path / "nvme/dlio").mkdir(parents=True)
    remember(tmp_path / "nvme")
    assert tmp_path / "nvme" in known_folders()
    dests.chmod(0o777)
    assert tmp_path / "nvme" not in known_folders()


def test_a_link_in_the_place_of_the_list_is_not_followed(tmp_path, dests):
    (tmp_path / "elsewhere").mkdir()
    dests.parent.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "nvme/dlio").mkdir(parents=True)
    remember(tmp_path / "nvme")
    assert not list((tmp_path / "elsewhere").iterdir())
    assert tmp_path / "nvme" not in known_folders()


@pytest.mark.skipif(os.geteuid() != 0, reason="root stages for a user, and a user writes a list in root's name")
def test_roots_list_serves_users_and_a_users_list_serves_nobody_else(tmp_path):
    for folder in (tmp_path, *tmp_path.parents):
        folder.chmod(folder.stat().st_mode | 0o055)
    tmp_path.chmod(0o1777)
    for name in ("of-root", "of-bob"):
        (tmp_path / name / "dlio").mkdir(parents=True)
    assert as_user(BOB, lambda: remember(tmp_path / "of-bob")) == 0
    remember(tmp_path / "of-root")
    assert (
        as_user(BOB, lambda: os._exit(10 + len({tmp_path / "of-root", tmp_path / "of-bob"} & {*known_folders()}))) == 12
    )
    assert tmp_path / "of-bob" not in known_folders()


def test_a_copy_whose_shards_were_removed_is_not_read_until_it_is_complete_again(packed, tmp_path, caplog):
    copy = dlio.stage(packed, tmp_path / "nvme").root
    for shard in copy.glob("shard-*"):
        shard.unlink()
    samples = PackedSamples(packed)
    assert samples.manifest.root == packed and samples.read([0])
    PackedSamples(packed)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"{copy} is ignored: shard-000000.tfrecord is missing") and "--repair" in warning
    assert dlio.stage(packed, tmp_path / "nvme").root == copy == PackedSamples(packed).manifest.root


def test_a_copy_that_cannot_be_accessed_is_not_read(packed, tmp_path, caplog):
    shard = next(dlio.stage(packed, tmp_path / "nvme").root.glob("shard-*"))
    shard.unlink()
    shard.symlink_to(shard.name)
    assert PackedSamples(packed).manifest.root == packed
    assert "a staged copy is ignored: cannot access" in caplog.text


def test_a_cache_whose_shards_were_removed_is_filled_again(packed, tmp_path):
    copy = dlio.stage(packed, tmp_path / "nvme").root
    for shard in copy.glob("shard-*"):
        shard.unlink()
    samples = PackedSamples(packed, cache=tmp_path / "nvme")
    assert samples.manifest.root == copy and samples.read([0])


def test_a_part_whose_shards_were_removed_is_read_from_the_source_in_the_same_order(dataset, tmp_path):
    whole = dataset.root
    part = run(whole, tmp_path / "nvme", strategy="partition", topology=node(1, 2))[0]
    assert staged(whole).root == part.root
    for shard in part.root.glob("shard-*"):
        shard.unlink()
    found = staged(whole)
    assert (found.root, found.node, found.shards) == (whole, part.node, part.shards)
