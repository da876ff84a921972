"""Stripe: the nodes together copy the data set into a folder of the shared file system, striped for fast reading.

Each node copies its share, and then what other nodes have left of theirs (dlio/stage/engine/shared.py).

Cost of S bytes on N nodes, with the rates of `Machine`: 2 max(S / source, S / (N client)), since the data set is read
from and written to the shared file system; more if the files leave some of its storage targets unused.

A Lustre layout is fixed when a file is created and survives a rename. So an unfinished file is made by `lfs setstripe`
before its first byte. The policy:

    one file          up to 1 / 10 / 100 GB, and above: over 1 / 8 / 24 / 72 targets (NERSC's figures)
    few files         fewer than targets: each over targets/files of them, so that all targets are used
    many files        each on one target, which balances best and needs the least metadata

Stripes are 4 MiB. The server chooses the targets, unless files shall be placed one by one.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import struct
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dlio.dataset.shard import files_of
from dlio.errors import StorageError, UsageError
from dlio.io.filesystems import filesystem_of
from dlio.io.sizes import counted
from dlio.stage.job import Job, whole_copy
from dlio.stage.planning.cost import Cost, Machine, Volume
from dlio.stage.planning.flows import THREADS, Flows, Sizes, flows_alone, totals
from dlio.stage.planning.owners import assign_first
from dlio.stage.planning.plan import Plan, partitioned
from dlio.stage.strategies import Needs

NEEDS = Needs(shared=True)
copy_name = whole_copy
GB = 10**9
STRIPE_UNIT = 64 << 10  # Lustre takes only multiples of it
STRIPE_BYTES = 4 << 20
_COMMAND_SECONDS = 120  # a server that fails over answers again within about that
_ONE_FILE = ((GB, 1), (10 * GB, 8), (100 * GB, 24), (1 << 63, 72))
_log = logging.getLogger(__name__)


def cost(volume: Volume, machine: Machine, copies: int) -> Cost:
    """Returns the cost of copying within the shared file system, all nodes together."""
    num_bytes, num_files, most = volume.num_bytes, max(1, volume.num_files), machine.num_targets
    nodes = machine.num_nodes * machine.client
    read = num_bytes / min(machine.source, nodes)
    if not most:
        return Cost(1, 0, num_bytes, 2 * read, "the nodes together copy it into a shared folder")
    count = stripe_count(num_bytes // num_files, volume.num_files, most)
    used = min(most, num_files * count)
    written = num_bytes / min(machine.source * used / most, nodes)
    why = f"{counted(volume.num_files, 'file')} over {count} of {most} targets use {used} of them"
    return Cost(1, 0, num_bytes, read + written, why)


def flows(sizes: Sizes, num_nodes: int, copies: int) -> Flows:
    """Returns the bytes that the nodes move; each copies its share within the shared file system."""
    owners = np.array(assign_first(sizes.shards.tolist(), num_nodes), np.int64)
    read, opens = (totals(owners, each, num_nodes) for each in (sizes.shards, sizes.num_files))
    return flows_alone(read, opens, THREADS, returns=True)


def plan(job: Job) -> Plan:
    """Returns this node's share."""
    node, nodes = job.topology.node_and_count or (0, 1)
    return Plan(replace(partitioned(job.manifest, nodes), node=node))


def layouts(job: Job) -> dict[str, Layout]:
    """Returns the layout of each file, by name; empty if the files are not laid out one by one.

    Raises:
        StorageError: stripes were asked for on a file system without them, or the targets cannot be listed.
    """
    options, files = job.options, files_of(job.manifest.shards)
    asked = options.stripe_count or options.stripe_size or options.pool or options.ost_per_rank
    if not is_lustre(job.dest):
        system = filesystem_of(job.dest)
        if asked:
            raise StorageError(
                f"{job.dest} lies on {system}, where stripes cannot be set: leave out the stripe options"
            )
        _log.info("%s lies on %s, which has no stripes to choose: a plain copy", job.dest, system)
        return {}
    if has_site_layout(job.dest) and not asked:
        _log.info("%s has a progressive layout of its site: files are left to it", job.dest)
        return {}
    numbers = targets(job.dest)
    return {
        file.name: Layout(
            1
            if options.ost_per_rank
            else options.stripe_count or stripe_count(file.num_bytes, len(files), len(numbers)),
            options.stripe_size or STRIPE_BYTES,
            numbers[number % len(numbers)] if options.ost_per_rank else None,
            options.pool,
        )
        for number, file in enumerate(files)
    }


