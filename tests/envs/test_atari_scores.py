"""B6 from end to end: scores are the game's own points, what is learned from is clipped.

On Ms. Pac-Man, where every dot is worth 10. The oracle is gymnasium's own environment, which plays
the same actions again.
"""

from __future__ import annotations

import csv
from collections import defaultdict

import gymnasium as gym
import numpy as np
import pytest

import ludus
from ludus.envs.adapter import Envs
from ludus.learn.learner import Learner
from ludus.replay.replay_store import ReplayStore
from tests.skips import REASONS

ale_py = pytest.importorskip("ale_py", reason=REASONS["atari"])

STEPS = 150  # of a game, after 65 that nothing happens in
SETTINGS = {
    "steps": 610, "warmup": 400, "algo.batch": 8, "capacity": 1_000, "env.num": 2,
    "algo.torso": {"kind": "nips", "hidden": 8}, "algo.n_step": 1, "run.save_replay": "off",
    "env.atari.sticky": 0.0, "env.atari.max_frames": 4 * STEPS, "eval.episodes": 2,
    "eval.epsilon": 1.0, "log.tensorboard": False,
}  # fmt: skip


@pytest.fixture
def seen(monkeypatch):
    """What passes on its way: actions by (role, env), stored rewards, rewards learned from."""
    found = {"actions": defaultdict(list), "raw": [], "stored": [], "learned": []}
    send, add, learn = Envs.send, ReplayStore.add, Learner.learn

    def watched_send(self, actions, group=0):
        for env, action in enumerate(np.asarray(actions), self.groups[group].start):
            found["actions"][self._role, env].append(int(action))
        return send(self, actions, group)

    def watched_add(self, chunk):
        found["stored"].append(chunk.rows.reward.numpy().copy())
        found["raw"].append(chunk.rows.raw_reward.numpy().copy())
        return add(self, chunk)

    def watched_learn(self, sample, values):
        found["learned"].append(sample.batch.reward.numpy().copy())
        return learn(self, sample, values)

    monkeypatch.setattr(Envs, "send", watched_send)
    monkeypatch.setattr(ReplayStore, "add", watched_add)
    monkeypatch.setattr(Learner, "learn", watched_learn)
    return found


@pytest.fixture(scope="module")
def points():
    """The score of a game with these actions, by somebody else's environment."""
    options = {"frameskip": 4, "repeat_action_probability": 0.0, "full_action_space": True}
    gym.register_envs(ale_py)
    env = gym.make("ALE/MsPacman-v5", **options)

    def play(actions: list[int]) -> float:
        env.reset()
        return sum(float(env.step(action)[1]) for action in actions)

    yield play
    env.close()


@pytest.mark.parametrize(("native", "clip"), [(True, "sign"), (False, "clamp")])
def test_scores_are_raw_and_learning_is_clipped(seen, points, native, clip, tmp_path):
    settings = {**SETTINGS, "env.native": native, "env.reward_clip": clip}
    cfg = ludus.config("dqn", "ms_pacman", **settings)
    assert cfg.env.native_atari == native
    run = ludus.train(cfg, runs_dir=tmp_path, quiet=True)

    with (run.path / "episodes.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["end"] != "checkpoint"]
    games, result = [], [float(row["score"]) for row in rows]
    for row in rows:
        assert int(row["length"]) == STEPS
        stream = seen["actions"]["env", int(row["slot"])]
        games.append(points(stream[:STEPS]))
        del stream[: STEPS + 1]  # and the dummy row between two games
    assert len(result) == 4 and result == games
    assert run.score == pytest.approx(np.mean(result))

    with (run.path / "evals.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert {k: row[k] for k in ("protocol", "protocol_hash")} == cfg.env.score_facts
    played = [points(seen["actions"]["eval", env][:STEPS]) for env in (0, 1)]
    assert float(row["mean"]) == np.mean(played)
    assert (float(row["min"]), float(row["max"])) == (min(played), max(played))

    raw, stored, learned = (np.concatenate([x.ravel() for x in seen[k]])
                            for k in ("raw", "stored", "learned"))  # fmt: skip
    assert raw.sum() >= sum(result) and raw.sum() >= 10 * stored.sum() > 0
    assert np.array_equal(stored, np.clip(raw, -1, 1))
    assert set(np.unique(stored)) == set(np.unique(learned)) == {0.0, 1.0}
