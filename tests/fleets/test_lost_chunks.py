"""After a chunk was lost: what is learned from is what was acted on, memory and frames included."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from ludus import registry
from ludus.collect.collector import Collector
from ludus.collect.device_runner import DeviceRunner
from ludus.compute.probe_act import extras_of
from ludus.contract import Values
from ludus.envs.make import make_envs
from ludus.fleets.processes.transport import Mailbox
from ludus.learn.learner import Learner
from ludus.process.fork_server import process_context
from ludus.replay.chunk_layout import ChunkLayout
from ludus.replay.unrolls.assembler import Assembler
from tests.contract.tiny import tiny

LOST = (1, 2, 5)
MEMORY = ("recurrent={hidden: 8}",)


def never_waits():
    raise AssertionError("there is room")


def posted(box, chunk):
    """As the learner gets it from an actor's process."""
    place = box.put(chunk, never_waits)
    got = box.claim(place, chunk.sequence, 0, copy=True)
    box.release(place)
    return got


@pytest.mark.parametrize("settings", [(), MEMORY, ("feed_previous=true",)], ids=str)
@pytest.mark.parametrize("seen", ["ludus/IdentityPixels-v0 env.stack=4", "CartPole-v1"])
@pytest.mark.parametrize(
    ("options", "env"),
    [
        ({}, ()),
        ({}, ("env.num=4", "env.groups=2")),
        ({"pipelined": True}, ()),
        ({"runner": partial(DeviceRunner, captured=False)}, ()),
    ],
    ids=["plain", "groups", "pipelined", "device"],
)
def test_pi_equals_mu_for_the_weights_that_acted(settings, seen, options, env):
    """The inputs of the loss are those of acting, so that the ratio of the two policies is 1."""
    words = ("unroll=4", "actor.overflow=latest", *settings, *env)
    cfg = tiny("impala", *seen.split(), *words)
    algorithm = registry.make(cfg.algo)
    envs = make_envs(cfg.env, seed=3)
    it, learner = (
        Collector(algorithm, envs, seed=3, **options),
        Learner(algorithm, envs.spec, seed=3),
    )
    it.runner.keeps_before = True
    values, n = Values(algorithm.plan, 1000).at(0), cfg.env.num_envs
    with torch.no_grad():  # else the first policy hardly looks at what it sees
        for weights in learner.net.parameters():
            weights.mul_(3)
    it.barrier(0)
    state = algorithm.begin(n, it.ctx)
    extras = extras_of(algorithm, learner.net, envs.spec)
    layout = ChunkLayout.of(envs.spec, extras, state, 4, n, before=True)
    box, assembler = (
        Mailbox(layout, 2, "latest", process_context("ludus.envs.make")),
        Assembler(envs.spec, 4),
    )
    compared = 0
    for number in range(9):
        chunk = it.collect(learner.net, 4, values).chunk
        if number in LOST:
            continue
        (traj,) = assembler.add(posted(box, chunk))
        with torch.no_grad():
            rho = algorithm.terms(learner.net, traj, learner.ctx).rho[traj.mask]
        torch.testing.assert_close(rho, torch.ones_like(rho), atol=1e-4, rtol=0)
        compared += len(rho) if not chunk.rows.first[0].all() else 0
    it.close()
    assert compared > 8
