"""Pages that Google Drive sends in place of a file."""

import html
import re
import urllib.parse

_HOSTS = ("drive.google.com", "docs.google.com", "drive.usercontent.google.com", "accounts.google.com")


def title(page: bytes) -> str:
    """The title of a web page."""
    found = re.search(rb"<title[^>]*>([^<]{1,200})", page, re.IGNORECASE)
    return " ".join(found[1].decode("utf-8", "replace").split()) if found else ""


def confirmation(page: bytes, url: str) -> str | None:
    """The address behind "too large to be scanned for viruses, download anyway"; None if this is another page."""
    found = re.findall(r"<(?:form|input)\s[^>]*>", page.decode("utf-8", "replace"))
    tags = [{key: html.unescape(value) for key, value in re.findall(r'([\w-]+)="([^"]*)"', tag)} for tag in found]
    for place, tag in enumerate(tags):
        if tag.get("id") == "download-form":
            fields = {field["name"]: field.get("value", "") for field in tags[place:] if "name" in field}
            return f"{urllib.parse.urljoin(url, tag['action'])}?{urllib.parse.urlencode(fields)}"
    return None


def refusal(page: bytes, url: str) -> str | None:
    """Return why Drive does not give the file; None if this is another page, or of another site."""
    said = title(page)
    if "Quota exceeded" in said:
        return "Google Drive has sent this file too often today (Quota exceeded); it does again within 24 hours"
    if urllib.parse.urlsplit(url).hostname in _HOSTS:
        return f"Google Drive sent a page in place of the file: {said or 'no title'}; it may be gone, or not public"
    return None
