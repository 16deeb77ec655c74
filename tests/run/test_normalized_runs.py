"""Running normalisation from the first row to the last evaluation: what is measured, what is saved
with the weights, and that whoever plays the agent sees observations through it, frozen."""

from __future__ import annotations

import csv
import multiprocessing
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from ludus import agents, api
from ludus.evals.agent import Agent, load_agent
from ludus.evals.evaluate import evaluate_policy
from ludus.fleets.processes.transport import WeightsBoard
from ludus.run import live_evaluation as live
from ludus.settings.trust import Trust
from tests.contract.tiny import learned_values, run, tiny
from tests.run.test_live_evaluation import Reports
from tests.skips import needs_mujoco
from tools import pack_agent

pytestmark = needs_mujoco
NORMAL = ("env.normalize.obs=true", "env.normalize.reward=true", "env.normalize.gamma=0.9")
WIDE = ("log_std=1.0",)  # most actions are drawn beyond the box
EPISODES = 3
LENGTH = 8  # contacts amplify the rounding of a batch: longer episodes part by themselves
SEEN: list[tuple[np.ndarray, np.ndarray, float, bool]] = []  # obs, action, reward, over


def logged() -> gym.Env[Any, Any]:
    """HalfCheetah as gymnasium makes it, with a record of all that goes in and comes out."""
    return Logged(gym.make("HalfCheetah-v5", max_episode_steps=LENGTH))


class Logged(gym.Wrapper):
    def reset(self, **options: Any) -> Any:
        self.obs, info = self.env.reset(**options)
        return self.obs, info

    def step(self, action: Any) -> Any:
        before = self.obs
        self.obs, reward, terminated, truncated, info = self.env.step(action)
        SEEN.append((before, np.array(action), float(reward), terminated or truncated))
        return self.obs, reward, terminated, truncated, info


