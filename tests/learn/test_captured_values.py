"""What a launched graph sees of the world outside it: beta, epsilon, clip; pictures in bf16; rows
in host memory. Some parts need a GPU."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

import ludus
from ludus import registry
from ludus.learn.eager import EagerUpdates
from ludus.run.build import build_loop
from ludus.track.run_dir.rundir import RunDir
from tests.learn.test_captured import DEVICES, REPLAY, loop_of, train
from tests.skips import needs_gpu

PICTURES = "ludus/IdentityPixels-v0"


def pictures(tmp_path, name="prioritized-dqn", device="cpu", **more):
    settings = {**REPLAY, "algo.torso": {"kind": "nips"}, "env.args": {"size": 84}, "env.stack": 4}
    settings |= {"run.device": device, "run.capture": "on", "algo.capacity": 1000, **more}
    cfg = ludus.config(name, PICTURES, **settings)
    loop, _ = build_loop(cfg, registry.make(cfg.algo), RunDir(tmp_path))
    loop.barrier(0)
    return loop


def launched(loop, graph, **values):
    """What one launch with some values changed adds to the metrics' sums; the state is put back."""
    updates, metrics = loop.updates, loop.learner.device_metrics
    sampler = getattr(updates.store, "sampler", None)
    watched = [*updates._changing(), *(sampler.changing() if sampler else [])]
    rngs = [loop.learner.ctx.rng, *([sampler.rng] if sampler else [])]
    saved, states = [t.clone() for t in watched], [g.get_state() for g in rngs]
    old = {k: loop.values.tensors[k].clone() for k in values}
    for key, value in values.items():
        loop.values.tensors[key].fill_(value)
    before = {k: v.clone() for k, v in metrics.sums.items()}
    with updates.streams.learning():
        graph()
    updates.streams.join()
    sums = {k: float(v - before[k]) for k, v in metrics.sums.items()}
    with torch.no_grad():
        for tensor, value in zip(watched, saved, strict=True):
            tensor.copy_(value)
    for rng, state in zip(rngs, states, strict=True):
        rng.set_state(state)
    for key, value in old.items():
        loop.values.tensors[key].copy_(value)
    return sums


@pytest.mark.parametrize("device", DEVICES)
def test_beta_reaches_a_launched_graph(tmp_path, device):
    loop = loop_of(tmp_path, "prioritized-dqn", device)
    while loop.learner.updates < 30:  # by now priorities differ
        loop.iterate()
    updates, losses = loop.updates, []
    for beta in (0.0, 1.0):
        updates.store.sampler.beta.fill_(beta)
        launch = launched(loop, updates.graph.launch)["loss"]
        called = launched(loop, updates._once)["loss"]
        assert launch == pytest.approx(called, rel=1e-4)
        losses.append(launch)
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)
    loop.close()


@pytest.mark.parametrize("device", DEVICES)
def test_the_store_writes_beta_where_the_graph_reads_it(tmp_path, device):
    loop = loop_of(tmp_path, "prioritized-dqn", device, **{"run.steps": 2000})
    seen = set()
    while loop.step < 1500:
        loop.iterate()
        seen.add(round(float(loop.updates.store.sampler.beta), 4))
    assert len(seen) > 20 and max(seen) - min(seen - {0.0}) > 0.2, "a schedule, not a constant"
    loop.close()


@pytest.mark.parametrize("device", DEVICES)
def test_epsilon_reaches_a_launched_graph(tmp_path, device):
    loop = loop_of(tmp_path, "dqn", device)
    loop.fleet.publish(loop.learner.net)
    loop.fleet.poll(loop.values.at(0))
    collector = loop.fleet.collector
    io, values = collector.runner.graph_io[0], loop.values.tensors
    assert io.graph is not None
    values["warming"].fill_(0.0)

    def actions():
        taken = []
        for _ in range(30):
            io.graph.launch()
            taken.append(io.action.cpu().clone())
        return torch.stack(taken)  # [30, slots]

    values["epsilon"].fill_(0.0)
    assert (actions() == actions()[0]).all(), "greedy: the same answer to the same observation"
    values["epsilon"].fill_(1.0)
    share = float(actions().float().mean())
    assert 0.3 < share < 0.7
    loop.close()


