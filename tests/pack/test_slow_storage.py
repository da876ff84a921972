"""Packing from slow storage: the same bytes, errors and operations as from memory, within bounds, and endable."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import PARTIAL_NAME
from dlio.errors import StorageError
from dlio.io import files
from dlio.pack import pace, prefetch, publish
from dlio.pack.inspect.verify import verify
from dlio.pack.pace import Limits, Pace, limited
from dlio.pack.prefetch import Depth
from dlio.pack.sources.imagefolder import ImageFolder
from dlio.pack.write import ASIDE
from dlio.sources import image_folder, open_source
from tests.helpers.archives import make_tar, make_zip
from tests.helpers.images import image, make_image_folder
from tests.helpers.packing import content
from tests.helpers.users import unprivileged

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace counts the operations")


@contextmanager
def storage(seconds: float) -> Iterator[None]:
    """Reads that take longer than `seconds` count as slow, and nothing is known yet; workers inherit that."""
    before = prefetch.SLOW_SECONDS, prefetch._learned
    prefetch.SLOW_SECONDS, prefetch._learned = seconds, Depth()
    try:
        yield
    finally:
        prefetch.SLOW_SECONDS, prefetch._learned = before


SLOW, FAST = -1.0, float("inf")


def write_lists(root: Path, names: list[str]) -> None:
    (root / "list.csv").write_text("path,label\n" + "".join(f"{name},{row % 3}\n" for row, name in enumerate(names)))
    (root / "list.lst").write_text("".join(f"{row}\t{row % 3}\t{name}\n" for row, name in enumerate(names)))
    (root / "list.txt").write_text("".join(f"{name} {row % 3}\n" for row, name in enumerate(names)))


@pytest.fixture
def inputs(tmp_path) -> dict[str, Path]:
    """One input of each kind, all with the same 60 images."""
    root = tmp_path / "in"
    made = make_image_folder(root, {"a": 30, "b": 30})
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*.png"))
    random.Random(0).shuffle(names)
    write_lists(root, names)
    make_tar(tmp_path / "in.tar", made)
    make_zip(tmp_path / "in.zip", made)
    for sequence in ("s1", "s2"):
        shutil.copytree(root / "a", tmp_path / "kitti" / sequence / "image_2")
    dlio.pack(image_folder(root), tmp_path / "packed", format="tfrecord", num_shards=3, engine="serial")
    found = {name: root / f"list.{name}" for name in ("csv", "lst", "txt")}
    return found | {
        "folder": root,
        "tar": tmp_path / "in.tar",
        "zip": tmp_path / "in.zip",
        "frames": tmp_path / "kitti",
        "packed": tmp_path / "packed",
    }


@pytest.mark.parametrize("kind", ["folder", "csv", "lst", "txt", "tar", "zip", "frames", "packed"])
@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_every_source_gives_the_same_bytes(inputs, tmp_path, kind, engine):
    source = open_source(inputs[kind])
    arguments = {"num_shards": 4, "shuffle": 3}
    with storage(FAST):
        dlio.pack(source, tmp_path / "fast", engine="serial", **arguments)
    with storage(SLOW):
        dlio.pack(source, tmp_path / "slow", engine=engine, **arguments)
    assert content(tmp_path / "slow") == content(tmp_path / "fast")


def test_every_format_gets_the_same_samples(photos, tmp_path):
    for name in ("recordio", "webdataset", "lmdb"):
        for seconds in (SLOW, FAST):
            with storage(seconds):
                dlio.pack(image_folder(photos), tmp_path / f"{name} {seconds}", format=name, engine="serial")
        assert content(tmp_path / f"{name} {SLOW}") == content(tmp_path / f"{name} {FAST}")


@pytest.mark.parametrize("seconds", [SLOW, FAST])
def test_listings_are_the_same_with_loops_and_odd_names(tmp_path, seconds):
    root = tmp_path / "in"
    make_image_folder(root, {f"c{number}/{below}": 2 for number in range(12) for below in ("x", "y/z")})
    (root / "c3/x/loop").symlink_to(root / "c3")
    (root / "c5" / "empty").mkdir()
    (root / "c9/y/odd\udcff.png").write_bytes(b"x")
    (root / "none").mkdir()
    with storage(FAST):
        expected = image_folder(root).listing()
    with storage(seconds):
        found = image_folder(root).listing()
    assert found == expected
    assert [name for name, _ in found.refused] == ["c3/x/loop", "c9/y/odd\\xff.png", "none"]


class TestBadInput:
    @pytest.mark.parametrize("seconds", [SLOW, FAST])
    def test_what_vanishes_grows_shrinks_or_is_denied_is_skipped_in_order(self, open_tmp, seconds):
        make_image_folder(open_tmp / "in", {"a": 40})
        (open_tmp / "out").mkdir(mode=0o777)
        (open_tmp / "out").chmod(0o1777)
        source, grown = image_folder(open_tmp / "in"), image(99, "BMP", width=300, height=300)
        listing = source.listing()
        (open_tmp / "in/a/0003.png").unlink()
        (open_tmp / "in/a/0007.png").write_bytes(grown)
        (open_tmp / "in/a/0011.png").write_bytes(b"")
        (open_tmp / "in/a/0020.png").chmod(0)
        (open_tmp / "in/a/0031.png").unlink()
        (open_tmp / "in/a/0031.png").mkdir()
        with storage(seconds), unprivileged():
            found = dlio.pack(
                Listed(source.path, listing), open_tmp / "out", num_shards=2, on_error="skip", engine="serial"
            )
        assert [key for key, _ in found.skipped] == [f"a/{number:04}.png" for number in (3, 11, 20, 31)]
        reasons = [re.search(r"No such file|it is empty|Permission|Is a directory", why)[0] for _, why in found.skipped]
        assert reasons == ["No such file", "it is empty", "Permission", "Is a directory"]
        packed = open_source(open_tmp / "out")
        with packed.reader(packed.listing()) as read:
            assert read(6).fields["image"] == grown

    @pytest.mark.parametrize("seconds", [SLOW, FAST])
    def test_an_input_error_of_the_storage_is_skipped_too(self, tmp_path, slow_source, seconds):
        make_image_folder(tmp_path / "in", {"a": 20})
        mounted = slow_source(tmp_path / "in", "--fail", "0013")
        with storage(seconds):
            found = dlio.pack(image_folder(mounted), tmp_path / "out", on_error="skip", engine="serial")
        assert [(key, "Input/output error" in why) for key, why in found.skipped] == [("a/0013.png", True)]

    def test_the_first_bad_file_in_order_is_the_one_told(self, photos, tmp_path):
        for name in ("dog/0001.png", "cat/0009.png", "owl/0002.png"):
            (photos / name).write_bytes(b"no image")
        with storage(SLOW), pytest.raises(dlio.errors.SourceError, match=r"cat/0009\.png"):
            dlio.pack(image_folder(photos), tmp_path / "out", num_shards=1, engine="serial")


@dataclass(frozen=True, slots=True)
class Listed(ImageFolder):
    """A folder as it was when it was listed."""

    found: object = None

    def __init__(self, path: Path, found: object) -> None:
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "name", "imagefolder")
        object.__setattr__(self, "found", found)

    def listing(self):
        return self.found


PACK = """
import sys
from dlio.pack import ahead
ahead.SLOW_SECONDS = float(sys.argv[1])
from dlio.cli import main
sys.exit(main(sys.argv[2:]))
"""


def command(seconds: float, *words: str | Path) -> list[str]:
    return [sys.executable, "-c", PACK, str(seconds), *map(str, words)]


HANG = """
import os, pathlib, time
from dlio.pack import image_files
def hang(path, room):
    pathlib.Path(os.environ["HANGING"], "hangs").touch()
    time.sleep(1e6)
