"""A flipped bit in a shard or the files next to it: an error that names one of these files, or the same samples."""

from __future__ import annotations

import json
import random
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from dlio import formats
from dlio.cli import main
from dlio.dataset.manifest import NAME, Manifest
from dlio.dataset.sample_table import SUFFIX
from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError, DlioError
from dlio.formats.layouts.text_index import HIDDEN
from dlio.loaders.dataset import PackedSamples
from dlio.pack.index import index
from tests.helpers.adopted import write_records
from tests.helpers.damage import flipped
from tests.helpers.images import image
from tests.loaders.packing import pack_samples

SCHEMA = Schema.of({"image": "bytes", "label": "int64"}, class_names=tuple("abcdefgh"))
COUNT = 6
INDEXED = ("tfrecord", "recordio", "webdataset")
MOST_FLIPS = 120  # of a file; all, where there are fewer


def samples() -> list[Sample]:
    return [
        Sample(f"class {i}/{i}.jpg", {"image": b"\xff\xd8\xff%d" % i * (9 + i % 2), "label": i}) for i in range(COUNT)
    ]


def bits(path: Path) -> list[int]:
    """Returns bits of a file to flip, the same ones in every run; those of zeros, which are mostly unused, are not."""
    used = [bit for place, byte in enumerate(path.read_bytes()) if byte for bit in range(8 * place, 8 * place + 8)]
    return random.Random(1).sample(used, min(len(used), MOST_FLIPS))


def everything(data: Path | Manifest) -> list[object]:
    """Returns all that a user can read of a data set, each in every available way."""
    with closing(PackedSamples(data)) as found:
        numbers = np.arange(len(found))
        read = [(sample.key, sample.fields) for sample in found.read(numbers)]
        columns = {
            name: [bytes(v) if name == "image" else int(v) for v in vs]
            for name, vs in found.read_columns(numbers).items()
        }
        return [found.labels.tolist(), [found.key(i) for i in range(len(found))], read, columns]


def check(folder: Path, path: Path) -> None:
    """Flips bits of a file of the data set in `folder`."""
    expected, manifest = everything(folder), Manifest.load(folder)  # by the manifest, no copies are looked for
    num_found = 0
    for bit in bits(path):
        with flipped(path, bit):
            try:
                assert everything(manifest) == expected, f"bit {bit} of {path.name}"
            except DlioError as error:
                num_found += 1
                assert str(folder) in str(error)
    assert num_found, "no flip was noticed: nothing was tested"


@pytest.mark.parametrize("name", formats.names())
def test_of_the_records(tmp_path: Path, name: str) -> None:
    manifest = pack_samples(tmp_path, SCHEMA, samples(), num_shards=1, name=name)
    check(tmp_path, tmp_path / manifest.shards[0].files[0].name)


@pytest.mark.parametrize("name", INDEXED)
def test_of_the_index(tmp_path: Path, name: str) -> None:
    pack_samples(tmp_path, SCHEMA, samples(), num_shards=1, name=name)
    check(tmp_path, tmp_path / "shard-00000.idx")


@pytest.mark.parametrize("name", INDEXED)
def test_of_what_index_wrote_beside_another_tools_shards(tmp_path: Path, name: str) -> None:
    records = [(sample.key, sample.fields) for sample in samples()]
    write_records(tmp_path / f"train-0{formats.load(name).SUFFIX}", name, records, SCHEMA.types())
    index(tmp_path, format=name, workers=1)
    for suffix in (SUFFIX, ".idx"):
        check(tmp_path, next((tmp_path / HIDDEN).glob(f"*{suffix}")))


@pytest.fixture
def packed(tmp_path: Path) -> Manifest:
    photos = [Sample(row.key, row.fields | {"image": image(number)}) for number, row in enumerate(samples())]
    return pack_samples(tmp_path / "packed", SCHEMA, photos, num_shards=2)


@pytest.mark.parametrize("column", ["field_label", "key_bytes", "key_offsets", "crc32c"])
def test_of_a_column_never_gives_a_wrong_label_or_key(
    packed: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str], column: str
) -> None:
    """`convert` would write a label that nobody gave, with a checksum that fits."""
    table = packed.root / "shard-00001.samples.npz"
    content = table.read_bytes()
    begin = content.index(b"\n", content.index(f"{column}.npy".encode())) + 1
    for bit in (0, 5, 8 * 4 + 1):
        with flipped(table, 8 * begin + bit):
            with pytest.raises(CorruptRecordError, match=column), closing(PackedSamples(packed.root)) as found:
                _ = found.labels, [found.key(i) for i in range(COUNT)], found.read(range(COUNT))
            assert main(["convert", str(packed.root), str(tmp_path / "out"), "--format", "recordio", "--quiet"]) == 3
            assert "shard-00001.samples.npz" in capsys.readouterr().err
            assert main(["verify", str(packed.root), "--json"]) == 1
            damaged = json.loads(capsys.readouterr().out)["damaged"]
            assert any(item["path"] == str(table) for item in damaged)
            assert len(damaged) < COUNT, "one damaged table is told once, not for each record"
    assert not (tmp_path / "out" / NAME).exists()
