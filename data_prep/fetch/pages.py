"""Web pages that a server, Google Drive above all, sends in place of a file."""

import html
import re
import urllib.parse

_HOSTS = ("drive.google.com", "docs.google.com", "drive.usercontent.google.com", "accounts.google.com")
HEAD = 512  # bytes that tell a page from a file


def _title(page: bytes) -> str:
    found = re.search(rb"<title[^>]*>([^<]{1,200})", page, re.IGNORECASE)
    return " ".join(found[1].decode("utf-8", "replace").split()) if found else "no title"


def page_instead(name: str, head: bytes) -> str | None:
    """Return a page's description if the HEAD first bytes of the file ``name`` are a web page's, else None."""
    is_page = head.lstrip().lower().startswith((b"<!doctype html", b"<html"))
    return f'a web page ("{_title(head)}")' if is_page and not name.endswith((".html", ".htm")) else None


def confirmation(page: bytes, url: str) -> str | None:
    """Return the address behind "too large to be scanned for viruses, download anyway"; None for another page."""
    found = re.findall(r"<(?:form|input)\s[^>]*>", page.decode("utf-8", "replace"))
    tags = [{key: html.unescape(value) for key, value in re.findall(r'([\w-]+)="([^"]*)"', tag)} for tag in found]
    for place, tag in enumerate(tags):
        if tag.get("id") == "download-form":
            fields = {field["name"]: field.get("value", "") for field in tags[place:] if "name" in field}
            return f"{urllib.parse.urljoin(url, tag['action'])}?{urllib.parse.urlencode(fields)}"
    return None


def refusal(page: bytes, url: str) -> str | None:
    """Return why Drive does not give the file; None for another page, or another site's."""
    if "Quota exceeded" in _title(page):
        return "Google Drive has sent this file too often today (Quota exceeded); it does again within 24 hours"
    if urllib.parse.urlsplit(url).hostname in _HOSTS:
        return f"Google Drive sent a page in place of the file: {_title(page)}; it may be gone, or not public"
    return None
