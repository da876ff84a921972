"""CPU time of decoding JPEGs and resizing them to 800 x 800, by dlio and by peers, in one thread.

    .venv/bin/python -m benchmarks resized /tmp/mlperf/retinanet/train --json

No loader is around the peers. Takes the first 96 files of a folder, in batches of 24; medians of three rounds in turns,
after one that is not counted. Of DALI the threads count, which work ahead, during other ways' turns too: so the time of
these is that of their one thread.
Peers that are not installed are left out: `benchmarks/loaders/peers.txt`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

from dlio.images import Resize
from dlio.loaders import batches
from dlio.loaders.dataset import PackedSamples

COUNT, BATCH, ROUNDS = 96, 24, 3
DALI = "DALI (CPU), not antialiased"
Pass = Callable[[], object]


def dlio_pass(files: list[Path], folder: Path, pixels: int, *words: str) -> Pass:
    """Returns a pass of dlio over the files, packed as the words say."""
    (folder / "files").mkdir(parents=True)
    for path in files:
        (folder / "files" / path.name).symlink_to(path.resolve())
    command = [sys.executable, "-m", "dlio", "pack", folder / "files", folder / "packed", "--quiet", *words]
    subprocess.run([*map(str, command)], check=True)
    samples = PackedSamples(folder / "packed", transform=Resize(pixels))
    order = np.arange(len(files))
    return lambda: [batches.make(samples, order[at : at + BATCH], 0) for at in range(0, len(files), BATCH)]


def one_by_one(files: list[Path], pixels: int, decode: Callable[[bytes], Any]) -> Pass:
    """Returns a pass that decodes each file into its row of a batch."""

    def run() -> None:
        for at in range(0, len(files), BATCH):
            out = np.empty((BATCH, pixels, pixels, 3), np.uint8)
            for row, path in enumerate(files[at : at + BATCH]):
                out[row] = decode(path.read_bytes())

    return run


def dali_pass(files: list[Path], pixels: int) -> Pass:
    """Returns a pass of DALI on the CPU."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH, num_threads=1, device_id=None)
    def pipeline() -> Any:
        encoded, _ = fn.readers.file(files=[*map(str, files)], dont_use_mmap=True)
        images = fn.decoders.image(encoded, output_type=types.RGB)
        return fn.resize(images, size=[pixels, pixels], interp_type=types.INTERP_LINEAR, antialias=False)

    running = pipeline()
    running.build()
    return lambda: [running.run()[0].as_array() for _ in range(len(files) // BATCH)]


def ways(files: list[Path], folder: Path, pixels: int) -> Iterator[tuple[str, Pass]]:
    """Yields each way's name, and a pass over the files."""
    yield "dlio, packed with `--decode-ready`", dlio_pass(files, folder / "ready", pixels, "--decode-ready")
    yield "dlio", dlio_pass(files, folder / "plain", pixels)
    if find_spec("cv2") and find_spec("simplejpeg"):
        import cv2
        import simplejpeg

        cv2.setNumThreads(1)
        size = (pixels, pixels)
        yield (
            "simplejpeg and OpenCV, not antialiased",
            one_by_one(files, pixels, lambda data: cv2.resize(simplejpeg.decode_jpeg(data), size)),
        )
        color = cv2.IMREAD_COLOR_RGB
        yield (
            "OpenCV, not antialiased",
            one_by_one(files, pixels, lambda d: cv2.resize(cv2.imdecode(np.frombuffer(d, "u1"), color), size)),
        )
    yield "Pillow", one_by_one(files, pixels, lambda data: by_pillow(data, pixels))
    if find_spec("nvidia") and find_spec("nvidia.dali"):
        yield DALI, dali_pass(files, pixels)


def by_pillow(data: bytes, pixels: int) -> Any:
    """Returns an image's pixels."""
    import io

    image = Image.open(io.BytesIO(data)).convert("RGB")
    return np.asarray(image.resize((pixels, pixels), Image.Resampling.BILINEAR))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--pixels", type=int, default=800)
    args = parser.parse_args()
    files = sorted(path for path in args.images.iterdir() if path.is_file())[:COUNT]
    with tempfile.TemporaryDirectory() as folder:
        passes = dict(ways(files, Path(folder), args.pixels))
        spent: dict[str, list[float]] = {name: [] for name in passes}
        for _ in range(ROUNDS + 1):
            for name, run in passes.items():
                clock = time.process_time if name == DALI else time.thread_time
                began = clock()
                run()
                spent[name].append((clock() - began) / len(files))
        print(f"### JPEGs decoded and resized to {args.pixels} x {args.pixels}\n")
        print("| way | CPU us an image | x dlio |\n|---|---|---|")
        took = {name: median(each[1:]) for name, each in spent.items()}
        for name, seconds in took.items():
            print(f"| {name} | {seconds * 1e6:,.0f} | {seconds / took['dlio']:.2f} |")


if __name__ == "__main__":
    main()
