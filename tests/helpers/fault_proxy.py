"""An HTTP proxy that delays, refuses, cuts and stalls as it is told.

It runs in a process of its own, so it takes no time from the threads of a test. Requests pass
unchanged, with the client's Host header: S3 signatures stay valid.

A thread serves a connection, and has one of its own to the upstream server. On 2 cores shared with
client and server it relays 2 GB/s of 64 MiB bodies, or 10,000 requests/s of 4 KiB from 32 clients.
"""

import contextlib
import functools
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from hashlib import blake2b
from urllib.parse import unquote, urlsplit

BUFFER_BYTES = 1 << 18
# What S3 says with each status; 403 stands for a clock that is wrong.
S3_CODES = {
    "403": "RequestTimeTooSkewed",
    "429": "TooManyRequests",
    "500": "InternalError",
    "503": "SlowDown",
}
FAULTS = {"reset", "short", "stall", "wrong_length", *S3_CODES}


class FaultProxy:
    """A proxy in front of `upstream`, such as "http://127.0.0.1:8333".

    Keyword arguments are those of `set`.

    >>> with FaultProxy(server.endpoint, latency_s=0.05) as proxy:  # doctest: +SKIP
    ...     read_from(proxy.endpoint)
    ...     proxy.set(rates={"503": 0.5}, seed=1, methods=["GET"])
    ...     read_from(proxy.endpoint)
    ...     proxy.counts()["requests"]
    {'GET': 20}
    """

    def __init__(self, upstream, **faults):
        self._upstream, self._faults = urlsplit(upstream).netloc or upstream, faults

    def __enter__(self):
        command = [sys.executable, "-I", "-S", __file__, self._upstream]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._lock = threading.Lock()
        self.endpoint = self._reply()
        self.set(**self._faults)
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self):
        """Process id, to measure what the proxy uses."""
        return self._process.pid

    def set(self, *, latency_s=0.0, rates=None, seed=0, path="", methods=(), bandwidth=None):
        """Replace all settings, from the next request on.

        Args:
            latency_s: Seconds to wait before a request is forwarded.
            rates: Probability of each fault, by its name:

                - "503", "429", "500": that status, and the request is not forwarded.
                - "403": the same, with the S3 error for a clock that is wrong.
                - "reset": RST, before the response or in the middle of it.
                - "short": the connection is closed in the middle of the response.
                - "stall": half of the response, then silence until the client closes.
                - "wrong_length": a valid 206 with the first half of the range. Responses other than
                  206 pass unharmed.

            seed: Which requests fail. This depends on method, file name and range of a request, and
                on how often it was repeated, but not on the order of concurrent requests.
            path: Only requests whose path contains this fail.
            methods: Only requests of these methods fail; empty means all.
            bandwidth: Bytes per second of a connection, for bodies to the client.
        """
        rates = rates or {}
        if unknown := set(rates) - FAULTS:
            raise ValueError(f"unknown faults {sorted(unknown)}; known are {sorted(FAULTS)}")
        settings = {"latency_s": latency_s, "rates": rates, "seed": seed, "path": path}
        self._tell("set", settings | {"methods": list(methods), "bandwidth": bandwidth})

    def down(self):
        """Refuse connections, and reset those that are open."""
        self._tell("down")

    def up(self):
        """Accept connections again, on the same port."""
        self._tell("up")

    def counts(self):
        """Count what passed since the start or `reset_counts`.

        Returns:
            A dict: `requests` by method, `faults` by name, `body_bytes` sent to clients,
            `max_in_flight` requests at once, `connections` accepted.
        """
        return self._tell("counts")

    def reset_counts(self):
        """Start counting from zero."""
        self._tell("reset_counts")

    def _tell(self, command, argument=None):
        with self._lock:
            self._process.stdin.write(json.dumps([command, argument]) + "\n")
            return self._reply()

    def _reply(self):
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the proxy ended; its error is on standard error")
        return json.loads(line)


class Counts:
    """Counters of all threads."""

    def __init__(self):
        self._lock, self._in_flight = threading.Lock(), 0
        self.reset()

    def reset(self):
        with self._lock:
            self._requests, self._faults, self._total = Counter(), Counter(), Counter()
            self._max_in_flight = self._in_flight

    def add(self, **numbers):
        with self._lock:
            self._total.update(numbers)

    def add_fault(self, name):
        with self._lock:
            self._faults[name] += 1

    def begin(self, method):
        with self._lock:
            self._requests[method] += 1
            self._in_flight += 1
            self._max_in_flight = max(self._max_in_flight, self._in_flight)

    def end(self):
        with self._lock:
            self._in_flight -= 1

    def as_dict(self):
        with self._lock:
            return {
                "requests": dict(self._requests),
                "faults": dict(self._faults),
                "body_bytes": self._total["body_bytes"],
                "max_in_flight": self._max_in_flight,
                "connections": self._total["connections"],
            }


