"""How long this thread has waited for storage: without the time in which others had the processor or Python's lock."""

from __future__ import annotations

import threading

_noted = threading.local()


def note(seconds: float) -> None:
    """Adds seconds that this thread has waited for a read."""
    _noted.seconds = (getattr(_noted, "seconds", None) or 0.0) + seconds


def taken() -> float | None:
    """Returns the seconds that this thread has noted since the last call, None if it has noted none."""
    seconds: float | None = getattr(_noted, "seconds", None)
    _noted.seconds = None
    return seconds
