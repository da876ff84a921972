"""Data sets made of others without copying: split, select, merge."""

from __future__ import annotations

import errno
import json
import re
import shutil
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dlio
from dlio import formats
from dlio.dataset.manifest import Manifest
from dlio.dataset.shard import File, Part, Shard, checked
from dlio.errors import CorruptRecordError, ManifestError, SourceError, StorageError, UsageError
from dlio.loaders.dataset import PackedSamples
from dlio.pack.resume import working_on
from dlio.pack.sets.choose import grouped, stratified
from tests.helpers.images import make_image_folder
from tests.helpers.manifests import lines_of, write_lines
from tests.helpers.packing import samples

COUNTS = {"cat": 16, "dog": 11, "owl": 9}


@pytest.fixture(scope="module", params=["tfrecord", "lmdb"])
def packed(request, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("set")
    make_image_folder(root / "photos", COUNTS)
    dlio.pack(root / "photos", root / "packed", num_shards=3, engine="serial", format=request.param, shuffle=1)
    return root / "packed"


def keys(root: Path) -> list[str]:
    return [key for key, _ in samples(root)]


@given(st.lists(st.booleans(), max_size=40))
def test_a_part_is_the_records_that_were_chosen(taken):
    records = np.flatnonzero(np.array(taken, np.bool_))
    part = Part.of(len(taken), records)
    assert part.records().tolist() == records.tolist()
    shard = Shard("a", len(records), (File("a.rec", len(taken), ""),), part=part)
    assert list(checked([shard], b"")) == [shard]


@pytest.mark.parametrize(
    "part",
    [
        *({"of": 9, "runs": runs} for runs in ([0, 4, 0, 1], [5], [-1, 5], [0, 4], 7)),
        *({"of": 4, "runs": [0, 5]}, {"of": 2**70, "runs": [0, 5]}, {"runs": [0, 5]}, []),
    ],
)
def test_a_hostile_part_is_refused_by_its_line(tmp_path, packed, part):
    lines = lines_of(packed / "manifest.jsonl")
    hostile = [json.dumps(json.loads(line) | {"samples": 5, "part": part}) for line in lines[1:]]
    write_lines(tmp_path / "manifest.jsonl", [lines[0], *hostile])
    with pytest.raises(ManifestError, match="line 2: "):
        Manifest.load(tmp_path)


def test_the_bytes_of_a_selection_are_its_samples(tmp_path, packed):
    whole = dlio.info(packed)
    some = dlio.select(packed, tmp_path / "some", where=["key=cat/*"])
    told = dlio.info(some.root)
    assert told["bytes_of_files"] == whole["bytes"] == some.num_bytes
    assert told["bytes"] == pytest.approx(whole["bytes"] * 16 / 36, rel=0.2)
    assert "bytes_of_files" not in whole


def test_a_part_of_more_records_than_the_file_has_is_damage(tmp_path, packed):
    made = dlio.select(packed, tmp_path / "out", classes=["cat"])
    shards = [s.replace(part=s.part.replace(num_records=2**60)) for s in made.shards]
    found = dlio.verify(Manifest(made.format, made.schema, tuple(shards), {}, made.root), workers=1)
    assert len(found) == 3 and all("the manifest says 1152921504606846976" in each.problem for each in found)


def test_a_split_holds_each_sample_once_and_every_class_in_proportion(tmp_path, packed):
    parts = dlio.split(packed, tmp_path / "parts", fractions=[0.75, 0.25], by="class")
    assert sorted(key for name in parts for key in keys(tmp_path / "parts" / name)) == sorted(keys(packed))
    assert dlio.info(parts["train"])["class_counts"] == {"cat": 12, "dog": 8, "owl": 7}
    assert {name: dict(samples(packed))[name] for name in keys(tmp_path / "parts" / "val")} == dict(
        samples(tmp_path / "parts" / "val")
    )
    assert not any(
        path.is_file() for part in parts.values() for path in part.root.iterdir() if path.name != "manifest.jsonl"
    )
    assert dlio.verify(tmp_path / "parts" / "val", workers=1) == []
    assert dlio.split(packed, tmp_path / "parts", fractions=[0.75, 0.25], by="class")["val"] == parts["val"]
    again = dlio.merge([parts["train"], parts["val"]], tmp_path / "again")
    assert keys(tmp_path / "again") == keys(packed) and all(shard.part is None for shard in again.shards)


@pytest.mark.parametrize("name", formats.names())
def test_a_set_whose_base_was_packed_again_reads_no_other_samples(tmp_path, name):
    make_image_folder(tmp_path / "photos", {"cat": 4})
    make = partial(dlio.pack, tmp_path / "photos", tmp_path / "packed", engine="serial", format=name, num_shards=1)
    part = dlio.split(make(), tmp_path / "parts", fractions=[0.5, 0.5])["train"]
    kept = samples(part.root)
    make(overwrite=True)  # the same again
    assert samples(part.root) == kept
    stale = r"samples.npz: it is not what this set was made of: .*/base0 points to .*/packed, .*: make this set"
    changed = make(overwrite=True, shuffle=3)
    path = changed.root / changed.shards[0].files[-1].name
    assert path.stat().st_size == part.shards[0].files[-1].num_bytes
    for read in (lambda: samples(part.root), lambda: dlio.select(part, tmp_path / "out", where=["label=0"])):
        with pytest.raises(CorruptRecordError, match=stale):
            read()
    shutil.rmtree(changed.root)
    with pytest.raises(StorageError, match=r"base0 points to .*/packed, .*: make this set again from it"):
        dlio.info(part.root)


def test_shards_behind_a_link_that_are_read_whole_are_told_of_once(tmp_path, caplog):
    make_image_folder(tmp_path / "photos", {"cat": 2, "dog": 2})
    packed = dlio.pack(tmp_path / "photos", tmp_path / "packed", engine="serial", format="tfrecord", num_shards=2)
    some = dlio.select(packed, tmp_path / "some", where=["label=0"])
    assert len(samples(some.root)) == 2 and not caplog.records
    replace(some, shards=tuple(shard.replace(files=shard.files[:-1]) for shard in some.shards)).save(some.root)
    assert len(samples(some.root)) == len(samples(some.root)) == 2
    (record,) = caplog.records
    assert f"{some.root}/base0 points to shards without a table of their samples" in record.getMessage()


@settings(max_examples=50)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(0, 9))
def test_fractions_are_kept(values, seed):
    counts = np.bincount(values)
    for part, fraction in enumerate([0.5, 0.3]):
        found = np.bincount(
            np.array(values)[stratified(np.array(values), [0.5, 0.3], seed) == part], minlength=len(counts)
        )
        assert (abs(found - counts * fraction) < 2).all() and (found[counts > 1] > 0).all()
    parts = grouped(np.array(values), [0.5, 0.5], seed)
    assert all(len(set(parts[np.array(values) == value].tolist())) == 1 for value in set(values))


