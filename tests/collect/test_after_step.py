"""`after_step`: extras of a row from its own true next observation, on every runner."""

from __future__ import annotations

import pytest
import torch

from ludus import registry
from ludus.collect.collector import Collector
from ludus.collect.device_runner import choose_runner
from ludus.collect.policy_runner import HostRunner
from ludus.compute.probe_act import extras_of
from ludus.contract import Values
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.learn.learner import Learner
from ludus.nets.normalize import Normalizer
from ludus.types import Rows
from tests.contract.curious import Config, Curious
from tests.contract.tiny import tiny

RUNNERS = {
    "host": HostRunner,
    "device": choose_runner("meta", captured=False, must_capture=False),
    "captured": choose_runner("cpu", captured=True, must_capture=True),
}
PIXELS = {"id": "ludus/IdentityPixels-v0", "stack": 3}


def collected(runner="host", *, chunks=(4, 1, 1, 5, 1), pipelined=False, algorithm=None, **env):
    algorithm = algorithm or Curious(Config())
    settings = {"id": "CartPole-v1", "num": 3, **env}
    envs = make_envs(EnvConfig(**settings), seed=3)
    made = Collector(algorithm, envs, seed=3, pipelined=pipelined, runner=RUNNERS[runner])
    net = Learner(algorithm, envs.spec, seed=3).net
    made.barrier(0)
    values = Values(algorithm.plan, 1000).at(0)
    got = [made.collect(net, rows, values) for rows in chunks]
    made.close()
    assert all(x is not None for x in got)
    return got


def check(rows: Rows) -> int:
    """Every row that counts has the extras of its own transition. Returns how many do."""
    real, later = rows.mask, rows.extras
    total = rows.obs.flatten(2).float().sum(-1)  # [T+1, N]
    assert torch.equal(later["reached"][real], total[1:][real])
    assert torch.equal(later["left"][real], total[:-1][real])
    assert torch.equal(later["paid"][real], rows.reward[real] + 1)
    assert torch.equal(later["ended"][real], rows.last[real])
    return int(real.sum())


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("runner", RUNNERS)
def test_every_row_has_the_reward_of_its_own_next_observation(runner, groups, pipelined) -> None:
    """Also the last row of a chunk and the only row of an episode."""
    sizes = [(3,) * 5, (1,) * 15] if pipelined else [(4, 1, 1, 5, 4)] * 2
    for limit, chunks in zip((1, 3), sizes, strict=True):
        got = collected(
            runner, chunks=chunks, pipelined=pipelined, groups=groups, max_episode_steps=limit
        )
        ends = sum(int(x.chunk.rows.last.sum()) for x in got)
        assert sum(check(x.chunk.rows) for x in got) >= 18 and ends >= 9
        if limit == 1:  # an episode of one step has an empty memory: nothing is near
            for x in got:
                rows = x.chunk.rows
                assert (rows.extras["novelty"][rows.mask] == 1e3).all()


@pytest.mark.parametrize("env", [{}, PIXELS, {"max_episode_steps": 2, "groups": 2}])
def test_all_runners_give_the_same_rows(env) -> None:
    host, *others = (collected(runner, **env) for runner in RUNNERS)
    for other in others:
        for a, b in zip(host, other, strict=True):
            one, two = a.chunk.rows, b.chunk.rows
            assert torch.equal(one.action, two.action) and torch.equal(one.state, two.state)
            assert one.extras.keys() == two.extras.keys()
            for name, value in one.extras.items():
                assert torch.equal(value[one.mask], two.extras[name][one.mask]), name
            assert a.episodes == b.episodes


def test_stacks_are_those_of_both_observations() -> None:
    """`reached` of a row is `left` of the next within an episode: stacks of three frames."""
    rows = collected(chunks=(30,), **PIXELS)[0].chunk.rows
    inside = rows.mask[:-1] & rows.mask[1:] & ~rows.last[:-1]
    assert inside.sum() > 10
    left, reached = rows.extras["left"], rows.extras["reached"]
    assert torch.equal(reached[:-1][inside], left[1:][inside])


@pytest.mark.parametrize("runner", RUNNERS)
def test_it_sees_normalised_observations_as_act_does(runner) -> None:
    algorithm = Curious(Config())
    envs = make_envs(EnvConfig(id="CartPole-v1", num=3, max_episode_steps=3), seed=3)
    net = Learner(algorithm, envs.spec, seed=3).net
    net["normalizer"] = scaled = Normalizer(envs.spec, 3, reward=False)
    scaled._merge("0", torch.randn(50, 4, generator=torch.Generator().manual_seed(1)) - 5, None)
    made = Collector(algorithm, envs, seed=3, runner=RUNNERS[runner])
    made.barrier(0)
    rows = made.collect(net, 8, Values(algorithm.plan, 1000).at(0)).chunk.rows
    made.close()
    total, real = scaled.obs(rows.obs).sum(-1), rows.mask
    torch.testing.assert_close(rows.extras["left"][real], total[:-1][real])
    torch.testing.assert_close(rows.extras["reached"][real], total[1:][real])


def test_what_cannot_be_captured_falls_back_with_its_reason() -> None:
    class Twice(Curious):
        calls = 0

        def after_step(self, *args):
            Twice.calls += 1
            if Twice.calls == 2:
                raise RuntimeError("no second call")
            return super().after_step(*args)

    envs = make_envs(EnvConfig(id="CartPole-v1", num=2), seed=0)
    runner = choose_runner("cpu", captured=True, must_capture=False)
    algorithm = Twice(Config())
    it = Collector(algorithm, envs, seed=0, runner=runner)
    it.barrier(0)
    net = Learner(algorithm, envs.spec, seed=0).net
    rows = it.collect(net, 6, Values(algorithm.plan, 10).at(0)).chunk.rows
    it.close()
    assert it.mode == "eager: RuntimeError: no second call"
    assert check(rows) == 12
    want = collected("host", chunks=(6,), num=2)[0].chunk.rows
    assert want.action.shape == rows.action.shape


def test_the_probe_finds_the_extras_of_both_hooks() -> None:
    algorithm = Curious(Config())
    envs = make_envs(EnvConfig(id="CartPole-v1", num=1), seed=0)
    found = extras_of(algorithm, Learner(algorithm, envs.spec, seed=0).net, envs.spec)
    assert found["arm"] == ((), torch.int64) and found["novelty"] == ((), torch.float32)
    assert found["ended"] == ((), torch.bool) and len(found) == 6
    envs.close()


def test_others_are_never_asked(monkeypatch) -> None:
    """An algorithm without the hook pays nothing for it."""

    def refuse(*_):
        raise AssertionError("called")

    monkeypatch.setattr(HostRunner, "follow", refuse)
    algorithm = registry.make(tiny("dqn", "CartPole-v1").algo)
    monkeypatch.setattr("ludus.contract.Defaults.after_step", refuse)
    assert check_nothing(collected(algorithm=algorithm))
    with pytest.raises(AssertionError, match="called"):
        collected()


def check_nothing(got) -> bool:
    return all(not x.chunk.rows.extras for x in got)
