"""Training speed against stable-baselines3 on small tasks, same hyperparameters, same threads.

    python benchmarks/train_peers.py [--rounds 5] [--seconds 8] [--threads 1]

Four tasks: PPO on CartPole-v1 (8 environments, 128 steps, 4 epochs, minibatches of 256), A2C there
(8 environments, as in rl-baselines3-zoo), and DQN there and SAC on Pendulum-v1 (one update per
step), all at stable-baselines3's defaults. Ours is a whole run with metrics, CSV files and the
terminal's lines; theirs is `learn`. Each measurement is a process of its own, taken in turns
A-B-A-B; the ratio is taken within a round and its median reported. Writes
benchmarks/results/train_peers.json. Not a test: nothing fails when a number is low.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from peers import ROOT, python_of, set_up

OURS = {
    "ppo": ["ppo", "CartPole-v1", "env.num=8", "rollout=128", "epochs=4", "minibatches=4",
            "lr=3e-4", "clip=0.2", "gae_lambda=0.95", "gamma=0.99", "entropy_cost=0"],
    # SB3's defaults: 5 steps, RMSProp (its epsilon of 1e-5 is outside the root), norm 0.5.
    "a2c": ["a2c", "CartPole-v1", "env.num=8", "n_steps=5", "lr=7e-4", "gamma=0.99",
            "gae_lambda=1", "value_cost=0.5", "entropy_cost=0", "clip_norm=0.5",
            "optimizer={kind: rmsprop, decay: 0.99, eps: 1e-10}"],
    # SB3's defaults: 1 environment, batch 32 every 4 steps, buffer of 1M, target every 10k steps.
    "dqn": ["dqn", "CartPole-v1", "env.num=1", "torso={kind: mlp, hidden: [64, 64]}", "batch=32",
            "replay_ratio=8", "warmup=100", "capacity=1M", "target_period=2500", "lr=1e-4",
            "algo.epsilon=1->0.05@10%", "clip_norm=10"],
    # SB3's defaults: 1 environment, one update of 256 per step, networks of 256 and 256.
    "sac": ["sac", "Pendulum-v1", "env.num=1", "batch=256", "replay_ratio=256", "warmup=100",
            "capacity=1M", "lr=3e-4", "tau=0.005"],
}  # fmt: skip


def measure_ours(task: str, seconds: float) -> float:
    """Steps per second of a run, from its own metrics, the first third left out."""
    import yaml

    import ludus

    with tempfile.TemporaryDirectory() as folder:
        algo, env, *words = OURS[task]
        pairs = (word.split("=", 1) for word in words)
        settings = {k: yaml.safe_load(v) if v[0] == "{" else v for k, v in pairs}
        cfg = ludus.config(
            algo, env, preset="none", steps="10M", time=1.5 * seconds, checkpoint_every="5M",
            **{"log.every": 256 if task == "sac" else 1024}, **settings,
        )  # fmt: skip
        run = ludus.train(cfg, runs_dir=folder)
        rows = run.metrics()
    late = [r for r in rows[:-1] if r["seconds"] >= rows[-1]["seconds"] / 3]
    first, last = late[0], late[-1]
    return (last["step"] - first["step"]) / (last["seconds"] - first["seconds"])


def measure_theirs(task: str, seconds: float) -> float:
    import time

    from stable_baselines3 import A2C, DQN, PPO, SAC
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class Timer(BaseCallback):
        marks: list[tuple[float, int]] = []  # noqa: RUF012

        def _on_rollout_start(self) -> None:
            self.marks.append((time.perf_counter(), self.num_timesteps))

        def _on_step(self) -> bool:
            return time.perf_counter() - self.marks[0][0] < 1.5 * seconds

    if task == "ppo":
        env = make_vec_env("CartPole-v1", n_envs=8, seed=0)
        model = PPO("MlpPolicy", env, n_steps=128, n_epochs=4, batch_size=256, device="cpu")
    elif task == "a2c":
        env = make_vec_env("CartPole-v1", n_envs=8, seed=0)
        model = A2C("MlpPolicy", env, device="cpu")
    elif task == "sac":
        model = SAC("MlpPolicy", make_vec_env("Pendulum-v1", n_envs=1, seed=0), device="cpu")
    else:
        model = DQN("MlpPolicy", make_vec_env("CartPole-v1", n_envs=1, seed=0), device="cpu")
    timer = Timer()
    model.learn(10_000_000, callback=timer)
    start = timer.marks[0][0]
    late = [m for m in timer.marks if m[0] - start >= (timer.marks[-1][0] - start) / 3]
    (a, n0), (b, n1) = late[0], late[-1]
    return (n1 - n0) / (b - a)


def measured(python: Path | str, who: str, task: str, args: argparse.Namespace) -> float:
    words = [str(python), __file__, "--work", who, task, "--seconds", str(args.seconds),
             "--threads", str(args.threads)]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return float(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", nargs=2, metavar=("WHO", "TASK"))
    args = parser.parse_args()
    if args.work:
        import torch

        torch.set_num_threads(args.threads)
        who, task = args.work
        print((measure_ours if who == "ludus" else measure_theirs)(task, args.seconds))
        return
    set_up("sb3")
    result: dict = {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count(),
                    "threads": args.threads, "seconds": args.seconds, "tasks": {}}  # fmt: skip
    for task in OURS:
        ours, theirs = [], []
        for _ in range(args.rounds):
            theirs.append(measured(python_of("sb3"), "sb3", task, args))
            ours.append(measured(sys.executable, "ludus", task, args))
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        row = {"env": OURS[task][1], "ludus": ours, "sb3": theirs, "median_ratio": ratio}
        result["tasks"][task] = row
        print(
            f"{task} {OURS[task][1]}: ludus {statistics.median(ours):,.0f} steps/s, "
            f"sb3 {statistics.median(theirs):,.0f} steps/s, ratio {ratio:.2f}",
            flush=True,
        )
    out = ROOT / "benchmarks" / "results" / "train_peers.json"
    out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
