"""Which precision and order a CPU gets: by injected timings, and that real ones are short."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ludus import registry
from ludus.contract import Episode
from ludus.learn import autotune as measured
from ludus.learn.autotune import ORDERS, WAYS, Way, choose, measure
from ludus.types import ArraySpec, Continuous, Discrete, EnvSpec
from tests.contract.tiny import ONE_OF_EACH_HEAD, known, tiny

SCREEN = ArraySpec((84, 84), "uint8", 0, 255, stack=4, layout="hw")
ATARI = EnvSpec("ALE/Pong-v5", SCREEN, Discrete(6))
PIXELS = "ludus/IdentityPixels-v0"


def algorithm(name, *settings):
    return registry.make(tiny(name, PIXELS, *settings).algo)


@pytest.mark.parametrize(
    ("seconds", "want"),  # fp32 contiguous and channels last, bf16 likewise
    [
        ((1.0, 1.0, 1.0, 1.0), "fp32 contiguous"),
        ((1.0, 0.95, 1.0, 1.0), "fp32 contiguous"),  # within what timings waver
        ((1.0, 0.7, 1.0, 1.0), "fp32 channels_last"),
        ((1.0, 0.7, 0.6, 0.65), "fp32 channels_last"),  # 1.17x is too little for bfloat16
        ((1.0, 1.1, 0.5, 0.6), "bf16 contiguous"),
        ((1.0, 0.9, 0.6, 0.4), "bf16 channels_last"),
        ((1.0, 1.0, 3.0, 0.7), "bf16 channels_last"),
        ((1.0, 1.0, 0.0, 0.0), "bf16 contiguous"),  # a clock that stood still divides nothing
    ],
)
def test_the_fastest_is_taken_where_it_is_clearly_faster(seconds, want):
    choice = choose(dict(zip(WAYS, seconds, strict=True)))
    assert str(choice.way) == want and choice.why.startswith(want)


def test_the_figures_are_said():
    why = choose(dict(zip(WAYS, (1.8, 1.5, 1.2, 1.0), strict=True))).why
    assert why.startswith("bf16 channels_last: 1.80x fp32 contiguous, measured")
    assert "fp32 channels_last 1.20x" in why and "bf16 contiguous 1.50x" in why
    base = choose(dict.fromkeys(WAYS, 1.0)).why
    assert base.startswith("fp32 contiguous, measured (fp32 channels_last 1.00x")


def test_ways_take_turns_and_the_first_round_warms_up(monkeypatch):
    seen = []

    def seconds(update, net, way):
        seen.append(way)
        return 0.01 * (1 + len(seen))

    monkeypatch.setattr(measured, "_seconds", seconds)
    best = measured._timed(lambda rows: None, torch.nn.Linear(1, 1), 8)
    assert seen[1:] == [*WAYS] * measured.ROUNDS
    assert list(best) == list(WAYS) and min(best.values()) > 0.01 * (1 + len(WAYS))


@pytest.mark.parametrize(
    ("each", "rows", "asked"),  # seconds of one row
    [(1e-4, 40, [8, 16, 32, 40]), (2e-3, 256, [8, 16, 32]), (0.1, 256, [8]), (1e-4, 6, [6])],
)
def test_a_batch_that_takes_long_is_timed_with_fewer_rows(monkeypatch, each, rows, asked):
    seen = []
    monkeypatch.setattr(measured, "_seconds", lambda update, net, way: update * each)
    measured._timed(lambda n: seen.append(n) or n, torch.nn.Linear(1, 1), rows)
    assert seen == asked


def test_no_round_begins_when_patience_is_over(monkeypatch):
    now = [0.0]

    def seconds(update, net, way):
        now[0] += 0.2
        return 0.2

    monkeypatch.setattr(measured, "_seconds", seconds)
    monkeypatch.setattr(measured.time, "perf_counter", lambda: now[0])
    best = measured._timed(lambda rows: None, torch.nn.Linear(1, 1), 64)
    assert now[0] == pytest.approx(0.2 * (2 + 2 * len(WAYS))) and set(best.values()) == {0.2}


@pytest.mark.parametrize("name", ONE_OF_EACH_HEAD)
def test_every_algorithm_is_measured_on_its_own_update(name):
    sizes = ("batch=16", "rollout=16", "minibatches=2", "t_max=16", "n_steps=16")
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    made, spec = algorithm(name, *known(name, sizes)), ATARI
    if "discrete" not in registry.find(name).actions:
        spec = replace(ATARI, action=Continuous((2,), (-1.0, -1.0), (1.0, 1.0)))
    choice = measure(made, spec, 2)
    if isinstance(made.plan.view, Episode):
        assert choice is None, "whole episodes have no size of their own"
        return
    assert choice is not None and choice.way in WAYS and "measured" in choice.why
    assert torch.get_num_threads() == threads
    assert torch.equal(before, torch.get_rng_state()), "nothing is drawn from what others draw from"


def test_a_memory_is_measured_too():
    made = registry.make(tiny("impala", PIXELS, "batch=4", "recurrent={hidden: 8}").algo)
    assert measure(made, ATARI, 2) is not None


def test_updates_run_in_the_precision_and_order_they_are_timed_for(monkeypatch):
    made = algorithm("dqn", "batch=32")
    seen = set()
    real = made.loss

    def loss(net, batch, ctx):
        first = next(m for m in net.modules() if isinstance(m, measured.ImageInput))
        bf16 = torch.is_autocast_enabled("cpu")
        seen.add(Way("bf16" if bf16 else "fp32", ORDERS[first.channels_last]))
        assert batch.obs.shape[1:] == (4, 84, 84) and len(batch.obs) in (8, 16, 32)
        return real(net, batch, ctx)

    monkeypatch.setattr(made, "loss", loss)
    monkeypatch.setattr(measured, "LONGEST", 60.0)
    measure(made, ATARI, 2)
    assert seen == set(WAYS)


def test_small_images_are_not_worth_a_measurement():
    small = EnvSpec("small", ArraySpec((8, 8), "uint8", layout="hw"), Discrete(2))
    assert measure(algorithm("dqn"), small, 2) is None
