"""Shards as other tools write them, and the checks of every adopted data set."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from dlio import formats
from dlio.cli import main
from dlio.dataset.manifest import NAME, Manifest
from dlio.dataset.sample_table import SUFFIX
from dlio.dataset.schema import Sample, Schema
from dlio.images import CenterCrop
from dlio.loaders import batches
from dlio.loaders.dataset import PackedSamples
from dlio.pack.index import index
from tests.helpers.images import image
from tests.helpers.packing import content, samples

JPEGS = [image(number, "JPEG") for number in range(9)]


def adopt(folder: Path, name: str, **options) -> tuple[Manifest, list[tuple[str, dict]]]:
    """Indexes a folder, makes sure that it is whole and unchanged, and returns its manifest and its samples."""
    before = content(folder)
    index(folder, format=name, workers=1, **options)
    after = content(folder)
    assert before.items() <= after.items()
    manifest = Manifest.load(folder)
    made = [file for shard in manifest.shards for file in (f"{shard.name}{SUFFIX}", f"{shard.name}.idx")]
    assert after.keys() - before.keys() <= {NAME, *(f".dlio-index/{file}" for file in made)}
    if manifest.format in ("tfrecord", "recordio", "webdataset"):
        assert all(any(file.name.endswith(".idx") for file in shard.files) for shard in manifest.shards)
    assert main(["verify", str(folder), "--quiet"]) == 0
    return manifest, samples(folder)


def batch(root: Path, indices: list[int]) -> dict:
    """Returns a decoded batch as the loaders have it."""
    with closing(PackedSamples(root, CenterCrop(8))) as packed_samples:
        return batches.make(packed_samples, indices, 0)


def write_records(path: Path, name: str, records: list[tuple[str, dict]], types: dict[str, str]) -> Path:
    """Writes a shard called `path`, whatever its name, without an index."""
    schema, container = Schema.of(types), formats.load(name)
    stem = path.parent / "temporary"
    with closing(container.Writer(stem, schema)) as writer:
        for key, fields in records:
            writer.write(schema.check(Sample(key, fields)))
    stem.with_name(f"temporary{container.SUFFIX}").rename(path)
    stem.with_suffix(".idx").unlink()
    return path


def photo_records(start: int, stop: int) -> list[tuple[str, dict]]:
    """Returns JPEGs with labels 0, 1 and 2."""
    return [(f"photo {number}.jpg", {"image": JPEGS[number], "label": number % 3}) for number in range(start, stop)]


PAIR = {"image": "bytes", "label": "int64"}
