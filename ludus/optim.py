"""Optimizer settings and their torch optimizers. Schedules supply the learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, TypeAlias

import torch
from pydantic import Field
from torch import Tensor

from ludus.contract import Frozen
from ludus.schedules import Schedule
from ludus.seeding import generator


class Adam(Frozen):
    kind: Literal["adam"] = "adam"
    eps: float = Field(default=1e-8, gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)  # decoupled, as in AdamW


class RAdam(Frozen):
    """Liu et al. 2020: Adam whose step is rectified while its second moment is uncertain."""

    kind: Literal["radam"] = "radam"
    eps: float = Field(default=1e-8, gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)


class RMSProp(Frozen):
    """The form of Mnih et al. (2015, 2016): epsilon INSIDE the root, optionally centered."""

    kind: Literal["rmsprop"] = "rmsprop"
    decay: float = Field(default=0.99, ge=0, lt=1)
    eps: float = Field(default=0.01, gt=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    centered: bool = False
    initial_square: float = Field(default=0.0, ge=0)  # 1 in TensorFlow, 0 in torch


class SGD(Frozen):
    kind: Literal["sgd"] = "sgd"
    momentum: float = Field(default=0.0, ge=0, lt=1)


# (low, high) bounds of a sampled learning rate.
RateRange: TypeAlias = tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]]
AnyOptimizer: TypeAlias = Adam | RAdam | RMSProp | SGD
Optimizer: TypeAlias = Annotated[AnyOptimizer, Field(discriminator="kind")]


def sampled_lr(rate: Schedule, between: tuple[float, float], seed: int) -> Schedule:
    """Sample a learning rate that starts at 0 from LogUniform(between), once per run (Mnih et al.
    2016, section 5.1). Its end value and span stay."""
    if rate.start != 0:
        return rate
    low, high = (math.log(x) for x in between)
    share = float(torch.rand((), generator=generator(seed, "lr"), dtype=torch.float64))
    start = math.exp(low + (high - low) * share)
    constant = rate.over is None and rate.fraction is None
    return rate.model_copy(update={"start": start, **({"end": start} if constant else {})})


class PaperRMSProp(torch.optim.Optimizer):
    """g2 <- decay g2 + (1-decay) g^2;  step = lr g / sqrt(g2 [- mean^2] + eps).

    torch.optim.RMSprop puts eps outside the root, which with the papers' eps of 0.01 to 0.1 is
    another algorithm.
    """

    found_inf: Tensor | None = None  # 0-d, 1 skips the step, as in torch's fused optimizers

    def __init__(self, params: Iterable[Tensor], lr: float, cfg: RMSProp) -> None:
        self.cfg = cfg
        super().__init__(params, {"lr": lr, "capturable": True})

    def prime(self, p: Tensor) -> dict[str, Any]:
        """Create the state of a parameter before its first step."""
        state: dict[str, Any] = self.state[p]
        if not state:
            state["square"] = torch.full_like(p, self.cfg.initial_square)
            if self.cfg.centered:
                state["mean"] = torch.zeros_like(p)
            if self.cfg.momentum:
                state["momentum"] = torch.zeros_like(p)
        return state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        cfg = self.cfg
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            for p in params:
                state, grad = self.prime(p), p.grad
                assert grad is not None
                skip = self.found_inf
                before = [] if skip is None else [x.clone() for x in (p, *state.values())]
                square = state["square"].mul_(cfg.decay).addcmul_(grad, grad, value=1 - cfg.decay)
                below = square + cfg.eps
                if cfg.centered:
                    mean = state["mean"].mul_(cfg.decay).add_(grad, alpha=1 - cfg.decay)
                    # Rounding, or a concurrent step of another worker, could make it smaller.
                    below = below.addcmul_(mean, mean, value=-1.0).clamp_(min=cfg.eps)
                move = grad * below.rsqrt_()
                if cfg.momentum:
                    move = state["momentum"].mul_(cfg.momentum).add_(move)
                lr = group["lr"]
                if isinstance(lr, Tensor):
                    p.sub_(move * lr)
                else:
                    p.add_(move, alpha=-lr)
                if skip is not None:
                    for old, new in zip(before, (p, *state.values()), strict=True):
                        new.copy_(torch.where(skip > 0, old, new))


class RectifiedAdam(torch.optim.Optimizer):
    """m <- b1 m + (1-b1) g;  v <- b2 v + (1-b2) g^2;  step = lr r m^ / (sqrt(v^) + eps), or
    lr m^ in the first steps, where r is not defined (Liu et al. 2020, algorithm 2).

    torch.optim.RAdam cannot skip a step by `found_inf`, and so cannot be captured here.
    """

    found_inf: Tensor | None = None  # 0-d, 1 skips the step, as in torch's fused optimizers

    def __init__(self, params: Iterable[Tensor], lr: float, cfg: RAdam) -> None:
        self.cfg = cfg
        super().__init__(params, {"lr": lr, "capturable": True})

    def prime(self, p: Tensor) -> dict[str, Any]:
        """Create the state of a parameter before its first step."""
        state: dict[str, Any] = self.state[p]
        if not state:
            state["step"] = torch.zeros((), device=p.device)
            state["exp_avg"] = torch.zeros_like(p)
            state["exp_avg_sq"] = torch.zeros_like(p)
        return state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._step(params, group["lr"])

    def _step(self, params: list[Tensor], lr: float | Tensor) -> None:
        """Step parameters that always step together, so that one count stands for all."""
        cfg, skip = self.cfg, self.found_inf
        states = [self.prime(p) for p in params]
        steps, means, squares = (
            [state[key] for state in states] for key in ("step", "exp_avg", "exp_avg_sq")
        )
        grads = [p.grad for p in params if p.grad is not None]
        if skip is None:
            torch._foreach_add_(steps, 1.0)
            torch._foreach_mul_(means, cfg.beta1)
            torch._foreach_mul_(squares, cfg.beta2)
        else:  # a skipped step adds 0 to everything; its gradient may hold anything
            skipped = skip > 0
            grads = [torch.where(skipped, 0.0, g) for g in grads]
            torch._foreach_add_(steps, torch.where(skipped, 0.0, 1.0))
            torch._foreach_mul_(means, torch.where(skipped, 1.0, cfg.beta1))
            torch._foreach_mul_(squares, torch.where(skipped, 1.0, cfg.beta2))
        torch._foreach_add_(means, grads, alpha=1 - cfg.beta1)
        torch._foreach_addcmul_(squares, grads, grads, value=1 - cfg.beta2)
        size, adapted = self._rectified(steps[0])
        size = (size * lr).float()
        if skip is not None:
            size = torch.where(skip > 0, 0.0, size)
        below = torch._foreach_sqrt(squares)
        torch._foreach_add_(below, cfg.eps)
        torch._foreach_mul_(below, adapted)  # 1 where steps are not adapted yet
        torch._foreach_add_(below, 1 - adapted)
        moves = torch._foreach_div(means, below)
        torch._foreach_mul_(moves, size)
        torch._foreach_sub_(params, moves)

    def _rectified(self, step: Tensor) -> tuple[Tensor, Tensor]:
        """The step's size without the learning rate, and 1 where it is divided by sqrt(v), else 0.
        In double precision: single cannot tell 1 - b2^t from 0 well enough."""
        cfg, t = self.cfg, step.double().clamp(min=1)
        decayed, longest = cfg.beta2**t, 2 / (1 - cfg.beta2) - 1
        length = longest - 2 * t * decayed / (1 - decayed)
        adapted = length > 5  # the paper has 4, every implementation 5
        part = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
        rectified = (part.clamp(min=0) * (1 - decayed)).sqrt()
        size = torch.where(adapted, rectified, 1.0) / (1 - cfg.beta1**t)
        return size, adapted.float()


def build_optimizer(cfg: AnyOptimizer, params: Any, lr: float) -> torch.optim.Optimizer:
    """Build the optimizer. `params`: parameters, or groups [{"params": ..., "name": ...}]."""
    params = list(params)
    if isinstance(cfg, RMSProp):
        return PaperRMSProp(params, lr, cfg)
    if isinstance(cfg, RAdam):
        return RectifiedAdam(params, lr, cfg)
    if isinstance(cfg, SGD):
        return torch.optim.SGD(params, lr=lr, momentum=cfg.momentum, fused=True)
    kind = torch.optim.AdamW if cfg.weight_decay else torch.optim.Adam
    betas = (cfg.beta1, cfg.beta2)
    # Fused: one kernel for all parameters. On small networks Adam is half the time of an update.
    return kind(params, lr, betas, cfg.eps, cfg.weight_decay, fused=True)


class Stepper:
    """Steps an optimizer. Of fused Adam it calls the kernel alone: on a small network the checks
    of torch's own `step` take longer than the arithmetic. It remembers the tensors of the state:
    to look them up by their parameters takes as long again."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._state: Any = None  # the optimizer's when `_groups` were listed; loading replaces it
        self._groups: list[_Fused] = []

    @torch.no_grad()
    def step(self) -> None:
        if not self._lean():
            self.optimizer.step()
            self._state = None  # the first step of a parameter creates its state
            return
        for fused in self._groups:
            fused.step()

    def _lean(self) -> bool:
        optimizer = self.optimizer
        if type(optimizer) is not torch.optim.Adam or "found_inf" in optimizer.__dict__:
            return False
        if self._state is not optimizer.state:
            self._state = optimizer.state
            self._groups = [_Fused(optimizer, group) for group in optimizer.param_groups]
        return all(fused.fits() for fused in self._groups)


