"""dlio show: samples by number or class, in the terminal or as files."""

from __future__ import annotations

import builtins
import json
import os
import pty
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dlio
from dlio.dataset.schema import Sample, Schema
from dlio.errors import UsageError
from tests.loaders.packing import pack_samples


@pytest.fixture
def packed(photos, tmp_path):
    dlio.pack(photos, tmp_path / "packed", num_shards=2, engine="serial")
    return tmp_path / "packed"


def test_samples_are_chosen_by_number_or_class(packed):
    assert [shown.number for shown in dlio.show(packed, [3, -1])] == [3, 35]
    assert {shown.label for shown in dlio.show(packed, class_="owl", count=4)} == {"owl"}
    assert [s.key for s in dlio.show(packed, class_="2")] == [s.key for s in dlio.show(packed, class_="owl")]
    assert [shown.number for shown in dlio.show(packed, count=3)] == [0, 17, 35]
    for wrong in ({"index": [36]}, {"class_": "bee"}, {"class_": "3"}, {"index": [1], "class_": "owl"}):
        with pytest.raises(UsageError):
            list(dlio.show(packed, **wrong))


def test_files_hold_the_images_as_they_are_stored(packed, photos, tmp_path, run):
    code, out, _ = run("show", packed, 0, 20, "--out", tmp_path / "found", "--json")
    samples = json.loads(out)["samples"]
    assert (code, [Path(s["path"]).name for s in samples]) == (0, ["00000000.png", "00000020.png"])
    for sample in samples:
        assert Path(sample["path"]).read_bytes() == (photos / sample["key"]).read_bytes()


def test_a_key_never_becomes_a_path(tmp_path, run):
    schema = Schema.of({"image": "uint8[3,5,3]", "label": "float32[2]"})
    fields = {"image": np.full((3, 5, 3), 7, np.uint8), "label": np.array([1, 0.5], np.float32)}
    pack_samples(tmp_path / "packed", schema, [Sample("../../etc/\x1bpasswd", fields)], num_shards=1)
    code, out, _ = run("show", tmp_path / "packed", "--out", tmp_path / "found")
    assert code == 0 and "\x1b" not in out and "[1.0, 0.5]" in out
    (path,) = (tmp_path / "found").iterdir()
    path.unlink()
    path.symlink_to(tmp_path / "victim")
    assert run("show", tmp_path / "packed", "--out", tmp_path / "found")[0] == 0
    assert not path.is_symlink() and not (tmp_path / "victim").exists()
    with Image.open(path) as image:
        assert path.name == "00000000.png" and np.asarray(image).tolist() == fields["image"].tolist()


def test_without_a_terminal_the_facts_are_printed(packed, run):
    code, out, _ = run("show", packed, 0)
    assert code == 0 and out.startswith("0: cat/") and "PNG" in out


def test_a_terminal_gets_half_blocks(packed, monkeypatch):
    pytest.importorskip("textual_image", reason="needs textual-image: pip install textual-image")
    ours, theirs = pty.openpty()
    command = "import sys; from dlio.cli import main; sys.exit(main(['show', sys.argv[1], '0']))"
    environ = os.environ | {"TERM": "xterm-256color", "COLUMNS": "60", "LINES": "30"}
    import fcntl
    import struct
    import subprocess
    import termios

    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 60, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", command, packed], stdin=theirs, stdout=theirs, stderr=-1, env=environ
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:
            break
        if not part:
            break
        seen += part
    os.close(ours)
    assert process.communicate(timeout=60)[1] == b"" and process.returncode == 0
    assert "▀" in seen.decode(errors="replace") or "▄" in seen.decode(errors="replace")


def test_a_missing_package_is_one_line(packed, run, monkeypatch):
    from dlio.cli import look as verb

    real = builtins.__import__

    def refuse(name, *args, **options):
        if name.startswith("textual_image"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **options)

    monkeypatch.setattr(verb, "_has_terminal", lambda: True)
    monkeypatch.setattr(builtins, "__import__", refuse)
    code, _, err = run("show", packed, 0)
    assert code == 5 and "textual-image" in err and len(err.splitlines()) == 1
