"""Measures loaders that read straight from a bucket whose server answers late: the first epoch, of an empty machine.

    python -m benchmarks s3_load --data /tmp/bench [--latency-ms 20] [--workers 2,16]

The same 6,000 JPEGs of 92 KB as records for dlio, as tar files for webdataset, as MDS for Streaming, and as an object
each for Amazon's s3torchconnector; all give shuffled batches of 256 images as they are stored. Threads of dlio,
processes of the others. The server is that of `s3_pack.py`, which takes a core of this machine, too: GETs and bytes are
counted there. CPU time is that of the loader and its processes, without dlio's agent, which stages. Needs the packages
s3fs, webdataset, mosaicml-streaming, boto3 and s3torchconnector.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # a child is a script

from benchmarks.images import make_set
from benchmarks.loaders.process_tree import cpu_seconds
from benchmarks.loaders.tasks import BATCH_SIZE
from dlio.dataset.remote import load
from dlio.loaders.batch_sources import ArrayBatches
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import Loader

HERE = Path(__file__).parent
BUCKET = "photos"
_TORCHVISION = "benchmarks.loaders.torchvision_on_cpu"  # which streaming imports


def prepare(data: Path) -> Path:
    """Returns the folder that is the bucket, made unless it exists."""
    from benchmarks.loaders.ways import dlio_plain, mds, webdataset_

    bucket = data / "s3-load"
    if not bucket.exists():
        importlib.import_module(_TORCHVISION)
        images = make_set(data, "big") / "all"
        aside = data / "s3-load.partial"
        shutil.rmtree(aside, ignore_errors=True)
        for name, way in (("dlio", dlio_plain), ("webdataset", webdataset_), ("mds", mds)):
            (aside / name).mkdir(parents=True)
            way.prepare(images, aside / name)
        (aside / "images").symlink_to(images.resolve())
        aside.rename(bucket)
    return bucket


def dlio(bucket: Path, num_workers: int) -> Iterator[list[bytes]]:
    """Yields the records of a packed data set, which an agent stages at the same time."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as local:  # the agent ends later
        yield from _batches(PackedSamples(f"s3://{BUCKET}/dlio/packed", cache=local), num_workers)


def dlio_in_place(bucket: Path, num_workers: int) -> Iterator[list[bytes]]:
    """Yields them by ranges of the objects, and stores nothing."""
    yield from _batches(PackedSamples(load(f"s3://{BUCKET}/dlio/packed")), num_workers)


def _batches(samples: PackedSamples, num_workers: int) -> Iterator[list[bytes]]:
    for batch in Loader(ArrayBatches(samples), BATCH_SIZE, shuffle=True, num_workers=num_workers, end="drop"):
        yield batch["image"]


def webdataset(bucket: Path, num_workers: int) -> Iterator[list[bytes]]:
    """Yields the members of tar files, each read as a stream."""
    import webdataset as wds

    names = sorted(path.name for path in (bucket / "webdataset").glob("*.tar"))
    urls = [f"pipe:curl -s -f {os.environ['AWS_ENDPOINT_URL']}/{BUCKET}/webdataset/{name}" for name in names]
    samples = wds.WebDataset(urls, shardshuffle=len(urls)).shuffle(1000).to_tuple("image")
    batches = samples.batched(BATCH_SIZE, partial=False)
    for (images,) in wds.WebLoader(batches, batch_size=None, num_workers=num_workers):
        yield images


def streaming(bucket: Path, num_workers: int) -> Iterator[list[bytes]]:
    """Yields samples of shards, which it stores on a local disk."""
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
    with tempfile.TemporaryDirectory() as local:
        samples = StreamingDataset(remote=f"s3://{BUCKET}/mds/shards", local=local, shuffle=True, batch_size=BATCH_SIZE)
        loader = StreamingDataLoader(
            samples, batch_size=BATCH_SIZE, num_workers=num_workers, drop_last=True, collate_fn=_images
        )
        yield from loader


