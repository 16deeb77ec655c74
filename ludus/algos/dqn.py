"""The DQN family: one file, variants are values.

dqn, double-dqn, dueling-dqn, prioritized-dqn, c51, qr-dqn, iqn, rainbow, rainbow-iqn,
munchausen-iqn and the three of Ape-X are rows of the registry over this one loss. Not here: n-step
returns and gamma (replay views), importance weights (the Learner), first priorities (the
Collector), the distributions' losses (nets/heads.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ludus import ops
from ludus.contract import Defaults, Frozen, NStep, Plan, Replay, Uniform
from ludus.explore import (
    Ladder,
    epsilon_greedy,
    lazy_epsilon_greedy,
    persistent_greedy,
    persistent_start,
    rungs,
)
from ludus.nets.heads import Categorical, HeadConfig, HeadOut, Scalar
from ludus.nets.qnet import QNet, build_q_nets, copy_weights, masked, q_net
from ludus.nets.torsos import Auto, TorsoConfig
from ludus.optim import Adam, Optimizer, build_optimizer
from ludus.schedules import Rate, Share, ramp
from ludus.types import Ctx, EnvSpec, Loss, Step, Transition
from ludus.units import Count


class Munchausen(Frozen):
    """Vieillard et al. 2020: add alpha * clip(tau ln pi(a|s)) to the reward, bootstrap softly."""

    alpha: float = Field(default=0.9, ge=0, le=1)
    tau: float = Field(default=0.03, gt=0)
    clip: float = Field(default=-1.0, le=0)  # l0: lower bound of tau ln pi


class Config(Frozen):
    """Defaults are small-scale; papers' numbers are in ludus/presets/."""

    name: str = "dqn"
    torso: TorsoConfig = Auto()
    head: HeadConfig = Scalar()
    double: bool = False
    munchausen: Munchausen | None = None
    gamma: float = Field(default=0.99, ge=0, le=1)
    n_step: int = Field(default=1, ge=1)
    replay: Replay = Uniform()
    capacity: Count = Field(default=100_000, ge=1)  # transitions
    batch: int = Field(default=64, ge=1)
    replay_ratio: float = Field(default=8.0, gt=0)  # samples drawn per step inserted
    warmup: Count = Field(default=1_000, ge=1)  # steps before the first update
    chunk: int = Field(default=0, ge=0)  # rows per environment and weights; 0: for one update
    target_period: int = Field(default=100, ge=1)  # updates between copies to the target net
    epsilon: Share = ramp("1->0.05@10%")
    ladder: Ladder | None = None  # each environment's own least epsilon
    persist: float | None = Field(default=None, gt=1)  # exploratory actions last ~ zeta(persist)
    random_warmup: bool = True  # act at random until the warm-up is over
    optimizer: Optimizer = Adam()
    lr: Rate = ramp(1e-3)
    clip_norm: float = Field(default=10.0, ge=0)  # of all gradients together; 0 = off
    clip_by: Literal["global", "layer"] = "global"  # norm of all gradients, or of each tensor

    @model_validator(mode="after")
    def _fits(self) -> Config:
        if self.munchausen and isinstance(self.head, Categorical):
            raise ValueError(
                "munchausen needs a head of values (scalar, quantile, implicit); "
                "a categorical head has a fixed support that the bonus leaves"
            )
        if self.munchausen and self.double:
            raise ValueError(
                "double has no meaning with munchausen, whose target is a mean over the target "
                "net's policy: no action is chosen"
            )
        if self.warmup > self.capacity:
            raise ValueError(
                f"warmup {self.warmup} exceeds the capacity {self.capacity}, "
                "so learning would never start"
            )
        return self