def test_a_small_class_is_in_each_part(tmp_path, packed):
    parts = dlio.split(packed, tmp_path / "parts", fractions=[0.98, 0.01, 0.01], by="class")
    assert [dlio.info(part)["class_counts"] for part in parts.values()] == [
        {"cat": 14, "dog": 9, "owl": 7},
        *[dict.fromkeys(COUNTS, 1)] * 2,
    ]


def test_a_split_that_fails_leaves_nothing_and_may_be_made_again(tmp_path, packed, monkeypatch):
    out, save = tmp_path / "parts", Manifest.save

    def full(self, root):
        if Path(root).name == "val":
            raise StorageError(errno.ENOSPC, "no space left")
        return save(self, root)

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "save", full)
        with pytest.raises(StorageError, match="no space"):
            dlio.split(packed, out, fractions=[0.5, 0.5])
    assert list(out.iterdir()) == []
    (out / "val").mkdir()
    (out / "val" / "mine.txt").touch()
    with pytest.raises(UsageError, match=r"val holds 'mine.txt'"):
        dlio.split(packed, out, fractions=[0.5, 0.5])
    assert [path.name for path in out.iterdir()] == ["val"]
    (out / "val" / "mine.txt").unlink()
    (out / "val" / "base0").symlink_to("somewhere")  # of a run that was killed
    assert dlio.verify(dlio.split(packed, out, fractions=[0.5, 0.5])["val"], workers=1) == []


def test_another_run_that_makes_the_set_is_not_disturbed(tmp_path, packed):
    with working_on(tmp_path / "out", "dlio merge"):
        (tmp_path / "out" / "base0").symlink_to("elsewhere")
        with pytest.raises(StorageError, match=r"another dlio .* is under way"):
            dlio.select(packed, tmp_path / "out", where=["label=0"])
        assert str((tmp_path / "out" / "base0").readlink()) == "elsewhere"
    dlio.select(packed, tmp_path / "out", where=["label=0"])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["base0", "manifest.jsonl"]


