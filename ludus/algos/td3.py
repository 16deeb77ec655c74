"""Twin delayed deep deterministic policy gradients (Fujimoto et al. 2018): twin critics, a policy
that steps less often than they do, and noise on the actions of its target.

Not here: the delay (Plan.periods), the box of actions (nets/squashed.py), the twin critics
(nets/critics.py), returns and time limits (replay views).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ludus import ops
from ludus.contract import Defaults, Frozen, NStep, Plan, Replay, Uniform
from ludus.nets.critics import Critic, soft_update
from ludus.nets.squashed import ActionBox, SquashedMean, uniform_unit
from ludus.nets.torsos import MLP, Auto, TorsoConfig
from ludus.optim import Adam, Optimizer, build_optimizer
from ludus.schedules import Rate, ramp
from ludus.types import Ctx, Discrete, EnvSpec, Loss, Step, Transition, Tree
from ludus.units import Count


class Config(Frozen):
    """Defaults: Fujimoto et al. 2018, table 3 and their code's networks, with a short warm-up.
    Noise is in units of [-1, 1], the box's own half width in each dimension."""

    name: str = "td3"
    torso: TorsoConfig = Auto(mlp=MLP(hidden=(256, 256)))  # of the policy and of each critic
    gamma: float = Field(default=0.99, ge=0, le=1)
    n_step: int = Field(default=1, ge=1)
    tau: float = Field(default=0.005, gt=0, le=1)  # share of the nets in their targets
    policy_delay: int = Field(default=2, ge=1)  # updates per step of the policy and the targets
    noise: Rate = ramp(0.1)  # deviation of exploration
    target_noise: float = Field(default=0.2, ge=0)  # deviation of the target policy's smoothing
    target_noise_clip: float = Field(default=0.5, ge=0)
    replay: Replay = Uniform()
    capacity: Count = Field(default=1_000_000, ge=1)  # transitions
    batch: int = Field(default=256, ge=1)
    replay_ratio: float = Field(default=256.0, gt=0)  # samples drawn per step inserted
    warmup: Count = Field(default=1_000, ge=1)  # steps before the first update
    chunk: int = Field(default=0, ge=0)  # rows per environment and weights; 0: for one update
    random_warmup: bool = True  # act at random until the warm-up is over
    optimizer: Optimizer = Adam()
    lr: Rate = ramp(3e-4)
    lr_policy: Rate | None = None  # None: as lr
    clip_norm: float = Field(default=0.0, ge=0)  # 0 = off
    # Norm of all gradients, of each group's (critic, policy), or of each tensor.
    clip_by: Literal["global", "group", "layer"] = "global"

    @model_validator(mode="after")
    def _fits(self) -> Config:
        if self.warmup > self.capacity:
            raise ValueError(
                f"warmup {self.warmup} exceeds the capacity {self.capacity}, "
                "so learning would never start"
            )
        return self


class ActorCritic(nn.Module):
    """A deterministic policy and twin critics."""

    def __init__(self, spec: EnvSpec, cfg: Config) -> None:
        super().__init__()
        instead = "sac" if isinstance(spec.action, Discrete) else "ppo"
        self.box = ActionBox(cfg.name, spec, instead)
        self.policy = SquashedMean(spec, cfg.torso, self.box.dims)
        self.critic = Critic(spec, cfg.torso)

    def values(self, obs: Tree) -> Tensor:
        """[B]: the smaller critic's value of the policy."""
        value: Tensor = self.critic(obs, self.policy(obs)).amin(0)
        return value


class TD3(Defaults):
    """Clipped double Q-learning for a deterministic policy."""

    def __init__(self, cfg: Config | None = None) -> None:
        self.cfg = cfg = cfg or Config()
        schedules = {"lr": cfg.lr, "noise": cfg.noise}
        if cfg.lr_policy is not None:
            schedules["lr_policy"] = cfg.lr_policy
        self.plan = Plan(
            view=NStep(cfg.n_step, cfg.gamma),
            sampler=cfg.replay,
            batch=cfg.batch,
            capacity=cfg.capacity,
            chunk=cfg.chunk,
            replay_ratio=cfg.replay_ratio,
            warmup=cfg.warmup,
            clip=cfg.clip_by if cfg.clip_norm else "none",
            clip_norm=cfg.clip_norm,
            periods={"policy": cfg.policy_delay},
            schedules=schedules,
        )

    def build(self, spec: EnvSpec) -> nn.ModuleDict:
        online, target = ActorCritic(spec, self.cfg), ActorCritic(spec, self.cfg)
        target.requires_grad_(False).load_state_dict(online.state_dict())
        return nn.ModuleDict({"online": online, "target": target})

    def optimizer(self, net: nn.ModuleDict) -> torch.optim.Optimizer:
        online = actor_critic(net, "online")
        groups = [
            {"name": "critic", "params": list(online.critic.parameters())},
            {"name": "policy", "params": list(online.policy.parameters())},
        ]
        return build_optimizer(self.cfg.optimizer, groups, self.cfg.lr.start)

    def act(
        self, net: nn.ModuleDict, step: Step, state: Any, ctx: Ctx
    ) -> tuple[Tensor, dict[str, Tensor], Any]:
        online = actor_critic(net, "online")
        unit = online.policy(step.obs)
        if not ctx.evaluating:
            noise = torch.empty_like(unit).normal_(generator=ctx.rng)
            unit = torch.addcmul(unit, noise, ctx.values["noise"]).clamp(-1, 1)
            if self.cfg.random_warmup:
                unit = torch.where(ctx.values["warming"] > 0, uniform_unit(unit, ctx.rng), unit)
        return online.box.to_env(unit), {}, state

    def loss(self, net: nn.ModuleDict, b: Transition, ctx: Ctx) -> Loss:
        online, target = actor_critic(net, "online"), actor_critic(net, "target")
        with torch.no_grad():
            action = self._smoothed(target.policy(b.next_obs), ctx.rng)
            y = b.reward + b.discount * target.critic(b.next_obs, action).amin(0)
            taken = online.box.to_unit(b.action)
        q = online.critic(b.obs, taken)  # [E,B]
        error = q - y
        value = error.square().sum(0)
        if "policy" in ctx.stepping:  # by the first critic alone
            value = value - ops.frozen(online.critic)(b.obs, online.policy(b.obs), 1)[0]
        return Loss(value, {"q": q.detach().mean()}, error.detach().abs().mean(0))

    def _smoothed(self, action: Tensor, rng: torch.Generator) -> Tensor:
        """The target's action with clipped noise, within the box (algorithm 1)."""
        cfg = self.cfg
        noise = torch.empty_like(action).normal_(0, cfg.target_noise, generator=rng)
        noise = noise.clamp(-cfg.target_noise_clip, cfg.target_noise_clip)
        return (action + noise).clamp(-1, 1)

    def after_update(self, net: nn.ModuleDict, updates: int) -> None:
        if updates % self.cfg.policy_delay == 0:
            soft_update(net["online"], net["target"], self.cfg.tau)


def actor_critic(net: nn.ModuleDict, which: str) -> ActorCritic:
    found = net[which]
    assert isinstance(found, ActorCritic)
    return found
