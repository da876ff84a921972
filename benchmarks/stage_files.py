"""Measures staging of many small files from storage that answers late: `dlio stage` of an index, of the
folder itself, and `cp -r`.

    python benchmarks/stage_files.py --data /tmp/files --files 20000 --latency 5

Makes folders of 100 files of 2 to 14 KB, and indexes them once with checksums. `slow_files.c`, which needs cc and
libfuse3-dev, shows them again for each run; each look-up, open, listing and read takes the latency. `cp -r` copies a
tenth of the files, since it takes so long; its rate does not depend on their number.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from slow_pack import build, mounted

A_FOLDER = 100


def make(root: Path, count: int) -> None:
    """Writes the files, unless they exist."""
    for number in range(count):
        path = root / f"{number // A_FOLDER:05}" / f"{number:07}.jpg"
        if not number % A_FOLDER:
            path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(os.urandom(2000 + number * 7919 % 12000))


def seconds_of(run: Callable[[], object]) -> float:
    """Returns how long a call takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main() -> None:
    """Prints the files copied in a second by both."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, default=Path("/tmp/files"))
    options.add_argument("--files", type=int, default=20_000)
    options.add_argument("--latency", type=float, default=5.0, help="milliseconds")
    options.add_argument("--rounds", type=int, default=3)
    args = options.parse_args()
    photos, out = args.data / "photos", args.data / "copy"
    make(photos, args.files)
    dlio, quiet = [sys.executable, "-m", "dlio"], ["--quiet"]
    subprocess.run([*dlio, "index", photos, "--checksums", "--overwrite", "--option", "split=no", *quiet], check=True)
    index = args.data / "photos-index"
    [link] = index.rglob("files")
    link.unlink()
    link.symlink_to(args.data / "mount")
    program = build(args.data)
    for _ in range(args.rounds):
        shutil.rmtree(out, ignore_errors=True)
        with mounted(program, photos, args.data / "mount", args.latency, 0, 0) as mount:
            taken = seconds_of(lambda: subprocess.run([*dlio, "stage", index, out, *quiet], check=True))
            print(f"an index    {args.files / taken:10,.0f} files/s  ({taken:.1f} s)", flush=True)
        with mounted(program, photos, args.data / "mount", args.latency, 0, 0) as mount:
            words = [*dlio, "stage", mount, out, *quiet]
            taken = seconds_of(lambda words=words: subprocess.run(words, check=True))
            print(f"a folder    {args.files / taken:10,.0f} files/s  ({taken:.1f} s)", flush=True)
        some = sorted(photos.iterdir())[: max(1, args.files // A_FOLDER // 10)]
        shutil.rmtree(out)
        out.mkdir()
        with mounted(program, photos, args.data / "mount", args.latency, 0, 0) as mount:
            words = ["cp", "-r", *(mount / path.name for path in some), out]
            taken = seconds_of(lambda words=words: subprocess.run(words, check=True))
            print(f"cp -r       {len(some) * A_FOLDER / taken:10,.0f} files/s  ({taken:.1f} s)")


if __name__ == "__main__":
    main()
