"""What `--decode-ready` would give: the time of a window of a data set's own JPEGs in three forms, and their sizes."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

from dlio import native
from dlio.codecs import decode_ready, decoders
from dlio.codecs.jpeg import START
from dlio.images import Transform
from dlio.loaders.dataset import PackedSamples
from dlio.targets import IMAGE

SECONDS = 4.0
FORMS = ("JPEG", "crop-ready", "decode-ready")
_MOST_IMAGES, _MOST_BYTES = 256, 32 << 20
_PAYS = 0.85  # of the time of a crop-ready window


@dataclass(frozen=True, slots=True)
class FormTimes:
    """The same images in three forms, one thread decoding windows of them in turns.

    Attributes:
        num_images: of a sample of the data set.
        num_records: how many of them became decode-ready records; all that follows is of these.
        milliseconds: of CPU time for a window, by form; a JPEG that was packed crop-ready is crop-ready in both.
        num_bytes: by form.
    """

    num_images: int
    num_records: int
    milliseconds: dict[str, float]
    num_bytes: dict[str, int]

    def verdict(self) -> str:
        """Returns in a sentence whether `--decode-ready` pays."""
        if not self.num_records:
            return (
                f"--decode-ready has no effect: none of the {self.num_images} images read is a JPEG that it can restore"
            )
        jpeg, crop_ready, ready = (self.milliseconds[form] for form in FORMS)
        size = self.num_bytes["decode-ready"] / self.num_bytes["JPEG"]
        times = (
            f"decoding a window takes {jpeg:.2f} ms from a JPEG, {crop_ready:.2f} crop-ready, {ready:.2f} decode-ready"
        )
        pays = "pays if the CPU limits the loader" if ready <= _PAYS * crop_ready else "does not pay on this machine"
        told = f"{self.num_records} of {self.num_images} images read qualify, and become {size:.2f} times as large"
        return f"{times}; {told}: --decode-ready {pays}"


def time_forms(samples: PackedSamples, transform: Transform) -> FormTimes:
    """Returns the time of a window in each form, measured in turns for some seconds.

    Raises:
        MissingPackageError: this installation lacks the core's decoder of JPEGs.
        CorruptRecordError, DataError, StorageError: images cannot be read.
    """
    decode_ready.check_core()
    most = _MOST_BYTES // max(1, samples.sample_bytes)
    count = min(len(samples), _MOST_IMAGES, max(1, most))
    numbers = np.linspace(0, len(samples) - 1, count).astype(np.int64)
    images = [decode_ready.restored(image) for image in samples.read_columns(numbers)[IMAGE]]
    jpegs = [bytes(image) for image in images if isinstance(image, bytes | memoryview) and image[:3] == START]
    pairs = [(jpeg, record) for jpeg in jpegs if (record := native.to_planes(jpeg)) is not None]
    if not pairs:
        return FormTimes(count, 0, {}, {})
    plain, records = (list(each) for each in zip(*pairs, strict=True))
    forms = dict(zip(FORMS, (plain, [native.make_crop_ready(jpeg) for jpeg in plain], records), strict=True))
    milliseconds = {form: 1e3 * seconds / len(pairs) for form, seconds in _in_turns(forms, transform).items()}
    return FormTimes(count, len(pairs), milliseconds, {form: sum(map(len, each)) for form, each in forms.items()})


def _in_turns(forms: dict[str, list[bytes]], transform: Transform) -> dict[str, float]:
    """Returns the median CPU seconds of decoding a window of each image of a form."""
    count = len(forms[FORMS[0]])
    keys, out = np.arange(count, dtype=np.uint64), np.empty((count, 3, *transform.output_size), np.uint8)
    times: dict[str, list[float]] = {form: [] for form in forms}
    until = time.perf_counter() + SECONDS
    while not times[FORMS[-1]] or time.perf_counter() < until:
        for form, images in forms.items():
            began = time.thread_time()
            decoders.decode_batch(images, transform, keys, out)
            times[form].append(time.thread_time() - began)
    return {form: statistics.median(each) for form, each in times.items()}
