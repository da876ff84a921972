"""The samples of each class of a data set, by its labels, and some of many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dlio.errors import UsageError
from dlio.loaders.dataset import PackedSamples
from dlio.targets import LABEL

_SHOWN = 12


@dataclass(frozen=True, slots=True)
class ClassSamples:
    """Samples that belong together.

    Attributes:
        name: of the class.
        count: how many samples it has.
        numbers: some of its samples, ascending.
    """

    name: str
    count: int
    numbers: Sequence[int]


def groups(samples: PackedSamples, most: int) -> list[ClassSamples]:
    """Returns the first `most` classes that have samples; one group of all samples if they have no classes."""
    found = list(_classes(samples, most))
    return found or [_group("all", np.arange(len(samples)))]


def members(samples: PackedSamples, name: str) -> list[int]:
    """Returns the samples of a class, given by its name or its number; raises UsageError if there are none."""
    names = list(samples.manifest.class_names)
    number = names.index(name) if name in names else int(name) if name.isdecimal() and len(name) < 10 else -1
    labels = _labels(samples)
    rows = [] if labels is None or number < 0 else np.flatnonzero(_of(labels, number)).tolist()
    if not rows:
        raise UsageError(f"{samples.manifest.root} has no samples of a class {name!r}: dlio info lists its classes")
    return rows


def name_of(samples: PackedSamples, number: int) -> str:
    """Returns the class of a sample, its classes, or its label as text; "" without a label."""
    if LABEL not in samples.schema or not samples.schema[LABEL].is_fixed:
        return ""
    label, names = samples.labels[number], samples.manifest.class_names
    if np.ndim(label) == 0:
        return names[int(label)] if label.dtype.kind in "iu" and 0 <= label < len(names) else str(label)
    chosen = np.flatnonzero(label).tolist()
    return ", ".join(names[each] for each in chosen) if label.shape == (len(names),) else str(label.tolist())


def _labels(samples: PackedSamples) -> npt.NDArray[np.generic] | None:
    """Returns labels that are classes: whole numbers (n,), or vectors (n, classes) that are not 0 for several."""
    kind = samples.schema.get(LABEL)
    if kind is None or not kind.is_fixed:
        return None
    named = kind.shape == (len(samples.manifest.class_names),)
    return samples.labels if named or (kind.dtype.startswith(("int", "uint")) and not kind.shape) else None


def _of(labels: npt.NDArray[np.generic], number: int) -> npt.NDArray[np.bool_]:
    if labels.ndim == 1:
        return np.asarray(labels == number)
    return np.asarray(labels[:, number] != 0) if number < labels.shape[1] else np.zeros(len(labels), np.bool_)


def _classes(samples: PackedSamples, most: int) -> Iterator[ClassSamples]:
    labels = _labels(samples)
    if labels is None or not len(labels):
        return
    names = samples.manifest.class_names
    used = np.unique(labels) if labels.ndim == 1 else np.flatnonzero(labels.any(axis=0))
    for number in used[:most].tolist():
        name = names[number] if 0 <= number < len(names) else str(number)
        yield _group(name, np.flatnonzero(_of(labels, number)))


def _group(name: str, rows: npt.NDArray[np.int64]) -> ClassSamples:
    return ClassSamples(name, len(rows), rows[evenly_spaced(len(rows), _SHOWN)].tolist())


def evenly_spaced(count: int, most: int) -> npt.NDArray[np.int64]:
    """Returns at most `most` numbers below `count`, ascending, spread evenly."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))
