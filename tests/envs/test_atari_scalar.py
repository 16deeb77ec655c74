"""What only the scalar path has: RAM, ways to resize, rooms, modes, old ids, workers."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from ludus.envs.atari.protocols import AtariConfig
from ludus.envs.atari.resize import Resizer
from ludus.envs.atari.scalar import AtariGame, make_game
from ludus.envs.backends.serial import Serial
from ludus.envs.backends.workers import Workers
from ludus.envs.config import EnvConfig, WrapperConfig
from ludus.envs.make import make_envs, make_one, probe_spec
from ludus.errors import LudusError
from tests.envs.recorder import collect


@pytest.mark.accept(110)
def test_memory_instead_of_pixels():
    cfg = EnvConfig(id="pong", atari={"obs": "ram", "sticky": 0.0}, num=2)
    assert cfg.stack == 1 and not cfg.native_atari
    with make_envs(cfg, seed=1) as envs:
        assert isinstance(envs._backend, Serial)
        assert envs.spec.obs.shape == (128,) and envs.spec.obs.layout is None
        got = collect(envs, 5)
    assert got.obs.dtype == np.uint8 and (got.obs[0] != got.obs[-1]).any()


@pytest.mark.accept(110)
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_other_ways_to_resize(mode):
    cfg = EnvConfig(id="pong", atari={"resize": mode, "sticky": 0.0})
    with make_envs(cfg, seed=1) as envs:
        assert isinstance(envs._backend, Serial)
        got = collect(envs, 3)
    with make_envs(EnvConfig(id="pong", atari={"sticky": 0.0}), seed=1) as envs:
        area = collect(envs, 3)
    assert got.obs.shape == area.obs.shape == (4, 1, 84, 84)
    differs = (got.obs != area.obs).mean()
    assert 0 < differs < 0.2  # the same picture, other edges


def test_resizing_by_hand():
    screen = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10
    area = Resizer(4, 6, 2, "area")(screen)
    means = [[screen[2 * i : 2 * i + 2, 3 * j : 3 * j + 3].mean() for j in (0, 1)] for i in (0, 1)]
    assert area.tolist() == np.rint(means).tolist()
    assert Resizer(4, 6, 2, "nearest")(screen).tolist() == screen[::2, ::3].tolist()
    # Centres of the new pixels: rows 0.5 and 2.5, columns 1 and 4.
    linear = Resizer(4, 6, 2, "linear")(screen)
    assert linear.tolist() == [[40, 70], [160, 190]]
    colours = Resizer(4, 6, 2, "area")(np.stack([screen, screen // 2, screen], -1))
    assert colours.shape == (2, 2, 3) and np.array_equal(colours[..., 0], area)


class FakeEmulator:
    """Walks through rooms, one a frame; byte 3 of its memory says where it is."""

    class Press:
        name = "NOOP"

    def __init__(self, rooms: list[int]) -> None:
        self.rooms, self.frame = rooms, 0

    def getRAM(self):  # noqa: N802
        memory = np.zeros(128, np.uint8)
        memory[3] = self.rooms[min(self.frame, len(self.rooms) - 1)]
        return memory

    def getRAMSize(self):  # noqa: N802
        return 128

    def getScreenDims(self):  # noqa: N802
        return 210, 160

    def getLegalActionSet(self):  # noqa: N802
        return [self.Press()]

    getMinimalActionSet = getLegalActionSet  # noqa: N815

    def act(self, action):
        self.frame += 1
        return 0

    def lives(self):
        return 1

    def game_over(self):
        return self.frame >= len(self.rooms) - 1


def fake_game(rooms: list[int]) -> gym.Env:
    """Enough of an AtariEnv for AtariGame to wrap."""

    class Game(gym.Env):
        action_space, observation_space = gym.spaces.Discrete(1), gym.spaces.Discrete(1)
        ale = FakeEmulator(rooms)

        def reset(self, *, seed=None, options=None):
            self.ale.frame = 0
            return 0, {}

    return Game()


@pytest.mark.accept(121)
def test_rooms_are_counted_once_each():
    game = AtariGame(fake_game([1, 1, 2, 2, 1, 7, 7]), AtariConfig(obs="ram", skip=2), 3)
    for _ in range(2):  # a new game counts anew
        game.reset(seed=0)
        result = [game.step(0)[4] for _ in range(3)]
        assert result == [{}, {}, {"rooms": 3}]


@pytest.mark.accept(121)
@pytest.mark.parametrize("id", ["montezuma_revenge", "pitfall"])
def test_rooms_of_a_real_game_reach_its_episode(id):
    cfg = EnvConfig(id=id, native=False, atari={"max_frames": 12, "sticky": 0.0})
    with make_envs(cfg, seed=1) as envs:
        got = collect(envs, 4)
    assert [dict(e.info) for e in got.episodes] == [{"rooms": 1.0}]
    assert not make_game("pong", AtariConfig(), {})._rooms  # other games have none


def test_old_ids_are_gymnasiums_own():
    cfg = EnvConfig(id="Pong-v4")
    assert cfg.protocol is None and cfg.atari is None and cfg.score_facts == {}
    spec = probe_spec(cfg)
    assert spec.id == "Pong-v4" and spec.obs.shape == (210, 160, 3) and spec.num_actions == 6
    with make_envs(cfg, seed=1) as envs:
        assert collect(envs, 2).obs.shape == (3, 1, 210, 160, 3)


def test_modes_rendering_and_wrappers_take_the_scalar_path():
    cfg = EnvConfig(id="space_invaders", args={"mode": 4, "render_mode": "rgb_array"})
    assert not cfg.native_atari
    env, limit = make_one(cfg)
    try:
        obs, _ = env.reset(seed=1)
        assert obs.shape == (84, 84) and limit is None
        assert env.render().shape == (210, 160, 3)
    finally:
        env.close()
    wrapped = EnvConfig(id="pong", wrappers=(WrapperConfig(name="Obscure"),))
    assert not wrapped.native_atari


def test_an_argument_that_a_flag_decides_is_refused():
    with pytest.raises(LudusError, match="frameskip") as caught:
        make_one(EnvConfig(id="pong", args={"frameskip": 2}))
    assert caught.value.code == "E104" and "env.atari.skip" in caught.value.fix


def test_noops_are_drawn_from_none_to_the_most():
    game = make_game("pong", AtariConfig(noops=3, sticky=0.0), {})
    game.reset(seed=1)
    ale, seen = game._ale, set()
    for _ in range(40):
        game.reset()
        seen.add(ale.getEpisodeFrameNumber())
    game.close()
    assert seen == {0, 1, 2, 3}


def test_workers_play_games_with_lives():
    flags = {"life_loss": "episodic", "sticky": 0.0}
    cfg = EnvConfig(id="breakout", protocol="dopamine", num=1, atari=flags, workers=1)
    with make_envs(cfg, seed=1) as envs:
        assert isinstance(envs._backend, Workers)
        rng = np.random.default_rng(0)
        got = collect(envs, 60, actions=[[rng.integers(4)] for _ in range(60)])
    assert got.last.any() and not got.episodes and (~got.mask).any()


@pytest.mark.accept(111)
def test_a_quarter_of_all_frames_sticks():
    """Each frame is told from two twins without luck: one takes the new action, one the old."""
    game = make_game("breakout", AtariConfig(skip=1, obs="ram", sticky=0.25), {})
    twin = make_game("breakout", AtariConfig(skip=1, obs="ram", sticky=0.0), {})
    game.reset(seed=1)
    twin.reset(seed=1)
    rng = np.random.default_rng(0)
    before, stuck, result = 0, 0, 0
    for _ in range(900):
        action = int(rng.choice([3, 4]))  # right or left
        state = game._ale.cloneState()
        memories = []
        for press in (action, before):
            twin._ale.restoreState(state)
            memories.append(twin.step(press)[0])
        memory, _, over, _, _ = game.step(action)
        assert not over
        if not np.array_equal(*memories):
            result += 1
            stuck += np.array_equal(memory, memories[1])
        before = action if np.array_equal(memory, memories[0]) else before
    assert result > 200 and 0.18 < stuck / result < 0.32
