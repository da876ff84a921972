"""Files and folders that are staged as they are: hostile lists, and misleading names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import dlio
from dlio.dataset.location import TREE
from dlio.dataset.manifest import NAME, Manifest
from dlio.dataset.schema import Schema
from dlio.dataset.tree import Entry, encoded, manifest_of
from dlio.errors import ManifestError, StorageError
from dlio.io.files import digest_bytes
from dlio.stage.sources.anything import TreeFolder
from tests.helpers.staging import write_dataset


def _hostile(root: Path, entries: Sequence[Entry], files: Sequence[str] = ()) -> Path:
    """Makes a data set that anybody could have published, whose list is not of what it holds."""
    root.mkdir()
    (root / "env.tree").write_bytes(table := encoded(entries, "env"))
    for name in files:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"1")
    made = manifest_of(
        [Entry("folder", "env", 0o755, 0, 0), *(Entry("file", name, 0o644, 0, 0, 1) for name in files)], table, root
    )
    shards = [
        shard.replace(files=tuple(each.replace(digest=each.digest or digest_bytes(b"1")) for each in shard.files))
        for shard in made.shards
    ]
    replace(made, shards=tuple(shards)).save(root)
    return root


@pytest.mark.parametrize(
    ("entries", "files", "match"),
    [
        ([Entry("folder", ".dlio", 0o700, 0, 0), Entry("link", ".dlio/aside", 0o777, 0, 0, 0, "VICTIM")], [], "lists"),
        ([Entry("folder", NAME, 0o755, 0, 0)], [], "lists"),
        ([Entry("folder", "env", 0o755, 0, 0), Entry("link", "env/x", 0o777, 0, 0, 0, "VICTIM")], ["env/x"], "lists"),
        ([Entry("folder", "env", 0o755, 0, 0), Entry("file", "env/x", 0o644, 0, 0, 1)], [], "lists"),
        ([Entry("folder", "/".join(["env"] * depth), 0o755, 0, 0) for depth in range(1, 27)], [], "deeper than 24"),
        ([], [], "lists"),
    ],
)  # fmt: skip
def test_a_hostile_list_changes_nothing_but_the_files_of_its_manifest(
    tmp_path: Path, entries: list[Entry], files: list[str], match: str
) -> None:
    (victim := tmp_path / "victim").mkdir()
    (victim / NAME).write_text("precious")
    entries = [msgspec.structs.replace(each, target=each.target.replace("VICTIM", str(victim))) for each in entries]
    hostile = _hostile(tmp_path / "hostile", entries, files)
    for _ in range(2):
        with pytest.raises(ManifestError, match=match):
            dlio.stage(hostile, tmp_path / "local")
    assert (victim / NAME).read_text() == "precious" and len(list(victim.iterdir())) == 1
    assert not any(path.is_symlink() for path in (tmp_path / "local").rglob("*"))
    dlio.clean(tmp_path / "local")


def test_a_manifest_without_a_list_is_refused(tmp_path: Path) -> None:
    (root := tmp_path / "none").mkdir()
    Manifest(TREE, Schema.of({}), (), {}, root).save(root)
    with pytest.raises(ManifestError, match="lists other files"):
        dlio.stage(root, tmp_path / "local")


@pytest.mark.parametrize("name", [".dlio", NAME])
def test_names_of_dlio_itself_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "shared" / name / "inner").mkdir(parents=True)
    with pytest.raises(ManifestError, match="is a name that dlio itself uses in a copy"):
        dlio.stage(tmp_path / "shared" / name, tmp_path / "local")


def test_two_dots_after_a_link_lead_where_the_system_says(tmp_path: Path) -> None:
    (tmp_path / "other" / "inner").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path / "other" / "inner")
    (tmp_path / "here" / "x").write_text("here")
    (tmp_path / "other" / "x").write_text("other")
    assert dlio.stage(f"{tmp_path}/here/link/../x", tmp_path / "local").path.read_text() == "other"
    assert dlio.stage(f"{tmp_path}/here/link/..", tmp_path / "local").path.name == "other"


def test_a_changed_file_is_refused_at_each_try(tmp_path: Path) -> None:
    """No digest would tell that a copy is of two states, so an agent that tries again must not get the second one."""
    (image := tmp_path / "image").write_bytes(b"A" * 9000)
    source = TreeFolder(image)
    file, target = source.manifest.shards[1].files[0], bytearray(4500)
    source.read_range(file, 0, memoryview(target))
    image.write_bytes(b"B" * 9000)
    os.utime(image, ns=(5, 5))
    for _ in range(3):
        with pytest.raises(StorageError, match="image changed while it was copied: stage again"):
            source.read_range(file, 4500, memoryview(target))


def test_a_file_that_lies_beside_a_data_set_is_none_of_it(tmp_path: Path) -> None:
    source = write_dataset(tmp_path / "packed", [3000], stem="part").root
    (source / "weights.bin").write_bytes(b"weights")
    assert dlio.stage(source / "weights.bin", tmp_path / "local").path.read_bytes() == b"weights"
    staged, shard = dlio.stage(source, tmp_path / "local"), Manifest.load(source).shards[0].files[0]
    assert staged.format != TREE and dlio.stage(source / shard.name, tmp_path / "local") == staged


def test_files_of_one_name_size_and_time_are_not_taken_for_each_other(tmp_path: Path) -> None:
    for name, byte in (("a", b"A"), ("b", b"B")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.pt").write_bytes(byte * 1000)
        os.utime(tmp_path / name / "model.pt", (1, 1))
    for name, byte in (("a", b"A"), ("b", b"B"), ("a", b"A")):
        found = dlio.stage(tmp_path / name / "model.pt", tmp_path / "local")
        assert found.path.read_bytes() == byte * 1000
