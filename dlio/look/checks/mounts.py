"""Storage of centres that is mounted here, or named by the scheduler: what each is, and what it is good for with dlio.

The types are those of /proc/self/mountinfo. DAOS: https://docs.daos.io (dfuse, interception library). BeeOND:
https://doc.beegfs.io, and https://www.nhr.kit.edu/userdocs/horeka/batch_slurm_beeond. DataWarp: Cray S-2558, its
variables. Copper: https://docs.alcf.anl.gov/aurora/data-management/copper. Burst buffers: Frontier's user guide.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from dlio.io.filesystems import local_folders, mounts
from dlio.look.checks.finding import Finding, State, judged

_INTERCEPTS = re.compile(r"lib(pil4dfs|ioil)\.so")  # in LD_PRELOAD: DAOS's libraries, all calls, or reads and writes
_BEEOND = re.compile(r"beeond|/mnt/odfs(/|$)")
_COPPER = re.compile(r"cu_fuse|copper")
_SQUASHFS = re.compile(r"squashfs|fuse\.squashfuse(_ll)?")
_MOST_SHOWN = 3
_ON_NODES = "/mnt/bb"  # OLCF's NVMe of each node, with a folder for each user


def mounted(check: str) -> Iterator[Finding]:
    """DAOS, BeeOND, DataWarp, burst buffers, Copper and SquashFS, where they are mounted."""
    found = list(mounts(Path("/proc/self/mountinfo").read_text(errors="surrogateescape")))
    seen = list(of_mounts(check, found, os.environ))
    seen += _burst_buffer(check, Path(_ON_NODES, os.environ.get("USER", "")))
    yield from seen or [Finding(check, State.GOOD, "none of DAOS, BeeOND, DataWarp, Copper, SquashFS")]


def of_mounts(check: str, found: list[tuple[str, str]], environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yields what is found in mounts, by type and folder, and in a job's variables."""
    for kind, folder in found:
        if kind == "fuse.daos" or "dfuse" in kind:
            yield _daos(check, folder, environment)
        elif kind.startswith("beegfs") and _BEEOND.search(folder):
            advice = f"dlio stage DATASET {folder} --allow-shared: one copy there is read by all nodes of the job"
            yield Finding(check, State.GOOD, f"BeeOND at {folder}, shared by this job's nodes: {advice}")
        elif kind.startswith("fuse") and (_COPPER.search(kind) or _COPPER.search(folder)):
            use = (
                "use it for environments and libraries; read data sets at their own paths: dlio reads a shard once a "
                "job"
            )
            yield Finding(check, State.GOOD, f"Copper at {folder}, a read-only cache: {use}")
    for name in sorted(environment):
        if re.fullmatch(r"DW_(JOB|PERSISTENT)_(PRIVATE|STRIPED)\w*", name):
            shared = "" if "PRIVATE" in name else " --allow-shared"
            advice = f"dlio stage DATASET {environment[name]}{shared}"
            yield Finding(check, State.GOOD, f"DataWarp at {environment[name]} ({name}): {advice}")
    images = [folder for kind, folder in found if _SQUASHFS.fullmatch(kind)]
    if images:
        more = f" and {len(images) - _MOST_SHOWN} more" if len(images) > _MOST_SHOWN else ""
        advice = "dlio index FOLDER --format squashfs reads such images without their mount"
        yield Finding(check, State.GOOD, f"SquashFS at {', '.join(images[:_MOST_SHOWN])}{more}: {advice}")


def _daos(check: str, folder: str, environment: Mapping[str, str]) -> Finding:
    library = _INTERCEPTS.search(environment.get("LD_PRELOAD", ""))
    found = f"DAOS at {folder}, by dfuse, {f'with {library[0]}' if library else 'without its interception library'}"
    advice = (
        "reads go through the kernel: export LD_PRELOAD=/usr/lib64/libpil4dfs.so (or libioil.so) before the training"
    )
    return judged(check, found, not library, advice)


def _burst_buffer(check: str, folder: Path) -> Iterator[Finding]:
    """The burst buffer of this node, if stage would not find it by itself."""
    if folder.is_dir() and os.access(folder, os.W_OK):
        known = any(Path(each) == folder for _, each in local_folders())
        advice = f"stage does not find it by itself: dlio stage DATASET {folder}, or export TMPDIR={folder}"
        yield judged(check, f"{folder}, this node's burst buffer", not known, advice)
