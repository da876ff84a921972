"""Data sets made of other data sets without copying: a part by conditions, a split, several as one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio.dataset.location import folder_of
from dlio.dataset.manifest import Manifest
from dlio.dataset.schema import Array
from dlio.dataset.shard_files import checked_files
from dlio.errors import SourceError, UsageError
from dlio.io.sizes import counted
from dlio.pack.inspect.tables import keys_of, tables
from dlio.pack.listing.lists import read_lines
from dlio.pack.prefetch import side_by_side
from dlio.pack.sets.choose import KEY, Condition, Rows, check_fractions, grouped, stratified
from dlio.pack.sets.linked import Planned, based_shards, common, joined, planned, publish_sets
from dlio.urls import is_url, shown

GROUP = r".*/"
_NAMES = ("train", "val", "test")
_LABEL = "label"


def select(
    dataset: str | Path | Manifest,
    out: str | Path,
    *,
    classes: Sequence[str] = (),
    where: Sequence[str] = (),
    keys: str | Path | Sequence[str] | None = None,
) -> Manifest:
    """Makes a data set of some samples of a packed data set, over the same shards, and returns its manifest.

    The class list and the order of samples do not change.

    Args:
        dataset: the folder of the data set, or its manifest.
        out: the folder to write, new or empty: a manifest, and links to the folders of the shards.
        classes: take the samples of any of these classes.
        where: take the samples for which all these conditions hold, such as `label>=10`, `key=cat/*`, `key!=*_old.jpg`.
        keys: take the samples of these keys: a list, or a file with a key in each line.

    Raises:
        UsageError: nothing is asked for or left, a class or field is unknown, or `out` holds something else.
        SourceError: no sample has one of the keys.
        ManifestError, CorruptRecordError, StorageError: the data set cannot be read, or `out` not written.
    """
    found = _loaded(dataset, out)
    if not (classes or where or keys is not None):
        raise UsageError("no samples are selected: give --class, --where or --list (classes, where, keys)")
    conditions = [Condition.of(text) for text in where]
    taken = np.ones(found.num_samples, np.bool_)
    if classes:
        taken &= _of_classes(found, classes)
    for condition in conditions:
        taken &= condition.holds(list(keys_of(found)) if condition.name == KEY else _numbers(found, condition.name))
    if keys is not None:
        taken &= _of_keys(found, keys)
    named = None if keys is None else str(keys) if isinstance(keys, str | Path) else "given"
    asked = {"classes": list(classes), "where": list(where), "list": named}
    origin = _origin("select", found) | {name: value for name, value in asked.items() if value}
    return _published(planned(Path(out), found, based_shards(found, np.flatnonzero(taken)), origin))


def split(
    dataset: str | Path | Manifest,
    out: str | Path | None = None,
    *,
    fractions: Sequence[float],
    names: Sequence[str] = (),
    by: str | None = None,
    group: str = GROUP,
    seed: int = 0,
) -> dict[str, Manifest]:
    """Splits a packed data set at random into parts over the same shards; returns their manifests by name.

    Args:
        dataset: the folder of the data set, or its manifest.
        out: the folder to write, with a folder for each part; by default the data set's, with `-split`.
        fractions: of the samples in each part, together at most 1.
        names: of the parts; by default train, val, test.
        by: `class` gives each part its fraction of every class; `group` keeps the samples of a group in one part, and
            so does the name of a field of numbers those of equal values.
        group: a regular expression; what it matches at the beginning of a key, or the part of that in its first
            parentheses, is the sample's group. By default that is the key's folder.
        seed: of the random choice.

    Raises:
        UsageError: the fractions, names or fields are impossible, a part has no samples, or `out` holds something else.
        ManifestError, CorruptRecordError, StorageError: the data set cannot be read, or `out` not written.
    """
    root = dataset.root if isinstance(dataset, Manifest) else folder_of(Path(dataset))
    folder = Path(f"{root.absolute()}-split") if out is None else Path(out)
    found = _loaded(dataset, folder)
    check_fractions(fractions)
    parts_names = tuple(names) or _NAMES[: len(fractions)]
    _check_names(parts_names, len(fractions))
    parts = _parts(found, fractions, by, group, seed)
    held = {name: based_shards(found, np.flatnonzero(parts == number)) for number, name in enumerate(parts_names)}
    if empty := [name for name, shards in held.items() if not shards]:
        advice = "a --group with more groups" if by == "group" else "leave --by out"
        raise UsageError(f"the part {empty[0]!r} would have no samples: give a larger fraction, or {advice}")
    origin = _origin("split", found) | {"by": by, "seed": seed} | ({"group": group} if by == "group" else {})
    sets = [
        planned(folder / name, found, held[name], origin | {"fraction": float(fraction)})
        for name, fraction in zip(parts_names, fractions, strict=True)
    ]
    publish_sets(sets)
    return {name: each.manifest for name, each in zip(parts_names, sets, strict=True)}


def merge(datasets: Sequence[str | Path | Manifest], out: str | Path) -> Manifest:
    """Makes one data set of several, over the same shards, and returns its manifest.

    Samples are in the order of the data sets. If several hold parts of one shard, or of its copies, it stays one, at
    its first place.

    Args:
        datasets: folders of data sets, or manifests, with the same format, fields and label offset. Of their
            class lists the longest must begin as each of the others does.
        out: the folder to write, new or empty.

    Raises:
        UsageError: the data sets do not fit together, a record is in two of them, or `out` holds something else.
        ManifestError, StorageError: a data set cannot be read, or `out` not written.
    """
    found = [_loaded(dataset, out) for dataset in datasets]
    if len(found) < 2:
        raise UsageError("give at least two data sets to merge")
    like = common(found)
    held = joined(chain.from_iterable(map(based_shards, found)))
    origin = {"source": "merge", "path": ", ".join(str(each.root.absolute()) for each in found)}
    return _published(planned(Path(out), like, held, origin))


def _published(made: Planned) -> Manifest:
    publish_sets([made])
    return made.manifest


def _loaded(dataset: str | Path | Manifest, out: str | Path) -> Manifest:
    url = dataset.url if isinstance(dataset, Manifest) else dataset
    if is_url(url):
        raise UsageError(f"{shown(str(url))} is a URL, and a set links to the folders of others: stage it first")
    found = dataset if isinstance(dataset, Manifest) else Manifest.load(dataset)
    if found.root.resolve() in ((folder := Path(out).resolve()), *folder.parents):
        raise UsageError(f"{out} is or lies in the data set {found.root}: give a folder outside of it")
    for _ in side_by_side(partial(checked_files, found), found.shards):
        pass
    return found


def _origin(verb: str, found: Manifest) -> dict[str, Any]:
    return {"source": verb, "path": str(found.root.absolute())}


def _check_names(names: Sequence[str], count: int) -> None:
    if len(names) != count or len(set(names)) < len(names):
        raise UsageError(f"{count} fractions and the names {', '.join(names)}: give each part its own name")
    for name in names:
        if not re.fullmatch(r"[\w-][\w.-]*", name):
            raise UsageError(f"the part's name {name!r} is not a plain file name")


def _parts(found: Manifest, fractions: Sequence[float], by: str | None, group: str, seed: int) -> Rows:
    """Returns the part of each sample, -1 for none."""
    if by is None:
        return stratified(np.zeros(found.num_samples, np.int8), fractions, seed)
    if by == "class":
        return stratified(_column(found, _LABEL), fractions, seed)
    values = _groups(found, group) if by == "group" else _column(found, by)
    return grouped(values, fractions, seed)


def _groups(found: Manifest, pattern: str) -> npt.NDArray[np.int64]:
    """Returns the number of each sample's group; raises UsageError for a pattern that does not match each key."""
    try:
        regex = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"the group {pattern!r} is not a regular expression: {error}") from None
    numbers: dict[str, int] = {}
    groups = np.empty(found.num_samples, np.int64)
    missed, example = 0, ""
    for row, key in enumerate(keys_of(found)):
        if at := regex.match(key):
            groups[row] = numbers.setdefault(at[1 if regex.groups else 0], len(numbers))
        else:
            missed, example = missed + 1, example or key
    if missed:
        some = f"does not match {missed:,} of {counted(len(groups), 'key')}"
        advice = "it must match each from the start, and may have the group in parentheses"
        problem = "matches no key" if missed == len(groups) else some
        raise UsageError(f"--group {pattern} {problem}, such as {example!r}: {advice}")
    return groups


