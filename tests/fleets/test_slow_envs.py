"""Many slow environments, stepped one after another: each step of each is a heartbeat."""

from __future__ import annotations

import numpy as np
import pytest

from ludus import registry
from ludus.envs.backends import serial
from ludus.envs.make import probe_spec
from ludus.evals import evaluate
from ludus.fleets.health import failed_at_start
from ludus.fleets.processes.actor import Actor, Job, Shared
from ludus.process.supervisor import hang_cause
from ludus.run import live_evaluation as live_eval
from tests.contract.tiny import tiny
from tests.fleets.test_hogwild import built
from tests.fleets.test_processes import free
from tests.run.test_live_evaluation import Asking


@pytest.fixture(autouse=True)
def slow(monkeypatch):
    """A second goes by whenever somebody looks."""
    now = [0.0]

    def later() -> float:
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr(serial, "monotonic", later)


def watched(backend, newest):
    """The newest heartbeat at the beginning of each step."""
    seen = []

    def noting(step):
        def stepped(action):
            seen.append(float(newest()))
            return step(action)

        return stepped

    backend._steps = [noting(step) for step in backend._steps]
    return seen


def test_of_an_actor(tmp_path):
    loop = free(tmp_path, **{"env.num": 4, "env.native": False})
    fleet, member = loop.fleet, loop.fleet.members[0]
    actor = Actor(
        Job(member.job, False, 0), Shared(fleet.board, member.mailbox, fleet.control), None
    )
    actor.beats = signs = np.zeros(2)  # its process has the fleet's
    loop.close()
    actor.core.barrier(0)
    seen = watched(actor.core.collector.envs.backend, lambda: signs[0])
    actor.core.collector.collect(actor.core.net, 2, actor.core.values)
    actor.core.close()
    assert len(seen) == len(set(seen)) == 8


def test_of_a_hogwild_worker(tmp_path):
    loop, made = built(tmp_path, "env.num=4", "env.native=false", "t_max=2")
    seen = watched(made[1].envs.backend, lambda: loop.fleet.board.beats[1])
    made[1].fragment()
    assert len(seen) == len(set(seen)) == 8


def test_of_the_live_evaluator(monkeypatch):
    cfg = tiny("dqn", "CartPole-v1", "env.native=false", "eval.live=true")
    algorithm, signs, seen = registry.make(cfg.algo), np.zeros(2), []
    net, make = algorithm.build(probe_spec(cfg.env)), evaluate.make_envs

    def made(*words, **more):
        envs = make(*words, **more)
        seen.append(watched(envs.backend, lambda: signs[0]))
        return envs

    class Board:
        def pull(self, net):
            return 0, 3

    class Never:
        def begin(self): ...

        def pause(self): ...

    monkeypatch.setattr(evaluate, "make_envs", made)
    monkeypatch.setattr(live_eval, "_net", lambda job: net)
    job = live_eval.Job(algorithm, cfg.env, 1, 1, 4, 1, 0.0, None, "cpu")
    with pytest.raises(EOFError):
        live_eval.evaluate(Asking(1), job, Board(), signs, Never())
    (steps,) = seen
    assert len(steps) == len(set(steps)) > 8


def test_the_error_for_a_slow_actor_names_the_setting_to_raise():
    error = failed_at_start(hang_cause(20.0, None, str), [3])
    assert "actor.hang_seconds" in error.fix and "run.fleet=inline" in error.fix
    assert "actor.hang_seconds" not in failed_at_start("a tooth broke", [3]).fix
