"""Rows of a large array copied by several threads, which wait for work without using a core.

torch's own threads spin while they wait and each gets a fixed share: where another process runs on
one of their cores, all wait for the one that was put aside. Here whoever is free takes the next
part, so a helper that is late only leaves more to the caller.
"""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]
# Bytes below which the caller alone is done before a helper has woken up.
ALONE = 1 << 20
MOST = 8  # threads; memory is no faster for more
PARTS = 4  # per thread: the last part is what the others may have to wait for


class RowCopy:
    """out[i] = source[index[i]], under way from the moment this is made until `wait` returns.

    Between the two the caller may do other work, or some of the copying by `help`.
    """

    def __init__(self, source: Array, index: Array, out: Array) -> None:
        self._source, self._index, self._out = source, index, out
        threads = min(torch.get_num_threads(), MOST) if out.nbytes >= ALONE else 1
        count = threads * PARTS if threads > 1 else 1
        size = max(1, -(-len(index) // count))
        # A list's pop is atomic: whoever gets a part copies it.
        self._parts = list(range(0, len(index), size))
        self._size = size
        self._tickets = [None] * (threads - 1)  # one for each helper that has not begun
        self._ended: SimpleQueue[BaseException | None] = SimpleQueue()
        self._helpers = threads - 1
        for _ in range(self._helpers):
            _helpers.call(self)

    def help(self) -> None:
        """Copy until nothing is left to begin."""
        parts, size = self._parts, self._size
        while parts:
            try:
                lo = parts.pop()
            except IndexError:  # another thread was faster
                return
            index, out = self._index[lo : lo + size], self._out[lo : lo + size]
            # Without a mode numpy fills a buffer first and copies that.
            self._source.take(index, 0, out=out, mode="clip")

    def serve(self) -> None:
        """What a helper does."""
        try:
            self._tickets.pop()
        except IndexError:  # too late: the copy is done
            return
        try:
            self.help()
        except BaseException as error:
            self._ended.put(error)
        else:
            self._ended.put(None)

    def wait(self) -> None:
        """Return when all rows are there."""
        self.help()
        begun = self._helpers
        while self._tickets:
            try:
                self._tickets.pop()
            except IndexError:
                break
            begun -= 1
        failed = [error for error in (self._ended.get() for _ in range(begun)) if error]
        # A helper may still know this object; it must not keep the memory from being used again.
        del self._source, self._index, self._out
        if failed:
            raise failed[0]


class _Helpers:
    """Threads of this process, started when they are first needed."""

    def __init__(self) -> None:
        self.forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """A forked process has none of its parent's threads."""
        self._calls: SimpleQueue[RowCopy] = SimpleQueue()
        self._count = 0

    def call(self, copy: RowCopy) -> None:
        if self._count < min(torch.get_num_threads(), MOST) - 1:
            self._count += 1
            calls = self._calls
            threading.Thread(target=_serve, args=(calls,), name="row copy", daemon=True).start()
        self._calls.put(copy)


def _serve(calls: SimpleQueue[RowCopy]) -> None:
    while True:
        calls.get().serve()


_helpers = _Helpers()
