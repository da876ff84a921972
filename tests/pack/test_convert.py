"""`dlio convert`: the same samples in another format, the same bytes as if they had been packed into it."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

import dlio
from dlio import formats
from dlio.cli import main
from dlio.dataset.checksum import crc32c
from dlio.dataset.manifest import NAME, PARTIAL_NAME, Manifest
from dlio.dataset.pool import ShardPool
from dlio.dataset.schema import Schema
from dlio.errors import SchemaError, SourceError, StorageError, UsageError
from dlio.sources import image_folder, open_source, packed
from dlio.testing.samples import SCHEMAS
from dlio.testing.samples import samples as make_samples
from tests.helpers.images import make_image_folder
from tests.helpers.manifests import lines_of, write_lines
from tests.helpers.packing import content, file_states, samples, stop_after
from tests.loaders.packing import pack_samples

#: Schemas whose samples need not be real images.
OTHERS = {name: Schema.of(types, class_names=("a", "b")) for name, types in SCHEMAS.items()}
OTHERS = {name: schema for name, schema in OTHERS.items() if not schema.is_image_classification}


def data_files(folder: Path) -> dict[str, bytes]:
    """Returns every file of a data set but its manifest, which tells where it is from."""
    return {name: data for name, data in content(folder).items() if name != NAME}


@pytest.fixture(scope="module")
def packed_as(tmp_path_factory) -> dict[str, Manifest]:
    """The same photos in every format."""
    folder = tmp_path_factory.mktemp("packed")
    make_image_folder(folder / "photos", {"dog": 4, "cat": 6, "owl": 3})
    how = {"num_shards": 3, "label_offset": 1, "engine": "serial"}
    source = image_folder(folder / "photos")
    return {name: dlio.pack(source, folder / name, format=name, **how) for name in formats.names()}


#: Each format from itself and from another one: a reader and a writer meet in samples only.
PAIRS = [(before, after) for at, after in enumerate(formats.names()) for before in (after, formats.names()[at - 1])]


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_converted_is_what_would_have_been_packed(packed_as, tmp_path, before, after):
    expected = packed_as[after]
    found = dlio.pack(packed(packed_as[before].root), tmp_path / "after", format=after, engine="serial")
    assert data_files(tmp_path / "after") == data_files(expected.root)
    shards = [[shard.replace(inputs="") for shard in manifest.shards] for manifest in (found, expected)]
    assert shards[0] == shards[1]
    assert found.schema == expected.schema
    assert found.content_id == expected.content_id
    assert found.schema.label_offset == 1
    assert found.class_names == ("cat", "dog", "owl")


@pytest.mark.parametrize("schema", OTHERS.values(), ids=list(OTHERS))
def test_every_schema_goes_from_and_into_every_format(tmp_path, schema):
    records = make_samples(schema, 3)
    able = [name for name in formats.names() if formats.load(name).refuses(schema) is None]
    first = manifest = pack_samples(tmp_path / "first", schema, records, num_shards=2, name=able[-1])
    for after in able:
        manifest = dlio.pack(packed(manifest.root), tmp_path / after, format=after, engine="serial")
        assert manifest.schema == schema
        assert manifest.offsets == first.offsets
        with closing(ShardPool(manifest)) as pool:
            found = [pool.read(index) for index in range(len(records))]
        assert [(a.key, crc32c(a, schema)) for a in found] == [(b.key, crc32c(b, schema)) for b in records]
    for after in set(formats.names()) - set(able):
        with pytest.raises(SchemaError, match=f"{after} cannot hold this data set: .*formats that can"):
            dlio.pack(packed(first.root), tmp_path / after, format=after, engine="serial")
        assert not (tmp_path / after).exists()


def test_shards_stay_unless_others_are_asked_for(photos, tmp_path):
    dlio.pack(image_folder(photos), tmp_path / "one", num_shards=5, engine="serial")
    counts = [shard.num_samples for shard in Manifest.load(tmp_path / "one").shards]
    kept = dlio.pack(packed(tmp_path / "one"), tmp_path / "kept", format="recordio", engine="serial")
    assert [shard.num_samples for shard in kept.shards] == counts
    fewer = dlio.pack(packed(tmp_path / "one"), tmp_path / "fewer", num_shards=2, engine="serial")
    assert len(fewer.shards) == 2
    small = dlio.pack(packed(tmp_path / "one"), tmp_path / "small", shard_size=2000, engine="serial")
    assert len(small.shards) > 5
    assert samples(tmp_path / "one") == samples(tmp_path / "fewer") == samples(tmp_path / "small")


def test_shuffle_and_label_offset_apply_to_what_is_converted(photos, tmp_path):
    dlio.pack(image_folder(photos), tmp_path / "one", num_shards=2, label_offset=1, engine="serial")
    manifest = dlio.pack(packed(tmp_path / "one"), tmp_path / "two", shuffle=5, label_offset=-1, engine="serial")
    assert manifest.schema.label_offset == 0
    dlio.pack(image_folder(photos), tmp_path / "three", num_shards=2, shuffle=5, engine="serial")
    assert samples(tmp_path / "two") == samples(tmp_path / "three")


def test_workers_change_nothing_and_a_second_run_does_nothing(photos, tmp_path):
    dlio.pack(image_folder(photos), tmp_path / "one", num_shards=5, engine="serial")
    source = packed(tmp_path / "one")
    dlio.pack(source, tmp_path / "serial", format="webdataset", engine="serial")
    dlio.pack(source, tmp_path / "two", format="webdataset", workers=2)
    assert content(tmp_path / "serial") == content(tmp_path / "two")
    before = file_states(tmp_path / "two")
    dlio.pack(source, tmp_path / "two", format="webdataset", workers=2)
    assert file_states(tmp_path / "two") == before


def test_an_interrupted_conversion_goes_on(photos, tmp_path):
    dlio.pack(image_folder(photos), tmp_path / "one", format="lmdb", num_shards=4, engine="serial")
    source, out = packed(tmp_path / "one"), tmp_path / "out"

    with pytest.raises(KeyboardInterrupt):
        dlio.pack(source, out, engine="serial", report=stop_after(2))
    assert (out / PARTIAL_NAME).exists()
    kept = {path.name: path.stat().st_ino for path in out.glob("shard*")}
    dlio.pack(source, out, engine="serial")
    assert kept.items() <= {path.name: path.stat().st_ino for path in out.glob("shard*")}.items()
    dlio.pack(image_folder(photos), tmp_path / "whole", num_shards=4, engine="serial")
    assert data_files(out) == data_files(tmp_path / "whole")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_data_set_is_never_converted_onto_itself(photos, tmp_path, overwrite):
    dlio.pack(image_folder(photos), tmp_path / "one", engine="serial")
    (tmp_path / "link").symlink_to(tmp_path / "one")
    before = content(tmp_path / "one")
    for out in ("one", "link"):
        with pytest.raises(UsageError, match="is also the input"):
            dlio.pack(packed(tmp_path / "one"), tmp_path / out, format="lmdb", overwrite=overwrite)
        assert content(tmp_path / "one") == before


class TestDamage:
    """Damaged inputs: named, or left out by name."""

    @pytest.fixture
    def damaged(self, photos, tmp_path) -> Path:
        manifest = dlio.pack(image_folder(photos), tmp_path / "one", format="recordio", num_shards=2, engine="serial")
        path = tmp_path / "one" / manifest.shards[1].files[0].name
        data = bytearray(path.read_bytes())
        data[-40] ^= 1
        path.write_bytes(data)
        return tmp_path / "one"

    def test_a_damaged_record_ends_the_run_by_name(self, damaged, tmp_path):
        with pytest.raises(SourceError, match=r"shard-000001\.rec, record \d+, offset \d+: .* is not what was packed"):
            dlio.pack(packed(damaged), tmp_path / "out", engine="serial")
        assert not (tmp_path / "out" / NAME).exists()

    def test_or_is_left_out_and_listed(self, damaged, tmp_path, capsys):
        assert main(["convert", str(damaged), str(tmp_path / "out"), "--format", "hdf5", "--on-error", "skip"]) == 1
        [(key, reason)] = Manifest.load(tmp_path / "out").skipped
        assert key.startswith("owl/")
        assert "is not what was packed" in reason
        assert f"skipped '{key}'" in capsys.readouterr().err
        assert len(samples(tmp_path / "out")) == 35

    def test_a_missing_shard_is_a_storage_error(self, damaged, tmp_path):
        (damaged / "shard-000000.rec").unlink()
        with pytest.raises(StorageError, match=r"shard-000000\.rec"):
            dlio.pack(packed(damaged), tmp_path / "out", engine="serial")

    def test_a_data_set_without_tables_is_refused(self, damaged, tmp_path):
        lines = [json.loads(line) for line in lines_of(damaged / NAME)]
        for line in lines[1:]:
            line["files"] = line["files"][:1]
        write_lines(damaged / NAME, map(json.dumps, lines))
        with pytest.raises(SourceError, match="has no table of samples"):
            packed(damaged).listing()

    def test_no_data_set(self, tmp_path, capsys):
        (tmp_path / "empty").mkdir()
        assert main(["convert", str(tmp_path / "empty"), str(tmp_path / "out"), "--format", "lmdb"]) == 3
        assert main(["convert", str(tmp_path / "none"), str(tmp_path / "out"), "--format", "lmdb"]) == 2
        assert "does not exist" in capsys.readouterr().err


def test_a_data_set_whose_shards_are_folders_is_recognised(photos, tmp_path):
    dlio.pack(image_folder(photos), tmp_path / "one", format="lmdb", engine="serial")
    assert open_source(tmp_path / "one") == packed(tmp_path / "one")


class TestCommandLine:
    """The verb `convert`."""

    def test_it_converts_and_reports(self, photos, tmp_path, capsys):
        dlio.pack(image_folder(photos), tmp_path / "one", num_shards=2, engine="serial")
        command = ["convert", str(tmp_path / "one"), str(tmp_path / "out"), "--format", "webdataset", "--workers", "2"]
        assert main([*command, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert (report["format"], report["samples"], report["shards"]) == ("webdataset", 36, 2)
        assert samples(tmp_path / "out") == samples(tmp_path / "one")
        assert main(["verify", str(tmp_path / "out"), "--decode"]) == 0

    def test_a_dry_run_prints_the_plan_and_writes_nothing(self, photos, tmp_path, capsys):
        dlio.pack(image_folder(photos), tmp_path / "one", num_shards=2, engine="serial")
        command = ["convert", str(tmp_path / "one"), str(tmp_path / "out"), "--format", "lmdb", "--num-shards", "3"]
        assert main([*command, "--dry-run"]) == 0
        assert capsys.readouterr().out.count("shard-00000") == 3
        assert not (tmp_path / "out").exists()

    def test_another_data_set_in_out_is_replaced_only_when_asked(self, photos, tmp_path):
        dlio.pack(image_folder(photos), tmp_path / "one", num_shards=2, engine="serial")
        command = ["convert", str(tmp_path / "one"), str(tmp_path / "out"), "--format"]
        assert main([*command, "lmdb"]) == 0
        assert main([*command, "hdf5"]) == 2
        assert main([*command, "hdf5", "--overwrite"]) == 0
        assert Manifest.load(tmp_path / "out").format == "hdf5"
