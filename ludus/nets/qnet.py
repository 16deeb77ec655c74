"""Torso and value head in one: the net of the DQN family. No exploration, no targets."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ludus.errors import LudusError
from ludus.nets.heads import HeadModel, HeadOut, build_head
from ludus.nets.torsos import TorsoModel, build_torso
from ludus.types import Discrete, EnvSpec, Tree


class QNet(nn.Module):
    """`noise` is for noisy layers, `taus` for implicit heads; others ignore them."""

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

    def forward(
        self,
        obs: Tree,
        rng: torch.Generator | None = None,
        *,
        noise: bool = True,
        taus: int | None = None,
        action_mask: Tensor | None = None,
    ) -> HeadOut:
        out: HeadOut = self.head(self.torso(obs), rng, noise=noise, taus=taus)
        if action_mask is None:
            return out
        return out._replace(q=out.q.masked_fill(~action_mask, -torch.inf))


def features_of(torso: nn.Module) -> int:
    """The width of a torso's output, its attribute `out`."""
    width = torso.out
    assert isinstance(width, int)
    return width