def s3torchconnector(bucket: Path, num_workers: int) -> Iterator[list[bytes]]:
    """Yields objects, each the answer of a request."""
    from s3torchconnector import S3ClientConfig, S3MapDataset
    from torch.utils.data import DataLoader

    keys = sorted(str(path.relative_to(bucket)) for path in (bucket / "images").rglob("*.jpg"))
    samples = S3MapDataset.from_objects(
        [f"s3://{BUCKET}/{key}" for key in keys],
        region="us-east-1",
        endpoint=os.environ["AWS_ENDPOINT_URL"],
        transform=_read,
        s3client_config=S3ClientConfig(force_path_style=True),
    )
    yield from DataLoader(
        samples, BATCH_SIZE, shuffle=True, num_workers=num_workers, drop_last=True, collate_fn=list[bytes]
    )


def _images(samples: list[dict[str, Any]]) -> list[bytes]:
    return [sample["image"] for sample in samples]


def _read(opened: Any) -> bytes:
    found: bytes = opened.read()
    return found


WAYS = {each.__name__: each for each in (dlio, dlio_in_place, s3torchconnector, webdataset, streaming)}


def epoch(way: str, bucket: Path, num_workers: int) -> dict[str, float]:
    """Returns what the first epoch of a way took, without imports."""
    import torch.utils.data  # noqa: F401

    importlib.import_module(_TORCHVISION)
    importlib.import_module(way if way in ("s3torchconnector", "streaming", "webdataset") else "s3fs")
    began, worked, count, first = time.perf_counter(), cpu_seconds(), 0, 0.0
    for images in WAYS[way](bucket, num_workers):
        first = first or time.perf_counter() - began
        if len(images) != BATCH_SIZE or min(map(len, images)) < 1000:
            raise SystemExit("a batch is not what was asked for")
        count += len(images)
        last, cpu = time.perf_counter(), cpu_seconds()
    return {"first": first, "rate": count / (last - began), "cpu": (cpu - worked) / count, "count": count}


@contextmanager
def served(bucket: Path, seconds: float) -> Iterator[str]:
    """Yields the address of a server of the bucket."""
    command = [sys.executable, str(HERE / "s3_pack.py"), "--serve", str(bucket), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.terminate()


def main() -> None:
    """Prints the table; a child prints what its way took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder for images and the bucket")
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--workers", default="2,16", help="threads of dlio, processes of the others")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(epoch(args.ways, args.data, int(args.workers))), flush=True)
        os._exit(0)  # threads and processes of a way may hang
    bucket = prepare(args.data)
    size = sum(path.stat().st_size for path in (bucket / "images").rglob("*.jpg"))
    print("| loader | workers | images/s | first batch, s | CPU us an image | GETs | bytes / images' |")
    print("|---|---|---|---|---|---|---|", flush=True)
    cases = [(way, workers) for workers in args.workers.split(",") for way in args.ways.split(",")]
    found: dict[tuple[str, str], list[dict[str, float]]] = {case: [] for case in cases}
    with served(bucket, args.latency_ms / 1000) as url:
        keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "none")
        environment = os.environ | keys | {"AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1"}
        for _, (way, workers) in [(number, case) for number in range(args.rounds) for case in cases]:
            words = ["--data", str(bucket), "--ways", way, "--workers", workers, "--child"]
            _counts(url)
            command = [sys.executable, "-W", "ignore", __file__, *words]
            done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
            if done.returncode:
                print(f"{way}: {(done.stderr.strip().splitlines() or ['?'])[-1][:200]}", file=sys.stderr, flush=True)
                continue
            line = next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{"))
            found[way, workers].append(json.loads(line) | _counts(url))
            print(f"{way}, {workers} workers: {found[way, workers][-1]}", file=sys.stderr, flush=True)
    for (way, workers), runs in found.items():
        if runs:
            best = sorted(runs, key=lambda run: run["rate"])[len(runs) // 2]  # the median run
            cells = f"{best['rate']:,.0f} | {best['first']:.2f} | {best['cpu'] * 1e6:,.0f} | {best['requests']:,.0f}"
            print(f"| {way} | {workers} | {cells} | {best['bytes'] / size:.2f} |", flush=True)


def _counts(url: str) -> dict[str, float]:
    """Returns the requests and bytes since the last call."""
    with urllib.request.urlopen(f"{url}/-counts") as answer:
        counts: dict[str, float] = json.load(answer)
        return counts


if __name__ == "__main__":
    main()
