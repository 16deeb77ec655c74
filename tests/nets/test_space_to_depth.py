"""Convolutions over blocks of pixels: the same sums, in another shape."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ludus.nets import build_torso
from ludus.nets import space_to_depth as blocks
from ludus.nets.space_to_depth import block_of, convolve_blocks, to_blocks
from ludus.nets.torsos import CNN, Auto, Nature, Nips
from ludus.types import ArraySpec
from tests.skips import needs_gpu


@pytest.mark.parametrize(
    ("kernel", "stride", "shape"),
    [(8, 4, (4, 84, 84)), (8, 4, (3, 87, 94)), (4, 2, (2, 21, 20)), (6, 2, (1, 17, 31)),
     (8, 8, (4, 64, 72)), (3, 3, (2, 20, 22))],
)  # fmt: skip
@pytest.mark.parametrize("layout", ["as it comes", "channels last", "bytes", "bytes from a byte"])
def test_the_sums_are_those_of_the_layer(kernel, stride, shape, layout):
    rng = torch.Generator().manual_seed(1)
    size = (5, *shape)
    image = torch.randint(0, 256, size, generator=rng, dtype=torch.uint8)
    if layout == "bytes from a byte":  # where no number of several bytes may begin
        shifted = torch.empty(image.numel() + 1, dtype=torch.uint8)[1:].view(size)
        image = shifted.copy_(image)
    elif not layout.startswith("bytes"):
        image = image.double()
    if layout == "channels last":
        image = image.contiguous(memory_format=torch.channels_last)
    layer = nn.Conv2d(shape[0], 6, kernel, stride).double()
    assert block_of(layer) == stride
    made = to_blocks(image, stride)
    assert made.dtype == image.dtype and made.is_contiguous(memory_format=torch.channels_last)
    got = convolve_blocks(layer, made.double(), stride)
    torch.testing.assert_close(got, layer(image.double()), rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("layer", [(8, 3, 0), (4, 1, 0), (8, 4, 1), (3, 2, 0)], ids=str)
def test_a_window_that_is_no_whole_number_of_blocks_is_left_alone(layer):
    kernel, stride, padding = layer
    assert block_of(nn.Conv2d(4, 8, kernel, stride, padding)) == 0


def features_and_gradients(torso, image):
    y = torso(image)
    y.float().square().sum().backward()
    return [y.detach(), *(p.grad.clone() for p in torso.parameters())]


@pytest.mark.parametrize("layout", ["hw", "hwc", "chw"])
@pytest.mark.parametrize("cfg", [Nips(), Nature(), CNN(), Auto()], ids=lambda c: c.kind)
def test_a_torso_on_blocks_computes_what_it_computes_on_pixels(monkeypatch, cfg, layout):
    shape = {"hw": (84, 84), "hwc": (84, 84, 3), "chw": (3, 84, 84)}[layout]
    spec = ArraySpec(shape, "uint8", layout=layout, stack=4)
    torch.manual_seed(0)
    torso = build_torso(cfg, spec)
    image = torch.randint(0, 256, (3, *spec.seen_shape), dtype=torch.uint8)
    want = features_and_gradients(torso, image)
    torso.zero_grad()
    asked = []
    monkeypatch.setattr(blocks, "pays", lambda x, _: asked.append(x.shape) or True)
    got = features_and_gradients(torso, image)
    assert len(asked) == 1
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@needs_gpu
def test_bfloat16_on_a_gpu_takes_blocks_and_is_as_near_to_float32_as_pixels_are(monkeypatch):
    spec = ArraySpec((84, 84), "uint8", layout="hw", stack=4)
    torch.manual_seed(0)
    torso = build_torso(Nature(), spec).cuda()
    image = torch.randint(0, 256, (64, 4, 84, 84), dtype=torch.uint8, device="cuda")
    want = features_and_gradients(torso, image)
    away = []
    for on_blocks in (True, False):
        torso.zero_grad()
        if not on_blocks:
            monkeypatch.setattr(blocks, "pays", lambda *_: False)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            got = features_and_gradients(torso, image)
        pairs = zip(got, want, strict=True)
        away.append([float((a.float() - b).norm() / b.norm()) for a, b in pairs])
    assert away[0] != away[1], "both took the same way"
    assert all(a < max(2 * b, 0.01) for a, b in zip(*away, strict=True)), away
