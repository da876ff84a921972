"""Frame sequences: a folder for each sequence, in which sorted image files are its frames, as in KITTI (`%06d.png`).

A sample is a clip: `clip` input frames, then `targets` frames to predict, `stride` frames apart; the next clip begins
`step` frames later. A clip never crosses the end of its sequence; what remains there is left out, and a sequence
that is shorter than a clip is refused.

    clip=3 targets=1 stride=2 step=1     0 . 2 . 4 . [6]     1 . 3 . 5 . [7]     ...

A folder below SRC is a sequence where it holds images itself; its path below SRC is its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dlio.dataset.schema import Sample, Schema
from dlio.errors import SourceError, UsageError
from dlio.pack.listing.base import Listing
from dlio.pack.listing.image_files import file_states, read_file, version_of
from dlio.pack.listing.image_tree import folders_in, identity, images_in, walk_each
from dlio.pack.listing.keys import Keys, odd, printable
from dlio.pack.prefetch import reading_ahead


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
        import numpy as np

        span = (self.clip + self.targets - 1) * self.stride + 1
        keys: list[str] = []
        states: list[tuple[int, int]] = []
        places: list[range] = []
        refused: list[tuple[str, str]] = []
        for sequence, found in self._sequences(refused):
            if problem := _problem(sequence, found, span):
                refused.append((printable(sequence), f"{self.path / sequence}: {problem}"))
                continue
            sizes, versions = file_states(self.path, Keys.of(f"{sequence}/{name}" for name in found))
            for first in range(0, len(found) - span + 1, self.step):
                keys.append(f"{sequence}/{found[first].rpartition('.')[0]}")
                own = slice(first, first + span, self.stride)
                places.append(range(own.start, own.stop, own.step))
                states.append((sum(sizes[own]), version_of(*versions[own])))
        if not keys:
            raise SourceError(f"{self.path} has no sequence of {span} frames or more: check clip, targets and stride")
        distinct = Keys.of(keys)
        distinct.check_distinct(self.path)
        types = {"frames": f"bytes[{self.clip}]"} | ({"targets": f"bytes[{self.targets}]"} if self.targets else {})
        columns = {"places": np.array(places, dtype="int64")}
        totals = np.array(states, dtype="int64")
        sizes, versions = totals.T.copy()
        return Listing(Schema.of(types), distinct, sizes, columns, tuple(types), versions=versions, refused=refused)

    def _sequences(self, refused: list[tuple[str, str]]) -> list[tuple[str, list[str]]]:
        """Returns the path of each sequence and the names of its frames; to `refused` is added what leads in a loop."""
        folders = [self.path / name for name in folders_in(self.path)]
        looked = walk_each(self.path, folders, refused, frozenset([identity(self.path)]))
        found = [(folder, names) for some in looked for folder, names in some if names]
        if not found:
            raise SourceError(f"{self.path} has no folders of frames: expected one for each sequence")
        return sorted(found)

    @contextmanager
    def reader(self, listing: Listing) -> Iterator[Callable[[int], Sample]]:
        """Gives what reads one clip."""
        listed = cache(images_in)

        def read(index: int) -> Sample:
            key = listing.keys[index]
            folder = self.path / key.rpartition("/")[0]
            names, places = listed(folder), listing.columns["places"][index].tolist()
            if places[-1] >= len(names) or names[places[0]].rpartition(".")[0] != key.rpartition("/")[2]:
                raise SourceError(f"{folder} has changed since it was listed: pack it anew")
            images = [read_file(f"{folder}/{names[place]}") for place in places]
            fields = {"frames": images[: self.clip]} | ({"targets": images[self.clip :]} if self.targets else {})
            return Sample(key, fields)

        with reading_ahead(read, listing.num_bytes.tolist(), len(listing)) as read_in_order:
            yield read_in_order


def _problem(sequence: str, frames: list[str], span: int) -> str | None:
    """Returns why no clip can be taken from a sequence, None where some can."""
    if len(frames) < span:
        return f"it has {len(frames)} frames, a clip spans {span}: remove it, or ask for shorter clips"
    return next((problem for name in frames if (problem := odd(f"{sequence}/{name}"))), None)
