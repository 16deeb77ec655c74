"""What a run computes on and how: device, precision, captured graphs, overlap, where rows lie.

Every `auto` is decided here, once, and said in the run's status.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ludus.compute.compile import Compiled
from ludus.compute.cuda_graph import captures
from ludus.contract import Algorithm, Fifo, NStep, Plan, Sequence
from ludus.errors import LudusError
from ludus.learn import autotune as measured
from ludus.learn.autotune import ORDERS, PRECISIONS, Choice, Way
from ludus.nets.inputs import Order
from ludus.replay.storage.memory import RESERVE, check_memory
from ludus.settings.resolve import Config
from ludus.types import EnvSpec, tree_leaves
from ludus.units import show_bytes

# Of GPU memory, for a process with a net of its own and its libraries: nvidia-smi showed 518 to
# 670 MiB for actors with captured Nature and IMPALA nets on an H200.
CONTEXT_BYTES = 800_000_000


@dataclass(frozen=True)
class Compute:
    device: torch.device
    precision: str  # fp32 | bf16
    capture: str  # auto | on | off
    overlap: bool
    why_precision: str = ""
    order: str = ""  # of images on a CPU: contiguous | channels_last, empty: as the torso has it
    compiled: Compiled | None = None  # where run.compile asks for it

    @property
    def captured(self) -> bool:
        """Whether acting is captured; learning may still have its own reason not to be."""
        return captures(self.capture, self.device.type)


def check_devices(cfg: Config) -> None:
    """Refuse a GPU that is not there, for whichever process it was asked; before any starts."""
    asked = {"run.device": cfg.run.device}
    if cfg.run.capabilities.sends_chunks:
        asked["actor.device"] = cfg.actor.device
    if cfg.eval.live:
        asked["eval.device"] = cfg.eval.device
    for key, device in asked.items():
        if device == "cuda" and not torch.cuda.is_available():
            raise LudusError(
                "E104",
                f"{key}=cuda, but torch sees no GPU",
                why="a CPU build of torch, or no driver",
                fix=f"{key}=cpu   or   ludus doctor",
            )


def device_of(cfg: Config, spec: EnvSpec) -> torch.device:
    """`auto`: a GPU for images if there is one. Small nets on vectors run faster on the CPU
    (benchmarks/results/gpu_smoke.json: about twice the updates per second)."""
    if cfg.run.device == "auto":
        return torch.device("cuda" if has_images(spec) and torch.cuda.is_available() else "cpu")
    return torch.device(cfg.run.device)


def has_images(spec: EnvSpec) -> bool:
    return any(leaf.is_image for leaf in tree_leaves(spec.obs))


def decide(
    cfg: Config, algorithm: Algorithm, spec: EnvSpec, before: Mapping[str, Any] | None = None
) -> Compute:
    """`before`: what an earlier session of the same run decided. A measurement is not repeated:
    its noise must not change the numbers of a resumed run."""
    device, before = device_of(cfg, spec), before or {}
    overlap = cfg.run.overlap == "on"
    if cfg.run.overlap == "auto":
        # What is learned once, in the order of arrival, is meant to be learned fresh.
        overlap = device.type == "cuda" and not isinstance(algorithm.plan.sampler, Fifo)
    precision, order, why = str(cfg.run.precision), "", ""
    known = before.get("device") == device.type and before.get("precision") in PRECISIONS
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" and has_images(spec) else "fp32"
        if known:
            precision, why = before["precision"], str(before.get("why_precision", ""))
        elif device.type == "cpu" and has_images(spec):
            (precision, order), why = _measured(algorithm, spec, cfg.env.slots)
    if known and precision == before["precision"] and before.get("order") in ORDERS:
        order = before["order"]
    if device.type == "cuda":
        prepare_cudnn(precision)
    compiled = Compiled() if cfg.run.compile else None
    return Compute(device, precision, cfg.run.capture, overlap, why, order, compiled)


def prepare_cudnn(precision: str) -> None:
    """In every process that computes on a GPU."""
    torch.backends.cudnn.benchmark = True
    # fp32 means it: without this, convolutions would be rounded to TF32.
    torch.backends.cudnn.allow_tf32 = precision != "fp32"


def _measured(algorithm: Algorithm, spec: EnvSpec, columns: int) -> Choice:
    try:
        found = measured.measure(algorithm, spec, columns)
    except Exception as error:  # an algorithm of somebody's own may refuse data that was made up
        return Choice(Way("fp32", ""), f"not measured: {type(error).__name__}: {error}")
    return found or Choice(Way("fp32", ""), "")


def tune(net: nn.ModuleDict, compute: Compute) -> None:
    """On a CPU the order of images that was measured; on a GPU channels last for the torsos that
    want it, which are compiled if asked for. Names and values in a checkpoint stay what they
    are."""
    rearranged = arrange_images(net, compute.device.type, compute.order)
    if compute.compiled is not None and compute.device.type == "cpu":
        compute.compiled.nothing("on a CPU")
    elif compute.compiled is not None:
        compute.compiled.take(rearranged)


def arrange_images(net: nn.ModuleDict, device: str, order: str) -> list[nn.Module]:
    """The same for whoever computes with a copy of the net, wherever it is: in the same order sums
    are rounded alike. Returns what is channels last on a GPU."""
    if device == "cpu":
        measured.put_order(net, order)
        return []
    wanting = [m for m in net.modules() if _wants_channels_last(m)]
    for module in wanting:
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return wanting


def _wants_channels_last(module: nn.Module) -> bool:
    order = getattr(module, "order", None)
    return isinstance(order, Order) and order.gpu


def _others(cfg: Config) -> int:
    """Other processes that will compute on the learner's GPU."""
    gpus = max(1, torch.cuda.device_count())
    shared = cfg.run.capabilities.sends_chunks and cfg.actor.device == "cuda"
    actors = cfg.run.actors if shared else 0
    return -(-actors // gpus) + (cfg.eval.live and cfg.eval.device == "cuda")


@dataclass(frozen=True)
class Place:
    """Where the rows of a replay lie."""

    pinned: bool  # in host memory that the GPU reads
    said: str  # for the status; empty without a replay


def place_replay(cfg: Config, plan: Plan, needed: int, device: torch.device) -> Place:
    """Rows go to pinned host memory if asked for, or because the GPU has no room. Refuses (E310)
    what fits nowhere."""
    if device.type != "cuda" or not plan.capacity:
        check_memory(needed)
        return Place(False, "host" if plan.capacity else "")
    free, _ = torch.cuda.mem_get_info(device)
    free = max(0, free - _others(cfg) * CONTEXT_BYTES)
    room = int(free * (1 - RESERVE) * 0.8)  # nets, graphs and their scratch need room too
    if not isinstance(plan.view, NStep | Sequence):  # unrolls and episodes lie on the device
        check_memory(needed, int(free * 0.8))
        return Place(False, "device")
    if cfg.run.replay_on == "device" and needed > room:
        check_memory(needed, int(free * 0.8), instead="run.replay_on=auto, or ")
    if cfg.run.replay_on == "host" or needed > room:
        check_memory(needed)
        why = f"{show_bytes(needed)} do not fit into {show_bytes(room)} of GPU memory"
        return Place(True, f"pinned host: {'asked for' if cfg.run.replay_on == 'host' else why}")
    return Place(False, "device")


__all__ = [
    "Compute",
    "Place",
    "arrange_images",
    "check_devices",
    "decide",
    "device_of",
    "has_images",
    "place_replay",
    "prepare_cudnn",
    "tune",
]
