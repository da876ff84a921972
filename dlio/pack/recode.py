"""Changing images while they are packed: orientation, size, crop, colour mode, encoding, and how fast JPEGs decode.

An image that already has the wanted properties keeps its bytes, so packing twice loses nothing. One that is encoded
again keeps its EXIF orientation, so that it trains as the original.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dlio import native
from dlio.codecs import jpeg
from dlio.codecs.decode_ready import restored
from dlio.codecs.orientation import AS_STORED, exif_of, turn_image, turned_size, with_orientation
from dlio.dataset.schema import DECODE_READY, ImageInfo, Schema
from dlio.errors import DataError, SourceError, UsageError
from dlio.pack import upright
from dlio.pack.inspect.image_header import decode_image, inspect_image

if TYPE_CHECKING:
    from PIL import Image as Pillow

COLORS = ("keep", "grey", "rgb")
ENCODINGS = ("keep", "jpeg", "png")
CHECKS = ("head", "decode")
_MODES = {"grey": "L", "rgb": "RGB"}
_CHANNELS = {"grey": 1, "rgb": 3}
_SAME_AGAIN = frozenset(["JPEG", "PNG", "WEBP", "BMP", "PPM", "TIFF"])  # others become PNG


@dataclass(frozen=True, slots=True)
class Recode:
    """How each image is checked and changed; by default it is packed unchanged. Picklable.

    Attributes:
        resize: the length of the shorter edge, in pixels; smaller images are enlarged.
        center_crop: whether the middle square is cut out, after resizing.
        color: `grey`, `rgb`, or `keep`.
        encoding: `jpeg`, `png`, or `keep` for the image's own encoding.
        quality: the quality of newly encoded JPEGs, 1 to 100.
        crop_ready: whether JPEGs are rewritten, without loss, so that `dlio.images` can decode only a crop.
        check: what of an image must be good: `head`, and its end; or `decode`, all of it.
        upright: whether pixels are turned as their EXIF orientation says.
        decode_ready: whether JPEGs become records that decode in less time, which only dlio reads; those that would not
            come back become crop-ready.
        jpeg: whether decode-ready records become the JPEGs that they were made from, as they do before any change.

    Raises:
        UsageError: a number is out of range, a word is unknown, or options contradict each other.
        MissingPackageError: `crop_ready`, `decode_ready` and `jpeg` need the core's decoder of JPEGs, which this
            installation lacks.
    """

    resize: int | None = None
    center_crop: bool = False
    color: str = "keep"
    encoding: str = "keep"
    quality: int = 95
    crop_ready: bool = False
    check: str = "head"
    upright: bool = False
    decode_ready: bool = False
    jpeg: bool = False

    def __post_init__(self) -> None:
        if self.resize is not None and not 1 <= self.resize <= 1 << 14:
            raise UsageError(f"the shorter edge must be 1 to 16,384 pixels, found {self.resize}")
        if not 1 <= self.quality <= 100:
            raise UsageError(f"the quality must be 1 to 100, found {self.quality}")
        if self.color not in COLORS or self.encoding not in ENCODINGS:
            raise UsageError(f"color must be one of {COLORS} and encoding one of {ENCODINGS}")
        if self.check not in CHECKS:
            raise UsageError(f"check must be one of {CHECKS}, found {self.check!r}")
        self._check_made()

    def _check_made(self) -> None:
        """Raises the error of `crop_ready`, `decode_ready` or `jpeg` that cannot be."""
        asked = "--decode-ready" if self.decode_ready else "--crop-ready"
        if self.makes_ready and self.encoding == "png":
            raise UsageError(f"{asked} is for JPEGs, and --encoding png makes PNGs: leave out one of the two")
        if self.decode_ready and self.jpeg:
            raise UsageError("--jpeg makes JPEGs of decode-ready records: leave out --decode-ready")
        if (self.makes_ready or self.jpeg) and not native.decodes_jpeg:
            raise native.missing(
                "making JPEGs crop-ready" if asked == "--crop-ready" else "making decode-ready records"
            )

    @property
    def makes_ready(self) -> bool:
        """True if JPEGs become crop-ready or decode-ready."""
        return self.crop_ready or self.decode_ready

    @property
    def changes_pixels(self) -> bool:
        """True if images may need to be decoded."""
        return (
            self.resize is not None
            or self.center_crop
            or self.color != "keep"
            or self.encoding != "keep"
            or self.upright
        )

    def check_targets(self, path: object, schema: Schema) -> None:
        """Raises UsageError if boxes or masks, which are not changed, would not fit the changed images of `path`."""
        moves = self.resize is not None or self.center_crop
        changes = moves or self.color != "keep" or self.encoding != "keep"
        if self.upright:
            upright.check_fields(path, schema)
        if (moves and "boxes" in schema) or (changes and "mask" in schema):
            raise UsageError(
                f"{path} has boxes or masks, which are packed unchanged and would not fit changed images: pack without"
                " --resize, --center-crop, --color and --encoding: loaders resize images, boxes and masks together"
            )

    def apply(self, data: bytes, info: ImageInfo) -> tuple[bytes, ImageInfo, bool]:
        """Returns the image to pack, its header, and whether it was rewritten to be crop-ready or decode-ready.

        Raises:
            SourceError: it cannot be decoded, or its mode cannot be encoded.
        """
        if self.check == "decode":
            decode_image(data)
        if info.format == DECODE_READY and not self._keeps_records:
            data = self.restored(data)
            info = inspect_image(data)
        if self.changes_pixels:
            turned = upright.orientation(data)
            if (self.upright and turned != AS_STORED) or not self._is_done(info):
                data = self._encode(data, info, turned)
                info = inspect_image(data)
        if not (self.makes_ready and info.format == "JPEG"):
            return data, info, False
        if self.decode_ready and (record := native.to_planes(data)) is not None:
            return record, inspect_image(record), True
        ready = native.make_crop_ready(data)
        if ready == data:
            return data, info, False
        return ready, replace(info, crop_ready=True), True

    @property
    def _keeps_records(self) -> bool:
        """True if decode-ready records are packed unchanged."""
        return not (self.jpeg or self.changes_pixels or (self.crop_ready and not self.decode_ready))

    def restored(self, value: Any) -> Any:
        """Returns the JPEG that a decode-ready record, or each of a list, was made from; any other value unchanged.

        Raises:
            SourceError: a record is damaged.
        """
        try:
            return restored(value)
        except DataError as error:
            raise SourceError(str(error)) from None

    def _is_done(self, info: ImageInfo) -> bool:
        size = info.height, info.width
        return (
            (self.resize is None or min(size) == self.resize)
            and (not self.center_crop or size[0] == size[1])
            and (self.color == "keep" or info.channels == _CHANNELS[self.color])
            and (self.encoding == "keep" or info.format == self.encoding.upper())
        )

    def _encode(self, data: bytes, info: ImageInfo, orientation: int) -> bytes:
        """Returns the changed image; its orientation is in its EXIF, unless its pixels were turned."""
        from dlio.codecs import pillow

        encoding = self.encoding.upper() if self.encoding != "keep" else info.format
        turn, tag = (orientation, AS_STORED) if self.upright else (AS_STORED, orientation)
        try:
            pixels = self._pixels_by_core(data, info) if turn == AS_STORED else None
            if pixels is not None and encoding == "JPEG" and info.channels == 3 and self.color != "grey":
                return with_orientation(native.encode(pixels, self.quality), tag)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                image = _as_pillow(pixels, info.channels) if pixels is not None else self._by_pillow(data, info, turn)
                return self._encode_by_pillow(image, encoding, tag)
        except SourceError:
            raise
        except pillow.ERRORS as error:
            raise SourceError(f"it cannot be decoded or encoded: {pillow.reason(error)}") from None

    def _encode_by_pillow(self, image: Pillow.Image, encoding: str, tag: int) -> bytes:
        from dlio.codecs import pillow

        options: dict[str, Any] = {"quality": self.quality} if encoding in ("JPEG", "WEBP") else {}
        options |= {"exif": exif_of(tag)} if tag != AS_STORED else {}
        kind = encoding if encoding in _SAME_AGAIN else "PNG"
        return pillow.encoded(self._for_encoding(image, encoding), kind, **options)

    def _pixels_by_core(self, data: bytes, info: ImageInfo) -> NDArray[np.uint8] | None:
        """Returns the decoded image in its final size, uint8 (H, W, 3); None if the core leaves it to Pillow."""
        if not (native.decodes_jpeg and info.format == "JPEG" and info.channels in (1, 3)):
            return None
        (left, top, right, bottom), (width, height) = self._window(info)
        out: NDArray[np.uint8] = np.empty((1, height, width, 3), dtype="uint8")
        boxes = np.array([[left, top, right - left, bottom - top]], dtype="int32")
        status = int(native.decode_batch([data], boxes, np.zeros(1, dtype="bool"), out)[0])
        if status == 0:
            pixels: NDArray[np.uint8] = out[0]
            return pixels
        if status == native.LEFT_TO_PILLOW:
            return None
        raise SourceError(f"it cannot be decoded: {jpeg.error_of(status)}")

    def _by_pillow(self, data: bytes, info: ImageInfo, turn: int) -> Pillow.Image:
        """Returns the decoded image, turned, in its final size."""
        from PIL import Image

        from dlio.codecs import pillow

        height, width = turned_size((info.height, info.width), turn)
        box, size = self._window(replace(info, height=height, width=width))
        pixels = jpeg.decode(data)
        image = pillow.open_image(data) if pixels is None else _as_pillow(pixels, info.channels)
        image.load()
        if image.mode == "P":
            image = image.convert("RGBA" if "transparency" in image.info else "RGB")
        image = turn_image(image, turn)
        return image.crop(box).resize(size, Image.Resampling.BILINEAR)

    def _window(self, info: ImageInfo) -> tuple[tuple[int, int, int, int], tuple[int, int]]:
        """Returns the part of the image to keep, as left, top, right and bottom, and its final width and height."""
        left, top, right, bottom = 0, 0, info.width, info.height
        side = min(right, bottom)
        if self.center_crop:
            left, top = (right - side) // 2, (bottom - side) // 2
            right, bottom = left + side, top + side
        scale = (self.resize or side) / side
        width, height = (max(1, round(length * scale)) for length in (right - left, bottom - top))
        return (left, top, right, bottom), (width, height)

    def _for_encoding(self, image: Pillow.Image, encoding: str) -> Pillow.Image:
        if self.color != "keep" and image.mode != _MODES[self.color]:
            if image.mode.startswith("I") or image.mode == "F":
                raise SourceError(f"its pixels are of mode {image.mode}, more than 8 bits: convert it yourself")
            return image.convert(_MODES[self.color])
        if encoding == "JPEG" and image.mode in ("CMYK", "1", "LA", "RGBA"):
            return image.convert("L" if image.mode in ("1", "LA") else "RGB")
        if encoding == "JPEG" and image.mode not in ("L", "RGB"):
            raise SourceError(f"its pixels are of mode {image.mode}, which JPEG cannot hold: use --encoding png")
        return image


KEEP = Recode()


def _as_pillow(pixels: NDArray[np.uint8], channels: int) -> Pillow.Image:
    """Returns the core's pixels as a Pillow image, grey if the JPEG was grey."""
    from PIL import Image

    image = Image.fromarray(pixels)
    return image.convert("L") if channels == 1 else image
