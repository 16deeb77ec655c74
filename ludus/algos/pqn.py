"""Parallelised Q-network: Q(lambda) on fresh rollouts, without replay and without a target net.

Gallici et al. 2024, algorithm 1. Layer normalisation (nets/torsos.py) keeps it stable. Not here:
epochs and minibatches (the Learner, from the Plan).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from ludus import ops
from ludus.contract import Defaults, Fifo, Frozen, Plan, Unroll
from ludus.explore import epsilon_greedy
from ludus.nets.heads import Scalar
from ludus.nets.init import initialize
from ludus.nets.inputs import over_time
from ludus.nets.qnet import QNet, masked, q_net, require_discrete
from ludus.nets.torsos import CNN, MLP, Auto, TorsoConfig
from ludus.optim import Optimizer, RAdam, build_optimizer
from ludus.schedules import Rate, Share, ramp
from ludus.types import Ctx, EnvSpec, Loss, Step, Traj, Tree, map_fields, tree_map


class Config(Frozen):
    """Defaults are small-scale; the paper's numbers are in ludus/presets/."""

    name: str = "pqn"
    torso: TorsoConfig = Auto(mlp=MLP(hidden=(128, 128), layer_norm=True), cnn=CNN(layer_norm=True))
    gamma: float = Field(default=0.99, ge=0, le=1)
    q_lambda: float = Field(default=0.65, ge=0, le=1)  # 0: one step, 1: to the rollout's end
    rollout: int = Field(default=32, ge=1)  # rows per environment and iteration
    epochs: int = Field(default=2, ge=1)
    minibatches: int = Field(default=4, ge=1)
    epsilon: Share = ramp("1->0.05@10%")
    optimizer: Optimizer = RAdam()
    lr: Rate = ramp(5e-4)
    clip_norm: float = Field(default=10.0, ge=0)  # of all gradients together; 0 = off
    clip_by: Literal["global", "layer"] = "global"  # norm of all gradients, or of each tensor


class Batch(NamedTuple):
    """Rows [T,B] ready for minibatches; the Learner flattens, shuffles and cuts them."""

    obs: Tree
    action: Tensor
    target: Tensor
    mask: Tensor


class PQN(Defaults):
    """Minimises (R - Q(s, a))² / 2 over a few epochs of fresh rollouts; R is computed once."""

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
            schedules={"lr": cfg.lr, "epsilon": cfg.epsilon},
        )

    def build(self, spec: EnvSpec) -> nn.ModuleDict:
        require_discrete(self.cfg.name, spec, instead="ppo")
        net = nn.ModuleDict({"online": QNet(spec, self.cfg.torso, Scalar())})
        initialize(net, torch.default_generator, "orthogonal")  # seeded by the Learner
        return net

    def optimizer(self, net: nn.ModuleDict) -> torch.optim.Optimizer:
        return build_optimizer(self.cfg.optimizer, net.parameters(), self.cfg.lr.start)

    def act(
        self, net: nn.ModuleDict, step: Step, state: Any, ctx: Ctx
    ) -> tuple[Tensor, dict[str, Tensor], Any]:
        q = masked(q_net(net, "online")(step.obs), step.action_mask).q
        return epsilon_greedy(q, ctx.values["epsilon"], ctx.rng, step.action_mask), {}, state

    def prepare(self, net: nn.ModuleDict, b: Traj, ctx: Ctx) -> Batch:
        """R_t = r_t + γ_t (λ R_{t+1} + (1 - λ) max Q(s_{t+1})). Exploratory actions do not cut the
        sum (Peng's Q(λ)); the end of an episode or of the rollout does."""
        after = tree_map(lambda x: x[1:], b.obs)
        allowed = None if b.action_mask is None else b.action_mask[1:]
        best = masked(over_time(q_net(net, "online"), after), allowed).q.amax(-1)  # [T,B]
        cfg = self.cfg
        target = ops.lambda_returns(b.reward, cfg.gamma * b.discount, best, cfg.q_lambda, b.last)
        return Batch(tree_map(lambda x: x[:-1], b.obs), b.action, target, b.mask)

    def loss(self, net: nn.ModuleDict, b: Batch, ctx: Ctx) -> Loss:
        if b.mask.dim() == 2:  # one epoch of one minibatch: the Learner hands over [T,B] as it is
            rows = self.loss(net, map_fields(lambda x: x.flatten(0, 1), b), ctx)
            return rows._replace(value=rows.value.view(b.mask.shape))
        q = ops.taken(q_net(net, "online")(b.obs).q, b.action)  # [B]
        # A dummy row may hold anything, so it is cut out here, not multiplied by 0 later.
        error = torch.where(b.mask, b.target - q, 0.0)
        count = b.mask.sum().clamp(min=1)
        mean = torch.where(b.mask, q, 0.0).detach().sum() / count
        return Loss(0.5 * error**2, {"q": mean})
