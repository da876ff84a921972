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

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dlio.errors import UsageError, missing_package

try:
    import jax
except ModuleNotFoundError as error:
    raise missing_package("jax", "jax", "dlio.loaders.jax") from error

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from dlio.images import Transforms
from dlio.loaders.batch_sources import ArrayBatches
from dlio.loaders.batches import paired
from dlio.loaders.dataset import VALID, Batch, PackedSamples
from dlio.loaders.loader import Loader
from dlio.loaders.mixture import Data
from dlio.loaders.prefetch.ahead import ahead
from dlio.loaders.sampling.order import Shuffle
from dlio.loaders.sampling.rank_share import End
from dlio.loaders.sampling.state import State
from dlio.targets import IMAGE

_HELD = 2  # batches that JAX may hold besides those on their way to the devices


class DataLoader:
    """Yields global batches: (images, labels) as jax.Arrays, or a dict of fields; each iteration is the next epoch.

    Threads of dlio decode, and batches are copied to the devices ahead of use. For one thread.
    """

    def __init__(
        self,
        data: Data,
        batch_size: int,
        *,
        transform: Transforms | None = None,
        fields: Sequence[str] | None = None,
        sharding: Sharding | None = None,
        shuffle: Shuffle = False,
        seed: int = 0,
        end: End | str = End.DROP,
        num_threads: int | None = None,
        prefetch: int = 2,
        upright: bool = False,
        max_skipped: int = 0,
        cache: str | Path | bool | None = None,
    ) -> None:
        """Opens a data set; shards are opened on demand.

        Args:
            data: the folder or URL that holds `manifest.jsonl`, a manifest, or a `Mixture` of these.
            batch_size: samples of a global batch.
            transform: applied to the field `image`; one of `dlio.images`, or a list.
            fields: the names of the fields that samples have; by default all.
            sharding: how the rows of a batch are spread over the devices, the same on every process; only the first
                dimension may be divided. By default evenly over all devices of the job.
            shuffle: False, True or `Window(w)`.
            seed: of order and transform, the same on every process.
            end: `drop` ends an epoch with its last whole batch. `mask` yields every sample, fills the last batch with
                repeated samples, and adds a bool array to each batch, False for these.
            num_threads: threads that read and decode; by default one for each core of this process.
            prefetch: batches copied to the devices ahead of the one in use.
            upright: rotate images, their boxes and masks by their EXIF orientation.
            max_skipped: how many damaged samples are replaced by others of their batch before one is an error.
            cache: the node-local folder to stage to while the data set is read; True chooses one, as `dlio.stage` does.

        Raises:
            ManifestError: the folder holds no data set.
            UsageError: an argument is out of range, a field makes no array, or the sharding does not give this process
                one block of rows, of a size that divides the batch.
        """
        if end not in (End.DROP, End.MASK):
            raise UsageError(f"end={end!r}: expected drop or mask, since each batch has the same shape")
        if batch_size < 1 or prefetch < 0:
            raise UsageError(f"batch_size={batch_size}, prefetch={prefetch}: expected at least 1 and at least 0")
        samples = PackedSamples(data, transform, fields=fields, upright=upright, max_skipped=max_skipped, cache=cache)
        _check_fields(samples)
        self.sharding = sharding or _over_all_devices()
        self.batch_size = batch_size
        first, num_rows = rows_of_process(self.sharding, batch_size)
        self._prefetch = prefetch
        source = ArrayBatches(samples, channels_last=True, mask=end == End.MASK)
        self._loader: Loader[Batch] = Loader(
            source,
            num_rows,
            shuffle=shuffle,
            seed=seed,
            lanes=1,
            end=End(end),
            rank_and_size=lambda: (first // num_rows, batch_size // num_rows),
            num_threads=num_threads,
        )
        samples.keep_memory(self._loader.prefetch + prefetch + _HELD, num_rows)

    def __len__(self) -> int:
        """Returns the number of batches of a whole epoch."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """Starts the next epoch, or resumes at the position that `load_state_dict` has set.

        Raises:
            UsageError: there is no whole batch.
            CorruptRecordError, StorageError: raised at the batch with the record, or up to `prefetch` batches earlier.
        """
        return self._loader.through(self._global, partial(ahead, count=self._prefetch))

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

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next one."""
        self._loader.set_epoch(epoch)

    def state_dict(self) -> State:
        """Returns the state after the batches that were handed out: five scalars, the same on every process."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Makes the next iteration resume where `state_dict` was taken, for any number of processes and devices.

        Raises:
            UsageError: the state is malformed, or of another data set, order or seed.
        """
        self._loader.load_state_dict(state)

    def stats(self) -> dict[str, float | int]:
        """Returns the times and counts of the latest iteration; see `Loader.stats`."""
        return self._loader.stats()

    def close(self) -> None:
        """Ends running iterations and closes all files; the loader can be used again."""
        self._loader.close()


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
            advice = "give a transform" if name == IMAGE else "pack it with one shape, or leave it out by fields="
            if samples.targets is not None and name in samples.targets.move:
                advice = "give WithTargets(transform, max_boxes=N) of dlio.targets, or leave it out by fields="
            raise UsageError(f"the field {name!r} of type {kind} makes no array in JAX: {advice}")


def _filled(name: str, rows: Any, count: int) -> Any:
    """Returns the rows of a field with the first ones repeated up to `count`, and those of the mask False."""
    if len(rows) == count:
        return rows
    more = np.resize(rows, (count - len(rows), *rows.shape[1:]))
    return np.concatenate([rows, np.zeros_like(more) if name == VALID else more])
