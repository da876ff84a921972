"""How fast this machine is with a data set: storage, decoding and loading, measured in seconds, and what follows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from dlio.codecs.decode_ready import check_core
from dlio.dataset.manifest import Manifest
from dlio.dataset.remote import load
from dlio.dataset.shard_files import paths_of
from dlio.errors import SourceError, UsageError
from dlio.images import RandomResizedCrop, Transform
from dlio.io import files
from dlio.io.filesystems import existing, filesystem_of, local_folders
from dlio.io.ground import check_ground
from dlio.io.sizes import counted, format_size
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.sampling.rank import num_cores_of_rank
from dlio.look.measure import loading, storage
from dlio.look.measure.forms import FormTimes, time_forms
from dlio.stage.choose import machine_file
from dlio.targets import IMAGE, leave_unknown

_GOOD_SHARE = 0.95  # of the best rate; more threads than give this are not worth it
_ENOUGH_BYTES = 16 << 20  # read in less than this, a rate is that of opening files
_IN_MEMORY_BYTES = 512 << 20  # that memory is sure to hold, so that no loader waits for storage
_BROUGHT_BYTES = 64 << 20
_USUAL = RandomResizedCrop(224, flip=True)


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured on this node.

    Attributes:
        num_samples, num_bytes: of the data set.
        source_rate: at which the data set is read where it is, past the page cache, in bytes per second; 0 if it is
            too small for a result.
        write_rate, read_rate: of the local folder, in bytes per second; 0 without one.
        decode_rate: images per second that one thread decodes; 0 if samples have no images to decode.
        loader_rates: samples per second by the number of threads.
        local: the local folder; "" if this node has none.
        rates: the file that holds the rates of storage from now on; "" if too little was read to know any.
        windows: what decode-ready records would give; None unless asked for.
    """

    num_samples: int
    num_bytes: int
    source_rate: float
    write_rate: float
    read_rate: float
    decode_rate: float
    loader_rates: dict[int, float]
    local: str
    rates: str
    windows: FormTimes | None = None

    @property
    def num_threads(self) -> int:
        """The least number of threads that gives nearly the best rate."""
        best = max(self.loader_rates.values())
        return min(count for count, rate in self.loader_rates.items() if rate >= _GOOD_SHARE * best)

    def verdict(self) -> list[str]:
        """Returns the conclusions in sentences: the threads, the bottleneck, whether staging and --decode-ready pay."""
        found = [self._threads(), self._bound(), self._staging()]
        return found if self.windows is None else [*found, self.windows.verdict()]

    def _threads(self) -> str:
        rate = self.loader_rates[self.num_threads]
        word = "thread" if self.num_threads == 1 else "threads"
        return f"use {self.num_threads} {word}: {rate:,.0f} samples/s with all data in memory"

    @property
    def _wanted_rate(self) -> float:
        """The bytes per second that the loader takes at its best."""
        return self.loader_rates[self.num_threads] * self.num_bytes / max(1, self.num_samples)

    def _bound(self) -> str:
        if not self.source_rate:
            return f"the data set is too small to measure its storage: {format_size(self.num_bytes)}"
        wanted, given = format_size(self._wanted_rate), format_size(self.source_rate)
        if self.source_rate < self._wanted_rate:
            return (
                f"the loader waits for the source, which delivers {given}/s of the {wanted}/s that the loader could "
                "read"
            )
        return f"the source waits for the loader, which reads {wanted}/s of the {given}/s that the source could deliver"

    def _staging(self) -> str:
        if not (self.write_rate and self.source_rate):
            return "whether staging pays is not known" if self.local else "staging: this node has no local folder"
        loading_seconds = self.num_bytes / self._wanted_rate
        gain = max(0.0, self.num_bytes / self.source_rate - max(loading_seconds, self.num_bytes / self.read_rate))
        gain = 0.0 if self.source_rate >= self._wanted_rate else gain
        seconds = self.num_bytes / min(self.source_rate, self.write_rate)
        if not gain:
            return "staging does not pay for this rank alone; with other ranks and jobs the source gives each less"
        return f"staging to {self.local} takes {seconds:,.0f} s, and pays after {seconds / gain:.1f} epochs"


