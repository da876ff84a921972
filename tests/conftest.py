"""Rules for every test: it leaves no thread and no open file."""

from __future__ import annotations

import fcntl
import gc
import importlib
import os
import re
import signal
import struct
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest
from hypothesis import HealthCheck, settings

from dlio.io import filesystems
from dlio.stage.copies import locations
from tests.helpers.images import make_image_folder
from tests.helpers.lazy import Lazy
from tests.helpers.rounds import NOTHING_IS_SKIPPED, ROUNDS
from tests.helpers.slow_source import slow_mounts

# Neither timing nor chance decides a test; no fixture of these tests keeps the state of an example.
_UNHELPFUL = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture]
settings.register_profile("dlio", max_examples=30 * ROUNDS, deadline=None, suppress_health_check=_UNHELPFUL)
settings.load_profile("dlio")
# Triton comes with torch's builds for GPUs; imported after TensorFlow, it aborts the process (seen on Python 3.13).
sys.modules["triton"] = None  # type: ignore[assignment]
os.environ["OMP_NUM_THREADS"] = "1"  # else torch's threads wait for each other without sleeping
gc.disable()  # while tests are collected: of thousands of objects for each, none is garbage
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and their children, ignore it

_JOIN_SECONDS = 5
_LONG = ("tests/tools/test_chaos.py", "tests/examples/")
_FRAMEWORKS = {"jax", "keras", "tensorflow", "torch"}
_USE_FRAMEWORKS = ("tests/test_document_examples.py", "tests/conformance/test_live.py::test_torchs_worker_processes")
#: Reasons other than a missing tool: a GPU, the kernel, rounds, large packages, a case that does not apply.
_MAY_BE_SKIPPED = re.compile(
    r"GPU|the kernel|make soak|No module named '(datasets|litdata|horovod)|aarch64|libdeflate|brings libjpeg"
    r"|has no index|ustar|refused: see|opens its file itself|is its contract|takes long|the cluster decides"
)
_OF_THE_SYSTEM = ("/dev/", "/proc/", "/sys/", "/memfd:")
_GET_FLAGS, _SET_FLAGS, _TOP_FOLDER = 0x80086601, 0x40086602, 0x20000  # FS_IOC_*FLAGS and FS_TOPDIR_FL of linux/fs.h


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests that take a minute first, so that no processor waits for one of them in the end.

    Then come those of frameworks, so that few of pytest's processes import them: it takes 20 s in all, and makes each
    fork slower.
    """
    items.sort(key=lambda item: 0 if item.nodeid.startswith(_LONG) else 1 if _uses_a_framework(item) else 2)


def _uses_a_framework(item: pytest.Item) -> bool:
    if item.nodeid.startswith(_USE_FRAMEWORKS):
        return True
    module = vars(item.module) if isinstance(item, pytest.Function) else {}
    return "tf" in getattr(item, "fixturenames", ()) or any(isinstance(value, Lazy) for value in module.values())


def pytest_collection_finish() -> None:
    """Exempts loaded objects from garbage collection: each run would scan them, and each child would copy them."""
    if found := _FRAMEWORKS & sys.modules.keys():
        raise pytest.UsageError(f"{found} was imported while tests were collected: take tests/helpers/lazy.py for it")
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fails a skipped test if no test may be skipped."""
    report = yield
    _forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fails a skipped module if no module may be skipped."""
    report = yield
    _forbid_skip(report)
    return report


def _forbid_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if NOTHING_IS_SKIPPED and isinstance(report.longrepr, tuple) and not _MAY_BE_SKIPPED.search(report.longrepr[2]):
        report.outcome, report.longrepr = "failed", f"{report.longrepr[2]}; DLIO_TEST_ALL=1 allows no such skip"


@pytest.fixture(autouse=True, scope="session")
def folders_lie_apart(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Has ext4 spread the folders of tests over the disk, as chattr(1) does with +T.

    For each new file, ext4 without a journal passes all inodes nearby that were deleted in the last minutes: thousands,
    and 0.3 ms of CPU time, if all tests work in one place.
    """
    folder = os.open(tmp_path_factory.getbasetemp(), os.O_RDONLY)
    with suppress(OSError):  # another file system
        (flags,) = struct.unpack("l", fcntl.ioctl(folder, _GET_FLAGS, bytes(8)))
        fcntl.ioctl(folder, _SET_FLAGS, struct.pack("l", flags | _TOP_FOLDER))
    os.close(folder)


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Fails a test after which threads run, or files are open, that were not before.

    A module whose framework keeps its own threads overrides this fixture and says why.
    """
    threads = set(threading.enumerate())
    files = _open_files()
    yield
    for thread in set(threading.enumerate()) - threads:
        thread.join(_JOIN_SECONDS)
    left = [thread.name for thread in set(threading.enumerate()) - threads]
    assert not left, f"threads left behind: {left}"
    if _open_files() - files:
        gc.collect()
        assert not _open_files() - files, "files left open"


@pytest.fixture(autouse=True)
def nothing_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets fsync fail only where a descriptor is bad: tens of thousands of calls take minutes, but in `make soak`.

    A module that cuts the power overrides this fixture; processes that tests start do sync.
    """
    for name in ("fsync", "fdatasync") if ROUNDS == 1 else ():
        monkeypatch.setattr(os, name, os.fstat)
    if ROUNDS == 1:
        monkeypatch.setattr(filesystems, "syncfs", os.fstat)


@pytest.fixture(autouse=True)
def nothing_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the list of folders that were staged to, and the rates measured, in the test's own folder."""
    monkeypatch.setattr(locations, "LISTED_AT", tmp_path)
    monkeypatch.setenv("DLIO_RATES", str(tmp_path / "no-rates.json"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of 36 PNGs in the classes cat, dog and owl."""
    make_image_folder(tmp_path / "photos", {"dog": 11, "cat": 16, "owl": 9})
    return tmp_path / "photos"


@pytest.fixture
def slow_source(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts a view of a folder through benchmarks/slow_source.py, with its options."""
    try:
        importlib.import_module("mfusepy")
    except (ImportError, OSError) as error:  # OSError if it finds no libfuse
        pytest.skip(f"needs mfusepy and libfuse, pip install mfusepy and apt-get install fuse3: {error}")
    with slow_mounts(tmp_path) as mount:
        yield mount


@pytest.fixture(scope="module")
def tf() -> ModuleType:
    """TensorFlow; its test modules override `leaves_nothing_behind`."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own, while it is imported
        return cast(ModuleType, pytest.importorskip("tensorflow"))


def _open_files() -> set[tuple[str, str]]:
    """Returns descriptor and path of each open file; pipes, sockets, devices and loaded libraries are not counted."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208  pathlib takes five times as long, for each test
        try:
            path = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
        except FileNotFoundError:  # the descriptor of this very listing
            continue
        if path.startswith("/") and not path.startswith(_OF_THE_SYSTEM) and "site-packages" not in path:
            found.add((descriptor, path))
    return found
