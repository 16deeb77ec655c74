"""LearnerGroup: learners in separate processes of one host that sum tensors by torch.distributed.

They meet through a file in a private folder, and their sockets listen on the loopback address only.
Tensors in host memory travel by gloo. With a GPU for each learner, those of GPUs travel by NCCL.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor

dist: Any = torch.distributed  # its types lack some of these classes
LOOPBACK = "127.0.0.1"
FOREVER = timedelta(days=365)  # a lost learner closes its sockets; a slow one is waited for
SPINS = 200  # checks of a transfer before this process sleeps between them
SHORTEST, LONGEST = 0.0001, 0.002  # seconds of such a sleep


class LostLearnerError(Exception):
    """Another learner of the group has gone, so that the group cannot agree any more."""


def _nothing() -> None:
    return None


class LearnerGroup:
    """Member `rank` of `size` learners. All of them must make the same calls in the same order.

    `waiting` is called again and again while this learner waits for the others; it may raise.
    Then the transfer stays open, and the group is of no more use.
    """

    def __init__(
        self, folder: Path, rank: int, size: int, device: torch.device | None = None
    ) -> None:
        self.rank, self.size = rank, size
        self.waiting: Callable[[], None] = _nothing
        self.seconds, self.transfers = 0.0, 0  # spent on transfers, and their number
        self._open: list[Any] = []  # transfers that were given up, with the tensors they write
        self._store = dist.FileStore(str(folder / "meeting"), size)
        options: Any = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=LOOPBACK)]
        options._timeout = FOREVER
        hosts = dist.PrefixStore("host", self._store)
        self._host: Any = dist.ProcessGroupGloo(hosts, rank, size, options)
        self._gpu: Any = None
        if device is not None and device.type == "cuda":
            self._gpu = self._nccl(rank, size)

    def _nccl(self, rank: int, size: int) -> Any:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_IB_DISABLE", "1")
        options: Any = dist.ProcessGroupNCCL.Options()
        options._timeout = FOREVER
        return dist.ProcessGroupNCCL(dist.PrefixStore("gpu", self._store), rank, size, options)

    def sum(self, x: Tensor) -> Tensor:
        """The sum of every learner's `x`, bit-equal in all of them."""
        total = x.detach().clone(memory_format=torch.contiguous_format)
        half = x.dtype in (torch.bfloat16, torch.float16)
        total = total.float() if half else total
        if x.is_cuda and self._gpu is not None:
            self._gpu.allreduce([total]).wait()  # the stream waits, not this process
        else:
            here = total.cpu()
            self._finish(self._host.allreduce([here]), here)
            total = here.to(x.device)
        return total.to(x.dtype) if half else total

    def collect(self, x: Tensor) -> list[Tensor]:
        """Every learner's `x`, of the same shape, in the order of their ranks."""
        mine = x.detach().contiguous()
        if x.is_cuda and self._gpu is not None:
            found = [torch.empty_like(mine) for _ in range(self.size)]
            self._gpu.allgather([found], [mine]).wait()
            return found
        mine = mine.cpu()
        found = [torch.empty_like(mine) for _ in range(self.size)]
        self._finish(self._host.allgather([found], [mine]), (found, mine))
        return [part.to(x.device) for part in found]

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """The numbers of every learner, in the order of their ranks."""
        found = self.collect(torch.tensor(list(numbers), dtype=torch.int64))
        return [part.tolist() for part in found]

    def all(self, flag: bool) -> bool:
        """Whether `flag` is true for every learner."""
        return all(part[0] for part in self.gather([int(flag)]))

    def _finish(self, work: Any, tensors: Any) -> None:
        """Wait for a transfer without blocking in native code, so that signals are handled and the
        others are watched."""
        start, spins, nap = time.perf_counter(), 0, SHORTEST
        try:
            while not work.is_completed():
                spins += 1
                if spins < SPINS:
                    os.sched_yield()
                    continue
                self.waiting()
                time.sleep(nap)
                nap = min(1.2 * nap, LONGEST)
        except BaseException:
            self._open.append((work, tensors))
            raise
        finally:
            self.seconds += time.perf_counter() - start
        self.transfers += 1
        try:
            work.wait()
        except RuntimeError as error:
            raise LostLearnerError(str(error).splitlines()[0]) from None