class Settings:
    """Settings of `FaultProxy.set`, and the choice of faults."""

    def __init__(self, *, latency_s, rates, seed, path, methods, bandwidth):
        self.latency_s, self.bandwidth = latency_s, bandwidth
        self._rates, self._seed, self._path, self._methods = rates, seed, path, methods
        self._repeats, self._lock = Counter(), threading.Lock()

    def fault(self, request):
        """Name of the fault that befalls a request, or None, and a number of the same draw."""
        if not self._rates or self._path not in unquote(request.target):
            return None, 0
        if self._methods and request.method not in self._methods:
            return None, 0
        # Buckets and ports change from run to run: the name of the file does not.
        name = request.target.partition("?")[0].rpartition("/")[2]
        key = f"{self._seed} {request.method} {name} {request.header('range')}"
        with self._lock:
            number = self._repeats[key]
            self._repeats[key] += 1
        digest = blake2b(f"{key} {number}".encode(), digest_size=16).digest()
        drawn, other = (part / 2**64 for part in struct.unpack("<QQ", digest))
        for fault, rate in sorted(self._rates.items()):
            if drawn < rate:
                return fault, other
            drawn -= rate
        return None, 0


class Message:
    """First line and headers of a request or a response."""

    def __init__(self, head):
        self.head = head
        # A request's is "GET /path HTTP/1.1", a response's "HTTP/1.1 206 Partial Content".
        self.method, self.target, *_ = head.partition(b"\r\n")[0].decode("latin-1").split(" ", 2)
        self.status = self.target

    def header(self, name):
        """Value of a header; empty if there is none."""
        found = _pattern(name).search(self.head)
        return found[1].decode("latin-1").strip() if found else ""

    def replace(self, **headers):
        """Replace headers, or remove them with None."""
        head = self.head[:-4]
        for name, value in headers.items():
            name = name.replace("_", "-")
            head = _pattern(name).sub(b"", head)
            head += b"" if value is None else f"\r\n{name}: {value}".encode()
        self.head = head + b"\r\n\r\n"


@functools.cache
def _pattern(name):
    return re.compile(rb"\r\n" + name.encode() + rb":([^\r]*)", re.IGNORECASE)


class ClosedError(Exception):
    """A peer closed its connection, or we did."""


