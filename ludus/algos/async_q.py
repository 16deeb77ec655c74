"""Asynchronous Q-learning, SARSA and n-step Q-learning: one file, the rule is a value.

Mnih et al. 2016, algorithms 1, S1 and S2. Without replay: each fragment of t_max rows is learned
from once. How many actors run in parallel is not decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ludus import ops, seeding
from ludus.contract import Defaults, Fifo, Frozen, Plan, Unroll
from ludus.explore import epsilon_greedy, own_epsilon, sampled_finals
from ludus.nets.heads import Scalar
from ludus.nets.inputs import over_time
from ludus.nets.qnet import build_q_nets, copy_weights, masked, q_net
from ludus.nets.torsos import Auto, TorsoConfig
from ludus.optim import Adam, Optimizer, RateRange, build_optimizer, sampled_lr
from ludus.schedules import Rate, Share, ramp
from ludus.types import Ctx, EnvSpec, Loss, Step, Traj, tree_map
from ludus.units import Count


class Config(Frozen):
    """Defaults are small-scale; the paper's numbers are in ludus/presets/."""

    name: str = "async-q"
    rule: Literal["q", "sarsa", "nstep"] = "q"
    torso: TorsoConfig = Auto()
    gamma: float = Field(default=0.99, ge=0, le=1)
    t_max: int = Field(default=20, ge=1)  # rows of each environment between updates
    target_period: Count = Field(default=1_000, ge=1)  # steps of all actors between target copies
    epsilon: Share = ramp("1->0.1@10%")
    # Each actor anneals to one of these instead of to the ramp's own end. None: to that end.
    final_epsilons: tuple[float, ...] = (0.1, 0.01, 0.5)
    final_weights: tuple[float, ...] = (0.4, 0.3, 0.3)
    loss: Literal["mse", "huber"] = "mse"
    optimizer: Optimizer = Adam()
    lr: Rate = ramp(1e-3)  # starting at 0: sampled from lr_range
    lr_range: RateRange = (1e-4, 1e-2)
    clip_norm: float = Field(default=40.0, ge=0)
    clip_by: Literal["global", "layer"] = "global"  # norm of all gradients, or of each tensor

    @model_validator(mode="after")
    def _finals(self) -> Self:
        if len(self.final_epsilons) != len(self.final_weights):
            raise ValueError("final_epsilons and final_weights: one weight for each value")
        if not self.final_epsilons:
            return self
        if not all(0 <= x <= 1 for x in self.final_epsilons):
            raise ValueError("final_epsilons are shares: between 0 and 1")
        if min(self.final_weights) < 0 or sum(self.final_weights) <= 0:
            raise ValueError("final_weights: none negative, and not all 0")
        if self.epsilon.start == self.epsilon.end:
            raise ValueError(
                f"epsilon={self.epsilon} has nothing to anneal to final_epsilons: set  "
                "algo.final_epsilons=[] algo.final_weights=[]"
            )
        return self

    def sample_hparams(self, seed: int) -> Config:
        """Sample the learning rate if lr_range asks for it, so that the run records its value."""
        return self.model_copy(update={"lr": sampled_lr(self.lr, self.lr_range, seed)})


