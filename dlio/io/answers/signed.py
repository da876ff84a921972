"""Ranges of objects without most of what S3's client does for each request, which takes 2 ms of CPU time.

A request that the client has made and the server has answered shows the bucket's address, and how to sign. Those that
differ in the key and the range only are signed as the client does it, and sent by the thread that needs the answer.
"""

from __future__ import annotations

import re
import select
import socket
import ssl
import struct
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from dlio.io.files import Span

_SCOPE = re.compile(r"AWS4-HMAC-SHA256 Credential=[^/]+/[0-9]+/([^/]+)/s3/aws4_request,")
_UNDERSTOOD = {"x-amz-date", "x-amz-content-sha256", "x-amz-security-token", "x-amz-checksum-mode"}  # in any request
_SIGNED_SECONDS = 300.0  # a server takes what was signed 15 minutes ago
_MOST_SIGNED = 1000
_IDLE_SECONDS = 10.0  # firewalls and balancers forget idle connections and say nothing
_CONNECT_SECONDS = 5.0  # the client, which tries all addresses of a server at once, gets what takes longer
_HEAD_BYTES = 64 << 10  # of an answer, at most; also what is received at once before its length is known
_RECEIVED_BYTES = 1 << 20  # for each call: memory is allocated for all of them
_PART = re.compile(rb"HTTP/1\.1 206[ \r]")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})[ \t]*(?=\r\n)", re.IGNORECASE)
_OTHER = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_LAST = re.compile(rb"\r\nconnection:[ \t]*close", re.IGNORECASE)

sent: ContextVar[Any] = ContextVar("sent", default=None)  # the latest request of a task


@dataclass(frozen=True, slots=True)
class _Bucket:
    """How to ask for the objects of a bucket.

    Attributes:
        address: the URL before the key.
        region: for which requests are signed.
        agent: the client's name.
        tls: how to reach a server at https; None at http.
        places: for as many connections as the client may have.
        idle: connections that nobody uses, and since when.
        signed: by key, a request without its range, and until when it is used; the range is no part of what is signed.
    """

    address: str
    region: str
    agent: str
    tls: ssl.SSLContext | None
    places: BoundedSemaphore
    idle: list[tuple[_Connection, float]] = field(default_factory=list)
    signed: dict[str, tuple[bytes, float]] = field(default_factory=dict)

    def connection(self, seconds: float) -> _Connection:
        """Returns an idle connection, or else a new one; raises OSError."""
        while self.idle:
            try:
                connection, since = self.idle.pop()
            except IndexError:  # another thread took it
                break
            if time.monotonic() - since < _IDLE_SECONDS and connection.is_quiet:
                return connection
        return _Connection(self.address, self.tls, seconds)


class _Connection:
    """A connection to a server, for one thread at a time."""

    def __init__(self, address: str, tls: ssl.SSLContext | None, seconds: float) -> None:
        parts = urlsplit(address)
        host = parts.hostname or ""
        self.is_over = False  # whether the server said that it ends it
        try:
            port = parts.port or (443 if tls else 80)
            self._socket = socket.create_connection((host, port), min(seconds, _CONNECT_SECONDS))
        except TimeoutError as error:
            raise ConnectionError from error
        self._socket.settimeout(seconds)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
            else:  # the system waits for all bytes: after each return, threads would compete for Python's lock
                self._socket.settimeout(None)
                limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        except BaseException:
            self._socket.close()
            raise

    def __del__(self) -> None:
        if hasattr(self, "_socket"):
            self._socket.close()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has come since the last answer: neither bytes nor the end."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0) and not (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending())

    def part(self, request: bytes, most: int, until: float) -> bytes | None:
        """Returns the part that is asked for; None if the answer is another, or longer.

        Raises:
            OSError: the connection broke.
            TimeoutError: nothing came for a while, or not all until then.
        """
        self._socket.sendall(request)
        head = b""
        while (end := head.find(b"\r\n\r\n")) < 0:
            if len(head) > _HEAD_BYTES:
                return None
            head += self._received(_HEAD_BYTES, until)
        length = _LENGTH.findall(head, 0, end + 2)
        if not _PART.match(head) or len(length) != 1 or _OTHER.search(head, 0, end):
            return None
        self.is_over = bool(_LAST.search(head, 0, end))
        parts = [head[end + 4 :]]
        left = int(length[0]) - len(parts[0])
        if int(length[0]) > most or left < 0:
            return None
        while left:
            parts.append(self._received(left, until, socket.MSG_WAITALL))
            left -= len(parts[-1])
        return b"".join(parts)

    def _received(self, most: int, until: float, flags: int = 0) -> bytes:
        if time.monotonic() > until:
            raise TimeoutError
        flags = 0 if isinstance(self._socket, ssl.SSLSocket) else flags
        try:
            data = self._socket.recv(min(most, _RECEIVED_BYTES), flags)
        except BlockingIOError:
            raise TimeoutError from None
        if not data:
            raise ConnectionError
        return data


