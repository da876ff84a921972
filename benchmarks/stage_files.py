"""Measures staging of many small files from storage that answers late: `dlio stage` of one file with all their bytes,
of an index, and of the folder itself; and `cp -r`.

    python benchmarks/stage_files.py --data /tmp/files --files 20000 --latency 5

Makes folders of 100 files of 2 to 14 KB, and indexes them once with checksums. `slow_files.c`, which needs cc and
libfuse3-dev, shows them again for each run; each look-up, open, listing and read takes the latency. `cp -r` copies a
tenth of the files, since it takes so long; its rate does not depend on their number.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
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


def children() -> float:
    """Returns the CPU seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(
    what: str, count: int, words: Sequence[str | Path], slow: Callable[[], AbstractContextManager[Path]]
) -> None:
    """Prints the files that a command copies in a second, while the source is mounted."""
    with slow():
        before, began = children(), time.perf_counter()
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        taken, used = time.perf_counter() - began, children() - before
    cpu = f"{taken:.1f} s, {used / count * 1e3:.2f} ms of CPU a file"
    print(f"{what:12}{count / taken:10,.0f} files/s  ({cpu})", flush=True)


def main() -> None:
    """Prints the rates of all ways, in turns."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, default=Path("/tmp/files"))
    options.add_argument("--files", type=int, default=20_000)
    options.add_argument("--latency", type=float, default=5.0, help="milliseconds")
    options.add_argument("--rounds", type=int, default=3)
    args = options.parse_args()
    photos, out, mount, one = (args.data / name for name in ("photos", "copy", "mount", "one"))
    make(photos, args.files)
    one.mkdir(exist_ok=True)
    size = sum(path.stat().st_size for path in photos.rglob("*.jpg"))
    (one / "packed").write_bytes(os.urandom(size))
    dlio, quiet = [sys.executable, "-m", "dlio"], ["--quiet"]
    subprocess.run([*dlio, "index", photos, "--checksums", "--overwrite", "--option", "split=no", *quiet], check=True)
    index = args.data / "photos-index"
    [link] = index.rglob("files")
    link.unlink()
    link.symlink_to(mount)
    program = build(args.data)
    some = [mount / path.name for path in sorted(photos.iterdir())[: max(1, args.files // A_FOLDER // 10)]]
    files, packed = (partial(mounted, program, folder, mount, args.latency, 0, 0) for folder in (photos, one))
    for _ in range(args.rounds):
        for what, source, slow in (
            ("one file", mount / "packed", packed),
            ("an index", index, files),
            ("a folder", mount, files),
        ):
            shutil.rmtree(out, ignore_errors=True)
            measure(what, args.files, [*dlio, "stage", source, out, *quiet], slow)
        shutil.rmtree(out)
        out.mkdir()
        measure("cp -r", len(some) * A_FOLDER, ["cp", "-r", *some, out], files)


if __name__ == "__main__":
    main()
