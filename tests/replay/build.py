"""Small stores and hand-made rows for the tests of this folder."""

from __future__ import annotations

import torch

from ludus.contract import NStep, Plan, Uniform
from ludus.replay.replay_store import ReplayStore
from ludus.replay.storage.ring import Ring, layout_of
from ludus.replay.store import build_store
from ludus.types import ArraySpec, Chunk, Discrete, EnvSpec, Rows

SPEC = EnvSpec("line", ArraySpec((1,)), Discrete(2))


def rows_of(first_obs, rewards, *, last=(), over=(), dummy=(), first=(), width=1, extras=None):
    """One stretch of rows; obs counts up from first_obs, the same in `width` columns."""
    t = len(rewards)

    def flags(at, n=t):
        out = torch.zeros(n, width, dtype=torch.bool)
        out[list(at)] = True
        return out

    reward = torch.tensor(rewards, dtype=torch.float32)[:, None].expand(t, width).clone()
    obs = torch.arange(first_obs, first_obs + t + 1, dtype=torch.float32)
    return Rows(
        obs=obs[:, None, None].expand(t + 1, width, 1).clone(),
        action=torch.zeros(t, width, dtype=torch.int64),
        reward=reward,
        raw_reward=reward,
        discount=1.0 - flags(over).float(),
        last=flags(last) | flags(over),
        first=flags(first, t + 1),
        mask=~flags(dummy),
        extras=extras or {},
    )


def store_of(view=None, sampler=None, *, columns=1, capacity=100, batch=4, spec=SPEC, **plan):
    """A store with a run of 1000 steps ahead."""
    extras, horizon = plan.pop("extras", None), plan.pop("horizon", 1000)
    kind = plan.pop("kind", "host")
    plan.setdefault("chunk", 8)
    made = Plan(view or NStep(), sampler or Uniform(), batch, capacity=capacity, **plan)
    return replay_of(kind, made, spec, columns, extras, horizon)


# Draws and rows on the host; draws without it; rows as tensors too, which is how a GPU has them.
KINDS = ["host", "on_device", "tensors"]


def replay_of(kind, plan, spec, columns, extras=None, horizon=100):
    if kind != "tensors":
        return build_store(
            plan, spec, columns, seed=1, horizon=horizon, extras_spec=extras,
            on_device=kind == "on_device",
        )  # fmt: skip
    ring = Ring(layout_of(plan, spec, columns, extras), on_host=False)
    store = ReplayStore(plan, spec, ring, on_device=True)
    store.start(1, horizon)
    return store


def fill(store, steps, *, start=0, width=1, sequence=0, source=0, per=8):
    """Plain unmasked rows, in chunks of at most `per`."""
    done = 0
    while done < steps:
        t = min(per, steps - done)
        rows = rows_of(start + done, [float(start + done + i) for i in range(t)], width=width)
        store.add(Chunk(rows, source, sequence))
        sequence, done = sequence + 1, done + t
    return sequence
