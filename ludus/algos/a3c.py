"""Asynchronous advantage actor-critic: feed-forward, LSTM, continuous actions.

Mnih et al. 2016, algorithm S3. How many actors run in parallel is not decided here. In one process
it is the synchronous form; `run.fleet=hogwild` runs it as in the paper.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ludus import ops
from ludus.contract import Defaults, Fifo, Frozen, Plan, Unroll
from ludus.nets.init import initialize
from ludus.nets.inputs import MAX_WIDTH, over_time
from ludus.nets.policies import PolicyDist, SoftplusHead, ValueHead, build_policy_head
from ludus.nets.recurrent import LSTMCore
from ludus.nets.torsos import MLP, Auto, TorsoConfig, TorsoModel, build_torso, features_of
from ludus.optim import Adam, Optimizer, RateRange, build_optimizer, sampled_lr
from ludus.schedules import Rate, ramp
from ludus.types import ActionSpec, Continuous, Ctx, EnvSpec, Loss, Step, Traj, Tree, tree_map


class Config(Frozen):
    """Defaults are small-scale; the paper's numbers are in ludus/presets/."""

    name: str = "a3c"
    torso: TorsoConfig = Auto(mlp=MLP(hidden=(64, 64), activation="tanh"))
    # One torso for policy and value; unset: apart for continuous actions, as in the paper.
    shared_torso: bool | None = None
    lstm: int = Field(default=0, ge=0, le=MAX_WIDTH)  # units after the torso; 0: feed-forward
    gamma: float = Field(default=0.99, ge=0, le=1)
    t_max: int = Field(default=20, ge=1)  # rows of each environment between updates
    value_cost: float = Field(default=1.0, ge=0)
    entropy_cost: float = Field(default=0.01, ge=0)
    optimizer: Optimizer = Adam()
    lr: Rate = ramp(1e-3)  # starting at 0: sampled from lr_range
    lr_range: RateRange = (1e-4, 1e-2)
    clip_norm: float = Field(default=40.0, ge=0)
    clip_by: Literal["global", "layer"] = "global"  # norm of all gradients, or of each tensor

    def towers(self, action: ActionSpec) -> int:
        """1: policy and value share a torso (and an LSTM); 2: each has its own."""
        apart = isinstance(action, Continuous)
        return 1 if (not apart if self.shared_torso is None else self.shared_torso) else 2

    def sample_hparams(self, seed: int) -> Config:
        """Sample the learning rate if lr_range asks for it, so that the run records its value."""
        return self.model_copy(update={"lr": sampled_lr(self.lr, self.lr_range, seed)})


class Tower(nn.Module):
    """A torso and, if wanted, an LSTM after it: observations [T,B,...] to features [T,B,F]."""

    def __init__(self, spec: EnvSpec, torso: TorsoModel, lstm: int) -> None:
        super().__init__()
        self.torso = build_torso(torso, spec.obs)
        self.core = LSTMCore(features_of(self.torso), lstm) if lstm else None
        self.out = self.core.out if self.core is not None else features_of(self.torso)

    def forward(self, obs: Tree, first: Tensor, state: Any) -> tuple[Tensor, Any]:
        features = over_time(self.torso, obs)
        if self.core is None:
            return features, state
        return self.core.remember(features, first, state)


class ActorCritic(nn.Module):
    """State: one of the policy's tower, and one of the value's where it has its own."""

    def __init__(self, spec: EnvSpec, cfg: Config) -> None:
        super().__init__()
        self.action = spec.action
        both = cfg.towers(spec.action) == 1
        self.tower = Tower(spec, cfg.torso, cfg.lstm)
        self.value_tower = None if both else Tower(spec, cfg.torso, cfg.lstm)
        self.policy = policy_head(self.tower.out, spec.action)
        self.value = ValueHead(self.tower.out)

    def forward(self, obs: Tree, first: Tensor, state: Any) -> tuple[Tensor, Tensor, Any]:
        """Policy parameters [T,B,P], values [T,B], state after the last row."""
        mine, other = (state[0], state[-1]) if state else ((), ())
        features, mine = self.tower(obs, first, mine)
        if self.value_tower is None:
            return self.policy(features), self.value(features), (mine,) if state else ()
        seen, other = self.value_tower(obs, first, other)
        return self.policy(features), self.value(seen), (mine, other) if state else ()

    def values(self, obs: Tree) -> Tensor:
        """[B] from observations [B, ...]; feed-forward only."""
        assert self.tower.core is None, "the value of a recurrent net depends on what came before"
        value: Tensor = self.value((self.value_tower or self.tower).torso(obs))
        return value


