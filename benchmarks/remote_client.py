"""A plain client, to learn what servers and proxies can do: `python remote_client.py JSON`.

Threads with a connection each ask for random ranges of one object, one after the other, and throw
the bodies away. It prints requests/s and bytes/s.
"""

import json
import random
import socket
import sys
import threading
import time
from typing import Any

_SECONDS_OF_WARM_UP = 0.3


class _Totals:
    def __init__(self) -> None:
        self.lock, self.num_requests, self.num_bytes = threading.Lock(), 0, 0


def ask(options: dict[str, Any], totals: _Totals, first: float, last: float, seed: int) -> None:
    """Ask until the time is over; count what ends between `first` and `last`."""
    generator, size = random.Random(seed), options["range_bytes"]
    buffer = bytearray(1 << 18)
    host, port = options["host"], options["port"]
    with socket.create_connection((host, port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while time.monotonic() < last:
            start = generator.randrange((options["size_bytes"] - size) // 4096) * 4096
            head = f"GET {options['path']} HTTP/1.1\r\nHost: {host}:{port}\r\n"
            head += f"Range: bytes={start}-{start + size - 1}\r\n\r\n"
            connection.sendall(head.encode())
            received = b""
            while (end := received.find(b"\r\n\r\n")) < 0:
                received += connection.recv(1 << 16)
            if not received.startswith(b"HTTP/1.1 206"):
                raise ConnectionError(received[:200])
            left = size - (len(received) - end - 4)
            while left:
                left -= connection.recv_into(buffer)
            if first <= time.monotonic() < last:
                with totals.lock:
                    totals.num_requests += 1
                    totals.num_bytes += size


def main() -> None:
    """Print requests/s and bytes/s."""
    options = json.loads(sys.argv[1])
    first = time.monotonic() + _SECONDS_OF_WARM_UP
    last = first + options["seconds"]
    totals = _Totals()
    threads = [
        threading.Thread(target=ask, args=(options, totals, first, last, seed))
        for seed in range(options["num_connections"])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = options["seconds"]
    print(json.dumps([totals.num_requests / seconds, totals.num_bytes / seconds]))


if __name__ == "__main__":
    main()
