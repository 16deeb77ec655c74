"""Value heads: dueling identities, losses against golden values, regression to known answers."""

import json
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch.nn import functional

from ludus.nets import (
    Categorical,
    HeadConfig,
    HeadOut,
    Implicit,
    Quantile,
    Scalar,
    build_head,
    initialize,
)
from ludus.ops import huber

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "rlax_golden.json").read_text())
SMALL = [
    Scalar(),
    Categorical(atoms=5, v_min=-2, v_max=2),
    Quantile(quantiles=6),
    Implicit(taus=7, cosines=8),
]


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def with_(cfg, **changes):
    return cfg.model_copy(update=changes)


@pytest.mark.parametrize("noisy", [None, 0.3])
@pytest.mark.parametrize("hidden", [0, 9])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("cfg", SMALL, ids=lambda c: c.kind)
def test_shapes_of_every_combination(cfg, dueling, hidden, noisy):
    head = build_head(with_(cfg, dueling=dueling, hidden=hidden, noisy=noisy), 10, 3)
    out = head(torch.randn(4, 10), rng(), noise=True)
    width = {"scalar": 1, "categorical": 5, "quantile": 6, "implicit": 7}[cfg.kind]
    assert out.q.shape == (4, 3)
    assert out.dist.shape == (4, 3, width)
    assert (out.taus is None) == (cfg.kind in ("scalar", "categorical"))
    action = torch.tensor([0, 2, 1, 2])
    next_dist = head.select(out, action)
    assert next_dist.shape == (4, width)
    loss, priority = head.td(out, action, torch.ones(4), torch.full((4,), 0.9), next_dist)
    assert loss.shape == priority.shape == (4,)
    assert not priority.requires_grad
    loss.sum().backward()
    assert all(p.grad is not None for p in head.parameters())


@pytest.mark.accept(10)
@pytest.mark.parametrize("hidden", [0, 9])
@pytest.mark.parametrize("cfg", SMALL, ids=lambda c: c.kind)
def test_dueling_mean_over_actions_is_the_value_per_atom(cfg, hidden):
    """mean_a Q = V exactly, and adding a constant to A changes nothing (per atom, per item)."""
    head = build_head(with_(cfg, dueling=True, hidden=hidden), 10, 4).double()
    x = torch.randn(6, 10, dtype=torch.float64)
    width, streams = head.streams.width, head.streams

    def run():
        if cfg.kind == "implicit":
            return head.at(x, torch.linspace(0.1, 0.9, 5, dtype=torch.float64).expand(6, 5)).dist
        return head(x, None, noise=False).dist

    before = run()
    with torch.no_grad():
        bias = streams.output.bias.view(-1, width)[-4:]
        bias += torch.arange(1.0, width + 1)  # the same for all actions
    torch.testing.assert_close(run(), before)
    with torch.no_grad():
        value_bias = streams.value.bias if hidden else streams.output.bias.view(-1, width)[0]
        value_bias += 2.5
    after = run()
    torch.testing.assert_close(after, before + 2.5)
    with torch.no_grad():  # without advantages every action is worth V
        rows = streams.output.weight.view(-1, width, streams.output.in_features)[-4:]
        rows.zero_()
        bias.zero_()
    torch.testing.assert_close(run(), after.mean(1, keepdim=True).expand_as(after))


@pytest.mark.accept(103)
@pytest.mark.parametrize("kind", ["huber", "mse"])
def test_scalar_td_is_the_td_error_of_the_taken_action(kind):
    head = build_head(Scalar(loss=kind), 3, 2)
    q = torch.tensor([[1.0, 5.0], [0.0, -3.0]], requires_grad=True)
    out = HeadOut(q, q.unsqueeze(-1))
    reward, discount = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.0])
    loss, priority = head.td(
        out, torch.tensor([0, 1]), reward, discount, torch.tensor([[3.0], [99.0]])
    )
    error = torch.tensor([1.5, 5.0])  # 1 + 0.5 * 3 - 1; 2 + 0 - (-3)
    torch.testing.assert_close(priority, error)
    want = huber(error) if kind == "huber" else 0.5 * error**2
    torch.testing.assert_close(loss.detach(), want)
    loss.sum().backward()
    slope = [-1.0, -1.0] if kind == "huber" else [-1.5, -5.0]
    assert q.grad.tolist() == [[slope[0], 0.0], [0.0, slope[1]]]


