"""Sources of samples for `dlio.pack`: one function for each kind, and `open_source`, which recognises the kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlio.pack.sources import load, names
from dlio.pack.sources import open_source as open_source

if TYPE_CHECKING:  # type checkers need the functions by name; when dlio runs, `__getattr__` finds them
    from dlio.pack.sources.archive import archive as archive
    from dlio.pack.sources.arrow import arrow as arrow
    from dlio.pack.sources.caffe_list import caffe_list as caffe_list
    from dlio.pack.sources.chestxray14 import chestxray14 as chestxray14
    from dlio.pack.sources.cifar10 import cifar10 as cifar10
    from dlio.pack.sources.csv import csv_file as csv_file
    from dlio.pack.sources.frames import frames as frames
    from dlio.pack.sources.imagefolder import image_folder as image_folder
    from dlio.pack.sources.images import images as images
    from dlio.pack.sources.lmdb import lmdb_images as lmdb_images
    from dlio.pack.sources.lst import lst_file as lst_file
    from dlio.pack.sources.npz import npz as npz
    from dlio.pack.sources.objects.coco import coco as coco
    from dlio.pack.sources.objects.masks import masks as masks
    from dlio.pack.sources.objects.voc import voc as voc
    from dlio.pack.sources.objects.yolo import yolo as yolo
    from dlio.pack.sources.packed import packed as packed
    from dlio.pack.sources.parquet import parquet as parquet
    from dlio.pack.sources.shards import shards as shards


def __getattr__(name: str) -> Any:
    """Returns the function of a source; all sources are imported when the first function is used."""
    if name == "__all__":
        return ["names", "open_source", *_functions()]
    if not name.startswith("__"):
        globals().update(_functions())
    if name in globals():
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Returns the names that completion offers."""
    return sorted({*globals(), "__all__", *_functions()})


def _functions() -> dict[str, Any]:
    """Returns the function of each source: by its own name or, if that is `open_source`, by its module's."""
    functions = {name.replace("-", "_"): load(name).open_source for name in names()}
    return {name if own.__name__ == "open_source" else own.__name__: own for name, own in functions.items()}
