"""Proximal policy optimisation for discrete, multi-discrete and continuous actions, feed-forward or
with an LSTM (recurrent-ppo).

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
from ludus.nets.init import Scheme, initialize
from ludus.nets.inputs import MAX_WIDTH, over_time
from ludus.nets.policies import PolicyDist, ValueHead, build_policy_head
from ludus.nets.recurrent import LSTMCore
from ludus.nets.torsos import MLP, Auto, TorsoConfig, build_torso, features_of
from ludus.optim import Adam, Optimizer, build_optimizer
from ludus.schedules import Rate, ramp
from ludus.types import (
    Ctx,
    EnvSpec,
    Loss,
    Step,
    Traj,
    Tree,
    map_fields,
    tree_leaves,
    tree_map,
)


class Config(Frozen):
    """Defaults are small-scale; papers' numbers are in ludus/presets/."""

    name: str = "ppo"
    torso: TorsoConfig = Auto(mlp=MLP(hidden=(64, 64), activation="tanh"))
    shared_torso: bool = False  # one torso (and LSTM) for policy and value
    core: Literal["none", "lstm"] = "none"  # memory between a torso and its head
    core_size: int = Field(default=64, ge=1, le=MAX_WIDTH)  # units of an LSTM
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
    init: Scheme = "orthogonal"  # of weights; default: torch's own


class Batch(NamedTuple):
    """Rows [T,B] ready for minibatches. The Learner flattens, shuffles and cuts them; with an LSTM
    it cuts between environments only."""

    obs: Tree
    action: Tensor
    log_prob: Tensor  # of the policy that acted
    advantage: Tensor
    target: Tensor  # return the value is regressed on
    value: Tensor  # before this sample's updates
    mask: Tensor
    action_mask: Tensor | None
    first: Tensor | None = None  # the last two only with an LSTM
    state: Any = None  # leaves [B,...], before the first row


