"""The list of phrases that readers stumble over: each is found in prose, and nowhere else."""

from __future__ import annotations

from pathlib import Path

from tools.style import check, main

FOUND = {
    "page.md": ("The index lies beside the tar.\n\n```sh\ncp a beside\n```\n", [1]),
    "module.py": ('"""Reads anew."""\n\nbeside = 1  # is gone\n', [1, 3]),
    "core.hpp": ("int anew;  // all bytes are there.\n", [1]),
    "list.toml": ('[one]\npromise = "All is read anew."\nold = "anew"\nkey = 1  # beside it\n', [2, 4]),
    "job.yml": ("run: anew  # meanwhile\n", [1]),
    "plain.md": ("Is there a copy? The index lies next to the tar.\n", []),
}


def test_phrases_are_found_with_their_lines(tmp_path: Path) -> None:
    for name, (text, lines) in FOUND.items():
        (tmp_path / name).write_text(text)
        found = [line.split(":")[1] for line in check(tmp_path / name)]
        assert found == [str(number) for number in lines], name
    assert main([str(tmp_path / "module.py")]) == 1
    assert main([str(tmp_path / "plain.md")]) == 0
