"""`dlio.Writer`: samples one by one, whole or not at all, and again from where a kill has left them."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dlio
from dlio import formats
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import SchemaError, SourceError, StorageError, UsageError
from dlio.pack.python import writer as writer_module
from dlio.pack.recode import Recode
from dlio.pack.write import ASIDE
from tests.helpers.forked import Forked, run_until, wait_for
from tests.helpers.images import image
from tests.helpers.packing import BYTE_IDENTICAL, content, samples
from tests.helpers.rounds import ROUNDS

COUNT = 12


def fields(number: int) -> dict:
    return {"image": image(number), "label": number % 3}


def write(out: Path, numbers: Iterable[int] = range(COUNT), every: int = 0, **options) -> list[bool]:
    """Writes samples into shards of three or four, and flushes after `every` so many; returns which were new."""
    found = []
    with dlio.Writer(out, shard_size=4 * len(image(0)) - 100, **options) as writer:
        for number in numbers:
            found.append(writer.write(fields(number), key=f"k/{number}"))
            if every and number % every == every - 1:
                writer.flush()
    return found


def expected(count: int = COUNT) -> list[tuple[str, dict]]:
    return [(f"k/{number}", fields(number)) for number in range(count)]


class TestSamples:
    @pytest.mark.parametrize("name", formats.names())
    def test_every_format_holds_what_was_written(self, name, tmp_path):
        assert write(tmp_path / "out", format=name, classes=["a", "b", "c"]) == [True] * COUNT
        found = Manifest.load(tmp_path / "out")
        assert samples(tmp_path / "out") == expected() and found.class_names == ("a", "b", "c")
        assert len(found.shards) > 2 and found.origin["num_shards"] == len(found.shards)
        assert not (tmp_path / "out" / ASIDE).exists() and dlio.verify(found) == []

    def test_the_first_sample_gives_the_schema(self, tmp_path):
        with dlio.Writer(tmp_path / "out", format="recordio") as writer:
            first = {
                "image": np.zeros((4, 5, 3), "uint8"),
                "label": np.uint8(3),
                "score": 0.5,
                "name": "x",
                "tokens": [1, 2],
                "boxes": [[1.0, 2, 3, 4]],
                "words": ["a", "b"],
                "is_good": True,
                "meta": {"id": 7, "more": {"raw": b"\0"}},
            }
            writer.write(first)
            writer.write(first | {"tokens": [1, 2, 3], "words": []})
        found = {name: str(kind) for name, kind in writer.manifest.schema.items()}
        assert found == {
            "image": "uint8[4,5,3]",
            "label": "int64",
            "score": "float64",
            "name": "str",
            "tokens": "int64[]",
            "boxes": "float64[?,4]",
            "words": "str[]",
            "is_good": "bool",
            "meta_id": "int64",
            "meta_more_raw": "bytes",
        }
        (key, one), (_, two) = samples(tmp_path / "out")
        assert key == "000000" and one["meta_id"] == 7 and two["tokens"].tolist() == [1, 2, 3]

    def test_arrays_and_pillow_images_are_encoded_where_asked_for(self, tmp_path):
        pixels = np.random.default_rng(1).integers(0, 256, (16, 24, 3), "uint8")
        encode = {"image": "jpeg", "mask": "png"}
        with dlio.Writer(tmp_path / "out", encode=encode, quality=90, recode=Recode(crop_ready=True)) as writer:
            writer.write({"image": pixels, "mask": pixels[:, :, 0]}, "array")
            writer.write({"image": Image.fromarray(pixels), "mask": pixels[:, :, :1]}, "pillow")
            writer.write({"image": image(3, "JPEG"), "mask": image(3, mode="L")}, "encoded")
        (_, array), (_, pillow), (_, encoded) = samples(tmp_path / "out")
        assert array == pillow and writer.manifest.shards[0].crop_ready.kept == 6  # too small for it
        assert array["image"][:2] == b"\xff\xd8" and np.array_equal(_decoded(array["mask"]), pixels[:, :, 0])
        assert encoded["mask"] == image(3, mode="L")

    @pytest.mark.parametrize(
        ("value", "problem"),
        [
            (np.zeros((4, 4, 3), "float32"), r"expected pixels for jpeg.*found float32\[4, 4, 3\]"),
            (np.zeros((3, 8, 8), "uint8"), r"\(height, width, 3\), found uint8\[3, 8, 8\]"),
            (np.zeros((0, 4), "uint8"), "found uint8"),
            (b"no image", "sample 'k': .*not an image|sample 'k'"),
        ],
    )
    def test_a_bad_image_is_named_and_others_follow(self, value, problem, tmp_path):
        with dlio.Writer(tmp_path / "out", encode={"image": "jpeg"}) as writer:
            writer.write({"image": image(1, "JPEG")}, "good")
            with pytest.raises((SchemaError, SourceError), match=problem):
                writer.write({"image": value}, "k")
            assert writer.write({"image": image(2, "JPEG")}, "k")
        assert [key for key, _ in samples(tmp_path / "out")] == ["good", "k"]

    def test_a_sample_unlike_the_first_is_told_what_to_do(self, tmp_path):
        with dlio.Writer(tmp_path / "out") as writer:
            writer.write({"x": np.zeros((2, 3), "float32")})
            with pytest.raises(SchemaError, match=r"float32\[2,3\].*\[4, 3\].*of the first sample.*schema="):
                writer.write({"x": np.zeros((4, 3), "float32")})
        with dlio.Writer(tmp_path / "given", {"x": "float32[?,3]"}) as writer:
            writer.write({"x": np.zeros((2, 3), "float32")})
            writer.write({"x": np.zeros((4, 3), "float32")})
        assert writer.manifest.num_samples == 2

    @pytest.mark.parametrize("value", [None, {1, 2}, object(), np.array(["x"], object)])
    def test_a_value_that_no_field_holds_is_named(self, value, tmp_path):
        problem = "sample 'k', field 'x': no type of field can hold a value such as"
        with pytest.raises(SchemaError, match=problem), dlio.Writer(tmp_path / "out") as writer:
            writer.write({"x": value}, "k")

    def test_keys_are_given_apart_or_within_and_differ(self, tmp_path):
        with dlio.Writer(tmp_path / "out") as writer:
            writer.write({"__key__": "a", "x": 1})
            writer.write(dlio.Sample("b", {"x": 2}))
            writer.write({"x": 3}, "c")
            with pytest.raises(SchemaError, match="'a' was written before"):
                writer.write({"x": 4}, "a")
            for wrong in (5, "", "\0"):
                with pytest.raises(SchemaError, match=r"key 5 is not text|empty path|zero byte"):
                    writer.write({"x": 4}, wrong)
        assert samples(tmp_path / "out") == [("a", {"x": 1}), ("b", {"x": 2}), ("c", {"x": 3})]


class TestWhole:
    def test_nothing_appears_before_the_end_and_nothing_after_an_error(self, tmp_path):
        with pytest.raises(RuntimeError, match="mine"), dlio.Writer(tmp_path / "out") as writer:
            writer.write(fields(0))
            writer.flush()
            assert not (tmp_path / "out" / NAME).exists()
            raise RuntimeError("mine")
        assert not (tmp_path / "out" / NAME).exists() and writer.manifest is None

    def test_a_writer_that_wrote_nothing_is_an_error(self, tmp_path):
        with pytest.raises(SourceError, match="no sample was written"), dlio.Writer(tmp_path / "out"):
            pass

    def test_a_folder_of_others_is_refused_and_kept(self, tmp_path):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.txt").write_text("mine")
        with pytest.raises(UsageError, match=r"thesis\.txt"), dlio.Writer(tmp_path / "out"):
            pass
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]

    def test_a_second_writer_at_a_time_is_refused(self, tmp_path):
        with dlio.Writer(tmp_path / "out") as writer:
            with pytest.raises(StorageError, match="under way"), dlio.Writer(tmp_path / "out"):
                pass
            writer.write({"x": 1})
        assert writer.manifest.num_samples == 1

    def test_wrong_use_is_refused(self, tmp_path):
        with pytest.raises(UsageError, match="only inside its context"):
            dlio.Writer(tmp_path / "out").write({"x": 1})
        with pytest.raises(UsageError, match="dlio convert"):
            dlio.Writer("s3://bucket/out")
        with pytest.raises(UsageError, match="encode="):
            dlio.Writer(tmp_path / "out", encode={"image": "webp"})
        with pytest.raises(UsageError, match="size of shards"):
            dlio.Writer(tmp_path / "out", shard_size=0)
        with pytest.raises(SchemaError, match="hdf5 cannot hold"):
            dlio.Writer(tmp_path / "out", {"x": "float32[]"}, "hdf5")
        assert not (tmp_path / "out").exists()

    def test_a_disk_that_fails_stops_the_writer_for_good(self, tmp_path, monkeypatch):
        def refuse(*_: object) -> None:
            raise StorageError(5, "cannot write")

        stopped = "an earlier error stopped the writer"
        with pytest.raises(StorageError, match=stopped), dlio.Writer(tmp_path / "out") as writer:
            writer.write({"x": 1})
            monkeypatch.setattr(writer_module, "publish_shard", refuse)
            with pytest.raises(StorageError, match="cannot write"):
                writer.flush()
        assert not (tmp_path / "out" / NAME).exists()


class TestResume:
    @pytest.mark.parametrize("name", BYTE_IDENTICAL)
    def test_after_an_error_it_goes_on_to_the_same_shards(self, name, tmp_path):
        write(tmp_path / "whole", every=5, format=name)

        def stopping():
            yield from range(7)
            raise RuntimeError

        with pytest.raises(RuntimeError):
            write(tmp_path / "out", stopping(), every=5, format=name)
        again = write(tmp_path / "out", every=5, format=name)
        assert not any(again[:5]) and again[-1]
        assert content(tmp_path / "out") == content(tmp_path / "whole")

    def test_a_finished_data_set_is_left_as_it_is(self, tmp_path):
        write(tmp_path / "out")
        before = content(tmp_path / "out")
        assert write(tmp_path / "out") == [False] * COUNT
        with dlio.Writer(tmp_path / "out") as writer:
            assert "k/3" in writer and "k/99" not in writer
        assert writer.manifest.num_samples == COUNT
        with pytest.raises(UsageError, match=r"complete, and has no sample 'k/99'"):
            write(tmp_path / "out", [99])
        assert content(tmp_path / "out") == before

    @pytest.mark.parametrize(
        ("options", "problem"),
        [({"format": "recordio"}, "format is recordio, there tfrecord"), ({"classes": ["a"]}, "class_names"),
         ({"schema": {"image": "bytes"}}, "schema is"), ({"encode": {"image": "png"}}, "encode is")],
    )  # fmt: skip
    def test_other_arguments_are_another_data_set(self, options, problem, tmp_path):
        write(tmp_path / "out")
        with pytest.raises(UsageError, match=problem):
            write(tmp_path / "out", **options)

    def test_a_packed_data_set_is_not_written_into(self, tmp_path):
        dlio.pack_items(fields, range(3), tmp_path / "out", engine="serial")
        with pytest.raises(UsageError, match=r"no dlio\.Writer has written"):
            write(tmp_path / "out")

    def test_a_shard_that_was_lost_is_written_again_in_its_place(self, tmp_path):
        write(tmp_path / "out")
        before = content(tmp_path / "out")
        (tmp_path / "out" / "shard-000001.tfrecord").unlink()
        found = write(tmp_path / "out")
        assert any(found) and not all(found)
        assert content(tmp_path / "out") == before

    @pytest.mark.parametrize("call", ["fsync", "rename"])
    def test_a_kill_loses_nothing_that_flush_has_confirmed(self, call, tmp_path):
        write(tmp_path / "whole", every=3)
        log = tmp_path / "log"

        def run(out: Path) -> None:
            with dlio.Writer(out, shard_size=4 * len(image(0)) - 100) as writer, log.open("w") as confirmed:
                for number in range(COUNT):
                    writer.write(fields(number), key=f"k/{number}")
                    if number % 3 == 2:
                        writer.flush()
                        confirmed.write(str(number + 1))
                        confirmed.flush()
                        confirmed.seek(0)

        for when in range(1, 60, 7 if ROUNDS == 1 else 1):
            out = tmp_path / f"{when}"
            log.write_text("0")
            ended = run_until(call, when, lambda out=out: run(out))
            assert ended in (0, -signal.SIGKILL)
            if ended:
                count = int(log.read_text() or 0)
                with dlio.Writer(out) as writer:
                    assert all(f"k/{number}" in writer for number in range(count))
                    for number in range(COUNT):
                        assert writer.write(fields(number), key=f"k/{number}") or True
                assert sorted(samples(out)) == sorted(expected()) and dlio.verify(out) == []

    def test_a_writer_killed_while_it_writes_leaves_nothing_behind(self, tmp_path):
        def run() -> None:
            with dlio.Writer(tmp_path / "out") as writer:
                for number in range(COUNT):
                    writer.write(fields(number), key=f"k/{number}")
                    if number == 5:
                        writer.flush()
                (tmp_path / "ready").touch()
                signal.pause()

        child = Forked(run)
        wait_for(tmp_path / "ready")
        child.kill()
        assert list((tmp_path / "out" / ASIDE).glob("shard-*"))
        assert write(tmp_path / "out") == [number > 5 for number in range(COUNT)]
        assert not (tmp_path / "out" / ASIDE).exists() and samples(tmp_path / "out") == expected()


def _decoded(data: bytes) -> np.ndarray:
    import io

    return np.asarray(Image.open(io.BytesIO(data)))
