"""Makes docs/pictures/ from real runs: `python -m tools.site.pictures [NAME ...]`, as root, with chromium and FUSE.

The data set is drawn (`signs.py`), packed, and staged from a mount that is as slow as a busy file system. Everything is
written to a folder for temporary files, which is removed.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.slow_mount import mounted
from dlio.dataset.manifest import File, Manifest, Shard
from tools.site.pictures.browser import photograph
from tools.site.pictures.signs import draw_all
from tools.site.pictures.terminal import drawn, output

PICTURES = Path(__file__).parents[3] / "docs" / "pictures"
FOLDER = Path("/tmp/signs")
CLONE_NEWUTS = 0x04000000
NUM_NODES = 4
#: A file system that 64 nodes share, fast local disks, and one node in eight at half its speed.
MACHINE = """\
source = 100e9
client = 5e9
local = 2e9
cache_bytes = 60e9
slow_share = 0.125
slow_factor = 0.5
"""


def main(names: list[str]) -> None:
    """Makes the pictures that are named, or all."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    if ctypes.CDLL(None).unshare(CLONE_NEWUTS):
        sys.exit("hosts cannot be named: run this as root")
    socket.sethostname("node0")
    FOLDER.mkdir(mode=0o700)
    try:
        draw_all(FOLDER / "photos")
        run("dlio", "pack", "photos", "packed", "--num-shards", "12", "--quiet")
        for name in names or MADE:
            MADE[name](PICTURES / name)
            print(name)
    finally:
        shutil.rmtree(FOLDER)


def run(*command: object) -> None:
    """Runs a command in the folder of the pictures."""
    subprocess.run(list(map(str, command)), cwd=FOLDER, check=True)


def report(picture: Path) -> None:
    """The top of the page that `dlio report` writes."""
    run("dlio", "report", "packed", "-o", "report.html")
    photograph(FOLDER / "report.html", picture, 1080, 1620)


def show(picture: Path) -> None:
    """Images in a terminal without graphics."""
    terminal = FOLDER / "show.svg"
    text = output(["dlio", "show", "packed", "401", "673"], folder=FOLDER, columns=64)
    terminal.write_text(drawing := drawn("dlio show", text, columns=64))
    width, height = map(float, re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawing)[0])
    photograph(terminal, picture, 720, round(720 * height / width))


def progress(picture: Path) -> None:
    """The bars of `pack` and `stage`: one has ended, the other has not."""
    with mounted(FOLDER / "photos", FOLDER / "lustre/photos", milliseconds=2, megabytes=4):
        text = output(["dlio", "pack", "lustre/photos", "again", "--shard-size", "2MiB"], folder=FOLDER)
    with mounted(FOLDER / "packed", FOLDER / "lustre/packed", milliseconds=1, megabytes=3):
        stage = ["dlio", "stage", "lustre/packed", "local"]
        text += output(stage, folder=FOLDER, until=lambda shown: re.search(r"[67]\d%", shown) is not None)
    picture.with_suffix(".svg").write_text(drawn("dlio pack, dlio stage", text))


def status(picture: Path) -> None:
    """Four nodes that stage one data set from a slow source."""
    (FOLDER / "meet").mkdir(mode=0o700)
    dests = [FOLDER / f"node{node}" for node in range(NUM_NODES)]
    with mounted(FOLDER / "packed", FOLDER / "lustre/packed", milliseconds=1, megabytes=0.25):
        try:
            for node, dest in enumerate(dests):
                stage_in_the_background(node, dest)
            text = output(["dlio", "stage", "lustre/packed", "node0", "--status"], folder=FOLDER)
            run("dlio", "stage", "lustre/packed", "node0", "--wait", "--quiet")
        finally:
            for dest in dests:
                run("dlio", "clean", dest, "--quiet")
    picture.with_suffix(".svg").write_text(drawn("dlio stage --status", text))


def stage_in_the_background(node: int, dest: Path) -> None:
    """Starts the agent of a node, which has its own host name."""
    variables = {"DLIO_MEET": f"{FOLDER}/meet", "GROUP_RANK": str(node), "GROUP_WORLD_SIZE": str(NUM_NODES)}
    variables |= {"RANK": str(node), "WORLD_SIZE": str(NUM_NODES), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    named = ["unshare", "--uts", "env", *(f"{name}={value}" for name, value in variables.items())]
    named += ["sh", "-c", f'hostname node{node}; exec "$0" "$@"', "dlio"]
    subprocess.run([*named, "stage", "lustre/packed", str(dest), "--background", "--quiet"], cwd=FOLDER, check=True)


def timeline(picture: Path) -> None:
    """A plan for a data set as large as ImageNet's training images, of which only the manifest exists."""
    signs = Manifest.load(FOLDER / "packed")
    shards = [
        Shard(f"shard-{number:06}", 2336, (File(f"shard-{number:06}.tfrecord", 268 << 20, f"xxh3-128:{number:032x}"),))
        for number in range(549)
    ]
    (FOLDER / "imagenet").mkdir()
    replace(signs, origin={}, shards=tuple(shards)).save(FOLDER / "imagenet")
    options = ["--machine", "machine.toml", "--strategy", "replicate", "--simulate", "--timeline", "timeline.svg"]
    (FOLDER / "machine.toml").write_text(MACHINE)
    run("dlio", "plan", "imagenet", "--nodes", "64", *options)
    shutil.copy(FOLDER / "timeline.svg", picture.with_suffix(".svg"))


MADE = {each.__name__: each for each in (report, show, progress, status, timeline)}

if __name__ == "__main__":
    main(sys.argv[1:])
