"""Atari training beside stable-baselines3 on a CPU: same game, hyperparameters and cores.

    python benchmarks/atari_peers.py [--rounds 3] [--seconds 40] [--only ppo,dqn,act] [--quick]

Pong, frame skip 4, no sticky actions, no-op starts, 84 x 84 x 4, rewards clipped. `ppo`: 8
environments, rollouts of 128, 4 epochs of minibatches of 256, Nature's net; ours in float32 and in
bfloat16, and once with learning beside acting (run.overlap, one rollout of lag). `dqn`: a
batch of 32 every 4 steps from 100k steps; `act`: PPO's 8 environments and policy without learning,
ours through the same collector. Ours is a whole run with metrics and CSV; theirs is `learn`. Theirs
is tried in both of its vector environments and the faster is compared; `--tries` shows other
settings of ours. Both have 2 torch threads and the machine's cores.

Each measurement is a process of its own, in turns A-B-A-B; ratios are taken within a round and the
median reported. Writes benchmarks/results/atari_peers.json. The peer's environment is built under
.peers/ where it is missing. Not a test: nothing fails when a number is low.
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
from importlib import metadata
from pathlib import Path

from replay_peers import ROOT, machine

PEER = ROOT / ".peers" / "sb3"
# torch first and by itself, so that an index with CPU wheels is not passed over.
NEEDS = [["torch==2.13.0"], ["stable-baselines3>=2.9,<2.10"], ["ale-py>=0.12,<0.13",
         "opencv-python-headless"]]  # fmt: skip
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
EXTRAS: dict = {"ppo": {"bf16": {"run.overlap": "on"}}}  # once, beside the rounds
THEIRS = {"ppo": ["dummy", "subproc"], "dqn": ["dummy"], "act": ["dummy", "subproc"]}
BARS = {
    "ppo": {"fp32": 1.2, "bf16": 1.5}, "dqn": {"best": 1.35}, "act": {"best": 1.7},
}  # fmt: skip


def set_up() -> None:
    python = PEER / "bin" / "python"
    if not python.exists():
        PEER.parent.mkdir(exist_ok=True)
        (PEER.parent / ".gitignore").write_text("*\n")
        subprocess.run([sys.executable, "-m", "venv", str(PEER)], check=True)
    if subprocess.run([python, "-c", "import stable_baselines3, ale_py, cv2"]).returncode:
        for packages in NEEDS:
            subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)


# This half runs inside a process of its own.


def late_rate(marks: list[tuple[float, int]]) -> float:
    """Steps per second between (seconds, steps) marks, the first third of the time left out."""
    assert marks, "too short a run: give it more --seconds"
    start, end = marks[0][0], marks[-1][0]
    late = [m for m in marks if m[0] - start >= (end - start) / 3]
    assert len(late) > 1, "too short a run: give it more --seconds"
    (a, n0), (b, n1) = late[0], late[-1]
    return (n1 - n0) / (b - a)


def measure_ours(task: str, way: str, seconds: float, more: dict) -> float:
    import ludus

    algo, settings = OURS[task][way]
    settings = settings | more
    if task == "act":
        return acting(algo, settings, seconds)
    # A run counts its time from before its emulators are built.
    with tempfile.TemporaryDirectory() as folder:
        cfg = ludus.config(algo, "pong", preset="atari", steps="10M", time=seconds, **settings)
        rows = ludus.train(cfg, runs_dir=folder).metrics()
    return late_rate([(r["seconds"], r["step"]) for r in rows[:-1] if r["step"] > 1200])


def acting(algo: str, settings: dict, seconds: float) -> float:
    """Whole chunks of acting, with the loop of a run but no updates."""
    import torch

    import ludus
    from ludus import registry
    from ludus.bench import speed
    from ludus.run.session import build_loop
    from ludus.track.rundir import RunDir

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


def measure_theirs(task: str, way: str, seconds: float) -> float:
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


def measured(who: str, task: str, way: str, seconds: float, more: dict | None = None) -> float:
    python = PEER / "bin" / "python" if who == "sb3" else Path(sys.executable)
    words = [python, __file__, "--work", who, task, way, "--seconds", str(seconds)]
    words += ["--set", json.dumps(more or {})]
    environment = os.environ | {"OMP_NUM_THREADS": str(THREADS), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return float(done.stdout.strip().splitlines()[-1])


def faster(task: str, seconds: float) -> str:
    """The vector environment that is better for the peer."""
    ways = THEIRS[task]
    if len(ways) == 1:
        return ways[0]
    rates = {way: measured("sb3", task, way, seconds) for way in ways}
    print(f"{task}: sb3 " + ", ".join(f"{w} {r:,.0f}" for w, r in rates.items()), flush=True)
    return max(rates, key=rates.__getitem__)


def compare(task: str, rounds: int, seconds: float) -> dict:
    way = faster(task, seconds / 3)
    theirs: list[float] = []
    ours: dict[str, list[float]] = {name: [] for name in OURS[task]}
    for _ in range(rounds):
        theirs.append(measured("sb3", task, way, seconds))
        for name, rates in ours.items():
            rates.append(measured("ludus", task, name, seconds))
        row = ", ".join(f"ludus {n} {r[-1]:,.0f}" for n, r in ours.items())
        print(f"{task}: sb3 {way} {theirs[-1]:,.0f}, {row} steps/s", flush=True)
    ratios = {
        name: round(statistics.median(a / b for a, b in zip(rates, theirs, strict=True)), 3)
        for name, rates in ours.items()
    }
    extras = {
        f"{name}, {more}": measured("ludus", task, name, seconds, more)
        for name, more in EXTRAS.get(task, {}).items()
    }
    return {"sb3_vec_env": way, "sb3": theirs, "ludus": ours, "median_ratio": ratios,
            "bars": BARS[task], "extras": extras}  # fmt: skip


def settings_tried(seconds: float) -> dict:
    """Which settings are fastest for ours at these hyperparameters; PPO in bfloat16."""
    tries: list[dict] = [
        {}, {"run.threads": 1}, {"env.groups": 1}, {"env.threads": 1}, {"run.overlap": "on"},
        {"run.overlap": "on", "run.threads": 1},
    ]  # fmt: skip
    rates = {}
    for more in tries:
        rate = measured("ludus", "ppo", "bf16", seconds, more)
        name = ", ".join(f"{k}={v}" for k, v in more.items()) or "as compared"
        rates[name] = rate
        print(f"ppo bf16, {name}: {rate:,.0f} steps/s", flush=True)
    return rates


def versions() -> dict:
    found = {name: metadata.version(name) for name in ("ludus", "torch", "ale-py")}
    ask = "from importlib.metadata import version; print(version('stable_baselines3'))"
    done = subprocess.run([PEER / "bin" / "python", "-c", ask], capture_output=True, text=True)
    return found | {"stable-baselines3": done.stdout.strip()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40.0, help="of PPO; others take less")
    parser.add_argument("--only", default="ppo,dqn,act")
    parser.add_argument("--tries", action="store_true", help="compare settings of ours, and end")
    parser.add_argument("--quick", action="store_true", help="does it run at all; writes nothing")
    parser.add_argument("--work", nargs=3, metavar=("WHO", "TASK", "WAY"))
    parser.add_argument("--set", type=json.loads, default={}, help="JSON of further settings")
    args = parser.parse_args()
    if args.work:
        import torch

        torch.set_num_threads(THREADS)
        who, task, way = args.work
        extra = (args.set,) if who == "ludus" else ()
        print((measure_ours if who == "ludus" else measure_theirs)(task, way, args.seconds, *extra))
        return
    set_up()
    if args.tries:
        settings_tried(args.seconds)
        return
    if args.quick:
        args.rounds, args.seconds = 1, 24.0
    result: dict = {
        "what": "steps/s of training on Pong beside stable-baselines3, 2 cores",
        "machine": machine(), "versions": versions(), "threads": THREADS,
        "command": " ".join(["python", *sys.argv]), "seconds": args.seconds, "tasks": {},
    }  # fmt: skip
    for task in args.only.split(","):
        seconds = args.seconds / {"ppo": 1, "dqn": 2, "act": 4}[task]
        result["tasks"][task] = compare(task, args.rounds, seconds)
        print(task, json.dumps(result["tasks"][task]["median_ratio"]), flush=True)
    if not args.quick:
        out = ROOT / "benchmarks" / "results" / "atari_peers.json"
        out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
