"""The smallest algorithm: one weight vector, a loss that is a plain product. Gradients of it are
known by hand, so that what the Learner does with them can be checked."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ludus.contract import Defaults, NStep, Plan, Uniform
from ludus.schedules import ramp
from ludus.types import ArraySpec, Discrete, EnvSpec, Loss, Transition

SPEC = EnvSpec("toy", ArraySpec((3,)), Discrete(2))


class Masked(NamedTuple):
    """Rows [T, B] as a rollout has them."""

    obs: Tensor
    mask: Tensor


class Two(nn.Module):
    """Two layers of three weights each, starting at 1."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(3))
        self.b = nn.Parameter(torch.ones(3))


class Toy(Defaults):
    """loss_i = obs_i . a + 10 obs_i . b, so d/da = obs and d/db = 10 obs."""

    def __init__(self, **plan) -> None:
        given = {"batch": 4, "capacity": 100, "schedules": {"lr": ramp(1.0)}, **plan}
        self.plan = Plan(given.pop("view", NStep(1)), given.pop("sampler", Uniform()), **given)
        self.seen: list = []  # batches; only a test may keep state here

    def build(self, spec):
        return nn.ModuleDict({"online": Two()})

    def optimizer(self, net):
        two = net["online"]
        groups = [{"params": [two.a], "name": "a"}, {"params": [two.b], "name": "b"}]
        return torch.optim.SGD(groups, lr=0.0)

    def act(self, net, step, state, ctx):
        return torch.zeros(len(step.first), dtype=torch.int64), {}, state

    def loss(self, net, batch, ctx):
        self.seen.append(batch)
        two = net["online"]
        value = batch.obs @ two.a + 10 * (batch.obs @ two.b)
        return Loss(value, {"rows": torch.tensor(float(len(batch.obs)))}, value.detach().abs())


def transition(obs) -> Transition:
    obs = torch.as_tensor(obs, dtype=torch.float32)
    n = len(obs)
    return Transition(obs, torch.zeros(n, dtype=torch.int64), torch.zeros(n), torch.ones(n), obs)