class ActorCritic(nn.Module):
    def __init__(self, spec: EnvSpec, cfg: Config) -> None:
        super().__init__()
        self.action = spec.action
        self.torso = build_torso(cfg.torso, spec.obs)
        self.value_torso = None if cfg.shared_torso else build_torso(cfg.torso, spec.obs)
        width = features_of(self.torso)
        recurrent = cfg.core == "lstm"
        self.core = LSTMCore(width, cfg.core_size) if recurrent else None
        apart = recurrent and not cfg.shared_torso
        self.value_core = LSTMCore(width, cfg.core_size) if apart else None
        width = cfg.core_size if recurrent else width
        # Gain 0.01: a nearly uniform first policy, so that no action starts out favoured.
        self.policy = build_policy_head(width, spec.action, gain=0.01, log_std_init=cfg.log_std)
        self.value = ValueHead(width)

    def dist(self, obs: Tree, mask: Tensor | None = None) -> PolicyDist:
        return PolicyDist(self.policy(self.torso(obs)), self.action, mask)

    def values(self, obs: Tree) -> Tensor:
        """[B] from observations [B, ...]; with an LSTM: as if each opened an episode."""
        if self.core is None:
            value: Tensor = self.value((self.value_torso or self.torso)(obs))
            return value
        leaf = tree_leaves(obs)[0]
        opens = torch.ones(1, leaf.shape[0], dtype=torch.bool, device=leaf.device)
        state = tuple(self.core.initial(leaf.shape[0], leaf.device) for _ in range(2))
        return self.unrolled(tree_map(lambda x: x[None], obs), opens, state)[1][0]

    def both(self, obs: Tree, mask: Tensor | None = None) -> tuple[PolicyDist, Tensor]:
        features = self.torso(obs)
        seen = features if self.value_torso is None else self.value_torso(obs)
        return PolicyDist(self.policy(features), self.action, mask), self.value(seen)

    def unrolled(self, obs: Tree, first: Tensor, state: Any) -> tuple[Tensor, Tensor, Any]:
        """With an LSTM: policy parameters [T,B,P], values [T,B], state after the last row. `state`
        has one entry for each LSTM; it is zeroed where `first`."""
        assert self.core is not None
        features, mine = self.core.remember(over_time(self.torso, obs), first, state[0])
        if self.value_torso is None:
            return self.policy(features), self.value(features), (mine,)
        assert self.value_core is not None
        seen = over_time(self.value_torso, obs)
        seen, other = self.value_core.remember(seen, first, state[1])
        return self.policy(features), self.value(seen), (mine, other)


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
            minibatch_over="rows" if cfg.core == "none" else "envs",
            clip=cfg.clip_by if cfg.clip_norm else "none",
            clip_norm=cfg.clip_norm,
            schedules={"lr": cfg.lr, "clip": cfg.clip},
        )

    def build(self, spec: EnvSpec) -> nn.ModuleDict:
        net = nn.ModuleDict({"online": ActorCritic(spec, self.cfg)})
        initialize(net, torch.default_generator, self.cfg.init)  # seeded by the Learner
        return net

    def optimizer(self, net: nn.ModuleDict) -> torch.optim.Optimizer:
        return build_optimizer(self.cfg.optimizer, net.parameters(), self.cfg.lr.start)

    def begin(self, n: int, ctx: Ctx) -> Any:
        """The state of each LSTM: of the policy's, and of the value's where it has its own."""
        if self.cfg.core == "none":
            return ()
        zeros = torch.zeros(n, self.cfg.core_size, device=ctx.rng.device)
        count = 1 if self.cfg.shared_torso else 2
        return tuple((zeros.clone(), zeros.clone()) for _ in range(count))

    def act(
        self, net: nn.ModuleDict, step: Step, state: Any, ctx: Ctx
    ) -> tuple[Tensor, dict[str, Tensor], Any]:
        if self.cfg.core == "none":
            dist = actor_critic(net).dist(step.obs, step.action_mask)
        else:
            obs = tree_map(lambda x: x[None], step.obs)
            params, _, state = actor_critic(net).unrolled(obs, step.first[None], state)
            dist = PolicyDist(params[0], ctx.spec.action, step.action_mask)
        if ctx.evaluating:
            return dist.mode(), {}, state
        action = dist.sample(ctx.rng)
        return action, {"log_prob": dist.log_prob(action)}, state

    def prepare(self, net: nn.ModuleDict, b: Traj, ctx: Ctx) -> Batch:
        recurrent = self.cfg.core == "lstm"
        if recurrent:
            _, value, _ = actor_critic(net).unrolled(b.obs, b.first, b.state)  # [T+1,B]
        else:
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
            b.first[:-1] if recurrent else None,
            b.state if recurrent else None,
        )

    def loss(self, net: nn.ModuleDict, b: Batch, ctx: Ctx) -> Loss:
        cfg, m = self.cfg, b.mask.float()  # [B], or [T,B] with an LSTM
        if cfg.core == "lstm":
            assert b.first is not None
            params, value, _ = actor_critic(net).unrolled(b.obs, b.first, b.state)
            dist = PolicyDist(params, ctx.spec.action, b.action_mask)
        elif b.mask.dim() == 2:  # one epoch of one minibatch: the Learner hands over [T,B] as it is
            rows = self.loss(net, map_fields(lambda x: x.flatten(0, 1), b), ctx)
            return rows._replace(value=rows.value.view(b.mask.shape))
        else:
            dist, value = actor_critic(net).both(b.obs, b.action_mask)
        log_ratio = dist.log_prob(b.action) - b.log_prob
        ratio = log_ratio.exp()
        advantage = b.advantage
        if cfg.normalize_advantage:
            mean, variance = ctx.moments(advantage, m)
            advantage = (advantage - mean) * m / variance.sqrt().add(1e-8)
        clip = ctx.values["clip"]
        policy = ops.clipped_surrogate(ratio, advantage, clip)
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
