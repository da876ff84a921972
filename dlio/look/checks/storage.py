"""Checks of local folders, the data set's storage, and what jobs have left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

from dlio.codecs.decode_ready import check_core
from dlio.codecs.orientation import AS_STORED
from dlio.dataset.manifest import Manifest
from dlio.dataset.reader import ShardReader
from dlio.dataset.remote import load
from dlio.dataset.shard_files import files_here
from dlio.errors import DlioError, StorageError
from dlio.io import lustre
from dlio.io.filesystems import FileSystem, filesystem_of, local_folders
from dlio.io.sizes import counted, format_size
from dlio.loaders.dataset import PackedSamples
from dlio.look.checks.finding import Finding, State, judged
from dlio.look.classes import evenly_spaced
from dlio.pack.upright import orientation
from dlio.stage.choose import machine_file
from dlio.stage.client.resolve import resolve
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.locations import folders_with_copies
from dlio.stage.copies.node_cache import copies, is_being_filled, is_in_use
from dlio.targets import IMAGE
from dlio.urls import shown, without_credentials

_FEW_SHARED = 1 << 30  # Docker gives 64 MB; torch's worker processes pass batches through it
_FEW_BYTES = 10 << 30
_SHOWN = 6  # leftovers; those whose folders were named or are node-local come first
_SOME_IMAGES, _FEW_IMAGES = 64, 8  # to read of a data set, and of one at a URL


def shared_memory(check: str) -> Iterator[Finding]:
    """The room in /dev/shm."""
    system = filesystem_of("/dev/shm")
    advice = "torch's worker processes need more (dlio's threads do not): docker run --shm-size=8g"
    yield judged(check, f"{format_size(system.free_bytes)} free", system.free_bytes < _FEW_SHARED, advice)


def local_storage(check: str) -> Iterator[Finding]:
    """The folders of this node that `stage` would choose from, with their room."""
    found = [(why, folder, filesystem_of(folder)) for why, folder in local_folders()]
    for why, folder, system in found:
        small = system.free_bytes < _FEW_BYTES
        yield judged(
            check, f"{folder} ({why}): {_room(system)}", small, "little free space: free some, or give another DEST"
        )
    if not found:
        yield Finding(check, State.CHANGE, "no local folder can be written", "set TMPDIR to one, or give DEST")


def _room(system: FileSystem) -> str:
    memory = ", in memory" if system.in_memory else ""
    return f"{system}{memory}, {format_size(system.free_bytes)} free"


def leftovers(check: str) -> Iterator[Finding]:
    """Staged copies on this node that no job uses, and those that nobody completes, of some folders."""
    findings = list(_leftovers(check))
    yield from findings[:_SHOWN]
    if len(findings) > _SHOWN:
        yield Finding(check, State.GOOD, f"{len(findings) - _SHOWN} more of the same kinds, in other folders")


def _leftovers(check: str) -> Iterator[Finding]:
    used, found = 0, 0
    for folder in folders_with_copies():
        try:
            staged = copies(folder)
        except StorageError as error:
            yield Finding(check, State.CHANGE, error.text, f"find out why {folder} cannot be read")
            continue
        found += len(staged)
        begun = [copy for copy in staged if not copy.has_manifest() and not is_being_filled(copy)]
        unused = [copy for copy in staged if copy not in begun and not is_in_use(copy)]
        used += len(staged) - len(begun) - len(unused)
        if begun:
            advice = f"left by jobs that ended: stage again, or dlio clean {folder}"
            yield Finding(check, State.CHANGE, f"{_counted(begun)} in {folder} incomplete", advice)
        if unused:
            advice = f"their space is freed when another data set needs it, or now with dlio clean {folder}"
            size = format_size(sum(map(_num_bytes, unused)))
            yield Finding(check, State.GOOD, f"{_counted(unused)} in {folder}, {size}, used by no job: {advice}")
    if used == found:
        yield Finding(check, State.GOOD, f"none: {found} staged and in use" if found else "nothing is staged here")


def _counted(staged: Sequence[StagedFolder]) -> str:
    return counted(len(staged), "copy", "copies")


def _num_bytes(copy: StagedFolder) -> int:
    """Returns the size of a copy by its manifest, since a walk through a million files would take too long."""
    with suppress(DlioError):
        return Manifest.load(copy.path).num_bytes
    return 0


def rates(check: str) -> Iterator[Finding]:
    """Whether the rates of storage were measured."""
    known = machine_file.measured()
    verbs = {"read": known.read, "write": known.write}
    found = [f"{verb} {name} {format_size(rate)}/s" for verb, of in verbs.items() for name, rate in of.items()]
    advice = "plan and stage assume those of a typical cluster: measure yours with dlio bench DATASET"
    yield judged(
        check, f"{', '.join(found)} ({machine_file.rates_path()})" if found else "not measured", not found, advice
    )


def _size(manifest: Manifest) -> str:
    samples, shards = counted(manifest.num_samples, "sample"), counted(len(manifest.shards), "shard")
    return f"{manifest.format}, {samples}, {format_size(manifest.num_bytes)}, {shards}"


def data_set_at_url(url: str | Path, check: str) -> Iterator[Finding]:
    """The data set, whether its first shard can be read in ranges, and its copy on this node."""
    manifest, location = load(url), shown(str(url))
    yield Finding(check, State.GOOD, f"{_size(manifest)}, at {location}")
    yield from _shards(manifest, check)
    yield from _turned(manifest, check, _FEW_IMAGES)
    try:
        yield Finding(check, State.GOOD, f"loaders here read the copy {resolve(url)}")
    except StorageError:
        yield Finding(check, State.CHANGE, "no copy is staged on this node", f"dlio stage {location}, or cache=True")


def data_set(path: str | Path, check: str) -> Iterator[Finding]:
    """The data set, its file system, its stripes, and its copy on this node."""
    path = Path(path)
    manifest = Manifest.load(path)
    yield Finding(check, State.GOOD, f"{_size(manifest)}, on {filesystem_of(path)}")
    yield from _shards(manifest, check)
    yield from _turned(manifest, check, _SOME_IMAGES)
    if lustre.is_lustre(path) and manifest.shards:
        yield _stripes(manifest, check)
    staged = resolve(path)
    shared = filesystem_of(path).shared and staged == path
    found = "no copy is staged on this node" if staged == path else f"loaders here read the copy {staged}"
    yield judged(check, found, shared, f"the storage is shared with other jobs: dlio stage {path}, or cache=True")


def _shards(manifest: Manifest, check: str) -> Iterator[Finding]:
    """Opens the first shard, which needs its format's package, and of decode-ready records the core."""
    try:
        if manifest.decode_ready.records:
            check_core()
        if manifest.shards_here:
            ShardReader(manifest, manifest.shards_here[0]).close()
    except DlioError as error:
        location = without_credentials(str(manifest.root))
        yield Finding(check, State.BROKEN, error.text, f"see what else is damaged: dlio verify {location}")


