"""Sources of samples for `dlio.pack`: a function for each kind of input, and `open_source`, which tells the kind."""

from __future__ import annotations

from dlio.pack.sources import names, open_source
from dlio.pack.sources.archive import archive
from dlio.pack.sources.caffe_list import caffe_list
from dlio.pack.sources.chestxray14 import chestxray14
from dlio.pack.sources.cifar10 import cifar10
from dlio.pack.sources.csv import csv_file
from dlio.pack.sources.frames import frames
from dlio.pack.sources.imagefolder import image_folder
from dlio.pack.sources.lst import lst_file
from dlio.pack.sources.packed import packed

__all__ = [
    "archive",
    "caffe_list",
    "chestxray14",
    "cifar10",
    "csv_file",
    "frames",
    "image_folder",
    "lst_file",
    "names",
    "open_source",
    "packed",
]