def test_a_copy_of_a_shard_is_the_same_shard(tmp_path, packed):
    shutil.copytree(packed, tmp_path / "copy")
    with pytest.raises(UsageError, match="in two of the data sets, or copies"):
        dlio.merge([packed, tmp_path / "copy"], tmp_path / "twice")
    sets = [packed, tmp_path / "copy"]
    halves = [
        dlio.select(root, tmp_path / f"half {root.name}", where=[f"key{how}cat/*"])
        for root, how in zip(sets, ("=", "!="), strict=True)
    ]
    assert keys(dlio.merge(halves, tmp_path / "whole").root) == keys(packed)


def test_a_manifest_that_promises_more_than_the_files_have_is_refused(tmp_path, packed):
    shutil.copytree(packed, tmp_path / "set")
    path = tmp_path / "set" / "manifest.jsonl"
    head, first, *rest = lines_of(path)
    line = json.loads(first) | {"samples": 10**12}
    line["files"][-1]["bytes"] = 10**14
    write_lines(path, [head, json.dumps(line), *rest])
    with pytest.raises(CorruptRecordError, match="expected 100000000000000 bytes"):
        dlio.split(tmp_path / "set", fractions=[0.5, 0.5])


def test_a_link_to_itself_is_refused(tmp_path, packed):
    made = dlio.select(packed, tmp_path / "loop", classes=["cat"])
    (made.root / "base0").unlink()
    (made.root / "base0").symlink_to("base0")
    with pytest.raises(StorageError, match="symbolic links"):
        dlio.merge([packed, made.root], tmp_path / "out")


def test_a_group_stays_together(tmp_path, packed):
    parts = dlio.split(packed, tmp_path / "parts", fractions=[0.6, 0.4], by="group", names=["a", "b"], seed=2)
    folders = [{key.partition("/")[0] for key in keys(part.root)} for part in parts.values()]
    assert not folders[0] & folders[1] and folders[0] | folders[1] == set(COUNTS)


def test_a_patient_stays_together_across_folders(tmp_path):
    """By the pattern of the page about sets, for keys such as those of ChestX-ray14."""
    page = Path(__file__).parents[2] / "docs/how-to/sets.md"
    pattern = re.search(r"ChestX-ray14: `--group '(.*?)'`", page.read_text())[1]
    with dlio.Writer(tmp_path / "rays", {"label": "int64"}) as out:
        for number in range(20):
            key = f"images_{number % 3:03}/images/{number // 4:08}_{number % 4:03}.png"
            out.write({"label": number}, key=key)
    parts = dlio.split(tmp_path / "rays", fractions=[0.6, 0.4], by="group", group=pattern)
    patients = [{key[-16:-8] for key in keys(part.root)} for part in parts.values()]
    assert [len(each) for each in patients] == [3, 2] and not patients[0] & patients[1]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"\d+", r"--group \\d\+ matches no key, such as '(cat|dog|owl)/.*png': it must match each from the start"),
        ("(cat|dog)/", r"--group \(cat\|dog\)/ does not match 9 of 36 keys, such as 'owl/"),
        ("", r"the part 'val' would have no samples: .* a --group with more groups$"),
    ],
)
def test_a_pattern_that_does_not_group_each_key_is_an_error(tmp_path, packed, pattern, message):
    with pytest.raises(UsageError, match=message):
        dlio.split(packed, tmp_path / "parts", fractions=[0.6, 0.4], by="group", group=pattern)


def test_selections_meet_all_conditions_in_the_order_of_the_set(tmp_path, packed):
    whole = samples(packed)
    (tmp_path / "list.txt").write_text("".join(f"{key}\n" for key, _ in reversed(whole[:20])))
    made = dlio.select(packed, tmp_path / "some", classes=["cat", "owl"], where=["label<2"], keys=tmp_path / "list.txt")
    assert samples(tmp_path / "some") == [(key, value) for key, value in whole[:20] if value["label"] == 0]
    assert made.class_names == tuple(COUNTS)
    smaller = dlio.select(made, tmp_path / "fewer", where=["key=*[0-4].png"])
    assert keys(smaller.root) == [key for key in keys(made.root) if key[-5] in "01234"]
    assert smaller.root.joinpath("base0").resolve() == packed.resolve()
    with closing(PackedSamples(smaller)) as read:
        columns = read.read_columns([1, 0])
        assert [bytes(image) for image in columns["image"]] == [
            value["image"] for _, value in samples(smaller.root)[1::-1]
        ]
        assert read.labels.tolist() == [0] * len(read)


