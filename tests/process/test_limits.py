"""Memory and cores are those of this process's own control groups, wherever they are mounted."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ludus.process import limits

MB = 1 << 20
V2 = "30 1 0:28 {top} {at} rw - cgroup2 cgroup2 rw\n"
V1 = "31 1 0:29 {top} {at} rw - cgroup cgroup rw,{name}\n"


class Machine:
    """A root folder with /proc and control groups as a kernel would show them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc/self").mkdir(parents=True)
        self.write("proc/meminfo", f"MemTotal: {8192 * 1024} kB\nMemAvailable: {6144 * 1024} kB\n")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def own(self, *lines: str) -> None:
        self.write("proc/self/cgroup", "".join(f"{line}\n" for line in lines))

    def mounted(self, *lines: str) -> None:
        self.write("proc/self/mountinfo", "".join(lines))

    def v2(self, folder: str, limit: str, used: int = 0, cache: int = 0) -> None:
        self.write(f"{folder}/memory.max", f"{limit}\n")
        self.write(f"{folder}/memory.current", f"{used}\n")
        self.write(f"{folder}/memory.stat", f"anon {used}\ninactive_file {cache}\n")

    def v1(self, folder: str, limit: int, used: int = 0, cache: int = 0) -> None:
        self.write(f"{folder}/memory.limit_in_bytes", f"{limit}\n")
        self.write(f"{folder}/memory.usage_in_bytes", f"{used}\n")
        stat = f"inactive_file 0\ntotal_inactive_file {cache}\n"  # the first without those below
        self.write(f"{folder}/memory.stat", stat)

    @property
    def memory(self) -> limits.Memory:
        return limits.memory(self.root)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def sixteen_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)


def test_without_groups_the_machine_is_the_limit(machine):
    assert machine.memory == (6144 * MB, 8192 * MB, "")
    machine.own("0::/")
    machine.mounted(V2.format(top="/", at="/sys/fs/cgroup"))
    assert machine.memory.free == 6144 * MB and not machine.memory.limited_by


def test_where_nothing_is_known_nothing_is_refused(tmp_path):
    assert limits.memory(tmp_path).free >= limits.UNLIMITED
    assert limits.available_cores(tmp_path) >= 1


def test_a_nested_group_of_version_2(machine):
    """The root group has no limit file; the process's own has one."""
    machine.own("0::/slice/job")
    machine.mounted(V2.format(top="/", at="/sys/fs/cgroup"))
    machine.v2("sys/fs/cgroup/slice/job", str(1200 * MB), used=700 * MB, cache=300 * MB)
    assert machine.memory.free == 800 * MB and machine.memory.total == 1200 * MB
    assert machine.memory.limited_by == " (limit of the control group /sys/fs/cgroup/slice/job)"


@pytest.mark.parametrize("inner", ["max", str(4000 * MB)])
def test_the_least_of_all_groups_above_counts(machine, inner):
    machine.own("0::/a/b/c")
    machine.mounted(V2.format(top="/", at="/sys/fs/cgroup"))
    machine.v2("sys/fs/cgroup/a/b/c", inner)
    machine.v2("sys/fs/cgroup/a/b", "max")
    machine.v2("sys/fs/cgroup/a", str(1000 * MB), used=900 * MB)
    machine.v2("sys/fs/cgroup", str(5000 * MB))
    assert machine.memory.free == 100 * MB and machine.memory.limit.endswith("/sys/fs/cgroup/a")


def test_a_soft_limit_that_throttles_counts(machine):
    machine.own("0::/a")
    machine.mounted(V2.format(top="/", at="/sys/fs/cgroup"))
    machine.v2("sys/fs/cgroup/a", "max")
    machine.write("sys/fs/cgroup/a/memory.high", f"{500 * MB}\n")
    assert machine.memory.free == 500 * MB


def test_more_used_than_allowed_leaves_nothing(machine):
    machine.own("0::/a")
    machine.mounted(V2.format(top="/", at="/sys/fs/cgroup"))
    machine.v2("sys/fs/cgroup/a", str(100 * MB), used=130 * MB)
    assert machine.memory.free == 0


def test_missing_files_of_a_group_limit_nothing(machine):
    machine.own("0::/gone/deep")
    machine.mounted(V2.format(top="/", at="/sys/fs/cgroup"))
    machine.write("sys/fs/cgroup/gone/memory.max", f"{900 * MB}\n")  # and no usage, no stat
    assert machine.memory.free == 900 * MB


def test_a_nested_group_of_version_1(machine):
    machine.own("4:memory:/api/job", "2:cpu,cpuacct:/", "0::/")
    machine.mounted(
        V1.format(top="/", at="/sys/fs/cgroup/memory", name="memory"),
        V1.format(top="/", at="/sys/fs/cgroup/cpu", name="cpu,cpuacct"),
    )
    machine.v1("sys/fs/cgroup/memory", 9223372036854771712)
    machine.v1("sys/fs/cgroup/memory/api", 9223372036854771712)
    machine.v1("sys/fs/cgroup/memory/api/job", 1200 * MB, used=400 * MB, cache=150 * MB)
    assert machine.memory.free == 950 * MB