def policy_head(features: int, action: ActionSpec) -> nn.Module:
    if isinstance(action, Continuous):
        return SoftplusHead(features, math.prod(action.shape))
    return build_policy_head(features, action, gain=0.01)


class A3C(Defaults):
    """Maximises log π(a|s) (R - V(s)) + β H(π) on fragments of t_max rows, used once."""

    def __init__(self, cfg: Config | None = None) -> None:
        self.cfg = cfg = cfg or Config()
        self.plan = Plan(
            view=Unroll(cfg.t_max),
            sampler=Fifo(),
            chunk=cfg.t_max,
            reduce="sum",
            clip=cfg.clip_by if cfg.clip_norm else "none",
            clip_norm=cfg.clip_norm,
            hogwild=True,
            schedules={"lr": cfg.lr},
        )

    def build(self, spec: EnvSpec) -> nn.ModuleDict:
        net = nn.ModuleDict({"online": ActorCritic(spec, self.cfg)})
        initialize(net, torch.default_generator, "orthogonal")  # seeded by the Learner
        return net

    def optimizer(self, net: nn.ModuleDict) -> torch.optim.Optimizer:
        params = actor_critic(net).parameters()
        return build_optimizer(self.cfg.optimizer, params, self.cfg.lr.start)

    def begin(self, n: int, ctx: Ctx) -> Any:
        if not self.cfg.lstm:
            return ()
        zeros = torch.zeros(n, self.cfg.lstm, device=ctx.rng.device)
        return tuple((zeros, zeros.clone()) for _ in range(self.cfg.towers(ctx.spec.action)))

    def act(
        self, net: nn.ModuleDict, step: Step, state: Any, ctx: Ctx
    ) -> tuple[Tensor, dict[str, Tensor], Any]:
        obs = tree_map(lambda x: x[None], step.obs)
        params, _, state = actor_critic(net)(obs, step.first[None], state)
        dist = PolicyDist(params[0], ctx.spec.action, step.action_mask)
        return (dist.mode() if ctx.evaluating else dist.sample(ctx.rng)), {}, state

    def loss(self, net: nn.ModuleDict, b: Traj, ctx: Ctx) -> Loss:
        cfg, m = self.cfg, b.mask.float()  # [T,B]
        params, value, _ = actor_critic(net)(b.obs, b.first, b.state)  # [T+1,B,P], [T+1,B]
        mask = None if b.action_mask is None else b.action_mask[:-1]
        dist = PolicyDist(params[:-1], ctx.spec.action, mask)
        # λ = 1: R_t = r_t + γ R_{t+1} to the end of the fragment or episode, then V.
        returns = ops.lambda_returns(
            b.reward, cfg.gamma * b.discount, value[1:].detach(), 1.0, b.last
        )
        # A dummy row may hold anything, so it is cut out here, not multiplied by 0 later.
        advantage = torch.where(b.mask, returns - value[:-1], 0.0)  # [T,B]
        policy = -dist.log_prob(b.action) * advantage.detach()
        entropy = dist.entropy()
        total = policy + cfg.value_cost * 0.5 * advantage**2 - cfg.entropy_cost * entropy
        with torch.no_grad():
            count = m.sum().clamp(min=1)
            metrics = {
                "entropy": (m * entropy).sum() / count,
                "value_loss": 0.5 * (advantage**2).sum() / count,
            }
        return Loss((m * total).sum(0), metrics)  # [B]


def actor_critic(net: nn.ModuleDict) -> ActorCritic:
    found = net["online"]
    assert isinstance(found, ActorCritic)
    return found
