"""PyTorch: `PackedDataset`, a map-style dataset for any DataLoader, and `DataLoader`, whose workers are threads.

    from dlio.images import Normalize, RandomResizedCrop
    from dlio.loaders.torch import DataLoader, PackedDataset

    train = PackedDataset("packed", transform=RandomResizedCrop(224, flip=True))
    loader = DataLoader(train, batch_size=256, shuffle=True, num_workers=8, drop_last=True, seed=0, device="cuda")
    normalize = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    for epoch in range(90):
        for images, labels in loader:       # uint8 (256, 3, 224, 224), int64 (256,), on the GPU
            images = normalize(images)      # float32

The same code runs in a job of several ranks: each rank gets its share of every global batch, as many batches as every
other rank, and each pass over the loader is the next epoch. `batch_size` is that of one rank. Torch's own DataLoader
takes a PackedDataset, too, with a DistributedSampler.

Trainers take both. Lightning keeps dlio's order, recreates the loader if needed, and saves its state in checkpoints;
`predict` covers each sample once with `end="mask"`. Accelerate does not shard the loader again: after `prepare` it
yields batches on the process's device, and `save_state` saves its state. The Trainer of transformers makes its own
DataLoader of a PackedDataset, or takes dlio's from `get_train_dataloader`.
"""

from __future__ import annotations

from dlio.errors import missing_package

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise missing_package("torch", "torch", "dlio.loaders.torch") from error

from dlio.loaders.mixture import Mixture
from dlio.loaders.sampling.order import Window
from dlio.loaders.sampling.rank_share import End
from dlio.loaders.torch.dataset import Batch, Item, PackedDataset
from dlio.loaders.torch.loader import DataLoader

__all__ = ["Batch", "DataLoader", "End", "Item", "Mixture", "PackedDataset", "Window"]
