"""Memory and CPU cores available to this process, under machine, cgroup and rlimit limits.

/proc/self/cgroup names the group of this process in each hierarchy, and /proc/self/mountinfo the
mount point of that hierarchy. All parent groups limit the process, too. A missing or unreadable
file sets no limit.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")
UNLIMITED = 1 << 60  # v1 writes the largest multiple of a page for "no limit"


class Memory(NamedTuple):
    free: int  # bytes this process may still allocate
    total: int  # bytes of the tightest limit
    limit: str = ""  # name of that limit; empty: the machine

    @property
    def limited_by(self) -> str:
        """For messages, as the end of a sentence; empty for the machine."""
        return f" (limit of {self.limit})" if self.limit else ""


class _Names(NamedTuple):
    """The files of a memory group."""

    limits: tuple[str, ...]
    used: str
    cache: str  # key of memory.stat: file pages the kernel gives up first, below this group too


_V2 = _Names(("memory.max", "memory.high"), "memory.current", "inactive_file")
_V1 = _Names(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


def memory(root: Path = ROOT) -> Memory:
    """Return the tightest limit among the machine, its control groups and `ulimit -v`. `root`: the
    folder that contains /proc and the mount points, for tests."""
    found = [_machine(root)]
    for folder, v2 in _groups(root, "memory"):
        group = _group(folder, _V2 if v2 else _V1)
        if group is not None:
            found.append(group._replace(limit=f"the control group /{folder.relative_to(root)}"))
    found += _address_space(root)
    return min(found, key=lambda m: m.free)


def free_memory() -> int:
    """Return the bytes this process may still allocate."""
    return memory().free


def available_cores(root: Path = ROOT) -> int:
    """Return the number of cores that CPU affinity and cgroup quotas allow."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else (os.cpu_count() or 1)
    quotas = [_quota(folder, v2) for folder, v2 in _groups(root, "cpu")]
    return max(1, math.ceil(min([cores, *quotas])))


def _machine(root: Path) -> Memory:
    sizes = _table(root / "proc/meminfo", unit=1024)
    total = sizes.get("MemTotal", UNLIMITED)  # not Linux: no limit is known
    return Memory(sizes.get("MemAvailable", total), total)


def _group(folder: Path, names: _Names) -> Memory | None:
    limits = [_number(folder / name) for name in names.limits]
    limit = min((n for n in limits if n is not None), default=UNLIMITED)
    if limit >= UNLIMITED:
        return None
    cache = _table(folder / "memory.stat").get(names.cache, 0)
    used = max(0, (_number(folder / names.used) or 0) - cache)
    return Memory(max(0, limit - used), limit)


def _address_space(root: Path) -> list[Memory]:
    """Return the limit of `ulimit -v`, which counts all mapped memory, touched or not."""
    try:
        import resource
    except ImportError:  # not on this system
        return []
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return []
    pages = (_read(root / "proc/self/statm").split() or ["0"])[0]
    mapped = int(pages) * resource.getpagesize()
    return [Memory(max(0, limit - mapped), limit, "ulimit -v")]


def _quota(folder: Path, v2: bool) -> float:
    """Return the CPU quota in cores; inf without a quota."""
    if v2:
        words = _read(folder / "cpu.max").split()
    else:
        words = [_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    try:
        quota, period = int(words[0]), int(words[1])
    except (IndexError, ValueError):  # not there, or "max"
        return math.inf
    return quota / period if quota > 0 and period > 0 else math.inf


def _groups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield (folder, is version 2) of this process's group for `controller` and of its mounted
    parents."""
    paths = _own_paths(root)
    for v2 in (True, False):
        own = paths.get("" if v2 else controller)
        if own is None:
            continue
        mounts = _mounts(root, None if v2 else controller)
        # A mount without our group may belong to another container. If no mount has our group,
        # paths and mounts come from different namespaces, and every mount is a parent.
        ours = [(m, _below(own, top)) for m, top in mounts]
        matched = [(m, rest) for m, rest in ours if rest is not None]
        for mount, rest in matched or [(m, Path()) for m, _ in ours]:
            yield mount / rest, v2
            for above in rest.parents if rest != Path() else ():
                yield mount / above, v2


def _own_paths(root: Path) -> dict[str, str]:
    """Return the group of this process by hierarchy; "" is version 2."""
    found: dict[str, str] = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        words = line.split(":", 2)
        if len(words) == 3:
            found |= {name: words[2] for name in words[1].split(",")}
    return found


def _mounts(root: Path, controller: str | None) -> list[tuple[Path, str]]:
    """Return (mount point, top group) of each mount of a hierarchy. None: version 2."""
    found = []
    for line in _read(root / "proc/self/mountinfo").splitlines():
        head, _, tail = line.partition(" - ")
        place, kind = head.split(), tail.split()
        if len(place) < 5 or len(kind) < 3:
            continue
        if controller is None:
            wanted = kind[0] == "cgroup2"
        else:
            wanted = kind[0] == "cgroup" and controller in kind[2].split(",")
        if wanted:
            found.append((root / _unescaped(place[4]).lstrip("/"), _unescaped(place[3])))
    return found


def _below(path: str, top: str) -> Path | None:
    """Return `path` relative to `top`, or None if it is outside `top`."""
    inner, outer = Path(path), Path(top)
    if ".." in inner.parts or not inner.is_relative_to(outer):
        return None
    return inner.relative_to(outer)


def _unescaped(text: str) -> str:
    """Decode the octal escapes of mountinfo, such as \\040 for a space."""
    head, *rest = text.split("\\")
    return head + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None  # "max", or nothing there


def _table(path: Path, unit: int = 1) -> dict[str, int]:
    """Parse lines of a name and a number."""
    lines = (line.split() for line in _read(path).splitlines())
    return {w[0].rstrip(":"): int(w[1]) * unit for w in lines if len(w) > 1 and w[1].isdigit()}
