"""Parquet files and saved data sets as Hugging Face's `datasets` writes them: old layouts and new ones."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from tests.helpers.images import image

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402  where it is installed

JPEGS = [image(number, "JPEG") for number in range(9)]
MEDIA = pa.struct({"bytes": pa.binary(), "path": pa.string()})
FEATURES = {
    "image": {"_type": "Image"},
    "label": {"names": ["cat", "dog", "owl"], "_type": "ClassLabel"},
    "caption": {"dtype": "string", "_type": "Value"},
    "depth": {"_type": "Image"},
    "objects": {"box": {"feature": {"feature": {"dtype": "float32", "_type": "Value"}, "length": 4, "_type": "List"}}},
    "tags": {"feature": {"dtype": "string", "_type": "Value"}, "_type": "List"},
}
TYPES = {"image": "bytes", "label": "int64", "caption": "str", "depth": "bytes", "objects_box": "float32[?,4]"}
TYPES |= {"tags": "str[]"}


def hugging_face():
    """Returns the package datasets, without the threads of its progress bars; skips the test if it is missing."""
    datasets = pytest.importorskip("datasets", minversion="4.6")
    datasets.disable_progress_bars()
    importlib.import_module("tqdm").tqdm.monitor_interval = 0
    return datasets


def table(start: int, stop: int, names: tuple[str, ...] = tuple(FEATURES)) -> pa.Table:
    """Returns rows with two images, a label, a text and lists, as `datasets` lays them out."""
    rows = range(start, stop)
    columns = {
        "image": pa.array([{"bytes": JPEGS[n], "path": f"{n}.jpg"} for n in rows], MEDIA),
        "label": pa.array([n % 3 for n in rows], pa.int64()),
        "caption": pa.array([f"é{n}" for n in rows]),
        "depth": pa.array([{"bytes": JPEGS[-1 - n], "path": None} for n in rows], MEDIA),
        "objects": pa.array(
            [{"box": [[0, 0, n, n]] * (n % 3)} for n in rows],
            pa.struct({"box": pa.list_(pa.list_(pa.float32(), 4))}),
        ),
        "tags": pa.array([["x", "yé"][: n % 3] for n in rows], pa.list_(pa.string())),
    }
    info = {"info": {"features": {name: FEATURES[name] for name in names}}}
    found = pa.table({name: columns[name] for name in names})
    return found.replace_schema_metadata({"huggingface": json.dumps(info)})


def fields(number: int) -> dict:
    """Returns the fields of row `number`, as lists."""
    boxes = [[0, 0, number, number]] * (number % 3)
    found = {"image": JPEGS[number], "label": number % 3, "caption": f"é{number}", "depth": JPEGS[-1 - number]}
    return found | {"objects_box": boxes, "tags": ["x", "yé"][: number % 3]}


def write_new(path: Path, rows: pa.Table, **options: object) -> Path:
    """Writes images plain, without compression or dictionary, as datasets 4.6 and later do."""
    plain = [f"{name}.{leaf}" for name in ("image", "depth") for leaf in ("bytes", "path")]
    leaves = [column for column in _leaves(rows) if column not in plain]
    codecs = {**dict.fromkeys(leaves, "snappy"), **dict.fromkeys(plain, "none")}
    settings = {"compression": codecs, "use_dictionary": leaves, "write_page_index": True, "row_group_size": 3}
    pq.write_table(rows, path, **settings | options)
    return path


def _leaves(rows: pa.Table) -> list[str]:
    sink = pa.BufferOutputStream()
    pq.write_table(rows.slice(0, 0), sink)
    found = pq.ParquetFile(pa.BufferReader(sink.getvalue())).metadata.schema
    return [found.column(number).path for number in range(len(found))]


def write_old(path: Path, rows: pa.Table) -> Path:
    """Writes as earlier versions do: snappy, dictionaries, 100 rows a group; here 4."""
    pq.write_table(rows, path, compression="snappy", row_group_size=4)
    return path


def write_saved(folder: Path, *parts: pa.Table) -> Path:
    """Writes what `save_to_disk` does: Arrow streams, and their names in `state.json`."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05d}-of-{len(parts):05d}.arrow" for number in range(len(parts))]
    for name, rows in zip(names, parts, strict=True):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=2)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return folder
