"""An FTP server on this machine: what a download needs of the protocol, and what can go wrong."""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class FtpSite:
    """A server's files, its failures, and the commands it was given. Lists are used up, an item a connection."""

    port: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    users: dict[str, str] = field(default_factory=lambda: {"anonymous": "ftp@example.com"})
    changed: str = "20180101000000"
    unknown: set[str] = field(default_factory=set)
    """Commands that it does not know."""
    busy: list[str] = field(default_factory=list)
    """Replies in place of its greeting."""
    drop: list[int | None] = field(default_factory=list)
    """After how many bytes of a file the connection is cut, both of them."""
    stall: list[int | None] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    """The commands, passwords left out."""
    ended: threading.Event = field(default_factory=threading.Event)

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
            elif command == "RETR" and value in self.site.files:
                if not self.send(self.site.files[value]):
                    return
            else:
                self.reply(self.answer(command, value))

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

    def send(self, content: bytes) -> bool:
        """Return True if the session goes on."""
        self.reply("150 here it comes")
        cut = self.site.drop.pop(0) if self.site.drop else None
        stop = self.site.stall.pop(0) if self.site.stall else None
        with self.data, self.data.accept()[0] as to, contextlib.suppress(OSError):
            to.sendall(content[self.start :][:cut][:stop])
            if stop is not None:
                self.site.ended.wait(30)
        if cut is None and stop is None:
            self.reply("226 done")
        return cut is None and stop is None


@contextmanager
def serving_ftp() -> Iterator[FtpSite]:
    """A server, until the block ends."""
    site = FtpSite()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    server = Server(("127.0.0.1", 0), type("Session", (_Session,), {"site": site}))
    site.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield site
    finally:
        site.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
