"""The LSTM: stepwise equals sequence, resets in the middle, gradients stop at resets."""

import pytest
import torch

from ludus.nets import LSTMCore


def case(seed=0, steps=12, batch=5):
    g = torch.Generator().manual_seed(seed)
    core = LSTMCore(4, 6)
    x = torch.randn(steps, batch, 4, generator=g)
    first = torch.rand(steps, batch, generator=g) < 0.2
    state = (torch.randn(batch, 6, generator=g), torch.randn(batch, 6, generator=g))
    return core, x, first, state


@pytest.mark.parametrize("mode", ["auto", "steps"])
@pytest.mark.parametrize("seed", range(4))
def test_stepping_equals_the_sequence_with_resets_in_the_middle(mode, seed):
    core, x, first, state = case(seed)
    assert first[1:].any()
    whole, end = core(x, first, state, mode)
    now, outs = state, []
    for t in range(x.shape[0]):
        y, now = core(x[t : t + 1], first[t : t + 1], now)
        outs.append(y)
    torch.testing.assert_close(whole, torch.cat(outs), atol=1e-5, rtol=0)
    for a, b in zip(end, now, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


@pytest.mark.parametrize("mode", ["auto", "steps"])
def test_a_reset_makes_the_rest_independent_of_the_past(mode):
    core, x, first, state = case()
    first[:] = False
    first[5, 2] = True
    other = x.clone()
    other[:5] += 1
    a, _ = core(x, first, state, mode)
    b, _ = core(other, first, (state[0] + 1, state[1] - 1), mode)
    torch.testing.assert_close(a[5:, 2], b[5:, 2], atol=1e-6, rtol=0)
    assert not torch.allclose(a[5:, 1], b[5:, 1])
    fresh, _ = core(x[5:, 2:3], torch.zeros(7, 1, dtype=torch.bool), core.initial(1))
    torch.testing.assert_close(a[5:, 2:3], fresh, atol=1e-5, rtol=0)


def test_fused_is_the_same_when_nothing_starts_later():
    core, x, first, state = case()
    first[1:] = False
    first[0, 1] = True
    fused, end = core(x, first, state, "fused")
    steps, end_steps = core(x, first, state, "steps")
    torch.testing.assert_close(fused, steps, atol=1e-5, rtol=0)
    torch.testing.assert_close(end[1], end_steps[1], atol=1e-5, rtol=0)


def test_auto_calls_the_kernel_once_when_nothing_starts_later(monkeypatch):
    core, x, first, state = case()
    calls = []
    forward = core.lstm.forward
    monkeypatch.setattr(core.lstm, "forward", lambda *a: calls.append(1) or forward(*a))
    first[1:] = False
    core(x, first, state)
    assert len(calls) == 1
    first[3] = True
    first[7, 0] = True
    core(x, first, state)
    assert len(calls) == 1 + 3


@pytest.mark.parametrize("many", [False, True])
def test_gradients_are_the_same_in_every_mode(many):
    """Few starts take the kernel between them, many a loop written out here."""
    core, x, first, state = case()
    first[:] = False
    first[:: 2 if many else 5, 1] = True
    found = []
    for mode in ("auto", "steps"):
        y, end = core(x, first, state, mode)
        weights = torch.linspace(-1, 1, y.numel()).view_as(y)
        loss = (y * weights).sum() + end[1].square().sum()
        found.append(torch.autograd.grad(loss, list(core.parameters())))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    one = torch.zeros_like(first[:1])
    y, _ = core(x[:1], one, state)
    kernel, _ = core.lstm(x[:1], (state[0][None], state[1][None]))
    torch.testing.assert_close(y, kernel, atol=1e-6, rtol=0)


def test_gradients_do_not_cross_a_reset():
    core, x, first, state = case()
    first[:] = False
    first[4] = True
    x.requires_grad_()
    y, _ = core(x, first, state)
    (grad,) = torch.autograd.grad(y[4:].sum(), x)
    assert grad[:4].eq(0).all()
    assert grad[4:].ne(0).any()
