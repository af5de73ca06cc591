"""The machine that a result comes from, and the memory that this process holds."""

import ctypes
import gc
import os
import platform
import re
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

_TAKEN_BYTES = 4 << 30


def describe() -> dict[str, str]:
    """Return what a reader needs to judge the numbers."""
    memory = _first(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    libraries = ("numpy", "torch", "millstream")
    return {
        "CPU": cpu_model(),
        "cores": str(os.cpu_count()),
        "memory": f"{int(memory) / 2**20:.0f} GiB",
        "kernel": platform.release(),
        "load before": f"{os.getloadavg()[0]:.1f}",
        "source": _source(),
        "Python": platform.python_version(),
        **{library: version(library) for library in libraries},
    }


def cpu_model() -> str:
    """Return the processor's name from the kernel."""
    return _first(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text()) or "unknown CPU"


def short_name() -> str:
    """Name result files after the processor and its number of cores."""
    words = re.sub(r"\(.*?\)|@.*|\d+-Core|Processor|CPU", " ", cpu_model()).split()
    return "-".join([*(word.lower() for word in words), f"{os.cpu_count()}cores"])


class Bystanders:
    """How many cores other processes kept busy since this was created.

    Kernel threads count as others, and so does time that the hypervisor took ("stolen").
    """

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._busy, self._ours = _busy_seconds(), _our_seconds()

    def cores(self) -> float:
        """Return the average number of cores that were busy with other processes."""
        others = _busy_seconds() - self._busy - (_our_seconds() - self._ours)
        return max(0.0, others / (time.perf_counter() - self._start))


def resident_bytes(process: int | str = "self") -> int:
    """Return the resident memory of a process."""
    return _status_bytes("VmRSS", process)


def peak_bytes(process: int | str = "self") -> int:
    """Return its peak."""
    return _status_bytes("VmHWM", process)


def forget_peak() -> None:
    """Reset this process's peak to what it holds now."""
    Path("/proc/self/clear_refs").write_text("5")


def give_back_memory() -> None:
    """Return freed memory to the kernel, so that later allocations are charged."""
    import pyarrow as pa

    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)


def anonymous_bytes() -> int:
    """Return the resident memory that belongs to no file and cannot be reclaimed."""
    return _status_bytes("RssAnon", "self")


def children(process: int) -> list[int]:
    """Return the running child processes of a process."""
    try:
        return [
            int(n) for n in Path(f"/proc/{process}/task/{process}/children").read_text().split()
        ]
    except OSError:  # it has just ended
        return []


def _status_bytes(name: str, process: int | str) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return 1024 * int(_first(rf"{name}:\s+(\d+) kB", status))


def _source() -> str:
    """Return a hash of the timed code: runs compare only if it is equal."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _busy_seconds() -> float:
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, _idle, _waiting, interrupts, soft, stolen = (int(n) for n in fields)
    ticks = user + nice + system + interrupts + soft + stolen
    return ticks / os.sysconf("SC_CLK_TCK")


def _our_seconds() -> float:
    return sum(os.times()[:4])  # of this process and of its ended children


def _first(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""


def take_memory() -> None:
    """Use memory for a moment: a virtual machine gets it from its host, slowly, at first touch."""
    code = f"import mmap; memory = mmap.mmap(-1, {_TAKEN_BYTES})\n"
    code += f"for at in range(0, {_TAKEN_BYTES}, 4096): memory[at] = 1"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