@pytest.mark.parametrize("device", DEVICES)
def test_clip_reaches_a_launched_graph(tmp_path, device):
    loop = loop_of(tmp_path, "ppo", device, **{"algo.lr": 1e-2})
    while loop.learner.updates < 8:
        loop.iterate()
    updates = loop.updates
    graph = updates._update.launch
    none = launched(loop, graph, clip=100.0)["clip_fraction"]
    some = launched(loop, graph, clip=1e-6)["clip_fraction"]
    assert none == 0.0 and some > 0.5
    loop.close()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_pictures_captured_equal_eager(tmp_path, device, precision):
    """Convolutions, with rounding of their inputs or without. The tolerances of docs/gpu.md."""
    captured = pictures(tmp_path, device=device, **{"run.precision": precision})
    eager = pictures(tmp_path, device=device, **{"run.precision": precision})
    eager.updates = EagerUpdates(eager.store, eager.learner)
    a, b = train(captured, 20), train(eager, 20)
    assert a.isfinite().all() and captured.compute_info["precision"] == precision
    if device == "cpu":
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    else:  # convolutions add up in another order from call to call
        apart = float((a - b).norm() / b.norm())
        assert apart < (1e-3 if precision == "fp32" else 2e-2), apart


@needs_gpu
@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_captured_acting_equals_eager_acting_on_a_gpu(tmp_path, name):
    loops = [loop_of(tmp_path, name, "cuda", **{"env.groups": 2}) for _ in range(2)]
    loops[1].fleet.collector.runner.captured = False
    for _ in range(12):
        rows = []
        for loop in loops:
            loop.fleet.publish(loop.learner.net)
            (got,) = loop.fleet.poll(loop.values.at(500))
            rows.append(got.chunk.rows)
        for field in ("obs", "action", "reward", "raw_reward", "discount", "last", "first", "mask"):
            assert torch.equal(*(getattr(r, field) for r in rows)), field
    assert all(io.graph is not None for io in loops[0].fleet.collector.runner.graph_io)
    assert all(io.graph is None for io in loops[1].fleet.collector.runner.graph_io)
    for loop in loops:
        loop.close()


@needs_gpu
@pytest.mark.parametrize("capture", ["on", "off"])
def test_rows_in_host_memory_are_the_rows_of_the_device(tmp_path, capture):
    more = {"algo.n_step": 3, "run.capture": capture, "run.precision": "fp32", "algo.warmup": 900}
    loops = [
        pictures(tmp_path, "double-dqn", "cuda", **more, **{"run.replay_on": where})
        for where in ("device", "host")
    ]
    assert [loop.store.ring.pinned for loop in loops] == [False, True]
    for loop in loops:  # before anything is learned: afterwards roundings turn actions
        while loop.step < 800:
            loop.iterate()
    ids = torch.arange(100, 400, device="cuda")
    one, two = (loop.store.view.gather(loop.store.ring.lift(ids)) for loop in loops)
    for field, x, y in zip(one._fields, one, two, strict=True):
        if isinstance(x, torch.Tensor):
            assert torch.equal(x, y), field
    assert int(one.obs.max()) > 0
    for loop in loops:
        while loop.learner.updates < 5:
            loop.iterate()
    a, b = (torch.cat([p.flatten() for p in x.learner.net.parameters()]) for x in loops)
    assert float((a - b).norm() / b.norm()) < 1e-3
    for loop in loops:
        while loop.step < 2500:  # more than they hold: rows are overwritten
            loop.iterate()
        assert loop.learner.skipped == 0
        loop.close()


def three_updates(tmp_path, name, device, held):
    """Weights after three captured updates in bf16, which start from the same rows and draws."""
    loop = loop_of(tmp_path, name, device, **{"run.precision": "bf16"})
    with held:
        return train(loop, 3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_rounded_weights_follow_the_updates(tmp_path, name, device):
    """Rule 3 of docs/gpu.md. An autocast around everything lives as long as a graph does: a cache
    that kept the rounded weights of one launch would still have them in the next."""
    around = torch.autocast(device, torch.bfloat16, enabled=False)
    kept = three_updates(tmp_path, name, device, around)
    plain = three_updates(tmp_path, name, device, nullcontext())
    rtol, atol = (1e-6, 1e-7) if device == "cpu" else (1e-4, 1e-5)
    torch.testing.assert_close(kept, plain, rtol=rtol, atol=atol)
    eager = loop_of(tmp_path, name, device, **{"run.precision": "bf16"})
    eager.updates = EagerUpdates(eager.store, eager.learner)
    torch.testing.assert_close(plain, train(eager, 3), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_no_cache_of_autocast_while_learning_or_acting(tmp_path, monkeypatch, name):
    loop, seen = loop_of(tmp_path, name, **{"run.precision": "bf16"}), []
    kind = type(loop.learner.algorithm)

    def watched(method):
        real = getattr(kind, method)

        def looking(self, *arguments):
            rounds = torch.is_autocast_enabled("cpu")
            seen.append((method, rounds, torch.is_autocast_cache_enabled()))
            return real(self, *arguments)

        return looking

    for method in ("loss", "act"):
        monkeypatch.setattr(kind, method, watched(method))
    train(loop, 3)
    assert set(seen) == {("loss", True, False), ("act", True, False)}
