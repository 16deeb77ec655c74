"""A policy and, where wanted, a state value: torsos and heads of the feed-forward actor-critics."""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import Tensor, nn

from ludus.nets.policies import PolicyDist, ValueHead, build_policy_head
from ludus.nets.torsos import TorsoModel, build_torso, features_of, find_parts_at_once
from ludus.types import EnvSpec, Tree, tree_leaves, tree_map

# The value's torso: its own, the policy's, or there is no value at all.
ValueTorso: TypeAlias = Literal["own", "shared", "none"]


class ActorCritic(nn.Module):
    def __init__(
        self, spec: EnvSpec, torso: TorsoModel, value: ValueTorso = "own", log_std: float = 0.0
    ) -> None:
        super().__init__()
        self.action = spec.action
        self.torso = build_torso(torso, spec.obs)
        self.value_torso = build_torso(torso, spec.obs) if value == "own" else None
        width = features_of(self.torso)
        # Gain 0.01: a nearly uniform first policy, so that no action starts out favoured.
        self.policy = build_policy_head(width, spec.action, gain=0.01, log_std_init=log_std)
        self.value = None if value == "none" else ValueHead(width)
        find_parts_at_once(self)

    def dist(self, obs: Tree, mask: Tensor | None = None) -> PolicyDist:
        """The policy in observations [B, ...]."""
        return PolicyDist(self.policy(self.torso(obs)), self.action, mask)

    def values(self, obs: Tree) -> Tensor | None:
        """[B] from observations [B, ...]; None where there is no value."""
        if self.value is None:
            return None
        value: Tensor = self.value((self.value_torso or self.torso)(obs))
        return value

    def unroll(self, obs: Tree, action_mask: Tensor | None) -> tuple[PolicyDist, Tensor | None]:
        """From T+1 observations [T+1, B, ...] the policy in the first T, and all values [T+1, B].

        A shared torso runs once; a policy of its own does not see the last observation.
        """
        length, batch = tree_leaves(obs)[0].shape[:2]
        flat = tree_map(lambda x: x.flatten(0, 1), obs)
        rows, value = (length - 1) * batch, None
        if self.value is not None and self.value_torso is None:
            features = self.torso(flat)
            value, features = self.value(features), features[:rows]
        else:
            features = self.torso(tree_map(lambda x: x[:rows], flat))
            value = self.values(flat)
        params = self.policy(features).view(length - 1, batch, -1)
        mask = None if action_mask is None else action_mask[:-1]
        dist = PolicyDist(params, self.action, mask)
        return dist, None if value is None else value.view(length, batch)

    def value_parameters(self) -> list[nn.Parameter]:
        """Those of the value alone, without a shared torso."""
        parts = [part for part in (self.value_torso, self.value) if part is not None]
        return [p for part in parts for p in part.parameters()]

    def policy_parameters(self) -> list[nn.Parameter]:
        """All others."""
        return [*self.torso.parameters(), *self.policy.parameters()]
