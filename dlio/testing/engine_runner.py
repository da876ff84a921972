"""Runs commands and scenarios over one engine, and finds the processes that it left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dlio.dataset import seal
from dlio.dataset.manifest import PARTIAL_NAME

SCENARIOS = Path(__file__).with_name("engine_scenarios.py")
Results = dict[str, Any]  # of scenarios by name, from JSON
SECONDS = 120  # a run takes less than a tenth of it


@dataclass(frozen=True)
class EngineRunner:
    """Starts commands with an engine of two workers, whose processes can be found by a mark in their environment.

    Attributes:
        name: the engine, as `--engine` takes it.
        address: a cluster that runs already.
        launcher: a command that starts a number of processes, such as ("mpiexec", "-n"); one of them is not a worker.
        in_caller: tasks run in the calling process.
        one_at_a_time: it has one worker, however many are asked for.
        ends_late: the engine's own processes may end a minute after the run.
        variables: added to the environment.
        mark: finds the processes.
    """

    name: str
    address: str = ""
    launcher: tuple[str, ...] = ()
    in_caller: bool = False
    one_at_a_time: bool = False
    ends_late: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def command(self, *arguments: object, workers: int = 2) -> list[str]:
        """Returns the command line of a Python script or module."""
        processes = [*self.launcher, str(workers + 1)] if self.launcher else []
        return [*processes, sys.executable, *map(str, arguments)]

    def workers(self, workers: int) -> str:
        """Returns the number that is passed on; nothing where the launcher or a cluster decides."""
        return "" if self.launcher or self.address else str(workers)

    def alone(self) -> EngineRunner:
        """Returns a runner whose processes are all its own: it uses no cluster that runs already."""
        return replace(self, address="", variables={}, mark=uuid.uuid4().hex)

    def pack_command(self, source: Path, out: Path, *options: str, workers: int = 2) -> list[str]:
        """Returns the command line of `dlio pack`."""
        number = self.workers(workers)
        chosen = ["--engine", self.name, *(["--workers", number] if number else [])]
        chosen += ["--engine-address", self.address] if self.address else []
        return self.command("-m", "dlio", "pack", source, out, "--quiet", *chosen, *options, workers=workers)

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end."""
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=self.environ())

    def scenario(self, names: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Runs scenarios of engine_scenarios.py, with commas between their names."""
        return self.run(self.command(SCENARIOS, names, self.name, self.workers(2), self.address, folder))

    def results(self, names: str, folder: Path) -> Results:
        """Returns the results of scenarios by their names; they must end well."""
        done = self.scenario(names, folder)
        assert done.returncode == 0, done.stderr
        found: Results = json.loads((folder / "result.json").read_text())
        return found

    def environ(self) -> dict[str, str]:
        """Returns the environment of the processes."""
        return {**os.environ, **self.variables, "DLIO_TEST_MARK": self.mark, "UCX_LOG_LEVEL": "error"}

    def processes(self) -> dict[int, str]:
        """Returns the command lines of all processes that bear the mark."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if f"DLIO_TEST_MARK={self.mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # it has ended, or is a zombie
                continue
        return found

    def assert_nothing_runs(self, but: str = "nothing") -> None:
        """Waits for the last processes to end, except for those with this in their name, and fails if some do not."""
        deadline = time.monotonic() + 30
        while (left := [line for line in self.processes().values() if but not in line]) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert left == []


def finished(out: Path) -> list[str]:
    """Returns the lines of the shards that an unfinished pack has finished."""
    path = out / PARTIAL_NAME
    lines = seal.sealed_singly(path.read_bytes(), path) if path.exists() else []
    return [line.decode().rstrip() for line in lines[1:]]


def identities(out: Path) -> dict[str, tuple[int, int]]:
    """Returns what changes when a file is written again, for each file of a shard."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in out.glob("shard*")}


def wait_for_shards(out: Path, number: int, run: subprocess.Popen[bytes]) -> None:
    """Returns once a running pack has finished `number` shards."""
    deadline = time.monotonic() + SECONDS
    while len(finished(out)) < number:
        assert run.poll() is None, "the run ended before it could be stopped"
        assert time.monotonic() < deadline
        time.sleep(0.005)
