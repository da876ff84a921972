"""Replacing a packed data set: the old one stays readable until the new one is complete next to it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dlio.dataset import manifest
from dlio.dataset.manifest import Manifest
from dlio.dataset.shard import files_of
from dlio.errors import DlioError, ManifestError, UsageError
from dlio.io import files
from dlio.io.open_folder import OpenFolder
from dlio.io.sizes import counted
from dlio.pack.inspect.tables import open_tables
from dlio.pack.listing.keys import Keys
from dlio.pack.recode import KEEP
from dlio.pack.resume import INDEXED, NEXT, FolderContents
from dlio.pack.write import ASIDE

_OF_OTHERS = ("split", "select", "merge")  # sources of `dlio.pack.sets`
_MOST_SHOWN = 100  # characters of an option's value
_MOST_COMPARED = 2_000_000  # samples, whose keys are held in memory


def folder_to_pack_into(
    held: FolderContents, plan: Manifest, inputs: Mapping[str, str], keys: Keys, overwrite: bool
) -> Path:
    """Returns `held.out`, or a folder below it to replace a published data set there.

    To replace an unfinished pack, its shards are removed here, since nobody can read them.

    Raises:
        StorageError: a file cannot be removed.
        UsageError: the folder holds another data set and `overwrite` is not set, or files that dlio did not write.
    """
    if held.is_of(plan, inputs) or not overwrite:
        check_same(held, plan, inputs, keys, "give another folder, or --overwrite to replace it")
        return held.out
    held.check_foreign()
    if held.published is None:
        _remove(held.out, held.names)
        return held.out
    if held.published.origin.get("source") in _OF_OTHERS:
        raise UsageError(f"{held.out} is a data set over the shards of other data sets: give another folder")
    if held.published.origin.get("source") == INDEXED:
        problem = "shards that other tools made, which dlio does not remove"
        raise UsageError(f"{held.out} holds {problem}: give another folder")
    return next_folder(held.out, plan, inputs)


def check_same(held: FolderContents, plan: Manifest, inputs: Mapping[str, str], keys: Keys, advice: str) -> None:
    """Checks that this is the planned data set, or a part of it, or nothing.

    Raises:
        UsageError: it is another one, or files that dlio did not write.
    """
    if not held.is_of(plan, inputs):
        raise UsageError(f"{held.out} holds {_other(held)}; {_differences(held, plan, inputs, keys)}: {advice}")
    if not held.names:
        held.check_foreign()


def _other(held: FolderContents) -> str:
    found = held.published or held.partial
    if found is None:
        return "shards without a manifest"
    state = "another data set" if held.published else "an unfinished pack of another data set or with other options"
    return (
        f"{state} ({found.format}, {counted(found.num_samples, 'sample')} from {found.origin.get('path', 'elsewhere')})"
    )


def _differences(held: FolderContents, plan: Manifest, inputs: Mapping[str, str], keys: Keys) -> str:
    """Returns as text how the data set to pack differs from the existing one."""
    found = held.published or held.partial or plan
    old, new = (_flat(manifest.header(each)) for each in (found, plan))
    names = [name for name in {**old, **new} if old.get(name) != new.get(name) and name not in ("plan", "refused")]
    differences = [f"{name} is {_shown(new.get(name))}, there {_shown(old.get(name))}" for name in names]
    if old.get("plan") != new.get("plan"):
        differences += _other_samples(held.published, keys) or (
            [] if names else ["sizes, labels or order of samples differ"]
        )
    if not differences:
        changed = sum(shard.inputs != inputs.get(shard.name, "") for shard in found.shards)
        differences = [f"the files of {changed} of {len(found.shards)} shards were changed since"]
    return ", ".join(differences)


def _flat(header: Mapping[str, Any]) -> dict[str, object]:
    origin = header["origin"]
    return {**header, **origin, **asdict(KEEP), **origin.get("recode", {}), "origin": None, "recode": None}


def _shown(value: object) -> str:
    text = "not given" if value is None else str(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _other_samples(published: Manifest | None, keys: Keys) -> list[str]:
    """Returns how many samples were added and removed, with the first of each."""
    if published is None or max(published.num_samples, len(keys)) > _MOST_COMPARED:
        return []
    try:
        held = ((shard, table) for shard, table in open_tables(published) if table is not None)
        old = {key for shard, table in held for key in table.keys(0, shard.num_samples)}
    except DlioError:  # a damaged table must not hide the refusal that this explains
        return []
    new, skipped = set(keys), {name for name, _ in published.skipped}
    found = {"added": sorted(new - old - skipped), "removed": sorted(old - new)}
    more = "" if found["removed"] else "; --append packs what was added"
    return [
        f"{counted(len(names), 'sample')} {word} (such as {names[0]!r}{more})" for word, names in found.items() if names
    ]


def next_folder(out: Path, plan: Manifest, inputs: Mapping[str, str]) -> Path:
    """Returns the folder where a new data set for `out` is made, emptied unless it holds a part of that data set."""
    folder = out / ASIDE / NEXT
    try:
        started = FolderContents.look(folder)
    except ManifestError:
        started = None
    if started is None or not started.is_of(plan, inputs):
        shutil.rmtree(folder, ignore_errors=True)
    return folder


def replace_packed(old: FolderContents, new: Manifest) -> Manifest:
    """Moves the data set `new` from its folder below `old.out` over the old one, and returns it.

    A killed run leaves the old manifest, so that the same command finds what is left to remove.

    Raises:
        StorageError: the file system refused.
    """
    out = old.out
    names = [file.name for file in files_of(new.shards)]
    files.publish_all(new.root, out, names)
    _remove(out, old.names - frozenset(names))
    files.publish(new.root / manifest.NAME, out / manifest.NAME)
    with files.storage_errors("remove", out / manifest.PARTIAL_NAME):
        (out / manifest.PARTIAL_NAME).unlink(missing_ok=True)
    return replace(new, root=out)


def _remove(out: Path, names: frozenset[str]) -> None:
    """Removes files below `out`, and the folders they leave empty; no link is followed: a manifest may name any."""
    with files.storage_errors("remove the data set in", out), OpenFolder.at(out) as opened:
        for name in sorted(names):
            *around, last = name.split("/")
            with suppress(FileNotFoundError), opened.below(*(around or ["."])) as holding:
                holding.unlink(last)
            if around:
                with suppress(OSError), opened.below(*(around[:-1] or ["."])) as holding:
                    holding.rmdir(around[-1])
