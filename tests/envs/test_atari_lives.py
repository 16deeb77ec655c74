"""Lost lives in three ways, scores that roll over; the score is always that of the whole game."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest

from ludus.envs.adapter import Envs, undo_rollover
from ludus.envs.atari.native import Native
from ludus.envs.atari.protocols import AtariConfig
from ludus.envs.backends.serial import allocate
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.envs.spec import ObsCodec
from ludus.types import Discrete, EnvSpec
from tests.envs.recorder import collect
from tests.skips import REASONS

vector_env = pytest.importorskip("ale_py.vector_env", reason=REASONS["atari"])

CODEC = ObsCodec(gym.spaces.Box(0, 255, (1,), np.uint8))
ON, LIFE, OVER = (False, False), (False, True), (True, False)


class Scripted:
    """One environment with scripted answers: (reward, over, life), row by row."""

    def __init__(self, script: Sequence[tuple[float, bool, bool]], lives: bool = True) -> None:
        self.arrays, self.script = allocate(CODEC, 1, 0, lives=lives), list(script)
        self.sent: list[tuple[int, bool]] = []  # action, reset

    def reset(self, seeds):
        self.step = 0

    def send(self, actions, resets, group):
        self.sent.append((int(actions[0]), bool(resets[0])))

    def recv(self, group):
        reward, over, life = self.script[self.step]
        self.step += 1
        self.arrays.obs[0][0] = self.step
        self.arrays.reward[0], self.arrays.over[0] = reward, over
        self.arrays.terminal[0] = over or life
        if self.arrays.life is not None:
            self.arrays.life[0] = life

    def close(self):
        pass


def play(script, lives: bool = True, **how):
    backend = Scripted(script, lives)
    cfg = EnvConfig(id="CartPole-v1", **{k: v for k, v in how.items() if k != "repair"})
    spec = EnvSpec("scripted", CODEC.spec, Discrete(4))
    envs = Envs(cfg, spec, backend, CODEC, seed=1, repair=how.get("repair"))
    return collect(envs, len(script), actions=[[3]] * len(script)), backend


def column(values) -> list[int]:
    return [int(v) for v in values[:, 0]]


@pytest.mark.accept(117)
def test_a_life_ends_the_learners_episode_and_not_the_game():
    got, backend = play([(1, *ON), (2, *LIFE), (4, *ON), (8, *ON), (16, *OVER), (0, *ON)])
    assert column(got.last) == [0, 1, 0, 0, 1, 0]
    assert column(got.first) == [1, 0, 0, 1, 0, 0, 1] and column(got.mask) == [1, 1, 0, 1, 1, 0]
    assert column(got.discount)[:2] == [1, 0] and column(got.dummy) == [0, 0, 1, 0, 0, 1, 0]
    # The dummy row of a lost life: nothing is pressed, nothing is reset, its reward is unseen.
    assert backend.sent[2] == (0, False) and backend.sent[5] == (3, True)
    assert column(got.raw_reward) == column(got.reward) == [1, 2, 0, 8, 16, 0]
    assert [(e.score, e.length, e.end) for e in got.episodes] == [(31, 5, "terminated")]


def test_a_game_that_ends_on_the_dummy_row_is_followed_by_another():
    got, backend = play([(1, *ON), (2, *LIFE), (4, *OVER), (0, *ON), (1, *ON)])
    assert column(got.mask) == [1, 1, 0, 0, 1] and column(got.last) == [0, 1, 0, 0, 0]
    assert column(got.first) == [1, 0, 0, 0, 1, 0] and column(got.dummy) == [0, 0, 1, 1, 0, 0]
    assert [reset for _, reset in backend.sent] == [False, False, False, True, False]
    assert [(e.score, e.length, e.end) for e in got.episodes] == [(7, 3, "terminated")]


def test_a_life_lost_on_a_dummy_row_or_a_last_one_ends_nothing_more():
    got, _ = play([(0, *LIFE), (0, *LIFE), (0, *ON)], max_stuck=3)
    assert column(got.last) == [1, 0, 1] and column(got.mask) == [1, 0, 1]
    assert [e.end for e in got.episodes] == ["truncated"]
    cut, backend = play([(0, *LIFE), (0, *ON)], max_stuck=1)
    assert [e.end for e in cut.episodes] == ["truncated"] and backend.sent[1][1]


def test_a_barrier_tells_of_a_game_that_waits_on_a_dummy_row():
    backend = Scripted([(5, *LIFE)])
    spec = EnvSpec("scripted", CODEC.spec, Discrete(4))
    envs = Envs(EnvConfig(id="CartPole-v1"), spec, backend, CODEC, seed=1)
    collect(envs, 1)
    envs.reset(1)
    assert [(e.score, e.end) for e in envs.observe().episodes] == [(5, "checkpoint")]
    envs.send(np.array([3]))
    assert backend.sent[-1] == (3, False)  # nothing of it is left


@pytest.mark.accept(115)
def test_scores_that_roll_over_are_repaired_in_evaluation_only():
    script = [(999_900, *ON), (-999_950, *ON), (20, *OVER)]
    got, _ = play(script, lives=False, repair=undo_rollover)
    assert got.episodes[0].score == 999_970 and got.raw_reward[1, 0] == 50
    plain, _ = play(script, lives=False)
    assert plain.episodes[0].score == -30
    many = np.array([-9_999_990.0, -899_999.0, -1_000_000.0, 3.0])
    undo_rollover(many)
    assert many.tolist() == [10.0, -899_999.0, 0.0, 3.0]


@pytest.fixture
def totals(monkeypatch):
    """The sum of all rewards of a pool's first environment, up to the end of its first game."""
    found = {"score": 0.0, "over": False}

    class Summing(vector_env.AtariVectorEnv):
        def recv(self):
            answer = super().recv()
            if not found["over"]:
                found["score"] += float(answer[1][0])
                found["over"] = bool(answer[2][0])
            return answer

    monkeypatch.setattr(vector_env, "AtariVectorEnv", Summing)
    return found


