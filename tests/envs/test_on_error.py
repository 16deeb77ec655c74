"""env.on_error=restart: an environment that fails is made again, and nothing wrong is learned."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from ludus.contract import NStep, Plan, Uniform
from ludus.envs.backends import failures
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs, probe_spec
from ludus.errors import LudusError
from ludus.replay.store import build_store
from ludus.replay.unrolls.assembler import Assembler
from ludus.seeding import env_seed
from ludus.types import Chunk, Rows

FLAKY = "tests.run.sleepers:Flaky"


GOOD, BAD = (env_seed(1, "env", i, 0) for i in range(2))


def flaky(**settings) -> EnvConfig:
    """The second environment fails, at its fourth step."""
    args = {"bad": BAD} | settings.pop("args", {})
    return EnvConfig(id=FLAKY, args=args, num=2, on_error="restart", **settings)


def rows_of(envs, count):
    """Answers to `count` rows of actions, the first observations before them."""
    envs.reset(0)
    found = [envs.observe(0)]
    for _ in range(count):
        envs.send(np.zeros(envs.num, np.int64))
        found.append(envs.recv())
    return found


def as_rows(found) -> Rows:
    def column(name):
        return torch.from_numpy(np.stack([getattr(row, name) for row in found]))

    after = {n: column(n)[1:] for n in ("reward", "raw_reward", "discount", "last", "mask")}
    action = torch.zeros(after["reward"].shape, dtype=torch.int64)
    return Rows(obs=column("obs"), action=action, first=column("first"), **after)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_row_of_a_failure_is_a_dummy_and_an_episode_begins(workers):
    with make_envs(flaky(workers=workers), seed=1) as envs:
        found = rows_of(envs, 6)
        seed = envs.seeds[1]
    rows = as_rows(found)
    steps = rows.obs[:, :, 0]
    assert steps[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6], "the other one goes on"
    assert steps[:, 1].tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert rows.mask[:, 1].tolist() == [True, True, True, False, True, True]
    assert rows.first[:, 1].tolist() == [True, False, False, False, True, False, False]
    assert not rows.last.any() and (rows.discount == 1).all() and rows.mask[:, 0].all()
    assert rows.reward[:, 1].tolist() == [1, 1, 1, 0, 1, 1]
    (cut,) = [e for row in found for e in row.episodes]
    assert (cut.env, cut.score, cut.length, cut.end, cut.whole) == (1, 3.0, 3, "error", False)
    head, _, trace = cut.error.partition("\n")
    assert "RuntimeError in step(): a tooth broke" in head and f"seed {seed}" in head
    assert "environment 1 of" in head and "step 3 of its episode" in head
    assert "Traceback" in trace and "sleepers.py" in trace


def test_a_failure_in_reset_costs_nothing_but_the_reset():
    cfg = flaky(args={"at": 0, "length": 2})  # in the reset of its second episode
    with make_envs(cfg, seed=1) as envs:
        found = rows_of(envs, 5)
    rows = as_rows(found)
    assert rows.obs[:, 1, 0].tolist() == rows.obs[:, 0, 0].tolist() == [0, 1, 2, 0, 1, 2]
    assert rows.mask[:, 1].tolist() == [True, True, False, True, True]
    ends = [(e.env, e.length, e.end) for row in found for e in row.episodes]
    assert ends == [(0, 2, "terminated"), (1, 2, "terminated"), (1, 0, "error"),
                    (0, 2, "terminated"), (1, 2, "terminated")]  # fmt: skip


@pytest.mark.parametrize("how", ["exit", "hang"])
def test_a_worker_that_dies_or_hangs_is_started_again(how):
    args = {"how": how}
    with make_envs(flaky(workers=2, args=args, timeout=2.0), seed=1) as envs:
        found = rows_of(envs, 6)
    rows = as_rows(found)
    assert rows.obs[:, 1, 0].tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert rows.mask[:, 1].tolist() == [True, True, True, False, True, True]
    (cut,) = [e for row in found for e in row.episodes]
    assert cut.end == "error" and cut.length == 3
    assert ("exit code 7" if how == "exit" else "no answer to step") in cut.error


@pytest.mark.parametrize("workers", [0, 1])
def test_too_many_failures_in_a_row_end_it_with_their_cause(workers):
    cfg = flaky(args={"good": GOOD, "at": 2}, workers=workers)
    with make_envs(cfg, seed=1) as envs, pytest.raises(LudusError) as caught:
        rows_of(envs, 100)
    assert caught.value.code == "E205" and caught.value.exit_code == 3
    assert "a tooth broke" in caught.value.what and "6 times" in caught.value.what
    assert "a tooth broke" in str(caught.value.__cause__)


def test_whole_episodes_between_failures_are_enough():
    cfg = flaky(args={"good": GOOD, "at": 0, "length": 2})
    with make_envs(cfg, seed=1) as envs:
        found = rows_of(envs, 80)
    assert sum(e.end == "error" for row in found for e in row.episodes) > 10


def test_good_steps_between_failures_are_enough(monkeypatch):
    """Episodes may have no end."""
    monkeypatch.setattr(failures, "GOOD_STEPS", 20)
    with make_envs(flaky(args={"good": GOOD, "at": 25}), seed=1) as envs:
        found = rows_of(envs, 300)
    assert sum(e.end == "error" for row in found for e in row.episodes) > 10


@pytest.mark.slow
def test_good_steps_between_deaths_of_a_worker_are_enough(monkeypatch):
    monkeypatch.setattr(failures, "GOOD_STEPS", 20)
    cfg = flaky(args={"good": GOOD, "at": 25, "how": "exit"}, workers=2)
    with make_envs(cfg, seed=1) as envs:
        found = rows_of(envs, 200)
    assert sum(e.end == "error" for row in found for e in row.episodes) > 6


def reluctant(monkeypatch, **settings) -> EnvConfig:
    monkeypatch.setattr("tests.run.sleepers.Reluctant.made", 0)
    return EnvConfig(id="tests.run.sleepers:Reluctant", on_error="restart", **settings)


@pytest.mark.parametrize("call", ["__init__", "reset"])
def test_the_first_look_is_tried_again(call, monkeypatch, capfd):
    spec = probe_spec(reluctant(monkeypatch, args={"call": call}))
    assert spec.obs.shape == (2,)
    said = capfd.readouterr().err
    assert said.count("not yet") == said.count("warning: ") == 2


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("call", ["__init__", "reset"])
def test_a_failing_constructor_or_first_reset_is_retried(call, workers, monkeypatch, capfd):
    cfg = reluctant(monkeypatch, args={"call": call}, num=2, workers=workers)
    with make_envs(cfg, seed=1) as envs:
        assert len(rows_of(envs, 3)) == 4
    if call == "__init__":
        # What workers say may go elsewhere: the process that starts them is older than this test.
        assert capfd.readouterr().err.count("not yet") >= (2 if workers else 4)


@pytest.mark.parametrize("call", ["__init__", "reset"])
@pytest.mark.parametrize("make", [probe_spec, lambda cfg: make_envs(cfg, seed=1)])
def test_a_first_environment_that_always_fails_ends_it(make, call, monkeypatch, capfd):
    cfg = reluctant(monkeypatch, args={"call": call, "good": 10**6})
    with pytest.raises(LudusError, match=r"not yet.*6 times") as caught:
        make(cfg)
    assert caught.value.code == "E205" and "not yet" in str(caught.value.__cause__)
    assert capfd.readouterr().err.count("not yet") == failures.IN_A_ROW


def test_a_constructor_that_fails_after_a_failure_is_called_again(monkeypatch, capfd):
    cfg = reluctant(monkeypatch, args={"good": 1})
    with make_envs(cfg, seed=1) as envs:
        envs.reset(0)
        backend = envs._backend
        monkeypatch.setattr(backend, "_rebuild", once_failing(backend._rebuild))
        backend._steps[0] = broken
        envs.send(np.zeros(1, np.int64))
        (cut,) = envs.recv().episodes
    assert "a tooth broke" in cut.error


def broken(action):
    raise RuntimeError("a tooth broke")


def once_failing(rebuild):
    left = ["not yet"]

    def made(i):
        if left:
            raise failures.NotMadeError("E201", left.pop())
        return rebuild(i)

    return made


def test_arguments_that_do_not_fit_are_not_tried_again(capfd):
    with pytest.raises(LudusError, match="cannot be made") as caught:
        probe_spec(flaky(args={"colour": 1}))
    assert caught.value.code == "E201" and not capfd.readouterr().err


@pytest.mark.parametrize("on_error", ["auto", "stop"])
def test_without_it_the_error_is_raised(on_error):
    cfg = flaky().model_copy(update={"on_error": on_error})
    with make_envs(cfg, seed=1) as envs, pytest.raises(LudusError, match="a tooth broke"):
        rows_of(envs, 6)


def test_a_broken_contract_is_not_made_again():
    with make_envs(flaky(args={"how": "tuple"}), seed=1) as envs:
        with pytest.raises(LudusError) as caught:
            rows_of(envs, 6)
    assert caught.value.code == "E202"


def test_native_atari_is_refused():
    with pytest.raises((ValidationError, LudusError), match="on_error"):
        EnvConfig(id="pong", on_error="restart")


@pytest.mark.parametrize("chunk", [1, 6])
def test_no_transition_reaches_across_a_failure(chunk):
    """Of three steps each: rewards are summed up to the last observation before the failure."""
    with make_envs(flaky(), seed=1) as envs:
        found = rows_of(envs, 6)
        spec = envs.spec
    plan = Plan(NStep(3, 1.0), Uniform(), batch=64, capacity=100, chunk=chunk)
    store = build_store(plan, spec, 2, seed=1, horizon=100)
    for n, lo in enumerate(range(0, 6, chunk)):
        store.add(Chunk(as_rows(found[lo : lo + chunk + 1]), 0, n))
    batch = store.sample().batch
    seen = {
        (*obs[:1], reward, *after[:1])
        for obs, reward, after in zip(
            batch.obs.tolist(), batch.reward.tolist(), batch.next_obs.tolist(), strict=True
        )
        if obs[1] != found[0].obs[0][1]  # of the failed environment, by its seed
    }
    before = {(0.0, 3.0, 3.0), (1.0, 2.0, 3.0), (2.0, 1.0, 3.0)}
    assert seen & before and not {row for row in seen if row[2] < row[0]}
    assert all(after - begun == reward for begun, reward, after in seen)


@pytest.mark.parametrize("chunk", [2, 3, 6])
def test_traces_are_cut_before_a_failure(chunk):
    with make_envs(flaky(), seed=1) as envs:
        found = rows_of(envs, 6)
        assembler = Assembler(envs.spec, 6)
    made = []
    for n, lo in enumerate(range(0, 6, chunk)):
        made += assembler.add(Chunk(as_rows(found[lo : lo + chunk + 1]), 0, n))
    (unroll,) = made
    assert unroll.last[:, 1].tolist() == [False, False, True, False, False, False]
    assert not unroll.last[:, 0].any()
