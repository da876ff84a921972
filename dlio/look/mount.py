"""Shows a SquashFS data set as one folder, without root, to a command, or tells container engines how to.

`mounting.py` mounts: squashfuse for each image, and one folder over them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dlio.dataset.manifest import Manifest
from dlio.dataset.remote import load
from dlio.errors import StorageError, UsageError
from dlio.io.files import storage_errors
from dlio.look.mounting import find_way
from dlio.pack.inspect.one_folder import check_one_folder
from dlio.stage.client.resolve import staged
from dlio.urls import is_url

_MAX_LAYERS = 500  # of an overlay


@dataclass(frozen=True, slots=True)
class Mount:
    """What is mounted where.

    Attributes:
        dataset: as it was given.
        images: the absolute paths of the data set's images.
        folder: the absolute path of the mount point.
    """

    dataset: str | Path
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
        convert = f"dlio convert {shlex.quote(str(dataset))} OUT --format squashfs"
        convert += " --jpeg" if manifest.decode_ready.records else ""
        if manifest.format != "squashfs":
            problem = f"is of the format {manifest.format}, which no program can mount"
        elif manifest.decode_ready.records:
            problem = "has decode-ready records, which only dlio can read"
        elif any(shard.part is not None for shard in manifest.shards):
            problem = "has parts of shards only, which cannot be mounted without the rest"
        elif len(manifest.shards) > _MAX_LAYERS:
            problem = f"has {len(manifest.shards)} images, at most {_MAX_LAYERS} can be one folder"
            convert += " --num-shards 100"
        else:
            problem = ""
        if problem:
            raise UsageError(f"{dataset} {problem}: {convert}")
        images = _images(staged(dataset)) or ([] if is_url(dataset) else _images(manifest))
        if not images:
            raise StorageError(f"{dataset} has no images on this node: dlio stage it first")
        return cls(dataset, tuple(images), folder.absolute())

    def lines(self) -> list[str]:
        """Returns the lines by which container engines show the images, without dlio."""
        image, folder = "IMAGE.sif", shlex.quote(str(self.folder))
        dataset = shlex.quote(str(self.dataset if is_url(self.dataset) else Path(self.dataset).absolute()))
        targets = [self.folder if len(self.images) == 1 else self.folder / path.stem for path in self.images]
        pairs = list(zip(self.images, targets, strict=True))
        binds = " ".join(f"-B {shlex.quote(f'{path}:{target}:image-src=/')}" for path, target in pairs)
        mounts = ", ".join(f'"{path}:{target}:sqsh"' for path, target in pairs)
        return [
            f"Apptainer: apptainer exec {binds} {image} COMMAND",
            f"enroot:    dlio mount {dataset} {folder} -- enroot start --mount {folder}:{folder} CONTAINER COMMAND",
            f"CSCS (EDF): mounts = [{mounts}]",
        ]


def mount(dataset: str | Path, folder: str | Path, command: Sequence[str] = ()) -> int:
    """Runs a command that sees all images of a SquashFS data set as one folder, and returns its exit code.

    Args:
        dataset: a packed set; its staged copy on this node is used, if there is one.
        folder: the mount point, an empty or a new folder.
        command: a program and its arguments; by default the user's shell.

    Raises:
        MissingError: the machine lacks squashfuse, /dev/fuse, or user namespaces and what replaces them; says which.
        UsageError: the data set's format is another, it is at a URL, two of its images have one file, or the folder is
            not empty.
        ManifestError, StorageError: the data set cannot be read, or the folder cannot be made.
    """
    planned = Mount.of(dataset, Path(folder).absolute())
    way = find_way(len(planned.images))
    if len(planned.images) > 1:
        check_one_folder(planned.images)
    with storage_errors("create", planned.folder):
        planned.folder.mkdir(parents=True, exist_ok=True)
        if any(planned.folder.iterdir()):
            raise UsageError(f"{planned.folder} is not empty: give an empty or a new folder to mount on")
    return way.run(planned.images, planned.folder, command or [os.environ.get("SHELL", "/bin/sh")])


def _images(manifest: Manifest) -> list[Path]:
    """Returns the images of a data set in a folder; none if one is missing, as in a copy of a part."""
    paths = [manifest.root / shard.files[0].name for shard in manifest.shards]
    return [path.absolute() for path in paths] if all(map(Path.is_file, paths)) else []
