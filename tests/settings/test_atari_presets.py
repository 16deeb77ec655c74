"""Presets for Atari: every one resolves with the real registry and builds, and its numbers are
those of the paper it names."""

from __future__ import annotations

import re

import pytest
import torch

from ludus import presets, registry
from ludus.contract import NStep
from ludus.settings.resolve import Request, resolve
from ludus.types import ArraySpec, Ctx, Discrete, EnvSpec, Transition

SCREEN = ArraySpec((84, 84), "uint8", 0, 255, stack=4, layout="hw")
SPEC = EnvSpec("ALE/Pong-v5", SCREEN, Discrete(18))
NAMES = [entry.name for entry in registry.BUILT_IN if entry.family in ("dqn", "ppo", "pqn")]
ASYNC = ["a3c", "async-q", "async-sarsa", "async-nstep-q"]
FAMILY = [entry.name for entry in registry.BUILT_IN if entry.family == "dqn"]
EIGHT = [name for name in FAMILY if name != "apex-dqn"]  # samples per step, batches of 32
EPS = 0.01 / 32  # of Adam, in the distributional papers
SQUARED_EPS = 0.01 / 32**2  # of RMSProp, inside the root


def settings(name, preset=None, env="ALE/Pong-v5"):
    return resolve(Request(name, env, (), preset=preset, environ={}))


def steps_between_copies(cfg):
    return cfg.target_period * cfg.batch / cfg.replay_ratio


@pytest.mark.parametrize("name", NAMES)
def test_the_paper_s_preset_is_found_by_itself_and_the_fast_one_by_name(name):
    assert settings(name).preset == "atari"
    assert settings(name, env="ALE/MontezumaRevenge-v5").preset == "atari"
    assert settings(name, "atari-fast").preset == "atari-fast"
    assert settings(name, env="CartPole-v1").preset == "cartpole"


@pytest.mark.parametrize("preset", ["atari", "atari-fast"])
@pytest.mark.parametrize("name", NAMES)
def test_every_one_builds_what_its_paper_draws(name, preset):
    config = settings(name, preset).config
    assert config.env.reward_clip == "sign" and config.algo.gamma == 0.99
    torso = config.algo.torso
    assert torso.kind == ("impala" if name == "impala" else "nature")
    algo = registry.make(config.algo)
    net = algo.build(SPEC)["online"]
    if name == "impala":
        assert (torso.width, torso.hidden) == (1, 256) and net.core is None
        return
    if config.algo.name in ("ppo", "recurrent-ppo"):
        assert torso.hidden == 512 and net.value_torso is None
        assert (net.core is not None) == (name == "recurrent-ppo") == (config.env.stack == 1)
        return
    if name == "pqn":
        norms = [m for m in net.modules() if isinstance(m, torch.nn.LayerNorm)]
        assert torso.hidden == 512 and len(norms) == 4
        return
    head = config.algo.head
    # One dense layer of 512 everywhere: before the head, or in each of its streams.
    assert (torso.hidden, head.hidden) in ((512, 0), (0, 512))
    assert (head.hidden == 512) == (head.dueling or head.kind == "implicit")


@pytest.mark.parametrize("name", EIGHT)
def test_the_scale_is_200m_frames_and_8_samples_per_step(name):
    config = settings(name).config
    assert config.run.steps == 50_000_000
    assert (config.algo.batch, config.algo.replay_ratio) == (32, 8)
    assert config.algo.capacity == 1_000_000
    # The environments of one row, and one update after it, as one environment's four steps.
    assert config.env.num == config.algo.batch / config.algo.replay_ratio


def test_the_fast_apex_rainbow_iqn_learns_twice_as_often():
    paper, fast = (settings("apex-rainbow-iqn", p).config for p in ("atari", "atari-fast"))
    assert fast.algo.replay_ratio == 2 * paper.algo.replay_ratio == 16
    assert (fast.env.num, fast.algo.batch, steps_between_copies(fast.algo)) == (64, 256, 4000)


