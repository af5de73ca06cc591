"""A real HTTP server that answers as few servers do, also to a little of S3's API (unsigned)."""

import hashlib
import html
import re
import urllib.parse
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler

from tests.helpers.http_server import Quiet, QuietServer, running


class Server(QuietServer):
    """Serves `files`: contents by path, `bucket/key` for S3. Attributes say what is odd."""

    def __init__(self):
        super().__init__(Handler)
        self.files, self.requests = {}, []
        self.refusals = {}
        """by method: the status, headers and body of all answers"""
        self.has_etag = self.has_time = self.has_ranges = True
        self.may_list = True
        """else what does not exist is denied, too, as S3 does"""

    def refuse(self, status, code="", message="", headers=(), methods=("GET", "HEAD")):
        """Answer all requests with an error of S3."""
        body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>" if code else ""
        for method in methods:
            self.refusals[method] = status, dict(headers), body.encode()


class Handler(Quiet, BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.answer_request()

    def do_GET(self):
        self.answer_request()

    def answer_request(self):
        server = self.server
        server.requests.append((self.command, self.path))
        path, _, query = self.path.partition("?")
        name = urllib.parse.unquote(path)[1:]
        if self.command in server.refusals:
            self.answer(*server.refusals[self.command])
        elif not server.may_list and ("list-type=2" in query or name not in server.files):
            self.answer(403, {}, b"<Error><Code>AccessDenied</Code></Error>")
        elif "list-type=2" in query:
            prefix = urllib.parse.parse_qs(query).get("prefix", [""])[0]
            self.answer(200, {"Content-Type": "application/xml"}, self.listing(name, prefix))
        elif name not in server.files:
            self.answer(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self.answer_file(server.files[name])

    def answer_file(self, content):
        server, headers = self.server, {}
        if server.has_etag:
            headers["ETag"] = etag(content)
        if server.has_time:
            headers["Last-Modified"] = formatdate(1_700_000_000, usegmt=True)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not asked or not server.has_ranges:
            self.answer(200, headers, content)
            return
        first, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
        if first >= len(content):
            self.answer(416, {"Content-Range": f"bytes */{len(content)}"}, b"")
            return
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        self.answer(206, headers, content[first : last + 1])

    def listing(self, bucket, prefix):
        files, start = self.server.files, f"{bucket.strip('/')}/"
        entries = "".join(
            f"<Contents><Key>{html.escape(name.removeprefix(start))}</Key>"
            "<LastModified>2023-11-14T22:13:20.000Z</LastModified>"
            f"<ETag>{html.escape(etag(content))}</ETag><Size>{len(content)}</Size></Contents>"
            for name, content in sorted(files.items())
            if name.startswith(f"{start}{prefix}")
        )
        more = "<IsTruncated>false</IsTruncated>"
        return f"<ListBucketResult>{more}{entries}</ListBucketResult>".encode()

    def answer(self, status, headers, body):
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def etag(content):
    return f'"{hashlib.md5(content).hexdigest()}"'


def serving():
    return running(Server())
