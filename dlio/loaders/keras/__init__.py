"""Keras 3: `PackedPyDataset`, a `keras.utils.PyDataset` of this rank's batches for any backend.

    from dlio.images import RandomResizedCrop, Resize
    from dlio.loaders.keras import BackupAndResume, PackedPyDataset

    train = PackedPyDataset("packed/train", 256, transform=RandomResizedCrop(224, flip=True), shuffle=True)
    val = PackedPyDataset("packed/val", 256, transform=Resize(224))
    resume = BackupAndResume(train, "backup", save_freq=1000)
    model.fit(train, epochs=90, shuffle=False, validation_data=val, callbacks=[resume])  # uint8 (256, 224, 224, 3)

Each epoch has another order. Threads of dlio make batches ahead of use, all threads one batch. With the backends torch
and tensorflow, `fit` also takes `dlio.loaders.torch.DataLoader` and `dlio.loaders.tensorflow.dataset`.
"""

from __future__ import annotations

from dlio.errors import missing_package

try:
    import keras as _keras  # noqa: F401
except ModuleNotFoundError as error:
    raise missing_package("keras", "tensorflow", "dlio.loaders.keras") from error

from dlio.loaders.keras.backup import BackupAndResume
from dlio.loaders.keras.dataset import PackedPyDataset

__all__ = ["BackupAndResume", "PackedPyDataset"]
