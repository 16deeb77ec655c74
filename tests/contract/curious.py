"""A small algorithm with all that an actor can have: `after_step`, and three kinds of state.

Every environment has a bandit over arms (how often it acts at random), a memory of its episode, and
an intrinsic reward: the distance of the true next observation from the nearest in memory.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import ludus
from ludus import ops
from ludus.contract import ActorState, Defaults, Fifo, Frozen, Plan, Unroll
from ludus.nets.inputs import over_time
from ludus.optim import Adam, build_optimizer
from ludus.schedules import Ramp, ramp
from ludus.types import Loss

ARMS = 3


class Config(Frozen):
    name: str = "curious"
    unroll: int = 4
    memory: int = 8  # observations of this episode
    lr: Ramp = ramp("1e-2->0")


class Episodic(NamedTuple):
    arm: Tensor  # [n] of this episode
    length: Tensor  # [n]
    seen: Tensor  # [n, memory, F], written in place


class Bandit(NamedTuple):
    counts: Tensor  # [n, ARMS]
    scores: Tensor  # [n, ARMS]


class Net(nn.Module):
    def __init__(self, features: int, actions: int) -> None:
        super().__init__()
        self.layer = nn.Linear(features + 1, actions)

    def forward(self, obs: Tensor, trace: Tensor) -> Tensor:
        return self.layer(torch.cat([obs.flatten(1).float(), trace[:, None]], -1))


def features(obs: Tensor) -> Tensor:
    return obs.flatten(1).float()


class Curious(Defaults):
    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        self.plan = Plan(
            Unroll(cfg.unroll), Fifo(), chunk=cfg.unroll, hogwild=True, schedules={"lr": cfg.lr}
        )

    def build(self, spec):
        return nn.ModuleDict({"online": Net(math.prod(spec.obs.seen_shape), spec.num_actions)})

    def optimizer(self, net):
        return build_optimizer(Adam(), net.parameters(), self.cfg.lr.start)

    def begin(self, n: int, ctx) -> Any:
        none = torch.zeros(n, dtype=torch.int64)
        size = math.prod(ctx.spec.obs.seen_shape)
        memory = Episodic(none, none.clone(), torch.zeros(n, self.cfg.memory, size))
        bandit = Bandit(torch.zeros(n, ARMS), torch.zeros(n, ARMS))
        return ActorState(stored=torch.zeros(n), private=memory, lasting=bandit)

    def act(self, net, step, state, ctx):
        trace, memory, bandit = state
        trace = torch.where(step.first, 0.0, trace)
        mean = bandit.scores / bandit.counts.clamp(min=1)
        noise = torch.rand(mean.shape, generator=ctx.rng)
        drawn = (mean + noise / (1 + bandit.counts)).argmax(-1)
        arm = torch.where(step.first, drawn, memory.arm)
        pulled = nn.functional.one_hot(arm, ARMS) * step.first[:, None]
        bandit = bandit._replace(counts=bandit.counts + pulled)
        memory = memory._replace(arm=arm, length=torch.where(step.first, 0, memory.length))
        logits = net["online"](step.obs, trace)
        action = torch.multinomial((logits / (1 + arm[:, None])).softmax(-1), 1, generator=ctx.rng)
        trace = 0.5 * trace + features(step.obs)[:, 0]
        return action[:, 0], {"arm": arm}, ActorState(trace, memory, bandit)

    def after_step(self, net, step, action, next, state, ctx):
        memory, bandit = state.private, state.lasting
        real = ~(step.dummy | next.first)
        apart = (memory.seen - features(next.obs)[:, None]).abs().sum(-1)  # [n, memory]
        places = torch.arange(self.cfg.memory)
        nearest = apart.masked_fill(places >= memory.length[:, None], 1e3).min(-1).values
        here = (places == memory.length[:, None] % self.cfg.memory)[..., None]
        memory.seen.copy_(torch.where(here, features(next.obs)[:, None], memory.seen))
        chosen = nn.functional.one_hot(memory.arm, ARMS)
        earned = (next.prev_raw_reward * real)[:, None] * chosen
        extras = {
            "novelty": nearest,
            "reached": features(next.obs).sum(-1),
            "left": features(step.obs).sum(-1),
            "paid": next.prev_reward + (next.prev_action == action).float(),
            "ended": next.prev_last,
        }
        memory = memory._replace(length=memory.length + real)
        bandit = bandit._replace(scores=bandit.scores + earned)
        return extras, ActorState(state.stored, memory, bandit)

    def env_info(self, env, state, ctx):
        pulls = state.lasting.counts.sum()
        return {"arm": float(state.private.arm), "pulls": float(pulls)}

    def loss(self, net, b, ctx):
        trace = torch.stack([b.state] * b.reward.shape[0])  # [T, B]
        logits = over_time(net["online"], b.obs[:-1], trace.flatten())
        gain = b.reward + 0.1 * b.extras["novelty"].clamp(max=1)
        return Loss(-ops.log_prob(logits, b.action) * gain)


ENTRY = ludus.Entry(
    "curious", "tests.contract.curious:Curious", "tests.contract.curious:Config", "A test"
)
