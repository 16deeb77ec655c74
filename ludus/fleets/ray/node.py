"""The process that holds a Ray node of this machine. It ends the node and all processes on it when
its standard input ends: when the learner's process closes it, exits or is killed.

    python -m ludus.fleets.ray.node FOLDER CPUS RESOURCE=NUMBER
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress

import psutil

from ludus.process.signals import ignore_signals

ADDRESS = "ludus-ray-address="
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


def main() -> None:
    folder, cpus, resource = sys.argv[1:]
    ignore_signals()
    adopt_orphans()
    name, _, number = resource.partition("=")
    import ray

    try:
        context = ray.init(
            address="local", include_dashboard=False, log_to_driver=False, num_cpus=int(cpus),
            resources={name: int(number)} if name else None, _temp_dir=folder,
        )  # fmt: skip
        print(f"{ADDRESS}{context.address_info['gcs_address']}", flush=True)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)  # nobody reads the rest
        os.dup2(quiet, 2)
        while os.read(0, 1 << 10):
            pass
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    finally:
        end_children()
        os._exit(0)


def adopt_orphans() -> None:
    """Become the parent of processes below this one whose own parent dies."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(SUBREAPER, 1)


def end_children() -> None:
    """Kill all processes below this one. A dying node may start more meanwhile."""
    own = psutil.Process()
    while children := own.children(recursive=True):
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children, timeout=1.0)


if __name__ == "__main__":
    main()