@pytest.mark.parametrize("cfg", SMALL, ids=lambda c: c.kind)
def test_no_gradient_flows_into_the_target(cfg):
    head = build_head(cfg, 10, 3)
    out = head(torch.randn(4, 10), rng())
    next_dist = head.select(out, torch.zeros(4, dtype=torch.long)).detach().requires_grad_()
    loss, _ = head.td(out, torch.ones(4, dtype=torch.long), torch.ones(4), torch.ones(4), next_dist)
    (grad,) = torch.autograd.grad(loss.sum(), next_dist, allow_unused=True)
    assert grad is None


@pytest.mark.accept(4)
def test_categorical_head_projects_like_the_reference():
    g = GOLDEN["c51_project"]
    head = build_head(Categorical(), 3, 2)
    torch.testing.assert_close(head.support, torch.tensor(g["z"]))
    logits = torch.randn(1, 2, 51, generator=rng(), requires_grad=True)
    out = HeadOut(torch.zeros(1, 2), logits)
    for discount, target in ((g["disc"], g["out"]), (0.0, g["out_terminal"])):
        loss, priority = head.td(
            out, torch.tensor([1]), torch.tensor([g["r"]]), torch.tensor([discount]),
            torch.tensor([g["p"]]),
        )  # fmt: skip
        want = -(torch.tensor(target) * functional.log_softmax(logits[0, 1], -1)).sum()
        torch.testing.assert_close(loss[0], want, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(priority, loss.detach())
    (grad,) = torch.autograd.grad(loss.sum(), logits)
    assert grad[0, 0].eq(0).all()  # only the taken action


@pytest.mark.accept(4)
@pytest.mark.parametrize(("atoms", "low", "high"), [(3, -1.0, 1.0), (101, -100.0, 100.0)])
def test_categorical_settings_shape_the_support_and_q_is_the_expectation(atoms, low, high):
    head = build_head(Categorical(atoms=atoms, v_min=low, v_max=high), 3, 2)
    assert head.support.shape == (atoms,)
    assert (head.support[0].item(), head.support[-1].item()) == (low, high)
    out = head(torch.randn(4, 3))
    torch.testing.assert_close(out.q, (out.dist.softmax(-1) * head.support).sum(-1))
    probs = head.select(out, torch.zeros(4, dtype=torch.long))
    torch.testing.assert_close(probs, out.dist[:, 0].softmax(-1))
    assert not any("support" in name for name in head.state_dict())


def test_categorical_refuses_an_empty_range():
    with pytest.raises(ValidationError, match="must be below"):
        Categorical(v_min=1, v_max=1)


@pytest.mark.accept(6)
@pytest.mark.parametrize(("kappa", "key"), [(1.0, "k1"), (0.0, "k0")])
@pytest.mark.parametrize("cfg", [Quantile(quantiles=5), Implicit()], ids=lambda c: c.kind)
def test_quantile_losses_match_the_reference(cfg, kappa, key):
    g = GOLDEN["quantile_huber"]
    head = build_head(with_(cfg, kappa=kappa), 3, 1)
    out = HeadOut(
        torch.zeros(1, 1), torch.tensor(g["src"]).view(1, 1, -1), torch.tensor([g["tau"]])
    )
    zero, one = torch.zeros(1), torch.ones(1)
    loss, priority = head.td(
        out, torch.zeros(1, dtype=torch.long), zero, one, torch.tensor([g["tgt"]])
    )
    assert loss.item() == pytest.approx(g[key], rel=1e-5)
    pairs = [abs(y - x) for y in g["tgt"] for x in g["src"]]
    assert priority.item() == pytest.approx(sum(pairs) / len(pairs), rel=1e-5)


@pytest.mark.accept(6)
def test_quantile_settings_have_effect_and_taus_are_midpoints():
    out = build_head(Quantile(quantiles=4), 3, 2)(torch.randn(2, 3))
    torch.testing.assert_close(out.taus, torch.tensor([0.125, 0.375, 0.625, 0.875]).expand(2, 4))
    torch.testing.assert_close(out.q, out.dist.mean(-1))


def test_quantile_regression_finds_the_empirical_quantiles():
    """Fit five quantiles of a known sample by gradient descent on the head's own loss."""
    sample = torch.tensor([[-4.0, -1.0, 0.0, 0.5, 3.0, 8.0, 9.0, 20.0, 21.0, 30.0]])
    head = build_head(Quantile(quantiles=5, kappa=0.0), 1, 1)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.1)
    zero, action = torch.zeros(1), torch.zeros(1, dtype=torch.long)
    for _ in range(1500):
        out = head(torch.zeros(1, 1))
        loss, _ = head.td(out, action, zero, zero + 1, sample)
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
    found = head(torch.zeros(1, 1)).dist[0, 0]
    # tau = .1 lies between the 1st and 2nd of ten, .3 between 3rd and 4th, ...
    low = torch.tensor([-4.0, 0.0, 3.0, 9.0, 21.0])
    high = torch.tensor([-1.0, 0.5, 8.0, 20.0, 30.0])
    assert ((found > low - 0.3) & (found < high + 0.3)).all()


