"""Data sets over the shards of others: a manifest, and a link to each folder that holds shards; no bytes are copied.

    OUT/manifest.jsonl         names base0/shard-000000.tfrecord, and which of its records are in the set
    OUT/base0 -> ../photos     the folder of the shards

So all names of a manifest are still below its folder, and readers need no change: a stranger's manifest leads
nowhere else, since only users who can write to the folder can make a link. Hard links would need one file system, and
one link for each file. Copies, staged or by `rsync -L`, hold files instead of links.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dlio.dataset import manifest
from dlio.dataset.manifest import File, Manifest, Part, Shard
from dlio.errors import ManifestError, UsageError
from dlio.io import files
from dlio.io.ground import check_ground, check_manifests
from dlio.pack.resume import working_on
from dlio.pack.sets.choose import Rows
from dlio.pack.write import ASIDE


@dataclass(frozen=True, slots=True)
class BasedShard:
    """A shard, by the folder that holds its files; the names of the files begin there."""

    base: str
    shard: Shard


def link_name(number: int) -> str:
    """Returns the name of the link to the base of this number, from 0."""
    return f"base{number}"


def based_shards(found: Manifest, rows: Rows | None = None) -> list[BasedShard]:
    """Returns the shards of a data set with those of its samples that are in `rows`, without shards that have none.

    These are ascending numbers; None for all.

    Raises:
        UsageError: the data set is staged in parts.
    """
    if any(shard.nodes for shard in found.shards):
        raise UsageError(f"{found.root} is staged in parts: give the data set that it was staged from")
    root = os.path.realpath(found.root)
    links = {name: os.path.realpath(found.root / name) for name in _links(found)}
    bounds = [None] * len(found.shards) if rows is None else np.searchsorted(rows, found.offsets).tolist()
    held = []
    for number, shard in enumerate(found.shards):
        if rows is not None:
            chosen = rows[bounds[number] : bounds[number + 1]] - found.offsets[number]
            if len(chosen) < shard.num_samples:
                shard = _with(shard, shard.records()[chosen])
        if shard.num_samples:
            held.append(_based(shard, root, links))
    return held


def _links(found: Manifest) -> Iterator[str]:
    """Yields the names of the folders of shards that are links."""
    firsts = {name for shard in found.shards if (name := shard.files[0].name.partition("/")[0])}
    return (name for name in sorted(firsts) if (found.root / name).is_symlink() and (found.root / name).is_dir())


def _based(shard: Shard, root: str, links: dict[str, str]) -> BasedShard:
    link, slash, _ = shard.files[0].name.partition("/")
    if not slash or link not in links or not all(file.name.startswith(f"{link}/") for file in shard.files):
        return BasedShard(root, shard)
    inner = tuple(file.replace(name=file.name.removeprefix(f"{link}/")) for file in shard.files)
    return BasedShard(links[link], shard.replace(name=shard.name.removeprefix(f"{link}/"), files=inner))


def _with(shard: Shard, records: Rows) -> Shard:
    """Returns a shard with these of its records; inputs that were skipped when it was packed are not its samples."""
    is_whole = len(records) == shard.num_records
    part = None if is_whole else Part.of(shard.num_records, records)
    return shard.replace(num_samples=len(records), part=part, skipped=(), inputs="")


def joined(held: Iterable[BasedShard]) -> list[BasedShard]:
    """Returns the shards with each of them once; parts of the same one are united, and copies are the same.

    Raises:
        UsageError: a record is in two of them.
        ManifestError: two manifests name different files for the same shard.
    """
    found: dict[Any, BasedShard] = {}
    digests: dict[tuple[str, str], Any] = {}
    for each in held:
        content = each.shard.name, tuple(file.digest for file in each.shard.files)
        if digests.setdefault((each.base, each.shard.name), content) != content:
            problem = "two manifests give it different files or digests: verify both data sets"
            raise ManifestError(f"{Path(each.base, each.shard.name)}: {problem}")
        found[content] = replace(found[content], shard=_united(found[content], each)) if content in found else each
    return list(found.values())


def _united(one: BasedShard, other: BasedShard) -> Shard:
    where = Path(other.base, other.shard.name)
    if one.shard.num_records != other.shard.num_records:
        raise ManifestError(f"{where}: two manifests give it different numbers of records: verify both data sets")
    records = np.concatenate([one.shard.records(), other.shard.records()])
    records.sort()
    twice = np.count_nonzero(np.diff(records) == 0)
    if twice:
        advice = "a data set holds each once; to train on some more often, use a Mixture of the loaders"
        raise UsageError(f"{where}: {twice:,} of its samples are in two of the data sets, or copies: {advice}")
    return _with(one.shard, records)


@dataclass(frozen=True, slots=True)
class Planned:
    """A data set to write: its manifest, whose root is the folder, and the folders of shards by their links' names."""

    manifest: Manifest
    links: Mapping[str, Path]


