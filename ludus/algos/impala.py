"""IMPALA: actor-critic on lagging experience, corrected by V-trace; feed-forward or with an LSTM.

Espeholt et al. 2018. Not here: V-trace itself (ops/vtrace.py), the queue of unrolls (replay), who
collects them and how large the lag is (run).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from ludus import ops
from ludus.contract import Defaults, Fifo, Frozen, Plan, Unroll
from ludus.nets.init import initialize
from ludus.nets.inputs import MAX_WIDTH, over_time, previous_step, previous_width
from ludus.nets.policies import PolicyDist, ValueHead, build_policy_head
from ludus.nets.recurrent import LSTMCore
from ludus.nets.torsos import MLP, Auto, TorsoConfig, TorsoModel, build_torso, features_of
from ludus.optim import Optimizer, RMSProp, build_optimizer
from ludus.schedules import Rate, ramp
from ludus.types import Ctx, EnvSpec, Loss, Step, Traj, Tree, tree_leaves, tree_map


class Recurrent(Frozen):
    """An LSTM between the torso and the heads; its state is zero at an episode's start."""

    hidden: int = Field(default=256, ge=1, le=MAX_WIDTH)


class Config(Frozen):
    """Defaults are small-scale; papers' numbers are in ludus/presets/."""

    name: str = "impala"
    torso: TorsoConfig = Auto(mlp=MLP(hidden=(64, 64), activation="tanh"))
    recurrent: Recurrent | None = None
    # Previous action and reward as inputs; left out: where recurrent.
    feed_previous: bool | None = None
    gamma: float = Field(default=0.99, ge=0, le=1)
    unroll: int = Field(default=20, ge=1)  # rows
    batch: int = Field(default=16, ge=1)  # unrolls per update
    queue: int = Field(default=0, ge=0)  # unrolls that may wait before actors must; 0: any number
    rho_clip: float = Field(default=1.0, gt=0)  # of the value target's TD errors
    c_clip: float = Field(default=1.0, gt=0)  # of the trace
    pg_rho_clip: float = Field(default=1.0, gt=0)  # of the policy gradient
    vtrace_lambda: float = Field(default=1.0, ge=0, le=1)
    baseline_cost: float = Field(default=0.5, ge=0)
    entropy_cost: float = Field(default=0.01, ge=0)
    optimizer: Optimizer = RMSProp(decay=0.99, eps=0.01)
    lr: Rate = ramp("6e-4->0")
    clip_norm: float = Field(default=40.0, ge=0)  # of all gradients together; 0 = off
    clip_by: Literal["global", "layer"] = "global"  # norm of all gradients, or of each tensor
    log_std: float = 0.0  # initial log standard deviation of continuous actions


class PolicyValueOut(NamedTuple):
    params: Tensor  # [T, B, P] of the policy's distribution
    value: Tensor  # [T, B]
    state: Any  # after the last step


class PolicyValue(nn.Module):
    """Policy and value from one pass over an unroll: torso, optional LSTM, two linear heads.
    `feed_previous`: the action and reward of the step before are inputs too, next to the torso's
    features."""

    def __init__(
        self,
        spec: EnvSpec,
        torso: TorsoModel,
        recurrent: Recurrent | None = None,
        *,
        feed_previous: bool = False,
        log_std: float = 0.0,
    ) -> None:
        super().__init__()
        self.action, self.feed_previous = spec.action, feed_previous
        self.torso = build_torso(torso, spec.obs)
        width = features_of(self.torso)
        if feed_previous:
            width += previous_width(spec.action)
        self.core = None if recurrent is None else LSTMCore(width, recurrent.hidden)
        width = width if self.core is None else self.core.out
        # Gain 0.01: a nearly uniform first policy, so that no action starts out favoured.
        self.policy = build_policy_head(width, spec.action, gain=0.01, log_std_init=log_std)
        self.value = ValueHead(width)

    def forward(
        self, obs: Tree, first: Tensor, state: Any, previous: tuple[Tensor, Tensor] | None = None
    ) -> PolicyValueOut:
        """All [T, B, ...]. `state` is from before row 0 and is forgotten where `first`; `previous`
        is (action, reward) of the row before each, None where no row has one."""
        features: Tensor = over_time(self.torso, obs)  # [T,B,F]
        if self.feed_previous:
            if previous is None:
                before = features.new_zeros(*first.shape, previous_width(self.action))
            else:
                before = previous_step(self.action, *previous, first)
            features = torch.cat((features, before.to(features.dtype)), -1)
        if self.core is not None:
            features, state = self.core.remember(features, first, state)
        return PolicyValueOut(self.policy(features), self.value(features), state)

    def values(self, obs: Tree) -> Tensor:
        """[B] from observations [B, ...] that each open an episode."""
        leaf = tree_leaves(obs)[0]
        opens = torch.ones(1, leaf.shape[0], dtype=torch.bool, device=leaf.device)
        state = () if self.core is None else self.core.initial(leaf.shape[0], leaf.device)
        value: Tensor = self(tree_map(lambda x: x[None], obs), opens, state).value[0]
        return value


