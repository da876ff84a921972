"""Replacing a packed data set: the old one stays readable until the new one is complete beside it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dlio.dataset import manifest
from dlio.dataset.manifest import Manifest
from dlio.errors import ManifestError, UsageError
from dlio.io import files
from dlio.io.open_folder import OpenFolder
from dlio.pack.resume import INDEXED, NEXT, Held
from dlio.pack.write import ASIDE


def folder_to_pack_into(held: Held, plan: Manifest, inputs: Mapping[str, str], overwrite: bool) -> Path:
    """Returns `held.out`, or a folder below it if a published data set there is to be replaced.

    If an unfinished pack is to be replaced, its shards are removed here, since nobody can read them.

    Raises:
        StorageError: a file cannot be removed.
        UsageError: the folder holds another data set and `overwrite` is not set, or files that dlio did not write.
    """
    if held.is_of(plan, inputs):
        if not held.names:
            held.check_foreign()
        return held.out
    if not overwrite:
        raise UsageError(f"{held.out} holds {_other(held, plan)}: give another folder, or --overwrite to replace it")
    held.check_foreign()
    if held.published is None:
        _remove(held.out, held.names)
        return held.out
    if held.published.origin.get("source") == INDEXED:
        problem = "shards that other tools made, which dlio does not remove"
        raise UsageError(f"{held.out} holds {problem}: give another folder")
    return _next(held.out, plan, inputs)


def _other(held: Held, plan: Manifest) -> str:
    found = held.published or held.partial or plan
    state = "another data set" if held.published else "an unfinished pack of another data set or with other options"
    then = " before that was changed" if manifest.header(found) == manifest.header(plan) else ""
    return f"{state} ({found.format}, {found.num_samples} samples from {found.origin.get('path', 'elsewhere')}{then})"


def _next(out: Path, plan: Manifest, inputs: Mapping[str, str]) -> Path:
    """Returns the folder of the new data set, which is emptied unless it holds a part of that data set."""
    folder = out / ASIDE / NEXT
    try:
        started = Held.look(folder)
    except ManifestError:
        started = None
    if started is None or not started.is_of(plan, inputs):
        shutil.rmtree(folder, ignore_errors=True)
    return folder


def replace_packed(old: Held, new: Manifest) -> Manifest:
    """Moves the data set `new` from its folder below `old.out` over the old one, and returns it.

    A killed run leaves the old manifest, so that the same command finds what is left to remove.

    Raises:
        StorageError: the file system refused.
    """
    out = old.out
    names = [file.name for shard in new.shards for file in shard.files]
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
