"""Class lists that the user pins, so that a class has the same index in several data sets, such as train and val."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from dlio.dataset.manifest import NAME, Manifest
from dlio.dataset.schema import Field, Schema
from dlio.errors import UsageError
from dlio.pack.listing.base import Column, Listing, Numbers, take
from dlio.pack.listing.labels import add_offset
from dlio.pack.listing.lists import read_lines

SPLITS = frozenset(["train", "training", "val", "valid", "validation", "test", "testing", "dev", "eval"])


def read_classes(given: str | Path | Sequence[str] | None) -> tuple[str, ...]:
    """Returns a list of class names: as given, of a file with a name in each line, or of a packed data set.

    None gives none.

    Raises:
        UsageError: the list is empty, or names a class twice.
        SourceError, ManifestError, StorageError: the file or data set cannot be read.
    """
    if given is None:
        return ()
    path = Path(given) if isinstance(given, str | Path) else None
    if path is None:
        names = tuple(map(str, cast("Sequence[str]", given)))
    elif path.is_dir() or path.name == NAME:
        names = Manifest.load(path).class_names
    else:
        names = tuple(line.strip() for line in read_lines(path) if line.strip())
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if not names or twice:
        raise UsageError(f"--classes {path or 'list'} names {f'{twice[0]!r} twice' if twice else 'no classes'}")
    return names


def check_no_splits(path: Path | str, folders: Sequence[str], advice: str) -> None:
    """Raises UsageError if folders taken for classes are all named as parts of a data set, such as train and val."""
    if folders and {name.lower() for name in folders} <= SPLITS:
        raise UsageError(f"{path} holds the splits {', '.join(folders)} instead of classes: {advice}")


def of_first_folders(paths: Sequence[str]) -> tuple[tuple[str, ...], Numbers]:
    """Returns the first folders of paths as classes, sorted, and the index of each path's class."""
    folders = [path.partition("/")[0] for path in paths]
    index = {name: number for number, name in enumerate(sorted(set(folders)))}
    return tuple(index), np.array([index[name] for name in folders], dtype="int64")


def pinned(listing: Listing, names: tuple[str, ...]) -> Listing:
    """Returns the listing with these classes; samples of other classes are refused.

    Raises:
        UsageError: the samples have no labels that could be of classes.
    """
    kind, offset = listing.schema.get("label"), listing.schema.label_offset
    if kind is None or "label" not in listing.columns or (kind.dtype != "int64" and not listing.schema.class_names):
        raise UsageError(f"--classes needs labels that are classes, found {listing.schema}")
    own, labels = listing.schema.class_names or names, listing.columns["label"]
    index = {name: number for number, name in enumerate(names)}
    numbers = np.array([index.get(name, -1) for name in own], dtype="int64")
    if kind.shape:
        if len(own) > labels.shape[1]:
            raise UsageError(f"--classes names {len(own)} classes, but the labels have {labels.shape[1]} columns")
        pinned_labels, unknown = _columns(labels, numbers, len(names))
        types = dict(listing.schema.fields) | {"label": Field(kind.dtype, (len(names),))}
        schema = Schema(tuple(types.items()))
    else:
        labels = labels - offset
        known = (labels >= 0) & (labels < len(own))
        pinned_labels = np.where(known, numbers[np.where(known, labels, 0)], -1)
        unknown, pinned_labels, schema = _unknown(own, labels, pinned_labels), pinned_labels + offset, listing.schema
    schema = replace(schema, class_names=names, label_offset=offset)
    whole = replace(listing, schema=schema, columns={**listing.columns, "label": pinned_labels})
    return without_rows(whole, {row: f"the class {name!r} is not one of --classes" for row, name in unknown.items()})


def _unknown(own: Sequence[str], labels: Numbers, pinned_labels: Numbers) -> dict[int, str]:
    """Returns the classes of the rows that got no index."""
    rows = np.flatnonzero(pinned_labels < 0).tolist()
    return {row: own[labels[row]] if 0 <= labels[row] < len(own) else str(labels[row]) for row in rows}


def _columns(labels: Column, numbers: Numbers, count: int) -> tuple[Column, dict[int, str]]:
    """Returns vectors of labels with the pinned columns, and of each row with a label of no column that label."""
    moved = np.zeros((len(labels), count), dtype=labels.dtype)
    known = np.flatnonzero(numbers >= 0)
    moved[:, numbers[known]] = labels[:, known]
    lost = np.flatnonzero(numbers < 0)
    return moved, {int(row): f"column {lost[column]}" for row, column in np.argwhere(labels[:, lost])}


def check_indices(listing: Listing) -> Listing:
    """Returns the listing without samples whose class index is less than 0, which are refused."""
    if not listing.schema.is_image_classification or "label" not in listing.columns or listing.bounds is not None:
        return listing
    labels = listing.columns["label"] - listing.schema.label_offset
    rows = np.flatnonzero(listing.columns["label"] < listing.schema.label_offset).tolist()
    advice = "is not a class index: correct it, or read the labels of a CSV or .lst file as measurements with"
    return without_rows(listing, {row: f"the label {labels[row]} {advice} --option labels=numbers" for row in rows})


def without_rows(listing: Listing, reasons: Mapping[int, str]) -> Listing:
    """Returns the listing without some rows, which are refused for these reasons."""
    if not reasons:
        return listing
    kept = np.setdiff1d(np.arange(len(listing)), np.fromiter(reasons, dtype="int64"))
    refused = [(listing.keys[row], f"{listing.keys[row]!r}: {reason}") for row, reason in sorted(reasons.items())]
    return replace(rows_of(listing, kept), refused=[*listing.refused, *refused])


def rows_of(listing: Listing, kept: Numbers) -> Listing:
    """Returns the listing with these rows only, ascending, and with all that was refused."""
    bounds = None if listing.bounds is None else np.unique(np.searchsorted(kept, listing.bounds))
    versions = None if listing.versions is None else take(listing.versions, kept)
    refused, left_out = listing.refused, listing.left_out
    return replace(listing.take(kept), versions=versions, refused=refused, left_out=left_out, bounds=bounds)


def offset_labels(listing: Listing, offset: int) -> Listing:
    """Returns the listing with this number added to each class index, which the schema notes; raises UsageError."""
    if offset == 0:
        return listing
    if not listing.schema.is_image_classification or "label" not in listing.columns:
        raise UsageError(f"--label-offset needs one whole label for each image, found {listing.schema}")
    schema = replace(listing.schema, label_offset=listing.schema.label_offset + offset)
    moved = {"label": add_offset(listing.columns["label"], offset)}
    return replace(listing, schema=schema, columns={**listing.columns, **moved})
