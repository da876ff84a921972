"""Damaged samples: raise at the first, or skip and count a limited number."""

from __future__ import annotations

import logging

from dlio.errors import CorruptRecordError
from dlio.locking.fork_lock import ForkLock

log = logging.getLogger(__name__)


class Skips:
    """Counts skipped samples up to a limit; safe for several threads.

    A pickled copy keeps the limit and counts from 0.
    """

    def __init__(self, limit: int) -> None:
        """Allows `limit` damaged samples; 0 raises at the first."""
        self.limit = limit
        self._lock = ForkLock()
        self._found: dict[tuple[str, int | None], CorruptRecordError] = {}

    def __reduce__(self) -> tuple[type[Skips], tuple[int]]:
        return Skips, (self.limit,)

    def __len__(self) -> int:
        """Returns the number of different samples that were skipped."""
        return len(self._found)

    def note(self, error: CorruptRecordError) -> None:
        """Counts a damaged sample; the same sample counts once.

        Raises:
            CorruptRecordError: `error`, if the limit is reached, or if a whole file is damaged rather than a sample.
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
