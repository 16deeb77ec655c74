"""The DQN family's loss against what the papers write, on numbers small enough to check."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from ludus.algos.dqn import DQN, Config, Munchausen
from ludus.contract import Prioritized
from ludus.nets.heads import Categorical, Implicit, Quantile, Scalar
from ludus.types import ArraySpec, Ctx, Discrete, EnvSpec, Step, Transition

SPEC = EnvSpec("toy", ArraySpec((3,)), Discrete(4))


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def context(seed: int = 0, evaluating: bool = False, epsilon: float = 0.0) -> Ctx:
    values = {"epsilon": torch.tensor(epsilon), "warming": torch.tensor(0.0)}
    return Ctx(rng(seed), SPEC, values, evaluating=evaluating)


def build(cfg: Config, seed: int = 0) -> tuple[DQN, nn.ModuleDict]:
    """Online and target nets with different weights, as in the middle of training."""
    algorithm = DQN(cfg)
    torch.manual_seed(seed)
    net = algorithm.build(SPEC)
    for p in net["target"].parameters():
        p.add_(0.5 * torch.randn(p.shape))
    return algorithm, net


def batch(size: int = 16, seed: int = 1) -> Transition:
    g = rng(seed)
    discount = torch.full((size,), 0.9)
    discount[::4] = 0.0
    return Transition(
        torch.randn(size, 3, generator=g),
        torch.randint(4, (size,), generator=g),
        torch.randn(size, generator=g),
        discount,
        torch.randn(size, 3, generator=g),
    )


def scalar_td(cfg: Config, choose: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(|td error| by the algorithm, by hand), where `choose` names the net that picks a*."""
    algorithm, net = build(cfg)
    b = batch()
    got = algorithm.loss(net, b, context()).priority
    with torch.no_grad():
        q_next = net["target"](b.next_obs).q
        best = net[choose](b.next_obs).q.argmax(-1)
        target = b.reward + b.discount * q_next[torch.arange(16), best]
        want = (target - net["online"](b.obs).q[torch.arange(16), b.action]).abs()
    assert got is not None
    return got, want


def test_dqn_target_is_the_target_nets_maximum() -> None:
    got, want = scalar_td(Config(), "target")
    torch.testing.assert_close(got, want)


@pytest.mark.accept(2)
def test_double_dqn_chooses_online_and_values_with_the_target_net() -> None:
    got, want = scalar_td(Config(double=True), "online")
    torch.testing.assert_close(got, want)
    _, plain = scalar_td(Config(), "target")
    assert not torch.allclose(got, plain), "the two nets must disagree somewhere, else no test"


def test_huber_gradient_is_the_clipped_td_error() -> None:
    """The TD error is clipped, not the loss: far away the gradient is +-1, not 0."""
    algorithm, net = build(Config())
    b = batch()._replace(reward=torch.full((16,), 50.0))
    out = net["online"](b.obs).q
    loss = algorithm.loss(net, b, context()).value
    grad = torch.autograd.grad(loss.sum(), net["online"].parameters())
    by_hand = torch.autograd.grad(
        -out[torch.arange(16), b.action].sum(), net["online"].parameters()
    )
    for a, c in zip(grad, by_hand, strict=True):
        torch.testing.assert_close(a, c)


def test_terminal_transitions_do_not_bootstrap() -> None:
    algorithm, net = build(Config())
    b = batch()
    other = b._replace(next_obs=b.next_obs * torch.where(b.discount == 0, -7.0, 1.0)[:, None])
    a, c = (algorithm.loss(net, x, context()).value for x in (b, other))
    torch.testing.assert_close(a, c)


HEADS = [
    Scalar(),
    Categorical(v_min=-3, v_max=3),
    Quantile(quantiles=7),
    Implicit(taus=5, target_taus=6, act_taus=9),
]


@pytest.mark.accept(10)
@pytest.mark.parametrize("head", HEADS, ids=lambda h: h.kind)
@pytest.mark.parametrize("noisy", [None, 0.5])
@pytest.mark.parametrize("dueling", [False, True])
def test_every_head_gives_a_loss_per_item_and_gradients(head, noisy, dueling) -> None:
    cfg = Config(head=head.model_copy(update={"noisy": noisy, "dueling": dueling}), double=True)
    algorithm, net = build(cfg)
    loss = algorithm.loss(net, batch(), context())
    assert loss.value.shape == (16,) and loss.priority.shape == (16,)
    assert (loss.priority >= 0).all()
    loss.value.mean().backward()
    for name, p in net["online"].named_parameters():
        assert p.grad is not None and p.grad.abs().sum() > 0, name
    assert all(p.grad is None for p in net["target"].parameters())


@pytest.mark.accept(7)
def test_iqn_uses_its_three_numbers_of_taus_where_they_belong(monkeypatch) -> None:
    cfg = Config(head=Implicit(taus=5, target_taus=6, act_taus=9, cosines=4))
    algorithm, net = build(cfg)
    seen: list[tuple[str, int]] = []
    for name in ("online", "target"):
        head = net[name].head
        real = head.forward

        def spy(*args, name=name, real=real, **kw):
            out = real(*args, **kw)
            seen.append((name, out.taus.shape[1]))
            return out

        monkeypatch.setattr(head, "forward", spy)
    algorithm.loss(net, batch(), context())
    assert sorted(seen) == [("online", 5), ("target", 6), ("target", 9)]


