"""Policy and value from one pass over an unroll, with or without a memory. No losses here."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from ludus.contract import Frozen
from ludus.nets.inputs import MAX_WIDTH, over_time, previous_step, previous_width
from ludus.nets.policies import ValueHead, build_policy_head
from ludus.nets.recurrent import LSTMCore
from ludus.nets.torsos import TorsoModel, build_torso, features_of
from ludus.types import EnvSpec, Tree, tree_leaves, tree_map


class Recurrent(Frozen):
    """An LSTM between the torso and the heads; its state is zero at an episode's start."""

    hidden: int = Field(default=256, ge=1, le=MAX_WIDTH)


class PolicyValueOut(NamedTuple):
    params: Tensor  # [T, B, P] of the policy's distribution
    value: Tensor  # [T, B]
    state: Any  # after the last step


class PolicyValue(nn.Module):
    """Torso, optional LSTM, two linear heads. `feed_previous`: the action and reward of the step
    before are inputs too, next to the torso's features."""

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

    def initial(self, batch: int, device: torch.device | str = "cpu") -> Any:
        """The state before an episode; () without a memory."""
        return () if self.core is None else self.core.initial(batch, device)

    def values(self, obs: Tree) -> Tensor:
        """[B] from observations [B, ...] that each open an episode."""
        leaf = tree_leaves(obs)[0]
        opens = torch.ones(1, leaf.shape[0], dtype=torch.bool, device=leaf.device)
        state = self.initial(leaf.shape[0], leaf.device)
        value: Tensor = self(tree_map(lambda x: x[None], obs), opens, state).value[0]
        return value
