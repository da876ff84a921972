"""to_planes and from_planes: records that decode to the pixels of their JPEGs, and from which these come back."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dlio.native import (
    _jpeg,
    decode,
    decode_batch,
    from_planes,
    is_planes,
    make_crop_ready,
    measure,
    planes_restores_original,
    probe,
    to_planes,
)
from tests.helpers.images import encoded
from tests.native.jpegs import ARITHMETIC, SEPARATE_SCANS, SUBSAMPLINGS, crop, jpeg, of_12_bits, picture
from tests.native.planes_reader import read_grey

#: A grey picture of 21 x 11, and its record in version 1.
GOLDEN_JPEG = base64.b85decode(
    b"|JeWF01!$>Nk#wx0RR9200961|JwjV00RO70s;a90s;a90|NsD1_T5I1Ox~M1_cHQ2nq@b2nh)a3=a$n3l0kj2@Meq4i69z5fBOt5)%>-6Aus&5d"
    b"Xjc3kU!U02KiNA^`uy03QGV0R;g80RaI400000000000RjUA1qKHQ2?`7U!~nGr00IF60|EpC1qB2I0004f0RjU61Q7)iAu&M)6H#FYB5@Qlfsvs"
    b"IBSNvk6;jdgBr{@if(Z&17Z@2DB_<~*DJnEIHa9pqIzvQ7Mn_0VN>fx-R##YAT4Q8oW@l(=YIAgTc6WGrdV_?8hKGoWijtF*m6n&7nVO=bq@|{(s"
    b"Hv*5v$VCgx45~w!o$SH#>dFX%F@%+)z;V8+1laa<K*S$=jiF`@$&QZ_4fDp`TGCb00;pA002J#`nOH_jB6}kyj9rEvuhrl4!{$EkUxm^{w{*f!a2"
    b"w)@uZk6GW$kxf__|dETEk8_=-t%Ygr>lx-hhdB(of6JpTX>PoXCt&yvt*neMG3X<uy0BypT&fH*$gJ6C0;yY4N$iIL+BNhITY55tPJtj{%?TYZ{V"
    b"k8+hbJ#ZHp^*o+>n*Z4"
)
GOLDEN_RECORD = base64.b85decode(
    b"ibPUM0RjRLZ~y=R0ssI2|JeWF01!$>Nk#wx0RR9200961|JwjV00RO70s;a90s;a90|NsD1_T5I1Ox~M1_cHQ2nq@b2nh)a3=a$n3l0kj2@Meq4i"
    b"69z5fBOt5)%>-6Aus&5dXjc3kU!U02KiNA^`u|00;pA002J#|Jg|ZJ^<E={|^B8Jw2TJIX4(cf7kzWC$oYEm%oRHfgJ_L?l5I{I$;cKqeWffP>2{"
    b"|fq;Af8iZOw!U6$@fDY-xBhWyH29hRoWC8*9iL4EP%>RFXI)a7%U0ui7{=2IS8#zReObU+~LIh)gJ`r$hN&<2qz<_6mRsx6wND7DNL#cqbJ|>(55"
    b"*s9tt^"
)


def _record(source: bytes) -> bytes:
    record = to_planes(source)
    assert record is not None
    return record


@given(
    width=st.integers(1, 150),
    height=st.integers(1, 150),
    subsampling=st.sampled_from(SUBSAMPLINGS),
    progressive=st.booleans(),
    restart=st.sampled_from([0, 1, 3]),
    quality=st.sampled_from([1, 30, 50, 75, 90, 95, 100]),
    decoder=st.sampled_from(_jpeg.BACK_ENDS),
    data=st.data(),
)
def test_pixels_are_equal_and_the_file_comes_back(
    width: int, height: int, subsampling: str, progressive: bool, restart: int, quality: int, decoder: str,
    data: st.DataObject,
) -> None:  # fmt: skip
    source = jpeg(width, height, subsampling, progressive=progressive, restart=restart, quality=quality)
    _jpeg.use_back_end(decoder)
    try:
        record = _record(source)
        pixels = decode(source)
        assert np.array_equal(decode(record), pixels)
        left, top = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
        box = (left, top, data.draw(st.integers(1, width - left)), data.draw(st.integers(1, height - top)))
        out = np.zeros((1, box[3], box[2], 3), np.uint8)
        assert decode_batch([record], np.array([box], np.int32), np.array([False]), out).tolist() == [0]
        assert np.array_equal(out[0], crop(pixels, box))
        back = from_planes(record)
    finally:
        _jpeg.use_back_end(_jpeg.BACK_ENDS[0])
    assert (back == source) == planes_restores_original(record) == (not progressive)
    assert np.array_equal(decode(back), pixels) and not probe(back).progressive
    assert is_planes(record) and not is_planes(source) and not planes_restores_original(source)
    assert measure([record]).tolist() == [[height, width]]


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_headers_read_as_those_of_the_file(subsampling: str) -> None:
    source = jpeg(90, 70, subsampling)
    found, expected = probe(_record(source)), probe(source)
    for name in ("width", "height", "components", "subsampling", "progressive", "complete", "orientation"):
        assert getattr(found, name) == getattr(expected, name)
    assert found.crop_ready


@pytest.mark.parametrize("optimize", [False, True])
def test_segments_and_bytes_behind_the_end_come_back(optimize: bool) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    profile = bytes(range(256)) * 300
    source = encoded(picture(200, 100), exif=exif, icc_profile=profile, comment=b"a comment", optimize=optimize)
    source += b"\xff\xd8 and more \xff\xd9\x00"
    record = _record(source)
    assert from_planes(record) == source and probe(record).orientation == 6
    assert np.array_equal(decode(record), decode(source))


def test_standard_tables_are_not_kept() -> None:
    source, optimal = jpeg(64, 64), encoded(picture(64, 64), quality=90, optimize=True)
    assert b"\xff\xc4" not in _record(source)[:700] and b"\xff\xc4" in _record(optimal)[:700]


def test_a_crop_ready_file_comes_back() -> None:
    source = make_crop_ready(jpeg(200, 100))
    assert from_planes(_record(source)) == source
    assert make_crop_ready(_record(source)) == _record(source)


def test_a_progressive_file_comes_back_as_jpegtran_makes_it_baseline() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    source = encoded(picture(200, 100), progressive=True, exif=exif, quality=90)
    back = from_planes(_record(source))
    with Image.open(io.BytesIO(back)) as image:
        assert image.getexif()[0x0112] == 6 and "progressive" not in image.info
    assert from_planes(_record(back)) == back and planes_restores_original(_record(back))


def test_magnitudes_beyond_six_bits() -> None:
    """Quality 100 of a hard picture: coefficients of more than 800."""
    pixels = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    source = encoded(Image.fromarray(pixels), quality=100)
    record = _record(source)
    assert np.abs(read_grey(record)[..., 1:]).max() > 800
    assert from_planes(record) == source and np.array_equal(decode(record), decode(source))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"GIF89a and more", id="no JPEG"),
        pytest.param(jpeg(200, 100)[:-900], id="truncated"),
        pytest.param(jpeg(200, 100)[:-2], id="without end"),
        pytest.param(jpeg(200, 100)[:100], id="headers only"),
        pytest.param(encoded(picture(200, 100).convert("CMYK")), id="CMYK"),
        pytest.param(encoded(picture(100, 80), keep_rgb=True), id="RGB"),
        pytest.param(of_12_bits(jpeg(200, 100)), id="12 bit"),
        pytest.param(ARITHMETIC, id="arithmetic"),
        pytest.param(SEPARATE_SCANS, id="several scans"),
        pytest.param(_record(jpeg(20, 10)), id="record"),
    ],
)
def test_what_has_no_record(other: bytes) -> None:
    assert to_planes(other) is None


@given(width=st.integers(1, 40), height=st.integers(1, 24), quality=st.sampled_from([30, 75, 90, 98]))
def test_the_description_of_the_format_gives_the_pixels(width: int, height: int, quality: int) -> None:
    source = jpeg(width, height, "grey", quality=quality)
    with Image.open(io.BytesIO(source)) as image:
        steps = np.array(image.quantization[0])  # type: ignore[attr-defined]
    blocks = (read_grey(_record(source)) * steps).reshape(*read_grey(_record(source)).shape[:2], 8, 8)
    place = np.arange(8)
    cosines = np.cos((2 * place[:, None] + 1) * place * np.pi / 16) * np.where(place == 0, np.sqrt(1 / 8), 0.5)
    pixels = np.einsum("yv,rcvu,xu->ryc x".replace(" ", ""), cosines, blocks, cosines)
    grey = (pixels.reshape(pixels.shape[0] * 8, -1) + 128).clip(0, 255)[:height, :width]
    assert np.abs(grey - decode(source)[..., 0]).max() < 1.1


def test_golden_bytes() -> None:
    assert to_planes(GOLDEN_JPEG) == GOLDEN_RECORD and from_planes(GOLDEN_RECORD) == GOLDEN_JPEG


def test_any_buffer_is_taken() -> None:
    source = jpeg(100, 100)
    record = _record(source)
    assert to_planes(memoryview(source)) == to_planes(np.frombuffer(source, np.uint8)) == record
    assert from_planes(bytearray(record)) == source and is_planes(memoryview(record))
    for call in (to_planes, from_planes, is_planes, planes_restores_original):
        with pytest.raises(TypeError):
            call("text")  # type: ignore[operator]
    with pytest.raises(ValueError, match="no back end mmx"):
        _jpeg.use_back_end("mmx")
