"""Names of games and what their protocols put into the settings; hardly an emulator needed."""

from __future__ import annotations

import gymnasium as gym
import pytest

from ludus.cli.main import run
from ludus.envs import make as making
from ludus.envs.atari.names import GAMES, ale_id, canonical, game_of, old_game
from ludus.envs.atari.protocols import PROTOCOLS
from ludus.envs.config import EnvConfig
from ludus.envs.make import known_ids, make_envs, make_one, probe_spec
from ludus.errors import LudusError
from ludus.settings.resolve import Request, from_tree, resolve
from ludus.settings.resume import extended
from tests.skips import REASONS

ale_py = pytest.importorskip("ale_py", reason=REASONS["atari"])


def settings(*overrides: str, env: str = "pong"):
    return resolve(Request("dqn", env, overrides, environ={}))


def repeated(times: int):
    return {"name": "Repeat", "options": {"times": times}}


@pytest.mark.accept(106)
@pytest.mark.parametrize("name", ["pong", "Pong", "PongNoFrameskip-v4", "ALE/Pong-v5"])
def test_a_game_has_four_spellings_and_one_name(name):
    assert game_of(name) == "pong" and canonical(name) == "ALE/Pong-v5"
    assert settings(env=name).config.env.id == "ALE/Pong-v5"


def test_games_are_those_of_the_emulator():
    registered = {id for id in gym.registry if id.startswith("ALE/")}
    assert ale_py and {ale_id(game) for game in GAMES} == registered and len(GAMES) == 104
    assert game_of("MsPacman") == game_of("ms_pacman") == game_of("mspacman") == "ms_pacman"
    assert game_of("CartPole-v1") is None and game_of("combat") is None and game_of(3) is None


def test_other_old_ids_stay_themselves():
    for id in ("Pong-v0", "Pong-v4", "PongNoFrameskip-v0", "MsPacman-v4"):
        assert game_of(id) is None and canonical(id) == id and old_game(id) is not None
    assert old_game("CartPole-v0") is None and old_game("PongNoFrameskip-v4") is None