def test_a_head_gets_the_use_of_a_pass_and_counts_its_samples(monkeypatch) -> None:
    """DQN knows no head by its kind: any that calls itself random chooses in a pass of its own."""
    algorithm, net = build(Config(head=Scalar()))
    seen: list[tuple[str, str]] = []
    for name in ("online", "target"):
        head = net[name].head
        head.random = True
        real = head.forward

        def spy(*args, name=name, real=real, use="learn", **kw):
            seen.append((name, use))
            return real(*args, use=use, **kw)

        monkeypatch.setattr(head, "forward", spy)
    algorithm.loss(net, batch(), context())
    assert sorted(seen) == [("online", "learn"), ("target", "act"), ("target", "target")]


def test_iqn_taus_differ_between_items_and_passes() -> None:
    _, net = build(Config(head=Implicit(taus=5)))
    ctx = context()
    one, two = (net["online"](batch().obs, ctx.rng).taus for _ in range(2))
    assert not torch.equal(one, two)
    assert len({tuple(row.tolist()) for row in one}) == 16


@pytest.mark.accept(9)
def test_noise_is_fresh_for_every_pass_and_off_in_greedy_evaluation() -> None:
    algorithm, net = build(Config(head=Scalar(noisy=0.5, hidden=8)))
    ctx = context()
    obs = batch().obs
    passes = [net["online"](obs, ctx.rng).q for _ in range(2)]
    assert not torch.allclose(*passes)
    step = Step(
        obs,
        *[torch.zeros(16, dtype=torch.bool)] * 2,
        *[torch.zeros(16)] * 3,
        torch.zeros(16, dtype=torch.bool),
        None,
    )
    greedy = net["online"](obs, None, noise=False).q.argmax(-1)
    for seed in range(5):
        action, _, _ = algorithm.act(net, step, (), context(seed, evaluating=True))
        assert torch.equal(action, greedy)


@pytest.mark.accept(9)
def test_online_selection_and_target_passes_draw_their_own_noise(monkeypatch) -> None:
    from ludus.nets.heads import NoisyLinear

    algorithm, net = build(Config(head=Scalar(noisy=0.5), double=True))
    draws: list[float] = []
    real = NoisyLinear.forward

    def spy(self, x, generator=None):
        assert generator is not None, "a learner pass without noise"
        draws.append(float(generator.get_state().double().sum()))
        return real(self, x, generator)

    monkeypatch.setattr(NoisyLinear, "forward", spy)
    algorithm.loss(net, batch(), context())
    assert len(draws) == 3 and len(set(draws)) == 3  # online, target, selection


class TestMunchausen:
    """Vieillard et al. 2020, eq. 1 and 3."""

    def pieces(self, alpha: float, tau: float):
        head = Quantile(quantiles=3)
        m = Munchausen(alpha=alpha, tau=tau)
        algorithm, net = build(Config(head=head, munchausen=m))
        return algorithm, net, batch(), head

    def test_target_is_the_papers(self) -> None:
        alpha, tau, low = 0.9, 0.3, -1.0
        algorithm, net, b, _ = self.pieces(alpha, tau)
        captured = {}
        real = net["online"].head.td

        def spy(out, action, reward, discount, next_dist):
            captured.update(reward=reward, next_dist=next_dist)
            return real(out, action, reward, discount, next_dist)

        net["online"].head.td = spy
        algorithm.loss(net, b, context())
        q, q_next = net["target"](b.obs).q.double(), net["target"](b.next_obs)
        for i in range(16):
            z = sum(math.exp(v / tau) for v in q[i].tolist())
            log_pi = q[i, b.action[i]].item() / tau - math.log(z)
            bonus = alpha * max(low, min(0.0, tau * log_pi))
            paid = b.reward[i].item() + bonus
            assert captured["reward"][i].item() == pytest.approx(paid, abs=1e-4)
            row = q_next.q[i].tolist()
            z = sum(math.exp(v / tau) for v in row)
            pi = [math.exp(v / tau) / z for v in row]
            want = [
                sum(p * (q_next.dist[i, a, j].item() - tau * math.log(p)) for a, p in enumerate(pi))
                for j in range(3)
            ]
            assert captured["next_dist"][i].tolist() == pytest.approx(want, abs=1e-4)

    def test_without_alpha_and_with_tau_near_zero_it_is_plain(self) -> None:
        algorithm, net, b, head = self.pieces(0.0, 1e-5)
        soft = algorithm.loss(net, b, context()).value
        plain = DQN(Config(head=head)).loss(net, b, context()).value
        torch.testing.assert_close(soft, plain, atol=1e-3, rtol=1e-3)

    def test_forbidden_actions_leave_no_trace(self) -> None:
        algorithm, net, b, _ = self.pieces(0.9, 0.03)
        mask = torch.ones(16, 4, dtype=torch.bool)
        mask[:, 2] = False
        action = torch.zeros(16, dtype=torch.long)
        b = b._replace(action=action, action_mask=mask, next_action_mask=mask)
        loss = algorithm.loss(net, b, context())
        assert torch.isfinite(loss.value).all()
        nothing = torch.zeros(16, 4, dtype=torch.bool)  # some environments say so at the end
        loss = algorithm.loss(net, b._replace(next_action_mask=nothing), context())
        assert torch.isfinite(loss.value).all()


