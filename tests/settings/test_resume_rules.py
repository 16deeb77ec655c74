"""What a continued run may change, and how a refused change is shown."""

from __future__ import annotations

import pytest

from ludus.errors import LudusError
from ludus.settings.resolve import Request, resolve
from ludus.settings.resume import continued, differences, extended


def settings(*overrides, algo="dqn", env="CartPole-v1"):
    return resolve(Request(algo, env, overrides, environ={}))


STORED = settings("steps=1000", "seed=3").config


@pytest.mark.accept(123)
def test_more_steps_keep_the_horizon():
    longer = extended(STORED, ["steps=+500"]).config
    assert (longer.run.steps, longer.run.horizon_steps) == (1500, 1000)
    assert longer.run.checkpoint_steps == STORED.run.checkpoint_steps
    again = extended(longer, ["steps=+1k"]).config
    assert (again.run.steps, again.run.horizon_steps) == (2500, 1000)
    assert extended(STORED, ["steps=2k"]).config.run.horizon_steps == 1000
    assert extended(STORED, []).config == STORED


def test_a_run_does_not_go_back():
    with pytest.raises(LudusError) as caught:
        extended(STORED, ["steps=300"], step=800)
    assert caught.value.code == "E104" and "step 800" in caught.value.what
    assert extended(STORED, ["steps=900"], step=800).config.run.steps == 900
    assert extended(STORED, ["steps=+100"], step=800).config.run.steps == 1100
    # The last chunk went past the end; a run made longer equals one that was as long before.
    assert extended(STORED, ["steps=+100"], step=1004).config.run.steps == 1100
    assert extended(STORED, [], step=1004).config.run.steps == 1000


@pytest.mark.parametrize(
    "free", ["log.every=7", "eval.episodes=3", "run.keep=9", "time=1h", "env.on_error=restart"]
)
def test_what_may_change(free):
    key = free.partition("=")[0]
    changed = extended(STORED, [free]).config
    assert [d[0] for d in differences(STORED, changed)] in ([key], ["run.time"])


@pytest.mark.accept(143)
@pytest.mark.parametrize(
    "changed",
    [
        "seed=4",
        "lr=0.5",
        "env.id=Acrobot-v1",
        "algo.head.dueling=true",
        "horizon=7",
        "checkpoint_every=7",
    ],
)
def test_what_may_not(changed):
    with pytest.raises(LudusError) as caught:
        extended(STORED, [changed])
    error = caught.value
    key = changed.partition("=")[0].rpartition(".")[2]
    line = next(x for x in error.what.splitlines() if f"{key} " in x)
    assert error.code == "E307" and " -> " in line and error.exit_code == 1
    assert "--fresh" in error.fix


@pytest.mark.accept(143)
def test_another_algorithm_is_another_run():
    with pytest.raises(LudusError) as caught:
        continued(STORED, settings("steps=1000", "seed=3", algo="c51").config)
    assert caught.value.code == "E307" and "'dqn' -> 'c51'" in caught.value.what


def test_the_same_command_after_an_extension_does_not_shorten_the_run():
    first = settings("seed=3")
    longer = extended(first.config, ["steps=+500"]).config
    again = continued(longer, first.config, first.sources)
    assert again == longer
    typed = settings("seed=3", "steps=50k")
    assert continued(longer, typed.config, typed.sources).run.steps == 50_000


def test_bad_additions_are_refused():
    for text in ("steps=+many", "steps=+1.5", "stepps=+1"):
        with pytest.raises(LudusError):
            extended(STORED, [text])
