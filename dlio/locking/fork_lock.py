"""A lock that is free in a forked child, since the parent's thread that may hold it does not exist there."""

from __future__ import annotations

import os
import weakref

from dlio.io import world


class ForkLock:
    """A lock for `with`; not picklable.

    A fork may come in the middle of a body. So what the lock guards must be consistent at every moment.
    """

    def __init__(self) -> None:
        self.renew()
        _locks.add(self)

    def renew(self) -> None:
        """Frees the lock; called in a process that has no other thread."""
        self._lock = world.lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew_locks() -> None:
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(after_in_child=_renew_locks)
