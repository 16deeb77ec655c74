"""The cost of `sample()` as the replay grows from 1e4 to 2e6 items with small observations.

    python benchmarks/sample_cost.py [--rounds 15] [--seconds 0.5] [--threads 1] [--batch 512]

For uniform draws and every `normalize` of prioritised ones, two stores of this process take turns,
small-large-small-large, and ratios are taken within a round, so a busy machine slows both alike.
Where there is a GPU, stores on it are measured too. Priorities are fed back between measurements,
so that they differ. Writes benchmarks/results/sample_cost.json. Not a test: nothing fails when a
number is high; the bar is a growth of at most 2.5.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import torch
from facts import commit

from ludus.contract import NStep, Plan, Prioritized, Uniform
from ludus.replay.store import build_store
from ludus.types import ArraySpec, Chunk, Discrete, EnvSpec, Rows

ENVS, ROWS = 64, 100
SIZES = (10_000, 2_000_000)
KINDS = {
    "uniform": Uniform(),
    **{f"prioritized {n}": Prioritized(normalize=n) for n in ("batch", "buffer", "none")},
}
BAR = 2.5
OUT = Path(__file__).parent / "results" / "sample_cost.json"


def filled(sampler, items: int, batch: int, device: str):
    """A store of `items` transitions whose priorities differ."""
    plan = Plan(NStep(1), sampler, batch=batch, chunk=ROWS, capacity=items)
    spec = EnvSpec("fake", ArraySpec((4,)), Discrete(6))
    store = build_store(plan, spec, ENVS, seed=1, horizon=10**9, device=device)
    rng = torch.Generator().manual_seed(1)
    rows = min(ROWS, items // ENVS // 2)
    no = torch.zeros(rows + 1, ENVS, dtype=torch.bool)
    reward = torch.rand(rows, ENVS, generator=rng)
    made = Rows(
        torch.rand(rows + 1, ENVS, 4, generator=rng), no[:-1].long(), reward, reward,
        torch.ones(rows, ENVS), no[:-1], no, ~no[:-1],
    )  # fmt: skip
    for number in range(items // ENVS // rows + 1):
        store.add(Chunk(made, 0, number))
    for _ in range(max(1, items // batch // 4)):
        ids = store.sample().ids
        store.feedback(ids, torch.rand(batch, generator=rng).to(device))
    return store


def microseconds(store, seconds: float) -> float:
    """The mean cost of a sample; a GPU has finished them all."""
    wait = torch.cuda.synchronize if store.ring.device.type == "cuda" else lambda: None
    for _ in range(5):
        store.sample()
    wait()
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for _ in range(10):
            store.sample()
        count += 10
    wait()
    return 1e6 * (time.perf_counter() - begin) / count


def compare(sampler, device: str, args: argparse.Namespace) -> dict:
    stores = [filled(sampler, size, args.batch, device) for size in SIZES]
    costs = [[microseconds(s, args.seconds) for s in stores] for _ in range(args.rounds)]
    growth = statistics.median(large / small for small, large in costs)
    medians = (round(statistics.median(c), 1) for c in zip(*costs, strict=True))
    return {
        "items": [s.size for s in stores],
        "sample_us": dict(zip(map(str, SIZES), medians, strict=True)),
        "growth": round(growth, 3),
        "within_bar": growth <= BAR,
    }


def machine() -> dict:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        cpu = models[0].split(":")[1].strip() if models else cpu
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    load = os.getloadavg()[0]
    return {"cpu": cpu, "cores": os.cpu_count(), "gpu": gpu, "load_at_start": load}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result = {
        "what": f"sample() of {args.batch} transitions with observations of 4 numbers, by the "
        "items held; growth is the median of ratios within a round, the bar is 2.5",
        "command": " ".join(["python", "benchmarks/sample_cost.py", *sys.argv[1:]]),
        "commit": commit(),
        "machine": machine(),
        "threads": args.threads,
        "torch": torch.__version__,
    }
    for device in ("cpu", *(("cuda",) if torch.cuda.is_available() else ())):
        result[device] = {}
        for name, sampler in KINDS.items():
            result[device][name] = row = compare(sampler, device, args)
            print(device, name, row, flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
