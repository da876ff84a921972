"""The report on a data set: one page of HTML that opens offline, without scripts, in less than a megabyte."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
from PIL import Image

from dlio.codecs import decoders
from dlio.dataset.manifest import Manifest
from dlio.dataset.remote import load
from dlio.errors import DlioError, UsageError
from dlio.io import files
from dlio.io.ground import check_ground
from dlio.io.sizes import counted, format_size
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.sampling.mixing import mixing_score
from dlio.loaders.sampling.order import Window
from dlio.look import page, similar
from dlio.look.classes import ClassSamples, groups, name_of
from dlio.look.survey import Survey, image_of, survey
from dlio.pack.inspect.summary import DatasetSummary, class_counts, describe, summarise
from dlio.urls import shown

_IMAGE_BYTES = 640 << 10  # of all images together; text and charts take up to 200 kB
_MOST_IMAGES = 240
_MOST_CLASSES = 120
_MOST_GROUPS = 15
_MOST_IN_A_ROW = 8
_BATCH_SIZE = 256


@dataclass(frozen=True, slots=True)
class _Facts:
    """All that the sections are made of."""

    manifest: Manifest
    summary: DatasetSummary
    looked: Survey
    groups: Sequence[ClassSamples]
    equal: Sequence[Sequence[int]]  # of numbers of samples
    near: Sequence[tuple[int, int]]
    keys: Callable[[int], str]
    labels: Callable[[int], str]


def report(
    dataset: str | Path | Manifest,
    out: str | Path = "report.html",
    *,
    samples: int = 20_000,
    progress: Callable[[int, int], None] = lambda num_samples, num_bytes: None,
) -> Path:
    """Writes a page about a packed data set, and returns its path: images, classes, sizes, duplicates, damage, mixing.

    Args:
        dataset: the folder or URL of the data set, or its manifest.
        out: the file to write; one that exists is replaced.
        samples: how many samples are read at most, spread evenly; equal images are found among these.
        progress: called with the samples and bytes read since the last call.

    Raises:
        ManifestError, CorruptRecordError, StorageError: the manifest or a table of samples cannot be read, or the file
            not written, or anybody could replace it. Damaged samples are part of the report.
    """
    manifest, target = load(dataset), Path(out)
    if target.is_dir():
        raise UsageError(f"{target} is a folder: give the file to write, such as {target / 'report.html'}")
    check_ground(target.absolute().parent)
    with closing(PackedSamples(manifest)) as packed:
        facts = _facts(packed, survey(packed, samples, progress))
        first = [number for group in [*facts.equal[:_MOST_GROUPS], *facts.near[:_MOST_GROUPS]] for number in group[:4]]
        images = page.inline([*first, *chain(*_sheet(facts))], partial(_image, packed), _IMAGE_BYTES)
        sections = [
            _overview(facts),
            _contact_sheet(facts, images),
            _classes(facts),
            _pictures(facts),
            _alike(facts, images),
            _shards(facts),
            _problems(facts),
        ]
        location = shown(manifest.url) if manifest.url else str(manifest.root.absolute())
        title = f"{Path(location).name}: {counted(manifest.num_samples, 'sample')}"
        text = page.whole(title, location, sections)
    files.publish_bytes(target.absolute(), text.encode())
    return target


def _facts(packed: PackedSamples, looked: Survey) -> _Facts:
    return _Facts(
        packed.manifest,
        summarise(packed.manifest),
        looked,
        groups(packed, _MOST_CLASSES),
        [looked.numbered(group) for group in similar.equal(looked.digests)],
        _near(looked),
        partial(_key, packed),
        partial(name_of, packed),
    )


def _near(looked: Survey) -> list[tuple[int, int]]:
    """Returns the numbers of pairs that are nearly equal, without those that are equal."""
    pairs = (pair for pair in similar.near(looked.hashes) if looked.digests[pair[0]] != looked.digests[pair[1]])
    return [(int(looked.numbers[one]), int(looked.numbers[other])) for one, other in pairs]


def _image(packed: PackedSamples, number: int) -> Image.Image | None:
    try:
        picture = image_of(packed.read([number])[0])
        return None if picture is None else decoders.decode_rgb(picture)
    except (DlioError, ValueError):  # it is among the damaged ones
        return None


def _key(packed: PackedSamples, number: int) -> str:
    try:
        return f"{number}: {packed.key(number)}"
    except DlioError:
        return str(number)


def _sheet(facts: _Facts) -> list[Sequence[int]]:
    """Returns the samples of the contact sheet, for each class."""
    each = max(1, min(_MOST_IN_A_ROW, _MOST_IMAGES // max(1, len(facts.groups))))
    return [group.numbers[:each] for group in facts.groups]


def _overview(facts: _Facts) -> str:
    told = describe(facts.manifest)
    told["bytes"] = f"{told['bytes']:,} ({format_size(told['bytes'])})"
    told["schema"] = ", ".join(f"{name}: {kind}" for name, kind in told["schema"].items())
    origin = {name: value for name, value in facts.manifest.origin.items() if name not in ("refused", "plan")}
    told["origin"] = ", ".join(f"{name}: {value}" for name, value in origin.items() if value not in (None, "", {}))
    return page.table({name.replace("_", " "): value for name, value in told.items()})


def _contact_sheet(facts: _Facts, images: Mapping[int, str]) -> str:
    rows = []
    for group, numbers in zip(facts.groups, _sheet(facts), strict=True):
        pictures = "".join(page.image_tag(images.get(n), facts.keys(n)) for n in numbers)
        name = f"<b>{page.text(group.name)}</b><span class=soft>{counted(group.count, 'sample')}</span>"
        rows.append(f'<div class="class"><div>{name}</div><div>{pictures}</div></div>' if pictures else "")
    counts = facts.summary.class_counts.values()
    hidden = sum(map(bool, counts)) - len(facts.groups)
    note = "Point to an image to see its number and key; dlio show prints it."
    note += f" {hidden:,} more classes are left out." if hidden > 0 else ""
    note += f" {empty:,} of {len(counts):,} classes have no samples." if (empty := sum(not n for n in counts)) else ""
    return page.section("Samples", note, *rows)


def _classes(facts: _Facts) -> str:
    counts = facts.summary.class_counts
    if not counts:
        return ""
    most = sorted(counts.items(), key=lambda item: -item[1])
    shown = most if len(most) <= 40 else [*most[:25], *most[-10:]]
    note = f"{counted(len(counts), 'class', 'classes')}, from {most[-1][1]:,} to {most[0][1]:,} samples each."
    return page.section(
        "Classes", note + (" The largest and the smallest:" if shown is not most else ""), page.bars(shown)
    )


def _pictures(facts: _Facts) -> str:
    looked = facts.looked
    sizes = looked.sizes[looked.sizes[:, 0] > 0]
    size_table = {name: format_size(number) for name, number in facts.summary.sample_bytes.items()}
    by_size = f"<p>Bytes of a sample, by percentiles</p>{page.table(size_table)}" if size_table else ""
    if not len(sizes):
        return page.section("Sizes", "", by_size)
    kinds = page.table({kind: f"{number:,}" for kind, number in looked.kinds.most_common(20)})
    channels = page.table({"mean": _numbers(looked.mean), "std": _numbers(looked.std)})
    pixels = f"<p>Mean and standard deviation of red, green, blue</p>{channels}" if looked.num_decoded else ""
    partly = f"{len(looked.numbers):,} of {facts.manifest.num_samples:,} samples were read, spread evenly. "
    note = partly if len(looked.numbers) < facts.manifest.num_samples else ""
    note += "Mean and standard deviation are over the pixels of the images resized to 216 x 216, from 0 to 1."
    note += (
        f" EXIF turns {counted(looked.num_turned, 'image')}: loaders turn them with upright=True."
        if looked.num_turned
        else ""
    )
    heights, widths = np.median(sizes, axis=0).astype(int)
    drawn = page.figure(page.shapes(sizes), f"median {widths} x {heights} pixels")
    pixel_counts = page.figure(page.histogram(sizes.prod(axis=1) // 1000, "kpixels"), "pixels of an image")
    return page.section("Images", note, page.row(drawn, f"{kinds}{pixels}{by_size}", pixel_counts))


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4f}" for value in values)


def _alike(facts: _Facts, images: Mapping[int, str]) -> str:
    conflicting = sum(len({facts.labels(number) for number in group}) > 1 for group in facts.equal)
    note = f"{counted(len(facts.equal), 'group')} of equal images"
    note += f", {conflicting:,} of them in several classes" if conflicting else ""
    pairs = "pair that looks alike" if len(facts.near) == 1 else "pairs that look alike"
    least = "" if similar.are_all_compared(facts.looked.hashes) else "at least "
    note += f"; {least}{len(facts.near):,} {pairs}: up to {similar.NEAR_BITS} of the 64 bits of their hashes differ."
    rows = [
        f'<div class="class"><div><b>{kind}</b></div><div>'
        + "".join(page.figure(page.image_tag(images.get(n), facts.keys(n)), _about(facts, n)) for n in group[:4])
        + (page.text(f"and {len(group) - 4:,} more") if len(group) > 4 else "")
        + "</div></div>"
        for kind, found in (("equal", facts.equal), ("alike", facts.near))
        for group in found[:_MOST_GROUPS]
    ]
    return page.section("Equal images", note, *rows) if any(facts.looked.digests) else ""


def _about(facts: _Facts, number: int) -> str:
    label = facts.labels(number)[:40]
    return f"{facts.keys(number)[:60]}{f' ({label})' if label else ''}"


def _shards(facts: _Facts) -> str:
    manifest = facts.manifest
    if not manifest.shards:
        return ""
    sizes = np.array([shard.num_samples for shard in manifest.shards], np.int64)
    counts, num_bytes = class_counts(manifest), np.array([shard.num_bytes for shard in manifest.shards], np.int64)
    windows = [2**power for power in range(12) if 2**power <= len(sizes)]
    scores = {f"window of {w}": f"{mixing_score(Window(w), _BATCH_SIZE, sizes, counts):.3f}" for w in windows}
    mixing = (
        f"<p>How well a shuffle of some shards at a time mixes batches of {_BATCH_SIZE}: 1 is as good as the exact "
        f"shuffle; at 0.5 a batch is mixed as well as an exactly shuffled one of half its size</p>{page.table(scores)}"
    )
    drawn = page.figure(page.columns(sizes), "samples of each shard")
    weights = page.figure(page.columns(num_bytes // 1000), "kilobytes of each shard")
    return page.section("Shards", counted(len(sizes), "shard"), page.row(f"{drawn}{weights}", mixing))


def _problems(facts: _Facts) -> str:
    damage = [f"{number}: {problem}" for number, problem in sorted(facts.looked.damage.items())]
    skipped = [f"{name}: {reason}" for name, reason in facts.manifest.skipped]
    parts = [
        f"<p>{len(found):,} {word}</p>{page.bullets(found)}"
        for word, found in (("damaged among the samples read", damage), ("skipped when the set was packed", skipped))
        if found
    ]
    note = "" if parts else "Nothing was skipped when the set was packed, and no sample read is damaged."
    return page.section("Skipped and damaged", note, *parts)
