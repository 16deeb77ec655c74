"""One run of stable-baselines3 on a MuJoCo task with the settings of its RL Zoo, for
mujoco_peers.py. It runs in the peer's own environment, where there is no ludus.

    python benchmarks/mujoco_sb3.py TASK SEED STEPS        prints the row as its last line
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecNormalize

KINDS = {"ppo": PPO, "sac": SAC, "td3": TD3}
# rl-baselines3-zoo 22e3ff2, hyperparams/{sac,td3,ppo}.yml, the -v4 entries.
RELU = {"log_std_init": -2, "ortho_init": False, "activation_fn": torch.nn.ReLU,
        "net_arch": {"pi": [256, 256], "vf": [256, 256]}}  # fmt: skip
TD3_ZOO = {"learning_starts": 10_000, "learning_rate": 1e-3, "batch_size": 256, "train_freq": 1,
           "gradient_steps": 1, "policy_kwargs": {"net_arch": [400, 300]}}  # fmt: skip
PPO_CHEETAH = {"batch_size": 64, "n_steps": 512, "gamma": 0.98, "learning_rate": 2.0633e-05,
               "ent_coef": 0.000401762, "clip_range": 0.1, "n_epochs": 20, "gae_lambda": 0.92,
               "max_grad_norm": 0.8, "vf_coef": 0.58096, "policy_kwargs": RELU}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "sac-HalfCheetah-v5": {"learning_starts": 10_000},
    "sac-Hopper-v5": {"learning_starts": 10_000},
    "td3-HalfCheetah-v5": TD3_ZOO,
    "ppo-HalfCheetah-v5": PPO_CHEETAH,
}
POINTS, CURVE_EPISODES, EPISODES = 10, 5, 20


class Curve(BaseCallback):
    """Greedy scores every tenth of the run, on an environment of their own."""

    def __init__(self, env: Any, every: int) -> None:
        super().__init__()
        self.env, self.every, self.points = env, every, []

    def _on_step(self) -> bool:
        if self.num_timesteps % self.every == 0:
            mean, _ = evaluate_policy(self.model, self.env, CURVE_EPISODES, deterministic=True)
            self.points.append([self.num_timesteps, round(float(mean), 2)])
        return True


def made(task: str, seed: int) -> tuple[Any, Any]:
    """The model, and the environment it is evaluated on."""
    algo, _, env_id = task.partition("-")
    settings = dict(SETTINGS[task])
    env, test = make_vec_env(env_id, 1, seed=seed), make_vec_env(env_id, 1, seed=seed + 10_000)
    if algo == "ppo":  # the Zoo's `normalize: true`
        env = VecNormalize(env, gamma=settings["gamma"])
        test = VecNormalize(test, training=False, norm_reward=False)
        test.obs_rms = env.obs_rms
    if algo == "td3":
        size = env.action_space.shape
        settings["action_noise"] = NormalActionNoise(np.zeros(size), 0.1 * np.ones(size))
    return KINDS[algo]("MlpPolicy", env, seed=seed, device="cpu", **settings), test


def main(task: str, seed: int, steps: int) -> None:
    torch.set_num_threads(1)
    start = time.time()
    model, test = made(task, seed)
    curve = Curve(test, steps // POINTS)
    model.learn(steps, callback=curve)
    scores, _ = evaluate_policy(
        model, test, EPISODES, deterministic=True, return_episode_rewards=True
    )
    row = {
        "system": "stable-baselines3", "task": task, "seed": seed, "steps": steps,
        "score": round(float(np.mean(scores)), 2), "episodes": EPISODES, "curve": curve.points,
        "seconds": round(time.time() - start, 1),
        "versions": {p: version(p) for p in ("stable_baselines3", "torch", "gymnasium", "mujoco")},
    }  # fmt: skip
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
