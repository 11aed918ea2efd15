"""Files by FTP, from any byte on."""

import ftplib
import socket
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from data_prep.fetch.body import BROKEN, Body, Dropped, Refused, in_words

CHUNK = 1 << 20
_NO_RESTART = ("500", "501", "502", "504")  # replies to REST of a server that knows no such thing


@contextmanager
def open_ftp(url: str, *, start: int, validator: str | None, timeout: float) -> Iterator[Body]:
    """Ask for a file from byte ``start`` on, or from 0 where the server cannot, or its file is another by now.

    The user and the password may stand in the address; without them it is anonymous.

    Raises:
        Refused: no such file, or the user is not let in.
        Dropped: the connection failed, or the server is busy.
    """
    parts = urllib.parse.urlsplit(url)
    user, password = (urllib.parse.unquote(given or "") for given in (parts.username, parts.password))
    path = urllib.parse.unquote(parts.path).lstrip("/")
    if any(mark in path + user + password for mark in "\r\n"):
        raise Refused("this is no address: a line break in it would be a command of its own")
    with ftplib.FTP(timeout=timeout) as ftp:
        try:
            with _told(timeout):
                ftp.connect(parts.hostname or "", parts.port or ftplib.FTP_PORT)
                ftp.login(user, password)
                ftp.voidcmd("TYPE I")
                size, changed = _ask(ftp, f"SIZE {path}"), _ask(ftp, f"MDTM {path}")
                total = int(size) if size is not None and size.isdigit() else None
                same = validator is None or changed == validator
                connection, start = _retrieve(ftp, path, start if same else 0)
            with connection:
                yield Body(_chunks(ftp, connection, timeout), start, total, changed)
        finally:
            ftp.close()  # without QUIT, whose answer may never come


def _retrieve(ftp: ftplib.FTP, path: str, start: int) -> tuple[socket.socket, int]:
    """The connection that the file comes on, and the byte that it comes from."""
    if start:
        try:
            return ftp.ntransfercmd(f"RETR {path}", rest=start)[0], start
        except ftplib.error_perm as error:
            if not str(error).startswith(_NO_RESTART):
                raise
    return ftp.ntransfercmd(f"RETR {path}")[0], 0


def _ask(ftp: ftplib.FTP, command: str) -> str | None:
    """Return what the server answers to a question that not every server understands."""
    with suppress(ftplib.error_perm):
        code, _, answer = ftp.sendcmd(command).partition(" ")
        if code == "213":
            return answer.strip()
    return None


def _chunks(ftp: ftplib.FTP, connection: socket.socket, timeout: float) -> Iterator[bytes]:
    with _told(timeout):
        while chunk := connection.recv(CHUNK):
            yield chunk
        connection.close()
        ftp.voidresp()  # that all was sent


@contextmanager
def _told(timeout: float) -> Iterator[None]:
    try:
        yield
    except (ftplib.error_perm, ftplib.error_proto) as error:
        raise Refused(f"answered {error}") from error
    except (ftplib.error_temp, ftplib.error_reply) as error:
        raise Dropped(f"answered {error}") from error
    except socket.gaierror as error:
        if error.errno == socket.EAI_NONAME:
            raise Refused("there is no such host, or no network") from error
        raise Dropped(in_words(error, timeout)) from error
    except BROKEN as error:
        raise Dropped(in_words(error, timeout)) from error
