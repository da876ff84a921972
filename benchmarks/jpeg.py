"""Measures the compiled core on JPEGs: CPU milliseconds per image, ways interleaved, medians over rounds.

    python benchmarks/jpeg.py                      finds photographs in scikit-learn and scikit-image
    python benchmarks/jpeg.py --photos FOLDER      or takes JPEG and PNG files of yours

From the photographs it makes 600 JPEGs of about 500 x 375 (85% 4:2:0, mean about 92 KB), always the same ones. The
core runs as it does in training: RandomResizedCrop(224) into an array that is there already. Peers (Pillow,
simplejpeg with OpenCV) are measured where they are installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from images import find_photos, make_images
from numpy.typing import NDArray
from PIL import Image

from dlio.native import _jpeg, decode, decode_batch, make_crop_ready, probe, to_planes

SIZE = 224


def random_boxes(sizes: NDArray[np.int32]) -> NDArray[np.int32]:
    """Returns a box for each image, int32 (n, 4), as torchvision's RandomResizedCrop draws them."""
    random = np.random.default_rng(1)
    boxes = []
    for width, height in sizes.tolist():
        while True:
            area = width * height * random.uniform(0.08, 1)
            ratio = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
            w, h = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                break
        boxes.append((random.integers(width - w + 1), random.integers(height - h + 1), w, h))
    return np.array(boxes, np.int32)


def core(images: list[bytes], boxes: NDArray[np.int32]) -> Callable[[], None]:
    """Returns a run of decode_batch over all images."""
    flips, out = np.arange(len(images)) % 2 == 0, np.empty((len(images), 3, SIZE, SIZE), np.uint8)

    def run() -> None:
        if decode_batch(images, boxes, flips, out).any():
            raise SystemExit("an image of the benchmark does not decode")

    return run


def forced(back_end: str, run: Callable[[], None]) -> Callable[[], None]:
    """Returns a run with one of the back ends that the processor has; afterwards the quickest is used again."""

    def run_with() -> None:
        _jpeg.use_back_end(back_end)
        run()
        _jpeg.use_back_end(_jpeg.BACK_ENDS[0])

    return run_with


def full_decode(images: list[bytes]) -> Callable[[], None]:
    """Returns a run of decode over all images."""

    def run() -> None:
        for data in images:
            decode(data)

    return run


def pillow(images: list[bytes], boxes: NDArray[np.int32]) -> Callable[[], None]:
    """Returns torchvision's way."""

    def run() -> None:
        for data, (left, top, width, height) in zip(images, boxes.tolist(), strict=True):
            image = Image.open(io.BytesIO(data)).convert("RGB").crop((left, top, left + width, top + height))
            np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR))

    return run


def simplejpeg_and_opencv(images: list[bytes], boxes: NDArray[np.int32]) -> Callable[[], None]:
    """Returns full decode by simplejpeg, and OpenCV's bilinear resize, which is not antialiased."""
    import cv2
    import simplejpeg

    cv2.setNumThreads(1)

    def run() -> None:
        for data, (left, top, width, height) in zip(images, boxes.tolist(), strict=True):
            pixels = simplejpeg.decode_jpeg(data)
            cv2.resize(pixels[top : top + height, left : left + width], (SIZE, SIZE))

    return run


