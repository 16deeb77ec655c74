"""Q-networks of discrete actions: a torso and a head, in pairs of an online and a target net."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ludus.errors import LudusError
from ludus.nets.heads import HeadModel, HeadOut, Rng, Use, build_head
from ludus.nets.torsos import TorsoModel, build_torso, features_of, find_parts_at_once
from ludus.types import Discrete, EnvSpec, Tree


class QNet(nn.Module):
    """A torso and a head. `noise` is for noisy layers, `use` for heads that sample; others ignore
    them."""

    def __init__(self, spec: EnvSpec, torso: TorsoModel, head: HeadModel) -> None:
        super().__init__()
        if not isinstance(spec.action, Discrete):
            raise LudusError(
                "E204",
                f"a Q-network needs discrete actions; {spec.id} has {spec.action}",
                fix="algo=ppo takes continuous and multi-discrete actions",
            )
        self.torso = build_torso(torso, spec.obs)
        self.head = build_head(head, features_of(self.torso), spec.action.n)
        find_parts_at_once(self)

    def forward(
        self,
        obs: Tree,
        rng: Rng = None,
        *,
        noise: bool = True,
        use: Use = "learn",
        action_mask: Tensor | None = None,
    ) -> HeadOut:
        out: HeadOut = self.head(self.torso(obs), rng, noise=noise, use=use)
        if action_mask is None:
            return out
        return out._replace(q=out.q.masked_fill(~action_mask, -torch.inf))


def require_discrete(name: str, spec: EnvSpec, *, instead: str) -> None:
    """Refuse actions that are not discrete; `instead`: what to train on them."""
    if not isinstance(spec.action, Discrete):
        raise LudusError(
            "E204",
            f"{name} needs discrete actions, {spec.id} has {spec.action}",
            why="Q-learning takes a maximum over a finite set of actions",
            fix=f"ludus train {instead} {spec.id}",
        )


def build_q_nets(
    name: str, spec: EnvSpec, torso: TorsoModel, head: HeadModel, *, instead: str
) -> nn.ModuleDict:
    """An online net and a target net with the same weights; `instead`: what to train on actions
    that are not discrete."""
    require_discrete(name, spec, instead=instead)
    net = nn.ModuleDict({k: QNet(spec, torso, head) for k in ("online", "target")})
    net["target"].requires_grad_(False)
    copy_weights(net["online"], net["target"])
    return net


def masked(out: HeadOut, mask: Tensor | None) -> HeadOut:
    """Forbidden actions get q = -inf; where nothing is allowed (an episode is over) all are."""
    if mask is None:
        return out
    return out._replace(q=out.q.masked_fill(~mask & mask.any(-1, keepdim=True), -torch.inf))


def q_net(net: nn.ModuleDict, which: str) -> QNet:
    found = net[which]
    assert isinstance(found, QNet)
    return found


@torch.no_grad()
def copy_weights(source: nn.Module, target: nn.Module) -> None:
    torch._foreach_copy_(list(target.parameters()), list(source.parameters()))
    for a, b in zip(source.buffers(), target.buffers(), strict=True):
        b.copy_(a)
