"""What files of a data set may be called, and what they may be."""

from __future__ import annotations

from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import NAME, File, Manifest, Shard
from dlio.dataset.schema import Schema
from dlio.errors import ManifestError
from dlio.io.files import digest_bytes
from dlio.stage.upkeep.clean import clean
from tests.helpers.manifests import replace_text
from tests.helpers.staging import MiB, assert_staged, write_dataset


def test_blake3_and_odd_paths(tmp_path: Path) -> None:
    source = write_dataset(tmp_path / "so 'ur\"ce\n", [5, MiB], stem="sub folder/ünï\n-x", digest="blake3")
    assert_staged(dlio.stage(source, tmp_path / "de st\n"), source)


def test_links_are_followed_and_equal_base_names_kept_apart(tmp_path: Path) -> None:
    contents = [bytes([number]) * 1000 for number in range(3)]
    root, shards = tmp_path / "source", []
    for name, content in zip(("a/data.bin", "b/data.bin", "data.bin"), contents, strict=True):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
        shards.append(Shard(name, 1, (File(name, len(content), digest_bytes(content)),)))
    (root / "b" / "data.bin").rename(tmp_path / "elsewhere.bin")
    (root / "b" / "data.bin").symlink_to(tmp_path / "elsewhere.bin")
    (root / "lock.mdb").touch()
    source = Manifest("lmdb", Schema.of({"image": "bytes"}, (), 0), tuple(shards), {}, root)
    source.save(root)
    staged = dlio.stage(root, tmp_path / "local")
    assert_staged(staged, source)
    assert [(staged.root / shard.name).read_bytes() for shard in staged.shards] == contents
    assert not any(path.is_symlink() for path in staged.root.rglob("*"))


@pytest.mark.parametrize("name", ["../escape", "/etc/passwd", "a/../../b", "", "a\0b"])
def test_file_names_that_lead_out_are_refused(dataset: Manifest, tmp_path: Path, name: str) -> None:
    import json

    path = dataset.root / NAME
    replace_text(path, '"shard-00002.bin"', json.dumps(name))
    with pytest.raises(ManifestError, match="outside"):
        dlio.stage(dataset.root, tmp_path / "local")
    assert not (tmp_path / "local").exists()


@pytest.mark.parametrize("name", [NAME, ".dlio/copy.json", "shard-00000.bin"])
def test_reserved_file_names_are_refused(dataset: Manifest, tmp_path: Path, name: str) -> None:
    path = dataset.root / NAME
    replace_text(path, "shard-00002.bin", name)
    with pytest.raises(ManifestError, match="reserved"):
        dlio.stage(dataset.root, tmp_path / "local")


@pytest.mark.parametrize("levels", [25, 2000])
def test_files_too_deep_for_clean_are_refused(dataset: Manifest, tmp_path: Path, levels: int) -> None:
    path = dataset.root / NAME
    replace_text(path, "shard-00002.bin", "a/" * levels + "shard-00002.bin")
    with pytest.raises(ManifestError, match="lies deeper than 24 folders"):
        dlio.stage(dataset.root, tmp_path / "local")


def test_the_deepest_files_are_staged_and_removed_by_clean(tmp_path: Path) -> None:
    source = write_dataset(tmp_path / "in", [5], stem="a/" * 24 + "shard")
    staged = dlio.stage(source, tmp_path / "local")
    assert_staged(staged, source)
    assert clean(tmp_path / "local") == [staged.root] and not (tmp_path / "local" / "dlio").exists()
