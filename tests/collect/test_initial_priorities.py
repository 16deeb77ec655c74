"""Priorities that actors compute are the learner's own for the same weights: at episode ends, at
truncations, over the borders of chunks, where streams break, and wherever the rows lie."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch

import ludus
from ludus import registry
from ludus.collect import initial_priorities as priorities
from ludus.collect.collector import Collector
from ludus.collect.device_runner import DeviceRunner
from ludus.contract import Plan, Prioritized, Sequence, Values
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.errors import LudusError
from ludus.evals.evaluate import evaluate_policy
from ludus.learn.learner import Learner
from ludus.nets.normalize import Normalizer
from ludus.replay.storage.ring import Ring
from ludus.replay.store import build_store
from ludus.run.build import build_loop
from ludus.track.run_dir.rundir import RunDir
from ludus.types import Chunk, Ctx
from tests.contract.tiny import tiny
from tests.replay.build import KINDS, replay_of, rows_of
from tests.replay.build import SPEC as LINE

HEADS = {
    "scalar": "head={kind: scalar, dueling: true, hidden: 16}",
    "categorical": "head={kind: categorical, atoms: 11, v_min: 0, v_max: 9}",
    "implicit": "head={kind: implicit, taus: 4, target_taus: 5, act_taus: 6, cosines: 8}",
}
# Poles fall after eight steps at the least: some episodes terminate, most are truncated.
CARTPOLE = EnvConfig(id="CartPole-v1", num=3, max_episode_steps=11)


@pytest.fixture
def same_taus(monkeypatch):
    """Every item gets the same taus wherever it stands in a batch; k at a time, always those k."""
    real = torch.rand

    def rand(*size, **options):
        if len(size) != 2:
            return real(*size, **options)
        row = real(1, size[1], generator=torch.Generator().manual_seed(size[1]))
        return row.expand(size)

    monkeypatch.setattr(torch, "rand", rand)


class Scene:
    """Collectors and the store their chunks go to; the weights stay as they are."""

    def __init__(self, *settings, env=CARTPOLE, sources=1, **options):
        cfg = tiny("apex-dqn", env.id, "replay.epsilon=0", "replay.alpha=1", *settings)
        self.algorithm = registry.make(cfg.algo)
        worlds = [make_envs(env, seed=5 + i) for i in range(sources)]
        spec = worlds[0].spec
        normalizer = options.pop("normalizer", None)
        self.learner = Learner(
            self.algorithm, spec, seed=5, normalizer=normalizer and Normalizer(spec, env.num)
        )
        with torch.no_grad():  # as in the middle of training
            for p in self.learner.net["target"].parameters():
                p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
        self.values = Values(self.algorithm.plan, 1000).at(500)
        self.collectors = []
        for i, envs in enumerate(worlds):
            self.collectors.append(Collector(self.algorithm, envs, seed=5, index=i, **options))
            self.collectors[-1].barrier(0)
        plan = self.algorithm.plan.for_envs(env.num * sources)
        self.store = build_store(plan, spec, env.num * sources, seed=5, horizon=1000)

    def collect(self, steps, source=0):
        net = self.learner.net
        return self.collectors[source].collect(net, steps, self.values).chunk

    def close(self):
        for c in self.collectors:
            c.close()

    def given(self):
        """Flat slots that may be drawn, and the priorities they have."""
        state = self.store.sampler.state()[0]
        slots = state["valid"].nonzero()[:, 0]
        return slots, state["leaves"][slots]

    def learned(self, slots):
        """What the learner's loss says of the same items."""
        batch = self.store.view.gather(self.store.ring.lift(slots))
        learner = self.learner
        learner.ctx.values = self.values
        with torch.no_grad():
            return self.algorithm.loss(learner.net, learner.prepared(batch), learner.ctx).priority

    def check(self, at_least):
        slots, got = self.given()
        assert len(slots) >= at_least
        torch.testing.assert_close(got.float(), self.learned(slots), rtol=1e-5, atol=1e-5)
        assert len({round(float(x), 6) for x in got}) > len(got) / 2, "not all the same"


