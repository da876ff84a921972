"""Limits of the system: the error names the limit, and dlio works with fewer threads if it can."""

from __future__ import annotations

import io
import multiprocessing.popen_fork
import multiprocessing.queues
import multiprocessing.synchronize  # noqa: F401  loaded while their files can be read
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import dlio
from dlio.cli import main
from dlio.cluster.topology import Topology
from dlio.errors import MissingError, StorageError
from dlio.executors import processes
from dlio.io import files, limits, world
from dlio.io.threads import Threads
from dlio.locking.owner import node_id
from dlio.stage.client.start import Task
from dlio.stage.engine import __main__ as agent
from tests.helpers.forked import Forked
from tests.helpers.images import make_image_folder
from tests.helpers.staging import damaged_files, write_dataset
from tests.helpers.users import as_user, open_to_all

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root is needed to become a user with a limit")


def limited(num_tasks: int, function: Callable[[], object]) -> int:
    """Returns the exit code of a process of a user who may run that number of threads and processes."""

    def child() -> None:
        signal.alarm(60)
        resource.setrlimit(resource.RLIMIT_NPROC, (num_tasks, num_tasks))
        function()

    return as_user(300_000 + os.getpid(), child)  # who runs nothing else


@as_root
def test_fewer_threads_do_all_the_work():
    def work() -> None:
        with Threads(8, "dlio-test") as threads:
            assert 0 < len(threads._threads) < 8
            assert threads.each(lambda number: 2 * number, range(100)) == list(range(0, 200, 2))

    assert limited(3, work) == 0


@as_root
def test_the_first_thread_that_cannot_start_names_the_limit():
    def work() -> None:
        for start in (lambda: Threads(8, "dlio-test"), lambda: world.start(print, "dlio-test")):
            with pytest.raises(MissingError, match=r"^cannot start a thread: user \d+ may run 1 .*\(ulimit -u\)"):
                start()

    assert limited(1, work) == 0


@as_root
@pytest.mark.parametrize("num_tasks", [1, 2, 3, 4], ids="{} tasks".format)
def test_workers_that_cannot_start_end_the_run_with_the_limit(num_tasks):
    def work() -> None:
        with pytest.raises(MissingError, match=r"worker process.*\(ulimit -u\)"), processes.open(2, None) as pool:
            pool.executor.submit(os.getpid).result()

    assert limited(num_tasks, work) == 0


@as_root
@pytest.mark.parametrize("num_tasks", [3, 5, 8], ids="{} tasks".format)
def test_staging_goes_on_with_few_threads_or_names_the_limit(tmp_path, num_tasks):
    base, source = open_to_all(tmp_path), write_dataset(tmp_path / "in", [1000] * 3)
    for path in (tmp_path / "in").iterdir():
        path.chmod(0o644)
    dlio.stage(tmp_path / "in", tmp_path / "first")  # loads the modules while their files can be read
    results = []

    def work() -> None:
        try:
            assert not damaged_files(dlio.stage(tmp_path / "in", base / "dest").root, source)
        except MissingError as error:
            assert "(ulimit -u)" in str(error)
            os._exit(5)

    results.append(limited(num_tasks, work))
    assert results in ([0], [5])
    assert num_tasks < 8 or results == [0]
    if results == [5]:
        assert limited(50, work) == 0  # nothing is left that stands in its way


@as_root
def test_an_agent_that_cannot_start_its_process_names_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(
        sys, "stdin", io.StringIO(Task("/in", tmp_path, "replicate", Topology(0, 1, 0, 1, 0, 1)).to_json())
    )
    reader, writer = os.pipe()

    def work() -> None:
        os.dup2(writer, 1)
        agent.main()

    try:
        assert limited(1, work) == MissingError.exit_code
        assert os.read(reader, 4096).startswith(b"0 cannot start its process: user")
    finally:
        os.close(reader)
        os.close(writer)


def test_a_thread_that_does_not_fit_into_memory_names_that_limit():
    def work() -> None:
        room = limits._used_bytes() + (64 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
        with pytest.raises(MissingError, match=r"cannot start a thread: this process addresses .* \(ulimit -v\)"):
            for _ in range(100):
                world.start(threading.Event().wait, "dlio-test")

    assert Forked(work).wait() == 0


def test_too_many_open_files_name_the_limit_and_the_file(tmp_path):
    (tmp_path / "file").touch()

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        with pytest.raises(StorageError, match=r"cannot read .*/file: Too many open files: this process may open 3 "):
            files.read_regular(tmp_path / "file", 10)
        with pytest.raises(MissingError, match=r"boot id .*: this process may open 3 files \(ulimit -n\)"):
            node_id()

    assert Forked(work).wait() == 0


COMMAND = """
import resource, sys
import numpy, dlio.executors.processes, dlio.cli.verify, dlio.formats.tfrecord
from dlio.cli import main
resource.setrlimit(resource.{kind}, ({limit}, {limit}))
sys.exit(main(["verify", {path!r}]))
"""


@pytest.mark.parametrize(
    ("kind", "limit", "says"),
    [("RLIMIT_NOFILE", "12", "(ulimit -n)"), ("RLIMIT_AS", "60 << 20", "(ulimit -v)")],
    ids=["files", "memory"],
)
def test_a_command_names_the_limit_and_prints_no_traceback(tmp_path: Path, kind, limit, says):
    write_dataset(tmp_path / "in", [1000, 10])
    script = COMMAND.format(kind=kind, limit=limit, path=str(tmp_path / "in"))
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ran.returncode in (4, 5) and "Traceback" not in ran.stderr
    assert says in ran.stderr and "the report" not in ran.stderr


def test_a_limit_of_open_files_is_never_called_damage(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make_image_folder(tmp_path / "photos", {"cat": 2})
    assert main(["pack", str(tmp_path / "photos"), str(tmp_path / "in")]) == 0
    assert main(["verify", str(tmp_path / "in")]) == 0  # loads what a process at its limit cannot
    first = os.dup(0)
    os.close(first)

    def work(limit: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        os._exit(main(["verify", str(tmp_path / "in"), "--quiet"]))

    codes = {Forked(partial(work, limit)).wait() for limit in range(first + 4, first + 20)}
    assert codes == {0, 4, 5}
    assert "damaged" not in (said := capfd.readouterr().err)
    assert said.count("(ulimit -n)") == said.count("dlio: ")


def test_cores_are_within_the_affinity_mask():
    assert 1 <= limits.num_usable_cores() <= len(os.sched_getaffinity(0))


def test_a_process_bound_to_one_core_has_one():
    core = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{core}]); from dlio.io import limits"
    code += "; print(limits.num_usable_cores())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"
