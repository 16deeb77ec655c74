"""Learner: the only owner of nets and optimizer. Applies weights, masks, clipping and the check for
non-finite numbers in one place, for every algorithm. eager.py and captured.py call it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ludus import optim, seeding
from ludus.contract import Algorithm, Prioritized, overrides
from ludus.errors import LudusError
from ludus.learn.crash_dump import write_dump
from ludus.learn.minibatches import Split
from ludus.learn.periods import Periods
from ludus.nets.normalize import Normalizer, normalized, normalizer_of
from ludus.types import Ctx, EnvSpec, Loss, Rows, Sample, map_fields

if TYPE_CHECKING:
    from ludus.learn.captured import DeviceMetrics
    from ludus.learn.compression import Compression


_FULL = nullcontext()
HOOKS = ("prepare", "after_sample", "after_update", "after_steps")  # called where overridden


class Learner:
    def __init__(
        self,
        algorithm: Algorithm,
        spec: EnvSpec,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        normalizer: Normalizer | None = None,
        precision: str = "fp32",
        nan_limit: int = 3,
        crash_dir: Path | None = None,
        rank: int = 0,
        first_env: int = 0,
    ) -> None:
        """In a group this is learner `rank`, whose environments begin with number `first_env`."""
        self.rank, self.first_env = rank, first_env
        self.algorithm, self.plan, self.seed = algorithm, algorithm.plan, seed
        self.device = torch.device(device)
        self.nan_limit, self.crash_dir = nan_limit, crash_dir
        self.precision = precision
        # Layers initialise themselves from torch's global generator.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeding.stream_seed(seed, "init"))
            self.net: nn.ModuleDict = algorithm.build(spec)
        if normalizer is not None:
            self.net["normalizer"] = normalizer
        self.normalizer = normalizer_of(self.net)
        self.net.to(self.device)
        self.optimizer = algorithm.optimizer(self.net)
        self.stepper = optim.Stepper(self.optimizer)
        self.params = [p for g in self.optimizer.param_groups for p in g["params"]]
        self.periods = Periods(self.plan.periods, self.optimizer)
        self.ctx = Ctx(seeding.generator(seed, "learner", rank, device=self.device), spec)
        self.compression: Compression | None = None  # of the gradients of a group
        self.ctx.stepping = self.periods.names
        self.hooks = frozenset(hook for hook in HOOKS if overrides(algorithm, hook))
        # Updates since the weights that acted: the mean over the newest sample.
        self.lag: Tensor | float | None = None
        self.updates = 0
        self.skipped = 0  # updates not applied because something was not finite
        self.skipped_in_a_row = 0
        # Each metric's sum and number of updates; tensors only where reading them means to wait.
        self._sums: dict[str, tuple[Tensor | float, int]] = {}
        self.device_metrics: DeviceMetrics | None = None  # the same for captured updates
        self._skipped_on_device = 0  # the part of `skipped` that device_metrics reported
        self.on_update: Callable[[Mapping[str, Tensor]], None] | None = None
        self.refused_batch: Callable[[], Any] | None = None  # of the newest update on the device

    @property
    def next_update(self) -> int:
        """The number of the next update, counted from 1; skipped ones count too."""
        return self.updates + self.skipped + 1

    def set_counts(self, updates: int, skipped: int) -> None:
        """Continue after the updates of a checkpoint."""
        self.updates, self.skipped = updates, skipped
        self.ctx.updates.fill_(updates)

    def reseed(self, barrier: int) -> None:
        self.ctx.rng.manual_seed(seeding.stream_seed(self.seed, "learner", self.rank, barrier))

    def learn(self, sample: Sample, values: dict[str, Tensor]) -> Tensor | None:
        """All epochs and minibatches of one sample. Returns new priorities, if there are any."""
        self.ctx.values = values
        batch = sample.batch
        if self.device.type != "cpu":  # a queue keeps its unrolls in host memory
            batch = map_fields(lambda x: x.to(self.device, non_blocking=True), batch)
        return self.learn_batch(batch, sample.weight)

    def learn_batch(self, batch: Any, weight: Tensor, *, on_device: bool = False) -> Tensor | None:
        data, priority = self.prepared(batch), None
        if not self.splits:
            weights = weight if self.weighted else None
            priority = self.update(data, weights, on_device=on_device)
        else:
            split = Split(self.plan, data)
            for items in self.minibatch_items(split.count):
                self.update(split.part(items), None, on_device=on_device)
        self.after_sample(data)
        return priority

    @torch.no_grad()
    def after_sample(self, data: Any) -> None:
        if "after_sample" in self.hooks:
            self.algorithm.after_sample(self.net, data, self.ctx)

    @property
    def splits(self) -> bool:
        """Whether a sample is learned from in several updates."""
        return self.plan.epochs > 1 or self.plan.minibatches > 1

    def minibatch_items(self, count: int) -> Iterator[Tensor]:
        """Every row (or environment) once per epoch, in a new random order each time."""
        for _ in range(self.plan.epochs):
            order = torch.randperm(count, generator=self.ctx.rng, device=self.device)
            yield from order.tensor_split(self.plan.minibatches)  # sizes differ by one at most

    @property
    def weighted(self) -> bool:
        return any(isinstance(sampler, Prioritized) for sampler in self.plan.samplers)

    def autocast(self) -> AbstractContextManager[Any]:
        """Without a cache, which would outlive the graph it was captured in."""
        if self.precision == "fp32":
            return _FULL  # a disabled autocast would cost as much as an operation
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)

    @torch.no_grad()
    def prepared(self, batch: Any) -> Any:
        """Normalise, then the algorithm's `prepare`. Also measure the sample's policy lag."""
        version: Tensor | None = getattr(batch, "version", None)
        if version is not None:
            self._measure_lag(version)
        with self.autocast():
            if self.normalizer is not None:
                batch = normalized(self.net, batch)
            if "prepare" in self.hooks:
                batch = self.algorithm.prepare(self.net, batch, self.ctx)
        return batch

    def _measure_lag(self, version: Tensor) -> None:
        if self.device_metrics is not None:  # a graph knows the tensor
            if self.lag is None:
                self.lag = torch.zeros((), dtype=torch.float64, device=self.device)
            assert isinstance(self.lag, Tensor)
            self.lag.copy_(self.ctx.updates - version.double().mean())
        elif version.is_cpu:
            self.lag = int(self.ctx.updates) - int(version.sum()) / version.numel()
        else:
            self.lag = self.ctx.updates - version.double().mean()

    @torch.no_grad()
    def features(self, batch: Any) -> Tensor:
        """The features [B, F] by which a sampler ranks the items of a sample."""
        if self.device.type != "cpu":
            batch = map_fields(lambda x: x.to(self.device, non_blocking=True), batch)
        with self.autocast():
            found = self.algorithm.features(self.net, normalized(self.net, batch), self.ctx)
        if found is None:
            raise LudusError(
                "E104",
                "a sampler that ranks by features with an algorithm that has none",
                where="the algorithm's plan",
                fix="a method features(net, batch, ctx) that returns [B, F], or another sampler",
            )
        return found

    def update(
        self, batch: Any, weight: Tensor | None, *, on_device: bool = False
    ) -> Tensor | None:
        """One update, skipped if its loss or gradient is not finite. Returns new priorities.

        `on_device` it can be captured in a graph: nothing waits for a number or branches on one.
        The caller sets the learning rates and `ctx.stepping`, and calls `count_update` each time
        it ran.
        """
        if not on_device:
            if self.periods.periods:
                self.ctx.stepping = self.periods.at(self.next_update)
            for group in self.optimizer.param_groups:
                group["lr"] = float(self.rate(group))
        loss, total = self._gradients(batch, weight)
        norm = self._clip(on_device)
        if on_device:
            self._step_on_device(norm, {"loss": total.detach(), "grad_norm": norm, **loss.metrics})
            return loss.priority
        size, value = norm.item(), total.item()
        if not math.isfinite(size + value):
            numbers = f"loss {value:g}, gradient norm {size:g}"
            self._refuse(1, self.skipped_in_a_row + 1, batch, numbers)
            return None
        self.skipped_in_a_row = 0
        self._step()
        metrics = {"loss": value, "grad_norm": size, **loss.metrics}
        if self.lag is not None:
            metrics["policy_lag"] = self.lag
        self.add_sums({name: (number, 1) for name, number in metrics.items()})
        if self.on_update is not None:
            self.on_update({name: torch.as_tensor(number) for name, number in metrics.items()})
        return loss.priority

    def _step_on_device(self, norm: Tensor, metrics: dict[str, Tensor]) -> None:
        assert self.device_metrics is not None
        if self.lag is not None:
            assert isinstance(self.lag, Tensor)
            metrics["policy_lag"] = self.lag
        found = self.device_metrics.check_finite(norm, metrics["loss"])
        self.optimizer.found_inf = found  # type: ignore[attr-defined]
        self.optimizer.step()
        self.ctx.updates.add_((1 - found).to(torch.int64))
        self.device_metrics.add(metrics, self.ctx.stepping)

    def count_update(self) -> None:
        """The host's part of an update on the device."""
        self._after_update()
        if self.on_update is not None and self.device_metrics is not None:
            self.on_update(self.device_metrics.newest(self.periods.at(self.next_update - 1)))

    def _step(self) -> None:
        self.stepper.step()
        self.ctx.updates.add_(1)
        self._after_update()

    def _after_update(self) -> None:
        self.updates += 1
        if "after_update" in self.hooks:
            self.algorithm.after_update(self.net, self.updates)

    @torch.no_grad()
    def count_steps(self, before: int, steps: int) -> None:
        """The run has gone from step `before` to `steps`, and their updates are done."""
        if "after_steps" in self.hooks:
            self.algorithm.after_steps(self.net, before, steps)

    def flush(self) -> None:
        """Wait for every update, so that a checkpoint counts only those that were applied."""
        if self.device_metrics is not None:
            self.check_refused(wait=True)
            self.device_metrics.send_counts()
            self.check_refused(wait=True)

    def check_refused(self, *, wait: bool = False) -> None:
        """Count updates that the device refused, an iteration or two late."""
        assert self.device_metrics is not None
        counts = self.device_metrics.read_counts(wait=wait)
        if counts is None or counts[0] <= self._skipped_on_device:
            return
        new = counts[0] - self._skipped_on_device
        self._skipped_on_device = counts[0]
        self.updates -= new
        batch = self.refused_batch() if self.refused_batch is not None else None
        self._refuse(new, counts[1], batch, "loss or gradient norm")

    @torch.no_grad()
    def observe(self, rows: Rows, source: int = 0) -> None:
        """New rows arrived and their updates are done: only now may normalisers move."""
        if self.normalizer is not None:
            first_env = self.first_env + source * rows.reward.shape[1]
            self.normalizer.observe(rows, first_env, self.ctx.group)

    def break_streams(self) -> None:
        if self.normalizer is not None:
            self.normalizer.break_streams()

    def take_metrics(self) -> dict[str, float]:
        """Means over the updates since the last call that had a metric of the name."""
        sums, self._sums = self._sums, {}
        if not sums:
            return {} if self.device_metrics is None else self.device_metrics.take()
        means = [
            torch.as_tensor(total / count, dtype=torch.float64, device=self.device)
            for total, count in sums.values()
        ]
        return dict(zip(sums, torch.stack(means).tolist(), strict=True))

    def take_sums(self) -> dict[str, tuple[float, int]]:
        """The same as sums and counts, for another learner's `add_sums`."""
        sums, self._sums = self._sums, {}
        return {name: (float(total), count) for name, (total, count) in sums.items()}

    def add_sums(self, sums: Mapping[str, tuple[float | Tensor, int]]) -> None:
        """Sums of tensors stay on their device until they are read; a CPU's are read at once."""
        for name, (more, number) in sums.items():
            total, count = self._sums.get(name, (0.0, 0))
            if isinstance(more, Tensor):
                more = more.item() if more.is_cpu else more.detach().double()
            self._sums[name] = (total + more, count + number)

    def _gradients(self, batch: Any, weight: Tensor | None) -> tuple[Loss, Tensor]:
        for p in self.params:
            p.grad = None
        with self.autocast():
            loss = self.algorithm.loss(self.net, batch, self.ctx)
        total = self._reduce(loss, batch, weight)
        total.backward()  # type: ignore[no-untyped-call]
        if self.ctx.group is not None:
            total = self._agree(total)
        for group in self.optimizer.param_groups if self.periods.periods else ():
            if group.get("name", "") in self.periods.names - self.ctx.stepping:
                for p in group["params"]:
                    p.grad = None  # the optimizer leaves it, and its state, as they are
        return loss, total

    @torch.no_grad()
    def _agree(self, total: Tensor) -> Tensor:
        """The loss and gradients of all learners: each has divided by the count of all."""
        trained = [p for p in self.params if p.grad is not None]
        own = torch.cat([p.grad.reshape(-1) for p in trained if p.grad is not None])
        total_of = self.ctx.total if self.compression is None else self.compression.total
        parts = torch.split(total_of(own), [p.numel() for p in trained])
        for p, part in zip(trained, parts, strict=True):
            p.grad = part.view_as(p)
        return self.ctx.total(total.detach())

    def rate(self, group: dict[str, Any]) -> Tensor:
        """A group named x follows the schedule lr_x where the plan has one, else lr."""
        values = self.ctx.values
        return values.get(f"lr_{group.get('name', '')}", values["lr"])

    def _reduce(self, loss: Loss, batch: Any, weight: Tensor | None) -> Tensor:
        """Importance weights and masks, applied here and nowhere else."""
        value = loss.value
        if weight is not None:
            value = value * weight
        mask: Tensor | None = getattr(batch, "mask", None)
        if mask is None or mask.shape != value.shape:  # items, not rows
            if self.plan.reduce == "sum" or self.ctx.group is None:
                return value.sum() if self.plan.reduce == "sum" else value.mean()
            return value.sum() / self.ctx.total(torch.tensor(value.numel(), device=value.device))
        total = torch.where(mask, value, 0.0).sum()
        return (
            total if self.plan.reduce == "sum" else total / self.ctx.total(mask.sum()).clamp(min=1)
        )

    def _clip(self, on_device: bool) -> Tensor:
        """Clip as the plan says. Returns the gradient's global norm before."""
        grads = [p.grad for p in self.params if p.grad is not None]
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        limit = self.plan.clip_norm
        if self.plan.clip == "global" and on_device:
            torch._foreach_mul_(grads, (limit / (norm + 1e-6)).clamp(max=1.0))
        elif self.plan.clip == "global":
            size = float(norm)
            if size > limit:
                torch._foreach_mul_(grads, limit / (size + 1e-6))
        elif self.plan.clip == "group":
            for group in self.optimizer.param_groups:
                torch.nn.utils.clip_grad_norm_(group["params"], limit)
        elif self.plan.clip == "layer":
            for grad in grads:
                grad.mul_((limit / (grad.norm() + 1e-6)).clamp(max=1.0))
        return norm

    def _refuse(self, count: int, in_a_row: int, batch: Any, numbers: str) -> None:
        """Count skipped updates and save the newest one's batch; stop after a few in a row."""
        self.skipped += count
        self.skipped_in_a_row = in_a_row
        where = self.dump(batch)
        if in_a_row < self.nan_limit:
            return
        raise LudusError(
            "E401",
            f"{in_a_row} updates in a row were not finite: {numbers} (update {self.updates + 1})",
            where=str(where) if where else "",
            why="a learning rate that is too high, rewards that are too large, or an "
            "environment that returned a non-finite number",
            fix="resume from the last checkpoint with a lower learning rate: "
            "--init-from RUN lr=1e-4, or set env.reward_clip=sign",
        )

    def dump(self, batch: Any) -> Path | None:
        """Write the batch (if there is one) and the weights before the refused update."""
        if self.crash_dir is None:
            return None
        path = (
            self.crash_dir
            / f"nonfinite-{self.updates + 1:09d}-{self.skipped_in_a_row:02d}.safetensors"
        )
        return write_dump(path, self.net, batch)
