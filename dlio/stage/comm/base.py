"""The interface of a ring: processes that pass blocks on to their right neighbour, and notice when one is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from dlio.errors import StorageError

T = TypeVar("T")


class Ring(Protocol):
    """Some of the processes of a job, in a circle; only the thread that made a ring may use it.

    Attributes:
        rank: this process's rank in the ring.
        size: the number of processes.
    """

    rank: int
    size: int

    def gather(self, value: T) -> list[T]:
        """Returns the JSON values of all processes, by rank; every process calls it.

        Raises:
            LostError: as `shift`, or a process did not come within `liveness.ARRIVAL_SECONDS` (`GATHER_SECONDS` over
                MPI, which starts all processes together).
        """

    def among(self, ranks: Sequence[int]) -> Ring | None:
        """Returns the ring of these ranks, None for a process that is not among them; every process calls it."""

    def shift(self, send: bytearray, receive: bytearray) -> None:
        """Sends one block to the right and receives one of the same size from the left.

        Raises:
            LostError: a process is lost; all others learn which one. The ring must not be used any more.
        """

    def leave(self, exit_code: int = StorageError.exit_code) -> None:
        """Makes this process end without waiting for the others, with that exit code if it must be cut short."""


class LostError(StorageError):
    """Processes of a ring do not answer any more.

    Attributes:
        ranks: their ranks in the ring.
    """

    def __init__(self, ranks: Sequence[int], problem: str) -> None:
        super().__init__(f"ranks {list(ranks)} of the ring are lost: {problem}")
        self.ranks = tuple(ranks)
