"""Packed gradients: nothing is lost, and a refused update leaves nothing behind."""

from __future__ import annotations

import pytest
import torch

from ludus.learn.compression import Compression, pack, unpack


class Alone:
    """A group of one, or of several that send the same."""

    def __init__(self, size: int = 1) -> None:
        self.size = size

    def collect(self, x):
        return [x.clone() for _ in range(self.size)]

    def gather(self, numbers):
        return [list(numbers) for _ in range(self.size)]


def gradients(count: int = 20, size: int = 100) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=rng) for _ in range(count)]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_pack_keeps_every_bit(size) -> None:
    x = torch.randn(size, generator=torch.Generator().manual_seed(0))
    x[0] = float("nan")
    data = torch.frombuffer(bytearray(pack(x)), dtype=torch.uint8)
    assert torch.equal(unpack(data, x).view(torch.int32), x.view(torch.int32))


@pytest.mark.accept(24)
@pytest.mark.parametrize("kind", ["zlib", "bf16", "topk"])
def test_what_is_not_sent_now_is_sent_later(kind) -> None:
    """Error feedback: all that was sent, and the rest that waits, is all there was."""
    compression, sent = Compression(kind, Alone(2), 0.1), torch.zeros(100)
    for gradient in gradients():
        sent += compression.total(gradient) / 2
    rest = compression.residual if compression.residual is not None else torch.zeros(100)
    torch.testing.assert_close(sent + rest, sum(gradients()), rtol=1e-5, atol=1e-5)
    assert bool(rest.any()) == (kind != "zlib")


def test_topk_sends_the_largest_parts() -> None:
    found = Compression("topk", Alone(), 0.02).total(torch.tensor([1.0, -5.0, 2.0, 4.0] * 25))
    assert found.count_nonzero() == 2 and found.abs().min() == 0 and found.abs().max() == 5


@pytest.mark.parametrize("kind", ["bf16", "topk"])
def test_a_refused_update_does_not_spoil_the_next_ones(kind) -> None:
    compression = Compression(kind, Alone(), 0.1)
    first, second, *_ = gradients()
    compression.total(first)
    before = compression.residual.clone()
    assert not torch.isfinite(compression.total(torch.full((100,), torch.nan))).all()
    assert torch.equal(compression.residual, before)
    assert torch.isfinite(compression.total(second)).all()
