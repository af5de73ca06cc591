"""obstore's client of a store: where it sends requests, with which credentials and deadlines."""

from datetime import timedelta
from typing import Any

from penstock.errors import UsageError
from penstock.remote.credentials import aws_profile, azure_settings
from penstock.remote.options import Remote
from penstock.remote.urls import RemoteUrl


def load_obstore() -> Any:
    """The module obstore; without it, the error says how to install it."""
    try:
        import obstore
    except ModuleNotFoundError:
        raise UsageError(
            "remote data needs obstore; install it with pip install 'penstock[remote]'"
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
    """The client of a store."""
    load_obstore()
    from obstore import store as stores

    client: dict[str, Any] = {
        "timeout": timedelta(seconds=request_seconds),
        "connect_timeout": timedelta(seconds=min(5.0, options.request_seconds)),
        "pool_max_idle_per_host": str(options.max_requests),
        "user_agent": "penstock",
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
        return stores.S3Store(url.root, **common, **config)
    if url.scheme == "gs":
        if options.endpoint:
            config["base_url"] = options.endpoint
        return stores.GCSStore(url.root, **common, **config)
    container, at, host = url.root.partition("@")
    config |= azure_settings(anonymous=options.anonymous)
    if at:
        config["account_name"], is_elsewhere, _ = host.partition(".")
        if is_elsewhere:
            config["endpoint"] = f"https://{host.replace('.dfs.', '.blob.')}"
    if options.endpoint:
        config["endpoint"] = options.endpoint
    return stores.AzureStore(container, **common, **config)