@pytest.mark.accept(108)
def test_statistics_are_those_of_raw_rows_and_actions_are_clipped(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # the first simulator that a function makes leaves its log here
    SEEN.clear()
    name = f"{__name__}:logged"
    cfg = tiny("ppo", name, "steps=200", "env.num=1", "rollout=25", *NORMAL, *WIDE)
    path = run(cfg, tmp_path).path
    obs, actions, rewards, over = (np.array(x) for x in zip(*SEEN, strict=True))
    returns, now = [], 0.0
    for reward, ends in zip(rewards, over, strict=True):
        now = 0.9 * now + reward
        returns.append(now)
        now = 0.0 if ends else now
    found = load_agent(path, trust=Trust(whole=True)).net.state_dict()
    assert found["normalizer.count_0"] == len(SEEN) >= 200
    np.testing.assert_allclose(found["normalizer.mean_0"], obs.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["normalizer.var_0"], obs.var(0), rtol=1e-4, atol=1e-6)
    assert float(found["normalizer.var_return"]) == pytest.approx(np.var(returns), rel=1e-4)
    assert np.abs(actions).max() == 1.0, "the box of HalfCheetah"
    assert (np.abs(actions) == 1.0).mean() > 0.3, "they were drawn far beyond it"


@pytest.fixture(scope="module", params=["inline", "processes"])
def trained(request, tmp_path_factory) -> Path:
    """A short run whose policy depends on its observations."""
    more = (f"run.fleet={request.param}", "env.num=2", "steps=320", f"eval.episodes={EPISODES}")
    more += ("actor.lockstep=on",) if request.param == "processes" else ()
    more += ("lr=1e-2", f"env.max_episode_steps={LENGTH}", *NORMAL)
    cfg = tiny("ppo", "HalfCheetah-v5", *more)
    return api.train(cfg, runs_dir=tmp_path_factory.mktemp("runs"), quiet=True).path


def played(agent: Agent, seeds: list[int], *, normal: bool = True) -> list[float]:
    """Raw returns by gymnasium, the stored statistics and the network: none of our machinery."""
    kept = agent.net.state_dict()
    scores = []
    for seed in seeds:
        env, total = gym.make("HalfCheetah-v5", max_episode_steps=LENGTH), 0.0
        obs, _ = env.reset(seed=seed)
        for _ in range(LENGTH):
            x = torch.as_tensor(obs, dtype=torch.float32)
            if normal:
                deviation = (kept["normalizer.var_0"] + 1e-8).sqrt()
                x = ((x - kept["normalizer.mean_0"]) / deviation).clamp(-10, 10).float()
            with torch.no_grad():
                action = agent.net["online"].dist(x[None]).mode()[0].clamp(-1, 1)
            obs, reward, *_ = env.step(action.numpy())
            total += float(reward)
        scores.append(total)
        env.close()
    return scores


def by_hand(path: Path) -> list[float]:
    """agent.act in a loop of one's own."""
    agent = api.load(path)
    env, scores = agent.make_env(), []
    for seed in agent.evaluate(EPISODES).seeds:
        agent.reset()
        (obs, _), total, over = env.reset(seed=seed), 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(agent.act(obs))
            total, over = total + float(reward), terminated or truncated
        scores.append(total)
    env.close()
    return scores


def of_the_run(path: Path) -> list[float]:
    """The evaluation at the run's end, on seeds of its own, of which the mean is kept."""
    with (path / "evals.csv").open() as file:
        return [float(list(csv.DictReader(file))[-1]["mean"])]


def of_the_file(path: Path) -> list[float]:
    """The model alone, elsewhere."""
    lone = path.parent / "elsewhere.safetensors"
    shutil.copyfile(path / "checkpoints/last/model.safetensors", lone)
    return api.load(lone).evaluate(EPISODES).scores


def of_the_live_evaluator(path: Path) -> list[float]:
    """Its process has a net of its own, which gets the learner's weights through shared memory."""
    agent = load_agent(path)
    evaluator = live.LiveEvaluator.__new__(live.LiveEvaluator)
    evaluator._start = lambda: None
    evaluator.__init__(agent.cfg, agent.algorithm, agent.net, Reports())
    net, board = live._net(evaluator.job), WeightsBoard(agent.net, multiprocessing)
    board.publish(agent.net, 5)
    board.pull(net)
    seed = agent.eval_seed()
    got = evaluate_policy(
        agent.algorithm, net, evaluator.job.env, episodes=EPISODES, seed=seed, epsilon=0.0
    )
    return got.scores


WAYS: dict[str, Callable[[Path], list[float]]] = {
    "load": lambda path: api.load(path).evaluate(EPISODES).scores,
    "eval": lambda path: api.evaluate(path, episodes=EPISODES).scores,
    "act": by_hand,
    "run": of_the_run,
    "file": of_the_file,
    "live": of_the_live_evaluator,
}


@pytest.mark.accept(108)
@pytest.mark.parametrize("way", WAYS)
def test_evaluation_sees_observations_through_the_saved_statistics(trained, way) -> None:
    agent = load_agent(trained)
    seed = agent.cfg.run.seed if way == "run" else None
    seeds = agent.evaluate(EPISODES, seed=seed).seeds
    want, bare = played(agent, seeds), played(agent, seeds, normal=False)
    got = WAYS[way](trained)
    if len(got) == 1:
        want, bare = [np.mean(want)], [np.mean(bare)]
    assert got == pytest.approx(want, rel=1e-3, abs=1e-3)
    assert got != pytest.approx(bare, rel=1e-2, abs=1e-2), "without them it would play otherwise"


@pytest.mark.accept(108)
def test_a_packed_agent_brings_its_statistics(trained, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(pack_agent, "AGENTS", tmp_path)
    monkeypatch.setattr(agents, "_HOME", tmp_path)
    pack_agent.pack(trained, "cheetah")
    scores = api.load("agent:cheetah").evaluate(EPISODES).scores
    assert scores == load_agent(trained).evaluate(EPISODES).scores


@pytest.mark.accept(108)
def test_evaluation_leaves_the_statistics_alone_and_training_goes_on_with_them(
    trained, tmp_path
) -> None:
    agent = load_agent(trained)
    before = {k: v.clone() for k, v in agent.net["normalizer"].state_dict().items()}
    assert before["count_0"] >= 320 and before["count_return"] >= 320
    agent.evaluate(EPISODES)
    env = agent.make_env()
    agent.act(env.reset(seed=0)[0])
    env.close()
    for key, value in agent.net["normalizer"].state_dict().items():
        assert torch.equal(value, before[key]), key
    copy = shutil.copytree(trained, tmp_path / trained.name, symlinks=True)
    api.resume(copy, steps="+100", quiet=True)
    after = load_agent(copy)
    assert after.net.state_dict()["normalizer.count_0"] == after.step > before["count_0"]


@pytest.mark.accept(108)
@pytest.mark.parametrize(("end", "worth"), [("Truncation", 10.0), ("Termination", 1.0)])
def test_a_time_limit_is_bootstrapped_in_normalised_rewards(tmp_path, end, worth) -> None:
    """Reward 1 a step, ten steps, gamma 0.9: before the last step worth 10 if merely cut, else 1,
    in units of the deviation of the return."""
    more = ("steps=6000", "rollout=20", "epochs=6", "lr=1e-2->1e-3", "gamma=0.9", "env.num=4")
    cfg = tiny("ppo", f"ludus/{end}-v0", *more, *NORMAL[1:])
    path = run(cfg, tmp_path).path
    kept = load_agent(path).net.state_dict()
    deviation = float(kept["normalizer.var_return"]) ** 0.5
    returns = [sum(0.9**k for k in range(n + 1)) for n in range(10)]
    assert deviation == pytest.approx(np.std(returns), rel=0.01)
    last = learned_values(path, torch.eye(10))[-1] * deviation
    assert last == pytest.approx(worth, abs=0.12 * worth + 0.2)
