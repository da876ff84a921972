"""The types of samples and batches, as docs/loaders.md has them."""

from __future__ import annotations

import numpy as np
from PIL import Image

from dlio.dataset.schema import Sample, Schema
from dlio.images import CenterCrop
from dlio.targets import WithTargets
from tests.helpers.images import image
from tests.helpers.lazy import Lazy
from tests.loaders.packing import pack_samples

torch = Lazy("torch")
DataLoader = Lazy("dlio.loaders.torch", "DataLoader")
PackedDataset = Lazy("dlio.loaders.torch", "PackedDataset")


def test_items_and_batches_have_the_types_that_are_documented(tmp_path):
    fields = {"image": "bytes", "label": "int64", "box": "float32[4]", "points": "int16[?]", "text": "str"}
    value = {"image": image(0), "box": np.ones(4, "float32"), "points": np.arange(3, dtype="int16"), "text": "x"}
    samples = [Sample(str(n), value | {"label": n}) for n in range(4)]
    packed = pack_samples(tmp_path / "packed", Schema.of(fields), samples, num_shards=1)
    plain, cropped = PackedDataset(packed), PackedDataset(packed, WithTargets(CenterCrop(8), plain=("box", "points")))
    item = plain[0]
    assert isinstance(item["image"], Image.Image) and item["image"].mode == "RGB"
    assert (type(item["label"]), type(item["text"]), item["box"].dtype) == (int, str, torch.float32)
    assert cropped[0]["image"].shape == (3, 8, 8) and cropped[0]["points"].dtype == torch.int16
    batch = next(iter(DataLoader(cropped, batch_size=4, end="mask")))
    shapes = {name: (tuple(column.shape), column.dtype) for name, column in batch.items() if torch.is_tensor(column)}
    assert shapes["image"] == ((4, 3, 8, 8), torch.uint8) and shapes["label"] == ((4,), torch.int64)
    assert shapes["box"] == ((4, 4), torch.float32) and shapes["valid"] == ((4,), torch.bool)
    assert [type(batch[name]) for name in ("points", "text")] == [list, list]
    plain.packed.close()
    cropped.packed.close()
