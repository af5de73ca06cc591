"""Real servers on loopback for remote data: SeaweedFS for S3, Caddy for HTTP, Azurite for Azure.

Each runs in a process group that is killed on exit, also when this process dies. Several can run at
once.
"""

import base64
import contextlib
import hmac
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from datetime import timedelta
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path

from tests.helpers.paths import ROOT

# Waits until standard input ends, as it does when the writer dies, then kills a process group.
GUARD = 'read _; kill -9 -"$1"'
HOST = "127.0.0.1"
# Below the range from which the kernel takes ports for outgoing connections.
PORTS = range(20_000, 32_000)
START_SECONDS = 60
NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def program(name):
    """Path of a program that a PyPI package installed beside Python."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name) or name


def free_ports(count):
    """Ports on which nothing listens. Another process may take them first: be ready to retry."""
    with contextlib.ExitStack() as stack:
        ports = []
        while len(ports) < count:
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind((HOST, random.SystemRandom().choice(PORTS)))
                ports.append(probe.getsockname()[1])
        return ports


class StartError(RuntimeError):
    """A server ended, or did not answer, before it was ready."""


class Process:
    """A server process with a group of its own. Its output goes to a file that errors quote."""

    def __init__(self, command, directory, *, pass_fds=(), **environment):
        self._log = Path(directory) / "log.txt"
        with self._log.open("wb") as log:
            self._server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env=os.environ | environment,
                pass_fds=pass_fds,
                start_new_session=True,
            )
        self.pid = self._server.pid
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "sh", str(self.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def is_running(self):
        return self._server.poll() is None

    def end_of_log(self):
        return self._log.read_text(errors="replace")[-2000:]

    def kill(self):
        """Kill the server; return when it is gone."""
        # Not by the end of the guard's input: a forked process may hold a copy of the pipe.
        for process in (self._guard, self._server):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._guard.stdin.close()


class S3Server:
    """SeaweedFS with one account, and optionally one bucket that anybody may read.

    `weed mini` starts in 1 s and makes one volume per bucket; `weed server` takes 3 s or more and
    makes seven. The first upload to a bucket waits 0.2 s for its volume. Buckets are never created
    implicitly: an upload to a missing one fails.

    >>> with S3Server(tmp / "s3") as server:  # doctest: +SKIP
    ...     server.create_bucket("data")
    ...     store = S3Store("data", config=server.environment())
    """

    access_key, secret_key, region = "tests", "secret-of-tests", "us-east-1"

    def __init__(self, directory, *, public_bucket=None):
        self.directory = Path(directory)
        self.public_bucket = public_bucket
        self._process, self._ports = None, []

    def __enter__(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        for is_last in (False, False, True):
            try:
                self._start()
                break
            except StartError:  # another process may have taken a port
                if is_last:
                    raise
        return self

    def __exit__(self, *_):
        self._stop()

    @property
    def pid(self):
        """Process id, to measure what the server uses."""
        return self._process.pid

    def environment(self, endpoint=None):
        """Variables for clients; pass a proxy's endpoint to go through it."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    def store(self, bucket, endpoint=None, **arguments):
        """An obstore store of a bucket."""
        from obstore.store import S3Store

        return S3Store(bucket, config=self.environment(endpoint), **arguments)

    def create_bucket(self, name):
        """Create a bucket, unless it exists: a worker may come back to the tests of a module."""
        try:
            self._send("PUT", name)
        except urllib.error.HTTPError as error:
            with error:
                if error.code != HTTPStatus.CONFLICT:
                    raise

    def create_directory(self, bucket, name):
        """Put an empty object with a slash at its end, as AWS's console does for a folder."""
        self._send("PUT", f"{bucket}/{name}")  # the URL of a bucket ends with a slash

    def _send(self, method, bucket):
        """Send a signed request for the bucket itself, which obstore has no function for."""
        import obstore

        url = obstore.sign(self.store(bucket), method, "", timedelta(minutes=1))
        request = urllib.request.Request(url, method=method)
        with NO_PROXY.open(request, timeout=20) as response:
            return response.status

    def _start(self):
        roles = ["s3", "master", "volume", "filer", "admin"]
        ports = self._ports = free_ports(2 * len(roles))
        flags = {"dir": self.directory, "ip": HOST, "ip.bind": HOST}
        for role, port, grpc in zip(roles, ports[::2], ports[1::2], strict=True):
            flags |= {f"{role}.port": port, f"{role}.port.grpc": grpc}
        flags |= {"s3.port.iceberg": 0, "s3.port.lance": 0, "webdav": "false", "admin.ui": "false"}
        flags |= {"master.telemetry": "false", "s3.autoCreateBucket": "false"}
        # A bucket has volumes of its own; the sum of their limits may exceed the disk.
        flags |= {"volume.max": 10_000, "master.volumeSizeLimitMB": 1024}
        keys = self.directory / "keys.json"
        keys.write_text(json.dumps({"identities": self._identities()}))
        flags["s3.config"] = keys
        arguments = [f"-{name}={value}" for name, value in flags.items()]
        self.endpoint = f"http://{HOST}:{ports[0]}"
        command = [program("weed"), "-logtostderr=true", "mini", *arguments]
        self._process = Process(command, self.directory)
        try:
            self._wait()
            if self.public_bucket:
                self.create_bucket(self.public_bucket)
        except BaseException:
            self._stop()
            raise

    def _identities(self):
        key = {"accessKey": self.access_key, "secretKey": self.secret_key}
        account = {"name": "tests", "credentials": [key], "actions": ["Admin"]}
        if not self.public_bucket:
            return [account]
        actions = [f"Read:{self.public_bucket}", f"List:{self.public_bucket}"]
        return [account, {"name": "anonymous", "actions": actions}]

    def _wait(self):
        """Return once a signed request gets an answer from all layers: there is no such bucket."""
        deadline = time.monotonic() + START_SECONDS
        while self._process.is_running and time.monotonic() < deadline:
            try:
                self._send("HEAD", "missing")
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 404:
                        return
            except OSError:
                pass
            time.sleep(0.05)
        raise StartError(f"SeaweedFS did not start:\n{self._process.end_of_log()}")

    def _stop(self):
        self._process.kill()
        for port in self._ports:
            for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # it leaves them
                path.unlink()


