"""The time that one command may spend on what other users have, all of them together."""

from __future__ import annotations

import errno
import math
from dataclasses import dataclass

from dlio.errors import StorageError

DEADLINE_SECONDS = 60.0
_NOTHING_SECONDS = 0.01  # no time that anything could be done in


@dataclass(slots=True)
class Patience:
    """How long all work of one command may still take, for all users; work uses it up.

    Attributes:
        seconds: the time without progress that is left, all pauses together.
        rate: bytes read and written in a second that are progress; a second with fewer counts in part. Infinite for
            work that must end after `seconds`.
        most_bytes: the bytes that can still be progress.
    """

    seconds: float = DEADLINE_SECONDS
    rate: float = math.inf
    most_bytes: float = math.inf

    def part(self, share: float) -> Patience:
        """Returns a share of what is left."""
        return Patience(share * self.seconds, self.rate, share * self.most_bytes)

    def use(self, seconds: float, num_bytes: float = 0) -> None:
        """Takes away what work has used."""
        self.seconds, self.most_bytes = max(0.0, self.seconds - seconds), max(0.0, self.most_bytes - num_bytes)

    def over(self) -> StorageError:
        """Returns the error of work whose time is over; no other error here has its number."""
        least = "" if self.rate == math.inf else f" at {self.rate / (1 << 20):.3g} MiB/s"
        problem = f"it took longer than {self.seconds:.3g} s{least}: run it again, or give a longer --deadline"
        if self.seconds < _NOTHING_SECONDS:
            problem = "it was left out, since what came before it took all of the time: give a longer --deadline"
        return StorageError(errno.ETIMEDOUT, problem)
