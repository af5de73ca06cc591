"""obstore's client of a store: where it sends requests, with which credentials and deadlines."""

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from millstream.errors import UsageError
from millstream.remote.credentials import ENDPOINT_VARIABLES, aws_profile, azure_settings
from millstream.remote.options import Remote
from millstream.remote.urls import RemoteUrl

_BUCKET = re.compile(r"\$?[A-Za-z0-9][A-Za-z0-9._:-]*(@[A-Za-z0-9.-]+)?")
"""more than any cloud allows: Azure has `$web`, Ceph has `tenant:bucket`"""
_NOT_IN_URLS = re.compile(r"[\s<>\"{}|\\^`?#]")


def load_obstore() -> Any:
    """The module obstore; without it, the error says how to install it."""
    try:
        import obstore
    except ModuleNotFoundError:
        raise UsageError(
            "remote data needs obstore; install it with pip install 'millstream[remote]'"
        ) from None
    return obstore


def new_client(
    url: RemoteUrl,
    options: Remote,
    request_seconds: float,
    *,
    max_retries: int = 0,
    retry_timeout: timedelta = timedelta(0),
) -> Any:
    """The client of a store; refuses names from which obstore cannot make a URL."""
    load_obstore()
    if not url.is_http and not _BUCKET.fullmatch(url.root):
        raise UsageError(
            f"{url.scheme}://{url.root}: {url.root!r} cannot be the name of a bucket; names have "
            "letters, digits, '.', '-' and '_', without spaces"
        )
    from obstore import store as stores

    client: dict[str, Any] = {
        "timeout": timedelta(seconds=request_seconds),
        "connect_timeout": timedelta(seconds=min(5.0, options.request_seconds)),
        "pool_max_idle_per_host": str(options.max_requests),
        "user_agent": "millstream",
        "allow_http": True,
    }
    retries: dict[str, Any] = {"max_retries": max_retries, "retry_timeout": retry_timeout}
    common: dict[str, Any] = {"client_options": client, "retry_config": retries}
    if url.is_http:
        return stores.HTTPStore.from_url(url.store, **common)
    config: dict[str, Any] = {}
    if options.anonymous:
        config["skip_signature"] = True
    if url.scheme == "s3":
        if not options.anonymous:
            config |= aws_profile(options.profile)
        for key in ("endpoint", "region"):
            if getattr(options, key):
                config[key] = getattr(options, key)
        _check_endpoint(url.scheme, config)
        return stores.S3Store(url.root, **common, **config)
    if url.scheme == "gs":
        if options.endpoint:
            config["base_url"] = options.endpoint
        _check_endpoint(url.scheme, config)
        return stores.GCSStore(url.root, **common, **config)
    container, at, host = url.root.partition("@")
    config |= azure_settings(anonymous=options.anonymous)
    if at:
        config["account_name"], is_elsewhere, _ = host.partition(".")
        if is_elsewhere:
            config["endpoint"] = f"https://{host.replace('.dfs.', '.blob.')}"
    if options.endpoint:
        config["endpoint"] = options.endpoint
    _check_endpoint(url.scheme, config)
    return stores.AzureStore(container, **common, **config)


def _check_endpoint(scheme: str, config: Mapping[str, Any]) -> None:
    """Refuse an endpoint with a password, or that is not a URL: obstore's threads would panic."""
    given = {"the endpoint": config.get("endpoint") or config.get("base_url")}
    if not any(given.values()):
        given = {name: os.environ.get(name) for name in ENDPOINT_VARIABLES[scheme]}
    for name, value in given.items():
        if value == "":
            raise UsageError(f"{name} is empty; unset it, or write http://HOST:PORT")
        refuse_login(name, value)
        if value and not _is_url(value):
            written = (
                value if "://" not in value and not _NOT_IN_URLS.search(value) else "HOST:PORT"
            )
            raise UsageError(
                f"{name} is {value!r}; it must be a URL: write http://{written} or https://{written}"
            )


def refuse_login(name: str, endpoint: str | None) -> None:
    """Refuse an endpoint with a password, without repeating it."""
    if endpoint and "@" in endpoint:
        raise UsageError(
            f"{name} has a login in its URL, which would be written to logs and states; leave it "
            "out, and give credentials in the environment"
        )


def _is_url(text: str) -> bool:
    """Whether a text is an HTTP URL, as obstore understands it.

    >>> _is_url("http://localhost:9000"), _is_url("localhost:9000"), _is_url("http://host:99999")
    (True, False, False)
    """
    try:
        parts = urlsplit(text)
        is_whole = parts.port is None or parts.port > 0  # raises if it is too large
    except ValueError:
        return False
    is_whole &= parts.scheme in ("http", "https") and bool(parts.hostname)
    return is_whole and not _NOT_IN_URLS.search(text)
