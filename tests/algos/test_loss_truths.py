"""Whole losses against plain loops over tests/truth, for every name of the DQN family and for PPO.

The networks' outputs are taken as they come, noise and quantiles included; what a loss makes of
them is computed again."""

from __future__ import annotations

import math

import pytest
import torch

from ludus import registry
from ludus.algos.ppo import PPO
from ludus.algos.ppo import Config as PPOConfig
from ludus.nets.heads import HeadOut
from ludus.types import ArraySpec, Continuous, Ctx, Discrete, EnvSpec
from tests.algos.test_dqn import SPEC, batch, context
from tests.algos.test_ppo import flat, rollout
from tests.contract.tiny import tiny
from tests.truth import distributional, policy, returns, td
from tests.truth.episodes import pieces

FAMILY = [entry.name for entry in registry.entries() if entry.family == "dqn"]


def passes(net) -> dict[str, list[HeadOut]]:
    """What the heads answer from now on, in the order of the calls."""
    seen: dict[str, list[HeadOut]] = {"online": [], "target": []}
    for name, calls in seen.items():
        net[name].head.register_forward_hook(lambda _, __, out, calls=calls: calls.append(out))
    return seen


def largest(values: list[float]) -> int:
    return values.index(max(values))


def next_numbers(cfg, seen, i: int) -> tuple[float, list[float]]:
    """Item i: the bonus on its reward, and the numbers (values or probabilities) of its target."""
    target = seen["target"][0].dist[i].double().tolist()  # [A][K']
    if cfg.munchausen is not None:
        m, (_, now, then) = cfg.munchausen, seen["target"]
        bonus = m.alpha * policy.munchausen(now.q[i].tolist(), seen["action"][i], m.tau, m.clip)
        pi = policy.softmax([q / m.tau for q in then.q[i].double().tolist()])
        soft = [
            sum(p * (z[k] - m.tau * math.log(p)) for p, z in zip(pi, target, strict=True) if p > 0)
            for k in range(len(target[0]))
        ]
        return bonus, soft
    chooser = seen["online"][1] if cfg.double else seen["target"][-1]
    row = target[largest(chooser.q[i].tolist())]
    return 0.0, policy.softmax(row) if cfg.head.kind == "categorical" else row


def item_loss(cfg, out: HeadOut, i: int, action: int, r: float, g: float, then: list[float]):
    """The loss of one item by its head's paper."""
    row, head = out.dist[i, action].double().tolist(), cfg.head
    if head.kind == "scalar":
        assert head.loss == "huber"
        return td.huber(r + g * then[0] - row[0], 1.0)
    if head.kind == "categorical":
        step = (head.v_max - head.v_min) / (head.atoms - 1)
        z = [head.v_min + j * step for j in range(head.atoms)]
        return distributional.cross_entropy(row, distributional.project(z, r, g, then))
    assert head.kind in ("quantile", "implicit")
    goals = [r + g * x for x in then]
    return distributional.quantile_huber(row, out.taus[i].tolist(), goals, head.kappa)


@pytest.mark.accept(150)
@pytest.mark.parametrize("name", FAMILY)
def test_the_loss_of_the_dqn_family_is_the_papers(name) -> None:
    cfg = tiny(name, "CartPole-v1").algo
    if cfg.munchausen is not None:  # a temperature at which plain loops do not underflow
        warm = cfg.munchausen.model_copy(update={"tau": 0.3})
        cfg = cfg.model_copy(update={"munchausen": warm})
    algorithm = registry.make(cfg)
    torch.manual_seed(0)
    net = algorithm.build(SPEC)
    for p in net["target"].parameters():
        p.add_(0.5 * torch.randn(p.shape))
    b, seen = batch(), passes(net)
    got = algorithm.loss(net, b, context()).value
    seen["action"] = b.action.tolist()
    actions = set()
    for i in range(16):
        bonus, then = next_numbers(cfg, seen, i)
        actions.add(largest(seen["target"][-1].q[i].tolist()))
        r, g = b.reward[i].item() + bonus, b.discount[i].item()
        want = item_loss(cfg, seen["online"][0], i, seen["action"][i], r, g, then)
        assert got[i].item() == pytest.approx(want, rel=2e-4, abs=1e-5)
    assert len(actions) > 1, "else the choice of the next action was not tested"


