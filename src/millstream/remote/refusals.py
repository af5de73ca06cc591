"""Failures of requests: which of them are final, and what users are told about them."""

import os
import re
from dataclasses import dataclass

from millstream.errors import (
    DatasetExistsError,
    FormatError,
    MillstreamError,
    MissingDataError,
    ReadError,
    UsageError,
)
from millstream.remote.credentials import ENDPOINT_VARIABLES
from millstream.remote.options import Remote
from millstream.remote.urls import RemoteUrl

_CREDENTIAL_SERVICES = (
    "169.254.169.254",
    "169.254.170.2",
    "/latest/api/token",
    "metadata.google.internal",
)
"""asked last, on machines of a cloud; elsewhere nobody answers there"""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_BUCKET_WORDS = {
    "s3": ("bucket", "region"),
    "gs": ("bucket", "project"),
    "az": ("container", "storage account"),
}
_DENIED = ("401 Unauthorized", "403 Forbidden")
_SKEWED = ("RequestTimeTooSkewed", "RequestExpired")
_EXPIRED = ("ExpiredToken", "TokenRefreshRequired")
_TRANSIENT = {408, 409, 425, 429}
"""statuses below 500 of requests that may succeed later"""
_TRANSIENT_CODES = ("RequestTimeout", "IncompleteBody", "BadDigest", "Throttling", "SlowDown")
"""codes of the same kind, which S3 sends with status 400"""


class DeniedError(ReadError):
    """A request that the store does not allow.

    To those who may read objects, but not list them, S3 also denies objects that do not exist.
    """


class CutShortError(Exception):
    """An answer that is not what was asked for; asked again, it may be whole."""


@dataclass(frozen=True, slots=True)
class Refusals:
    """Turns the errors of obstore into ours, for one store."""

    url: RemoteUrl
    """the root of the store"""
    options: Remote

    def _service(self, preposition: str) -> str:
        """The endpoint after a preposition, for messages; empty for the cloud's own."""
        return f" {preposition} {self.endpoint}" if self.endpoint else ""

    @property
    def address_text(self) -> str:
        """What may be wrong if the server cannot be reached, for messages."""
        return "URL" if self.url.is_http else f"endpoint{self.endpoint_text}"

    @property
    def endpoint_text(self) -> str:
        """The endpoint with a space before it, for messages; empty for the cloud's own."""
        return f" {self.endpoint}" if self.endpoint else ""

    @property
    def endpoint(self) -> str | None:
        """The URL of the service, if it is not the cloud's own."""
        names = ENDPOINT_VARIABLES.get(self.url.scheme, ())
        return self.options.endpoint or next(filter(None, map(os.environ.get, names)), None)

    def missing(self, what: str, error: Exception) -> MillstreamError:
        """The error for an object, or a bucket, that does not exist."""
        if any(code in str(error) for code in _NO_BUCKET):
            kind, where = _BUCKET_WORDS[self.url.scheme]
            return MissingDataError(
                f"{self.url.store}: no such {kind}{self._service('at')}; check its name, the "
                f"{where} and the endpoint"
            )
        if status_of(error) == 405:  # which obstore takes for an object that is missing
            return self._final_status(what, error) or MissingDataError(what)
        return MissingDataError(f"{what}: no such object")

    def final(self, what: str, error: Exception, *, is_new: bool) -> MillstreamError | None:
        """The error for a failure that another attempt would not mend; else None.

        `is_new` says that the store has not accepted a request before.
        """
        from obstore import exceptions as known

        text = str(error)
        if any(code in text for code in _NO_BUCKET):
            return self.missing(what, error)
        if any(code in text for code in _SKEWED):
            return ReadError(
                f"{what}: the server refuses requests because its clock and the clock of this "
                "machine differ by minutes; set the clock (timedatectl set-ntp true)"
            )
        if any(service in text for service in _CREDENTIAL_SERVICES):
            # If requests were accepted before, the service is only busy.
            missing = ReadError(f"{what}: no credentials found; {self._remedy}")
            return missing if is_new else None
        if any(code in text for code in _EXPIRED):
            return ReadError(
                f"{what}: the credentials have expired; renew them (for S3, run aws sso login, or "
                "set the AWS_… variables again), and start again"
            )
        if self.url.scheme == "s3" and (region_error := _region_error(what, text)):
            return region_error
        if found := next((each for name, each in _TLS_FAILURES.items() if name in text), None):
            return ReadError(f"{what}: {found}; check the {self.address_text}")
        if "InvalidObjectState" in text:
            return ReadError(
                f"{what}: the object is archived; restore it first (aws s3api restore-object)"
            )
        is_denied = any(status in text for status in _DENIED)  # of a listing, as a general error
        if is_denied or isinstance(error, known.PermissionDeniedError | known.UnauthenticatedError):
            return DeniedError(
                f"{what}: access denied{self._service('by')} ({reason(error)}); {self._remedy}"
            )
        if isinstance(error, known.AlreadyExistsError | known.PreconditionError):
            return DatasetExistsError(f"{what}: already exists; choose another target")
        if isinstance(error, known.InvalidPathError) and (path := _LISTED_PATH.search(text)):
            return UsageError(
                f"{what}: the object {path[1]!r} has an empty name, '.', '..' or a control "
                "character in its key; rename it, or open the others by narrower prefixes or in a "
                "list"
            )
        unusable = known.InvalidPathError | known.UnknownConfigurationKeyError
        if isinstance(error, unusable | ValueError | TypeError):
            return UsageError(f"{what}: {reason(error)}")
        if _WHOLE_INSTEAD_OF_RANGE.search(text):
            return self._no_ranges(what)
        if isinstance(error, known.NotSupportedError):
            return ReadError(f"{what}: the server does not support this ({reason(error)})")
        return self._final_status(what, error)

    def without_identity(self, what: str) -> MillstreamError:
        """The error for an answer with neither an ETag nor a time: changes would pass unnoticed."""
        if not self.url.is_http:
            return ReadError(
                f"{what}: the answer has neither ETag nor Last-Modified, so it does not come from "
                f"an object store; check the endpoint{self.endpoint_text}"
            )
        return ReadError(
            f"{what}: the server sends neither ETag nor Last-Modified, so a file that is replaced "
            "while it is read could not be noticed; download it first: millstream fetch URL --out "
            "DIRECTORY"
        )

    def _no_ranges(self, what: str) -> MillstreamError:
        """The error for a server that sends a whole file where a range was asked for."""
        if self.url.is_http:
            return ReadError(
                f"{what}: the server sends only whole files, so it cannot be read in place; "
                "download it first: millstream fetch URL --out DIRECTORY"
            )
        return ReadError(
            f"{what}: the server ignores ranges, so it is not an object store; check the endpoint"
            f"{self.endpoint_text}"
        )

    def _final_status(self, what: str, error: Exception) -> MillstreamError | None:
        """The error for a status that will stay the same; else None."""
        status, text = status_of(error), str(error)
        if status == 416:
            return FormatError(f"{what}: the object ends before; it has changed")
        if status == 410:
            return MissingDataError(f"{what}: no such object (410 Gone)")
        if status == 407:
            return ReadError(
                f"{what}: the proxy wants a login; set HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT, "
                "or NO_PROXY to the hosts that need no proxy"
            )
        if status in (405, 501):
            return ReadError(
                f"{what}: the server does not support this ({reason(error)}); {self._place}"
            )
        is_transient = status in _TRANSIENT or any(code in text for code in _TRANSIENT_CODES)
        if 400 <= status < 500 and not is_transient:
            told = _MESSAGE.search(text)
            detail = f": {told[1][:200]}" if told else ""
            return ReadError(
                f"{what}: the server refuses the request ({reason(error)}{detail}); {self._place}"
            )
        if "following redirect" in text or "redirect without LOCATION" in text:
            return ReadError(
                f"{what}: the server redirects to nowhere, or in a circle; check the URL"
            )
        return None

    @property
    def _place(self) -> str:
        if self.url.is_http:
            return "check the URL"
        return f"check the URL, the endpoint{self.endpoint_text} and the credentials"

    @property
    def _remedy(self) -> str:
        if self.url.is_http:
            return "the server wants a login, which HTTP URLs cannot give"
        if self.options.anonymous:
            return "it is not public: leave out anonymous=True (--anonymous), and give credentials"
        return (
            f"{self.settings}; for public data, millstream.Remote(anonymous=True), or --anonymous"
        )

    @property
    def settings(self) -> str:
        """How to name an account and its credentials."""
        return {
            "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
            "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or run "
            "gcloud auth application-default login",
            "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or run az login",
        }.get(self.url.scheme, "check the URL")


