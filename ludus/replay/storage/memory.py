"""How much memory a plan's replay takes, and whether that much is free. It allocates nothing."""

from __future__ import annotations

from ludus.contract import Episode, Plan, Prioritized, Sequence, Uniform, Unroll
from ludus.errors import LudusError
from ludus.process.limits import memory
from ludus.replay.samplers.device import DEVICE_TOP, DEVICE_WIDTH, tree_bytes
from ludus.replay.storage.ring import Layout, episode_layout, layout_of
from ludus.replay.unrolls.storage import unroll_bytes, unroll_columns, unroll_fields
from ludus.types import EnvSpec, Extras, tree_leaves, tree_paths
from ludus.units import show_bytes

# Left for the rest of the process and the machine.
RESERVE = 0.05


def estimate_bytes(
    plan: Plan,
    spec: EnvSpec,
    num_envs: int,
    extras: Extras | None = None,
    on_device: bool = False,
) -> int:
    """Bytes of the store that `build_store` would make for the same arguments, when full.
    `on_device`: it draws without the host, which takes a tree for uniform draws too."""
    if len(plan.feeds) > 1:
        plans = [plan.of_feed(feed) for feed in plan.feeds]
        return sum(estimate_bytes(p, spec, num_envs, extras, on_device) for p in plans)
    if isinstance(plan.view, Episode):  # without the surplus of short episodes
        return _ring_bytes(episode_layout(plan, spec, num_envs, extras))
    if isinstance(plan.view, Unroll) and isinstance(plan.sampler, Uniform):
        # Beside each unroll its serial number and its drawable flag.
        count = unroll_columns(plan, num_envs)
        tree = tree_bytes(count, DEVICE_WIDTH, DEVICE_TOP) if on_device else 0
        return count * (unroll_bytes(plan, spec, extras) + 8 + 1) + tree
    if isinstance(plan.view, Unroll):
        return _queue_bytes(plan, spec, num_envs, extras)
    layout = layout_of(plan, spec, num_envs, extras)
    total = layout.slots  # the drawable flags
    least = isinstance(plan.sampler, Prioritized) and plan.sampler.needs_least
    if on_device:
        total += tree_bytes(layout.slots, DEVICE_WIDTH, DEVICE_TOP, least)
    elif isinstance(plan.sampler, Prioritized) or isinstance(plan.view, Sequence):
        total += tree_bytes(layout.slots, least=least)
    return total + _ring_bytes(layout)


def _ring_bytes(layout: Layout) -> int:
    rows = layout.slots * sum(f.row_bytes for f in layout.fields.values())
    states = layout.starts * layout.num_envs * sum(f.row_bytes for f in layout.states.values())
    return rows + states


def _queue_bytes(plan: Plan, spec: EnvSpec, num_envs: int, extras: Extras | None) -> int:
    """A queue holds at most one batch and one chunk more; frame stacks are already formed."""
    fields = unroll_fields(spec, extras)
    row = sum(f.row_bytes for f in fields.values())
    for path, leaf in zip(tree_paths(spec.obs), tree_leaves(spec.obs), strict=True):
        row += (leaf.stack - 1) * fields[path].row_bytes
    assert isinstance(plan.view, Unroll)
    held = max(plan.capacity // plan.view.length, plan.batch) + num_envs
    return row * held * (plan.view.length + 1)


def check_memory(needed: int, free: int | None = None, *, instead: str = "") -> None:
    """Refuse (E310) a replay that does not fit, before the first step. `instead`: another fix."""
    found = memory()
    limited_by = found.limited_by if free is None else ""
    free = found.free if free is None else free
    if needed <= free * (1 - RESERVE):
        return
    raise LudusError(
        "E310",
        f"replay needs {show_bytes(needed)}, but only {show_bytes(free)} of memory is free"
        f"{limited_by}",
        where="algo.capacity",
        why="the replay capacity, the observation size or the number of environments is too large",
        fix=f"{instead}lower algo.capacity by a factor of "
        f"{max(2, -(-needed // max(1, free)))} or more",
    )
