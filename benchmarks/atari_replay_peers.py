"""Prioritised replay of Atari rows against cpprb 11 and tianshou 2.0; time per million steps.

    python benchmarks/atari_replay_peers.py [--rounds 9] [--seconds 2.0] [--threads 2] [--quick]

The cycle is add 64 + sample 512 + update 512, n = 1, 100k items for everyone; observations are four
frames of 84 x 84 bytes. Each library runs in a process of its own, in turns A-B-C-A-B-C, and ratios
are taken within a round. Ours and tianshou's keep single frames and stack when they sample. cpprb
is tried in the three ways its users store Atari (rows with their next, `next_of`, `next_of` and
`stack_compress`), each fed 64 consecutive steps of one game as the last two need it; the fastest is
compared, and the first, which needs no compression. Only ours is given episode ends.

A batch is kept until the next one is there, as learners keep it. "dropped" is the other way, with
nothing but the indexes kept: allocators then give memory back and fetch it again for each batch.

Memory is the growth of the resident size while a store for 1M steps is filled; where less memory is
free, a smaller one, scaled. Writes benchmarks/results/atari_replay_peers.json. Peers' environments
are built under .peers/ where they are missing. Not a test: nothing fails when a number is low.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from peers import ROOT, set_up, versions
from replay_peers import BATCH, BLOCK, Worker, machine, serve

SIDE, STACK = 84, 4
EPISODE = 1000  # rows of an episode, its final observation not counted
DROPPED = "dropped"
CPPRB = ["cpprb-rows", "cpprb-next", "cpprb-stack"]


# This half runs inside a worker process.


def frames(count: int):
    import numpy as np

    return np.random.default_rng(0).integers(0, 256, (count, SIDE, SIDE), np.uint8)


def cpprb_parts(capacity: int, kind: str):
    import numpy as np
    from cpprb import PrioritizedReplayBuffer

    kind, dropped = kind.removesuffix(f"-{DROPPED}"), kind.endswith(DROPPED)
    stream = frames(BLOCK + STACK)
    axis = -1 if kind == "stack" else 1  # stack_compress wants the stack last
    windows = [np.stack([stream[i + j : i + j + BLOCK] for i in range(STACK)], 1) for j in (0, 1)]
    obs, after = (np.ascontiguousarray(np.moveaxis(w, 1, axis)) for w in windows)
    image = {"shape": obs.shape[1:], "dtype": np.uint8}
    fields = {"obs": image, "act": {"dtype": np.int64}, "rew": {}, "done": {}}
    options = {} if kind == "rows" else {"next_of": "obs"}
    if kind == "rows":
        fields["next_obs"] = image
    if kind == "stack":
        options["stack_compress"] = "obs"
    buffer = PrioritizedReplayBuffer(capacity, fields, alpha=0.6, **options)
    act, rew, done = np.zeros(BLOCK, np.int64), np.zeros(BLOCK, np.float32), np.zeros(BLOCK)
    priority, held = np.random.default_rng(1).random(BATCH), [None]

    def add():
        buffer.add(obs=obs, act=act, rew=rew, next_obs=after, done=done)

    def sample():
        held[0] = buffer.sample(BATCH, beta=0.4)

    def sample_and_drop():
        held[0] = {"indexes": buffer.sample(BATCH, beta=0.4)["indexes"]}

    def update():
        buffer.update_priorities(held[0]["indexes"], priority)

    return add, sample_and_drop if dropped else sample, update


def tianshou_parts(capacity: int, kind: str):
    import numpy as np
    from tianshou.data import Batch, PrioritizedVectorReplayBuffer

    stream = frames(BLOCK * (STACK + 1)).reshape(BLOCK, STACK + 1, SIDE, SIDE)
    buffer = PrioritizedVectorReplayBuffer(
        capacity, buffer_num=BLOCK, alpha=0.6, beta=0.4, stack_num=STACK, save_only_last_obs=True,
        ignore_obs_next=True,
    )  # fmt: skip
    no = np.zeros(BLOCK, bool)
    rows = Batch(
        obs=stream[:, :-1].copy(), act=np.zeros(BLOCK, np.int64), rew=np.zeros(BLOCK, np.float32),
        terminated=no, truncated=no, done=no, obs_next=stream[:, 1:].copy(), info=Batch(),
    )  # fmt: skip
    ids, held = np.arange(BLOCK), [None, None]
    priority = np.random.default_rng(1).random(BATCH)

    def sample():
        held[:] = buffer.sample(BATCH)

    return (
        lambda: buffer.add(rows, buffer_ids=ids),
        sample,
        lambda: buffer.update_weight(held[1], priority),
    )


def ludus_store(capacity: int):
    from ludus.contract import NStep, Plan, Prioritized
    from ludus.replay.store import build_store
    from ludus.types import ArraySpec, Discrete, EnvSpec

    plan = Plan(NStep(1), Prioritized(), batch=BATCH, chunk=1, capacity=capacity)
    screen = ArraySpec((SIDE, SIDE), "uint8", stack=STACK, layout="hw")
    spec = EnvSpec("fake", screen, Discrete(6))
    return build_store(plan, spec, BLOCK, seed=1, horizon=10**9), plan, spec


def chunks():
    """One row of 64 games at a time, without end. Games end at different times; the row after an
    end holds the final observation and is masked, as environments give it."""
    import numpy as np
    import torch

    from ludus.types import Chunk, Rows

    pairs = torch.from_numpy(frames(16 * 2 * BLOCK)).view(16, 2, BLOCK, SIDE, SIDE)
    period = EPISODE + 1
    age = (np.arange(period)[:, None] + np.arange(BLOCK) * (period // BLOCK)) % period
    last = torch.from_numpy(age == EPISODE - 1)[:, None]  # [period, 1, N]
    mask = torch.from_numpy(age != EPISODE)[:, None]
    first = torch.from_numpy(np.stack((age == 0, age == EPISODE), 1))  # [period, 2, N]
    discount = 1.0 - last.float()
    action, reward = torch.zeros(1, BLOCK, dtype=torch.int64), torch.zeros(1, BLOCK)
    number = 0
    while True:
        i = number % period
        rows = Rows(
            pairs[number % 16], action, reward, reward, discount[i], last[i], first[i], mask[i]
        )
        yield Chunk(rows, 0, number)
        number += 1


def ludus_parts(capacity: int, kind: str):
    import torch

    store, _, _ = ludus_store(capacity)
    source, held = chunks(), [None, None]  # the batch and its ids
    priority = torch.rand(BATCH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def sample():
        held[:] = store.sample(), None
        held[1] = held[0].ids

    def sample_and_drop():
        held[1] = store.sample().ids

    return (
        lambda: store.add(next(source)),
        sample_and_drop if kind.endswith(DROPPED) else sample,
        lambda: store.feedback(held[1], priority),
    )


PARTS = {"ludus": ludus_parts, "cpprb": cpprb_parts, "tianshou": tianshou_parts}


def work(name: str, capacity: int, threads: int) -> None:
    library, _, kind = name.partition("-")
    if library != "cpprb":
        import torch

        torch.set_num_threads(threads)
    serve(*PARTS[library](capacity, kind), capacity)


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def fill(steps: int) -> None:
    """Print what filling a store for `steps` steps took, as JSON."""
    from ludus.process.limits import free_memory
    from ludus.replay.storage.memory import estimate_bytes

    _, plan, spec = ludus_store(BLOCK * 8)  # imports and first allocations are not the store's
    source = chunks()
    chunk = next(source)
    free, wanted = free_memory(), steps
    per_step = estimate_bytes(replace(plan, capacity=steps), spec, BLOCK) / steps
    steps = min(steps, int((free - (1 << 30)) / per_step) // BLOCK * BLOCK)
    before = resident()
    store, plan, spec = ludus_store(steps)
    for _ in range(steps // BLOCK + 8):
        store.add(chunk)
        chunk = next(source)
    grown = resident() - before
    answer = {
        "steps": steps, "resident_growth_gb": grown / 1e9, "bytes_per_step": grown / steps,
        "estimate_gb": estimate_bytes(plan, spec, BLOCK) / 1e9, "drawable": store.size,
        "free_before_gb": free / 1e9,
    }  # fmt: skip
    if steps < wanted:
        answer[f"scaled_to_{wanted}_steps_gb"] = grown / steps * wanted / 1e9
    print(json.dumps(answer))


# The driver.


def fastest_cpprb(capacity: int, threads: int, seconds: float) -> tuple[str, dict]:
    """Each way alone, in turn, twice."""
    rates: dict = {}
    for name in CPPRB * 2:
        worker = Worker(name, capacity, threads, __file__)
        rates[name] = max(rates.get(name, 0.0), worker.rate("cycle", seconds))
        worker.close()
    return max(rates, key=rates.__getitem__), rates


def compare(capacity: int, rounds: int, seconds: float, threads: int) -> dict:
    best, tried = fastest_cpprb(capacity, threads, seconds)
    print("  ".join(f"{n} {r:.0f}/s" for n, r in tried.items()), flush=True)
    dropped = [f"{name}-{DROPPED}" for name in ("ludus", "cpprb-rows")]
    names = list(dict.fromkeys(["ludus", best, "cpprb-rows", *dropped, "tianshou"]))
    workers = {name: Worker(name, capacity, threads, __file__) for name in names}
    rates: dict = {name: [] for name in names}
    for i in range(rounds):
        for name in names if i % 2 == 0 else names[::-1]:
            rates[name].append(workers[name].rate("cycle", seconds))
        print("  ".join(f"{n} {rates[n][-1]:6.0f}/s" for n in names), flush=True)
    parts = {
        name: {what: workers[name].rate(what, seconds / 2) for what in ("add", "sample", "update")}
        for name in names
    }
    for worker in workers.values():
        worker.close()

    def ratio(other: str, ours: str = "ludus") -> float:
        pairs = zip(rates[ours], rates[other], strict=True)
        return round(statistics.median(a / b for a, b in pairs), 3)

    return {
        "capacity": capacity, "threads": threads, "cpprb_way": best, "cpprb_tried": tried,
        "cycles_per_second": {n: round(statistics.median(r), 1) for n, r in rates.items()},
        "parts_per_second": parts, "ratio_to_cpprb": ratio(best),
        "ratio_to_cpprb_rows": ratio("cpprb-rows"),
        "ratio_when_dropped": ratio(dropped[1], dropped[0]),
        "ratio_to_tianshou": ratio("tianshou"), "all": rates,
    }  # fmt: skip


def memory(steps: int) -> dict:
    words = [sys.executable, __file__, "--fill", str(steps)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--capacity", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=1_000_000, help="of the memory measurement")
    parser.add_argument("--quick", action="store_true", help="does it run at all; writes nothing")
    parser.add_argument("--worker", nargs=3, metavar=("NAME", "CAPACITY", "THREADS"))
    parser.add_argument("--fill", type=int, metavar="STEPS")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results" / "atari_replay_peers.json"
    )
    args = parser.parse_args()
    if args.worker:
        work(args.worker[0], int(args.worker[1]), int(args.worker[2]))
        return
    if args.fill:
        fill(args.fill)
        return
    set_up("cpprb", "tianshou")
    if args.quick:
        args.rounds, args.seconds, args.capacity, args.steps = 3, 0.5, 20_000, 50_000
    result = {
        "what": "add 64 + sample 512 + update 512, Atari rows, stacks of 4 frames 84x84, n = 1",
        "machine": machine(),
        "versions": versions({"cpprb": "cpprb", "tianshou": "tianshou"}, "torch", "numpy"),
        "command": " ".join(["python", *sys.argv]),
        "memory": memory(args.steps),  # first: the peers' buffers are not in the way
        "compare": compare(args.capacity, args.rounds, args.seconds, args.threads),
    }
    shown = {k: v for k, v in result["compare"].items() if k != "all"}
    print(json.dumps({**shown, "memory": result["memory"]}, indent=1))
    if not args.quick:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
