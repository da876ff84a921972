"""What to do about damaged samples: raise at the first, or leave some out and count them."""

from __future__ import annotations

import logging

from dlio.errors import CorruptRecordError
from dlio.locking.fork_lock import ForkLock

log = logging.getLogger(__name__)


class Skips:
    """Counts the damaged samples that were left out, and ends the patience; safe for several threads.

    Pickles with its limit; the copy starts counting anew.
    """

    def __init__(self, limit: int) -> None:
        """Allows `limit` damaged samples; 0 raises at the first."""
        self.limit = limit
        self._lock = ForkLock()
        self._found: dict[tuple[str, int | None], CorruptRecordError] = {}

    def __reduce__(self) -> tuple[type[Skips], tuple[int]]:
        return Skips, (self.limit,)

    def __len__(self) -> int:
        """Returns how many different samples were left out."""
        return len(self._found)

    def note(self, error: CorruptRecordError) -> None:
        """Counts a damaged sample, once however often it is met.

        Raises:
            CorruptRecordError: `error`, where it is one too many, or a whole file is damaged rather than a sample.
        """
        if error.record is None:
            raise error
        with self._lock:
            if (error.path, error.record) in self._found:
                return
            if len(self._found) >= self.limit:
                raise error
            self._found[error.path, error.record] = error
        log.warning("left out: %s", error)
