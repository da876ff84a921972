"""An input of a target: a few small files by name, and what is known of them; one byte string for libFuzzer.

    u8 n | name, UTF-8, n bytes | u32le size | content         for each file, one after the other

The file `case`, JSON, describes the others, and `repaired` marks that a checksum was made to fit: both are not in
the target's folder. A name that begins with `=` stands for a file that is never changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Files = dict[str, bytes]

CASE = "case"
REPAIRED = "repaired"  # is there where a checksum was made to fit: the value that it guards may then differ
NOT_FILES = frozenset([CASE, REPAIRED])
FIXED = "="


def pack(files: Mapping[str, bytes]) -> bytes:
    """Returns the files as one byte string."""
    heads = ((name.encode(), content) for name, content in files.items())
    return b"".join(bytes([len(name)]) + name + len(content).to_bytes(4, "little") + content for name, content in heads)


def unpack(data: bytes) -> Files:
    """Returns the files of a byte string, as many as it holds whole."""
    files: Files = {}
    at = 0
    while at < len(data):
        name_end = at + 1 + data[at]
        end = name_end + 4 + int.from_bytes(data[name_end : name_end + 4], "little")
        if end > len(data) or name_end + 4 > len(data):
            break
        files[data[at + 1 : name_end].decode(errors="replace")] = data[name_end + 4 : end]
        at = end
    return files


def case_of(files: Mapping[str, bytes]) -> Any:
    """Returns what is known of the files."""
    return json.loads(files[CASE])


def with_case(files: Mapping[str, bytes], **case: Any) -> Files:
    """Returns the files and what is known of them."""
    return {CASE: json.dumps(case).encode(), **files}


def fixed(files: Mapping[str, bytes], *names: str) -> Files:
    """Returns the files, those called `names` never to be changed."""
    return {FIXED + name if name in names else name: content for name, content in files.items()}


def read_folder(folder: Path) -> Files:
    """Returns every file below `folder` by its path, in order."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes the files of an input into `folder`."""
    for name, content in files.items():
        if name not in NOT_FILES:
            path = folder / name.removeprefix(FIXED)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
