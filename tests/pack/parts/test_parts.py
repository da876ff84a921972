"""One shard written by many workers: the same bytes from any number of workers, and what is refused."""

from __future__ import annotations

import os
import tarfile
import zipfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlio
from dlio.dataset.manifest import NAME, DecodeReady
from dlio.errors import SourceError, UsageError
from dlio.pack.listing import image_files
from dlio.pack.listing.image_files import ImageFiles
from dlio.pack.parts import plan
from dlio.pack.plan import ShardPlan
from dlio.pack.recode import Recode
from dlio.pack.sources import open_source
from dlio.pack.write import ASIDE
from tests.helpers.decode_ready import needs_core, write_images
from tests.helpers.packing import content, image_folder_as, samples
from tests.helpers.parts import IMAGE, damage, pack_one
from tests.helpers.squashfs import loop_mount, needs, squash, squashfuse, unsquashed


def test_any_number_of_workers_writes_the_same_shard(photos, tmp_path, whole):
    reported = []
    pack_one(photos, tmp_path / "out", shuffle=1, engine="processes", workers=3, report=reported.append)
    assert content(tmp_path / "out") == whole
    assert sorted(shard.name for shard in reported) == [f"shard-000000.part-{n:06d}" for n in range(len(reported))]
    assert len(reported) == 4
    assert sum(shard.num_samples for shard in reported) == 36
    assert set(whole) == {NAME, IMAGE, "shard-000000.samples.npz"}


def test_the_samples_are_those_of_a_shard_by_one_worker(photos, tmp_path, monkeypatch):
    pack_one(photos, tmp_path / "out")
    monkeypatch.setattr(plan, "PART_BYTES", 1 << 40)
    pack_one(photos, tmp_path / "other")
    assert samples(tmp_path / "out") == samples(tmp_path / "other")
    table = "shard-000000.samples.npz"
    assert (tmp_path / "out" / table).read_bytes() == (tmp_path / "other" / table).read_bytes()
    assert damage(tmp_path / "out") == []


def visible(folder: Path) -> dict:
    return {name: data for name, data in content(folder).items() if not name.startswith(".dlio-")}


@needs("unsquashfs", "mksquashfs")
def test_unsquashfs_and_mksquashfs_read_the_files_of_all_parts(photos, tmp_path):
    image = pack_one(photos, tmp_path / "out").root / IMAGE
    assert visible(unsquashed(image, tmp_path / "unpacked")) == content(photos)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "extra.txt").write_bytes(b"more")
    squash(tmp_path / "more", image, "-noI", "-noD", "-noF")
    assert visible(unsquashed(image, tmp_path / "appended")) == content(photos) | {"extra.txt": b"more"}


@needs("squashfuse_ll", "fusermount3", "/dev/fuse")
def test_squashfuse_gives_the_files_of_all_parts(photos, tmp_path):
    with squashfuse(pack_one(photos, tmp_path / "out").root / IMAGE, tmp_path / "mount") as folder:
        assert visible(folder) == content(photos)


@pytest.mark.skipif(os.geteuid() != 0, reason="a loop mount needs root")
def test_the_kernel_gives_the_files_of_all_parts(photos, tmp_path):
    with loop_mount(pack_one(photos, tmp_path / "out").root / IMAGE, tmp_path / "mount") as folder:
        assert visible(folder) == content(photos)


def test_a_file_that_grew_since_it_was_listed_is_an_error(photos, tmp_path):
    with pytest.raises(SourceError, match=r"files are larger than when they were listed: run the same command again"):
        pack_one(image_folder_as(Growing, photos), tmp_path / "out")
    found = pack_one(image_folder_as(Growing, photos), tmp_path / "skipping", on_error="skip")
    assert 36 - found.num_samples == len(found.skipped) > 0
    assert damage(tmp_path / "skipping") == []


class Growing(ImageFiles):
    """Image files that were smaller when they were listed."""

    def sizes(self, listing):
        return ImageFiles.sizes(self, listing) - 1000


def test_a_bad_image_is_left_out_of_its_part(photos, tmp_path):
    (photos / "class 1" / "0003.bmp").write_bytes(b"no image")
    found = pack_one(photos, tmp_path / "out", on_error="skip")
    assert [key for key, _ in found.skipped] == ["class 1/0003.bmp"]
    assert "class 1/0003.bmp" not in dict(samples(tmp_path / "out"))
    assert damage(tmp_path / "out") == []


def test_a_convert_gives_the_same_image(photos, tmp_path):
    pack_one(photos, tmp_path / "direct")
    dlio.pack(photos, tmp_path / "many", num_shards=5, engine="serial")
    pack_one(tmp_path / "many", tmp_path / "out")
    assert (tmp_path / "out" / IMAGE).read_bytes() == (tmp_path / "direct" / IMAGE).read_bytes()


@needs_core
def test_records_of_all_parts_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "PART_BYTES", 16_000)
    write_images(tmp_path / "in")
    dlio.pack(tmp_path / "in", tmp_path / "many", recode=Recode(decode_ready=True), num_shards=3, engine="serial")
    reported = []
    found = pack_one(tmp_path / "many", tmp_path / "one", report=reported.append)
    assert len(reported) > 1 and found.decode_ready == DecodeReady(records=8, progressive=1)