class FileServer:
    """Caddy, serving the files of a directory: single ranges, strong ETags, no listings.

    An ETag depends on the file's size and time of modification (ns).

    >>> with FileServer(tmp / "www") as server:  # doctest: +SKIP
    ...     store = HTTPStore(server.endpoint, client_options={"allow_http": True})
    """

    def __init__(self, directory):
        self.directory = Path(directory)

    def __enter__(self):
        self._own = tempfile.mkdtemp(prefix="caddy-")
        # Caddy inherits the listening socket, so nobody else can take the port before it starts.
        with socket.create_server((HOST, 0), backlog=1024) as listener:
            self.endpoint = f"http://{HOST}:{listener.getsockname()[1]}"
            config = Path(self._own) / "config.json"
            config.write_text(json.dumps(self._config(listener.fileno())))
            command = [program("caddy"), "run", "--config", str(config)]
            places = dict.fromkeys(["HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"], self._own)
            self._process = Process(command, self._own, pass_fds=[listener.fileno()], **places)
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._process.kill()
        shutil.rmtree(self._own)

    @property
    def pid(self):
        """Process id, to measure what the server uses."""
        return self._process.pid

    def _config(self, descriptor):
        handler = {"handler": "file_server", "root": str(self.directory)}
        server = {
            "listen": [f"fd/{descriptor}"],
            "protocols": ["h1"],
            "automatic_https": {"disable": True},
            "routes": [{"handle": [handler]}],
        }
        return {
            "admin": {"disabled": True, "config": {"persist": False}},
            "apps": {"http": {"servers": {"files": server}}},
        }

    def _wait(self):
        """Return once a request is answered."""
        deadline = time.monotonic() + START_SECONDS
        while self._process.is_running and time.monotonic() < deadline:
            try:
                with NO_PROXY.open(self.endpoint, timeout=5):
                    return
            except urllib.error.HTTPError as error:
                error.close()
                return
            except OSError:
                time.sleep(0.02)
        raise StartError(f"Caddy did not start:\n{self._process.end_of_log()}")


class AzureServer:
    """Azurite, the emulator of Azure's blob service, in memory, with its one well-known account.

    It is an npm package of 186 MB, which `make test` installs where there is npm.

    >>> with AzureServer(tmp / "azure") as server:  # doctest: +SKIP
    ...     server.create_container("data")
    ...     store = AzureStore("data", config=server.environment())
    """

    account = "devstoreaccount1"
    # Public: the same in every installation.
    key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

    def __init__(self, directory):
        self.directory = Path(directory)

    @staticmethod
    def program():
        """Path of Azurite; None if it is not installed."""
        own = ROOT / ".venv/node_modules/.bin"
        return shutil.which("azurite-blob", path=own) or shutil.which("azurite-blob")

    def __enter__(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        (port,) = free_ports(1)
        self.endpoint = f"http://{HOST}:{port}/{self.account}"
        command = [self.program(), "--inMemoryPersistence", "--disableTelemetry", "--silent"]
        command += ["--blobHost", HOST, "--blobPort", str(port)]
        self._process = Process(command, self.directory)
        try:
            self._wait(port)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._process.kill()

    def environment(self):
        """Variables for clients."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": self.account,
            "AZURE_STORAGE_ACCOUNT_KEY": self.key,
            "AZURE_STORAGE_ENDPOINT": self.endpoint,
        }

    def store(self, container):
        """An obstore store of a container."""
        from obstore.store import AzureStore

        config = {"account_name": self.account, "account_key": self.key, "endpoint": self.endpoint}
        return AzureStore(container, config=config, client_options={"allow_http": True})

    def create_container(self, name, *, is_public=False):
        """Create a container, which obstore has no function for; fails if it exists."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        if is_public:
            headers["x-ms-blob-public-access"] = "container"
        named = "".join(f"{key}:{value}\n" for key, value in sorted(headers.items()))
        signed = "PUT" + "\n" * 12 + named
        signed += f"/{self.account}/{self.account}/{name}\nrestype:container"
        digest = hmac.digest(base64.b64decode(self.key), signed.encode(), "sha256")
        headers["Authorization"] = f"SharedKey {self.account}:{base64.b64encode(digest).decode()}"
        headers["Content-Length"] = "0"
        url = f"{self.endpoint}/{name}?restype=container"
        request = urllib.request.Request(url, method="PUT", headers=headers)
        NO_PROXY.open(request, timeout=20).close()

    def _wait(self, port):
        """Return once connections are accepted."""
        deadline = time.monotonic() + START_SECONDS
        while self._process.is_running and time.monotonic() < deadline:
            try:
                socket.create_connection((HOST, port), timeout=5).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise StartError(f"Azurite did not start:\n{self._process.end_of_log()}")
