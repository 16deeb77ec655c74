"""How many cores this process may really use: its affinity, and the quota of its control group."""

from __future__ import annotations

import math
import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def available_cores(root: Path = ROOT, own: Path = Path("/proc/self/cgroup")) -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else (os.cpu_count() or 1)
    return max(1, math.ceil(min(cores, _quota(root, own))))


def _quota(root: Path, own: Path) -> float:
    """In cores, the least of the group's (v2, else v1) and of those above it; inf for none."""
    least = math.inf
    for folder in _folders(root, own):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
            if quota != "max":
                least = min(least, int(quota) / int(period))
        except (OSError, ValueError):
            continue
    try:
        quota = (root / "cpu" / "cpu.cfs_quota_us").read_text()
        period = (root / "cpu" / "cpu.cfs_period_us").read_text()
        if int(quota) > 0:
            least = min(least, int(quota) / int(period))
    except (OSError, ValueError):
        pass
    return least


def _folders(root: Path, own: Path) -> list[Path]:
    """The group of this process and every group around it, in control groups v2."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return [root]
    path = next((line[3:] for line in lines if line.startswith("0::")), "/")
    inner = root / path.lstrip("/")
    return [inner, *(p for p in inner.parents if p == root or root in p.parents)]
