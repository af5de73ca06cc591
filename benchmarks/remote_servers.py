"""The servers of remote data: SeaweedFS for S3 and Caddy for HTTP, behind proxies that delay.

They are those of the tests (`tests/helpers`), on loopback. Their own limits are measured with a
plain client.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from benchmarks import corpora
from benchmarks.machine import take_memory
from benchmarks.report import Table
from tests.helpers.fault_proxy import FaultProxy
from tests.helpers.object_servers import FileServer, S3Server

LATENCY_SECONDS = 0.02
BANDWIDTH = 50_000_000
"""bytes/s of a connection, where it is limited: about what object stores give"""
BUCKET = "data"
_SMALL, _LARGE = (4 << 10, 64), (8 << 20, 8)
"""bytes of a range, and connections"""
_WRITTEN_BYTES = 1 << 30


class Servers:
    """An S3 server with some datasets, and an HTTP server of bench-data."""

    def __init__(self, datasets: Mapping[str, Path]) -> None:
        self._datasets = datasets

    def __enter__(self) -> Self:
        directory = (corpora.DATA / "remote-s3").absolute()
        shutil.rmtree(directory, ignore_errors=True)
        with ExitStack() as stack:
            self.s3: Any = stack.enter_context(S3Server(directory, public_bucket=BUCKET))
            self.http: Any = stack.enter_context(FileServer(corpora.DATA.absolute()))
            self.s3_proxy: Any = stack.enter_context(FaultProxy(self.s3.endpoint))
            self.http_proxy: Any = stack.enter_context(FaultProxy(self.http.endpoint))
            for name, path in self._datasets.items():
                self._upload(name, path)
            for proxy in (self.s3_proxy, self.http_proxy):
                proxy.set(latency_s=LATENCY_SECONDS)
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _upload(self, name: str, directory: Path) -> None:
        import obstore

        store = self.s3.store(BUCKET)
        for path in sorted(each for each in directory.rglob("*") if each.is_file()):
            obstore.put(store, f"{name}/{path.relative_to(directory)}", path, chunk_size=16 << 20)

    def limit_bandwidth(self, is_limited: bool) -> None:
        """Limit each connection to the S3 server, or do not."""
        self.s3_proxy.set(latency_s=LATENCY_SECONDS, bandwidth=BANDWIDTH if is_limited else None)

    def environment(self, cache: Path) -> dict[str, str]:
        """Variables with which a process finds the S3 server, through its proxy."""
        endpoint = self.s3_proxy.endpoint
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return {
            **kept,
            **self.s3.environment(endpoint),
            "AWS_DEFAULT_REGION": self.s3.region,
            "S3_ENDPOINT_URL": endpoint,
            "NO_PROXY": "*",
            "no_proxy": "*",
            "XDG_CACHE_HOME": str(cache),
        }

    def limits(self, s3_path: Path, s3_key: str, http_path: Path, seconds: float) -> Table:
        """What a plain client gets from the servers and through the proxies."""
        rows = []
        kinds = (
            ("S3", self.s3, self.s3_proxy, f"/{BUCKET}/{s3_key}", s3_path),
            ("HTTP", self.http, self.http_proxy, f"/{http_path.relative_to(corpora.DATA)}", None),
        )
        for kind, server, proxy, target, path in kinds:
            size = (path or http_path).stat().st_size
            for name, endpoint, latency in (
                ("the server alone", server.endpoint, 0.0),
                ("through the proxy", proxy.endpoint, 0.0),
                ("through the proxy, 20 ms", proxy.endpoint, LATENCY_SECONDS),
            ):
                proxy.set(latency_s=latency)
                small, _ = _ask(endpoint, target, size, *_SMALL, seconds)
                _, large = _ask(endpoint, target, size, *_LARGE, seconds)
                rows.append([f"{kind}, {name}", f"{small:,.0f}", f"{large / 1e6:,.0f}"])
        first = _write_rate()
        take_memory()
        written = f"{first / 1e6:,.0f} MB/s, and {_write_rate() / 1e6:,.0f} MB/s"
        return Table(
            "Limits of the servers and the proxies, with a plain client",
            ["", "requests/s of 4 KiB, 64 connections", "MB/s of 8 MiB, 8 connections"],
            rows,
            "64 requests in flight that take 20 ms each are at most 3,200 requests/s. Client, "
            "proxy and server share the cores. A program that only writes 1 GiB to a new file "
            f"gets {written} after another one has taken memory from the host.",
        )


def _write_rate() -> float:
    """Bytes/s of writing a new file: whoever caches what it fetches is not faster."""
    content, path = os.urandom(_LARGE[0]), corpora.DATA / "remote-written"
    try:
        started = time.monotonic()
        with path.open("wb", buffering=0) as file:
            for _ in range(_WRITTEN_BYTES // len(content)):
                file.write(content)
        return _WRITTEN_BYTES / (time.monotonic() - started)
    finally:
        path.unlink(missing_ok=True)


def _ask(
    endpoint: str, path: str, size: int, range_bytes: int, num_connections: int, seconds: float
) -> tuple[float, float]:
    address = urlsplit(endpoint)
    options = {
        "host": address.hostname,
        "port": address.port,
        "path": path,
        "size_bytes": size,
        "range_bytes": range_bytes,
        "num_connections": num_connections,
        "seconds": seconds,
    }
    script = Path(__file__).with_name("remote_client.py")
    done = subprocess.run(
        [sys.executable, "-I", "-S", script, json.dumps(options)],
        check=True,
        capture_output=True,
        text=True,
    )
    num_requests, num_bytes = json.loads(done.stdout)
    return num_requests, num_bytes
