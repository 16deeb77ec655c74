"""How learner and actors keep pace: updates per step, and how often weights travel."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from ludus import registry
from ludus.algos.dqn import DQN
from ludus.envs.make import probe_spec
from ludus.evals import evaluate
from ludus.run import live_evaluation as live_eval
from tests.contract.tiny import tiny
from tests.fleets.test_processes import free, loop_of

WARMUP, RATIO, BATCH = 64, 4.0, 16  # one update of 16 for every 4 steps


@pytest.mark.accept(71)
@pytest.mark.parametrize("rows", [1, 5])
def test_lockstep_holds_one_update_per_four_steps(tmp_path, rows):
    """Neither behind nor ahead by more than the rows of one iteration, at any time."""
    loop = loop_of(tmp_path, "dqn", "processes", **{"actor.rows": rows})
    flush = 2 * 2 * rows  # actors, slots, rows
    while loop.learner.updates < 150:
        loop.iterate()
        due = max(0, loop.step - WARMUP) / 4
        assert abs(loop.learner.updates - due) <= flush / 4 + 1
        assert loop.store.samples_drawn == BATCH * loop.learner.updates
    loop.close()


@pytest.mark.accept(71)
def test_free_actors_hold_it_too(tmp_path):
    loop = free(tmp_path, **{"actor.rows": 4})
    before = 0
    while loop.learner.updates < 150:
        loop.iterate()
        due, flush = max(0, loop.step - WARMUP) / 4, loop.step - before
        assert abs(loop.learner.updates - due) <= flush / 4 + 1
        before = loop.step
    loop.close()


def arrivals(loop, updates):
    """(source, sequence, version) of every chunk until so many updates."""
    seen, poll = [], loop.fleet.poll

    def watched(*words):
        got = poll(*words)
        seen.extend((g.chunk.source, g.chunk.sequence, g.chunk.version) for g in got)
        return got

    loop.fleet.poll = watched
    while loop.learner.updates < updates:
        loop.iterate()
    loop.fleet.poll = poll
    return seen


@pytest.mark.accept(76)
@pytest.mark.parametrize("every", [1, 40])
def test_weights_are_published_as_often_as_configured(tmp_path, every):
    loop = free(tmp_path, **{"actor.publish_every": every, "actor.rows": 2})
    versions = sorted({version for _, _, version in arrivals(loop, 300)})
    result = loop.fleet.metrics()
    loop.close()
    gaps = [b - a for a, b in pairwise(versions)]
    assert len(versions) > 2 and all(gap >= every for gap in gaps)
    assert versions[-1] > 200, "and they do arrive"
    if every == 40:
        assert result["policy_lag"] > 1, "which is result"
    else:
        assert min(gaps) < 40


@pytest.mark.accept(76)
def test_weights_are_pulled_as_often_as_configured(tmp_path):
    """60 steps are 15 chunks of 2 rows of 2 slots."""
    loop = free(tmp_path, **{"actor.pull_every": 60, "actor.rows": 2})
    seen = arrivals(loop, 400)
    loop.close()
    for source in (0, 1):
        mine = {sequence: version for who, sequence, version in seen if who == source}
        changed = [b for a, b in pairwise(sorted(mine)) if mine[a] != mine[b]]
        assert len(changed) > 2 and all(b - a >= 15 for a, b in pairwise(changed))


class Stamped(DQN):
    """Its net knows how often it was updated, and whoever acts with it says so."""

    def build(self, spec):
        net = super().build(spec)
        for part in net.values():
            part.register_buffer("stamp", torch.zeros(()))
        return net

    def act(self, net, step, state, ctx):
        action, _, state = super().act(net, step, state, ctx)
        return action, {"stamp": net["online"].stamp.expand(action.shape)}, state

    def after_update(self, net, updates):
        super().after_update(net, updates)
        net["online"].stamp.fill_(updates)


@pytest.mark.accept(76)
@pytest.mark.parametrize("fleet", ["inline", "processes"])
def test_every_chunk_carries_the_version_of_the_weights_that_acted(tmp_path, fleet):
    """And the lag that is reported is the mean of what was measured where chunks arrive."""
    more = {"run.exact": "off", "actor.publish_every": 7, "actor.rows": 4}
    loop = loop_of(tmp_path, "dqn", fleet, kind=Stamped, **more)
    poll, lags, versions, mean = loop.fleet.poll, [], set(), 0.0

    def watched(*words):
        got = poll(*words)
        for collected in got:
            chunk = collected.chunk
            assert set(chunk.rows.extras["stamp"].flatten().tolist()) == {float(chunk.version)}
            lags.append(loop.learner.updates - chunk.version)
            versions.add(chunk.version)
        return got

    loop.fleet.poll = watched
    while loop.learner.updates < 100 or len(versions) < 4:
        loop.iterate()
    reported = loop.fleet.metrics()
    loop.close()
    for lag in lags:
        mean += 0.05 * (lag - mean)
    if fleet == "inline":
        assert set(lags) == {0}
    else:
        assert max(lags) > 0 and reported["policy_lag"] == pytest.approx(mean)


@pytest.mark.accept(76)
@pytest.mark.parametrize(
    ("fleet", "capture"), [("inline", "off"), ("inline", "on"), ("processes", "off")]
)
def test_replayed_rows_carry_the_version_too_and_their_lag_is_reported(tmp_path, fleet, capture):
    """The mean over sampled rows of the updates since the weights that acted for them."""
    more = {"run.exact": "off", "actor.publish_every": 7, "run.capture": capture}
    loop = loop_of(tmp_path, "dqn", fleet, kind=Stamped, **more)
    learner, lags = loop.learner, []
    prepared = learner.prepared

    def watched(batch):
        stamp = batch.extras["stamp"].double()
        assert torch.equal(batch.version.double(), stamp)
        lags.append(learner.updates - float(stamp.mean()))
        return prepared(batch)

    learner.prepared = watched
    while learner.updates < 5:  # captured, the first update runs several times
        loop.iterate()
    learner.take_metrics()
    lags.clear()
    while learner.updates < 80:
        loop.iterate()
    reported = learner.take_metrics()["policy_lag"]
    loop.close()
    assert reported == pytest.approx(sum(lags) / len(lags)) and reported > 10


@pytest.mark.accept(81)
@pytest.mark.parametrize(
    ("asked", "given"), [("auto", "cpu"), ("cpu", "cpu"), ("cuda:1", "cuda:1")]
)
def test_the_evaluator_gets_its_own_device(monkeypatch, asked, given):
    assert evaluator_job(monkeypatch, f"eval.device={asked}").device == given


@pytest.mark.accept(81)
def test_the_evaluator_plays_on_the_device_it_was_reported(monkeypatch):
    """On a device that every machine has and that is not the CPU."""
    job = replace(evaluator_job(monkeypatch), device="meta")
    net, asked = live_eval._net(job), []
    assert {x.device.type for x in (*net.parameters(), *net.buffers())} == {"meta"}

    def played(algorithm, envs, seed, device, sample):
        asked.append(device.type)
        raise InterruptedError

    monkeypatch.setattr(evaluate, "eval_collector", played)
    with pytest.raises(InterruptedError):
        evaluate.evaluate_policy(job.algorithm, net, job.env, episodes=1, seed=1)
    assert asked == ["meta"]


def evaluator_job(monkeypatch, *settings):
    monkeypatch.setattr(live_eval.LiveEvaluator, "_start", lambda self: None)
    cfg = tiny("dqn", "CartPole-v1", "eval.live=true", *settings)
    algorithm = registry.make(cfg.algo)
    net = algorithm.build(probe_spec(cfg.env))
    return live_eval.LiveEvaluator(cfg, algorithm, net, None).job


@pytest.mark.accept(80)
@pytest.mark.accept(81)
def test_actors_use_the_cpu_without_a_flag(tmp_path):
    loop = free(tmp_path)
    assert {m.job.device for m in loop.fleet.members} == {"cpu"}
    loop.close()
