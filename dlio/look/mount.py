"""Shows a SquashFS data set as one folder, without root: squashfuse for each image, and an overlay of them.

The mounts are made in a new user namespace, in which a command runs; nothing else sees them, and nothing has to
be unmounted by hand. `check_machine` names what the machine lacks before anything is mounted.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dlio.dataset.manifest import Manifest
from dlio.dataset.remote import load
from dlio.errors import MissingError, StorageError, UsageError
from dlio.io.files import storage_errors
from dlio.stage.cache.resolve import staged
from dlio.urls import is_url

_MAX_LAYERS = 500  # of an overlay
_DEVICE = Path("/dev/fuse")
_PROGRAMS = ("squashfuse_ll", "squashfuse")  # the first takes less time
_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
_ASK = "ask the centre, or mount the images by its container engine: --print gives the lines"

# Arguments: squashfuse, the work folder, the mount point, uid, gid, the number of images, the images, the command. The
# command runs with the caller's own ids, in one more user namespace. Before its first stat, FUSE's root folder has no
# permission bits, and the overlay would keep that.
_SCRIPT = """
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


@dataclass(frozen=True, slots=True)
class Mount:
    """What is mounted where.

    Attributes:
        images: the absolute paths of the data set's images.
        folder: the absolute path of the mount point.
    """

    images: tuple[Path, ...]
    folder: Path

    @classmethod
    def of(cls, dataset: str | Path, folder: Path) -> Mount:
        """Returns the mount of a data set: of its staged copy on this node, if there is one.

        Raises:
            UsageError: its format is another, it is at a URL, its images are decode-ready, or it has parts of shards or
                too many.
            ManifestError, StorageError: it cannot be read.
        """
        manifest = load(dataset)
        if manifest.format != "squashfs":
            advice = f"dlio convert {shlex.quote(str(dataset))} OUT --format squashfs"
            raise UsageError(f"{dataset} is of the format {manifest.format}, which no program can mount: {advice}")
        if manifest.decode_ready.records:
            advice = f"dlio convert {shlex.quote(str(dataset))} OUT --format squashfs --jpeg"
            raise UsageError(f"{dataset} has decode-ready records, which only dlio can read: {advice}")
        if any(shard.part is not None for shard in manifest.shards):
            advice = f"dlio convert {shlex.quote(str(dataset))} OUT --format squashfs"
            raise UsageError(f"{dataset} has parts of shards only, which cannot be mounted without the rest: {advice}")
        if len(manifest.shards) > _MAX_LAYERS:
            advice = f"dlio convert {shlex.quote(str(dataset))} OUT --format squashfs --num-shards 100"
            raise UsageError(f"{dataset} has {len(manifest.shards)} images, {_MAX_LAYERS} can be one folder: {advice}")
        images = _images(staged(dataset)) or ([] if is_url(dataset) else _images(manifest))
        if not images:
            raise StorageError(f"{dataset} has no images on this node: dlio stage it first")
        return cls(tuple(images), folder.absolute())

    def lines(self) -> list[str]:
        """Returns the lines by which container engines show the images, without dlio."""
        image, folder = "IMAGE.sif", shlex.quote(str(self.folder))
        targets = [self.folder if len(self.images) == 1 else self.folder / path.stem for path in self.images]
        pairs = list(zip(self.images, targets, strict=True))
        binds = " ".join(f"-B {shlex.quote(f'{path}:{target}:image-src=/')}" for path, target in pairs)
        mounts = ", ".join(f'"{path}:{target}:sqsh"' for path, target in pairs)
        return [
            f"Apptainer: apptainer exec {binds} {image} COMMAND",
            f"enroot:    dlio mount DATASET {folder} -- enroot start --mount {folder}:{folder} CONTAINER COMMAND",
            f"CSCS (EDF): mounts = [{mounts}]",
        ]


def mount(dataset: str | Path, folder: str | Path, command: Sequence[str] = ()) -> int:
    """Runs a command that sees all images of a SquashFS data set as one folder, and returns its exit code.

    Args:
        dataset: a packed set; its staged copy on this node is used, if there is one.
        folder: the mount point, an empty or a new folder.
        command: a program and its arguments; by default the user's shell.

    Raises:
        MissingError: the machine lacks squashfuse, /dev/fuse or user namespaces; says which.
        UsageError: the data set's format is another, it is at a URL, or the folder is not empty.
        ManifestError, StorageError: the data set cannot be read, or the folder cannot be made.
    """
    return run(Mount.of(dataset, Path(folder).absolute()), command or [os.environ.get("SHELL", "/bin/sh")])


def _images(manifest: Manifest) -> list[Path]:
    """Returns the images of a data set in a folder; none if one is missing, as in a copy of a part."""
    paths = [manifest.root / shard.files[0].name for shard in manifest.shards]
    return [path.absolute() for path in paths] if all(map(Path.is_file, paths)) else []


def check_machine() -> str:
    """Returns the name of the program that mounts an image.

    Raises:
        MissingError: the machine lacks something; says what, and who can help.
    """
    program = next(filter(shutil.which, _PROGRAMS), None)
    if program is None:
        raise MissingError(f"squashfuse is not installed: apt-get install squashfuse, or load its module; else {_ASK}")
    try:
        os.close(os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        advice = f"the centre can load the module fuse, and let users open the device (chmod 666): {_ASK}"
        raise MissingError(f"{_DEVICE} cannot be opened ({error.strerror}): {advice}") from error
    try:
        tried = subprocess.run([*_NAMESPACE, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise MissingError("the program unshare is not installed: apt-get install util-linux") from None
    if tried.returncode:
        advice = "the centre can allow them (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone)"
        raise MissingError(f"this machine gives no user namespace ({tried.stderr.strip()}): {advice}; or {_ASK}")
    return program


def run(mount: Mount, command: Sequence[str]) -> int:
    """Runs a command that sees the data set in the folder, and returns its exit code.

    The folder is made if it is missing, and is empty again for everybody else.

    Raises:
        MissingError: as `check_machine`.
        UsageError: the folder holds something.
        StorageError: it cannot be made.
    """
    program = check_machine()
    with storage_errors("create", mount.folder):
        mount.folder.mkdir(parents=True, exist_ok=True)
        if any(mount.folder.iterdir()):
            raise UsageError(f"{mount.folder} is not empty: give an empty or a new folder to mount on")
    work = tempfile.mkdtemp(prefix="dlio-mount.")
    words = [program, work, str(mount.folder), str(os.getuid()), str(os.getgid()), str(len(mount.images))]
    started = [*_NAMESPACE, "sh", "-c", _SCRIPT, "dlio-mount", *words, *map(str, mount.images), *command]
    try:
        with subprocess.Popen(started) as process:
            while True:
                try:
                    return process.wait()
                except KeyboardInterrupt:  # the command got it too, and decides
                    continue
    finally:
        with suppress(OSError):
            Path(work).rmdir()
