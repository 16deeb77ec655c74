"""Advantage actor-critic in one process: one-step or n-step, batched over environments.

Sutton & Barto 2018, section 13.5 (`actor-critic`, one step); Mnih et al. 2016, algorithm S3, with
synchronous actors (`a2c`, n steps). The two differ in their settings.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ludus import ops
from ludus.contract import Defaults, Fifo, Frozen, Plan, Unroll
from ludus.nets.actor_critic import ActorCritic, ValueTorso
from ludus.nets.init import initialize
from ludus.nets.torsos import MLP, Auto, TorsoConfig
from ludus.optim import Optimizer, RMSProp, build_optimizer
from ludus.schedules import Rate, ramp
from ludus.types import Ctx, EnvSpec, Loss, Step, Traj


class Config(Frozen):
    """Defaults are stable-baselines3's; papers' numbers are in ludus/presets/."""

    name: str = "a2c"
    torso: TorsoConfig = Auto(mlp=MLP(hidden=(64, 64), activation="tanh"))
    shared_torso: bool = False  # one torso for policy and value
    gamma: float = Field(default=0.99, ge=0, le=1)
    n_steps: int = Field(default=5, ge=1)  # rows of each environment between updates
    gae_lambda: float = Field(default=1.0, ge=0, le=1)  # 1: the n-step return, 0: the TD error
    value_cost: float = Field(default=0.5, ge=0)
    entropy_cost: float = Field(default=0.0, ge=0)
    normalize_advantage: bool = False  # over the rows of an update
    # torch.optim.RMSprop's epsilon of 1e-5 is outside the root, ours is inside.
    optimizer: Optimizer = RMSProp(eps=1e-10)
    lr: Rate = ramp(7e-4)
    lr_value: Rate | None = None  # of the value's net; unset: lr
    clip_norm: float = Field(default=0.5, ge=0)
    clip_by: Literal["global", "group", "layer"] = "global"  # group: policy and value apart
    log_std: float = 0.0  # initial log standard deviation of continuous actions

    @model_validator(mode="after")
    def _check_groups(self) -> Config:
        if self.shared_torso and (self.lr_value is not None or self.clip_by == "group"):
            raise ValueError("lr_value and clip_by=group need shared_torso=false")
        return self

    @property
    def grouped(self) -> bool:
        """Whether policy and value are two groups of the optimizer."""
        return self.lr_value is not None or self.clip_by == "group"


class A2C(Defaults):
    """Maximises log π(a|s) A + β H(π) and fits V, on `n_steps` fresh rows of each environment."""

    def __init__(self, cfg: Config | None = None) -> None:
        self.cfg = cfg = cfg or Config()
        own = {} if cfg.lr_value is None else {"lr_value": cfg.lr_value}
        self.plan = Plan(
            view=Unroll(cfg.n_steps),
            sampler=Fifo(),
            chunk=cfg.n_steps,
            clip=cfg.clip_by if cfg.clip_norm else "none",
            clip_norm=cfg.clip_norm,
            schedules={"lr": cfg.lr, **own},
        )

    def build(self, spec: EnvSpec) -> nn.ModuleDict:
        cfg = self.cfg
        value: ValueTorso = "shared" if cfg.shared_torso else "own"
        net = nn.ModuleDict({"online": ActorCritic(spec, cfg.torso, value, cfg.log_std)})
        initialize(net, torch.default_generator, "orthogonal")  # seeded by the Learner
        return net

    def optimizer(self, net: nn.ModuleDict) -> torch.optim.Optimizer:
        cfg, online = self.cfg, actor_critic(net)
        params: Any = net.parameters()
        if cfg.grouped:
            params = [
                {"params": online.policy_parameters(), "name": "policy"},
                {"params": online.value_parameters(), "name": "value"},
            ]
        return build_optimizer(cfg.optimizer, params, cfg.lr.start)

    def act(
        self, net: nn.ModuleDict, step: Step, state: Any, ctx: Ctx
    ) -> tuple[Tensor, dict[str, Tensor], Any]:
        dist = actor_critic(net).dist(step.obs, step.action_mask)
        return (dist.mode() if ctx.evaluating else dist.sample(ctx.rng)), {}, state

    def loss(self, net: nn.ModuleDict, b: Traj, ctx: Ctx) -> Loss:
        cfg, m = self.cfg, b.mask.float()  # [T,B]
        dist, value = actor_critic(net).unroll(b.obs, b.action_mask)
        assert value is not None
        advantage = ops.gae(
            b.reward, cfg.gamma * b.discount, value.detach(), cfg.gae_lambda, b.last
        )
        # A dummy row may hold anything, so it is cut out here, not multiplied by 0 later.
        advantage = torch.where(b.mask, advantage, 0.0)  # [T,B]
        error = advantage + value[:-1].detach() - value[:-1]  # of the n-step (or λ-) return
        if cfg.normalize_advantage:
            mean, variance = ctx.moments(advantage, m)
            advantage = (advantage - mean) * m / variance.sqrt().add(1e-8)
        entropy = dist.entropy()
        policy = -dist.log_prob(b.action) * advantage
        total = policy + cfg.value_cost * error**2 - cfg.entropy_cost * entropy
        with torch.no_grad():
            count = m.sum().clamp(min=1)
            metrics = {
                "entropy": (m * entropy).sum() / count,
                "value_loss": 0.5 * (m * error**2).sum() / count,
            }
        return Loss(total, metrics)  # [T,B]


def actor_critic(net: nn.ModuleDict) -> ActorCritic:
    found = net["online"]
    assert isinstance(found, ActorCritic)
    return found
