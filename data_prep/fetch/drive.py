"""Pages that Google Drive sends in place of a file."""

import re
import urllib.parse
from html.parser import HTMLParser

_HOSTS = ("drive.google.com", "docs.google.com", "drive.usercontent.google.com", "accounts.google.com")


class _Page(HTMLParser):
    """The title, the form with the id ``download-form``, and links with a ``confirm`` parameter."""

    def __init__(self, page: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self.action: str | None = None
        self.fields: dict[str, str] = {}
        self.link: str | None = None
        self._in = ""
        self.feed(page.decode("utf-8", "replace"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self._in = tag
        if tag == "form" and given.get("id") in ("download-form", "downloadForm"):
            self.action = given.get("action")
        elif tag == "input" and self.action is not None and given.get("name"):
            self.fields.setdefault(given["name"], given.get("value", ""))
        elif tag == "a" and re.search(r"[?&]confirm=", given.get("href", "")):
            self.link = given["href"]

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "title":
            self.title += data


def confirmation(page: bytes, url: str) -> str | None:
    """The address behind "too large to be scanned for viruses, download anyway"; None if this is another page."""
    read = _Page(page)
    if read.action is not None:
        parts = urllib.parse.urlsplit(urllib.parse.urljoin(url, read.action))
        query = dict(urllib.parse.parse_qsl(parts.query)) | read.fields
        return urllib.parse.urlunsplit(parts._replace(query=urllib.parse.urlencode(query)))
    return None if read.link is None else urllib.parse.urljoin(url, read.link)


def refusal(page: bytes, url: str) -> str | None:
    """Return why Drive does not give the file; None if this is another page, or of another site."""
    title = " ".join(_Page(page).title.split())
    if "Quota exceeded" in title:
        return "Google Drive has sent this file too often today (Quota exceeded); it does again within 24 hours"
    host = urllib.parse.urlsplit(url).hostname
    if host in _HOSTS:
        return f"Google Drive sent a page in place of the file: {title or 'no title'}; it may be gone, or not public"
    return None
