"""What hogwild workers share: one anonymous block of memory with net, optimizer statistics and
counters. Nobody waits: parameters are written by whoever has a gradient (Recht et al. 2011), each
counter by its own worker alone, so that their sum is exact."""

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
LIMIT, LEAVING, COUNTED = range(3)  # of the control words


class Board:
    """Counters and heartbeats, one row per worker, and the words that steer them all."""

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
        """Only by the worker itself."""
        self.counts[worker, COUNTERS.index(counter)] += amount

    def beat(self, worker: int) -> None:
        self.beats[worker] = time.monotonic()

    @property
    def steps(self) -> int:
        return self.total("steps")

    @property
    def limit(self) -> int:
        """Nobody starts a fragment once this many steps are done."""
        return int(self.control[LIMIT])

    def leaving(self) -> bool:
        """Give up even the fragment that is under way."""
        return bool(self.control[LEAVING])


class TryLock:
    """What one process at a time may do. Nobody waits for it, and the system takes it back however
    its holder ends; a semaphore would stay taken. A holder that hangs keeps it until it is replaced
    (actor.hang_seconds): the others train on, and what they did is counted then."""

    def __init__(self) -> None:
        self.file = _nameless()
        if self.acquire():  # where nobody ever can, that is told before a process starts
            self.release()

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.file)

    def __setstate__(self, file: Any) -> None:
        self.file = file.detach()

    def __del__(self) -> None:
        os.close(self.file)

    def acquire(self) -> bool:
        """False while somebody else has it, and for no other reason."""
        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise _no_locks(error) from error
        return True

    def release(self) -> None:
        fcntl.lockf(self.file, fcntl.LOCK_UN)


def _nameless() -> int:
    """Something to lock that nobody has to remove: memory, or a file where the system has no memory
    of that kind. Not every place for temporary files has locks."""
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
    """Tell `count` from which step to which nobody has counted yet: each step once, by whoever gets
    the turn. Should it end in the middle, the next one does it all again."""
    if not lock.acquire():
        return  # what we add is for the next who comes
    try:
        before, now = int(board.control[COUNTED]), board.steps
        if now > before:
            count(before, now)
            board.control[COUNTED] = now
    finally:
        lock.release()


def shared_names(net: nn.ModuleDict) -> dict[str, Tensor]:
    """Everything a checkpoint keeps of a net, but the returns that run in one worker's slots."""
    return {k: v for k, v in net.state_dict(keep_vars=True).items() if k != RUNNING}


def can_share(optimizer: torch.optim.Optimizer) -> bool:
    """Whether what it keeps is known before its first step; makes it, if so."""
    before = [group.get("capturable") for group in optimizer.param_groups]
    known = prime(optimizer)
    for group, capturable in zip(optimizer.param_groups, before, strict=True):
        if capturable is not None:
            group["capturable"] = capturable  # no graph is captured here
    return known


def statistics(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The tensors an optimizer keeps, by parameter number and name."""
    known = can_share(optimizer)
    assert known, "asked before the run was built"
    params = [p for group in optimizer.param_groups for p in group["params"]]
    return {f"{i}/{key}": v for i, p in enumerate(params) for key, v in optimizer.state[p].items()}


def shared_layout(
    net: nn.ModuleDict, optimizer: torch.optim.Optimizer, copies: int
) -> dict[str, Tensor]:
    """All tensors that are to be shared; `copies` of the statistics."""
    stats = statistics(optimizer)
    rooms = {f"net/{k}": v.detach() for k, v in shared_names(net).items()}
    return rooms | {f"stat{c}/{k}": v for c in range(copies) for k, v in stats.items()}


@torch.no_grad()
def move_net(net: nn.ModuleDict, slab: SharedTensors, *, fill: bool) -> None:
    """Let a net's tensors lie in shared memory; `fill` it with the values they have now."""
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
