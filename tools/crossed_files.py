"""Which files of ludus six iterations of training pass through, from environment to optimizer.

    python tools/crossed_files.py            # dqn, rainbow-iqn captured, impala learner, a3c worker

A profiler notes the file of every Python call; the start of a run is left out. A reader of an
algorithm has to know as many files as are listed.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
PACKAGE = str(ROOT / "ludus") + os.sep
SMALL = {"env.num": 2, "run.steps": 100_000, "run.device": "cpu", "run.precision": "fp32"}
REPLAY = {"algo.warmup": 64, "algo.batch": 16, "algo.capacity": 2000, "algo.replay_ratio": 8.0}
UNROLL = {"algo.unroll": 8, "algo.batch": 2}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dqn inline": ("dqn", {**SMALL, **REPLAY}),
    "rainbow-iqn captured": ("rainbow-iqn", {**SMALL, **REPLAY, "run.capture": "on"}),
    "impala learner": ("impala", {**SMALL, **UNROLL, "run.fleet": "processes", "run.actors": 2}),
}
ITERATIONS = 6


def watched(work: Callable[[], None]) -> set[str]:
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGE):
            found.add(name[len(PACKAGE) :])

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def crossed(name: str, settings: dict[str, Any]) -> set[str]:
    import ludus
    from ludus import registry
    from ludus.run.build import build_loop
    from ludus.track.run_dir.rundir import RunDir

    cfg = ludus.config(name, "CartPole-v1", preset="none", **settings)
    with tempfile.TemporaryDirectory() as folder:
        loop, _ = build_loop(cfg, registry.make(cfg.algo), RunDir(Path(folder)))
        loop.barrier(0)
        while loop.learner.updates < 20:
            loop.iterate()

        def six() -> None:
            for _ in range(ITERATIONS):
                loop.iterate()

        try:
            return watched(six)
        finally:
            loop.close()


def main() -> None:
    for title, (name, settings) in CASES.items():
        files = sorted(crossed(name, settings))
        print(f"{title}: {len(files)}")
        print("   " + " ".join(files))


if __name__ == "__main__":
    main()
