"""Appending: samples whose keys are new go into new shards next to those of a packed data set, which do not change.

The new shards are packed in their own folder, as those that replace a data set are, and then get their names. The
new manifest is published last, over the old one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from dlio.dataset.manifest import NAME, Manifest
from dlio.dataset.schema import Schema
from dlio.dataset.shard import files_of
from dlio.errors import StorageError, UsageError
from dlio.io import files
from dlio.pack.inspect.tables import keys_of
from dlio.pack.listing.base import Listing
from dlio.pack.listing.classes import rows_of
from dlio.pack.plan import shard_number
from dlio.pack.recode import KEEP, Recode
from dlio.pack.resume import INDEXED, NEXT
from dlio.pack.write import ASIDE
from dlio.urls import is_url

_DEFAULT_FORMAT = "tfrecord"
log = logging.getLogger(__name__)


def appendable(out: str | Path) -> Manifest:
    """Returns the manifest of the data set in `out`, to which samples may be appended.

    Raises:
        ManifestError, StorageError: `out` holds no data set, or it cannot be read.
        UsageError: it is at a URL, a copy staged in parts, shards of other tools, or one whose replacement was stopped.
    """
    if is_url(out):
        raise UsageError("append needs the data set in a folder: pack the new samples to another URL")
    found = Manifest.load(out)
    if found.origin.get("source") == INDEXED:
        raise UsageError(f"{out} holds shards that other tools made: add the new shards with dlio index --overwrite")
    if any(shard.nodes for shard in found.shards):
        raise UsageError(f"{out} is staged in parts: append to the data set that it was staged from")
    coming = found.root / ASIDE / NEXT
    if (coming / NAME).exists() and "first_shard" not in Manifest.load(coming).origin:
        raise UsageError(f"{out} was being replaced when dlio pack --overwrite was stopped: run that again first")
    return found


def check_recode(onto: Manifest, asked: Recode) -> None:
    """Raises UsageError if new images would be changed in another way than those of a data set."""
    known = onto.origin.get("recode")
    before = asdict(KEEP) | (known if isinstance(known, dict) else {})
    differing = {
        name: before[name] for name, value in asdict(asked).items() if value != before[name] and name != "check"
    }
    if differing:
        told = ", ".join(f"{name} {value}" for name, value in differing.items())
        raise UsageError(f"the images of {onto.root} were packed with {told}: give the same options")


def new_samples(onto: Manifest, listing: Listing) -> Listing:
    """Returns the samples of a listing whose keys a data set does not have; raises as `keys_of`."""
    known = set(keys_of(onto))
    new = np.fromiter((key not in known for key in listing.keys), np.bool_, len(listing))
    if not new.all():
        log.info("%s: %d samples exist already", onto.root, np.count_nonzero(~new))
    return rows_of(listing, np.flatnonzero(new))


def class_list(onto: Manifest, own: Iterable[str], asked: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the classes of a data set with new ones after them: those asked for, else those of the new samples.

    Raises:
        UsageError: those asked for do not begin with the classes of the data set, or it has none.
    """
    known = onto.class_names
    if not known and (asked or any(own)):
        raise UsageError(
            f"the labels of {onto.root} have no names, those of the new samples have: give labels as numbers"
        )
    if asked and asked[: len(known)] != known:
        raise UsageError(
            f"--classes does not begin with the {len(known):,} classes of {onto.root}: add new ones at the end"
        )
    return asked or tuple(dict.fromkeys((*known, *own)))


def label_offset(onto: Manifest, own: Schema, asked: int) -> int:
    """Returns what must be added to the class indices of new samples; raises UsageError if another was asked for."""
    needed = onto.schema.label_offset - own.label_offset
    if asked not in (0, needed):
        raise UsageError(f"--label-offset {asked}: the data set in {onto.root} has {onto.schema.label_offset}")
    return needed


def container(onto: Manifest | None, asked: str | None) -> str:
    """Returns the format asked for, by default that of a data set; raises UsageError if they differ."""
    if onto is None:
        return _DEFAULT_FORMAT if asked is None else asked
    if asked not in (None, onto.format):
        raise UsageError(
            f"--format {asked}: the data set in {onto.root} is {onto.format}, and a data set has one format"
        )
    return onto.format


def check_fields(onto: Manifest, schema: Schema) -> None:
    """Raises UsageError if new samples have other fields than those of a data set."""
    if schema.types() != onto.schema.types():
        raise UsageError(f"{onto.root} has the fields ({onto.schema}), the new samples have ({schema})")


def first_shard(onto: Manifest) -> int:
    """Returns the number of the first new shard: one more than that of the last one in the folder."""
    numbers = (shard_number(file.name) for file in files_of(onto.shards))
    return 1 + max((number for number in numbers if number is not None), default=-1)


def published(onto: Manifest, new: Manifest) -> Manifest:
    """Moves the shards of `new` next to those of `onto`, publishes the manifest of both, and returns it.

    Raises:
        StorageError: the file system refused, or the data set was changed since its manifest was read.
    """
    out = onto.root
    if Manifest.load(out).content_id != onto.content_id:
        raise StorageError(f"{out} was changed by another process: run the same command again")
    files.publish_all(new.root, out, [file.name for file in files_of(new.shards)])
    told = {name: new.origin.get(name) for name in ("source", "path", "plan", "num_shards")}
    plans = f"{onto.origin.get('plan')} {new.origin.get('plan')}"
    before = known if isinstance(known := onto.origin.get("appended"), list) else []
    origin = dict(onto.origin) | {
        "num_shards": len(onto.shards) + len(new.shards),
        "plan": files.digest_bytes(plans.encode()),
        "appended": [*before, told | {"samples": new.num_samples}],
    }
    if refused := [*onto.origin.get("refused", ()), *new.origin.get("refused", ())]:
        origin["refused"] = refused
    whole = replace(onto, schema=new.schema, shards=(*onto.shards, *new.shards), origin=origin)
    whole.save(out)
    return whole
