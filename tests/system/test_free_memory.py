"""`system.free_memory`, on trees of /proc and /sys that the tests write."""

import pytest

from millstream.system.free_memory import available_bytes

MIB = 1 << 20


@pytest.fixture
def machine(tmp_path):
    """1,000 MiB are available, and the process is in the group /a/b of version 2."""
    files = {
        "proc/meminfo": "MemTotal: 2048000 kB\nMemAvailable:  1024000 kB\nHugePages_Total: 0\n",
        "proc/self/cgroup": "0::/a/b\n",
    }
    return Machine(tmp_path, files)


class Machine:
    def __init__(self, directory, files):
        self.directory = directory
        for path, text in files.items():
            self.write(path, text)

    def write(self, path, text):
        (self.directory / path).parent.mkdir(parents=True, exist_ok=True)
        (self.directory / path).write_text(text)

    def limit(self, group, limit, usage, cached=(0, 0)):
        inactive, active = (mib * MIB for mib in cached)
        self.write(f"sys/{group}/memory.max", f"{limit}\n")
        self.write(f"sys/{group}/memory.current", f"{usage * MIB}\n")
        stat = f"anon 5\ninactive_file {inactive}\nactive_file {active}\n"
        self.write(f"sys/{group}/memory.stat", stat)

    @property
    def available_mib(self):
        available = available_bytes(self.directory / "proc", self.directory / "sys")
        return None if available is None else available / MIB


def test_this_machine_says_how_much_is_free():
    assert 0 < available_bytes() < 1 << 50


def test_without_groups_it_is_what_the_kernel_says(machine):
    assert machine.available_mib == 1000
    (machine.directory / "proc/self/cgroup").unlink()
    assert machine.available_mib == 1000


def test_a_kernel_that_does_not_say_is_not_guessed_at(machine):
    machine.write("proc/meminfo", "MemTotal: 2048000 kB\n")
    assert machine.available_mib is None
    (machine.directory / "proc/meminfo").unlink()
    assert machine.available_mib is None


def test_a_group_leaves_its_limit_less_what_is_used_for_other_things_than_files(machine):
    machine.limit("a/b", 700 * MIB, usage=500, cached=(100, 50))
    assert machine.available_mib == 350


def test_the_tightest_of_all_groups_counts(machine):
    machine.limit("a/b", 700 * MIB, usage=100)
    machine.limit("a", 600 * MIB, usage=200)
    machine.limit("", 900 * MIB, usage=100)
    assert machine.available_mib == 400


def test_a_group_without_a_limit_and_a_wide_one_change_nothing(machine):
    machine.limit("a/b", "max", usage=900)
    machine.limit("a", 5000 * MIB, usage=100)
    assert machine.available_mib == 1000


def test_a_group_over_its_limit_leaves_nothing(machine):
    machine.limit("a/b", 700 * MIB, usage=800)
    assert machine.available_mib == 0


def test_in_a_container_the_top_is_its_own_group(machine):
    machine.write("proc/self/cgroup", "0::/docker/of-the-host\n")
    machine.limit("", 300 * MIB, usage=100)
    assert machine.available_mib == 200


def test_version_1_counts_the_groups_below(machine):
    machine.write("proc/self/cgroup", "9:name=systemd:/a\n4:cpu,memory:/a\n0::/\n")
    machine.write("sys/memory/a/memory.limit_in_bytes", f"{500 * MIB}\n")
    machine.write("sys/memory/a/memory.usage_in_bytes", f"{400 * MIB}\n")
    stat = f"inactive_file 1\ntotal_inactive_file {20 * MIB}\ntotal_active_file {30 * MIB}\n"
    machine.write("sys/memory/a/memory.stat", stat)
    machine.write("sys/memory/memory.limit_in_bytes", "9223372036854771712\n")
    machine.write("sys/memory/memory.usage_in_bytes", f"{900 * MIB}\n")
    machine.write("sys/memory/memory.stat", "")
    assert machine.available_mib == 150
