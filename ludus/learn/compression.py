"""Gradients that are packed before the learners of a group exchange them (run.compress).

Every learner sums the parts of all in the order of their ranks, so that the sums are bit-equal.
`bf16` and `topk` keep what they did not send and add it to the next gradient (error feedback, Seide
et al. 2014), so nothing is lost, only late.
"""

from __future__ import annotations

import zlib
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ludus.types import Group

Kind = Literal["zlib", "bf16", "topk"]


class Compression:
    """Sums gradients over `group`. `sent` counts the bytes that this learner has sent."""

    def __init__(self, kind: Kind, group: Group, share: float = 0.01) -> None:
        self.kind, self.group, self.share = kind, group, share
        self.residual: Tensor | None = None  # what was not sent yet
        self.sent = self.sums = 0

    @torch.no_grad()
    def total(self, own: Tensor) -> Tensor:
        """The sum of all learners' flat gradients, as far as they are sent."""
        self.sums += 1
        if self.kind == "zlib":
            return self._packed(own)
        before = self.residual if self.residual is not None else torch.zeros_like(own)
        wanted = own + before
        found = self._rounded(wanted) if self.kind == "bf16" else self._largest(wanted)
        if not bool(torch.isfinite(found).all()):  # this update is refused: nothing was sent
            self.residual = before
        return found

    def _packed(self, own: Tensor) -> Tensor:
        data = pack(own)
        self.sent += len(data)
        sizes = [size for (size,) in self.group.gather([len(data)])]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        parts = zip(self.group.collect(padded), sizes, strict=True)
        return _sum([unpack(part[:size], own) for part, size in parts])

    def _rounded(self, wanted: Tensor) -> Tensor:
        rounded = wanted.to(torch.bfloat16)
        self.residual = wanted - rounded.to(wanted.dtype)
        self.sent += rounded.nbytes
        parts = self.group.collect(rounded.view(torch.uint8))  # gloo knows no int16
        return _sum([part.view(torch.bfloat16).to(wanted.dtype) for part in parts])

    def _largest(self, wanted: Tensor) -> Tensor:
        count = max(1, round(self.share * wanted.numel()))
        places = wanted.abs().topk(count).indices
        values = wanted[places]
        self.residual = wanted.index_fill(0, places, 0.0)
        self.sent += places.numel() * 4 + values.nbytes
        found = torch.zeros_like(wanted)
        both = zip(
            self.group.collect(places.to(torch.int32)), self.group.collect(values), strict=True
        )
        for at, part in both:
            found.index_add_(0, at.long(), part)
        return found


def pack(x: Tensor) -> bytes:
    """All bits of `x`, by zlib. The bytes of equal meaning lie together, since exponents of
    gradients are alike and their last digits are not."""
    flat = x.detach().cpu().numpy().reshape(-1).view(np.uint8).reshape(-1, x.element_size())
    return zlib.compress(flat.T.tobytes(), 1)


def unpack(data: Tensor, like: Tensor) -> Tensor:
    """The inverse of `pack`, with the shape and type of `like`."""
    size, width = like.nbytes, like.element_size()
    stream = zlib.decompressobj()
    raw = stream.decompress(data.numpy().tobytes(), size)  # never more than the gradient has
    planes = np.frombuffer(raw, np.uint8, count=size).reshape(width, -1)
    found = torch.from_numpy(planes.T.reshape(-1).copy())
    return found.view(like.dtype).reshape(like.shape).to(like.device)


def _sum(parts: list[Tensor]) -> Tensor:
    found = parts[0].clone()
    for part in parts[1:]:
        found += part
    return found
