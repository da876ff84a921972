"""Nodes broadcast over MPI, and one of them, or mpiexec itself, is killed or hangs: all processes end."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

from dlio.cluster import liveness
from dlio.dataset.manifest import Manifest
from dlio.stage.meeting.peer import LATE_SECONDS
from tools.chaos import oracle
from tools.chaos.linux import MPIEXEC
from tools.chaos.patience import until
from tools.chaos.process import DLIO, Process
from tools.chaos.scene import LIMIT_SECONDS, Scene
from tools.chaos.violation import Violation

NEEDS = ("root", "mpiexec (mpich, mpi4py)")
#: How long the others wait for a rank that they have not seen yet, or that is silent, on a loaded machine.
_LOST_SECONDS = LATE_SECONDS + liveness.LOST_SECONDS + 20.0
#: A rank, with its own host name; it ignores SIGUSR1, by which Hydra says that another one has ended.
_RANK = (
    'hostname node$PMI_RANK; trap "" USR1; folder=$1; shift; echo $$ >$folder/$PMI_RANK.pid; '
    'exec "$@" $folder/node$PMI_RANK'
)


def play(scene: Scene) -> None:
    """Broadcasts under a fault, then once more."""
    source, size = scene.source(), scene.choose.randint(2, 4)
    job = _start(scene, source, size)
    _wait_for_blocks(scene, job)
    scene.choose.choice((_mpiexec_ends, _rank_ends, _rank_ends))(scene, job, size)
    _check(scene, source, job)
    job = _start(scene, source, size)
    if job.wait(LIMIT_SECONDS):
        raise Violation(f"{job} should succeed{job.tail()}")
    _check(scene, source, job)
    for number in range(size):
        oracle.check_whole(next(oracle.copies(scene.folder / f"node{number}", source)), source)


def _start(scene: Scene, source: Manifest, size: int) -> Process:
    words = [*DLIO, "stage", "--strategy", "broadcast", str(source.root)]
    options = [str(MPIEXEC), "-disable-auto-cleanup", "-n", str(size), "unshare", "-u", "sh", "-c", _RANK, "sh"]
    return scene.serve([*options, str(scene.folder), *words], SLURM_JOB_ID="broadcast")


def _wait_for_blocks(scene: Scene, job: Process) -> None:
    if not until(lambda: any(scene.folder.glob("node*/dlio/*/.dlio/live/files/*")) or job.has_ended(), LIMIT_SECONDS):
        raise Violation(f"the broadcast does not begin{job.tail()}")
    time.sleep(scene.choose.uniform(0, scene.world.stage_seconds))


def _mpiexec_ends(scene: Scene, job: Process, size: int) -> None:
    job.send(scene.choose.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGINT)))
    job.wait(_LOST_SECONDS)
    ranks = [_pid(scene, number) for number in range(size)]
    if not until(lambda: not any(map(_runs, ranks)), _LOST_SECONDS):
        raise Violation(f"ranks outlive {job}{job.tail()}")


def _rank_ends(scene: Scene, job: Process, size: int) -> None:
    """Kills or stops a rank; the others do not wait for it."""
    victim = scene.choose.randrange(size)
    with suppress(ProcessLookupError):
        os.kill(_pid(scene, victim), scene.choose.choice((signal.SIGKILL, signal.SIGSTOP)))
    others = [_pid(scene, number) for number in range(size) if number != victim]
    if not until(lambda: not any(map(_runs, others)), _LOST_SECONDS):
        raise Violation(f"ranks wait forever for the lost node{victim}{job.tail()}")
    with suppress(ProcessLookupError):
        os.kill(_pid(scene, victim), signal.SIGKILL)
    job.wait(_LOST_SECONDS)
    if "lost" in job.said() and f"node{victim}" not in job.said():
        raise Violation(f"the lost node{victim} is not named{job.tail()}")


def _pid(scene: Scene, number: int) -> int:
    return int((scene.folder / f"{number}.pid").read_text())


def _runs(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def _check(scene: Scene, source: Manifest, job: Process) -> None:
    if re.search(r"^Traceback", job.said(), re.MULTILINE):
        raise Violation(f"{job} shows a traceback{job.tail()}")
    for folder in scene.folder.glob("node*"):
        oracle.check_copies(folder, source)
