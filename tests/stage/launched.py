"""Processes with their own host names, which stand for nodes: they meet by MPI, or in a folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dlio.dataset.manifest import Manifest
from dlio.io.world.own_address import INTERFACE
from dlio.stage import strategies
from dlio.stage.meeting.folder import MEET
from tests.helpers import fork_server

MPIEXEC = Path(sys.executable).with_name("mpiexec")
SCRIPT = Path(__file__).with_name("broadcast_rank.py")
HAS_NODES = subprocess.run(["unshare", "-u", "true"], check=False, capture_output=True).returncode == 0
needs_mpiexec = pytest.mark.skipif(
    not (MPIEXEC.exists() and HAS_NODES), reason="needs mpiexec, and root for host names"
)


#: What the processes that meet in a folder have in common.
_IMPORTED = ("dlio.stage.run", *(f"dlio.stage.strategies.{name}" for name in strategies.names()))


class Cluster:
    """Starts the processes of some nodes, which meet by MPI or in a folder, and reads what they say."""

    def __init__(self, tmp_path: Path, transport: str) -> None:
        self.transport = transport
        self.dest = tmp_path / "local"
        self.log = tmp_path / "log"
        self.log.mkdir()

    def start(
        self, root: Path, nodes: int, *, per_node: int = 1, fault: str = "", options: tuple[str, ...] = ()
    ) -> subprocess.Popen[str] | fork_server.Job:
        """Returns the running mpiexec, or what started the processes as torchrun's agents would."""
        shutil.rmtree(self.log)
        self.log.mkdir()
        arguments = [str(root), str(self.dest), str(self.log), *fault.split()]
        size = nodes * per_node
        environ = {name: value for name, value in os.environ.items() if name != "DLIO_LAUNCHER"}
        environ[INTERFACE] = "127.0.0.1"
        environ[MEET] = str(self.log.parent / ("nowhere" if self.transport == "mpi" else "meet"))
        if self.transport == "folder":
            script = SCRIPT.with_name("folder_ranks.py")
            return fork_server.start(_IMPORTED, script, [str(size), str(per_node), *arguments], self.log, environ)
        named = f'hostname node$((PMI_RANK / {per_node})); exec "$0" "$@"'
        command = [str(MPIEXEC), *options, "-n", str(size), "unshare", "-u", "sh", "-c", named]
        command += [sys.executable, str(SCRIPT), *arguments]
        return subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, root: Path, nodes: int, **options: Any) -> dict[str, Any]:
        """Returns what each process reported, by `<host>.<rank>`."""
        mpiexec = self.start(root, nodes, **options)
        said = mpiexec.communicate()
        reports = self.reports()
        assert len(reports) == nodes * options.get("per_node", 1), said
        return reports

    def reports(self) -> dict[str, Any]:
        return {path.stem: json.loads(path.read_text()) for path in sorted(self.log.glob("node*.json"))}

    def staged(self, source: Manifest, node: int) -> Manifest:
        return Manifest.load(self.dest / f"node{node}" / "dlio" / source.content_id)


def is_running(pid: int) -> bool:
    """Returns whether a process is there that has not ended, though its parent may not know yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # which it is depends on when it goes
        return False