class AsyncQ(Defaults):
    """Sums (y - Q(s, a))² over a fragment; y bootstraps from a target net that is copied every
    `target_period` steps of all actors together."""

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
            schedules={"lr": cfg.lr, "epsilon": cfg.epsilon},
        )

    def build(self, spec: EnvSpec) -> nn.ModuleDict:
        return build_q_nets(self.cfg.name, spec, self.cfg.torso, Scalar(), instead="a3c")

    def optimizer(self, net: nn.ModuleDict) -> torch.optim.Optimizer:
        return build_optimizer(self.cfg.optimizer, net["online"].parameters(), self.cfg.lr.start)

    def sampled_hparams(self, n: int, ctx: Ctx) -> dict[str, Any]:
        if not self.cfg.final_epsilons:
            return {}
        return {"epsilon": self._finals(n, ctx, ctx.actor, ctx.env).tolist()}

    def env_info(self, env: int, state: Any, ctx: Ctx) -> Mapping[str, float]:
        """The epsilon that the environment anneals to."""
        if not self.cfg.final_epsilons:
            return {}
        actor, own = divmod(env, ctx.num_envs)
        return {"epsilon": float(self._finals(1, ctx, actor, own))}

    def _finals(self, n: int, ctx: Ctx, actor: int, first: int) -> Tensor:
        """The final epsilons [n] of an actor's environments from `first` on. They depend on the
        run's seed alone, so a checkpoint or a new process gives the same; sampled for all its
        environments at once, since each group asks for its own."""
        rng, cfg = seeding.generator(ctx.seed, "final epsilon", actor), self.cfg
        count = max(ctx.num_envs, first + n)
        finals = sampled_finals(count, cfg.final_epsilons, cfg.final_weights, rng)
        return finals[first : first + n]

    def begin(self, n: int, ctx: Ctx) -> Any:
        if not self.cfg.final_epsilons:
            return ()
        return self._finals(n, ctx, ctx.actor, ctx.env).to(ctx.rng.device)

    def act(
        self, net: nn.ModuleDict, step: Step, state: Any, ctx: Ctx
    ) -> tuple[Tensor, dict[str, Tensor], Any]:
        q = masked(q_net(net, "online")(step.obs), step.action_mask).q
        epsilon = ctx.values["epsilon"]
        if not ctx.evaluating and self.cfg.final_epsilons:
            epsilon = own_epsilon(epsilon, self.cfg.epsilon, state)  # [B]
        action = epsilon_greedy(q, epsilon, ctx.rng, step.action_mask)
        return action, {"epsilon": epsilon.expand(action.shape)}, state

    def loss(self, net: nn.ModuleDict, b: Traj, ctx: Ctx) -> Loss:
        cfg = self.cfg
        q = over_time(q_net(net, "online"), tree_map(lambda x: x[:-1], b.obs)).q  # [T,B,A]
        q_a = ops.taken(q, b.action)  # [T,B]
        with torch.no_grad():
            target = self._target(net, b, cfg.gamma * b.discount)
        error = torch.where(b.mask, target - q_a, 0.0)
        each = 0.5 * error**2 if cfg.loss == "mse" else ops.huber(error)
        count = b.mask.sum().clamp(min=1)
        mean = torch.where(b.mask, q_a, 0.0).detach().sum() / count
        return Loss(each.sum(0), {"q": mean})

    def after_steps(self, net: nn.ModuleDict, before: int, steps: int) -> None:
        period = self.cfg.target_period
        if steps // period > before // period:
            copy_weights(net["online"], net["target"])

    def _target(self, net: nn.ModuleDict, b: Traj, discount: Tensor) -> Tensor:
        """y_t [T,B]; row t leads to obs_{t+1}, also where that ends the episode."""
        after = tree_map(lambda x: x[1:], b.obs)
        allowed = None if b.action_mask is None else b.action_mask[1:]
        next_q = masked(over_time(q_net(net, "target"), after), allowed).q  # [T,B,A]
        if self.cfg.rule == "q":
            return ops.q_target(b.reward, discount, next_q)
        if self.cfg.rule == "nstep":  # λ = 1: rewards to the fragment's or episode's end, then max
            return ops.lambda_returns(b.reward, discount, next_q.amax(-1), 1.0, b.last)
        # The dummy row after a truncation holds the policy's action in the final observation.
        y = ops.sarsa_target(b.reward[:-1], discount[:-1], next_q[:-1], b.action[1:])
        return torch.cat((y, self._last_sarsa(net, b, discount, next_q)))

    def _last_sarsa(self, net: nn.ModuleDict, b: Traj, discount: Tensor, next_q: Tensor) -> Tensor:
        """The fragment's last row [1,B].

        differs: its next action is not taken yet, so the target is the mean over the policy that
        will take it.
        """
        final = tree_map(lambda x: x[-1:], b.obs)
        allowed = None if b.action_mask is None else b.action_mask[-1:]
        q = masked(over_time(q_net(net, "online"), final), allowed).q  # [1,B,A]
        free = torch.isfinite(q).float()
        epsilon = b.extras["epsilon"][-1:, :, None]
        greedy = nn.functional.one_hot(q.argmax(-1), q.shape[-1]).float()
        policy = (1 - epsilon) * greedy + epsilon * free / free.sum(-1, keepdim=True)
        return ops.expected_sarsa_target(b.reward[-1:], discount[-1:], next_q[-1:], policy)