@pytest.mark.parametrize("name", [name for name in EIGHT if name != "apex-rainbow-iqn"])
def test_the_fast_one_learns_as_often_per_step_and_copies_as_seldom(name):
    paper, fast = settings(name).config, settings(name, "atari-fast").config
    assert fast.algo.replay_ratio == paper.algo.replay_ratio
    assert (fast.env.num, fast.algo.batch) == (128, 512)
    assert steps_between_copies(fast.algo) == pytest.approx(
        steps_between_copies(paper.algo), rel=0.01
    )
    assert fast.algo.lr.start <= 4 * paper.algo.lr.start
    assert fast.algo.optimizer.kind == "adam" and fast.algo.clip_norm == 10
    kept = ("torso", "replay", "double", "munchausen", "n_step", "gamma", "capacity")
    assert all(getattr(fast.algo, key) == getattr(paper.algo, key) for key in kept)


@pytest.mark.parametrize(
    ("name", "lr", "eps", "copies", "warmup", "final"),
    [
        ("dqn", 2.5e-4, SQUARED_EPS, 10_000, 50_000, 0.1),
        ("double-dqn", 2.5e-4, SQUARED_EPS, 30_000, 50_000, 0.01),
        ("dueling-dqn", 6.25e-5, SQUARED_EPS, 30_000, 50_000, 0.01),
        ("prioritized-dqn", 2.5e-4 / 4, SQUARED_EPS, 30_000, 50_000, 0.01),
        ("c51", 2.5e-4, EPS, 10_000, 50_000, 0.01),
        ("qr-dqn", 5e-5, EPS, 10_000, 50_000, 0.01),
        ("iqn", 5e-5, EPS, 10_000, 20_000, 0.01),
        ("rainbow", 6.25e-5, 1.5e-4, 8_000, 20_000, 0.0),
        ("rainbow-iqn", 5e-5, EPS, 8_000, 20_000, 0.0),
        ("munchausen-iqn", 5e-5, EPS, 8_000, 20_000, 0.01),
        ("apex-rainbow", 6.25e-5, 1.5e-4, 8_000, 20_000, 0.0),
        ("apex-rainbow-iqn", 5e-5, EPS, 8_000, 20_000, 0.0),
    ],
)
def test_rates_and_periods_are_the_papers(name, lr, eps, copies, warmup, final):
    """`copies`: agent steps between copies to the target net, a quarter of the frames."""
    cfg = settings(name).config.algo
    assert (cfg.lr.start, cfg.lr.end) == (lr, lr)
    assert cfg.optimizer.eps == pytest.approx(eps)
    assert steps_between_copies(cfg) == copies
    assert cfg.warmup == warmup
    assert cfg.epsilon.end == final


def test_what_only_one_paper_has():
    dqn = settings("dqn").config
    assert (dqn.algo.optimizer.kind, dqn.algo.optimizer.decay) == ("rmsprop", 0.95)
    assert dqn.algo.optimizer.centered and dqn.algo.head.loss == "huber"
    assert (dqn.algo.epsilon.at(1_000_000, 50_000_000), dqn.eval.epsilon) == (0.1, 0.05)
    assert settings("double-dqn").config.algo.double
    dueling = settings("dueling-dqn").config.algo
    assert dueling.double and dueling.head.dueling and dueling.clip_norm == 10
    replay = settings("prioritized-dqn").config.algo.replay
    assert (replay.alpha, replay.beta.start, replay.beta.end) == (0.6, 0.4, 1.0)
    c51 = settings("c51").config.algo.head
    assert (c51.atoms, c51.v_min, c51.v_max) == (51, -10, 10)
    quantile = settings("qr-dqn").config.algo.head
    assert (quantile.quantiles, quantile.kappa) == (200, 1)
    implicit = settings("iqn").config.algo.head
    assert (implicit.taus, implicit.target_taus, implicit.act_taus) == (64, 64, 32)
    assert (implicit.cosines, settings("iqn").config.algo.n_step) == (64, 1)
    rainbow = settings("rainbow").config.algo
    assert registry.make(rainbow).plan.view == NStep(3, 0.99)
    assert (rainbow.replay.alpha, rainbow.replay.beta.start) == (0.5, 0.4)
    assert (rainbow.head.noisy, rainbow.head.atoms, rainbow.double) == (0.5, 51, True)
    both = settings("rainbow-iqn").config.algo
    assert (both.replay.alpha, both.head.noisy, both.head.kind) == (0.2, 0.1, "implicit")
    munchausen = settings("munchausen-iqn").config.algo
    m = munchausen.munchausen
    assert (m.alpha, m.tau, m.clip, munchausen.epsilon.over) == (0.9, 0.03, -1, 250_000)


