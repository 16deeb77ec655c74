"""IMPALA's training speed against RLlib 2.60, and what actors in a process of their own cost.

    python benchmarks/impala_peers.py [--rounds 3] [--seconds 20] [--tasks pong cartpole]

8 environments, unrolls of 50, batches of 500 rows, one environment runner (RLlib) or one actor
(ours), the Nature network on Pong and 64-64 on CartPole. Each measurement is a process of its own,
in turns A-B-C-A-B-C; ratios are taken within a round and their medians reported. Ours are whole
runs with metrics, CSV files and lines on the terminal: inline (fp32, and what a run chooses by
itself), and with its one actor in a process of its own. Writes results/impala_peers.json. Not a
test: nothing fails when a number is low.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from peers import ROOT, python_of, set_up

COMMON = {
    "env.num": 8, "algo.unroll": 50, "algo.batch": 10, "algo.lr": 5e-4, "algo.entropy_cost": 0.01,
    "run.steps": "100M", "run.checkpoint_every": "50M", "log.every": 400, "log.tensorboard": False,
}  # fmt: skip
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "pong": ("pong", {
        **COMMON, "algo.torso": {"kind": "nature", "hidden": 512}, "env.protocol": "dqn-2015",
        "env.atari.life_loss": "ignore",
    }),
    "cartpole": ("CartPole-v1", {**COMMON, "algo.torso": {"kind": "mlp", "hidden": [64, 64]}}),
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "inline fp32": {"run.precision": "fp32"},
    "inline": {},
    "processes": {"run.fleet": "processes", "run.actors": 1},
}


def ours(task: str, way: str, seconds: float, threads: int) -> float:
    """Steps per second of a run by its own metrics, the first third left out."""
    import ludus

    env, settings = OURS[task]
    every = {**settings, **WAYS[way], "run.time": 1.5 * seconds, "run.threads": threads}
    cfg = ludus.config("impala", env, preset="none", **every)
    with tempfile.TemporaryDirectory() as folder:
        run = ludus.train(cfg, runs_dir=folder)
        rows = run.metrics()
    late = [r for r in rows[:-1] if r["seconds"] >= rows[-1]["seconds"] / 3]
    first, last = late[0], late[-1]
    return float((last["step"] - first["step"]) / (last["seconds"] - first["seconds"]))


def _pong(_: Any) -> Any:
    import ale_py
    import gymnasium as gym
    import numpy as np

    gym.register_envs(ale_py)
    env = gym.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
    env = gym.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4)
    env = gym.wrappers.FrameStackObservation(env, 4)
    space = gym.spaces.Box(0.0, 1.0, (84, 84, 4), "float32")  # its networks want HWC floats
    return gym.wrappers.TransformObservation(
        env, lambda o: np.moveaxis(np.asarray(o), 0, -1).astype("float32") / 255.0, space
    )


def theirs(task: str, seconds: float) -> float:
    import logging

    import ray
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    register_env("pong", _pong)
    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    model = DefaultModelConfig(fcnet_hiddens=[64, 64])
    if task == "pong":
        model = DefaultModelConfig(
            conv_filters=[[32, 8, 4], [64, 4, 2], [64, 3, 1]], conv_activation="relu",
            head_fcnet_hiddens=[512], vf_share_layers=True,
        )  # fmt: skip
    config = (
        IMPALAConfig()
        .environment("pong" if task == "pong" else "CartPole-v1")
        .env_runners(num_env_runners=1, num_envs_per_env_runner=8, rollout_fragment_length=50)
        .learners(num_learners=0, num_gpus_per_learner=0)
        .rl_module(model_config=model)
        .training(train_batch_size_per_learner=500, lr=5e-4, entropy_coeff=0.01, vf_loss_coeff=0.5)
        .reporting(min_time_s_per_iteration=2)
    )
    algo = config.build_algo()

    def steps(result: dict[str, Any]) -> float:
        return float(result.get("env_runners", {}).get("num_env_steps_sampled_lifetime", 0))

    result, warm = algo.train(), time.perf_counter()
    while time.perf_counter() - warm < seconds / 2:
        result = algo.train()
    start, before = time.perf_counter(), steps(result)
    while time.perf_counter() - start < seconds:
        result = algo.train()
    speed = (steps(result) - before) / (time.perf_counter() - start)
    algo.stop()
    ray.shutdown()
    return speed


def measure(who: str, task: str, args: argparse.Namespace) -> float:
    python = python_of("rllib") if who == "rllib" else Path(sys.executable)
    words = [str(python), __file__, "--one", who, "--tasks", task, "--seconds", str(args.seconds),
             "--threads", str(args.threads)]  # fmt: skip
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
             "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}  # fmt: skip
    if who != "rllib":  # Ray gives each of its processes what it thinks best, unless one is set
        quiet["OMP_NUM_THREADS"] = str(args.threads)
    done = subprocess.run(words, capture_output=True, text=True, check=False,
                          env={**os.environ, **quiet})  # fmt: skip
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not found:
        raise SystemExit(f"{who} {task} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return float(found[-1].split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tasks", nargs="*", default=["pong", "cartpole"])
    parser.add_argument("--one", help="measure this one here, and print it")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/impala_peers.json")
    args = parser.parse_args()
    if args.one:
        (task,) = args.tasks
        if args.one == "rllib":
            speed = theirs(task, args.seconds)
        else:
            speed = ours(task, args.one, args.seconds, args.threads)
        print(f"\nRESULT {speed:.1f}", flush=True)
        return
    set_up("rllib")
    import facts

    from ludus.bench.speed import machine

    known = json.loads(args.out.read_text()) if args.out.exists() else {"tasks": {}}
    for task in args.tasks:
        rates: dict[str, list[float]] = {who: [] for who in ("rllib", *WAYS)}
        for _ in range(args.rounds):
            for who, found in rates.items():
                found.append(measure(who, task, args))
                print(task, who, round(found[-1]), "load", os.getloadavg()[0], flush=True)
        against = {
            f"{a} / {b}": statistics.median(x / y for x, y in zip(rates[a], rates[b], strict=True))
            for a, b in (("inline fp32", "rllib"), ("inline", "rllib"), ("processes", "rllib"),
                         ("processes", "inline"))
        }  # fmt: skip
        print(task, {k: round(v, 2) for k, v in against.items()}, flush=True)
        known["tasks"][task] = {
            "steps_per_second": rates, "median_ratios": against, "seconds": args.seconds,
            "threads": args.threads, "machine": machine(), "commit": facts.commit(),
        }  # fmt: skip
        args.out.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
