"""A small S3-compatible server in memory, for s3fs as dlio uses it: `python -m tests.helpers.small_s3`.

Objects appear when they are whole: by PUT, or when an upload in parts
is completed. Requests are not authenticated. DLIO_TEST_S3=moto has the tests take moto instead.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

PAGE = 1000
_TIME = "2026-01-01T00:00:00.000Z"


class Request(BaseHTTPRequestHandler):
    """One request; the state is the server's."""

    protocol_version = "HTTP/1.1"
    buckets: ClassVar[set[str]] = set()
    objects: ClassVar[dict[str, bytes]] = {}  # by "bucket/key"
    uploads: ClassVar[dict[str, tuple[str, dict[int, bytes]]]] = {}  # name and parts, by id
    numbers: ClassVar = itertools.count()

    def _parsed(self) -> tuple[str, dict[str, str]]:
        found = urlsplit(self.path)
        return unquote(found.path).lstrip("/"), dict(parse_qsl(found.query, keep_blank_values=True))

    def _body(self) -> bytes:
        data = self.rfile.read(int(self.headers["Content-Length"] or 0))
        return _unchunked(data) if "aws-chunked" in self.headers.get("Content-Encoding", "") else data

    def _answer(self, status: int, data: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _fail(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        name, query = self._parsed()
        bucket, _, key = name.partition("/")
        if bucket not in self.buckets:
            self._fail(404, "NoSuchBucket")
        elif "uploads" in query:
            own = [(id_, of) for id_, (of, _) in self.uploads.items() if of.startswith(f"{bucket}/{query['prefix']}")]
            each = [f"<Upload><Key>{_key(of)}</Key><UploadId>{id_}</UploadId></Upload>" for id_, of in own]
            self._answer(200, f"<ListMultipartUploadsResult>{''.join(each)}</ListMultipartUploadsResult>".encode())
        elif not key:
            self._answer(200, _listing(self.objects, bucket, query))
        elif name not in self.objects:
            self._fail(404, "NoSuchKey")
        else:
            self._content(self.objects[name])

    def _content(self, data: bytes) -> None:
        headers = {"ETag": _tag(data), "Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        span = self.headers["Range"]
        if span is None:
            self._answer(200, data, **headers)
            return
        first, last = (int(number) for number in span.removeprefix("bytes=").split("-"))
        part = data[first : last + 1]
        self._answer(206, part, Content_Range=f"bytes {first}-{first + len(part) - 1}/{len(data)}", **headers)

    def do_PUT(self) -> None:
        name, query = self._parsed()
        data = self._body()
        if "/" not in name.rstrip("/"):
            self.buckets.add(name.rstrip("/"))
        elif name.partition("/")[0] not in self.buckets:
            self._fail(404, "NoSuchBucket")
            return
        elif "uploadId" not in query:
            self.objects[name] = data
        elif query["uploadId"] not in self.uploads:
            self._fail(404, "NoSuchUpload")
            return
        else:
            self.uploads[query["uploadId"]][1][int(query["partNumber"])] = data
        self._answer(200, ETag=_tag(data))

    def do_POST(self) -> None:
        name, query = self._parsed()
        body = self._body()
        if "uploads" in query:
            id_ = f"upload-{next(self.numbers)}"
            self.uploads[id_] = (name, {})
            self._answer(200, f"<R><Key>{_key(name)}</Key><UploadId>{id_}</UploadId></R>".encode())
        elif "delete" in query:
            keys = [key.text for key in ElementTree.fromstring(body).iter() if key.tag.endswith("Key")]
            for key in keys:
                self.objects.pop(f"{name.rstrip('/')}/{key}", None)
            self._answer(200, b"<DeleteResult></DeleteResult>")
        else:
            _, parts = self.uploads.pop(query["uploadId"])
            self.objects[name] = b"".join(parts[number] for number in sorted(parts))
            self._answer(200, f"<R><ETag>{_tag(self.objects[name])}</ETag></R>".encode())

    def do_DELETE(self) -> None:
        name, query = self._parsed()
        self.uploads.pop(query.get("uploadId", ""), None)
        if "uploadId" not in query:
            self.objects.pop(name, None)
        self._answer(204)

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


def _key(name: str) -> str:
    return escape(name.partition("/")[2])


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def _unchunked(data: bytes) -> bytes:
    """Returns the content of a body of chunks, each after its size and a signature."""
    content = b""
    while data:
        head, _, data = data.partition(b"\r\n")
        size = int(head.partition(b";")[0], 16)
        if not size:
            break
        content, data = content + data[:size], data[size + 2 :]
    return content


def _listing(objects: dict[str, bytes], bucket: str, query: dict[str, str]) -> bytes:
    """Returns a page of a bucket's objects and folders (ListObjectsV2)."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    entries: dict[str, str] = {}
    for key in sorted(name.partition("/")[2] for name in list(objects) if name.startswith(f"{bucket}/{prefix}")):
        rest = key[len(prefix) :]
        if delimiter and delimiter in rest:
            folder = prefix + rest.partition(delimiter)[0] + delimiter
            entries[folder] = f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
        else:
            data = objects[f"{bucket}/{key}"]
            about = f"<LastModified>{_TIME}</LastModified><ETag>{escape(_tag(data))}</ETag><Size>{len(data)}</Size>"
            entries[key] = f"<Contents><Key>{escape(key)}</Key>{about}</Contents>"
    after = query.get("continuation-token", query.get("start-after", ""))
    left = [name for name in sorted(entries) if name > after]
    page = left[: min(PAGE, int(query.get("max-keys", PAGE)))]
    more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if len(left) > len(page) > 0 else ""
    state = f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated><KeyCount>{len(page)}</KeyCount>{more}"
    return f"<ListBucketResult>{state}{''.join(entries[name] for name in page)}</ListBucketResult>".encode()


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Request)
    sys.stderr.write(f"Running on http://127.0.0.1:{server.server_port}\n")
    sys.stderr.flush()
    server.serve_forever()
