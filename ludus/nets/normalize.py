"""Running statistics of observations and returns, and the scaling by them. They are buffers of a
module, so they travel with weights and checkpoints. Nothing here is trained by gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ludus.types import ArraySpec, EnvSpec, Group, Rows, Tree, tree_leaves, tree_map, tree_unflatten

_EPSILON = 1e-8


class Normalizer(nn.Module):
    """Observations to mean 0, variance 1; rewards over the standard deviation of the return.

    Statistics are kept in float64 and merged batch by batch (Chan et al. 1983). Without `integers`
    bytes are left alone. `observe` changes them; `obs` and `reward` only read, so a batch is scaled
    alike in every epoch when `observe` comes once, after the last.
    """

    def __init__(
        self,
        spec: EnvSpec,
        num_envs: int = 1,
        *,
        obs: bool = True,
        reward: bool = True,
        integers: bool = True,
        clip: float = 10.0,
        gamma: float = 0.99,
    ) -> None:
        super().__init__()
        self.scale_obs, self.scale_reward = obs, reward
        self.clip, self.gamma = clip, gamma
        leaves: list[ArraySpec] = tree_leaves(spec.obs)
        self.leaves = [
            i for i, s in enumerate(leaves) if obs and (integers or s.dtype.startswith("float"))
        ]
        shapes = {str(i): leaves[i].shape for i in self.leaves} | ({"return": ()} if reward else {})
        self.index = tree_unflatten(spec.obs, range(len(leaves)))
        for key, shape in shapes.items():
            self.register_buffer(f"mean_{key}", torch.zeros(shape, dtype=torch.float64))
            self.register_buffer(f"var_{key}", torch.ones(shape, dtype=torch.float64))
            self.register_buffer(f"count_{key}", torch.zeros((), dtype=torch.float64))
            # Read when acting; computed again after every merge.
            self.register_buffer(f"shift_{key}", torch.zeros(shape))
            self.register_buffer(f"scale_{key}", torch.ones(shape))
        if reward:
            self.register_buffer("running_return", torch.zeros(num_envs, dtype=torch.float64))

    def obs(self, tree: Tree) -> Tree:
        """Scaled observations, [..., *shape] a leaf; stacked frames are scaled frame by frame."""
        return tree_map(self._leaf, self.index, tree) if self.leaves else tree

    def reward(self, reward: Tensor) -> Tensor:
        """Scaled, not centred: the sign of a reward means something."""
        if not self.scale_reward:
            return reward
        return (reward * self._buffer("scale_return")).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def observe(self, rows: Rows, first_env: int = 0, group: Group | None = None) -> None:
        """Take in the rows with mask=True: their observations, and the returns they continue.

        Environment b of `rows` is number `first_env` + b of the running returns. In a group, the
        rows of all learners.
        """
        leaves = tree_leaves(tree_map(lambda _, x: x, self.index, rows.obs))
        for i in self.leaves:
            self._merge(str(i), leaves[i][:-1][rows.mask], group)
        if self.scale_reward:
            self._merge("return", self._returns(rows, first_env)[rows.mask.cpu()], group)

    def break_streams(self) -> None:
        """Every environment starts a new episode: reset the running returns."""
        if self.scale_reward:
            self._buffer("running_return").zero_()

    def _buffer(self, name: str) -> Tensor:
        buffer = self._buffers[name]  # get_buffer parses dotted paths, too slow for acting
        assert buffer is not None
        return buffer

    def _leaf(self, index: int, x: Tensor) -> Tensor:
        if index not in self.leaves:
            return x
        shift, scale = self._buffer(f"shift_{index}"), self._buffer(f"scale_{index}")
        return ((x - shift) * scale).clamp(-self.clip, self.clip)

    def _returns(self, rows: Rows, first_env: int) -> Tensor:
        """R_t = r_t + gamma R_{t-1} within each episode, [T, B]. In numpy: T tiny steps."""
        steps, batch = rows.reward.shape
        state = self._buffer("running_return")[first_env : first_env + batch]
        mask = rows.mask.cpu().numpy()
        reward = rows.reward.cpu().double().numpy()
        keep = (self.gamma * rows.discount.double() * ~rows.last).cpu().numpy()
        out, now = np.empty((steps, batch)), state.cpu().numpy().copy()
        for t in range(steps):
            now = np.where(mask[t], now + reward[t], 0.0)  # a dummy row has no return
            out[t] = now
            now = now * keep[t]
        state.copy_(torch.from_numpy(now))
        return torch.from_numpy(out)

    def _merge(self, key: str, batch: Tensor, group: Group | None) -> None:
        """Merge `batch` [n, *shape] into the statistics of `key`."""
        mean, var = self._buffer(f"mean_{key}"), self._buffer(f"var_{key}")
        batch = batch.to(mean.device, torch.float64)  # rows come from host memory
        number, batch_mean, batch_var = moments(batch, group)
        if number == 0:
            return
        count = self._buffer(f"count_{key}")
        total = count + number
        delta = batch_mean - mean
        within = var * count + batch_var * number
        between = delta.square() * count * number / total
        mean += delta * number / total
        var.copy_((within + between) / total)
        count.copy_(total)
        self._buffer(f"shift_{key}").copy_(mean)
        self._buffer(f"scale_{key}").copy_((var + _EPSILON).rsqrt())


def moments(batch: Tensor, group: Group | None) -> tuple[int, Tensor, Tensor]:
    """Number, mean and variance (biased) of the rows of `batch` [n, ...], of all learners."""
    if group is None:
        number = batch.shape[0]
        if number == 0:
            return 0, batch, batch
        return number, batch.mean(0), batch.var(0, correction=0)
    number = int(group.sum(torch.tensor(batch.shape[0], device=batch.device)))
    mean = group.sum(batch.sum(0)) / max(number, 1)
    return number, mean, group.sum((batch - mean).square().sum(0)) / max(number, 1)


def normalized(net: nn.ModuleDict, batch: Any) -> Any:
    """A batch or a step, scaled for the net; the same one where nothing is normalised."""
    norm = normalizer_of(net)
    if norm is None:
        return batch
    scales = {"obs": norm.obs, "next_obs": norm.obs, "reward": norm.reward}
    return batch._replace(
        **{name: fn(getattr(batch, name)) for name, fn in scales.items() if hasattr(batch, name)}
    )


def normalizer_of(net: nn.ModuleDict) -> Normalizer | None:
    """The normaliser in a net, if it has one."""
    found = net["normalizer"] if "normalizer" in net else None
    assert found is None or isinstance(found, Normalizer)
    return found