class Terms(NamedTuple):
    """The parts of the loss [T,B], dummy rows not yet taken out."""

    policy: Tensor
    baseline: Tensor
    entropy: Tensor
    rho: Tensor  # pi / mu, unclipped and constant


class Impala(Defaults):
    """Learns once from each unroll, in the order of arrival; the loss is summed over time and
    batch. Holds no mutable state."""

    def __init__(self, cfg: Config | None = None) -> None:
        self.cfg = cfg = cfg or Config()
        self.plan = Plan(
            view=Unroll(cfg.unroll),
            sampler=Fifo(),
            batch=cfg.batch,
            capacity=cfg.queue * cfg.unroll,
            chunk=cfg.unroll,  # an LSTM's state is known where a chunk begins
            reduce="sum",
            clip=cfg.clip_by if cfg.clip_norm else "none",
            clip_norm=cfg.clip_norm,
            corrects_lag=True,
            schedules={"lr": cfg.lr},
        )

    def build(self, spec: EnvSpec) -> nn.ModuleDict:
        cfg, memory = self.cfg, self.cfg.recurrent
        fed = memory is not None if cfg.feed_previous is None else cfg.feed_previous
        online = PolicyValue(spec, cfg.torso, memory, feed_previous=fed, log_std=cfg.log_std)
        net = nn.ModuleDict({"online": online})
        initialize(net, torch.default_generator, "orthogonal")  # seeded by the Learner
        return net

    def optimizer(self, net: nn.ModuleDict) -> torch.optim.Optimizer:
        return build_optimizer(self.cfg.optimizer, net.parameters(), self.cfg.lr.start)

    def begin(self, n: int, ctx: Ctx) -> Any:
        if self.cfg.recurrent is None:
            return ()
        zeros = torch.zeros(n, self.cfg.recurrent.hidden, device=ctx.rng.device)
        return zeros, zeros.clone()

    def act(
        self, net: nn.ModuleDict, step: Step, state: Any, ctx: Ctx
    ) -> tuple[Tensor, dict[str, Tensor], Any]:
        before = step.prev_action[None], step.prev_reward[None]
        obs = tree_map(lambda x: x[None], step.obs)
        out = policy_value(net)(obs, step.first[None], state, before)
        dist = PolicyDist(out.params[0], ctx.spec.action, step.action_mask)
        if ctx.evaluating:
            return dist.mode(), {}, out.state
        action = dist.sample(ctx.rng)
        return action, {"log_prob": dist.log_prob(action)}, out.state

    def loss(self, net: nn.ModuleDict, b: Traj, ctx: Ctx) -> Loss:
        cfg, terms = self.cfg, self.terms(net, b, ctx)
        rows = terms.policy + cfg.baseline_cost * terms.baseline - cfg.entropy_cost * terms.entropy
        total = torch.where(b.mask, rows, 0.0).sum(0)  # [B]
        with torch.no_grad():
            m, count = b.mask.float(), b.mask.sum().clamp(min=1)
            metrics = {
                "entropy": (terms.entropy * m).sum() / count,
                "value_loss": (terms.baseline * m).sum() / count,
                "rho": (terms.rho * m).sum() / count,
            }
        return Loss(total, metrics)

    def terms(self, net: nn.ModuleDict, b: Traj, ctx: Ctx) -> Terms:
        """Section 4.2: one pass gives π and V of every row and V after the last."""
        assert b.prev_action is not None and b.prev_reward is not None
        out = policy_value(net)(b.obs, b.first, b.state, (b.prev_action, b.prev_reward))
        allowed = None if b.action_mask is None else b.action_mask[:-1]
        dist = PolicyDist(out.params[:-1], ctx.spec.action, allowed)
        log_prob = dist.log_prob(b.action)  # [T,B]
        rho = (log_prob.detach() - b.extras["log_prob"]).exp()
        cfg, value = self.cfg, out.value  # [T+1,B]
        target = ops.vtrace(
            value.detach(), b.reward, cfg.gamma * b.discount, rho, b.last,
            lambda_=cfg.vtrace_lambda, rho_clip=cfg.rho_clip, c_clip=cfg.c_clip,
            pg_rho_clip=cfg.pg_rho_clip,
        )  # fmt: skip
        baseline = 0.5 * (target.vs - value[:-1]) ** 2
        return Terms(-target.advantage * log_prob, baseline, dist.entropy(), rho)


def policy_value(net: nn.ModuleDict) -> PolicyValue:
    found = net["online"]
    assert isinstance(found, PolicyValue)
    return found
