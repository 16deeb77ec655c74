"""How actors and environment workers are ended: asked first, then killed. They ignore SIGTERM."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from ludus.envs.workers import Workers
from ludus.run.crew import Crew


class Process:
    """Ends when it is asked and waited for, or else only when it is killed."""

    def __init__(self, *, hangs: bool) -> None:
        self.hangs, self.alive, self.befell = hangs, True, []

    def is_alive(self) -> bool:
        return self.alive

    def join(self, seconds: float) -> None:
        self.befell.append("wait")
        self.alive = self.alive and self.hangs

    def kill(self) -> None:
        self.befell.append("kill")
        self.hangs = False

    terminate = None  # nobody may call it


def pipe(sent):
    return SimpleNamespace(send=sent.append, close=lambda: None)


@pytest.mark.parametrize(
    ("hangs", "known", "befell"),
    [
        (False, False, ["wait"]),
        (True, False, ["wait", "kill", "wait"]),
        (True, True, ["kill", "wait"]),
    ],
)
def test_an_actor_that_is_known_to_hang_is_not_waited_for(hangs, known, befell):
    crew, process, sent = Crew.__new__(Crew), Process(hangs=hangs), []
    crew.orders = SimpleNamespace(array=lambda: np.zeros(1))
    dumping = 1.0 if known else None
    job = SimpleNamespace(stacks=None)
    crew.members = [SimpleNamespace(process=process, pipe=pipe(sent), job=job, dumping=dumping)]
    crew.close()
    assert process.befell == befell and not process.alive and not crew.members
    assert sent == [("close", None)]


@pytest.mark.parametrize("hangs", [False, True])
def test_a_worker_that_does_not_answer_is_killed(hangs):
    workers, process, sent = Workers.__new__(Workers), Process(hangs=hangs), []
    workers._pipes, workers._processes = [pipe(sent)], [process]
    workers.close()
    assert process.befell == (["wait", "kill", "wait"] if hangs else ["wait"])
    assert not process.alive and sent == [("close", None)]
