"""`index` without a format: images are a data set where they lie, and a changed file is named."""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import dlio
from dlio import cli
from dlio.dataset.manifest import Manifest, Shard
from dlio.dataset.pool import ShardPool
from dlio.dataset.schema import IMAGE_CLASSIFICATION
from dlio.errors import (
    EXIT_SKIPPED,
    CorruptRecordError,
    DlioError,
    SourceError,
    StorageError,
    UsageError,
)
from dlio.formats.layouts import file_list
from dlio.images import CenterCrop
from dlio.loaders.dataset import PackedSamples
from dlio.pack import plan
from dlio.pack.sets import loose as loose_sets
from tests.helpers.images import make_image_folder
from tests.helpers.lazy import Lazy

DataLoader = Lazy("dlio.loaders.torch", "DataLoader")
PackedDataset = Lazy("dlio.loaders.torch", "PackedDataset")
HOWS = pytest.mark.parametrize("checksums", [False, True], ids=["times", "checksums"])


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    make_image_folder(tmp_path / "photos", {"cat": 9, "dog": 14, "owl": 4})
    return tmp_path / "photos"


@pytest.fixture
def in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of about seven images."""
    monkeypatch.setattr(plan, "DEFAULT_SHARD_BYTES", 1000)


def contents(found: Manifest) -> list[tuple[str, dict[str, object]]]:
    with closing(ShardPool(found)) as pool:
        return [(sample.key, dict(sample.fields)) for sample in map(pool.read, range(found.num_samples))]


def batches(found: str | Path) -> list[tuple[bytes, list[int]]]:
    loader = DataLoader(PackedDataset(found, CenterCrop(8)), 5, shuffle=True, seed=3, num_workers=2)
    read = [(images.numpy().tobytes(), labels.tolist()) for images, labels in loader]
    loader.close()
    return read


@HOWS
def test_the_data_set_is_what_pack_would_make(photos, tmp_path, in_groups, checksums):
    packed = dlio.pack(photos, tmp_path / "packed", engine="serial")
    found = dlio.index(photos, checksums=checksums, workers=1)
    assert found.root == tmp_path / "photos-index" and len(found.shards) == len(packed.shards) > 2
    assert found == Manifest.load(found.root) and found.schema == packed.schema
    assert contents(found) == contents(packed)
    assert [shard.num_samples for shard in found.shards] == [shard.num_samples for shard in packed.shards]
    assert batches(found.root) == batches(packed.root)
    dataset = PackedDataset(found.root)
    assert dataset.samples[10] == PackedDataset(packed.root).samples[10] == ("dog/0001.png", 1)
    assert dlio.verify(found, decode=True, workers=1) == []
    assert sum(shard.files[0].num_bytes for shard in found.shards) == sum(
        p.stat().st_size for p in photos.rglob("*.png")
    )


def test_groups_of_tiny_files_are_bounded_by_number(photos, monkeypatch):
    monkeypatch.setattr(loose_sets, "_MOST_FILES", 10)
    found = dlio.index(photos)
    assert len(found.shards) == 3 and max(shard.num_samples for shard in found.shards) <= 10
    assert len(batches(found.root)) == 6


def test_nothing_is_read_or_listed_until_a_sample_is_asked_for(photos, tmp_path):
    found = dlio.index(photos)
    photos.rename(tmp_path / "away")
    dataset = PackedDataset(found.root)
    assert len(dataset) == 27 and np.bincount(dataset.targets).tolist() == [9, 14, 4]
    assert dataset.samples[26][0] == "owl/0003.png"
    with pytest.raises(CorruptRecordError, match=r"cat/0000\.png.*though it existed when it was indexed"):
        dataset[0]
    (tmp_path / "away").rename(photos)
    assert dataset[0][1] == 0


def test_pack_and_sets_keep_keys_order_and_splits(photos, tmp_path, in_groups):
    found = dlio.index(photos)
    whole = dlio.pack(found.root, tmp_path / "packed", format="recordio", engine="serial")
    assert contents(whole) == contents(found)
    assert [shard.num_samples for shard in whole.shards] == [shard.num_samples for shard in found.shards]
    parts = dlio.split(found.root, fractions=[0.7, 0.3], by="class")
    for name, part in parts.items():
        assert contents(dlio.pack(part.root, tmp_path / f"packed-{name}", engine="serial")) == contents(part)
        assert dlio.verify(part, workers=1) == []
    assert sorted(key for part in parts.values() for key, _ in contents(part)) == [key for key, _ in contents(found)]
    assert dlio.merge([part.root for part in parts.values()], tmp_path / "both").num_samples == 27
    some = dlio.select(found.root, tmp_path / "some", where=["key=dog/*"])
    assert {key.partition("/")[0] for key, _ in contents(some)} == {"dog"}
    assert len(batches(some.root)) == 3
    report = dlio.report(found.root, tmp_path / "report.html")
    assert report is None or report


def change(path: Path, how: str) -> str:
    """Changes a file; returns what is said of it."""
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
        return "though it existed"
    if how == "longer":
        path.write_bytes(data + b"x")
        return f"it has {len(data) + 1} bytes, and had {len(data)}"
    if how == "folder":
        path.unlink()
        path.mkdir()
        return "it has|directory"
    if how == "pipe":
        path.unlink()
        os.mkfifo(path)
        return "it has 0 bytes"
    status = path.stat()
    path.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])
    if how == "flipped":
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        return "is not what was packed"
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    return "it was modified since"


@pytest.mark.parametrize("how", ["gone", "longer", "folder", "pipe", "modified", "flipped"])
def test_a_changed_file_is_named(photos, how):
    found = dlio.index(photos, checksums=how == "flipped", workers=1)
    said = change(photos / "dog" / "0002.png", how)
    dataset = PackedDataset(found.root)
    with pytest.raises(CorruptRecordError, match=rf"(?s)files/dog/0002\.png.*({said})"):
        dataset[11]
    assert dataset[10][1] == 1
    (damage,) = dlio.verify(found, workers=1)
    assert (damage.key, damage.record) == ("dog/0002.png", 11) and damage.path.endswith("files/dog/0002.png")
    dlio.index(photos, overwrite=True, on_error="skip")
    assert dlio.verify(found.root, workers=1) == []


@HOWS
def test_neighbours_that_are_files_of_their_own_are_read_ahead_side_by_side(photos, tmp_path, checksums):
    found = dlio.index(photos, checksums=checksums, workers=1)
    rows = range(found.num_samples)
    assert [len(piece) for piece in PackedSamples(found).column_reads(rows).cut()] == [4] * 6 + [3]
    packed = dlio.pack(found.root, tmp_path / "packed", engine="serial")
    assert [len(piece) for piece in PackedSamples(packed).column_reads(rows).cut()] == [27]
    if checksums:
        assert len(PackedSamples(dlio.stage(found, tmp_path / "node")).column_reads(rows).cut()) == 1


@HOWS
def test_a_lost_link_is_named(photos, tmp_path, checksums):
    found = dlio.index(photos, checksums=checksums, workers=1)
    link, target = found.root / "files", (found.root / "files").readlink()
    link.unlink()
    with pytest.raises(DlioError, match=rf"{link}, .*lost|{link}, the link to the folder of indexed files"):
        PackedDataset(found.root)[0]
    assert len(dlio.verify(found, workers=1)) == (1 if checksums else 27)
    link.symlink_to("nowhere")
    with pytest.raises(CorruptRecordError, match=rf"the link {link} to nowhere is broken: .*make the link again"):
        PackedDataset(found.root)[0]
    link.unlink()
    link.symlink_to(target)
    assert dlio.verify(found, workers=1) == []


@pytest.mark.parametrize("change", ["again", "unlinked"])
def test_what_lost_its_files_says_what_to_make_again(photos, tmp_path, change):
    """A part of an index that was made again, and an index whose link to the files was removed."""
    whole = dlio.index(photos, checksums=True, workers=1)
    part = dlio.split(whole.root, tmp_path / "parts", fractions=[0.5, 0.5])["train"]
    if change == "again":
        found, said = part, r"base0 points to .*-index, which was indexed or made again, or was removed: make this set"
        make_image_folder(photos, {"zebu": 1})
        dlio.index(photos, checksums=True, overwrite=True, workers=1)
    else:
        found, said = whole, "files, the link to the folder of indexed files: restore it, index the files again"
        (whole.root / "files").unlink()
    with pytest.raises(StorageError, match=said):
        PackedDataset(found.root)[0]
    with pytest.raises(StorageError, match=said):
        dlio.stage(found.root, tmp_path / "local")
    assert any(re.search(said, str(each)) for each in dlio.verify(Manifest.load(found.root), workers=1))


def test_a_file_too_large_for_an_image_is_named_and_never_read(photos, monkeypatch):
    with (photos / "dog/huge.png").open("wb") as file:
        file.truncate(4 << 40)
    with pytest.raises(
        SourceError, match=r"dog/huge\.png': it has 4,398,046,511,104 bytes, an image has at most 2,147,"
    ):
        dlio.index(photos, workers=1)
    found = dlio.index(photos, on_error="skip", checksums=True, workers=1)
    assert found.num_samples == 27 and [key for key, _ in found.skipped] == ["dog/huge.png"]
    monkeypatch.setattr(file_list, "MOST_BYTES", 1 << 50)  # as a list by another program may say
    listed = dlio.index(photos, overwrite=True)
    monkeypatch.undo()
    dataset = PackedDataset(listed.root)
    with pytest.raises(CorruptRecordError, match=r"dog/huge\.png.*4,398,046,511,104 bytes, more than 2,147,483,647"):
        dataset[dataset.targets.tolist().index(2) - 1]


def test_with_checksums_the_time_of_a_file_is_nothing(photos, tmp_path):
    dlio.index(photos, checksums=True, workers=1)
    moved = tmp_path / "photos2"
    shutil.copytree(photos, moved, copy_function=shutil.copyfile)
    shutil.rmtree(photos)
    moved.rename(photos)
    assert dlio.verify(tmp_path / "photos-index", workers=1) == []


def test_a_run_that_was_killed_is_begun_again_and_an_index_is_replaced_only_if_asked(photos, tmp_path):
    out = tmp_path / "out"
    first = dlio.index(photos, out)
    (out / "manifest.jsonl").unlink()
    (out / ".shard-000000.list.8f.tmp").write_bytes(b"half")
    assert dlio.index(photos, out) == first
    with pytest.raises(UsageError, match="has been indexed"):
        dlio.index(photos, out)
    make_image_folder(photos, {"yak": 2})
    for number, count in enumerate((29, 31), start=1):
        assert dlio.index(photos, out, overwrite=True).num_samples == count
        lists = ["files", "shard-000000.list", "shard-000000.samples.npz"]
        names = [f".index-{number}", *(f".index-{number}/{name}" for name in lists), "manifest.jsonl"]
        assert sorted(str(path.relative_to(out)) for path in out.rglob("*")) == names
        assert dlio.verify(out, workers=1) == [] and len(batches(out)) == -(-count // 5)
        make_image_folder(photos, {"zebu": 2})


@pytest.mark.parametrize("moved", [False, True])
@HOWS
def test_an_index_of_what_has_not_changed_stays_as_it_is(photos, tmp_path, in_groups, checksums, moved):
    """So a copy of it is found again, and the state of a run still fits."""
    index = partial(dlio.index, photos, checksums=checksums, workers=1, overwrite=True)
    if moved:
        dlio.index(photos, checksums=not checksums, workers=1)
    first = index()
    listed = first.root / first.shards[0].files[1].name
    listed.write_bytes(b"lost")
    (listed.parent / "files").unlink()
    assert dlio.verify(first, workers=1)
    again = index()
    assert again == first and again.content_id == first.content_id == Manifest.load(first.root).content_id
    assert dlio.verify(first, workers=1) == []
    assert len([path for path in first.root.iterdir() if path.name.startswith(".index-")]) == moved
    make_image_folder(photos, {"zebu": 1})
    assert index().content_id != first.content_id


@pytest.mark.parametrize("again", [False, True])
def test_the_old_index_stays_until_the_new_one_is_whole(photos, tmp_path, in_groups, again):
    out = dlio.index(photos, checksums=not again, workers=1).root
    if again:
        dlio.index(photos, checksums=True, workers=1, overwrite=True)
    before, seen = batches(out), []

    def killed(shard: Shard) -> None:
        seen.append(batches(out))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dlio.index(photos, overwrite=True, report=killed)
    assert [*seen, batches(out)] == [before, before] and dlio.verify(out, workers=1) == []
    (photos / "cat/0000.png").unlink()
    assert dlio.index(photos, overwrite=True, checksums=True, workers=1).num_samples == 26
    assert len([path for path in out.iterdir() if path.name.startswith(".index-")]) == 1
    copy = dlio.stage(out, tmp_path / "node")
    assert contents(copy) == contents(Manifest.load(out)) and len(contents(copy)) == 26


def test_what_is_no_place_or_no_image_files_is_refused(photos, tmp_path, monkeypatch):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("")
    packed = dlio.pack(photos, tmp_path / "packed", engine="serial").root
    np.savez(arrays := tmp_path / "arrays.npz", image=np.zeros((3, 4, 4), np.uint8))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.tmp").write_text("")
    wrong = [
        ((photos, tmp_path / "full"), "holds 'mine.txt'"),
        ((photos, tmp_path / "notes"), "holds 'mine.tmp'"),
        ((photos, packed), "holds another data set"),
        ((photos, photos / "index"), "give another --out"),
        ((photos, tmp_path), "give another --out"),
        ((packed, tmp_path / "out"), "packed is a dlio data set already: loaders and verbs use it directly"),
        ((arrays, tmp_path / "out"), "only image files in a folder are indexed in place, not npz: pack it"),
    ]
    for words, problem in wrong:
        with pytest.raises(UsageError, match=problem):
            dlio.index(*words)
    for options in ({"match": "a*"}, {"label_offset": 1}, {"schema": IMAGE_CLASSIFICATION}):
        with pytest.raises(UsageError, match="are for shards"):
            dlio.index(photos, **options)
    for options in ({"out": tmp_path / "o"}, {"checksums": True}, {"on_error": "skip"}):
        with pytest.raises(UsageError, match="are for images"):
            dlio.index(photos, format="tfrecord", **options)
    (photos / "cat" / "0003.png").write_bytes(b"")
    with pytest.raises(SourceError, match=r"'cat/0003\.png': it is missing, empty, or not a file"):
        dlio.index(photos)
    skipped = dlio.index(photos, on_error="skip")
    assert skipped.num_samples == 26 and skipped.skipped == (("cat/0003.png", "it is missing, empty, or not a file"),)


def test_a_list_of_images(photos, tmp_path, capsys):
    rows = ["path,label,weight", "dog/0001.png,3,0.5", "cat/0002.png,1,0.25", "cat/none.png,1,1"]
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    words = [
        "index",
        tmp_path / "labels.csv",
        "--root",
        photos,
        "--option",
        "fields=weight",
        "--on-error",
        "skip",
        "--json",
    ]
    assert cli.main(list(map(str, words))) == EXIT_SKIPPED
    captured = capsys.readouterr()
    found = Manifest.load(json.loads(captured.out)["path"])
    assert found.root == tmp_path / "labels-index" and "skipped 'cat/none.png'" in captured.err
    assert [(key, fields["label"], fields["weight"]) for key, fields in contents(found)] == [
        ("dog/0001.png", 3, 0.5),
        ("cat/0002.png", 1, 0.25),
    ]
    (photos / "some.csv").write_text("\n".join(rows[:-1]))
    assert dlio.index(photos / "some.csv").root == tmp_path / "photos-some-index"  # not among the files
    (photos / "some.csv").unlink()
    (tmp_path / "text.csv").write_text("path,label,note\ndog/0001.png,3,blurred\n")
    with pytest.raises(UsageError, match="files with text are not indexed in place"):
        dlio.index(dlio.sources.csv_file(tmp_path / "text.csv", photos, fields=["note"], label_columns=["label"]))
    (tmp_path / "folder.csv").write_text("path,label\ncat,3\ndog/0001.png,1\n")
    with pytest.raises(SourceError, match="'cat': it is missing, empty, or not a file"):
        dlio.index(dlio.sources.csv_file(tmp_path / "folder.csv", photos))
    (tmp_path / "out.csv").write_text(f"path,label\n../photos/dog/0001.png,3\n{photos}/dog/0001.png,3\n")
    with pytest.raises(SourceError, match="it is outside the folder"):
        dlio.index(dlio.sources.csv_file(tmp_path / "out.csv", photos))