image_files.begin_file = hang
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
        assert (run.returncode, message) == (130, b"dlio: interrupted; run the same command again to go on\n")
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
import resource, sys, threading
from pathlib import Path
from dlio import pack
from dlio.pack import ahead
from dlio.sources import image_folder
root, out = map(Path, sys.argv[1:])
pack(image_folder(root / "few"), out / "few", format="recordio", engine="serial")
ahead.SLOW_SECONDS = -1.0
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
    watched = ["strace", "-f", "-qq", "-y", "-o", str(tmp_path / "calls"), "-e", f"trace={calls}"]
    words = ["pack", photos, tmp_path / "out", "--format", "recordio", "--num-shards", "3", "--engine", engine]
    subprocess.run([*watched, *command(seconds, *words, "--quiet")], check=True)
    found: Counter[tuple[str, str]] = Counter()
    for line in (tmp_path / "calls").read_text().splitlines():
        match = re.match(r"\d+ +(\w+)\(.*?photos/(\w+/\d+\.png)", line)
        if match:
            found[match[1], match[2]] += 1
    paths = {str(path.relative_to(photos)) for path in photos.rglob("*.png")}
    assert found == Counter((call, path) for call in ("openat", "read", "close", "newfstatat") for path in paths)


class TestPace:
    def test_never_lets_more_through_than_its_limits(self):
        now, slept = [0.0], []

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            now[0] += seconds

        held = Pace(Limits(100.0, 1e6), clock=lambda: now[0], sleep=sleep)
        random_ = random.Random(1)
        operations = num_bytes = 0
        for _ in range(1000):
            taken = random_.randrange(1, 4), random_.randrange(0, 30_000)
            held.take(*taken)
            assert operations <= 100.0 * now[0] + 1e-6  # all before this one
            assert num_bytes <= 1e6 * now[0] + 1e-3
            operations, num_bytes = operations + taken[0], num_bytes + taken[1]
            now[0] += random_.choice([0.0, 0.0, 0.001])
        assert sum(slept) > 0

    def test_what_is_not_used_is_gone(self):
        now, slept = [0.0], []
        held = Pace(Limits(operations=10.0), clock=lambda: now[0], sleep=slept.append)
        now[0] = 3600.0
        for _ in range(3):
            held.take(1)
        assert slept == [pytest.approx(0.1), pytest.approx(0.2)]

    def test_workers_share_it(self):
        assert Limits(100.0, None).share(4) == Limits(25.0, None)

    @pytest.mark.parametrize("limits", [(0, None), (None, -1), (float("nan"), None)])
    def test_a_limit_that_lets_nothing_through_is_refused(self, limits):
        with pytest.raises(dlio.errors.UsageError, match="more than 0"):
            Limits(*limits)

    @pytest.mark.parametrize("seconds", [SLOW, FAST])
    def test_counts_what_is_asked_of_the_source(self, photos, tmp_path, monkeypatch, seconds):
        taken = []
        monkeypatch.setattr(Pace, "take", lambda self, operations, num_bytes=0: taken.append((operations, num_bytes)))
        with storage(seconds):
            dlio.pack(image_folder(photos), tmp_path / "out", engine="serial", max_ops=1e9)
        sizes = sum(path.stat().st_size for path in photos.rglob("*.png"))
        folders = 4 * (3 + 1)  # listed, and looked at
        assert sum(operations for operations, _ in taken) == folders + 36 * (1 + pace.FILE_OPERATIONS)
        assert sum(num_bytes for _, num_bytes in taken) == sizes

    def test_the_limits_of_a_thread_are_its_own(self):
        found = []
        with limited(Limits(5.0)):
            thread = threading.Thread(target=lambda: found.append(pace.in_force()))
            thread.start()
            thread.join()
            assert pace.in_force() is not None
        assert found == [None]
        assert pace.in_force() is None


