"""The process that holds a node of a cluster, started by `ray start`. It ends the node and all
processes on it when its standard input ends: when the command that started it exits or is killed.

    python -m ludus.fleets.ray.role_node WORDS        the words of `ray start`
"""

from __future__ import annotations

import os
import select
import subprocess
import sys

from ludus.fleets.ray.node import adopt_orphans, end_children
from ludus.process.signals import ignore_signals

READY = "ludus-ray-node-runs"
STARTED = b"Ray runtime started"


def main() -> None:
    ignore_signals()
    adopt_orphans()
    words = [sys.executable, "-m", "ray.scripts.scripts", "start", *sys.argv[1:], "--block"]
    try:
        node = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        _relay(node)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    finally:
        end_children()
        os._exit(0)


def _relay(node: subprocess.Popen[bytes]) -> None:
    """Copy what the node prints, say when it runs, and return when it or our input has ended."""
    assert node.stdout is not None
    out, said, runs = node.stdout.fileno(), b"", False
    while True:
        ready, _, _ = select.select([0, out], [], [])
        if 0 in ready and not os.read(0, 1 << 10):
            return
        if out not in ready:
            continue
        part = os.read(out, 1 << 16)
        if not part:
            return
        said = (said + part)[-4096:]
        os.write(1, part)
        if not runs and STARTED in said:
            runs = True
            print(READY, flush=True)


if __name__ == "__main__":
    main()
