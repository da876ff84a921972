"""Keras 3: `PackedPyDataset`, a `keras.utils.PyDataset` of this rank's batches for any backend.

    from dlio.images import RandomResizedCrop
    from dlio.loaders.keras import PackedPyDataset

    train = PackedPyDataset("packed", 256, transform=RandomResizedCrop(224, flip=True), shuffle=True, workers=8)
    model.fit(train, epochs=90, shuffle=False)  # uint8 (256, 224, 224, 3), int64 (256,); each epoch in another order

With the backends torch and tensorflow, `fit` also takes `dlio.loaders.torch.DataLoader` and
`dlio.loaders.tensorflow.dataset`, which keep all cores busy with one batch; here each worker makes a whole one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dlio.errors import missing_package

try:
    import keras
except ModuleNotFoundError as error:
    raise missing_package("keras", "tensorflow", "dlio.loaders.keras") from error

import numpy as np

from dlio.dataset.manifest import Manifest
from dlio.images import Transform
from dlio.loaders._prefetch.batch_sources import ArrayBatches
from dlio.loaders.batches import paired, with_bytes
from dlio.loaders.dataset import VALID, PackedSamples
from dlio.loaders.loader import Loader
from dlio.loaders.sampling.order import Shuffle
from dlio.loaders.sampling.rank import place_from_env
from dlio.loaders.sampling.rank_share import End


class PackedPyDataset(keras.utils.PyDataset):  # type: ignore[misc]
    """The batches of one rank by number, in the order that dlio's loaders share.

    A batch is (image, label), or (image, label, weights) where the epoch ends by masking, else a dict of all fields.
    Images are uint8, with channels where `keras.config.image_data_format()` has them.

    Safe for several threads within an epoch. Picklable, and safe across fork.
    """

    def __init__(
        self,
        data: str | Path | Manifest,
        batch_size: int,
        *,
        transform: Transform | None = None,
        shuffle: Shuffle = False,
        seed: int = 0,
        end: End | str = End.PAD,
        place: Callable[[], tuple[int, int]] = place_from_env,
        max_skipped: int = 0,
        workers: int = 1,
        max_queue_size: int = 10,
    ) -> None:
        """Opens a data set; shards are opened when they are needed.

        Args:
            data: the folder that holds `manifest.jsonl`, or a manifest.
            batch_size: samples of this rank's batch.
            transform: what to make of the field `image`.
            shuffle: False, True or `Window(w)`; give `fit` shuffle=False, or it mixes the batches once more.
            seed: of order and transform, the same on every rank.
            end: see `dlio.loaders.sampling.rank_share`; `mask` gives samples that were repeated the weight 0.
            place: tells rank and world size; asked for each batch.
            max_skipped: how many damaged samples are replaced by others of their batch before one is an error.
            workers, max_queue_size: as PyDataset; the workers are threads.

        Raises:
            ManifestError: there is no data set.
            UsageError: a number out of its range, or a transform and no image.
        """
        super().__init__(workers=workers, max_queue_size=max_queue_size)
        self._asked: set[int] = set()
        samples = PackedSamples(data, transform, max_skipped=max_skipped)
        channels_last = keras.config.image_data_format() == "channels_last"
        self._source = ArrayBatches(samples, channels_last=channels_last, mask=End(end) is End.MASK)
        self._loader = Loader(
            self._source, batch_size, shuffle=shuffle, seed=seed, end=End(end), place=place, num_threads=0
        )

    def __len__(self) -> int:
        """Returns the number of batches of an epoch, the same on every rank."""
        return len(self._loader)

    def __getitem__(self, index: int) -> Any:
        """Returns a batch of the epoch that runs.

        Raises:
            IndexError: there is no such batch.
            CorruptRecordError, StorageError: a record or its image cannot be read; names it.
        """
        self._asked.add(index)
        work = self._source.work(self._loader.steps(self.epoch)[index], self._loader.key(self.epoch))
        batch = work.finish()  # in this thread, one of Keras's
        if self._source.mask:
            batch[VALID] = batch[VALID].astype(np.float32)
        return paired(with_bytes(batch), self._source.samples.schema)

    @property
    def epoch(self) -> int:
        """The epoch that runs."""
        return self._loader.next_epoch

    def on_epoch_end(self) -> None:
        """Goes on to the next epoch, unless Keras has only looked at the first batches to build the model."""
        if len(self._asked) == len(self):
            self.set_epoch(self.epoch + 1)
            self._asked.clear()

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the one that runs, where training goes on that was stopped: `fit(initial_epoch=...)`."""
        self._loader.set_epoch(epoch)

    def close(self) -> None:
        """Closes all files; they are opened again when needed."""
        self._loader.close()
