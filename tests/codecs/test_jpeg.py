"""Packing, checking and loading use the core: all three find the same damage, with the same message."""

from __future__ import annotations

import io
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dlio
from dlio import native
from dlio.codecs import decoders, jpeg
from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample
from dlio.errors import CorruptRecordError, DataError, SourceError
from dlio.images import CenterCrop, RandomResizedCrop, Resize
from dlio.loaders.batch_sources import ArrayBatches
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import Loader
from dlio.pack.inspect.image_header import decode_image, inspect_image
from dlio.pack.inspect.verify import verify
from dlio.pack.recode import Recode
from dlio.sources import image_folder
from tests.helpers.images import image
from tests.helpers.transforms import keys
from tests.loaders.packing import pack_samples

WHOLE = image(1, "JPEG", width=200, height=160)
WORDS = "the JPEG's compressed data are truncated or damaged"


def flipped() -> bytes:
    """Returns a JPEG with its end, in which a byte is wrong: Pillow decodes it, with its own colours."""
    for at in range(WHOLE.index(b"\xff\xda") + 200, len(WHOLE), 7):
        data = WHOLE[:at] + bytes([WHOLE[at] ^ 0x55]) + WHOLE[at + 1 :]
        with suppress(OSError), Image.open(io.BytesIO(data)) as opened:
            opened.load()
            try:
                native.decode(data)
            except DataError:
                return data
    raise AssertionError("no byte that matters")


def packed(tmp_path: Path, data: bytes) -> dlio.Manifest:
    """Packs one image, whatever it is."""
    return pack_samples(
        tmp_path / "packed", IMAGE_CLASSIFICATION, [Sample("k", {"image": data, "label": 0})], num_shards=1
    )


def test_the_words_for_a_missing_end_are_the_cores():
    assert jpeg.TRUNCATED == WORDS == native.status_message(4)
    assert "Pillow" in native.status_message(native.LEFT_TO_PILLOW)


@pytest.mark.parametrize("transform", [Resize(16), CenterCrop(16), RandomResizedCrop(16, scale=(0.08, 0.1))], ids=repr)
@pytest.mark.parametrize("upright", [False, True])
def test_a_truncated_jpeg_has_the_same_message_everywhere(tmp_path, transform, upright):
    cut = WHOLE[: len(WHOLE) * 3 // 4]
    folder = tmp_path / "photos/a"
    folder.mkdir(parents=True)
    (folder / "0.jpg").write_bytes(cut)
    with pytest.raises(SourceError, match=f"'a/0.jpg': {WORDS}"):
        dlio.pack(image_folder(tmp_path / "photos"), tmp_path / "out", engine="serial")
    manifest = packed(tmp_path, cut)
    assert [WORDS in item.problem for item in verify(manifest, decode=True, workers=1)] == [True]
    named = pytest.raises(CorruptRecordError, match=f"shard-00000.* record 0.*'k': .*{WORDS}")
    with closing(PackedSamples(manifest, transform, upright=upright)) as samples, named:
        next(iter(Loader(ArrayBatches(samples), 1, rank_and_size=lambda: (0, 1))))
    with pytest.raises(DataError, match=WORDS):
        decoders.decode_rgb(cut, upright=upright)


@pytest.mark.parametrize("upright", [False, True])
def test_damage_that_pillow_would_show_is_named_by_all(tmp_path, upright):
    damaged = flipped()
    with pytest.raises(SourceError, match=WORDS):
        decode_image(damaged)
    with pytest.raises(SourceError, match=WORDS):
        Recode(resize=50).apply(damaged, inspect_image(damaged))
    assert [WORDS in item.problem for item in verify(packed(tmp_path, damaged), decode=True, workers=1)] == [True]
    out = np.empty((1, 3, 8, 8), np.uint8)
    problems = decoders.decode_batch([damaged], Resize(8), keys(1), out, upright=upright)
    assert list(problems) == [0] and WORDS in problems[0]
    with pytest.raises(DataError, match=WORDS):
        decoders.decode_rgb(damaged, upright=upright)


def test_damaged_headers_are_named_by_all():
    broken = WHOLE.replace(b"\xff\xdb", b"\xff\xbf")  # neither of the tables is valid any more
    for refuse in (inspect_image, decode_image, decoders.decode_rgb):
        with pytest.raises(DataError, match="headers or tables are broken"):
            refuse(broken)
    problems = decoders.measure([broken])[1]
    assert "headers or tables are broken" in problems[0]


def test_what_the_core_leaves_to_pillow_is_decoded_by_it():
    cmyk = image(1, "JPEG", "CMYK", 40, 30)
    assert jpeg.decode(cmyk) is None
    decode_image(cmyk)
    assert decoders.decode_rgb(cmyk).size == (40, 30)
    out = np.empty((1, 3, 8, 8), np.uint8)
    assert decoders.decode_batch([cmyk], CenterCrop(8), keys(1), out) == {}
    assert out.any()
