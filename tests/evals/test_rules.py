"""By which rules an evaluation plays: the run's own, a protocol's, and what is typed on top."""

from __future__ import annotations

import pytest

from ludus import registry
from ludus.envs.atari.protocols import PROTOCOLS
from ludus.errors import LudusError
from ludus.evals.rules import NAMES, make_rules
from ludus.settings.resolve import Request, resolve


def settings(algo: str, env: str, *more: str):
    cfg = resolve(Request(algo, env, more, preset="none", environ={})).config
    return cfg, registry.make(cfg.algo)


def test_all_protocols_are_there():
    assert {"greedy", "saber", "machado", "dqn-2015", "dopamine"} <= set(NAMES)


@pytest.mark.accept(144)
@pytest.mark.parametrize("name", list(PROTOCOLS))
def test_a_protocol_is_the_one_of_its_name(name):
    """Whatever an agent was trained with, it is judged by the protocol's rules and hash."""
    other = "dopamine" if name == "dqn-2015" else "dqn-2015"
    full = PROTOCOLS[name].flags.full_actions
    trained = ("reward_clip=sign", "env.max_episode_steps=77", f"env.atari.full_actions={full}")
    cfg, algorithm = settings("dqn", "pong", f"env.protocol={other}", *trained)
    rules = make_rules(cfg, algorithm, protocol=name)
    plain, _ = settings("dqn", "pong", f"env.protocol={name}")
    assert rules.env.score_facts == plain.env.score_facts
    assert rules.env.score_facts["protocol"] == name and rules.label == name
    assert rules.env.atari == PROTOCOLS[name].flags and rules.env.max_episode_steps is None
    assert rules.env.max_stuck == plain.env.max_stuck
    assert rules.env.reward_clip == "sign", "what the policy is fed stays as it was"


def test_what_the_network_needs_stays_and_is_reported():
    """An agent that knows six actions cannot be asked for eighteen; its score gets a star."""
    cfg, algorithm = settings("dqn", "pong", "env.protocol=dopamine", "env.atari.size=42")
    rules = make_rules(cfg, algorithm, protocol="saber")
    assert rules.env.atari.full_actions is False and rules.env.atari.size == 42
    facts = rules.env.score_facts
    assert facts["protocol"] == "saber*" and rules.label == f"saber-{facts['protocol_hash']}"
    assert rules.env.max_stuck == 4500 and rules.env.atari.max_frames == 100 * 60 * 3600


def test_what_a_star_stands_for_is_reported():
    cfg, algorithm = settings("dqn", "pong")
    rules = make_rules(cfg, algorithm, protocol="dopamine")
    assert rules.env.score_facts["protocol"] == "dopamine*"
    assert rules.env.differences == ["18 actions instead of minimal"]
    typed = ["env.atari.sticky=0", "env.atari.full_actions=false", "env.max_stuck=50"]
    changed = make_rules(cfg, algorithm, protocol="saber", settings=typed)
    assert set(changed.env.differences) == {
        "minimal actions instead of 18", "sticky 0 instead of 0.25", "max_stuck 50 instead of 4500",
    }  # fmt: skip
    args = make_rules(cfg, algorithm, protocol="saber", settings=["env.args={mode: 1}"])
    assert args.env.differences == ["args {'mode': 1}"]
    assert make_rules(cfg, algorithm).env.differences == []
    assert settings("dqn", "CartPole-v1")[0].env.differences == []


def test_greedy_is_the_run_itself():
    cfg, algorithm = settings("dqn", "pong", "env.protocol=dopamine", "env.max_stuck=9")
    for protocol in (None, "greedy"):
        rules = make_rules(cfg, algorithm, protocol=protocol)
        assert rules.env == cfg.env and rules.epsilon == 0 and rules.label == "greedy"


def test_settings_that_change_the_game_have_a_name_of_their_own():
    """Else a look with other rules would replace the evaluation that counts."""
    cfg, algorithm = settings("dqn", "CartPole-v1")
    plain = make_rules(cfg, algorithm)
    short, other = (
        make_rules(cfg, algorithm, settings=[f"env.max_episode_steps={n}"]) for n in (3, 4)
    )
    assert len({plain.label, short.label, other.label}) == 3 and short.label.startswith("env")
    assert short.changed and not plain.changed
    driven = make_rules(cfg, algorithm, settings=["env.num=3", "env.workers=1"])
    assert driven.label == "greedy" and not driven.changed, "how it is driven is not what is played"
    assert short.modified and not plain.modified and not driven.modified
    assert make_rules(cfg, algorithm, epsilon=1.0).modified, "random play is no score of the run"
    assert not make_rules(cfg, algorithm, epsilon=plain.epsilon).modified


