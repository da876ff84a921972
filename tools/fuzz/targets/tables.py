"""`.samples.npz`, next to a shard that is whole."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from dlio.dataset.reader import open_table
from dlio.dataset.schema import Schema
from tools.fuzz.inputs import CASE, FIXED, REPAIRED, Files, case_of
from tools.fuzz.targets import Target, containers, require
from tools.fuzz.targets.known import digest


def check(root: Path, files: Files) -> None:
    """Reads keys, labels and samples: as they were packed, or an error; a checksum made to fit may hide more."""
    manifest = containers.manifest_of(root, files)
    known = case_of(files)["samples"]
    table = open_table(manifest, manifest.shards[0])
    assert table is not None
    with closing(table):
        keys = table.keys(0, len(known))
        require(len(keys) == len(known), "there is a key for each sample")
        whole = REPAIRED not in files
        require(not whole or keys == [key for key, _ in known], "keys are those that were packed")
        for name, kind in manifest.schema.small.items():
            found = [digest(kind, value) for value in table.field(name)]
            require(not whole or found == [fields[name] for _, fields in known], f"labels are those packed ({name})")
        table.with_keys(keys)
    containers.check(root, files, with_table=True)


def seeds() -> list[Files]:
    """Returns tables of images, and of every kind of number."""
    numbers = Schema.of({"image": "bytes", "label": "float32[14]", "a": "bool", "b": "uint8", "c": "float16[2,2]"})
    made = [
        containers.shard_files("tfrecord", containers.PHOTOS, containers.photos(5)),
        containers.shard_files("tfrecord", numbers, containers.samples(numbers, 4, seed=5)),
    ]
    table, shard = containers.TABLE, f"{containers.STEM}.tfrecord"
    return [{CASE: files[CASE], FIXED + shard: files[shard], table: files[FIXED + table]} for files in made]


TARGETS = [Target("npz", seeds, check)]