def planned(out: Path, like: Manifest, held: Sequence[BasedShard], origin: dict[str, Any]) -> Planned:
    """Returns a data set of shards for the folder `out`, of the format and schema of `like`; raises UsageError."""
    if not held:
        raise UsageError(f"no samples are left for {out}: dlio info lists the classes and their samples")
    bases = {base: link_name(number) for number, base in enumerate(dict.fromkeys(each.base for each in held))}
    shards = tuple(_below(bases[each.base], each.shard) for each in held)
    described = [(shard.name, shard.num_samples, shard.files, shard.part) for shard in shards]
    made = origin | {"num_shards": len(shards), "plan": files.digest_bytes(repr(described).encode())}
    links = {name: Path(base) for base, name in bases.items()}
    return Planned(Manifest(like.format, like.schema, shards, made, out), links)


def publish_sets(sets: Sequence[Planned]) -> None:
    """Writes data sets, all or none of them; those that their folders hold already are not changed.

    Raises:
        UsageError: a folder holds something else.
        StorageError: one cannot be written.
    """
    new = [each for each in sets if not _is_there(each)]
    outs = [each.manifest.root for each in new]
    try:
        with ExitStack() as working:
            for each, out in zip(new, outs, strict=True):
                working.enter_context(working_on(out, f"dlio {each.manifest.origin['source']} into {out}"))
            _write([each for each in new if not _is_there(each)])  # unless another run has just written it
    except BaseException:
        for out in outs:
            with suppress(OSError):  # it has files, of another run
                out.rmdir()
        raise


def _write(new: Sequence[Planned]) -> None:
    try:
        for each in new:
            _link(each)
            each.manifest.save(each.manifest.root)
    except BaseException:
        for out in (each.manifest.root for each in new):
            with suppress(OSError):
                (out / manifest.NAME).unlink(missing_ok=True)
                for link in _links_in(out):
                    link.unlink()
        raise


def _link(new: Planned) -> None:
    out = new.manifest.root
    for link in _links_in(out):  # of a run that was killed
        with files.storage_errors("remove", link):
            link.unlink()
    for name, base in new.links.items():
        with files.storage_errors("link", out / name):
            (out / name).symlink_to(link_target(base, out))


def _links_in(out: Path) -> list[Path]:
    paths = (out / link_name(number) for number in range(len(list(out.iterdir()))))
    return [path for path in paths if path.is_symlink()]


def _below(link: str, shard: Shard) -> Shard:
    entries = tuple(File(f"{link}/{file.name}", file.num_bytes, file.digest) for file in shard.files)
    return shard.replace(name=f"{link}/{shard.name}", files=entries)


def link_target(base: Path, out: Path) -> str:
    """Returns what a link in `out` holds: a relative path, if both may move together with their file system."""
    real = out.resolve()
    return os.path.relpath(base, real) if base.stat().st_dev == real.stat().st_dev else str(base)


def _is_there(wanted: Planned) -> bool:
    """Returns whether the folder holds the data set; links without a manifest are those of a run that was killed.

    Raises:
        UsageError: it holds something else.
        StorageError: another user could change it, or it cannot be read.
    """
    out = wanted.manifest.root
    check_ground(out)
    check_manifests(out, manifest.NAME)
    with files.storage_errors("access", out):
        names = sorted(path.name for path in out.iterdir()) if out.exists() else []
    if manifest.NAME in names:
        found = Manifest.load(out)
        if (found.content_id, dict(found.origin)) == (wanted.manifest.content_id, dict(wanted.manifest.origin)):
            return True
        raise UsageError(f"{out} holds another data set: give another folder")
    if others := sorted({*names} - {ASIDE, *(link.name for link in (_links_in(out) if names else ()))}):
        raise UsageError(f"{out} holds {others[0]!r}: give a new or an empty folder")
    return False


def common(manifests: Sequence[Manifest]) -> Manifest:
    """Returns the manifest whose format and schema are those of all; of class lists it has the longest.

    Raises:
        UsageError: formats, fields or label offsets differ, or a class list does not begin as another does.
    """
    first = max(manifests, key=lambda each: len(each.class_names))
    for other in manifests:
        where = f"{first.root} and {other.root} cannot be one data set"
        if other.format != first.format:
            raise UsageError(f"{where}: one is {first.format}, one {other.format}: dlio convert one of them first")
        plain = [replace(each.schema, class_names=()) for each in (first, other)]
        if plain[0] != plain[1]:
            raise UsageError(f"{where}: their fields or label offsets differ: ({first.schema}) and ({other.schema})")
        if other.class_names != first.class_names[: len(other.class_names)]:
            raise UsageError(f"{where}: their class lists differ: pack one again with --classes {first.root}")
    return first
