"""A web server on this machine that can do everything that goes wrong with one."""

import re
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Served:
    """The answers of an address. Lists are used up, an item a request; an empty list means no trouble."""

    content: bytes = b""
    etag: str | None = '"1"'
    modified: str | None = None
    ranges: bool = True
    honour_if_range: bool = True
    length: bool = True
    """True if the length is told. If not, the end of the connection is the end of the file."""
    chunked: bool = False
    type: str = "application/octet-stream"
    status: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Answers in place of the file."""
    drop: list[int | None] = field(default_factory=list)
    """After how many bytes of an answer the connection is cut."""
    stall: list[int | None] = field(default_factory=list)
    """After how many bytes nothing comes any more."""
    segment: list[int | None] = field(default_factory=list)
    """Number of bytes that are sent, and said to be sent, of the range that was asked for."""
    then: list[bytes] = field(default_factory=list)
    """The content after the request."""


@dataclass
class Site:
    """A server's address, what it serves and what it was asked."""

    url: str
    pages: dict[str, Served] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Path with query, and the Range header, of each request."""
    headers: list[dict[str, str]] = field(default_factory=list)

    def add(self, path: str, content: bytes = b"", **more: Any) -> str:
        self.pages[path] = Served(content, **more)
        return self.url + path

    @property
    def ranges(self) -> list[str | None]:
        return [header for _, header in self.asked]


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Site]:
    """A site, until the block ends."""
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.close_connection = True
            site.asked.append((self.path, self.headers["Range"]))
            site.headers.append(dict(self.headers))
            page = site.pages.get(self.path)
            if page is None:
                self.send_error(404)
            elif page.status:
                code, headers = page.status.pop(0)
                self.answer(code, headers, page.content)
            else:
                self.serve(page)

        def serve(self, page: Served) -> None:
            content, start, code = page.content, 0, 200
            headers = {"Content-Type": page.type}
            if page.etag:
                headers["ETag"] = page.etag
            if page.modified:
                headers["Last-Modified"] = page.modified
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
            same = self.headers["If-Range"] in (None, page.etag, page.modified) or not page.honour_if_range
            if page.ranges and asked and same:
                start = int(asked[1])
                if start >= len(content):
                    self.answer(416, {"Content-Range": f"bytes */{len(content)}"}, b"")
                    return
                code = 206
                whole = len(content)
                content = content[: start + ((page.segment.pop(0) if page.segment else None) or whole)]
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{whole}"
            if page.length:
                headers["Content-Length"] = str(len(content) - start)
            cut = page.drop.pop(0) if page.drop else None
            stop = page.stall.pop(0) if page.stall else None
            body = content[start:]
            if page.then:
                page.content = page.then.pop(0)
                page.etag = page.etag and f'"{len(page.then)} more"'
            if page.chunked:
                del headers["Content-Length"]
                headers["Transfer-Encoding"] = "chunked"
                body = b"".join(
                    b"%x\r\n%b\r\n" % (len(body[at : at + 700]), body[at : at + 700]) for at in range(0, len(body), 700)
                )
                body += b"0\r\n\r\n"
            self.answer(code, headers, body[:cut] if stop is None else body[:stop])
            if stop is not None:
                self.wfile.flush()
                ended.wait(30)

        def answer(self, code: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(code)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, address: Any) -> None:
            pass  # clients that go away are what is tested

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    site = Site(f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield site
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


def wait_until(condition: Any, seconds: float = 20.0) -> bool:
    """Wait for something that another thread or process does."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())
