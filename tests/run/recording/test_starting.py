"""What a run says of itself before its actors answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.cli.main import run as command
from ludus.run import session
from ludus.run.recording import messages
from ludus.track.callbacks import Callback
from ludus.track.run_dir.rundir import RunDir
from ludus.track.run_dir.status import StatusWriter, read_status
from tests.contract.tiny import run, tiny


@pytest.mark.parametrize("quiet", [False, True])
def test_a_start_is_announced_before_the_first_actor(tmp_path, capsys, monkeypatch, quiet):
    seen = []

    def build(cfg, algorithm, run, **_):
        seen.append((read_status(RunDir(run.path))["state"], capsys.readouterr().out))
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "build_loop", build)
    with pytest.raises(KeyboardInterrupt, match="before the first step"):
        run(tiny("dqn", "CartPole-v1", "fleet=processes", "actors=2"), tmp_path, quiet=quiet)
    [(state, said)] = seen
    assert state == "starting" and ("starting 2 actors" in said) is not quiet


@pytest.mark.parametrize(
    ("actors", "num", "result"),
    [
        (2, 64, "2 actors, each builds 64 emulators, about 10 s"),
        (5, 64, "5 actors, each builds 64 emulators, about 29 s"),  # three after each other
        (1, 64, "1 actor, which builds 64 emulators, about 10 s"),
        (2, 4, "2 actors"),
    ],
)
def test_emulators_take_a_while(monkeypatch, actors, num, result):
    monkeypatch.setattr(messages, "available_cores", lambda: 2)
    cfg = tiny("dqn", "pong", "fleet=processes", f"actors={actors}", f"env.num={num}")
    assert messages.starting_actors(cfg) == result
    plain = tiny("dqn", "CartPole-v1", "fleet=processes", f"actors={actors}", f"env.num={num}")
    assert "emulators" not in messages.starting_actors(plain)


@pytest.mark.parametrize(
    ("algo", "fleet", "acting", "comm"),
    [
        ("impala", "processes", "in 1 process, free", "ludus-actor-0"),
        ("a3c", "hogwild", "hogwild, 1 worker", "ludus-worker-0"),
    ],
)
def test_status_tells_of_the_actors(tmp_path, algo, fleet, acting, comm):
    class Look(Callback):
        def __init__(self):
            self.names = []

        def on_episode(self, run, episode):
            result = read_status(RunDir(run.path))
            pids = result["actors"]["pids"].split()
            self.names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids]

    look = Look()
    cfg = tiny(algo, "CartPole-v1", "steps=400", "actors=1", f"fleet={fleet}")
    path = run(cfg, tmp_path, callbacks=[look]).path
    result = read_status(RunDir(path))
    assert look.names == [comm] and result["compute"]["acting"] == acting
    assert result["actors"]["alive"] == 1 and result["actors"]["restarts"] == 0
    if fleet == "processes":
        assert {"policy_lag", "waiting_chunks", "dropped_chunks"} < set(result["actors"])


def test_a_fleet_that_is_refused_leaves_no_run(tmp_path, capsys):
    words = ["train", "dqn", "CartPole-v1", "fleet=hogwild", "actors=2"]
    assert command([*words, "--runs-dir", str(tmp_path)]) == 2
    assert "E104" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_run_without_a_checkpoint_is_not_offered_to_be_resumed(tmp_path, capsys):
    place = RunDir.create(tmp_path, "CartPole-v1", "dqn", 1, name="x")
    StatusWriter(place).beat("running", 40, 3)
    for more in ((), ("--json",)):
        assert command(["status", "x", "--runs-dir", str(tmp_path), *more]) == 0
        said = capsys.readouterr().out
        assert "dead" in said and "ludus resume" not in said