@pytest.mark.accept(57)
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("head", HEADS)
def test_they_are_the_learners_for_the_same_weights(head, n, steps, same_taus) -> None:
    scene = Scene(HEADS[head], f"n_step={n}")
    lasts = overs = 0
    for _ in range(60 // steps):
        chunk = scene.collect(steps)
        assert chunk.priority.shape == (n - 1 + steps, 3)
        lasts += int(chunk.rows.last.sum())
        overs += int((chunk.rows.discount == 0).sum())
        scene.store.add(chunk)
        if scene.store.size > 20:
            scene.check(20)
    scene.close()
    assert lasts > overs > 0, "truncations and terminations"
    scene.check(150)


@pytest.mark.accept(57)
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_they_are_the_papers_in_plain_loops(n, steps) -> None:
    """|sum gamma^k r_k + gamma^n Q-(s', argmax Q(s', a)) - Q(s, a)|, one row after the other."""
    scene = Scene(HEADS["scalar"], f"n_step={n}")
    chunks = [scene.collect(steps) for _ in range(48 // steps)]
    scene.close()
    net, gamma = scene.learner.net, scene.algorithm.cfg.gamma
    rows = [c.rows for c in chunks]
    obs = torch.cat([*(r.obs[:-1] for r in rows), rows[-1].obs[-1:]])
    action, reward, discount, last, mask = (
        torch.cat([getattr(r, name) for r in rows])
        for name in ("action", "reward", "discount", "last", "mask")
    )
    said: dict[int, torch.Tensor] = {}
    for i, chunk in enumerate(chunks):  # the newest word counts
        for j, value in enumerate(chunk.priority):
            said[i * steps - (n - 1) + j] = value
    with torch.no_grad():
        online, target = (net[k](obs.flatten(0, 1)).q.view(*obs.shape[:2], -1) for k in net)
    checked = 0
    for t in range(len(mask)):
        for b in range(3):
            if not mask[t, b]:
                continue
            total, factor, k = 0.0, 1.0, t
            while k < min(t + n, len(mask)):
                total += factor * float(reward[k, b])
                factor *= gamma * float(discount[k, b])
                k += 1
                if last[k - 1, b]:
                    break
            goal = total + factor * float(target[k, b, int(online[k, b].argmax())])
            want = abs(goal - float(online[t, b, int(action[t, b])]))
            assert float(said[t][b]) == pytest.approx(want, abs=1e-5)
            checked += 1
    assert checked > 100


@pytest.mark.accept(57)
@pytest.mark.parametrize("how", ["barrier", "lost chunk", "given up"])
def test_the_open_windows_of_a_broken_stream_bootstrap_from_its_end(how) -> None:
    scene = Scene(HEADS["scalar"], "n_step=4")
    for steps in (3, 2):
        scene.store.add(scene.collect(steps))
    before = scene.store.size
    if how == "barrier":
        scene.collectors[0].barrier(1)
        scene.store.break_streams()
        assert scene.store.size >= before + 3, "what waited is let in"
        scene.check(10)
    elif how == "lost chunk":
        scene.collect(2)
    else:
        scene.collectors[0].collect(scene.learner.net, 9, scene.values, lambda: True)
        scene.collectors[0].barrier(1)
    for steps in (1, 3, 1, 6):
        scene.store.add(scene.collect(steps))
        scene.check(10)
    scene.close()


def test_every_source_has_windows_of_its_own() -> None:
    scene = Scene(HEADS["scalar"], "n_step=3", sources=3)
    for i in range(30):
        scene.store.add(scene.collect(1 + i % 3, source=(i * 2) % 3))
    scene.close()
    scene.check(100)


@pytest.mark.parametrize(
    ("env", "more", "settings"),
    [
        (EnvConfig(id="ludus/IdentityPixels-v0", num=2, stack=3), {}, ()),
        (EnvConfig(id="CartPole-v1", num=4, groups=2, max_episode_steps=9), {}, ("persist=2",)),
        (CARTPOLE, {"pipelined": True}, ()),
        (CARTPOLE, {"runner": DeviceRunner}, ()),
        (CARTPOLE, {"normalizer": True}, ()),
    ],
    ids=["stacks", "groups", "pipelined", "device", "normaliser"],
)
def test_with_whatever_else_rows_have(env, more, settings) -> None:
    scene = Scene(HEADS["scalar"], "n_step=3", *settings, env=env, **more)
    if more.get("normalizer"):
        scene.learner.observe(scene.collect(20).rows)
        scene.collectors[0].barrier(1)
    for i in range(20):
        # What is under way when a chunk ends is the next one's: it must know its size.
        scene.store.add(scene.collect(2 if more.get("pipelined") else 1 + i % 3))
    scene.close()
    scene.check(40)


def test_a_ring_of_tensors_gives_the_same(monkeypatch) -> None:
    """As a GPU has it."""
    got = []
    for ring in (Ring, functools.partial(Ring, on_host=False)):
        monkeypatch.setattr(priorities, "Ring", ring)
        scene = Scene(HEADS["scalar"], "n_step=3")
        got.append(torch.cat([scene.collect(s).priority for s in (1, 4, 2, 3)]))
        scene.close()
    torch.testing.assert_close(*got, rtol=1e-6, atol=1e-6)


def test_actions_are_the_same_with_and_without_them() -> None:
    """Also where the loss draws: noise and taus come from a generator of their own."""
    chunks = []
    for initial in ("actor", "largest"):
        scene = Scene(HEADS["implicit"], "head.noisy=0.5", f"replay.initial={initial}")
        chunks.append([scene.collect(3) for _ in range(6)])
        scene.close()
    for one, two in zip(*chunks, strict=True):
        assert torch.equal(one.rows.action, two.rows.action)
        assert one.priority is not None and two.priority is None


def test_with_overlap_they_are_of_the_weights_that_acted(tmp_path) -> None:
    settings = {"algo.warmup": 64, "algo.batch": 16, "algo.replay_ratio": 4.0, "env.num": 4,
                "run.overlap": "on", "algo.lr": 1e-2, "run.device": "cpu"}  # fmt: skip
    cfg = ludus.config("apex-dqn", "CartPole-v1", preset="none", **settings)
    loop, _ = build_loop(cfg, registry.make(cfg.algo), RunDir(tmp_path))
    loop.barrier(0)
    while loop.learner.updates < 30:
        loop.iterate()
    chunks, add = [], loop.store.add
    loop.store.add = lambda chunk: (chunks.append(chunk), add(chunk))
    loop.iterate()
    store = loop.store
    rows = chunks[0].rows.reward.shape[0]
    last = (int(store.ring.head[0]) - rows - 2 + np.arange(rows)) * 4  # their windows end here
    slots = torch.from_numpy((last[:, None] + np.arange(4)).reshape(-1) % store.ring.layout.slots)
    batch = store.view.gather(store.ring.lift(slots))
    ctx = Ctx(torch.Generator(), loop.fleet.spec)
    with torch.no_grad():
        acted, now = (
            loop.learner.algorithm.loss(net, batch, ctx).priority.view(rows, 4)
            for net in (loop.fleet.net, loop.learner.net)
        )
    loop.fleet.close()
    torch.testing.assert_close(chunks[0].priority[:rows], acted, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(acted, now, atol=1e-4), "the learner has moved on"


def test_an_evaluation_computes_none(monkeypatch) -> None:
    scene = Scene(HEADS["scalar"])
    scene.close()
    monkeypatch.setattr(priorities.FirstPriorities, "of", None)
    env = EnvConfig(id="CartPole-v1", max_episode_steps=20)
    result = evaluate_policy(scene.algorithm, scene.learner.net, env, episodes=3, seed=1)
    assert len(result.scores) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_is_not_finite_counts_as_the_largest(kind) -> None:
    sampler = Prioritized(alpha=1.0, epsilon=0.0, initial="actor")
    algorithm = registry.make(tiny("apex-dqn", "CartPole-v1", "n_step=1").algo)
    plan = Plan(algorithm.plan.view, sampler, 4, chunk=8, capacity=100)
    store = replay_of(kind, plan, spec=LINE, columns=1)
    rows = rows_of(0, [1.0, 1.0, 1.0, 1.0])
    said = torch.tensor([0.5, math.nan, 2.0, math.inf])[:, None]
    store.add(Chunk(rows, priority=said))
    leaves = store.sampler.state()[0]["leaves"]
    assert leaves[leaves > 0].tolist() == [0.5, 1.0, 2.0, 1.0]


def test_a_fleet_that_forgets_them_is_reported() -> None:
    scene = Scene(HEADS["scalar"])
    chunk = scene.collect(4)
    scene.close()
    with pytest.raises(ValueError, match="priorities"):
        scene.store.add(chunk._replace(priority=None))


def test_sequences_have_none_yet() -> None:
    with pytest.raises(LudusError, match="Sequence"):
        Plan(Sequence(4, 2), Prioritized(initial="actor"), capacity=100)


@pytest.mark.parametrize("name", ["apex-dqn", "apex-rainbow", "apex-rainbow-iqn"])
def test_captured_they_are_the_same(tmp_path, name) -> None:
    """With graphs (without a GPU: the function called again) and without: the same weights, also
    where the loss draws (noise, taus) inside the graph."""
    settings = {"algo.torso": {"kind": "mlp", "hidden": [16]}, "algo.warmup": 64, "algo.batch": 16,
                "algo.capacity": 2000, "algo.chunk": 4, "env.num": 4, "run.capture": "on",
                "run.steps": 100_000}  # fmt: skip
    weights, launched = [], []
    for captured in (True, False):
        cfg = ludus.config(name, "CartPole-v1", **settings)
        loop, _ = build_loop(cfg, registry.make(cfg.algo), RunDir(tmp_path / str(captured)))
        loop.barrier(0)
        valuer = loop.fleet.collector.priorities
        assert valuer.captured and valuer.must_capture
        valuer.captured = captured
        while loop.learner.updates < 30:
            loop.iterate()
        launched.append(valuer._graph)
        weights.append([p.detach().cpu() for p in loop.learner.net.parameters()])
        loop.close()
    assert launched[0] is not None and launched[1] is None
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)


def broken(*_: object, **__: object) -> None:
    raise priorities.CaptureError("it waits")


def test_what_cannot_be_captured_is_valued_eagerly_and_reported(monkeypatch) -> None:
    plain, other = Scene(), Scene(runner=DeviceRunner)
    expected = plain.collect(4).priority
    monkeypatch.setattr(priorities, "Graph", broken)
    collector = other.collectors[0]
    before = collector.mode
    assert torch.equal(other.collect(4).priority, expected) and not collector.priorities.captured
    assert collector.mode == f"{before}, first priorities eager: it waits"
    assert collector.runner.captured, "acting is another graph"
    plain.close()
    other.close()


def test_capture_on_refuses_what_cannot_be_valued_by_a_graph(monkeypatch) -> None:
    scene = Scene(runner=functools.partial(DeviceRunner, must_capture=True))
    monkeypatch.setattr(priorities, "Graph", broken)
    with pytest.raises(LudusError, match="E104") as caught:
        scene.collect(4)
    scene.close()
    assert "first priorities cannot be captured: it waits" in caught.value.what


def test_the_time_of_their_graph_counts(monkeypatch) -> None:
    scene = Scene(runner=DeviceRunner)
    collector, real = scene.collectors[0], priorities.Graph

    def slow(*words, **options):
        made = real(*words, **options)
        made.seconds = 100.0
        return made

    monkeypatch.setattr(priorities, "Graph", slow)
    scene.collect(4)
    scene.close()
    assert collector.priorities.capture_seconds == 100.0
    assert collector.capture_seconds == collector.runner.capture_seconds + 100.0
