"""Atari scores: stuck games end when they must, scores at 5 and 30 minutes, all episodes kept."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch
from torch import nn

from ludus.collect.collector import Collected
from ludus.contract import Defaults, Fifo, Plan, Unroll
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.evals.evaluate import EpisodeRecorder, evaluate_policy, marks_of
from ludus.types import Chunk, EpisodeEnd, Rows
from tests.cli.conftest import call
from tests.contract.tiny import run, tiny
from tests.skips import REASONS

pytest.importorskip("ale_py", reason=REASONS["atari"])
vector_env = pytest.importorskip("ale_py.vector_env", reason=REASONS["atari"])


class Still(Defaults):
    """Presses nothing; or `press` on the steps in `when`, counted from 0."""

    plan = Plan(view=Unroll(1), sampler=Fifo())

    def __init__(self, press: int = 0, when: range = range(0)) -> None:
        self.press, self.when, self.t = press, when, 0

    def act(self, net, step, state, ctx):
        pressed = self.press if self.t in self.when else 0
        self.t += 1
        return torch.full(step.first.shape, pressed), {}, state


def nothing() -> nn.ModuleDict:
    return nn.ModuleDict({"online": nn.Linear(1, 1)})


@pytest.mark.accept(144)
def test_a_stuck_game_ends_after_18000_frames_and_not_before():
    """SABER: 5 minutes without a reward. 4,500 steps of 4 frames; on step 4,499 it still runs.
    Three games in which nothing happens to who presses nothing, side by side to save time."""
    games = ("breakout", "montezuma_revenge", "tennis")
    small = {"protocol": "saber", "threads": 1, "atari": {"size": 8}}
    made = [make_envs(EnvConfig(id=game, **small), seed=1) for game in games]
    ended = {game: [] for game in games}
    for envs in made:
        envs.reset()
    for step in range(1, 4502):
        for envs in made:
            envs.send(np.zeros(1, np.int64))
        for game, envs in zip(games, made, strict=True):
            got = envs.recv()
            assert got.raw_reward[0] == 0
            ended[game] += [(step * 4, e.end, e.length * 4, e.score) for e in got.episodes]
            if step == 4501:
                assert got.first[0], "a new game"
    for envs in made:
        envs.close()
    assert ended == {game: [(18_000, "truncated", 18_000, 0.0)] for game in games}


def test_a_reward_starts_the_count_again():
    """Pong served nobody: each point lost is a reward, so the game goes on to its end."""
    env = EnvConfig(id="pong", protocol="saber", max_stuck=400, threads=1)
    short = EnvConfig(id="pong", protocol="saber", max_stuck=30, threads=1)
    whole = evaluate_policy(Still(), nothing(), env, episodes=1, seed=1)
    assert whole.scores == [-21.0] and whole.ends == ["terminated"] and whole.lengths[0] > 400
    cut = evaluate_policy(Still(), nothing(), short, episodes=1, seed=1)
    assert cut.ends == ["truncated"] and cut.scores == [0.0] and cut.lengths == [30]


@pytest.mark.accept(115)
@pytest.mark.parametrize("repaired", [True, False])
def test_an_evaluation_corrects_scores_that_roll_over(monkeypatch, repaired):
    """A counter of six digits passes its end on the second step. Training keeps the loss."""
    rewards = [999_900, -999_950, 20]

    class Rolling(vector_env.AtariVectorEnv):
        step = -1

        def recv(self):
            self.step += 1
            obs, reward, over, cut, info = super().recv()
            reward[:] = rewards[self.step % 4] if self.step % 4 < 3 else 0
            over[:] = self.step % 4 == 2
            return obs, reward, over, cut, info

    monkeypatch.setattr(vector_env, "AtariVectorEnv", Rolling)
    env = EnvConfig(id="pong", protocol="saber", threads=1)
    if repaired:
        got = evaluate_policy(Still(), nothing(), env, episodes=1, seed=1)
        assert got.scores == [999_970.0] and got.ends == ["terminated"]
        return
    with make_envs(env, seed=1) as envs:
        envs.reset()
        for _ in rewards:
            envs.send(np.zeros(1, np.int64))
            ended = envs.recv().episodes
    assert [e.score for e in ended] == [-30.0]


@pytest.mark.accept(144)
def test_marks_are_at_frames_whatever_the_skip():
    assert marks_of(EnvConfig(id="pong")) == {"5min": 4500, "30min": 27_000}
    assert marks_of(EnvConfig(id="pong", protocol="machado")) == {"5min": 3600, "30min": 21_600}
    assert marks_of(EnvConfig(id="CartPole-v1")) == {}


def chunk_of(reward, last, mask, episodes) -> Collected:
    t, n = np.shape(reward)
    tensors = {"raw_reward": torch.tensor(reward, dtype=torch.float32)}
    tensors |= {"last": torch.tensor(last), "mask": torch.tensor(mask)}
    blank = torch.zeros(t, n)
    fields = dict.fromkeys(("obs", "action", "reward", "discount", "first"), blank)
    return Collected(Chunk(Rows(**fields, **tensors)), episodes, 0.0, 0.0)


@pytest.mark.accept(144)
def test_scores_at_the_marks_by_hand():
    """One slot, marks after 2 and 4 steps: an episode of 3 steps, a dummy, one of 5, cut twice."""
    recorder = EpisodeRecorder(1, {"a": 2, "b": 4})
    yes, no = [True], [False]
    first = [EpisodeEnd(0, 7.0, 3, "terminated")]
    rows = ([[1], [2], [4], [9], [1]], [no, no, yes, no, no], [yes, yes, yes, no, yes])
    recorder.add(chunk_of(*rows, first))
    second = [EpisodeEnd(0, 31.0, 5, "truncated")]
    recorder.add(chunk_of([[2], [4], [8], [16]], [no, no, no, yes], [yes] * 4, second))
    assert [at for _, at in recorder.found[0]] == [{"a": 3.0, "b": 7.0}, {"a": 3.0, "b": 15.0}]
    assert [ended.score for ended, _ in recorder.found[0]] == [7.0, 31.0]


def test_what_a_checkpoint_cut_is_no_episode():
    recorder = EpisodeRecorder(1, {})
    cut, whole = EpisodeEnd(0, 5.0, 2, "checkpoint"), EpisodeEnd(0, 6.0, 3, "terminated")
    recorder.add(Collected(None, [cut, whole], 0.0, 0.0))
    assert [ended.score for ended, _ in recorder.found[0]] == [6.0]


@pytest.fixture(scope="module")
def pong(tmp_path_factory):
    """A run that has hardly learned, but is one."""
    small = ("steps=40", "env.num=2", "env.atari.size=36", "warmup=20", "capacity=100")
    return run(tiny("dqn", "pong", *small), tmp_path_factory.mktemp("runs")).path


@pytest.mark.accept(144)
@pytest.mark.accept(145)
def test_a_saber_evaluation_keeps_everything(pong):
    """Short games (`max_frames`), so the label has a star; the rest is as it would be."""
    words = ("env.atari.max_frames=200", "--episodes", "3", "--no-video")
    answer = call("eval", pong, "--protocol", "saber", *words, "--json")
    assert answer.code == 0, answer.err
    result = answer.json
    assert len(set(result["seeds"])) == 3 and result["lengths"] == [50] * 3
    assert result["protocol"] == "saber*" and len(result["protocol_hash"]) == 12
    assert result["mean"] == sum(result["scores"]) / 3 and {"median", "std"} <= set(result)
    assert set(result["by_length"]) == {"5min", "30min", "full"}
    assert (
        result["by_length"]["full"]["mean"] == result["mean"] == result["by_length"]["5min"]["mean"]
    )
    written = pong / "eval" / f"saber-{result['protocol_hash']}-{result['step']}.json"
    kept = json.loads(written.read_text())
    assert kept["scores"] == result["scores"] and kept["protocol_hash"] == result["protocol_hash"]
    rows = list(csv.DictReader(written.with_suffix(".csv").open()))
    assert [int(r["seed"]) for r in rows] == result["seeds"] and len(rows) == 3
    assert [float(r["score_full"]) for r in rows] == [float(r["score"]) for r in rows]
    assert {"score_5min", "score_30min", "length", "end"} <= set(rows[0])
    shown = call("eval", pong, "--protocol", "saber", *words).out
    assert "at 5 minutes" in shown and "saber*" in shown and str(written) in shown
