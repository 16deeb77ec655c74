"""Actors and an evaluator with a GPU: what no CPU can show."""

from __future__ import annotations

import os
import signal
import time
from types import SimpleNamespace

import pytest
import torch

import ludus
from ludus import registry
from ludus.algos.dqn import DQN
from ludus.envs.make import probe_spec
from ludus.errors import LudusError
from ludus.evals.evaluate import evaluate_policy
from ludus.fleets.processes.transport import WeightsBoard, weights_of
from ludus.process.fork_server import process_context
from ludus.run.build import build_loop
from ludus.run.live_evaluation import LiveEvaluator
from ludus.track.run_dir.rundir import RunDir
from ludus.types import tree_leaves
from tests.contract.tiny import tiny
from tests.learn import test_captured
from tests.run.test_live_evaluation import Reports
from tests.skips import needs_gpu

pytestmark = needs_gpu
GPU = {"run.device": "cuda", "actor.device": "cuda", "run.actors": 2, "env.num": 2}
FIELDS = ("obs", "action", "reward", "discount", "last", "first", "mask")


class OnGpu(DQN):
    """A step of one slot is the learner's own question."""

    def act(self, net, step, *words):
        if len(step.first) > 1 and not step.first.is_cuda:
            raise RuntimeError("not on the GPU")
        return super().act(net, step, *words)


class Looks(OnGpu):
    """Waits for a number, which no capture allows."""

    def act(self, net, step, *words):
        if len(step.first) > 1:
            step.first.sum().item()
        return super().act(net, step, *words)


class Exact(OnGpu):
    def act(self, net, step, *words):
        if len(step.first) > 1 and torch.backends.cudnn.allow_tf32:
            raise RuntimeError("rounded to TF32")
        return super().act(net, step, *words)


def loop_of(tmp_path, name, fleet="processes", kind=None, **more):
    settings = {**test_captured.KINDS[name], **GPU, "run.fleet": fleet, **more}
    cfg = ludus.config(name.split()[0], "CartPole-v1", **settings)
    algorithm = registry.make(cfg.algo)
    loop, _ = build_loop(cfg, kind(algorithm.cfg) if kind else algorithm, RunDir(tmp_path))
    loop.barrier(0)
    return loop


def until(loop, done, seconds=120):
    deadline = time.monotonic() + seconds
    while not done():
        loop.iterate()
        assert time.monotonic() < deadline


def worked(loop):
    return all(m.worked for m in loop.fleet.members)


def copied(chunk):
    rows = chunk.rows
    named = {k: getattr(rows, k) for k in FIELDS}
    named |= {f"extras.{k}": v for k, v in rows.extras.items()}
    named |= {f"state.{i}": x for i, x in enumerate(tree_leaves(rows.state))}
    if chunk.priority is not None:
        named["priority"] = chunk.priority
    return {k: v.detach().cpu().clone() for k, v in named.items()}


@pytest.mark.parametrize(
    "name", ["rainbow", "apex-dqn", "apex-rainbow", "apex-rainbow-iqn", "impala lstm"]
)
def test_captured_actors_give_the_rows_of_one_process(tmp_path, name):
    """With two GPUs this also shows that actor 1 waits for its own device."""
    seen = []
    options = {"run.capture": "on", "run.overlap": "off", "run.exact": "on"}
    for fleet in ("inline", "processes"):
        loop = loop_of(tmp_path / fleet, name, fleet, **options)
        net, rng, rows = loop.learner.net, torch.Generator().manual_seed(1), []
        for number in range(8):
            loop.fleet.publish(net, number)
            rows += [copied(g.chunk) for g in loop.fleet.poll(loop.values.at(50_000))]
            with torch.no_grad():  # new weights have to reach the actors' graphs
                for p in net.parameters():
                    p.add_(0.1 * torch.randn(p.shape, generator=rng).to(p.device))
        seen.append(rows)
        acting, spent = loop.fleet.acting, loop.fleet.capture_seconds
        loop.close()
    assert acting == "in 2 processes, lockstep, captured" and spent > 0
    assert len(seen[0]) == 16
    for a, b in zip(*seen, strict=True):
        assert a.keys() == b.keys()
        for key in a:
            torch.testing.assert_close(a[key], b[key], rtol=1e-4, atol=1e-4, msg=key)


@pytest.mark.parametrize(
    ("run", "actor", "capture"),
    [
        ("cuda", "cuda", "auto"),
        ("cuda", "cuda", "off"),
        ("cuda", "auto", "auto"),
        ("cuda", "auto", "off"),
        ("cpu", "cuda", "auto"),
    ],
)
def test_free_actors_and_a_learner_wherever_they_are(tmp_path, run, actor, capture):
    where = {"run.device": run, "actor.device": actor, "run.capture": capture}
    loop = loop_of(tmp_path, "apex-rainbow", **where)
    until(loop, lambda: loop.learner.updates >= 60 and worked(loop))
    how = "" if actor == "auto" else ", captured" if capture == "auto" else ", eager"
    assert loop.fleet.acting == f"in 2 processes, free{how}"
    modes = {"auto": "captured", "off": "eager: capture=off"}
    assert loop.updates.mode == ("eager" if run == "cpu" else modes[capture])
    leaves = loop.store.sampler.state()[0]["leaves"]
    assert leaves.isfinite().all() and len(leaves[leaves > 0].unique()) > 10
    assert all(p.isfinite().all() for p in loop.learner.net.parameters())
    assert loop.fleet.metrics()["restarts"] == 0
    loop.close()


