"""The main job on real data: pack 2,624 images into every format, verify, stage, and train on two ranks.

The images are the solar cells of the package `elpv-dataset` (grey 300 x 300 PNGs, some cells defective). Everything is
written below `demo-data/` and a node-local folder; a second run finds what the first has done.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FORMATS = ("tfrecord", "recordio", "lmdb", "hdf5", "webdataset")
OUT = Path("demo-data")
BIN = Path(sys.executable).parent


def main() -> None:
    """Runs the demo; the first command that fails ends it."""
    began = time.monotonic()
    images = find_images()
    labels = write_labels(images)
    for name in FORMATS:
        run("dlio", "pack", labels, OUT / name, "--format", name, "--root", images, "--shard-size", "16MiB", "--quiet")
        run("dlio", "verify", OUT / name)
    local = Path(os.environ.get("DLIO_DEMO_LOCAL", Path(tempfile.gettempdir()) / f"dlio-demo-{os.getuid()}"))
    run("dlio", "stage", OUT / "tfrecord", local, "--strategy", "replicate")
    staged = run_json("dlio", "stage", OUT / "tfrecord", local, "--strategy", "replicate", "--json")["path"]
    run("torchrun", "--standalone", "--nproc-per-node", "2", "tools/demo/train.py", staged)
    run("python", "tools/demo/loaders.py", staged)
    say(f"done in {time.monotonic() - began:.0f} s; what was made is in {OUT}/ and {local}")


def find_images() -> Path:
    """Returns the folder of the package elpv-dataset that holds images/ and labels.csv."""
    spec = importlib.util.find_spec("elpv_dataset")
    if spec is None or spec.origin is None:
        sys.exit("the package elpv-dataset is missing: run `make venv`")
    return Path(spec.origin).parent / "data"


def write_labels(images: Path) -> Path:
    """Writes a CSV file of path and label from the package's table of path, probability of a defect, cell type."""
    rows = [line.split() for line in (images / "labels.csv").read_text().splitlines()]
    OUT.mkdir(exist_ok=True)
    path = OUT / "cells.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label"])
        for name, probability, _ in rows:
            writer.writerow([name, "defective" if float(probability) > 0.5 else "functional"])
    say(f"{len(rows)} images in {images / 'images'}, labels in {path}")
    return path


def say(text: str) -> None:
    """Prints a line at once, so that it stands above what the next command prints."""
    print(text, flush=True)


def run(*command: object) -> None:
    """Prints a command and runs it, with the environment's own programs first."""
    say("\n$ " + " ".join(map(str, command)))
    quiet = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}  # no start-up chatter
    try:
        subprocess.run([BIN / str(command[0]), *map(str, command[1:])], check=True, env=os.environ | quiet)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)


def run_json(*command: object) -> dict[str, str]:
    """Runs a command and returns the last object that it prints."""
    import json

    done = subprocess.run([BIN / str(command[0]), *map(str, command[1:])], check=True, capture_output=True, text=True)
    result: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return result


if __name__ == "__main__":
    main()
