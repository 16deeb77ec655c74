"""Which files of ludus six iterations of training pass through, from environment to optimizer.

    python tools/crossed_files.py            # inline, captured, learner, actor, hogwild worker

A profiler notes the file of every Python call; the start of a run is left out. A reader of an
algorithm has to know as many files as are listed. An actor and a hogwild worker run in this
process, with the same shared memory and pipe as in their own.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
PACKAGE = str(ROOT / "ludus") + os.sep
SMALL = {"env.num": 2, "run.steps": 100_000, "run.device": "cpu", "run.precision": "fp32"}
REPLAY = {"algo.warmup": 64, "algo.batch": 16, "algo.capacity": 2000, "algo.replay_ratio": 8.0}
UNROLL = {"algo.unroll": 8, "algo.batch": 2}
PROCESSES = {**SMALL, **UNROLL, "run.fleet": "processes", "run.actors": 2}
ITERATIONS = 6
WARM_UP = 20  # updates, chunks or fragments before the first counted one


class Recording:
    """The files of all calls while `on`, in this thread and in threads started inside."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.on = False

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if self.on and event == "call" and name.startswith(PACKAGE):
            self.files.add(name[len(PACKAGE) :])

    def __enter__(self) -> Recording:
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


def built(name: str, settings: dict[str, Any], folder: str) -> Any:
    import ludus
    from ludus import registry
    from ludus.run.build import build_loop
    from ludus.track.run_dir.rundir import RunDir

    cfg = ludus.config(name, "CartPole-v1", preset="none", **settings)
    return build_loop(cfg, registry.make(cfg.algo), RunDir(Path(folder)))[0]


def of_loop(loop: Any) -> set[str]:
    loop.barrier(0)
    while loop.learner.updates < WARM_UP:
        loop.iterate()
    with Recording() as recording:
        recording.on = True
        for _ in range(ITERATIONS):
            loop.iterate()
    return recording.files


def served(
    serve: Callable[[], None], done: Callable[[], int], parent: Connection, end: Callable[[], None]
) -> set[str]:
    """Run `serve`, which counts its iterations in `done`, until a thread sends "close"."""
    recording = Recording()

    def direct() -> None:
        while done() < WARM_UP:
            time.sleep(1e-4)
        recording.on, first = True, done()
        while done() < first + ITERATIONS:
            time.sleep(1e-4)
        recording.on = False
        end()
        parent.send(("close", None))

    director = threading.Thread(target=direct)
    director.start()
    with recording:
        serve()
    director.join()
    return recording.files


def of_actor(loop: Any) -> set[str]:
    """An actor process of another run with the same settings, whose chunks a thread discards."""
    from ludus.fleets.processes import actor

    loop.fleet.publish(loop.learner.net)
    fleet, member = loop.fleet, loop.fleet.members[0]
    parent, child = multiprocessing.Pipe()
    shared = actor.Shared(fleet.board, member.mailbox, fleet.control)
    job = actor.Job(member.job, loop.fleet.lockstep, loop.fleet.cfg.actor.pull_every)
    traced = actor.Actor(job, shared, child)
    traced.core.barrier(0)
    parent.send(("run", None))
    taken = 0

    def done() -> int:
        nonlocal taken
        while parent.poll(0):
            kind, value = parent.recv()
            if kind == "chunk":
                taken += 1
                member.mailbox.release(value[0])
        return taken

    return served(traced.serve, done, parent, lambda: None)


def of_worker(loop: Any) -> set[str]:
    from ludus.fleets.hogwild.shared_parameters import LEAVING, LIMIT
    from ludus.fleets.hogwild.worker import Worker

    fleet, board = loop.fleet, loop.fleet.board
    parent, child = multiprocessing.Pipe()
    traced = Worker(fleet.make_job(0, 0, 0, {}))
    board.control[LIMIT] = loop.steps
    parent.send(("go", None))

    def leave() -> None:
        board.control[LEAVING] = 1

    return served(lambda: traced.serve(child), lambda: board.total("updates"), parent, leave)


Case = tuple[str, dict[str, Any], Callable[[Any], set[str]]]
CASES: dict[str, Case] = {
    "dqn inline": ("dqn", {**SMALL, **REPLAY}, of_loop),
    "rainbow-iqn captured": ("rainbow-iqn", {**SMALL, **REPLAY, "run.capture": "on"}, of_loop),
    "impala learner": ("impala", PROCESSES, of_loop),
    "impala actor": ("impala", PROCESSES, of_actor),
    "a3c worker": (
        "a3c",
        {**SMALL, "env.num": 1, "run.fleet": "hogwild", "run.actors": 2},
        of_worker,
    ),
}


def main() -> None:
    for title, (name, settings, trace) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            loop = built(name, settings, folder)
            try:
                files = sorted(trace(loop))
            finally:
                loop.close()
        print(f"{title}: {len(files)}")
        print("   " + " ".join(files))


if __name__ == "__main__":
    main()