def test_a_killed_actor_captures_again(tmp_path):
    loop = loop_of(tmp_path, "apex-dqn")
    until(loop, lambda: worked(loop))
    victim = loop.fleet.members[0]
    os.kill(victim.process.pid, signal.SIGKILL)
    until(loop, lambda: loop.fleet.members[0] is not victim and loop.fleet.members[0].worked)
    assert loop.fleet.restarts.count == 1 and loop.fleet.acting.endswith("free, captured")
    loop.close()


@pytest.mark.parametrize("capture", ["on", "auto"])
def test_what_an_actor_cannot_capture(tmp_path, capture):
    loop = loop_of(tmp_path, "dqn", kind=Looks, **{"run.capture": capture})
    if capture == "on":
        with pytest.raises(LudusError, match="E104") as caught:
            until(loop, lambda: False)
        assert "acting cannot be captured" in caught.value.what
        assert "capturing" in caught.value.what
    else:
        until(loop, lambda: loop.fleet.fell_back and worked(loop))
        assert loop.fleet.acting.startswith("in 2 processes, free, some eager: ")
        assert "capturing" in loop.fleet.acting and len(loop.fleet.fell_back) == 1
        assert loop.fleet.restarts.count == 0
    loop.close()


def test_fp32_means_it_in_actors(tmp_path):
    loop = loop_of(tmp_path, "dqn", kind=Exact, **{"run.precision": "fp32"})
    until(loop, lambda: worked(loop))
    assert loop.fleet.restarts.count == 0, "one that rounds fails"
    loop.close()


@pytest.mark.parametrize("name", ["apex-dqn", "apex-rainbow", "apex-rainbow-iqn"])
def test_first_priorities_by_a_graph_are_those_without(tmp_path, name):
    options = {"run.overlap": "off", "env.stack": 2}
    loops = [test_captured.loop_of(tmp_path, name, "cuda", **options) for _ in range(2)]
    valuers = [loop.fleet.collector.priorities for loop in loops]
    valuers[1].captured = False
    before = loops[0].store.ring.layout.span - 1
    for steps in (2, 2, 5, 1, 5, 3):  # longer: another ring, another graph
        one, two = (
            loop.fleet.collector.collect(
                loop.learner.net, steps, loop.values.at(50_000)
            ).chunk.priority
            for loop in loops
        )
        assert one.is_cuda and one.shape == (before + steps, 4)
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    assert valuers[0]._graph is not None and valuers[1]._graph is None
    assert loops[0].fleet.acting == "captured"
    for loop in loops:
        loop.close()


class Heard(Reports):
    """A recorder whose writer keeps the evaluations; its own `evaluation` is the screen's text."""

    def __init__(self):
        super().__init__()
        self.got = []
        self.writer = SimpleNamespace(evaluation=self.keep, event=self.event)

    def keep(self, step, updates, scores, lengths, **_):
        self.got.append((scores, lengths))
        return {"mean": 0.0, "std": 0.0}


def test_a_live_evaluator_on_a_gpu_plays_the_learners_weights():
    cfg = tiny("dqn", "CartPole-v1", "eval.live=true", "eval.episodes=3", "eval.device=cuda")
    algorithm, result = OnGpu(registry.make(cfg.algo).cfg), Heard()
    net = algorithm.build(probe_spec(cfg.env)).to("cuda")
    evaluator = LiveEvaluator(cfg, algorithm, net, result)
    deadline = time.monotonic() + 120
    for number in (1, 2):
        while len(result.got) < number:
            evaluator.tend(100 * number, number)
            time.sleep(0.01)
            assert not evaluator.failures, result.said
            assert time.monotonic() < deadline
        want = evaluate_policy(algorithm, net, cfg.env, episodes=3, seed=cfg.run.seed)
        assert result.got[-1] == (want.scores, want.lengths)
        with torch.no_grad():
            for p in net.parameters():
                p.neg_()
    evaluator.close()


def test_weights_handed_out_between_iterations_are_whole(tmp_path):
    """Updates run on a stream of their own; the copy must come after them."""
    loop = test_captured.loop_of(tmp_path, "dqn", "cuda")
    board = WeightsBoard(loop.learner.net, process_context("ludus.envs.make"))
    there = loop.learner.algorithm.build(loop.fleet.spec)
    for number in range(60):
        loop.iterate()
        board.publish(loop.learner.net, number)
        assert board.pull(there) == (number, number)
        torch.cuda.synchronize()
        pairs = zip(weights_of(there), weights_of(loop.learner.net), strict=True)
        assert all(torch.equal(a, b.cpu()) for a, b in pairs)
    assert loop.learner.updates > 20
    loop.close()
