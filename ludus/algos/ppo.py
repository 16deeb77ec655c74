"""Proximal policy optimisation for discrete, multi-discrete and continuous actions.

Schulman et al. 2017. Not here: normalisers (nets/normalize.py), epochs and minibatches (the
Learner, from the Plan).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from ludus import ops
from ludus.contract import Defaults, Fifo, Frozen, Plan, Unroll
from ludus.nets.init import initialize
from ludus.nets.inputs import over_time
from ludus.nets.policies import PolicyDist, ValueHead, build_policy_head
from ludus.nets.torsos import MLP, Auto, TorsoConfig, build_torso, features_of
from ludus.optim import Adam, Optimizer, build_optimizer
from ludus.schedules import Rate, ramp
from ludus.types import Ctx, EnvSpec, Loss, Step, Traj, Tree, map_fields, tree_map


class Config(Frozen):
    """Defaults are small-scale; papers' numbers are in ludus/presets/."""

    name: str = "ppo"
    torso: TorsoConfig = Auto(mlp=MLP(hidden=(64, 64), activation="tanh"))
    shared_torso: bool = False  # one torso for policy and value
    gamma: float = Field(default=0.99, ge=0, le=1)
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    rollout: int = Field(default=128, ge=1)  # rows per environment and iteration
    epochs: int = Field(default=4, ge=1)
    minibatches: int = Field(default=4, ge=1)
    clip: Rate = ramp(0.2)
    value_clip: float | None = Field(default=None, gt=0)
    policy_cost: float = Field(default=1.0, ge=0)  # weight of the clipped surrogate
    value_cost: float = Field(default=0.5, ge=0)
    entropy_cost: float = Field(default=0.0, ge=0)
    normalize_advantage: bool = True  # per minibatch
    optimizer: Optimizer = Adam(eps=1e-5)
    lr: Rate = ramp(3e-4)
    clip_norm: float = Field(default=0.5, ge=0)
    clip_by: Literal["global", "layer"] = "global"  # norm of all gradients, or of each tensor
    log_std: float = 0.0  # initial log standard deviation of continuous actions


class Batch(NamedTuple):
    """Rows [T,B] ready for minibatches; the Learner flattens, shuffles and cuts them."""

    obs: Tree
    action: Tensor
    log_prob: Tensor  # of the policy that acted
    advantage: Tensor
    target: Tensor  # return the value is regressed on
    value: Tensor  # before this sample's updates
    mask: Tensor
    action_mask: Tensor | None


class ActorCritic(nn.Module):
    def __init__(self, spec: EnvSpec, cfg: Config) -> None:
        super().__init__()
        self.action = spec.action
        self.torso = build_torso(cfg.torso, spec.obs)
        self.value_torso = None if cfg.shared_torso else build_torso(cfg.torso, spec.obs)
        width = features_of(self.torso)
        # Gain 0.01: a nearly uniform first policy, so that no action starts out favoured.
        self.policy = build_policy_head(width, spec.action, gain=0.01, log_std_init=cfg.log_std)
        self.value = ValueHead(width)

    def dist(self, obs: Tree, mask: Tensor | None = None) -> PolicyDist:
        return PolicyDist(self.policy(self.torso(obs)), self.action, mask)

    def values(self, obs: Tree) -> Tensor:
        """[B] from observations [B, ...]."""
        value: Tensor = self.value((self.value_torso or self.torso)(obs))
        return value

    def both(self, obs: Tree, mask: Tensor | None = None) -> tuple[PolicyDist, Tensor]:
        features = self.torso(obs)
        seen = features if self.value_torso is None else self.value_torso(obs)
        return PolicyDist(self.policy(features), self.action, mask), self.value(seen)


