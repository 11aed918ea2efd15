"""Files by HTTP and HTTPS, from any byte on, through redirects, proxies and Google Drive's confirmation page.

The standard library's client, since what is hard here, going on where a connection broke off, with the file unchanged
in between, is left to the caller by all of them; requests and urllib3 moreover decompress a .tgz that a server labels
``Content-Encoding: gzip``. Proxies come from the environment (http_proxy, https_proxy, no_proxy).
"""

import email.utils
import itertools
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPResponse
from typing import Any

from data_prep.fetch.body import BROKEN, Body, Dropped, Refused, in_words
from data_prep.fetch.drive import confirmation, refusal

CHUNK = 1 << 20
_PAGE = 1 << 20  # no page of Drive's is longer
_PASSING = {408, 425, 429, 500, 502, 503, 504}  # statuses that may be others in a minute
_TOO_FAR = 416


@contextmanager
def open_http(url: str, *, start: int, validator: str | None, timeout: float) -> Iterator[Body]:
    """Ask for a file from byte ``start`` on; with a ``validator``, only if the file is still the same.

    A server that cannot do that, or whose file is another by now, sends the file from byte 0 on: see Body.start.

    Raises:
        Refused: the answer is no, or a page in the file's place.
        Dropped: the connection failed, or the server is busy.
    """
    headers = {"User-Agent": "lightconv-plugin", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if validator is not None:
            headers["If-Range"] = validator
    opener = _opener()
    for _ in range(2):
        with closing(_answer(opener, url, headers, timeout)) as response:
            head = b""
            if response.headers.get_content_type() == "text/html":
                head = b"".join(_chunks(response, timeout, _PAGE))
                confirmed = confirmation(head, response.url)
                if confirmed is not None:
                    url = confirmed
                    continue
                if (reason := refusal(head, response.url)) is not None:
                    raise Refused(reason)
            yield _body(response, head, timeout=timeout)
            return
    raise Refused("Google Drive asked for a confirmation again and again")


def _opener() -> urllib.request.OpenerDirector:
    """A client for the web alone: a redirect leads to no file of this machine. Drive's confirmation needs cookies."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPCookieProcessor,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _answer(opener: urllib.request.OpenerDirector, url: str, headers: dict[str, str], timeout: float) -> Any:
    try:
        return opener.open(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        with error:
            said = " ".join(f"answered {error.code} {error.reason}".split())
            if error.code in _PASSING:
                raise Dropped(said, wait=_retry_after(error.headers.get("Retry-After"))) from error
            if error.code == _TOO_FAR and "Range" in headers:  # the file is shorter by now: all of it, then
                return _answer(opener, url, {key: headers[key] for key in headers if "Range" not in key}, timeout)
            page = b""
            with suppress(*BROKEN):
                page = error.read(_PAGE)
            raise Refused(refusal(page, error.url or url) or said) from error
    except urllib.error.URLError as error:
        reason = error.reason
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise Refused(f"its certificate is not valid ({reason.verify_message})") from error
        if isinstance(reason, socket.gaierror) and reason.errno == socket.EAI_NONAME:
            raise Refused("there is no such host, or no network") from error
        if isinstance(reason, OSError):
            raise Dropped(in_words(reason, timeout)) from error
        raise Refused(str(reason)) from error
    except BROKEN as error:
        raise Dropped(in_words(error, timeout)) from error
    except ValueError as error:
        raise Refused(f"this is no address ({error})") from error


def _body(response: HTTPResponse, head: bytes, *, timeout: float) -> Body:
    begins, total = 0, None
    if response.status == 206:
        told = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", (response.headers.get("Content-Range") or "").strip())
        if told is None:
            raise Refused(f"sent a part without saying which (Content-Range: {response.headers.get('Content-Range')})")
        begins, total = int(told[1]), None if told[3] == "*" else int(told[3])
    elif response.status != 200:
        raise Refused(f"answered {response.status} {response.reason}")
    elif (length := response.headers.get("Content-Length")) is not None and length.isdigit():
        total = int(length)
    etag = response.headers.get("ETag")
    # a weak ETag promises the same meaning, not the same bytes
    validator = response.headers.get("Last-Modified") if etag is None or etag.startswith("W/") else etag
    chunks = _chunks(response, timeout)
    return Body(itertools.chain([head] if head else [], chunks), begins, total, validator)


def _chunks(response: HTTPResponse, timeout: float, limit: float = float("inf")) -> Iterator[bytes]:
    while limit > 0:
        try:
            chunk = response.read1(int(min(CHUNK, limit)))  # what is there: a slow connection is seen to move
        except BROKEN as error:
            raise Dropped(in_words(error, timeout)) from error
        if not chunk:
            return
        limit -= len(chunk)
        yield chunk


def _retry_after(value: str | None) -> float | None:
    """Seconds to wait: the header gives them, or a date."""
    if value is None:
        return None
    if value.strip().isdigit():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
