"""A real HTTP server that serves files from memory, and misbehaves as it is told."""

import contextlib
import hashlib
import re
import socket
import struct
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from tests.helpers.http_server import Quiet, QuietServer, running


@dataclass
class Resource:
    """A file, and what goes wrong with the requests for it, one after the other."""

    body: bytes
    faults: list = field(default_factory=list)
    headers: dict = field(default_factory=dict)
    validators: bool = True


@dataclass
class Request:
    path: str
    headers: dict
    num_sent: int = 0


class Server(QuietServer):
    def __init__(self):
        super().__init__(Handler)
        self.files, self.requests, self.closing = {}, [], threading.Event()

    def add(self, name, body, *faults, **more):
        self.files[f"/{name}"] = Resource(body, list(faults), **more)
        return f"{self.url}/{name}"

    def sent(self, name):
        return [each.num_sent for each in self.requests if each.path == f"/{name}"]


class Handler(Quiet, BaseHTTPRequestHandler):
    def do_GET(self):
        self.request_log = Request(self.path, dict(self.headers))
        self.server.requests.append(self.request_log)
        file = self.server.files.get(self.path)
        if file is None:
            self.send_error(404)
            return
        fault = file.faults.pop(0) if file.faults else None
        if callable(fault):  # changes the file, as somebody else would
            fault(file)
            fault = None
        if isinstance(fault, bytes):  # all of the answer
            self.send(fault)
            self.close_connection = True
            return
        if isinstance(fault, tuple):  # a status, and headers
            self.send_response(fault[0])
            self.send_headers({"Content-Length": "0"} | fault[1])
            return
        start = 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked and fault not in ("ignore range", "truncate whole"):
            start = int(asked[1])
            if start >= len(file.body):
                self.send_response(416)
                length = len(file.body)
                self.send_headers({"Content-Length": "0", "Content-Range": f"bytes */{length}"})
                return
        self.answer(file, start, fault)

    def answer(self, file, start, fault):
        body = file.body[start:]
        headers = {"Content-Length": str(len(body))}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(file.body) - 1}/{len(file.body)}"
        if file.validators:
            headers["ETag"] = f'"{hashlib.md5(file.body).hexdigest()}"'
        if fault in ("chunked", "chunked cut"):
            headers |= {"Transfer-Encoding": "chunked"}
        if fault in ("chunked", "chunked cut", "no length"):
            del headers["Content-Length"]
        if fault == "too long":
            headers["Content-Length"] = str(len(body) + 10)
        self.send_response(206 if start and fault != "range as 200" else 200)
        self.send_headers(headers | file.headers)
        half = len(body) // 2
        if fault in ("stall", "truncate", "truncate whole", "reset"):
            self.send(body[:half])
        elif fault in ("chunked", "chunked cut"):
            pieces = [body[:half], body[half:]]
            for piece in pieces[: 1 if fault == "chunked cut" else 2]:
                self.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            if fault == "chunked":
                self.send(b"0\r\n\r\n")
        else:
            self.send(body)
        if fault == "stall":
            self.server.closing.wait(60)
        if fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        self.close_connection = True

    def send_headers(self, headers):
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()

    def send(self, data):
        # Count first: once a client has all, a test may ask for the count.
        self.request_log.num_sent += len(data)
        self.wfile.write(data)


@contextlib.contextmanager
def serving():
    with running(Server()) as server:
        try:
            yield server
        finally:
            server.closing.set()
