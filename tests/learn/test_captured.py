"""Updates and acting without the host. On a machine without a GPU a graph is the function called
again, which tests everything but the capture itself; with one, the capture too."""

from __future__ import annotations

import contextlib

import pytest
import torch

import ludus
from ludus import registry
from ludus.learn.captured import CapturedReplay, CapturedUnrolls
from ludus.learn.eager import EagerUpdates
from ludus.learn.learner import Learner
from ludus.run.build import build_loop
from ludus.track.run_dir.rundir import RunDir
from ludus.types import tree_leaves

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SMALL = {"algo.torso": {"kind": "mlp", "hidden": [16]}, "env.num": 4, "run.steps": 100_000}
REPLAY = {**SMALL, "algo.warmup": 64, "algo.batch": 16, "algo.replay_ratio": 4.0,
          "algo.capacity": 2000}  # fmt: skip
KINDS = {
    "dqn": REPLAY,
    "dqn persist": {**REPLAY, "algo.persist": 2.0},
    "dqn rmsprop": {
        **REPLAY,
        "algo.optimizer": {"kind": "rmsprop", "centered": True, "momentum": 0.5},
    },
    "double-dqn": {**REPLAY, "algo.n_step": 3},
    "prioritized-dqn": REPLAY,
    "rainbow": {**REPLAY, "env.stack": 2},
    "iqn": REPLAY,
    "apex-dqn": {**REPLAY, "algo.chunk": 2},
    "apex-rainbow": {**REPLAY, "algo.chunk": 2},
    "apex-rainbow-iqn": {**REPLAY, "algo.chunk": 2},
    "ppo": {**SMALL, "algo.rollout": 16, "algo.epochs": 2, "algo.minibatches": 4},
    "pqn": {**SMALL, "algo.torso.layer_norm": True, "algo.rollout": 16, "algo.minibatches": 4},
    "recurrent-ppo": {
        **SMALL,
        "algo.rollout": 16,
        "algo.epochs": 2,
        "algo.minibatches": 2,
        "algo.core_size": 8,
    },
    "impala": {**SMALL, "algo.unroll": 8, "algo.batch": 4},
    "impala lstm": {**SMALL, "algo.unroll": 8, "algo.batch": 2, "algo.recurrent": {"hidden": 8}},
}
# A policy that samples its actions turns the last digit of a logit into another game.
SAMPLED = ("ppo", "recurrent-ppo", "impala", "impala lstm")


def loop_of(tmp_path, name, device="cpu", **more):
    settings = {**KINDS[name], "run.device": device, "run.capture": "on", **more}
    cfg = ludus.config(name.split()[0], "CartPole-v1", **settings)
    run = RunDir(tmp_path)
    loop, _ = build_loop(cfg, registry.make(cfg.algo), run)
    loop.barrier(0)
    return loop


def train(loop, updates):
    while loop.learner.updates < updates:
        loop.iterate()
    loop.fleet.close()
    return torch.cat([p.detach().flatten().cpu() for p in loop.learner.net.parameters()])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", KINDS)