class _Fused:
    """A group of parameters of Adam, and the state of those that have some."""

    def __init__(self, optimizer: torch.optim.Adam, group: dict[str, Any]) -> None:
        self.group = group
        self.params = [p for p in group["params"] if optimizer.state.get(p)]
        self.rest = [p for p in group["params"] if not optimizer.state.get(p)]
        states = [optimizer.state[p] for p in self.params]
        names = ("step", "exp_avg", "exp_avg_sq")
        self.steps, self.means, self.squares = ([state[k] for state in states] for k in names)
        first = self.params[:1]
        self.alike = all(p.is_cpu and p.dtype == q.dtype for p in self.params for q in first)
        if not states or not self.alike:
            return
        # One addition counts a step of all: each count is a place in one tensor.
        self.counts = torch.stack(self.steps)
        self.steps = [self.counts[i] for i in range(len(states))]
        for state, count in zip(states, self.steps, strict=True):
            state["step"] = count

    def fits(self) -> bool:
        """Whether the kernel alone is a step."""
        group = self.group
        plain = group["fused"] and not (group["amsgrad"] or group["maximize"])
        if not plain or group["capturable"] or isinstance(group["lr"], Tensor):
            return False
        return self.alike and all(p.grad is None for p in self.rest)

    def step(self) -> None:
        group, grads = self.group, [p.grad for p in self.params]
        tensors: list[list[Any]] = [self.params, grads, self.means, self.squares, [], self.steps]
        kept = [i for i, grad in enumerate(grads) if grad is not None]
        if not kept:
            return
        if len(kept) < len(grads):
            tensors = [[own[i] for i in kept] if own else [] for own in tensors]
            torch._foreach_add_(tensors[-1], 1)
        else:
            self.counts.add_(1)
        beta1, beta2 = group["betas"]
        torch._fused_adam_(
            *tensors, lr=group["lr"], beta1=beta1, beta2=beta2, weight_decay=group["weight_decay"],
            eps=group["eps"], amsgrad=False, maximize=False, grad_scale=None, found_inf=None,
        )  # fmt: skip


def prime(optimizer: torch.optim.Optimizer) -> bool:
    """Create the optimizer state before the first step, so that a step can be captured and undone.

    Return False for an unknown optimizer, whose state cannot be created from outside.
    """
    for group in optimizer.param_groups:
        for p in group["params"]:
            if isinstance(optimizer, PaperRMSProp | RectifiedAdam):
                optimizer.prime(p)
            elif isinstance(optimizer, torch.optim.Adam) and group["fused"]:
                state = optimizer.state[p]
                if not state:
                    state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                group["capturable"] = True
            elif isinstance(optimizer, torch.optim.SGD) and group["fused"]:
                if group["momentum"] and not optimizer.state[p]:
                    optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
            else:
                return False
    return True
