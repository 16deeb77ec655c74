"""REINFORCE, with or without a learned baseline, on whole episodes.

Williams 1992; with a baseline Sutton & Barto 2018, section 13.4. The two differ in one setting.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ludus import ops
from ludus.contract import Defaults, Episode, Fifo, Frozen, Plan
from ludus.nets.actor_critic import ActorCritic, ValueTorso
from ludus.nets.init import initialize
from ludus.nets.torsos import MLP, Auto, TorsoConfig
from ludus.optim import Adam, Optimizer, build_optimizer
from ludus.schedules import Rate, ramp
from ludus.types import Ctx, EnvSpec, Loss, Step, Traj


class Config(Frozen):
    """Defaults are small-scale, without what the paper does not have."""

    name: str = "reinforce"
    torso: TorsoConfig = Auto(mlp=MLP(hidden=(64, 64), activation="tanh"))
    baseline: bool = False  # a value with its own net, subtracted from the returns
    gamma: float = Field(default=0.99, ge=0, le=1)
    episodes: int = Field(default=1, ge=1)  # of each environment per update
    # Returns (less the baseline) with mean 0 and deviation 1 over the rows of an update.
    normalize_returns: bool = False
    entropy_cost: float = Field(default=0.0, ge=0)
    optimizer: Optimizer = Adam()
    lr: Rate = ramp(1e-3)
    lr_value: Rate = ramp(1e-3)  # of the baseline's net
    clip_norm: float = Field(default=0.0, ge=0)
    clip_by: Literal["global", "group", "layer"] = "global"  # group: policy and baseline apart
    log_std: float = 0.0  # initial log standard deviation of continuous actions


class Reinforce(Defaults):
    """Maximises Σ_t (G_t - b(s_t)) log π(a_t|s_t), the mean over episodes that are used once."""

    def __init__(self, cfg: Config | None = None) -> None:
        self.cfg = cfg = cfg or Config()
        own = {"lr_value": cfg.lr_value} if cfg.baseline else {}
        self.plan = Plan(
            view=Episode(cfg.episodes),
            sampler=Fifo(),
            chunk=1,  # the update follows the row that completes the last episode
            capacity=1,  # of the episodes that one environment is ahead, keep few: they are stale
            clip=cfg.clip_by if cfg.clip_norm else "none",
            clip_norm=cfg.clip_norm,
            schedules={"lr": cfg.lr, **own},
        )

    def build(self, spec: EnvSpec) -> nn.ModuleDict:
        cfg = self.cfg
        value: ValueTorso = "own" if cfg.baseline else "none"
        net = nn.ModuleDict({"online": ActorCritic(spec, cfg.torso, value, cfg.log_std)})
        initialize(net, torch.default_generator, "orthogonal")  # seeded by the Learner
        return net

    def optimizer(self, net: nn.ModuleDict) -> torch.optim.Optimizer:
        online = actor_critic(net)
        groups = [{"params": online.policy_parameters(), "name": "policy"}]
        if self.cfg.baseline:
            groups.append({"params": online.value_parameters(), "name": "value"})
        return build_optimizer(self.cfg.optimizer, groups, self.cfg.lr.start)

    def act(
        self, net: nn.ModuleDict, step: Step, state: Any, ctx: Ctx
    ) -> tuple[Tensor, dict[str, Tensor], Any]:
        dist = actor_critic(net).dist(step.obs, step.action_mask)
        return (dist.mode() if ctx.evaluating else dist.sample(ctx.rng)), {}, state

    def loss(self, net: nn.ModuleDict, b: Traj, ctx: Ctx) -> Loss:
        cfg, m = self.cfg, b.mask.float()  # [T,B]
        dist, value = actor_critic(net).unroll(b.obs, b.action_mask)
        after = torch.zeros_like(b.reward) if value is None else value[1:].detach()
        # λ = 1: all rewards to the episode's end. A truncated episode goes on: its end is worth the
        # baseline's value, or nothing where there is none.
        returns = ops.lambda_returns(b.reward, cfg.gamma * b.discount, after, 1.0, b.last)
        error = returns if value is None else returns - value[:-1]
        error = torch.where(b.mask, error, 0.0)  # the padding after an episode may hold anything
        advantage = error.detach()
        if cfg.normalize_returns:
            mean, variance = ctx.moments(advantage, m)
            advantage = (advantage - mean) * m / variance.sqrt().add(1e-8)
        entropy = dist.entropy()
        total = -dist.log_prob(b.action) * advantage - cfg.entropy_cost * entropy
        if value is not None:
            total = total + 0.5 * error**2
        with torch.no_grad():
            count = m.sum().clamp(min=1)
            metrics = {"entropy": (m * entropy).sum() / count}
            if value is not None:
                metrics["value_loss"] = (0.5 * error**2).sum() / count
        return Loss((m * total).sum(0), metrics)  # [B]


def actor_critic(net: nn.ModuleDict) -> ActorCritic:
    found = net["online"]
    assert isinstance(found, ActorCritic)
    return found
