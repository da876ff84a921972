"""`pack --append`: new samples in new shards, the old ones untouched, one manifest; killed anywhere, it continues."""

from __future__ import annotations

from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import Manifest
from dlio.errors import ManifestError, UsageError
from dlio.pack import run
from dlio.pack.recode import Recode
from dlio.pack.sources import open_source
from tests.helpers.images import make_image_folder
from tests.helpers.packing import file_states, samples, stop_after


@pytest.fixture(params=["tfrecord", "lmdb"])
def packed(request, tmp_path) -> Manifest:
    make_image_folder(tmp_path / "photos", {"cat": 4, "owl": 3})
    return dlio.pack(
        tmp_path / "photos", tmp_path / "packed", num_shards=2, engine="serial", format=request.param, label_offset=1
    )


def add(tmp_path: Path, **options) -> Manifest:
    return dlio.pack(tmp_path / "photos", tmp_path / "packed", append=True, num_shards=2, engine="serial", **options)


def test_only_new_samples_are_packed_and_old_files_untouched(tmp_path, packed):
    before, old = file_states(tmp_path / "packed"), samples(tmp_path / "packed")
    make_image_folder(tmp_path / "photos", {"bee": 3, "cat": 4, "owl": 5})
    added = add(tmp_path)
    assert added.class_names == ("cat", "owl", "bee")
    now = samples(tmp_path / "packed")
    assert now[:7] == old
    assert [(key, value["label"]) for key, value in now[7:]] == [
        *((f"bee/{n:04d}.png", 3) for n in range(3)),
        *((f"owl/{n:04d}.png", 2) for n in (3, 4)),
    ]
    after = file_states(tmp_path / "packed")
    changed = {path.name for path in before if after[path] != before[path]}
    assert changed == {"manifest.jsonl"} and dlio.verify(added, workers=1) == []
    assert [shard.name for shard in added.shards] == [f"shard-{number:06d}" for number in range(4)]
    assert not (tmp_path / "packed" / ".dlio-packing").exists()
    assert add(tmp_path) == added and file_states(tmp_path / "packed") == after  # nothing is new
    assert Manifest.load(tmp_path / "packed").content_id == added.content_id != packed.content_id


def test_a_stopped_append_leaves_the_old_set_and_goes_on(tmp_path, packed):
    make_image_folder(tmp_path / "photos", {"owl": 9})
    with pytest.raises(KeyboardInterrupt):
        add(tmp_path, report=stop_after(1))
    assert Manifest.load(tmp_path / "packed") == packed
    done = []
    added = add(tmp_path, report=done.append, started=lambda *_: done.append("started"))
    assert done.index("started") >= 1  # shards of the first run are kept
    assert added.num_samples == len({key for key, _ in samples(tmp_path / "packed")}) == 13


def test_what_a_kill_behind_the_new_manifest_leaves_is_removed_by_the_same_command(tmp_path, packed, monkeypatch):
    make_image_folder(tmp_path / "photos", {"owl": 9})
    with monkeypatch.context() as patch:
        patch.setattr(run, "clear_all_aside", stop_after(0))
        with pytest.raises(KeyboardInterrupt):
            add(tmp_path)
    assert (tmp_path / "packed" / ".dlio-packing" / "next").exists()
    added = add(tmp_path)
    assert added.num_samples == 13 and not (tmp_path / "packed" / ".dlio-packing").exists()


def test_a_selection_grows_without_its_shards(tmp_path, packed):
    chosen = dlio.select(packed, tmp_path / "owls", classes=["owl"])
    make_image_folder(tmp_path / "more", {"owl": 5})
    grown = dlio.pack(tmp_path / "more", chosen.root, append=True, engine="serial")
    assert [key for key, _ in samples(grown.root)] == [f"owl/{n:04d}.png" for n in range(5)]
    with pytest.raises(UsageError, match="over the shards of other data sets"):
        dlio.pack(tmp_path / "more", chosen.root, overwrite=True, engine="serial")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overwrite": True}, "give one of the two"),
        ({"classes": ["owl", "cat"]}, "does not begin with the 2 classes"),
        ({"label_offset": 2}, "has 1"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, packed, options, message):
    with pytest.raises(UsageError, match=message):
        add(tmp_path, **options)


def test_another_format_is_refused(tmp_path, packed):
    other = "lmdb" if packed.format == "tfrecord" else "tfrecord"
    with pytest.raises(UsageError, match="a data set has one format"):
        add(tmp_path, format=other)


def test_there_must_be_a_set_with_these_fields(tmp_path, packed):
    with pytest.raises(ManifestError, match="does not exist"):
        dlio.pack(tmp_path / "photos", tmp_path / "none", append=True, engine="serial")
    dlio.pack(tmp_path / "photos", tmp_path / "plain", engine="serial")
    (tmp_path / "list.csv").write_text("path,label\nphotos/cat/0000.png,cat|owl\nphotos/cat/0001.png,owl\n")
    lists = dlio.sources.csv_file(tmp_path / "list.csv", separator="|")
    with pytest.raises(UsageError, match="the new samples have"):
        dlio.pack(lists, tmp_path / "plain", append=True, engine="serial")


def test_labels_without_names_get_no_names_by_appending(tmp_path):
    make_image_folder(tmp_path / "photos", {"cat": 2, "owl": 1})
    (tmp_path / "list.lst").write_text("0\t5\tcat/0000.png\n1\t0\towl/0000.png\n")
    source = open_source(tmp_path / "list.lst", root=tmp_path / "photos")
    dlio.pack(source, tmp_path / "packed", engine="serial")
    with pytest.raises(UsageError, match="have no names"):
        add(tmp_path)


def test_new_images_are_changed_as_the_old_ones(tmp_path, photos):
    dlio.pack(photos, tmp_path / "packed", engine="serial", recode=Recode(resize=8))
    make_image_folder(photos, {"new": 2})
    with pytest.raises(UsageError, match=r"packed with resize 8: give the same options"):
        add(tmp_path)
    assert add(tmp_path, recode=Recode(resize=8, check="decode")).num_samples == 38


def test_a_stopped_replacement_is_finished_first(tmp_path, packed, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "replace_packed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dlio.pack(tmp_path / "photos", packed.root, format="recordio", engine="serial", overwrite=True)
    make_image_folder(tmp_path / "photos", {"owl": 9})
    with pytest.raises(UsageError, match="when dlio pack --overwrite was stopped: run that again first"):
        add(tmp_path)