def _column(found: Manifest, name: str) -> Array:
    """Returns a small field of numbers of all samples, (n, *shape), labels without offset; raises UsageError."""
    known = found.schema.small
    if name not in known:
        raise UsageError(f"{found.root} has no small field {name!r} of numbers, only {', '.join(known) or 'none'}")
    values = np.concatenate([table.field(name) for _, table in tables(found)] or [np.empty(0)])
    return values - found.schema.label_offset if name == _LABEL and found.schema.label_offset else values


def _numbers(found: Manifest, name: str) -> Array:
    values = _column(found, name)
    if values.ndim != 1:
        raise UsageError(f"the field {name!r} of {found.root} has several numbers a sample, and a condition needs one")
    return values


def _of_classes(found: Manifest, classes: Sequence[str]) -> npt.NDArray[np.bool_]:
    number: Mapping[str, int] = {name: index for index, name in enumerate(found.class_names)}
    if unknown := [name for name in classes if name not in number]:
        advice = f"; --where label={unknown[0]} takes a label's number" if unknown[0].isdecimal() else ""
        raise UsageError(f"{found.root} has no class {unknown[0]!r}: dlio info lists its classes{advice}")
    labels, wanted = _column(found, _LABEL), [number[name] for name in classes]
    return np.isin(labels, wanted) if labels.ndim == 1 else np.asarray((labels[:, wanted] != 0).any(axis=1))


def _of_keys(found: Manifest, keys: str | Path | Sequence[str]) -> npt.NDArray[np.bool_]:
    listed = read_lines(Path(keys)) if isinstance(keys, str | Path) else iter(keys)
    wanted = {line for line in listed if line}
    own = list(keys_of(found))
    if missing := wanted.difference(own):
        name = keys if isinstance(keys, str | Path) else "the list"
        raise SourceError(f"{name}: {found.root} lacks {counted(len(missing), 'key')}, such as {min(missing)!r}")
    return np.fromiter((key in wanted for key in own), np.bool_, len(own))
