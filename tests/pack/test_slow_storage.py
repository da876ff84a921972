"""Packing from slow storage: the same bytes, samples, errors and damage as from memory."""

from __future__ import annotations

import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import dlio
from dlio.pack.inspect.verify import verify
from dlio.sources import image_folder, open_source
from dlio.testing.container import content
from tests.helpers.archives import make_tar, make_zip
from tests.helpers.images import image, make_image_folder
from tests.helpers.users import unprivileged
from tests.pack.slow_storage import FAST, SLOW, storage


def write_lists(root: Path, names: list[str]) -> None:
    (root / "list.csv").write_text("path,label\n" + "".join(f"{name},{row % 3}\n" for row, name in enumerate(names)))
    (root / "list.lst").write_text("".join(f"{row}\t{row % 3}\t{name}\n" for row, name in enumerate(names)))
    (root / "list.txt").write_text("".join(f"{name} {row % 3}\n" for row, name in enumerate(names)))


@pytest.fixture
def inputs(tmp_path) -> dict[str, Path]:
    """One input of each kind, all with the same 60 images."""
    root = tmp_path / "in"
    made = make_image_folder(root, {"a": 30, "b": 30})
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*.png"))
    random.Random(0).shuffle(names)
    write_lists(root, names)
    make_tar(tmp_path / "in.tar", made)
    make_zip(tmp_path / "in.zip", made)
    for sequence in ("s1", "s2"):
        shutil.copytree(root / "a", tmp_path / "kitti" / sequence / "image_2")
    dlio.pack(image_folder(root), tmp_path / "packed", format="tfrecord", num_shards=3, engine="serial")
    found = {name: root / f"list.{name}" for name in ("csv", "lst", "txt")}
    return found | {
        "folder": root,
        "tar": tmp_path / "in.tar",
        "zip": tmp_path / "in.zip",
        "frames": tmp_path / "kitti",
        "packed": tmp_path / "packed",
    }


@pytest.mark.parametrize("kind", ["folder", "csv", "lst", "txt", "tar", "zip", "frames", "packed"])
@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_every_source_gives_the_same_bytes(inputs, tmp_path, kind, engine):
    source = open_source(inputs[kind])
    arguments = {"num_shards": 4, "shuffle": 3}
    with storage(FAST):
        dlio.pack(source, tmp_path / "fast", engine="serial", **arguments)
    with storage(SLOW):
        dlio.pack(source, tmp_path / "slow", engine=engine, **arguments)
    assert content(tmp_path / "slow") == content(tmp_path / "fast")


def test_every_format_gets_the_same_samples(photos, tmp_path):
    for name in ("recordio", "webdataset", "lmdb"):
        for seconds in (SLOW, FAST):
            with storage(seconds):
                dlio.pack(image_folder(photos), tmp_path / f"{name} {seconds}", format=name, engine="serial")
        assert content(tmp_path / f"{name} {SLOW}") == content(tmp_path / f"{name} {FAST}")


@pytest.mark.parametrize("seconds", [SLOW, FAST])
def test_listings_are_the_same_with_loops_and_odd_names(tmp_path, seconds):
    root = tmp_path / "in"
    make_image_folder(root, {f"c{number}/{below}": 2 for number in range(12) for below in ("x", "y/z")})
    (root / "c3/x/loop").symlink_to(root / "c3")
    (root / "c5" / "empty").mkdir()
    (root / "c9/y/odd\udcff.png").write_bytes(b"x")
    (root / "none").mkdir()
    with storage(FAST):
        expected = image_folder(root).listing()
    with storage(seconds):
        found = image_folder(root).listing()
    assert list(found.keys) == list(expected.keys)
    assert (found.schema, found.refused) == (expected.schema, expected.refused)
    for name in ("num_bytes", "versions"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist()
    assert found.columns["label"].tolist() == expected.columns["label"].tolist()
    assert [name for name, _ in found.refused] == ["c3/x/loop", "c9/y/odd\\xff.png", "none"]


class TestBadInput:
    @pytest.mark.parametrize("seconds", [SLOW, FAST])
    def test_what_vanishes_changes_or_is_denied_is_skipped_in_order(self, open_tmp, seconds):
        make_image_folder(open_tmp / "in", {"a": 40})
        (open_tmp / "out").mkdir(mode=0o777)
        (open_tmp / "out").chmod(0o1777)
        source, grown = image_folder(open_tmp / "in"), image(99, "BMP", width=300, height=300)
        listing = source.listing()
        (open_tmp / "in/a/0003.png").unlink()
        (open_tmp / "in/a/0007.png").write_bytes(grown)
        (open_tmp / "in/a/0011.png").write_bytes(b"")
        (open_tmp / "in/a/0020.png").chmod(0)
        (open_tmp / "in/a/0031.png").unlink()
        (open_tmp / "in/a/0031.png").mkdir()
        with storage(seconds), unprivileged():
            found = dlio.pack(
                replace(source, listing=lambda: listing),
                open_tmp / "out",
                num_shards=2,
                on_error="skip",
                engine="serial",
            )
        assert [key for key, _ in found.skipped] == [f"a/{number:04}.png" for number in (3, 11, 20, 31)]
        reasons = [re.search(r"No such file|it is empty|Permission|Is a directory", why)[0] for _, why in found.skipped]
        assert reasons == ["No such file", "it is empty", "Permission", "Is a directory"]
        packed = open_source(open_tmp / "out")
        with packed.reader(packed.listing()) as read:
            assert read(6).fields["image"] == grown

    @pytest.mark.parametrize("seconds", [SLOW, FAST])
    def test_an_input_error_of_the_storage_is_skipped_too(self, tmp_path, slow_source, seconds):
        make_image_folder(tmp_path / "in", {"a": 20})
        mounted = slow_source(tmp_path / "in", "--fail", "0013")
        with storage(seconds):
            found = dlio.pack(image_folder(mounted), tmp_path / "out", on_error="skip", engine="serial")
        assert [(key, "Input/output error" in why) for key, why in found.skipped] == [("a/0013.png", True)]

    def test_the_first_bad_file_in_order_is_the_one_told(self, photos, tmp_path):
        for name in ("dog/0001.png", "cat/0009.png", "owl/0002.png"):
            (photos / name).write_bytes(b"no image")
        with storage(SLOW), pytest.raises(dlio.errors.SourceError, match=r"cat/0009\.png"):
            dlio.pack(image_folder(photos), tmp_path / "out", num_shards=1, engine="serial")


@pytest.mark.parametrize("seconds", [SLOW, FAST])
def test_verify_names_the_same_damage_in_the_same_order(photos, tmp_path, seconds):
    with storage(seconds):
        packed = dlio.pack(image_folder(photos), tmp_path / "out", num_shards=12, engine="serial")
        for number in (3, 8):
            path = tmp_path / "out" / packed.shards[number].files[0].name
            data = bytearray(path.read_bytes())
            data[200] ^= 1
            path.write_bytes(data)
        found = verify(packed, workers=1)
    assert list(dict.fromkeys(damage.shard for damage in found)) == ["shard-000003", "shard-000008"]
