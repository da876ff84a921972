"""The images of a data set by number or class, to be printed, drawn in a terminal, or written to files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
from PIL import Image

from dlio.codecs import decoders, pillow
from dlio.codecs.decode_ready import restored
from dlio.dataset.manifest import Manifest
from dlio.dataset.remote import load
from dlio.errors import DataError, UsageError
from dlio.io import files
from dlio.io.ground import check_ground
from dlio.loaders.dataset import PackedSamples
from dlio.look import classes
from dlio.look.classes import evenly_spaced
from dlio.look.survey import image_of
from dlio.pack.inspect.image_header import inspect_image
from dlio.urls import is_url


@dataclass(frozen=True, slots=True)
class Shown:
    """One sample.

    Attributes:
        number: in the data set.
        key: its name.
        label: its class, or its label as text; "" without one.
        num_bytes: of the image; 0 if there is none.
        about: its encoding and size, such as "JPEG, 500 x 375".
        picture: the image as it is stored, a decode-ready record as its JPEG: encoded, or pixels of shape (height,
            width, channels); None without one.
    """

    number: int
    key: str
    label: str
    num_bytes: int
    about: str
    picture: bytes | npt.NDArray[np.uint8] | None

    @property
    def image(self) -> Image.Image | None:
        """The image, decoded to RGB; None without one.

        Raises:
            DataError: it cannot be decoded.
        """
        return None if self.picture is None else decoders.decode_rgb(self.picture)


def show(
    dataset: str | Path | Manifest, index: Sequence[int] = (), *, class_: str | None = None, count: int = 8
) -> Iterator[Shown]:
    """Yields samples of a packed data set: some by their numbers, some of a class, or some of all, spread evenly.

    Args:
        dataset: the folder or URL of the data set, or its manifest.
        index: the numbers of the samples; negative ones count from the end.
        class_: a class, by its name or number.
        count: how many samples at most, unless their numbers are given.

    Raises:
        UsageError: there is no such sample or class, or both are given.
        ManifestError, CorruptRecordError, StorageError: they cannot be read.
    """
    if index and class_ is not None:
        raise UsageError("give numbers or a class, not both")
    with closing(PackedSamples(load(dataset) if isinstance(dataset, str) and is_url(dataset) else dataset)) as samples:
        for number in index or _chosen(samples, class_, count):
            try:
                number = samples.numbering.number(number)
            except IndexError as error:
                raise UsageError(str(error)) from None
            (sample,) = samples.read([number])
            picture = _as_others_read_it(image_of(sample))
            size = 0 if picture is None else len(picture) if isinstance(picture, bytes) else picture.nbytes
            label = classes.name_of(samples, number)
            yield Shown(number, sample.key, label, size, _about(picture), picture)


def _chosen(samples: PackedSamples, class_: str | None, count: int) -> list[int]:
    members = range(len(samples)) if class_ is None else classes.members(samples, class_)
    return [members[index] for index in evenly_spaced(len(members), count).tolist()]


def _as_others_read_it(picture: bytes | npt.NDArray[np.uint8] | None) -> bytes | npt.NDArray[np.uint8] | None:
    """Returns the JPEG of a decode-ready record, if that is whole; anything else unchanged."""
    try:
        return cast(bytes, restored(picture)) if isinstance(picture, bytes) else picture
    except DataError:
        return picture


def _about(picture: bytes | npt.NDArray[np.uint8] | None) -> str:
    if picture is None:
        return "no image"
    if not isinstance(picture, bytes):
        return f"pixels, {picture.shape[1]} x {picture.shape[0]}"
    try:
        info = inspect_image(picture)
    except DataError as error:
        return str(error)
    return f"{info.format}, {info.width} x {info.height}"


def write(shown: Shown, folder: Path) -> Path | None:
    """Writes the image to a file named by its number, as it is stored; pixels become a PNG. None without an image.

    Raises:
        StorageError: it cannot be written, or anybody could replace it.
        DataError: the pixels make no image.
    """
    if shown.picture is None:
        return None
    check_ground(folder)
    with files.storage_errors("create", folder):
        folder.mkdir(parents=True, exist_ok=True)
    encoded = isinstance(shown.picture, bytes)
    kind = shown.about.partition(",")[0].lower() if encoded else "png"
    name = f"{shown.number:08d}.{kind if kind.isalnum() and kind.isascii() else 'image'}"
    path = (folder / name.replace(".jpeg", ".jpg")).absolute()
    if isinstance(shown.picture, bytes):
        files.publish_bytes(path, shown.picture)
    elif (image := shown.image) is not None:
        files.publish_bytes(path, pillow.encoded(image))
    return path