@dataclass(frozen=True, slots=True)
class Layout:
    """The stripes of one file.

    Attributes:
        count: the number of targets.
        size: bytes on one target before the next target's turn.
        first: the first target's index; None if the server chooses.
        pool: the pool of targets; "" for all targets.
    """

    count: int
    size: int = STRIPE_BYTES
    first: int | None = None
    pool: str = ""

    def __post_init__(self) -> None:
        if self.count < 1 or self.size < STRIPE_UNIT or self.size % STRIPE_UNIT:
            raise UsageError(
                f"stripes of {self.size:,} bytes over {self.count} targets: give a multiple of 64 KiB, and 1 or more"
            )

    def create(self, path: Path) -> None:
        """Makes an empty file with this layout; raises StorageError if `lfs setstripe` refuses."""
        options = ["-c", str(self.count), "-S", str(self.size)]
        options += ["-i", str(self.first)] if self.first is not None else []
        options += ["-p", self.pool] if self.pool else []
        _checked(_lfs("setstripe", *options, str(path)), f"lay out {path}")

    def check(self, path: Path) -> None:
        """Raises StorageError if a file is not on the target that it was assigned to."""
        if self.first is None:
            return
        found = layout_of(path)
        if (found.count, found.size, found.first) != (self.count, self.size, self.first):
            raise StorageError(f"{path} was laid out as {found}, not {self}: stage without --ost-per-rank")


def stripe_count(num_bytes: int, num_files: int, num_targets: int) -> int:
    """Returns the number of targets over which to stripe each of `num_files` files of `num_bytes`."""
    if num_files == 1:
        wanted = next(count for limit, count in _ONE_FILE if num_bytes <= limit)
    else:
        wanted = -(-num_targets // max(1, num_files))
    return max(1, min(wanted, num_targets, -(-num_bytes // STRIPE_BYTES)))


def layouts_text(layouts: Iterable[Layout]) -> str:
    """Returns in one line the number of files of each layout; "" for no files."""
    return "; ".join(
        f"{counted(number, 'file')} over {counted(layout.count, 'target')}"
        + ("" if layout.first is None else f" from target {layout.first} on")
        + f", {layout.size:,} bytes in turn"
        + (f", in the pool {layout.pool}" if layout.pool else "")
        for layout, number in Counter(layouts).items()
    )


def is_lustre(folder: Path) -> bool:
    """Returns whether `lfs` is installed and says that a folder is on Lustre."""
    return shutil.which("lfs") is not None and _lfs("getstripe", "-d", str(folder)).returncode == 0


def has_site_layout(folder: Path) -> bool:
    """Returns whether a folder on Lustre has a composite (progressive) default layout, which the site has set."""
    return "lcm_layout_gen" in _lfs("getstripe", "-d", str(folder)).stdout


def targets(folder: Path) -> list[int]:
    """Returns the indices of the active storage targets of the Lustre file system that holds a folder.

    Raises:
        StorageError: `lfs osts` fails, or none is active.
    """
    done = _checked(_lfs("osts", str(folder)), f"list the storage targets of {folder}")
    active = [int(index) for index in re.findall(r"^(\d+): \S+ ACTIVE\s*$", done.stdout, re.MULTILINE)]
    if not active:
        raise StorageError(f"{folder} has no active storage target: lfs osts said {done.stdout[:200]!r}")
    return active


def layout_of(path: Path) -> Layout:
    """Returns the layout of a plain striped file, from its attribute `lustre.lov` or else from `lfs getstripe`.

    Raises:
        StorageError: it is not on Lustre, or has a composite layout.
    """
    try:
        return parse_lov(os.getxattr(path, "lustre.lov"))
    except OSError:
        done = _checked(_lfs("getstripe", "-y", str(path)), f"read the layout of {path}")
    found = dict(re.findall(r"^(lmm_\w+): +(\S+)\s*$", done.stdout, re.MULTILINE))
    try:
        count, size, first = (int(found[f"lmm_stripe_{name}"]) for name in ("count", "size", "offset"))
    except (KeyError, ValueError) as error:
        raise StorageError(f"{path} has a layout that is not plain: {done.stdout[:200]!r}") from error
    return Layout(count, size, first, found.get("lmm_pool", ""))


def parse_lov(attribute: bytes) -> Layout:
    """Returns the layout in the attribute `lustre.lov`: struct lov_user_md_v1 or _v3 of lustre_user.h.

    Magic, pattern, object id (16 bytes), stripe size, stripe count, generation; a pool's name in v3; then 24 bytes for
    each object, of which the last four are the target's index.

    Raises:
        OSError: it is of another kind, or cut off.
    """
    try:
        magic, size, count = struct.unpack_from("=I20xIH", attribute)
        start = {0x0BD10BD0: 32, 0x0BD30BD0: 48}[magic]
        (first,) = struct.unpack_from("=I", attribute, start + 20)
    except (struct.error, KeyError) as error:
        raise OSError("not a plain layout") from error
    pool = attribute[32:start].split(b"\0")[0].decode()
    return Layout(count, size, first, pool)


def _lfs(*arguments: str) -> subprocess.CompletedProcess[str]:
    return _run(["lfs", *arguments])


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=_COMMAND_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise StorageError(f"{' '.join(command)} did not end within {_COMMAND_SECONDS} s: is its server up?") from error


def _checked(done: subprocess.CompletedProcess[str], what: str) -> subprocess.CompletedProcess[str]:
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise StorageError(f"cannot {what}: {' '.join(done.args)} said {said!r}")
    return done
