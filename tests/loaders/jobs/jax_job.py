"""One process of JAX with two devices: the rows that each device gets, under several shardings."""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dlio.errors import UsageError
from dlio.images import Resize
from dlio.loaders.jax import DataLoader
from tests.loaders.jobs.reading import DATA, numbers, report

PROCESS = int(os.environ["PROCESS"])
jax.distributed.initialize(os.environ["COORDINATOR"], num_processes=2, process_id=PROCESS)
DEVICES = np.array(jax.devices())  # process 0 has the first two of four


def spread(devices: Any, axes: tuple[str, ...], spec: PartitionSpec) -> NamedSharding:
    return NamedSharding(Mesh(devices, axes), spec)


def rows(images: jax.Array) -> dict[str, list[int]]:
    """Returns the photos in the rows of each device, by the first row's number in the global batch."""
    assert images.shape == (8, 16, 16, 3) and images.dtype == np.uint8
    return {
        f"{shard.index[0].start or 0} on {shard.device.id}": numbers(np.asarray(shard.data))
        for shard in images.addressable_shards
    }


def epochs(sharding: NamedSharding | None) -> list[list[dict[str, list[int]]]]:
    """Returns the rows of every batch of two epochs; the second one resumes in its middle."""
    options: dict[str, Any] = {
        "transform": Resize(16),
        "shuffle": True,
        "sharding": sharding,
        "end": "drop",
        "num_workers": 2,
    }
    loader = DataLoader(DATA, 8, **options)
    first = [rows(images) for images, _ in loader]
    batches = iter(loader)
    second = [rows(next(batches)[0]), rows(next(batches)[0])]
    resumed = DataLoader(DATA, 8, **options)
    resumed.load_state_dict(loader.state_dict())
    second += [rows(images) for images, _ in resumed]
    loader.close()
    resumed.close()
    return [first, second]


found = {
    "default": epochs(None),
    "two by two": epochs(spread(DEVICES.reshape(2, 2), ("data", "model"), PartitionSpec("data"))),
    "replicated": epochs(spread(DEVICES, ("data",), PartitionSpec())),
}
try:
    DataLoader(DATA, 8, transform=Resize(16), sharding=spread(DEVICES[[0, 2, 1, 3]], ("data",), PartitionSpec("data")))
except UsageError as error:
    report(PROCESS, found | {"refused": str(error)})
jax.distributed.shutdown()  # waits for the other process, which otherwise sees the first one to end as lost
