"""Shards of other tools as a source: the samples that `dlio index` adopts, copied; and errors of wrong use."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import dlio
from dlio import cli
from dlio.dataset.manifest import NAME
from dlio.errors import CorruptRecordError, SourceError, UsageError
from dlio.formats.layouts.text_index import HIDDEN
from dlio.pack.index import index
from dlio.pack.sources import format_names
from dlio.pack.sources.shards import FORMATS
from dlio.sources import open_source
from tests.conformance.test_adopted import WRITERS
from tests.helpers.adopted import JPEGS
from tests.helpers.packing import content, samples


def own(name: str) -> Callable[[Path], None]:
    """Returns what writes shards of a format as its own tools have them: without a manifest, tables and indexes."""

    def write(folder: Path) -> None:
        with dlio.Writer(folder, format=name, shard_size=4 * len(JPEGS[0])) as writer:
            for number, data in enumerate(JPEGS):
                writer.write({"image": data, "label": number % 3}, key=f"photo{number}")
        for path in [folder / NAME, *folder.glob("*.samples.npz"), *folder.glob("*.idx")]:
            path.unlink()

    return write


MADE = {name: own(name) for name in ("hdf5", "recordio", "squashfs", "tfrecord", "webdataset")} | {
    name: WRITERS[name] for name in ("array_record", "litdata", "mds")
}


@pytest.fixture(params=MADE)
def theirs(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """A format, and a folder of its shards."""
    (tmp_path / "theirs").mkdir()
    MADE[request.param](tmp_path / "theirs")
    return request.param, tmp_path / "theirs"


def test_every_format_that_can_be_indexed_is_a_source() -> None:
    assert set(MADE) == set(format_names()) == {*FORMATS, "mds", "litdata"}


def test_they_are_recognised_and_packed_as_they_are_adopted(theirs, tmp_path) -> None:
    name, folder = theirs
    before = content(folder)
    source = open_source(folder)
    assert source.name == "shards" and source.format == name
    dlio.pack(source, tmp_path / "out", num_shards=2, engine="serial")
    assert content(folder) == before
    index(folder, format=name, workers=1)
    assert samples(tmp_path / "out") == samples(folder)
    words = ["pack", folder, tmp_path / "named", "--source", name, "--num-shards", "2", "--workers", "2"]
    assert cli.main([str(word) for word in words]) == 0
    assert samples(tmp_path / "named") == samples(folder)


def tar(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as file:
        for name, data in members.items():
            (path.parent / ".part").write_bytes(data)
            file.add(path.parent / ".part", name)
    (path.parent / ".part").unlink()
    return path


@pytest.fixture
def wds(tmp_path: Path) -> Path:
    """A folder with WebDataset shards of two sets."""
    for name in ("train-0", "train-1", "val-0"):
        tar(tmp_path / "wds" / f"{name}.tar", {f"{name}a.jpg": JPEGS[1], f"{name}a.cls": b"1"})
    return tmp_path / "wds"


def test_several_sets_in_a_folder_are_chosen_by_option(wds, tmp_path) -> None:
    with pytest.raises(UsageError, match=rf"{wds} holds several sets.*--option match=PATTERN"):
        dlio.pack(wds, tmp_path / "out", engine="serial")
    dlio.pack(open_source(wds, match="train-*"), tmp_path / "out", engine="serial", label_offset=1)
    assert [(key, fields["label"]) for key, fields in samples(tmp_path / "out")] == [("train-0a", 2), ("train-1a", 2)]
    one = open_source(wds / "val-0.tar", name="webdataset")
    assert list(one.listing().keys) == ["val-0a"]


def test_options_are_those_of_index(tmp_path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"], file["y"] = np.arange(12).reshape(3, 4), np.array([1, 2, 3])
    assert open_source(tmp_path / "x.h5").listing().schema.types() == {"image": "int64[4]", "label": "int64"}
    source = open_source(tmp_path / "x.h5", schema='{"label": "int64"}', label_offset="1")
    dlio.pack(source, tmp_path / "out", engine="serial")
    assert [fields for _, fields in samples(tmp_path / "out")] == [{"label": 1}, {"label": 2}, {"label": 3}]
    for wrong in ({"schema": "{"}, {"schema": '{"a": "b"}'}, {"label_offset": "one"}):
        with pytest.raises(UsageError, match="is wrong"):
            open_source(tmp_path / "x.h5", **wrong)


def test_damage_is_named_by_the_path_that_was_given(theirs, tmp_path) -> None:
    name, folder = theirs
    path = max((each for each in folder.iterdir() if each.suffix != ".json"), key=lambda each: each.stat().st_size)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * 2 // 3)
    with pytest.raises((CorruptRecordError, SourceError, UsageError), match=str(folder)):
        dlio.pack(open_source(folder, name=name), tmp_path / "out", engine="serial")


@pytest.mark.parametrize("verb", [["info"], ["verify"], ["convert"]])
def test_a_verb_for_data_sets_names_the_two_for_shards(verb, wds, tmp_path, capfd) -> None:
    shutil.rmtree(wds / HIDDEN, ignore_errors=True)
    words = [*verb, str(wds), *([str(tmp_path / "out")] if verb[0] != "info" and verb[0] != "verify" else [])]
    assert cli.main(words) == 3
    told = f"these are webdataset shards: dlio index {wds} --format webdataset adopts them in place, dlio pack copies"
    assert told in capfd.readouterr().err


def test_index_names_the_format_that_is_there(wds) -> None:
    with pytest.raises(SourceError, match=r"these are webdataset shards: dlio index .* --format webdataset"):
        index(wds, format="recordio")


def test_a_tar_without_class_folders_is_told_of_webdataset(wds, tmp_path) -> None:
    with pytest.raises(SourceError, match="--source webdataset"):
        dlio.pack(wds / "val-0.tar", tmp_path / "out", engine="serial")


@pytest.mark.parametrize("verb", [["info"], ["verify"], ["split", "--fractions", "0.5,0.5"]])
@pytest.mark.parametrize("name", ["photos", "photos.csv"])
def test_a_verb_for_data_sets_names_the_one_for_images(verb, name, tmp_path, capfd) -> None:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "photos.csv").write_text("path,label")
    assert cli.main([*verb, str(tmp_path / name)]) == 3
    told = f"dlio pack has written; if this is what to pack: dlio pack {tmp_path / name} OUT\n"
    assert capfd.readouterr().err.endswith(told)


@pytest.mark.parametrize("name", ["empty", "absent"])
def test_what_holds_nothing_is_not_to_be_packed(name, tmp_path, capfd) -> None:
    (tmp_path / "empty").mkdir()
    assert cli.main(["info", str(tmp_path / name)]) == 3
    assert capfd.readouterr().err.endswith("does not exist; give the folder that dlio pack has written\n")
