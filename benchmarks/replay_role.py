"""A replay role against a replay with the learner: updates per second on Atari-shaped rows, and the
share of time in which the learner waits for samples.

    python benchmarks/replay_role.py rates --seconds 20
    python benchmarks/replay_role.py wait --steps 30k
    python benchmarks/replay_role.py costs

`costs`: CPU time of one core, which other programs on the machine hardly change.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ludus
from ludus import registry
from ludus.compute.cuda_graph import Streams
from ludus.compute.probe_act import extras_of
from ludus.contract import Values, stored_state
from ludus.envs.make import probe_spec
from ludus.learn.captured import build_updates
from ludus.learn.learner import Learner
from ludus.learn.placement import decide, tune
from ludus.learn.staged import build_staged
from ludus.process.fork_server import process_context
from ludus.replay.chunk_layout import ChunkLayout
from ludus.replay.roles.role import ReplayRole, RoleJob, example_sample
from ludus.replay.roles.transport import RoleMemory, sample_fields
from ludus.replay.store import build_store
from ludus.run.replay_roles import build_roles
from ludus.track.metrics.writer import read_metrics
from ludus.types import Chunk, Ctx, EnvSpec, tree_paths

ROWS = 4_000  # in the replay before the measurement


def rate(replays: int, args: argparse.Namespace) -> dict[str, Any]:
    """Updates per second of `apex-dqn` with as many updates due as the learner can do. The rows are
    random frames: no emulator takes a core."""
    actors = max(1, replays)
    cfg = ludus.config(
        "apex-dqn", args.env,
        **{
            "algo.batch": args.batch, "algo.capacity": args.capacity, "algo.warmup": ROWS,
            "algo.chunk": 64, "algo.replay.initial": "largest", "env.num": 1,
            "run.replays": replays, "run.prefetch": args.prefetch, "run.device": args.device,
            "run.actors": actors, "run.fleet": "processes", "run.exact": "off",
        },
    )  # fmt: skip
    spec = replace(probe_spec(cfg.env), num_envs=actors)
    algorithm = registry.make(cfg.algo)
    algorithm.plan = plan = replace(algorithm.plan.for_envs(actors), replay_ratio=1e6)
    compute = decide(cfg, algorithm, spec)
    device, streams = compute.device, Streams(compute.device)
    learner = Learner(algorithm, spec, seed=1, device=device, precision=compute.precision)
    tune(learner.net, compute)
    extras = extras_of(algorithm, learner.net, spec)
    with tempfile.TemporaryDirectory() as folder:
        store: Any
        if replays:
            place = Path(folder), algorithm, learner.net
            store = build_roles(cfg, *place[1:], plan, spec, extras, device, place[0])
        else:
            store = build_store(
                plan, spec, actors, seed=1, horizon=1_000_000, device=device, extras_spec=extras,
                on_device=compute.captured or device.type != "cpu",
            )  # fmt: skip
        build = build_staged if replays else build_updates
        updates = build(store, learner, streams, capture=compute.capture, overlap=False)
        streams.open()
        try:
            values = Values(plan, 1_000_000, device).at(0)
            ctx = Ctx(torch.Generator().manual_seed(0), spec, actors=actors)
            state = stored_state(algorithm.begin(1, ctx))
            layout = ChunkLayout.of(spec, extras, state, plan.chunk, 1)
            adding = fill(store, layout, spec, actors)
            return measured(store, learner, updates, values, args.seconds) | {"add_us": adding}
        finally:
            streams.close()
            if replays:
                store.close()


def fill(store: Any, layout: ChunkLayout, spec: EnvSpec, actors: int) -> float:
    """Add random rows. Returns microseconds for each chunk."""
    rng, spent, rows = np.random.default_rng(1), 0.0, layout.fields["reward"][0][0]
    for number in range(-(-ROWS // (rows * actors))):
        arrays = layout.zeros()
        for name in tree_paths(spec.obs):
            arrays[name][...] = rng.integers(0, 256, arrays[name].shape)
        arrays["mask"][...], arrays["discount"][...] = True, 1.0
        arrays["first"][0] = number == 0
        for source in range(actors):
            chunk = Chunk(layout.read(arrays, copy=True), source, number)
            start = time.perf_counter()
            store.add(chunk)
            spent += time.perf_counter() - start
    return 1e6 * spent / (number + 1) / actors


def measured(
    store: Any, learner: Learner, updates: Any, values: dict[str, torch.Tensor], seconds: float
) -> dict[str, Any]:
    """Learn for so long. The store is due all the time, so the clock ends it."""
    ready = store.ready
    until = time.perf_counter() + 60.0
    store.ready = lambda: learner.updates < 5 and time.perf_counter() < until and ready()
    while learner.updates < 5 and time.perf_counter() < until:
        updates.start(values)  # libraries, graphs, first samples
        updates.finish()
    waited, before = getattr(store, "wait_seconds", 0.0), learner.updates
    start = time.perf_counter()
    store.ready = lambda: time.perf_counter() < start + seconds and ready()
    while time.perf_counter() < start + seconds:
        updates.start(values)
        updates.finish()
    spent = time.perf_counter() - start
    return {
        "updates_per_second": (learner.updates - before) / spent,
        "wait": (getattr(store, "wait_seconds", 0.0) - waited) / spent,
        "mode": updates.mode,
    }


def wait(args: argparse.Namespace) -> dict[str, Any]:
    """The wait share of a whole run of `apex-dqn` on CartPole: 2 actors and a role."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "ludus", "train", "apex-dqn", "CartPole-v1", "fleet=processes",
             "actors=2", "run.replays=1", f"steps={args.steps}", f"prefetch={args.prefetch}",
             "log.tensorboard=false", "log.report=false", "--runs-dir", folder, "--run", "x",
             "--quiet"],
            check=True,
        )  # fmt: skip
        last = read_metrics(Path(folder) / "x" / "metrics.jsonl")[-1]
    names = (
        "step", "updates", "learner/updates_per_second", "performance/steps_per_second",
        "time/learn", "time/replay_wait", "replay/samples_per_step", "performance/score",
    )  # fmt: skip
    return {name: last.get(name) for name in names}


