"""Optimizers: the papers' forms, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from ludus.optim import SGD, Adam, RMSProp, build_optimizer


def run(cfg, grads, lr=0.1) -> list[float]:
    p = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = build_optimizer(cfg, [p], lr)
    seen = []
    for g in grads:
        p.grad = torch.tensor([g])
        optimizer.step()
        seen.append(float(p.detach()))
    return seen


@pytest.mark.parametrize("initial", [0.0, 1.0])
def test_rmsprop_has_epsilon_inside_the_root(initial) -> None:
    x, g2, want = 1.0, initial, []
    for g in (0.5, -0.2, 0.1):
        g2 = 0.9 * g2 + 0.1 * g * g
        x -= 0.1 * g / math.sqrt(g2 + 0.01)
        want.append(x)
    cfg = RMSProp(decay=0.9, eps=0.01, initial_square=initial)
    assert run(cfg, (0.5, -0.2, 0.1)) == pytest.approx(want, abs=1e-6)


@pytest.mark.accept(97)
def test_centered_rmsprop_subtracts_the_mean() -> None:
    x, g2, m, want = 1.0, 0.0, 0.0, []
    for g in (0.5, -0.2, 0.1):
        g2, m = 0.95 * g2 + 0.05 * g * g, 0.95 * m + 0.05 * g
        x -= 0.1 * g / math.sqrt(g2 - m * m + 0.01)
        want.append(x)
    assert run(RMSProp(decay=0.95, centered=True), (0.5, -0.2, 0.1)) == pytest.approx(
        want, abs=1e-6
    )


@pytest.mark.accept(97)
def test_adam_and_its_epsilon() -> None:
    small, large = run(Adam(eps=1e-8), (0.5,)), run(Adam(eps=1.0), (0.5,))
    assert small == pytest.approx([0.9], abs=1e-5)
    assert large == pytest.approx([1 - 0.1 * 0.5 / 1.5], abs=1e-5)


@pytest.mark.accept(95)
def test_momentum_sgd() -> None:
    v, x, want = 0.0, 1.0, []
    for g in (0.5, -0.2, 0.1):
        v = 0.9 * v + g
        x -= 0.1 * v
        want.append(x)
    assert run(SGD(momentum=0.9), (0.5, -0.2, 0.1)) == pytest.approx(want, abs=1e-6)