def test_several_large_shards_are_written_in_parts(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "PART_BYTES", 60_000)
    reported = []
    found = pack_one(photos, tmp_path / "out", num_shards=2, report=reported.append)
    assert [shard.name for shard in found.shards] == ["shard-000000", "shard-000001"]
    assert len(reported) == 6
    assert [key for key, _ in samples(tmp_path / "out")] == sorted(content(photos))


@pytest.mark.parametrize("recode", [Recode(resize=8), Recode(encoding="png"), Recode(upright=True)])
def test_one_image_is_refused_where_sizes_are_not_known(recode, photos, tmp_path):
    advice = r"pack many shards, then `dlio convert OUT ONE --num-shards 1 --format squashfs` makes one of them"
    with pytest.raises(UsageError, match=rf"needs the sizes of all files first, and images .* have none yet: {advice}"):
        pack_one(photos, tmp_path / "out", recode=recode)
    assert not (tmp_path / "out" / NAME).exists()
    pack_one(photos, tmp_path / "many", recode=recode, num_shards=3)
    assert pack_one(tmp_path / "many", tmp_path / "one").num_samples == 36


def test_a_check_of_all_pixels_changes_no_sizes(photos, tmp_path):
    assert pack_one(photos, tmp_path / "out", recode=Recode(check="decode")).num_samples == 36


def test_the_sizes_of_fields_with_text_are_not_known(photos, tmp_path):
    names = sorted(path.relative_to(photos) for path in photos.rglob("*.bmp"))
    rows = [f"{name},caption {number}" for number, name in enumerate(names)]
    (photos / "list.csv").write_text("\n".join(["path,caption", *rows]))
    source = open_source(photos / "list.csv", fields="caption")
    with pytest.raises(UsageError, match=r"those of the fields .*caption.* are not known before they are read"):
        pack_one(source, tmp_path / "out")


def test_another_format_is_written_by_one_worker(photos, tmp_path):
    reported = []
    dlio.pack(photos, tmp_path / "out", num_shards=1, engine="serial", report=reported.append)
    assert [shard.name for shard in reported] == ["shard-000000"]


def test_new_samples_are_appended_as_one_image(photos, tmp_path):
    (tmp_path / "later").mkdir()
    (photos / "class 2").rename(tmp_path / "later" / "class 2")
    pack_one(photos, tmp_path / "out")
    (tmp_path / "later" / "class 2").rename(photos / "class 2")
    found = pack_one(photos, tmp_path / "out", append=True)
    assert [shard.num_samples for shard in found.shards] == [24, 12]
    assert damage(tmp_path / "out") == []
    assert not (tmp_path / "out" / ASIDE).exists()


def test_sizes_are_exact_where_the_plan_asked_for_a_few(photos, tmp_path, monkeypatch, whole):
    monkeypatch.setattr(image_files, "EXACT_FILES", 2)
    pack_one(photos, tmp_path / "out", shuffle=1)
    assert (tmp_path / "out" / IMAGE).read_bytes() == whole[IMAGE]


@pytest.mark.parametrize(
    "kind", ["folder", "tar", "zip", pytest.param("sqsh", marks=needs("mksquashfs")), "caffe", "packed"]
)
def test_sources_know_the_exact_sizes(kind, photos, tmp_path):
    source = open_source(as_kind(kind, photos, tmp_path))
    listing = source.listing()
    with source.reader(listing) as read:
        sizes = [len(read(row).fields["image"]) for row in range(len(listing))]
    assert source.sizes(listing).tolist() == sizes


def as_kind(kind: str, photos: Path, tmp_path: Path) -> Path:
    """Returns the photos as another source."""
    names = sorted(str(path.relative_to(photos)) for path in photos.rglob("*.bmp"))
    if kind == "packed":
        dlio.pack(photos, tmp_path / "packed", num_shards=3, engine="serial")
        return tmp_path / "packed"
    if kind == "tar":
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            tar.add(photos, ".")
    elif kind == "zip":
        with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for name in names:
                archive.write(photos / name, name)
    elif kind == "sqsh":
        squash(photos, tmp_path / "a.sqsh")
    elif kind == "caffe":
        (photos / "a.txt").write_text("".join(f"{name} 1\n" for name in names))
        return photos / "a.txt"
    return tmp_path / f"a.{kind}" if kind != "folder" else photos


@given(st.lists(st.integers(0, 300_000), min_size=1, max_size=60), st.integers(1, 200_000))
def test_places_never_overlap_and_hold_every_sample(sizes, part_bytes):
    num_bytes = np.array(sizes)
    shard = ShardPlan("shard-000000", range(len(sizes)), sum(sizes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "PART_BYTES", part_bytes)
        parts = plan.parts_of(shard, num_bytes, "squashfs")
    if sum(sizes) < 2 * part_bytes:
        assert parts == []
        return
    assert [row for part in parts for row in part.indices] == list(range(len(sizes)))
    places = [part.place for part in parts]
    assert all(place.begin % (64 << 10) == 0 and place.begin > 0 for place in places)
    assert all(first.end <= second.begin for first, second in pairwise(places))
    assert [place.end - place.begin for place in places] == [num_bytes[list(part.indices)].sum() for part in parts]
