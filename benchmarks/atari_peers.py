"""Atari training against stable-baselines3 and tianshou on a CPU: same game, settings and cores.

    python benchmarks/atari_peers.py [--rounds 3] [--seconds 40] [--only ppo,dqn,act] [--quick]
    python benchmarks/atari_peers.py --peer tianshou --only ppo,dqn

Pong, frame skip 4, no sticky actions, no-op starts, 84 x 84 x 4, rewards clipped. `ppo`: 8
environments, rollouts of 128, 4 epochs of minibatches of 256, Nature's net; ours in float32 and in
bfloat16, and once with learning in parallel with acting (run.overlap, one rollout of lag). `dqn`: a
batch of 32 every 4 steps from 100k steps; `act`: PPO's 8 environments and policy without learning,
ours through the same collector. Ours is a whole run with metrics and CSV; theirs is `learn`, and
of tianshou collecting and updating alone (atari_tianshou.py). Theirs is tried in its vector
environments and the fastest is compared; `--tries` shows other settings of ours. All have 2 torch
threads and the machine's cores.

Each measurement is a process of its own, in turns A-B-A-B; ratios are taken within a round and the
median reported. Where others share the machine, the rates per second that a process computed
(`per_cpu_second`) say more than those by the clock on the wall; they give no credit for emulators
that run in parallel with the net. Writes benchmarks/results/atari_peers.json, with a part of its
own for tianshou. Peers' environments are built under .peers/ where they are missing. Not a test:
nothing fails when a number is low.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import atari_tianshou
from peers import ROOT, python_of, set_up, versions
from replay_peers import machine

RESULTS = ROOT / "benchmarks" / "results" / "atari_peers.json"
PACKAGES = {"sb3": "stable_baselines3", "tianshou": "tianshou"}
THREADS = int(os.environ.get("ATARI_PEERS_THREADS", "2"))  # of torch, theirs and ours
GAME = {
    "env.protocol": "dqn-2015", "env.reward_clip": "sign", "run.device": "cpu",
    "run.threads": THREADS, "log.every": 1024, "checkpoint_every": "5M", "save_replay": "off",
}  # fmt: skip
PPO = GAME | {
    "env.num": 8, "rollout": 128, "epochs": 4, "minibatches": 4, "lr": 2.5e-4, "clip": 0.1,
    "gamma": 0.99, "gae_lambda": 0.95, "entropy_cost": 0.01, "value_cost": 0.5, "clip_norm": 0.5,
}  # fmt: skip
# 1 environment and 1 update after every 4th step are 4 environments and 1 after every row.
DQN = GAME | {
    "env.num": 4, "batch": 32, "replay_ratio": 8, "capacity": "100k", "warmup": 1000,
    "target_period": 250, "lr": 1e-4, "algo.optimizer": {"kind": "adam"}, "clip_norm": 10,
    "algo.epsilon": "1->0.01@10%", "log.every": 128,
}  # fmt: skip
# What compares with what: ours (name -> algorithm, settings), theirs (ways to run it).
OURS = {
    "ppo": {
        "fp32": ("ppo", PPO | {"run.precision": "fp32"}),
        "bf16": ("ppo", PPO | {"run.precision": "bf16"}),
    },
    "dqn": {
        "fp32": ("dqn", DQN | {"run.precision": "fp32", "run.overlap": "off"}),
        "bf16": ("dqn", DQN | {"run.precision": "bf16", "run.overlap": "off"}),
    },
    "act": {
        "fp32": ("ppo", PPO | {"run.precision": "fp32"}),
        "bf16": ("ppo", PPO | {"run.precision": "bf16"}),
    },
}
EXTRAS: dict = {"ppo": {"bf16": {"run.overlap": "on"}}}  # once, besides the rounds
THEIRS = {
    "sb3": {"ppo": ["dummy", "subproc"], "dqn": ["dummy"], "act": ["dummy", "subproc"]},
    "tianshou": {task: list(ways) for task, ways in atari_tianshou.WAYS.items()},
}
BARS = {
    "ppo": {"fp32": 1.2, "bf16": 1.5}, "dqn": {"best": 1.35}, "act": {"best": 1.7},
}  # fmt: skip


# This half runs inside a process of its own.


def late_rate(marks: list[tuple[float, int]]) -> float:
    """Steps per second between (seconds, steps) marks, the first third of the time left out."""
    assert marks, "too short a run: give it more --seconds"
    start, end = marks[0][0], marks[-1][0]
    late = [m for m in marks if m[0] - start >= (end - start) / 3]
    assert len(late) > 1, "too short a run: give it more --seconds"
    (a, n0), (b, n1) = late[0], late[-1]
    return (n1 - n0) / (b - a)


def rates_of(marks: list[tuple[float, float, int]]) -> dict:
    """By the clock on the wall, and by the time that this process computed."""
    return {
        "wall": late_rate([(wall, step) for wall, _, step in marks]),
        "cpu": late_rate([(cpu, step) for _, cpu, step in marks]),
    }


def measure_ours(task: str, way: str, seconds: float, more: dict) -> dict:
    import ludus

    algo, settings = OURS[task][way]
    settings = settings | more
    if task == "act":
        return {"wall": acting(algo, settings, seconds)}
    marks: list[tuple[float, float, int]] = []

    class Watch(ludus.Callback):
        """Looks on from a thread of its own: nothing of the run is different."""

        def on_start(self, run) -> None:
            threading.Thread(target=self.look, args=(run,), daemon=True).start()

        def look(self, run) -> None:
            while not self.enough():
                step = run.step
                if step > 1200 and (not marks or step > marks[-1][2]):
                    marks.append((time.perf_counter(), time.process_time(), step))
                time.sleep(0.02)
            run.stop("measured")

        def enough(self) -> bool:
            return len(marks) >= 3 and marks[-1][0] - marks[0][0] >= seconds

    with tempfile.TemporaryDirectory() as folder:
        cfg = ludus.config(algo, "pong", preset="atari", steps="10M", **settings)
        ludus.train(cfg, runs_dir=folder, callbacks=[Watch()])
    return rates_of(marks)


def acting(algo: str, settings: dict, seconds: float) -> float:
    """Whole chunks of acting, with the loop of a run but no updates."""
    import torch

    import ludus
    from ludus import registry
    from ludus.bench import speed
    from ludus.run.session import build_loop
    from ludus.track.run_dir.rundir import RunDir

    cfg = ludus.config(algo, "pong", preset="atari", steps="10M", **settings)
    torch.set_num_threads(cfg.run.thread_count)
    with tempfile.TemporaryDirectory() as folder:
        loop, _ = build_loop(cfg, registry.make(cfg.algo), RunDir(Path(folder)))
        try:
            loop.barrier(0)
            speed.acting(loop, seconds / 4)  # caches, and the machine's clock
            return speed.acting(loop, seconds)
        finally:
            loop.fleet.close()


def measure_sb3(task: str, way: str, seconds: float) -> float:
    import ale_py
    import gymnasium
    from stable_baselines3 import DQN, PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

    marks: list[tuple[float, int]] = []

    class Timer(BaseCallback):
        def _on_rollout_start(self) -> None:
            if self.num_timesteps >= 1200:
                marks.append((time.perf_counter(), self.num_timesteps))

        def _on_step(self) -> bool:
            return not marks or time.perf_counter() - marks[0][0] < seconds

    def pong(**options):  # a worker process has registered nothing yet
        gymnasium.register_envs(ale_py)
        return gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0, **options)

    env = VecFrameStack(
        make_atari_env(
            pong, n_envs=1 if task == "dqn" else 8, seed=0,
            vec_env_cls=SubprocVecEnv if way == "subproc" else DummyVecEnv,
        ),
        4,
    )  # fmt: skip
    if task == "dqn":
        model = DQN(
            "CnnPolicy", env, buffer_size=100_000, batch_size=32, train_freq=4, gradient_steps=1,
            learning_starts=1000, learning_rate=1e-4, target_update_interval=1000,
            exploration_fraction=0.1, exploration_final_eps=0.01, device="cpu",
        )  # fmt: skip
    else:
        model = PPO(
            "CnnPolicy", env, n_steps=128, n_epochs=4, batch_size=256, learning_rate=2.5e-4,
            clip_range=0.1, vf_coef=0.5, ent_coef=0.01, device="cpu",
        )  # fmt: skip
    if task == "act":
        model.train = lambda: None  # rollouts alone
    model.learn(10_000_000, callback=Timer())
    env.close()
    return late_rate(marks)


# The driver.


def measured(who: str, task: str, way: str, seconds: float, more: dict | None = None) -> dict:
    python = Path(sys.executable) if who == "ludus" else python_of(who)
    words = [python, __file__, "--work", who, task, way, "--seconds", str(seconds)]
    words += ["--set", json.dumps(more or {})]
    environment = os.environ | {"OMP_NUM_THREADS": str(THREADS), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.strip().splitlines()[-1])


def work(who: str, task: str, way: str, seconds: float, more: dict) -> dict:
    import torch

    torch.set_num_threads(THREADS)
    if who == "ludus":
        return measure_ours(task, way, seconds, more)
    if who == "tianshou":
        found = rates_of(atari_tianshou.measure(task, way, seconds))
        return {"wall": found["wall"]} if way == "shmem" else found  # others compute for it
    return {"wall": measure_sb3(task, way, seconds)}


def faster(peer: str, task: str, seconds: float) -> str:
    """The vector environment that is better for the peer."""
    ways = THEIRS[peer][task]
    if len(ways) == 1:
        return ways[0]
    rates = {way: measured(peer, task, way, seconds)["wall"] for way in ways}
    print(f"{task}: {peer} " + ", ".join(f"{w} {r:,.0f}" for w, r in rates.items()), flush=True)
    return max(rates, key=rates.__getitem__)


def compare(peer: str, task: str, rounds: int, seconds: float, way: str = "") -> dict:
    way = way or faster(peer, task, seconds / 2)
    theirs: list[dict] = []
    ours: dict[str, list[dict]] = {name: [] for name in OURS[task]}
    loads = []
    for _ in range(rounds):
        loads.append(round(os.getloadavg()[0], 2))
        theirs.append(measured(peer, task, way, seconds))
        for name, rates in ours.items():
            rates.append(measured("ludus", task, name, seconds))
        row = ", ".join(f"ludus {n} {r[-1]}" for n, r in ours.items())
        print(f"{task}: {peer} {way} {theirs[-1]}, {row} steps/s, load {loads[-1]}", flush=True)
    result = {f"{peer}_vec_env": way, **side_by_side(peer, theirs, ours, "wall")}
    result |= {"load_at_rounds": loads, "bars": BARS[task] if peer == "sb3" else {}}
    if all("cpu" in one for rates in (theirs, *ours.values()) for one in rates):
        result["per_cpu_second"] = side_by_side(peer, theirs, ours, "cpu")
    extras = EXTRAS.get(task, {}) if peer == "sb3" else {}
    result["extras"] = {
        f"{name}, {more}": measured("ludus", task, name, seconds, more)["wall"]
        for name, more in extras.items()
    }
    return result


def side_by_side(peer: str, theirs: list[dict], ours: dict[str, list[dict]], clock: str) -> dict:
    """Rates, and ratios within each round."""
    them = [one[clock] for one in theirs]
    us = {name: [one[clock] for one in rates] for name, rates in ours.items()}
    ratios = {
        name: [round(a / b, 3) for a, b in zip(rates, them, strict=True)]
        for name, rates in us.items()
    }
    middle = {name: round(statistics.median(found), 3) for name, found in ratios.items()}
    return {peer: them, "ludus": us, "ratios": ratios, "median_ratio": middle}


def settings_tried(seconds: float) -> dict:
    """Which settings are fastest for ours at these hyperparameters; PPO in bfloat16."""
    tries: list[dict] = [
        {}, {"run.threads": 1}, {"env.groups": 1}, {"env.threads": 1}, {"run.overlap": "on"},
        {"run.overlap": "on", "run.threads": 1},
    ]  # fmt: skip
    rates = {}
    for more in tries:
        rate = measured("ludus", "ppo", "bf16", seconds, more)["wall"]
        name = ", ".join(f"{k}={v}" for k, v in more.items()) or "as compared"
        rates[name] = rate
        print(f"ppo bf16, {name}: {rate:,.0f} steps/s", flush=True)
    return rates


def put(peer: str, result: dict) -> None:
    """stable-baselines3 is the file's own subject, and what another peer measured stays in it."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    others = {name: known[name] for name in PACKAGES if name != "sb3" and name in known}
    before = (known if peer == "sb3" else known.get(peer, {})).get("tasks", {})
    result = result | {"tasks": before | result["tasks"]}  # those that were measured now are new
    whole = result | others if peer == "sb3" else known | {peer: result}
    RESULTS.write_text(json.dumps(whole, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", choices=list(PACKAGES), default="sb3")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40.0, help="of PPO; others take less")
    parser.add_argument("--only", default="", help="ppo,dqn,act; all that the peer has")
    parser.add_argument("--way", default="", help="of the peer, instead of trying which is faster")
    parser.add_argument("--tries", action="store_true", help="compare settings of ours, and end")
    parser.add_argument("--quick", action="store_true", help="does it run at all; writes nothing")
    parser.add_argument("--work", nargs=3, metavar=("WHO", "TASK", "WAY"))
    parser.add_argument("--set", type=json.loads, default={}, help="JSON of further settings")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    if args.work:
        print(json.dumps(work(*args.work, args.seconds, args.set)))
        return
    import facts  # not above: a peer's environment, in which `work` runs, has no ludus

    set_up(args.peer)
    if args.tries:
        settings_tried(args.seconds)
        return
    if args.quick:
        args.rounds, args.seconds = 1, 24.0
    result: dict = {
        "what": f"steps/s of training on Pong beside {PACKAGES[args.peer]}, {THREADS} threads",
        "machine": machine(), "threads": THREADS,
        "versions": versions({args.peer: PACKAGES[args.peer]}, "torch", "ale-py"),
        "command": " ".join(["python", *sys.argv]), "seconds": args.seconds, "tasks": {},
        "commit": facts.commit(),
    }  # fmt: skip
    for task in args.only.split(",") if args.only else THEIRS[args.peer]:
        seconds = args.seconds / {"ppo": 1, "dqn": 2, "act": 4}[task]
        found = compare(args.peer, task, args.rounds, seconds, args.way)
        known = {key: result[key] for key in ("command", "threads", "machine", "commit")}
        result["tasks"][task] = found | known | {"seconds": seconds}
        print(task, json.dumps(result["tasks"][task]["median_ratio"]), flush=True)
    if not args.quick:
        put(args.peer, result)


if __name__ == "__main__":
    main()
