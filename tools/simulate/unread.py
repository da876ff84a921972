"""Bytes that were received and not read yet."""

from __future__ import annotations


class Unread:
    """Bytes in the order of arrival."""

    __slots__ = ("_count", "_parts")

    def __init__(self) -> None:
        self._parts, self._count = list[memoryview](), 0

    def __len__(self) -> int:
        return self._count

    def add(self, data: bytes) -> None:
        """Adds received bytes."""
        self._parts.append(memoryview(data))
        self._count += len(data)

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
        self._count -= found
        return found

    def clear(self) -> int:
        """Throws all away; returns how many bytes."""
        count, self._count = self._count, 0
        self._parts.clear()
        return count
