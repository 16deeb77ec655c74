"""A short measurement at the start of a run on a CPU: the precision and the memory order of images
with which an update of the run's net is fastest. placement.py calls it and keeps the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ludus.compute.probe_act import extras_of, zero_step
from ludus.contract import Algorithm, NStep, Plan, Unroll, stored_state
from ludus.nets.inputs import ImageInput
from ludus.types import ArraySpec, Ctx, EnvSpec, Traj, Transition, map_fields, tree_leaves, tree_map

PRECISIONS, ORDERS = ("fp32", "bf16"), ("contiguous", "channels_last")
# How much faster the alternative must be, since timings vary.
BF16_PAYS, ORDER_PAYS = 1.3, 1.1
# Values in a batch of images below which no choice matters.
WORTH_IT = 200_000
# Seconds of one update; a batch that takes longer is timed with fewer rows, from FEW upwards.
LONGEST, FEW = 0.1, 8
# The first round warms the caches. Many short rounds, since other processes share them.
ROUNDS, PATIENCE = 12, 1.0  # seconds after which no round begins


class Way(NamedTuple):
    precision: str
    order: str

    def __str__(self) -> str:
        return f"{self.precision} {self.order}"


BASE = Way("fp32", "contiguous")
WAYS = tuple(Way(precision, order) for precision in PRECISIONS for order in ORDERS)


class Choice(NamedTuple):
    way: Way
    why: str


def choose(seconds: Mapping[Way, float]) -> Choice:
    """The fastest, if it is faster by more than timings vary; and the figures."""

    def gain(way: Way, over: Way) -> float:
        return seconds[over] / max(seconds[way], 1e-9)

    best = {}
    for precision in PRECISIONS:
        plain, last = (Way(precision, order) for order in ORDERS)
        best[precision] = last if gain(last, plain) >= ORDER_PAYS else plain
    pays = gain(best["bf16"], best["fp32"]) >= BF16_PAYS
    way = best["bf16"] if pays else best["fp32"]
    figures = ", ".join(f"{w} {gain(w, BASE):.2f}x" for w in WAYS if w not in (BASE, way))
    own = "" if way == BASE else f": {gain(way, BASE):.2f}x {BASE}"
    return Choice(way, f"{way}{own}, measured ({figures})")


def put_order(net: nn.Module, order: str) -> None:
    """Set the `order` of every input that may be rearranged; empty: its torso's default."""
    for module in net.modules():
        if isinstance(module, ImageInput):
            module.channels_last = None if not order else order == "channels_last"


def measure(algorithm: Algorithm, spec: EnvSpec, num_envs: int) -> Choice | None:
    """None where it is not worth the time, or where samples of the plan cannot be made up."""
    plan = algorithm.plan.for_envs(num_envs)
    rows = _rows_of_update(plan)
    images = [leaf for leaf in tree_leaves(spec.obs) if leaf.is_image]
    numbers = sum(torch.Size(leaf.seen_shape).numel() for leaf in images)
    if rows is None or rows * numbers < WORTH_IT:
        return None
    with torch.random.fork_rng(devices=[]):
        net = algorithm.build(spec)
    threads = torch.get_num_threads()
    # One thread and its CPU time: several threads wait for each other on a busy machine.
    torch.set_num_threads(1)
    try:
        return choose(_timed(lambda n: _update(algorithm, net, spec, n), net, rows))
    finally:
        torch.set_num_threads(threads)


def _timed(
    update_of: Callable[[int], Callable[[], None]], net: nn.Module, rows: int
) -> dict[Way, float]:
    """The least seconds of an update for each way, in turns, so that a busy moment affects all."""
    start, some = time.perf_counter(), min(rows, FEW)
    update = update_of(some)
    _seconds(update, net, BASE)  # one-time costs
    # Step by step: a part of an update's cost does not grow with its rows.
    while some < rows and 2 * _seconds(update, net, BASE) <= LONGEST:
        some = min(rows, 2 * some)
        update = update_of(some)
    best = dict.fromkeys(WAYS, float("inf"))
    for turn in range(ROUNDS):
        for way in WAYS:
            spent = _seconds(update, net, way)
            if turn:
                best[way] = min(best[way], spent)
        if turn and time.perf_counter() - start > PATIENCE:
            break
    put_order(net, "")
    return best


def _seconds(update: Callable[[], None], net: nn.Module, way: Way) -> float:
    put_order(net, way.order)
    bf16 = way.precision == "bf16"
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16, cache_enabled=False):
        start = time.thread_time()
        update()
        return time.thread_time() - start


def _rows_of_update(plan: Plan) -> int | None:
    if isinstance(plan.view, NStep):
        return plan.batch
    if isinstance(plan.view, Unroll):
        return plan.batch * plan.view.length // plan.minibatches
    return None


def _update(
    algorithm: Algorithm, net: nn.ModuleDict, spec: EnvSpec, rows: int
) -> Callable[[], None]:
    """Loss and gradients on fake data of `rows` rows, as the Learner computes them."""
    names = (*algorithm.plan.schedules, "warming")
    rng = torch.Generator().manual_seed(0)
    ctx = Ctx(rng, spec, {name: torch.zeros(()) for name in names})
    groups = algorithm.optimizer(net).param_groups
    ctx.stepping = frozenset(group.get("name", "") for group in groups)
    data = _fake_sample(algorithm, net, spec, rows, rng)
    with torch.no_grad():
        data = algorithm.prepare(net, data, ctx)
    plan = algorithm.plan
    if (plan.epochs > 1 or plan.minibatches > 1) and plan.minibatch_over == "rows":
        data = map_fields(lambda x: x.flatten(0, 1), data)

    def update() -> None:
        net.zero_grad()
        value = algorithm.loss(net, data, ctx).value.mean()
        with torch.autocast("cpu", enabled=False):
            value.backward()  # type: ignore[no-untyped-call]

    return update


def _fake_sample(
    algorithm: Algorithm, net: nn.ModuleDict, spec: EnvSpec, rows: int, rng: torch.Generator
) -> Any:
    unroll = not isinstance(algorithm.plan.view, NStep)
    shape = (1, rows) if unroll else (rows,)
    later = (2, rows) if unroll else (rows,)  # unrolls have one observation more

    def frames(leaf: ArraySpec) -> Tensor:
        size = (*later, *leaf.seen_shape)
        return torch.randint(256, size, generator=rng, dtype=torch.uint8).to(leaf.torch_dtype)

    step = zero_step(spec, torch.device("cpu"), rows)
    obs = tree_map(frames, spec.obs)
    action = step.prev_action.reshape(*shape, *spec.action_shape)
    one, no = torch.ones(shape), torch.zeros(shape, dtype=torch.bool)
    extras = {
        name: torch.zeros(*shape, *size, dtype=dtype)
        for name, (size, dtype) in extras_of(algorithm, net, spec).items()
    }
    allowed = torch.ones(*later, spec.mask_width, dtype=torch.bool)
    mask = allowed if spec.has_action_mask else None
    if not unroll:
        return Transition(obs, action, one, one, obs, mask, mask, extras)
    first = torch.zeros(later, dtype=torch.bool)
    state = stored_state(algorithm.begin(rows, Ctx(rng, spec, num_envs=rows)))
    before = torch.cat([action, action])
    return Traj(
        obs, action, one, one, no, first, ~no, mask, extras, state, before, torch.zeros(later)
    )
