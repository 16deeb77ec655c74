"""Optimizers: the papers' forms, by hand."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ludus import optim
from ludus.optim import SGD, Adam, RAdam, RMSProp, build_optimizer, prime
from ludus.track.checkpoint.optimizer import optimizer_from_tensors, optimizer_to_tensors


def run(cfg, grads, lr=0.1) -> list[float]:
    p = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = build_optimizer(cfg, [p], lr)
    seen = []
    for g in grads:
        p.grad = torch.tensor([g])
        optimizer.step()
        seen.append(float(p.detach()))
    return seen


@pytest.mark.accept(94)
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


@pytest.mark.parametrize(("beta2", "adapted"), [(0.999, 5), (0.9, 5), (0.5, 1000)])
def test_radam_takes_the_steps_of_torchs(beta2, adapted) -> None:
    """The first steps are plain momentum; at beta2 = 0.5 all are, since r is never defined."""
    grads = torch.randn(300, 7, generator=torch.Generator().manual_seed(0))
    mine, theirs = (torch.nn.Parameter(torch.linspace(-1, 1, 7)) for _ in range(2))
    ours = build_optimizer(RAdam(beta2=beta2), [mine], 0.01)
    oracle = torch.optim.RAdam([theirs], lr=0.01, betas=(0.9, beta2))
    for i, grad in enumerate(grads):
        mine.grad, theirs.grad = grad.clone(), grad.clone()
        before = mine.detach().clone()
        ours.step()
        oracle.step()
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
        plain = ours.state[mine]["exp_avg"] * 0.01 / (1 - 0.9 ** (i + 1))
        same = torch.allclose(before - mine.detach(), plain, atol=1e-7)
        assert same == (i < adapted)


KINDS = {
    "adam": Adam(),
    "radam": RAdam(),
    "adamw": Adam(weight_decay=0.1),
    "rmsprop": RMSProp(centered=True, momentum=0.5, initial_square=1.0),
    "sgd": SGD(momentum=0.9),
    "plain sgd": SGD(),
}


def trained(cfg, grads, *, primed, bad=()) -> tuple[list, torch.optim.Optimizer]:
    p = torch.nn.Parameter(torch.linspace(-1, 1, 7))
    optimizer = build_optimizer(cfg, [p], 0.1)
    if primed:
        assert prime(optimizer)
    for i, g in enumerate(grads):
        p.grad = torch.full_like(p, float("nan") if i in bad else g)
        if primed:
            optimizer.found_inf = torch.tensor(float(i in bad))
        elif i in bad:
            continue
        optimizer.step()
    state = [x for s in optimizer.state.values() for x in s.values() if x is not None]
    return [p.detach().clone(), *state], optimizer


@pytest.mark.parametrize("kind", KINDS)
def test_a_primed_optimizer_takes_the_same_steps(kind) -> None:
    grads = (0.5, -0.2, 0.1, 0.3, -0.4, 0.2, 0.6)  # radam adapts from the sixth on
    (one, _), (two, _) = (trained(KINDS[kind], grads, primed=x) for x in (True, False))
    assert len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("bad", [(0,), (1,), (0, 1, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_flag_skips_a_step_without_a_trace(kind, bad) -> None:
    grads = (0.5, -0.2, 0.1, 0.3, -0.4, 0.2, 0.6, 0.1, -0.3)
    (one, _), (two, _) = (trained(KINDS[kind], grads, primed=x, bad=bad) for x in (True, False))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert one[0].isfinite().all()


class Reads(TorchDispatchMode):
    """Counts how often a tensor becomes a number, which a graph that is being captured refuses."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["radam", "rmsprop"])  # torch's own know how to be captured
def test_a_step_that_may_be_captured_reads_no_number(kind) -> None:
    p = torch.nn.Parameter(torch.linspace(-1, 1, 7))
    optimizer = build_optimizer(KINDS[kind], [p], 0.1)
    prime(optimizer)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    optimizer.found_inf, p.grad = torch.tensor(0.0), torch.ones_like(p)
    with Reads() as reads:
        optimizer.step()
        assert reads.count == 0
        float(p.sum())
    assert reads.count == 1


@pytest.mark.parametrize("kind", KINDS)
def test_state_travels_between_captured_and_eager(kind) -> None:
    """A checkpoint says what was learned, not how this machine computes a step."""
    for source, target in ((True, False), (False, True)):
        values, saved = trained(KINDS[kind], (0.5, -0.2), primed=source)
        _, other = trained(KINDS[kind], (), primed=target)
        how = [g.get("capturable") for g in other.param_groups]
        optimizer_from_tensors(other, *optimizer_to_tensors(saved))
        assert [g.get("capturable") for g in other.param_groups] == how
        state = [x for s in other.state.values() for x in s.values() if x is not None]
        assert all(torch.equal(a, b) for a, b in zip(values[1:], state, strict=True))
        assert prime(other)
        again = [x for s in other.state.values() for x in s.values() if x is not None]
        assert all(torch.equal(a, b) for a, b in zip(again, state, strict=True))


def test_an_optimizer_of_somebody_elses_is_not_primed() -> None:
    p = torch.nn.Parameter(torch.zeros(2))
    assert not prime(torch.optim.Adagrad([p]))
    assert not prime(torch.optim.Adam([p], fused=False))


@pytest.mark.parametrize("grad", [0.1, 3.0, 7.3, 100.0])
def test_centered_rmsprop_takes_a_gradient_that_never_changes(grad: float) -> None:
    """Its square and the square of its mean are then equal but for rounding, of either sign."""
    seen = run(RMSProp(decay=0.95, eps=1.5e-7, centered=True), [grad] * 1000, lr=1e-9)
    assert all(map(math.isfinite, seen))


@pytest.mark.parametrize("cfg", [Adam(), Adam(weight_decay=0.1), RMSProp(), SGD(momentum=0.9)])
def test_a_lean_step_equals_torchs_own(cfg) -> None:
    """Two groups with their own rates; one parameter has a gradient in every third step only."""
    nets = []
    for lean in (True, False):
        torch.manual_seed(0)
        net = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 5), "b": torch.nn.Linear(5, 2)})
        groups = [{"params": list(net[k].parameters()), "name": k} for k in net]
        optimizer = build_optimizer(cfg, groups, 0.1)
        stepper = optim.Stepper(optimizer) if lean else optimizer
        for i in range(9):
            if i == 6:  # as a resumed run does: the state's tensors are others from here on
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            optimizer.param_groups[1]["lr"] = 0.01 * (i + 1)
            optimizer.zero_grad()
            net["b"](net["a"](torch.randn(4, 3)).relu()).square().sum().backward()
            if i % 3:
                net["b"].bias.grad = None
            if i == 4:
                for p in net["a"].parameters():
                    p.grad = None
            stepper.step()
        nets.append((net, optimizer))
    (ours, one), (theirs, two) = nets
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p, q)
        for name, value in one.state[p].items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(two.state[q][name]))
