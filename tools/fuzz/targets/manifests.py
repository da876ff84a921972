"""Manifests, in a folder and from a URL."""

from __future__ import annotations

import pickle
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from fsspec.implementations.memory import MemoryFileSystem

import dlio
from dlio.dataset.manifest import NAME, Manifest, Part
from dlio.dataset.reader import ShardReader
from dlio.dataset.sample_table import SUFFIX
from dlio.errors import DlioError
from dlio.formats import names
from dlio.sources import image_folder
from dlio.stage.sources.remote import remote_set
from tests.helpers.images import make_image_folder
from tools.fuzz.inputs import Files, case_of, fixed, read_folder, with_case
from tools.fuzz.targets import Target, require
from tools.fuzz.targets.known import digests

_URL = "memory://set"


def check(root: Path, files: Files) -> None:
    """Loads the manifest, which means the same when it is saved and loaded, and reads the shards that it names."""
    manifest = Manifest.load(root)
    for shard in manifest.shards:
        for file in shard.files:
            require((root / file.name).resolve().is_relative_to(root), f"files lie in the folder ({file.name!r})")
    require(pickle.loads(pickle.dumps(manifest)) == manifest, "a manifest is pickled whole")
    _ = manifest.num_bytes, manifest.skipped, manifest.shards_here
    with tempfile.TemporaryDirectory(dir=root) as other:
        manifest.save(other)
        again = Manifest.load(other)
        require(again == manifest, "a manifest is saved as it is")
        require(again.content_id == manifest.content_id, "a manifest has one content id")
    _check_samples(manifest, files)


def _check_samples(manifest: Manifest, files: Files) -> None:
    case = case_of(files)
    for shard in manifest.shards:
        try:
            with closing(ShardReader(manifest, shard)) as reader:
                known = case["samples"] if any(file.name.endswith(SUFFIX) for file in shard.files) else None
                for index in range(min(len(reader), 20)):
                    sample = reader.read(index)
                    if known is not None and manifest.schema.types() == case["schema"]:
                        promise = "a sample is one of those that were packed"
                        require([sample.key, digests(sample, manifest.schema)] in known, promise)
        except DlioError:
            continue


def check_answer(root: Path, files: Files) -> None:
    """Loads the manifest from a URL, with the same result as from a file."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem().pipe_file(f"/set/{NAME}", files[NAME])
    MemoryFileSystem.store[f"/set/{NAME}"].seek(0)
    manifest = remote_set(_URL).manifest
    for file in (file for shard in manifest.shards for file in shard.files):
        require((root / file.name).resolve().is_relative_to(root), f"files lie in the folder ({file.name!r})")
    require(len(manifest.content_id) == 32, "a manifest has a content id")


def seeds() -> list[Files]:
    """Returns data sets of two shards in every format of small files, and one with all optional entries."""
    made = [_packed(name, samples=6) for name in names() if name != "hdf5"]
    made.append(_packed("tfrecord", samples=6, broken=True))
    made.append(_packed("tfrecord", samples=6, part=True))
    return made


def _packed(name: str, samples: int, broken: bool = False, part: bool = False) -> Files:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "in"
        make_image_folder(root, {"cat": samples // 2, "dog": samples - samples // 2}, width=8, height=6)
        if broken:
            (root / "dog" / "x.png").write_bytes(b"no image")
        out = Path(folder) / "out"
        manifest = dlio.pack(
            image_folder(root),
            out,
            format=name,
            num_shards=2,
            engine="serial",
            on_error="skip",
            label_offset=int(broken),
        )
        known = []
        for shard in manifest.shards:
            with closing(ShardReader(manifest, shard)) as reader:
                read = [reader.read(index) for index in range(len(reader))]
                known += [[sample.key, digests(sample, manifest.schema)] for sample in read]
        if part:
            chosen = [shard.replace(num_samples=1, part=Part(shard.num_samples, (1, 1))) for shard in manifest.shards]
            replace(manifest, shards=tuple(chosen)).save(out)
        files = read_folder(out)
    others = [path for path in files if path != NAME]
    return with_case(fixed(files, *others), schema=manifest.schema.types(), samples=known)


def _answers() -> list[Files]:
    return [{NAME: files[NAME]} for files in seeds()[-2:]]


TARGETS = [Target("manifest", seeds, check), Target("url", _answers, check_answer)]