def test_captured_updates_equal_eager_ones_with_the_same_draws(tmp_path, name, device):
    captured = loop_of(tmp_path, name, device)
    assert captured.updates.mode == ("captured" if device == "cuda" else "emulated: no GPU")
    eager = loop_of(tmp_path, name, device)
    eager.updates = EagerUpdates(eager.store, eager.learner)
    updates = 8 if name in SAMPLED else 40
    a, b = train(captured, updates), train(eager, updates)
    assert a.isfinite().all()
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert captured.store.samples_drawn == eager.store.samples_drawn
    result, expected = captured.learner.take_metrics(), eager.learner.take_metrics()
    assert result.keys() == expected.keys() and "loss" in result
    for key, value in result.items():
        assert value == pytest.approx(expected[key], rel=1e-2, abs=1e-5), key


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["dqn", "prioritized-dqn"])
def test_a_device_learns_what_a_cpu_learns(tmp_path, name, device):
    """The same samples: weights within the tolerance that docs/gpu.md states."""
    source = loop_of(tmp_path, name, **{"run.capture": "off"})
    spec, algorithm = source.fleet.spec, source.learner.algorithm
    here, other = (Learner(algorithm, spec, seed=1, device=d) for d in ("cpu", device))
    while source.store.size < 100:
        source.iterate()
    values = source.values.at(500)
    there = {k: v.to(device) for k, v in values.items()}
    for _ in range(20):
        sample = source.store.sample()
        here.learn(sample, values)
        other.learn(sample._replace(weight=sample.weight.to(device)), there)
    source.fleet.close()
    a, b = here.net.state_dict(), other.net.state_dict()
    for key in a:
        torch.testing.assert_close(a[key], b[key].cpu(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_after_sample_sees_what_an_eager_learner_shows_it(tmp_path, monkeypatch, name, device):
    seen = []
    for eager in (False, True):
        shapes = []
        monkeypatch.setattr(
            type(registry.make(ludus.config(name, "CartPole-v1").algo)),
            "after_sample",
            lambda self, net, batch, ctx, out=shapes: out.append(batch.action.shape),
        )
        loop = loop_of(tmp_path, name, device)
        if eager:
            loop.updates = EagerUpdates(loop.store, loop.learner)
        train(loop, 8)
        seen.append(shapes[-1])
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "name",
    [
        "dqn",
        "dqn persist",
        "ppo",
        "pqn",
        "recurrent-ppo",
        "rainbow",
        "apex-dqn",
        "apex-rainbow",
        "apex-rainbow-iqn",
        "impala lstm",
    ],
)
def test_a_device_collector_gives_the_rows_of_a_plain_one(tmp_path, name):
    loops = [loop_of(tmp_path, name, **{"run.capture": c, "env.groups": 2}) for c in ("on", "off")]
    for _ in range(12):
        rows, priorities = [], []
        for loop in loops:
            loop.fleet.publish(loop.learner.net)
            (got,) = loop.fleet.poll(loop.values.at(500))
            rows.append(got.chunk.rows)
            priorities.append(got.chunk.priority)
        for field in ("obs", "action", "reward", "raw_reward", "discount", "last", "first", "mask"):
            assert torch.equal(*(getattr(r, field) for r in rows)), field
        assert rows[0].extras.keys() == rows[1].extras.keys()
        for key in rows[0].extras:
            torch.testing.assert_close(rows[0].extras[key], rows[1].extras[key])
        for one, two in zip(*(tree_leaves(r.state) for r in rows), strict=True):
            torch.testing.assert_close(one, two)
        assert (priorities[0] is None) == (not name.startswith("apex"))
        torch.testing.assert_close(*priorities)


@pytest.mark.parametrize(
    "name",
    ["dqn", "prioritized-dqn", "apex-dqn", "ppo", "pqn", "recurrent-ppo", "impala", "impala lstm"],
)
def test_learning_during_collecting_equals_learning_before_it(tmp_path, name):
    options = {"run.capture": "off", "run.overlap": "on"}
    overlapped = loop_of(tmp_path, name, **options)
    assert isinstance(overlapped.updates, EagerUpdates) and overlapped.updates.background
    serial = loop_of(tmp_path, name, **options)
    serial.updates = EagerUpdates(serial.store, serial.learner, background=False)
    again = loop_of(tmp_path, name, **options)
    a, b, c = train(overlapped, 60), train(serial, 60), train(again, 60)
    assert torch.equal(a, b) and torch.equal(a, c)
    assert overlapped.store.samples_drawn == serial.store.samples_drawn


def test_overlap_is_one_iteration_behind(tmp_path):
    """Iteration i learns from the rows up to i-1, and acts with the weights after i-1."""
    loop = loop_of(tmp_path, "dqn", **{"run.overlap": "on"})
    while not loop.store.ready():
        loop.iterate()
    before = [p.clone() for p in loop.learner.net.parameters()]
    inserted, drawn = loop.store.steps_inserted, loop.store.samples_drawn
    assert drawn == 0  # the rows that made it ready are not learned from in their own iteration
    loop.iterate()
    assert loop.store.samples_drawn > drawn and loop.store.steps_inserted > inserted
    acted = list(loop.fleet.net.parameters())
    assert all(torch.equal(a, b) for a, b in zip(acted, before, strict=True))
    assert any(
        not torch.equal(a, b) for a, b in zip(acted, loop.learner.net.parameters(), strict=True)
    )
    loop.fleet.close()


@pytest.mark.parametrize("overlap", ["on", "off"])
@pytest.mark.parametrize("capture", ["on", "off"])
def test_the_pace_is_the_replay_ratio(tmp_path, overlap, capture):
    loop = loop_of(tmp_path, "dqn", **{"run.overlap": overlap, "run.capture": capture})
    for _ in range(200):
        loop.iterate()
    loop.fleet.close()
    due = 4.0 * (loop.store.steps_inserted - 64)
    assert abs(loop.store.samples_drawn - due) <= 2 * 16 + 4 * 4 * 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["prioritized-dqn", "ppo", "impala lstm"])
