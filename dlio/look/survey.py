"""What a report shows of a data set: its samples are read once, up to a number, spread evenly over it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import xxhash

from dlio.codecs import decoders
from dlio.codecs.orientation import AS_STORED
from dlio.dataset.schema import Sample
from dlio.errors import CorruptRecordError, DlioError, SourceError
from dlio.images import Resize
from dlio.io.sizes import counted
from dlio.loaders.dataset import PackedSamples
from dlio.look import similar
from dlio.look.classes import evenly_spaced
from dlio.pack.inspect.image_header import inspect_image
from dlio.pack.upright import orientation
from dlio.targets import IMAGE

_CHUNK = 64
_RESIZE = Resize(similar.HASH_PIXELS)

Indices = npt.NDArray[np.int64]


@dataclass(slots=True)
class Survey:
    """The findings about the chosen samples; rows are those of `numbers`.

    Attributes:
        numbers: the samples examined, ascending; int64 of shape (n,).
        sizes: height and width, int64 of shape (n, 2); 0 where there is no image.
        kinds: how many images have each encoding and number of channels, such as "JPEG, 3 channels".
        digests: of the encoded images; None where there is none.
        hashes: see `dlio.look.similar`; 0 where there is none.
        sums, squares: of all pixels by channel, from 0 to 1 at 216 x 216 pixels; float64 of shape (3,).
        num_decoded: how many images these are of.
        num_turned: how many images EXIF turns.
        damage: the damaged samples, as text, by number.
    """

    numbers: Indices
    sizes: Indices
    hashes: similar.Hashes
    kinds: Counter[str] = field(default_factory=Counter)
    digests: list[int | None] = field(default_factory=list)
    sums: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))
    squares: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))
    num_decoded: int = 0
    num_turned: int = 0
    damage: dict[int, str] = field(default_factory=dict)

    @property
    def mean(self) -> list[float]:
        """The mean of each channel, from 0 to 1."""
        return [float(value) for value in self.sums / max(1, self.num_decoded)]

    @property
    def std(self) -> list[float]:
        """The standard deviation of each channel over all pixels."""
        mean = self.sums / max(1, self.num_decoded)
        variance = self.squares / max(1, self.num_decoded) - mean**2
        return [float(value) for value in np.sqrt(np.maximum(0, variance))]

    def numbered(self, rows: Sequence[int]) -> list[int]:
        """Returns the numbers of the samples in these rows."""
        return [int(self.numbers[row]) for row in rows]


def survey(samples: PackedSamples, most: int, report: Callable[[int, int], None]) -> Survey:
    """Returns what at most `most` samples are; the data set is without a transform.

    Calls `report` with the samples and bytes examined since the last call.

    Raises:
        StorageError: the data set cannot be read.
    """
    numbers = evenly_spaced(len(samples), most)
    found = Survey(numbers, np.zeros((len(numbers), 2), np.int64), np.zeros(len(numbers), np.uint64))
    for start in range(0, len(numbers), _CHUNK):
        chunk = numbers[start : start + _CHUNK]
        images = [_image(samples, int(number), found) for number in chunk]
        data = [image.data if isinstance(image, np.ndarray) else image for image in images]
        found.digests += [None if each is None else xxhash.xxh3_128_intdigest(each) for each in data]
        _look(found, start, images)
        report(len(chunk), sum(len(image) for image in images if isinstance(image, bytes)))
    return found


def _image(samples: PackedSamples, number: int, found: Survey) -> bytes | npt.NDArray[np.uint8] | None:
    """Returns the image of a sample; None if it has none, or is damaged."""
    try:
        (sample,) = samples.read([number])
        return image_of(sample)
    except CorruptRecordError as error:
        found.damage[number] = str(error)
        return None


def image_of(sample: Sample) -> bytes | npt.NDArray[np.uint8] | None:
    """Returns the image of a sample: encoded, or uint8 pixels (height, width, channels); None if it has none."""
    value = sample.fields.get(IMAGE)
    if isinstance(value, bytes):
        return value
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim not in (2, 3) or not value.size:
        return None
    return np.ascontiguousarray(value)


def _look(found: Survey, start: int, images: Sequence[bytes | npt.NDArray[np.uint8] | None]) -> None:
    """Adds the images of the rows from `start` on."""
    rows = [row for row, image in enumerate(images) if image is not None and _measured(found, start + row, image)]
    pictures = [image for row in rows if (image := images[row]) is not None]
    out = np.empty((len(rows), 3, *_RESIZE.output_size), np.uint8)
    problems = decoders.decode_batch(pictures, _RESIZE, np.zeros(len(rows), np.uint64), out)
    for index, problem in problems.items():
        found.damage[int(found.numbers[start + rows[index]])] = problem
    good = np.array([index for index in range(len(rows)) if index not in problems], np.int64)
    if not len(good):
        return
    found.hashes[start + np.array(rows)[good]] = similar.hashes(out[good])
    pixels = out[good].astype(np.float32) / 255
    found.sums += pixels.mean(axis=(2, 3), dtype=np.float64).sum(axis=0)
    found.squares += np.square(pixels).mean(axis=(2, 3), dtype=np.float64).sum(axis=0)
    found.num_decoded += len(good)


def _measured(found: Survey, row: int, image: bytes | npt.NDArray[np.uint8]) -> bool:
    """Notes the size and encoding of an image; returns False if it is damaged."""
    if not isinstance(image, bytes):
        found.sizes[row] = image.shape[:2]
        found.kinds[f"pixels, {image.shape[2] if image.ndim == 3 else 1} channels"] += 1
        return True
    try:
        info = inspect_image(image)
        found.num_turned += orientation(image) != AS_STORED
    except (SourceError, DlioError) as error:
        found.damage[int(found.numbers[row])] = error.text
        return False
    found.sizes[row] = info.height, info.width
    found.kinds[f"{info.format}, {counted(info.channels, 'channel')}"] += 1
    return True
