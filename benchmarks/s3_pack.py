"""Measures packing from a bucket whose server answers late: `dlio pack s3://...` and 64 parallel GETs by s3fs.

    python benchmarks/s3_pack.py --data /tmp/bench --out /dev/shm/out

The server is a process that speaks as much of S3 as is needed: listings of a prefix, and objects, from the folder of
JPEGs of 92 KB of benchmarks/pack.py. Each request waits for the latency first. The GETs are `s3fs.cat` with 64 under
way in one process; dlio has two workers. Needs s3fs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

import fsspec
from images import make_set

BUCKET = "photos"
_COPIED_BYTES = 256 << 10  # at most; more is sent from the page cache


class Bucket:
    """A folder as a bucket."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.seconds = seconds
        self.counts = {"requests": 0, "bytes": 0}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of a connection, which have no bodies."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                method, target, _ = first.split()
                await self.answer(method, target, headers.get("range", ""), writer)
        writer.close()

    async def answer(self, method: str, target: str, span: str, writer: asyncio.StreamWriter) -> None:
        """Sends a listing, an object or a range of it; or what was asked for since this was asked for last."""
        parts = urlsplit(target)
        if parts.path == "/-counts":
            body, self.counts = json.dumps(self.counts).encode(), {"requests": 0, "bytes": 0}
            writer.write(_head("200 OK", len(body)) + body)
            return
        await asyncio.sleep(self.seconds)
        key = unquote(parts.path).removeprefix(f"/{BUCKET}").strip("/")
        if not key:
            body = self.listing(dict(parse_qsl(parts.query))).encode()
            writer.write(_head("200 OK", len(body)) + body)
            return
        try:
            file = (self.folder / key).open("rb", buffering=0)
        except OSError:
            self.fail("404 Not Found", "NoSuchKey", method, writer)
            return
        with file:
            status = os.fstat(file.fileno())
            start, _, last = span.removeprefix("bytes=").partition("-")
            begin, end = int(start or 0), min(int(last or status.st_size) + 1, status.st_size)
            if begin >= end:
                self.fail("416 Range Not Satisfiable", "InvalidRange", method, writer)
                return
            more = f'ETag: "{status.st_mtime_ns}"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n'
            more += f"Content-Range: bytes {begin}-{end - 1}/{status.st_size}\r\n" if span else ""
            head = _head("206 Partial Content" if span else "200 OK", end - begin, more)
            if method == "HEAD":
                writer.write(head)
                return
            self.counts["requests"] += 1
            self.counts["bytes"] += end - begin
            if end - begin > _COPIED_BYTES:
                writer.write(head)
                await asyncio.get_running_loop().sendfile(writer.transport, file, begin, end - begin)
            else:
                writer.write(head + os.pread(file.fileno(), end - begin, begin))
                await writer.drain()

    def fail(self, status: str, code: str, method: str, writer: asyncio.StreamWriter) -> None:
        """Sends an error."""
        body = f"<Error><Code>{code}</Code></Error>".encode()
        writer.write(_head(status, len(body)) + body * (method != "HEAD"))

    def listing(self, query: dict[str, str]) -> str:
        """Returns the answer to ListObjectsV2, in one page."""
        prefix, entries = query.get("prefix", ""), []
        if query.get("delimiter"):
            names = sorted(entry.name for entry in os.scandir(self.folder / prefix) if entry.is_dir())
            entries = [f"<CommonPrefixes><Prefix>{escape(prefix + name)}/</Prefix></CommonPrefixes>" for name in names]
        else:
            for path in sorted(path for path in (self.folder / prefix).rglob("*") if path.is_file()):
                key, status = escape(str(path.relative_to(self.folder))), path.stat()
                told = f"<ETag>{status.st_mtime_ns}</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                entries.append(f"<Contents><Key>{key}</Key><Size>{status.st_size}</Size>{told}</Contents>")
        head = f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><IsTruncated>false</IsTruncated>"
        return f'<?xml version="1.0"?><ListBucketResult>{head}{"".join(entries)}</ListBucketResult>'


def _head(status: str, num_bytes: int, more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {num_bytes}\r\n{more}\r\n".encode()


def serve(folder: Path, seconds: float) -> None:
    """Serves until it is ended; prints the port first."""

    async def run() -> None:
        server = await asyncio.start_server(Bucket(folder, seconds).serve, "127.0.0.1", 0, backlog=1024)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    asyncio.run(run())


def get_all(keys: list[str]) -> float:
    """Returns how many objects a second come by 64 parallel GETs, thrown away as they come."""
    command = [sys.executable, __file__, "--get"]
    done = subprocess.run(command, input="\n".join(keys), text=True, capture_output=True, check=True)
    return float(done.stdout)


def get() -> None:
    """Gets the keys of standard input, and prints the rate."""
    keys, s3 = sys.stdin.read().split("\n"), fsspec.filesystem("s3", asynchronous=True)

    async def run() -> float:
        session, waiting = await s3.set_session(), iter(keys)

        async def take() -> None:
            for key in waiting:
                await s3._cat_file(key)

        began = time.perf_counter()
        await asyncio.gather(*[take() for _ in range(64)])
        took = time.perf_counter() - began
        await session.close()
        return len(keys) / took

    print(asyncio.run(run()))


def pack(out: Path, url: str) -> tuple[float, float]:
    """Returns the seconds of a whole run, and of its plan alone."""
    shutil.rmtree(out, ignore_errors=True)
    words = ["--format", "recordio", "--workers", "2", "--num-shards", "8", "--quiet"]
    times = []
    for more in (["--dry-run"], []):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "dlio", "pack", url, str(out), *words, *more], check=True)
        times.append(time.perf_counter() - began)
    shutil.rmtree(out)
    return times[1], times[0]


def main() -> None:
    """Prints the table."""
    if sys.argv[1:2] == ["--serve"]:
        serve(Path(sys.argv[2]), float(sys.argv[3]))
        return
    if sys.argv[1:2] == ["--get"]:
        get()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder to make the images in")
    parser.add_argument("--out", type=Path, required=True, help="the folder to pack into")
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--part", default="all", help="all, or part for a twelfth of the images")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    folder = make_set(args.data, "big") / args.part
    keys = [f"{BUCKET}/{path.relative_to(folder)}" for path in sorted(folder.rglob("*.jpg"))]
    command = [sys.executable, __file__, "--serve", str(folder), str(args.latency_ms / 1000)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        os.environ["AWS_ACCESS_KEY_ID"] = os.environ["AWS_SECRET_ACCESS_KEY"] = "none"
        print("| 64 GETs, files/s | dlio, files/s | dlio / GETs | whole run, s | plan, s |\n|---|---|---|---|---|")
        ratios = []
        try:
            for _ in range(args.rounds):
                gets = get_all(keys)
                whole, plan = pack(args.out, f"s3://{BUCKET}")
                rate = len(keys) / (whole - plan)
                ratios.append(rate / gets)
                print(f"| {gets:,.0f} | {rate:,.0f} | {ratios[-1]:.2f} | {whole:.1f} | {plan:.1f} |", flush=True)
        finally:
            server.terminate()
    print(f"median {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