def cpu_ms(ways: dict[str, Callable[[], None]], num_images: int, rounds: int) -> dict[str, float]:
    """Returns the median CPU milliseconds per image of each way; a round runs them all, one after the other."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            start = time.thread_time()
            run()
            times[name].append((time.thread_time() - start) / num_images * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def thread_speedup(images: list[bytes], boxes: NDArray[np.int32], rounds: int) -> tuple[float, float]:
    """Returns how much faster 2 threads are than 1: by wall clock, and by CPU time (right on a busy machine too)."""
    half = len(images) // 2
    parts = [core(images[:half], boxes[:half]), core(images[half:], boxes[half:])]
    wall, cpu = [], []
    with ThreadPoolExecutor(2) as pool:
        for _ in range(rounds):
            start = time.perf_counter(), time.process_time()
            for part in parts:
                part()
            middle = time.perf_counter(), time.process_time()
            list(pool.map(lambda part: part(), parts))
            wall.append((middle[0] - start[0]) / (time.perf_counter() - middle[0]))
            cpu.append(2 * (middle[1] - start[1]) / (time.process_time() - middle[1]))
    return statistics.median(wall), statistics.median(cpu)


def rewrite_rate(images: list[bytes]) -> tuple[list[bytes], float]:
    """Returns the images made crop-ready, and how many of them a core makes in a second."""
    start = time.thread_time()
    ready = [make_crop_ready(data) for data in images]
    return ready, len(images) / (time.thread_time() - start)


def planes_rate(images: list[bytes]) -> tuple[list[bytes], float]:
    """Returns decode-ready records of the images, and how many of them a core makes in a second."""
    start = time.thread_time()
    records = [record for data in images if (record := to_planes(data)) is not None]
    rate = len(images) / (time.thread_time() - start)
    if len(records) < len(images):
        raise SystemExit("an image of the benchmark has no decode-ready record")
    return records, rate


def planes_sizes(images: list[bytes]) -> dict[int, float]:
    """Returns the sizes of decode-ready records over those of JPEGs of several qualities, 4:2:0."""
    ratios = {}
    for quality in (75, 85, 90, 95):
        out = [io.BytesIO() for _ in images]
        for data, file in zip(images, out, strict=True):
            Image.open(io.BytesIO(data)).save(file, "JPEG", quality=quality, subsampling="4:2:0")
        originals = [file.getvalue() for file in out]
        ratios[quality] = sum(map(len, planes_rate(originals)[0])) / sum(map(len, originals))
    return ratios


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, help="a folder of photographs, at least 500 x 375 each")
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    photos = sorted(arguments.photos.iterdir()) if arguments.photos else find_photos()

    images = make_images(photos, arguments.images)
    ready, rate = rewrite_rate(images)
    records, record_rate = planes_rate(images)
    sizes = np.array([(found.width, found.height) for found in map(probe, images)], np.int32)
    boxes, whole = random_boxes(sizes), np.concatenate([np.zeros_like(sizes), sizes], axis=1)
    ways = {
        "full decode + resize of the whole": core(images, whole),
        "cropped decode of the original": core(images, boxes),
        "window of the crop-ready file": core(ready, boxes),
        "full decode, no resize": full_decode(images),
        "Pillow, full decode + crop + resize": pillow(images, boxes),
    }
    for name in _jpeg.BACK_ENDS:
        ways[f"window of the crop-ready file, {name}"] = forced(name, core(ready, boxes))
        ways[f"window of the decode-ready record, {name}"] = forced(name, core(records, boxes))
    if importlib.util.find_spec("simplejpeg") and importlib.util.find_spec("cv2"):
        ways["simplejpeg + OpenCV, full decode + crop + resize"] = simplejpeg_and_opencv(images, boxes)
    times = cpu_ms(ways, len(images), arguments.rounds)

    bytes_before, bytes_after = sum(map(len, images)), sum(map(len, ready))
    print(
        f"{len(images)} images of {len(photos)} photographs, mean {bytes_before / len(images) / 1e3:.1f} KB, "
        f"mean crop {np.mean(boxes[:, 2] * boxes[:, 3] / sizes.prod(axis=1)):.0%} of the area\n"
    )
    print("CPU ms per image")
    for name, value in times.items():
        print(f"  {value:6.3f}  {name}")
    full, cropped, window = list(times.values())[:3]
    wall, cpu = thread_speedup(ready, boxes, arguments.rounds)
    print(f"\ncrop-ready / full decode    {window / full:.2f}   (at most 0.60)")
    print(f"crop-ready / cropped decode {window / cropped:.2f}   (at most 0.75)")
    print(f"2 threads / 1 thread        {wall:.2f} by wall clock, {cpu:.2f} by CPU time   (at least 1.85)")
    print(f"make_crop_ready             {rate:.0f} images/s on a core   (at least 350)")
    print(f"size after / before         {bytes_after / bytes_before:.3f}   (at most 1.00)")
    wanted = {"avx512": "   (at most 0.48)", "avx2": "   (at most 0.62)"}
    for name in _jpeg.BACK_ENDS:
        ratio = times[f"window of the decode-ready record, {name}"] / times[f"window of the crop-ready file, {name}"]
        print(f"decode-ready / crop-ready   {ratio:.2f}   {name}{wanted.get(name, '')}")
    print(f"to_planes                   {record_rate:.0f} images/s on a core   (at least 250)")
    print(f"size of records / originals {sum(map(len, records)) / bytes_before:.3f}")
    for quality, ratio in planes_sizes(images[:60]).items():
        print(f"  at quality {quality}             {ratio:.3f}   (at most 1.05)")


if __name__ == "__main__":
    main()
