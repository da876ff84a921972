"""`verify`: nothing to say about a whole data set; every damaged file and record by name."""

from __future__ import annotations

import json
import os

import pytest

import dlio
from dlio import cli, formats
from dlio.cluster.topology import Topology
from dlio.dataset.manifest import Manifest
from dlio.pack.inspect.verify import verify
from dlio.sources import image_folder
from tests.helpers.images import image, make_image_folder


@pytest.fixture
def pack(photos, tmp_path):
    def pack(name: str, **arguments) -> Manifest:
        arguments = {"num_shards": 3, "engine": "serial"} | arguments
        return dlio.pack(image_folder(photos), tmp_path / "out", format=name, **arguments)

    return pack


@pytest.mark.parametrize("name", formats.names())
def test_a_whole_data_set_has_no_damage(pack, name):
    reported = []
    assert verify(pack(name), decode=True, workers=2, report=reported.append) == []
    assert sum(shard.num_samples for shard in reported) == 36


@pytest.mark.parametrize("name", formats.names())
def test_a_flipped_bit_names_file_record_and_key(pack, photos, name):
    manifest = pack(name)
    file = manifest.root / manifest.shards[1].files[0].name
    key = image_folder(photos).listing().keys[manifest.offsets[1] + 4]
    data = bytearray(file.read_bytes())
    at = data.index((photos / key).read_bytes()) + 60
    data[at] ^= 1
    file.write_bytes(data)
    damage = verify(manifest, workers=1)
    assert [item.path for item in damage if item.record is None] == [str(file)]
    assert "expected the digest xxh3-128:" in damage[0].problem
    records = [(item.shard, item.path, item.record, item.key) for item in damage if item.record is not None]
    assert records == [("shard-000001", str(file), 4, key)]
    offset = next(item.offset for item in damage if item.record == 4)
    assert offset is None or 0 <= offset <= at


@pytest.mark.parametrize("name", formats.names())
@pytest.mark.parametrize("cut", [1, 1000])
def test_a_file_that_was_cut_is_named_with_both_sizes(pack, name, cut):
    manifest = pack(name)
    entry = manifest.shards[2].files[0]
    file = manifest.root / entry.name
    file.write_bytes(file.read_bytes()[:-cut])
    damage = verify(manifest, workers=1)
    assert {item.shard for item in damage} == {"shard-000002"}
    assert any(f"expected {entry.num_bytes} bytes, found {entry.num_bytes - cut}" in item.problem for item in damage)


@pytest.mark.parametrize("which", [0, -1])
def test_a_missing_file_is_named_and_other_shards_are_checked(pack, which):
    manifest = pack("tfrecord")
    file = manifest.root / manifest.shards[0].files[which].name
    file.unlink()
    last = manifest.root / manifest.shards[2].files[0].name
    last.write_bytes(last.read_bytes()[::-1])
    damage = verify(manifest, workers=2)
    assert str(file) in {item.path for item in damage if item.shard == "shard-000000"}
    assert {item.shard for item in damage} == {"shard-000000", "shard-000002"}
    assert [item.shard for item in damage] == sorted(item.shard for item in damage)


def test_only_decoding_finds_an_image_that_was_packed_broken(tmp_path):
    make_image_folder(tmp_path / "in", {"a": 3})
    broken = bytearray(image(1))
    broken[len(broken) // 2] ^= 0xFF
    (tmp_path / "in/a/0001.png").write_bytes(broken)
    manifest = dlio.pack(image_folder(tmp_path / "in"), tmp_path / "out", engine="serial")
    assert verify(manifest, workers=1) == []
    damage = verify(manifest, decode=True, workers=1)
    assert [(item.record, item.key) for item in damage] == [(1, "a/0001.png")]
    assert "the field 'image' cannot be decoded" in damage[0].problem


def test_damage_tells_where_it_is(pack):
    manifest = pack("tfrecord")
    file = manifest.root / manifest.shards[0].files[0].name
    data = bytearray(file.read_bytes())
    data[200] ^= 0x10
    file.write_bytes(data)
    lines = [str(item) for item in verify(manifest, workers=1)]
    assert lines[0].startswith(f"shard shard-000000, {file}: ")
    assert lines[1].startswith(f"shard shard-000000, {file}, record 0 'cat/0000.png', offset 0: ")


def test_of_a_part_what_is_on_this_node_is_checked(pack, tmp_path, capsys):
    parts = [
        dlio.stage(pack("tfrecord") if not node else tmp_path / "out", tmp_path / f"node{node}", strategy="partition",
                   topology=Topology(node, 2, 0, 1, node, 2), allow_shared=True)
        for node in range(2)
    ]  # fmt: skip
    reported = []
    for part in parts:
        assert verify(part, workers=1, report=reported.append) == []
    assert sum(shard.num_samples for shard in reported) == 36
    assert cli.main(["verify", str(parts[0].root), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["part"] == f"node 0's, {len(parts[0].shards_here)} of 3 shards"
    assert report["samples"] == sum(shard.num_samples for shard in parts[0].shards_here) < 36
    (parts[0].root / parts[0].shards_here[0].files[0].name).unlink()
    assert {damage.shard for damage in verify(parts[0], workers=1)} == {parts[0].shards_here[0].name}


def test_a_sparse_file_of_another_size_is_not_read(pack):
    manifest = pack("tfrecord")
    file = manifest.root / manifest.shards[0].files[0].name
    os.truncate(file, 1 << 26)
    assert [item.path for item in verify(manifest, workers=1)] == [str(file)]
