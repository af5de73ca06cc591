"""Runs of Millstream and of peers over remote data, each in a new process with an empty cache."""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import corpora
from benchmarks.remote_servers import BUCKET, Servers

SEQ_LEN, BATCH_SIZE = 2048, 32
_PATIENCE_SECONDS = 180.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What one process did."""

    started: float
    imported: float
    times: list[float]
    """when each batch was in hand"""
    growth_bytes: int = 0
    """of resident memory, at its peak, since the imports"""
    opened: float = 0.0
    counts: dict[str, Any]
    """of the proxy, when the last batch was in hand"""
    counts_at_exit: dict[str, Any]
    cpu_seconds: tuple[float, float]
    """of the process with its children, and of the server with its proxy"""
    marks: dict[int, dict[str, Any]] = field(default_factory=dict)
    """the counts at some steps"""
    version: str = ""

    @property
    def first_from_start(self) -> float:
        """Seconds from the start of the process to the first batch."""
        return self.times[0] - self.started

    @property
    def first_after_imports(self) -> float:
        """Seconds from the end of the imports to the first batch."""
        return self.times[0] - self.imported

    def rate(self, first: int = 0) -> float:
        """Steps per second from a step on."""
        return (len(self.times) - 1 - first) / (self.times[-1] - self.times[first])

    @property
    def steady_rate(self) -> float:
        """Steps per second of the second half."""
        return self.rate(len(self.times) // 2)

    def per_step(self) -> tuple[float, float]:
        """Requests and bytes per step, between the marks."""
        (first, before), (last, after) = self.marks.items()
        num_steps = last - first
        num_requests = sum(after["requests"].values()) - sum(before["requests"].values())
        return num_requests / num_steps, (after["body_bytes"] - before["body_bytes"]) / num_steps

    def summary(self) -> dict[str, Any]:
        """The numbers for the JSON file."""
        return {
            "first batch, s from start": round(self.first_from_start, 3),
            "imports, s": round(self.imported - self.started, 3),
            "num_steps": len(self.times),
            "steps/s": round(self.rate(), 2) if len(self.times) > 1 else None,
            "growth_bytes": self.growth_bytes,
            "counts": self.counts,
            "cpu_seconds": [round(each, 2) for each in self.cpu_seconds],
        }


def run_millstream(servers: Servers, url: str, **options: Any) -> Run:
    """Load from a URL; options are those of `remote_child`."""
    remote: dict[str, Any] | None = options.pop("remote", {})
    proxy = servers.http_proxy if url.startswith("http") else servers.s3_proxy
    given = {
        "url": url,
        "remote": remote,
        "block": 0,
        "seq_len": SEQ_LEN,
        "batch_size": BATCH_SIZE,
        "seed": 0,
        "output": "torch",
        "rank": 0,
        "ranks": 1,
        "num_steps": 1 << 40,
        "step_seconds": 0.0,
        "marks": [],
    } | options
    command = [sys.executable, "-m", "benchmarks.remote_child", "load", json.dumps(given)]
    return _run(servers, proxy, command)


def compare_cached(servers: Servers, name: str, local: Path, **options: Any) -> dict[str, Any]:
    """Return steps/s of local files and of a warm cache, round by round."""
    given = {
        "url": f"s3://{BUCKET}/{name}",
        "local": str(local.absolute()),
        "seq_len": SEQ_LEN,
        "batch_size": BATCH_SIZE,
    } | options
    with _empty_cache() as cache:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.remote_child", "compare", json.dumps(given)],
            env=servers.environment(Path(cache)),
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=_PATIENCE_SECONDS,
        )
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def run_peer(servers: Servers, python: Path, peer: str, workers: int, **options: Any) -> Run:
    """Load an epoch, or a part of it, with a peer; raises an error if it fails."""
    given = {
        "url": f"s3://{BUCKET}/{peer}",
        "endpoint": servers.s3_proxy.endpoint,
        "key": servers.s3.access_key,
        "secret": servers.s3.secret_key,
        "region": servers.s3.region,
        "workers": workers,
        "num_steps": 1 << 40,
    } | options
    script = Path(__file__).with_name("remote_peers_child.py")
    command = [str(python), "-I", str(script), "load", peer, json.dumps(given)]
    return _run(servers, servers.s3_proxy, command)


def _run(servers: Servers, proxy: Any, command: list[str]) -> Run:
    """Run a process to its end; look at the proxy's counters whenever it prints a line."""
    marks, reply = dict[int, dict[str, Any]](), None
    log_path = corpora.DATA / "remote.log"
    with _empty_cache() as cache, log_path.open("w+") as log:
        proxy.reset_counts()
        cpu = _cpu_seconds(servers)
        started = time.monotonic()
        process = subprocess.Popen(
            command,
            env=servers.environment(Path(cache)) | {"PEER_CACHE": f"{cache}/peer"},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("{"):
                continue
            reply, counts = json.loads(line), proxy.counts()
            if "mark" in reply:
                marks[reply["mark"]] = counts
        status = process.wait(_PATIENCE_SECONDS)
        at_exit = proxy.counts()
        if status or reply is None or "times" not in reply:
            log.seek(0)
            raise ChildProcessError(f"{command[-2]}: status {status}: …{log.read()[-1500:]}")
        ours, theirs = (
            after - before for after, before in zip(_cpu_seconds(servers), cpu, strict=True)
        )
    return Run(
        started=started,
        counts=counts,
        counts_at_exit=at_exit,
        cpu_seconds=(ours, theirs),
        marks=marks,
        **reply,
    )


def _cpu_seconds(servers: Servers) -> tuple[float, float]:
    """Processor time of all processes that have ended, and of the servers and proxies."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = 0
    for each in (servers.s3, servers.s3_proxy, servers.http, servers.http_proxy):
        fields = Path(f"/proc/{each.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ended.ru_utime + ended.ru_stime, ticks / os.sysconf("SC_CLK_TCK")


def _empty_cache() -> "tempfile.TemporaryDirectory[str]":
    corpora.DATA.mkdir(parents=True, exist_ok=True)
    for left in corpora.DATA.glob("remote-cache-*"):  # by a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    return tempfile.TemporaryDirectory(
        prefix="remote-cache-", dir=corpora.DATA.absolute(), ignore_cleanup_errors=True
    )
