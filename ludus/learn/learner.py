"""Learner: the only owner of nets and optimizer. Applies weights, masks, clipping and the guard
against non-finite numbers once, for every algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from ludus import seeding
from ludus.contract import Algorithm, Prioritized
from ludus.errors import LudusError
from ludus.learn.device_metrics import Tally
from ludus.nets.normalize import Normalizer, normalized, normalizer_of
from ludus.track.atomic_files import make_folder
from ludus.types import Ctx, EnvSpec, Loss, Rows, Sample, tree_leaves, tree_map, tree_paths

DUMPS = 10  # post-mortems kept of refused updates, the newest


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
    ) -> None:
        self.algorithm, self.plan, self.seed = algorithm, algorithm.plan, seed
        self.device = torch.device(device)
        self.nan_limit, self.crash_dir = nan_limit, crash_dir
        self.precision = precision
        # Layers initialise themselves from torch's global generator; lend it to them, seeded.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeding.stream_seed(seed, "init"))
            self.net: nn.ModuleDict = algorithm.build(spec)
        if normalizer is not None:
            self.net["normalizer"] = normalizer
        self.net.to(self.device)
        self.optimizer = algorithm.optimizer(self.net)
        self.params = [p for g in self.optimizer.param_groups for p in g["params"]]
        self.ctx = Ctx(seeding.generator(seed, "learner", device=self.device), spec)
        self.updates = 0
        self.skipped = 0  # updates not applied because something was not finite
        self.skipped_in_a_row = 0
        self._sums: dict[str, tuple[Tensor, int]] = {}  # of each metric, and of how many updates
        self.tally = Tally(self.device)  # the same for updates without the host
        self._refused_here = 0  # of those, how many are in `skipped`
        self.on_update: Callable[[Mapping[str, Tensor]], None] | None = None
        self.evidence: Callable[[], Any] | None = None  # the batch of the newest refused update

    def reseed(self, barrier: int) -> None:
        self.ctx.rng.manual_seed(seeding.stream_seed(self.seed, "learner", 0, barrier))

    def learn(self, sample: Sample, values: dict[str, Tensor]) -> Tensor | None:
        """All epochs and minibatches of one sample. Returns new priorities, if there are any."""
        self.ctx.values = values
        batch = self._here(sample.batch)
        data = self.prepared(batch)
        if self.plan.epochs == 1 and self.plan.minibatches == 1:
            priority = self._update(data, sample.weight if self.weighted else None)
        else:
            priority = None
            for part in self._minibatches(data):
                self._update(part, None)
        with torch.no_grad():
            self.algorithm.after_sample(self.net, data, self.ctx)
        return priority

    @property
    def weighted(self) -> bool:
        return isinstance(self.plan.sampler, Prioritized)

    def autocast(self) -> torch.autocast:
        """No cache: what a cache holds would outlive the graph it was captured in."""
        bf16 = self.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=bf16, cache_enabled=False)

    @torch.no_grad()
    def prepared(self, batch: Any) -> Any:
        """Normalised, and through the algorithm's `prepare`."""
        with self.autocast():
            return self.algorithm.prepare(self.net, normalized(self.net, batch), self.ctx)

    def update_here(self, batch: Any, weight: Tensor | None) -> Tensor | None:
        """One update without the host: nothing waits, nothing branches on a number. A loss or
        gradient that is not finite leaves weights and optimizer alone. Returns new priorities."""
        loss, total = self._gradients(batch, weight)
        norm = self._clip(here=True)
        self.optimizer.found_inf = self.tally.judge(norm, total)  # type: ignore[attr-defined]
        self.optimizer.step()
        self.tally.add({"loss": total.detach(), "grad_norm": norm, **loss.metrics})
        return loss.priority

    def updated_here(self) -> None:
        """The host's side of `update_here`, for each time it ran."""
        self.updates += 1
        self.algorithm.after_update(self.net, self.updates)
        if self.on_update is not None:
            self.on_update(self.tally.newest())

    @torch.no_grad()
    def count_steps(self, before: int, steps: int) -> None:
        """The run has gone from step `before` to `steps`, and what was due on them is done."""
        self.algorithm.after_steps(self.net, before, steps)

    def settle(self) -> None:
        """Know of every update that was refused: what a checkpoint counts must be final."""
        self.hear_refused(wait=True)
        self.tally.ask()
        self.hear_refused(wait=True)

    def hear_refused(self, *, wait: bool = False) -> None:
        """Learn of refused updates, an iteration or two late; the run stops after a few in a
        row."""
        heard = self.tally.hear(wait=wait)
        if heard is None or heard[0] <= self._refused_here:
            return
        new = heard[0] - self._refused_here
        self._refused_here, self.skipped_in_a_row = heard
        self.updates -= new
        self.skipped += new
        where = self.dump(self.evidence() if self.evidence is not None else None)
        if self.skipped_in_a_row >= self.nan_limit:
            raise self._too_many("loss or gradient norm", where)

    @torch.no_grad()
    def observe(self, rows: Rows, source: int = 0) -> None:
        """New rows arrived and their updates are done: only now may normalisers move."""
        normalizer = normalizer_of(self.net)
        if normalizer is not None:
            normalizer.observe(rows, source * rows.reward.shape[1])

    def break_streams(self) -> None:
        normalizer = normalizer_of(self.net)
        if normalizer is not None:
            normalizer.break_streams()

    def take_metrics(self) -> dict[str, float]:
        """Means over the updates since the last call that had a metric of the name."""
        sums, self._sums = self._sums, {}
        if not sums:
            return self.tally.take()
        means = torch.stack([total / count for total, count in sums.values()]).tolist()
        return dict(zip(sums, means, strict=True))

    def take_sums(self) -> dict[str, tuple[float, int]]:
        """The same as sums and counts, for somebody else's `add_sums`."""
        sums, self._sums = self._sums, {}
        return {name: (float(total), count) for name, (total, count) in sums.items()}

    def add_sums(self, sums: Mapping[str, tuple[float, int]]) -> None:
        for name, (more, number) in sums.items():
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + torch.tensor(more, dtype=torch.float64), count + number)

    def _count(self, metrics: Mapping[str, Tensor]) -> None:
        """Sums stay on the device: nobody waits for a number before it is read."""
        for name, value in metrics.items():
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + value.detach().double(), count + 1)

    def _here(self, batch: Any) -> Any:
        """On the learner's device; a queue keeps its unrolls in host memory."""
        if self.device.type == "cpu":
            return batch
        return map_fields(lambda x: x.to(self.device, non_blocking=True), batch)

    def _minibatches(self, data: Any) -> Iterator[Any]:
        """Every row once per epoch, in a new random order each time; [T,B,...] -> [T*B/k,...]."""
        flat = map_fields(lambda x: x.flatten(0, 1), data)
        count = flat.mask.shape[0]
        for _ in range(self.plan.epochs):
            order = torch.randperm(count, generator=self.ctx.rng, device=self.device)
            for rows in order.tensor_split(self.plan.minibatches):  # sizes differ by one at most
                yield map_fields(lambda x, rows=rows: x[rows], flat)

    def _update(self, batch: Any, weight: Tensor | None) -> Tensor | None:
        for group in self.optimizer.param_groups:
            group["lr"] = float(self.rate(group))
        loss, total = self._gradients(batch, weight)
        norm = self._clip()
        if not math.isfinite(float(norm) + float(total.detach())):
            self._refuse(batch, float(total.detach()), float(norm))
            return None
        self.skipped_in_a_row = 0
        self._step()
        metrics = {"loss": total.detach(), "grad_norm": norm, **loss.metrics}
        self._count(metrics)
        if self.on_update is not None:
            self.on_update(metrics)
        return loss.priority

    def _step(self) -> None:
        self.optimizer.step()
        self.updates += 1
        self.algorithm.after_update(self.net, self.updates)

    def _gradients(self, batch: Any, weight: Tensor | None) -> tuple[Loss, Tensor]:
        for p in self.params:
            p.grad = None
        with self.autocast():
            loss = self.algorithm.loss(self.net, batch, self.ctx)
        total = self._reduce(loss, batch, weight)
        total.backward()  # type: ignore[no-untyped-call]
        return loss, total

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
            return value.sum() if self.plan.reduce == "sum" else value.mean()
        total = torch.where(mask, value, 0.0).sum()
        return total if self.plan.reduce == "sum" else total / mask.sum().clamp(min=1)

    def _clip(self, here: bool = False) -> Tensor:
        """The gradient's global norm before clipping; clips as the plan says. `here`: without
        looking at the norm."""
        grads = [p.grad for p in self.params if p.grad is not None]
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        limit = self.plan.clip_norm
        if self.plan.clip == "global" and here:
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

    def _refuse(self, batch: Any, total: float, norm: float) -> None:
        """Leave the weights alone, keep the evidence, and stop after a few in a row."""
        self.skipped += 1
        self.skipped_in_a_row += 1
        where = self.dump(batch)
        if self.skipped_in_a_row >= self.nan_limit:
            raise self._too_many(f"loss {total:g}, gradient norm {norm:g}", where)

    def _too_many(self, what: str, where: Path | None) -> LudusError:
        return LudusError(
            "E401",
            f"{self.skipped_in_a_row} updates in a row were not finite: {what} "
            f"(update {self.updates + 1})",
            where=str(where) if where else "",
            why="a learning rate that is too high, rewards that are too large, or an "
            "environment that returned a non-finite number",
            fix="resume from the last checkpoint with a lower learning rate: "
            "--init-from RUN lr=1e-4, or set env.reward_clip=sign",
        )

    def dump(self, batch: Any) -> Path | None:
        """The batch (if it is at hand) and the weights before the refused update."""
        if self.crash_dir is None:
            return None
        path = (
            self.crash_dir
            / f"nonfinite-{self.updates + 1:09d}-{self.skipped_in_a_row:02d}.safetensors"
        )
        tensors = {f"net.{k}": v for k, v in self.net.state_dict().items()}
        for name, value in () if batch is None else zip(batch._fields, batch, strict=True):
            if value is None or (isinstance(value, tuple | dict) and not value):
                continue
            for key, leaf in zip(tree_paths(value, name), tree_leaves(value), strict=True):
                tensors[f"batch.{key}"] = leaf
        try:
            make_folder(self.crash_dir)
            for old in sorted(self.crash_dir.glob("nonfinite-*"))[: 1 - DUMPS]:
                old.unlink()
            path.unlink(missing_ok=True)  # it would be written through a link
            save_file({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, path)
        except (OSError, SafetensorError):
            return None  # evidence is welcome; a full disk must not end the run
        return path


def map_fields(fn: Any, data: Any) -> Any:
    """Apply `fn` to every tensor of a NamedTuple; None stays None."""
    return type(data)(*(x if x is None else tree_map(fn, x) for x in data))