_GENERIC = re.compile(r"^Generic \w+ error: ")
_STATUS = re.compile(r"(?:status(?: code)?|Status):? ?(\d{3} [A-Za-z ]+)")
_CODE = re.compile(r"<Code>([\w.]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]+)</Message>")
_CAUSE = re.compile(r'(?:message|error): "([^"]+)"')
_REGION = re.compile(r"<Region>([\w-]+)</Region>|expecting '([\w-]+)'")
_LISTED_PATH = re.compile(r'Path "(.+?)"(?:: | contained )', re.DOTALL)
_WRONG_REGION = ("redirect without LOCATION", "PermanentRedirect", "IllegalLocationConstraint")
_TLS_FAILURES = {
    "InvalidContentType": "the server does not use TLS; write http:// instead of https://",
    "InvalidCertificate": "this machine does not trust the certificate of the server",
}
_WHOLE_INSTEAD_OF_RANGE = re.compile("[Nn]on-partial response|Range request not supported")


def status_of(error: Exception) -> int:
    """The HTTP status of an answer that was an error; 0 if there was no answer."""
    found = _STATUS.search(str(error))
    return int(found[1][:3]) if found else 0


def _region_error(what: str, text: str) -> MillstreamError | None:
    """The error for a bucket that lies in another region; None for other failures."""
    is_malformed = "AuthorizationHeaderMalformed" in text and "region" in text
    if not is_malformed and not any(each in text for each in _WRONG_REGION):
        return None
    found = _REGION.search(text)
    named = (found[1] or found[2]) if found else None
    return ReadError(
        f"{what}: the bucket lies in another region"
        + (
            f": set AWS_REGION={named}, or millstream.Remote(region={named!r})"
            if named
            else "; set AWS_REGION, or millstream.Remote(region=…), to the region of the bucket"
        )
    )


def reason(error: Exception) -> str:
    """The cause of an error in a few words; obstore appends pages of debugging output."""
    if isinstance(error, CutShortError):
        return str(error)
    text = str(error)
    parts = [found[1].strip() for pattern in (_STATUS, _CODE) if (found := pattern.search(text))]
    if parts:
        return ", ".join(parts)
    if causes := _CAUSE.findall(text):  # of no connection, at the end of the debugging output
        return str(causes[-1])
    first = text.split("\n\nDebug source")[0].split("\n")[0]
    first = _GENERIC.sub("", first)
    return first.rpartition(": ")[2][:200] if len(first) > 200 else first