class DQN(Defaults):
    """Mnih et al. 2015, algorithm 1. Holds no mutable state: nets come in, nets go out."""

    def __init__(self, cfg: Config | None = None) -> None:
        self.cfg = cfg = cfg or Config()
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
            schedules={"lr": cfg.lr, "epsilon": cfg.epsilon},
        )

    def build(self, spec: EnvSpec) -> nn.ModuleDict:
        return build_q_nets(self.cfg.name, spec, self.cfg.torso, self.cfg.head, instead="ppo")

    def optimizer(self, net: nn.ModuleDict) -> torch.optim.Optimizer:
        return build_optimizer(self.cfg.optimizer, net["online"].parameters(), self.cfg.lr.start)

    def begin(self, n: int, ctx: Ctx) -> Any:
        state: Any = ()
        if self.cfg.persist is not None:
            state = persistent_start(n, ctx.rng.device)
        return state if self.cfg.ladder is None else rungs(self.cfg.ladder, n, ctx, state)

    def env_info(self, env: int, state: Any, ctx: Ctx) -> Mapping[str, float]:
        ladder = self.cfg.ladder
        return {} if ladder is None else {"epsilon": ladder.epsilon(env, ctx.actors * ctx.num_envs)}

    def act(
        self, net: nn.ModuleDict, step: Step, state: Any, ctx: Ctx
    ) -> tuple[Tensor, dict[str, Tensor], Any]:
        online, mask = q_net(net, "online"), step.action_mask
        # Greedy evaluation is free of chance: no noise, and quantiles at their midpoints.
        rng = None if ctx.evaluating else ctx.rng

        def q() -> Tensor:
            return self._choose(online, online.torso(step.obs), rng, mask).q

        epsilon = ctx.values["epsilon"]
        if self.cfg.random_warmup and not ctx.evaluating:
            epsilon = torch.maximum(epsilon, ctx.values["warming"])
        if self.cfg.ladder is not None and not ctx.evaluating:
            epsilon = torch.maximum(epsilon, state.epsilon)  # [B]
        if self.cfg.persist is None or ctx.evaluating:
            if online.head.random:  # its draws come first
                return epsilon_greedy(q(), epsilon, ctx.rng, mask), {}, state
            return lazy_epsilon_greedy(q, step.first, epsilon, ctx, mask), {}, state
        lasting = state if self.cfg.ladder is None else state.rest
        action, lasting = persistent_greedy(
            q(), epsilon, lasting, step.first, self.cfg.persist, ctx.rng, mask
        )
        return action, {}, lasting if self.cfg.ladder is None else state._replace(rest=lasting)

    def loss(self, net: nn.ModuleDict, b: Transition, ctx: Ctx) -> Loss:
        online, target, cfg = q_net(net, "online"), q_net(net, "target"), self.cfg
        out = online(b.obs, ctx.rng)  # q [B,A], dist [B,A,K]
        with torch.no_grad():
            features = target.torso(b.next_obs)  # [B,F]
            out_t = target.head(features, ctx.rng, use="target")
            reward = b.reward
            if cfg.munchausen:
                reward = reward + self._bonus(target, b, ctx)
                next_dist = self._soft_next(target, features, out_t, b, ctx)  # [B,K']
            else:
                # van Hasselt et al. 2016, eq. 4: with `double` the online net chooses a*.
                if cfg.double:
                    features_o = online.torso(b.next_obs)
                    chosen = self._choose(online, features_o, ctx.rng, b.next_action_mask)
                    next_dist = target.head.select(out_t, chosen.q.argmax(-1))  # [B,K']
                elif target.head.random:
                    chosen = self._choose(target, features, ctx.rng, b.next_action_mask)
                    next_dist = target.head.select(out_t, chosen.q.argmax(-1))
                else:  # nothing random in the head: a second pass would give the same
                    next_dist = target.head.best(masked(out_t, b.next_action_mask))
        value, priority = online.head.td(out, b.action, reward, b.discount, next_dist)
        return Loss(value, {"q": out.q.detach().mean()}, priority)

    def after_update(self, net: nn.ModuleDict, updates: int) -> None:
        if updates % self.cfg.target_period == 0:
            copy_weights(net["online"], net["target"])

    def _choose(
        self, qnet: QNet, features: Tensor, rng: torch.Generator | None, mask: Tensor | None
    ) -> HeadOut:
        """Q values to choose an action by: fresh noise, and for IQN K fresh taus."""
        out: HeadOut = qnet.head(features, rng, use="act")
        return masked(out, mask)

    def _bonus(self, target: QNet, b: Transition, ctx: Ctx) -> Tensor:
        """alpha * [tau ln pi(a|s)] clipped to [l0, 0], pi from the TARGET net (eq. 1)."""
        m = self.cfg.munchausen
        assert m is not None
        q = self._choose(target, target.torso(b.obs), ctx.rng, b.action_mask).q  # [B,A]
        return m.alpha * ops.munchausen_bonus(q, b.action, m.tau, m.clip)

    def _soft_next(
        self, target: QNet, features: Tensor, out_t: HeadOut, b: Transition, ctx: Ctx
    ) -> Tensor:
        """sum_a' pi(a'|s') (z_j(s',a') - tau ln pi(a'|s'))  -> [B,K']."""
        m = self.cfg.munchausen
        assert m is not None
        q = self._choose(target, features, ctx.rng, b.next_action_mask).q
        log_pi = ops.log_policy(q, m.tau)  # [B,A]
        pi = log_pi.exp()
        # A forbidden action has pi = 0 and ln pi = -inf; its product must be 0, not nan.
        entropy = torch.where(pi > 0, pi * log_pi, 0.0)
        return (pi[..., None] * out_t.dist - m.tau * entropy[..., None]).sum(1)
