"""Fill a replay to its capacity without stepping an environment: random rows, real bookkeeping.

The speed of sampling depends on how many rows the replay holds, not on their contents.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ludus.replay.replay_store import ReplayStore
from ludus.types import ArraySpec, Chunk, Discrete, Field, Rows, tree_map

ROWS = 8192  # of a chunk: large enough to fill a million in seconds, small against the replay
EPISODE = 1000  # rows from one beginning to the next, the dummy row included


def fill(store: ReplayStore, *, seed: int = 0, episode: int = EPISODE) -> None:
    """Write every row of the ring through `add`. The replay ratio does not count these rows: no
    update is due for them."""
    ring, layout = store.ring, store.ring.layout
    counted, number = store.ratio.steps_inserted, max(store.sequence.values(), default=-1) + 1
    rng = torch.Generator(device=ring.device).manual_seed(seed)
    most = min(-(-ROWS // ring.num_envs), layout.length - layout.span - layout.history - 1)
    done = 0
    while done < layout.length:
        rows = _rows(store, rng, min(most, layout.length - done), done, episode)
        store.add(Chunk(rows, 0, number, breaks=done == 0))
        done, number = done + rows.reward.shape[0], number + 1
    store.ratio.steps_inserted = counted


def held(store: ReplayStore) -> dict[str, int]:
    """Rows in the ring, and how many of them may be drawn."""
    ring = store.ring
    rows = int(ring.head.clip(max=ring.length).sum())
    return {"rows": min(rows, store.capacity), "drawable": store.size}


def _rows(store: ReplayStore, rng: torch.Generator, count: int, start: int, episode: int) -> Rows:
    """Frames and actions on the device, flags and rewards on the host, as a collector has them."""
    ring, spec, n = store.ring, store.spec, store.ring.num_envs
    device = ring.device

    def frames(leaf: ArraySpec) -> Tensor:
        shape = (count + 1, n, *leaf.shape)
        if leaf.torch_dtype == torch.uint8:
            kind = torch.uint8
            return torch.randint(256, shape, generator=rng, dtype=kind, device=device)
        return torch.rand(shape, generator=rng, device=device).to(leaf.torch_dtype)

    def zeros_of(fields: Mapping[str, Field]) -> dict[str, Tensor]:
        made = {k: (count, n, *f.shape) for k, f in fields.items()}
        return {k: torch.zeros(s, dtype=fields[k].dtype, device=device) for k, s in made.items()}

    # Environments are out of step with each other, as in training.
    phase = (torch.arange(start, start + count + 1)[:, None] + 37 * torch.arange(n)) % episode
    last, dummy = phase[:-1] == episode - 2, phase[:-1] == episode - 1
    shape = (count, n, *spec.action_shape)
    many = spec.action.n if isinstance(spec.action, Discrete) else 1
    action = torch.randint(many, shape, generator=rng, device=device).to(spec.action_dtype)
    reward = (torch.arange(count * n).view(count, n) % 3 - 1).float()
    extras = {k: ring.layout.fields[k] for k in ring.layout.extras}
    blank = {k.removeprefix("extras."): x for k, x in zeros_of(extras).items()}
    allowed = None
    if spec.has_action_mask:
        allowed = torch.ones(count + 1, n, spec.mask_width, dtype=torch.bool, device=device)
    return Rows(
        tree_map(frames, spec.obs), action, reward, reward, 1.0 - last.float(), last,
        phase == 0, ~dummy, allowed, blank | zeros_of(ring.layout.states),
    )  # fmt: skip
