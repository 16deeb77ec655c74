"""Actors on Ray: equal to one process and to actor processes in lockstep, and alive when free."""

from __future__ import annotations

import os

import pytest
import torch

from tests.fleets.test_processes import KINDS, SMALL, loop_of, train

pytestmark = pytest.mark.usefixtures("ray_here")
KINDS["sac"] = {
    **SMALL, "algo.warmup": 64,
    "algo.batch": 16, "algo.capacity": 2000, "algo.replay_ratio": 4.0,
}  # fmt: skip


def free(tmp_path, **more):
    return loop_of(tmp_path, "dqn", "ray", **{"run.exact": "off", **more})


@pytest.mark.parametrize("name", ["dqn", "ppo", "impala", "sac"])
def test_lockstep_is_equal_bit_for_bit_on_every_fleet(tmp_path, name):
    """Rows of two actors, 200 updates."""
    env = "Pendulum-v1" if name == "sac" else "CartPole-v1"
    weights = {}
    for fleet in ("inline", "processes", "ray"):
        loop = loop_of(tmp_path / fleet, name, fleet, env=env)
        weights[fleet], processes = train(loop, 200)
        assert loop.learner.updates >= 200
        loop.close()
        assert len(processes) == (1 if fleet == "inline" else 2)
        assert (os.getpid() in processes) == (fleet == "inline")
    assert torch.equal(weights["inline"], weights["processes"])
    assert torch.equal(weights["inline"], weights["ray"])
