"""How actors and environment workers are ended: asked first, then killed. They ignore SIGTERM."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ludus.envs.backends.workers import Workers
from ludus.fleets.processes.fleet import ProcessFleet
from ludus.process.supervisor import Child
from tests.fleets.test_processes import free
from tests.started import end_started, kept, survivors


class Process:
    """Ends when it is asked and waited for, or else only when it is killed."""

    def __init__(self, *, hangs: bool) -> None:
        self.hangs, self.alive, self.befell = hangs, True, []

    def is_alive(self) -> bool:
        return self.alive

    def join(self, seconds: float) -> None:
        if self.befell[-1:] != ["wait"]:
            self.befell.append("wait")
        self.alive = self.alive and self.hangs

    def kill(self) -> None:
        self.befell.append("kill")
        self.hangs = False

    terminate = None  # nobody may call it


def pipe(sent):
    return SimpleNamespace(send=sent.append, poll=lambda seconds: False, close=lambda: None)


@pytest.mark.parametrize(
    ("hangs", "known", "befell"),
    [
        (False, False, ["wait"]),
        (True, False, ["wait", "kill", "wait"]),
        (True, True, ["kill", "wait"]),
    ],
)
def test_an_actor_that_is_known_to_hang_is_not_waited_for(hangs, known, befell):
    pool, process, sent = ProcessFleet.__new__(ProcessFleet), Process(hangs=hangs), []
    pool.orders = np.zeros(1)
    pool.members = [Child(process, pipe(sent), dump_asked=1.0 if known else None)]
    pool.close()
    assert process.befell == befell and not process.alive and not pool.members
    assert sent == [("close", None)]


@pytest.mark.parametrize("hangs", [False, True])
def test_a_worker_that_does_not_answer_is_killed(hangs):
    workers, process, sent = Workers.__new__(Workers), Process(hangs=hangs), []
    workers._children = [Child(process, pipe(sent))]
    workers.close()
    assert process.befell == (["wait", "kill", "wait"] if hangs else ["wait"])
    assert not process.alive and sent == [("close", None)]


# Every kind of process that ignores SIGTERM: actors, workers of environments, hogwild workers.
FAILS = """
import sys
from multiprocessing import active_children
from pathlib import Path
from tests.fleets.test_hogwild_faults import begun
from tests.fleets.test_processes import free, loop_of
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    loops = [
        free(folder / "free"),
        loop_of(folder / "workers", "dqn", "inline", **{"env.workers": 1, "run.actors": 1}),
        begun(folder)[0],
    ]
    print(*[child.pid for child in active_children()], flush=True)
    raise SystemExit(3)
"""


def test_a_program_that_fails_before_it_closes_its_fleet_ends(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    program = kept(
        subprocess.Popen(
            [sys.executable, script, tmp_path], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
    )  # fmt: skip
    out, _ = program.communicate(timeout=270)
    children = [int(pid) for pid in out.split()]
    assert program.returncode == 3 and len(children) == 5
    assert not survivors(children)


def test_a_test_that_fails_before_it_closes_its_fleet_leaves_no_process(tmp_path):
    free(tmp_path)
    left = [child.pid for child in multiprocessing.active_children()]
    assert len(left) == 2
    end_started()  # what follows every test
    assert not multiprocessing.active_children() and not survivors(left)
