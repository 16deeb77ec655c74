"""The table of algorithms: names, variants, presets, and what each variant switches on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ludus import presets, registry
from ludus.bench.suites import SUITES
from ludus.errors import LudusError
from ludus.nets.heads import NoisyLinear
from ludus.optim import PaperRMSProp
from ludus.settings.resolve import Request, resolve
from ludus.types import ArraySpec, Continuous, Discrete, EnvSpec

SPEC = EnvSpec("probe", ArraySpec((4,)), Discrete(3))
FAMILY = [entry.name for entry in registry.BUILT_IN if entry.family == "dqn"]
NAMES = [entry.name for entry in registry.BUILT_IN]


def algo(name, *overrides):
    request = Request(name, "ludus/Identity-v0", overrides, preset="none", environ={})
    return registry.make(resolve(request).config.algo)


def spec_for(name):
    if "discrete" in registry.find(name).actions:
        return SPEC
    return replace(SPEC, action=Continuous((2,), (-1.0, -1.0), (1.0, 1.0)))


def size(net) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_every_row_can_be_built_and_knows_its_name(name):
    made = algo(name.replace("-", "_").upper())
    assert made.cfg.name == name
    assert size(made.build(spec_for(name))) > 0


def test_unknown_and_taken_names(monkeypatch):
    with pytest.raises(LudusError, match="rainbow-iqn") as caught:
        registry.find("rainbow-ign")
    assert caught.value.code == "E106"
    monkeypatch.setattr(registry, "_TABLE", dict(registry._TABLE))
    mine = registry.Entry("mine", "a:B", "a:C", "")
    registry.register(mine)
    registry.register(mine)
    assert registry.find("mine") is mine and mine in registry.entries()
    with pytest.raises(LudusError, match="already taken"):
        registry.register(registry.Entry("mine", "x:Y", "a:C", ""))
    with pytest.raises(LudusError) as caught:
        registry.locate("a_package_that_is_not:X")
    assert caught.value.code == "E109"
    with pytest.raises(LudusError) as caught:
        registry.import_modules(["a_package_that_is_not"])
    assert caught.value.code == "E109"


@pytest.mark.accept(8)
def test_rainbow_and_rainbow_iqn_have_their_own_numbers():
    rainbow, iqn = algo("rainbow").cfg, algo("rainbow-iqn").cfg
    assert (rainbow.replay.alpha, rainbow.lr.start, rainbow.optimizer.eps) == (0.5, 6.25e-5, 1.5e-4)
    assert (iqn.replay.alpha, iqn.lr.start, iqn.optimizer.eps) == (0.2, 5e-5, 3.125e-4)
    assert (rainbow.head.kind, iqn.head.kind) == ("categorical", "implicit")
    assert (rainbow.head.noisy, iqn.head.noisy) == (0.5, 0.1)


@pytest.mark.accept(12)
@pytest.mark.accept(13)
def test_apex_has_the_numbers_of_its_paper_and_one_switch_to_rainbow():
    apex = algo("apex-dqn")
    cfg, replay = apex.cfg, apex.cfg.replay
    assert cfg.double and cfg.head.kind == "scalar" and cfg.head.dueling and cfg.n_step == 3
    assert (replay.alpha, replay.beta.start, replay.beta.end) == (0.6, 0.4, 0.4)
    assert (replay.normalize, replay.initial) == ("buffer", "actor")
    assert (cfg.ladder.base, cfg.ladder.alpha, cfg.epsilon.start) == (0.4, 7, 0)
    assert (cfg.optimizer.kind, cfg.optimizer.centered) == ("rmsprop", True)
    assert (cfg.optimizer.decay, cfg.optimizer.eps, cfg.lr.start) == (0.95, 1.5e-7, 6.25e-5)
    assert cfg.clip_norm == 40
    for name in ("rainbow", "rainbow-iqn"):
        plain, many = algo(name).cfg, algo(f"apex-{name}").cfg
        assert many.replay == plain.replay.model_copy(update={"initial": "actor"})
        assert many.ladder is None and many.head.noisy == 0.1, "noise alone explores"
        for key in ("double", "n_step", "lr", "optimizer", "epsilon"):
            assert getattr(many, key) == getattr(plain, key), key


@pytest.mark.parametrize("name", ["dueling-dqn", "rainbow", "rainbow-iqn"])
def test_dueling_variants_have_streams_of_their_own(name):
    """Linear streams on shared features would be one linear layer by another name."""
    streams = algo(name).build(SPEC)["online"].head.streams
    assert streams.hidden is not None and streams.value is not None


@pytest.mark.accept(5)
def test_rainbow_is_the_sum_of_parts_that_can_be_switched_off():
    def noisy(net):
        return any(isinstance(m, NoisyLinear) for m in net.modules())

    whole = algo("rainbow")
    net = whole.build(SPEC)
    assert whole.cfg.double and whole.plan.view.n == 3 and whole.plan.sampler.kind == "prioritized"
    assert noisy(net) and net["online"](torch.zeros(2, 4), None, noise=False).dist.shape == (
        2,
        3,
        51,
    )
    assert not algo("rainbow", "double=false").cfg.double
    assert algo("rainbow", "n_step=1").plan.view.n == 1
    assert algo("rainbow", "replay.kind=uniform").plan.sampler.kind == "uniform"
    assert not noisy(algo("rainbow", "head.noisy=null").build(SPEC))
    assert size(algo("rainbow", "head.dueling=false").build(SPEC)) < size(net)
    scalar = algo("rainbow", "head.kind=scalar").build(SPEC)
    assert noisy(scalar) and scalar["online"](torch.zeros(2, 4), None, noise=False).q.shape == (
        2,
        3,
    )
    assert size(scalar) < size(net)


@pytest.mark.accept(10)
@pytest.mark.parametrize("name", FAMILY)
def test_every_member_takes_a_dueling_head(name):
    with_, without = (algo(name, f"head.dueling={x}").build(SPEC) for x in ("true", "false"))
    assert size(with_) > size(without)


@pytest.mark.accept(97)
@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_takes_every_optimizer_with_its_epsilon(name):
    def made(*overrides):
        chosen = algo(name, *overrides)
        return chosen.optimizer(chosen.build(spec_for(name)))

    adam = made("optimizer.kind=adam", "optimizer.eps=0.123")
    assert isinstance(adam, torch.optim.Adam) and adam.defaults["eps"] == 0.123
    plain = made("optimizer.kind=rmsprop", "optimizer.eps=0.2", "optimizer.centered=false")
    assert isinstance(plain, PaperRMSProp) and (plain.cfg.eps, plain.cfg.centered) == (0.2, False)
    assert made("optimizer.kind=rmsprop", "optimizer.centered=true").cfg.centered


def test_presets_are_picked_by_environment(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "presets:\n"
        "- {name: atari, match: ['ALE/*'], source: a, config: {algo: {batch: 32}}}\n"
        "- {name: small, match: ['CartPole-*'], source: b, config: {algo: {batch: 16}}}\n"
    )
    entry = registry.Entry("mine", "a:B", "a:C", "", presets=str(file))
    assert presets.pick(entry, "CartPole-v1", None).name == "small"
    assert presets.pick(entry, "ALE/Pong-v5", None).config == {"algo": {"batch": 32}}
    assert presets.pick(entry, "Pendulum-v1", None) is None
    assert presets.pick(entry, "CartPole-v1", "none") is None
    for wanted, says in (("atari", "not CartPole-v1"), ("smal", "small ?")):
        with pytest.raises(LudusError, match=says) as caught:
            presets.pick(entry, "CartPole-v1", wanted)
        assert caught.value.code == "E107"
    file.write_text("presets: [{name: x}]")
    with pytest.raises(LudusError) as caught:
        presets.presets_of(entry)
    assert caught.value.code == "E105"


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_of_ours_resolves(name):
    for preset in presets.presets_of(registry.find(name)):
        assert preset.source.strip(), "a preset says where its numbers come from"
        if not preset.match:  # only a base of others, checked with them
            continue
        env = preset.match[0].replace("*", "v1") if "*" in preset.match[0] else preset.match[0]
        got = resolve(Request(name, env, preset=preset.name, environ={}))
        assert got.preset == preset.name


PICKED = {
    ("dqn", "MountainCar-v0"): "mountaincar",
    ("dqn", "MountainCarContinuous-v0"): None,
    ("dqn", "LunarLander-v3"): "lunarlander",
    ("dqn", "LunarLanderContinuous-v3"): None,
    ("ppo", "CartPole-v1"): "cartpole",
    ("ppo", "Acrobot-v1"): "acrobot",
    ("ppo", "Pendulum-v1"): "pendulum",
    ("ppo", "MountainCar-v0"): "mountaincar",
    ("ppo", "MountainCarContinuous-v0"): "mountaincar-continuous",
    ("ppo", "LunarLander-v3"): "lunarlander",
    ("ppo", "LunarLanderContinuous-v3"): "lunarlander-continuous",
    ("ppo", "BipedalWalker-v3"): "bipedalwalker",
    ("ppo", "InvertedPendulum-v5"): "inverted-pendulum",
    ("ppo", "InvertedDoublePendulum-v5"): "inverted-double-pendulum",
    ("ppo", "Humanoid-v5"): "humanoid",
    ("ppo", "HumanoidStandup-v5"): None,
    ("ppo", "BipedalWalkerHardcore-v3"): "bipedalwalker-hardcore",  # another task
}


@pytest.mark.parametrize(("name", "env"), PICKED, ids=" ".join)
def test_a_preset_is_not_taken_for_a_similar_id(name, env):
    assert resolve(Request(name, env, environ={})).preset == PICKED[name, env]


def test_ppo_is_tuned_for_every_environment_of_the_classic_suite():
    ppo = registry.find("ppo")
    assert all(presets.pick(ppo, env, None) for env in SUITES["classic"].envs)


def test_rewards_are_scaled_by_the_returns_that_are_learned():
    for preset in presets.presets_of(registry.find("ppo")):
        scaling = preset.config["env"].get("normalize", {})
        if scaling.get("reward"):
            assert scaling["gamma"] == preset.config["algo"]["gamma"], preset.name
