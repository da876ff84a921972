"""torch's key-value store, in which every process has a heartbeat, and whose calls end though its node is lost.

    beat/<rank>   counts up every second, also while the process syncs a file for minutes
    left/<rank>   the process needs the store no more; the one that serves it stays for the others a moment

torch's own calls wait for ever for a node without power, which closes no connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from dlio.stage.comm import base

BEAT_SECONDS = 1.0
_FAREWELL_SECONDS = 5.0  # with ring.LOST_SECONDS well below the 30 s within which a lost node is named
_POLL_SECONDS = 0.02

T = TypeVar("T")


def answer_of(call: Callable[[], T], seconds: float) -> T:
    """Returns what `call` returns, in a thread of its own, which is left behind where it takes longer.

    Raises:
        TimeoutError: no answer in that time; and whatever `call` raises.
    """
    answer: Future[T] = Future()

    def ask() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="dlio-store", daemon=True).start()
    return answer.result(seconds)


class LiveStore:
    """A store that `size` processes share, of which this one is number `rank`.

    Attributes:
        lost: the processes that were found to be lost; nobody waits for them.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.store = store
        self.rank, self.size = rank, size
        self.lost: set[int] = set()
        self._seen: dict[int, tuple[int, float]] = {}
        self._gone: base.LostError | None = None
        self._over = threading.Event()
        self.call("add", f"beat/{rank}", 1)
        self._heart = threading.Thread(target=self._beat, name="dlio-beat", daemon=True)
        self._heart.start()

    def call(self, method: str, *arguments: Any) -> Any:
        """Returns what a method of the store returns.

        Raises:
            LostError: the store does not answer; the node of rank 0 has it.
        """
        if self._gone is not None:
            raise self._gone
        try:
            return answer_of(partial(getattr(self.store, method), *arguments), base.LOST_SECONDS)
        except TimeoutError as error:
            self._gone = base.LostError([0], f"the store on its node has been silent for {base.LOST_SECONDS:.0f} s")
            raise self._gone from error
        except RuntimeError as error:  # all errors of torch's stores are
            self._gone = base.LostError([0], f"the store on its node does not answer: {error}")
            raise self._gone from error

    def beat(self, rank: int) -> int:
        """Returns how often the heart of a process has beaten.

        Raises:
            LostError: as `call` says.
        """
        return int(self.call("add", f"beat/{rank}", 0))

    def silent(self, ranks: Iterable[int]) -> list[int]:
        """Returns which processes have had no heartbeat for `LOST_SECONDS` while this one asked; one must have come.

        Raises:
            LostError: as `call` says.
        """
        found = []
        for rank in ranks:
            beat, now = self.beat(rank), time.monotonic()
            last, since = self._seen.get(rank, (0, now))
            if beat != last:
                self._seen[rank] = (beat, now)
            elif beat and now - since > base.LOST_SECONDS:
                found.append(rank)
        return found

    def leave(self, serves: bool) -> None:
        """Ends this process's part; the one that `serves` the store stays until the others have left, for a moment."""
        self._over.set()
        with suppress(base.LostError):
            self.call("set", f"left/{self.rank}", "")
            deadline = time.monotonic() + _FAREWELL_SECONDS
            awaited = [f"left/{rank}" for rank in range(self.size) if rank not in self.lost] if serves else []
            while awaited and not self.call("check", awaited) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        self._heart.join(BEAT_SECONDS)

    def _beat(self) -> None:
        with suppress(RuntimeError):  # the store is gone, as every call will say
            while not self._over.wait(BEAT_SECONDS):
                self.store.add(f"beat/{self.rank}", 1)
