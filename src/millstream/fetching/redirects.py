"""Redirects: which headers go along to another host."""

from email.message import Message
from typing import IO, Any
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request

LINKED = "X-Linked-ETag"  # of Hugging Face: the checksum of the file redirected to


class Redirects(HTTPRedirectHandler):
    """Keeps the user's headers from other hosts, and the checksum in Hugging Face's redirects."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        """Take the user's headers along only to the same scheme, host and port."""
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and _origin(newurl) == _origin(req.full_url):
            request.unredirected_hdrs.update(req.unredirected_hdrs)
        return request

    def http_error_302(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message
    ) -> Any:
        """Follow a redirect and keep the checksum that it names."""
        response = super().http_error_302(req, fp, code, msg, headers)  # type: ignore[arg-type]
        if response is not None and LINKED in headers:
            response.linked = headers[LINKED]
        return response

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()
