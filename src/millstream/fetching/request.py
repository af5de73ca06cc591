"""One HTTP request, and what the response says about the file."""

import re
import ssl
from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse
from typing import Self
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from millstream._version import __version__
from millstream.fetching.headers import (
    RangeError,
    RefusedError,
    body_length,
    body_range,
    only_value,
    printable,
)
from millstream.fetching.redirects import LINKED, Redirects
from millstream.fetching.retries import asked_wait_s

_LATER = {408, 425, 429}
_SUFFIXES = {"gzip": (".gz", ".tgz"), "x-gzip": (".gz", ".tgz"), "zstd": (".zst",)}


class InterruptedFetchError(Exception):
    """A request failed in a way that trying again may cure."""

    def __init__(self, reason: str, wait_s: float = 0) -> None:
        super().__init__(printable(reason))
        self.wait_s = wait_s
        """the wait that the server asks for"""


class Client:
    """Requests files with the user's headers, through the proxies of the environment."""

    def __init__(self, headers: Mapping[str, str], timeout_s: float) -> None:
        self._headers, self._timeout_s = headers, timeout_s
        # The default handlers, without those for ftp:, file: and data: URLs.
        self._opener = OpenerDirector()
        for handler in (
            ProxyHandler(),
            HTTPHandler(),
            HTTPSHandler(),
            UnknownHandler(),
            HTTPDefaultErrorHandler(),
            Redirects(),
            HTTPErrorProcessor(),
        ):
            self._opener.add_handler(handler)

    def get(self, url: str, start: int) -> "FileResponse":
        """Request a file from byte `start` on."""
        request = Request(
            url, headers={"Accept-Encoding": "identity", "User-Agent": f"millstream/{__version__}"}
        )
        if start:
            request.add_header("Range", f"bytes={start}-")
        for name, value in self._headers.items():
            request.add_unredirected_header(name, value)
        try:
            response = self._opener.open(request, timeout=self._timeout_s)
        except HTTPError as error:
            with error:
                raise self._of_status(error, start) from None
        except (OSError, HTTPException, ValueError) as error:
            raise self.of_network(error) from None
        try:
            return FileResponse(self, response, start)
        except BaseException:
            response.close()
            raise

    def _of_status(self, error: HTTPError, start: int) -> Exception:
        """Return the error that an HTTP status means."""
        status = (
            f"HTTP {error.code} {str(error.reason).splitlines()[0] if error.reason else ''}".strip()
        )
        if error.code == 416 and start:
            return RangeError("the server has no bytes after this part")
        if error.code in _LATER or error.code >= 500:
            return InterruptedFetchError(status, asked_wait_s(error.headers.get("Retry-After", "")))
        if error.code in (401, 403):
            has_login = any(name.lower() == "authorization" for name in self._headers)
            remedy = (
                "the given Authorization header is not valid for this file or host"
                if has_login
                else "a signed URL may have expired: get a new one"
                if urlsplit(error.url).query
                else "if it needs a login, give --header 'Authorization: Bearer …'"
            )
            return RefusedError(f"the server denies access ({status}); {remedy}")
        if error.code in (404, 410):
            return RefusedError(f"the server has no such file ({status})")
        return RefusedError(status)

    def of_network(self, error: Exception) -> Exception:
        """Return the error that a network failure means."""
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            return RefusedError(f"the server's certificate is not trusted: {reason.verify_message}")
        if isinstance(reason, TimeoutError):
            return InterruptedFetchError(f"no data for {self._timeout_s:g} s")
        text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        if isinstance(reason, OSError | HTTPException) and not isinstance(reason, ValueError):
            return InterruptedFetchError(text)
        return RefusedError(text)  # the URL cannot be requested


class FileResponse:
    """A response whose body is being received."""

    def __init__(self, client: Client, response: HTTPResponse, asked_from: int) -> None:
        self._client, self._response = client, response
        headers = response.headers
        if response.status not in (200, 206):
            raise RefusedError(f"HTTP {response.status} {response.reason}, not the file")
        self._encoding = (only_value(headers, "Content-Encoding") or "identity").lower()
        self.start, self.total_bytes = 0, body_length(headers)
        # Some servers send a range with status 200: the header counts.
        if response.status == 206 or "Content-Range" in headers:
            self.start, self.total_bytes = asked_from, body_range(headers, asked_from)
        self._shows_its_end = self.total_bytes is not None or bool(response.chunked)
        linked: str = getattr(response, "linked", headers.get(LINKED, ""))
        digits = linked.removeprefix("W/").strip('"').lower()
        self.sha256 = digits if re.fullmatch("[0-9a-f]{64}", digits) else None
        """sent by Hugging Face for large files; an ETag of 64 digits may be another hash"""
        etag = only_value(headers, "ETag") or ""
        date = only_value(headers, "Last-Modified")
        dated = date and f"{date} {self.total_bytes}"
        self.validator = etag if etag.startswith('"') else dated
        """a value that changes when the file does"""

    def read(self, num_bytes: int) -> bytes:
        """Return up to `num_bytes` bytes as soon as some arrive; none at the end."""
        try:
            return self._response.read1(num_bytes)
        except (OSError, HTTPException, ValueError) as error:
            raise self._client.of_network(error) from None

    def check(self, name: str, sha256: str | None) -> None:
        """Refuse a body that was compressed unasked, or whose truncation would go unnoticed."""
        suffixes = _SUFFIXES.get(self._encoding, ())
        if self._encoding not in ("", "identity") and not name.endswith(suffixes):
            raise RefusedError(
                f"the server compresses the file as {self._encoding} although asked not to, so it "
                "would not match its name"
            )
        if not (self._shows_its_end or sha256):
            raise RefusedError(
                "the server does not announce the size, so a truncated file would go unnoticed; "
                "give its sha256"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()