class PPO(Defaults):
    """Maximises E[min(r A, clip(r, 1 +- eps) A)] (eq. 7) over a few epochs of fresh rollouts."""

    def __init__(self, cfg: Config | None = None) -> None:
        self.cfg = cfg = cfg or Config()
        self.plan = Plan(
            view=Unroll(cfg.rollout),
            sampler=Fifo(),
            chunk=cfg.rollout,
            epochs=cfg.epochs,
            minibatches=cfg.minibatches,
            clip=cfg.clip_by if cfg.clip_norm else "none",
            clip_norm=cfg.clip_norm,
            schedules={"lr": cfg.lr, "clip": cfg.clip},
        )

    def build(self, spec: EnvSpec) -> nn.ModuleDict:
        net = nn.ModuleDict({"online": ActorCritic(spec, self.cfg)})
        initialize(net, torch.default_generator, "orthogonal")  # seeded by the Learner
        return net

    def optimizer(self, net: nn.ModuleDict) -> torch.optim.Optimizer:
        return build_optimizer(self.cfg.optimizer, net.parameters(), self.cfg.lr.start)

    def act(
        self, net: nn.ModuleDict, step: Step, state: Any, ctx: Ctx
    ) -> tuple[Tensor, dict[str, Tensor], Any]:
        dist = actor_critic(net).dist(step.obs, step.action_mask)
        if ctx.evaluating:
            return dist.mode(), {}, state
        action = dist.sample(ctx.rng)
        return action, {"log_prob": dist.log_prob(action)}, state

    def prepare(self, net: nn.ModuleDict, b: Traj, ctx: Ctx) -> Batch:
        value = over_time(actor_critic(net).values, b.obs)  # [T+1,B]
        advantage = ops.gae(
            b.reward, self.cfg.gamma * b.discount, value, self.cfg.gae_lambda, b.last
        )  # [T,B]
        mask = None if b.action_mask is None else b.action_mask[:-1]
        return Batch(
            tree_map(lambda x: x[:-1], b.obs),
            b.action,
            b.extras["log_prob"],
            advantage,
            advantage + value[:-1],
            value[:-1],
            b.mask,
            mask,
        )

    def loss(self, net: nn.ModuleDict, b: Batch, ctx: Ctx) -> Loss:
        if b.mask.dim() == 2:  # one epoch of one minibatch: the Learner hands over [T,B] as it is
            rows = self.loss(net, map_fields(lambda x: x.flatten(0, 1), b), ctx)
            return rows._replace(value=rows.value.view(b.mask.shape))
        cfg, m = self.cfg, b.mask.float()  # [B]
        dist, value = actor_critic(net).both(b.obs, b.action_mask)
        log_ratio = dist.log_prob(b.action) - b.log_prob
        ratio = log_ratio.exp()
        advantage = b.advantage
        if cfg.normalize_advantage:
            mean, variance = ctx.moments(advantage, m)
            advantage = (advantage - mean) * m / variance.sqrt().add(1e-8)
        clip = ctx.values["clip"]
        policy = ops.clipped_surrogate(ratio, advantage, clip)  # [B]
        entropy = dist.entropy()
        total = cfg.policy_cost * policy - cfg.entropy_cost * entropy
        total = total + cfg.value_cost * self._value_loss(value, b)
        with torch.no_grad():
            count = m.sum().clamp(min=1)
            metrics = {
                "entropy": (entropy * m).sum() / count,
                "clip_fraction": (((ratio - 1).abs() > clip) * m).sum() / count,
                # Schulman's low-variance estimator of KL(old || new).
                "approx_kl": ((ratio - 1 - log_ratio) * m).sum() / count,
            }
        return Loss(total, metrics)

    def _value_loss(self, value: Tensor, b: Batch) -> Tensor:
        """0.5 (V - target)^2, optionally not rewarding moves beyond +-value_clip."""
        error = (value - b.target) ** 2
        if self.cfg.value_clip is not None:
            near = b.value + (value - b.value).clamp(-self.cfg.value_clip, self.cfg.value_clip)
            error = torch.maximum(error, (near - b.target) ** 2)
        return 0.5 * error


def actor_critic(net: nn.ModuleDict) -> ActorCritic:
    found = net["online"]
    assert isinstance(found, ActorCritic)
    return found
