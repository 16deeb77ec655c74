"""One cell of a matrix: `ludus train` in its own process, on its share of the cores.

    python -m ludus.bench.cell PARENT CORES train dqn CartPole-v1 ...

When the bench ends, even by SIGKILL, the run saves a checkpoint and stops.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress


def _stop_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.25)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    parent, cores, *words = sys.argv[1:]
    if cores and hasattr(os, "sched_setaffinity"):
        # Before anything counts cores, so that environments and torch see only their share.
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    threading.Thread(target=_stop_with, args=(int(parent),), daemon=True).start()
    sys.argv = ["ludus", *words]  # as a person would type it; the manifest says so
    from ludus.cli.main import main as ludus

    ludus(words)


if __name__ == "__main__":
    main()
