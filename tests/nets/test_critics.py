"""Batched critics equal the single networks they stand for."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from ludus.nets.critics import Critic, EnsembleLinear, soft_update
from ludus.nets.torsos import MLP, Auto
from ludus.types import ArraySpec, Continuous, Discrete, EnvSpec

BOX = Continuous((2,), (-1.0, -1.0), (1.0, 1.0))
VECTOR = EnvSpec("Made-v0", ArraySpec((3,)), BOX)


def alone(critic: Critic, member: int, x: torch.Tensor) -> torch.Tensor:
    *hidden, last = critic.layers
    for layer in hidden:
        x = functional.relu(x @ layer.weight[member] + layer.bias[member])
    return x @ last.weight[member] + last.bias[member]


def test_each_member_is_a_network_of_its_own() -> None:
    critic = Critic(VECTOR, MLP(hidden=(16, 8)))
    obs, action = torch.randn(5, 3), torch.rand(5, 2)
    q = critic(obs, action)
    assert q.shape == (2, 5)
    x = torch.cat((obs, action), -1)
    for member in range(2):
        torch.testing.assert_close(q[member], alone(critic, member, x)[:, 0])
    assert not torch.equal(q[0], q[1]), "they begin with different weights"
    torch.testing.assert_close(critic(obs, action, 1), q[:1])


def test_discrete_critics_value_every_action() -> None:
    critic = Critic(EnvSpec("Made-v0", ArraySpec((3,)), Discrete(4)), Auto(mlp=MLP(hidden=(8,))))
    obs = torch.randn(5, 3)
    q = critic(obs)
    assert q.shape == (2, 5, 4)
    torch.testing.assert_close(q[1], alone(critic, 1, obs))


def test_other_observations_go_through_torsos() -> None:
    obs = {"a": ArraySpec((3,)), "b": ArraySpec((2, 2), "float64")}
    spec = EnvSpec("Made-v0", obs, BOX)
    critic = Critic(spec, MLP(hidden=(8,)))
    seen = {"a": torch.randn(5, 3), "b": torch.randn(5, 2, 2).double()}
    assert critic(seen, torch.rand(5, 2)).shape == (2, 5)
    assert critic(seen, torch.rand(5, 2), 1).shape == (1, 5)


def test_initial_weights_are_those_of_torch_layers() -> None:
    torch.manual_seed(0)
    layer = EnsembleLinear(2, 100, 200)
    assert 0.099 < layer.weight.abs().max() <= 0.1 and layer.bias.abs().max() <= 0.1
    assert float(layer.weight.detach().std()) == pytest.approx(0.1 / math.sqrt(3), rel=0.02)


def test_soft_update_moves_a_share_of_the_way() -> None:
    source, target = Critic(VECTOR, MLP(hidden=(4,))), Critic(VECTOR, MLP(hidden=(4,)))
    before = [p.clone() for p in target.parameters()]
    soft_update(source, target, 0.25)
    for old, new, goal in zip(before, target.parameters(), source.parameters(), strict=True):
        torch.testing.assert_close(new, 0.75 * old + 0.25 * goal)
    soft_update(source, target, 1.0)
    assert all(
        torch.equal(a, b) for a, b in zip(source.parameters(), target.parameters(), strict=True)
    )
