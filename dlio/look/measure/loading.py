"""What a loader gives: images per second of one thread that decodes, and of loaders with several threads."""

from __future__ import annotations

import time
from contextlib import closing

import numpy as np

from dlio.codecs import decoders
from dlio.images import Transform
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import ArrayBatches, Loader
from dlio.targets import IMAGE

SECONDS = 3.0
_MOST_BYTES = 64 << 20
_BATCH_SIZE = 64


def decode_rate(samples: PackedSamples, transform: Transform) -> float:
    """Returns how many images a second one thread decodes from memory; raises as `PackedSamples.read`."""
    count = min(len(samples), _BATCH_SIZE * 8, max(1, _MOST_BYTES // max(1, samples.sample_bytes)))
    images = samples.read_columns(np.linspace(0, len(samples) - 1, count).astype(np.int64))[IMAGE]
    keys = np.arange(count, dtype=np.uint64)
    out = np.empty((_BATCH_SIZE, 3, *transform.output_size), np.uint8)
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        start = done % count
        part = slice(start, min(start + _BATCH_SIZE, count))
        decoders.decode_batch(images[part], transform, keys[part], out[: part.stop - part.start])
        done += part.stop - part.start
    return done / (time.perf_counter() - began)


def loader_rate(samples: PackedSamples, num_threads: int) -> float:
    """Returns the samples a second of a loader of this many threads, as fast as it makes them; raises likewise."""
    size = min(_BATCH_SIZE, len(samples))
    loader = Loader(
        ArrayBatches(samples), size, shuffle=True, num_workers=num_threads, end="drop", rank=0, world_size=1
    )
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        with closing(iter(loader)) as batches:
            for _ in batches:
                done += size
                if time.perf_counter() - began >= SECONDS:
                    break
    return done / (time.perf_counter() - began)
