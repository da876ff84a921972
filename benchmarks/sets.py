"""Times the verbs that make sets of others, and the order of a mixture. Run: python -m benchmarks.sets

A set of 10^6 samples in 1,000 shards, with real manifests and tables and without records, which these verbs do not
read; 1,000 new images to append; and two sets of 10^9 samples together for 4,096 ranks. Of three runs the least time on
the clock is shown, and the least time of this process's core, which other work on the machine does not change.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

import dlio
from dlio.dataset.manifest import File, Manifest, Shard
from dlio.dataset.sample_group import Pieces, SampleGroup
from dlio.dataset.sample_table import SUFFIX, SampleTableBuilder
from dlio.dataset.schema import IMAGE_CLASSIFICATION, Schema
from dlio.io.files import digest_bytes
from dlio.loaders.sampling.mixed_order import draws_of, mixed_order
from dlio.loaders.sampling.rank_share import Share, rank_steps

SHARDS, SAMPLES, CLASSES = 1000, 1000, 1000
RANKS, BATCH = 4096, 64


def made(root: Path) -> Manifest:
    """Writes the tables and the manifest of a set."""
    root.mkdir()
    schema = Schema.of(IMAGE_CLASSIFICATION.types(), tuple(f"class{number:04d}" for number in range(CLASSES)))
    shards = [_shard(root, number, schema) for number in range(SHARDS)]
    manifest = Manifest("tfrecord", schema, tuple(shards), {"num_shards": SHARDS}, root)
    manifest.save(root)
    return manifest


def _shard(root: Path, number: int, schema: Schema) -> Shard:
    labels = np.random.default_rng(number).integers(0, CLASSES, SAMPLES)
    keys = Pieces.of(
        [b"class%04d/%07d.jpg" % (label, number * SAMPLES + at) for at, label in enumerate(labels.tolist())]
    )
    table = SampleTableBuilder(schema)
    table.extend(SampleGroup(keys, {"image": Pieces.of([b""] * SAMPLES), "label": labels}))
    data, name = table.to_bytes(), f"shard-{number:06d}"
    (root / f"{name}{SUFFIX}").write_bytes(data)
    (root / f"{name}.tfrecord").touch()
    files = File(f"{name}.tfrecord", 0, digest_bytes(b"")), File(f"{name}{SUFFIX}", len(data), digest_bytes(data))
    return Shard(name, SAMPLES, files)


def timed(name: str, work: Callable[[Path], object], folder: Path) -> None:
    """Prints the least time of three runs, each into a new folder."""
    wall, core = [], []
    for turn in range(3):
        began, busy = time.perf_counter(), time.process_time()
        work(folder / f"{name.replace(' ', '-')}-{turn}")
        wall.append(time.perf_counter() - began)
        core.append(time.process_time() - busy)
    print(f"{name:28} {min(wall):6.2f} s, core {min(core):6.2f} s", flush=True)


def new_images(folder: Path) -> Path:
    """Writes 1,000 images of one class."""
    (folder / "class0000").mkdir(parents=True)
    for number in range(1000):
        Image.new("RGB", (16, 16)).save(folder / "class0000" / f"{folder.name}-{number}.png")
    return folder


def global_batch(_: Path) -> None:
    """Makes the order of a mixture, and the first batches of all ranks."""
    sets = [_sizes(7000, 100_000), _sizes(3000, 100_000)]
    order = mixed_order(sets, draws_of([0.7, 0.3]), 10**9, seed=1, epoch=3, shuffle=True, lanes=1)
    rank_steps(order, Share(0, 1, RANKS * BATCH))[0]


def one_rank(_: Path) -> None:
    """Makes the order, and the first batch of one rank, as each process of a job does."""
    sets = [_sizes(7000, 100_000), _sizes(3000, 100_000)]
    order = mixed_order(sets, draws_of([0.7, 0.3]), 10**9, seed=1, epoch=3, shuffle=True, lanes=1)
    rank_steps(order, Share(4095, RANKS, BATCH))[0]


def _sizes(count: int, samples: int) -> Manifest:
    shards = [Shard(f"shard-{number:06d}", samples, (File(f"{number}", 1, ""),)) for number in range(count)]
    return Manifest("tfrecord", IMAGE_CLASSIFICATION, tuple(shards))


def main() -> None:
    """Prints all times."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        root = made(folder / "set").root
        timed("split by class", lambda out: dlio.split(root, out, fractions=[0.9, 0.1], by="class"), folder)
        timed("split by group", lambda out: dlio.split(root, out, fractions=[0.9, 0.1], by="group"), folder)
        timed("select 100 classes", lambda out: dlio.select(root, out, where=["label<100"]), folder)
        timed("select by keys", lambda out: dlio.select(root, out, where=["key=*7.jpg"]), folder)
        parts = [folder / "split-by-class-0" / name for name in ("train", "val")]
        timed("merge of the parts", lambda out: dlio.merge(parts, out), folder)
        names = [f"merge-of-two-whole-sets-{turn}" for turn in range(3)]
        others = {name: _other(root, folder / name) for name in names}
        timed("merge of two whole sets", lambda out: dlio.merge([root, others[out.name]], out), folder)
        photos = {f"append-{turn}": new_images(folder / "photos" / f"append-{turn}") for turn in range(3)}
        timed("append", lambda out: dlio.pack(photos[out.name], root, append=True, engine="serial"), folder)
    timed("mixture, all ranks", global_batch, folder)
    timed("mixture, one rank", one_rank, folder)


def _other(root: Path, out: Path) -> Path:
    """Returns a set of as many shards, which are not the same."""
    found, other = Manifest.load(root), out.with_name(f"{out.name}-other")
    other.mkdir()
    shards = [shard.replace(files=tuple(file.replace(digest="0") for file in shard.files)) for shard in found.shards]
    for file in (file for shard in shards for file in shard.files):
        (other / file.name).hardlink_to(root / file.name)
    replace(found, shards=tuple(shards)).save(other)
    return other


if __name__ == "__main__":
    main()
