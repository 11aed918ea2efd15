"""A local web server whose connections can break or stall."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Served:
    """The answers of an address. Each request takes one item from every list; an empty list has no effect."""

    content: bytes = b""
    ranges: bool = True
    status: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Answers in place of the file."""
    drop: list[int | None] = field(default_factory=list)
    """The connection breaks after so many bytes of an answer."""
    stall: list[int | None] = field(default_factory=list)
    """The connection stalls after so many bytes of an answer."""
    then: list[bytes] = field(default_factory=list)
    """The content for later requests."""


@dataclass
class Site:
    """A server: its address, its pages and the requests that it got."""

    url: str
    pages: dict[str, Served] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Path with query, and the Range header, of each request."""

    def add(self, path: str, content: bytes = b"", **more: Any) -> str:
        self.pages[path] = Served(content, **more)
        return self.url + path

    @property
    def ranges(self) -> list[str | None]:
        return [header for _, header in self.asked]


@contextmanager
def serving() -> Iterator[Site]:
    """Run a server until the block ends."""
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.close_connection = True
            site.asked.append((self.path, self.headers["Range"]))
            page = site.pages.get(self.path)
            if page is None:
                self.send_error(404)
            elif page.status:
                code, headers = page.status.pop(0)
                self.answer(code, {"Content-Length": "0", **headers}, b"")
            else:
                self.serve(page)

        def serve(self, page: Served) -> None:
            content, start, code, headers = page.content, 0, 200, dict[str, str]()
            if page.ranges and (asked := re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")):
                start, code = int(asked[1]), 206
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
                if start >= len(content):
                    self.answer(416, {"Content-Range": f"bytes */{len(content)}"}, b"")
                    return
            headers["Content-Length"] = str(len(content) - start)
            cut = page.drop.pop(0) if page.drop else None
            stop = page.stall.pop(0) if page.stall else None
            if page.then:
                page.content = page.then.pop(0)
            self.answer(code, headers, content[start:][: cut if stop is None else stop])
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

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # tests make clients disconnect
    site = Site(f"http://127.0.0.1:{server.server_address[1]}")
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
    """Wait until a condition is true; return False after a time limit."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())
