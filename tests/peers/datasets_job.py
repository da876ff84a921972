"""Reads dlio's tars by the builder of `datasets`, and writes Parquet for dlio by it: `datasets_job.py FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import datasets

from dlio.io.files import digest_bytes

folder = Path(sys.argv[1])
tars = sorted(map(str, (folder / "packed").glob("*.tar")))
told = {}
for streaming in (False, True):
    found = datasets.load_dataset("webdataset", data_files={"train": tars}, split="train", streaming=streaming)
    found = found.cast_column("png", datasets.Image(decode=False))
    told["streamed" if streaming else "loaded"] = [
        [row["__key__"], row["cls"], digest_bytes(row["png"]["bytes"])] for row in found
    ]
labels = datasets.ClassLabel(names=["cat", "dog"])
photos = sorted((folder / "photos").rglob("*.png"))
made = datasets.Dataset.from_dict(
    {
        "image": [
            {"bytes": path.read_bytes(), "path": path.name} for path in sorted((folder / "photos").rglob("*.png"))
        ],
        "label": [int(path.parent.name == "dog") for path in photos],
    },
    features=datasets.Features({"image": datasets.Image(decode=False), "label": labels}),
)
made.save_to_disk(folder / "saved", num_shards=2)
(folder / "parquet").mkdir()
made.to_parquet(folder / "parquet/part-0.parquet")
again = datasets.load_dataset("parquet", data_files=str(folder / "parquet/part-0.parquet"), split="train")
told["parquet"] = [
    [digest_bytes(row["image"]["bytes"]), row["label"]]
    for row in again.cast_column("image", datasets.Image(decode=False))
]
sys.stdout.write(json.dumps(told) + "\n")
