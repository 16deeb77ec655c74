"""Bad settings of an environment: what is wrong, in which setting, why, and what to type."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from ludus.envs.config import EnvConfig
from tests.cli.conftest import call


def lines(*words: str, env: str = "ludus/Counter-v0") -> dict[str, str]:
    """The error of `ludus train`, by the words its lines begin with."""
    answer = call("train", "dqn", env, *words, "--dry-run")
    assert answer.code != 0 and "Traceback" not in answer.err, answer.err
    result = [line.strip().partition(" ") for line in answer.err.splitlines()]
    return {begin.rstrip(":"): rest for begin, _, rest in result}


@pytest.mark.parametrize("value", ["5", "hello", "[1, 2]", "true", "[]"])
@pytest.mark.parametrize("more", [(), ("frames=1M",), ("sticky=0.1",)])
def test_flags_of_a_game_that_are_no_table_are_refused(value, more):
    result = lines(f"env.atari={value}", *more, env="pong")
    assert "env.atari is a table" in result["error[E102]"]
    assert result["where"] == "env.atari (command line)"
    assert "skip, max_pool, size" in result["likely"] and result["fix"] == "env.atari.skip=4"


@pytest.mark.parametrize("value", [5, "hello", [1, 2], True, []])
def test_flags_that_are_no_table_are_refused_from_python(value):
    with pytest.raises(ValidationError, match="AtariConfig"):
        EnvConfig(id="pong", atari=value)


def test_no_flags_at_all_are_the_protocols():
    assert (
        EnvConfig(id="pong", atari=None) == EnvConfig(id="pong", atari={}) == EnvConfig(id="pong")
    )


def test_more_groups_than_slots_name_both_settings():
    result = lines("env.groups=9", "env.num=4")
    assert "env.groups=9" in result["error[E104]"] and "env.num=4" in result["error[E104]"]
    assert result["where"] == "env.groups (command line)" and result["likely"]
    assert result["fix"] == "env.groups=4   or   env.num=9"


@pytest.mark.parametrize(
    ("word", "env", "fix"),
    [
        ("env.reward_clamp=2", "CartPole-v1", "env.reward_clip=clamp"),
        ("env.threads=2", "CartPole-v1", "leave it out"),
        ("env.on_error=restart", "pong", "env.native=false"),
        ("env.normalize.clip=5", "CartPole-v1", "env.normalize.obs=true"),
        ("env.normalize.gamma=0.9", "CartPole-v1", "env.normalize.reward=true"),
    ],
)
def test_a_setting_without_effect_is_named(word, env, fix):
    result = lines(word, env=env)
    key = word.partition("=")[0]
    assert word in result["error[E104]"] and "no effect" in result["error[E104]"]
    assert result["where"] == f"{key} (command line)" and result["likely"] and fix in result["fix"]


@pytest.mark.parametrize(
    ("wrappers", "code", "what", "fix"),
    [
        ("Repeat", "E102", "is a list", "env.wrappers=[{name: Repeat}]"),
        ("{name: Repeat}", "E102", "is a list", "env.wrappers=[{name: Repeat}]"),
        ("[Repeat]", "E102", "'Repeat' is no table", "env.wrappers=[{name: Repeat}]"),
        ("[{name: Obscure}, 5]", "E102", "5 is no table", "env.wrappers=[{name: Repeat}]"),
        ("[{nam: Repeat}]", "E101", "nam (did you mean  name ?)", "[{name: Repeat}]"),
        (
            "[{name: Repeat, tims: 3}]", "E101", "tims of wrapper Repeat",
            "env.wrappers=[{name: Repeat, options: {tims: 3}}]",
        ),
        (
            "[{name: Repeat, args: {times: 3}}]", "E101", "args (did you mean  options ?)",
            "env.wrappers=[{name: Repeat, options: {times: 3}}]",
        ),
        (
            "[{name: Repeat, options: {tims: 3}}]", "E101", "tims (did you mean  times ?)",
            "env.wrappers=[{name: Repeat, options: {times: 3}}]",
        ),
        (
            "[{name: Repeat, options: {zzz: 3}}]", "E101", "no option zzz",
            "env.wrappers=[{name: Repeat}]",
        ),
        (
            "[{name: TransformReward}]", "E102", "needs the option func",
            "env.wrappers=[{name: TransformReward, options: {func: ...}}]",
        ),
        ("[{name: Repeat, options: 5}]", "E102", "is a table, not 5", "options: {NAME: 5}"),
        ("[{name: Repaet}]", "E201", "Repaet (did you mean  Repeat ?)", "[{name: Repeat}]"),
        ("[{name: vector}]", "E201", "unknown wrapper  vector", "module:Class"),
        (
            "[{name: 'ludus.envs.wrappers:Obscrue'}]", "E201", "(did you mean  Obscure ?)",
            "env.wrappers=[{name: 'ludus.envs.wrappers:Obscure'}]",
        ),
        ("[{name: 'no_such:Wrapper'}]", "E201", "no_such:Wrapper", "module:Class"),
        ("[{name: Repeat, options: {times: -1}}]", "E201", "times=-1", "options"),
    ],
)  # fmt: skip
def test_mistakes_in_wrappers_are_reported_with_a_fix(wrappers, code, what, fix):
    result = lines(f"env.wrappers={wrappers}")
    assert what in result[f"error[{code}]"]
    assert result["where"].startswith("env.wrappers")
    assert result["likely"] and fix in result["fix"]
