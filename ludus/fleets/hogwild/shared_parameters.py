"""The shared memory of hogwild workers: network, optimizer statistics and counters in one block.

No worker waits. Every worker writes the parameters (Recht et al. 2011). Each counter has one
writer, so that the sums are exact."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import reduction
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ludus.errors import LudusError
from ludus.optim import prime
from ludus.process.shared_tensors import SharedTensors
from ludus.run.state import RUNNING

Array: TypeAlias = np.ndarray[Any, Any]
COUNTERS = ("steps", "updates", "skipped", "samples_drawn", "popped")
LIMIT, LEAVING, COUNTED = range(3)  # indices into `control`


class Board:
    """Counters and heartbeats, one row per worker, and control values for all workers."""

    def __init__(self, slab: SharedTensors) -> None:
        self.counts: Array = slab.tensor("counts").numpy()  # [workers, COUNTERS]
        self.control: Array = slab.tensor("control").numpy()
        self.beats: Array = slab.tensor("beats").numpy()  # [workers] seconds, monotonic

    @staticmethod
    def room(workers: int) -> dict[str, Tensor]:
        counts = torch.zeros(workers, len(COUNTERS), dtype=torch.int64)
        beats = torch.zeros(workers, dtype=torch.float64)
        return {"counts": counts, "control": torch.zeros(3, dtype=torch.int64), "beats": beats}

    def total(self, counter: str) -> int:
        return int(self.counts[:, COUNTERS.index(counter)].sum())

    def of(self, worker: int, counter: str) -> int:
        return int(self.counts[worker, COUNTERS.index(counter)])

    def add(self, worker: int, counter: str, amount: int) -> None:
        """Increase a counter; only the worker itself may call this."""
        self.counts[worker, COUNTERS.index(counter)] += amount

    def beat(self, worker: int) -> None:
        self.beats[worker] = time.monotonic()

    @property
    def steps(self) -> int:
        return self.total("steps")

    @property
    def limit(self) -> int:
        """The number of steps after which no worker starts a fragment."""
        return int(self.control[LIMIT])

    def leaving(self) -> bool:
        """Whether workers must abandon even their current fragment."""
        return bool(self.control[LEAVING])


class TryLock:
    """A lock between processes that never blocks. The system releases it when its holder ends for
    any reason, unlike a semaphore. A hung holder keeps it until it is replaced
    (actor.hang_seconds); the others continue, and their steps are counted later."""

    def __init__(self) -> None:
        self.file = _anonymous_file()
        if self.acquire():  # raises before any process starts if the system has no locks
            self.release()

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.file)

    def __setstate__(self, file: Any) -> None:
        self.file = file.detach()

    def __del__(self) -> None:
        os.close(self.file)

    def acquire(self) -> bool:
        """Take the lock. Return False if another process holds it; raise for other errors."""
        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise _no_locks(error) from error
        return True

    def release(self) -> None:
        fcntl.lockf(self.file, fcntl.LOCK_UN)


def _anonymous_file() -> int:
    """Open an anonymous file to lock: in memory, or a temporary file if the system has no memfd.
    Not every folder for temporary files supports locks."""
    if hasattr(os, "memfd_create"):  # Linux
        with suppress(OSError):  # a sandbox may forbid it
            return os.memfd_create("ludus-lock")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _no_locks(error: OSError) -> LudusError:
    return LudusError(
        "E104",
        f"the system refuses a lock that hogwild's workers need: {error.strerror}",
        where="run.fleet=hogwild",
        why="a sandbox without POSIX locks, or temporary files on a network disk",
        fix="TMPDIR=DIR with a directory on a local disk, or run.fleet=inline run.actors=1",
    )


def count_steps(board: Board, lock: TryLock, count: Callable[[int, int], None]) -> None:
    """Call `count(before, now)` for the steps that are not counted yet, if the lock is free. Each
    step is counted once. If a worker dies in `count`, the next one repeats the call."""
    if not lock.acquire():
        return  # the next worker counts these steps
    try:
        before, now = int(board.control[COUNTED]), board.steps
        if now > before:
            count(before, now)
            board.control[COUNTED] = now
    finally:
        lock.release()


def shared_names(net: nn.ModuleDict) -> dict[str, Tensor]:
    """The network's state_dict, without the running returns of a worker's environments."""
    return {k: v for k, v in net.state_dict(keep_vars=True).items() if k != RUNNING}


def can_share(optimizer: torch.optim.Optimizer) -> bool:
    """Create the optimizer's state before its first step. Return False if its form is unknown."""
    before = [group.get("capturable") for group in optimizer.param_groups]
    known = prime(optimizer)
    for group, capturable in zip(optimizer.param_groups, before, strict=True):
        if capturable is not None:
            group["capturable"] = capturable  # hogwild captures no graphs
    return known


def statistics(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state tensors of an optimizer, by parameter number and name."""
    known = can_share(optimizer)
    assert known, "`check` refuses such optimizers"
    params = [p for group in optimizer.param_groups for p in group["params"]]
    return {f"{i}/{key}": v for i, p in enumerate(params) for key, v in optimizer.state[p].items()}


def shared_layout(
    net: nn.ModuleDict, optimizer: torch.optim.Optimizer, copies: int
) -> dict[str, Tensor]:
    """All tensors to share, with `copies` of the optimizer statistics."""
    stats = statistics(optimizer)
    rooms = {f"net/{k}": v.detach() for k, v in shared_names(net).items()}
    return rooms | {f"stat{c}/{k}": v for c in range(copies) for k, v in stats.items()}


@torch.no_grad()
def move_net(net: nn.ModuleDict, slab: SharedTensors, *, fill: bool) -> None:
    """Move a network's tensors to shared memory. `fill`: copy their current values there."""
    for name, t in shared_names(net).items():
        _move(t, slab.tensor(f"net/{name}"), fill)


@torch.no_grad()
def move_statistics(
    optimizer: torch.optim.Optimizer, slab: SharedTensors, copy: int, *, fill: bool
) -> None:
    for name, t in statistics(optimizer).items():
        _move(t, slab.tensor(f"stat{copy}/{name}"), fill)


def _move(t: Tensor, place: Tensor, fill: bool) -> None:
    if fill:
        place.copy_(t)
    t.data = place
