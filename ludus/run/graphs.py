"""One CUDA graph from a function of no arguments. On a CPU the function is simply called again,
so that everything around a capture can be tested without a GPU.

The function reads and writes tensors that stay where they are; what changes between launches is
written into 0-d tensors by the host. See docs/gpu.md for the rules.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

WARMUPS = 3  # autotuning and lazy initialisation must be over before the capture


class Graph:
    """`launch()` runs `fn` once more. Building it leaves `keeps` and the generators bit-equal.

    `keeps` is asked after the first call: some tensors are made by it. `seconds` it took to build.
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
        saved = [t.clone() for t in tensors]
        if device.type == "cuda":
            self._capture(device, generators, stream)
        else:
            fn()
        new = [t for t in keeps() if not any(t is old for old in tensors)]
        with torch.no_grad():
            for tensor, value in zip(tensors, saved, strict=True):
                tensor.copy_(value)
            for tensor in new:  # did not exist before: sums that start at zero
                tensor.zero_()
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self.seconds = time.perf_counter() - start

    def _capture(
        self,
        device: torch.device,
        generators: Sequence[torch.Generator],
        stream: torch.cuda.Stream | None,
    ) -> None:
        # Streams are ordered by whoever launches; autograd's advice about them is not needed.
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
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            self._fn()
        self._graph = graph

    def launch(self) -> None:
        if self._graph is None:
            self._fn()
        else:
            self._graph.replay()


class Lanes:
    """The streams of a run: acting goes first, learning fills the gaps. Nothing on a CPU.

    Acting is whatever the process does on its current stream; `open` makes that one urgent.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.learn: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.learn = torch.cuda.Stream(device, priority=0)  # type: ignore[no-untyped-call]

    def open(self) -> None:
        if self.device.type == "cuda":
            urgent = torch.cuda.Stream(self.device, priority=-1)  # type: ignore[no-untyped-call]
            urgent.wait_stream(torch.cuda.current_stream(self.device))
            torch.cuda.set_stream(urgent)

    def learning(self) -> AbstractContextManager[Any]:
        """Inside: work goes to the learner's stream, after all that came before."""
        if self.learn is None:
            return nullcontext()
        self.learn.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(self.learn)

    def join(self) -> None:
        """What the current stream is given from now on comes after all learning so far."""
        if self.learn is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.learn)
