"""Bytes that were received and not read yet."""

from __future__ import annotations


class Unread:
    """Bytes in the order of arrival.

    Attributes:
        count: how many.
    """

    __slots__ = ("_parts", "count")

    def __init__(self) -> None:
        self._parts: list[memoryview] = []
        self.count = 0

    def add(self, data: bytes) -> None:
        """Adds received bytes."""
        self._parts.append(memoryview(data))
        self.count += len(data)

    def take(self, target: memoryview, *, is_peek: bool) -> int:
        """Moves bytes into a buffer, or copies those of the first part; returns how many."""
        found = 0
        while self._parts and found < len(target):
            part = self._parts[0][: len(target) - found]
            target[found : found + len(part)] = part
            found += len(part)
            if is_peek:
                return found
            if len(part) == len(self._parts[0]):
                del self._parts[0]
            else:
                self._parts[0] = self._parts[0][len(part) :]
        self.count -= found
        return found

    def clear(self) -> int:
        """Throws all away; returns how many bytes."""
        count, self.count = self.count, 0
        self._parts.clear()
        return count
