"""What kills of actors do to a run: does it go on, does it leak, does the learner ever wait?

    python benchmarks/actor_faults.py                       # 100 kills in 10 minutes
    python benchmarks/actor_faults.py --kills 10 --minutes 1
    python benchmarks/actor_faults.py --crowd 100           # so many actors start, train and stop

A free-running dqn on CartPole; a random actor gets SIGKILL at random times. The longest time
between two ends of an iteration is the learner's stall; the slope of its resident memory is fitted
over the second half, when buffers are full. What stays open, alive or in /dev/shm is counted
before and after. Appends to results/actor_faults.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import facts
import numpy as np
import psutil

import ludus
from ludus import registry
from ludus.bench.speed import machine
from ludus.run.build import build_loop
from ludus.run.loop import Loop
from ludus.track.rundir import RunDir

RESULTS = Path(__file__).parent / "results" / "actor_faults.jsonl"


def loop_of(folder: str, actors: int, **more: Any) -> Loop:
    settings = {
        "run.fleet": "processes", "run.actors": actors, "env.num": 2, "run.steps": 10**9,
        "algo.capacity": 20_000, "algo.warmup": 500, "actor.restarts": 10**6, **more,
    }  # fmt: skip
    cfg = ludus.config("dqn", "CartPole-v1", **settings)
    loop, _ = build_loop(cfg, registry.make(cfg.algo), RunDir(Path(folder)))
    loop.barrier(0)
    return loop


def kills(actors: int, count: int, minutes: float, seed: int) -> dict[str, Any]:
    rng, me, before = random.Random(seed), psutil.Process(), _held()
    with tempfile.TemporaryDirectory(prefix="ludus-") as folder:
        loop = loop_of(folder, actors)
        start = time.monotonic()
        times = sorted(rng.uniform(5, 60 * minutes) for _ in range(count))
        stall, done, memory, ended = 0.0, 0, [(0.0, 0)], time.monotonic()
        while done < count or not all(m.ready for m in loop.fleet.members):
            loop.iterate()
            now = time.monotonic()
            stall, ended = max(stall, now - ended), now
            if now - start > memory[-1][0] + 1:  # once a second: the list itself takes memory
                memory.append((now - start, me.memory_info().rss))
            if done < count and now - start > times[done]:
                victims = [m for m in loop.fleet.members if m.ready and m.process.is_alive()]
                if victims:
                    os.kill(rng.choice(victims).process.pid, signal.SIGKILL)
                    done += 1
        seconds = time.monotonic() - start
        half = [(t, m) for t, m in memory if t > seconds / 2]
        slope = float(np.polyfit([t / 60 for t, _ in half], [m / 2**20 for _, m in half], 1)[0])
        row = {
            "kind": "kills", "actors": actors, "kills": done, "seconds": round(seconds, 1),
            "restarts": loop.fleet.restarts.count, "steps": loop.step,
            "updates": loop.learner.updates, "longest_stall_seconds": round(stall, 3),
            "memory_slope_mb_per_minute": round(slope, 3), "files_open": me.num_fds(),
        }  # fmt: skip
        loop.close()
    return row | {"left_behind": _left(before)}


def crowd(actors: int) -> dict[str, Any]:
    before = _held()
    with tempfile.TemporaryDirectory(prefix="ludus-") as folder:
        start = time.monotonic()
        loop = loop_of(folder, actors, **{"actor.buffers": 2})
        started = time.monotonic() - start
        seen: set[int] = set()
        poll = loop.fleet.poll

        def watched(*words: Any) -> Any:
            got = poll(*words)
            seen.update(g.process for g in got)
            return got

        loop.fleet.poll = watched
        while len(seen) < actors or loop.learner.updates < 200:
            loop.iterate()
        trained = time.monotonic() - start - started
        loop.close()
    return {
        "kind": "crowd", "actors": actors, "start_seconds": round(started, 1),
        "until_all_were_learned_from": round(trained, 1),
        "stop_seconds": round(time.monotonic() - start - started - trained, 1),
        "processes_seen": len(seen), "updates": loop.learner.updates, "left_behind": _left(before),
    }  # fmt: skip


def _held() -> dict[str, int]:
    """Processes, open files and shared memory of this run."""
    me, shared = psutil.Process(), Path("/dev/shm")
    return {
        "processes": len(me.children(recursive=True)), "files": me.num_fds(),
        "shared": len(list(shared.iterdir())) if shared.exists() else 0,
    }  # fmt: skip


def _left(before: dict[str, int]) -> dict[str, int]:
    """More than there was. Two processes and a few files belong to Python's fork server, which
    serves whatever else this process may start."""
    time.sleep(2)
    return {kind: count - before[kind] for kind, count in _held().items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--actors", type=int, default=4)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--crowd", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.crowd:
        row = crowd(args.crowd)
    else:
        row = kills(args.actors, args.kills, args.minutes, args.seed)
    row |= {"commit": facts.commit(), "machine": machine()}
    facts.append(args.out, row)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
