"""Every role on a host of its own: network namespaces with addresses, the token on.

One cluster for all tests of this file; the roles are started as a user would start them.
"""

from __future__ import annotations

import time
from contextlib import suppress

import psutil
import pytest
from multi_node_replay import ReplayTrial
from net_hosts import Hosts, possible

from tests.skips import REASONS

pytestmark = pytest.mark.slow
HEAD, ACTOR, REPLAY, EVALUATOR = range(4)


class Roles(ReplayTrial):
    """Learner and head on host 0, an actor on host 1, the replay on 2, the evaluator on 3."""

    run_words = (
        "prioritized-dqn", "run.actors=2", "run.replays=1", "eval.live=true", "eval.episodes=2",
    )  # fmt: skip

    def start_cluster(self) -> None:
        super().start_cluster()
        words = ("--join", self.address, "--key-file", str(self.key))
        self.ludus(
            EVALUATOR, "evaluator", "evaluator", *words, "--host", self.hosts.addresses[EVALUATOR]
        )
        self.until("host 3 joins", lambda: self._said("evaluator", "joined"))

    def names(self, host: int) -> set[str]:
        found = set()
        for pid in self.hosts.pids(host):
            with suppress(psutil.NoSuchProcess):
                found.add(" ".join(psutil.Process(pid).cmdline()))
        return {
            name.split("::")[1].split(".")[0].strip() for name in found if name.startswith("ray::")
        }


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """A run that learns, with each role where it was offered a place."""
    if possible():
        pytest.skip(REASONS["hosts"])
    with Hosts(4) as hosts:
        made = Roles(hosts, tmp_path_factory.mktemp("hosts"), None)
        made.start_cluster()
        made.start_learner()
        made.until("updates", lambda: made.updates() > 200)
        yield made


def test_actors_on_another_host_need_an_address_and_the_token(trial):
    assert trial.names(ACTOR) >= {"RayActor"} and len(trial.pids(ACTOR)) == 2
    assert not trial.names(HEAD) & {"RayActor"}, "none on the learner's host"
    assert trial.goes_on(500) >= 500


def test_the_replay_is_a_process_on_another_host(trial):
    assert trial.names(REPLAY) >= {"RayReplay"} and len(trial.roles(REPLAY)) == 1
    assert not trial.names(HEAD) & {"RayReplay"}
    assert trial.learns_on(100) >= 100
    assert trial.rows.stat().st_size > 0, "the process on that host inserts the rows"


def test_learner_replay_actor_and_evaluator_are_separate_commands(trial):
    """Each host runs one command, and the evaluator on the last one delivers scores."""
    trial.until("the evaluator", lambda: "EvaluatorActor" in trial.names(EVALUATOR))
    file = trial.folder / "runs" / "trial" / "evals.csv"
    trial.until("a score", lambda: file.exists() and ",live," in file.read_text())
    assert trial.learner.poll() is None


def test_a_killed_learner_finds_its_actors_again(trial):
    before, step = trial.pids(ACTOR), trial.step()
    for pid in trial.hosts.pids(HEAD):
        if "learner" in psutil.Process(pid).cmdline()[3:4]:
            psutil.Process(pid).kill()
    trial.learner.wait(30)
    time.sleep(1)
    trial.start_learner()
    trial.until("the learner goes on", lambda: trial.step() > step)
    assert trial.pids(ACTOR) == before
    assert trial.learns_on(100) >= 100, "from a replay role again"
