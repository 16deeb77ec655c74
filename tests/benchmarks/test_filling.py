"""A replay filled without environments: all of it drawable, nothing owed for it."""

from __future__ import annotations

import math

import pytest
import torch

from ludus.bench.filling import fill, held
from ludus.contract import NStep, Prioritized
from ludus.types import ArraySpec, Discrete, EnvSpec
from tests.replay.build import KINDS, store_of
from tests.replay.build import fill as collect

FRAMES = EnvSpec("frames", ArraySpec((6, 6), "uint8", 0, 255, stack=4, layout="hw"), Discrete(3))


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_written_and_episodes_end(kind):
    store = store_of(NStep(3, 0.9), Prioritized(), columns=4, capacity=2000, batch=256,
                     spec=FRAMES, kind=kind, warmup=100)  # fmt: skip
    fill(store, episode=50)
    assert store.fill == 1.0 and held(store) == {"rows": 2000, "drawable": store.size}
    # All but one dummy row in 50 and what waits for its window.
    assert 0.97 * 2000 < store.size <= 2000 * 49 / 50
    batch = store.sample().batch
    assert batch.obs.float().std() > 0.2 and set(batch.action.tolist()) == {0, 1, 2}
    assert (batch.discount == 0).any(), "some windows reach an episode's end"
    assert math.isclose(float(batch.discount.max()), 0.9**3, rel_tol=1e-5)
    assert not torch.equal(batch.obs, batch.next_obs)


def test_the_pace_owes_nothing_for_it_and_collecting_goes_on():
    store = store_of(NStep(), columns=1, capacity=200, batch=4, warmup=16, replay_ratio=1.0)
    fill(store)
    assert store.steps_inserted == 0 and not store.ready()
    collect(store, 16)
    assert store.ready() and store.fill == 1.0
    store.sample()
    assert not store.ready()


def test_a_second_time_begins_a_new_stream():
    store = store_of(NStep(2), columns=2, capacity=300, batch=8, spec=FRAMES)
    fill(store)
    fill(store, seed=1)
    assert store.fill == 1.0 and store.size > 280
