"""Frame sequences: a folder for each sequence, whose sorted image files are the frames, as in KITTI (`%06d.png`).

A sample is a clip: `clip` input frames, then `targets` frames to predict, `stride` frames apart; the next clip begins
`step` frames later. A clip never crosses the end of its sequence. Frames left over there are not packed, and a sequence
shorter than a clip is refused.

    clip=3 targets=1 stride=2 step=1     0 . 2 . 4 . [6]     1 . 3 . 5 . [7]     ...

Each folder below SRC that directly holds images is a sequence; its path below SRC is its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from dlio.dataset.schema import Sample, Schema
from dlio.errors import SourceError, UsageError
from dlio.pack.listing.base import Listing, Refused
from dlio.pack.listing.image_files import file_states, read_file, version_of
from dlio.pack.listing.image_tree import folders_in, images_in, walk_each
from dlio.pack.listing.keys import Keys, key_problem, printable
from dlio.pack.prefetch import Prefetcher


def frames(
    path: str | Path, clip: int | str = 10, targets: int | str = 0, stride: int | str = 1, step: int | str | None = None
) -> Frames:
    """Returns the clips of the sequences below `path`.

    Args:
        path: the folder of sequences.
        clip: the number of input frames of a clip.
        targets: the number of frames to predict, which follow them.
        stride: the distance from one frame of a clip to the next.
        step: the distance from one clip's first frame to the next clip's; by default clips share no frame.

    Raises:
        UsageError: a number is not whole, or too small.
    """
    try:
        clip, targets, stride = int(clip), int(targets), int(stride)
        step = int(step) if step is not None else (clip + targets) * stride
    except ValueError as error:
        raise UsageError(f"clip, targets, stride and step are whole numbers: {error}") from None
    if min(clip, stride, step) < 1 or targets < 0:
        raise UsageError("clip, stride and step are 1 or more, targets 0 or more")
    return Frames(Path(path).absolute(), clip, targets, stride, step)


open_source = frames


def recognises(path: Path) -> bool:
    """Returns whether `path` holds sequences as in KITTI, with the frames of each in a folder `image_*`."""
    return path.is_dir() and next(path.glob("*/image_[0-9]*"), None) is not None


@dataclass(frozen=True, slots=True)
class Frames:
    """See `frames`."""

    path: Path
    clip: int
    targets: int
    stride: int
    step: int
    name: str = "frames"

    def listing(self) -> Listing:
        """Returns the clips, sequence by sequence; a key is the path of the clip's first frame, without its suffix."""
        span = (self.clip + self.targets - 1) * self.stride + 1
        keys: list[str] = []
        states: list[tuple[int, int]] = []
        numbers: list[range] = []
        refused: Refused = []
        for sequence, found in self._sequences(refused):
            if problem := _problem(sequence, found, span):
                refused.append((printable(sequence), f"{self.path / sequence}: {problem}"))
                continue
            sizes, versions = file_states(self.path, Keys.of(f"{sequence}/{name}" for name in found))
            for first in range(0, len(found) - span + 1, self.step):
                keys.append(f"{sequence}/{found[first].rpartition('.')[0]}")
                numbers.append(own := range(first, first + span, self.stride))
                states.append((int(sizes[own].sum()), version_of(*versions[own].tolist())))
        if not keys:
            raise SourceError(f"{self.path} has no sequence of {span} frames or more: check clip, targets and stride")
        distinct = Keys.of(keys)
        distinct.check_distinct(self.path)
        types = {"frames": f"bytes[{self.clip}]"} | ({"targets": f"bytes[{self.targets}]"} if self.targets else {})
        columns = {"frame_numbers": np.array(numbers, dtype="int64")}
        sizes, versions = np.array(states, dtype="int64").T.copy()
        return Listing(Schema.of(types), distinct, sizes, columns, tuple(types), versions=versions, refused=refused)

    def _sequences(self, refused: Refused) -> list[tuple[str, list[str]]]:
        """Returns the path of each sequence and the names of its frames; folders in a loop are added to `refused`."""
        trees = walk_each(self.path, folders_in(self.path), refused)
        found = [(folder, names) for tree in trees for folder, names in tree if names]
        if not found:
            problem = f"{self.path} has no folders of frames: expected one for each sequence"
            raise SourceError(refused[0][1] if refused else problem)
        return sorted(found)

    def reader(self, listing: Listing) -> Prefetcher[Sample]:
        """Gives a function that reads one clip."""
        listed = cache(images_in)

        def read(index: int) -> Sample:
            key = listing.keys[index]
            folder = self.path / key.rpartition("/")[0]
            names, numbers = listed(folder), listing.columns["frame_numbers"][index].tolist()
            if numbers[-1] >= len(names) or names[numbers[0]].rpartition(".")[0] != key.rpartition("/")[2]:
                raise SourceError(f"{folder} has changed since it was listed: pack it again")
            images = [read_file(f"{folder}/{names[number]}") for number in numbers]
            fields = {"frames": images[: self.clip]} | ({"targets": images[self.clip :]} if self.targets else {})
            return Sample(key, fields)

        return Prefetcher(read, listing.num_bytes.tolist(), len(listing))


def _problem(sequence: str, names: list[str], span: int) -> str | None:
    """Returns why no clip can be taken from a sequence of frames; None if a clip can."""
    if len(names) < span:
        return f"it has {len(names)} frames, a clip spans {span}: remove it, or ask for shorter clips"
    return next((problem for name in names if (problem := key_problem(f"{sequence}/{name}"))), None)
