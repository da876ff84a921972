"""TensorFlow: `dataset`, a `tf.data.Dataset` of this rank's batches.

    from dlio.images import RandomResizedCrop
    from dlio.loaders.tensorflow import dataset

    train = dataset("packed", batch_size=256, transform=RandomResizedCrop(224, flip=True), shuffle=True, seed=0)
    model.fit(train, epochs=90, shuffle=False)  # uint8 (256, 224, 224, 3), int64 (256,); each pass is the next epoch

The batches and their order are those of `dlio.loaders.torch.DataLoader`, with channels last. Threads of dlio decode
them. TensorFlow uses the memory of a batch directly: numbers and images are not copied, strings are.
Auto-sharding is off, since each rank gets its own part, as many batches as every other. Under a strategy:

    strategy.distribute_datasets_from_function(lambda context: dataset(
        "packed", context.get_per_replica_batch_size(256),
        rank=context.input_pipeline_id, world_size=context.num_input_pipelines))

`model.fit` and `experimental_distribute_dataset` take `dataset(...)` itself, and divide each batch among all replicas
of the strategy; then `batch_size` is that of all replicas together. Horovod's ranks are known from its variables.

`tf.train.Checkpoint` cannot save an iterator over Python code. The state of a run is five scalars instead. TensorFlow
may take batches ahead of their use, so the training loop counts the batches that it has used:

    state = json.dumps(train.state_after(epoch, steps))    # after `steps` batches of the pass of that epoch
    train = dataset("packed", batch_size=256, ..., state=json.loads(state))    # the first pass resumes there

A state fits any number of ranks, any batch size, and every other loader of dlio.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Unpack

from dlio.errors import SchemaError, missing_package

try:
    import tensorflow as tf
except ModuleNotFoundError as error:
    raise missing_package("tensorflow", "tensorflow", "dlio.loaders.tensorflow") from error

import numpy as np

from dlio.dataset.schema import Field
from dlio.loaders.batches import paired, with_bytes
from dlio.loaders.dataset import VALID, Batch, PackedSamples
from dlio.loaders.loader import Loader
from dlio.loaders.mixture import Data
from dlio.loaders.options import Keywords, forwarded, takes_options
from dlio.loaders.sampling.rank_share import End
from dlio.loaders.sampling.state import State

_HELD = 3  # batches that TensorFlow may hold besides those of the loader


class PackedBatches(tf.data.Dataset):  # type: ignore[misc]
    """A `tf.data.Dataset` that knows the state of its run; made by `dataset`."""

    def __init__(self, batches: tf.data.Dataset, loader: Loader[Batch]) -> None:
        """Takes the batches that `loader` makes."""
        self._batches = batches
        self._loader = loader
        super().__init__(batches._variant_tensor)

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._batches]

    @property
    def element_spec(self) -> tf.TypeSpec:
        """The types and shapes of an element."""
        return self._batches.element_spec

    def state_after(self, epoch: int, steps: int) -> State:
        """Returns the state after `steps` batches of the pass of `epoch`: five scalars, the same on every rank.

        Raises:
            UsageError: `steps` is not a number of batches of this pass.
        """
        return self._loader.state_after(epoch, steps)

    stats = forwarded(Loader.stats)
    verdict = forwarded(Loader.verdict)
    close = forwarded(Loader.close)


@takes_options()
def dataset(
    data: Data,
    batch_size: int,
    *,
    epoch: int = 0,
    state: Mapping[str, object] | None = None,
    **keywords: Unpack[Keywords],
) -> PackedBatches:
    """Returns this rank's batches; iterating again gives the next epoch.

    An element is (image, label) if the fields are these two, else a dict of all fields. Images are uint8
    (n, height, width, 3) with a transform, else encoded, as strings. Labels are class indices (without the label
    offset) or vectors. Lists of varying length are ragged, and so are boxes; masks are int32 (n, height, width).
    `end="mask"` adds sample weights to each element, as Keras expects them: float32 (n,), 0 for repeated samples.

    Args:
        data: the folder or URL that holds `manifest.jsonl`, a manifest, or a `Mixture` of these.
        batch_size: samples of this rank's batch.
        epoch: the first epoch, to resume a run; also `fit(..., initial_epoch=...)`.
        state: the result of `state_after`, or of `state_dict` of another loader; overrides `epoch`. The first pass
            resumes there. If it has only the rest of an epoch, the cardinality is unknown, and Keras' `fit` takes its
            length for that of every epoch: fit it alone, and then a new data set from the next `epoch` on.
        **keywords: see `dlio.loaders.options.Options`.

    Raises:
        ManifestError: the folder holds no data set.
        UsageError: the numbers do not divide evenly, a value is out of range or of a wrong type, a transform is given
            without a field `image`, or the state is of another data set, order or seed.
        SchemaError: a field whose shape varies in more than one dimension.
        LauncherError: the launcher's variables contradict each other.
    """
    loader = Loader(data, batch_size, **keywords)
    samples = loader.source.samples
    samples.keep_memory(loader.prefetch + _HELD, batch_size)
    loader.set_epoch(epoch)
    loader.load_state_dict(state or {})
    batches = _batches(loader, samples)
    if not loader.reached.consumed:
        batches = batches.apply(tf.data.experimental.assert_cardinality(len(loader)))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return PackedBatches(batches.with_options(options), loader)


def _batches(loader: Loader[Batch], samples: PackedSamples) -> tf.data.Dataset:
    size = loader.batch_size if loader.end is End.DROP else None
    spec = {name: _spec(name, kind, size) for name, kind in samples.made.items()}
    if loader.end is End.MASK:
        spec[VALID] = tf.TensorSpec((size,), tf.float32)
    ragged = [name for name, kind in samples.made.items() if None in kind.shape]

    def generate() -> Iterator[Any]:
        for batch in loader:
            batch = with_bytes(batch)
            found = batch | {name: _flat(batch[name], spec[name][0]) for name in ragged}
            yield found if ragged else paired(found, samples.schema)

    def joined(batch: Any) -> Any:
        rows = {name: tf.RaggedTensor.from_row_lengths(*batch[name], validate=False) for name in ragged}
        return paired(batch | rows, samples.schema)

    signature = spec if ragged else paired(spec, samples.schema)
    batches = tf.data.Dataset.from_generator(generate, output_signature=signature)
    return batches.map(joined) if ragged else batches


def _spec(name: str, kind: Field, size: int | None) -> Any:
    """Returns the specification of a field's tensor; of a ragged one, those of its values and row lengths."""
    dtype = tf.as_dtype(kind.dtype) if kind.is_number else tf.string
    if None not in kind.shape:
        return tf.TensorSpec((size, *kind.shape), dtype)
    if None not in kind.shape[1:]:
        return tf.TensorSpec((None, *kind.shape[1:]), dtype), tf.TensorSpec((size,), tf.int64)
    raise SchemaError(f"the field {name!r} of type {kind} cannot form a batch in TensorFlow: pack it with one shape")


def _flat(rows: list[Any], values: tf.TensorSpec) -> tuple[Any, list[int]]:
    """Returns the values of all rows one after another, and the length of each row."""
    flat = np.array(list(chain.from_iterable(rows)), values.dtype.as_numpy_dtype)
    return flat.reshape(-1, *values.shape[1:]), list(map(len, rows))
