"""Answers of fsspec's file systems with bounded size and time.

fsspec itself reads an answer of any size, decompresses it if the server says so, and waits as long as data arrive.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dlio.errors import StorageError

if TYPE_CHECKING:
    import asyncio  # takes as long to load as the rest of a pack of files

    from aiohttp import ClientResponse
    from fsspec import AbstractFileSystem

IDLE_SECONDS = 60.0  # without a byte, then a connection is given up
TOTAL_SECONDS = 300.0  # for a whole answer; 14 kB/s for a block of 4 MiB
SLOWEST_BYTES = 256 << 10  # a second, of an upload that is waited for
PART_BYTES = 16 << 20  # of an upload; with three at a time, 64 MiB of memory for each worker
_PARTS, _MOST_PARTS = 3, 10_000  # S3's limit
MOST_LISTED = 5_000_000  # entries of a folder, each of some 600 bytes of memory
_MOST_XML = 16 << 20  # a page of 1,000 keys of 1 KiB has 6 MiB, if every character is escaped
_MOST_EMPTY = 100  # pages without an entry, one after the other
_INT64 = (1 << 63) - 1
Entry = dict[str, Any]  # fsspec's description of a file or folder
T = TypeVar("T")
Span = tuple[int, int]  # from one byte to before another


def at_most(file_system: AbstractFileSystem, path: str, limit: int, span: Span | None = None, login: str = "") -> bytes:
    """Returns a file or a span of it; of one with more than `limit` bytes the first `limit` + 1.

    Args:
        file_system: of fsspec.
        path: of the file in that file system.
        limit: bytes.
        span: the range to ask for; a server may ignore it.
        login: `user:password` for a web server.

    Raises:
        StorageError: a web server sent it compressed.
        TimeoutError: it took longer than IDLE_SECONDS for a byte, or TOTAL_SECONDS.
        Exception: whatever the file system raises.
    """
    protocols = file_system.protocol
    if "http" in protocols:
        return bytes(_sync(file_system, _from_web, file_system, path, limit, span, login))
    if "s3" in protocols:
        return bytes(_sync(file_system, _from_s3, file_system, path, limit, span))
    start, end = span or (0, min(file_system.size(path), limit + 1))
    if file_system.async_impl:
        read = file_system._cat_file  # cat_file calls it without a timeout
        return bytes(_sync(file_system, read, path, start=start, end=end))
    return bytes(file_system.cat_file(path, start=start, end=end))


def _sync(
    file_system: AbstractFileSystem,
    call: Callable[..., Awaitable[T]],
    *args: object,
    seconds: float | None = None,
    **kwargs: object,
) -> T:
    """Returns a coroutine's result, of the file system's own loop; TimeoutError after `seconds` or TOTAL_SECONDS."""
    from fsspec.asyn import sync

    result: T = sync(file_system.loop, call, *args, timeout=seconds or TOTAL_SECONDS, **kwargs)
    return result


async def _from_web(file_system: AbstractFileSystem, url: str, limit: int, span: Span | None, login: str) -> bytes:
    import asyncio

    session = await file_system.set_session()
    options = {**file_system.kwargs, "auto_decompress": False}
    headers = {**options.pop("headers", {}), "Accept-Encoding": "identity", **_range(span), **_authorization(login)}
    async with (
        asyncio.timeout(IDLE_SECONDS) as idle,
        session.get(file_system.encode_url(url), headers=headers, **options) as answer,
    ):
        if answer.status == 404:
            raise FileNotFoundError(f"404, it does not exist{_sent_on(answer)}")
        if answer.status in (401, 403):
            raise PermissionError(f"{answer.status}, access is denied{_sent_on(answer)}")
        answer.raise_for_status()
        encoding = answer.headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":
            raise StorageError(
                f"its server sends it as {encoding}, although dlio asked for plain data: turn that encoding off"
            )
        return await _read(answer.content.read, limit + 1, idle)


def _sent_on(answer: ClientResponse) -> str:
    """Returns the URL after redirections, without parts that may be secret."""
    return f" ({answer.url.with_user(None).with_query(None)}, to which it was redirected)" if answer.history else ""


async def _from_s3(file_system: AbstractFileSystem, path: str, limit: int, span: Span | None) -> bytes:
    import asyncio

    bucket, key, _ = file_system.split_path(path)
    await _bound(file_system)
    async with asyncio.timeout(IDLE_SECONDS) as idle:
        answer = await file_system._call_s3("get_object", Bucket=bucket, Key=key, **_range(span))
        async with answer["Body"] as body:
            return await _read(body.read, limit + 1, idle)


def _range(span: Span | None) -> dict[str, str]:
    return {} if span is None else {"Range": f"bytes={span[0]}-{span[1] - 1}"}


def _authorization(login: str) -> dict[str, str]:
    """Returns the header for a user and a password (RFC 7617)."""
    encoded = base64.b64encode(login.encode(errors="surrogateescape")).decode()
    return {"Authorization": f"Basic {encoded}"} if login else {}


async def _read(read: Callable[[int], Awaitable[bytes]], num_bytes: int, idle: asyncio.Timeout) -> bytes:
    """Returns at most `num_bytes` of an answer, and extends the idle timeout as long as data arrive."""
    import asyncio

    parts, now = [], asyncio.get_running_loop().time
    while num_bytes and (part := await read(num_bytes)):
        parts.append(part)
        num_bytes -= len(part)
        if (idle.when() or 0) < now() + 0.9 * IDLE_SECONDS:  # not for each part, which would cost a third of the rate
            idle.reschedule(now() + IDLE_SECONDS)
    return b"".join(parts)


def sent(file_system: AbstractFileSystem, path: str, content: Path | bytes) -> None:
    """Writes a file of an object store, in parts if it is large.

    Raises:
        TimeoutError: it took longer than TOTAL_SECONDS and its bytes at SLOWEST_BYTES a second.
        Exception: whatever the file system raises.
    """
    num_bytes = len(content) if isinstance(content, bytes) else content.stat().st_size
    size = max(PART_BYTES, -(-num_bytes // _MOST_PARTS))
    options = {"chunksize": size, "max_concurrency": _PARTS} if "s3" in file_system.protocol else {}
    seconds = TOTAL_SECONDS + num_bytes / SLOWEST_BYTES
    if isinstance(content, bytes):
        _sync(file_system, file_system._pipe_file, path, content, seconds=seconds)
    else:
        _sync(file_system, file_system._put_file, str(content), path, seconds=seconds, **options)


def drop_unfinished(file_system: AbstractFileSystem, path: str) -> None:
    """Gives up the uploads in parts below a folder of S3 that nobody has finished; raises whatever the store raises."""

    async def drop() -> None:
        bucket, folder, _ = file_system.split_path(path)
        found = await file_system._call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{folder}/")
        for each in found.get("Uploads", ()):
            known = {"Bucket": bucket, "Key": each["Key"], "UploadId": each["UploadId"]}
            await file_system._call_s3("abort_multipart_upload", **known)

    if "s3" in file_system.protocol:
        _sync(file_system, drop)


def listed(file_system: AbstractFileSystem, path: str, *, below: bool) -> list[Entry]:
    """Returns the entries of a folder, or the files in it and below it, as fsspec describes them.

    Raises:
        StorageError: the listing contradicts itself, or does not end.
        TimeoutError: it took longer than TOTAL_SECONDS.
        Exception: whatever the file system raises.
    """
    if "s3" in file_system.protocol:
        return list(_sync(file_system, _listed_by_s3, file_system, path, below).values())
    file_system.invalidate_cache()
    method = "find" if below else "ls"
    if file_system.async_impl:
        found = _sync(file_system, getattr(file_system, f"_{method}"), path, detail=True)
    else:
        found = getattr(file_system, method)(path, detail=True)
    return list(found.values() if below else found)


async def _listed_by_s3(file_system: AbstractFileSystem, path: str, below: bool) -> dict[str, Entry]:
    """Returns the entries of a folder by name; a server may lie, repeat itself, and never end."""
    bucket, folder, _ = file_system.split_path(path)
    prefix = f"{folder}/" if folder else ""
    query = {"Bucket": bucket, "Prefix": prefix, **({} if below else {"Delimiter": "/"}), **file_system.req_kw}
    await _bound(file_system)
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
        if type(size) is not int or not 0 <= size <= _INT64:
            raise StorageError(f"its server lists {key!r} with the size {size!r}")
        kind = "directory" if key.endswith("/") and not size else "file"
        yield {name: each[name] for name in ("ETag", "LastModified") if name in each} | {
            "Key": key, "size": size, "type": kind
        }  # fmt: skip


def _key(key: object, prefix: str) -> str:
    if not isinstance(key, str) or not key.startswith(prefix):
        raise StorageError(f"its server lists {key!r}, which does not begin with {prefix!r}")
    return key


async def _bound(file_system: AbstractFileSystem) -> None:
    """Has the S3 client refuse lists and errors that are too large; it would read them whole, of any size."""
    client = await file_system.set_session()

    async def send(request: Any, **_: object) -> Any:
        is_content, request.stream_output = request.stream_output, True
        answer = await client._endpoint.http_session.send(request)
        if not is_content or answer.status_code >= 300:
            body = bytearray()
            while part := await answer.raw.content.readany():
                body += part
                if len(body) > _MOST_XML:
                    answer.raw.close()
                    raise StorageError(f"its server's answer has more than {_MOST_XML >> 20} MiB")
            answer._content = bytes(body)
        return answer

    client.meta.events.register_last("before-send.s3", send, unique_id="dlio")
