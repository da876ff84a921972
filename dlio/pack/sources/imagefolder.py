"""A folder of class folders, in torchvision's order: class folders sorted, then folders and files below them sorted."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample, Schema
from dlio.errors import SourceError
from dlio.pack.listing.base import Listing
from dlio.pack.listing.image_files import file_states, image_file_reader
from dlio.pack.listing.image_tree import EXTENSIONS, folders_in, identity, walk_each
from dlio.pack.listing.keys import Keys, odd, printable


def image_folder(path: str | Path) -> ImageFolder:
    """Returns the images below `path`, whose sub-folders name the classes; a key is the path below `path`."""
    return ImageFolder(Path(path).absolute())


open_source = image_folder


@dataclass(frozen=True, slots=True)
class ImageFolder:
    """See `image_folder`."""

    path: Path
    name: str = "imagefolder"

    def listing(self) -> Listing:
        """Returns all images, found with one look at every folder."""
        folders = folders_in(self.path)
        if not folders:
            raise SourceError(f"{self.path} has no class folders: expected one folder of images for each class")
        labels, classes, refused = array("q"), list[str](), list[tuple[str, str]]()
        keys = Keys.of(self._names(folders, labels, classes, refused))  # distinct, since paths are
        schema = Schema(IMAGE_CLASSIFICATION.fields, tuple(classes))
        sizes, versions = file_states(self.path, keys)
        return Listing(schema, keys, sizes, {"label": labels}, versions=versions, refused=refused)

    def _names(
        self, folders: list[str], labels: array[int], classes: list[str], refused: list[tuple[str, str]]
    ) -> Iterator[str]:
        """Yields the path of each image below the folder, having added its label, and that label's name, to these."""
        above = frozenset([identity(self.path)])
        looked = walk_each(self.path, [self.path / name for name in folders], refused, above)
        for name, found in zip(folders, looked, strict=True):
            before = len(labels)
            for below, images in sorted(found):
                paths = self._keys([f"{below}/{image}" for image in images], refused)
                labels.extend([len(classes)] * len(paths))
                yield from paths
            if len(labels) > before:
                classes.append(name)
            else:
                problem = f"{self.path / name} has no images ({' '.join(EXTENSIONS)}) to pack: remove the folder"
                refused.append((printable(name), problem))

    def reader(self, listing: Listing) -> AbstractContextManager[Callable[[int], Sample]]:
        """Gives what reads one image with its class index."""
        return image_file_reader(self.path, listing)

    def _keys(self, paths: list[str], refused: list[tuple[str, str]]) -> list[str]:
        """Returns those of the paths that are keys, having noted the others."""
        try:
            "".join(paths).encode()
        except UnicodeEncodeError:
            reasons = [(path, odd(path)) for path in paths]
            refused += [(printable(path), f"{self.path}: {reason}") for path, reason in reasons if reason]
            return [path for path, reason in reasons if not reason]
        return paths