def log_density(dist, i: int, action: torch.Tensor) -> tuple[float, float]:
    """log pi(a) and the entropy of row i, from the policy's numbers."""
    if dist.parts:
        logits = dist.parts[0][i].tolist()
        return math.log(policy.softmax(logits)[int(action)]), policy.entropy(logits)
    log_p = entropy = 0.0
    for mean, log_std, a in zip(
        *(x.tolist() for x in (dist.mean[i], dist.log_std[i], action)), strict=True
    ):
        sigma = math.exp(log_std)
        density = math.exp(-((a - mean) ** 2) / (2 * sigma**2))
        log_p += math.log(density / (sigma * math.sqrt(2 * math.pi)))
        entropy += 0.5 * math.log(2 * math.pi * math.e * sigma**2)
    return log_p, entropy


@pytest.mark.accept(150)
@pytest.mark.parametrize(
    ("action", "moved"), [(Discrete(3), 0.1), (Continuous((2,), (-1.0, -1.0), (1.0, 1.0)), 0.04)]
)
@pytest.mark.parametrize("normalize", [True, False])
def test_the_loss_of_ppo_is_the_papers(action, moved, normalize) -> None:
    """Equations 7, 9 and 11, after the policy has moved away from the one that acted."""
    cfg = PPOConfig(
        gamma=0.9, gae_lambda=0.8, value_cost=0.7, entropy_cost=0.03, policy_cost=1.3,
        normalize_advantage=normalize, log_std=-0.5,
    )  # fmt: skip
    spec = EnvSpec("toy", ArraySpec((3,)), action)
    algorithm, ctx = PPO(cfg), Ctx(torch.Generator().manual_seed(1), spec)
    ctx.values = {"clip": torch.tensor(0.2)}
    torch.manual_seed(0)
    net = algorithm.build(spec)
    b = rollout(algorithm, net, ctx)
    prepared = flat(algorithm.prepare(net, b, ctx))
    with torch.no_grad():
        v = torch.stack([net["online"].values(o) for o in b.obs]).tolist()
        for p in net.parameters():
            p.add_(moved * torch.randn(p.shape))
        got = algorithm.loss(net, prepared, ctx).value
        dist, value = net["online"].both(prepared.obs)
    rows = {}  # (t, c): advantage
    for c in range(4):
        for start, stop in pieces(b.last[:, c].tolist(), b.mask[:, c].tolist()):
            g = (0.9 * b.discount[start:stop, c]).tolist()
            values = [row[c] for row in v[start : stop + 1]]
            found = returns.gae(b.reward[start:stop, c].tolist(), g, values, 0.8)
            rows |= {(start + i, c): a for i, a in enumerate(found)}
    mean = sum(rows.values()) / len(rows)
    deviation = math.sqrt(sum((a - mean) ** 2 for a in rows.values()) / (len(rows) - 1))
    outside = 0
    for (t, c), advantage in rows.items():
        i = 4 * t + c
        log_p, entropy = log_density(dist, i, prepared.action[i])
        ratio = math.exp(log_p - float(prepared.log_prob[i]))
        outside += abs(ratio - 1) > 0.2
        weighed = (advantage - mean) / (deviation + 1e-8) if normalize else advantage
        want = 1.3 * policy.clipped_surrogate(ratio, weighed, 0.2) - 0.03 * entropy
        want += 0.7 * 0.5 * (float(value[i]) - (advantage + v[t][c])) ** 2
        assert float(got[i]) == pytest.approx(want, rel=1e-3, abs=1e-4)
    assert 0 < outside < len(rows), "some ratios are clipped and some are not"
