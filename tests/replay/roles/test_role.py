"""The role itself, without a process: what it draws, when, and with which weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ludus.contract import Feed, NStep, Plan, Prioritized, Sequence, Uniform, Unroll
from ludus.replay.roles.role import (
    ReplayRole,
    RoleJob,
    example_sample,
    like_sample,
    sample_arrays,
    shard_plan,
)
from ludus.replay.roles.store import ReplayRoles
from ludus.replay.roles.transport import sample_fields
from ludus.replay.store import build_store
from ludus.schedules import ramp
from tests.learn.test_captured_shapes import ENVS, SPEC, STATE, chunks

PRIORITIZED = Prioritized(alpha=1.0, beta=ramp(1.0), epsilon=0.0, normalize="buffer")


def plan_of(view=None, sampler=None, **more):
    given = {"batch": 6, "capacity": 300, "chunk": 4, "warmup": 20, "replay_ratio": 1.0} | more
    return Plan(view or NStep(1), sampler or Uniform(), schedules={"lr": ramp(0.1)}, **given)


def role_of(plan, **more):
    extras = STATE if isinstance(plan.view, Sequence) else {}
    job = {"index": 0, "plan": plan, "spec": SPEC, "num_envs": ENVS, "first_env": 0, "seed": 3}
    return ReplayRole(RoleJob(**job, horizon=1000, extras=extras, **more))


def filled(role, count=20):
    for chunk in chunks(count):
        role.add(strip(role.job.plan, chunk))
    return role


def strip(plan, chunk):
    """Only sequences have a recurrent state here."""
    if any(isinstance(feed.view, Sequence) for feed in plan.feeds):
        return chunk
    return chunk._replace(rows=chunk.rows._replace(extras={}))


def test_each_place_is_filled_once_and_only_when_a_batch_is_due():
    role = role_of(plan_of())
    for place in (4, 1, 2):
        role.ask(place)
    found = []
    for chunk in chunks(30):
        role.add(strip(role.job.plan, chunk))
        found.append([drawn.place for drawn in role.draws()])
        if sum(map(len, found)) == 3:
            break
    steps = role.report().steps_inserted
    assert [place for places in found for place in places] == [4, 1, 2]
    assert found[0] == [] and steps >= 20 + 2 * 6, "the third batch of 6 is due 12 steps later"
    assert role.report().samples_drawn == 18
    assert role.due == (18 <= steps - 20)
    role.ask(0)
    role.forget_places()
    filled(role)
    assert role.due and not list(role.draws())


def test_samples_that_nobody_used_are_drawn_again():
    role = filled(role_of(plan_of()))
    for place in range(3):
        role.ask(place)
    drawn = list(role.draws())
    assert [d.steps for d in drawn] == [6, 6, 6]
    numbers, tensors = role.state(unused=12)
    assert numbers["samples_drawn"] == 6 and role.report().samples_drawn == 18
    again = role_of(plan_of())
    meta, rows = role.segment(None)
    again.restore(meta, rows)
    again.load(numbers, tensors)
    assert again.report().samples_drawn == 6 and again.report().size == role.report().size
    role.break_streams(unused=12)
    assert role.report().samples_drawn == 6


def test_weights_across_shards_are_those_of_one_probability_for_each_item():
    """Shards of equal shares: P(i) = 1/2 P(i | shard). The weight of an item of either shard is
    (N P(i))^-beta, divided by the largest of both."""
    plan, roles = plan_of(sampler=PRIORITIZED), []
    for scale in (1.0, 5.0):  # the second has larger and more unequal priorities
        role = filled(role_of(plan, generation=0))
        valid = np.flatnonzero(role.store.sampler.members.valid)
        priority = torch.linspace(1.0, 2.0 * scale, len(valid), dtype=torch.float64) * scale
        role.store.sampler.feedback(torch.from_numpy(valid), priority)
        roles.append(role)
    samplers = [role.store.sampler for role in roles]
    values = [one.tree.values[np.flatnonzero(one.members.valid)] for one in samplers]
    count = sum(map(len, values))
    assert len(values[0]) == len(values[1])
    expected = [(count * 0.5 * v / v.sum()) ** -1.0 for v in values]
    largest = max(weights.max() for weights in expected)
    store = ReplayRoles.__new__(ReplayRoles)  # the learner's side, which has seen both
    store.scales = {i: role.scale()[0] for i, role in enumerate(roles)}
    for i, (value, weights) in enumerate(zip(values, expected, strict=True)):
        own = roles[i].store.sampler.weights(torch.from_numpy(value.copy()), roles[i].scale()[1])
        result = store._of_all(own, i, *roles[i].scale())
        np.testing.assert_allclose(result, weights / largest, rtol=1e-5)
    assert roles[0].scale() != roles[1].scale()


@pytest.mark.parametrize("normalize", ["batch", "none"])
def test_other_weights_need_nothing_of_other_shards(normalize):
    sampler = PRIORITIZED.model_copy(update={"normalize": normalize})
    assert filled(role_of(plan_of(sampler=sampler))).scale() == (1.0, 0.0)


def test_a_refused_update_changes_no_priority():
    role = filled(role_of(plan_of(sampler=PRIORITIZED)))
    role.ask(0)
    (drawn,) = list(role.draws())
    before = role.store.sampler.tree.total
    role.feedback(drawn.sample.ids, torch.full((6,), torch.nan))
    assert role.store.sampler.tree.total == before
    role.feedback(drawn.sample.ids, torch.full((6,), 9.0))
    assert role.store.sampler.tree.total != before


VIEWS = {
    "transitions": plan_of(NStep(3)),
    "sequences": plan_of(Sequence(5, 3, 2), PRIORITIZED),
    "unrolls": plan_of(Unroll(4)),
    "feeds": Plan(
        feeds=tuple(Feed(k, NStep(1), Uniform(), n, 0.5) for k, n in {"a": 100, "b": 300}.items()),
        batch=6, chunk=4, warmup=20, schedules={"lr": ramp(0.1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_the_layout_of_a_sample_is_known_before_the_first_row(name):
    plan = VIEWS[name]
    role = filled(role_of(plan), 30)
    role.ask(0)
    (drawn,) = list(role.draws())
    zeros = next(iter(chunks(1)))
    zeros = strip(plan, zeros)
    extras = STATE if name == "sequences" else {}
    example = example_sample(plan, SPEC, extras, zeros)
    assert sample_fields(example) == sample_fields(drawn.sample)
    again = like_sample(example.batch, sample_arrays(drawn.sample))
    for one, two in zip(again, drawn.sample.batch, strict=True):
        assert (one is None) == (two is None)
        if torch.is_tensor(one):
            assert torch.equal(one, two)


def test_shards_share_capacity_and_warmup():
    part = shard_plan(VIEWS["feeds"], 0.25)
    assert [feed.capacity for feed in part.feeds] == [25, 75] and part.warmup == 5
    assert part.batch == 6 and part.capacity == part.feeds[0].capacity
    assert shard_plan(plan_of(), 1.0) == plan_of()


def test_a_replacement_goes_on_counting_and_collects_first():
    role = role_of(plan_of(), generation=1, barrier=2, counts=(500, 60, 20))
    role.ask(0)
    added = 0
    for chunk in chunks(30):
        role.add(strip(role.job.plan, chunk))
        added += 1
        if not role.report().missing:
            break
        assert not list(role.draws())
    assert added > 1 and list(role.draws()), "440 samples are due at once"
    first = role_of(plan_of())
    assert not torch.equal(role.store.rng.get_state(), first.store.rng.get_state())


def test_one_role_draws_as_a_store_does():
    plan = plan_of(sampler=PRIORITIZED)
    store = build_store(plan, SPEC, ENVS, seed=3, horizon=1000)
    role = role_of(plan)
    for chunk in chunks(40):
        chunk = strip(plan, chunk)
        store.add(chunk)
        role.add(chunk)
        while store.ready():
            sample = store.sample()
            role.ask(0)
            (drawn,) = list(role.draws())
            assert torch.equal(sample.ids, drawn.sample.ids)
            assert torch.equal(sample.weight, drawn.sample.weight)
            for one in (store, role):
                one.feedback(sample.ids, sample.weight.double() + 0.5)
    assert store.samples_drawn > 100
