"""Where and how a run computes: device, precision, captured graphs, overlap, memory of the replay.

Every `auto` is decided here, once, and reported in the run's status.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ludus.compute.compile import Compiled
from ludus.compute.cuda_graph import captures
from ludus.contract import Algorithm, Feed, Fifo, NStep, Plan, Sequence, Unroll
from ludus.errors import LudusError
from ludus.learn import autotune
from ludus.learn.autotune import ORDERS, PRECISIONS, Choice, Way
from ludus.nets.inputs import Order
from ludus.replay.storage.memory import RESERVE, check_memory
from ludus.settings.resolve import Config
from ludus.types import EnvSpec, tree_leaves
from ludus.units import show_bytes

# GPU memory of a process with its own net and libraries: nvidia-smi showed 518 to
# 670 MiB for actors with captured Nature and IMPALA nets on an H200.
CONTEXT_BYTES = 800_000_000


@dataclass(frozen=True)
class Compute:
    device: torch.device
    precision: str  # fp32 | bf16
    capture: str  # auto | on | off
    overlap: bool
    why_precision: str = ""
    order: str = ""  # of images on a CPU: contiguous | channels_last, empty: the torso's default
    compiled: Compiled | None = None  # where run.compile asks for it

    @property
    def captured(self) -> bool:
        """Whether acting is captured; learning may still have its own reason not to be."""
        return captures(self.capture, self.device.type)


def check_devices(cfg: Config) -> None:
    """Refuse a missing GPU, whichever process it is for, before any starts."""
    asked = {"run.device": cfg.run.device}
    if cfg.run.capabilities.sends_chunks:
        asked["actor.device"] = cfg.actor.device
    if cfg.eval.live:
        asked["eval.device"] = cfg.eval.device
    for key, device in asked.items():
        if not device.startswith("cuda"):
            continue
        if not torch.cuda.is_available():
            raise LudusError(
                "E104",
                f"{key}={device}, but torch sees no GPU",
                why="a CPU build of torch, or no driver",
                fix=f"{key}=cpu   or   ludus doctor",
            )
        gpus = torch.cuda.device_count()
        if int(device.partition(":")[2] or 0) >= gpus:
            seen = ", ".join(f"cuda:{i}" for i in range(gpus))
            raise LudusError(
                "E104",
                f"{key}={device}, but torch sees only {seen}",
                why="GPUs are numbered from 0, and CUDA_VISIBLE_DEVICES hides some",
                fix=f"{key}=cuda:{gpus - 1}   or   ludus doctor",
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
    """`before`: the decisions of an earlier session of the same run. A measurement is not repeated:
    its noise must not change the numbers of a resumed run."""
    device, before = device_of(cfg, spec), before or {}
    overlap = cfg.run.overlap == "on"
    if cfg.run.overlap == "auto":
        # A queue's samples are learned once, and should be fresh.
        overlap = device.type == "cuda" and not isinstance(algorithm.plan.sampler, Fifo)
    precision, order, why = str(cfg.run.precision), "", ""
    known = before.get("device") == device.type and before.get("precision") in PRECISIONS
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" and has_images(spec) else "fp32"
        if known:
            precision, why = before["precision"], str(before.get("why_precision", ""))
        elif device.type == "cpu" and has_images(spec):
            (precision, order), why = _measured(algorithm, spec, cfg.env.num_envs)
    if known and precision == before["precision"] and before.get("order") in ORDERS:
        order = before["order"]
    if device.type == "cuda":
        prepare_gpu(device, precision)
    compiled = Compiled() if cfg.run.compile else None
    return Compute(device, precision, cfg.run.capture, overlap, why, order, compiled)


def prepare_gpu(device: torch.device | str, precision: str) -> None:
    """In every process that computes on a GPU."""
    if torch.device(device).index is not None:
        # Otherwise events would be recorded on the stream of the first GPU.
        torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True
    # Otherwise cuDNN would round fp32 convolutions to TF32.
    torch.backends.cudnn.allow_tf32 = precision != "fp32"


def _measured(algorithm: Algorithm, spec: EnvSpec, num_envs: int) -> Choice:
    try:
        found = autotune.measure(algorithm, spec, num_envs)
    except Exception as error:  # a user's algorithm may refuse fake data
        return Choice(Way("fp32", ""), f"not measured: {type(error).__name__}: {error}")
    return found or Choice(Way("fp32", ""), "")


def tune(net: nn.ModuleDict, compute: Compute) -> None:
    """On a CPU, set the measured order of images; on a GPU, channels last for the torsos that want
    it, which are compiled if run.compile asks for it. Checkpoints do not change."""
    rearranged = arrange_images(net, compute.device.type, compute.order)
    if compute.compiled is not None and compute.device.type == "cpu":
        compute.compiled.disable("on a CPU")
    elif compute.compiled is not None:
        compute.compiled.take(rearranged)


def arrange_images(net: nn.ModuleDict, device: str, order: str) -> list[nn.Module]:
    """For every copy of the net, in any process: in the same order, sums are rounded alike. Returns
    the modules that are channels last on a GPU."""
    if device == "cpu":
        autotune.put_order(net, order)
        return []
    orders = [(module, getattr(module, "order", None)) for module in net.modules()]
    wanting = [module for module, order in orders if isinstance(order, Order) and order.gpu]
    for module in wanting:
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return wanting


def _other_processes(cfg: Config, device: torch.device) -> int:
    """The number of other processes on the learner's GPU."""
    own, gpus = f"cuda:{device.index or 0}", max(1, torch.cuda.device_count())
    actors = cfg.run.actors if cfg.run.capabilities.sends_chunks else 0
    shares = {"cuda": -(-actors // gpus), own: actors}
    watching = cfg.eval.live and own in (cfg.eval.device, f"{cfg.eval.device}:0")
    return shares.get(cfg.actor.device, 0) + watching


@dataclass(frozen=True)
class Place:
    """The memory that holds the rows of a replay."""

    pinned: bool  # in host memory that the GPU reads
    said: str  # for the status; empty without a replay


def place_replay(cfg: Config, plan: Plan, needed: int, device: torch.device) -> Place:
    """Put rows into pinned host memory if asked for, or if the GPU has no room. Refuses (E310) a
    replay that fits nowhere."""

    def queued(feed: Feed) -> bool:  # in host memory
        return isinstance(feed.view, Unroll) and isinstance(feed.sampler, Fifo)

    replayed = any(feed.capacity > 0 and not queued(feed) for feed in plan.feeds)
    if device.type != "cuda" or not replayed:
        check_memory(needed)
        return Place(False, "host" if replayed else "")
    free, _ = torch.cuda.mem_get_info(device)
    free = max(0, free - _other_processes(cfg, device) * CONTEXT_BYTES)
    room = int(free * (1 - RESERVE) * 0.8)  # nets, graphs and their scratch need room too
    if not isinstance(plan.view, NStep | Sequence):  # unrolls and episodes are on the device
        check_memory(needed, int(free * 0.8))
        return Place(False, "device")
    if cfg.run.replay_on == "device" and needed > room:
        check_memory(needed, int(free * 0.8), instead="run.replay_on=auto, or ")
    if cfg.run.replay_on == "host" or needed > room:
        check_memory(needed)
        why = f"{show_bytes(needed)} do not fit into {show_bytes(room)} of GPU memory"
        return Place(True, f"pinned host: {'asked for' if cfg.run.replay_on == 'host' else why}")
    return Place(False, "device")
