"""Lustre: how files are striped over its storage targets, asked and set by `lfs`.

A layout is fixed when a file is created and survives a rename. So an unfinished file is made by `lfs setstripe` before
its first byte. The policy:

    one file          up to 1 / 10 / 100 GB, and above: over 1 / 8 / 24 / 72 targets (NERSC's figures)
    few files         fewer than targets: each over targets/files of them, so that all targets are used
    many files        each on one target, which balances best and needs the least metadata

Stripes are 4 MiB. The server chooses the targets, unless files shall be placed one by one.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dlio.errors import StorageError, UsageError
from dlio.io.sizes import counted

GB = 10**9
STRIPE_UNIT = 64 << 10  # Lustre takes only multiples of it
STRIPE_BYTES = 4 << 20
_COMMAND_SECONDS = 120  # a server that fails over answers again within about that
_ONE_FILE = ((GB, 1), (10 * GB, 8), (100 * GB, 24), (1 << 63, 72))


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
    command = ["lfs", *arguments]
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
