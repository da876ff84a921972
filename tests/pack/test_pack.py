"""`dlio.pack`: the shards hold the input, whatever packs it; the content of OUT is kept."""

from __future__ import annotations

import os

import pytest

import dlio
from dlio import formats
from dlio.dataset.manifest import NAME, PARTIAL_NAME, Manifest, read_partial
from dlio.dataset.pool import ShardPool
from dlio.errors import SchemaError, SourceError, UsageError
from dlio.sources import csv_file, image_folder
from tests.helpers.images import image, make_image_folder
from tests.helpers.manifests import unpublish
from tests.helpers.packing import BYTE_IDENTICAL, content, file_states, samples, stop_after

ENGINES = [{"engine": "serial"}, {"workers": 1}, {"workers": 2}]


@pytest.mark.parametrize("name", formats.names())
def test_every_format_gives_back_what_was_packed(photos, tmp_path, name):
    dlio.pack(image_folder(photos), tmp_path / "out", format=name, num_shards=3, engine="serial")
    listing = image_folder(photos).listing()
    labels = listing.columns["label"].tolist()
    expected = [(key, {"image": (photos / key).read_bytes(), "label": labels[i]}) for i, key in enumerate(listing.keys)]
    assert samples(tmp_path / "out") == expected
    assert Manifest.load(tmp_path / "out").class_names == ("cat", "dog", "owl")


@pytest.mark.parametrize("name", formats.names())
def test_the_number_of_workers_changes_nothing(photos, tmp_path, name):
    made = []
    for number, engine in enumerate(ENGINES):
        out = tmp_path / str(number)
        dlio.pack(image_folder(photos), out, format=name, num_shards=5, shuffle=3, **engine)
        made.append(out)
    assert samples(made[0]) == samples(made[1]) == samples(made[2])
    if name in BYTE_IDENTICAL:
        assert content(made[0]) == content(made[1]) == content(made[2])


def test_a_shuffle_packs_the_same_samples_in_another_order(photos, tmp_path):
    for name, seed in [("plain", None), ("one", 1), ("again", 1)]:
        dlio.pack(image_folder(photos), tmp_path / name, shuffle=seed, num_shards=2, engine="serial")
    plain, one, again = (samples(tmp_path / name) for name in ("plain", "one", "again"))
    assert one == again != plain
    assert sorted(one, key=lambda sample: sample[0]) == plain
    assert Manifest.load(tmp_path / "one").origin["shuffle"] == 1


def test_a_label_offset_is_added_and_recorded(photos, tmp_path):
    manifest = dlio.pack(image_folder(photos), tmp_path / "out", label_offset=1, engine="serial")
    assert manifest.schema.label_offset == dlio.info(manifest)["label_offset"] == 1
    assert [fields["label"] for _, fields in samples(tmp_path / "out")] == [1] * 16 + [2] * 11 + [3] * 9
    assert manifest.schema.class_name(1) == "cat"


def test_a_label_offset_on_a_vector_is_refused(tmp_path):
    make_image_folder(tmp_path, {"a": 1})
    (tmp_path / "t.csv").write_text("path,x,y\na/0000.png,1,2\n")
    with pytest.raises(UsageError, match="--label-offset needs one whole label"):
        dlio.pack(csv_file(tmp_path / "t.csv"), tmp_path / "out", label_offset=1)


@pytest.mark.parametrize(("label", "offset"), [(2**63 - 1, 1), (-(2**63), -1), (0, 10**24)])
def test_a_label_offset_that_leads_beyond_int64_is_refused(tmp_path, label, offset):
    make_image_folder(tmp_path, {"a": 1})
    (tmp_path / "t.csv").write_text(f"path,label\na/0000.png,{label}\n")
    with pytest.raises(UsageError, match=f"--label-offset {offset} makes labels from .* do not fit an int64"):
        dlio.pack(csv_file(tmp_path / "t.csv"), tmp_path / "out", label_offset=offset, engine="serial")
    assert not (tmp_path / "out").exists()


def test_keys_with_odd_characters_come_back_exactly(tmp_path):
    names = [" a", "b'\"", "c\nd", "é☃", "x" * 200]
    make_image_folder(tmp_path / "in", dict.fromkeys(names, 1))
    for name in formats.names():
        dlio.pack(image_folder(tmp_path / "in"), tmp_path / name, format=name, engine="serial")
        assert [key for key, _ in samples(tmp_path / name)] == sorted(f"{folder}/0000.png" for folder in names)


def test_out_can_have_an_odd_name(photos, tmp_path):
    out = tmp_path / "my 'packed'\n☃ data"
    dlio.pack(image_folder(photos), out, engine="serial")
    assert len(samples(out)) == 36


