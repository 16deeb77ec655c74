"""Soft actor-critic for continuous actions (Haarnoja et al. 2018b) and discrete ones
(Christodoulou 2019): twin critics, and a temperature that keeps the policy's entropy at a target.

Not here: squashing and its log-probability (nets/squashed.py), the twin critics (nets/critics.py),
returns and time limits (replay views).
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ludus import ops
from ludus.contract import Defaults, Frozen, NStep, Plan, Replay, Uniform
from ludus.nets.critics import Critic, soft_update
from ludus.nets.policies import PolicyDist
from ludus.nets.squashed import ActionBox, SquashedGaussian, uniform_unit
from ludus.nets.torsos import MLP, Auto, TorsoConfig, TorsoModel, build_torso, features_of, in_full
from ludus.optim import Adam, Optimizer, build_optimizer
from ludus.schedules import Rate, Schedule, ramp
from ludus.types import Ctx, Discrete, EnvSpec, Loss, Step, Transition, Tree
from ludus.units import Count


class Config(Frozen):
    """Defaults: Haarnoja et al. 2018b, table 1, with a short warm-up; others in ludus/presets/."""

    name: str = "sac"
    torso: TorsoConfig = Auto(mlp=MLP(hidden=(256, 256)))  # of the policy and of each critic
    gamma: float = Field(default=0.99, ge=0, le=1)
    n_step: int = Field(default=1, ge=1)
    tau: float = Field(default=0.005, gt=0, le=1)  # share of the critics in their targets
    target_period: int = Field(default=1, ge=1)  # updates between updates of the targets
    temperature: Rate | None = None  # fixed; None: learned
    initial_temperature: float = Field(default=1.0, gt=0)
    target_entropy: float | None = None  # None: -|A|, or entropy_ratio * log |A| if discrete
    entropy_ratio: float = Field(default=0.89, ge=0, le=1)  # of the entropy of random actions
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
    lr_temperature: Rate | None = None
    clip_norm: float = Field(default=0.0, ge=0)  # 0 = off
    # Norm of all gradients, of each group's (critic, policy, temperature), or of each tensor.
    clip_by: Literal["global", "group", "layer"] = "global"

    @model_validator(mode="after")
    def _fits(self) -> Config:
        if self.warmup > self.capacity:
            raise ValueError(
                f"warmup {self.warmup} exceeds the capacity {self.capacity}, "
                "so learning would never start"
            )
        return self


class DiscretePolicy(nn.Module):
    """Logits of the actions."""

    def __init__(self, spec: EnvSpec, torso: TorsoModel) -> None:
        super().__init__()
        self.action = spec.action
        self.torso = build_torso(torso, spec.obs)
        self.head = nn.Linear(features_of(self.torso), spec.num_actions)

    def forward(self, obs: Tree, mask: Tensor | None = None) -> PolicyDist:
        return PolicyDist(self.logits(obs), self.action, mask)

    def logits(self, obs: Tree) -> Tensor:
        logits: Tensor = in_full(self.head, self.torso(obs))
        return logits


class SoftActorCritic(nn.Module):
    """The parts that learn: policy, twin critics, and the temperature if it is not fixed."""

    def __init__(self, spec: EnvSpec, cfg: Config) -> None:
        super().__init__()
        self.box: ActionBox | None = None
        self.policy: SquashedGaussian | DiscretePolicy
        if isinstance(spec.action, Discrete):
            self.policy = DiscretePolicy(spec, cfg.torso)
        else:
            self.box = ActionBox(cfg.name, spec, instead="ppo")
            self.policy = SquashedGaussian(spec, cfg.torso, self.box.dims)
        self.critic = Critic(spec, cfg.torso)
        self.log_temperature: nn.Parameter | None = None
        if cfg.temperature is None:
            start = math.log(cfg.initial_temperature)
            self.log_temperature = nn.Parameter(torch.tensor(start))

    def values(self, obs: Tree) -> Tensor:
        """[B]: the smaller critic's value of the policy, without its entropy."""
        value: Tensor
        if isinstance(self.policy, DiscretePolicy):
            pi = self.policy(obs).parts[0].exp()
            value = (pi * self.critic(obs).amin(0)).sum(-1)
        else:
            value = self.critic(obs, self.policy.mode(obs)).amin(0)
        return value


class Terms(NamedTuple):
    """What the two kinds of actions compute differently, [B] each."""

    q: Tensor  # [E,B] of the actions taken
    target: Tensor  # that both are regressed on
    policy: Tensor  # loss of the policy
    entropy: Tensor  # of the policy, detached
    wanted: Tensor | float  # entropy


