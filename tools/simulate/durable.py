"""What a loss of power leaves of a folder: a model of what a file system promises, no more.

The folder holds what its processes see. This module remembers which of it is durable:

- `synced` of a file makes its data and size durable, but not its name.
- `synced` of a folder makes durable which names it holds, and what was moved or removed from it.
- A rename is atomic: either the old name survives or the new one, and then what it replaced is lost. What a folder
  holds goes with it. Folders that were removed, or replaced by others of their names, do not come back here.

The seed decides about everything else. Each page of 4 KiB is the seen one, the durable one, or torn between two sectors
of 512 bytes. Names survive in any order, so a rename may survive without the data written before it. After a failed
sync, Linux counts the pages as clean although they never reached the disk: they become durable only once they are
written again and synced.

Pillai et al. (ALICE, OSDI 2014) measured which file systems need such care; FoundationDB's AsyncFileNonDurable has
pages and sectors in the same way.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tools.simulate.chance import Chance

PAGE_BYTES, SECTOR_BYTES = 4096, 512
T = TypeVar("T")
_SEEN, _LOST, _TORN = range(3)


@dataclass(slots=True)
class _Entry:
    """A file or folder that was synced or renamed.

    Attributes:
        pin: a descriptor, so that the system does not give its inode number to another file.
        is_folder: whether it is a folder.
        data: the durable content; None if there is none.
        clean: pages that a failed sync has left clean.
        name: the durable path; "" if there is none.
        moves: the paths that it was renamed to since its name was durable.
        replaced: the path at which another file has replaced it, and the inode of that; "" if none has.
    """

    pin: int
    is_folder: bool = False
    data: bytes | None = None
    clean: set[int] = field(default_factory=set)
    name: str = ""
    moves: list[str] = field(default_factory=list)
    replaced: tuple[str, int] = ("", 0)


class Durable:
    """Remembers what is durable of a folder; for one thread.

    Args:
        root: the folder; what it holds now is durable.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._entries: dict[int, _Entry] = {}  # by their inodes, in the order of their first use
        self._note_all()

    def _note_all(self) -> None:
        for path, status in _listed(self._root):
            entry = self._at(status.st_ino, self._root / path)
            entry.name = path
            if stat.S_ISREG(status.st_mode):
                entry.data = (self._root / path).read_bytes()

    def _at(self, inode: int, path: Path | str) -> _Entry:
        if inode not in self._entries:
            pin = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            self._entries[inode] = _Entry(pin, stat.S_ISDIR(os.fstat(pin).st_mode))
        return self._entries[inode]

    def _of(self, inode: int, descriptor: int) -> _Entry:
        if inode not in self._entries:
            self._entries[inode] = _Entry(os.dup(descriptor))
        return self._entries[inode]

    def synced(self, descriptor: int) -> None:
        """Makes an open file, or the names in an open folder, durable."""
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            self._sync_names(Path(f"/proc/self/fd/{descriptor}").readlink())
            return
        entry, seen = self._of(status.st_ino, descriptor), _content(descriptor)
        fates = [_LOST if page in entry.clean else _SEEN for page in range(_pages(seen))]
        entry.data = _mixed(seen, entry.data or b"", fates) if entry.clean else seen

    def _sync_names(self, folder: Path) -> None:
        within = folder.relative_to(self._root)
        prefix = f"{within}/" if within.parts else ""
        here = {each.inode(): each for each in os.scandir(folder) if not each.is_symlink()}
        for inode, entry in list(self._entries.items()):
            was_here = entry.name.startswith(prefix) and "/" not in entry.name[len(prefix) :]
            if was_here and entry.name and inode not in here:
                self._sync_departure(inode, entry)
        for inode, each in sorted(here.items(), key=lambda item: item[1].name):
            entry = self._at(inode, each.path)
            entry.name, entry.moves, entry.replaced = prefix + each.name, [], ("", 0)

    def _sync_departure(self, inode: int, entry: _Entry) -> None:
        """Makes durable that a file was moved to another folder, or removed; of a folder, all that was in it, too."""
        inside = f"{[entry.name, *entry.moves][-1]}/"
        moved = self._root / entry.moves[-1] if entry.moves else None
        is_there = moved is not None and moved.exists() and moved.lstat().st_ino == inode
        entry.name, entry.moves = entry.moves[-1] if is_there else "", []
        for each in self._entries.values():
            if not is_there and each.name.startswith(inside):
                each.name = ""

    def failed(self, descriptor: int) -> None:
        """Notes that a sync of an open file has failed: the pages that differ from the disk's count as clean now."""
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            entry = self._of(status.st_ino, descriptor)
            seen, durable = _content(descriptor), entry.data or b""
            entry.clean |= {page for page in range(_pages(seen)) if _page(seen, page) != _page(durable, page)}

    def written(self, descriptor: int, offset: int, count: int) -> None:
        """Notes that a range of an open file was written, so that the next sync makes it durable."""
        if entry := self._entries.get(os.fstat(descriptor).st_ino):
            entry.clean.difference_update(range(offset // PAGE_BYTES, -(-(offset + count) // PAGE_BYTES)))

    def holds(self, path: Path) -> bool:
        """Returns whether a loss of power would leave all of a file's data, under whatever name."""
        entry = self._entries.get(path.stat().st_ino)
        return entry is not None and entry.data == path.read_bytes()

    def replaces(self, source: str, target: str) -> None:
        """Notes a rename that comes next, of paths within the folder."""
        path, inode = os.path.relpath(target, self._root), os.lstat(source).st_ino
        if os.path.lexists(target):
            self._at(os.lstat(target).st_ino, target).replaced = path, inode
        entry = self._at(inode, source)
        entry.moves.append(path)
        if entry.is_folder:
            self._move(os.path.relpath(source, self._root), path)

    def _move(self, old: str, new: str) -> None:
        """Gives what a folder holds, and did hold, its paths below the folder's new name."""
        for each in self._entries.values():
            each.name = _below(each.name, old, new)
            each.moves = [_below(path, old, new) for path in each.moves]
            each.replaced = _below(each.replaced[0], old, new), each.replaced[1]

    def lose_power(self, chance: Chance) -> None:
        """Leaves what survives; no process may use the folder any more."""
        seen = {path: status for path, status in _listed(self._root) if not stat.S_ISLNK(status.st_mode)}
        fate = _Fate(chance)
        folders = {path: status.st_mode for path, status in seen.items() if stat.S_ISDIR(status.st_mode)}
        durable = {entry.name for entry in self._entries.values()}
        moved = self._moved(seen)
        kept = _kept_folders(folders, durable.union(moved), fate)
        paths = {status.st_ino: path for path, status in seen.items() if stat.S_ISREG(status.st_mode)}
        left: dict[str, tuple[bytes, os.stat_result | None]] = {}
        for path, inode in self._surviving(paths, fate).items():
            before = self._entries[inode].data if inode in self._entries else None
            if inode in paths:
                data = fate.content((self._root / paths[inode]).read_bytes(), before)
                left[path] = data, seen[paths[inode]]
            else:  # it was removed, and comes back
                left[path] = before or b"", None
        modes = {path: folders[path] for path in kept}
        for new, old in moved.items():
            if old not in folders and fate.position(2) == 0:  # if nobody has made another folder there
                modes, left = _back(modes, new, old), _back(left, new, old)
        self._write(modes, left)

    def _moved(self, seen: Mapping[str, os.stat_result]) -> dict[str, str]:
        """Returns the names of folders that were renamed since their names were durable, with the durable ones."""
        here = {status.st_ino: path for path, status in seen.items()}
        moved = [each for each in self._entries.items() if each[1].is_folder and each[1].name and each[1].moves]
        return {here[inode]: entry.name for inode, entry in moved if inode in here}

    def _surviving(self, seen: Mapping[int, str], fate: _Fate) -> dict[str, int]:
        """Returns which file survives at which path: each has its durable name, or one that it was given later."""
        names: dict[int, list[str]] = {}
        for inode in {**self._entries, **seen}:
            entry = self._entries.get(inode, _Entry(-1))
            if entry.is_folder:
                continue
            names[inode] = [entry.name, *entry.moves]
            if seen.get(inode, "") != names[inode][-1] and not entry.replaced[0]:
                names[inode].append(seen.get(inode, ""))
        chosen = {inode: fate.position(len(each)) for inode, each in names.items()}
        found: dict[str, int] = {}
        for inode, position in chosen.items():
            path, other = self._entries[inode].replaced if inode in self._entries else ("", 0)
            is_replaced = path and path in names.get(other, ())[: chosen.get(other, 0) + 1]
            if (name := names[inode][position]) and not (is_replaced and name == path):
                found[name] = inode  # a later file can only be there if an earlier one has made room
        return found

    def _write(self, folders: Mapping[str, int], left: Mapping[str, tuple[bytes, os.stat_result | None]]) -> None:
        """Replaces what the folder holds; then all of it is durable."""
        self.close()
        for each in os.scandir(self._root):
            shutil.rmtree(each.path) if each.is_dir(follow_symlinks=False) else Path(each.path).unlink()
        for path, mode in sorted(folders.items()):
            (self._root / path).mkdir(mode=0o700)
            (self._root / path).chmod(stat.S_IMODE(mode))
        for path, (data, status) in sorted(left.items()):
            if (target := self._root / path).parent.is_dir():
                target.write_bytes(data)
                target.chmod(stat.S_IMODE(status.st_mode) if status else 0o600)
                if status:
                    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
        self._note_all()

    def close(self) -> None:
        """Forgets everything."""
        for entry in self._entries.values():
            os.close(entry.pin)
        self._entries.clear()


class _Fate:
    """What survives one loss of power: all names and no data, all data and no names, or some of both."""

    def __init__(self, chance: Chance) -> None:
        self._chance, self._kind = chance, chance.below(6)

    def position(self, count: int) -> int:
        """Returns which of a file's names survives: the first is durable, the last is seen."""
        return (count - 1, 0)[self._kind] if self._kind < 2 else self._chance.below(count)

    def keeps_folder(self) -> bool:
        """Returns whether a folder whose name is not durable survives; mostly, or little else would be seen."""
        return self._kind == 1 or (self._kind > 1 and self._chance.happens(0.875))

    def content(self, seen: bytes, durable: bytes | None) -> bytes:
        """Returns a file's content after the loss."""
        if seen == durable or self._kind == 1:
            return seen
        before = durable or b""
        if self._kind == 0:
            return before
        size = len(seen) if self._chance.happens(0.75) else len(before)
        fates = [self._chance.below(3) for _ in range(-(-size // PAGE_BYTES))]
        return _mixed(seen.ljust(size, b"\0")[:size], before, fates, self._chance)


def _listed(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yields what lies in a folder, at any depth, each folder before what it holds."""
    for path in sorted(root.rglob("*")):
        yield str(path.relative_to(root)), path.lstat()


def _below(path: str, old: str, new: str) -> str:
    """Returns a path in a folder of another name; one that is elsewhere as it is."""
    return new + path[len(old) :] if path.startswith(f"{old}/") else path


def _back(found: Mapping[str, T], new: str, old: str) -> dict[str, T]:
    """Returns what was found at paths, a folder and all that is in it at its old name."""
    return {old if path == new else _below(path, new, old): each for path, each in found.items()}


def _kept_folders(folders: Mapping[str, int], durable: set[str], fate: _Fate) -> list[str]:
    """Returns the folders that survive, each with all that are around it."""
    kept = [""]
    for path in sorted(folders):
        if path.rpartition("/")[0] in kept and (path in durable or fate.keeps_folder()):
            kept.append(path)
    return kept[1:]


def _mixed(seen: bytes, durable: bytes, fates: list[int], chance: Chance | None = None) -> bytes:
    """Returns content as long as `seen`, each page of which is the seen one, the durable one, or torn."""
    pages = []
    for number, fate in enumerate(fates):
        new, old = _page(seen, number), _page(durable, number)
        if fate == _TORN and chance and new != old:
            cut = SECTOR_BYTES * (1 + chance.below(PAGE_BYTES // SECTOR_BYTES - 1))
            pages.append(new[:cut] + old[cut:] if chance.happens(0.5) else old[:cut] + new[cut:])
        else:
            pages.append(old if fate == _LOST else new)
    return b"".join(pages)[: len(seen)]


def _content(descriptor: int) -> bytes:
    """Returns an open file's content, whatever it was opened for."""
    return Path(f"/proc/{os.getpid()}/fd/{descriptor}").read_bytes()


def _pages(data: bytes) -> int:
    return -(-len(data) // PAGE_BYTES)


def _page(data: bytes, number: int) -> bytes:
    return data[number * PAGE_BYTES : (number + 1) * PAGE_BYTES].ljust(PAGE_BYTES, b"\0")
