"""Measures what LUMI's AI guide measures, in its form: seconds of one pass of a DataLoader over images in each format.

    pip install scikit-learn scikit-image torchvision
    python -m benchmarks lumi_guide --data /tmp/bench [--tiny 100000] [--large 200000] [--rounds 3] --json

The guide (github.com/Lumi-supercomputer/LUMI-AI-Guide, 03-file-formats) loops once over the 100,000 images of Tiny
ImageNet and over 200,000 of ImageNet, by `DataLoader(data, batch_size=32, shuffle=True, num_workers=7)`: ImageFolder
on a mounted SquashFS image, HDF5 (only images of one size), and LMDB. ImageNet's are resized to 256, cropped to 224 and
normalised. Here are the same three ways and transforms, dlio, and dlio on the very SquashFS image; all give float32.
The images are made: JPEGs of 64 x 64, and photographs of about 92 KB. Each pass is its own process, the ways take
turns. The guide's nodes were fresh; here the files are in memory, unless they do not fit. CPU seconds are those of all
processes, that of the mount included.
"""

from __future__ import annotations

import argparse
import io
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[1]
BATCH_SIZE, WORKERS, CLASSES = 32, 7, 200
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NUM_DIFFERENT = 600


def make_images(folder: Path, kind: str, count: int) -> Path:
    """Returns a folder with so many JPEGs in class folders; no two files are equal."""
    root = folder / f"{kind}-{count}"
    if (root / "complete").exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    from images import find_photos
    from images import make_images as photographs

    found = photographs(find_photos(), NUM_DIFFERENT)
    encoded = found if kind == "large" else [_shrunk(data) for data in found]
    for number in range(count):
        path = root / "photos" / f"class{number % CLASSES:03}" / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        data = encoded[number % len(encoded)]
        path.write_bytes(data[:2] + b"\xff\xfe\x00\x0a%08d" % number + data[2:])
    (root / "complete").touch()
    return root


def _shrunk(data: bytes) -> bytes:
    out = io.BytesIO()
    Image.open(io.BytesIO(data)).resize((64, 64)).save(out, "JPEG", quality=90)
    return out.getvalue()


def listed(root: Path) -> list[tuple[Path, int]]:
    """Returns all images with their class, in ImageFolder's order."""
    return [(path, int(path.parent.name[-3:])) for path in sorted((root / "photos").rglob("*.jpg"))]


def prepare(root: Path, kind: str) -> None:
    """Writes the images in each format, where that is not done."""
    for name, write in {"squashfs": _squashfs, "lmdb": _lmdb, "dlio": _dlio, "hdf5": _hdf5}.items():
        if (name == "hdf5" and kind == "large") or (root / name / "complete").exists():
            continue
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir()
        write(root)
        (root / name / "complete").touch()


def _squashfs(root: Path) -> None:
    image = root / "squashfs/image/photos.sqsh"
    image.parent.mkdir()
    subprocess.run(["mksquashfs", root / "photos", image, "-quiet", "-no-progress"], check=True)
    words = [sys.executable, "-m", "dlio", "index", image.parent, "--format", "squashfs", "--quiet"]
    subprocess.run(words, check=True)


def _lmdb(root: Path) -> None:
    import lmdb

    with lmdb.open(str(root / "lmdb/photos"), map_size=1 << 40) as database, database.begin(write=True) as put:
        for number, (path, label) in enumerate(listed(root)):
            put.put(b"%08d" % number, label.to_bytes(2, "big") + path.read_bytes(), append=True)


def _hdf5(root: Path) -> None:
    import h5py

    found = listed(root)
    with h5py.File(root / "hdf5/photos.h5", "w") as file:
        images = file.create_dataset("images", (len(found), 64, 64, 3), "uint8")
        file["labels"] = [label for _, label in found]
        for number, (path, _) in enumerate(found):
            images[number] = np.asarray(Image.open(path).convert("RGB"))


def _dlio(root: Path) -> None:
    words = [sys.executable, "-m", "dlio", "pack", root / "photos", root / "dlio/packed", "--quiet"]
    subprocess.run(words, check=True)


