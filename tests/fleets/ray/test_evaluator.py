"""The live evaluator on a node of the cluster: results while training goes on, and its faults."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import ray
from ray import exceptions

from ludus import registry
from ludus.envs.make import probe_spec
from ludus.evals.evaluate import evaluate_policy
from ludus.fleets.ray import roles
from ludus.fleets.ray.weights import Weights, load_weights
from ludus.run import ray_evaluation
from ludus.run.live_evaluation import ATTEMPTS, LiveEvaluator
from ludus.run.ray_evaluation import ClusterEvaluator, Placed, RayEvaluator, evaluator_kind
from ludus.settings.sections import EVALUATOR_ROLE, RayConfig
from tests.contract.tiny import tiny
from tests.fleets.ray.test_ray import free
from tests.run.test_live_evaluation import Counting
from tests.started import survivors

pytestmark = pytest.mark.usefixtures("ray_here")
LIVE = {"eval.live": True, "eval.episodes": 2, "eval.every": 10, "actor.hang_seconds": 600}


class Scores(Counting):
    """Stands for a recorder; keeps scores, too."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = []

    def write_evaluation(self, step, updates, scores, lengths, spent, *, live):
        assert live and len(scores) == len(lengths) and spent > 0
        self.results.append((step, updates))
        self.scores.append(scores)


@pytest.fixture
def offer(monkeypatch):
    """The name of what the node offers once. (The node of these tests has no role.)"""
    names = ray.cluster_resources()
    name = next(n for n in names if n.startswith("node:") and "head" not in n)
    monkeypatch.setattr(ray_evaluation, "EVALUATOR_ROLE", name)
    return name


@pytest.fixture
def training(tmp_path, offer):
    """A run with actors on Ray; `iterate` tends the evaluator, too."""

    class Training:
        def __init__(self) -> None:
            self.loop = free(tmp_path, **LIVE)
            self.reports, self.learner = Scores(), self.loop.learner
            self.live = ClusterEvaluator(
                self.loop.fleet.cfg, self.learner.algorithm, self.learner.net, self.reports
            )

        def iterate_until(self, done):
            while not done():  # the time limit of every test ends it
                self.loop.iterate()
                self.live.tend(self.loop.step, self.learner.updates)

    one = Training()
    yield one
    one.live.close()
    one.loop.close()


class Other:
    """Takes the place of an evaluator."""

    def here(self):
        return True


def test_results_arrive_while_training_goes_on(training, monkeypatch):
    """Scores are those of the weights that the learner had at that step."""
    given, publish, at = {}, Weights.publish, []

    def watched(self, net, updates):
        publish(self, net, updates)
        if self is training.live.remote.weights:
            given[updates] = self.packed.copy()

    monkeypatch.setattr(Weights, "publish", watched)
    write = training.reports.write_evaluation

    def note(*words, **more):
        at.append(training.learner.updates)
        write(*words, **more)

    training.reports.write_evaluation = note
    training.iterate_until(lambda: len(training.reports.results) >= 2)
    (first, updates), (second, later) = training.reports.results[:2]
    assert second - first >= 10 and 0 < updates < later
    assert at[0] >= updates and at[1] >= later > updates, "the learner goes on"
    place = training.live.remote.place
    assert place.pid not in {os.getpid(), *(m.pid for m in training.loop.fleet.members)}
    assert training.live.here is None and any(
        "runs on this machine" in s for s in training.reports.said
    )
    cfg, algorithm = training.loop.fleet.cfg, training.learner.algorithm
    for number, scores in zip((updates, later), training.reports.scores, strict=False):
        net = algorithm.build(probe_spec(cfg.env))
        load_weights(net, given[number])
        again = evaluate_policy(
            algorithm, net, cfg.env, episodes=2, seed=cfg.run.seed, epsilon=cfg.eval.epsilon
        )
        assert again.scores == scores
    assert not np.array_equal(given[updates], given[later])
    training.live.finish()
    training.live.close()
    assert not survivors([place.pid])


def test_the_learner_does_not_wait(training):
    """The evaluator is stopped before it is asked, and continues after 100 more updates."""
    remote = training.live.remote
    training.iterate_until(lambda: remote.ready or remote.busy)
    training.iterate_until(lambda: remote.place is not None)
    os.kill(remote.place.pid, signal.SIGSTOP)
    training.iterate_until(lambda: remote.busy)
    known, asked = len(training.reports.results), remote.last_evaluated_update
    training.iterate_until(lambda: training.learner.updates >= asked + 100)
    assert remote.busy and len(training.reports.results) == known
    assert not remote.failures
    os.kill(remote.place.pid, signal.SIGCONT)
    training.iterate_until(lambda: len(training.reports.results) > known)
    assert training.reports.results[known][1] == asked, "the weights of then"


