"""JAX: `DataLoader`, which yields global arrays on the devices.

    from dlio.images import RandomResizedCrop
    from dlio.loaders.jax import DataLoader

    loader = DataLoader("packed", batch_size=1024, transform=RandomResizedCrop(224, flip=True), shuffle=True)
    for epoch in range(90):
        for images, labels in loader:     # uint8 (1024, 224, 224, 3), int32 (1024,), spread over all devices
            state = train_step(state, images, labels)

`batch_size` is that of the whole job. The sharding says which of its rows each process holds; a process reads and
decodes no others, and processes that hold the same rows get equal ones. Every batch has the same shape, so that a
compiled step fits all of them. JAX has no 64-bit numbers by default, and makes int64 int32.

The state of a run is five scalars, the same on every process, for any number of processes and devices. Orbax saves and
restores it as JSON:

    checkpoints.save(step, args=ocp.args.Composite(model=..., loader=ocp.args.JsonSave(loader.state_dict())))
    loader.load_state_dict(checkpoints.restore(step).loader)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Unpack

from dlio.errors import UsageError, missing_package

try:
    import jax
except ModuleNotFoundError as error:
    raise missing_package("jax", "jax", "dlio.loaders.jax") from error

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from dlio.loaders.batches import paired
from dlio.loaders.dataset import VALID, Batch, PackedSamples
from dlio.loaders.loader import Loader
from dlio.loaders.mixture import Data
from dlio.loaders.options import Keywords, check_number, forwarded, takes_options
from dlio.loaders.prefetch.work import look_ahead
from dlio.loaders.sampling.rank import place_of
from dlio.targets import IMAGE

_HELD = 2  # batches that JAX may hold besides those on their way to the devices


class DataLoader:
    """Yields global batches: (images, labels) as jax.Arrays, or a dict of fields; each iteration is the next epoch.

    Threads of dlio decode, and batches are copied to the devices ahead of use. For one thread.
    """

    @takes_options(without=("rank", "world_size"))
    def __init__(
        self, data: Data, batch_size: int, *, sharding: Sharding | None = None, **keywords: Unpack[Keywords]
    ) -> None:
        """Opens a data set; shards are opened on demand.

        Args:
            data: the folder or URL that holds `manifest.jsonl`, a manifest, or a `Mixture` of these.
            batch_size: samples of a global batch. The last one of an epoch that does not drop it is filled with
                repeated samples: all batches have one shape. `end="mask"` adds a bool array, False for these.
            sharding: how the rows of a batch are spread over the devices, the same on every process; only the first
                dimension may be divided. By default evenly over all devices of the job.
            **keywords: see `dlio.loaders.options.Options`.

        Raises:
            ManifestError: the folder holds no data set.
            UsageError: an argument is out of range, a field makes no array, or the sharding does not give this process
                one block of rows, of a size that divides the batch.
        """
        if "rank" in keywords or "world_size" in keywords:
            raise UsageError(
                "rank= and world_size=: in JAX the sharding says which rows a process holds; leave them out"
            )
        check_number("batch_size", batch_size, 1)
        self.sharding = sharding or _over_all_devices()
        self.batch_size = batch_size
        first, num_rows = rows_of_process(self.sharding, batch_size)
        place = partial(place_of, first // num_rows, batch_size // num_rows)
        self._loader: Loader[Batch] = Loader(data, num_rows, rank_and_size=place, **keywords)
        samples = self._loader.source.samples
        _check_fields(samples)
        samples.keep_memory(2 * self._loader.prefetch + _HELD, num_rows)

    def __len__(self) -> int:
        """Returns the number of batches of a whole epoch."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """Starts the next epoch, or resumes at the position that `load_state_dict` has set.

        Raises:
            UsageError: there is no whole batch.
            CorruptRecordError, StorageError: raised at the batch with the record, or up to `prefetch` batches earlier.
        """
        return self._loader.through(self._global, partial(look_ahead, count=self._loader.prefetch))

    def _global(self, batch: Batch) -> Any:
        """Returns this process's rows as parts of global arrays."""
        schema = self._loader.source.samples.schema
        arrays = {
            name: jax.make_array_from_process_local_data(  # type: ignore[no-untyped-call]
                self.sharding, _filled(name, rows, self._loader.batch_size), (self.batch_size, *rows.shape[1:])
            )
            for name, rows in batch.items()
        }
        return paired(arrays, schema)

    @property
    def epoch(self) -> int:
        """The epoch of the running iteration, else the next."""
        return self._loader.epoch

    set_epoch = forwarded(Loader.set_epoch)
    state_dict = forwarded(Loader.state_dict)
    load_state_dict = forwarded(Loader.load_state_dict)
    stats = forwarded(Loader.stats)
    verdict = forwarded(Loader.verdict)
    close = forwarded(Loader.close)


def _over_all_devices() -> Sharding:
    """Returns the sharding that divides a batch evenly among all devices of the job."""
    return NamedSharding(Mesh(np.array(jax.devices()), ("batch",)), PartitionSpec("batch"))  # type: ignore[no-untyped-call]


def rows_of_process(sharding: Sharding, batch_size: int) -> tuple[int, int]:
    """Returns the first row of a global batch that this process holds, and how many.

    Args:
        sharding: of the batch.
        batch_size: rows of the batch.

    Raises:
        UsageError: the rows are not one block of a size that divides the batch, as those of every other process.
    """
    try:
        index_of: Mapping[Any, Any] = sharding.devices_indices_map((batch_size,))
    except (ValueError, IndexError) as error:
        raise UsageError(f"a batch of {batch_size} samples does not fit {sharding}: {error}") from error
    held: dict[int, set[int]] = {}
    for device, (rows,) in index_of.items():
        held.setdefault(device.process_index, set()).update(range(*rows.indices(batch_size)))
    own = held.get(jax.process_index(), set())
    sizes = {len(rows) for rows in held.values()}
    is_block = own and max(own) - min(own) + 1 == len(own)
    if not (is_block and sizes == {len(own)} and batch_size % len(own) == 0 and min(own) % len(own) == 0):
        raise UsageError(
            f"{sharding} gives process {jax.process_index()} rows {sorted(own)[:8]}... of {batch_size}: expected one "
            "block of equal size for every process; order the mesh so that a process's devices are neighbours"
        )
    return min(own), len(own)


def _check_fields(samples: PackedSamples) -> None:
    """Raises UsageError if a field makes no array of one shape."""
    for name, kind in samples.made.items():
        if not kind.is_fixed:
            advice = "give a transform" if name == IMAGE else "pack it with one shape, or leave it out with fields="
            if samples.targets is not None and name in samples.targets.move:
                advice = "give WithTargets(transform, max_boxes=N) of dlio.targets, or leave it out with fields="
            raise UsageError(f"the field {name!r} of type {kind} cannot become a JAX array: {advice}")


def _filled(name: str, rows: Any, count: int) -> Any:
    """Returns the rows of a field with the first ones repeated up to `count`, and those of the mask False."""
    if len(rows) == count:
        return rows
    more = np.resize(rows, (count - len(rows), *rows.shape[1:]))
    return np.concatenate([rows, np.zeros_like(more) if name == VALID else more])
