"""Finds phrases that readers stumble over, in comments, docstrings, messages and pages, and names better ones.

`python -m tools.style [PATH ...]` checks what git tracks, or the files named, and exits 1 if it finds any. What is
written is not judged where it is code: names, and blocks between ``` in pages.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

#: What is looked for, without regard to case, and what to write instead.
INSTEAD = {
    r"beside": "next to, compared with, in the same run as",
    r"anew|afresh": "again",
    r"meanwhile": "while ..., in the meantime",
    r"whom": "who, or the name",
    r"at work": "running",
    r"(?:is|are) gone": "was removed, has ended",
    r"comes along": "is included",
    r"in words": "as text",
    r"in the place of": "instead of",
    r"of one's own": "your own",
    r"(?:has|have|is|are) to be": "must be",
    r"unproved": "unverified",
    r"(?:is|are) there(?=[.,:;)]|$)": "exists, has arrived, is complete",
    r"forsaken?|forsakes": "abandon",
    r"go(?:es|ing)? on(?= |[.,:;)]|$)|went on": "continue",
    r"for ever": "forever",
    r"in silence": "silently",
    r"but for": "except for",
    r"an? (?:[\w-]+ ){1,3}of (?:its|their|his|our) own\b(?! \w)": "its own ...",
    r"stays? as (?:it is|they are)": "does not change, stays unchanged",
    r"so many (?:seconds|bytes|nodes|files|ns|shards|times)": "this many, a number of",
    r"signs? of life": "heartbeats",
    r"whoever": "the process that, a user who",
    r"the very (?:engine|same)": "the real, the same",
    r"behind (?:one another|the other)": "one after another",
    r"as ever": "as usual",
    r"leads? (?:out|outside|nowhere)": "points outside, is broken",
    r"mend(?:s|ed|ing)": "repair",
    r"(?:came|become|becomes|became) of": "the result of",
    r"look(?:s|ed|ing)? at": "check, stat, read",
}
_FOUND = re.compile("|".join(rf"(?P<r{number}>\b(?:{each})\b)" for number, each in enumerate(INSTEAD)), re.IGNORECASE)
_WITH_HASH = (".toml", ".yml", ".yaml", ".sh", "Makefile")  # comments begin with #
_HELD = (".md", ".py", ".cpp", ".hpp", *_WITH_HASH)
_SENTENCE = re.compile(r"(?:promise|site_description) ?[=:] (.*)")
_OWN = {Path("tools/style.py"), Path("tests/tools/test_style.py")}  # they hold the phrases


def text_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yields line numbers, from 1, and the text that is written for people in these lines."""
    content = path.read_text()
    if path.suffix == ".md":
        is_code = False
        for number, line in enumerate(content.splitlines(), 1):
            is_code ^= line.lstrip().startswith("```")
            if not is_code:
                yield number, line
    elif path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(content).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                for number, line in enumerate(token.string.splitlines(), token.start[0]):
                    yield number, line
    else:
        mark = "#" if path.name.endswith(_WITH_HASH) else "//"
        for number, line in enumerate(content.splitlines(), 1):
            sentence = _SENTENCE.match(line) if mark == "#" else None
            yield number, sentence[1] if sentence else line.partition(mark)[2]


def check(path: Path) -> Iterator[str]:
    """Yields a line for each phrase of the list in a file."""
    for number, line in text_of(path):
        for found in _FOUND.finditer(line):
            instead = list(INSTEAD.values())[int(str(found.lastgroup)[1:])]
            yield f"{path}:{number}: {found[0]!r}: write {instead}"


def main(arguments: list[str]) -> int:
    """Prints what is found, and returns the exit status."""
    tracked = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines()
    paths = [Path(each) for each in arguments or tracked if each.endswith(_HELD)]
    lines = [line for path in paths if path not in _OWN for line in check(path)]
    print(*lines, sep="\n", end="\n" if lines else "")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