def test_the_emulator_does_not_greet(capfd):
    """Old ids neither; it is told so once for the whole process."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Info)
    make_one(EnvConfig(id="Pong-v4"))[0].close()
    assert not capfd.readouterr().err


def test_ram_is_stacked_only_if_asked_to():
    assert probe_spec(EnvConfig(id="pong", atari={"obs": "ram"})).obs.seen_shape == (128,)
    two = EnvConfig(id="pong", atari={"obs": "ram"}, stack=2)
    assert probe_spec(two).obs.seen_shape == (2, 128)


@pytest.mark.accept(106)
@pytest.mark.parametrize(("full", "count"), [(True, 18), (False, 4)])
def test_the_number_of_actions_comes_from_the_game(full, count):
    spec = probe_spec(EnvConfig(id="breakout", atari={"full_actions": full}))
    assert spec.num_actions == count and spec.id == "ALE/Breakout-v5"


def test_games_are_listed(capsys):
    assert "ALE/Pong-v5" in known_ids() and len(known_ids()) == len(set(known_ids()))
    assert run(["list", "envs"]) == 0
    assert "ALE/MontezumaRevenge-v5" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["ms pacman", "Ms-Pacman", "mspacman-v5", "MsPacman-v5"])
def test_what_else_can_only_be_one_game_is_that_game(name):
    assert settings(env=name).config.env.id == "ALE/MsPacman-v5"
    assert game_of("pong-v6") is None and game_of("CartPole-v1") is None


@pytest.mark.parametrize(
    ("id", "meant"),
    [
        ("ALE/Pogn-v5", "ALE/Pong-v5"),
        ("brekout", "breakout"),
        ("PongDeterministic-v4", "ALE/Pong-v5"),
        ("Breakout-ram-v0", "ALE/Breakout-v5"),
        ("Breakout-ramDeterministic-v4", "ALE/Breakout-v5"),
    ],
)
def test_an_unknown_game_gets_the_nearest_name(id, meant):
    with pytest.raises(LudusError, match="unknown environment") as caught:
        make_one(EnvConfig(id=id))
    assert caught.value.code == "E201" and meant in caught.value.what


def test_a_missing_emulator_names_what_to_install(monkeypatch):
    monkeypatch.setattr(making.names, "emulator_installed", lambda: False)
    monkeypatch.setattr(gym.envs.registration, "registry", {})
    monkeypatch.setattr(gym, "registry", {})
    for id in ("pong", "ALE/Pong-v5", "Pong-v0"):
        with pytest.raises(LudusError, match="ale-py") as caught:
            make_one(EnvConfig(id=id))
        assert caught.value.code == "E501" and "pip install" in caught.value.fix


@pytest.mark.accept(113)
def test_without_a_protocol_a_game_is_saber():
    found = settings()
    env = found.config.env
    assert env.protocol == "saber" and env.stack == 4
    assert env.max_stuck == 18_000 // 4 and env.atari.max_frames == 100 * 60 * 60 * 60
    assert env.atari.full_actions and env.atari.sticky == 0.25 and env.atari.noops == 0
    assert env.atari.life_loss == "ignore" and not env.atari.fire
    assert EnvConfig(id="pong").reward_clip == "none"  # the algorithm's preset clips
    assert found.sources["env.atari.sticky"] == found.sources["env.stack"] == "protocol saber"
    assert EnvConfig(id="pong") == EnvConfig(id="ALE/Pong-v5", protocol="saber")
    assert EnvConfig(id="pong").atari == env.atari and EnvConfig(id="pong").stack == 4


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_one_changed_flag_costs_the_protocol_its_name(name):
    whole = EnvConfig(id="pong", protocol=name)
    facts = whole.score_facts
    assert facts["protocol"] == name and len(facts["protocol_hash"]) == 12
    for flag, value in {
        "skip": 3, "max_pool": False, "size": 42, "gray": False, "sticky": 0.5, "noops": 7,
        "full_actions": not whole.atari.full_actions, "fire": True, "life_loss": "episodic",
        "max_frames": 99, "obs": "ram", "resize": "linear", "obscure": 0.5,
    }.items():  # fmt: skip
        other = EnvConfig(id="pong", protocol=name, atari={flag: value})
        assert getattr(other.atari, flag) == value
        assert other.score_facts["protocol"] == f"{name}*", flag
        assert other.score_facts["protocol_hash"] != facts["protocol_hash"], flag
    for key, value in {
        "max_episode_steps": 100, "max_stuck": 7, "args": {"mode": 1}, "wrappers": [repeated(2)],
    }.items():  # fmt: skip
        other = EnvConfig(id="pong", protocol=name, **{key: value})
        assert other.score_facts["protocol"] == f"{name}*", key
        assert other.score_facts["protocol_hash"] != facts["protocol_hash"], key
    same = EnvConfig(id="pong", protocol=name, atari={"sticky": whole.atari.sticky}, stack=1)
    assert same.score_facts == facts
    shown = EnvConfig(id="pong", protocol=name, args={"render_mode": "rgb_array"})
    assert shown.score_facts == facts  # whoever looks on changes nothing
    two, three = (EnvConfig(id="pong", protocol=name, wrappers=[repeated(n)]) for n in (2, 3))
    assert two.score_facts["protocol_hash"] != three.score_facts["protocol_hash"]
    hashes = {EnvConfig(id="pong", protocol=n).score_facts["protocol_hash"] for n in PROTOCOLS}
    assert len(hashes) == len(PROTOCOLS)


def test_ones_own_values_win_over_the_protocol():
    found = settings("protocol=dopamine", "sticky=0.1", "env.stack=2", "env.max_stuck=50")
    env = found.config.env
    assert (env.atari.sticky, env.stack, env.max_stuck) == (0.1, 2, 50)
    assert not env.atari.full_actions and found.sources["env.atari.noops"] == "protocol dopamine"
    assert found.sources["env.atari.sticky"] == "command line"
    assert from_tree(found.config.tree(), "again") == found.config


@pytest.mark.accept(114)
def test_never_stuck_means_half_an_hour():
    assert settings("env.max_stuck=null").config.env.atari.max_frames == 30 * 60 * 60
    assert settings("env.max_stuck=null", "env.atari.max_frames=5").config.env.atari.max_frames == 5
    assert settings("skip=2").config.env.max_stuck == 9_000


def test_a_dry_run_tells_the_frames(capsys):
    """A preset's steps are steps: under machado they are a quarter more frames than in papers."""
    for given, result in [
        ((), "50M steps of 4 frames: 200M frames"),
        (("protocol=machado",), "50M steps of 5 frames: 250M frames"),
        (("protocol=machado", "frames=200M"), "40M steps of 5 frames: 200M frames"),
    ]:
        assert run(["train", "dqn", "pong", "algo.capacity=100k", *given, "--dry-run"]) == 0
        assert result in capsys.readouterr().out
    assert run(["train", "dqn", "CartPole-v1", "--dry-run"]) == 0
    assert "frames" not in capsys.readouterr().out.rpartition("environment  ")[2]


def test_frames_are_counted_by_the_skip():
    assert settings("frames=1M", env="Pong").config.run.steps == 250_000
    assert settings("frames=1M", "env.protocol=machado").config.run.steps == 200_000
    assert settings("env.atari.skip=2", "frames=1M").config.run.steps == 500_000