def test_a_selection_is_staged_with_the_shards_it_needs(tmp_path, packed):
    first = Manifest.load(packed).shards[0]
    made = dlio.select(packed, tmp_path / "out", keys=[key for key, _ in samples(packed)[2:4]])
    staged = dlio.stage(made.root, tmp_path / "node")
    files = [path for path in staged.root.joinpath("base0").rglob("*") if path.is_file()]
    assert {path.name for path in files} == {Path(file.name).name for file in first.files}
    assert not staged.root.joinpath("base0").is_symlink() and samples(staged.root) == samples(packed)[2:4]


def test_merged_sets_are_one(tmp_path, packed):
    make_image_folder(tmp_path / "more", {"cat": 3, "zebra": 4})
    classes = [*COUNTS, "zebra"]
    made = Manifest.load(packed)
    dlio.pack(tmp_path / "more", tmp_path / "b", num_shards=2, engine="serial", format=made.format, classes=classes)
    merged = dlio.merge([packed, tmp_path / "b"], tmp_path / "both")
    assert keys(merged.root) == keys(packed) + keys(tmp_path / "b")
    assert merged.class_names == tuple(classes)
    assert dlio.verify(merged, workers=1) == []
    with pytest.raises(UsageError, match=r"7 of its samples|4 of its samples|3 of its samples"):
        dlio.merge([merged, tmp_path / "b"], tmp_path / "twice")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root, out: dlio.select(root, out), "no samples are selected"),
        (lambda root, out: dlio.select(root, out, classes=["cow"]), "no class 'cow'"),
        (lambda root, out: dlio.select(root, out, classes=["2"]), "no class '2': .*; --where label=2 takes a label's"),
        (lambda root, out: dlio.select(root, out, where=["label"]), "expected a field and a number"),
        (lambda root, out: dlio.select(root, out, where=["age<3"]), "no small field 'age'"),
        (lambda root, out: dlio.select(root, out, where=["label<x"]), "'x' is not a number"),
        (lambda root, out: dlio.select(root, out, where=["label>7"]), "no samples are left"),
        (lambda root, out: dlio.select(root, root, classes=["cat"]), "is or lies in the data set"),
        (lambda root, out: dlio.select(root, root / "cats", classes=["cat"]), "lies in the data set"),
        (lambda root, out: dlio.split(root, root / "parts", fractions=[0.9, 0.1]), "lies in the data set"),
        (lambda root, out: dlio.merge([root, root], root / "a" / "b"), "lies in the data set"),
        (lambda root, out: dlio.convert(root, root / "converted", engine="serial"), "is inside the input"),
        (lambda root, out: dlio.split(root, root, fractions=[0.9, 0.1]), "is or lies in the data set"),
        (lambda root, out: dlio.split(root, out, fractions=[0.9, 0.2]), "at most 1 together"),
        (lambda root, out: dlio.split(root, out, fractions=[0.5, "a"]), "expected a list of numbers"),
        (lambda root, out: dlio.split(root, out, fractions=[0.5, float("nan")]), "expected a list of numbers"),
        (lambda root, out: dlio.split(root, out, fractions=[1.0], names=["../x"]), "not a plain file name"),
        (
            lambda root, out: dlio.split(root, out, fractions=[0.5, 0.5], by="group", group="("),
            "not a regular expression",
        ),
        (lambda root, out: dlio.merge([root], out), "at least two"),
        (lambda root, out: dlio.merge([root, root], out), "are in two of the data sets"),
    ],
)
def test_what_cannot_be_made_is_said_and_nothing_written(tmp_path, packed, make, message):
    with pytest.raises(UsageError, match=message):
        make(packed, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unknown_key_is_named(tmp_path, packed):
    with pytest.raises(SourceError, match=r"lacks 1 key, such as 'cat/no.png'"):
        dlio.select(packed, tmp_path / "out", keys=["cat/no.png"])