def _turned(manifest: Manifest, check: str, most: int) -> Iterator[Finding]:
    """Reads some images, spread evenly, and counts those that EXIF turns; damage is for `dlio verify`."""
    count = turned = 0
    with suppress(DlioError), closing(PackedSamples(manifest)) as samples:
        for number in evenly_spaced(len(samples), most if IMAGE in manifest.schema else 0).tolist():
            image = samples.read([number])[0].fields[IMAGE]
            count += 1
            turned += isinstance(image, bytes) and orientation(image) != AS_STORED
    if turned:
        found = f"EXIF turns {turned} of {counted(count, 'image')} read; loaders leave images as they are stored"
        yield Finding(check, State.CHANGE, found, "give the loader upright=True, or pack with --upright")


def _stripes(manifest: Manifest, check: str) -> Finding:
    file = max(
        (file for shard in manifest.shards for file in files_here(manifest, shard)), key=lambda file: file.num_bytes
    )
    layout = lustre.layout_of(manifest.root / file.name)
    wanted = lustre.stripe_count(file.num_bytes, len(manifest.shards), len(lustre.targets(manifest.root)))
    advice = f"{wanted} would be right: dlio stage DATASET FOLDER --strategy stripe copies it so"
    return judged(check, f"{file.name} lies on {layout.count} storage targets", layout.count < wanted, advice)


def destination(path: Path, dataset: str | Path | None, check: str) -> Iterator[Finding]:
    """The folder to stage to: its type, and whether the data set fits."""
    system = filesystem_of(path)
    advice = "other machines see it: name a node-local folder, or stage with --strategy stripe"
    yield judged(check, f"{path}: {_room(system)}", system.shared, advice)
    needed = load(dataset).num_bytes if dataset is not None else 0
    if needed > system.free_bytes:
        advice = "name another folder, or stage parts: --strategy partition"
        yield Finding(check, State.CHANGE, f"{format_size(needed)} do not fit", advice)