@pytest.mark.accept(7)
def test_implicit_counts_are_separate_settings():
    cfg = Implicit(taus=5, target_taus=6, act_taus=7, cosines=9)
    head, x = build_head(cfg, 10, 3), torch.randn(2, 10)
    assert head.embedding.in_features == 9
    assert head(x, rng()).dist.shape == (2, 3, 5)  # N unless told otherwise
    for use, count in (("learn", 5), ("target", 6), ("act", 7)):
        assert head(x, rng(), use=use).dist.shape == (2, 3, count)
    out, target = head(x, rng()), head(x, rng(1), use="target")
    action = torch.tensor([0, 1])
    loss, _ = head.td(out, action, torch.ones(2), torch.ones(2), head.select(target, action))
    assert loss.shape == (2,)


def test_implicit_taus_are_uniform_per_item_and_fresh_for_every_pass():
    head, x, g = build_head(Implicit(taus=500), 4, 2), torch.randn(3, 4), rng()
    first, second = head(x, g).taus, head(x, g).taus
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])
    assert first.mean().item() == pytest.approx(0.5, abs=0.05)
    assert not first.requires_grad
    head = build_head(Implicit(taus=2), 4, 2)
    torch.testing.assert_close(head(x, None).taus, torch.tensor([[0.25, 0.75]] * 3))


def test_implicit_embedding_is_the_papers():
    head = build_head(Implicit(cosines=3), 12, 2)
    x, tau = torch.randn(1, 12), torch.tensor([[0.3, 0.8]])
    out = head.at(x, tau)
    for k in range(2):
        cosines = torch.cos(torch.pi * torch.arange(3.0) * tau[0, k])  # i = 0, 1, 2
        phi = head.embedding(cosines).relu()
        assert (phi > 0).sum() > 2
        want = head.streams.output(x[0] * phi)
        torch.testing.assert_close(out.dist[0, :, k], want)


def test_implicit_fits_a_distribution_and_is_monotone_in_tau():
    head, g = build_head(Implicit(taus=16, cosines=16, hidden=32), 4, 1), rng()
    initialize(head, rng(1))
    optimizer = torch.optim.Adam(head.parameters(), lr=3e-3)
    x = torch.ones(8, 4)
    zero, action = torch.zeros(8), torch.zeros(8, dtype=torch.long)
    for _ in range(600):
        target = torch.rand(8, 32, generator=g) * 4 - 1  # U(-1, 3), quantile(tau) = 4 tau - 1
        loss, _ = head.td(head(x, g), action, zero, zero + 1, target)
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
    tau = torch.linspace(0.05, 0.95, 10).unsqueeze(0)
    values = head.at(x[:1], tau).dist[0, 0]
    assert (values.diff() > 0).all()
    assert (values - (4 * tau[0] - 1)).abs().max() < 0.4
    assert head(x[:1], None, use="target").q.item() == pytest.approx(1.0, abs=0.2)


def test_heads_are_distinguished_by_kind_and_refuse_what_they_do_not_know():
    parse = TypeAdapter(HeadConfig).validate_python
    assert parse({"kind": "implicit", "act_taus": 8}) == Implicit(act_taus=8)
    assert parse({"kind": "scalar", "dueling": True, "noisy": 0.1}).noisy == 0.1
    with pytest.raises(ValidationError, match="atoms"):
        parse({"kind": "scalar", "atoms": 51})
    with pytest.raises(ValidationError):
        parse({"kind": "scalar", "noisy": 0})
