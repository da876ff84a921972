"""torch's key-value store with heartbeats, and with calls that end even if the store's node is lost.

    beat/<rank>   counts up every second, also while the process syncs a file for minutes
    left/<rank>   the process no longer needs the store; the process that serves it waits for the others a moment

torch's own calls wait for ever for a node that has lost power, since it closes no connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from dlio.cluster import liveness
from dlio.io.threads import started
from dlio.stage.comm import base

_FAREWELL_SECONDS = 5.0  # with LOST_SECONDS well below the 30 s within which a lost node is named
_POLL_SECONDS = 0.02

T = TypeVar("T")


def answer_of(call: Callable[[], T], seconds: float) -> T:
    """Returns what `call` returns; it runs in a thread of its own, which is abandoned if it takes longer.

    Raises:
        TimeoutError: no answer within `seconds`.
        Exception: whatever `call` raises.
    """
    answer: Future[T] = Future()

    def ask() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    started(ask, "dlio-store")
    return answer.result(seconds)


class LiveStore:
    """A store that `size` processes share; this process has the rank `rank`.

    Attributes:
        lost: the ranks found lost; nobody waits for them.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.store = store
        self.rank, self.size = rank, size
        self.lost: set[int] = set()
        self._signs = liveness.Signs()
        self._gone: base.LostError | None = None
        self._answered = time.monotonic()  # the heartbeat asks every second
        self._over = threading.Event()
        self.call("add", f"beat/{rank}", 1)
        self._heartbeat = started(self._beat, "dlio-heartbeat")

    def call(self, method: str, *arguments: object) -> Any:
        """Returns what a method of the store returns.

        A store that has been silent for some of `LOST_SECONDS` already is waited for only as long as is left of them.

        Raises:
            LostError: the store does not answer; the node of rank 0 has it.
        """
        if self._gone is not None:
            raise self._gone
        left = liveness.LOST_SECONDS - (time.monotonic() - self._answered)
        try:
            answer = answer_of(partial(getattr(self.store, method), *arguments), max(left, liveness.ROLL_CALL_SECONDS))
        except TimeoutError as error:
            self._gone = base.LostError([0], f"the store on its node has been silent for {liveness.LOST_SECONDS:.0f} s")
            raise self._gone from error
        except RuntimeError as error:  # the type of all errors of torch's stores
            self._gone = base.LostError([0], f"the store on its node does not answer: {error}")
            raise self._gone from error
        self._answered = time.monotonic()
        return answer

    def beat(self, rank: int) -> int:
        """Returns a process's count of beats; 0 before it has come.

        Raises:
            LostError: as `call`.
        """
        return int(self.call("add", f"beat/{rank}", 0))

    def is_silent(self, rank: int) -> bool:
        """Returns whether a process that had come has had no heartbeat for `LOST_SECONDS`, as seen by these calls.

        Raises:
            LostError: as `call`.
        """
        beat = self.beat(rank)
        return self._signs.note(rank, beat) > liveness.LOST_SECONDS and beat > 0

    def leave(self, serves: bool) -> None:
        """Ends this process's part; the process that `serves` the store waits a moment until the others have left."""
        self._over.set()
        with suppress(base.LostError):
            self.call("set", f"left/{self.rank}", "")
            deadline = time.monotonic() + _FAREWELL_SECONDS
            awaited = [f"left/{rank}" for rank in range(self.size) if rank not in self.lost] if serves else []
            while awaited and not self.call("check", awaited) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        self._heartbeat.join(liveness.BEAT_SECONDS)

    def _beat(self) -> None:
        with suppress(RuntimeError):  # the store is gone: every other call says so
            while not self._over.wait(liveness.BEAT_SECONDS):
                self.store.add(f"beat/{self.rank}", 1)
                self._answered = time.monotonic()