def test_capturing_changes_nothing(tmp_path, name, device):
    """Nets, optimizer, generators, priorities and rows are bit-equal after it."""
    loop = loop_of(tmp_path, name, device)
    updates = loop.updates
    assert isinstance(updates, CapturedReplay | CapturedUnrolls)
    while not loop.store.ready():
        loop.fleet.publish(loop.learner.net)
        for got in loop.fleet.poll(loop.values.at(loop.step)):
            loop.store.add(got.chunk)
    watched = [*updates._changing()]
    generators = [loop.learner.ctx.rng]
    if isinstance(updates, CapturedReplay):
        watched += loop.store.ring.tensors.values()
        generators.append(updates.store.rng)
    before = [t.clone() for t in watched]
    states = [g.get_state() for g in generators]
    updates._attach(loop.values.at(500))
    if isinstance(updates, CapturedReplay):
        updates.capture()
    else:
        updates._stage(loop.store.sample().batch)
        updates._build()
    assert all(torch.equal(a, b) for a, b in zip(watched, before, strict=True))
    assert all(torch.equal(g.get_state(), s) for g, s in zip(generators, states, strict=True))
    loop.fleet.close()


def test_acting_never_waits_between_the_updates_of_a_round(tmp_path, monkeypatch):
    """Four batches wait; the stream that acts may not stand behind any of them until `finish`."""
    loop = loop_of(tmp_path, "impala", **{"env.num": 16, "run.overlap": "on"})
    result = []
    monkeypatch.setattr(loop.streams, "join", lambda: result.append(loop.learner.updates))
    values = loop.values.at(0)
    loop.fleet.publish(loop.learner.net)
    for got in loop.fleet.poll(values):
        loop.store.add(got.chunk)
    loop.updates.start(values)
    assert loop.learner.updates == 4 and result == []
    assert len(loop.updates.taken) == 4, "kept alive while the learner's stream reads them"
    loop.updates.finish()
    assert result == [4] and loop.updates.taken == []
    loop.close()


@pytest.mark.parametrize("device", DEVICES)
def test_what_changes_between_launches_reaches_the_graph(tmp_path, device):
    loop = loop_of(tmp_path, "prioritized-dqn", device)
    while loop.learner.updates < 5:
        loop.iterate()
    updates = loop.updates
    net = list(loop.learner.net["online"].parameters())

    def moved(**changes):
        for name, value in changes.items():
            loop.values.tensors[name].fill_(value)
        updates._attach(loop.values.tensors)
        before = [p.clone() for p in net]
        with loop.updates.streams.learning():
            updates.graph.launch()
        updates.streams.join()
        return max(float((a - b).abs().max().detach()) for a, b in zip(net, before, strict=True))

    assert moved(lr=0.0) == 0.0
    small, large = moved(lr=1e-6), moved(lr=1e-2)
    assert 0 < small < 1e-4 < large
    updates.store.sampler.beta.fill_(0.0)
    _, draw = loop.store.sample_on_device()
    assert torch.allclose(draw.weight, torch.ones_like(draw.weight))
    loop.fleet.close()


@pytest.mark.parametrize("device", DEVICES)
def test_a_number_that_is_not_finite_is_refused_without_the_host(tmp_path, device):
    loop = loop_of(tmp_path, "prioritized-dqn", device)
    while loop.learner.updates < 5:
        loop.iterate()
    good = [p.clone() for p in loop.learner.net.parameters()]
    moments = [x.clone() for s in loop.learner.optimizer.state.values() for x in s.values()]
    done = loop.learner.updates
    loop.store.ring.tensors["reward"].fill_(float("nan"))
    with pytest.raises(ludus.LudusError) as caught:
        for _ in range(50):
            loop.iterate()
            loop.store.ring.tensors["reward"].fill_(float("nan"))
            if device == "cuda":
                torch.cuda.synchronize()
    assert caught.value.code == "E401"
    assert all(torch.equal(a, b) for a, b in zip(loop.learner.net.parameters(), good, strict=True))
    after = [x for s in loop.learner.optimizer.state.values() for x in s.values()]
    assert all(torch.equal(a, b) for a, b in zip(after, moments, strict=True))
    with contextlib.suppress(ludus.LudusError):
        loop.learner.flush()  # a busy GPU may have refused one more since
    assert loop.learner.skipped >= 3 and loop.learner.updates == done
    assert list((tmp_path / "crash").glob("*.safetensors"))
    loop.fleet.close()
