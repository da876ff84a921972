"""Damages a shard in many ways and reads it: python damage.py FORMAT {cut,flip,erase} FOLDER [--without-index]

A separate process, since a library that a damaged file brings down would take the test run with it. Exit code 0 where
every reading gave the right samples, wrong ones that a checksum detects, or the project's own error; else 1,
with a line for each violation.
"""

from __future__ import annotations

import random
import resource
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from dlio.dataset.checksum import crc32c
from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError, StorageError
from dlio.testing.container import Container
from dlio.testing.samples import difference, samples
from tests.helpers.rounds import ROUNDS

SCHEMA = Schema.of({"image": "bytes", "label": "int64"})
OTHER_SCHEMA = Schema.of({"frames": "bytes[]", "name": "str", "box": "float32[4]"})
CHECKED = {"tfrecord"}  # containers with a checksum over all of their data
MAX_POINTS = 60 * ROUNDS
MEMORY_BYTES = 4 << 30

Damage = Callable[[bytes, int], bytes]


def _cut(content: bytes, point: int) -> bytes:
    return content[:point]


def _flip(content: bytes, point: int) -> bytes:
    at, bit = divmod(point, 8)
    at %= len(content)
    return content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]


def _erase(content: bytes, point: int) -> bytes:
    """Sets 64 bytes to 0xff, as a lost flash page reads."""
    return content[:point] + b"\xff" * min(64, len(content) - point) + content[point + 64 :]


DAMAGES: dict[str, Damage] = {"cut": _cut, "flip": _flip, "erase": _erase}


def _points(num_bytes: int, kind: str, picks: random.Random) -> list[int]:
    """Returns where to damage a file: its ends, and points drawn evenly and towards its ends."""
    scale = 8 if kind == "flip" else 1
    points = {0, 1, num_bytes // 2, num_bytes - 1} if num_bytes else set()
    while len(points) < min(MAX_POINTS, num_bytes):
        ends = picks.choice([num_bytes, min(num_bytes, 600)])
        points.add(picks.choice([picks.randrange(ends), num_bytes - 1 - picks.randrange(ends)]))
    return sorted(point * scale + picks.randrange(scale) for point in points)


def _violation(container: Container, path: Path, schema: Schema, expected: list[Sample]) -> str | None:
    """Returns what is wrong with reading a damaged shard, None where it fails or succeeds as promised."""
    try:
        reader = container.module.Reader(path, schema)
    except (CorruptRecordError, StorageError) as error:
        return None if str(path.parent) in str(error) else f"an error without its path: {error}"
    try:
        if len(reader) > len(expected):
            return f"{len(reader)} records, {len(expected)} were written"
        for index, sample in enumerate(expected[: len(reader)]):
            try:
                found = reader.read(index)
            except CorruptRecordError as error:
                if error.record != index:
                    return f"an error that names record {error.record} for record {index}: {error}"
                continue
            except StorageError:
                continue
            wrong = difference(found, sample) is not None
            if wrong and (container.name in CHECKED or crc32c(found, schema) == crc32c(sample, schema)):
                return f"record {index} is wrong, and no checksum tells"
    finally:
        reader.close()
    return None


def _violations(container: Container, kind: str, folder: Path, schema: Schema, with_index: bool) -> Iterator[str]:
    expected = samples(schema, 9, seed=5)
    path = container.write(folder / "shard", schema, expected)
    if not with_index:
        path.with_suffix(".idx").unlink()
    picks = random.Random(11)
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        content = file.read_bytes()
        for point in _points(len(content), kind, picks):
            file.write_bytes(DAMAGES[kind](content, point))
            try:
                problem = _violation(container, path, schema, expected)
            except BaseException as error:
                problem = repr(error)
            if problem is not None:
                yield f"{file.name}, {kind} at {point} of {len(content)} bytes: {problem}"
        file.write_bytes(content)


def main() -> int:
    """Runs all damages of one kind and returns the exit code."""
    name, kind, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    warnings.simplefilter("error")
    found = 0
    for schema in (SCHEMA, OTHER_SCHEMA):
        inner = folder / "shards"
        inner.mkdir()
        for line in _violations(Container(name), kind, inner, schema, "--without-index" not in sys.argv):
            found += 1
            if found <= 20:
                sys.stderr.write(line + "\n")
        shutil.rmtree(inner)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
