"""Mounting images without root, for a command: in a user namespace, or by FUSE's own programs where there is none.

In a namespace nothing else sees the mounts, and they end with it; the kernel's overlay makes one folder of several
images. Without one, this user's other processes see them too, `fusermount3` unmounts, and fuse-overlayfs joins images.
`find_way` names what the machine lacks before anything is mounted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dlio.errors import MissingError
from dlio.io.ground import temporary_base

_DEVICE = Path("/dev/fuse")
_PROGRAMS = ("squashfuse_ll", "squashfuse")  # the first takes less time
_UNMOUNT = ("fusermount3", "fusermount")
_UNION = "fuse-overlayfs"
_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
_ASK = "ask the centre, or mount the images by its container engine: --print gives the lines"
_ALLOW = "the centre can allow them (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone)"

# An overlay in a user namespace needs Linux 5.11.
_TRY_OVERLAY = "mount -t tmpfs dlio /tmp && cd /tmp && mkdir a b c && mount -t overlay -o ro,lowerdir=a:b overlay c"

# Arguments: squashfuse, the work folder, the mount point, uid, gid, the number of images, the images, the command. The
# command runs with the caller's own ids, in one more user namespace. Before its first stat, FUSE's root folder has no
# permission bits, and the overlay would keep that.
_IN_NAMESPACE = """
set -e
fuse=$1 work=$2 dir=$3 uid=$4 gid=$5 count=$6
shift 6
leave() { umount "$dir" 2>/dev/null; cd /; umount -R -l "$work" 2>/dev/null; rmdir "$work"; }
mount -t tmpfs -o mode=0755 dlio "$work"
trap leave EXIT
trap : INT TERM
number=0 layers=
while [ "$number" -lt "$count" ]; do
    mkdir "$work/$number"
    "$fuse" "$1" "$work/$number"
    stat "$work/$number" >/dev/null
    layers=${layers:+$layers:}$number
    shift
    number=$((number + 1))
done
here=$PWD
cd "$work"
if [ "$count" -gt 1 ]; then
    mount -t overlay -o "ro,lowerdir=$layers" overlay "$dir"
else
    mount --bind 0 "$dir"
fi
cd "$here"
unshare --user --map-user="$uid" --map-group="$gid" -- "$@" && code=0 || code=$?
exit "$code"
"""

# Arguments: squashfuse, the work folder, the mount point, the programs that unmount and that join, the number of
# images, the images, the command. What is still open is unmounted when it is closed (-z).
_BY_FUSE = """
set -e
fuse=$1 work=$2 dir=$3 unmount=$4 union=$5 count=$6
shift 6
leave() {
    for each in "$dir" "$work"/*; do "$unmount" -u -z "$each" 2>/dev/null || :; done
    rmdir "$work"/* "$work" 2>/dev/null || :
}
trap leave EXIT
trap : INT TERM
if [ "$count" = 1 ]; then
    "$fuse" "$1" "$dir"
    shift
else
    number=0 layers=
    while [ "$number" -lt "$count" ]; do
        mkdir "$work/$number"
        "$fuse" "$1" "$work/$number"
        layers=${layers:+$layers:}$work/$number
        shift
        number=$((number + 1))
    done
    "$union" -o "lowerdir=$layers" "$dir" 2>"$work/said" || { cat "$work/said" >&2; rm "$work/said"; exit 1; }
    rm "$work/said"  # of options that it ignores
fi
"$@" && code=0 || code=$?
exit "$code"
"""


@dataclass(frozen=True, slots=True)
class Way:
    """How this machine mounts images without root.

    Attributes:
        squashfuse: the program that mounts an image.
        unmount: the program that unmounts it, "" in a user namespace.
        union: the program that makes one folder of several images, "" in a user namespace or for one image.
    """

    squashfuse: str
    unmount: str = ""
    union: str = ""

    def run(self, images: Sequence[Path], folder: Path, command: Sequence[str]) -> int:
        """Runs a command that sees all images as the empty folder `folder`, and returns its exit code."""
        work = tempfile.mkdtemp(prefix="dlio-mount.", dir=temporary_base())
        try:
            with subprocess.Popen(self._words(images, folder, work, command)) as process:
                while True:
                    try:
                        return process.wait()
                    except KeyboardInterrupt:  # the command got it too, and decides
                        continue
        finally:
            with suppress(OSError):
                Path(work).rmdir()

    def _words(self, images: Sequence[Path], folder: Path, work: str, command: Sequence[str]) -> list[str]:
        """Returns the command that mounts the images on a folder, runs `command`, and unmounts them."""
        first = [self.squashfuse, work, str(folder)]
        rest = [str(len(images)), *map(str, images), *command]
        if self.unmount:
            return ["sh", "-c", _BY_FUSE, "dlio-mount", *first, self.unmount, self.union, *rest]
        ids = str(os.getuid()), str(os.getgid())
        return [*_NAMESPACE, "sh", "-c", _IN_NAMESPACE, "dlio-mount", *first, *ids, *rest]


def find_way(num_images: int) -> Way:
    """Returns how this machine mounts so many images as one folder; raises MissingError for what it lacks."""
    program = next(filter(shutil.which, _PROGRAMS), None)
    if program is None:
        raise MissingError(f"squashfuse is not installed: apt-get install squashfuse, or load its module; else {_ASK}")
    try:
        os.close(os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        advice = f"the centre can load the module fuse, and let users open the device (chmod 666): {_ASK}"
        raise MissingError(f"{_DEVICE} cannot be opened ({error.strerror}): {advice}") from error
    if not (problem := _no_namespace(num_images)):
        return Way(program)
    unmount, union = next(filter(shutil.which, _UNMOUNT), ""), _UNION if num_images > 1 else ""
    if not unmount:
        raise MissingError(f"{problem}, and fusermount3 is not installed: apt-get install fuse3; {_ALLOW}; or {_ASK}")
    if union and not shutil.which(union):
        advice = (
            f"apt-get install {union}, or make one image: dlio convert DATASET OUT --format squashfs --num-shards 1"
        )
        raise MissingError(f"{problem}, and several images need {union} then: {advice}; {_ALLOW}; or {_ASK}")
    return Way(program, unmount, union)


def _no_namespace(num_images: int) -> str:
    """Returns why images cannot be mounted in a user namespace; "" if they can."""
    tried = ["sh", "-c", _TRY_OVERLAY] if num_images > 1 else ["true"]
    try:
        done = subprocess.run([*_NAMESPACE, *tried], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "the program unshare is not installed (apt-get install util-linux)"
    return f"this machine allows no user namespace ({done.stderr.strip()})" if done.returncode else ""
