"""Answers of fsspec's file systems with bounded size and time.

fsspec itself reads an answer of any size, decompresses it if the server says so, and waits as long as data arrive.
"""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dlio.errors import StorageError
from dlio.io.answers import signed

if TYPE_CHECKING:
    import asyncio  # takes as long to import as the rest of packing files

    from aiohttp import ClientResponse
    from fsspec import AbstractFileSystem

    from dlio.io.files import Span

IDLE_SECONDS = 60.0  # without a byte, then a connection is given up
TOTAL_SECONDS = 300.0  # for a whole answer; 14 kB/s for a block of 4 MiB
SLOWEST_BYTES = 256 << 10  # a second, of an upload that is waited for
PART_BYTES = 16 << 20  # of an upload; with three at a time, 64 MiB of memory for each worker
_PARTS, _MOST_PARTS = 3, 10_000  # S3's limit
_MOST_XML = 16 << 20  # a page of 1,000 keys of 1 KiB has 6 MiB, if every character is escaped
INT64 = (1 << 63) - 1
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class State:
    """What a server reports about a file.

    Attributes:
        num_bytes: its size.
        version: differs once its content has changed: its ETag, or the time of its last change; "" if it has neither.
        time: when it was changed last, in ns since 1970; 0 if the server does not say.
    """

    num_bytes: int
    version: str
    time: int

    @classmethod
    def of(cls, num_bytes: int, told: Mapping[str, object]) -> State:
        """Returns a state of this size; `told` has ETag and LastModified, as S3's client names them, or other names."""
        changed = told.get("LastModified") or told.get("updated") or told.get("created")
        try:
            date = changed if isinstance(changed, datetime) else parsedate_to_datetime(str(changed))
            time = int(date.timestamp()) * 10**9
        except (ValueError, OverflowError):
            time = 0
        return cls(num_bytes, str(told.get("ETag") or told.get("etag") or changed or ""), time if time <= INT64 else 0)


def state_of(file_system: AbstractFileSystem, path: str, login: str = "") -> State:
    """Returns what a server reports about a file; raises as `at_most`, StorageError if it does not answer ranges."""
    if "http" in file_system.protocol:
        return sync(file_system, _state_on_web, file_system, path, login)
    if "s3" in file_system.protocol:
        return sync(file_system, _state_on_s3, file_system, path)
    file_system.invalidate_cache()
    info = file_system._info if file_system.async_impl else file_system.info
    found = sync(file_system, info, path) if file_system.async_impl else info(path)
    if found["type"] != "file":
        raise FileNotFoundError("it is not a file")
    return State.of(found["size"], found)


def at_most(
    file_system: AbstractFileSystem,
    path: str,
    limit: int,
    span: Span | None = None,
    login: str = "",
    version: str = "",
) -> bytes:
    """Returns a file or a span of it; of one with more than `limit` bytes the first `limit` + 1.

    Args:
        file_system: of fsspec.
        path: of the file in that file system.
        limit: bytes.
        span: the range to ask for; a server may ignore it.
        login: `user:password` for a web server.
        version: that the file is to have still; "" for any.

    Raises:
        StorageError: a web server sent it compressed, or it has another version.
        TimeoutError: it took longer than IDLE_SECONDS for a byte, or TOTAL_SECONDS.
        Exception: whatever the file system raises.
    """
    protocols = file_system.protocol
    if "http" in protocols:
        return bytes(sync(file_system, _from_web, file_system, path, limit, span, login, version))
    if "s3" in protocols:
        if span and not version:
            part = signed.part(file_system, path, span, limit + 1, IDLE_SECONDS, TOTAL_SECONDS)
            if part is not None:
                return part
        return bytes(sync(file_system, _from_s3, file_system, path, limit, span, version))
    start, end = span or (0, min(file_system.size(path), limit + 1))
    if file_system.async_impl:
        read = file_system._cat_file  # cat_file calls it without a timeout
        data = bytes(sync(file_system, read, path, start=start, end=end))
    else:
        data = bytes(file_system.cat_file(path, start=start, end=end))
    if version:  # asked after the read: before it, a change in between would go unnoticed
        _check(state_of(file_system, path).version, version)
    return data