def test_apex_is_horgan_and_the_fast_one_ours():
    paper, fast = settings("apex-dqn").config, settings("apex-dqn", "atari-fast").config
    algo, replay = paper.algo, paper.algo.replay
    assert (algo.batch, algo.capacity, algo.warmup, algo.target_period) == (512, 2e6, 50_000, 2500)
    assert (algo.lr.start, algo.clip_norm, algo.n_step, algo.double) == (6.25e-5, 40, 3, True)
    rmsprop = algo.optimizer
    assert rmsprop.centered and (rmsprop.decay, rmsprop.eps) == (0.95, 1.5e-7)
    assert (replay.alpha, replay.beta.start, replay.beta.end) == (0.6, 0.4, 0.4)
    assert (replay.normalize, replay.initial) == ("buffer", "actor")
    assert algo.chunk * 4 == 400, "frames between pulls of weights"
    assert algo.replay_ratio == pytest.approx(19 * 512 / 12_500, abs=0.01)
    assert paper.env.num == 360 and algo.ladder.epsilon(359, 360) == pytest.approx(0.4**8)
    assert (fast.env.num, fast.algo.batch, fast.algo.replay_ratio) == (128, 512, 8)
    kept = ("torso", "head", "replay", "double", "n_step", "gamma", "ladder")
    assert all(getattr(fast.algo, key) == getattr(algo, key) for key in kept)
    for name in ("apex-rainbow", "apex-rainbow-iqn"):
        many = settings(name).config
        assert many.algo.chunk * many.env.num == 400 and many.algo.replay.initial == "actor"
        assert many.algo.ladder is None and many.algo.head.noisy == 0.1


def test_ppo_is_table_5_and_the_fast_one_ours():
    paper, fast = settings("ppo").config, settings("ppo", "atari-fast").config
    assert (paper.env.num, paper.algo.rollout, paper.algo.epochs) == (8, 128, 3)
    assert paper.env.num * paper.algo.rollout / paper.algo.minibatches == 256
    assert (paper.algo.lr.start, paper.algo.lr.end) == (2.5e-4, 0)
    assert (paper.algo.clip.start, paper.algo.clip.end) == (0.1, 0)
    assert (paper.algo.gae_lambda, paper.algo.entropy_cost) == (0.95, 0.01)
    assert paper.run.steps == 10_000_000  # 40M frames
    assert (fast.env.num, fast.algo.rollout, fast.algo.epochs) == (64, 32, 4)
    assert fast.env.num * fast.algo.rollout / fast.algo.minibatches == 256
    assert (fast.algo.lr.start, fast.algo.clip.end, fast.algo.entropy_cost) == (5e-4, 0.1, 0.01)
    assert fast.algo.shared_torso and paper.algo.shared_torso