@pytest.mark.accept(5)
def test_each_part_of_rainbow_can_be_switched_off() -> None:
    head = Categorical(v_min=-3, v_max=3, dueling=True, noisy=0.5)
    full = Config(head=head, double=True, n_step=3, replay=Prioritized(alpha=0.5), epsilon=0.0)
    b = batch()
    algorithm, net = build(full)
    base = algorithm.loss(net, b, context()).value

    def other(**change) -> DQN:
        return DQN(full.model_copy(update=change))

    assert not torch.allclose(base, other(double=False).loss(net, b, context()).value)
    assert other(n_step=1).plan.view.n == 1 and algorithm.plan.view.n == 3
    assert other(replay=Config().replay).plan.sampler.kind == "uniform"
    still = head.model_copy(update={"noisy": None})
    quiet, quiet_net = build(full.model_copy(update={"head": still}))
    one, two = (quiet.loss(quiet_net, b, context(s)).value for s in (0, 1))
    assert torch.equal(one, two), "no noise left"
    one, two = (algorithm.loss(net, b, context(s)).value for s in (0, 1))
    assert not torch.equal(one, two)
    shapes = {n: p.shape for n, p in net["online"].named_parameters()}
    _, single = build(full.model_copy(update={"head": head.model_copy(update={"dueling": False})}))
    assert shapes != {n: p.shape for n, p in single["online"].named_parameters()}


@pytest.mark.accept(100)
def test_epsilon_explores_and_respects_masks() -> None:
    algorithm, net = build(Config())
    obs = batch().obs
    mask = torch.zeros(16, 4, dtype=torch.bool)
    mask[:, 1] = mask[:, 3] = True
    flags = torch.zeros(16, dtype=torch.bool)
    step = Step(obs, flags, flags, *[torch.zeros(16)] * 3, flags, mask)
    for epsilon in (0.0, 1.0):
        ctxs = [context(seed, epsilon=epsilon) for seed in range(20)]
        actions = torch.cat([algorithm.act(net, step, (), ctx)[0] for ctx in ctxs])
        assert set(actions.tolist()) <= {1, 3}
        if not epsilon:
            assert (actions.view(20, 16) == actions[:16]).all(), "greedy: equal for all seeds"
        else:
            assert 0.35 < (actions == 1).float().mean() < 0.65


def test_target_net_is_copied_every_period_and_only_then() -> None:
    algorithm, net = build(Config(target_period=3))
    before = copy.deepcopy(net["target"].state_dict())
    for updates in (1, 2):
        algorithm.after_update(net, updates)
        assert all(torch.equal(v, before[k]) for k, v in net["target"].state_dict().items())
    algorithm.after_update(net, 3)
    for k, v in net["target"].state_dict().items():
        assert torch.equal(v, net["online"].state_dict()[k])


def test_a_deterministic_chain_converges_to_dynamic_programming() -> None:
    """Five states in a row, action 1 moves right, 0 stays; reward 1 on leaving the last."""
    gamma, n = 0.9, 5
    spec = EnvSpec("chain", ArraySpec((n,)), Discrete(2))
    eye = torch.eye(n)
    rows = []
    for s in range(n):
        rows.append((s, 0, 0.0, gamma, s))
        rows.append((s, 1, float(s == n - 1), 0.0 if s == n - 1 else gamma, min(s + 1, n - 1)))
    obs, action, reward, discount, nxt = (list(x) for x in zip(*rows, strict=True))
    given = (torch.tensor(x) for x in (action, reward, discount))
    b = Transition(eye[obs], *given, eye[nxt])
    q = torch.zeros(n, 2, dtype=torch.float64)
    for _ in range(200):
        best = q.max(1).values
        for s, a, r, d, t in rows:
            q[s, a] = r + d * best[t]
    algorithm = DQN(Config(target_period=10))
    torch.manual_seed(0)
    net = algorithm.build(spec)
    optimizer = torch.optim.Adam(net["online"].parameters(), 3e-3)
    ctx = Ctx(rng(), spec)
    for i in range(1200):
        loss = algorithm.loss(net, b, ctx).value.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        algorithm.after_update(net, i + 1)
    torch.testing.assert_close(net["online"](eye).q.double(), q, atol=0.03, rtol=0)


def test_contradictions_are_refused() -> None:
    with pytest.raises(ValueError, match="categorical"):
        Config(head=Categorical(), munchausen=Munchausen())
    with pytest.raises(ValueError, match="double"):
        Config(double=True, munchausen=Munchausen())
    with pytest.raises(ValueError, match="never start"):
        Config(capacity=100, warmup=1000)