class Stored:
    """A map-style data set over LMDB or HDF5, opened in the process that uses it."""

    def __init__(self, path: Path, count: int, transform: Callable[[Any], Any]) -> None:
        self.path, self.count, self.transform = path, count, transform
        self.opened: Any = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Returns an image, transformed, and its label."""
        if self.opened is None:
            self.opened = self._open()
        if self.path.suffix == ".h5":
            images, labels = self.opened
            return self.transform(Image.fromarray(images[index])), int(labels[index])
        record = self.opened.get(b"%08d" % index)
        return self.transform(Image.open(io.BytesIO(record[2:])).convert("RGB")), int.from_bytes(record[:2], "big")

    def _open(self) -> Any:
        if self.path.suffix == ".h5":
            import h5py

            file = h5py.File(self.path)
            return file["images"], file["labels"]
        import lmdb

        return lmdb.open(str(self.path), readonly=True, lock=False, readahead=False).begin(buffers=True)


def loader(way: str, root: Path, kind: str) -> Any:
    """Returns what yields batches of float32 images and labels."""
    if way.startswith("dlio"):
        from dlio.images import CenterCrop, Normalize, Resize
        from dlio.loaders.torch import DataLoader, PackedDataset

        transform = CenterCrop(224) if kind == "large" else Resize(64)
        path = root / ("dlio/packed" if way == "dlio" else "squashfs/image")
        normalize = Normalize(mean=MEAN, std=STD)
        dataset = PackedDataset(path, transform)
        batches = DataLoader(dataset, BATCH_SIZE, shuffle=True, num_workers=WORKERS)
        return ((normalize(images), labels) for images, labels in batches)
    import torch

    if not torch.version.cuda:
        from benchmarks.loaders import torchvision_on_cpu  # noqa: F401
    from torch.utils import data
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    crop = [transforms.Resize(256), transforms.CenterCrop(224)] if kind == "large" else []
    transform = transforms.Compose([*crop, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    count = len(listed(root)) if way != "SquashFS" else 0
    made: Any = {
        "SquashFS": lambda: ImageFolder(root / "mount", transform),
        "LMDB": lambda: Stored(root / "lmdb/photos", count, transform),
        "HDF5": lambda: Stored(root / "hdf5/photos.h5", count, transform),
    }[way]()
    return data.DataLoader(made, BATCH_SIZE, shuffle=True, num_workers=WORKERS)


def one_pass(way: str, root: Path, kind: str) -> None:
    """Prints the seconds of a pass and of the processor, and the images."""
    batches, began, count = loader(way, root, kind), time.perf_counter(), 0
    for images, labels in batches:
        assert str(images.dtype) == "torch.float32" and len(images) == len(labels)
        count += len(images)
    print(time.perf_counter() - began, count)


def measured(way: str, root: Path, kind: str) -> tuple[float, float]:
    """Returns the seconds, and CPU seconds, of a pass in its own process."""
    from squashfs import cpu_of, squashfuse

    with ExitStack() as mounts:
        pid = 0
        if way == "SquashFS":
            pid = mounts.enter_context(squashfuse(root / "squashfs/image/photos.sqsh", root / "mount"))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        words = [sys.executable, "-W", "ignore", __file__, "--pass", way, kind, "--data", root]
        told = subprocess.run(words, capture_output=True, text=True, check=False)
        if told.returncode:
            raise SystemExit(told.stderr)
        after, served = resource.getrusage(resource.RUSAGE_CHILDREN), cpu_of(pid) if pid else 0.0
    seconds, count = told.stdout.split()[-2:]
    if int(count) != len(listed(root)):
        raise SystemExit(f"{way} gave {count} images of {len(listed(root))}")
    return float(seconds), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime + served


def table(root: Path, kind: str, rounds: int) -> None:
    """Prints the guide's table of one set, with dlio's rows."""
    ways = ["SquashFS", *(["HDF5"] if kind == "tiny" else []), "LMDB", "dlio", "dlio, the same SquashFS image"]
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            taken[way].append(measured(way, root, kind))
    title = "JPEGs of 64 x 64" if kind == "tiny" else "JPEGs of 92 KB, resized to 256, cropped to 224"
    print(f"\n## {len(listed(root)):,} {title}; batches of {BATCH_SIZE}, {WORKERS} workers\n")
    print("| | mean (s) | std (s) | N | CPU (s) | x dlio |\n|---|---|---|---|---|---|")
    best = statistics.mean(seconds for seconds, _ in taken["dlio"])
    for way, found in taken.items():
        seconds, cpu = [each for each, _ in found], statistics.mean(each for _, each in found)
        spread, mean = statistics.stdev(seconds) if rounds > 1 else 0, statistics.mean(seconds)
        print(f"| {way} | {mean:.2f} | {spread:.2f} | {rounds} | {cpu:.1f} | {mean / best:.2f} |", flush=True)


def main() -> None:
    """Makes the sets and prints both tables; with --pass one pass."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, default=Path("/tmp/bench"))
    options.add_argument("--tiny", type=int, default=100_000, help="images; 0 for none")
    options.add_argument("--large", type=int, default=200_000, help="images, 92 KB each in four copies; 0 for none")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--pass", dest="one", nargs=2, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.one:
        sys.path.insert(0, str(ROOT))
        one_pass(args.one[0], args.data, args.one[1])
        return
    for kind, count in {"tiny": args.tiny, "large": args.large}.items():
        if count:
            root = make_images(args.data, kind, count)
            prepare(root, kind)
            table(root, kind, args.rounds)


if __name__ == "__main__":
    main()
