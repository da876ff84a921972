"""Packing and indexing where others may write: what another user planted is not followed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import dlio
from dlio import sources
from dlio.dataset.manifest import NAME, PARTIAL_NAME, Manifest
from dlio.errors import StorageError
from dlio.formats.layouts.text_index import HIDDEN
from dlio.io import files
from dlio.pack import request
from dlio.pack.index import CLAIMS, index
from dlio.pack.listing.base import Source
from dlio.pack.write import ASIDE
from tests.helpers.images import image
from tests.helpers.manifests import replace_text


@pytest.fixture
def photos(tmp_path: Path) -> Source:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "photos" / "cat" / "1.jpg").write_bytes(image(1, "JPEG"))
    return sources.image_folder(tmp_path / "photos")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with work that is not dlio's."""
    (tmp_path / "home" / "next").mkdir(parents=True)
    (tmp_path / "home" / "next" / "thesis.tex").write_text("years of work")
    return tmp_path / "home"


def test_pack_follows_no_link_in_place_of_its_folder(tmp_path: Path, photos: Source, home: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ASIDE).symlink_to(home)
    with pytest.raises(StorageError, match=f"{ASIDE} is not a folder, but dlio needs a folder of that name"):
        dlio.pack(photos, tmp_path / "out", format="recordio", engine="serial", overwrite=True)
    assert [path.name for path in home.rglob("*")] == ["next", "thesis.tex"]


def test_a_link_planted_while_listing_is_not_followed(
    tmp_path: Path, photos: Source, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir(mode=0o777)
    make_plan = request.make_plan

    def planting(*args: Any, **options: Any) -> Any:
        (tmp_path / "out" / ASIDE).symlink_to(home)
        return make_plan(*args, **options)

    monkeypatch.setattr(request, "make_plan", planting)
    with pytest.raises(StorageError, match="is not a folder"):
        dlio.pack(photos, tmp_path / "out", format="recordio", engine="serial")
    assert [path.name for path in home.rglob("*")] == ["next", "thesis.tex"]


@pytest.mark.parametrize("name", [HIDDEN, CLAIMS])
def test_index_follows_no_link_in_place_of_its_folders(tmp_path: Path, photos: Source, home: Path, name: str) -> None:
    packed = dlio.pack(photos, tmp_path / "out", format="webdataset", engine="serial")
    for path in packed.root.iterdir():
        if path.suffix != ".tar":
            path.unlink()
    (tmp_path / "out" / name).symlink_to(home)
    with pytest.raises(StorageError, match="is not a folder"):
        index(tmp_path / "out", format="webdataset", overwrite=True)
    assert [path.name for path in home.rglob("*")] == ["next", "thesis.tex"]


def test_pack_refuses_a_folder_where_anybody_may_rename(tmp_path: Path, photos: Source) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out").chmod(0o777)
    with pytest.raises(StorageError, match=r"anybody could replace .* whose mode is 777: .*\(chmod \+t\)"):
        dlio.pack(photos, tmp_path / "out", format="recordio", engine="serial")
    (tmp_path / "out").chmod(0o1777)
    assert dlio.pack(photos, tmp_path / "out", format="recordio", engine="serial").num_samples == 1


def test_pack_follows_no_link_in_place_of_a_shard(
    tmp_path: Path, photos: Source, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted where all may write while the first shard is written."""
    (home / "data.mdb").write_text("another data base")
    (tmp_path / "out").mkdir()
    (tmp_path / "out").chmod(0o1777)
    publish_all = files.publish_all

    def planting(aside: Path, final: Path, names: Sequence[str]) -> None:
        (final / names[0]).parent.symlink_to(home)
        publish_all(aside, final, names)

    monkeypatch.setattr(files, "publish_all", planting)
    with pytest.raises(StorageError, match="is a link, or belongs to another user"):
        dlio.pack(photos, tmp_path / "out", format="lmdb", engine="serial")
    assert (home / "data.mdb").read_text() == "another data base"


def test_overwriting_removes_nothing_behind_a_link(tmp_path: Path, photos: Source, home: Path) -> None:
    """A manifest may name any file, and a folder on the way to it may be a link."""
    out = dlio.pack(photos, tmp_path / "out", format="recordio", engine="serial").root
    replace_text(out / NAME, '"shard-000000.rec"', '"next/thesis.tex"')
    assert Manifest.load(out).shards[0].files[0].name == "next/thesis.tex"
    (out / "shard-000000.rec").unlink()
    (out / "next").symlink_to(home / "next")
    with pytest.raises(StorageError, match="cannot remove the data set in"):
        dlio.pack(photos, out, format="tfrecord", engine="serial", overwrite=True)
    assert (home / "next" / "thesis.tex").read_text() == "years of work"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
@pytest.mark.parametrize("name", [NAME, PARTIAL_NAME])
def test_pack_does_not_overwrite_by_another_users_manifest(tmp_path: Path, photos: Source, name: str) -> None:
    out = dlio.pack(photos, tmp_path / "out", format="recordio", engine="serial").root
    out.chmod(0o1777)
    (out / NAME).rename(out / name)
    os.chown(out / name, 2002, 2002)
    with pytest.raises(StorageError, match="belongs to another user: give another folder"):
        dlio.pack(photos, out, format="tfrecord", engine="serial", overwrite=True)
    assert (out / "shard-000000.rec").exists()
