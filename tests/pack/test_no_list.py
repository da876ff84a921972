"""Lists that are not lists: a device, a pipe, a file without lines; refused at once, in little memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from dlio.errors import SourceError
from dlio.pack.listing.lists import MAX_LINE, raw_lines
from dlio.sources import caffe_list, csv_file, lst_file

MEMORY_BYTES = 4 << 30  # of addresses: numpy's threads reserve many that they never use
SECONDS = 60
SOURCES = ("archive", "caffe-list", "chestxray14", "csv", "lst")


def pack(path: str | Path, source: str, folder: Path) -> tuple[int, str]:
    """Returns the exit code of `dlio pack`, and what it complains of."""
    (folder / "Data_Entry_2017.csv").write_text("Image Index,Finding Labels\na.png,Hernia\n")
    command = [sys.executable, "-m", "dlio", "pack", str(path), str(folder / "out"), "--source", source]
    command += ["--format", "tfrecord", "--root", str(folder)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES)),
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("source", "path"), [*((source, "pipe") for source in SOURCES), ("archive", "/dev/zero"), ("csv", "/dev/null")]
)
def test_devices_and_pipes_are_refused(tmp_path: Path, source: str, path: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    given = tmp_path / path  # an absolute path stays what it is
    assert pack(given, source, tmp_path) == (
        3,
        f"dlio: {given} is not a regular file: give {kind(source)} that is one\n",
    )


def kind(source: str) -> str:
    return "an archive" if source == "archive" else "a list"


@pytest.mark.parametrize("source", [name for name in SOURCES if name != "archive"])
def test_a_line_without_an_end_is_refused(tmp_path: Path, source: str) -> None:
    path = tmp_path / "list.csv"
    path.touch()
    os.truncate(path, 1 << 40)  # a hole takes no space
    code, problem = pack(path, source, tmp_path)
    assert (code, problem) == (3, f"dlio: {path}, line 1: more than 1,048,576 characters, not a list of images\n")


@pytest.mark.parametrize("open_list", [csv_file, lst_file, caffe_list])
def test_the_longest_line_is_told_by_its_number(tmp_path: Path, open_list) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "list"
    path.write_text("path,label\n" + "a" * MAX_LINE + "\n")
    with pytest.raises(SourceError, match=r"list, line 2: more than"):
        open_list(path).listing()
    longest = "a" * (MAX_LINE - 1) + "\n"
    path.write_text(longest * 2)
    assert list(raw_lines(path, "\n")) == [longest] * 2
