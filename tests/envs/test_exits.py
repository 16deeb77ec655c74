"""An environment that calls sys.exit(), or raises what is no Exception, fails like any other: the
run says so and keeps what it has learned. One that fails in close() has done its work."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import ludus
from ludus.envs.check import check_env
from ludus.envs.config import EnvConfig
from ludus.errors import LudusError, env_faults
from ludus.process.signals import HungError
from ludus.track.checkpoint.reader import load
from ludus.track.run_dir.rundir import RunDir
from ludus.track.run_dir.status import read_status


class PanicError(BaseException):
    """As the bindings of some compiled simulators raise it."""


class Exits(gym.Env[Any, Any]):
    """Calls sys.exit(), or panics, where it is told to."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, where: str = "step", after: int = 20, *, panic: bool = False) -> None:
        self.where, self.left, self.panic = where, after, panic
        self._leave("init")

    def _leave(self, where: str) -> None:
        if where == self.where:
            self.left -= 1
            if self.left < 0 or where != "step":
                if self.panic:
                    raise PanicError("out of here")
                sys.exit("out of here")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._leave("reset")
        return np.zeros(1, np.float32), {}

    def action_masks(self) -> Any:
        self._leave("mask")
        return np.ones(2, bool)

    def step(self, action: Any) -> Any:
        self._leave("step")
        return np.zeros(1, np.float32), 1.0, False, False, {}

    def close(self) -> None:
        self._leave("close")


EXITS = "tests.envs.test_exits:Exits"
SMALL = {"steps": 400, "rollout": 8, "env.num": 2, "tensorboard": False}


@pytest.mark.parametrize(
    ("where", "place"),
    [
        ("init", {}),
        ("reset", {}),
        ("mask", {}),
        ("step", {}),
        ("step", {"env.workers": 1}),
        ("step", {"run.fleet": "processes", "run.actors": 1, "env.args.after": 0}),
    ],
    ids=str,
)
def test_a_run_says_that_its_environment_left(tmp_path, where, place):
    cfg = ludus.config("ppo", EXITS, **SMALL, **place, **{"env.args.where": where})
    with pytest.raises(LudusError) as failed:
        ludus.train(cfg, runs_dir=tmp_path, run="x", quiet=True)
    assert failed.value.code in ("E201", "E205", "E206")
    assert "SystemExit" in str(failed.value) and "out of here" in str(failed.value)
    if where == "step" and not place:
        assert "sys.exit()" in failed.value.why and "test_exits.py" in failed.value.where


@pytest.mark.parametrize("where", ["init", "reset", "mask", "step"])
def test_what_is_no_exception_is_a_fault_of_the_environment(tmp_path, where):
    settings = {**SMALL, "env.args.where": where, "env.args.panic": True}
    cfg = ludus.config("ppo", EXITS, **settings)
    with pytest.raises(LudusError) as failed:
        ludus.train(cfg, runs_dir=tmp_path, run="x", quiet=True)
    assert failed.value.code in ("E201", "E205") and "PanicError" in str(failed.value)
    if where == "step":
        status = read_status(RunDir(tmp_path / "x"))
        assert status["state"] == "failed" and load(tmp_path / "x").step == status["step"] > 0


def test_another_environment_takes_the_place_of_one_that_panicked(tmp_path):
    more = {"env.args.panic": True, "env.on_error": "restart", "steps": 100}
    cfg = ludus.config("ppo", EXITS, **{**SMALL, **more})
    assert ludus.train(cfg, runs_dir=tmp_path, quiet=True).step >= 100


@pytest.mark.parametrize("raised", [KeyboardInterrupt, HungError, PanicError, ValueError])
def test_interrupts_alone_are_not_the_fault_of_an_environment(raised):
    caught = ""
    try:
        raise raised(2, "") if raised is HungError else raised
    except env_faults():
        caught = "environment"
    except KeyboardInterrupt:
        caught = "user"
    assert caught == ("user" if issubclass(raised, KeyboardInterrupt) else "environment")


@pytest.mark.parametrize("place", [{}, {"env.workers": 1}], ids=str)
def test_an_environment_that_fails_in_close_has_done_its_work(tmp_path, place, recwarn):
    cfg = ludus.config("ppo", EXITS, **SMALL, **place, **{"env.args.where": "close"})
    done = ludus.train(cfg, runs_dir=tmp_path, run="x", quiet=True)
    assert done.step >= 400 and read_status(RunDir(tmp_path / "x"))["state"] == "finished"
    said = [str(w.message) for w in recwarn if "close()" in str(w.message)]
    assert place or any("SystemExit" in text and "out of here" in text for text in said)


@pytest.mark.parametrize("where", ["init", "reset", "mask", "step", "close"])
def test_check_names_the_environment_that_leaves(where):
    found = check_env(EnvConfig(id=EXITS, args={"where": where, "after": 3}), steps=20, seconds=3)
    assert any("SystemExit" in f.text and "out of here" in f.text for f in found)


SCRIPT = """
import ludus
cfg = ludus.config("dqn", "ludus/Counter-v0", steps=200, warmup=40, batch=8, tensorboard=False,
                   **{settings})
ludus.train(cfg, runs_dir="runs", quiet=True)
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "names"),
    [({"env.workers": 1, "env.native": False}, "env.workers"),
     ({"run.fleet": "processes", "run.actors": 1}, "run.fleet")],
    ids=str,
)  # fmt: skip
def test_a_script_without_a_main_guard_is_an_error(tmp_path, settings, names):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT).replace("{settings}", repr(settings)))
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    said = done.stderr + done.stdout
    assert done.returncode != 0 and "done" not in done.stdout
    last = said[said.rindex("error[") :]
    assert "if __name__ == '__main__':" in last and names in last, said
    assert "script.py" in last, said
