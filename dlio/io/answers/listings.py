"""Bounded lists of the entries of folders by fsspec's file systems; a server may send wrong or endless answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dlio.errors import StorageError
from dlio.io.answers import INT64, bound, sync

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

MOST_LISTED = 5_000_000  # entries of a folder, each of some 600 bytes of memory
_MOST_EMPTY = 100  # pages without an entry, one after the other
Entry = dict[str, Any]  # fsspec's description of a file or folder


def listed(file_system: AbstractFileSystem, path: str, *, below: bool) -> list[Entry]:
    """Returns the entries of a folder, or the files in it and below it, as fsspec describes them.

    Raises:
        StorageError: the listing contradicts itself, or does not end.
        TimeoutError: it took longer than TOTAL_SECONDS.
        Exception: whatever the file system raises.
    """
    if "s3" in file_system.protocol:
        return list(sync(file_system, _listed_by_s3, file_system, path, below).values())
    file_system.invalidate_cache()
    method = "find" if below else "ls"
    if file_system.async_impl:
        found = sync(file_system, getattr(file_system, f"_{method}"), path, detail=True)
    else:
        found = getattr(file_system, method)(path, detail=True)
    return list(found.values() if below else found)


async def _listed_by_s3(file_system: AbstractFileSystem, path: str, below: bool) -> dict[str, Entry]:
    """Returns the entries of a folder by name; a server may send wrong, repeated or endless entries."""
    bucket, folder, _ = file_system.split_path(path)
    prefix = f"{folder}/" if folder else ""
    query = {"Bucket": bucket, "Prefix": prefix, **({} if below else {"Delimiter": "/"}), **file_system.req_kw}
    await bound(file_system)
    found: dict[str, Entry] = {}
    tokens, num_empty = set[str](), 0
    while True:
        page = await file_system._call_s3("list_objects_v2", **query)
        before = len(found)
        for entry in _entries(page, prefix):
            if found.setdefault(entry["Key"], entry) is not entry:
                raise StorageError(f"its server lists {entry['Key']!r} twice")
            entry["name"] = f"{bucket}/{entry['Key']}"
        token, num_empty = page.get("NextContinuationToken"), num_empty + 1 if before == len(found) else 0
        if not page.get("IsTruncated"):
            break
        if not token or token in tokens or num_empty > _MOST_EMPTY or len(found) > MOST_LISTED:
            raise StorageError(f"its server's listing does not end, after {len(found):,} entries")
        tokens.add(token)
        query["ContinuationToken"] = token
    if not found and not below:
        raise FileNotFoundError("the folder is empty or does not exist")
    found.pop(prefix, None)  # the folder itself
    return found


def _entries(page: Entry, prefix: str) -> Iterator[Entry]:
    """Yields the entries of a page of S3 as fsspec describes them, without names; raises StorageError for odd ones."""
    for each in page.get("CommonPrefixes", ()):
        yield {"Key": _key(each.get("Prefix"), prefix).rstrip("/"), "size": 0, "type": "directory"}
    for each in page.get("Contents", ()):
        key, size = _key(each.get("Key"), prefix), each.get("Size")
        if type(size) is not int or not 0 <= size <= INT64:
            raise StorageError(f"its server lists {key!r} with the size {size!r}")
        kind = "directory" if key.endswith("/") and not size else "file"
        yield {name: each[name] for name in ("ETag", "LastModified") if name in each} | {
            "Key": key, "size": size, "type": kind
        }  # fmt: skip


def _key(key: object, prefix: str) -> str:
    if not isinstance(key, str) or not key.startswith(prefix):
        raise StorageError(f"its server lists {key!r}, which does not begin with {prefix!r}")
    return key
