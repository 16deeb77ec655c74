"""What faults of processes do to a run: does it go on, does it leak, does the learner ever wait?

    python benchmarks/actor_faults.py                       # 100 kills in 10 minutes
    python benchmarks/actor_faults.py --kills 10 --minutes 1
    python benchmarks/actor_faults.py --crowd 100           # so many actors start, train and stop
    python benchmarks/actor_faults.py --crowd 100 --fleet hogwild
    python benchmarks/actor_faults.py --hang                # an actor stops, an environment sleeps
    python benchmarks/actor_faults.py --orphans             # the main process is killed

A free-running dqn on CartPole, or a3c as Hogwild. Kills: a random actor gets SIGKILL at random
times. The longest time between two ends of an iteration is the learner's stall; the slope of its
resident memory is fitted over the second half, when buffers are full. What stays open, alive or in
/dev/shm is counted before and after. Hangs: seconds until the one that replaces the silent actor
has delivered rows, with the default actor.hang_seconds. Orphans: see orphans.py. Appends to
results/actor_faults.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import facts
import numpy as np
import psutil
import torch
from orphans import orphans

import ludus
from ludus import registry
from ludus.bench.speed import machine
from ludus.run.build import build_loop
from ludus.run.loop import Loop
from ludus.settings.sections import ActorConfig
from ludus.track.run_dir.rundir import RunDir

RESULTS = Path(__file__).parent / "results" / "actor_faults.jsonl"


ALGORITHM = {"processes": "dqn", "hogwild": "a3c"}
# So that learning begins soon.
SMALL = {"env.num": 2, "algo.capacity": 20_000, "algo.warmup": 500}
SETTLE = 2.0  # seconds for what has ended to be gone
LONGEST = 180.0  # seconds that are waited for one thing


def loop_of(folder: str, fleet: str, actors: int, env: str = "CartPole-v1", **more: Any) -> Loop:
    settings = {"run.fleet": fleet, "run.actors": actors, "run.steps": 10**9, **more}
    cfg = ludus.config(ALGORITHM[fleet], env, **settings)
    loop, _ = build_loop(cfg, registry.make(cfg.algo), RunDir(Path(folder)))
    loop.barrier(0)
    return loop


def kills(actors: int, count: int, minutes: float, seed: int) -> dict[str, Any]:
    rng, me, before = random.Random(seed), psutil.Process(), _held()
    with tempfile.TemporaryDirectory(prefix="ludus-") as folder:
        loop = loop_of(folder, "processes", actors, **SMALL, **{"actor.restarts": 10**6})
        start = time.monotonic()
        times = sorted(rng.uniform(min(5, 30 * minutes), 60 * minutes) for _ in range(count))
        often = min(1.0, 0.6 * minutes)  # seconds between looks: the list itself takes memory
        stall, done, memory, ended = 0.0, 0, [(0.0, 0)], time.monotonic()
        while (
            loop.fleet.restarts.count < count
            or not loop.learner.updates
            or not all(m.ready for m in loop.fleet.members)
        ):
            loop.iterate()
            now = time.monotonic()
            stall, ended = max(stall, now - ended), now
            if now - start > memory[-1][0] + often:
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


def crowd(fleet: str, actors: int) -> dict[str, Any]:
    """Hogwild with its preset as it is; the other fleet with a small replay and two buffers."""
    before, more = _held(), {**SMALL, "actor.buffers": 2} if fleet == "processes" else {}
    with tempfile.TemporaryDirectory(prefix="ludus-") as folder:
        start = time.monotonic()
        loop = loop_of(folder, fleet, actors, **more)
        started = time.monotonic() - start
        seen = _deliverers(loop, fleet)
        while len(seen()) < actors or loop.learner.updates < 200:
            loop.iterate()
        trained = time.monotonic() - start - started
        restarts = loop.fleet.restarts.count
        loop.close()
    return {
        "kind": "crowd", "fleet": fleet, "actors": actors, "start_seconds": round(started, 1),
        "until_all_were_learned_from": round(trained, 1),
        "stop_seconds": round(time.monotonic() - start - started - trained, 1),
        "processes_seen": len(seen()), "updates": loop.learner.updates, "steps": loop.step,
        "restarts": restarts, "left_behind": _left(before),
    }  # fmt: skip


def _deliverers(loop: Loop, fleet: str) -> Callable[[], set[int]]:
    """Whose rows were learned from so far: process ids, or numbers of Hogwild workers."""
    if fleet == "hogwild":
        steps = loop.fleet.board.counts[:, 0]
        return lambda: set(np.flatnonzero(steps).tolist())
    seen: set[int] = set()
    poll = loop.fleet.poll

    def watched(*words: Any) -> Any:
        got = poll(*words)
        seen.update(g.process for g in got)
        return got

    loop.fleet.poll = watched
    return lambda: seen


def hang(fleet: str, how: str, actors: int, **more: Any) -> dict[str, Any]:
    """`how`: an actor is "stopped" with SIGSTOP, or its environment is "sleeping" in a step."""
    before = _held()
    with tempfile.TemporaryDirectory(prefix="ludus-") as folder:
        asleep, settings = Path(folder) / "asleep", {**more}
        settings |= SMALL if fleet == "processes" else {"env.num": 2}
        if how == "sleeping":
            settings["env.args"] = {"asleep": str(asleep)}
        env = "CartPole-v1" if how == "stopped" else "fault_envs:SleepsOnce"
        loop = loop_of(folder, fleet, actors, env, **settings)
        seen = _deliverers(loop, fleet)
        _until(loop, lambda: len(seen()) == actors)
        if how == "stopped":
            silent = time.monotonic()
            os.kill(loop.fleet.pids()[0], signal.SIGSTOP)
        else:
            _until(loop, lambda: asleep.exists() and asleep.read_text().endswith("\n"))
            silent = float(asleep.read_text())
        steps = loop.step
        _until(loop, lambda: loop.fleet.restarts.count)
        failure = loop.fleet.restarts.failures[0]
        _until(loop, lambda: _works_again(loop, fleet, failure.actor))
        row = {
            "kind": "hang", "fleet": fleet, "how": how, "actors": actors,
            "hang_seconds": more.get("actor.hang_seconds", ActorConfig().hang_seconds),
            "replaced_after_seconds": round(failure.at - silent, 2),
            "rows_again_after_seconds": round(time.monotonic() - silent, 2),
            "steps_meanwhile": loop.step - steps, "restarts": loop.fleet.restarts.count,
            "cause": failure.cause.replace(folder, "RUN"),
        }  # fmt: skip
        loop.close()
    return row | {"left_behind": _left(before)}


def _works_again(loop: Loop, fleet: str, actor: int) -> bool:
    """Rows of the one that has taken the place of the actor of this number have arrived."""
    if fleet == "processes":
        member = loop.fleet.members[actor]
        return member.job.generation > 0 and member.worked
    member = loop.fleet.members.get(actor)
    return (
        member and member.job.generation and loop.fleet.board.of(actor, "steps") > member.first_step
    )


def _until(loop: Loop, done: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LONGEST
    while not done():
        loop.iterate()
        if time.monotonic() > deadline:
            raise SystemExit(f"not in {LONGEST:g} s")


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
    time.sleep(SETTLE)
    return {kind: count - before[kind] for kind, count in _held().items()}


def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    fleets = [args.fleet] if args.fleet else list(ALGORITHM)
    if args.crowd:
        yield crowd(args.fleet or "processes", args.crowd)
    elif args.orphans:
        for fleet in fleets:
            yield orphans(fleet, args.actors, args.repeats)
    elif args.hang:
        for fleet in fleets:
            for how in ("stopped", "sleeping"):
                yield hang(fleet, how, args.actors)
    else:
        yield kills(args.actors, args.kills, args.minutes, args.seed)


def main(words: list[str] | None = None) -> None:
    words = sys.argv[1:] if words is None else words
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--actors", type=int, default=4)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--crowd", type=int, nargs="?", const=100, default=0)
    parser.add_argument("--hang", action="store_true")
    parser.add_argument("--orphans", action="store_true")
    parser.add_argument("--repeats", type=int, default=6, help="of --orphans")
    parser.add_argument("--fleet", choices=list(ALGORITHM), help="only this one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(words)
    known = {"threads": torch.get_num_threads(), "commit": facts.commit(), "machine": machine()}
    known["command"] = " ".join(["python", "benchmarks/actor_faults.py", *words])
    for row in rows(args):
        row |= {"load_after": round(os.getloadavg()[0], 1), **known}
        facts.append(args.out, row)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
