"""A CUDA graph of a function without arguments. On a CPU the function is simply called again, so
that all code around a capture can be tested without a GPU.

The function reads and writes tensors at fixed addresses; the host writes values that change between
launches into 0-d tensors. See docs/gpu.md for the rules.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ludus.compute.gpu_memory import is_out_of_memory
from ludus.errors import LudusError

EMULATED = "emulated: no GPU"  # for the status
WARMUPS = 3  # autotuning and lazy initialisation must be over before the capture


class CaptureError(Exception):
    """A function that runs, but cannot be captured; the message says why in one line."""


def captures(capture: str, device: str) -> bool:
    """Whether the setting means that graphs are used; on a CPU only to test them."""
    return capture == "on" or (capture == "auto" and device != "cpu")


def not_captured(what: str, why: str) -> LudusError:
    return LudusError(
        "E104",
        f"run.capture=on, but {what} cannot be captured: {why}",
        where="run.capture",
        fix="run.capture=auto captures what it can and says why it does not",
    )


class Graph:
    """`launch()` runs `fn` once more. Building it leaves `keeps` and the generators bit-equal,
    also where it fails: CaptureError if `fn` runs but cannot be captured.

    `keeps` is asked again at the end: `fn` makes some tensors. `seconds` it took to build.
    """

    def __init__(
        self,
        fn: Callable[[], Any],
        device: torch.device,
        *,
        keeps: Callable[[], Iterable[Tensor]],
        generators: Sequence[torch.Generator],
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        start = time.perf_counter()
        self._fn = fn
        self._graph: torch.cuda.CUDAGraph | None = None
        states = [g.get_state() for g in generators]
        tensors = list(keeps())
        # Detached: a clone with a history keeps the nodes that accumulate gradients alive, on the
        # stream of this line, for which the capture would then have to wait.
        saved = [t.detach().clone() for t in tensors]
        try:
            if device.type == "cuda":
                self._capture(device, generators, stream)
            else:
                self._emulate()
        finally:
            new = [t for t in keeps() if not any(t is old for old in tensors)]
            with torch.no_grad():
                for tensor, value in zip(tensors, saved, strict=True):
                    tensor.copy_(value)
                for tensor in new:  # new: sums that start at zero
                    tensor.zero_()
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        self.seconds = time.perf_counter() - start

    def _emulate(self) -> None:
        """A warm-up, and the call that would be captured."""
        self._fn()
        try:
            self._fn()
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise CaptureError(_in_one_line(error)) from error

    def _capture(
        self,
        device: torch.device,
        generators: Sequence[torch.Generator],
        stream: torch.cuda.Stream | None,
    ) -> None:
        # The callers order the streams; autograd's warning about them is not needed.
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        side = stream or torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(device)
        with torch.cuda.stream(side):
            for _ in range(WARMUPS):
                self._fn()
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        try:
            with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
                self._fn()
        except Exception as error:
            _clean_up(graph, generators, side.device)
            if is_out_of_memory(error):
                raise
            # Report the cause; the broken capture is its consequence.
            first = error.__context__ or error
            raise CaptureError(_in_one_line(first)) from error
        self._graph = graph

    def launch(self) -> None:
        if self._graph is None:
            self._fn()
        else:
            self._graph.replay()


def _clean_up(
    graph: torch.cuda.CUDAGraph, generators: Sequence[torch.Generator], device: torch.device
) -> None:
    """After a broken capture, reset generators and the allocator, which are still capturing."""
    for generator in generators:
        fresh = torch.Generator(device=device)
        generator.graphsafe_set_state(fresh.graphsafe_get_state())
    with contextlib.suppress(RuntimeError):  # torch has done it already
        torch._C._cuda_endAllocateToPool(device.index, graph.pool())


def _in_one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or '?').splitlines()[0]}"


class Streams:
    """The CUDA streams of a run: acting has priority, learning fills the gaps. Nothing on a CPU.

    The process acts on its current stream; `open` makes that one of high priority.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.learn: torch.cuda.Stream | None = None
        self._caller: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.learn = torch.cuda.Stream(device, priority=0)  # type: ignore[no-untyped-call]

    def open(self) -> None:
        if self.device.type == "cuda":
            acting = torch.cuda.Stream(self.device, priority=-1)  # type: ignore[no-untyped-call]
            self._caller = torch.cuda.current_stream(self.device)
            acting.wait_stream(self._caller)
            torch.cuda.set_stream(acting)

    def close(self) -> None:
        """Restore the caller's CUDA stream."""
        if self._caller is not None:
            self._caller.wait_stream(torch.cuda.current_stream(self.device))
            torch.cuda.set_stream(self._caller)
            self._caller = None

    def learning(self) -> AbstractContextManager[Any]:
        """Inside, work goes to the learner's stream, after all earlier work."""
        if self.learn is None:
            return nullcontext()
        self.learn.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(self.learn)

    def join(self) -> None:
        """Make the current stream wait for all learning so far."""
        if self.learn is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.learn)