_buckets: WeakKeyDictionary[Any, dict[str, _Bucket]] = WeakKeyDictionary()  # of each client


def learn(client: Any, bucket: str, key: str) -> None:
    """Learns from the latest request of this task, which was answered, how to ask for any object of a bucket."""
    request, name = sent.get(), quote(key, safe="/~")
    if request is None or not request.url.endswith(f"/{name}"):
        return
    headers = {name.lower(): _text(value) for name, value in request.headers.items()}
    scope = _SCOPE.match(headers.get("authorization", ""))
    sessions = client._endpoint.http_session._sessions  # by proxy
    if not scope or not {name for name in headers if name.startswith("x-amz-")} <= _UNDERSTOOD or [*sessions] != [None]:
        return
    address, tls = request.url.removesuffix(name), sessions[None].connector._ssl
    is_secure = address.startswith("https:")
    if not is_secure or isinstance(tls, ssl.SSLContext):
        places = BoundedSemaphore(client.meta.config.max_pool_connections)
        known = _Bucket(address, scope[1], headers.get("user-agent", ""), tls if is_secure else None, places)
        _buckets.setdefault(client, {})[bucket] = known


def part(
    file_system: AbstractFileSystem, path: str, span: Span, most: int, idle_seconds: float, seconds: float
) -> bytes | None:
    """Returns a part of an object; None if the client has to ask, as it has not yet.

    So it has after any answer but that part: it knows what to do with an error, or another address.

    Args:
        file_system: of s3fs.
        path: of the object, with its bucket.
        span: the part.
        most: bytes; the client gets a longer answer.
        idle_seconds, seconds: for the next bytes, and for all.

    Raises:
        TimeoutError: it took longer.
    """
    loop, client = file_system.loop, file_system._s3  # the former raises an error in a fork, which has no connections
    bucket, key, _ = file_system.split_path(path)
    buckets = {} if client is None else _buckets.get(client, {})
    if (known := buckets.get(bucket)) is None:
        return None
    request, until = known.signed.get(key, (b"", 0.0))
    now = time.monotonic()
    if now >= until:
        from fsspec import asyn

        request = asyn.sync(loop, _signed, client, known, key, timeout=seconds)
        if len(known.signed) >= _MOST_SIGNED:
            known.signed.clear()
        known.signed[key] = request, now + _SIGNED_SECONDS
    request += b"Range: bytes=%d-%d\r\n\r\n" % (span[0], span[1] - 1)
    with known.places:
        try:
            connection = known.connection(idle_seconds)
            answer = connection.part(request, most, now + seconds)
        except TimeoutError:  # maybe the others are dead, too: the client makes its own
            buckets.pop(bucket, None)
            raise
        except OSError:
            answer = None
        if answer is None:
            buckets.pop(bucket, None)
        elif not connection.is_over:
            known.idle.append((connection, time.monotonic()))
    return answer


async def _signed(client: Any, known: _Bucket, key: str) -> bytes:
    """Returns a request for an object, to which the range is added."""
    from botocore.awsrequest import AWSRequest

    request = AWSRequest("GET", known.address + quote(key, safe="/~"), {"User-Agent": known.agent})
    signer = await client._request_signer.get_auth_instance("s3", known.region, "s3v4")
    signer.add_auth(request)
    parts = urlsplit(request.url)
    host = parts.netloc.removesuffix(":443" if known.tls else ":80")
    headers = {**request.headers, "Host": host, "Accept-Encoding": "identity"}
    lines = [f"GET {parts.path} HTTP/1.1", *(f"{name}: {_text(value)}" for name, value in headers.items()), ""]
    return "\r\n".join(lines).encode("latin-1")


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
