"""Writes MDS by MosaicML Streaming and reads it again, and what dlio has read of it: `streaming_job.py FOLDER`.

FOLDER/written is the writer's; FOLDER/packed, a data set of dlio made from it, is written as MDS once more, to
FOLDER/again. Prints what StreamingDataset reads of both.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import benchmarks.loaders.torchvision_on_cpu  # noqa: F401
from dlio.io.files import digest_bytes
from dlio.loaders.dataset import PackedSamples
from tests.helpers.images import image

# isort: split
from streaming import MDSWriter, StreamingDataset  # imports torchvision, and so comes after it

NUM_SAMPLES = 40
COLUMNS = {
    "image": "jpeg",
    "label": "int",
    "note": "str",
    "raw": "bytes",
    "meta": "json",
    "score": "float32",
    "count": "uint16",
    "digits": "str_int",
    "box": "ndarray:int16:2,2",
    "points": "ndarray:float32",
    "any": "ndarray",
}


def sample(number: int) -> dict[str, Any]:
    """Returns a sample with every encoding that dlio reads."""
    return {
        "image": image(number, "JPEG"),
        "label": number % 3,
        "note": f"é{number}",
        "raw": bytes([number]) * number,
        "meta": {"n": number},
        "score": np.float32(number / 8),
        "count": np.uint16(number),
        "digits": number,
        "box": np.full((2, 2), number, np.int16),
        "points": np.full((number % 4 + 1, 3), number, np.float32),
        "any": np.full((1, number % 5 + 1), number, np.int64),
    }


def shown(value: Any) -> Any:
    """Returns a value as JSON has it; of an image, its pixels."""
    if isinstance(value, Image.Image):
        value = value.tobytes()
    if isinstance(value, bytes):
        return digest_bytes(value)
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def read(folder: Path) -> list[dict[str, Any]]:
    """Returns the samples that StreamingDataset reads, in order."""
    dataset = StreamingDataset(local=str(folder), shuffle=False, batch_size=1)
    return [{name: shown(value) for name, value in dataset[number].items()} for number in range(len(dataset))]


def main() -> None:
    """Writes, or writes again."""
    folder = Path(sys.argv[1])
    if not (folder / "written").exists():
        with MDSWriter(out=str(folder / "written"), columns=COLUMNS, size_limit=1 << 14) as writer:
            for number in range(NUM_SAMPLES):
                writer.write(sample(number))
        sys.stdout.write(json.dumps(read(folder / "written")) + "\n")
        return
    with MDSWriter(out=str(folder / "again"), columns=COLUMNS, size_limit=1 << 16) as writer:
        samples = PackedSamples(folder / "packed")
        for found in samples.read(range(len(samples))):
            fields = {name: found.fields[name] for name in COLUMNS}
            fields["label"], fields["digits"] = int(fields["label"]), int(fields["digits"])
            fields["image"], fields["raw"] = bytes(fields["image"]), bytes(fields["raw"])
            writer.write(fields | {"meta": json.loads(fields["meta"])})
    sys.stdout.write(json.dumps(read(folder / "again")) + "\n")


if __name__ == "__main__":
    main()