class TestPublishing:
    def test_the_next_shard_is_read_while_one_is_synced(self, photos, tmp_path, monkeypatch):
        reads, next_is_read = [], threading.Event()

        @dataclass(frozen=True, slots=True)
        class Watched(ImageFolder):
            @contextmanager
            def reader(self, listing):
                reads.append(listing.keys[0])
                if len(reads) == 2:
                    next_is_read.set()
                with ImageFolder.reader(self, listing) as read:
                    yield read

        publish_all = files.publish_all

        def wait_and_publish(*args):
            assert next_is_read.wait(100), "the next shard is read after this one is synced"
            publish_all(*args)

        monkeypatch.setattr(publish.files, "publish_all", wait_and_publish)
        dlio.pack(Watched(photos), tmp_path / "out", num_shards=3, engine="serial")
        monkeypatch.undo()
        dlio.pack(image_folder(photos), tmp_path / "whole", num_shards=3, engine="serial")
        assert content(tmp_path / "out") == content(tmp_path / "whole")

    @pytest.mark.parametrize("engine", ["serial", "processes"])
    def test_a_disk_that_refuses_ends_the_run_and_leaves_nothing(self, photos, tmp_path, monkeypatch, engine):
        def refuse(aside, out, names):
            raise StorageError(5, f"cannot sync {aside}")

        monkeypatch.setattr(publish.files, "publish_all", refuse)
        with pytest.raises(StorageError, match="cannot sync"):
            dlio.pack(image_folder(photos), tmp_path / "out", num_shards=3, engine=engine)
        assert [path.name for path in (tmp_path / "out").iterdir()] == [PARTIAL_NAME]
        assert not (tmp_path / "out" / ASIDE).exists()


@pytest.mark.parametrize("seconds", [SLOW, FAST])
def test_verify_names_the_same_damage_in_the_same_order(photos, tmp_path, seconds):
    with storage(seconds):
        packed = dlio.pack(image_folder(photos), tmp_path / "out", num_shards=12, engine="serial")
        for number in (3, 8):
            path = tmp_path / "out" / packed.shards[number].files[0].name
            data = bytearray(path.read_bytes())
            data[200] ^= 1
            path.write_bytes(data)
        found = verify(packed, workers=1)
    assert list(dict.fromkeys(damage.shard for damage in found)) == ["shard-000003", "shard-000008"]