def test_a_finished_pack_run_again_touches_nothing(photos, tmp_path):
    out = tmp_path / "out"
    first = dlio.pack(image_folder(photos), out, num_shards=3, workers=2)
    before = file_states(out)
    again = dlio.pack(image_folder(photos), out, num_shards=3, workers=2)
    assert again == first
    assert file_states(out) == before
    assert sorted(path.name for path in out.iterdir()) == sorted(
        [NAME, *(file.name for shard in first.shards for file in shard.files)]
    )


def test_an_interrupted_pack_writes_only_what_is_missing(photos, tmp_path):
    out, whole = tmp_path / "out", tmp_path / "whole"
    dlio.pack(image_folder(photos), whole, num_shards=4, engine="serial")

    with pytest.raises(KeyboardInterrupt):
        dlio.pack(image_folder(photos), out, num_shards=4, engine="serial", report=stop_after(2))
    assert (out / PARTIAL_NAME).exists()
    assert not (out / NAME).exists()
    kept = {path.name: path.stat().st_ino for path in out.glob("shard*")}
    dlio.pack(image_folder(photos), out, num_shards=4, engine="serial")
    assert kept.items() <= {path.name: path.stat().st_ino for path in out.glob("shard*")}.items()
    assert content(out) == content(whole)


def test_a_shard_that_lost_a_file_is_written_again(photos, tmp_path):
    out = tmp_path / "out"
    manifest = dlio.pack(image_folder(photos), out, num_shards=3, engine="serial")
    before = content(out)
    unpublish(out)
    (out / manifest.shards[1].files[0].name).write_bytes(b"cut")
    dlio.pack(image_folder(photos), out, num_shards=3, engine="serial")
    assert content(out) == before


@pytest.mark.parametrize(
    "other", [{"shuffle": 1}, {"num_shards": 2}, {"format": "webdataset"}, {"label_offset": 1}], ids=str
)
def test_another_data_set_in_out_is_refused(photos, tmp_path, other):
    out = tmp_path / "out"
    dlio.pack(image_folder(photos), out, num_shards=3, engine="serial")
    before = content(out)
    with pytest.raises(UsageError, match=r"holds another data set .*--overwrite"):
        dlio.pack(image_folder(photos), out, **({"num_shards": 3, "engine": "serial"} | other))
    assert content(out) == before


def test_an_output_among_the_class_folders_is_refused(photos):
    """The next run would find it to be a class without images, and could not continue where this one was stopped."""
    with pytest.raises(UsageError, match="packed is inside the input: give a folder outside of"):
        dlio.pack(image_folder(photos), photos / "packed", engine="serial")
    assert not (photos / "packed").exists()


def test_a_changed_input_is_another_data_set(photos, tmp_path):
    dlio.pack(image_folder(photos), tmp_path / "out", engine="serial")
    (photos / "cat/new.png").write_bytes(image(77))
    with pytest.raises(UsageError, match="another data set"):
        dlio.pack(image_folder(photos), tmp_path / "out", engine="serial")


def test_foreign_files_in_out_are_refused_and_kept(photos, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match=r"holds 'thesis\.tex', which dlio has not packed"):
            dlio.pack(image_folder(photos), out, overwrite=overwrite)
        assert content(out) == {"thesis.tex": b"years of work"}


def test_overwrite_removes_only_what_the_manifest_names(photos, tmp_path):
    out = tmp_path / "out"
    dlio.pack(image_folder(photos), out, format="recordio", num_shards=4, engine="serial")
    (out / "README.txt").write_text("mine")
    (out / "shard-999999.rec").write_text("mine too")
    with pytest.raises(UsageError, match="which dlio has not packed"):
        dlio.pack(image_folder(photos), out, format="tfrecord", overwrite=True)
    assert len(samples(out)) == 36
    assert Manifest.load(out).format == "recordio"
    for name in ("README.txt", "shard-999999.rec"):
        (out / name).unlink()
    dlio.pack(image_folder(photos), out, format="tfrecord", overwrite=True, engine="serial")
    assert len(samples(out)) == 36