def test_impala_is_table_g1_and_the_fast_one_lags():
    paper, fast = settings("impala").config, settings("impala", "atari-fast").config
    algo = paper.algo
    assert (algo.unroll, algo.batch, algo.clip_norm) == (20, 32, 40)
    assert (algo.lr.start, algo.lr.end) == (6e-4, 0)
    assert algo.optimizer.model_dump() == {
        "kind": "rmsprop", "decay": 0.99, "eps": 0.01, "momentum": 0.0, "centered": False,
        "initial_square": 1.0,
    }  # fmt: skip
    assert (algo.entropy_cost, algo.baseline_cost, algo.rho_clip, algo.c_clip) == (0.01, 0.5, 1, 1)
    assert paper.run.steps == 50_000_000 and paper.env.num == algo.batch
    other = {key for key, value in fast.algo if value != getattr(algo, key)}
    assert other == {"optimizer", "lr", "batch"} and fast.algo.optimizer.kind == "adam"
    assert fast.env.num == 4 * fast.algo.batch and fast.run.overlap == "on"
    assert settings("impala", env="ludus/CartPoleNoVelocity-v0").config.algo.recurrent.hidden == 64


@pytest.mark.parametrize("name", NAMES)
def test_sources_name_the_paper_the_protocol_and_the_deviations(name):
    entry = registry.find(name)
    paper, fast = (
        next(p for p in presets.presets_of(entry) if p.name == which)
        for which in ("atari", "atari-fast")
    )
    assert entry.paper.split()[0] in paper.source and entry.paper.split()[-1][:4] in paper.source
    assert "env.protocol=" in paper.source or "SABER" in paper.source
    assert fast.source.startswith("Here for one GPU") and paper.source.rstrip() in fast.source


@pytest.mark.parametrize("name", FAMILY)
def test_one_update_of_every_fast_preset_is_finite(name):
    algo = registry.make(settings(name, "atari-fast").config.algo)
    torch.manual_seed(0)
    net, rng = algo.build(SPEC), torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (2, 4, 84, 84)).to(torch.uint8)
    batch = Transition(x, torch.tensor([0, 17]), torch.ones(2), torch.ones(2), x.flip(0))
    loss = algo.loss(net, batch, Ctx(rng, SPEC))
    loss.value.mean().backward()
    algo.optimizer(net).step()
    assert loss.value.isfinite().all()
    assert all(p.isfinite().all() for p in net["online"].parameters())


@pytest.mark.parametrize("name", ASYNC)
def test_the_asynchronous_family_has_its_paper_s_numbers(name):
    config = settings(name).config
    assert settings(name).preset == "atari" and settings(name, env="CartPole-v1").preset
    assert config.run.fleet == "hogwild" and config.run.actors == 16 and config.env.num_envs == 1
    assert config.env.reward_clip == "sign" and config.run.shared_statistics
    algo = config.algo
    assert algo.torso.kind == "nips" and algo.torso.hidden == 256 and algo.t_max == 5
    assert algo.optimizer.kind == "rmsprop" and algo.optimizer.decay == 0.99
    assert (algo.gamma, algo.clip_norm, algo.lr.end) == (0.99, 40, 0)
    assert config.run.steps == 80_000_000  # 320M frames
    if name == "a3c":
        assert algo.entropy_cost == 0.01
        assert settings(name, "atari-lstm").config.algo.lstm == 256
    else:
        assert algo.target_period == 10_000  # 40k frames
        assert (algo.epsilon.start, algo.epsilon.over) == (1.0, 1_000_000)  # 4M frames
        assert algo.final_epsilons == (0.1, 0.01, 0.5) and algo.final_weights == (0.4, 0.3, 0.3)
    net = registry.make(algo).build(SPEC)["online"]
    assert sum(p.numel() for p in net.parameters()) > 600_000


def test_a_protocol_that_is_not_set_does_not_read_as_if_it_were():
    """Papers had rules of their own; presets say which, and leave the default."""
    result = [p for p in presets.all_presets() if "env.protocol=" in p.source]
    assert len(result) >= 16
    for preset in result:
        source = " ".join(preset.source.split())
        assert "protocol" not in preset.config.get("env", {}), preset.name
        assert source.count("env.protocol=") == len(
            re.findall(r"\(to play by (?:it|their protocol): env\.protocol=[\w-]+\)", source)
        ), f"{preset.algo}/{preset.name}"