def costs(args: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of CPU: for the learner to forward a chunk of 64 rows to a role, and for the
    role to draw a batch and to write it into shared memory."""
    torch.set_num_threads(1)
    settings = {"algo.batch": args.batch, "algo.capacity": args.capacity, "algo.warmup": ROWS}
    settings |= {"algo.chunk": 64, "algo.replay.initial": "largest", "env.num": 1}
    cfg = ludus.config("apex-dqn", args.env, **settings)
    spec = replace(probe_spec(cfg.env), num_envs=1)
    plan = replace(registry.make(cfg.algo).plan.for_envs(1), replay_ratio=1e6)
    role = ReplayRole(
        RoleJob(index=0, plan=plan, spec=spec, num_envs=1, first_env=0, seed=1, horizon=10**6)
    )
    layout = ChunkLayout.of(spec, {}, (), 64, 1)
    fill(role, layout, spec, 1)
    chunk = Chunk(layout.read(layout.zeros(), copy=False))
    fields = sample_fields(example_sample(plan, spec, {}, chunk))
    context = process_context("ludus.fleets.processes.actor")
    memory = RoleMemory.make(layout, 1, fields, 1, context, copy=False)
    spent: dict[str, list[float]] = {"forward_ms": [], "draw_ms": [], "write_ms": []}
    for _ in range(20):
        times = [time.process_time()]
        memory.put_chunk(0, chunk, 0)
        times.append(time.process_time())
        role.ask(0)
        drawn = next(role.draws())
        times.append(time.process_time())
        memory.write_sample(drawn)
        times.append(time.process_time())
        for name, before, after in zip(spent, times, times[1:], strict=False):
            spent[name].append(1e3 * (after - before))
    return {name: float(np.median(found)) for name, found in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("rates", "wait", "costs"))
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--capacity", type=int, default=20_000)
    parser.add_argument("--prefetch", default="2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--replays", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--steps", default="30k")
    args = parser.parse_args()
    if args.what == "wait":
        print(json.dumps(wait(args)))
        return
    args.prefetch = int(args.prefetch)
    if args.what == "costs":
        print(json.dumps(costs(args)))
        return
    for replays in args.replays:
        print(json.dumps({"replays": replays, "batch": args.batch, **rate(replays, args)}))


if __name__ == "__main__":
    main()
