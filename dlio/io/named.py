"""What a user gives in the place of a data set: a path or a URL, and nothing else."""

from __future__ import annotations

import os
from os import PathLike

from dlio.errors import UsageError
from dlio.urls import REMOTE, is_url


def names_url(given: str | PathLike[str]) -> bool:
    """Returns whether what a user gives is a URL; else it is a path.

    Raises:
        UsageError: it is neither text nor a path, or is a URL of which pathlib has made a path.
    """
    if not isinstance(given, str | PathLike):
        raise UsageError(f"{given!r} is neither a path nor a URL: give one of these, as text or a Path")
    if os.fspath(given).startswith(REMOTE) and not is_url(given):
        raise UsageError(f"{given} is a URL with one slash only, as pathlib makes it: give it as text, with two")
    return is_url(given)