def test_a_hybrid_machine_has_its_memory_in_version_1(machine):
    machine.own("4:memory:/job", "0::/user")
    machine.mounted(
        V1.format(top="/", at="/sys/fs/cgroup/memory", name="memory"),
        V2.format(top="/", at="/sys/fs/cgroup/unified"),
    )
    machine.v1("sys/fs/cgroup/memory/job", 700 * MB)
    machine.write("sys/fs/cgroup/unified/user/cgroup.procs", "1\n")
    assert machine.memory.free == 700 * MB


@pytest.mark.parametrize(
    ("own", "top"),
    [
        ("/docker/abc", "/docker/abc"),  # the host's path, and that group bind-mounted
        ("/", "/"),  # a namespace of its own
        ("/", "/../../docker/abc"),  # mounted from outside of the namespace
        ("/../other", "/"),  # moved out of the namespace
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_a_container_sees_its_own_group_at_the_mount_point(machine, own, top, version):
    if version == 2:
        machine.own(f"0::{own}")
        machine.mounted(V2.format(top=top, at="/sys/fs/cgroup"))
        machine.v2("sys/fs/cgroup", str(600 * MB))
    else:
        machine.own(f"7:memory:{own}")
        machine.mounted(V1.format(top=top, at="/sys/fs/cgroup/memory", name="memory"))
        machine.v1("sys/fs/cgroup/memory", 600 * MB)
    assert machine.memory.free == 600 * MB


def test_a_group_nested_in_a_container(machine):
    machine.own("0::/docker/abc/inner")
    machine.mounted(
        V2.format(top="/docker/other", at="/mnt/other"),
        V2.format(top="/docker/abc", at="/sys/fs/cgroup"),
    )
    machine.v2("mnt/other", str(10 * MB))  # somebody else's
    machine.v2("sys/fs/cgroup", str(900 * MB), used=100 * MB)
    machine.v2("sys/fs/cgroup/inner", str(850 * MB), used=100 * MB)
    assert machine.memory.free == 750 * MB


def test_a_mount_point_with_a_blank(machine):
    machine.own("0::/a")
    machine.mounted(V2.format(top="/", at="/my\\040groups"))
    machine.v2("my groups/a", str(300 * MB))
    assert machine.memory.free == 300 * MB


def test_lines_nobody_understands_are_passed_over(machine):
    machine.own("", "nonsense", "0::/a")
    machine.mounted("\n", "31 x\n", "1 2 3 - \n", V2.format(top="/", at="/g"))
    machine.v2("g/a", "lots")
    assert machine.memory.free == 6144 * MB


def test_an_address_space_limit_counts(machine, monkeypatch):
    pages = 100 * MB // resource.getpagesize()
    machine.write("proc/self/statm", f"{pages} 1 1 1 0 1 0\n")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (400 * MB, resource.RLIM_INFINITY))
    assert machine.memory == (300 * MB, 400 * MB, "ulimit -v")


def test_cores_by_quota_of_any_group_above(machine, sixteen_cores):
    machine.own("0::/a/b")
    machine.mounted(V2.format(top="/", at="/sys/fs/cgroup"))
    assert limits.available_cores(machine.root) == 16
    machine.write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n")
    machine.write("sys/fs/cgroup/a/cpu.max", "250000 100000\n")
    assert limits.available_cores(machine.root) == 3


@pytest.mark.parametrize(("quota", "cores"), [("400000", 4), ("-1", 16), ("50000", 1)])
def test_cores_by_quota_of_a_nested_group_of_version_1(machine, sixteen_cores, quota, cores):
    machine.own("2:cpu,cpuacct:/job", "0::/")
    machine.mounted(V1.format(top="/", at="/sys/fs/cgroup/cpu", name="cpu,cpuacct"))
    machine.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", f"{quota}\n")
    machine.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n")
    assert limits.available_cores(machine.root) == cores


def test_on_this_machine_there_is_some_memory():
    found = limits.memory()
    assert 0 < found.free <= found.total < limits.UNLIMITED


def test_every_verb_judges_by_the_process_own_limit(tmp_path):
    """`ulimit -v` is a limit any test may set; groups come to the same function."""
    code = (
        "import resource, sys, json\n"
        "from ludus.process.limits import memory\n"
        "import ludus.replay.storage.memory, ludus.track.checkpoint.arrays\n"
        "import torch, gymnasium, psutil\n"
        "most = psutil.Process().memory_info().vms + (700 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
        "from ludus.cli.doctor import _memory\n"
        "from ludus.errors import LudusError\n"
        "found = _memory()\n"
        "assert 'ulimit -v' in found.text and found.level == 'warning', found\n"
        "try:\n"
        "    ludus.replay.storage.memory.check_memory(4 << 30)\n"
        "except LudusError as error:\n"
        "    assert 'ulimit -v' in error.render(), error.render()\n"
        "else:\n"
        "    raise AssertionError('4 GB under a limit of less')\n"
    )
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
