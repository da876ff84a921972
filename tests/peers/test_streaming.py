"""MosaicML Streaming's writer, dlio's index over its shards, and back."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dlio
from dlio.dataset.manifest import Manifest
from dlio.dataset.schema import Schema
from dlio.io.files import digest_bytes
from dlio.loaders.dataset import PackedSamples
from dlio.sources import packed
from tests.peers import installed

pytestmark = pytest.mark.jobs

JOB = Path(__file__).with_name("streaming_job.py")
#: Arrays whose shards do not say how many dimensions they have need a schema.
TYPES = {
    "image": "bytes",
    "label": "int64",
    "note": "str",
    "raw": "bytes",
    "meta": "str",
    "score": "float32",
    "count": "uint16",
    "digits": "int64",
    "box": "int16[2,2]",
    "points": "float32[?,?]",
    "any": "int64[?,?]",
}


def streamed(folder: Path) -> list[dict[str, Any]]:
    """Returns what StreamingDataset reads of the folder that the job writes."""
    told = installed.run([sys.executable, "-W", "ignore", JOB, folder])
    found: list[dict[str, Any]] = json.loads(told.splitlines()[-1])
    return found


def shown(name: str, value: Any) -> Any:
    """Returns a value of dlio's as the job shows it."""
    if name == "image":
        value = Image.open(io.BytesIO(value)).tobytes()
    if isinstance(value, bytes | memoryview):
        return digest_bytes(bytes(value))
    if name == "meta":
        return json.loads(value)
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def read(folder: Path) -> list[dict[str, Any]]:
    """Returns the samples that dlio reads, in order."""
    samples = PackedSamples(folder)
    found = samples.read(range(len(samples)))
    return [{name: shown(name, value) for name, value in sample.fields.items()} for sample in found]


def test_its_writers_shards_are_indexed_and_written_back(tmp_path):
    installed.require("streaming", "torchvision", "catalogue", "boto3")
    expected = streamed(tmp_path)
    dlio.index(tmp_path / "written", format="mds", schema=Schema.of(TYPES))
    assert len(Manifest.load(tmp_path / "written").shards) > 1
    assert read(tmp_path / "written") == expected
    dlio.pack(packed(tmp_path / "written"), tmp_path / "packed", format="recordio")
    assert streamed(tmp_path) == expected
    dlio.index(tmp_path / "again", format="mds", schema=Schema.of(TYPES))
    assert read(tmp_path / "again") == expected
