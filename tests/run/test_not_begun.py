"""A new run that is refused at its first reset: its status and log say so."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import ludus
from ludus.cli.main import run as command
from ludus.errors import LudusError
from ludus.track.run_dir.rundir import RunDir
from ludus.track.run_dir.status import read_status


class Blind(gym.Env[Any, Any]):
    """Its observations are not finite, which is seen when the run resets it."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.full(4, np.nan, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.full(4, np.nan, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize("place", [{}, {"run.fleet": "processes", "run.actors": 1}], ids=str)
def test_a_run_whose_first_reset_is_refused_has_failed(tmp_path, place, capsys):
    name = f"{__name__}:Blind"
    cfg = ludus.config("dqn", name, steps=300, tensorboard=False, **place)
    with pytest.raises(LudusError) as refused:
        ludus.train(cfg, runs_dir=tmp_path, run="x", quiet=True)
    status = read_status(RunDir(tmp_path / "x"))
    assert status["state"] == "failed" and status["step"] == 0
    assert refused.value.what.splitlines()[0] in status["reason"]
    log = (tmp_path / "x" / "log.txt").read_text()
    assert refused.value.code in log and "error" in log
    assert command(["logs", "x", "--runs-dir", str(tmp_path)]) == 0
    assert refused.value.code in capsys.readouterr().out