@pytest.mark.accept(145)
def test_random_actions_are_the_protocols_own_unless_chosen():
    cfg, algorithm = settings("dqn", "pong")
    for name, epsilon in [("dqn-2015", 0.05), ("dopamine", 0.001), ("saber", 0.0)]:
        assert make_rules(cfg, algorithm, protocol=name).epsilon == epsilon
        chosen = make_rules(cfg, algorithm, protocol=name, epsilon=0.2)
        assert chosen.epsilon == 0.2 and chosen.label.endswith("-epsilon0.2")
    policy_cfg, policy = settings("impala", "pong")
    assert make_rules(policy_cfg, policy, sample=True).label == "sample"
    assert make_rules(policy_cfg, policy, protocol="saber", sample=True).label == "saber-sample"
    never = make_rules(policy_cfg, policy, protocol="dqn-2015")
    assert never.epsilon == 0.0 and "epsilon" not in never.label, "it has none to tell of"
    none = make_rules(cfg, algorithm, protocol="dqn-2015", epsilon=0.0)
    assert none.label.endswith("-epsilon0")
    with pytest.raises(LudusError, match="no random actions") as caught:
        make_rules(policy_cfg, policy, epsilon=0.1)
    assert caught.value.code == "E104"


@pytest.mark.accept(145)
@pytest.mark.parametrize("name", list(PROTOCOLS))
def test_the_runs_own_random_actions_are_no_part_of_a_protocol(name):
    """Presets for Atari evaluate with eval.epsilon=0.05; SABER has none, whoever trained."""
    cfg, algorithm = settings("dqn", "pong", "eval.epsilon=0.3")
    expected = {"dqn-2015": 0.05, "dopamine": 0.001}.get(name, 0.0)
    rules = make_rules(cfg, algorithm, protocol=name)
    assert rules.epsilon == expected and "epsilon" not in rules.label
    own = make_rules(cfg, algorithm)
    assert own.epsilon == 0.3 and own.label == "epsilon0.3"


def test_settings_win_and_are_reported():
    cfg, algorithm = settings("dqn", "pong")
    rules = make_rules(cfg, algorithm, protocol="saber", settings=["max_stuck=50", "env.num=3"])
    assert rules.env.max_stuck == 50 and rules.num_envs == 3
    assert rules.env.score_facts["protocol"] == "saber*"
    deep = make_rules(cfg, algorithm, settings=["env.atari.sticky=0"])
    assert deep.env.atari.sticky == 0 and deep.env.atari.skip == 4


@pytest.mark.parametrize("name", ["dqn", "rainbow", "async-q"])
def test_values_are_no_policy_to_sample(name):
    """It would be a second name for the greedy score."""
    with pytest.raises(LudusError, match="no policy to sample from") as caught:
        make_rules(*settings(name, "CartPole-v1"), sample=True)
    assert caught.value.code == "E104" and "--epsilon" in caught.value.fix


@pytest.mark.parametrize(
    ("env", "how", "code", "says"),
    [
        ("CartPole-v1", {"protocol": "saber"}, "E104", "is for Atari games"),
        ("Pong-v4", {"protocol": "saber"}, "E104", "pong or ALE/Pong-v5; Pong-v4 brings its own"),
        ("pong", {"protocol": "sabre"}, "E103", "did you mean  saber"),
        ("pong", {"settings": ["algo.lr=1"]}, "E104", "not a setting of an evaluation"),
        ("pong", {"settings": ["env.protocol=machado"]}, "E104", "not a setting of an evaluation"),
        ("pong", {"settings": ["env.atari.skipp=1"]}, "E101", "skipp"),
    ],
)
def test_refusals(env, how, code, says):
    cfg, algorithm = settings("dqn", env)
    with pytest.raises(LudusError, match=says) as caught:
        make_rules(cfg, algorithm, **how)
    assert caught.value.code == code and caught.value.fix