def test_a_killed_evaluator_is_replaced_and_then_given_up(training):
    remote, reports = training.live.remote, training.reports
    training.iterate_until(lambda: remote.busy)
    first = remote.place.pid
    os.kill(first, signal.SIGKILL)
    training.iterate_until(lambda: remote.failures == 1)
    assert "process exited" in reports.said[-1] and "a new one starts" in reports.said[-1]
    known = len(reports.results)
    training.iterate_until(lambda: len(reports.results) > known)
    assert remote.place.pid != first and remote.failures == 0
    remote.cfg = remote.cfg.model_copy(
        update={"eval": remote.cfg.eval.model_copy(update={"every": 10**9})}
    )
    training.iterate_until(lambda: not remote.busy)
    pids = set()
    for count in range(1, ATTEMPTS + 1):
        training.iterate_until(lambda: remote.ready)
        pids.add(remote.place.pid)
        os.kill(remote.place.pid, signal.SIGKILL)
        training.iterate_until(lambda n=count: remote.failures == n)
    assert len(pids) == ATTEMPTS and "goes on without one" in reports.said[-1]
    before = training.learner.updates
    training.iterate_until(lambda: training.learner.updates > before + 5)
    assert training.live.here is None and not survivors(pids)


@pytest.mark.accept(88)
def test_training_starts_without_an_evaluator_and_one_joins_late(training, offer, monkeypatch):
    """While no node offers itself, a process evaluates; nobody waits for either."""
    training.live.close()
    other = ray.remote(num_cpus=0, resources={offer: 1})(Other).remote()
    ray.get(other.here.remote())
    cfg, learner = training.loop.fleet.cfg, training.learner
    training.live = live = ClusterEvaluator(cfg, learner.algorithm, learner.net, training.reports)
    training.iterate_until(lambda: learner.updates > 20)
    assert live.remote.place is None and live.here is None and not training.reports.results
    monkeypatch.setattr(ray_evaluation, "PLACE_SECONDS", -1.0)
    training.iterate_until(lambda: training.reports.results)
    here = live.here
    assert live.remote.place is None and here.last_evaluated_update > 0
    ray.kill(other)
    training.iterate_until(lambda: live.here is None)
    last = here.last_evaluated_update
    assert live.remote.place is not None and not here.child.process.is_alive()
    training.iterate_until(lambda: training.reports.results[-1][1] > last)
    steps = [step for step, _ in training.reports.results]
    assert steps == sorted(steps) and not live.remote.failures


def alone(*words, env="CartPole-v1"):
    """A remote evaluator without a training."""
    cfg = tiny("dqn", env, "eval.live=true", *words)
    algorithm = registry.make(cfg.algo)
    return RayEvaluator(cfg, algorithm, algorithm.build(probe_spec(cfg.env)), Scores())


@pytest.mark.parametrize("how", ["Sleeper", "Dying"])
def test_one_that_hangs_or_raises_is_replaced(offer, how):
    words = {"Sleeper": ("env.args={after: 50}", "actor.hang_seconds=1"), "Dying": ()}[how]
    live = alone("eval.episodes=200", *words, env=f"tests.run.sleepers:{how}")
    tended, first = 0, None
    while not live.failures:
        tended += 1
        live.tend(tended, tended)
        first = live.place or first
    cause = {"Sleeper": "no heartbeat for 1 s", "Dying": "a tooth broke"}[how]
    assert cause in live.written.said[-1] and "a new one starts" in live.written.said[-1]
    while live.place is None:
        live.tend(0, -1)
    assert live.place.pid != first.pid and not survivors([first.pid])
    live.close()


def test_a_call_that_was_lost_on_the_way_is_repeated(offer, monkeypatch):
    live, get, lost = alone("eval.episodes=2"), ray.get, []

    def unreliable(reference):
        answer = get(reference)
        if not lost and isinstance(answer, list) and answer[0][0] == "result":
            lost.append(answer)
            raise exceptions.ActorUnavailableError("the connection broke", None)
        return answer

    monkeypatch.setattr(ray_evaluation.ray, "get", unreliable)
    while not live.written.results:
        live.tend(7, 3)
    assert lost and live.written.results == [(7, 3)] and not live.failures
    live.close()


def test_another_version_of_ludus_is_a_failure_and_not_the_end(offer):
    live = alone()
    assert not live._handle_message("placed", Placed(1, "elsewhere", "0.0.1", "node"))
    assert "Ludus 0.0.1" in live.written.said[-1] and live.failures == 1
    live.close()


def test_where_it_runs_depends_on_the_cluster(monkeypatch):
    cfg = tiny("dqn", "CartPole-v1", "fleet=ray", "eval.live=true")
    assert evaluator_kind(cfg) is LiveEvaluator, "no other machine can join"
    joined = tiny("dqn", "CartPole-v1", "fleet=ray", "ray.address=10.0.0.1:6379")
    assert evaluator_kind(joined) is ClusterEvaluator
    monkeypatch.setattr(ray_evaluation, "EVALUATOR_ROLE", "CPU")
    assert evaluator_kind(cfg) is ClusterEvaluator


def test_the_node_of_an_evaluator_takes_nothing_else(monkeypatch):
    """No cores, so that no actor finds room there."""
    monkeypatch.setattr(roles, "joining_values", lambda cfg: {})
    monkeypatch.setattr(roles, "check_cluster", lambda cfg, values: None)
    node, _ = roles.joining(RayConfig(address="10.0.0.1:6379"), 1, role=EVALUATOR_ROLE)
    assert "--num-cpus=0" in node.words and f'--resources={{"{EVALUATOR_ROLE}": 1}}' in node.words
    node, _ = roles.joining(RayConfig(address="10.0.0.1:6379"), 2)
    assert "--num-cpus=2" in node.words and '--resources={"ludus-actor": 2}' in node.words