class TestBadInput:
    """Bad inputs among good ones: named when they end the run, listed when they are skipped."""

    @pytest.fixture
    def bad(self, photos):
        """The names of bad inputs put among the photos, each with a part of the reason."""
        (photos / "cat/empty.png").write_bytes(b"")
        (photos / "cat/text.png").write_bytes(b"I am no image at all")
        (photos / "cat/folder.png").mkdir()
        (photos / "dog/gone.jpg").symlink_to("nowhere")
        os.mkfifo(photos / "dog/pipe.png")
        bomb = bytearray(image(0, "BMP"))
        bomb[18:26] = (100_000).to_bytes(4, "little") * 2
        (photos / "owl/bomb.bmp").write_bytes(bomb)
        return {
            "cat/empty.png": "it is empty",
            "cat/text.png": "no known format",
            "dog/gone.jpg": "No such file",
            "dog/pipe.png": "not a regular file",
            "owl/bomb.bmp": "10000000000 pixels",
        }

    @pytest.mark.parametrize("engine", ENGINES, ids=str)
    def test_skipped_ones_are_listed_in_the_manifest(self, photos, tmp_path, bad, engine):
        manifest = dlio.pack(image_folder(photos), tmp_path / "out", num_shards=3, on_error="skip", **engine)
        skipped = dict(Manifest.load(tmp_path / "out").skipped)
        assert skipped.keys() == bad.keys()
        assert all(reason in skipped[key] for key, reason in bad.items())
        assert manifest.num_samples == 36
        assert not {key for key, _ in samples(tmp_path / "out")} & bad.keys()

    @pytest.mark.parametrize("name", formats.names())
    def test_every_format_can_skip(self, photos, tmp_path, bad, name):
        dlio.pack(image_folder(photos), tmp_path / "out", format=name, on_error="skip", engine="serial")
        assert len(samples(tmp_path / "out")) == 36

    @pytest.mark.parametrize("engine", ENGINES, ids=str)
    def test_one_ends_the_run_by_name_without_a_data_set(self, photos, tmp_path, engine):
        (photos / "dog/text.png").write_bytes(b"I am no image at all")
        out = tmp_path / "out"
        with pytest.raises(SourceError, match=r"'dog/text\.png': it is not an image: .*--on-error skip"):
            dlio.pack(image_folder(photos), out, num_shards=6, **engine)
        assert not (out / NAME).exists()
        self.assert_only_whole_shards(out)

    def test_after_mending_the_run_goes_on(self, photos, tmp_path):
        good = image(5)
        (photos / "dog/0003.png").write_bytes(b"x" * len(good))
        with pytest.raises(SourceError):
            dlio.pack(image_folder(photos), tmp_path / "out", num_shards=6, engine="serial")
        (photos / "dog/0003.png").write_bytes(good)
        dlio.pack(image_folder(photos), tmp_path / "out", num_shards=6, engine="serial")
        dlio.pack(image_folder(photos), tmp_path / "whole", num_shards=6, engine="serial")
        assert content(tmp_path / "out") == content(tmp_path / "whole")

    def test_nothing_left_is_an_error(self, tmp_path):
        make_image_folder(tmp_path / "in", {"a": 3})
        for path in (tmp_path / "in/a").iterdir():
            path.write_bytes(b"")
        for _ in range(2):
            with pytest.raises(SourceError, match=r"every sample was skipped.*a/0000\.png: .*it is empty"):
                dlio.pack(image_folder(tmp_path / "in"), tmp_path / "out", on_error="skip", engine="serial")
            assert not (tmp_path / "out" / NAME).exists()

    def test_a_label_beyond_the_format_names_sample_and_format(self, tmp_path):
        make_image_folder(tmp_path, {"a": 2})
        (tmp_path / "t.csv").write_text("path,label\na/0000.png,1\na/0001.png,3000000000\n")
        with pytest.raises(SchemaError, match=r"'a/0001\.png'.*label"):
            dlio.pack(csv_file(tmp_path / "t.csv"), tmp_path / "out", format="lmdb", engine="serial")

    @staticmethod
    def assert_only_whole_shards(out):
        partial = read_partial(out)
        assert sorted(path.name for path in out.iterdir() if path.name != PARTIAL_NAME) == sorted(
            file.name for shard in partial.shards for file in shard.files
        )


def test_vectors_of_labels_are_packed_in_every_able_format(tmp_path):
    make_image_folder(tmp_path, {"a": 4})
    (tmp_path / "t.csv").write_text("path,x,y\n" + "".join(f"a/000{i}.png,{i},{i / 2}\n" for i in range(4)))
    source = csv_file(tmp_path / "t.csv")
    able = [name for name in formats.names() if formats.load(name).refuses(source.listing().schema) is None]
    assert {"tfrecord", "recordio", "webdataset"} <= set(able)
    for name in able:
        manifest = dlio.pack(source, tmp_path / name, format=name, engine="serial")
        pool = ShardPool(manifest)
        with pool.shard(0) as shard:
            assert shard.column("label").tolist() == [[i, i / 2] for i in range(4)]
            assert shard.read(3).fields["label"].tolist() == [3, 1.5]
        pool.close()


def test_what_to_do_on_an_error_is_one_of_two(photos, tmp_path):
    with pytest.raises(UsageError, match="on_error='skp': expected 'raise' or 'skip'"):
        dlio.pack(image_folder(photos), tmp_path / "out", on_error="skp", engine="serial")
