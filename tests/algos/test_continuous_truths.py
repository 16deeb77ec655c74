"""The whole losses of SAC (continuous) and TD3 against plain loops over tests/truth: only what the
networks answer is taken from them."""

from __future__ import annotations

import math

import pytest
import torch

from ludus.algos.sac import soft_actor_critic
from ludus.algos.td3 import actor_critic
from tests.algos import test_sac as sac
from tests.algos import test_td3 as td3
from tests.truth import continuous as truth


def drawn(count: int) -> list:
    """The noise of the context's generator, as many draws [B, 2] as asked for."""
    rng = torch.Generator().manual_seed(7)
    return [torch.randn(6, 2, generator=rng).tolist() for _ in range(count)]


def units(action) -> list[float]:
    """An action of the box (-2, 2) x (0, 1) in units of [-1, 1]."""
    return [float(action[0]) / 2, (float(action[1]) - 0.5) / 0.5]


def asked(critic, obs, action: list[float]) -> list[float]:
    return [float(q) for q in critic(obs, torch.tensor([action]))]


@pytest.mark.accept(150)
@torch.no_grad()
def test_the_loss_of_sac_is_the_papers() -> None:
    algorithm, net, ctx = sac.built(sac.BOX, initial_temperature=0.4)
    b, online = sac.batch_of(sac.BOX), soft_actor_critic(net)
    got = algorithm.loss(net, b, ctx).value.tolist()
    after, now = drawn(2)
    for i in range(6):
        obs, then = b.obs[i : i + 1], b.next_obs[i : i + 1]
        mean, log_std = (x[0].tolist() for x in online.policy(then))
        action, log_pi = truth.squashed(mean, log_std, after[i])
        q = asked(net["target"], then, action)
        y = truth.soft_target(float(b.reward[i]), float(b.discount[i]), *q, 0.4, log_pi)
        taken = asked(online.critic, obs, units(b.action[i]))
        want = sum(0.5 * (x - y) ** 2 for x in taken)
        mean, log_std = (x[0].tolist() for x in online.policy(obs))
        action, log_pi = truth.squashed(mean, log_std, now[i])
        want += truth.soft_policy(*asked(online.critic, obs, action), 0.4, log_pi)
        want += truth.temperature(math.log(0.4), log_pi, -2.0)
        assert got[i] == pytest.approx(want, rel=1e-4, abs=1e-5)


@pytest.mark.accept(150)
@torch.no_grad()
def test_the_loss_of_td3_is_the_papers() -> None:
    algorithm, net, ctx = td3.built()
    b, online, target = td3.batch_of(), actor_critic(net, "online"), actor_critic(net, "target")
    got = algorithm.loss(net, b, ctx).value.tolist()
    (noise,) = drawn(1)
    for i in range(6):
        obs, then = b.obs[i : i + 1], b.next_obs[i : i + 1]
        chosen = target.policy(then)[0].tolist()
        action = truth.smoothed(chosen, [0.2 * e for e in noise[i]], 0.5)
        q = asked(target.critic, then, action)
        y = truth.clipped_double_q(float(b.reward[i]), float(b.discount[i]), *q)
        want = sum((x - y) ** 2 for x in asked(online.critic, obs, units(b.action[i])))
        want -= asked(online.critic, obs, online.policy(obs)[0].tolist())[0]
        assert got[i] == pytest.approx(want, rel=1e-4, abs=1e-5)
