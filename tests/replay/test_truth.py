"""Everything a view returns equals the naive recorder: random episodes, wrap-around, several
columns with different heads, lost chunks and barriers. (Rules 1 and 3 of the ring.)"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.contract import NStep, Plan, Prioritized, Sequence, Uniform
from tests.replay.build import KINDS, replay_of
from tests.replay.recorder import Recorder, n_step, spec_of, stacked

EXTRAS = {"noise": ((), torch.float32)}
STATE = EXTRAS | {"state": ((), torch.float32)}


def drive(store, recorder, seed, chunks, sources, most):
    """Feed random chunks, losing some and passing barriers; check the set of items as it goes."""
    rng = np.random.default_rng(seed)
    steps = 0
    for _ in range(chunks):
        source = int(rng.integers(sources))
        lost = bool(rng.random() < 0.1)
        chunk = recorder.chunk(int(rng.integers(1, most + 1)), source, lost)
        if not lost:
            store.add(chunk)
            steps += int(chunk.rows.mask.sum())
        if rng.random() < 0.05:
            recorder.restart()
            store.break_streams()
        yield
    assert store.steps_inserted == steps


def drawable(store):
    """Every item that may be drawn: its slot, as the ring takes it, and absolute id."""
    slots = np.flatnonzero(store.sampler.members.valid)
    return store.ring.index(slots), [int(i) for i in store.ring.ids(slots)]


def check_draws(store, ids):
    """Only drawable items are drawn, and a device's tree agrees with the host's set."""
    if ids:
        assert set(store.sample().ids.tolist()) <= set(ids)
    tree = getattr(store.sampler, "tree", None)
    if tree is not None:
        has = (tree.leaves[: tree.capacity] > 0).numpy()
        assert (has == store.sampler.members.valid).all()
        assert float(tree.total) == pytest.approx(float(tree.leaves.sum()))


@st.composite
def settings_of_a_run(draw):
    sources = draw(st.sampled_from([1, 1, 2, 3]))
    return {
        "kind": draw(st.sampled_from(KINDS)),
        "seed": draw(st.integers(0, 2**31)),
        "sources": sources,
        "columns": sources * draw(st.integers(1, 3)),
        "capacity": draw(st.integers(5, 120)),
        "most": draw(st.integers(1, 6)),
        "stack": draw(st.sampled_from([1, 1, 2, 4])),
        "end": draw(st.sampled_from([0.0, 0.08, 0.3, 0.8])),
    }


@pytest.mark.accept(58)
@pytest.mark.accept(59)
@settings(max_examples=90)
@given(run=settings_of_a_run(), n=st.integers(1, 5), gamma=st.sampled_from([1.0, 0.9]))
def test_transitions_equal_the_naive_recorder(run, n, gamma):
    spec = spec_of(run["stack"])
    plan = Plan(NStep(n, gamma), Uniform(), batch=4, chunk=run["most"], capacity=run["capacity"])
    store = replay_of(run["kind"], plan, spec, run["columns"], EXTRAS)
    recorder = Recorder(run["seed"], run["columns"], run["sources"], run["end"])
    layout = store.ring.layout
    for _ in drive(store, recorder, run["seed"], 30, run["sources"], run["most"]):
        truth = recorder.items(n, layout.length, layout.history)
        slots, ids = drawable(store)
        assert set(ids) == set(truth) and len(ids) == store.size
        check_draws(store, ids)
        if ids:
            check_transitions(store.view.gather(slots), [truth[i] for i in ids], n, gamma, run)


def check_transitions(batch, items, n, gamma, run):
    k = run["stack"]
    want = [n_step(s, t, n, gamma) for s, t in items]
    frames = [stacked(s, t, k) for s, t in items]
    after = [stacked(s, end, k) for (s, _), (_, _, end) in zip(items, want, strict=True)]
    shape = (-1, k) if k > 1 else (-1,)
    for seen, truth in ((batch.obs, frames), (batch.next_obs, after)):
        assert torch.equal(seen[..., 0], torch.tensor(truth, dtype=torch.float32).reshape(shape))
        assert torch.equal(seen[..., 1], -seen[..., 0])
    assert batch.action.tolist() == [s.actions[t] for s, t in items]
    torch.testing.assert_close(batch.reward, torch.tensor([w[0] for w in want]))
    torch.testing.assert_close(batch.discount, torch.tensor([w[1] for w in want]))
    assert batch.extras["noise"].tolist() == [3.0 * s.frames[t] for s, t in items]


def sequence_starts(truth, period, burn_in, span):
    """Starts lie every `period` rows; a window that ends within the burn-in trains nothing, but
    one that opens its episode has no burn-in."""
    return {
        i: (s, t)
        for i, (s, t) in truth.items()
        if t % period == 0 and (min(span, len(s) - t) > burn_in or (t == 0 and s.first))
    }


@pytest.mark.accept(60)
@settings(max_examples=90)
@given(
    run=settings_of_a_run(),
    length=st.integers(1, 6),
    burn_in=st.integers(0, 3),
    period=st.integers(1, 5),
    prioritized=st.booleans(),
)
def test_sequences_equal_the_naive_recorder(run, length, burn_in, period, prioritized):
    spec, span = spec_of(run["stack"]), length + burn_in
    sampler = Prioritized() if prioritized else Uniform()
    view = Sequence(length, period, burn_in)
    plan = Plan(view, sampler, batch=4, chunk=run["most"], capacity=run["capacity"])
    store = replay_of(run["kind"], plan, spec, run["columns"], STATE)
    recorder = Recorder(run["seed"], run["columns"], run["sources"], run["end"])
    layout = store.ring.layout
    for _ in drive(store, recorder, run["seed"], 30, run["sources"], run["most"]):
        truth = recorder.items(span, layout.length, layout.history)
        truth = sequence_starts(truth, period, burn_in, span)
        slots, ids = drawable(store)
        # Many short episodes may push a start's state out before its row.
        gone = set(truth) - set(ids)
        assert set(ids) <= set(truth) and len(ids) == store.size
        assert not gone or store.starts.count.max() > layout.starts
        check_draws(store, ids)
        if ids:
            batch = store.view.gather(slots)
            for b, i in enumerate(ids):
                check_sequence(batch, b, *truth[i], span, run["stack"], burn_in)


def check_sequence(batch, b, s, t, span, k, burn_in):
    real = min(span, len(s) - t)
    pad = span - real

    def padded(values, more=0):
        return [float(v) for v in values] + [0.0] * (pad - more)

    burned = 0 if t == 0 and s.first else burn_in
    trains = [False] * burned + [True] * (real - burned) + [False] * pad
    assert batch.mask[:, b].tolist() == trains
    if burn_in:
        assert batch.burn_in[:, b].tolist() == [True] * burned + [False] * (span - burned)
    else:
        assert batch.burn_in is None
    frames = [stacked(s, j, k) for j in range(t, t + real + 1)]
    seen = batch.obs[: real + 1, b, ..., 0].reshape(real + 1, k)
    assert seen.tolist() == [[float(f) for f in frame] for frame in frames]
    assert not batch.obs[real + 1 :, b].any()
    assert batch.action[:, b].tolist() == padded(s.actions[t : t + real])
    assert batch.reward[:, b].tolist() == padded(s.rewards[t : t + real])
    assert batch.discount[:, b].tolist() == padded(s.discounts[t : t + real])
    ends = s.closed and t + real == len(s)
    assert batch.last[:, b].tolist() == [False] * (real - 1) + [ends] + [False] * pad
    assert batch.first[:, b].tolist() == [t == 0 and s.first] + [False] * span
    before = (0.0, 0.0) if t == 0 else (float(s.actions[t - 1]), s.rewards[t - 1])
    assert batch.prev_action[:, b].tolist() == [before[0], *padded(s.actions[t : t + real])]
    assert batch.prev_reward[:, b].tolist() == [before[1], *padded(s.rewards[t : t + real])]
    assert batch.state[b] == 2.0 * s.frames[t]  # the state of the start, once per sequence