class SAC(Defaults):
    """Maximises E[sum gamma^t (r + alpha H(pi))]."""

    def __init__(self, cfg: Config | None = None) -> None:
        self.cfg = cfg = cfg or Config()
        optional = {
            "lr_policy": cfg.lr_policy,
            "lr_temperature": cfg.lr_temperature,
            "temperature": cfg.temperature,
        }
        given: dict[str, Schedule] = {k: v for k, v in optional.items() if v is not None}
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
            schedules={"lr": cfg.lr, **given},
        )

    def build(self, spec: EnvSpec) -> nn.ModuleDict:
        online, target = SoftActorCritic(spec, self.cfg), Critic(spec, self.cfg.torso)
        target.requires_grad_(False).load_state_dict(online.critic.state_dict())
        return nn.ModuleDict({"online": online, "target": target})

    def optimizer(self, net: nn.ModuleDict) -> torch.optim.Optimizer:
        online = soft_actor_critic(net)
        groups = [
            {"name": "critic", "params": list(online.critic.parameters())},
            {"name": "policy", "params": list(online.policy.parameters())},
        ]
        if online.log_temperature is not None:
            groups.append({"name": "temperature", "params": [online.log_temperature]})
        return build_optimizer(self.cfg.optimizer, groups, self.cfg.lr.start)

    def act(
        self, net: nn.ModuleDict, step: Step, state: Any, ctx: Ctx
    ) -> tuple[Tensor, dict[str, Tensor], Any]:
        online = soft_actor_critic(net)
        policy, box = online.policy, online.box
        random = self.cfg.random_warmup and not ctx.evaluating
        if isinstance(policy, DiscretePolicy):
            logits = policy.logits(step.obs)
            if random:
                logits = logits * (1 - ctx.values["warming"])
            dist = PolicyDist(logits, policy.action, step.action_mask)
            return dist.mode() if ctx.evaluating else dist.sample(ctx.rng), {}, state
        assert box is not None
        if ctx.evaluating:
            return box.to_env(policy.mode(step.obs)), {}, state
        unit, _ = policy.sample(step.obs, ctx.rng)
        if random:
            unit = torch.where(ctx.values["warming"] > 0, uniform_unit(unit, ctx.rng), unit)
        return box.to_env(unit), {}, state

    def loss(self, net: nn.ModuleDict, b: Transition, ctx: Ctx) -> Loss:
        online = soft_actor_critic(net)
        log_alpha = online.log_temperature
        alpha = ctx.values["temperature"] if log_alpha is None else log_alpha.detach().exp()
        kind = self._discrete if isinstance(online.policy, DiscretePolicy) else self._continuous
        terms = kind(online, net["target"], b, alpha, ctx)
        error = terms.q - terms.target  # [E,B]
        value = 0.5 * error.square().sum(0) + terms.policy
        if log_alpha is not None:
            # Lower where the policy is more random than wanted, higher where it is less.
            value = value + log_alpha * (terms.entropy - terms.wanted)
        metrics = {
            "q": terms.q.detach().mean(),
            "entropy": terms.entropy.mean(),
            "temperature": alpha.clone(),
        }
        return Loss(value, metrics, error.detach().abs().mean(0))

    def _continuous(
        self, online: SoftActorCritic, target: nn.Module, b: Transition, alpha: Tensor, ctx: Ctx
    ) -> Terms:
        """Haarnoja et al. 2018b, eq. 5 to 7 and 18."""
        policy, box = online.policy, online.box
        assert isinstance(policy, SquashedGaussian) and box is not None
        with torch.no_grad():
            action, log_pi = policy.sample(b.next_obs, ctx.rng)
            value = target(b.next_obs, action).amin(0) - alpha * log_pi
            y = b.reward + b.discount * value
            taken = box.to_unit(b.action)
        q = online.critic(b.obs, taken)
        action, log_pi = policy.sample(b.obs, ctx.rng)
        best = ops.frozen(online.critic)(b.obs, action).amin(0)
        wanted = self.cfg.target_entropy
        wanted = -float(box.dims) if wanted is None else wanted
        return Terms(q, y, alpha * log_pi - best, -log_pi.detach(), wanted)

    def _discrete(
        self, online: SoftActorCritic, target: nn.Module, b: Transition, alpha: Tensor, ctx: Ctx
    ) -> Terms:
        """Christodoulou 2019, eq. 10 to 12: expectations over the actions instead of samples."""
        policy = online.policy
        assert isinstance(policy, DiscretePolicy)
        with torch.no_grad():
            log_pi = policy(b.next_obs, b.next_action_mask).parts[0]  # [B,A]
            y = b.reward + b.discount * _soft_value(target(b.next_obs).amin(0), log_pi, alpha)
        q = online.critic(b.obs)  # [E,B,A]
        log_pi = policy(b.obs, b.action_mask).parts[0]
        loss = -_soft_value(q.detach().amin(0), log_pi, alpha)
        entropy = -(log_pi.exp() * log_pi).sum(-1).detach()
        action = b.action.expand(len(q), -1)
        return Terms(ops.taken(q, action), y, loss, entropy, self._wanted(b, q.shape[-1]))

    def _wanted(self, b: Transition, actions: int) -> Tensor | float:
        """A share of the entropy of random actions, of those that a state allows."""
        if self.cfg.target_entropy is not None:
            return self.cfg.target_entropy
        if b.action_mask is None:
            return self.cfg.entropy_ratio * math.log(actions)
        return self.cfg.entropy_ratio * b.action_mask.sum(-1).clamp(min=1).log()

    def after_update(self, net: nn.ModuleDict, updates: int) -> None:
        if updates % self.cfg.target_period == 0:
            soft_update(soft_actor_critic(net).critic, net["target"], self.cfg.tau)


def _soft_value(q: Tensor, log_pi: Tensor, alpha: Tensor) -> Tensor:
    """sum_a pi(a) (Q(a) - alpha log pi(a)): [B, A] to [B]. The logarithm of a forbidden action is
    near the least float, and times alpha it would be infinite."""
    pi = log_pi.exp()
    return (pi * (q - alpha * torch.where(pi > 0, log_pi, 0.0))).sum(-1)


def soft_actor_critic(net: nn.ModuleDict) -> SoftActorCritic:
    found = net["online"]
    assert isinstance(found, SoftActorCritic)
    return found