def breakout(life_loss: str, rows: int, native: bool = True):
    """Random play, which loses its five lives within 200 steps."""
    flags = {"sticky": 0.0, "life_loss": life_loss}
    cfg = EnvConfig(id="breakout", protocol="dopamine", atari=flags, native=native)
    rng = np.random.default_rng(0)
    with make_envs(cfg, seed=1) as envs:
        return collect(envs, rows, actions=[[rng.integers(4)] for _ in range(rows)])


@pytest.mark.accept(117)
def test_soft_terminals_change_discounts_alone(totals):
    plain, soft = breakout("ignore", 184), breakout("soft", 184)
    assert np.array_equal(plain.obs, soft.obs) and np.array_equal(plain.last, soft.last)
    assert np.flatnonzero(plain.discount == 0).tolist() == [183]
    lost = np.flatnonzero(soft.discount == 0)
    assert len(lost) == 5 and lost[-1] == 183 and soft.mask.all()
    assert soft.episodes == plain.episodes and soft.episodes[0].score == totals["score"]


@pytest.mark.accept(117)
def test_episodic_lives_end_episodes_but_not_the_score(totals):
    got = breakout("episodic", 260)
    game = got.episodes[0]
    rows = game.length
    last = np.flatnonzero(got.last[:rows, 0])
    assert len(last) == 5 and last[-1] == rows - 1 and (got.discount[last] == 0).all()
    assert (~got.mask[last[:-1] + 1]).all() and got.first[last[:-1] + 2].all()
    assert game.end == "terminated" and game.score == totals["score"] > 0
    scalar = breakout("episodic", 260, native=False)
    for name in ("obs", "last", "first", "mask", "discount", "raw_reward"):
        assert np.array_equal(getattr(got, name)[: rows + 1], getattr(scalar, name)[: rows + 1])
    assert scalar.episodes[0] == game


class ScriptedPool:
    """An AtariVectorEnv of one environment: scripted (terminated, truncated, lives) by row."""

    script: ClassVar[list[tuple[bool, bool, int]]] = []

    def __init__(self, game, num, **options):
        self.rows, self.cuts = iter(self.script), []

    def _frame(self):
        return np.zeros((1, 1, 84, 84), np.uint8)

    def reset(self, *, seed=None, options=None):
        self.cuts += [] if options is None else [options["reset_mask"].tolist()]
        return self._frame(), {"lives": np.array([5], np.int32)}

    def send(self, actions):
        pass

    def recv(self):
        over, cut, lives = next(self.rows)
        flags = np.array([over]), np.array([cut])
        return self._frame(), np.zeros(1, np.int32), *flags, {"lives": np.array([lives], np.int32)}


def watch(monkeypatch, script, resets, life_loss="soft"):
    """(terminal, over) by row, and the pool."""
    monkeypatch.setattr(ScriptedPool, "script", script)
    monkeypatch.setattr(vector_env, "AtariVectorEnv", ScriptedPool)
    arrays = allocate(ObsCodec(gym.spaces.Box(0, 255, (84, 84), np.uint8)), 1, 0)
    native = Native("pong", AtariConfig(life_loss=life_loss), arrays, [slice(0, 1)], threads=1)
    native.reset([1])
    result = []
    for reset in resets:
        native.send(np.zeros(1, int), np.array([reset]), 0)
        native.recv(0)
        result.append((bool(arrays.terminal[0]), bool(arrays.over[0])))
    return result, native.pools[0]


def test_no_life_left_is_the_end_and_not_a_loss(monkeypatch):
    script = [(False, False, 4), (False, False, 1), (False, False, 0), (True, False, 0)]
    result, _ = watch(monkeypatch, script, [False] * 4)
    assert result == [(True, False), (True, False), (False, False), (True, True)]
    assert watch(monkeypatch, script, [False] * 4, "ignore")[0][:3] == [(False, False)] * 3


def test_a_new_game_with_fewer_lives_than_the_old_one_has_lost_none(monkeypatch):
    script = [(False, False, 7), (True, False, 7), (False, False, 5), (False, False, 4)]
    result, pool = watch(monkeypatch, script, [False, False, True, False])
    assert result == [(False, False), (True, True), (False, False), (True, False)]
    assert pool.cuts == []  # it restarted by itself, and once is enough


def test_a_game_that_is_cut_is_restarted_once_and_shows_no_end(monkeypatch):
    script = [(False, False, 5), (True, False, 3), (False, False, 4)]
    result, pool = watch(monkeypatch, script, [False, True, False])
    assert pool.cuts == [[True]]
    assert result == [(False, False), (False, False), (True, False)]  # 5 lives again, then 4
