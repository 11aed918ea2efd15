"""Servers on this machine, of the web and of FTP, that can do everything that goes wrong with one."""

import contextlib
import re
import socket
import socketserver
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
def _running(server: socketserver.BaseServer) -> Iterator[threading.Event]:
    """Run a server until the block ends; yields what is set then, for answers that wait."""
    ended = threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield ended
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Site]:
    """A site, until the block ends."""

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
                self.answer(*page.status.pop(0), page.content)
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
                code, whole = 206, len(content)
                content = content[: start + ((page.segment.pop(0) if page.segment else None) or whole)]
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{whole}"
            if page.length and not page.chunked:
                headers["Content-Length"] = str(len(content) - start)
            cut = page.drop.pop(0) if page.drop else None
            stop = page.stall.pop(0) if page.stall else None
            body = content[start:]
            if page.then:
                page.content = page.then.pop(0)
                page.etag = page.etag and f'"{len(page.then)} more"'
            if page.chunked:
                headers["Transfer-Encoding"] = "chunked"
                parts = [body[at : at + 700] for at in range(0, len(body), 700)]
                body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))
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
    with _running(server) as ended:
        yield site


@dataclass
class FtpSite:
    """An FTP server's files, its failures, and the commands it was given."""

    port: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    users: dict[str, str] = field(default_factory=lambda: {"anonymous": "ftp@example.com"})
    changed: str = "20180101000000"
    unknown: set[str] = field(default_factory=set)
    """Commands that it does not know."""
    busy: list[str] = field(default_factory=list)
    """Replies in place of its greeting."""
    drop: list[int] = field(default_factory=list)
    """After how many bytes of a file the connection is cut, both of them."""
    told: list[str] = field(default_factory=list)
    """The commands, passwords left out."""

    def url(self, path: str, who: str = "") -> str:
        return f"ftp://{who}127.0.0.1:{self.port}/{path}"


class _Session(socketserver.StreamRequestHandler):
    site: FtpSite

    def reply(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())

    def handle(self) -> None:
        self.user, self.start = "", 0
        self.reply(self.site.busy.pop(0) if self.site.busy else "220 hello")
        for line in self.rfile:
            command, _, value = line.decode().strip().partition(" ")
            self.site.told.append(command if command == "PASS" else f"{command} {value}".strip())
            if command in self.site.unknown:
                self.reply("502 not implemented")
            elif command != "RETR" or value not in self.site.files:
                self.reply(self.answer(command, value))
            else:
                self.reply("150 here it comes")
                cut = self.site.drop.pop(0) if self.site.drop else None
                with self.data, self.data.accept()[0] as to, contextlib.suppress(OSError):
                    to.sendall(self.site.files[value][self.start :][:cut])
                if cut is not None:
                    return
                self.reply("226 done")

    def answer(self, command: str, value: str) -> str:
        if command in ("SIZE", "MDTM", "RETR") and value not in self.site.files:
            return f"550 {value}: no such file"
        match command:
            case "USER":
                self.user = value
                return "331 password"
            case "PASS":
                return "230 welcome" if self.site.users.get(self.user) == value else "530 not logged in"
            case "TYPE":
                return "200 fine"
            case "SIZE":
                return f"213 {len(self.site.files[value])}"
            case "MDTM":
                return f"213 {self.site.changed}"
            case "REST":
                self.start = int(value)
                return f"350 from {value}"
            case "PASV":
                self.data = socket.create_server(("127.0.0.1", 0))
                port = self.data.getsockname()[1]
                return f"227 (127,0,0,1,{port // 256},{port % 256})"
            case _:
                return "500 what?"


@contextmanager
def serving_ftp() -> Iterator[FtpSite]:
    """An FTP server, until the block ends."""
    site = FtpSite()
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), type("Session", (_Session,), {"site": site}))
    server.daemon_threads = True
    site.port = server.server_address[1]
    with _running(server):
        yield site


def wait_until(condition: Any, seconds: float = 20.0) -> bool:
    """Wait for something that another thread or process does."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())
