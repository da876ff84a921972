"""dlio report: one page that opens offline, whatever the data set's names hold, and shows what is in it."""

from __future__ import annotations

import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

import dlio
from dlio.dataset.schema import Sample, Schema
from dlio.look import page, similar
from dlio.look.report import report
from tests.helpers.images import encoded, image, photo
from tests.loaders.packing import damage, pack_samples

HOSTILE = "</b><script src='//evil'>alert(1)</script>\x1b[2J\" onerror=x"


class Page(HTMLParser):
    """The tags of a page, with their attributes, and its text; fails where a tag is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.words, self._open = [], "", []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert tag == self._open.pop()

    def handle_data(self, data):
        self.words += data if self._open[-1:] != ["style"] else ""

    def check_offline(self) -> None:
        assert {tag for tag, _ in self.tags}.isdisjoint(["script", "link", "iframe", "object", "form", "a", "base"])
        for _, attributes in self.tags:
            assert not [name for name in attributes if name.startswith("on")]
            assert attributes.get("src", "data:image/jpeg;base64,").startswith("data:image/jpeg;base64,")
            assert "href" not in attributes


@pytest.fixture
def zoo(tmp_path):
    """A data set with classes, an equal pair in two classes, a near pair, and a file that is no image."""
    for name in ("cat", "dog"):
        (tmp_path / "zoo" / name).mkdir(parents=True)
        for number in range(6):
            photo(60 + number, 50, seed=number + 10 * len(name) * (name == "cat")).save(
                tmp_path / "zoo" / name / f"{number}.jpg"
            )
    photo(200, 150, seed=3).save(tmp_path / "zoo/dog/large.jpg")
    photo(200, 150, seed=3).resize((150, 110)).save(tmp_path / "zoo/dog/small.jpg", quality=60)
    shutil.copy(tmp_path / "zoo/cat/1.jpg", tmp_path / "zoo/dog/copy.jpg")
    (tmp_path / "zoo/dog/broken.jpg").write_bytes(b"\xff\xd8\xff")
    return dlio.pack(tmp_path / "zoo", tmp_path / "packed", num_shards=3, engine="serial", on_error="skip")


def page_of(dataset, path, **options) -> Page:
    written = report(dataset, path, **options)
    assert written == path and path.stat().st_size < 1_000_000
    page = Page(path.read_text())
    page.check_offline()
    return page


def test_a_page_tells_what_is_in_a_data_set(zoo, tmp_path):
    page = page_of(zoo, tmp_path / "r.html")
    for words in ("15 samples", "2 classes, from 6 to 9", "JPEG, 3 channels", "1 group of equal images", "3 shards"):
        assert words in page.words
    assert "1 of them in several classes" in page.words and "copy.jpg (dog)" in page.words
    assert "large.jpg" in page.words and "small.jpg" in page.words  # alike
    assert "broken.jpg" in page.words and "window of 2" in page.words
    assert len([tag for tag, _ in page.tags if tag == "svg"]) == 5
    assert len([tag for tag, _ in page.tags if tag == "img"]) >= 15


def test_mean_and_deviation_are_those_of_the_pixels(tmp_path):
    (tmp_path / "in/c").mkdir(parents=True)
    for number, value in enumerate((51, 153)):
        Image.new("RGB", (30, 20), (value, 255, 0)).save(tmp_path / "in/c" / f"{number}.png")
    page = page_of(dlio.pack(tmp_path / "in", tmp_path / "out", engine="serial"), tmp_path / "r.html")
    assert "0.4000, 1.0000, 0.0000" in page.words and "0.2000, 0.0000, 0.0000" in page.words


def test_hostile_names_are_text(tmp_path):
    schema = Schema.of({"image": "bytes", "label": "int64"}, class_names=[HOSTILE, "x" * 100_000])
    samples = [Sample(f"{HOSTILE}/{n}", {"image": image(n), "label": n % 2}) for n in range(4)]
    page = page_of(pack_samples(tmp_path / "packed", schema, samples, num_shards=1), tmp_path / "r.html")
    assert "<script src=" in page.words and "\x1b" not in page.words


def test_damage_is_part_of_the_report(tmp_path):
    schema = Schema.of({"image": "bytes", "label": "int64"})
    samples = [Sample(f"k{n}", {"image": image(n), "label": n}) for n in range(5)]
    samples.append(Sample("odd", {"image": b"no image", "label": 5}))
    packed = pack_samples(tmp_path / "packed", schema, samples, num_shards=1)
    damage(packed, 2)
    page = page_of(packed, tmp_path / "r.html")
    assert "2 damaged among the samples read" in page.words and "5: it is not an image" in page.words


@pytest.mark.parametrize(
    "fields", [{"text": "str"}, {"image": "uint8[4,5,3]"}, {"image": "bytes", "label": "float32[2]"}]
)
def test_other_samples_have_a_page_too(fields, tmp_path):
    values = {
        "str": "x",
        "uint8[4,5,3]": np.zeros((4, 5, 3), np.uint8),
        "bytes": encoded(Image.new("RGB", (9, 9))),
    }
    values["float32[2]"] = np.array([0, 1], np.float32)
    samples = [Sample(str(n), {name: values[kind] for name, kind in fields.items()}) for n in range(3)]
    page_of(pack_samples(tmp_path / "packed", Schema.of(fields), samples, num_shards=1), tmp_path / "r.html")
    page_of(pack_samples(tmp_path / "none", Schema.of(fields), [], num_shards=1), tmp_path / "n.html")


def test_a_page_of_noise_and_many_classes_is_small(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 96, 96, 3), dtype=np.uint8)
    pictures = [encoded(Image.fromarray(each), "PNG") for each in pixels]
    schema = Schema.of({"image": "bytes", "label": "int64"}, class_names=[f"class {n}" for n in range(157)])
    samples = [Sample(f"{n}", {"image": pictures[n % 40], "label": n}) for n in range(150)]
    page = page_of(pack_samples(tmp_path / "packed", schema, samples, num_shards=2), tmp_path / "r.html", samples=100)
    assert "100 of 150 samples were read" in page.words and "30 more classes are left out" in page.words
    assert "7 of 157 classes have no samples" in page.words


def test_near_images_are_found_by_bits_and_plain_ones_are_not_alike():
    pixels = np.asarray(photo(216, 216)).transpose(2, 0, 1)
    plain = np.full_like(pixels, 200)
    found = similar.hashes(np.stack([pixels, np.clip(pixels.astype(int) + 9, 0, 255).astype(np.uint8), plain, plain]))
    assert similar.near(found) == [(0, 1)] and found[2] == found[3] == 0
    base, bits = 0x0123456789ABCDEF, [0, 13, 26, 39, 52, 63]
    rows = [base, base ^ sum(1 << bit for bit in bits[:4]), base ^ sum(1 << bit for bit in bits[:5])]
    assert similar.near(np.array(rows, np.uint64)) == [(1, 2), (0, 1)]  # the most alike first


def test_a_report_says_where_not_all_pairs_are_compared(tmp_path, monkeypatch):
    pictures = [encoded(photo(90, 70), kind) for kind in ("PNG", "JPEG", "BMP")]
    samples = [Sample(str(number), {"image": picture}) for number, picture in enumerate(pictures)]
    data = pack_samples(tmp_path / "packed", Schema.of({"image": "bytes"}), samples, num_shards=1)
    assert "; 3 pairs that look alike:" in page_of(data, tmp_path / "r.html").words
    monkeypatch.setattr(similar, "_MOST_ALIKE", 2)
    assert "; at least " in page_of(data, tmp_path / "r.html").words


def test_the_page_is_drawn_in_a_browser(zoo, tmp_path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs a browser: apt-get install chromium")
    path = report(zoo, tmp_path / "r.html")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--window-size=800,1400", f"--screenshot={tmp_path / 'page.png'}", path.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    with Image.open(tmp_path / "page.png") as drawn:
        pixels = np.asarray(drawn.convert("RGB")).reshape(-1, 3)
    colours = {tuple(pixel) for pixel in pixels[::37].tolist()}
    assert (0x2F, 0x6D, 0xB5) in colours or (0x6F, 0xA8, 0xE6) in colours  # the charts' bars, light or dark
    assert len(colours) > 500  # the images


def test_bars_grow_with_their_numbers():
    drawn = Page(page.bars([("<a>", 10), ("b", 5)]))
    widths = [float(attributes["width"]) for tag, attributes in drawn.tags if tag == "rect"]
    assert widths[0] == 2 * widths[1] and "<a>" in drawn.words


def test_the_verb_writes_the_page_and_says_where(zoo, tmp_path, run):
    code, out, err = run("report", zoo.root, "-o", tmp_path / "page.html")
    assert (code, out.strip(), err) == (0, str(tmp_path / "page.html"), "")
    assert run("report", zoo.root, "-o", tmp_path)[0] == 2
