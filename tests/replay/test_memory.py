"""The estimate equals what is allocated; what does not fit is refused before the first step."""

from __future__ import annotations

import pytest
import torch

from ludus.contract import Episode, Fifo, NStep, Plan, Prioritized, Sequence, Uniform, Unroll
from ludus.errors import OUT_OF_MEMORY, LudusError
from ludus.replay.storage.memory import check_memory, estimate_bytes
from ludus.replay.store import build_store
from ludus.types import ArraySpec, Chunk, Discrete, EnvSpec, tree_leaves
from tests.replay.build import SPEC, rows_of

ATARI = EnvSpec("atari", ArraySpec((84, 84), "uint8", stack=4, layout="hw"), Discrete(18))
STATE = {"state": ((8,), torch.float32), "logits": ((3,), torch.float32)}


def allocated(store):
    total = sum(t.nbytes for t in store.ring.tensors.values()) + store.sampler.members.valid.nbytes
    tree = getattr(store.sampler, "tree", None) or getattr(store.sampler, "ranks", None)
    if tree is not None:
        total += tree.nbytes
    if store.starts is not None:
        total += sum(t.nbytes for t in store.starts.states.values())
    return total


@pytest.mark.accept(60)
@pytest.mark.parametrize(
    ("view", "extras"), [(NStep(3), None), (Sequence(20, 10, 5), STATE), (Sequence(4, 2), None)]
)
@pytest.mark.parametrize("sampler", [Uniform(), Prioritized(), Prioritized(normalize="buffer")])
def test_the_estimate_is_what_is_allocated(view, extras, sampler):
    spec = EnvSpec("s", {"a": ArraySpec((3,), stack=2), "b": ArraySpec((2,), "uint8")}, Discrete(4))
    plan = Plan(view, sampler, batch=8, chunk=4, capacity=1000)
    store = build_store(plan, spec, 3, seed=1, horizon=10, extras_spec=extras)
    assert estimate_bytes(plan, spec, 3, extras) == allocated(store)


@pytest.mark.accept(58)
def test_a_million_atari_steps_fit_in_eight_gigabytes():
    """Single frames are stored, stacks of four are formed when sampling."""
    plan = Plan(NStep(3), Prioritized(), batch=32, chunk=1, capacity=1_000_000)
    assert 7.0e9 < estimate_bytes(plan, ATARI, 64) < 8.0e9


def test_the_queue_estimate_covers_a_full_queue():
    plan = Plan(Unroll(4), Fifo(), batch=6, chunk=4)
    queue = build_store(plan, SPEC, 4, seed=1, horizon=10)
    for k in range(2):
        queue.add(Chunk(rows_of(0, [0.0] * 4, width=4), sequence=k))
    held = 0
    for traj in queue.waiting:
        tensors = [x for x in traj if isinstance(x, torch.Tensor)]
        held += sum(t.nbytes for t in tensors if t is not traj.obs)
        held += sum(t.nbytes for t in tree_leaves(traj.obs))
    assert held <= estimate_bytes(plan, SPEC, 4) <= 3 * held


@pytest.mark.parametrize("stack", [1, 4])
def test_the_estimate_of_an_unroll_ring_is_what_is_allocated(stack):
    spec = EnvSpec("s", ArraySpec((3,), "uint8", stack=stack), Discrete(4), has_action_mask=True)
    plan = Plan(Unroll(4), Uniform(), batch=6, chunk=4, capacity=50)
    ring = build_store(plan, spec, 2, seed=1, horizon=10)
    rows = rows_of(0, [0.0] * 4, width=2, extras={"logits": torch.zeros(4, 2, 3)})
    masks = torch.ones(5, 2, 4, dtype=torch.bool)
    obs = torch.zeros(5, 2, 3, dtype=torch.uint8)
    ring.add(Chunk(rows._replace(obs=obs, action_mask=masks)))
    held = sum(t.nbytes for t in ring.columns.tensors.values()) + ring.serial.nbytes
    extras = {"logits": ((3,), torch.float32)}
    assert estimate_bytes(plan, spec, 2, extras) == held + ring.sampler.members.valid.nbytes
    assert ring.capacity == 13


def test_the_estimate_of_whole_episodes_covers_the_longest():
    """A slot waits with its episodes while another plays the longest ones, several times over."""
    spec = EnvSpec("s", ArraySpec((3,)), Discrete(4), max_episode_steps=400)
    plan = Plan(Episode(2), Fifo(), chunk=5).for_envs(2)
    store, sequence = build_store(plan, spec, 2, seed=1, horizon=10), 0
    rows = rows_of(0, [0.0] * 5, width=2)._replace(obs=torch.zeros(6, 2, 3))
    for step in range(0, 4 * 1605, 5):
        place = step // 5 % 81  # 400 steps and a dummy row, which here opens a chunk
        first, last, mask = rows.first.clone(), rows.last.clone(), rows.mask.clone()
        first[0] = place == 0
        last[4] = place == 79
        mask[:, :] = place < 80
        store.add(Chunk(rows._replace(first=first, last=last, mask=mask), sequence=sequence))
        sequence += 1
        while store.ready():
            assert store.sample().batch.reward.shape == (400, 4)
    held = sum(t.nbytes for t in store.ring.tensors.values())
    assert store.popped >= 12 and held <= estimate_bytes(plan, spec, 2) <= 2 * held
    unknown = EnvSpec("s", ArraySpec((3,)), Discrete(4))
    bounded = Plan(Episode(2, max_length=400), Fifo(), chunk=5).for_envs(2)
    assert estimate_bytes(bounded, unknown, 2) == estimate_bytes(plan, spec, 2)
    assert estimate_bytes(plan, unknown, 2) > estimate_bytes(plan, spec, 2)


def test_what_does_not_fit_is_refused():
    with pytest.raises(LudusError, match="E310") as caught:
        check_memory(9_000_000_000, free=4_000_000_000)
    assert caught.value.exit_code == OUT_OF_MEMORY
    assert "9 GB" in caught.value.what and "4 GB" in caught.value.what and caught.value.fix
    check_memory(3_000_000_000, free=4_000_000_000)
    with pytest.raises(LudusError):
        check_memory(1 << 60)  # whatever this machine has