def bench(
    dataset: str | Path | Manifest,
    dest: str | Path | None = None,
    *,
    transform: Transform | None = None,
    decode_ready: bool = False,
    report: Callable[[str, float, str], None] = lambda name, rate, unit: None,
) -> Measured:
    """Measures how fast this machine reads, decodes and loads a data set; takes some seconds a rate, and a local file.

    The rates of storage are kept in a file (dlio/stage/choose/machine_file.py); `plan` and `stage` read them there.

    Args:
        dataset: the folder or URL of a packed data set, or its manifest. The rate of a URL is not kept.
        dest: the local folder to measure, or the folder in which `stage` would make it; by default the first that
            `stage` would try.
        transform: of the images; by default a random crop of 224 x 224 pixels.
        decode_ready: also measure what `dlio pack --decode-ready` would give, on a sample of the data set's own images.
        report: called with each measurement: its name, its rate, and the unit.

    Raises:
        SourceError: there are no samples.
        UsageError, MissingPackageError: `decode_ready` needs images, and the core's decoder of JPEGs.
        ManifestError, CorruptRecordError, StorageError: it cannot be read, or the local folder not written.
    """
    manifest = load(dataset)
    if not manifest.num_samples:
        raise SourceError(f"{manifest.root} has no samples: give a data set that has some")
    if decode_ready and not _has_images(manifest):
        raise UsageError(f"--decode-ready is for images, and {manifest.root} has the fields {sorted(manifest.schema)}")
    if decode_ready:
        check_core()
    local = existing(Path(dest)) if dest is not None else next((folder for _, folder in local_folders()), None)
    source_rate, write_rate, read_rate = _storage(manifest, local, report)
    transform = transform or _USUAL
    loader_rates, windows = {}, None
    with _here(manifest, local) as here:
        decode_rate = _decode_rate(here, transform)
        report("decode, 1 thread", decode_rate, "images/s")
        for count, rate in _loader_rates(here, transform):
            loader_rates[count] = rate
            report(f"loader, {counted(count, 'thread')}", rate, "samples/s")
        if decode_ready:
            windows = _windows(here, transform, report)
    return Measured(
        manifest.num_samples,
        manifest.num_bytes,
        source_rate,
        write_rate,
        read_rate,
        decode_rate,
        loader_rates,
        "" if local is None else str(local),
        _kept(manifest, source_rate, local, write_rate),
        windows,
    )


def _storage(
    manifest: Manifest, local: Path | None, report: Callable[[str, float, str], None]
) -> tuple[float, float, float]:
    """Returns the rates of the source, of writing to the local folder and of reading there, 0 for one not known."""
    rate, num_bytes = storage.url_rate(manifest) if manifest.url else storage.read_rate(_paths(manifest))
    source_rate = rate if num_bytes >= _ENOUGH_BYTES else 0.0
    report("source", source_rate, "B/s")
    write_rate, read_rate = storage.write_rate(local) if local is not None else (0.0, 0.0)
    report("local write", write_rate, "B/s")
    report("local read", read_rate, "B/s")
    return source_rate, write_rate, read_rate


@contextmanager
def _here(manifest: Manifest, local: Path | None) -> Iterator[Manifest]:
    """Gives the data set; of one at a URL a copy of its first shards, for as long as the context lasts."""
    if not manifest.url:
        yield manifest
        return
    around = local or Path(tempfile.gettempdir())
    check_ground(around)
    with files.storage_errors("write", around):
        folder = tempfile.TemporaryDirectory(dir=around, prefix=".dlio-bench-")
    with folder as name:
        yield storage.bring(_first_shards(manifest, _BROUGHT_BYTES), Path(name))


def _kept(manifest: Manifest, source_rate: float, local: Path | None, write_rate: float) -> str:
    """Keeps the rates of storage that are known; returns the file, "" if none is known."""
    mounted = source_rate and not manifest.url
    known = machine_file.Rates({str(filesystem_of(manifest.root)): source_rate} if mounted else {})
    if local is not None and write_rate:
        known.write[str(filesystem_of(local))] = write_rate
    return str(machine_file.add_rates(known)) if known != machine_file.Rates() else ""


def _first_shards(manifest: Manifest, most: int) -> Manifest:
    """Returns the first shards, up to a number of bytes, but at least one with samples."""
    ends = accumulate(shard.num_bytes for shard in manifest.shards)
    count = max(1, sum(end <= most for end in ends))
    while not sum(shard.num_samples for shard in manifest.shards[:count]):
        count += 1
    return replace(manifest, shards=manifest.shards[:count])


def _paths(manifest: Manifest) -> list[Path]:
    return [path for shard in manifest.shards_here for path in paths_of(manifest, shard)]


def _has_images(manifest: Manifest) -> bool:
    return IMAGE in manifest.schema and manifest.schema[IMAGE].dtype in ("bytes", "uint8")


def _decode_rate(manifest: Manifest, transform: Transform) -> float:
    if not _has_images(manifest):
        return 0.0
    with closing(PackedSamples(manifest)) as samples:
        return loading.decode_rate(samples, transform)


def _windows(manifest: Manifest, transform: Transform, report: Callable[[str, float, str], None]) -> FormTimes:
    with closing(PackedSamples(manifest)) as samples:
        found = time_forms(samples, transform)
    for form, milliseconds in found.milliseconds.items():
        report(f"window, {form}", 1e3 / milliseconds, "images/s")
    return found


def _loader_rates(manifest: Manifest, transform: Transform) -> Iterator[tuple[int, float]]:
    """Yields the rates of loaders with 1, 2, 4, ... threads up to the cores of this rank, from the page cache."""
    manifest = _first_shards(manifest, _IN_MEMORY_BYTES)
    for path in _paths(manifest):
        for _ in files.read_blocks(path):
            pass
    count, most, images = 1, num_cores_of_rank(), _has_images(manifest)
    moving = leave_unknown(transform, manifest.schema) if images else None
    while True:
        with closing(PackedSamples(manifest, moving)) as samples:
            yield count, loading.loader_rate(samples, count)
        if count >= most:
            return
        count = min(2 * count, most)
