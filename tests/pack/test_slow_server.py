"""A server that hangs, and packing from a slow one: it can be ended, in bounded memory, with each request once."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import PARTIAL_NAME
from dlio.sources import image_folder
from dlio.testing.container import content
from tests.helpers.images import image, make_image_folder
from tests.pack.slow_storage import FAST, SLOW, command

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace counts the operations")


HANG = """
import os, pathlib, time
from dlio.pack.listing import image_files
def hang(*given):
    pathlib.Path(os.environ["HANGING"], "hangs").touch()
    time.sleep(1e6)
image_files.begin_file = image_files.native.read_files = hang
"""


class TestServerThatHangs:
    @pytest.mark.parametrize("engine", ["processes", "serial"])
    @pytest.mark.parametrize("seconds", [SLOW, FAST])
    def test_an_interrupt_ends_the_run(self, photos, tmp_path, engine, seconds):
        words = ["pack", photos, tmp_path / "out", "--format", "recordio", "--engine", engine, "--quiet"]
        hanging = command(seconds, *words)
        hanging[2] = HANG + hanging[2]
        with subprocess.Popen(hanging, stderr=subprocess.PIPE, env=os.environ | {"HANGING": str(tmp_path)}) as run:
            while not (tmp_path / "hangs").exists():
                assert run.poll() is None
                time.sleep(0.01)
            run.send_signal(signal.SIGINT)
            _, message = run.communicate(timeout=200)
        assert (run.returncode, message) == (130, b"dlio: interrupted; run the same command again to continue\n")
        assert [path.name for path in (tmp_path / "out").iterdir()] == [PARTIAL_NAME]

    def test_nothing_is_lost_when_it_answers_again(self, tmp_path, slow_source):
        make_image_folder(tmp_path / "in", {"a": 60, "b": 60})
        mounted = slow_source(tmp_path / "in", "--latency-ms", "5")
        server = server_of(mounted)
        words = ["pack", mounted, tmp_path / "out", "--format", "recordio", "--num-shards", "6", "--quiet"]
        with subprocess.Popen(command(0.0005, *words)) as run:
            while not (tmp_path / "out" / PARTIAL_NAME).exists():
                assert run.poll() is None
                time.sleep(0.01)
            os.kill(server, signal.SIGSTOP)
            time.sleep(0.3)  # not for the outcome: so that something may hang
            os.kill(server, signal.SIGCONT)
            assert run.wait(200) == 0
        dlio.pack(image_folder(tmp_path / "in"), tmp_path / "whole", format="recordio", num_shards=6, engine="serial")
        shards = {name: data for name, data in content(tmp_path / "out").items() if name.startswith("shard")}
        assert shards.items() <= content(tmp_path / "whole").items()
        assert len(shards) == 18


def children(pid: int) -> list[int]:
    found = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for some in found for child in some]


def server_of(mounted: Path) -> int:
    return next(pid for pid in children(os.getpid()) if str(mounted) in command_line(pid))


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


MEMORY = """
import itertools, resource, sys, threading
from pathlib import Path
from dlio import pack
from dlio.pack import prefetch
from dlio.sources import image_folder
root, out = map(Path, sys.argv[1:])
pack(image_folder(root / "few"), out / "few", format="recordio", engine="serial")
prefetch.SLOW_SECONDS, prefetch._num_waits = -1.0, itertools.count().__next__
Path("/proc/self/clear_refs").write_text("5")
def memory(kind):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(kind))
before = memory("VmRSS")
pack(image_folder(root / "all"), out / "all", format="recordio", num_shards=2, engine="serial")
print(memory("VmHWM") - before)
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak cannot be set back")
@pytest.mark.parametrize(("count", "side"), [(12, 1700), (60, 640), (3000, 60)], ids=["8.7 MB", "1.2 MB", "11 KB"])
def test_a_worker_takes_64_mb_at_most_beside_its_imports(tmp_path, count, side):
    data = image(1, "BMP", width=side, height=side)
    for name, number in (("few", 1), ("all", count)):
        (tmp_path / name / "a").mkdir(parents=True)
        for one in range(number):
            (tmp_path / name / "a" / f"{one:05}.bmp").write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, tmp_path, tmp_path / "out"], check=True, capture_output=True, text=True
    )
    assert int(done.stdout) <= 64e6


@needs_strace
@pytest.mark.parametrize("seconds", [SLOW, FAST])
@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_each_file_is_looked_at_opened_read_and_closed_once(photos, tmp_path, seconds, engine):
    calls = "openat,read,pread64,close,stat,newfstatat,fstat,lseek,ioctl,statx"
    watched = ["strace", "-ff", "-qq", "-y", "-o", str(tmp_path / "calls"), "-e", f"trace={calls}"]  # a file a thread
    words = ["pack", photos, tmp_path / "out", "--format", "recordio", "--num-shards", "3", "--engine", engine]
    subprocess.run([*watched, *command(seconds, *words, "--quiet")], check=True)
    found: Counter[tuple[str, str]] = Counter()
    for line in chain.from_iterable(path.read_text().splitlines() for path in tmp_path.glob("calls.*")):
        match = re.match(r"(\w+)\(.*?photos/(\w+/\d+\.png)", line)
        if match:
            found[match[1], match[2]] += 1
    paths = {str(path.relative_to(photos)) for path in photos.rglob("*.png")}
    assert found == Counter((call, path) for call in ("openat", "read", "close", "newfstatat") for path in paths)
