"""Failures of requests: which of them are final, and what users are told about them."""

import os
import re
from dataclasses import dataclass

from penstock.errors import (
    DatasetExistsError,
    FormatError,
    MissingDataError,
    PenstockError,
    ReadError,
    UsageError,
)
from penstock.remote.options import Remote
from penstock.remote.urls import RemoteUrl

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
_ENDPOINT_VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL",),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_DENIED = ("401 Unauthorized", "403 Forbidden")
_SKEWED = ("RequestTimeTooSkewed", "RequestExpired")


class CutShortError(Exception):
    """An answer that is not what was asked for; asked again, it may be whole."""


@dataclass(frozen=True, slots=True)
class Refusals:
    """Turns the errors of obstore into ours, for one store."""

    url: RemoteUrl
    """the root of the store"""
    options: Remote

    @property
    def endpoint_text(self) -> str:
        """The endpoint with a space before it, for messages; empty for the cloud's own."""
        return f" {self.endpoint}" if self.endpoint else ""

    @property
    def endpoint(self) -> str | None:
        """The URL of the service, if it is not the cloud's own."""
        names = _ENDPOINT_VARIABLES.get(self.url.scheme, ())
        return self.options.endpoint or next(filter(None, map(os.environ.get, names)), None)

    def missing(self, what: str, error: Exception) -> PenstockError:
        """The error for an object, or a bucket, that does not exist."""
        if any(code in str(error) for code in _NO_BUCKET):
            kind, where = _BUCKET_WORDS[self.url.scheme]
            return MissingDataError(
                f"{self.url.store}: no such {kind}{self.endpoint_text}; check its name, the "
                f"{where} and the endpoint"
            )
        return MissingDataError(f"{what}: no such object")

    def final(self, what: str, error: Exception, *, is_new: bool) -> PenstockError | None:
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
        # If requests were accepted before, the service is only busy.
        if is_new and any(service in text for service in _CREDENTIAL_SERVICES):
            return ReadError(f"{what}: no credentials found; {self._remedy}")
        is_denied = any(status in text for status in _DENIED)  # of a listing, as a general error
        if is_denied or isinstance(error, known.PermissionDeniedError | known.UnauthenticatedError):
            return ReadError(
                f"{what}: access denied{self.endpoint_text} ({reason(error)}); {self._remedy}"
            )
        if isinstance(error, known.AlreadyExistsError | known.PreconditionError):
            return DatasetExistsError(f"{what}: already exists; choose another target")
        if isinstance(error, known.InvalidPathError | known.UnknownConfigurationKeyError):
            return UsageError(f"{what}: {reason(error)}")
        if isinstance(error, known.NotSupportedError):
            return ReadError(f"{what}: the server does not support this ({reason(error)})")
        if "416" in text and "Range Not Satisfiable" in text:
            return FormatError(f"{what}: the object ends before; it has changed")
        return None

    @property
    def _remedy(self) -> str:
        if self.url.is_http:
            return "the server wants a login, which HTTP URLs cannot give"
        if self.options.anonymous:
            return "it is not public: leave out anonymous=True, and give credentials"
        return f"{self.settings}; for public data, penstock.Remote(anonymous=True)"

    @property
    def settings(self) -> str:
        """How to name an account and its credentials."""
        return {
            "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
            "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or run "
            "gcloud auth application-default login",
            "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or run az login",
        }.get(self.url.scheme, "check the URL")


_STATUS = re.compile(r"(?:status(?: code)?|Status):? ?(\d{3} [A-Za-z ]+)")
_CODE = re.compile(r"<Code>(\w+)</Code>")


def reason(error: Exception) -> str:
    """The cause of an error in a few words; obstore appends pages of debugging output."""
    if isinstance(error, CutShortError):
        return str(error)
    text = str(error)
    parts = [found[1].strip() for pattern in (_STATUS, _CODE) if (found := pattern.search(text))]
    if parts:
        return ", ".join(parts)
    first = text.split("\n\nDebug source")[0].split("\n")[0]
    return first.rpartition(": ")[2][:200] if len(first) > 200 else first