def test_max_frames_is_the_games_cap_not_the_runs_length():
    found = settings("max_frames=18k", "steps=2k").config
    assert found.env.atari.max_frames == 18_000 and found.run.steps == 2_000
    with pytest.raises(LudusError, match="E101"):
        settings("max_frames=18k", env="CartPole-v1")


def test_frames_and_steps_of_one_source_contradict_each_other():
    for given in (("frames=1M", "steps=2k"), ("run.steps=2k", "frames=1M")):
        with pytest.raises(LudusError) as caught:
            settings(*given)
        assert caught.value.code == "E104"
        assert caught.value.what == "both frames=1M and steps=2k were given"
        with pytest.raises(LudusError, match="E104"):
            extended(settings().config, given)
    assert extended(settings().config, ["frames=1M"]).config.run.steps == 250_000


@pytest.mark.parametrize(("weak", "strong"), [("steps", "frames"), ("frames", "steps")])
def test_frames_and_steps_of_two_sources_have_a_rank(weak, strong):
    environ = {f"LUDUS_{weak.upper()}": "1M"}
    found = resolve(Request("dqn", "pong", [f"{strong}=400k"], environ=environ))
    assert found.config.run.steps == (100_000 if strong == "frames" else 400_000)
    assert found.sources["run.steps"] == "command line"


@pytest.mark.parametrize(
    "given", ["size=96", "gray=false", "env.atari.resize=nearest", "max_pool=false"]
)
def test_ram_has_no_pictures_to_change(given):
    with pytest.raises(LudusError) as caught:
        settings("env.atari.obs=ram", given)
    assert caught.value.code == "E104" and "no effect" in caught.value.what
    assert "obs=pixels" in caught.value.fix
    assert settings(given).config.env.atari.obs == "pixels"
    assert settings("env.atari.obs=ram", "env.atari.size=84").config.env.atari.obs == "ram"


@pytest.mark.parametrize("id", ["ALE/Combat-v5", "combat", "MazeCrazeNoFrameskip-v4", "Joust-v4"])
def test_games_for_two_players_are_said_to_be_that(id):
    with pytest.raises(LudusError) as caught:
        make_envs(EnvConfig(id=id), seed=1)
    assert caught.value.code == "E201" and "did you mean" not in caught.value.render()
    assert "two or more players" in caught.value.why


@pytest.mark.parametrize(
    ("id", "given", "says"),
    [
        ("CartPole-v1", "env.protocol=saber", "Atari games only"),
        ("ALE/Combat-v5", "env.protocol=saber", "two or more players"),
        ("CartPole-v1", "env.atari.skip=2", "Atari games only"),
        ("Pong-v0", "env.protocol=saber", "ALE/Pong-v5"),
        ("ALE/Pnog-v5", "env.protocol=saber", "ALE/Pong-v5"),
        ("Pong-v4", "sticky=0", "env.atari is not for Pong-v4"),
        ("Pong-v4", "sticky=0", "fix: env.id=ALE/Pong-v5"),
        ("pong", "actions=full", "did you mean  full_actions ?"),
        ("pong", "env.protocol=sabre", "did you mean  saber ?"),
        ("pong", "env.protocol=sabre", "fix: env.protocol=saber   or machado, dqn-2015, dopamine"),
        ("pong", "env.atari.sticky=2", "fix: env.atari.sticky=0.25   (at least 0, less than 1)"),
        ("pong", "env.max_stuck=0", "fix: env.max_stuck=<greater than or equal to 1>"),
        ("pong", "env.num=abc", "fix: env.num=1   or auto"),
        ("pong", "env.atari.life_loss=yes_please", "episodic"),
        ("pong", "env.atari.sticky=1.5", "less than 1"),
        ("pong", "env.atari.stikcy=0.5", "env.atari.sticky"),
        ("pong", "env.atari.max_frames=2147483647", "1073741824"),
        ("CartPole-v1", "env.threads=2", "no effect"),
    ],
)
def test_flags_that_mean_nothing_are_refused(id, given, says):
    with pytest.raises(LudusError) as caught:
        settings(given, env=id)
    assert says in caught.value.render()


def test_groups_are_two_for_native_games_alone():
    assert EnvConfig(id="pong", num=2).group_count == 2
    assert EnvConfig(id="pong", num=1).group_count == 1
    assert EnvConfig(id="pong", num=4, groups=1).group_count == 1
    assert EnvConfig(id="pong", num=4, native=False).group_count == 1
    assert EnvConfig(id="pong", num=4, atari={"obs": "ram"}).group_count == 1
    assert EnvConfig(id="CartPole-v1", num=4).group_count == 1
