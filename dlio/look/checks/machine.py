"""Checks of the processor, the memory, the packages and the job."""

from __future__ import annotations

import os
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from dlio import native
from dlio.cluster.launchers import LAUNCHERS
from dlio.cluster.topology import Topology
from dlio.errors import DISTRIBUTION, all_requirements
from dlio.io.filesystems import memory_left
from dlio.io.sizes import counted, format_size
from dlio.loaders.sampling.rank import num_cores_of_rank
from dlio.look.checks.finding import Finding, State, judged

_FEW_BYTES = 2 << 30  # the loaders of a rank keep some hundred MB, the training much more
_FEW_FILES = 4096  # the loaders keep a quarter of these open as shards
_MPI_SECONDS = 10.0
_MPI = "from mpi4py import MPI; print(MPI.Get_library_version().split(chr(10))[0].strip(chr(0)))"


def core(check: str) -> Iterator[Finding]:
    """Whether the compiled core is installed, the instructions that it uses, and the images that it decodes."""
    if not native.available:
        found = "no compiled core: Pillow decodes, Python does the rest"
        yield Finding(check, State.CHANGE, found, str(native.missing("decoding")))
        return
    flags = Path("/proc/cpuinfo").read_text()
    used = "AVX2" if re.search(r"\bavx2\b", flags) else "no AVX2"
    slow = platform.machine() == "x86_64" and used != "AVX2"
    advice = "decoding takes up to twice as long without AVX2: use newer nodes"
    yield judged(check, f"compiled core, {platform.machine()}, {used}", slow, advice)
    for image, there in (("JPEG", native.decodes_jpeg), ("PNG", native.decodes_png)):
        advice = str(native.missing(f"decoding {image}s fast", image))
        yield judged(check, f"{image}s are decoded by {'the core' if there else 'Pillow'}", not there, advice)


def packages(check: str) -> Iterator[Finding]:
    """The packages of the extras."""
    lines = [re.match(r"([\w.-]+)[^;]*; extra == ['\"](\w+)['\"]", line) for line in all_requirements()]
    extras = {line[1]: line[2] for line in reversed(lines) if line and line[2] not in ("all", "test")}
    versions = {name: _version(name) for name in sorted(extras) if name != DISTRIBUTION}
    there = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    absent = ", ".join(f"{name} ({extras[name]})" for name, version in versions.items() if not version)
    yield Finding(check, State.GOOD, f"{there or 'none'}{f'; not installed: {absent}' if absent else ''}")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def launcher(check: str) -> Iterator[Finding]:
    """The launcher, and the place of this process in the job."""
    job = Topology.from_env()
    nodes = f" on {job.num_nodes} nodes" if job.num_nodes and job.num_nodes > 1 else ""
    yield Finding(check, State.GOOD, f"{job.launcher}: rank {job.rank} of {job.world_size}{nodes}")


def cores(check: str) -> Iterator[Finding]:
    """The cores that this rank may use, against those of the node."""
    mine, all_cores, ranks = num_cores_of_rank(), os.cpu_count() or 1, Topology.from_env().local_world_size or 1
    advice = f"ask for more, such as srun --cpus-per-task={all_cores // ranks}, or mpiexec --bind-to none"
    found = f"{mine} of {all_cores} for this rank, {counted(ranks, 'rank')} on this node"
    yield judged(check, found, mine * ranks <= all_cores // 2, advice)


def memory(check: str) -> Iterator[Finding]:
    """The memory that is left to this job, by the machine and its control groups."""
    left = memory_left()
    advice = "ask the scheduler for more, or stage to a disk instead of a folder in memory"
    yield judged(check, f"{format_size(left)} left to this job", left < _FEW_BYTES, advice)


def open_files(check: str) -> Iterator[Finding]:
    """How many files this process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft != resource.RLIM_INFINITY and soft < _FEW_FILES
    most = "unlimited" if hard == resource.RLIM_INFINITY else hard
    found = f"{'unlimited' if soft == resource.RLIM_INFINITY else soft}, at most {most}"
    yield judged(check, found, few, f"data sets of many shards read faster with more: ulimit -n {most}")


def mpi(check: str) -> Iterator[Finding]:
    """Whether MPI starts, in its own process that knows nothing of the job."""
    of_jobs = {name for launcher in LAUNCHERS for name in launcher.names()}
    environ = {name: value for name, value in os.environ.items() if name not in of_jobs and name[:3] != "PMI"}
    if not _version("mpi4py"):
        yield Finding(check, State.GOOD, "not installed: nodes that broadcast meet in a folder instead")
        return
    command = [sys.executable, "-c", _MPI]
    advice = "load an MPI module and build mpi4py with its mpicc: pip install --no-binary mpi4py mpi4py"
    try:
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=_MPI_SECONDS, stdin=subprocess.DEVNULL
        )
        said = (done.stderr if done.returncode else done.stdout).strip().splitlines() or ["it says nothing"]
        yield judged(check, said[-1], done.returncode != 0, advice)
    except subprocess.TimeoutExpired:
        yield Finding(check, State.CHANGE, f"it does not start within {_MPI_SECONDS:g} s", advice)
