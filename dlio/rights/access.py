"""Who may read a staged copy: never more users than may read its source, given the folders around it."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_ACL = "system.posix_acl_access"


@dataclass(frozen=True, slots=True)
class Access:
    """Who may read a file besides its owner.

    Attributes:
        mode: the permission bits of the file; its folders can be entered by those who may read it.
        group: the id of the group that the bits of the group are for; None for the group that new files get.
        listing: permission bits for reading: which of these users may also list its folder.
    """

    mode: int
    group: int | None = None
    listing: int = 0o044

    def give_file(self, path: str | Path) -> None:
        """Sets the mode and group of a file of this user; drops the group's bits if the group cannot be set.

        Raises:
            OSError: the system refused.
        """
        self._give(path, self.mode)

    def give_open(self, descriptor: int) -> None:
        """Sets the mode and group of an open file, as `give_file`."""
        self._give(descriptor, self.mode)

    def give_folder(self, path: Path) -> None:
        """Sets the mode and group of a folder of this user, so that those who may read the file may enter it.

        Raises:
            OSError: the system refused.
        """
        self._give(path, 0o700 | (self.mode & 0o044) >> 2 | (self.mode & self.listing & 0o044))

    def _give(self, path: str | Path | int, mode: int) -> None:
        status = os.fstat(path) if isinstance(path, int) else os.lstat(path)
        group = status.st_gid if self.group is None else self.group
        if mode & 0o070 and status.st_gid != group:
            try:
                os.chown(path, -1, group, follow_symlinks=isinstance(path, int))
            except PermissionError:  # this user is not in the group: it may read only if all may
                mode &= ~0o070 | (mode & 0o007) << 3
        if stat.S_IMODE(status.st_mode) != mode:
            os.chmod(path, mode)  # noqa: PTH101  of text, too


PRIVATE = Access(0o600)


class FolderAccess:
    """Finds out who may read the files of one data set, by their modes and those of the folders around them.

    The folders are checked once. A file or folder with an access control list counts as closed to other users, since
    lists are not interpreted. May be used by several threads.
    """

    def __init__(self) -> None:
        self._folders: dict[tuple[str, int], int] = {}

    def access(self, path: str | Path, status: os.stat_result | None = None) -> Access:
        """Returns who may read a file, or list a folder.

        Args:
            path: of the file or folder.
            status: its status, if known.

        Raises:
            OSError: its status cannot be read.
        """
        name = os.fspath(path)
        if stat.S_ISLNK(os.lstat(name).st_mode):
            name = os.path.realpath(name)
        status = status or os.stat(name)  # noqa: PTH116  half the time of Path.stat
        bits = status.st_mode & self._let_in(name.rpartition("/")[0], status.st_gid)
        if bits and has_list(name):
            bits = 0
        return Access(0o600 | bits, status.st_gid)

    def _let_in(self, name: str, group: int) -> int:
        """Returns which may go through a folder and those around, as permission bits: a group, and others."""
        if (name, group) not in self._folders:
            folder = Path(name or ".").resolve()
            around = [_without_list(each) for each in (folder, *folder.parents)]
            group_bit = 0o040 * all(_lets_in(each, group) for each in around)
            self._folders[name, group] = group_bit | 0o004 * all(each.st_mode & stat.S_IXOTH for each in around)
        return self._folders[name, group]


def _without_list(folder: Path) -> os.stat_result:
    status = folder.stat()
    return os.stat_result((status.st_mode & ~0o077, *status[1:])) if has_list(str(folder)) else status


def _lets_in(folder: os.stat_result, group: int) -> bool:
    """Returns whether a member of that group only may enter a folder."""
    return bool(folder.st_mode & (stat.S_IXGRP if folder.st_gid == group else stat.S_IXOTH))


def has_list(path: str) -> bool:
    """Returns whether a file or folder has an access control list."""
    try:
        return bool(os.getxattr(path, _ACL))
    except OSError:  # it has none, or the file system does not support them
        return False


def without_lists(folder: Path) -> None:
    """Removes the access control lists that a new folder has inherited and would pass on to its entries."""
    for name in (_ACL, "system.posix_acl_default"):
        with suppress(OSError):  # it has none, or the file system does not support them
            os.removexattr(folder, name)
