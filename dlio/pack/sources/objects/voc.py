"""Pascal VOC: a folder with `JPEGImages` and `Annotations`, an XML file for each image.

    boxes      float32[?,4]   left, top, right, bottom in pixels from 0; VOC counts from 1, with the last pixel
    labels     int64[]        class indices, in the sorted order of the names in all annotations, of any split
    areas      float32[]      of the boxes, in pixels
    difficult  bool[]         as VOC has it

An image is refused whose annotation is wrong, or has a box that reaches over the image's edge by more than a pixel.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

from dlio.dataset.schema import Sample
from dlio.errors import DlioError, SourceError
from dlio.io.files import read_regular, storage_errors
from dlio.pack.listing.base import Listing
from dlio.pack.listing.lists import Listed, read_lines
from dlio.pack.listing.objects import ObjectBox, object_listing, object_reader, within
from dlio.pack.prefetch import side_by_side

IMAGES, ANNOTATIONS = "JPEGImages", "Annotations"
_MAX_BYTES = 16 << 20


def voc(path: str | Path, split: str = "") -> Voc:
    """Returns the images of a VOC folder with their objects.

    Args:
        path: the folder, such as `VOCdevkit/VOC2012`.
        split: the images that `ImageSets/Main/SPLIT.txt` lists; by default all that have an annotation.
    """
    return Voc(Path(path).absolute(), split)


open_source = voc


def recognises(path: Path) -> bool:
    """Returns whether `path` is a folder with images and annotations."""
    return (path / IMAGES).is_dir() and (path / ANNOTATIONS).is_dir()


@dataclass(frozen=True, slots=True)
class Voc:
    """See `voc`."""

    path: Path
    split: str
    name: str = "voc"

    def _stems(self) -> list[str]:
        if self.split:
            lines = read_lines(self.path / "ImageSets" / "Main" / f"{self.split}.txt")
            return [line.split()[0] for line in lines if line.strip()]
        return self._annotated()

    def _annotated(self) -> list[str]:
        folder = self.path / ANNOTATIONS
        with storage_errors("list", folder):
            return sorted(path.stem for path in folder.iterdir() if path.suffix == ".xml")

    def listing(self) -> Listing:
        """Returns the images in the order of the split, or of their names; keys are names in `JPEGImages`."""
        stems = self._stems()
        if not stems:
            raise SourceError(f"{self.path} has no annotations: give a folder of Pascal VOC")
        listed = Listed[tuple[ObjectBox, ...]](self.path)
        every = sorted({*stems, *self._annotated()})  # so that a class has the same index in each split
        parsed = dict(zip(every, side_by_side(self._parse, every), strict=True))
        names = sorted({name for objects in parsed.values() if not isinstance(objects, str) for name, _ in objects})
        index = {name: number for number, name in enumerate(names)}
        for line, (stem, objects) in enumerate(((stem, parsed[stem]) for stem in stems), start=1):
            if isinstance(objects, str):
                listed.refused.append((stem, objects))
            else:
                listed.add(line, f"{stem}.jpg", tuple(replace(each, label=index[name]) for name, each in objects))
        listed.refuse_names()
        return object_listing(self.path / IMAGES, listed, names, "difficult", {})

    def _parse(self, stem: str) -> list[tuple[str, ObjectBox]] | str:
        """Returns the objects of an image by the names of their classes, or why the image is refused."""
        path = self.path / ANNOTATIONS / f"{stem}.xml"
        try:
            data = read_regular(path, _MAX_BYTES)
            if len(data) > _MAX_BYTES:
                raise ValueError(f"more than {_MAX_BYTES:,} bytes")
            parser = ElementTree.XMLParser(target=_Plain())
            parser.feed(data)
            root = parser.close()
            width, height = (float(_text(root, f"size/{side}")) for side in ("width", "height"))
            return [_object(each, width, height) for each in root.iterfind("object")]
        except (ValueError, LookupError, ElementTree.ParseError, DlioError, RecursionError) as error:
            return f"{path}: {error}"

    def reader(self, listing: Listing) -> AbstractContextManager[Callable[[int], Sample]]:
        """Gives a function that reads one image with its objects."""
        return object_reader(self.path / IMAGES, listing)


class _Plain(ElementTree.TreeBuilder):
    """Builds a tree of a document that declares no entities, which could grow without end."""

    def doctype(self, name: str, public: str | None, system: str | None) -> None:
        """Refuses the document."""
        raise ValueError("it declares its own document type, which VOC's annotations do not")


def _object(element: ElementTree.Element, width: float, height: float) -> tuple[str, ObjectBox]:
    left, top, right, bottom = (float(_text(element, f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax"))
    left, top = left - 1, top - 1
    is_difficult = (element.findtext("difficult") or "0").strip() == "1"
    found = within(ObjectBox(left, top, right, bottom, 0, 0.0, is_difficult), width, height)
    area = (found.right - found.left) * (found.bottom - found.top)
    return _text(element, "name"), replace(found, area=area)


def _text(element: ElementTree.Element, path: str) -> str:
    text = (element.findtext(path) or "").strip()
    if not text:
        raise ValueError(f"an element without {path}")
    return text
