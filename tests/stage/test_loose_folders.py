"""Folders that anybody could swap, at any level above what dlio writes, are refused wherever dlio writes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import Manifest
from dlio.errors import StorageError
from dlio.io.ground import loose_folders
from dlio.look.mounting import Way
from dlio.look.report import report
from dlio.look.show import show, write
from dlio.pack.index import index
from dlio.stage.client.resolve import resolve
from tests.helpers.images import make_image_folder
from tests.helpers.users import BOB, as_user

pytestmark = pytest.mark.usefixtures("job_7")
REFUSED = r"anybody could replace what is written to .* whose mode is 777: .*\(chmod \+t\)"


@pytest.fixture
def loose(tmp_path: Path) -> Path:
    """A folder whose entries anybody may rename."""
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose").chmod(0o777)
    return tmp_path / "loose"


def test_links_on_the_way_hide_no_loose_folder(tmp_path: Path, loose: Path) -> None:
    (loose / "real" / "inner").mkdir(parents=True)
    (tmp_path / "to-inner").symlink_to(loose / "real")
    (tmp_path / "safe").mkdir()
    (loose / "to-safe").symlink_to(tmp_path / "safe")
    for path in (loose / "real", tmp_path / "to-inner" / "inner" / "later", loose / "to-safe" / "more"):
        assert list(loose_folders(path)) == [loose]
    assert list(loose_folders(tmp_path / "safe")) == []
    loose.chmod(0o1777)
    assert list(loose_folders(loose / "real")) == []


def test_a_dest_whose_parent_anybody_may_swap_is_refused(
    dataset: Manifest, loose: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dest = loose / "scratch"
    for _ in range(2):
        with pytest.raises(StorageError, match=REFUSED):
            dlio.stage(dataset, dest)
        dest.mkdir(exist_ok=True)
    assert list(dest.iterdir()) == []
    loose.chmod(0o1777)
    staged = dlio.stage(dataset, dest).root
    monkeypatch.setenv("DLIO_STAGED", str(dest))
    assert resolve(dataset.root) == staged
    loose.chmod(0o777)
    assert resolve(dataset.root) == dataset.root
    assert f"{dest} is ignored: anybody could replace what is staged there (chmod +t {loose} makes" in caplog.text


@pytest.mark.parametrize("verb", ["pack", "convert", "split", "merge", "index", "report", "show"])
def test_an_out_whose_parent_anybody_may_swap_is_refused(tmp_path: Path, loose: Path, verb: str) -> None:
    for name, count in (("photos", 2), ("more", 3)):
        make_image_folder(tmp_path / name, {"cat": count})
    packed, other = (
        dlio.pack(tmp_path / name, tmp_path / f"{name}-packed", format="webdataset", engine="serial").root
        for name in ("photos", "more")
    )
    out = loose / "mine" / "out"
    out.mkdir(parents=True)
    verbs: dict[str, Callable[[], object]] = {
        "pack": lambda: dlio.pack(tmp_path / "photos", out, format="recordio", engine="serial"),
        "convert": lambda: dlio.convert(packed, out, format="recordio", engine="serial"),
        "split": lambda: dlio.split(packed, out, fractions=[0.5, 0.5]),
        "merge": lambda: dlio.merge([packed, other], out),
        "index": lambda: index(out, format="webdataset"),
        "report": lambda: report(packed, out / "report.html"),
        "show": lambda: [write(shown, out) for shown in show(packed)],
    }
    with pytest.raises(StorageError, match=REFUSED):
        verbs[verb]()
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("verb", ["pack", "mount"])
def test_temporary_folders_are_not_made_where_anybody_may_swap_them(
    tmp_path: Path, loose: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_image_folder(tmp_path / "photos", {"cat": 2})
    packed = dlio.pack(tmp_path / "photos", tmp_path / "packed", format="tfrecord", engine="serial")
    shard = (packed.root / packed.shards[0].files[0].name).rename(tmp_path / "shard.tfrecord")
    verbs: dict[str, Callable[[], object]] = {
        "pack": lambda: dlio.pack(shard, tmp_path / "out", engine="serial"),
        "mount": lambda: Way("squashfuse").run([shard], tmp_path / "mounted", ["true"]),
    }
    monkeypatch.setattr(tempfile, "tempdir", str(loose))
    with pytest.raises(StorageError, match=f"anybody could replace what is written to {loose}, whose mode is 777"):
        verbs[verb]()
    assert list(loose.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_user_may_stage_below_a_sticky_folder_of_root(dest: Path, dataset: Manifest) -> None:
    assert as_user(BOB, lambda: dlio.stage(dataset, dest / "bobs")) == 0
    assert (dest / "bobs" / "dlio" / dataset.content_id).stat().st_uid == BOB