def sync(
    file_system: AbstractFileSystem,
    call: Callable[..., Awaitable[T]],
    *args: object,
    seconds: float | None = None,
    **kwargs: object,
) -> T:
    """Returns a coroutine's result, of the file system's own loop; TimeoutError after `seconds` or TOTAL_SECONDS."""
    from fsspec import asyn

    result: T = asyn.sync(file_system.loop, call, *args, timeout=seconds or TOTAL_SECONDS, **kwargs)
    return result


@asynccontextmanager
async def _asked(
    file_system: AbstractFileSystem, url: str, span: Span | None, login: str
) -> AsyncIterator[tuple[ClientResponse, asyncio.Timeout]]:
    """Yields a web server's answer, and the timeout for its next bytes."""
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
        yield answer, idle


async def _from_web(
    file_system: AbstractFileSystem, url: str, limit: int, span: Span | None, login: str, version: str
) -> bytes:
    async with _asked(file_system, url, span, login) as (answer, idle):
        _check(_state_in(answer, 0).version, version)
        return await _read(answer.content.read, limit + 1, idle)


async def _state_on_web(file_system: AbstractFileSystem, url: str, login: str) -> State:
    async with _asked(file_system, url, (0, 1), login) as (answer, _):
        if answer.url.path.endswith("/"):
            raise FileNotFoundError("it is a folder")
        whole = re.fullmatch(r"bytes 0-0/([0-9]{1,18})", answer.headers.get("Content-Range", ""))
        if not whole:
            raise StorageError(
                "its server does not support range requests, so an interrupted copy could not continue: use another"
            )
        return _state_in(answer, int(whole[1]))


def _state_in(answer: ClientResponse, num_bytes: int) -> State:
    names = {"ETag": "ETag", "LastModified": "Last-Modified"}
    return State.of(num_bytes, {name: answer.headers.get(header) for name, header in names.items()})


def _check(found: str, version: str) -> None:
    if version and found != version:
        raise StorageError(f"it has changed from the version {version} to {found or 'an unknown one'}: stage it again")


def _sent_on(answer: ClientResponse) -> str:
    """Returns the URL after redirections, without parts that may be secret."""
    return f" ({answer.url.with_user(None).with_query(None)}, to which it was redirected)" if answer.history else ""


async def _state_on_s3(file_system: AbstractFileSystem, path: str) -> State:
    bucket, key, _ = file_system.split_path(path)
    await bound(file_system)
    found = await file_system._call_s3("head_object", Bucket=bucket, Key=key)
    return State.of(found["ContentLength"], found)


async def _from_s3(file_system: AbstractFileSystem, path: str, limit: int, span: Span | None, version: str) -> bytes:
    import asyncio

    bucket, key, _ = file_system.split_path(path)
    client = await bound(file_system)
    async with asyncio.timeout(IDLE_SECONDS) as idle:
        answer = await file_system._call_s3("get_object", Bucket=bucket, Key=key, **_range(span))
        if answer["ResponseMetadata"]["HTTPStatusCode"] == 206 and "ContentLength" in answer:  # it knows ranges
            signed.learn(client, bucket, key)
        _check(State.of(0, answer).version, version)
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
        sync(file_system, file_system._pipe_file, path, content, seconds=seconds)
    else:
        sync(file_system, file_system._put_file, str(content), path, seconds=seconds, **options)


def drop_unfinished(file_system: AbstractFileSystem, path: str) -> None:
    """Gives up the uploads in parts below a folder of S3 that nobody has finished; raises whatever the store raises."""

    async def drop() -> None:
        bucket, folder, _ = file_system.split_path(path)
        found = await file_system._call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{folder}/")
        for each in found.get("Uploads", ()):
            known = {"Bucket": bucket, "Key": each["Key"], "UploadId": each["UploadId"]}
            await file_system._call_s3("abort_multipart_upload", **known)

    if "s3" in file_system.protocol:
        sync(file_system, drop)


async def bound(file_system: AbstractFileSystem) -> Any:
    """Returns the S3 client, which now refuses too large lists and errors: it would read them whole."""
    client = await file_system.set_session()

    async def send(request: Any, **_: object) -> Any:
        is_content, request.stream_output = request.stream_output, True
        signed.sent.set(request)
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
    return client
