"""Samples of every kind, and HDF5 shards of them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample, Schema
from dlio.formats import hdf5
from dlio.testing.container import read_all, write_all

WIDE = Schema.of(
    {
        "image": "bytes",
        "text": "str",
        "label": "float32[3]",
        "flag": "bool",
        "half": "float16[2,2]",
        "count": "uint64",
        "frames": "bytes[]",
        "words": "str[2]",
    }
)


def images(count: int, num_bytes: int = 3000) -> list[Sample]:
    generator = random.Random(count)
    return [
        Sample(f"cat/{i} é.jpg", {"image": generator.randbytes(generator.randint(0, num_bytes)), "label": i - 3})
        for i in range(count)
    ]


def wide(number: int) -> Sample:
    return Sample(
        f"key {number}",
        {
            "image": b"x" * number,
            "text": "é" * (number % 5),
            "label": np.array([number, 0.5, -1], dtype="float32"),
            "flag": number % 2 == 0,
            "half": np.full((2, 2), number, dtype="float16"),
            "count": 2**64 - 1 - number,
            "frames": [b"%d" % i for i in range(number % 4)],
            "words": ["a" * number, ""],
        },
    )


def write(stem: Path, samples: list[Sample], schema: Schema = IMAGE_CLASSIFICATION) -> Path:
    write_all(hdf5.Writer(stem, schema), samples)
    return stem.with_name(stem.name + hdf5.SUFFIX)


def read(path: Path, schema: Schema = IMAGE_CLASSIFICATION) -> list[Sample]:
    return read_all(hdf5.Reader(path, schema))
