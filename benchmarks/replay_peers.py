"""Prioritised replay against cpprb 11 and tianshou 2.0: add 64 + sample 512 + update 512, 1M items.

    python benchmarks/replay_peers.py [--rounds 15] [--seconds 1.0] [--threads 1]

Each library runs in a process of its own, through its public API, full of one million items of
five small fields (observation float32[4], action, reward, next observation, done), n = 1, rows and
weights included. The processes take turns, A-B-C-A-B-C, and ratios are taken within a round, so a
busy machine slows all alike. Writes benchmarks/results/replay_peers.json. Peers' environments are
built under .peers/ where they are missing. Not a test: nothing fails when a number is low.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

from peers import NEEDS, ROOT, python_of, set_up

BLOCK, BATCH = 64, 512


# The rest of this half runs inside a worker process.


def fake(seed: int = 0):
    import numpy as np

    rng = np.random.default_rng(seed)
    obs, after = rng.random((2, BLOCK, 4), np.float32)
    act, rew = rng.integers(0, 6, BLOCK), rng.random(BLOCK, np.float32)
    return obs, after, act, rew, np.zeros(BLOCK, bool), rng.random(BATCH)


def cpprb_parts(capacity: int):
    import numpy as np
    from cpprb import PrioritizedReplayBuffer

    obs, after, act, rew, done, priority = fake()
    vector = {"shape": (4,), "dtype": np.float32}
    fields = {"obs": vector, "act": {"dtype": np.int64}, "rew": {}, "next_obs": vector, "done": {}}
    buffer = PrioritizedReplayBuffer(capacity, fields, alpha=0.6)
    held: list = [None]

    def add():
        buffer.add(obs=obs, act=act, rew=rew, next_obs=after, done=done)

    def sample():
        held[0] = buffer.sample(BATCH, beta=0.4)["indexes"]

    return add, sample, lambda: buffer.update_priorities(held[0], priority)


def tianshou_parts(capacity: int):
    import numpy as np
    from tianshou.data import Batch, PrioritizedVectorReplayBuffer

    obs, after, act, rew, done, priority = fake()
    buffer = PrioritizedVectorReplayBuffer(capacity, buffer_num=BLOCK, alpha=0.6, beta=0.4)
    rows = Batch(
        obs=obs, act=act, rew=rew, terminated=done, truncated=done, done=done, obs_next=after,
        info=Batch(),
    )  # fmt: skip
    ids, held = np.arange(BLOCK), [None]

    def sample():
        held[0] = buffer.sample(BATCH)[1]

    return (
        lambda: buffer.add(rows, buffer_ids=ids),
        sample,
        lambda: buffer.update_weight(held[0], priority),
    )


def ludus_parts(capacity: int):
    import torch

    from ludus.contract import NStep, Plan, Prioritized
    from ludus.replay.store import build_store
    from ludus.types import ArraySpec, Chunk, Discrete, EnvSpec, Rows

    obs, after, act, rew, _, priority = (torch.from_numpy(x) for x in fake())
    plan = Plan(NStep(1), Prioritized(), batch=BATCH, chunk=1, capacity=capacity)
    spec = EnvSpec("fake", ArraySpec((4,)), Discrete(6))
    store = build_store(plan, spec, BLOCK, seed=1, horizon=10**9)
    yes, no = torch.ones(1, BLOCK, dtype=torch.bool), torch.zeros(2, BLOCK, dtype=torch.bool)
    rows = Rows(
        torch.stack((obs, after)), act[None], rew[None], rew[None], torch.ones(1, BLOCK), no[:1],
        no, yes,
    )  # fmt: skip
    number, held = [0], [None]

    def add():
        store.add(Chunk(rows, 0, number[0]))
        number[0] += 1

    def sample():
        held[0] = store.sample().ids

    return add, sample, lambda: store.feedback(held[0], priority)


def tree_parts(capacity: int):
    """Our sum tree alone: no rows, no weights."""
    import torch

    from ludus.replay.samplers.device import SumTree

    tree, rng = SumTree(capacity), torch.Generator().manual_seed(1)
    priority, held, at = torch.rand(BATCH, generator=rng).double(), [None], [0]

    def add():
        tree.set(slice(at[0], at[0] + BLOCK), torch.ones(()))
        at[0] = (at[0] + BLOCK) % (capacity - BLOCK)

    def sample():
        held[0] = tree.find(torch.rand(BATCH, generator=rng, dtype=torch.float64))

    return add, sample, lambda: tree.set(held[0], priority)


PARTS = {"ludus": ludus_parts, "tree": tree_parts, "cpprb": cpprb_parts, "tianshou": tianshou_parts}


def work(name: str, capacity: int, threads: int) -> None:
    """One library, answering `what seconds` lines with calls per second."""
    if name != "cpprb":
        import torch

        torch.set_num_threads(threads)
    serve(*PARTS[name](capacity), capacity)


def serve(add, sample, update, capacity: int) -> None:
    """Fill, then answer until the driver closes the pipe."""
    for _ in range(capacity // BLOCK + 1):
        add()
    sample()

    def cycle():
        add()
        sample()
        update()

    calls = {"cycle": cycle, "add": add, "sample": sample, "update": update}
    print("ready", flush=True)
    for line in sys.stdin:
        what, seconds = line.split()
        call, limit, count = calls[what], float(seconds), 0
        for _ in range(5):
            call()
        begin = time.perf_counter()
        while (spent := time.perf_counter() - begin) < limit:
            for _ in range(10):
                call()
            count += 10
        print(count / spent, flush=True)


# The driver.


class Worker:
    """A library in a process of its own; `name` begins with the name of its environment."""

    def __init__(self, name: str, capacity: int, threads: int, script: str = __file__) -> None:
        library = name.split("-")[0]
        python = python_of(library) if library in NEEDS else Path(sys.executable)
        env = os.environ | {
            "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads),
            "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore",
        }  # fmt: skip
        self.process = subprocess.Popen(
            [python, script, "--worker", name, str(capacity), str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
        )  # fmt: skip
        self._answer("ready")

    def _answer(self, wanted: str = "") -> str:
        """The next line that is ours; libraries may print their own."""
        for line in self.process.stdout:
            if not wanted or line.strip() == wanted:
                return line.strip()
        raise RuntimeError("a worker ended early")

    def rate(self, what: str, seconds: float) -> float:
        self.process.stdin.write(f"{what} {seconds}\n")
        self.process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(10)


def compare(rounds: int, seconds: float, threads: int) -> dict:
    names = ["ludus", "tree", "cpprb", "tianshou"]
    workers = {name: Worker(name, 1_000_000, threads) for name in names}
    rates: dict = {name: [] for name in names}
    for i in range(rounds):
        for name in names if i % 2 == 0 else names[::-1]:
            rates[name].append(workers[name].rate("cycle", seconds))
        print("  ".join(f"{n} {rates[n][-1]:7.0f}/s" for n in names), flush=True)
    parts = {
        name: {what: workers[name].rate(what, seconds) for what in ("add", "sample", "update")}
        for name in names
    }
    for worker in workers.values():
        worker.close()
    best = [max(c, t) for c, t in zip(rates["cpprb"], rates["tianshou"], strict=True)]

    def ratio(a: list, b: list) -> float:
        return round(statistics.median(x / y for x, y in zip(a, b, strict=True)), 3)

    return {
        "threads": threads,
        "cycles_per_second": {n: round(statistics.median(r), 1) for n, r in rates.items()},
        "parts_per_second": parts,
        "ratio_to_best_peer": ratio(rates["ludus"], best),
        "ratio_to_cpprb": ratio(rates["ludus"], rates["cpprb"]),
        "ratio_to_tianshou": ratio(rates["ludus"], rates["tianshou"]),
        "tree_alone_to_cpprb": ratio(rates["tree"], rates["cpprb"]),
        "all": rates,
    }


def growth(rounds: int, seconds: float, threads: int) -> dict:
    """Cost of one sample of 512 as the buffer grows, taking turns."""
    sizes = [10_000, 100_000, 1_000_000, 2_000_000]
    workers = {size: Worker("ludus", size, threads) for size in sizes}
    cost: dict = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            cost[size].append(1e6 / workers[size].rate("sample", seconds))
    for worker in workers.values():
        worker.close()
    return {
        "sample_us": {str(s): round(statistics.median(c), 1) for s, c in cost.items()},
        "growth_1e4_to_2e6": round(
            statistics.median(b / a for a, b in zip(cost[sizes[0]], cost[sizes[-1]], strict=True)),
            3,
        ),
    }


def machine() -> dict:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        cpu = models[0].split(":")[1].strip() if models else cpu
    return {"cpu": cpu, "cores": os.cpu_count(), "load_at_start": os.getloadavg()[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--worker", nargs=3, metavar=("NAME", "CAPACITY", "THREADS"))
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results" / "replay_peers.json"
    )
    args = parser.parse_args()
    if args.worker:
        work(args.worker[0], int(args.worker[1]), int(args.worker[2]))
        return
    set_up("cpprb", "tianshou")
    result = {
        "what": "add 64 + sample 512 + update 512, 1M items, five small fields, n = 1",
        "machine": machine(),
        "compare": compare(args.rounds, args.seconds, args.threads),
        "growth": growth(max(3, args.rounds // 3), args.seconds / 2, args.threads),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    shown = {k: v for k, v in result["compare"].items() if k != "all"}
    print(json.dumps({**shown, **result["growth"]}, indent=1))


if __name__ == "__main__":
    main()
