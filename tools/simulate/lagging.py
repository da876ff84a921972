"""What nodes see of a shared file system that keeps names in each node's memory for a while, as NFS does.

A node sees at once what it has replaced itself, and what others have replaced only some time later. Until then it opens
the file that was there before, with its times, or finds none.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Replaced:
    """A name that was given to another file: when, in ns, by which node, and a descriptor of the one before, if any."""

    at: int
    node: int
    before: int | None


class Lagging:
    """Remembers what was replaced; for one scheduler."""

    def __init__(self) -> None:
        self._of: dict[str, list[_Replaced]] = {}

    def replaces(self, path: str, node: int, now: int) -> None:
        """Notes that a node gives a name to another file next."""
        try:
            before = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            before = None
        self._of.setdefault(path, []).append(_Replaced(now, node, before))

    def opened(self, path: str, node: int, since: int) -> int | None:
        """Returns a new descriptor of the file that a node sees at a path, None if it sees what is present.

        Args:
            path: of the file.
            node: that opens it.
            since: ns; what others have replaced later is not seen yet.

        Raises:
            FileNotFoundError: it does not see the file yet.
        """
        late = self._late(path, node, since)
        if not late:
            return None
        if late[0].before is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return os.open(f"/proc/self/fd/{late[0].before}", os.O_RDONLY | os.O_CLOEXEC)

    def is_hidden(self, path: str, node: int, since: int) -> bool:
        """Returns whether a node does not see a name at all yet; arguments as for `opened`."""
        late = self._late(path, node, since)
        return bool(late) and late[0].before is None

    def _late(self, path: str, node: int, since: int) -> list[_Replaced]:
        return [each for each in self._of.get(path, ()) if each.at > since and each.node != node]

    def clear(self) -> None:
        """Forgets everything: all nodes see what is present."""
        for each in [each for every in self._of.values() for each in every]:
            if each.before is not None:
                os.close(each.before)
        self._of.clear()
