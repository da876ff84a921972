"""A view of the checkout in which one module is another: a folder of links, where tests run.

Nothing is written to the checkout. The view lies on PYTHONPATH, so that `sitecustomize.py` in it reaches each Python
that the tests start, and a test that puts its own root on the path puts the view there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dlio.io.filesystems import mounts
from tools.mutants.mutation import ROOT, Mutation

_NOT_LINKED = {".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "sitecustomize.py"}  # tests write there


class StoppedError(Exception):
    """The view is not to be used any more."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a run of pytest has shown.

    Attributes:
        code: its exit code; None if it was killed since it took too long.
        outcomes: "passed", "failed" or "skipped" for each test that ran.
        is_loaded: whether a process has run the mutated module.
        seconds: how long it took.
        said: what it printed.
    """

    code: int | None
    outcomes: dict[str, str]
    is_loaded: bool
    seconds: float
    said: str

    @property
    def failed(self) -> list[str]:
        """The tests that failed."""
        return [test for test, outcome in self.outcomes.items() if outcome == "failed"]


class View:
    """A folder of links to the entries of the checkout; used by one thread, and stopped by any."""

    def __init__(self, path: Path) -> None:
        """Makes the folder, in which processes of other users can load the module, too."""
        self.path = path
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._is_stopped = False
        self._runs = 0
        path.mkdir(mode=0o755)
        path.chmod(0o755)
        for entry in ROOT.iterdir():
            if entry.name not in _NOT_LINKED:
                (path / entry.name).symlink_to(entry)
        shutil.copyfile(Path(__file__).with_name("sitecustomize.py"), path / "sitecustomize.py")

    def run(self, tests: list[str], mutation: Mutation | None, seconds: float, *, first_only: bool) -> Run:
        """Runs tests with a mutation, or without one; ends them and what they have started after some seconds.

        Args:
            tests: files or tests.
            mutation: what is changed.
            seconds: how long they may take.
            first_only: end with the first that fails.

        Raises:
            StoppedError: `stop` was called.
        """
        self.prepare(mutation)
        outcomes, said, began = self.path / "outcomes", self.path / "said", time.monotonic()
        outcomes.unlink(missing_ok=True)
        self._runs += 1
        folder = self.path / f"t{self._runs}"  # of their own: a killed test can leave a mount that nobody can delete
        command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-c", "pyproject.toml", "--rootdir", "."]
        command += ["-p", "no:cacheprovider", "-p", "tools.mutants.outcomes", f"--basetemp={folder}"]
        command += ["--assert=plain"]  # with $CI set, pytest compares values of some MB for minutes to explain them
        command += [*["-x"][:first_only], *tests]
        environ = os.environ | {"PYTHONPATH": str(self.path), "DLIO_OUTCOMES": str(outcomes)}
        with said.open("wb") as out:
            with self._lock:
                if self._is_stopped:
                    raise StoppedError
                process = self._running = subprocess.Popen(
                    command, cwd=self.path, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                    start_new_session=True,
                )  # fmt: skip
            try:
                code: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            self._end()
        clear(folder)
        found = _read(outcomes)
        return Run(code, found, self.is_loaded, time.monotonic() - began, said.read_text(errors="replace"))

    @property
    def is_loaded(self) -> bool:
        """Whether a process has run the mutated module since `prepare`."""
        return any((self.path / "loaded").iterdir())

    def stop(self) -> None:
        """Ends the tests that run, and lets none begin."""
        self._is_stopped = True
        self._end()

    def _end(self) -> None:
        """Ends pytest, and what tests have left running."""
        with self._lock:
            process, self._running = self._running, None
            if process is not None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def prepare(self, mutation: Mutation | None) -> None:
        """Makes each Python that starts with this folder on its path run a mutation, or none."""
        shutil.rmtree(self.path / "loaded", ignore_errors=True)
        (self.path / "loaded").mkdir()
        (self.path / "loaded").chmod(0o1777)
        target = self.path / "mutant.json"
        target.unlink(missing_ok=True)
        if mutation:
            target.write_text(json.dumps({"module": mutation.module, "text": mutation.text()}))


def clear(folder: Path) -> None:
    """Removes a folder, but nothing of what killed tests have left mounted in it, which may lie elsewhere or hang."""
    for mount in reversed(_mounts_below(folder)):
        subprocess.run(["umount", "--lazy", mount], stderr=subprocess.DEVNULL, check=False)
    if not _mounts_below(folder):
        shutil.rmtree(folder, ignore_errors=True)


def _mounts_below(folder: Path) -> list[str]:
    listed = mounts(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    return [mount for _, mount in listed if mount.startswith(f"{folder.resolve()}/")]


def _read(path: Path) -> dict[str, str]:
    """Returns the outcome of each test; one that failed in any phase has failed."""
    found: dict[str, str] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        test, outcome = json.loads(line)
        found[test] = "failed" if "failed" in (outcome, found.get(test)) else outcome
    return found
