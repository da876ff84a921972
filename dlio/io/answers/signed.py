"""Ranges of objects without most of what S3's client does for each request, which takes 2 ms of CPU time.

A request that the client has made and the server has answered shows the bucket's address, and how to sign. Those that
differ in the key and the range only are signed and sent as the client does it, over its connections.
"""

from __future__ import annotations

import re
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from aiohttp import ClientResponse

_SCOPE = re.compile(r"AWS4-HMAC-SHA256 Credential=[^/]+/[0-9]+/([^/]+)/s3/aws4_request,")
_UNDERSTOOD = {"x-amz-date", "x-amz-content-sha256", "x-amz-security-token", "x-amz-checksum-mode"}  # in any request
_SIGNED_SECONDS = 300.0  # a server takes what was signed 15 minutes ago
_MOST_SIGNED = 1000

sent: ContextVar[Any] = ContextVar("sent", default=None)  # the latest request of a task


@dataclass(frozen=True, slots=True)
class _Bucket:
    """How to ask for the objects of a bucket.

    Attributes:
        address: the URL before the key.
        region: for which requests are signed.
        agent: the client's name.
        signed: by key, the headers and until when they are used; the range is not a part of what is signed.
    """

    address: str
    region: str
    agent: str
    signed: dict[str, tuple[dict[str, str], float]] = field(default_factory=dict)


_buckets: WeakKeyDictionary[Any, dict[str, _Bucket]] = WeakKeyDictionary()  # of each client


def learn(client: Any, bucket: str, key: str) -> None:
    """Learns from the latest request of this task, which was answered, how to ask for any object of a bucket."""
    request, name = sent.get(), quote(key, safe="/~")
    if request is None or not request.url.endswith(f"/{name}"):
        return
    headers = {name.lower(): _text(value) for name, value in request.headers.items()}
    scope = _SCOPE.match(headers.get("authorization", ""))
    if scope and {name for name in headers if name.startswith("x-amz-")} <= _UNDERSTOOD:
        known = _Bucket(request.url.removesuffix(name), scope[1], headers.get("user-agent", ""))
        _buckets.setdefault(client, {})[bucket] = known


async def asked(client: Any, bucket: str, key: str, headers: dict[str, str]) -> ClientResponse | None:
    """Returns the answer to a request for a part of an object; None if the client has to ask, as it has not yet.

    So it has after any answer but that part: it knows what to do with an error, or another address.
    """
    if (known := _buckets.get(client, {}).get(bucket)) is None:
        return None
    from botocore.awsrequest import AWSPreparedRequest

    url = known.address + quote(key, safe="/~")
    more, until = known.signed.get(key, ({}, 0.0))
    if time.monotonic() >= until:
        more = await _signed(client, known, url)
        if len(known.signed) >= _MOST_SIGNED:
            known.signed.clear()
        known.signed[key] = more, time.monotonic() + _SIGNED_SECONDS
    request = AWSPreparedRequest("GET", url, {**more, **headers}, None, stream_output=True)
    answer: ClientResponse = (await client._endpoint.http_session.send(request)).raw
    if answer.status == 206:
        return answer
    answer.close()
    _buckets[client].pop(bucket, None)
    return None


async def _signed(client: Any, known: _Bucket, url: str) -> dict[str, str]:
    """Returns the headers of a request for an object."""
    from botocore.awsrequest import AWSRequest

    request = AWSRequest("GET", url, {"User-Agent": known.agent})
    signer = await client._request_signer.get_auth_instance("s3", known.region, "s3v4")
    signer.add_auth(request)
    return {name: _text(value) for name, value in request.headers.items()}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