class Stream:
    """A connection, read through a buffer."""

    def __init__(self, connection):
        self.socket, self._rest = connection, b""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _more(self):
        data = self.socket.recv(BUFFER_BYTES)
        if not data:
            raise ClosedError
        self._rest += data

    def read_until(self, end):
        while (at := self._rest.find(end)) < 0:
            self._more()
        return self.take(at + len(end))

    def read(self, count):
        data = bytearray(count)
        view = memoryview(data)
        while view:
            view = view[self.read_into(view) :]
        return data

    def read_into(self, view):
        if self._rest:
            data = self.take(len(view))
            view[: len(data)] = data
            return len(data)
        count = self.socket.recv_into(view)
        if not count:
            raise ClosedError
        return count

    def take(self, most):
        """Take what was received already."""
        taken, self._rest = self._rest[:most], self._rest[most:]
        return taken

    def put_back(self, data):
        self._rest = data + self._rest

    def read_chunked(self):
        """Read a chunked body, and join its chunks."""
        chunks = []
        while size := int(self.read_until(b"\r\n").partition(b";")[0], 16):
            chunks.append(self.read(size))
            self.read(2)
        while self.read_until(b"\r\n") != b"\r\n":
            pass
        return b"".join(chunks)

    def read_to_end(self):
        chunks = [self._rest]
        while chunk := self.socket.recv(BUFFER_BYTES):
            chunks.append(chunk)
        self._rest = b""
        return b"".join(chunks)

    def reset(self):
        """Close with RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class Connection:
    """A client's connection and its own to the upstream server."""

    def __init__(self, proxy, client):
        self._proxy, self._counts = proxy, proxy.counts
        self._client, self._upstream = Stream(client), None
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._in_flight = False

    def serve(self):
        """Serve requests until one side closes."""
        try:
            while True:
                request = Message(self._client.read_until(b"\r\n\r\n"))
                self._counts.begin(request.method)
                self._in_flight = True
                self._serve(request, self._proxy.settings)
        except (ClosedError, OSError):
            pass
        finally:
            self._finish()
            self._client.socket.close()
            self._drop_upstream()

    def stop(self):
        """Wake the thread that serves, from another one."""
        with contextlib.suppress(OSError):
            self._client.socket.shutdown(socket.SHUT_RDWR)

    def _finish(self):
        if self._in_flight:
            self._in_flight = False
            self._counts.end()

    def _serve(self, request, settings):
        fault, other = settings.fault(request)
        if fault:
            self._counts.add_fault(fault)
        if request.header("expect"):
            self._client.socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = self._client.read(int(request.header("content-length") or 0))
        if settings.latency_s:
            time.sleep(settings.latency_s)
        if fault == "reset" and other < 0.5:
            self._client.reset()
            raise ClosedError
        if fault in S3_CODES:
            self._refuse(fault, request)
            return
        response, length = self._ask(request, body)
        if fault == "wrong_length" and response.status == "206" and length > 1:
            self._relay(halved(response, length), length // 2, settings.bandwidth)
            self._drop_upstream()
        elif fault in (None, "wrong_length"):
            self._relay(response.head, length, settings.bandwidth)
        else:
            self._fail(fault, response.head, length, settings.bandwidth)
        if "close" in (request.header("connection"), response.header("connection")):
            raise ClosedError

    def _refuse(self, status, request):
        code = S3_CODES[status]
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
        head = f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        self._finish()
        self._client.socket.sendall((head + body * (request.method != "HEAD")).encode())

    def _ask(self, request, body):
        """Forward a request; return the response's head and the length of its body."""
        is_reused = self._upstream is not None
        try:
            response = self._exchange(request, body)
        except (ClosedError, OSError):
            if not is_reused:
                raise
            self._drop_upstream()  # closed since its last response
            response = self._exchange(request, body)
        if request.method == "HEAD" or response.status in ("204", "304"):
            return response, 0
        if length := response.header("content-length"):
            return response, int(length)
        # Such bodies are short: listings and errors.
        is_chunked = "chunked" in response.header("transfer-encoding").lower()
        body = self._upstream.read_chunked() if is_chunked else self._upstream.read_to_end()
        self._upstream.put_back(body)
        response.replace(transfer_encoding=None, content_length=len(body))
        return response, len(body)

    def _exchange(self, request, body):
        if self._upstream is None:
            self._upstream = Stream(socket.create_connection(self._proxy.upstream))
        self._upstream.socket.sendall(request.head + body)
        while True:
            response = Message(self._upstream.read_until(b"\r\n\r\n"))
            if not response.status.startswith("1"):
                return response

    def _fail(self, fault, head, length, bandwidth):
        """Send a part of a response, and end the connection."""
        if length > 1:
            self._relay(head, length // 2, bandwidth, ends=False)
        else:
            self._client.socket.sendall(head[: len(head) // 2])
        if fault == "stall":
            self._client.socket.recv(1)
        if fault == "reset":
            self._client.reset()
        raise ClosedError

    def _relay(self, head, length, bandwidth, *, ends=True):
        """Send a head and `length` bytes of the upstream's body."""
        start = time.monotonic()
        piece = max(1, min(BUFFER_BYTES, (bandwidth or sys.maxsize) // 50))
        first = self._upstream.take(min(piece, length))
        left = length - len(first)
        self._send(head + first, len(first), is_last=ends and not left)
        while left:
            view = self._buffer[: min(piece, left)]
            count = self._upstream.read_into(view)
            left -= count
            if bandwidth:
                time.sleep(max(0, start + (length - left) / bandwidth - time.monotonic()))
            self._send(view[:count], count, is_last=ends and not left)

    def _send(self, data, num_body_bytes, *, is_last):
        # Count first: once a client has all, it may ask for the counts.
        self._counts.add(body_bytes=num_body_bytes)
        if is_last:
            self._finish()
        self._client.socket.sendall(data)

    def _drop_upstream(self):
        if self._upstream:
            self._upstream.socket.close()
            self._upstream = None


def halved(response, length):
    """Head of a response as if only the first half of the range had been asked for."""
    start, _, total = re.split("[-/]", response.header("content-range").removeprefix("bytes "))
    last = int(start) + length // 2 - 1
    response.replace(content_length=length // 2, content_range=f"bytes {start}-{last}/{total}")
    return response.head


class Proxy:
    """The process's listener, its connections, and commands for them."""

    def __init__(self, upstream):
        host, _, port = upstream.rpartition(":")
        self.upstream, self.counts, self.settings = (host, int(port)), Counts(), None
        self._connections, self._is_up = set(), threading.Event()
        # With its port named in `bind`, a socket keeps it while it does not listen.
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = probe.getsockname()
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(self.address)
        self.up()
        threading.Thread(target=self._accept, daemon=True).start()

    def set(self, settings):
        self.settings = Settings(**settings)

    def up(self):
        self._listener.listen(1024)
        self._is_up.set()

    def down(self):
        self._is_up.clear()
        self._listener.shutdown(socket.SHUT_RDWR)
        for connection in self._connections.copy():
            connection.stop()

    def _accept(self):
        while self._is_up.wait():
            try:
                client = self._listener.accept()[0]
            except OSError:  # down
                continue
            self.counts.add(connections=1)
            threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client):
        connection = Connection(self, client)
        self._connections.add(connection)
        if not self._is_up.is_set():
            connection.stop()
        connection.serve()
        self._connections.discard(connection)


def main():
    """Obey the lines of standard input; end with it."""
    proxy = Proxy(sys.argv[1])
    host, port = proxy.address
    print(json.dumps(f"http://{host}:{port}"), flush=True)
    commands = {
        "set": proxy.set,
        "up": lambda _: proxy.up(),
        "down": lambda _: proxy.down(),
        "counts": lambda _: proxy.counts.as_dict(),
        "reset_counts": lambda _: proxy.counts.reset(),
    }
    for line in sys.stdin:
        name, argument = json.loads(line)
        print(json.dumps(commands[name](argument)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
