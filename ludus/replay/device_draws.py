"""Draws without the host, as a captured update makes them, and the count of their trained rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ludus.contract import NStep, Plan, Prioritized
from ludus.replay.samplers.device import DeviceSampler
from ludus.replay.samplers.uniform import Sampler, WeightedDraw
from ludus.types import Traj, Transition

if TYPE_CHECKING:
    from ludus.replay.replay_store import ReplayRatio


class DeviceDraws:
    """The part of a store that draws on the device, if its sampler does.

    A batch of transitions trains on as many rows as it has. Trained rows of sequences and unrolls
    are counted on the device, and the host reads that number only where it decides whether the
    next update is due: the pace is exactly that of a host that counts every batch.
    """

    plan: Plan
    ratio: ReplayRatio
    sampler: Sampler
    beta: float
    rows_of_item = 1, 1  # at least and at most, that an item trains on
    counted: Tensor  # 0-d int64 on the device: trained rows of all batches drawn there
    _in_ratio = 0  # the part of `counted` that `ratio` knows
    _unread = 0  # batches that it does not know

    def count_on(self, device: torch.device, least: int, most: int) -> None:
        """Count on this device; an item trains on `least` to `most` rows."""
        self.counted = torch.zeros((), dtype=torch.int64, device=device)
        self.rows_of_item = least, most

    def due(self) -> bool:
        """Whether the replay ratio allows another batch. Waits for the device only where its count
        decides."""
        if self._unread:
            least, most = (self._unread * self.plan.batch * n for n in self.rows_of_item)
            if not self.ratio.ready(ahead=least):
                return False
            if self.ratio.ready(ahead=most):
                return True
            self.read_count()
        return self.ratio.ready()

    def read_count(self) -> None:
        """Wait for the count of all batches drawn on the device."""
        if self._unread:
            total = int(self.counted)
            self.ratio.samples_drawn += total - self._in_ratio
            self._in_ratio, self._unread = total, 0

    def drop_count(self) -> None:
        """The ratio was loaded: batches drawn before are not in it."""
        self._in_ratio, self._unread = int(self.counted), 0

    @property
    def draws_on_device(self) -> bool:
        """Whether samples are drawn without the host, as a captured update needs it."""
        return isinstance(self.sampler, DeviceSampler)

    def sample_on_device(self) -> tuple[Any, WeightedDraw]:
        """A batch without the host, and no ids. Only if `draws_on_device`."""
        draw = self._device_sampler().draw_on_device(self.plan.batch)
        batch = self.gather(draw.slots)
        if isinstance(batch, Traj):
            self.counted.add_(batch.mask.sum())
        return batch, draw

    def count_sample(self) -> None:
        """The host's part of `sample`, for a batch drawn by `sample_on_device`."""
        if isinstance(self.plan.view, NStep):
            self.ratio.samples_drawn += self.plan.batch
        else:
            self._unread += 1
        if isinstance(self.plan.sampler, Prioritized):
            self._device_sampler().beta.fill_(self.beta)

    def feedback_on_device(self, slots: Tensor, priority: Tensor) -> None:
        """New priorities of slots just drawn; one that is not finite leaves the old value."""
        self._device_sampler().feedback_on_device(slots, priority)

    def changing(self) -> list[Tensor]:
        """The tensors that drawing and feedback on the device write."""
        return [*self._device_sampler().changing(), self.counted]

    def _device_sampler(self) -> DeviceSampler:
        assert isinstance(self.sampler, DeviceSampler)
        return self.sampler

    def gather(self, slots: Tensor) -> Transition | Traj:
        """The batch of these slots."""
        raise NotImplementedError
